# SPDX-License-Identifier: MIT
# tests/device/promise.py - what a plan promises of a device's step, and what that takes
"""Trains on a late device: a step whose sizes and times are those of a GPT of 12 layers of 4096 on
an H200, by SCALE and STRETCH smaller and slower. The host is ahead of the device by most of a step.
Prints every step, and "ok NAME" or "FAILED NAME: words".

With drives of a given rate the device keeps pace with the host, whose time they are in: time is
shown and not judged. With host memory alone all is in virtual time.

    python promise.py [--mode budget] [--steps N] [--host-bytes N] DRIVE...

Called by tests/device/device.sh, which preloads simulated.c.
"""

import argparse
import dataclasses
import logging
import statistics
import sys
import time

import torch
from torch import nn

import spillway
import spillway.torch
from spillway._gpu import accelerator

from machine import machine

import late_device

SCALE, STRETCH = 153, 4  # with this one sizes are whole granules of the arena
LAYERS, ROW = 12, 40099840  # bytes of a layer's input
BUS = 55.0  # GB/s
ARENA_BYTES = (1 << 30) // SCALE // 65536 * 65536
# Of each half of a layer: microseconds forward and backward, bytes of the result as a multiple of
# ROW, whether the backward pass needs the input, and the result.
ATTENTION = ((33, 66, 1, True, False), (1278, 2555, 3, True, False), (266, 665, 1, True, True),
             (475, 950, 1, True, False))
MLP = ((33, 66, 1, True, False), (1703, 3407, 4, True, False), (131, 197, 4, True, False),
       (1753, 3505, 1, True, False))
SETTLED = 5  # last steps that count
SHARE = 0.05  # by which promise and execution may differ


def take(microseconds):
    machine.tasks_take(microseconds * 1e3 * STRETCH, STRETCH * SCALE / BUS)


class Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, operation, number):
        forward_us, backward_us, rows, with_input, with_output = operation
        ctx.backward_us, ctx.shape = backward_us, x.shape
        result = torch.empty(rows * (ROW // SCALE // 4), device=machine.kind)
        take(forward_us)
        result.fill_(number)
        take(0)
        ctx.save_for_backward(*[x] * with_input, *[result] * with_output)
        return result

    @staticmethod
    def backward(ctx, gradient):
        saved = ctx.saved_tensors
        one = torch.empty(1, device=machine.kind)
        take(ctx.backward_us)
        one.copy_(gradient[:1])
        take(0)
        for each in saved:
            one.add_(each[:1])
        return one.expand(ctx.shape), None, None  # which takes no memory


class Half(nn.Module):
    def __init__(self, operations, number):
        super().__init__()
        self.operations, self.number = operations, number

    def forward(self, x):
        for place, operation in enumerate(self.operations):
            x = Run.apply(x, operation, 4 * self.number + place)
        return x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.halves = nn.Sequential(*(Half(MLP if number % 2 else ATTENTION, number)
                                      for number in range(2 * LAYERS)))

    def forward(self):
        return self.halves(self.weight.expand(ROW // SCALE // 4).clone()).sum()


def step_of(model, off, clock_ns):
    """(bytes at its peak, milliseconds, a gradient that every saved tensor is part of)"""
    torch.accelerator.synchronize()
    base = late_device.counters(0)["allocated"]
    machine.begin_peak()
    began = clock_ns()
    if off is None:
        model().backward()
    else:
        with off:
            model().backward()
    torch.accelerator.synchronize()
    took = (clock_ns() - began) / 1e6
    gradient, model.weight.grad = model.weight.grad.item(), None
    return machine.peak() - base, took, gradient


def kept_of(stats, before):
    kept = {}
    for field in dataclasses.fields(stats):
        bytes_ = field.name.startswith("bytes_kept_") and (getattr(stats, field.name)
                                                           - getattr(before, field.name))
        if bytes_:
            kept[field.name[len("bytes_kept_"):]] = bytes_
    return kept


def steps_of(model, off, count, keep, clock_ns):
    """Of each step: its peak and time, what was promised for it, and what was kept against the
    plan, in parts of what keeping all takes."""
    rows, before = [], off.stats()
    for number in range(count):
        promised = before.plan_peak_bytes, before.plan_wall_ns / 1e6
        peak, took, gradient = step_of(model, off, clock_ns)
        stats = off.stats()
        assert gradient == keep[2], (gradient, keep)
        kept = kept_of(stats, before)
        against = sum(kept.get(why, 0) for why in ("no_staging", "backpressure"))
        rows.append((peak / keep[0], took / keep[1], promised[0] / keep[0], promised[1] / keep[1],
                     against / keep[0]))
        print(f"  step {number}: peak {rows[-1][0]:.3f} of {rows[-1][2]:.3f} promised, "
              f"time {rows[-1][1]:.3f} of {rows[-1][3]:.3f}; stall "
              f"{(stats.stall_ns - before.stall_ns) / 1e6:.0f} ms, staging waits "
              f"{stats.staging_waits - before.staging_waits}, MB copied "
              f"{(stats.bytes_copied - before.bytes_copied) / 1e6:.1f}, written "
              f"{(stats.bytes_spilled - before.bytes_spilled) / 1e6:.1f}, kept "
              f"{ {why: round(bytes_ / 1e6, 1) for why, bytes_ in kept.items()} }", flush=True)
        before = stats
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=("fastest", "budget", "spill"), default="fastest")
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--host-bytes", type=int, default=0,
                        help="instead of the drives: host memory, before it is divided by SCALE")
    parser.add_argument("drives", nargs="+", metavar="DRIVE")
    args = parser.parse_args()
    logging.getLogger("spillway").setLevel(logging.CRITICAL)
    machine.be_late(1, 0, 0, False)
    model = Model().to(machine.kind)
    take(0)
    is_virtual = args.host_bytes > 0
    machine.keep_pace(not is_virtual)
    clock_ns = machine.clock_ns if is_virtual else time.monotonic_ns
    accelerator.table_of = lambda kind: machine.table(not is_virtual)
    keep = min((step_of(model, None, clock_ns) for _ in range(3)), key=lambda each: each[1])
    spillway.format_store(args.drives, chunk_bytes=65536)
    name = "a device's step takes the memory that its plan promises"
    options = {"budget_bytes": keep[0] // 2} if args.mode == "budget" else {}
    if args.host_bytes:
        options["host_bytes"] = args.host_bytes // SCALE
        name += ", and its time, in host memory"
    # A part of the arena is the store's own.
    arena_bytes = ARENA_BYTES + (2 << 20)
    with spillway.Store(args.drives, arena_bytes=arena_bytes, backend="libaio") as store:
        off = spillway.torch.offload(model, None if args.host_bytes else store, mode=args.mode,
                                     **options)
        rows = steps_of(model, off, args.steps, keep, clock_ns)
        off.close()
    rows = [row for row in rows if row[2] > 0][-SETTLED:]
    late, peak, wall, against = (statistics.median(values) if rows else 1 for values in (
        [abs(row[1] / row[3] - 1) for row in rows], [abs(row[0] - row[2]) for row in rows],
        [row[3] for row in rows], [row[4] for row in rows]))
    words = (f"peak off by {peak:.3f}, time by {late:.3f}{'' if is_virtual else ' (not judged)'}, "
             f"{against:.3f} kept against the plan, whose step takes {wall:.3f} of one that keeps "
             "all")
    # A plan by the host's times is for a step that is longer by its waits: many times as long.
    passed = (len(rows) == SETTLED and rows[-1][2] < 0.95 and peak <= SHARE and against <= SHARE
              and wall < 1.5 and (late <= SHARE or not is_virtual))
    print(f"ok {name}: {words}" if passed else f"FAILED {name}: {words}; {rows}")
    return not passed


if __name__ == "__main__":
    sys.exit(main())
