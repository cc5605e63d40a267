# SPDX-License-Identifier: MIT
# spillway/_recompute/module_state.py - what a module and its parts have when it runs
"""Between the forward pass of a module and its recomputation a program may have given it other
attributes, parameters, buffers or parts: another adapter is active, torch.func.functional_call()
has ended, a weight is frozen, a rate is another one. Its second run is to see those of the first.
What else the module's code can reach, and what is inside of tensors and of objects, is not kept.

Attributes that are results of operations, or large tensors, are held weakly: a model may put the
output of a layer on it, whose graph holds what belongs to the step before, and so on."""
from __future__ import annotations

import functools
import weakref
from typing import Any, Callable, Dict, List, Tuple

from torch import Tensor, nn

# Dicts of a module by name, in each of its instances.
_TABLES = "_parameters", "_buffers", "_modules"
# Those of PyTorch itself, hooks for instance, which foreign_hooks.py is about.
_INTERNAL = set(vars(nn.Module())) - {"training"}
_CONTAINERS = list, dict, set, tuple
_LARGE_BYTES = 64 << 10

State = Tuple[nn.Module, Dict[str, Any], Dict[str, Dict[str, Any]]]


class _Weak(weakref.ref):  # type: ignore[type-arg]
    """To a tensor. An attribute may be another weak reference itself."""

    __slots__ = ()


def _held(value: Any) -> Any:
    if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
        return value
    is_large = value.numel() * value.element_size() > _LARGE_BYTES
    return _Weak(value) if is_large or value.grad_fn is not None else value


def _item(kept: Any) -> Any:
    """:raises ReferenceError: a tensor is gone"""
    if type(kept) is not _Weak:
        return kept
    tensor = kept()
    if tensor is None or not _is_there(tensor):
        raise ReferenceError("a tensor is gone")
    return tensor


def _copied(value: Any, of: Callable[[Any], Any]) -> Any:
    """Of a container a copy, with what each item becomes; of a set as it is."""
    kind = type(value)
    if kind is dict:
        return {key: of(item) for key, item in value.items()}
    if kind is set:
        return value.copy()
    return kind(map(of, value)) if kind in _CONTAINERS else of(value)


def _is_same(now: Any, then: Any) -> bool:
    """Whether a value is that of then, or a container that holds the same."""
    if type(now) is not type(then) or type(then) not in _CONTAINERS:
        return now is then
    if len(now) != len(then):
        return False
    if type(then) is set:
        return bool(now == then)
    if type(then) is dict:
        return all(one is other for one, other in zip(now, then)) and all(
            one is other for one, other in zip(now.values(), then.values()))
    return all(one is other for one, other in zip(now, then))


def _is_there(tensor: Any) -> bool:
    """Whether it still has its memory: FSDP frees what it has gathered."""
    return not isinstance(tensor, Tensor) or type(tensor) not in (Tensor, nn.Parameter) or (
        tensor.numel() == 0 or tensor.untyped_storage().nbytes() > 0)


class ModuleState:
    """Of a module and its parts, as they are now."""

    def __init__(self, module: nn.Module) -> None:
        self._parts: List[State] = []
        self._trained: List[Tuple[Any, bool]] = []  # parameters, and whether they need gradients
        for part in module.modules():
            things = vars(part)
            own = {name: _copied(value, _held) for name, value in things.items()
                   if name not in _INTERNAL}
            tables = {name: dict(things[name]) for name in _TABLES if things.get(name)}
            self._parts.append((part, own, tables))
            self._trained += [(parameter, parameter.requires_grad)
                              for parameter in tables.get("_parameters", {}).values()
                              if parameter is not None]
        self._undos: List[Callable[[], Any]] = []

    def take(self) -> None:
        """Give them back what they had then, until put_back()."""
        for part, own, tables in self._parts:
            things = vars(part)
            for name in [name for name in things if name not in _INTERNAL and name not in own]:
                self._undos.append(functools.partial(things.__setitem__, name, things[name]))
                del things[name]
            for name, kept in own.items():
                try:
                    value = _copied(kept, _item)
                except ReferenceError:  # what is there now stays
                    continue
                if name not in things:
                    self._undos.append(functools.partial(things.pop, name, None))
                elif _is_same(things[name], value):
                    continue
                else:
                    self._undos.append(functools.partial(things.__setitem__, name, things[name]))
                things[name] = value
            for name in _TABLES:
                self._take_table(things, name, tables.get(name, {}))
        for parameter, requires_grad in self._trained:
            if parameter.requires_grad != requires_grad and parameter.is_leaf:
                self._undos.append(
                    functools.partial(parameter.requires_grad_, parameter.requires_grad))
                parameter.requires_grad_(requires_grad)

    def _take_table(self, things: Dict[str, Any], name: str, then: Dict[str, Any]) -> None:
        now = things.get(name)
        if now is None or _is_same(dict(now), then) or not all(map(_is_there, then.values())):
            return
        self._undos.append(functools.partial(things.__setitem__, name, now))
        things[name] = type(now)(then)

    def put_back(self) -> None:
        while self._undos:
            self._undos[-1]()
            self._undos.pop()
