#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/bench/ranks.py - ranks that share slow drives: what each moves once their plans have
# settled; called by tests/bench/plan_turns.sh
"""Processes that train the same small model, each in its partition of a store on drives that are
slowed down to a part of what it takes to spill all that a step saves in half of it. A layer sleeps
where another would compute, so that the drives are the limit and not the processor.

Once in step, as where gradients are averaged, and once each for itself; and one alone. What is
compared are the bytes that each has written and read in the last steps, over the time that these
took: (most - least) / mean is wanted to be a tenth at most.

Writes ranks.json. Exit status: 0; 1 a rank failed, or had a gradient that differs; 130 interrupted;
143 ended by SIGTERM.
"""
import argparse
import contextlib
import multiprocessing
import queue
import signal
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import torch  # noqa: E402
from torch import nn  # noqa: E402

import spillway  # noqa: E402
import spillway.torch  # noqa: E402
from rounds import shown  # noqa: E402
from spillway.bench import results  # noqa: E402
from spillway.bench.throttle import Throttle  # noqa: E402
from spillway.demo.ending import exits_on  # noqa: E402

RANKS = 4
EIGHTHS = (8, 1, 16, 4, 8, 12)  # what a layer saves, of --tensor-kib: as a transformer's sizes vary
ARENA_BYTES = 32 << 20
SECONDS_TO_END = 60
FACTOR = 0.5  # what a tensor is full of, and so what a gradient is multiplied by


class Slept(torch.autograd.Function):
    """Takes time, and saves a tensor that its backward pass needs."""

    @staticmethod
    def forward(ctx, x, elements, seconds):
        time.sleep(seconds)
        ctx.seconds = seconds
        ctx.save_for_backward(torch.full((elements,), FACTOR))
        return x * FACTOR

    @staticmethod
    def backward(ctx, grad):
        saved, = ctx.saved_tensors
        time.sleep(2 * ctx.seconds)
        return grad * saved[-1], None, None


class Layer(nn.Module):
    def __init__(self, args):
        super().__init__()
        self._elements = [args.tensor_kib * 1024 // 4 * part // 8 for part in EIGHTHS]
        self._seconds = args.tensor_ms / 1000

    def forward(self, x):
        for elements in self._elements:
            x = Slept.apply(x, elements, self._seconds)
        return x


# ---- A rank --------------------------------------------------------------------------------------


class Meter:
    """What a rank has done in each step."""

    def __init__(self, store, off):
        self._store, self._off, self.steps = store, off, []
        self._moved, self._at = self._now()

    def _now(self):
        stats = self._store.stats()
        return stats.bytes_written + stats.bytes_read, time.monotonic()

    def step_ended(self):
        moved, now = self._now()
        cache = self._off.stats()
        self.steps.append({
            "seconds": now - self._at, "bytes": moved - self._moved,
            "stall_seconds": cache.step_stall_ns / 1e9, "plans": cache.plans,
            **{name: getattr(cache, name) for name in (
                "plan_bytes_written", "write_bytes_per_second", "read_bytes_per_second")}})
        self._moved, self._at = moved, now


def train(args, rank, meeting):
    """Return: of each step what it did; whether all gradients were right."""
    model = nn.Sequential(*(Layer(args) for _ in range(args.layers)))
    wanted = FACTOR ** (args.layers * len(EIGHTHS))
    right = True
    with spillway.Store(args.devices.split(","), partition=rank, arena_bytes=ARENA_BYTES) as store:
        off = spillway.torch.offload(model, store)
        meeting.wait()
        meter = Meter(store, off)
        for _ in range(args.steps):
            x = torch.ones(1, dtype=torch.float64, requires_grad=True)
            with off:
                off.step()
                model(x).sum().backward()
            right &= x.grad.item() == wanted
            if args.in_step:
                meeting.wait()
            off.step()  # the time until all are there is no part of it
            meter.step_ended()
        off.close()
        meeting.wait()  # until then all have the drives in use
    return meter.steps, right


def rank_main(args, rank, throttle, meeting, found):
    try:
        throttle.enter()
        found.put((rank, *train(args, rank, meeting)))
    except BaseException:
        meeting.abort()  # the others do not wait for this one
        raise


def run(args, count, throttle):
    """Return: the steps of each rank.

    :raises RuntimeError: a rank failed, or had a gradient that differs
    """
    context = multiprocessing.get_context("fork")
    meeting, found = context.Barrier(count), context.Queue()
    ranks = [context.Process(target=rank_main, args=(args, rank, throttle, meeting, found))
             for rank in range(count)]
    try:
        for rank in ranks:
            rank.start()
        measured = {}
        while len(measured) < count:
            try:
                rank, *measured[rank] = found.get(timeout=1)
            except queue.Empty:
                if any(rank.exitcode for rank in ranks):
                    raise RuntimeError("a rank failed") from None
        for rank in ranks:
            rank.join(SECONDS_TO_END)
    finally:
        for rank in ranks:
            if rank.is_alive():
                rank.terminate()
                rank.join()
    if not all(right for _, right in measured.values()):
        raise RuntimeError("a gradient differs")
    return [measured[rank][0] for rank in range(count)]


# ---- Rows ----------------------------------------------------------------------------------------


def rates_of(args, ranks):
    """Of each rank, the bytes that it moved in a second of the last steps."""
    last = [steps[-args.counted:] for steps in ranks]
    return [sum(step["bytes"] for step in steps) / sum(step["seconds"] for step in steps)
            for steps in last]


def spread_of(rates):
    return (max(rates) - min(rates)) / statistics.mean(rates)


def rows_of(args, name, rounds):
    rates = [rates_of(args, ranks) for ranks in rounds]
    yield results.row(f"{name}: moved by each", [rate / 1e6 for each in rates for rate in each],
                      "MB/s")
    if args.ranks > 1 and len(rates[0]) > 1:
        yield results.row(f"{name}: (most - least) / mean", [spread_of(each) for each in rates],
                          "ratio", at_most=0.1)
    last = [step for ranks in rounds for steps in ranks for step in steps[-args.counted:]]
    yield results.row(f"{name}: stall, of a step",
                      [step["stall_seconds"] / step["seconds"] for step in last], "ratio")


# ---- All of it -----------------------------------------------------------------------------------


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--devices", required=True,
           help="block devices with a store of as many partitions, separated by commas")
    option("--ranks", type=int, default=RANKS)
    option("--rounds", type=int, default=1)
    option("--steps", type=int, default=40)
    option("--counted", type=int, default=20, help="how many of the last steps count")
    option("--layers", type=int, default=12)
    option("--tensor-kib", type=int, default=512)
    option("--tensor-ms", type=float, default=5, help="that each takes in the forward pass")
    option("--part", type=float, default=0.5, help="of what it takes to spill all")
    option("--out", default=".", help="folder for ranks.json")
    args = parser.parse_args()
    if not 0 < args.counted < args.steps:
        parser.error("--counted must be less than --steps, and more than 0")
    return args


def main():
    args = arguments()
    torch.set_num_threads(1)
    drives = args.devices.split(",")
    saved = args.layers * args.tensor_kib * 1024 * sum(EIGHTHS) // 8
    half = 1.5 * args.layers * len(EIGHTHS) * args.tensor_ms / 1000
    each = int(args.part * args.ranks * saved / half / len(drives))
    where = results.machine([f"drives: {args.devices}, slowed down to {each / 1e6:.0f} MB/s each"])
    title = (f"Ranks that share drives: {args.ranks} of them, steps that save {saved >> 20} MiB, "
             f"the last {args.counted} of {args.steps}")
    settings = ((f"{args.ranks} ranks in step", args.ranks, True),
                (f"{args.ranks} ranks, each for itself", args.ranks, False),
                ("one alone", 1, False))
    measured = {name: [] for name, _, _ in settings}
    rows = []
    throttle = Throttle(drives, each, each)
    with shown("ranks", rows), contextlib.closing(throttle):
        for _ in range(args.rounds):
            for name, count, args.in_step in settings:
                measured[name].append(run(args, count, throttle))
                print(f"ranks: {name}: " + ", ".join(
                    f"{rate / 1e6:.1f}" for rate in rates_of(args, measured[name][-1])) + " MB/s",
                    file=sys.stderr, flush=True)
            rows[:] = [row for name in measured for row in rows_of(args, name, measured[name])]
            results.write(Path(args.out, "ranks.json"), title, rows, where, measured=measured)
    return 0


if __name__ == "__main__":
    with exits_on(signal.SIGTERM):  # what was started ends with it
        sys.exit(main())
