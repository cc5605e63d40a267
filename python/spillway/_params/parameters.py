# SPDX-License-Identifier: MIT
# spillway/_params/parameters.py - Parameters: prefetch those used next, evict those used last
"""The parameters of a model in a store, of which a given number of bytes stays in memory. Those
that the last step used next are prefetched; those whose next use is farthest away are evicted.

A use is a PyTorch function that gets a parameter, or the backward pass of one (offloaded_param.py);
a step is a list of uses. A use always gets its bytes, even beyond the memory limit: training never
fails for lack of it, and the excess is counted.

Of a model on a device these are twins of its parameters, in pinned memory (on_device.py).

Invariants, in addition to those of residency.py:
Q1  a place that is held is not evicted
Q2  beyond the limit there are only places that are held, or whose users cannot be told to let go
"""
from __future__ import annotations

import errno
import json
import logging
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import torch
from torch import nn

from .._core.free_memory import takers
from .._core.library import SpillwayError, bytes_text
from .._core.tensors import name_of
from .._optim.tile_step import local_of
from ..store import Store
from .conversion import adopt, part, why_not
from .order import Order
from .residency import (ABSENT, COMING, LEAVING, PREFETCH, RESIDENT, URGENT, Memory, Owner, Place,
                        Use, by_storage)
from .stats import ParameterStats

if TYPE_CHECKING:
    from .on_device import Window

_log = logging.getLogger("spillway")

# Shorter parameters stay in memory: each layer has few of them.
LEAST_BYTES = 64 << 10
_MOVING_MAX = 64  # writes and reads in flight


class _Counts:
    def __init__(self) -> None:
        self.memory_bytes_max = self.memory_bytes_over = 0
        self.uses = self.waits = self.wait_ns = 0
        self.reads = self.bytes_read = self.reads_ahead = 0
        self.writes = self.bytes_written = self.bytes_unwritten = self.failures = 0


class _Counted:
    """Ctrl-C may come between a change of state and its count: then everything is recounted.
    This is not part of the lock, since a lock in Python code stays locked if Ctrl-C comes before
    the block."""

    __slots__ = ("_owner",)

    def __init__(self, owner: "Parameters") -> None:
        self._owner = owner

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None:
            self._owner.recount()


class Parameters(Owner):
    """The parameters of a model, or of several models, in a store.

    :param store: open, with checksums
    :param limit_bytes: in memory; 0: four times the largest parameter known so far
    :raises ValueError: the store has no checksums, which tell the parameters that need not be
        written
    """

    def __init__(self, store: Store, limit_bytes: int = 0) -> None:
        super().__init__()
        if not store.checksums:
            raise ValueError("parameters on drives need a store with checksums: open it without "
                             "checksums=False")
        self.store = store
        self.copies = 1
        self.closed = False
        self._given_bytes = limit_bytes
        self._largest = 0
        self.near_bytes = 1 << 62  # uses after that many bytes of others can wait for their memory
        self._places: Dict[Place, "weakref.ReferenceType[Any]"] = {}
        self._bytes = dict.fromkeys((RESIDENT, LEAVING, ABSENT, COMING), 0)
        self._in_memory: Dict[Place, None] = {}  # places that are not ABSENT
        self._moving: Dict[Place, None] = {}
        self._order = Order()
        self._counts = _Counts()
        self._said_over = False
        self.window: Optional[Window] = None  # the parameters are twins of those of a device
        # Bytes of memory that a parameter of a length takes.
        self.room_of: Callable[[int], int] = int
        store.add_dependent(self)
        takers.add(self)

    # ---- Which parameters ------------------------------------------------------------------------

    def adopt(self, param: Any, name: str) -> bool:
        """Take over a parameter. Return: False if it must stay in memory."""
        if why_not(param, LEAST_BYTES) is not None:
            return False
        with self._lock, _Counted(self):
            local = getattr(param, "_local_tensor", param)
            place = Place(name, self, local, shared=local is not param)
            self._bytes[RESIDENT] += place.room
            self._in_memory[place] = None
            self._largest = max(self._largest, place.room)
            self._order.serial += 1
            place.last = place.number = self._order.serial
            adopt(param, place)
            self._places[place] = weakref.ref(param, self._when_gone(place))
            self._room(0, wait=True)
        return True

    def check_alike(self, param: Any, other: Any) -> None:
        """What a parameter may become: anything."""

    def release(self, param: Any, place: Place) -> None:
        """Make it an ordinary parameter in memory.

        :raises SpillwayError: it cannot be read; nothing is changed
        """
        with self._lock, _Counted(self):
            use = self.hold([place])
            part(param, place)
            self._drop(place)
            del use

    def stand_in(self, param: Any, name: str, before: Any) -> Any:
        """What has the bytes on drives, for a commit, of a parameter with memory that cannot leave.

        :param before: that of the last commit; None: there is none
        """
        local = local_of(param)
        if before is None:
            self.make_room(local.nbytes)
            before = nn.Parameter(local.detach().to("cpu", copy=True), requires_grad=False)
            self.adopt(before, name)
        else:
            with torch.no_grad():
                before.copy_(local)
        return before

    def make_room(self, length: int = 0) -> None:
        """Make room for another parameter that is about to be made.

        :param length: in bytes; 0: as large as the largest
        """
        with self._lock, _Counted(self):
            self._room(self.room_of(length) or self._largest, wait=True)

    def moved(self, param: Any, place: Place) -> None:
        """A parameter was given other memory: adopt it again with that."""
        with self._lock, _Counted(self):
            name = place.name
            part(param, place)
            self._drop(place)
            if not self.adopt(param, name):
                _log.info("%s stays in memory: %s", name, why_not(param, LEAST_BYTES))

    def _drop(self, place: Place) -> None:
        if self._places.pop(place, None) is None:
            return
        if place in self._moving:
            self._finish(place)
        if by_storage.get(place.storage._cdata) is place:
            del by_storage[place.storage._cdata]
        self._bytes[place.state] -= place.room
        self._in_memory.pop(place, None)
        self._order.drop(place)
        place.drop(self.store)

    @property
    def places(self) -> List[Place]:
        with self._lock, _Counted(self):
            self._reap()
            return sorted(self._places, key=lambda place: place.number)

    @property
    def total_bytes(self) -> int:
        return sum(place.length for place in list(self._places))

    @property
    def limit_bytes(self) -> int:
        return self._given_bytes or 4 * self._largest

    def set_limit(self, limit_bytes: int) -> None:
        with self._lock, _Counted(self):
            self._given_bytes = limit_bytes
            self._room(0, wait=True)

    def forget_peak(self) -> None:
        """All were in memory until now."""
        with self._lock:
            self._counts.memory_bytes_max = self.memory_bytes

    # ---- Uses ------------------------------------------------------------------------------------

    def hold(self, places: Iterable[Place]) -> Use:
        """Bring places into memory, for as long as the returned object exists.

        :raises SpillwayError: a place cannot be read; then none is held
        """
        places = tuple(places)
        use = Use()
        with self._lock, _Counted(self):
            try:
                for place in places:
                    place.hold(use)
                for place in places:
                    self._use(place)
                self._prefetch()
            except BaseException:
                del use
                raise
        return use

    def go_on(self) -> None:
        """Notice the transfers that have ended, and begin others."""
        with self._lock, _Counted(self):
            self._reap()
            self._prefetch()

    def released(self) -> None:
        """A use has ended: places beyond the limit may be evicted."""
        if self.memory_bytes > self.limit_bytes:
            with self._lock, _Counted(self):
                self._room(0, wait=False)

    def _use(self, place: Place) -> None:
        self._counts.uses += 1
        self._order.note(place, len(self._places))
        if place.noticed() != RESIDENT:
            began_ns = time.perf_counter_ns()
            self._bring(place)
            self._counts.waits += 1
            self._counts.wait_ns += time.perf_counter_ns() - began_ns
        place.is_clean = False

    def _bring(self, place: Place) -> None:
        error = None
        if place.state != ABSENT:
            place.raise_to_urgent()
            self._finish(place)
        if place.state == ABSENT:  # also if its prefetch failed
            self._check_open(place)
            self._room(place.room, wait=True)
            self._begin_read(place, URGENT)
            error = self._finish(place)
        if error is not None:
            raise SpillwayError(error.errno or errno.EIO, f"parameter {place.name} cannot be "
                                f"read: {error.strerror}") from error

    def _check_open(self, place: Place) -> None:
        if self.closed or self.store.closed:
            raise SpillwayError(
                errno.EBADF, f"parameter {place.name} was on the drives of a store that is closed. "
                "Its values are there if they were committed: open the store again, create the "
                "model again, and resume()")

    def begin_step(self) -> None:
        """Expect the uses since the last call again, in the same order."""
        with self._lock, _Counted(self):
            self._order.begin_step()
            for place in list(self._places):
                place.failed, place.pinned = None, False
            self._said_over = False
            self._prefetch()
        if self.window is not None:
            self.window.begin_step()

    def expect(self, places: Sequence[Place]) -> None:
        """Expect uses in this order, before a step was seen."""
        with self._lock:
            self._order.expect(places)

    # ---- Memory ----------------------------------------------------------------------------------

    def count(self, place: Place, state: str) -> None:
        """Count a change of state that is about to happen."""
        self._bytes[place.state] -= place.room
        self._bytes[state] += place.room
        if state == ABSENT:
            self._in_memory.pop(place, None)
        else:
            self._in_memory[place] = None
        for moving in (LEAVING, COMING):
            if state == moving:
                self._moving[place] = None
            elif place.state == moving:
                self._moving.pop(place, None)
        self._counts.memory_bytes_max = max(self._counts.memory_bytes_max, self.memory_bytes)

    def recount(self) -> None:
        """Recount from the states of the places."""
        counted = dict.fromkeys(self._bytes, 0)
        in_memory: Dict[Place, None] = {}
        moving: Dict[Place, None] = {}
        for place in list(self._places):
            state = place.noticed()
            counted[state] += place.room
            if state != ABSENT:
                in_memory[place] = None
            if state in (LEAVING, COMING):
                moving[place] = None
        self._bytes, self._in_memory, self._moving = counted, in_memory, moving

    @property
    def memory_bytes(self) -> int:
        return self._bytes[RESIDENT] + self._bytes[LEAVING] + self._bytes[COMING]

    @property
    def bytes_to_come(self) -> int:
        """What is going to be in memory, and is not there yet."""
        if self.closed:
            return 0
        return max(0, min(self.limit_bytes, sum(self._bytes.values())) - self.memory_bytes)

    def _room(self, need_bytes: int, wait: bool, nearer_than: int = -1) -> bool:
        """Evict places until there is room for this many bytes.

        :param wait: for transfers in flight
        :param nearer_than: places used sooner than that stay
        :return: whether there is room
        """
        self._reap()
        limit = self.limit_bytes
        while self.memory_bytes + need_bytes > limit and not self.closed:
            victim = None
            if (self.memory_bytes - self._bytes[LEAVING] + need_bytes > limit
                    and len(self._moving) < _MOVING_MAX):
                victim = self._latest(nearer_than)
            if victim is not None:
                self._let_go(victim)
            elif wait and self._moving:  # what comes ahead of its use can leave when it is there
                self._finish(next((place for place in self._moving if place.state == LEAVING),
                                  next(iter(self._moving))))
            elif wait:
                self._note_over(self.memory_bytes + need_bytes - limit)
                return False
            else:
                return False
        return True

    def _latest(self, nearer_than: int) -> Optional[Place]:
        """The place to evict: the one whose next use is farthest away; of a use that comes later,
        farthest away then. If that one is used before, another would have to be read once more for
        a use that is not near: None."""
        order = self._order
        beyond = max(nearer_than, 0)
        if order.is_near(beyond, self.near_bytes):
            beyond = 0
        found: List[Tuple[int, Place]] = []
        for place in list(self._in_memory):
            if place.state == RESIDENT and not place.held and not place.failed:
                distance = order.distance(place, beyond)
                if beyond or distance > nearer_than:
                    found.append((distance, place))
        found.sort(key=lambda each: -each[0])
        farthest = next((place for _, place in found
                         if place.noticed() == RESIDENT and place.is_alone()), None)
        if farthest is not None and order.distance(farthest) <= nearer_than:
            return None
        return farthest

    def _let_go(self, place: Place) -> None:
        if place.object and place.copies >= self.copies and place.has_same(self.store):
            if place.empty():
                self._counts.bytes_unwritten += place.length
            return
        self._begin_write(place)

    def _begin_write(self, place: Place) -> None:
        try:
            self._check_open(place)
            place.begin_write(self.store, self.copies)
        except SpillwayError as error:
            self._note_failure(place, error)
            place.failed = error
            return
        self._counts.writes += 1
        self._counts.bytes_written += place.length

    def _begin_read(self, place: Place, cls: int) -> None:
        place.begin_read(self.store, cls)
        self._counts.reads += 1
        self._counts.bytes_read += place.length
        self._counts.reads_ahead += cls == PREFETCH

    def _finish(self, place: Place) -> Optional[SpillwayError]:
        """Wait for the transfer of a place that is in flight."""
        error = place.end(self.store)
        if error is not None:
            self._note_failure(place, error)
        return error

    def _reap_freed(self) -> None:
        with _Counted(self):
            self._reap()

    def _reap(self) -> None:
        """Handle transfers that have ended, and parameters that were freed."""
        for place in list(self._moving):
            if place.has_ended():
                self._finish(place)
        while self._gone:
            self._drop(self._gone.pop())

    def _prefetch(self) -> None:
        """Prefetch the next uses, as far as there is room."""
        order = self._order
        while len(self._moving) < _MOVING_MAX and not self.closed:
            place = order.next_to_come()
            if place is None:
                return
            if place.state == ABSENT:
                if not self._room(place.room, wait=False, nearer_than=order.ahead):
                    return
                try:
                    self._begin_read(place, PREFETCH)
                except (SpillwayError, RuntimeError):  # the use itself will raise it
                    return
            order.ahead += 1

    def _note_failure(self, place: Place, error: SpillwayError) -> None:
        self._counts.failures += 1
        _log.warning("parameter %s cannot be moved, and stays where it is: %s", place.name,
                     error.strerror)

    def _note_over(self, over_bytes: int) -> None:
        self._counts.memory_bytes_over = max(self._counts.memory_bytes_over, over_bytes)
        if not self._said_over:
            self._said_over = True
            _log.info("parameters take %s more memory than they were given: that much is in use at "
                      "once, for example by views of them or a state_dict()",
                      bytes_text(over_bytes))

    # ---- Commits ---------------------------------------------------------------------------------

    def settle(self) -> None:
        """Write all places in memory to the drives; they stay in memory.

        :raises SpillwayError: a parameter cannot be written; nothing is lost
        """
        if self.window is not None:
            self.window.flush()
        with self._lock, _Counted(self):
            begun = []
            for place in self.places:
                if place in self._moving:
                    self._finish(place)
                place.noticed()
                if place.object and place.copies < self.copies and place.state == ABSENT:
                    self._bring(place)
                if place.state == RESIDENT and not (
                        place.object and place.copies >= self.copies
                        and place.has_same(self.store)):
                    self._check_open(place)
                    place.failed = None
                    place.begin_write(self.store, self.copies)
                    begun.append(place)
                    self._counts.writes += 1
                    self._counts.bytes_written += place.length
            for place in list(self._moving):
                self._finish(place)
            # Some writes ended, and may have failed, while others made room.
            for place in begun:
                if place.failed is not None:
                    raise place.failed

    def take_up(self, place: Place, thing: int) -> None:
        """Take the bytes of a parameter from this object of a commit."""
        with self._lock, _Counted(self):
            if place in self._moving:
                self._finish(place)
            place.replace(self.store, thing)
            place.copies = self.copies

    def to_memory(self) -> None:
        """Make all places ordinary parameters in memory again.

        :raises SpillwayError: one cannot be read; those before it are ordinary again
        """
        if self.window is not None:
            self.window.to_device()  # after which their twins are no more
        with self._lock, _Counted(self):
            self._order.forget()
            for place in self.places:
                param = self._places[place]()
                self._given_bytes = max(self.limit_bytes, sum(self._bytes.values()))
                if place.noticed() != RESIDENT:
                    self._bring(place)
                if param is not None:
                    part(param, place)
                self._drop(place)
        self.close()

    # ---- Closing ---------------------------------------------------------------------------------

    def _before_close(self) -> None:
        """Called by the store before it closes. Nothing is to be done here."""

    def close(self) -> None:
        """Called by the store. Parameters in memory stay there; using others raises an error."""
        if self.window is not None:
            self.window.close()
        with self._lock, _Counted(self):
            if self.closed:
                return
            try:
                for place in list(self._moving):
                    self._finish(place)
            finally:
                self.closed = True
                self._order.forget()
                self.store.drop_dependent(self)

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self.close()

    def stats(self) -> ParameterStats:
        """Counters so far."""
        with self._lock, _Counted(self):
            self._reap()
            return ParameterStats(
                parameters=len(self._places), total_bytes=self.total_bytes,
                limit_bytes=self.limit_bytes, memory_bytes=self.memory_bytes,
                **vars(self._counts), **({} if self.window is None else self.window.counts()))


# ---- For models and optimizers -------------------------------------------------------------------


def place_in(param: Any) -> Optional[Place]:
    """The place of a parameter, or of this rank's shard of it; None if it is in memory."""
    memory: Optional[Memory] = getattr(param, "_spillway_place", None)
    return None if memory is None else memory.on_drives


def described(param: Any) -> bytes:
    """The description in a commit of a parameter that has a record of its own."""
    local = local_of(param)
    return json.dumps({"shape": list(local.shape), "stride": list(local.stride()),
                       "dtype": name_of(local.dtype)}).encode()


def owner_of(model: nn.Module) -> Optional[Parameters]:
    """The object that has the parameters of a model already; None if there is none.

    :raises ValueError: there are several such objects
    """
    owners = {place.owner for place in map(place_in, model.parameters()) if place is not None}
    if len(owners) > 1:
        raise ValueError("the model's parameters are in several stores: give offload() each part "
                         "by itself")
    return owners.pop() if owners else None
