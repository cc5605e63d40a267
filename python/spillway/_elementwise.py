# SPDX-License-Identifier: MIT
# spillway/_elementwise.py - what a class of optimizer keeps for each element, and proof that it may
"""A class may have its state cut into tiles if each element of a parameter is stepped by itself:
from its own gradient and its own state, and from numbers of the whole parameter that do not depend
on elements (a count of steps). That is tried, on a small vector of random numbers: whole, in two
parts, in another order and in another shape, it must come to the same bits.
"""
from __future__ import annotations

import copy
import random
from typing import Any, Callable, Dict, List, Tuple, Type

import torch
from torch import Tensor
from torch.optim import Optimizer

from ._tiles import Field, name_of

# Not a multiple of any vector's length, and cut where none ends.
_COUNT = 1003
_CUT = 389
# RAdam changes its rule at its sixth step.
_STEPS = 8
_SHAPE = (17, 59)

Options = Dict[str, Any]


class _Path:
    """One way to give a vector to an optimizer, and to read what it made of it."""

    def __init__(self, split: Callable[[Tensor], List[Tensor]],
                 join: Callable[[List[Tensor]], Tensor]) -> None:
        self.split = split
        self.join = join


def _paths(generator: torch.Generator) -> List[_Path]:
    order = torch.randperm(_COUNT, generator=generator)
    back = torch.argsort(order)
    return [
        _Path(lambda whole: [whole], lambda parts: parts[0]),
        _Path(lambda whole: [whole[:_CUT], whole[_CUT:]], torch.cat),
        _Path(lambda whole: [whole[order]], lambda parts: parts[0][back]),
        _Path(lambda whole: [whole.view(_SHAPE)], lambda parts: parts[0].reshape(-1)),
    ]


def make(optimizer_class: Type[Optimizer], params: List[Tensor], group: Options,
         options: Options) -> Optimizer:
    """An optimizer of the class over these tensors, with the options of a group, that steps by its
    loops over single tensors: foreach and fused arithmetic may round otherwise."""
    group = {name: value for name, value in group.items() if name not in ("params", "param_names")}
    group.update({name: False for name in ("foreach", "fused") if name in group})
    made = optimizer_class([{"params": params, **group}], **options)
    for name in ("foreach", "fused"):
        if name in made.defaults:
            made.param_groups[0][name] = False
    return made


def step_of(optimizer_class: Type[Optimizer]) -> Callable[[Optimizer], Any]:
    """Its step without the profiler's mark and without hooks: those are for whole steps."""
    step = optimizer_class.step
    while getattr(step, "hooked", False) and hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    return step


def _run(optimizer_class: Type[Optimizer], group: Options, options: Options, path: _Path,
         values: Tensor, grads: List[Tensor]) -> Tuple[Tensor, List[Tuple[Options, Options]]]:
    """(the parameter, (fields, what else the state has) after each step). The state is of the
    first part where it is not of elements."""
    params = [part.clone() for part in path.split(values)]
    optimizer = make(optimizer_class, params, copy.deepcopy(group), options)
    before = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
    before = copy.deepcopy(before)
    step, states = step_of(optimizer_class), []
    for grad in grads:
        for param, part in zip(params, path.split(grad)):
            param.grad = part.clone()
        with torch.no_grad():
            step(optimizer)
        states.append(_state_of(optimizer, params, path))
    after = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
    if not _same(before, after):
        raise _Refused("it changes its param_groups as it steps")
    return path.join(params), states


def _state_of(optimizer: Optimizer, params: List[Tensor], path: _Path) -> Tuple[Options, Options]:
    fields, others = {}, {}
    for name, value in optimizer.state.get(params[0], {}).items():
        if isinstance(value, Tensor) and value.dim() > 0:
            parts = [optimizer.state[param][name] for param in params]
            if any(part.shape != param.shape for part, param in zip(parts, params)):
                raise _Refused(f"its state has {name} of another shape than the parameter")
            fields[name] = path.join(parts).clone()
        elif isinstance(value, Tensor):
            others[name] = value.clone()
        elif value is None or isinstance(value, (bool, int, float, str)):
            others[name] = value
        else:
            raise _Refused(f"its state has {name}, a {type(value).__name__}")
    return fields, others


class _Refused(Exception):
    """Why a class cannot be cut into tiles, in words."""


def _same(one: Any, other: Any) -> bool:
    """Bit for bit, as far as numbers have bits that count: NaN is the same as NaN."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return (one.dtype == other.dtype and one.shape == other.shape
                and bool(((one == other) | ((one != one) & (other != other))).all()))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))


def _drawn(generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Of many magnitudes, as gradients are, and some exactly zero."""
    values = torch.randn(_COUNT, generator=generator, dtype=torch.float64)
    powers = torch.randint(-6, 3, (_COUNT,), generator=generator).double()
    kept = torch.rand(_COUNT, generator=generator) > 0.05
    return (values * 10**powers * kept).to(dtype)


def is_same_on(device: torch.device, optimizer_class: Type[Optimizer], group: Options,
               options: Options, dtype: torch.dtype) -> bool:
    """Whether steps on a device come to the bits that they come to on the host, of numbers of which
    each kind is there. Other numbers may still differ."""
    generator = torch.Generator().manual_seed(_COUNT)
    values, *grads = [_drawn(generator, dtype) for _ in range(1 + _STEPS)]
    path = _paths(generator)[0]
    here, _ = _run(optimizer_class, group, options, path, values, grads)
    there, _ = _run(optimizer_class, group, options, path, values.to(device),
                    [grad.to(device) for grad in grads])
    return _same(here, there.cpu())


def _prove(optimizer_class: Type[Optimizer], group: Options, options: Options,
           dtype: torch.dtype) -> Tuple[Field, ...]:
    generator = torch.Generator().manual_seed(random.Random(name_of(dtype)).getrandbits(32))
    values, *grads = [_drawn(generator, dtype) for _ in range(1 + _STEPS)]
    first: Any = None
    for path in _paths(generator):
        result = _run(optimizer_class, group, options, path, values, grads)
        if first is None:
            first = result
        elif not _same(first, result):
            raise _Refused("what it does to an element depends on others, or on chance")
    found: Dict[str, torch.dtype] = {}
    for fields, _ in first[1]:
        found.update({name: value.dtype for name, value in fields.items()})
    return tuple(Field(name, found[name]) for name in found)


def probe(optimizer_class: Type[Optimizer], group: Options, options: Options,
          dtype: torch.dtype) -> Tuple[Field, ...]:
    """What the class keeps for each element of a parameter of this type, with a group's options.

    :param group: the options of a group, without its parameters
    :param options: that the class is made with
    :raises TypeError: its state cannot be cut into tiles; says why and what to do
    """
    try:
        return _prove(optimizer_class, group, options, dtype)
    except _Refused as refused:
        reason = str(refused)
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError) as error:
        reason = f"a step on a vector of {name_of(dtype)} fails: {error}"
    raise TypeError(
        f"{optimizer_class.__name__} cannot have its state on drives: {reason}. Only classes that "
        "step each element by itself can (SGD, Adam, AdamW, RMSprop, Adagrad and their like): give "
        f"one of those, or use {optimizer_class.__name__} itself, in memory")
