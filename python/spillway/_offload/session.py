# SPDX-License-Identifier: MIT
# spillway/_offload/session.py - state that outlives the context; slow paths of the C hooks
from __future__ import annotations

import logging
import time
import weakref
from typing import Any, Callable, Dict, Optional, Protocol, Set, Tuple

from torch import Tensor

from .._core.hooks_loader import hooks
from .._core.library import fast
from .._params.offloaded_param import Saved
from .._params.residency import Place
from .._report.step_trace import StepTrace
from ..cache import Cache
from ..report import NOT_WRITTEN
from .heap import Mapped
from .trial_saves import FirstRun
from .._core.wrapped import bytes_in, kind_of, memory_of, wrapped

_log = logging.getLogger("spillway")


class Elsewhere(Protocol):
    """Tensors that are not in host memory: what is saved of them the hooks know."""

    table: Any  # of streams and events

    def has(self, tensor: Tensor) -> bool: ...

    def capturing(self) -> bool: ...

    def recomputes(self, begins: bool) -> None: ...

    def border(self) -> None: ...

    def progress(self) -> None: ...

    def known(self) -> int: ...

    def watch(self, tracer: Optional[StepTrace]) -> None: ...

    def part(self) -> None: ...

    def forget(self) -> None: ...


class Packer(Protocol):
    """Decides of some saved tensors that they are recomputed; the session saves all others, and
    those inputs of scopes of which it gets None."""

    def pack(self, session: "Session", tensor: Tensor) -> Any: ...

    def input(self, session: "Session", tensor: Tensor) -> Any: ...


class Session(hooks.Session):  # type: ignore[misc]
    """The cache, the memory that it may read, the memory that it lent. Every saved tensor holds it.

    Plain tensors are saved and used in C. What is here is for a recorded step, and for a model
    that has tensors on a device.
    """

    cache: Cache
    device_of: Callable[..., Optional[Elsewhere]]  # makes what is to be the device
    device: Optional[Elsewhere]  # for tensors of a device, from when one is met
    excluded: Set[int]  # storages, by their identity
    places: Any  # of parameters on drives, by the identity of their storages; or None
    excluding: int  # modules that are excluded and run now
    tracer: Optional[StepTrace]
    frame: Any  # of the running scope, if it can be recomputed
    trial: Optional[FirstRun]  # also notes what is saved
    operations: Optional[Packer]  # which single operations are recomputed
    discards_all: bool  # discard all that can be recomputed, whatever the plan: for tests
    unpacked: bool  # a backward pass has been seen since this was last cleared
    begins: bool  # the first save after that begins a step: nothing else is known to
    on_first_save: "Optional[weakref.WeakMethod[Any]]"  # what is called then
    steps: int
    heap: Optional[Mapped] = None  # as long as the cache is open

    def __init__(self, cache: Cache) -> None:
        self._refused: Set[str] = {"meta"}  # kinds of devices whose tensors are kept
        self.on_first_save = None
        self.others: Dict[str, Tuple[int, int]] = {}  # classes that stay in memory: tensors, bytes
        cache.when_closed = weakref.WeakMethod(self._part)
        cache.after_close = weakref.WeakMethod(self._forget)

    def _begin_step(self) -> None:
        """A tensor is saved after a backward pass, and no module call has begun a step."""
        begin = None if self.on_first_save is None else self.on_first_save()
        if begin is not None:
            begin()

    def _pack_watched(self, tensor: Tensor) -> Any:
        tracer = self.tracer
        began = 0 if tracer is None else time.perf_counter_ns()
        if self.trial is not None:
            self.trial.add(tensor)
        operations = self.operations
        packed = self.save(tensor) if operations is None else operations.pack(self, tensor)
        if tracer is not None:
            self.trace("save", began, packed)
        return packed

    def _meet(self, tensor: Tensor) -> bool:
        """A tensor that is not in host memory, while none has been met whose device serves: whether
        its own does."""
        kind = tensor.device.type
        if self.device is None and kind not in self._refused and not self.cache.forgotten:
            self._refused.add(kind)  # also while this runs: it may make tensors
            try:
                self.device = self.device_of(tensor.device, self.cache)
            except BaseException:  # Ctrl-C: the next one is asked again
                self._refused.discard(kind)
                raise
            self.watch()
        return self.device is not None and self.device.has(tensor)

    def _save_other(self, tensor: Tensor) -> Any:
        """A tensor subclass, or a tensor without a visible storage."""
        packed = wrapped(tensor, self.inner)
        if packed is not None:
            return packed
        parts = memory_of(tensor)
        counted = [self.count(part) for part in parts]
        left = [part for part, one in zip(parts, counted) if not isinstance(one, hooks.Kept)]
        if left:
            self._note_other(kind_of(tensor), bytes_in(left))
        return self.keep_counted(tensor, counted)

    def _note_other(self, kind: str, length: int) -> None:
        """What stays in memory, by its class: said once, and in reports."""
        if kind not in self.others:
            _log.warning("saved tensors of %s stay in memory: %s", kind, NOT_WRITTEN)
        tensors, count = self.others.get(kind, (0, 0))
        self.others[kind] = tensors + 1, count + length

    def recompute_begin(self) -> None:
        """A recomputation begins: it does not count as part of the measured step."""
        self.cache.call(fast.spw_cache_again_begin)
        if self.device is not None:
            self.device.recomputes(True)

    def recompute_end(self) -> None:
        if self.device is not None:
            self.device.recomputes(False)
        self.cache.call(fast.spw_cache_again_end)

    def _save_part(self, place: Place, tensor: Tensor) -> Saved:
        """A parameter that is on drives, or a part of one."""
        return Saved(place, tensor)

    def _use_watched(self, saved: Any) -> Tensor:
        began = time.perf_counter_ns()
        tensor = self.use(saved)
        self.trace("use", began, saved)
        return tensor

    def trace(self, what: str, began_ns: int, saved: Any) -> None:
        """Record, if a trace is recorded, what was done with a saved tensor; not if it is not
        offloaded."""
        tracer = self.tracer
        passes = not isinstance(saved, hooks.Saved)
        if tracer is not None and not self.cache.closed and not passes:
            tracer.tensor(what, began_ns, saved.length, saved.id, self.cache.stats())

    def watch(self) -> None:
        """What devices do belongs in the recording, too, if there is one."""
        if self.device is not None:
            self.device.watch(self.tracer)

    def border(self) -> None:
        """A step, a stage or a scope begins or ends: of that a device tells the time."""
        if self.device is not None:
            self.device.border()

    def drain(self) -> None:
        """Tell the cache what is used no longer, and let go of memory that it needs no longer."""
        super().drain()
        if self.device is not None:
            self.device.progress()

    def held(self) -> int:
        """How much memory is held because the cache may read it."""
        return int(self.counts()[0])

    def known(self) -> int:
        """How many storages are kept in mind."""
        return int(self.counts()[1]) + (0 if self.device is None else self.device.known())

    def _part(self) -> None:
        self.part()
        if self.device is not None:
            self.device.part()

    def _forget(self) -> None:
        """The cache is closed and reads no memory any more."""
        self.forget()
        if self.heap is not None:
            self.heap.end()
        if self.device is not None:
            self.device.forget()

    def close(self) -> None:
        """Closing twice does nothing."""
        self._part()  # the cache's own call does not come any more when both are garbage
        self.cache.close()

    def __del__(self) -> None:
        self.close()
