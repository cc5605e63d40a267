# SPDX-License-Identifier: MIT
# spillway/_core/scopes.py - scopes of a model, and exclusions
from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterable, List, Set, Union

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .torch_compat import storage_of
from .wrapped import memory_of

_CONTAINERS = nn.ModuleList, nn.Sequential

Scopes = Union[None, Iterable[nn.Module], Callable[[str, nn.Module], bool]]
Exclude = Union[None, Iterable[Union[nn.Module, Tensor]], Callable[[str, nn.Module], bool]]


def layers_of(model: nn.Module) -> List[nn.Module]:
    """The layers of a model: the children of its outermost ModuleLists and Sequentials, in
    order; none lies inside another, and none is a ScriptModule, which takes no hooks."""
    layers: List[nn.Module] = []
    seen: Set[int] = set()

    def visit(module: nn.Module, inside: bool) -> None:
        for child in module.children():
            if isinstance(child, _CONTAINERS):
                visit(child, True)
            elif not inside:
                visit(child, False)
            elif id(child) not in seen and not isinstance(child, torch.jit.ScriptModule):
                seen.add(id(child))
                layers.append(child)

    visit(model, isinstance(model, _CONTAINERS))
    return layers


def parts_of(layer: nn.Module) -> List[nn.Module]:
    """The parts of a layer that do its work, such as attention and feed-forward: its children that
    have parameters and children of their own, and are called; empty: it has less than two. A
    ModuleList is not called: what a layer does with such is within the layer alone."""
    parts = [child for child in layer.children()
             if next(child.children(), None) is not None
             and next(child.parameters(), None) is not None
             and not isinstance(child, torch.jit.ScriptModule)
             and type(child).forward is not nn.Module.forward]
    return parts if len(parts) > 1 else []


def scopes_of(model: nn.Module, scopes: Scopes, with_parts: bool) -> List[nn.Module]:
    """:param with_parts: by default, parts of layers too"""
    if scopes is None:
        layers = layers_of(model)
        if with_parts:
            layers += [part for layer in layers for part in parts_of(layer)]
        return list(dict.fromkeys(layers))
    if callable(scopes):
        return [module for name, module in model.named_modules() if scopes(name, module)]
    return list(scopes)


def excluded_of(model: nn.Module, exclude: Exclude) -> List[Union[nn.Module, Tensor]]:
    """What is excluded of the model as it is now."""
    # RReLU saves the noise that it multiplies by before it is drawn: it must stay where it is.
    things: List[Any] = [module for module in model.modules() if isinstance(module, nn.RReLU)]
    if isinstance(exclude, (nn.Module, Tensor)):
        things.append(exclude)
    elif callable(exclude):
        things += [module for name, module in model.named_modules() if exclude(name, module)]
    else:
        things += exclude or []
    for thing in things:
        if not isinstance(thing, (nn.Module, Tensor)):
            raise TypeError(f"exclude takes modules and tensors, not {type(thing).__name__}")
    return things


def tensors_in(thing: Any, depth: int = 4) -> Iterable[Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(thing, Tensor):
        yield thing
    elif depth and isinstance(thing, (tuple, list, dict)):
        for item in thing.values() if isinstance(thing, dict) else thing:
            yield from tensors_in(item, depth - 1)


def identities(tensors: Iterable[Tensor]) -> Set[int]:
    found = set()
    for tensor in tensors:
        if hasattr(type(tensor), "__tensor_flatten__"):  # a DTensor
            found |= identities(memory_of(tensor))
        if is_lazy(tensor) or tensor.layout is not torch.strided or tensor.is_nested:
            continue
        if tensor.device.type != "meta":
            with contextlib.suppress(RuntimeError, NotImplementedError):  # of vmap: it has none
                found.add(storage_of(tensor)._cdata)
    return found
