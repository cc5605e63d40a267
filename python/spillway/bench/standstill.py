# SPDX-License-Identifier: MIT
# spillway/bench/standstill.py - for how long drives stood still in each step: a slow disk, or a fault of ours?
"""A step that holds far more than was planned has waited for its writes: either the drives had them and completed none, or nobody
gave them any, or they wrote, but less than in other steps. What the kernel counts of block devices tells which. Both times are lower
bounds, up to a tenth of a second below the truth. Drives that the kernel does not count, files and those behind vfio among them, are not watched."""
from __future__ import annotations

import logging
import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence

from .throttle import number_of

SYSFS = Path("/sys/dev/block")
EVERY_SECONDS = 0.05
FILES = ("stat", "inflight")
FILE_BYTES = 4096
READS, WRITES, DISCARDS = 0, 4, 11  # places of what was completed in stat; older kernels do not count discards
SECTORS_WRITTEN, SECTOR_BYTES = 6, 512
FAR = 1.5  # times the planned peak
MIB = 1 << 20


def folders_of(devices: Sequence[str], sysfs: Path = SYSFS) -> List[Path]:
    """Where the kernel counts what they do; [] if one of them is no block device."""
    try:
        folders = [sysfs / number_of(device) for device in devices]
    except OSError:
        return []
    return folders if all((folder / name).exists() for folder in folders for name in FILES) else []


class Pause:
    """The longest time in which something held at every look, and nothing was completed from one to the next."""

    def __init__(self) -> None:
        self._held, self._completed, self._since, self._longest = False, 0, 0.0, 0.0

    def look(self, now: float, holds: bool, completed: int) -> None:
        if not (self._held and holds and completed == self._completed):
            self._since = now
        self._longest = max(self._longest, now - self._since)
        self._held, self._completed = holds, completed

    def take(self, now: float) -> int:
        """Its ms. What follows is another step's."""
        longest, self._longest, self._since = self._longest, 0.0, now
        return round(1000 * longest)


class Rate:
    """Bytes per second of the time in which something held."""

    def __init__(self) -> None:
        self._held, self._bytes, self._since = False, 0, 0.0
        self._sum_bytes, self._sum_seconds = 0, 0.0

    def look(self, now: float, holds: bool, written: int) -> None:
        if self._held:
            self._sum_bytes += written - self._bytes
            self._sum_seconds += now - self._since
        self._held, self._bytes, self._since = holds, written, now

    def take(self) -> int:
        """0: it never held. What follows is another step's."""
        rate = self._sum_bytes / self._sum_seconds if self._sum_seconds > 0 else 0
        self._sum_bytes, self._sum_seconds = 0, 0.0
        return round(rate)


class Standstill:
    """Watches block devices, by a thread that reads two files of sysfs for each.

    :param folders: as folders_of() has them; without any nothing is watched
    :param requests: how many the store has to serve
    """

    def __init__(self, folders: Sequence[Path], requests: Callable[[], int]) -> None:
        self._requests = requests
        self._writing, self._unissued, self._written = Pause(), Pause(), Rate()
        self._first = -1  # what was completed before
        self._counts = False  # passthrough is not counted: as long as nothing was completed, nothing is known
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="standstill", daemon=True)
        self._files = [open(folder / name, "rb", buffering=0) for folder in folders for name in FILES]

    def __enter__(self) -> "Standstill":
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._end.set()
        self._thread.join()
        self._close()

    def _close(self) -> None:
        while self._files:
            self._files.pop().close()

    def _run(self) -> None:
        while self._files and not self._end.wait(EVERY_SECONDS):
            self.look()

    def look(self) -> None:
        with self._lock:
            if not self._files:
                return
            requests = self._requests()  # before the rest: what is issued meanwhile is seen in flight, or completed
            now = time.monotonic()
            try:
                counts = [[int(count) for count in os.pread(file.fileno(), FILE_BYTES, 0).split()] for file in self._files]
            except OSError as error:
                logging.getLogger("spillway").warning("the drives are not watched any more: %s", error)
                self._close()
                return
            stats, in_flight = counts[::2], counts[1::2]
            writes = sum(stat[WRITES] + sum(stat[DISCARDS : DISCARDS + 1]) for stat in stats)
            completed = writes + sum(stat[READS] for stat in stats)
            self._first = completed if self._first < 0 else self._first
            self._counts = completed > self._first
            is_writing = any(writing for _, writing in in_flight)
            self._writing.look(now, is_writing, writes)
            self._written.look(now, is_writing, SECTOR_BYTES * sum(stat[SECTORS_WRITTEN] for stat in stats))
            self._unissued.look(now, requests > 0 and self._counts and not any(map(any, in_flight)), completed)

    def step(self) -> Dict[str, int]:
        """Of the time since the last call: how long drives that had writes completed none, how long they had nothing though the store
        had requests, and what they wrote while they had writes. {} if that is not known."""
        self.look()
        with self._lock:
            now = time.monotonic()
            found = {"write_pause_ms_max": self._writing.take(now), "issue_pause_ms_max": self._unissued.take(now),
                     "write_bytes_per_second": self._written.take()}
            return found if self._files and self._counts else {}


def _is_far(step: Dict[str, Any]) -> bool:
    return 0 < FAR * step["plan_peak_bytes"] < step["activation_peak_bytes"]


def _speed_words(step: Dict[str, Any], steps: Sequence[Dict[str, Any]]) -> str:
    others = [other.get("write_bytes_per_second", 0) for other in steps if other["plan_peak_bytes"] > 0 and not _is_far(other)]
    others = [speed for speed in others if speed > 0]
    words = f"; they wrote {step['write_bytes_per_second'] / 1e6:.0f} MB/s while they had writes"
    return words + (f", {statistics.median(others) / 1e6:.0f} in the other steps by a plan" if others else "")


def notes(run: Dict[str, Any]) -> Iterator[str]:
    """A line for each step of a run that held far more than was planned: what the drives did meanwhile."""
    steps = run.get("steps", [])
    for number, step in enumerate(steps, 1):
        peak, planned = step["activation_peak_bytes"], step["plan_peak_bytes"]
        if not _is_far(step):
            continue
        words = "what the drives did is not known"
        if "write_pause_ms_max" in step:
            write, issue = step["write_pause_ms_max"] / 1000, step["issue_pause_ms_max"] / 1000
            words = f"drives with writes completed none for {write:.2f} s; the store had requests, and the drives none, for {issue:.2f} s"
            words += _speed_words(step, steps) if step.get("write_bytes_per_second") else ""
        yield f"step {number} held {peak / MIB:,.0f} MiB where {planned / MIB:,.0f} were planned: {words}"
