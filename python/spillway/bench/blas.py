# SPDX-License-Identifier: MIT
# spillway/bench/blas.py - the kernels that OpenBLAS multiplies matrices with, where it does not know the processor
"""OpenBLAS chooses its kernels by the processor's model. One that is newer than it, as many a virtual machine's is newer than Debian 12's
0.3.21, gets those of 2004: matrices then take five times as long, and what a training loses or gains by its memory drowns in that.
OPENBLAS_CORETYPE chooses by hand, for all modes alike."""
from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Optional

NAME = "OPENBLAS_CORETYPE"
_WITHOUT_AVX = ("Katmai", "Coppermine", "Northwood", "Prescott", "Banias", "Atom", "Core2", "Penryn", "Dunnington", "Nehalem")
# OpenBLAS's names, and the flags in /proc/cpuinfo that these kernels need; the best first.
_KERNELS = {
    "SkylakeX": {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"},
    "Haswell": {"avx2", "fma"},
}


def chosen() -> Optional[str]:
    """What this process multiplies with. None: not with OpenBLAS, or it does not say."""
    try:
        paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libopenblas" in line}
        for path in sorted(paths):
            corename = ctypes.CDLL(path).openblas_get_corename
            corename.restype = ctypes.c_char_p
            return str(corename().decode())
    except (OSError, AttributeError):
        pass
    return None


def better(kernels: Optional[str], cpuinfo: str) -> Optional[str]:
    """What this processor could take instead of such kernels; None: nothing is known to be better.

    :param cpuinfo: the text of /proc/cpuinfo
    """
    if kernels not in _WITHOUT_AVX:
        return None
    flags = next((set(line.split(":", 1)[1].split()) for line in cpuinfo.splitlines() if line.startswith("flags")), set())
    return next((name for name, needed in _KERNELS.items() if needed <= flags), None)


def choose() -> str:
    """For the processes started from here on, unless the environment does already. Return: their kernels; nothing if that is not known."""
    kernels = chosen()
    if kernels is None:
        return ""
    if NAME not in os.environ:
        instead = better(kernels, Path("/proc/cpuinfo").read_text())
        if instead is None:
            return kernels
        os.environ[NAME] = instead
        print(f"OpenBLAS does not know this processor and multiplies with its kernels for {kernels}: {NAME}={instead} for all modes",
              file=sys.stderr)
    return os.environ[NAME]
