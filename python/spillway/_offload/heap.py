# SPDX-License-Identifier: MIT
# spillway/_offload/heap.py - freed memory leaves the process while something spills
"""A block that is freed stays in glibc's heap, with its pages. The next one of its size does not go
there: PyTorch asks for aligned memory, for which glibc looks for a larger hole, and what autograd
allocates meanwhile keeps two holes from becoming one. So each tensor that was spilled left a hole,
and the process did not shrink though its activations did. A block that is mapped alone goes back to
the system at once. So blocks of the sizes that spill are mapped while a cache is open, at the price
of a page fault for each of their pages (docs/GUIDE.md, *Memory of the process*).

The thresholds belong to the process, and glibc does not report them. Those set in the environment
are kept. Afterwards they are set to where glibc's own rule ends: it raises them up to MAPPED_MAX,
with the largest block that was freed, and no longer once they were set.
"""
from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, List, Optional

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of malloc.h

# Larger blocks are mapped always, smaller ones never: a mapping takes whole pages.
MAPPED_LENGTHS = 16 << 10, 1 << 20
MAPPED_MAX = 32 << 20

# Linux gives a process 65,530 mappings, and glibc may take them all. Threads and files need some.
_MAPPINGS_MAX, _GLIBC_MAPPINGS_MAX = 16384, 65536

_SET = ("mmap_threshold", "mmap_max", "trim_threshold", "top_pad")

_lock = threading.RLock()
_lengths: List[int] = []  # from which on blocks are mapped, of all that have not ended


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
    # By what PyTorch calls. That of malloc() may be in the program: Debian's Python is linked so
    # that it has its own entry for each function whose address it takes.
    address = ctypes.cast(process.posix_memalign, ctypes.c_void_p).value
    libc = ctypes.cast(ctypes.CDLL("libc.so.6").posix_memalign, ctypes.c_void_p).value
    return None if address == libc else "another allocator is preloaded"


def _set(mapped: int, trimmed: int, mappings: int) -> None:
    libc = ctypes.CDLL("libc.so.6")
    libc.mallopt(_MMAP_THRESHOLD, mapped)
    libc.mallopt(_TRIM_THRESHOLD, trimmed)
    libc.mallopt(_MMAP_MAX, mappings)
    libc.malloc_trim(0)  # without the interpreter's lock


def _set_for_all() -> None:
    if _lengths:
        _set(min(_lengths), 2 * MAPPED_LENGTHS[1], _MAPPINGS_MAX)
    else:
        _set(MAPPED_MAX, 2 * MAPPED_MAX, _GLIBC_MAPPINGS_MAX)


class Mapped:
    """From here until end(), or until it is garbage, large blocks are mapped alone.

    ``why_not``: the reason why this one changes nothing, or None

    :param length: the smallest block that may be spilled
    """

    def __init__(self, length: int) -> None:
        self.why_not = why_not()
        self._pid = os.getpid()
        self._ended = self.why_not is not None
        self._length = min(max(length, MAPPED_LENGTHS[0]), MAPPED_LENGTHS[1])
        if not self._ended:
            with _lock:
                _lengths.append(self._length)
                _set_for_all()

    def end(self) -> None:
        """Twice does nothing; nor does it in a child of fork(), which did not begin it."""
        if self._ended or self._pid != os.getpid():
            return
        self._ended = True
        with _lock:
            _lengths.remove(self._length)
            _set_for_all()

    def __del__(self) -> None:
        self.end()


# `spillway run` keeps freed blocks for reuse; None: it does not run this process.
_preloaded_step: Any = getattr(ctypes.CDLL(None), "spw_malloc_step", None)


def step_begins() -> None:
    """Of what steps before the last few had in use, nothing stays in the process."""
    if _preloaded_step is not None:
        _preloaded_step()


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
