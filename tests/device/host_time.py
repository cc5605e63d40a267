# SPDX-License-Identifier: MIT
# tests/device/host_time.py - what the host takes to save a tensor of a device and to use it again
"""Time of the CPU, in the thread that saves and uses, less what the late device takes to be one: so
it says nothing of a driver. Of a tensor that stays by a plan, of one that is spilled, and of a pair
of hooks in Python that do nothing, in turn. Writes host_time.json. Called by
tests/device/device.sh --host-time.

    python host_time.py --out FOLDER DRIVE...
"""

import argparse
import contextlib
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn

import spillway
import spillway.torch
from spillway._core.hooks_loader import hooks
from spillway._gpu import accelerator
from spillway.bench import results

from fixed import AT_ONCE, NEVER, written
from machine import machine

ROUNDS, TENSORS, LAYERS, BYTES = 12, 64, 4, 256 << 10
UNTIMED = 10  # first rounds: without a plan, and without warm caches
GOALS_US = {"kept": 6, "spilled": 20}


def itself(thing):
    return thing


def timed(function, things):
    """(microseconds for each of the things, what the function makes of them)"""
    own, began = machine.own_ns(), time.thread_time_ns()
    made = [function(thing) for thing in things]
    took = time.thread_time_ns() - began - (machine.own_ns() - own)
    return took / 1000 / len(things), made


class Layer(nn.Module):
    def forward(self, pack, tensors):
        return timed(pack, tensors)


class Model(nn.Module):
    """Has layers, for a device tells the time where one begins."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.tensors = []  # no argument: those are not offloaded

    def forward(self, pack):
        each = TENSORS // LAYERS
        found = [layer(pack, self.tensors[number * each:][:each])
                 for number, layer in enumerate(self.layers)]
        return statistics.mean(took for took, _ in found), [
            saved for _, part in found for saved in part]


def a_step(model, off, pack, unpack, leaves):
    """Microseconds for a save, and for a use, as an autograd step has them."""
    model.tensors = [torch.empty(BYTES // 4, device=machine.kind).mul_(2) for _ in range(TENSORS)]
    with off or contextlib.nullcontext():
        save, saved = model(pack)
        model.tensors.clear()
        if leaves:
            written(off)
        saved.reverse()
        use, used = timed(unpack, saved)
    used.clear()
    saved.clear()
    torch.accelerator.synchronize()  # as a loop does that prints its loss
    return save, use


def measure(store, how_late):
    """By way: of each round the microseconds for a save, and for a use."""
    machine.be_late(1, *how_late)
    machine.tasks_take(1_000_000, 0)  # by the device's clock, which plans go by
    accelerator.table_of = lambda kind: machine.table()
    sizes = spillway.torch.Sizes(min_bytes=4096)
    models = {way: Model() for way in ("no hooks", "kept", "spilled")}
    offs = {
        "no hooks": None,
        # No step rests with a budget of less than twice of what it holds.
        "kept": spillway.torch.offload(models["kept"], store, mode="budget",
                                       budget_bytes=TENSORS * BYTES * 3 // 2, sizes=sizes),
        # Without layers none is the last one, which would stay.
        "spilled": spillway.torch.offload(models["spilled"], store, mode="spill", scopes=[],
                                          sizes=sizes),
    }
    ways = {"no hooks": (itself, itself),
            **{way: (off._session.pack, hooks.unpack) for way, off in offs.items() if off}}
    found = {way: [] for way in offs}
    for number in range(UNTIMED + ROUNDS):
        before = offs["kept"].stats() if number <= UNTIMED else before
        for way, off in offs.items():
            # The first plan is made when the drives' rate is known.
            leaves = way == "spilled" or (way == "kept" and number < 2)
            found[way].append(a_step(models[way], off, *ways[way], leaves))
    kept, spilled = offs["kept"].stats(), offs["spilled"].stats()
    # But for probes of the drives, of a tensor each.
    assert kept.tensors_kept_planned - before.tensors_kept_planned >= ROUNDS * (TENSORS - 1), kept
    assert spilled.tensors_spilled == TENSORS * (UNTIMED + ROUNDS), spilled
    for off in filter(None, offs.values()):
        off.close()
    machine.tasks_take(0, 0)
    return {way: rounds[UNTIMED:] for way, rounds in found.items()}


def rows_of(words, found):
    rows = []
    for way, rounds in found.items():
        what = "a pair of hooks in Python that do nothing" if way == "no hooks" else way
        for number, part in enumerate(("save", "use")):
            rows.append(results.row(f"{what}, {part}, {words}", [each[number] for each in rounds],
                                    "us"))
        rows.append(results.row(f"{what}, both, {words}", [sum(each) for each in rounds], "us",
                                at_most=GOALS_US.get(way)))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("."), metavar="FOLDER")
    parser.add_argument("drives", nargs="+", metavar="DRIVE")
    options = parser.parse_args()
    spillway.format_store(options.drives)
    rows = []
    with spillway.Store(options.drives, arena_bytes=64 << 20) as store:
        for words, how_late in ("the device keeps up", AT_ONCE), ("the device is late", NEVER):
            rows += rows_of(words, measure(store, how_late))
    title = "What the host takes for a tensor of a device"
    results.write(options.out / "host_time.json", title, rows, results.machine())
    print(results.table(rows), end="")


if __name__ == "__main__":
    sys.exit(main())
