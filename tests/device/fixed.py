# SPDX-License-Identifier: MIT
# tests/device/fixed.py - what a late device must show whatever the seed: memory, and what is left
"""Prints "ok NAME" or "FAILED NAME: words" for each case."""

import logging
import sys
import time

import torch
from torch import nn

import late
import late_device as machine
import spillway
import spillway.torch
from seeds import Case, batch_of, memory, same
from spillway import SpillwayError, _on_device

LAYERS, WIDTH, ROWS = 12, 128, 512
NEVER, HALF, AT_ONCE = (0, 0, False), (0.3, 0.25, False), (0, 1, True)  # how late


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def model_of():
    torch.manual_seed(1)
    return nn.Sequential(*(Layer() for _ in range(LAYERS))).to("late")


def peak_of(model, off, step, rows=ROWS):
    """Bytes above what was there before the step; the bits of the gradients."""
    batch = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(step)).to("late")
    memory()
    torch.accelerator.reset_peak_memory_stats()
    before = machine.counters(0)["allocated"]
    if off is None:
        model(batch).pow(2).mean().backward()
    else:
        with off:
            model(batch).pow(2).mean().backward()
    peak = machine.counters(0)["peak"] - before
    gradients = [parameter.grad.cpu() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = None
    return peak, gradients


def offload(model, store, **options):
    table = late.Table()
    _on_device._table = lambda kind: table
    off = spillway.torch.offload(model, store, mode="spill", min_bytes=4096, **options)
    off.table = table
    return off


def memory_is_bounded(store, how_late):
    """However far the host is ahead."""
    machine.seed(1, *how_late)
    model = model_of()
    plain = [peak_of(model, None, step) for step in range(4)]
    reserved = machine.counters(0)["reserved"]
    machine.seed(1, *how_late)
    off = offload(model, store)
    spilled = [peak_of(model, off, step) for step in range(4)]
    # Weight gradients are part of both peaks: what is saved is what differs.
    gradients = sum(parameter.nbytes for parameter in model.parameters())
    share = max(peak - gradients for peak, _ in spilled) / (plain[-1][0] - gradients)
    scope = ROWS * WIDTH * 4 * 12  # norm, up, gelu and down save so much
    assert all(same(a[1], b[1]) for a, b in zip(spilled, plain)), "gradients differ"
    assert share < 0.3, f"{share:.2f} of what is saved without spillway"
    assert machine.counters(0)["reserved"] <= reserved + scope, "reserved memory has grown"
    assert off.stats().bytes_copied > 0 and (
        how_late is not NEVER or off.stats().copies_ordered > 0
    )
    off.close()


def settled(off):
    """The memory when it stays the same: PyTorch's threads drop a failed graph a little later, and
    what was given up is let go with the next call."""
    before, now, deadline = None, memory(), time.monotonic() + 10
    while off.stats().entries or now != before:
        assert time.monotonic() < deadline, off.stats()
        before, now = now, memory()
    return now


def steps_leave_nothing(store):
    """Neither 200 of them nor 20 copies that fail."""
    machine.seed(2, *HALF)
    model = nn.Sequential(Layer(), Layer()).to("late")
    off = offload(model, store)
    for step in range(200):
        if step % 10 == 9:
            machine.fail_copies(step % 7, 1)
        try:
            peak_of(model, off, step, 32)
        except RuntimeError as error:
            assert "by order" in str(error), error
            for parameter in model.parameters():
                parameter.grad = None
            del error
        machine.fail_copies(0, 0)
        if step == 20:
            before = settled(off)
    assert settled(off) == before, f"{memory()}, was {before}"
    stats = off.stats()
    assert stats.entries == 0 and stats.device_staging_bytes == 0, stats
    assert store.stats().objects == 0
    off.close()


def captured_graphs_keep_all(store):
    machine.seed(3, *HALF)
    model = model_of()
    off = offload(model, store)
    batch = batch_of(Case(1), 0, 0)
    with off:
        batch = torch.randn(ROWS, WIDTH).to("late")
        outside = model(batch).pow(2).mean()
        copies = off.stats().copies
        off.table.captures = True
        model(batch).pow(2).mean().backward()
        assert off.stats().copies == copies
        try:
            outside.backward()
        except (RuntimeError, SpillwayError) as error:
            assert "while a graph is captured" in str(error), error
        else:
            raise AssertionError("a graph waits for events from outside")
        off.table.captures = False
    del outside
    off.close()


def a_model_that_moves_later(store):
    """offload() saw it on the host."""
    machine.seed(4, *HALF)
    model = nn.Sequential(Layer(), Layer())
    off = offload(model, store)
    model.to("late")
    peak_of(model, off, 0)
    assert off.device_stats() is not None and off.stats().bytes_copied > 0
    off.close()


CASES = {
    "memory is bounded: the host is ahead by the whole step": lambda store: memory_is_bounded(
        store, NEVER
    ),
    "memory is bounded: the host is ahead by some of it": lambda store: memory_is_bounded(
        store, HALF
    ),
    "memory is bounded: the device keeps up": lambda store: memory_is_bounded(store, AT_ONCE),
    "200 steps and 20 failing copies leave nothing": steps_leave_nothing,
    "captured graphs keep all, and wait for nothing": captured_graphs_keep_all,
    "a model that moves after offload()": a_model_that_moves_later,
}


def main():
    logging.getLogger("spillway").setLevel(logging.CRITICAL)
    spillway.format_store(sys.argv[1:])
    failed = False
    with spillway.Store(sys.argv[1:], arena_bytes=64 << 20) as store:
        for name, case in CASES.items():
            try:
                case(store)
                print("ok", name, flush=True)
            except Exception as error:
                failed = True
                print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)
    print("done")
    return failed


if __name__ == "__main__":
    sys.exit(main())
