# SPDX-License-Identifier: MIT
# tests/bench/shapes.py - what the benches of training state share: tensors, drives for them, goals
import math
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AtLeast:
    """A goal; a number by itself is one that must not be exceeded."""

    value: float


def busy_seconds():
    """Of all CPUs together, by whatever runs: drives' work is done by the kernel's threads, too."""
    ticks = list(map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9]))
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def shapes_of(elements, hidden=2048):
    """As of layers of a transformer: large matrices and short vectors."""
    layer = [(3 * hidden, hidden), (3 * hidden,), (hidden, hidden), (hidden,),
             (4 * hidden, hidden), (4 * hidden,), (hidden, 4 * hidden), (hidden,), (hidden,)]
    found, count = [], 0
    while count < elements:
        found += layer
        count += 12 * hidden * hidden + 10 * hidden
    return found


def size_of_drives(state_bytes):
    """Of each of four, for two steps' state and a quarter more."""
    return f"{2 * state_bytes * 5 // 4 // 4 // (1 << 20) + 64}M"


def elements_of(elements):
    return sum(math.prod(shape) for shape in shapes_of(elements))
