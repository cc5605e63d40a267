# SPDX-License-Identifier: MIT
# spillway/_device_plan.py - which saved tensors of a device stay there: planned from a measured step, as in host memory
"""The planner is the library's (spillway/plan.h): it simulates a step and chooses what has to leave the device for the lowest
peak without a wait, or such that a budget is met. Here the step is measured, by events of the stream that computes, and the
choices are followed in the steps after, as long as they save the same lengths in the same order.

A step is planned from when all its events have come, which may be some steps later; nothing waits for that. It is planned anew
when a step is unlike it, or waited for drives.
"""
from __future__ import annotations

import ctypes
import logging
from ctypes import byref, c_int
from typing import Any, List, Optional, Tuple

from . import _library
from ._library import PlanDrives, PlanOpts, PlanResult, PlanStep, PlanTensor, fast

_log = logging.getLogger("spillway")

_MODES = {"fastest": 0, "budget": 1}
_SPILL = 1
_ROWS_MAX = 1 << 16  # tensors of a step; a longer one is not planned
_STALL_SHARE = 0.01  # of a step: beyond it the plan was wrong about the drives
_CAUTION_MIN, _CAUTION_FACTOR = 0.1, 0.9  # of the speeds measured that a plan counts on; less after each step that waited
_CALM_STEPS = 20  # without a wait: more again


class Row:
    """A tensor that was saved: the events after what computed it, and after its first and last use were asked for."""

    __slots__ = ("length", "saved", "used", "last_used", "users")

    def __init__(self, length: int, saved: Any) -> None:
        self.length = length
        self.saved = saved
        self.used: Any = None
        self.last_used: Any = None
        self.users = 0


class Busy:
    """How fast the drives were while they had something to do: bytes over the time in which some of it was under way."""

    def __init__(self) -> None:
        self._under_way = 0
        self._since = 0
        self._bytes = 0
        self._ns = 0

    def began(self, now_ns: int) -> None:
        if self._under_way == 0:
            self._since = now_ns
        self._under_way += 1

    def ended(self, now_ns: int, length: int) -> None:
        """``length``: 0 if it failed."""
        self._under_way -= 1
        self._bytes += length
        # Also if others are under way: their bytes are counted when they end, and so is the time since then.
        self._ns += now_ns - self._since
        self._since = now_ns

    def bytes_per_second(self) -> int:
        """Since the last call that knew; 0: not known."""
        if not self._bytes or not self._ns:
            return 0
        speed = self._bytes * 1_000_000_000 // self._ns
        self._bytes = self._ns = 0
        return speed


class DevicePlan:
    """Records steps and says what to do with each tensor of the next. For one thread at a time.

    :param table: the CUDA calls
    :param mode: "fastest" or "budget", which goes with ``memory_bytes``
    :param staging_bytes: most bytes that may wait to be written
    """

    def __init__(self, table: Any, mode: str, memory_bytes: int, staging_bytes: int, chunk_bytes: int) -> None:
        self._table = table
        self._mode, self._memory_bytes = _MODES[mode], memory_bytes
        self._staging_bytes, self._chunk_bytes = staging_bytes, chunk_bytes
        self._rows: Optional[List[Row]] = None  # of the step that runs; None: it is not recorded
        self._measured: Optional[List[Row]] = None  # of a step that ended, until its events have come
        self._plan: List[Tuple[int, bool]] = []  # length, and whether it stays
        self._position: Optional[int] = None  # in the plan; None: the step does not go by it
        self._speeds = (0, 0)
        self._step_ns = 0  # of the step that was planned from
        self._caution, self._calm = 1.0, 0
        self.result: Optional[PlanResult] = None  # of the plan in force

    def begin_step(self, write_bytes_per_second: int, read_bytes_per_second: int, stall_ns: int) -> None:
        """A step begins; the speeds (0: not known) and the wait are of the one before."""
        self._speeds = tuple(new or old for new, old in zip((write_bytes_per_second, read_bytes_per_second), self._speeds))
        followed = self._position is not None and self._position == len(self._plan)
        if self._rows is not None:
            self._measured = self._rows
        waited = stall_ns > _STALL_SHARE * self._step_ns
        wrong = not followed or waited
        if followed:
            self._be_cautious(waited)
        before = self.result
        self._try_plan()
        self._rows = [] if not self._plan or (wrong and self.result is before) else None
        self._position = 0 if self._plan else None

    def _be_cautious(self, waited: bool) -> None:
        self._calm = 0 if waited else self._calm + 1
        if waited:
            self._caution = max(_CAUTION_MIN, self._caution * _CAUTION_FACTOR)
        elif self._calm % _CALM_STEPS == 0:
            self._caution = min(1.0, self._caution / _CAUTION_FACTOR)  # for the next plan, whatever it is made for

    def keeps(self, length: int) -> bool:
        """Whether the tensor that is saved now stays on the device."""
        if self._position is None:
            return False
        if self._position >= len(self._plan) or self._plan[self._position][0] != length:
            self._position = None  # another step than was planned: all but small tensors spills
            return False
        self._position += 1
        return self._plan[self._position - 1][1]

    def measures(self) -> bool:
        """Whether the step is measured: saved() is to be called for each tensor."""
        return self._rows is not None and len(self._rows) < _ROWS_MAX

    def saved(self, length: int, event: Any) -> Row:
        """The row for used()."""
        assert self._rows is not None
        row = Row(length, event)
        self._rows.append(row)
        return row

    def used(self, row: Row, event: Any) -> None:
        row.users += 1
        row.last_used = event
        if row.used is None:
            row.used = event

    def _try_plan(self) -> None:
        rows = self._measured
        if rows is None or not all(self._speeds):
            return
        events = [event for row in rows for event in (row.saved, row.last_used) if event is not None]
        if not events or len(rows) >= _ROWS_MAX or not all(self._table.done(event) for event in events):
            return
        self._measured = None
        try:
            self._plan = self._planned(rows)
        except _library.SpillwayError as error:
            _log.warning("no plan for tensors on the device, all but small ones spill: %s", error)
            self._plan = []

    def _planned(self, rows: List[Row]) -> List[Tuple[int, bool]]:
        """
        :raises SpillwayError: the planner takes no such step
        """
        begin = rows[0].saved
        tensors, forward, end = (PlanTensor * len(rows))(), 0, 1
        firsts: List[int] = []
        for tensor, row in zip(tensors, rows):
            tensor.bytes, tensor.users = row.length, row.users
            tensor.pack_ns = max(0, self._table.nanoseconds(begin, row.saved))
            forward = max(forward, tensor.pack_ns)
            if row.used is not None:
                tensor.use_ns = max(tensor.pack_ns, self._table.nanoseconds(begin, row.used))
                tensor.release_ns = max(tensor.use_ns, self._table.nanoseconds(begin, row.last_used))
                firsts.append(tensor.use_ns)
            end = max(end, tensor.pack_ns, tensor.release_ns)
        for tensor in tensors:
            if not tensor.users:
                tensor.use_ns = tensor.release_ns = end
        forward = min(firsts, default=forward)
        step = PlanStep(tensors, len(rows), forward, end - forward, None, 0)
        write, read = (int(speed * self._caution) for speed in self._speeds)
        drives = PlanDrives(write, read, 0, 0, self._chunk_bytes, self._staging_bytes)
        opts = PlanOpts(ctypes.sizeof(PlanOpts), self._mode, self._memory_bytes)
        result = PlanResult(ctypes.sizeof(PlanResult))
        choices = (c_int * len(rows))()
        _library.check(fast.spw_plan(byref(step), byref(drives), byref(opts), choices, byref(result)))
        self.result, self._step_ns = result, end
        return [(row.length, choice != _SPILL) for row, choice in zip(rows, choices)]
