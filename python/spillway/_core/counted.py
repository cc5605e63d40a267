# SPDX-License-Identifier: MIT
# spillway/_core/counted.py - the library's counters: a dataclass for each of its tables
"""The names, order, types and help come from the library itself (spw_counter_get). The classes'
fields are for type checkers in counted.pyi, which is built and installed beside this file."""
from __future__ import annotations

import ctypes
import dataclasses
import itertools
from ctypes import c_uint32, c_uint64
from typing import Any, List, NamedTuple, Sequence

from .library import Counter, fast, struct

KINDS = ("total", "gauge", "peak")
UNITS = ("", "bytes", "ns", "bytes/s", "bytes/day", "%", "spw_budget_cause")
TABLES = ("cache", "store", "state")


class Row(NamedTuple):
    """A counter of a table."""

    name: str
    group: str
    help: str
    kind: str
    unit: str
    len_bytes: int


def table_of(name: str) -> List[Row]:
    """A table, in the order of its struct."""
    rows: List[Row] = []
    counter = Counter()
    for index in itertools.count():
        if fast.spw_counter_get(TABLES.index(name), index, counter, ctypes.sizeof(counter)) < 0:
            break
        rows.append(Row(counter.name.decode(), counter.group.decode(), counter.help.decode(),
                        KINDS[counter.kind], UNITS[counter.unit], counter.len_bytes))
    return rows


def _struct_of(name: str, rows: Sequence[Row]) -> Any:
    kinds = {4: c_uint32, 8: c_uint64}
    members = {row.name: kinds[row.len_bytes] for row in rows}
    return struct(name, size=ctypes.c_size_t, **members)


def _class_of(name: str, doc: str, rows: Sequence[Row], **namespace: Any) -> Any:
    lines = [doc, "", *(f"{row.name}: {row.help}" for row in rows)]
    namespace.update(__doc__="\n".join(lines), __module__=__name__)
    return dataclasses.make_dataclass(name, [(row.name, int) for row in rows], frozen=True,
                                      namespace=namespace)


def _stall_seconds(stats: Any) -> float:
    """Time that the backward pass waited for drives; of a device, that it waited for copies."""
    return stats.stall_ns / 1e9


_cache, _store, _state = map(table_of, TABLES)
CacheStruct = _struct_of("spw_cache_stats", _cache)
StoreStruct = _struct_of("spw_store_stats", _store)
StateStruct = _struct_of("spw_state_stats", _state)
CacheStats = _class_of("CacheStats", "Counters of a tensor cache since it was opened.", _cache,
                       stall_seconds=property(_stall_seconds))
DeviceStats = _class_of("DeviceStats", "Of tensors on devices, as in CacheStats.",
                        [row for row in _cache if row.group == "device"])
StoreStats = _class_of("StoreStats", "Counters of an open store since it was opened.", _store)
StateStats = _class_of("StateStats", "Counters since the state was opened.", _state)
