# SPDX-License-Identifier: MIT
# spillway/cache.py - a thin handle on the tensor cache of the C library
"""The tensor cache decides, in C, what spills and when it comes back. Here are its handle and
its counters; no policy."""
from __future__ import annotations

import ctypes
import dataclasses
import logging
import os
import weakref
from ctypes import byref, c_void_p
from typing import Any, Dict, List, Literal, Optional, Tuple

from ._core import library
from ._core.handle import Handle
from ._core.library import Size, blocking, check, fast, to_dataclass
from .store import Path, Store, choice
from .wear import Cap, cap_of

_log = logging.getLogger("spillway")

Mode = Literal["fastest", "budget", "spill", "observe", "positional"]

MODES: Dict[Mode, int] = {"fastest": 2, "budget": 3, "spill": 0, "observe": 1, "positional": 4}

WITHOUT_STORE = ("observe", "budget")

POINTS_MAX = 512  # of a profile

STAGE_FORWARD, STAGE_BACKWARD = 0, 1


@dataclasses.dataclass(frozen=True)
class DeviceStats:
    """Of tensors on devices, as in CacheStats; ``device_bytes`` and ``device_staging_bytes`` are of
    now."""

    bytes_kept_no_staging: int
    tensors_kept_no_staging: int
    device_bytes: int
    device_bytes_max: int
    device_staging_bytes: int
    device_staging_bytes_max: int
    copies: int
    bytes_copied: int
    copies_failed: int
    bytes_copied_again: int
    copies_ordered: int
    staging_waits: int
    tensors_ahead: int

    @classmethod
    def of(cls, stats: "CacheStats") -> "DeviceStats":
        return to_dataclass(cls, stats)


@dataclasses.dataclass(frozen=True)
class _HostStats:
    steps: int
    offers: int
    takes: int
    releases: int
    entries: int
    activation_bytes: int
    activation_bytes_max: int
    bytes_offered: int
    bytes_spilled: int
    bytes_read: int
    bytes_forwarded: int
    bytes_deduplicated: int
    bytes_kept_small: int
    bytes_kept_last_scope: int
    bytes_kept_backpressure: int
    bytes_kept_no_space: int
    bytes_kept_error: int
    bytes_kept_entries: int
    bytes_kept_observed: int
    bytes_kept_backward: int
    writes_cancelled: int
    bytes_writes_cancelled: int
    prefetches: int
    prefetch_hits: int
    prefetch_late: int
    misses: int
    stall_ns: int
    read_memory_outside_arena_bytes: int
    staging_bytes: int
    staging_bytes_max: int
    prefetched_bytes: int
    prefetched_bytes_max: int
    tensors_spilled: int
    tensors_forwarded: int
    tensors_deduplicated: int
    tensors_kept_small: int
    tensors_kept_last_scope: int
    tensors_kept_backpressure: int
    tensors_kept_no_space: int
    tensors_kept_error: int
    tensors_kept_entries: int
    tensors_kept_observed: int
    tensors_kept_backward: int
    writes_failed: int
    prefetches_failed: int
    reads_failed: int
    prefetch_budget_bytes: int
    bytes_kept_planned: int
    bytes_kept_hint: int
    tensors_kept_planned: int
    tensors_kept_hint: int
    prefetches_across: int
    steps_planned: int
    steps_fixed: int
    plans: int
    plans_shape: int
    plans_timeline: int
    plans_bandwidth: int
    plans_stall: int
    plans_memory: int
    plans_failed: int
    plan_mismatches: int
    plan_probes: int
    recordings_short: int
    steps_hurried: int
    plan_cost_ns: int
    plan_tensors: int
    plan_tensors_spilled: int
    plan_peak_bytes: int
    plan_keep_all_bytes: int
    plan_stall_ns: int
    plan_wall_ns: int
    plan_bytes_written: int
    plan_bytes_read: int
    plan_bytes_forwarded: int
    plan_memory_bytes: int
    plan_caution_percent: int
    step_compute_ns: int
    step_forward_ns: int
    step_backward_ns: int
    step_stall_ns: int
    step_peak_bytes: int
    write_bytes_per_second: int
    read_bytes_per_second: int
    mixed_bytes_per_second: int
    drive_latency_ns: int
    plan_switches: int
    bytes_compared: int
    offers_changed: int
    bytes_kept_changed: int
    tensors_kept_changed: int


@dataclasses.dataclass(frozen=True)
class CacheStats(DeviceStats, _HostStats):
    """Counters since the cache was opened. Bytes are bytes of tensors; ``activation_bytes``,
    ``entries``, ``staging_bytes``, ``prefetched_bytes``, ``device_bytes`` and
    ``device_staging_bytes`` are of now; ``*_max`` are peaks."""

    bytes_kept_wear: int
    tensors_kept_wear: int
    wear_bytes_per_day: int
    plans_limited: int
    plan_bytes_written_max: int
    device_stall_ns: int
    host_wait_ns: int
    bus_out_bytes_per_second: int
    bus_in_bytes_per_second: int
    bytes_given_up: int
    tensors_given_up: int
    bytes_restored: int
    tensors_restored: int
    restores_refused: int
    bytes_checked: int
    scopes_again: int
    again_ns: int
    step_again_ns: int
    plan_scopes_again: int
    plan_again_ns: int
    holds: int
    hold_ns: int
    step_hold_ns: int
    step_cpu_ns_max: int
    plan_wait_ns: int
    plans_here: int
    budget_bytes: int
    budget_cause: int
    budget_over_bytes: int
    budget_over_bytes_max: int
    budget_steps_over: int

    @property
    def stall_seconds(self) -> float:
        """Time that the backward pass waited for drives; of a device, that it waited for copies."""
        return self.stall_ns / 1e9


# Fields of the last base come first, as in C.
_CacheStatsStruct = library.counters("spw_cache_stats", CacheStats, ("entries",))


class Cache(Handle):
    """A tensor cache over a store.

    :param store: where to spill; may be None in mode "observe"
    :param memory_bytes: offload()'s budget_bytes
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
    ) -> None:
        self._recorder = c_void_p()
        opts = library.options(library.CacheOpts)
        self.mode = mode
        opts.mode = choice("mode", mode, MODES)
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
                'a store is needed, except in mode "observe", and in mode "budget" where scopes '
                "may be recomputed")
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
        struct = _CacheStatsStruct()
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
