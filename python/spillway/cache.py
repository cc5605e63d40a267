# SPDX-License-Identifier: MIT
# spillway/cache.py - a thin handle on the tensor cache of the C library
"""The tensor cache decides, in C, what spills and when it comes back. Here are its handle and
its counters; no policy."""
from __future__ import annotations

import ctypes
import logging
import os
import weakref
from ctypes import byref, c_void_p
from typing import Any, Dict, List, Literal, Optional, Tuple

from ._core import library
from ._core.counted import CacheStats as CacheStats
from ._core.counted import CacheStruct
from ._core.handle import Handle
from ._core.library import Size, blocking, bytes_text, check, fast, to_dataclass
from .store import Path, Store, choice
from .wear import Cap, cap_of

_log = logging.getLogger("spillway")

Mode = Literal["fastest", "budget", "spill", "observe"]

MODES: Dict[Mode, int] = {"fastest": 2, "budget": 3, "spill": 0, "observe": 1}

WITHOUT_STORE = ("observe", "fastest", "budget")

POINTS_MAX = 512  # of a profile

HOST_BYTES_MIN = 2 << 20  # what an arena has at least

STAGE_FORWARD, STAGE_BACKWARD = 0, 1


def checked_mode(mode: Mode) -> int:
    """As the library numbers it.

    :raises ValueError: there is no such mode
    """
    if str(mode) == "positional":
        raise ValueError(
            'mode="positional" is no longer a mode of the cache: use "fastest", which plans '
            "no worse; `spillway replay --mode positional` compares the two on a recorded step")
    return choice("mode", mode, MODES)


def checked_host_bytes(value: Size) -> int:
    """
    :raises ValueError: too small, or more than this machine's memory
    :raises TypeError: neither a whole number nor a string
    """
    if isinstance(value, bool):
        raise TypeError(f'host_bytes must be bytes, or a size like "8GiB", not {value}')
    length = library.size("host_bytes", value)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if length < HOST_BYTES_MIN:
        raise ValueError(f"host_bytes must be at least {bytes_text(HOST_BYTES_MIN)}, not "
                         f"{bytes_text(length)}: leave it out to keep no copies in host memory")
    if length > total:
        raise ValueError(f"host_bytes is {bytes_text(length)}, and this machine has "
                         f"{bytes_text(total)} of memory")
    return length


class Cache(Handle):
    """A tensor cache over a store.

    :param store: where to spill; may be None in modes "observe", "fastest" and "budget"
    :param memory_bytes: offload()'s budget_bytes
    :param host_bytes: as much may be pinned when a tensor of a device is met
    :param record_model: what is recorded, in words

    All other parameters are those of spillway.torch.offload().
    """

    _closed_words = (
        "the tensor cache is closed (so was its store, or offload.close() was called); "
        "what was saved in it is gone: run the forward pass again with an open store")
    _copied_words = ("a Cache cannot be copied or pickled: open one in each process, on a store of "
                     "its own")

    def __init__(
        self,
        store: Optional[Store],
        *,
        mode: Mode = "fastest",
        min_bytes: Optional[Size] = None,
        staging_bytes: Optional[Size] = None,
        prefetch_bytes: Optional[Size] = None,
        memory_bytes: Optional[Size] = None,
        record: Optional[Path] = None,
        record_model: str = "",
        wear: Optional[Cap] = None,
        endurance_bytes: Size = 0,
        host_bytes: Optional[Size] = None,
    ) -> None:
        self._recorder = c_void_p()
        self.host_bytes = 0 if host_bytes is None else checked_host_bytes(host_bytes)
        opts = library.options(library.CacheOpts)
        self.mode = mode
        opts.mode = checked_mode(mode)
        lengths = {"min_bytes": min_bytes, "staging_bytes": staging_bytes,
                   "prefetch_bytes": prefetch_bytes, "memory_bytes": memory_bytes}
        for name, value in lengths.items():
            if value is not None:
                setattr(opts, name, library.size(name, value))
        if wear is not None:
            opts.wear_bytes_per_day, opts.wear_years = cap_of(wear)
        opts.endurance_bytes = library.size("endurance_bytes", endurance_bytes)
        if store is None and mode not in WITHOUT_STORE:
            raise ValueError(
                'a store is needed, except in mode "observe", and where "fastest" and "budget" are '
                "met by recomputing, or by host_bytes")
        self.min_bytes = int(opts.min_bytes)
        handle = c_void_p()
        store_handle = None if store is None else store.handle
        if record is not None:
            model = record_model.encode()
            check(fast.spw_trace_create(os.fsencode(record), model, byref(self._recorder)))
            opts.trace = self._recorder
        self.leases: Optional[Any] = None  # users that the hooks count
        # Weak references to functions that are called when the cache closes: while it and its store
        # are still open, once no new use can begin, and last.
        self.last_use: Optional["weakref.WeakMethod[Any]"] = None
        self.when_closed: Optional["weakref.WeakMethod[Any]"] = None
        self.after_close: Optional["weakref.WeakMethod[Any]"] = None
        self.store = store  # that it spills to
        try:
            check(blocking.spw_cache_open(store_handle, byref(opts), byref(handle)))
        except BaseException:  # Ctrl-C meanwhile is raised when it is open
            if handle.value:
                blocking.spw_cache_close(handle)
            blocking.spw_trace_finish(self._recorder)
            raise
        super().__init__(handle.value)
        if store is not None:
            store.add_dependent(self)

    def _before_close(self) -> None:
        _call(self.last_use)

    def _before_end(self) -> None:
        if self.leases is not None:
            self.leases.shut()
        _call(self.when_closed)

    def _is_lent(self) -> bool:
        return self.leases is not None and self.leases.busy(self)

    def _end(self, handle: int) -> None:
        try:
            blocking.spw_cache_close(handle)
        finally:  # also when Ctrl-C came meanwhile
            self._after_close()

    def _after_close(self) -> None:
        recorder, self._recorder = self._recorder, c_void_p()
        failure = blocking.spw_trace_finish(recorder)
        if failure < 0:
            _log.warning("the recording is not complete: %s", library.error_of(failure))
        _call(self.after_close)
        if self.store is not None:
            self.store.drop_dependent(self)

    def forget(self) -> None:
        """As of a Store; what is lent of its memory is the parent process' too."""
        super().forget()
        if self.leases is not None:
            self.leases.forget()

    def stats(self) -> CacheStats:
        """Counters so far."""
        struct = CacheStruct()
        self.call(fast.spw_cache_stats, byref(struct), ctypes.sizeof(struct))
        return to_dataclass(CacheStats, struct)

    def profile(self) -> List[Tuple[float, int, int]]:
        """The memory over the last step that ended: (seconds since it began, most bytes of
        activations in memory from then until the next point, the same if nothing were spilled)."""
        points = (library.MemoryPoint * POINTS_MAX)()
        count = self.call(fast.spw_cache_profile, points, POINTS_MAX)
        return [(point.ns / 1e9, point.bytes, point.keep_all_bytes) for point in points[:count]]

    def explain(self) -> Tuple[List[Any], Any]:
        """The scopes of the plan in force, as struct spw_cache_reason, and its result; none: there
        is no plan."""
        result = library.PlanResult()
        result.size = ctypes.sizeof(result)
        count, reasons = 0, (library.CacheReason * 0)()
        while True:
            found = check(self.call(fast.spw_cache_explain, reasons, count, byref(result)))
            if found <= count:
                return list(reasons[:found]), result
            count, reasons = found, (library.CacheReason * found)()

    def reset_peak(self) -> None:
        """Reset the peaks to what is in memory now."""
        self.call(fast.spw_cache_reset_peak)


def _call(reference: Optional["weakref.WeakMethod[Any]"]) -> None:
    function = reference() if reference is not None else None
    if function is not None:
        function()
