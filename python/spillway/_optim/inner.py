# SPDX-License-Identifier: MIT
# spillway/_optim/inner.py - the class's own optimizer: how it is made, and told what to do
"""It steps by its loops over single tensors, whatever tensors it is given. Many classes count their
steps in the options of a group: what an act has made of them is returned."""
from __future__ import annotations

import contextlib
import copy
import operator
from typing import Any, Callable, ContextManager, Dict, List, Optional, Sequence, Type

import torch
from torch import Tensor
from torch.optim import Optimizer

# Options that choose other arithmetic than loops over single tensors.
ARITHMETIC = ("foreach", "fused")
# What torch.optim.lr_scheduler adds to a group. Some classes take no other names than theirs.
_OF_SCHEDULERS = ("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr")
ABSENT = object()
Options = Dict[str, Any]
# What an optimizer is told to do.
Act = Callable[[Optimizer], Any]


def on_host() -> ContextManager[Any]:
    """Here a class of optimizer makes its tensors on the host, whatever the default device is."""
    if torch.empty(0).device.type == "cpu":  # any device: asks for the default
        return contextlib.nullcontext()
    host: Any = torch.device("cpu")
    return host if hasattr(host, "__enter__") else contextlib.nullcontext()


def make(optimizer_class: Type[Optimizer], params: List[Tensor], group: Options,
         options: Options) -> Optimizer:
    """An optimizer of the class over these tensors, with the options of a group, that steps by its
    loops over single tensors: foreach and fused arithmetic may round otherwise."""
    group = options_of(group)
    group.update({name: False for name in ARITHMETIC if name in group})
    later = {name: group.pop(name) for name in _OF_SCHEDULERS if name in group}
    with on_host():
        made = optimizer_class([{"params": params, **group}], **options)
    made.param_groups[0].update(later)
    for name in ARITHMETIC:
        if name in made.defaults:
            made.param_groups[0][name] = False
    return made


def stand_in(*sides: int) -> Tensor:
    """For a parameter, where it does not matter which."""
    return torch.zeros(sides, dtype=torch.float32, device="cpu")


def made_alike(optimizer_class: Type[Optimizer], group: Options, options: Options) -> Optimizer:
    """An optimizer over a stand-in with as many sides as the class takes.

    :raises Exception: the class's own: it takes none, or not these options
    """
    first: Optional[Exception] = None
    for sides in ((1,), (1, 1), (1, 1, 1, 1)):
        try:
            return make(optimizer_class, [stand_in(*sides)], group, options)
        except Exception as error:
            first = first or error
    assert first is not None
    raise first


def made_options(optimizer_class: Type[Optimizer], group: Options, options: Options) -> Options:
    """What the class makes of the options of a group: some add others, or make a tensor of a
    learning rate."""
    return options_of(made_alike(optimizer_class, group, options).param_groups[0])


def options_of(group: Options) -> Options:
    """The options of a group, without its parameters and their names."""
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}


def step_of(optimizer_class: Type[Optimizer]) -> Callable[[Optimizer], Any]:
    """Its step without the profiler's mark and without hooks: those are for whole steps."""
    step = optimizer_class.step
    while getattr(step, "hooked", False) and hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    return step


def take_step(optimizer: Optimizer) -> Any:
    return step_of(type(optimizer))(optimizer)
# Classes that train other values than those that are to be evaluated turn the ones into the others.
TRAIN: Act = operator.methodcaller("train")
EVAL: Act = operator.methodcaller("eval")


def turns(optimizer_class: Type[Optimizer]) -> bool:
    return all(callable(getattr(optimizer_class, name, None)) for name in ("train", "eval"))


def give(optimizer: Optimizer, params: List[Tensor], group: Options) -> None:
    """It has these parameters, with the options of a group; some classes begin to count when they
    are constructed."""
    loops = {name: False for name in ARITHMETIC if name in optimizer.defaults}
    optimizer.param_groups = [{**own_of(group), **loops, "params": params}]


def act_on_one(optimizer: Optimizer, param: Tensor, state: Optional[Options], group: Options,
               act: Act) -> Options:
    """With a parameter alone, with this state; None: with what the optimizer has for it. Return: as
    acted()."""
    state = optimizer.state.get(param) if state is None else state
    give(optimizer, [param], group)
    optimizer.state.clear()
    if state is not None:
        optimizer.state[param] = state
    return acted(optimizer, act)


def acted(optimizer: Optimizer, act: Act) -> Options:
    """It does that with all that it has. Return: what it has made of the options of its first
    group."""
    before = own_of(optimizer.param_groups[0])
    with torch.no_grad(), on_host():
        act(optimizer)
    return changes_in(before, options_of(optimizer.param_groups[0]))


def own_of(group: Options) -> Options:
    """The options of a group, with copies of those that a step may change in place."""
    return {name: _own(value) for name, value in options_of(group).items()}


def _own(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    return kept(value) if type(value) in (list, dict) else value


class Refused(Exception):
    """Why a class cannot be cut into tiles, in words."""


def changes_in(before: Options, after: Options) -> Options:
    """What a step has made of the options of a group: many classes count their steps there.

    :param before: of own_of()
    :raises Refused: something else than numbers and words, and what contains them
    """
    changes = {name: _own(value) for name, value in after.items()
               if name not in before or not (before[name] is value or same(before[name], value))}
    for name, value in changes.items():
        if not _is_plain_value(value):
            raise Refused(f"it changes its param_groups as it steps: {name}, a "
                          f"{type(value).__name__}")
    for name in before.keys() - after.keys():
        raise Refused(f"it changes its param_groups as it steps: {name} is gone")
    return changes


def _is_plain_value(value: Any) -> bool:
    if type(value) in (tuple, list):
        return all(map(_is_plain_value, value))
    if type(value) is dict:
        return all(map(_is_plain_value, [*value, *value.values()]))
    if type(value) is Tensor:
        return value.dim() == 0 and value.is_cpu and is_plain(value)
    return value is None or type(value) in (bool, int, float, str)


def is_plain(value: Any) -> bool:
    """Whether all of a tensor is in the bytes of its elements."""
    return type(value) in (Tensor, torch.nn.Parameter) and not value.is_quantized


def one_of(changes: Sequence[Options]) -> Options:
    """What steps have made of the same options.

    :raises Refused: not the same
    """
    names = {name for each in changes for name in each
             if not same(each[name], changes[0].get(name, ABSENT))}
    names.update(name for each in changes for name in changes[0].keys() - each.keys())
    if names:
        raise Refused("it changes its param_groups as it steps, by what it steps: "
                      + ", ".join(sorted(names)))
    return changes[0]


def changes_without_gradients(optimizer_class: Type[Optimizer], group: Options, options: Options,
                              act: Act = take_step) -> Options:
    """What a step makes of the options of a group in which nothing has a gradient."""
    return acted(alone(optimizer_class, group, options), act)


def alone(optimizer_class: Type[Optimizer], group: Options, options: Options) -> Optimizer:
    """Over a stand-in, with these options."""
    optimizer = made_alike(optimizer_class, own_of(group), options)
    give(optimizer, optimizer.param_groups[0]["params"], group)
    return optimizer


def copied(value: Any) -> Any:
    """What a class does with it is not done to its owner's; of a lock, say, there is no copy."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def kept(value: Any) -> Any:
    """A copy to compare with later. An object that equals only itself is not copied."""
    if type(value) is dict:
        return {name: kept(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(kept, value))
    return value if getattr(type(value), "__eq__") is object.__eq__ else copied(value)


def same(one: Any, other: Any) -> bool:
    """Bit for bit, as far as numbers have bits that count: NaN is the same as NaN."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return (one.dtype == other.dtype and one.shape == other.shape
                and bool(((one == other) | ((one != one) & (other != other))).all()))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))
