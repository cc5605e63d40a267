# SPDX-License-Identifier: MIT
# spillway/_core/missing_drive.py - which records of training state are lost with a missing drive
from __future__ import annotations

import contextlib
import ctypes
import errno
from ctypes import byref, c_char, c_void_p
from typing import Any, Iterator, List, Tuple

from . import library
from .library import SpillwayError, blocking

_NAMED_MAX = 8  # in an error; spillway state list names all
_ARENA_BYTES = 16 << 20
_URGENT_READ = 0


def _lost_records(array: Any, count: int, partition: int, commit_number: int) -> List[str]:
    """Their names, by opening the store to be read only; none, if it cannot be told."""
    opts = library.options(library.StoreOpts)
    opts.partition, opts.commit_number = partition, commit_number
    opts.arena_bytes, opts.no_hugetlb, opts.read_only = _ARENA_BYTES, True, True
    handle = c_void_p()
    found: List[Tuple[str, int]] = []

    def each(_: object, name: bytes, __: int, ___: int, ____: int, thing: int) -> int:
        found.append((name.decode(errors="replace"), thing))
        return 0

    if blocking.spw_store_open(array, count, byref(opts), byref(handle)) < 0:
        return []
    try:
        if blocking.spw_state_committed(handle, library.Each(each), None) < 0:
            return []
        return [name for name, thing in found if thing and _is_lost(handle, thing)]
    finally:
        blocking.spw_store_close(handle)


def _is_lost(handle: c_void_p, thing: int) -> bool:
    """Nothing is read of what is lost; of what is not, one chunk."""
    byte, request = c_char(), c_void_p()
    return (blocking.spw_store_get(handle, thing, 0, byref(byte), ctypes.sizeof(byte),
                                   _URGENT_READ, None, byref(request)) == 0
            and blocking.spw_request_wait(request) == -errno.ENXIO)


@contextlib.contextmanager
def lost_are_named(array: Any, count: int, opts: Any) -> Iterator[None]:
    """Where a store is refused because a drive is missing, the error names the records of training
    state that are lost without it.

    :param opts: that it is opened with
    """
    try:
        yield
    except SpillwayError as error:
        names = [] if error.errno != errno.ENXIO or opts.partition == library.PARTITION_ANY else \
            _lost_records(array, count, opts.partition, opts.commit_number)
        if not names:
            raise
        more = f", and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
        raise SpillwayError(errno.ENXIO, f"{error.strerror}; lost: "
                            f"{', '.join(names[:_NAMED_MAX])}{more}") from error
