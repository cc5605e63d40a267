# SPDX-License-Identifier: MIT
# spillway/demo/memory.py - peak resident memory, in all and in each part of a step
from __future__ import annotations

from pathlib import Path
from typing import Dict


def rss_peak_bytes() -> int:
    """The peak resident memory of this process, plus its huge pages, which the kernel does not
    count as resident."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(status[name].split()[0]) * 1024 for name in ("VmHWM", "HugetlbPages"))


class RssPeaks:
    """Peaks by phase. The kernel keeps the high-water mark, so no peak is too short to be seen; it
    is reset between phases."""

    def __init__(self) -> None:
        self.most = 0  # bytes, since the process began
        self._phases: Dict[str, int] = {}
        self._resets = True
        self.end("start")

    def end(self, phase: str) -> None:
        """End a phase: the peak since the last call belongs to it."""
        peak = rss_peak_bytes()
        self.most = max(self.most, peak)
        self._phases[phase] = max(self._phases.get(phase, 0), peak)
        try:
            with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
                file.write("5")
        except OSError:
            self._resets = False

    def phases(self) -> Dict[str, int]:
        """Peak bytes by phase, over all its runs; empty if the kernel does not allow to reset
        the mark."""
        return dict(self._phases) if self._resets else {}
