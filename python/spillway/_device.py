# SPDX-License-Identifier: MIT
# spillway/_device.py - tensors of a GPU: by pinned memory of the arena to the drives and back
"""The way of what autograd saves on a device.

Save:   the stream that computes records an event; a side stream waits for it, copies into a slot of pinned memory and
        records another. When that has come the slot is put on the drives, and the device's memory is let go; when the put
        has ended the slot is free again.
Use:    the slot is read from the drives, ahead of its use where it can be guessed; the side stream copies it into new
        memory of the device and records an event, for which the stream that computes waits. The slot is free when the
        event has come.

Nothing here waits for a stream, least of all for the one that computes: the process waits only for drives, and at the end
for its own copies. What is asked for while the device still has it is taken from there.

What stays on the device is chosen by a plan (_device_plan.py). Without one, in the first step and in one that is unlike it, all
but small tensors goes to the drives. Without a free slot a tensor stays on the device; what the drives do not take stays in its
slot.
"""
from __future__ import annotations

import bisect
import dataclasses
import errno
import itertools
import logging
import threading
import time
import weakref
from collections import deque
from ctypes import byref, c_char, c_uint64, c_void_p
from typing import Any, Deque, Dict, List, Optional, Set, Tuple

import torch
from torch import Tensor

from . import _library
from ._library import SpillwayError, blocking, check, fast
from ._device_plan import Busy, DevicePlan, Row
from ._torch_compat import storage_of
from .report import DeviceStats
from .store import Store

_log = logging.getLogger("spillway")

_SLOT_ALIGN = 4096  # of address and length: what drives take without a copy
_ELEMENT_MAX = 16  # bytes of the longest element: parts of storages begin at multiples
_LOOK_AHEAD = 64  # tensors
_LOOK_SECONDS, _LOOKS_MAX = 0.0001, 100_000  # for a request that others have: ten seconds, as in the cache
_URGENT, _PREFETCH = 0, 1


class Ranges:
    """Parts of [0, length): first fit; neighbours that are free join."""

    def __init__(self, length: int) -> None:
        self._free: List[Tuple[int, int]] = [(0, length)] if length else []

    def take(self, length: int) -> Optional[int]:
        for index, (begin, free) in enumerate(self._free):
            if free >= length:
                self._free[index : index + 1] = [(begin + length, free - length)] if free > length else []
                return begin
        return None

    def give(self, begin: int, length: int) -> None:
        index = bisect.bisect(self._free, (begin, 0))
        if index < len(self._free) and self._free[index][0] == begin + length:
            length += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == begin:
            index -= 1
            begin, before = self._free.pop(index)
            length += before
        self._free.insert(index, (begin, length))


class StoreTransfers:
    """Puts and gets of a store that go on by themselves, and its pinned memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._handle = store.handle  # is valid until detach()

    def attach(self, path: "DevicePath") -> None:
        """The store closes it first."""
        self._store.add_dependent(path)
        _library.handles.add(path)

    def detach(self, path: "DevicePath") -> None:
        self._store.drop_dependent(path)

    def memory(self, length: int) -> int:
        """
        :raises SpillwayError: ENOBUFS the arena has not so much
        """
        address = c_void_p()
        check(fast.spw_store_alloc(self._handle, length, byref(address)))
        assert address.value is not None
        return address.value

    def release(self, address: int) -> None:
        fast.spw_store_release(self._handle, address)

    def put(self, address: int, length: int) -> Tuple[int, Any]:
        thing, request = c_uint64(), c_void_p()
        check(blocking.spw_store_put(self._handle, address, length, None, byref(thing), byref(request)))
        return thing.value, request

    def get(self, thing: int, address: int, length: int, urgent: bool) -> Any:
        request = c_void_p()
        cls = _URGENT if urgent else _PREFETCH
        check(blocking.spw_store_get(self._handle, thing, 0, address, length, cls, None, byref(request)))
        return request

    def test(self, request: Any) -> Optional[int]:
        """How it ended, 0 or a negative errno, which is said once; None: it goes on."""
        result = fast.spw_request_test(request)
        return None if result == -errno.EINPROGRESS else result

    def wait(self, request: Any) -> int:
        fast.spw_request_raise(request, _URGENT)
        blocking.spw_request_wait_any(byref(request), 1, -1)  # Ctrl-C is raised here: the request is not released yet
        return fast.spw_request_test(request)

    def free(self, thing: int) -> None:
        fast.spw_store_free(self._handle, thing)


class _Slot:
    """Host memory for one entry: pinned, or, when there is none, any."""

    __slots__ = ("begin", "length", "bytes", "busy", "ahead")

    def __init__(self, begin: Optional[int], memory: Tensor) -> None:
        self.begin = begin  # in the pinned region; None: outside
        self.bytes = memory
        self.length = len(memory)
        self.busy: List[Any] = []  # events of copies out of it
        self.ahead = False  # for what was read


class _User(weakref.ref):
    """A saved tensor that needs an entry, noted in a list when it is gone."""

    __slots__ = ("entry",)
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    entry: "Entry"


class Entry:
    """Bytes [begin, begin + length) of one content of one storage.

    In memory of the device while ``tensor`` is set, for good if ``kept``; in ``slot`` from when that is not; on the drives as ``thing`` from
    when ``request`` of the put has ended. ``request`` is a put while it is in DevicePath's list of writes, else a get.
    """

    __slots__ = ("key", "version", "begin", "length", "device", "tensor", "produced", "copied", "slot", "thing", "request",
                 "reading", "users", "uses_left", "base", "arrived", "index", "kept", "row", "__weakref__")

    def __init__(
        self, key: Tuple[int, int], version: Any, begin: int, length: int, tensor: Tensor, slot: Optional[_Slot]
    ) -> None:
        self.key = key
        self.version = version
        self.begin = begin
        self.length = length
        self.device = tensor.device
        self.tensor: Optional[Tensor] = tensor
        self.slot: Optional[_Slot] = slot
        self.kept = slot is None
        self.row: Optional[Row] = None  # of the plan's measurement
        self.produced: Any = None  # the event after what computed it
        self.copied: Any = None
        self.thing: Optional[int] = None
        self.request: Any = None
        self.reading = False
        self.users: Set[_User] = set()
        self.uses_left = 0  # by users that did not use it yet, if each does once
        self.base: Optional[Tensor] = None  # on the device again, until the last use or as long as there are several users
        self.arrived: Any = None
        self.index = 0

    def stored(self) -> bool:
        """On the drives and nowhere else."""
        return self.thing is not None and self.request is None and self.slot is None


def bytes_of(tensor: Tensor, begin: int, length: int) -> Tensor:
    """Part of the tensor's storage, as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage_of(tensor), begin, (length,), (1,))


class DevicePath:
    """Any thread may save and load: autograd has one per device for the backward pass, and they take turns.

    :param table: the CUDA calls, as _cuda.Table has them
    :param transfers: as StoreTransfers
    :param pinned_bytes: most host memory for slots; half of it is the most that is read ahead
    :param plan: says what stays on the device; None: the rule
    :raises SpillwayError: the arena has not so much memory
    :raises RuntimeError: the memory cannot be pinned
    """

    def __init__(
        self, table: Any, transfers: Any, pinned_bytes: int, min_bytes: int, plan: Optional[DevicePlan] = None
    ) -> None:
        self.table = table
        self._plan = plan
        self._plan_device: Optional[torch.device] = None  # the first; tensors of others go by the rule
        self._writes, self._reads = Busy(), Busy()
        self._stall_before_ns = 0
        self.min_bytes = min_bytes
        self._transfers: Any = transfers
        length = pinned_bytes // _SLOT_ALIGN * _SLOT_ALIGN
        self._address = transfers.memory(length)
        try:
            table.pin(self._address, length)
        except RuntimeError:
            transfers.release(self._address)
            raise
        self._pinned = torch.frombuffer((c_char * length).from_address(self._address), dtype=torch.uint8)
        self._ranges = Ranges(length)
        self._stats = DeviceStats(pinned_bytes=length)
        self._ahead_max = length // 2
        self._ahead_bytes = 0
        self._lock = threading.Lock()
        self._sides: Dict[torch.device, Any] = {}
        self._entries: Dict[Tuple[int, int], List[Entry]] = {}  # by storage and version
        self._order: List[Entry] = []  # as saved; drives are read ahead from the end
        self._prune_at = 1024
        self._copying: Deque[Entry] = deque()
        self._writing: Deque[Entry] = deque()
        self._reading: List[Entry] = []
        self._retiring: Deque[_Slot] = deque()
        self._ended: List[_User] = []
        self._closed = self._released = False
        transfers.attach(self)

    # ---- For the session ---------------------------------------------------------------------------------------------

    def save(
        self, tensor: Tensor, key: Tuple[int, int], version: Any, begin: int, length: int, user: Any
    ) -> Optional[Entry]:
        """The entry that will have these bytes of the tensor's storage, as long as ``user`` lives; None: the caller keeps
        the tensor.

        :param key: names one content of one storage, and is not used again for another
        :param version: of that content: has ``number``, and takes ``modified``
        """
        with self._lock:
            self._check_open()
            self._progress()
            stats = self._stats
            stats.tensors_offered += 1
            stats.bytes_offered += length
            if length < self.min_bytes:
                stats.bytes_kept_small += length
                return None
            for entry in self._entries.get(key, ()):
                if entry.begin <= begin and begin + length <= entry.begin + entry.length and self._has_again(entry, tensor):
                    stats.bytes_deduplicated += length
                    self._add_user(entry, user)
                    return entry
            begin, length = self._part(tensor, begin, length)
            if self.table.capturing():
                stats.bytes_kept_no_slot += length
                return None
            entry = self._begin_entry(key, version, begin, length, tensor)
            self._entries.setdefault(key, []).append(entry)
            if len(self._order) >= self._prune_at:
                self._prune()
            entry.index = len(self._order)
            self._order.append(entry)
            self._add_user(entry, user)
            return entry

    def load(self, entry: Entry) -> Tuple[Tensor, int]:
        """A tensor on the device, and where in the saved storage its own begins. The stream that computes now waits for
        the bytes.

        :raises SpillwayError: the drive failed, or the store is closed
        """
        with self._lock:
            self._check_open()
            self._progress()
            table = self.table
            consumer = table.current_stream(entry.device)
            if entry.row is not None and self._plan is not None:
                self._plan.used(entry.row, table.record_timed(consumer))
            again = entry.uses_left == 0
            entry.uses_left -= not again
            if entry.tensor is not None:
                table.wait(consumer, entry.produced)
                table.keep(entry.tensor, consumer)
                if entry.tensor._version != entry.version.number:
                    entry.version.modified = True
                if not entry.kept:
                    self._stats.bytes_forwarded += entry.length
                self._read_ahead(entry, again)
                return entry.tensor, 0
            if entry.base is None:
                base, arrived = self._copy_in(entry)
            else:
                base, arrived = entry.base, entry.arrived
            table.wait(consumer, arrived)
            table.keep(base, consumer)
            entry.base, entry.arrived = (base, arrived) if len(entry.users) > 1 else (None, None)
            self._read_ahead(entry, again)
            return base, entry.begin

    def progress(self) -> None:
        """Go on with what can go on. Not if somebody does: it may be this thread, that runs the handler of a signal."""
        if self._lock.acquire(blocking=False):
            try:
                if not self._closed:
                    self._progress()
            finally:
                self._lock.release()

    def step(self) -> None:
        """A step begins. What is left of the last one is read ahead no more than by chance."""
        with self._lock:
            if not self._closed:
                self._progress()
                self._prune()
                if self._plan is not None:
                    self._plan_step(self._plan)

    def stats(self) -> DeviceStats:
        return dataclasses.replace(self._stats)

    def close(self) -> None:
        """End copies and transfers, give the memory back. What was saved can be loaded no more.

        Interrupted, by Ctrl-C, it may be called again.
        """
        if self._released:  # without the lock: another thread may have held it when this process was forked off
            return
        with self._lock:
            if self._released:
                return
            self._closed = True
            for entry in self._copying:
                self._finish(entry.copied)
            for entry in [*self._writing, *self._reading]:
                if entry.request is not None:
                    self._transfers.wait(entry.request)
                    entry.request = None
            entries = {*self._order, *self._copying, *self._writing, *self._reading}
            slots = list(self._retiring) + [entry.slot for entry in entries if entry.slot is not None]
            for slot in slots:
                for event in slot.busy:
                    self._finish(event)
            for entry in entries:
                if entry.thing is not None:
                    self._transfers.free(entry.thing)
                entry.tensor = entry.slot = entry.base = entry.thing = entry.request = None
            for things in (self._copying, self._writing, self._reading, self._retiring, self._order, self._entries):
                things.clear()  # type: ignore[attr-defined]
            self._released = True
            try:
                self.table.unpin(self._address)
            finally:
                self._transfers.release(self._address)
                self._transfers.detach(self)

    def _finish(self, event: Any) -> None:
        """A device on which something went wrong fails every call from then on; what it was given has ended. The drives are given
        back all the same."""
        try:
            self.table.finish(event)
        except RuntimeError as error:
            _log.warning("a copy to or from the device failed: %s", error)

    def forget(self) -> None:
        """For a child of fork(), which has neither the device's context nor the store."""
        self._closed = self._released = True

    # ---- Steps of the way, with the lock held ------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise SpillwayError(
                errno.EBADF,
                "the store is closed; what was saved of the device is gone: run the forward pass again with an open store",
            )

    def _add_user(self, entry: Entry, user: Any) -> None:
        reference = _User(user, self._ended.append)
        reference.entry = entry
        entry.users.add(reference)
        entry.uses_left += 1

    def _begin_entry(self, key: Tuple[int, int], version: Any, begin: int, length: int, tensor: Tensor) -> Entry:
        plan = self._plan if self._plan_device in (None, tensor.device) else None
        self._plan_device = self._plan_device or tensor.device
        planned = plan is not None and plan.keeps(length)
        slot = None if planned else self._take_slot(length)
        entry = Entry(key, version, begin, length, tensor, slot)
        if slot is not None:
            self._copy_out(entry, slot)
        else:
            entry.produced = self.table.record(self.table.current_stream(entry.device))
            if planned:
                self._stats.bytes_kept_planned += length
            else:
                self._stats.bytes_kept_no_slot += length
        if plan is not None and plan.measures():
            entry.row = plan.saved(length, self.table.record_timed(self.table.current_stream(entry.device)))
        return entry

    def _has_again(self, entry: Entry, tensor: Tensor) -> bool:
        """Whether the entry has, or will have, the bytes that are in memory now: the version may not count all changes (not those
        through .data). What is on its way to a slot is copied once more. What has left the device cannot be compared without
        waiting for it: that is another content."""
        if entry.tensor is None or storage_of(entry.tensor).data_ptr() != storage_of(tensor).data_ptr():
            return False
        if not entry.kept:
            if self.table.capturing():
                return False
            assert entry.slot is not None
            self._copying.remove(entry)
            self._copy_out(entry, entry.slot)
            self._stats.bytes_copied_again += entry.length
        return True

    def _plan_step(self, plan: DevicePlan) -> None:
        stats = self._stats
        stall_ns, self._stall_before_ns = stats.stall_ns - self._stall_before_ns, stats.stall_ns
        before = plan.result
        plan.begin_step(self._writes.bytes_per_second(), self._reads.bytes_per_second(), stall_ns)
        if plan.result is not None and plan.result is not before:
            stats.plans += 1
            stats.plan_peak_bytes = plan.result.peak_bytes
            stats.plan_keep_all_bytes = plan.result.peak_keep_all_bytes

    def _prune(self) -> None:
        """What nobody needs is not read ahead. What is being copied can be needed again, by a save of the same content."""
        self._order = [e for e in self._order if e.users or e.tensor is not None]
        for index, entry in enumerate(self._order):
            entry.index = index
        self._prune_at = max(1024, 2 * len(self._order))

    def _part(self, tensor: Tensor, begin: int, length: int) -> Tuple[int, int]:
        """Half of a storage or more: all of it, once for all views. Else what is used of it."""
        whole = storage_of(tensor).nbytes()
        if 2 * length >= whole:
            return 0, whole
        start = begin // _ELEMENT_MAX * _ELEMENT_MAX
        return start, begin + length - start

    def _side(self, device: torch.device) -> Any:
        if device not in self._sides:
            self._sides[device] = self.table.new_stream(device)
        return self._sides[device]

    def _take_slot(self, length: int) -> Optional[_Slot]:
        rounded = -(-length // _SLOT_ALIGN) * _SLOT_ALIGN
        begin = self._ranges.take(rounded)
        if begin is None:
            return None
        stats = self._stats
        stats.pinned_bytes_used += rounded
        stats.pinned_bytes_used_max = max(stats.pinned_bytes_used_max, stats.pinned_bytes_used)
        return _Slot(begin, self._pinned[begin : begin + rounded])

    def _copy_out(self, entry: Entry, slot: _Slot) -> None:
        table, tensor = self.table, entry.tensor
        assert tensor is not None
        side = self._side(entry.device)
        entry.produced = table.record(table.current_stream(entry.device))
        table.wait(side, entry.produced)
        table.keep(tensor, side)  # others may drop the memory, or this path on an error
        table.copy(slot.bytes[: entry.length], bytes_of(tensor, entry.begin, entry.length), side)
        entry.copied = table.record(side)
        self._copying.append(entry)

    def _copy_in(self, entry: Entry) -> Tuple[Tensor, Any]:
        table, side = self.table, self._side(entry.device)
        slot = self._filled(entry)
        base = table.empty(entry.length, entry.device, side)
        table.copy(base, slot.bytes[: entry.length], side)
        arrived = table.record(side)
        slot.busy.append(arrived)
        if entry.thing is None or entry.request is not None:
            self._stats.bytes_forwarded += entry.length  # the slot is needed still, by a put or as the only place
        else:
            self._leave_slot(entry)
        return base, arrived

    def _filled(self, entry: Entry) -> _Slot:
        """The entry's slot with its bytes. Waits for the drives if they have them."""
        began = time.perf_counter_ns()
        if entry.stored():
            self._read_urgently(entry)
        elif entry.thing is not None and entry.request is None:
            self._stats.prefetch_hits += 1
        if entry.reading:
            result = self._transfers.wait(entry.request)
            self._stats.stall_ns += time.perf_counter_ns() - began
            self._reading.remove(entry)
            error = _library.error_of(result) if result < 0 else None
            self._end_read(entry, result)
            if error is not None:
                raise error
        assert entry.slot is not None
        return entry.slot

    def _outside(self, length: int) -> _Slot:
        """Reading must not fail for want of pinned memory: copies from other memory are slower."""
        self._stats.reads_outside_pinned += 1
        return _Slot(None, torch.empty(-(-length // _SLOT_ALIGN) * _SLOT_ALIGN, dtype=torch.uint8))

    def _read_urgently(self, entry: Entry) -> None:
        """The store's requests may all be in use: that must not fail, as long as some of them end."""
        slot = self._take_slot(entry.length) or self._outside(entry.length)
        for look in itertools.count(1):
            try:
                self._begin_read(entry, slot, urgent=True)
                return
            except SpillwayError as error:
                if error.errno != errno.ENOBUFS or look == _LOOKS_MAX:
                    self._retire(slot)
                    raise
            self._wait_for_request()

    def _wait_for_request(self) -> None:
        """Until the oldest transfer has ended. Without one others have the requests, which nothing tells: look again soon."""
        if self._writing:
            result = self._transfers.wait(self._writing[0].request)
            self._end_write(self._writing.popleft(), result)
        elif self._reading:
            result = self._transfers.wait(self._reading[0].request)
            self._end_read(self._reading.pop(0), result)
        else:
            time.sleep(_LOOK_SECONDS)

    def _begin_read(self, entry: Entry, slot: _Slot, urgent: bool) -> None:
        """
        :raises SpillwayError: no read began; the slot is the caller's
        """
        entry.request = self._transfers.get(entry.thing, slot.bytes.data_ptr(), slot.length, urgent)
        self._reads.began(time.perf_counter_ns())
        entry.slot, entry.reading, slot.ahead = slot, True, True
        self._ahead_bytes += slot.length
        self._reading.append(entry)

    def _end_read(self, entry: Entry, result: int) -> None:
        entry.request, entry.reading = None, False
        self._reads.ended(time.perf_counter_ns(), entry.length if result >= 0 else 0)
        if result < 0:
            self._stats.reads_failed += 1
            self._leave_slot(entry)
        else:
            self._stats.bytes_read += entry.length
        if not entry.users:
            self._drop(entry)

    def _read_ahead(self, entry: Entry, again: bool) -> None:
        """Backward uses come about in the reverse order of saving. A wrong guess costs a read: what was used is left out, but
        ``again``, when the entry itself is used once more (by a second backward pass over a graph that was retained)."""
        for ahead in reversed(self._order[max(0, entry.index - _LOOK_AHEAD) : entry.index]):
            wanted = ahead.uses_left > 0 or (again and ahead.users)
            if not wanted or not ahead.stored() or ahead.base is not None:
                continue
            if self._ahead_bytes + ahead.length > self._ahead_max:
                return
            slot = self._take_slot(ahead.length)
            if slot is None:
                return
            try:
                self._begin_read(ahead, slot, urgent=False)
            except SpillwayError:  # is said when it is needed and fails again
                self._retire(slot)
                return
            self._stats.prefetches += 1

    def _leave_slot(self, entry: Entry) -> None:
        """The bytes are on the drives."""
        assert entry.slot is not None
        self._retire(entry.slot)
        entry.slot = None

    def _retire(self, slot: _Slot) -> None:
        """The slot is free when the copies out of it have ended."""
        if slot.ahead:
            self._ahead_bytes -= slot.length
        self._retiring.append(slot)

    def _progress(self) -> None:
        if self.table.capturing():
            return
        while self._ended:
            user = self._ended.pop()
            entry = user.entry
            entry.users.discard(user)
            entry.uses_left = min(entry.uses_left, len(entry.users))
            if len(entry.users) <= 1 and not entry.uses_left:
                entry.base = entry.arrived = None
            if not entry.users:
                self._drop(entry)
        while self._copying and self.table.done(self._copying[0].copied):
            self._end_copy(self._copying.popleft())
        while self._writing:
            result = self._transfers.test(self._writing[0].request)
            if result is None:
                break
            self._end_write(self._writing.popleft(), result)
        for entry in list(self._reading):
            result = self._transfers.test(entry.request)
            if result is not None:
                self._reading.remove(entry)
                self._end_read(entry, result)
        while self._retiring and all(self.table.done(event) for event in self._retiring[0].busy):
            slot = self._retiring.popleft()
            if slot.begin is not None:
                self._ranges.give(slot.begin, slot.length)
                self._stats.pinned_bytes_used -= slot.length

    def _end_copy(self, entry: Entry) -> None:
        """The slot has the bytes: let the device's memory go."""
        tensor, entry.tensor = entry.tensor, None
        assert tensor is not None and entry.slot is not None
        if tensor._version != entry.version.number:
            entry.version.modified = True
        if not entry.users:
            self._drop(entry)
            return
        try:
            entry.thing, entry.request = self._transfers.put(entry.slot.bytes.data_ptr(), entry.slot.length)
        except SpillwayError as error:
            self._not_stored(entry, error.errno)
        else:
            self._writes.began(time.perf_counter_ns())
            self._writing.append(entry)

    def _end_write(self, entry: Entry, result: int) -> None:
        entry.request = None
        self._writes.ended(time.perf_counter_ns(), entry.length if result >= 0 else 0)
        if result < 0:
            self._transfers.free(entry.thing)
            entry.thing = None
            self._not_stored(entry, -result)
        else:
            self._stats.tensors_spilled += 1
            self._stats.bytes_spilled += entry.length
            self._leave_slot(entry)
        if not entry.users:
            self._drop(entry)

    def _not_stored(self, entry: Entry, number: Optional[int]) -> None:
        """The bytes stay where they are, in pinned memory: the step goes on."""
        if number in (errno.ENOSPC, errno.ENOBUFS):
            self._stats.bytes_kept_no_space += entry.length
        else:
            self._stats.bytes_kept_error += entry.length

    def _drop(self, entry: Entry) -> None:
        """Nobody needs it. What is under way ends first, and then comes here again."""
        if entry.kept:
            entry.tensor = None
        if entry.tensor is not None or entry.request is not None:
            return
        entries = self._entries.get(entry.key)
        if entries and entry in entries:
            entries.remove(entry)
            if not entries:
                del self._entries[entry.key]
        if entry.slot is not None:
            self._retire(entry.slot)
            entry.slot = None
        if entry.thing is not None:
            self._transfers.free(entry.thing)
            entry.thing = None
