# SPDX-License-Identifier: MIT
# tests/bench/parameters.py - parameters on drives: against memory, against DeepSpeed, and as files
"""The rows of `make bench-state` that are about parameters. Workers are functions of the command
line that state.py gives them, in a process of their own at the drives' speed; what they found is
their last line of standard output, as JSON. The rest takes state.py's Bench, and notes what they
found."""

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "python/examples")]

import peers  # noqa: E402
from peers_page import ratios_of  # noqa: E402
from rig import Rig  # noqa: E402
from shapes import AtLeast, busy_seconds, elements_of, shapes_of, size_of_drives  # noqa: E402
from spillway.demo.data import collect_text  # noqa: E402
from spillway.demo.memory import RssPeaks  # noqa: E402

STEPS_UNTIMED, STEPS_TIMED = 2, 8
BATCH, SEQUENCE = 4, 512
TILE_BYTES = 16 << 20  # the longest buffer of export(); a file system is asked for its rate by it
FORMATS = {"safetensors": "model.safetensors", "torch": "model.pt"}
MB = 1e6
BATCH = 4  # sequences in a step: a short one does not hide slow drives
SPEEDS = ({"write": 500, "read": 600}, {"write": 120, "read": 160})  # MB/s of each drive


# ---- Workers -------------------------------------------------------------------------------------

def counts_of(off, optimizer):
    """What a step adds to."""
    parameters, state = off.parameter_stats(), optimizer.stats()
    return {"parameter_wait": parameters.wait_ns / 1e9, "state_wait": state.wait_ns / 1e9,
            "read": parameters.bytes_read, "written": parameters.bytes_written,
            "reads": parameters.reads, "reads_ahead": parameters.reads_ahead}


def train_in_turn(args):
    """Whole steps of the example's GPT: all of it in memory, and parameters and state on drives.
    What is saved for the backward pass stays in memory."""
    import torch

    import gpt
    import spillway
    import spillway.torch

    shape = argparse.Namespace(mode="keep", hidden=768, heads=12, layers=args.layers,
                               sequence=SEQUENCE, dropout=0.0)
    torch.manual_seed(1)
    kept = gpt.GPT(shape)
    torch.manual_seed(1)
    with spillway.Store(args.devices.split(","), arena_bytes=args.arena) as store:
        model = spillway.torch.materialize(lambda: gpt.GPT(shape), store)
        off = spillway.torch.offload(model, store, parameters=True, mode="observe")
        optimizer = spillway.torch.Optimizer(torch.optim.AdamW, model.named_parameters(), store,
                                             lr=1e-3, in_backward=True, memory=args.memory)
        ways = [(kept, torch.optim.AdamW(kept.parameters(), lr=1e-3, foreach=False),
                 contextlib.nullcontext()), (model, optimizer, off)]
        times, busy, losses = [[], []], [[], []], [[], []]
        for step in range(STEPS_UNTIMED + STEPS_TIMED):
            torch.manual_seed(step)
            tokens = torch.randint(0, 256, (BATCH, SEQUENCE + 1))
            if step == STEPS_UNTIMED:
                before = counts_of(off, optimizer)
            for which in (0, 1) if step % 2 else (1, 0):
                module, stepping, around = ways[which]
                begun, busy_begun = time.perf_counter(), busy_seconds()
                with around:
                    out = module(tokens[:, :-1])
                    loss = torch.nn.functional.cross_entropy(out.flatten(0, 1),
                                                             tokens[:, 1:].flatten())
                    loss.backward()
                stepping.step()
                stepping.zero_grad()
                times[which].append(time.perf_counter() - begun)
                busy[which].append(busy_seconds() - busy_begun)
                losses[which].append(loss.item())
                del out, loss
        after, stats = counts_of(off, optimizer), off.parameter_stats()
        same = losses[0] == losses[1] and all(
            torch.equal(mine.detach(), yours)
            for mine, yours in zip(model.parameters(), kept.parameters()))
    print(json.dumps({
        "same": same, "memory": times[0][STEPS_UNTIMED:], "drives": times[1][STEPS_UNTIMED:],
        "busy": [statistics.median(found[STEPS_UNTIMED:]) for found in busy],
        "limit_bytes": stats.limit_bytes, "total_bytes": stats.total_bytes,
        **{name: (after[name] - before[name]) / STEPS_TIMED for name in after}}))


def digest_of(tensors):
    """Of their bits, in this order."""
    import numpy
    import torch

    found = hashlib.sha256()
    for tensor in tensors:
        found.update(numpy.ascontiguousarray(tensor.detach().contiguous().view(torch.uint8)))
    return found.hexdigest()


def commit(args):
    """What export() is to write."""
    import torch

    import spillway
    import spillway.torch

    generator = torch.Generator().manual_seed(1)
    named = [(f"layer.{number:04}", torch.nn.Parameter(torch.rand(shape, generator=generator) - .5))
             for number, shape in enumerate(shapes_of(args.elements))]
    for _, param in named:
        param.grad = torch.full_like(param, 0.5)
    with spillway.Store(args.devices.split(","), arena_bytes=args.arena) as store:
        optimizer = spillway.torch.Optimizer(torch.optim.AdamW, named, store, lr=1e-3)
        optimizer.step()
        optimizer.commit()
        optimizer.close()
    print(json.dumps({"digest": digest_of(param for _, param in named)}))


def write_rate(folder, len_bytes):
    """Of the file system: bytes per second of a file that is written and made durable."""
    content, path = bytearray(os.urandom(1 << 20) * (TILE_BYTES >> 20)), folder / "written"
    begun = time.perf_counter()
    with open(path, "wb", buffering=0) as file:
        for _ in range(max(1, len_bytes // TILE_BYTES)):
            file.write(content)
        os.fsync(file.fileno())
        written = file.tell()
    seconds = time.perf_counter() - begun
    path.unlink()
    return written / seconds


def read_back(kind, path):
    """The digest of a file's tensors, by the package that others read it with."""
    import torch

    if kind == "torch":
        content = torch.load(path, weights_only=True, mmap=True)
    else:
        from safetensors.torch import load_file

        content = load_file(path)
    return digest_of(content[name] for name in sorted(content))


def export(args):
    """Both formats, each by the clock and the most memory that it took; read back afterwards."""
    import spillway
    import spillway.checkpoint

    folder, found = Path(args.folders), {}
    for kind, name in FORMATS.items():
        with spillway.Store(args.devices.split(","), read_only=True) as store:
            peaks = RssPeaks()
            peaks.end("before")
            begun = time.perf_counter()
            exported = spillway.checkpoint.export(store, folder / name, kind)
            seconds = time.perf_counter() - begun
            peaks.end("export")
            phases = peaks.phases()
        found[kind] = {"rate": exported.bytes / seconds,
                       "memory": phases["export"] - phases["before"],
                       "file_system": write_rate(folder, exported.bytes)}
    for kind, name in FORMATS.items():
        found[kind]["digest"] = read_back(kind, folder / name)
    print(json.dumps(found))


WORKERS = {"parameters": train_in_turn, "export-commit": commit, "export": export}


# ---- Rounds --------------------------------------------------------------------------------------

def training(bench):
    layers = bench.args.parameter_layers
    name = (f"parameters and state on drives, GPT of {layers} layers, hidden 768, "
            f"{BATCH * SEQUENCE} tokens, file-backed")
    for _ in range(bench.args.rounds):
        size = size_of_drives(layers * 7_100_000 * 12)
        with Rig(size=size, drives=4, on="/var/tmp") as rig:
            bench.format(rig)
            one = bench.worker(rig, "parameters", False, 0, "--layers", str(layers))
        if not one["same"]:
            raise SystemExit(f"state: {name}: the bits differ from those in memory")
        in_memory, over = statistics.median(one["memory"]), statistics.median(one["drives"])
        ratio = statistics.median(kept / drives for kept, drives in zip(one["memory"],
                                                                        one["drives"]))
        for what, unit, goal, value in (
                ("tokens per second / in memory", "", AtLeast(0.95), ratio),
                ("the same by CPU time alone, all cores busy", "", None,
                 1 / (1 + (one["busy"][1] - one["busy"][0]) / (os.cpu_count() * in_memory))),
                ("tokens per second in memory", "", None, BATCH * SEQUENCE / in_memory),
                ("parameters in memory / all", "", None,
                 min(1, one["limit_bytes"] / one["total_bytes"])),
                ("parameters read in a step / all", "", None, one["read"] / one["total_bytes"]),
                ("parameters written in a step / all", "", None,
                 one["written"] / one["total_bytes"]),
                ("prefetched / read", "", None, one["reads_ahead"] / max(1, one["reads"])),
                ("waited for parameters / step", "", None, one["parameter_wait"] / over),
                ("waited for the state / step", "", None, one["state_wait"] / over)):
            bench.note((name, what, unit, goal), value)
        print(f"state: {name}: {ratio:.3f} of the tokens per second in memory", file=sys.stderr)


def against_deepspeed(bench):
    """The rows of `make bench-peers` that have parameters and state on drives, and activations in
    memory: on its drives, and on slower ones, which no processor here is slow enough to hide."""
    for speed in SPEEDS:
        if not one_speed(bench, speed):
            return


def one_speed(bench, speed):
    """Equal drives, and one of four at a quarter of its speed. Return: whether DeepSpeed runs."""
    chosen = argparse.Namespace(
        rows=["plain", "deepspeed", "spillway-parameters"], python=sys.executable,
        build=str(bench.build), rounds=bench.args.rounds, steps=3, layers=bench.args.layers,
        batch=BATCH, size="1G", out=None, on="/var/tmp", no_troubles=True)
    with tempfile.NamedTemporaryFile(prefix="spillway-state-text.") as text:
        text.write(collect_text(ROOT))
        text.flush()
        run = peers.Bench(chosen, text.name, speed)
        run.go()
    found = run.found
    plain, theirs, ours = found["plain"], found["deepspeed"], found["spillway-parameters"]
    if ours["why_not"] is not None:
        raise RuntimeError(f"parameters on drives: {ours['why_not']}")
    if any(one["losses"] != plain["runs"][0]["losses"] for one in ours["runs"] + ours["unequal"]):
        raise SystemExit("state: parameters on drives: the losses differ from those in memory")
    if theirs["why_not"] is not None:
        bench.left_out.append(f"DeepSpeed ZeRO-3 {theirs['why_not']}")
        print(f"state: left out: {bench.left_out[-1]}", file=sys.stderr)
        return False
    for words, kind, goal in (("four equal drives", "runs", 1.5),
                              ("one of four at a quarter", "unequal", 3)):
        name = (f"DeepSpeed ZeRO-3, parameters and state, {words}, "
                f"{speed['write']} and {speed['read']} MB/s")
        for ratio in ratios_of(theirs[kind], ours[kind]):
            bench.note((name, "its step / spillway's", "", AtLeast(goal)), ratio)
        # What the first row would be if drives cost nothing: near it the processor is the limit.
        for ratio in ratios_of(theirs[kind], plain["runs"]):
            bench.note((name, "its step / all in memory", "", None), ratio)
        for one in ours[kind]:
            bench.note((name, "spillway's step", "s", None), one["seconds"])
    return True


def exports(bench):
    elements = elements_of(bench.args.elements)
    name = f"export of {elements * 4 / (1 << 20):,.0f} MiB of parameters"
    for _ in range(bench.args.rounds):
        with Rig(size=size_of_drives(elements * 12), drives=4, write=500, read=600) as rig, \
                tempfile.TemporaryDirectory(dir="/var/tmp", prefix="spillway-export.") as folder:
            bench.format(rig)
            committed = bench.worker(rig, "export-commit", False, bench.args.elements)
            read_rate = bench.bandwidth(rig, "--rw=read", "--readonly")
            found = bench.worker(rig, "export", False, 0, "--folders", folder)
        for kind, one in found.items():
            row = f"{name}, {kind}"
            if one["digest"] != committed["digest"]:
                raise SystemExit(f"state: {row}: the bits differ from those committed")
            slower = min(read_rate, one["file_system"])
            bench.note((row, "its rate / the slower of drives and file system", "", AtLeast(0.8)),
                       one["rate"] / slower)
            bench.note((row, "its rate", "MB/s", None), one["rate"] / MB)
            bench.note((row, "the drives, by fio", "MB/s", None), read_rate / MB)
            bench.note((row, "the file system", "MB/s", None), one["file_system"] / MB)
            bench.note((row, "by how much memory grew / a tile of 16 MiB", "", 2),
                       one["memory"] / TILE_BYTES)
            print(f"state: {row}: {one['rate'] / slower:.3f} of the slower", file=sys.stderr)


CASES = {"parameters": training, "deepspeed": against_deepspeed, "export": exports}
