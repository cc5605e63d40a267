# SPDX-License-Identifier: MIT
# spillway/plan/_module.py - what a module needs, by building and running it without memory
from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Dict, List, Sequence, Tuple

import torch
from torch import Tensor, nn

from .._core.scopes import layers_of
from .._core.torch_compat import storage_of
from ..plan import Model

_META = torch.device("meta")


def made(name: str) -> nn.Module:
    """What a factory makes, on the meta device: nothing has memory.

    :param name: MODULE:FACTORY, a function without arguments, or a module; found from the present
        folder, too
    :raises ValueError: there is none, or it makes no module
    """
    module, _, factory = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        function: Any = importlib.import_module(module)
        for part in factory.split("."):
            function = getattr(function, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{name}: there is no such factory: {error}") from error
    finally:
        sys.path.pop(0)
    if not callable(function):
        raise ValueError(f"{name} cannot be called")
    with _META:
        model = function()
    if not isinstance(model, nn.Module):
        raise ValueError(f"{name} makes a {type(model).__name__}, and no torch.nn.Module")
    return model.to(_META)


def _own_bytes(module: nn.Module) -> int:
    return sum(param.numel() * param.element_size() for param in module.parameters())


def _measure_forward(model: nn.Module, scopes: Sequence[nn.Module], inputs: Sequence[Tensor],
           ) -> Tuple[int, int, float]:
    """(bytes that a forward pass saves, those of the largest scope, operations of a forward pass):
    by running it. Storages count once; parameters do not.

    :raises ValueError: it does not run without memory, or on such inputs
    """
    from torch.utils.flop_counter import FlopCounterMode

    seen = {storage_of(thing)._cdata for thing in (*model.parameters(), *model.buffers())}
    kept: List[Any] = []  # a storage that has gone would give its address to another
    total, largest, entered = 0, 0, 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal total
        storage = storage_of(tensor)
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            kept.append(storage)
            total += storage.nbytes()
        return tensor

    def enter(*_: Any) -> None:
        nonlocal entered
        entered = total

    def leave(*_: Any) -> None:
        nonlocal largest
        largest = max(largest, total - entered)

    for scope in scopes:
        scope.register_forward_pre_hook(enter)
        scope.register_forward_hook(leave)
    counter = FlopCounterMode(display=False)
    try:
        with counter, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(*inputs)
    except Exception as error:  # of the model's own
        raise ValueError(f"the model does not run on the meta device with these inputs: {error}"
                         ) from error
    return total, max(largest, 1), float(counter.get_total_flops())


def inputs_of(words: Sequence[str]) -> List[Tensor]:
    """Of words such as 4,1024:int64, tensors without memory.

    :raises ValueError: a word is not a shape
    """
    inputs = []
    for word in words:
        sides, _, name = word.partition(":")
        dtype = getattr(torch, name or "int64", None)
        try:
            shape = [int(side) for side in sides.split(",")]
        except ValueError:
            shape = []
        if not shape or min(shape) < 1 or not isinstance(dtype, torch.dtype):
            raise ValueError(f"{word!r}: an input is like 4,1024:int64, a shape and a type")
        inputs.append(torch.empty(shape, dtype=dtype, device=_META))
    return inputs


def model_of(name: str, words: Sequence[str], micro_batches: int) -> Model:
    """
    :param words: of the inputs of a micro-batch
    :raises ValueError: as made(), inputs_of(); or its parameters are of several lengths
    """
    model = made(name)
    scopes = layers_of(model) or [model]
    lengths: Dict[int, int] = {}
    for param in model.parameters():
        size = param.element_size()
        lengths[size] = lengths.get(size, 0) + param.numel()
    if len(lengths) != 1:
        raise ValueError(f"{name}: its parameters have elements of {len(lengths)} lengths; plan "
                         "for one")
    (element_bytes, count), = lengths.items()
    activation, largest, flops = _measure_forward(model, scopes, inputs_of(words))
    # A backward pass computes twice what the forward pass does.
    return Model(name, count, element_bytes, max(map(_own_bytes, scopes)),
                 element_bytes * max(param.numel() for param in model.parameters()), activation,
                 largest, micro_batches, 3 * flops * micro_batches)
