# SPDX-License-Identifier: MIT
# spillway/state.py - a thin handle on records of training state
"""Records of fixed length that are prefetched, changed in memory, written behind, and durable at a
commit. The order, the memory and the drives are C's; here are the calls, and no policy.

>>> state = State(store, record_bytes_max=1 << 20)
>>> record = state.add("layer0", 1 << 20, b"what is in it")
>>> state.attach()                          # False: nothing was committed
>>> state.begin_pass([record])
>>> address = state.take(record)            # of its memory, until give()
>>> state.give(record, changed=True)
>>> state.commit(1, b"any bytes")
"""
from __future__ import annotations

import ctypes
import dataclasses
import errno
from ctypes import byref, c_bool, c_uint32, c_uint64, c_void_p
from typing import Any, List, Optional, Sequence, Tuple

from ._core import library
from ._core.counted import StateStats as StateStats
from ._core.counted import StateStruct
from ._core.handle import Handle
from ._core.library import Size, SpillwayError, blocking, check, fast, number, size, to_dataclass
from .store import Store


@dataclasses.dataclass(frozen=True)
class CommittedRecord:
    """A record of a commit. ``thing``: the store's object that has its bytes; 0: they are zero."""

    name: str
    len_bytes: int
    shape: bytes
    thing: int


def committed_state(store: Store) -> List[CommittedRecord]:
    """The records of the commit that opening the store has restored, in order.

    :raises SpillwayError: ENODATA nothing is committed; EALREADY it was resumed meanwhile; EUCLEAN
        it is not a state; or it cannot be read
    """
    records: List[CommittedRecord] = []

    def each(_: object, name: bytes, len_bytes: int, shape: int, shape_len: int, thing: int) -> int:
        records.append(CommittedRecord(name.decode(errors="replace"), len_bytes,
                                       ctypes.string_at(shape, shape_len), thing))
        return 0

    check(store.call(blocking.spw_state_committed, library.Each(each), None))
    return records


def committed_extra(store: Store) -> bytes:
    """What was given with that commit. Errors as of committed_state()."""
    return _bytes_by(store, blocking.spw_state_committed_extra)


def _bytes_by(handle: Handle, function: Any) -> bytes:
    """What a function of the library copies that says first how long it is."""
    length = ctypes.c_size_t()
    check(handle.call(function, None, byref(length)))
    memory = (ctypes.c_char * length.value)()
    check(handle.call(function, memory, byref(length)))
    return memory.raw


def committed_records(store: Store) -> List[Tuple[str, bytes]]:
    """The name and the shape of each record of the commit that opening the store has restored; none
    if there is no such commit, or it cannot be attached any more.

    :raises SpillwayError: EUCLEAN it is not a state; or it cannot be read
    """
    try:
        return [(record.name, record.shape) for record in committed_state(store)]
    except SpillwayError as error:
        if error.errno in (errno.ENODATA, errno.EALREADY):
            return []
        raise


class State(Handle):
    """Training state in a store. One thread at a time uses it.

    :param store: open; its objects and commits are the state's from now on
    :param memory_bytes: of the store's arena, rounded down to whole buffers; 0: four buffers
    :param record_bytes_max: the longest record; 0: 32 MiB
    :param copies: 2: every record on two drives, so that any one of them may fail
    :param device_every: of update(): each n-th record is the device's; 0: as was measured
    :raises SpillwayError: EBUSY the store has a state already; ENOBUFS its arena has no such
        memory; EINVAL ``copies``, or two on a store of one drive
    """

    _closed_words = ("the training state is closed (so was its store, or close() was called); open "
                     "the store again: what was committed is there")
    _copied_words = ("a State cannot be copied or pickled: open one in each process, on a store of "
                     "its own")

    def __init__(self, store: Store, *, memory_bytes: Size = 0, record_bytes_max: Size = 0,
                 copies: int = 1, device_every: int = 0) -> None:
        if store.has_open(State):
            raise SpillwayError(
                errno.EBUSY, "the store has a training state already, of another optimizer: close "
                "that, or give each one a partition of its own")
        opts = library.options(library.StateOpts)
        opts.memory_bytes = size("memory_bytes", memory_bytes)
        if record_bytes_max:
            opts.record_bytes_max = size("record_bytes_max", record_bytes_max)
        opts.copies = number("copies", copies, 32)
        opts.device_every = number("device_every", device_every, 32)
        handle = c_void_p()
        try:
            check(blocking.spw_state_open(store.handle, byref(opts), byref(handle)))
        except BaseException:  # Ctrl-C meanwhile is raised when it is open
            if handle.value:
                blocking.spw_state_close(handle)
            raise
        self.store = store
        super().__init__(handle.value)
        store.add_dependent(self)

    def _end(self, handle: int) -> None:
        try:
            blocking.spw_state_close(handle)
        finally:  # also when Ctrl-C came meanwhile
            self.store.drop_dependent(self)

    def add(self, name: str, len_bytes: int, shape: bytes) -> int:
        """Declare a record before attach().

        :param shape: what is in it; compared with what was committed
        :return: its number
        :raises SpillwayError: EEXIST the name is taken; EALREADY attached
        """
        return self._add(fast.spw_state_add, name, len_bytes, shape, len(shape))

    def add_transient(self, name: str, len_bytes: int) -> int:
        """Declare a record that no commit has, before attach(): as add()."""
        return self._add(fast.spw_state_add_transient, name, len_bytes)

    def add_former(self, name: str, len_bytes: int, shape: bytes) -> int:
        """Declare a record that only the commit to be attached has, in place of others that it
        lacks, before attach(): as add()."""
        return self._add(fast.spw_state_add_former, name, len_bytes, shape, len(shape))

    def add_object(self, name: str, len_bytes: int, shape: bytes) -> int:
        """Declare a record that is an object of the caller's, before attach(): as add()."""
        return self._add(fast.spw_state_add_object, name, len_bytes, shape, len(shape))

    def _add(self, function: Any, name: str, len_bytes: int, *shape: Any) -> int:
        record = c_uint32()
        len_bytes = number("len_bytes", len_bytes, 64)
        check(self.call(function, name.encode(), len_bytes, *shape, byref(record)))
        return record.value

    def attach(self) -> bool:
        """All records are declared: take up what is committed.

        :return: whether anything is; else all records are zero
        :raises SpillwayError: ENOSPC the store is too small; EUCLEAN other records are committed
        """
        return check(self.call(blocking.spw_state_attach)) == 1

    def attach_empty(self) -> bool:
        """As attach(), but all records are zero, to replace whatever the commit has, which stays
        until the next."""
        return check(self.call(blocking.spw_state_attach_empty)) == 1

    @property
    def attached(self) -> Optional[int]:
        """The number of the commit that was attached."""
        value = c_uint64()
        result = self.call(fast.spw_state_attached, byref(value))
        return None if result < 0 else value.value

    def extra(self) -> bytes:
        """What was given with the commit that was attached.

        :raises SpillwayError: ENODATA nothing was attached
        """
        return _bytes_by(self, blocking.spw_state_extra)

    def begin_pass(self, order: Sequence[int]) -> None:
        """Say in which order records will be taken next; prefetching begins.

        :raises SpillwayError: EINVAL a number is invalid or there twice; EBUSY a record is taken
        """
        numbers = (c_uint32 * len(order))(*order)
        check(self.call(blocking.spw_state_pass, numbers, len(order)))

    def update(self, order: Sequence[int], can: Sequence[bool]) -> List[bool]:
        """As begin_pass(), of a pass that updates each record.

        :param can: whether a device can update it
        :return: whether it is to, while the host updates those that follow
        """
        numbers = (c_uint32 * len(order))(*order)
        device = (c_bool * len(order))(*can)
        check(self.call(blocking.spw_state_update, numbers, len(order), device))
        return list(device)

    def device_took(self, record: int, nanoseconds: int) -> None:
        """For a record that update() gave to the device, with both copies, before give()."""
        check(self.call(fast.spw_state_device_took, record, nanoseconds))

    def take(self, record: int) -> int:
        """The address of a record's bytes, aligned to 4096: the caller's until give().

        :raises SpillwayError: EBADMSG, EIO it cannot be read; or how a write failed without which
            there is no room
        """
        memory = c_void_p()
        try:
            check(self.call(blocking.spw_state_take, record, byref(memory)))
        except BaseException:  # Ctrl-C meanwhile is raised when it is taken
            if memory.value:
                self.call(blocking.spw_state_give, record, False)
            raise
        assert memory.value is not None
        return memory.value

    def give(self, record: int, changed: bool) -> None:
        """It was used, and its bytes are others than before or not. Does not wait.

        :raises SpillwayError: EINVAL it is not taken
        """
        check(self.call(blocking.spw_state_give, record, changed))

    def clear(self, record: int) -> None:
        """Its bytes are zero, and nothing is read or written for it. Waits for what is under way.

        :raises SpillwayError: EINVAL there is no such record; EBUSY it is taken
        """
        check(self.call(blocking.spw_state_clear, record))

    def object(self, record: int) -> int:
        """Of a record of add_object(), the object of the commit that was attached, which is the
        caller's, or the one set since; 0: none.

        :raises SpillwayError: EINVAL it is no such record
        """
        thing = c_uint64()
        check(self.call(fast.spw_state_object, record, byref(thing)))
        return thing.value

    def set_object(self, record: int, thing: int) -> None:
        """The object that commits have for such a record from now on.

        :raises SpillwayError: the same
        """
        check(self.call(fast.spw_state_set_object, record, thing))

    def commit(self, number: int, extra: bytes, keep_previous: bool = False) -> None:
        """Make all records durable as they are now.

        :param number: above that of the commit before
        :raises SpillwayError: EBUSY one is taken; EINVAL the number; EIO and others: the commit
            before is durable still
        """
        number = library.number("number", number, 63)
        check(self.call(blocking.spw_state_commit, number, extra, len(extra), keep_previous))

    def commit_release(self) -> None:
        """The commit before the last, if it was kept, is not needed any more."""
        check(self.call(blocking.spw_state_commit_release))

    def stats(self) -> StateStats:
        """Counters so far."""
        struct = StateStruct()
        self.call(fast.spw_state_stats, byref(struct), ctypes.sizeof(struct))
        return to_dataclass(StateStats, struct)
