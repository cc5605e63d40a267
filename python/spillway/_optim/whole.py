# SPDX-License-Identifier: MIT
# spillway/_optim/whole.py - state of an optimizer class per parameter, and the proof of it
"""Muon multiplies matrices, Adafactor has means of rows and LAMB a norm: no tile can be cut out of
their parameters. But a parameter can be stepped without the others, if its class steps each from
its own gradient and its own state. That is tried: parameters of the shapes that there are, or alike
but shorter, all in one list and each by a call of its own, its state moved in between, must come to
the same bits.
"""
from __future__ import annotations

import math
import random
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._core.tensors import name_of
from .._values.nested import flat, is_nest, nested
from .elementwise import (STEPS_BEFORE, InItself, check_counted, check_made, check_turned, drawn,
                          lower_rate, probe)
from .inner import (EVAL, TRAIN, Options, Refused, act_on_one, acted, changes_without_gradients,
                    copied, is_plain, make, one_of, same, take_step, turns)
from .tiles import Field, Wholes

Shape = Tuple[int, ...]
_States = List[Dict[str, Any]]
# Parameters, the states after each step, what each step has made of the group's options, and what
# the parameters were turned into.
_Tried = Tuple[List[Tensor], List[_States], List[Options], Any]

# RAdam changes its rule at its sixth step; others keep something from their second on.
_STEPS = 8
# Elements of parameters that are stepped that often, and how many parameters at most.
_COUNT = 1 << 12
_SHAPES_MAX = 6
# Of those that are stepped once, of each shape.
_COUNT_MAX = 1 << 18


def _shorter(shape: Shape, count_max: int) -> Shape:
    sides = list(shape)
    while math.prod(sides) > count_max:
        longest = sides.index(max(sides))
        sides[longest] = -(-sides[longest] // 2)
    return tuple(sides)


def _state_of(optimizer: Optimizer, param: Tensor) -> Dict[str, Any]:
    """A copy in memory of its own, as a record has it.

    :raises Refused: it has something that no record and no entry can have
    """
    state: Dict[str, Any] = {}
    for name, value in flat(optimizer.state.get(param, {})).items():
        if isinstance(value, Tensor):
            if not is_plain(value):
                raise Refused(f"its state has {name}, a {type(value).__name__}, which is not a "
                              "plain tensor")
            if not value.is_contiguous():
                raise Refused(f"its state has {name}, with gaps between its elements, which a "
                              "record has not")
            value = value.detach().clone()
        elif not (value is None or is_nest(value) or isinstance(value, (bool, int, float, str))):
            raise Refused(f"its state has {name}, a {type(value).__name__}: only plain tensors and "
                          "numbers can be in a record")
        state[name] = value
    return state


def _copy_of(state: Optional[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    """As a class has it."""
    return state and nested({name: value.clone() if isinstance(value, Tensor) else value
                             for name, value in state.items()})


class _Trial:
    """Steps of parameters with these values.

    :param grads: of each parameter in each step; None: it has none
    """

    def __init__(self, optimizer_class: Type[Optimizer], group: Options, options: Options,
                 values: Sequence[Tensor], grads: Sequence[Sequence[Optional[Tensor]]]) -> None:
        self._class, self._group, self._options = optimizer_class, group, options
        self._values, self._grads = values, grads

    def _given(self) -> Iterator[Tuple[List[Tensor], Sequence[Optional[Tensor]]]]:
        params = [value.clone() for value in self._values]
        for grads in self._grads:
            for param, grad in zip(params, grads):
                param.grad = None if grad is None else grad.clone()
            yield params, grads

    def together(self) -> _Tried:
        """Of all in one list."""
        optimizer: Optional[Optimizer] = None
        itself: Optional[InItself] = None
        group = {name: copied(value) for name, value in self._group.items()}
        states: List[_States] = []
        changes: List[Options] = []
        params: List[Tensor] = []
        for params, _ in self._given():
            if optimizer is None or itself is None:
                optimizer = make(self._class, params, group, self._options)
                itself = InItself(optimizer)
                if turns(self._class):
                    acted(optimizer, TRAIN)
                    itself.check()
            if len(states) == STEPS_BEFORE:
                lower_rate(optimizer.param_groups[0])
            changes.append(acted(optimizer, take_step))
            itself.check(to_begin=not states)
            states.append([_state_of(optimizer, param) for param in params])
        turned = []
        assert optimizer is not None and itself is not None
        for turn in (EVAL, TRAIN) if turns(self._class) else ():
            turned.append((acted(optimizer, turn), [param.clone() for param in params]))
            itself.check()
        check_turned(turned)
        return params, states, changes, turned

    def apart(self) -> _Tried:
        """The same of each by itself, as records are stepped: with the state that it had, by an
        optimizer that has had others."""
        optimizer: Optional[Optimizer] = None
        group = {name: copied(value) for name, value in self._group.items()}
        now: List[Optional[Dict[str, Any]]] = [None for _ in self._values]
        states: List[_States] = []
        changes: List[Options] = []
        params: List[Tensor] = []
        if turns(self._class):
            group.update(changes_without_gradients(self._class, group, self._options, TRAIN))
        for params, grads in self._given():
            of_step = []
            if len(states) == STEPS_BEFORE:
                lower_rate(group)
                optimizer = None  # is made again, as after a commit was resumed
            for number, param in enumerate(params):
                if grads[number] is None:
                    continue
                state = now[number]
                if optimizer is None or state is None:
                    optimizer = make(self._class, [param], group, self._options)
                of_step.append(act_on_one(optimizer, param, _copy_of(state), group, take_step))
                now[number] = _state_of(optimizer, param)
            states.append([state or {} for state in now])
            changes.append(one_of(of_step))
            group.update(changes[-1])
        turned = []
        assert optimizer is not None
        for turn in (EVAL, TRAIN) if turns(self._class) else ():
            change = one_of([act_on_one(optimizer, param, _copy_of(state or {}), group, turn)
                             for param, state in zip(params, now)])
            group.update(change)
            turned.append((change, [param.clone() for param in params]))
        return params, states, changes, turned

    def check_counted(self, changes: Sequence[Options]) -> None:
        check_counted(self._class, self._group, self._options, changes)


def _kinds(state: Dict[str, Any]) -> Dict[str, Any]:
    """What a record has of it, and in which shape."""
    return {name: (value.dtype, tuple(value.shape)) for name, value in state.items()
            if isinstance(value, Tensor) and value.dim() > 0}


def _compared(trial: _Trial) -> List[_States]:
    """:raises Refused: a parameter's step depends on the others"""
    together = trial.together()
    states = together[1]
    if not same(together, trial.apart()):
        raise Refused("what it does to a parameter depends on the others, or on chance: it needs "
                      "several at once")
    trial.check_counted(together[2])
    first = [_kinds(state) for state in states[0]]
    for after in states:
        for before, state in zip(first, after):
            found = _kinds(state)
            if found != before:
                name = next(name for name in {**before, **found}
                            if before.get(name) != found.get(name))
                raise Refused(f"its state changes its shape or type: {name} is "
                              f"{_said(before.get(name))} after the first step, and "
                              f"{_said(found.get(name))} later")
    return states


def _said(kind: Any) -> str:
    return "not there" if kind is None else f"{name_of(kind[0])} {kind[1]}"


def _prove(optimizer_class: Type[Optimizer], group: Options, options: Options, dtype: torch.dtype,
           shapes: Sequence[Shape]) -> Wholes:
    check_made(optimizer_class, group, options)
    generator = torch.Generator().manual_seed(random.Random(name_of(dtype)).getrandbits(32))

    def trial(sides: Sequence[Shape], steps: int, absent: bool = False) -> _Trial:
        values, *grads = [[drawn(generator, dtype, shape) for shape in sides]
                          for _ in range(1 + steps)]
        given: List[List[Optional[Tensor]]] = [list(of_step) for of_step in grads]
        if absent:
            given[2][1] = None
        return _Trial(optimizer_class, group, options, values, given)

    distinct = list(dict.fromkeys(shapes))
    short = list(dict.fromkeys(_shorter(shape, _COUNT) for shape in distinct))
    tried = [*short[:_SHAPES_MAX], short[0]]
    steps_all = False
    try:
        _compared(trial(tried, _STEPS, absent=True))
    except Exception:  # of parameters without gradients, or of all
        _compared(trial(tried, _STEPS))
        steps_all = True
    longer = [_shorter(shape, _COUNT_MAX) for shape in distinct]
    states = _compared(trial(longer, 1))[0]
    by_shape = {}
    for shape, sides, state in zip(distinct, longer, states):
        if sides != shape and any(found != sides for _, found in _kinds(state).values()):
            state = _compared(trial([shape], 1))[0][0]  # its own shapes follow from the parameter's
            sides = shape
        by_shape[shape] = tuple(Field(name, kind, None if found == sides else found)
                                for name, (kind, found) in _kinds(state).items())
    return Wholes(by_shape, steps_all)


def probe_whole(optimizer_class: Type[Optimizer], group: Options, options: Options,
                dtype: torch.dtype, shapes: Sequence[Shape]) -> Wholes:
    """What the class keeps for each parameter of this type, with a group's options.

    :param group: the options of a group as made_options() has them
    :param options: that the class is made with
    :param shapes: of the group's parameters of this type, at least one
    :raises TypeError: its state cannot be that of single parameters; says why and what to do
    """
    try:
        return _prove(optimizer_class, group, options, dtype, shapes)
    except Refused as refused:
        reason = str(refused)
    except Exception as error:  # the class's own
        said = ", ".join(map(str, list(dict.fromkeys(shapes))[:4]))
        reason = f"a step on parameters of {name_of(dtype)} {said} fails: {error}"
    name = optimizer_class.__name__
    raise TypeError(
        f"{name} cannot have its state on drives: {reason}. Only classes that step each element, "
        "or each parameter, by itself can (SGD, AdamW, Muon, Adafactor and their like). Give the "
        "parameters one of those, such as by a group of their own with optimizer_class=, or use "
        f"{name} itself, in memory")


def is_elementwise(*args: Any) -> Optional[Tuple[Field, ...]]:
    """As probe(); None where the class does not step each element by itself."""
    try:
        return probe(*args)
    except TypeError:
        return None
