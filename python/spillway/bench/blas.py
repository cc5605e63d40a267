# SPDX-License-Identifier: MIT
# spillway/bench/blas.py - choose OpenBLAS's kernels if it does not know the processor
"""OpenBLAS chooses its kernels by the processor's model. For an unknown model it uses those of
2004: matrix products then take five times as long, which hides the cost of memory management.
OPENBLAS_CORETYPE sets the kernels by hand, for all modes alike."""
from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Optional, Set

NAME = "OPENBLAS_CORETYPE"
_WITHOUT_AVX = ("Katmai", "Coppermine", "Northwood", "Prescott", "Banias", "Atom", "Core2",
                "Penryn", "Dunnington", "Nehalem")
# OpenBLAS's names of kernels, with the flags in /proc/cpuinfo that they need; the best first.
_KERNELS = {
    "SkylakeX": {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"},
    "Haswell": {"avx2", "fma"},
}


def chosen() -> Optional[str]:
    """The kernels that this process uses; None if it does not use OpenBLAS, or they are unknown."""
    try:
        maps = Path("/proc/self/maps").read_text().splitlines()
        path = min(line.split()[-1] for line in maps if "/libopenblas" in line)
        corename = ctypes.CDLL(path).openblas_get_corename
    except (OSError, ValueError, AttributeError):
        return None
    corename.restype = ctypes.c_char_p
    return str(corename().decode())


def better(kernels: Optional[str], cpuinfo: str) -> Optional[str]:
    """Better kernels for this processor than the given ones; None if none are known.

    :param cpuinfo: the text of /proc/cpuinfo
    """
    if kernels not in _WITHOUT_AVX:
        return None
    flags: Set[str] = next((set(line.split(":", 1)[1].split())
                  for line in cpuinfo.splitlines() if line.startswith("flags")), set())
    return next((name for name, needed in _KERNELS.items() if needed <= flags), None)


def choose() -> str:
    """Set the kernels of processes started from now on, unless the environment sets them.
    Return: their name; "" if not known."""
    kernels = chosen()
    if kernels is None:
        return ""
    if NAME not in os.environ:
        instead = better(kernels, Path("/proc/cpuinfo").read_text())
        if instead is None:
            return kernels
        os.environ[NAME] = instead
        print(f"OpenBLAS does not know this processor and multiplies with its kernels for "
              f"{kernels}: {NAME}={instead} for all modes", file=sys.stderr)
    return os.environ[NAME]
