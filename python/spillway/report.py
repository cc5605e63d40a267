# SPDX-License-Identifier: MIT
# spillway/report.py - the counters of a training run as a table for people
from __future__ import annotations

from typing import Iterable, List, Optional, Tuple

from .cache import CacheStats
from .store import Store

Row = Tuple[str, str]


def bytes_text(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def _both(stats: CacheStats, name: str) -> str:
    return f"{bytes_text(getattr(stats, 'bytes_' + name))} in {getattr(stats, 'tensors_' + name)} tensors"


_KEPT = (
    ("small", "too small"),
    ("planned", "by the plan"),
    ("last_scope", "last layer"),
    ("backward", "saved in the backward pass"),
    ("observed", "only watching"),
    ("hint", "excluded"),
    ("backpressure", "drives too slow"),
    ("no_space", "store full"),
    ("error", "drives failed"),
    ("entries", "no entry free"),
)


def _cache_rows(stats: CacheStats) -> Iterable[Row]:
    yield "steps", str(stats.steps)
    yield "activations in memory, peak", bytes_text(stats.activation_bytes_max)
    yield "offered", bytes_text(stats.bytes_offered)
    yield "  written to drives", _both(stats, "spilled")
    yield "  handed over before it was written", _both(stats, "forwarded")
    yield "  the same bytes as another", _both(stats, "deduplicated")
    for name, words in _KEPT:
        if getattr(stats, "tensors_kept_" + name):
            yield f"  kept: {words}", _both(stats, "kept_" + name)
    yield "read back", bytes_text(stats.bytes_read)
    yield "  in time", f"{stats.prefetch_hits} tensors"
    yield "  waited for", f"{stats.prefetch_late + stats.misses} tensors, {stats.stall_seconds * 1000:.1f} ms"
    if stats.plan_tensors:
        yield "plan", f"{stats.plan_tensors_spilled} of {stats.plan_tensors} tensors spill"
        yield "  peak predicted", f"{bytes_text(stats.plan_peak_bytes)} of {bytes_text(stats.plan_keep_all_bytes)}"
    for name in ("writes_failed", "reads_failed", "prefetches_failed"):
        if getattr(stats, name):
            yield name.replace("_", " "), str(getattr(stats, name))


def _drive_rows(store: Store) -> Iterable[Row]:
    for drive in store.drive_stats():
        state = ", retired" if drive.retired else ""
        yield drive.path, f"{bytes_text(drive.bytes_written)} written, {bytes_text(drive.bytes_read)} read{state}"


def table_of(stats: CacheStats, store: Optional[Store]) -> str:
    """One line per counter that says something, and one per drive."""
    rows: List[Row] = list(_cache_rows(stats))
    if store is not None and not store.closed:
        rows.extend(_drive_rows(store))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {value}" for name, value in rows)
