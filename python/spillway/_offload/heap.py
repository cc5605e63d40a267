# SPDX-License-Identifier: MIT
# spillway/_offload/heap.py - freed memory leaves the process while something spills
"""A block that is freed stays in glibc's heap, with its pages, and a block in use above it holds it
there. Blocks of many sizes and ages leave holes that are filled in any order: so the process grew
though its activations shrank. A block that is mapped alone goes back to the system at once. So
large blocks are mapped while a cache spills, at the price of a page fault for each of their pages
(docs/GUIDE.md, *Memory of the process*).

The thresholds belong to the process, and glibc does not tell them. If they are set in the
environment they stay. They are restored to where glibc's own rule ends: its thresholds grow by
themselves up to that of MAPPED_MAX, with the largest block that was freed, and do so no longer once
they were set.
"""
from __future__ import annotations

import ctypes
import os
import threading
from typing import Optional

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h

MAPPED_MIN = 1 << 20
MAPPED_MAX = 32 << 20

_SET = ("mmap_threshold", "mmap_max", "trim_threshold", "top_pad")

_lock = threading.RLock()
_users = 0


def why_not() -> Optional[str]:
    """Why the heap is left as it is; None: it is not."""
    process = ctypes.CDLL(None)
    if not hasattr(process, "gnu_get_libc_version") or not hasattr(process, "mallopt"):
        return "the C library is not glibc"
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    for name in _SET:
        if f"malloc.{name}" in tunables:
            return f"GLIBC_TUNABLES sets glibc.malloc.{name}"
        if f"MALLOC_{name.upper()}_" in os.environ:
            return f"MALLOC_{name.upper()}_ is set"
    address = ctypes.cast(process.malloc, ctypes.c_void_p).value
    libc = ctypes.cast(ctypes.CDLL("libc.so.6").malloc, ctypes.c_void_p).value
    return None if address == libc else "another allocator is preloaded"


def _set(mapped: int) -> None:
    libc = ctypes.CDLL("libc.so.6")
    libc.mallopt(_MMAP_THRESHOLD, mapped)
    libc.mallopt(_TRIM_THRESHOLD, 2 * mapped)
    libc.malloc_trim(0)  # without the interpreter's lock


class Mapped:
    """From here until end(), or until it is garbage, large blocks are mapped alone.

    ``why_not``: the reason why this one changes nothing, or None
    """

    def __init__(self) -> None:
        global _users
        self.why_not = why_not()
        self._pid = os.getpid()
        self._ended = self.why_not is not None
        if not self._ended:
            with _lock:
                _users += 1
                if _users == 1:
                    _set(MAPPED_MIN)

    def end(self) -> None:
        """Twice does nothing; nor does it in a child of fork(), which did not begin it."""
        global _users
        if self._ended or self._pid != os.getpid():
            return
        self._ended = True
        with _lock:
            _users -= 1
            if _users == 0:
                _set(MAPPED_MAX)

    def __del__(self) -> None:
        self.end()


def _status_bytes(name: str) -> int:
    """Of /proc/self/status; 0: the system does not tell."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(name + ":"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return 0


class Resident:
    """The most memory of the process that was resident since this was made. The kernel's own
    figure, where it has grown since; else what was seen at each look."""

    def __init__(self) -> None:
        self._before = _status_bytes("VmHWM")
        self._seen = 0
        self.look()

    def look(self) -> None:
        self._seen = max(self._seen, _status_bytes("VmRSS"))

    @property
    def peak_bytes(self) -> int:
        """0: not known."""
        highest = _status_bytes("VmHWM")
        return highest if highest > self._before else self._seen
