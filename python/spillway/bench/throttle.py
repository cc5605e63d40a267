# SPDX-License-Identifier: MIT
# spillway/bench/throttle.py - Throttle: run a process with block devices slowed down to a given
# speed
"""The blkio (v1) or io (v2) controller of the kernel throttles the processes of a control group,
and no others. Needs root. Plain files cannot be throttled: loop devices over them can."""
from __future__ import annotations

import itertools
import os
import stat
import time
from pathlib import Path
from typing import List, Optional

CGROUPS = Path("/sys/fs/cgroup")
_numbers = itertools.count(1)  # numbers for the names of this process' groups


class Throttle:
    """A group of processes for which each device is throttled to given bytes per second.

    :raises OSError: the kernel cannot throttle, or not these devices, or not for this user
    """

    def __init__(self, devices: List[str], write_bytes_per_second: int,
                 read_bytes_per_second: int) -> None:
        numbers = [number_of(device) for device in devices]
        self._enabled: Optional[Path] = None
        self._group = self._make_group(f"spillway-bench-{os.getpid()}-{next(_numbers)}")
        try:
            for number in numbers:
                if (self._group / "io.max").exists():
                    limits = f"{number} wbps={write_bytes_per_second} rbps={read_bytes_per_second}"
                    (self._group / "io.max").write_text(limits)
                else:
                    for name, speed in (("write", write_bytes_per_second),
                                        ("read", read_bytes_per_second)):
                        limit = self._group / f"blkio.throttle.{name}_bps_device"
                        limit.write_text(f"{number} {speed}")
        except OSError as error:
            self.close()
            raise OSError(error.errno,
                          f"{' '.join(devices)} cannot be throttled: {error.strerror}") from error

    def _make_group(self, name: str) -> Path:
        if (CGROUPS / "blkio/cgroup.procs").exists():
            parent = CGROUPS / "blkio"
        elif "io" in _words(CGROUPS / "cgroup.controllers"):
            parent = CGROUPS
            control = parent / "cgroup.subtree_control"
            if "io" not in _words(control):
                control.write_text("+io")
                self._enabled = control
        else:
            raise OSError(0, "this system has no blkio (v1) or io (v2) cgroup controller: leave "
                          "out --throttle")
        group = parent / name
        group.mkdir()
        return group

    def enter(self) -> None:
        """Enter the group. Called in the child, before it executes another program."""
        (self._group / "cgroup.procs").write_text(str(os.getpid()))

    def close(self) -> None:
        """Remove the group after its processes have ended, which the kernel may notice with a
        delay."""
        deadline = time.monotonic() + 10
        while True:
            try:
                self._group.rmdir()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        if self._enabled is not None:
            self._enabled.write_text("-io")


def _words(path: Path) -> List[str]:
    return path.read_text().split() if path.exists() else []


def number_of(device: str) -> str:
    """The number of a block device, as major:minor.

    :raises OSError: it is not a block device, or does not exist
    """
    found = os.stat(device)
    if not stat.S_ISBLK(found.st_mode):
        raise OSError(0, f"{device} is not a block device: only those can be throttled")
    return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
