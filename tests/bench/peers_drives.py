# SPDX-License-Identifier: MIT
# tests/bench/peers_drives.py - the rig's drives as each way of `make bench-peers` takes them, and
# what befalls them
"""Ways that take drives get a store on them; ways that take a folder get btrfs over all of them,
its data in RAID 0, without the copies and checksums that keep it from direct transfers."""

import contextlib
import os
import select
import signal
import tempfile
from pathlib import Path

from rig import call

MIB = 1 << 20
ENDS_SECONDS = 10


def backing_of(drive):
    """The file of a loop device."""
    path = Path("/sys/class/block", os.path.basename(drive), "loop/backing_file")
    return path.read_text(encoding="utf-8").strip().removesuffix(" (deleted)")


@contextlib.contextmanager
def file_system(drives):
    """A folder, for as long as the `with` lasts."""
    call("mkfs.btrfs", "-q", "-f", "-K", "-d", "raid0", "-m", "raid0", *drives)
    with tempfile.TemporaryDirectory(prefix="spillway-peers.") as folder:
        call("mount", "-t", "btrfs", "-o", "nodatacow,noatime", drives[0], folder)
        try:
            yield Path(folder)
        finally:
            call("umount", folder)


def fill(folder, room_bytes):
    """Until there is no more room than that."""
    free = os.statvfs(folder)
    call("fallocate", "-l", max(MIB, free.f_bavail * free.f_frsize - room_bytes), folder / "filler")


def left_in(folder):
    """(files, bytes) of what lies there."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


@contextlib.contextmanager
def dies(drive):
    """Called in the `with`, what this gives takes the drive away: from then on no transfer
    succeeds. At the end it is back, empty."""
    file, size = backing_of(drive), os.stat(backing_of(drive)).st_size

    def take():
        os.truncate(file, 0)
        call("losetup", "-c", drive)

    try:
        yield take
    finally:
        os.truncate(file, size)
        call("losetup", "-c", drive)


def words_of(path):
    return path.read_text(encoding="ascii").split() if path.exists() else []


def end(pid):
    process = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        if not select.select([process], [], [], ENDS_SECONDS)[0]:
            raise RuntimeError(f"process {pid} of a run does not end: it waits for a drive perhaps")
    finally:
        os.close(process)


class MemoryGroup:
    """What a process takes, what its files take in the page cache included; None where the kernel
    does not count it (the v1 controller, or v2 with memory delegated)."""

    def __init__(self):
        v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
        self.group, self.peak = None, ""
        name = f"spillway-peers-{os.getpid()}"
        if (v1 / "cgroup.procs").exists():
            self.group, self.peak = v1 / name, "memory.max_usage_in_bytes"
        elif "memory" in words_of(v2 / "cgroup.subtree_control"):
            self.group, self.peak = v2 / name, "memory.peak"

    def __enter__(self):
        if self.group is not None:
            self.group.mkdir()
        return self

    def enter(self):
        """For the child, before it becomes another program."""
        if self.group is not None:
            (self.group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")

    def peak_bytes(self):
        path = None if self.group is None else self.group / self.peak
        return int(path.read_text(encoding="ascii")) if path and path.exists() else None

    def __exit__(self, *_):
        if self.group is not None:
            self.end_all()
            self.group.rmdir()

    def end_all(self):
        """Processes that the run has started and left behind, such as a compiler's."""
        while left := words_of(self.group / "cgroup.procs"):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    end(int(pid))
