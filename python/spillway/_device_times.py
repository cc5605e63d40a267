# SPDX-License-Identifier: MIT
# spillway/_device_times.py - how long a device stalled and how fast its bus is, by its own clock
"""Where events have times. A copy is timed between two marks of its side stream, and a wait of a
stream that computes between two of that stream: from when it has nothing else to do until it can go
on. Times are asked for once the device has come by; nobody waits for that."""

from __future__ import annotations

import logging
import time
from collections import deque
from ctypes import byref
from typing import Any, Deque, Dict, Optional, Tuple

import torch

from ._library import DeviceTimes as Times
from ._library import fast
from ._steptrace import StepTrace

_log = logging.getLogger("spillway")


class DeviceTimes:
    """For one thread at a time.

    :param table: as _accelerator.Table
    """

    def __init__(self, table: Any) -> None:
        self._table = table
        self._has = bool(table.times)
        self._waits: Dict[torch.device, Deque[Tuple[Any, Any]]] = {}
        self._shown, self._news = Times(), False  # since the cache was told
        self._tracer: Optional[StepTrace] = None
        # In its recording, of each device: the first mark, and when the host gave it.
        self._first: Dict[torch.device, Tuple[Any, int]] = {}

    def mark(self, stream: Any) -> Any:
        """The end of what the stream was given so far; None: there are no times."""
        if not self._has:
            return None
        mark = self._table.mark(stream)
        if self._tracer is not None and stream.device not in self._first:
            self._first[stream.device] = mark, time.perf_counter_ns()
        return mark

    def wait(self, stream: Any, copy: Any, since: Any = None) -> None:
        """The stream waits for the end of a copy, and for how long is noted.

        :param since: a mark of the stream; None: now
        """
        begin = self.mark(stream) if since is None and not copy.ended else since
        self._table.wait(stream, copy.event)
        if begin is not None:
            waits = self._waits.setdefault(stream.device, deque())
            waits.append((begin, self._table.mark(stream)))

    def copied(self, device: torch.device, copy: Any, out: bool) -> None:
        """A copy has ended well."""
        nanoseconds, shown = self._elapsed(copy.begin, copy.event), self._shown
        if nanoseconds <= 0:
            return
        if out:
            shown.bytes_out += copy.length
            shown.out_ns += nanoseconds
        else:
            shown.bytes_in += copy.length
            shown.in_ns += nanoseconds
        way = "copy out" if out else "copy in"
        self._trace(device, way, copy.begin, nanoseconds, bytes=copy.length)

    def tell(self, handle: int) -> None:
        """The cache hears what was shown since the last call. From the first one on it takes no
        wait of the host for a stall."""
        for device, waits in self._waits.items():
            self._look(device, waits)
        if self._news:
            fast.spw_cache_device_times(handle, byref(self._shown))
            self._shown, self._news = Times(), False

    def watch(self, tracer: Optional[StepTrace]) -> None:
        """From now on what the devices do is noted there."""
        self._tracer = tracer
        self._first = {}

    def _look(self, device: torch.device, waits: Deque[Tuple[Any, Any]]) -> None:
        try:
            while waits and self._table.done(waits[0][1]):
                nanoseconds = self._elapsed(*waits[0])
                self._shown.stall_ns += nanoseconds
                begin = waits.popleft()[0]
                self._trace(device, "wait", begin, nanoseconds)
        except RuntimeError:  # nothing runs on that device any more: the copies tell of it
            waits.clear()

    def _elapsed(self, begin: Any, end: Any) -> int:
        """Between two marks that have come. What a device does not tell fails no copy."""
        if not self._has or begin is None:
            return 0
        try:
            nanoseconds: int = self._table.elapsed(begin, end)
        except RuntimeError as error:
            _log.warning("events of the device tell no times: %s", error)
            self._has = False
            return 0
        self._news = True
        return nanoseconds

    def _trace(
        self, device: torch.device, what: str, begin: Any, took_ns: int, **arguments: int
    ) -> None:
        if self._tracer is None or took_ns == 0 or device not in self._first:
            return
        first, given_ns = self._first[device]
        try:
            since_ns = self._elapsed(first, begin) if self._table.done(first) else 0
        except RuntimeError:  # nothing runs there any more: the copies tell of it
            return
        if since_ns > 0 or begin is first:  # else it began before
            self._tracer.device(str(device), what, given_ns + since_ns, took_ns, **arguments)
