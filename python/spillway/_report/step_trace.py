# SPDX-License-Identifier: MIT
# spillway/_report/step_trace.py - one training step as a timeline, in the Chrome trace format
"""The file that offload.trace() writes, for Perfetto and chrome://tracing."""
from __future__ import annotations

import json
import os
import threading
import time
from typing import Any, Dict, List

from ..cache import CacheStats
from ..store import Path

_COUNTERS = ("activation_bytes", "staging_bytes", "prefetched_bytes")
_DEVICE_COUNTERS = ("device_bytes", "device_staging_bytes")


class StepTrace:
    """The events of one step. The threads of the forward pass and of autograd add them without a
    lock: appending to a list is atomic."""

    def __init__(self, path: Path, stats: CacheStats) -> None:
        self.path = path
        self._began = time.perf_counter_ns()
        self._events: List[Dict[str, Any]] = []
        self._stall_ns = stats.stall_ns
        self._depth = 0
        self._rows: Dict[str, int] = {}

    def _add(self, name: str, phase: str, ns: int, **more: Any) -> None:
        self._events.append({
            "name": name, "ph": phase, "ts": (ns - self._began) / 1000, "pid": os.getpid(),
            "tid": threading.get_native_id(), **more
        })

    def begin(self, name: str) -> None:
        self._depth += 1
        self._add(name, "B", time.perf_counter_ns())

    def end(self) -> None:
        """End the event that began last; events that began before the recording are not in it."""
        if self._depth > 0:
            self._depth -= 1
            self._add("", "E", time.perf_counter_ns())

    def mark(self, name: str) -> None:
        self._add(name, "i", time.perf_counter_ns(), s="p")

    def tensor(self, what: str, began_ns: int, length_bytes: int, number: int,
               stats: CacheStats) -> None:
        """A tensor was saved or used; ``stats``: counters after that."""
        now = time.perf_counter_ns()
        stall, self._stall_ns = stats.stall_ns - self._stall_ns, stats.stall_ns
        arguments = {"tensor": number, "bytes": length_bytes}
        if what == "use":
            arguments["waited_us"] = stall // 1000
        self._add(what, "X", began_ns, dur=(now - began_ns) / 1000, args=arguments)
        counters = _COUNTERS + (_DEVICE_COUNTERS if stats.device_bytes_max else ())
        self._add("memory", "C", now, args={name: getattr(stats, name) for name in counters})

    def device(self, device: str, what: str, began_ns: int, took_ns: int, **arguments: int) -> None:
        """Work of a device, in a row of its own, in times of the device's clock."""
        row = f"{device} {what}"
        if row not in self._rows:
            self._rows[row] = len(self._rows) + 1
            self._events.append({"name": "thread_name", "ph": "M", "pid": os.getpid(),
                                 "tid": self._rows[row], "args": {"name": row}})
        self._add(what, "X", began_ns, dur=took_ns / 1000, args=arguments, tid=self._rows[row])

    def write(self) -> None:
        """Write the events so far."""
        with open(self.path, "w", encoding="ascii") as file:
            json.dump({"traceEvents": list(self._events), "displayTimeUnit": "ms"}, file)
