# SPDX-License-Identifier: MIT
# spillway/_gpu/device_times.py - stalls and bus speed of a device, by the device clock
"""Where events have times. A stream stalls from the moment when it has nothing else to do (an event
recorded before the wait) until the copy that it waits for has ended, or until the host, which has
waited for staging memory, gives it more. Times are read once the end of a copy was seen; nothing
waits for them.

The time of a step is that of one device, by events recorded in its stream where scopes begin and
end; the device clock stands still while the stream stalls.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from ctypes import byref
from typing import Any, Deque, Dict, Optional, Tuple, Union

import torch

from .._core.library import DeviceTimes as Times
from .._core.library import fast
from .._report.step_trace import StepTrace

_log = logging.getLogger("spillway")

_EVERY = 8  # one in this many copies measures the bus
_GOES_ON, _STANDS, _STALLS = 0, -1, -2  # the clock, after a mark that has no number


class DeviceTimes:
    """For one thread at a time.

    :param table: as accelerator.Table
    :param device: whose time is a step's
    """

    def __init__(self, table: Any, device: torch.device) -> None:
        self.device = device
        self._table = table
        self._has = bool(table.times)
        self._shown = Times()  # since the cache was told
        self.news = False  # there is something to tell
        self._tracer: Optional[StepTrace] = None
        # In its recording, of each device: the first mark, and when the host gave it.
        self._first: Dict[torch.device, Tuple[Any, int]] = {}
        # What the device was given: marks, with their numbers, and after the first of them copies
        # for which its stream waits, and marks where the clock is to stand still or go on.
        # What of that has come: the last mark, and when.
        self._given: Deque[Union[Tuple[int, Any], Any]] = deque()
        self._last: Any = None
        self._now_ns = self._told_ns = 0
        self.stands = False  # from what the stream is given now on,
        self._state = _GOES_ON  # and from what has come on

    def mark(self, stream: Any) -> Any:
        """The end of what the stream was given so far; None: there are no times."""
        return self._table.mark(stream) if self._has else None

    def begin(self, stream: Any, number: int) -> Any:
        """A mark in front of a copy, if the one with this number on its way is to be timed."""
        if self._tracer is None:
            return self.mark(stream) if number % _EVERY == 0 else None
        mark = self.mark(stream)
        self._first.setdefault(stream.device, (mark, time.perf_counter_ns()))
        return mark

    def border(self, handle: int) -> None:
        """What its stream that computes is given from now on is of another scope, or step."""
        number = fast.spw_cache_device_mark(handle) if self._has else 0
        if number:
            stream = self._table.current_stream(self.device)
            self._given.append((number, self._table.mark(stream)))

    def stand(self, still: bool) -> None:
        """The stream's work from now on does not count as part of the step; or does again."""
        if self.stands is not still and self._has:
            mark = self._table.mark(self._table.current_stream(self.device))
            self.stands = still
            self._turn(_STANDS if still else _GOES_ON, mark)

    def _turn(self, state: int, mark: Any) -> None:
        if self._given or self._last is not None:
            self._given.append((state, mark))

    def starve(self, stream: Any) -> Any:
        """The host waits, and gives the stream nothing until feed(). Return: an event after all
        that it was given so far."""
        mark = self._table.mark(stream)
        if self._has and stream.device == self.device:
            self._turn(_STALLS, mark)
        return mark

    def feed(self, stream: Any) -> None:
        """The host has waited."""
        if self._has and stream.device == self.device:
            self._turn(_STANDS if self.stands else _GOES_ON, self._table.mark(stream))

    def waits(self, device: torch.device, copy: Any) -> None:
        """A stream that computes waits for a copy from now on."""
        runs = self._given or self._last is not None  # its clock
        if runs and copy.since is not None and device == self.device:
            self._given.append(copy)

    def come(self, handle: int) -> None:
        """The cache hears of the marks that have come."""
        while self._given and self._has:
            first = self._given[0]
            if isinstance(first, tuple):
                if not self._is_there(first[1]):
                    return
                self._mark_has_come(handle, *first)
            elif first.ended:
                self._now_ns -= first.stalled_ns if self._state == _GOES_ON else 0
            else:
                return
            self._given.popleft()

    def _mark_has_come(self, handle: int, number: int, event: Any) -> None:
        if self._last is not None:
            took_ns = self._elapsed(self._last, event)
            if self._state == _GOES_ON:
                self._now_ns += took_ns
            elif self._state == _STALLS:
                self._shown.stall_ns += took_ns
                self._shown.stall_out_ns += took_ns
        self._last = event
        if number <= 0:
            self._state = number
            return
        self._told_ns = max(self._told_ns, self._now_ns)  # times are rounded
        fast.spw_cache_device_marked(handle, number, self._told_ns)

    def _is_there(self, event: Any) -> bool:
        try:
            return bool(self._table.done(event))
        except RuntimeError:  # nothing runs there any more: the end of the next copy says so
            self._has = False
            return False

    def ended(self, device: torch.device, copy: Any, out: bool) -> None:
        """The end of a copy, which ended well, has been seen."""
        way = "copy out" if out else "copy in"
        took_ns = self._elapsed(copy.begin, copy.event)
        if took_ns > 0:
            if out:
                self._shown.bytes_out += copy.length
                self._shown.out_ns += took_ns
            else:
                self._shown.bytes_in += copy.length
                self._shown.in_ns += took_ns
            self._trace(device, way, copy.begin, took_ns, bytes=copy.length)
        stalled_ns = self._elapsed(copy.since, copy.event)
        if stalled_ns > 0:
            copy.stalled_ns = stalled_ns
            self._shown.stall_ns += stalled_ns
            self._shown.stall_out_ns += stalled_ns if out else 0
            self._trace(device, "wait for a " + way, copy.since, stalled_ns)

    def tell(self, handle: int) -> None:
        """The cache hears what was shown since the last call. From the first one on it takes no
        wait of the host for a stall."""
        fast.spw_cache_device_times(handle, byref(self._shown))
        self._shown, self.news = Times(), False

    def watch(self, tracer: Optional[StepTrace]) -> None:
        """From now on what the devices do is noted there."""
        self._tracer = tracer
        self._first = {}

    def _elapsed(self, begin: Any, end: Any) -> int:
        """Until a mark that has come; 0: the other comes later. What a device does not tell fails
        no copy."""
        if begin is None or not self._has:
            return 0
        try:
            nanoseconds: int = self._table.elapsed(begin, end) if self._table.done(begin) else 0
        except RuntimeError as error:
            _log.warning("events of the device tell no times: %s", error)
            self._has = False
            return 0
        self.news = True
        return max(0, nanoseconds)

    def _trace(
        self, device: torch.device, what: str, begin: Any, took_ns: int, **arguments: int
    ) -> None:
        if self._tracer is None or device not in self._first:
            return
        first, given_ns = self._first[device]
        since_ns = self._elapsed(first, begin)
        if since_ns > 0 or begin is first:  # else it began before
            self._tracer.device(str(device), what, given_ns + since_ns, took_ns, **arguments)
