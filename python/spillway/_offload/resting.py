# SPDX-License-Identifier: MIT
# spillway/_offload/resting.py - steps that are not seen, as their plan moves nothing
"""Where the plan keeps all tensors in memory, hooks on what is saved gain nothing. So most steps
run without them, and without hooks on layers: they rest. The cache says how many
(spw_cache_step_rest()); here is what can be told of a step before it runs: whether the model is
called as in steps that were seen and moved nothing."""
from __future__ import annotations

from typing import Any, Hashable, Optional, Set, Tuple

import torch
from torch import Tensor, nn

from .session import Session

SEEN, CALM, RESTS, RESTS_LAST = range(4)  # as enum spw_step

# A step in this number is looked at closer: what is trained, and how much memory the process has.
LOOK_STEPS = 8
_CALLS_MAX = 64  # of different kinds
_DEPTH = 6


class _Unknown(Exception):
    """An argument that may be anything."""


def _kind_of(thing: Any, depth: int = _DEPTH) -> Hashable:
    """What the shapes of saved tensors may depend on."""
    if isinstance(thing, Tensor):
        return type(thing), thing.shape, thing.dtype, thing.device, thing.requires_grad
    if thing is None or isinstance(thing, (bool, int, str)):
        return thing
    if isinstance(thing, float):  # a rate perhaps, that is another one each time
        return float
    if depth and isinstance(thing, (tuple, list)):
        return type(thing), tuple([_kind_of(item, depth - 1) for item in thing])
    if depth and isinstance(thing, dict):
        return tuple([(key, _kind_of(item, depth - 1)) for key, item in thing.items()])
    raise _Unknown


def _autocast() -> Hashable:
    if not torch._C._is_any_autocast_enabled():  # type: ignore[attr-defined]
        return None
    return tuple([(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
                  for kind in ("cpu", "cuda", "xpu")])


def call_of(model: nn.Module, args: Any, kwargs: Any) -> Optional[Hashable]:
    """The kind of a call of the model; None: its arguments do not tell it."""
    try:
        kind = _kind_of(args), _kind_of(kwargs or None), model.training, _autocast()
        hash(kind)
        return kind
    except (_Unknown, RuntimeError, TypeError, AttributeError):
        return None


def _trained_of(model: nn.Module) -> Tuple[bool, ...]:
    return tuple([parameter.requires_grad for parameter in model.parameters()])


class Resting:
    """Which steps of an Offload rest."""

    def __init__(self) -> None:
        self.now = False     # a step does, and the next may
        self.last = False    # the next one does not
        self.calls = 0       # of the model, since the context was entered
        self.beneath: Any = None  # the innermost hooks of others
        self._steps = 0      # in a row
        self._calls: Set[Hashable] = set()  # of steps in a row that moved nothing
        self._trained: Tuple[bool, ...] = ()  # in these: of each parameter, whether it is
        self._call: Optional[Hashable] = None  # by which the step begins
        self._before: Optional[Hashable] = None  # of the step before, if it was seen
        self._held = True    # tensors of steps before may wait to be let go of

    def called(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """The model is called, outside of steps that rest: a step may begin."""
        trained = _trained_of(model)
        if trained != self._trained:
            self._calls.clear()
            self._trained, self._before = trained, None
        self._call = call_of(model, args, kwargs)

    def may(self) -> bool:
        return self._call is not None and self._call in self._calls

    def answered(self, result: int) -> None:
        """By the cache, which the step that begins was asked for."""
        if result == SEEN:
            self._calls.clear()
        elif self._before is not None:  # that step moved nothing
            if len(self._calls) >= _CALLS_MAX:
                self._calls.clear()
            self._calls.add(self._before)
        self.last = result == RESTS_LAST
        self.now = result >= RESTS
        self._before, self._call = None if self.now else self._call, None
        if self.now:
            self._steps, self._held = 0, True

    def is_like(self, model: nn.Module, args: Any, kwargs: Any) -> bool:
        """Whether the model is called as in steps that moved nothing."""
        self._steps += 1
        if self.last or call_of(model, args, kwargs) not in self._calls:
            return False
        return not self.is_look() or self._trained == _trained_of(model)

    def goes_on(self, result: int) -> None:
        self.calls += 1
        self.last = result == RESTS_LAST

    def is_look(self) -> bool:
        return self._steps % LOOK_STEPS == 0

    def drain(self, session: Session) -> None:
        """Let go of tensors of steps that were seen: their graph may end later."""
        if self._held or self.is_look():
            session.drain()
            self._held = session.held() > 0
