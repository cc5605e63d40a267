#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/device/bench.py - a GPT in bf16 on an accelerator: memory and step time of every way to
# keep, recompute or move what autograd saves; called by tests/device/bench.sh
"""Each run is a process of its own; rounds are interleaved; losses are compared to the last bit
with those of keep. A way that this machine cannot go is left out, and why is said. Writes
device.json and device.svg. Ctrl-C ends with what was measured.
Exit status: 0; 1 a run failed, or losses differ; 130 interrupted; 143 ended by SIGTERM.

  bench.py --out FOLDER DRIVE...        files or block devices; everything on them is lost
"""

import argparse
import contextlib
import dataclasses
import gc
import importlib
import json
import logging
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import spillway
import spillway.torch
from machine import machine
from spillway._gpu import accelerator
from spillway.bench import results
from spillway.demo.chart import Point, draw
from spillway.demo.ending import exits_on

WAYS = {
    "keep": "PyTorch as it is",
    "recompute": "a checkpoint per block",
    "save_on_cpu": "torch.autograd.graph.save_on_cpu, pinned memory",
    "transformers": "activation_checkpointing_enable(offload=True): a checkpoint per block, "
    "whose input goes to pinned memory",
    "torchtune": "torchtune.training.OffloadActivations, pinned memory",
    "trl": "trl's OffloadActivations, pinned memory",
    "operations": "spillway without drives: single cheap operations are recomputed",
    "spill": "spillway, all to the drives",
    "fastest": "spillway's default: what the drives take without the step becoming longer",
    "budget": "spillway, in half of what keep holds: to the drives, or recomputed",
}
OPTIONS = {  # of spillway.torch.offload
    "operations": {"recompute": "operations"},
    "spill": {"mode": "spill"},
    "fastest": {"mode": "fastest"},
    "budget": {"mode": "budget", "recompute": "auto"},
}
BUDGET = 0.5  # of what keep holds
WITHOUT_DRIVES = ("operations",)
GOALS = {"fastest": {"of keep": 1.02, "memory": 0.15}, "budget": {"memory": BUDGET}}
UNTIMED = 8  # steps at the start: until plans have settled
VOCABULARY = 1024
PROBE_BYTES = 256 << 20  # of a copy that measures the bus
PROBES = 5
MEMORY_DRIVES = 4
MEMORY_DRIVE_BYTES = 16 << 30  # at most
MIB = 1 << 20
GB = 1e9


class Block(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.heads = max(1, hidden // 64)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, args, way):
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, args.hidden)
        self.blocks = nn.ModuleList(Block(args.hidden) for _ in range(args.layers))
        self.head = nn.Linear(args.hidden, VOCABULARY, bias=False)
        self.recompute = way in ("recompute", "transformers")
        self.around = save_on_cpu if way == "transformers" else contextlib.nullcontext

    def forward(self, tokens):
        x = self.token(tokens)
        for block in self.blocks:
            with self.around():
                x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(x)


def save_on_cpu():
    pins = machine.kind != "late"  # which has no pinned memory
    return torch.autograd.graph.save_on_cpu(pin_memory=pins, device_type=machine.kind)


# ---- One run -------------------------------------------------------------------------------------


class CannotGo(Exception):
    """Here this way is not to be had."""


def opened(args):
    return spillway.Store(
        args.drives,
        arena_bytes=args.arena_bytes,
        backend="libaio" if args.simulated else "auto",  # which simulated.c stands before
    )


def context_of(way, model, args):
    """(what makes the context of a step; the offload or None; its store or None)"""
    if way == "save_on_cpu":
        return save_on_cpu, None, None
    if way in ("torchtune", "trl"):
        try:
            if way == "torchtune":
                made = importlib.import_module("torchtune.training").OffloadActivations()
            else:
                trl = importlib.import_module("trl.models.activation_offloading")
                made = trl.get_act_offloading_ctx_manager(model)
        except (ImportError, RuntimeError, ValueError) as error:
            raise CannotGo(str(error)) from None
        return lambda: made, None, None
    if way in OPTIONS:
        if machine.kind == "late":
            accelerator.table_of = lambda kind: machine.table()
        options = dict(OPTIONS[way])
        if way == "budget":
            if not args.budget_bytes:
                raise CannotGo("a budget is a share of what keep holds, which did not run")
            options["budget_bytes"] = args.budget_bytes
        store = None if way in WITHOUT_DRIVES else opened(args)
        off = spillway.torch.offload(model, store, **options)
        return lambda: off, off, store
    return contextlib.nullcontext, None, None


def by_the_counters(stats, before, seconds, steps):
    """What the plan promised, what moved, and what was kept and why."""
    def since(name):
        return getattr(stats, name) - getattr(before, name)

    kept = {field.name: since(field.name) / steps for field in dataclasses.fields(stats)
            if field.name.startswith("bytes_kept_") and since(field.name)}
    return {"planned_bytes": stats.plan_peak_bytes, "planned_seconds": stats.plan_wall_ns / 1e9,
            "copied_bytes_per_second": since("bytes_copied") / seconds,
            "written_bytes": since("bytes_spilled") / steps,
            "recomputed_bytes": since("bytes_given_up") / steps,
            "stall_seconds": since("stall_seconds") / steps,
            "staging_waits": since("staging_waits") / steps,
            "kept_no_staging": since("tensors_kept_no_staging"),
            "scopes_again": since("scopes_again") / steps, "kept_bytes_by_cause": kept}


def train(way, args):
    torch.manual_seed(1)
    with torch.device(machine.kind):  # where random numbers are made fast
        model = GPT(args, way).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    context, off, store = context_of(way, model, args)
    generator = torch.Generator().manual_seed(2)
    # What every way holds alike: weights, their gradients, and what the libraries keep. Gradients
    # are there all the time, so that at its peak every step holds as much of them.
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    base = machine.memory()[0]
    seconds, losses, before = [], [], None
    for step in range(UNTIMED + args.steps):
        if step == UNTIMED:
            gc.collect()
            machine.begin_peak()
            before = off and off.stats()
        shape = args.batch, args.sequence + 1
        tokens = torch.randint(VOCABULARY, shape, generator=generator).to(machine.kind)
        torch.accelerator.synchronize()
        began = time.perf_counter()
        with context():
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        torch.accelerator.synchronize()
        seconds.append(time.perf_counter() - began)
        losses.append(loss.item().hex())
    timed = seconds[UNTIMED:]
    found = {"seconds": statistics.median(timed), "untimed_seconds": sum(seconds) - sum(timed),
             "peak_bytes": machine.peak(), "activation_bytes": machine.peak() - base,
             "reserved_bytes": machine.reserved(), "losses": losses}
    if off is not None:
        found.update(by_the_counters(off.stats(), before, sum(timed), len(timed)))
        off.close()
        if store is not None:
            store.close()
    return found


def limits(args):
    """What the bus and the drives do on their own, in bytes per second."""
    found = {}
    with opened(args) as store:
        buffer = bytearray(min(PROBE_BYTES, args.arena_bytes // 2))
        began = time.perf_counter()
        things = [store.put(buffer) for _ in range(PROBES)]
        found["drives, write"] = PROBES * len(buffer) / (time.perf_counter() - began)
        began = time.perf_counter()
        for thing in things:
            store.get_into(thing, buffer)
            store.free(thing)
        found["drives, read"] = PROBES * len(buffer) / (time.perf_counter() - began)
    if machine.kind == "late":
        return found
    host = torch.empty(PROBE_BYTES, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(PROBE_BYTES, dtype=torch.uint8, device=machine.kind)
    for name, to, source in (("bus, out", host, device), ("bus, in", device, host)):
        to.copy_(source, non_blocking=True)
        torch.accelerator.synchronize()
        began = time.perf_counter()
        for _ in range(PROBES):
            to.copy_(source, non_blocking=True)
        torch.accelerator.synchronize()
        found[name] = PROBES * PROBE_BYTES / (time.perf_counter() - began)
    return found


# ---- All of them ---------------------------------------------------------------------------------


class Bench:
    def __init__(self, args):
        self.args = args
        self.deadline = time.monotonic() + 60 * args.minutes
        self.found = {}  # the runs of each way
        self.left_out = {}
        self.limits = {}

    def run(self, way):
        """One process; None: it could not go that way."""
        command = [sys.executable, __file__, "--child", way, *sys.argv[1:]]
        if "keep" in self.found:
            budget = int(BUDGET * self.found["keep"][0]["activation_bytes"])
            command += ["--budget-bytes", str(budget)]
        command += self.args.drives if self.args.simulated else []
        # In a session of its own: Ctrl-C is for the bench, which ends it.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, start_new_session=True)
        try:
            out, errors = process.communicate()
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode != 0:
            words = (errors.strip().splitlines() or ["no word"])[-1]
            raise RuntimeError(f"{way} failed, exit status {process.returncode}: {words}")
        return json.loads(out.splitlines()[-1])

    def rounds(self, ways):
        longest = 0
        for number in range(self.args.rounds):
            for way in ways:
                if way in self.left_out:
                    continue
                began = time.monotonic()
                if began + longest > self.deadline:
                    print(f"no time for more: {number} rounds and a part", file=sys.stderr)
                    return
                result = self.run(way)
                longest = max(longest, time.monotonic() - began)
                if "left_out" in result:
                    self.left_out[way] = result["left_out"]
                    print(f"  {way}: left out: {result['left_out']}", file=sys.stderr)
                    continue
                self.found.setdefault(way, []).append(result)
                milliseconds, mib = result["seconds"] * 1000, result["activation_bytes"] / (1 << 20)
                words = f"{way:12}  {milliseconds:9.1f} ms  {mib:9.1f} MiB"
                print(f"  round {number + 1}  {words}", file=sys.stderr)
                self.save()  # a machine that is lent may be taken back at any moment

    def differing(self):
        """Ways with other losses than keep's."""
        expected = self.found["keep"][0]["losses"] if "keep" in self.found else None
        return [way for way, runs in self.found.items()
                if expected and any(run["losses"] != expected for run in runs)]

    def rows(self):
        command = " ".join(sys.argv)
        found = [results.row(name, rate / GB, "GB/s", command=command)
                 for name, rate in self.limits.items()]
        kept = self.found.get("keep", [])
        for way, runs in self.found.items():
            goals = GOALS.get(way, {})
            for what, unit, scale in (("seconds", "ms", 1000), ("untimed_seconds", "s", 1),
                                      ("activation_bytes", "MiB", 1 / (1 << 20)),
                                      ("peak_bytes", "MiB", 1 / (1 << 20)),
                                      ("reserved_bytes", "MiB", 1 / (1 << 20)),
                                      ("copied_bytes_per_second", "GB/s", 1 / GB),
                                      ("written_bytes", "MiB", 1 / (1 << 20)),
                                      ("recomputed_bytes", "MiB", 1 / (1 << 20)),
                                      ("stall_seconds", "ms", 1000),
                                      ("staging_waits", "a step", 1),
                                      ("kept_no_staging", "tensors", 1),
                                      ("planned_bytes", "MiB", 1 / (1 << 20)),
                                      ("planned_seconds", "ms", 1000),
                                      ("scopes_again", "a step", 1)):
                if what in runs[0]:
                    values = [run[what] * scale for run in runs]
                    name = f"{way}: {what.rsplit('_bytes', 1)[0].replace('_', ' ')}"
                    found.append(results.row(name, values, unit, command=command))
            pairs = list(zip(runs, kept)) if way != "keep" else []
            for what, name, goal in (("seconds", "step time", goals.get("of keep")),
                                     ("activation_bytes", "activations", goals.get("memory"))):
                if pairs:
                    values = [run[what] / keep[what] for run, keep in pairs]
                    name = f"{way} / keep: {name}"
                    found.append(results.row(name, values, at_most=goal, command=command))
        return found

    def save(self):
        """What there is so far. Return: its rows."""
        args = self.args
        drives = [f"simulated, {args.simulated}"] if args.simulated else args.drives
        title = f"GPT of {args.layers} layers of {args.hidden} on {machine.kind}, bf16"
        rows = self.rows()
        results.write(args.out / "device.json", title, rows,
                      results.machine([*drives, device_words()]), left_out=self.left_out,
                      runs=self.found)
        return rows

    def draw(self, path):
        """Memory against time, a point for each way."""
        points = {}
        for way, runs in self.found.items():
            seconds = [run["seconds"] for run in runs]
            memory = statistics.median(run["activation_bytes"] for run in runs) / (1 << 30)
            middle = statistics.median(seconds)
            points[way] = [Point(memory, middle, min(seconds), max(seconds), way)]
        path.write_text(draw("Memory and time of a step", "GiB of activations", "seconds", points),
                        encoding="utf-8")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--ways", default=",".join(WAYS), metavar="W,W",
           help="; ".join(f"{way}: {words}" for way, words in WAYS.items()))  # fmt: skip
    option("--layers", type=int, default=24)
    option("--hidden", type=int, default=1024)
    option("--sequence", type=int, default=1024)
    option("--batch", type=int, default=8)
    option("--steps", type=int, default=6, help=f"timed, per run, after {UNTIMED} more (6)")
    option("--rounds", type=int, default=5)
    option("--minutes", type=float, default=8, help="begin no run that would not end in time (8)")
    option("--arena-bytes", type=int, default=1 << 30, help="pinned memory (1 GiB)")
    option("--force", action="store_true", help="format drives that carry something")
    option("--out", type=Path, default=Path("."), metavar="FOLDER", help="for device.json, .svg")
    option("--child", help=argparse.SUPPRESS)
    option("--budget-bytes", type=int, default=0, help=argparse.SUPPRESS)
    option("--simulated", metavar="RATE",
           help="instead of drives memory, no faster than that: 6GB/s; called by bench.sh")
    option("drives", nargs="*", metavar="DRIVE")
    args = parser.parse_args()
    if not set(args.ways.split(",")) <= set(WAYS):
        parser.error(f"--ways: choose from {', '.join(WAYS)}")
    if min(args.layers, args.hidden, args.sequence, args.batch, args.steps, args.rounds) < 1:
        parser.error("layers, hidden, sequence, batch, steps and rounds must be at least 1")
    if not args.drives and not args.simulated:
        parser.error("name drives, or --simulated")
    return args


def child(way, args):
    try:
        print(json.dumps(limits(args) if way == "limits" else train(way, args)))
    except CannotGo as error:
        print(json.dumps({"left_out": str(error)}))
    except torch.OutOfMemoryError as error:
        print(json.dumps({"left_out": str(error).split(". ")[0]}))


def memory_drives():
    """Files in memory, of which half of what is free may be used: their paths, for other processes
    too, as long as this one lives."""
    free = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    size = min(MEMORY_DRIVE_BYTES, int(free.group(1)) * 1024 // 2 // MEMORY_DRIVES)
    paths = []
    for number in range(MEMORY_DRIVES):
        file = os.memfd_create(f"drive{number}")
        os.truncate(file, size // MIB * MIB)
        paths.append(f"/proc/{os.getpid()}/fd/{file}")
    return paths


def main():
    args = arguments()
    if args.child:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        child(args.child, args)
        return 0
    if args.simulated:
        logging.getLogger("spillway").setLevel(logging.ERROR)  # such files have no file system
        args.drives = memory_drives()
    spillway.format_store(args.drives, force=args.force)
    bench = Bench(args)
    status = 0
    try:
        with exits_on(signal.SIGTERM):
            bench.limits = bench.run("limits")
            bench.rounds(args.ways.split(","))
    except KeyboardInterrupt:
        status = 130
    except SystemExit as end:
        status = end.code
    except RuntimeError as error:
        print(f"bench.py: {error}", file=sys.stderr)
        status = 1
    if not bench.found:
        return status or 1
    rows = bench.save()
    bench.draw(args.out / "device.svg")
    print(results.table(rows), end="")
    for way in bench.differing():
        print(f"bench.py: {way} has other losses than keep", file=sys.stderr)
        status = status or 1
    return status


def device_words():
    module = getattr(torch, machine.kind)
    return module.get_device_name() if hasattr(module, "get_device_name") else machine.kind


if __name__ == "__main__":
    sys.exit(main())
