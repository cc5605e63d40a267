# SPDX-License-Identifier: MIT
# spillway/_offload/resting.py - steps that are not seen, as their plan moves nothing
"""Where the plan keeps all tensors in memory, hooks on what is saved gain nothing. So most steps
run without them, and without hooks on layers: they rest. The cache says how many
(spw_cache_step_rest()); here is what can be told of a step before it runs: whether the model is
called as in steps that were seen and moved nothing."""
from __future__ import annotations

from typing import Any, Callable, Hashable, Optional, Set, Tuple

import torch
from torch import Tensor, nn

from .._core.hooks_loader import hooks
from .._core.torch_compat import is_compiling, register_forward_pre_hook
from .module_hook import ModuleHook
from .session import Session

SEEN, CALM, RESTS, RESTS_LAST = range(4)  # as enum spw_step

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


class Resting(hooks.Rest):  # type: ignore[misc]
    """Which steps of an Offload rest. As long as the model is called in one way, C finds out."""

    now: bool     # a step does, and the next may
    last: bool    # the next one does not
    held: bool    # tensors of steps before may wait to be let go of
    active: bool  # within a context in which calls of the model are known
    light: bool   # which had no hooks since it was entered
    calls: int    # of the model, since it was entered
    steps: int    # that rest, in a row
    beneath: Any  # the innermost hooks of others
    call: Optional[Hashable]  # the last that was like those of steps that moved nothing

    def __init__(self, _leases: Any) -> None:
        self.trained: Tuple[bool, ...] = ()  # when it was called: of each parameter, whether it is
        self._calls: Set[Hashable] = set()  # of steps in a row that moved nothing
        self._call: Optional[Hashable] = None  # by which the step begins
        self._before: Optional[Hashable] = None  # of the step before, if it was seen
        self.held = True

    def called(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """The model is called, outside of steps that rest: a step may begin."""
        trained = _trained_of(model)
        if trained != self.trained:
            self._forget()
            self.trained, self._before = trained, None
        self._call = call_of(model, args, kwargs)

    def _forget(self) -> None:
        self._calls.clear()
        self.call = None

    def look_closer(self) -> None:
        """At the next call."""
        self.call = None

    def may(self) -> bool:
        return self._call is not None and self._call in self._calls

    def answered(self, result: int) -> None:
        """By the cache, which the step that begins was asked for."""
        if result == SEEN:
            self._forget()
        elif self._before is not None:  # that step moved nothing
            if len(self._calls) >= _CALLS_MAX:
                self._forget()
            self._calls.add(self._before)
        self.last = result == RESTS_LAST
        self.now = result >= RESTS
        self._before, self._call = None if self.now else self._call, None
        if self.now:
            self.steps, self.held = 0, True

    def is_like(self, model: nn.Module, args: Any, kwargs: Any) -> bool:
        """Whether the model is called as in steps that moved nothing."""
        self.steps += 1
        call = call_of(model, args, kwargs)
        if self.last or call not in self._calls:
            return False
        if self.is_look() and self.trained != _trained_of(model):
            return False
        self.call = call
        return True

    def goes_on(self, result: int) -> None:
        self.calls += 1
        self.last = result == RESTS_LAST

    def is_look(self) -> bool:
        """A step in this number is looked at closer: what is trained, how much memory is used."""
        return bool(self.steps % hooks.LOOK_STEPS == 0)

    def drain(self, session: Session) -> None:
        """Let go of tensors of steps that were seen: their graph may end later."""
        if self.held or self.is_look():
            session.drain()
            self.held = session.held() > 0


class CallHook(ModuleHook):
    """Of a model in contexts that rest. The method hears of calls that C does not know."""

    __slots__ = ("_resting", "key")

    def __init__(self, resting: Resting, model: nn.Module, method: Callable[..., None]) -> None:
        super().__init__(method)
        self._resting = resting
        handle = register_forward_pre_hook(model, self)
        self.key = handle.id  # among the hooks of the model
        handle.remove()

    def __call__(self, *call: Any) -> None:
        if not is_compiling() and not self._resting.rests(*call):
            super().__call__(*call)
