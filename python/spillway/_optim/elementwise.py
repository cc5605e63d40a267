# SPDX-License-Identifier: MIT
# spillway/_optim/elementwise.py - state of an optimizer class per element, and the proof of it
"""A class may have its state cut into tiles if each element of a parameter is stepped by itself:
from its own gradient and its own state, and from numbers of the whole parameter that do not depend
on elements (a count of steps). That is tried, on a vector of random numbers: whole, in parts, in
another order, in other shapes, and by a call for each part, it must come to the same bits. What a
class does to short parameters says nothing about long ones (8-bit state from 4096 elements on), so
the vector is longer than such limits, and one step is tried with as many elements as there are.
"""
from __future__ import annotations

import math
import random
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._core.tensors import name_of
from .inner import (ABSENT, ARITHMETIC, EVAL, TRAIN, Act, Options, Refused, act_on_one, acted,
                    alone, copied, is_plain, kept, made_options, make, one_of, same, take_step,
                    turns)
from .tiles import Field

# A multiple of the blocks in which classes scale their state (128, 256, 2048), above the sizes from
# which they do (4096); its parts are neither. PyTorch uses one thread for that many.
_COUNT = 7 * 4096
_CUT = 389
# Comes first: a class with a matrix for the sides of a parameter has one of 6 GB for a long vector.
_SHORT = (8, 8)
# The last elements of a tensor, fewer than a vector register has, are computed by other code: some
# functions (a sigmoid) have other bits there. In parts as short as these all elements are.
_FEW, _SHORTEST = 512, 3
# RAdam changes its rule at its sixth step.
_STEPS = 8
# After these the rate is lowered: a class may keep the one that it was made with.
STEPS_BEFORE = 4
# As of a layer's and of a convolution's parameter. Some classes factor the state of large sides.
_SHAPES = ((224, 128), (8, 14, 16, 16))
# One step is tried with all elements, but at most this many.
_COUNT_MAX = 1 << 18

# Fields, what else the state has, and what a step has made of the options of the group.
_State = Tuple[Options, Options, Options]


class _Path:
    """One way to give a vector to an optimizer, and to read what it made of it.

    :param apart: each part by a call of its own, as tiles are stepped
    """

    def __init__(self, split: Callable[[Tensor], List[Tensor]],
                 join: Callable[[List[Tensor]], Tensor], apart: bool = False) -> None:
        self.split = split
        self.join = join
        self.apart = apart


def _shaped(shape: Tuple[int, ...]) -> _Path:
    return _Path(lambda whole: [whole.view(shape)], lambda parts: parts[0].reshape(-1))


def _cut(whole: Tensor) -> List[Tensor]:
    return [whole[:_CUT], whole[_CUT:]]


_WHOLE = _Path(lambda whole: [whole], lambda parts: parts[0])
_IN_PARTS = _Path(_cut, torch.cat)
_IN_SHORTEST = _Path(lambda whole: list(whole.split(_SHORTEST)), torch.cat)


def _paths(generator: torch.Generator) -> List[_Path]:
    order = torch.randperm(_COUNT, generator=generator, device="cpu")
    back = torch.argsort(order)
    return [_WHOLE, _IN_PARTS, *map(_shaped, _SHAPES),
            _Path(lambda whole: _cut(whole[order]), lambda parts: torch.cat(parts)[back], True)]


def _run(optimizer_class: Type[Optimizer], group: Options, options: Options, path: _Path,
         values: Tensor, grads: List[Tensor]) -> Tuple[Tensor, List[_State], Any]:
    """(the parameter, what there is after each step, what it turns the parameter into). The state
    is of the first part where it is not of elements."""
    params = [part.clone() for part in path.split(values)]
    group = {name: copied(value) for name, value in group.items()}
    optimizer = make(optimizer_class, params, group, options)
    itself = InItself(optimizer)

    def act(what: Act) -> Options:
        changes = _apart(optimizer, params, group, what) if path.apart else acted(optimizer, what)
        group.update(changes)
        return changes

    states: List[_State] = []
    turned = []
    if turns(optimizer_class):
        act(TRAIN)
        itself.check()
    for grad in grads:
        for param, part in zip(params, path.split(grad)):
            param.grad = part.clone()
        if len(states) == STEPS_BEFORE:
            lower_rate(group)
            if path.apart:
                optimizer = _made_again(optimizer, params, group, options)
                itself = InItself(optimizer)
            else:
                lower_rate(optimizer.param_groups[0])
        changes = act(take_step)
        itself.check(to_begin=not states)
        states.append((*_state_of(optimizer, params, path), changes))
    for turn in (EVAL, TRAIN) if turns(optimizer_class) else ():
        turned.append((act(turn), path.join(params).clone()))
        itself.check()
    check_turned(turned)
    return path.join(params), states, turned


def lower_rate(group: Options) -> None:
    """As a schedule does."""
    rate = group.get("lr")
    if isinstance(rate, (int, float, Tensor)):
        group["lr"] = rate * 0.5


def _made_again(optimizer: Optimizer, params: List[Tensor], group: Options,
                options: Options) -> Optimizer:
    """As for a parameter that is new, or after a commit was resumed."""
    again = make(type(optimizer), params, group, options)
    again.state.clear()
    again.state.update(optimizer.state)
    return again


def counted_alone(optimizer_class: Type[Optimizer], group: Options, options: Options,
                  steps: int = _STEPS) -> List[Options]:
    """What steps of a trial make of the options of a group in which nothing has a gradient."""
    optimizer = alone(optimizer_class, group, options)
    if turns(optimizer_class):
        TRAIN(optimizer)
    changes = []
    for number in range(steps):
        if number == STEPS_BEFORE:
            lower_rate(optimizer.param_groups[0])
        changes.append(acted(optimizer, take_step))
    return changes


def check_counted(optimizer_class: Type[Optimizer], group: Options, options: Options,
                  changes: Sequence[Options]) -> None:
    """
    :param changes: what each step has made of the group's options
    :raises Refused: they are others where nothing has a gradient
    """
    if not any(changes):
        return
    alone = counted_alone(optimizer_class, group, options, len(changes))
    others = {name for one, other in zip(changes, alone) for name in {**one, **other}
              if not same(one.get(name, ABSENT), other.get(name, ABSENT))}
    if others:
        raise Refused("it changes its param_groups as it steps, by its gradients: "
                      + ", ".join(sorted(others)))


class InItself:
    """What an optimizer keeps beside its groups and the state of its parameters. A commit does not
    have that, and all tiles would share it."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._numbers = self._now()

    def _now(self) -> Options:
        return {name: kept(value) for name, value in vars(self._optimizer).items()
                if type(value) in (bool, int, float) or isinstance(value, Tensor)}

    def check(self, to_begin: bool = False) -> None:
        """
        :param to_begin: after the first step, in which it may note that it has begun
        :raises Refused: a number has changed
        """
        before, self._numbers = self._numbers, self._now()
        if to_begin or same(before, self._numbers):
            return
        name = next(name for name in {**before, **self._numbers} if not same(
            before.get(name, ABSENT), self._numbers.get(name, ABSENT)))
        raise Refused("it counts in itself, neither in its groups nor in the state of its "
                      f"parameters: {name}")


def check_turned(turned: Sequence[Tuple[Options, Any]]) -> None:
    """
    :param turned: what eval() and train() have made of the group's options, and of parameters
    :raises Refused: whether they are turned is not in the groups
    """
    if turned and not turned[0][0] and not same(turned[0][1], turned[1][1]):
        raise Refused("its groups do not have whether eval() was called")


def _apart(optimizer: Optimizer, params: List[Tensor], group: Options, act: Act) -> Options:
    """As tiles are stepped: one after the other, with their state and the options of their group as
    it is, by an optimizer that has had others. Return: as acted()."""
    states = dict(optimizer.state)
    changes = []
    for param in params:
        changes.append(act_on_one(optimizer, param, states.get(param), group, act))
        states[param] = optimizer.state.get(param, {})
    optimizer.state.clear()
    optimizer.state.update(states)
    return one_of(changes)


def _state_of(optimizer: Optimizer, params: List[Tensor], path: _Path) -> Tuple[Options, Options]:
    fields, others = {}, {}
    for name, value in optimizer.state.get(params[0], {}).items():
        if isinstance(value, Tensor) and value.dim() > 0:
            parts = [optimizer.state[param].get(name) for param in params]
            for part, param in zip(parts, params):
                _check_field(name, part, param)
            fields[name] = path.join(parts).clone()
        elif isinstance(value, Tensor):
            others[name] = value.clone()
        elif value is None or isinstance(value, (bool, int, float, str)):
            others[name] = value
        else:
            raise Refused(f"its state has {name}, a {type(value).__name__}")
    return fields, others


def _check_field(name: str, value: Any, param: Tensor) -> None:
    """:raises Refused: its bytes cannot be those of elements in a record"""
    words = f"for {param.numel()} elements its state has {name}"
    if not isinstance(value, Tensor):
        raise Refused(f"{words} of another kind than for others: what it keeps depends on how "
                       "many there are")
    if not is_plain(value):
        kind = "quantized" if value.is_quantized else f"a {type(value).__name__}"
        raise Refused(f"{words}, which is {kind}, and not a plain tensor with a number for each")
    if value.shape != param.shape:
        raise Refused(f"{words} of another shape than the parameter")


def drawn(generator: torch.Generator, dtype: torch.dtype,
          shape: Tuple[int, ...] = (_COUNT,)) -> Tensor:
    """Of many magnitudes, as gradients are, and some exactly zero."""
    values = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
    of_powers = 10 ** torch.arange(-6, 3, dtype=torch.float64, device="cpu")
    powers = torch.randint(9, shape, generator=generator, device="cpu")
    kept = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu") > 0.05
    return (values * of_powers[powers] * kept).to(dtype)


def is_same_on(device: torch.device, optimizer_class: Type[Optimizer], group: Options,
               options: Options, dtype: torch.dtype) -> bool:
    """Whether steps on a device come to the bits that they come to on the host, of numbers of which
    each kind is there. Other numbers may still differ."""
    generator = torch.Generator().manual_seed(_COUNT)
    values, *grads = [drawn(generator, dtype) for _ in range(1 + _STEPS)]
    here, *_ = _run(optimizer_class, group, options, _WHOLE, values, grads)
    there, *_ = _run(optimizer_class, group, options, _WHOLE, values.to(device),
                    [grad.to(device) for grad in grads])
    return same(here, there.cpu())


def check_made(optimizer_class: Type[Optimizer], group: Options, options: Options) -> None:
    """:raises Refused: the class would make other options of those that a group has"""
    again = made_options(optimizer_class, group, options)
    for name in sorted(again.keys() & group.keys() - set(ARITHMETIC)):
        if not same(group[name], again[name]):
            raise Refused(f"the group has {name}={group[name]!r}, of which its constructor makes "
                          f"{again[name]!r}")


def _prove(optimizer_class: Type[Optimizer], group: Options, options: Options, dtype: torch.dtype,
           shapes: Sequence[Tuple[int, ...]]) -> Tuple[Field, ...]:
    check_made(optimizer_class, group, options)
    generator = torch.Generator().manual_seed(random.Random(name_of(dtype)).getrandbits(32))
    values, *grads = [drawn(generator, dtype) for _ in range(1 + _STEPS)]

    def run(path: _Path, values: Tensor, grads: List[Tensor]) -> Any:
        return _run(optimizer_class, group, options, path, values, grads)

    short = [value[:math.prod(_SHORT)] for value in (values, *grads[:2])]
    _compared(run, [_WHOLE, _Path(lambda whole: [whole[:17], whole[17:]], torch.cat),
                    _shaped(_SHORT)], short[0], short[1:])
    _compared(run, [_WHOLE, _IN_SHORTEST], values[:_FEW], [grad[:_FEW] for grad in grads])
    states = _compared(run, _paths(generator), values, grads)
    check_counted(optimizer_class, group, options, [changes for _, _, changes in states])
    of_first = _types_of(states[:1])
    for count, paths in _longer(shapes):
        long = [values.repeat(-(-count // _COUNT))[:count] for values in (values, grads[0])]
        found = _types_of(_compared(run, paths, long[0], long[1:]))
        if found != of_first:
            raise Refused(f"what it keeps for {count} elements is not what it keeps for {_COUNT}")
    return tuple(Field(name, kind) for name, kind in _types_of(states).items())


def _compared(run: Callable[[_Path, Tensor, List[Tensor]], Any], paths: Sequence[_Path],
              values: Tensor, grads: List[Tensor]) -> List[_State]:
    """The states after each step, which are the same on all paths."""
    first: Any = None
    for path in paths:
        result = run(path, values, grads)
        if first is None:
            first = result
        elif not same(first, result):
            raise Refused("what it does to an element depends on others, on how many there are, "
                           "or on chance")
    states: List[_State] = first[1]
    return states


def _types_of(states: Sequence[_State]) -> Dict[str, torch.dtype]:
    return {name: value.dtype for fields, *_ in states for name, value in fields.items()}


def _longer(shapes: Sequence[Tuple[int, ...]]) -> Iterator[Tuple[int, List[_Path]]]:
    """(elements, paths) of the steps that are tried with more elements: as many as all parameters
    have, which may be stepped as one, and in the shape of the largest, or one with shorter
    sides."""
    counts = [math.prod(shape) for shape in shapes]
    count = min(sum(counts), _COUNT_MAX)
    if count <= _COUNT:
        return
    yield count, [_WHOLE, _IN_PARTS]
    sides = list(max(zip(counts, shapes))[1])
    while math.prod(sides) > _COUNT_MAX:
        longest = sides.index(max(sides))
        sides[longest] //= 2
    if len(sides) > 1:
        yield math.prod(sides), [_IN_PARTS, _shaped(tuple(sides))]


def probe(optimizer_class: Type[Optimizer], group: Options, options: Options, dtype: torch.dtype,
          shapes: Sequence[Tuple[int, ...]] = ()) -> Tuple[Field, ...]:
    """What the class keeps for each element of a parameter of this type, with a group's options.

    :param group: the options of a group as made_options() has them
    :param options: that the class is made with
    :param shapes: of the parameters that are stepped
    :raises TypeError: its state cannot be cut into tiles; says why and what to do
    """
    try:
        return _prove(optimizer_class, group, options, dtype, shapes)
    except Refused as refused:
        reason = str(refused)
    except Exception as error:  # the class's own
        reason = f"a step on a vector of {name_of(dtype)} fails: {error}"
    raise TypeError(
        f"{optimizer_class.__name__} cannot have its state on drives: {reason}. Only classes that "
        "step each element by itself can (SGD, Adam, AdamW, RMSprop, Adagrad and their like): give "
        f"one of those, or use {optimizer_class.__name__} itself, in memory")
