# SPDX-License-Identifier: MIT
# tests/device/host_time.py - what the host takes to save a tensor of a device and to use it again
"""Time of the CPU, in the thread that saves and uses, less what the late device takes to be one: so
it says nothing of a driver. Writes host_time.json. Called by tests/device/device.sh --host-time.

    python host_time.py --out FOLDER DRIVE...
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn

import spillway
import spillway.torch
from spillway._gpu import slow_path
from spillway.bench import results

from fixed import AT_ONCE, NEVER, written
from machine import machine

ROUNDS, TENSORS, BYTES = 12, 16, 256 << 10
GOAL_US = 40


def timed(function, *arguments):
    """(microseconds, what it returns)"""
    own, began = machine.own_ns(), time.thread_time_ns()
    result = function(*arguments)
    took = time.thread_time_ns() - began - (machine.own_ns() - own)
    return took / 1000, result


def a_round(store):
    """Microseconds of each save, and of each use. A first step spills all."""
    saves, uses = [], []
    off = spillway.torch.offload(nn.Module(), store, mode="spill",
                                 sizes=spillway.torch.Sizes(min_bytes=4096))
    with off:
        saved = []
        for _ in range(TENSORS):
            tensor = torch.empty(BYTES // 4, device=machine.kind).mul_(2)
            took, each = timed(off._session.pack, tensor)
            saves.append(took)
            saved.append(each)
        written(off)
        while saved:
            each = saved.pop()
            took, _ = timed(each.unpack)
            uses.append(took)
    assert off.stats().tensors_spilled == TENSORS, off.stats()
    off.close()
    return saves, uses


def measure(store, how_late):
    machine.be_late(1, *how_late)
    slow_path._table = lambda kind: machine.table()
    rounds = [a_round(store) for _ in range(ROUNDS)]
    saves = statistics.median(took for each, _ in rounds[2:] for took in each)
    uses = statistics.median(took for _, each in rounds[2:] for took in each)
    return saves, uses


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("."), metavar="FOLDER")
    parser.add_argument("drives", nargs="+", metavar="DRIVE")
    options = parser.parse_args()
    spillway.format_store(options.drives)
    rows = []
    with spillway.Store(options.drives, arena_bytes=64 << 20) as store:
        for words, how_late in ("keeps up", AT_ONCE), ("is late", NEVER):
            save, use = measure(store, how_late)
            rows.append(results.row(f"a save, the device {words}", save, "us"))
            rows.append(results.row(f"a use, the device {words}", use, "us"))
            both = results.row(f"both, the device {words}", save + use, "us", at_most=GOAL_US)
            rows.append(both)
    title = "What the host takes for a tensor of a device"
    results.write(options.out / "host_time.json", title, rows, results.machine())
    print(results.table(rows), end="")


if __name__ == "__main__":
    sys.exit(main())
