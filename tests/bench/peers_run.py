#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/bench/peers_run.py - trains a GPT in one of the ways of peers_rows.py; called by peers.py
"""One run is one process, so that its peak of resident memory is its own. What it measured is the
last line of its standard output, as JSON. With --pause it says "paused" there, once, and goes on
when a line comes on standard input."""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "python/examples")]

import torch  # noqa: E402

import gpt  # noqa: E402
from common import cuts_of  # noqa: E402
from peers_ways import WAYS  # noqa: E402
from spillway.demo.data import tokens_of  # noqa: E402
from spillway.demo.memory import RssPeaks  # noqa: E402

SECTOR = 512


def resident_bytes():
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return sum(int(status[name].split()[0]) * 1024 for name in ("VmRSS", "HugetlbPages"))


def written_bytes(drives):
    """What the drives were given to write since they were made."""
    total = 0
    for drive in drives:
        stat = Path("/sys/class/block", os.path.basename(drive), "stat")
        total += int(stat.read_text(encoding="ascii").split()[6]) * SECTOR
    return total


def pause():
    print("paused", flush=True)
    sys.stdin.readline()


class Meter:
    """Of the steps from begin() on."""

    def __init__(self, drives, model):
        self.drives = drives
        # What every way holds alike once it trains: gradients, and AdamW's two numbers for each
        # parameter. What a way takes for itself, it takes later.
        self.base = resident_bytes() + 3 * sum(p.numel() * p.element_size()
                                               for p in model.parameters())
        self.peaks = RssPeaks()
        self.seconds = []

    def begin(self):
        self.peaks.end("before")
        self.cpu = time.process_time()
        self.written = written_bytes(self.drives)

    def result(self):
        self.peaks.end("timed")
        phases = self.peaks.phases()
        return {
            "seconds": statistics.median(self.seconds),
            "cpu_seconds": (time.process_time() - self.cpu) / len(self.seconds),
            "written_bytes": (written_bytes(self.drives) - self.written) / len(self.seconds),
            "activation_bytes": phases["timed"] - self.base if phases else None,
            "rss_bytes": self.peaks.most,
        }


def warm_up(args):
    """A step of one layer, so that what PyTorch loads and takes once is there before anything is
    measured."""
    small = argparse.Namespace(**{**vars(args), "layers": 1, "mode": "keep"})
    plain = WAYS["plain"](small)
    with plain.open(gpt.GPT(small)):
        tokens = torch.zeros(args.batch, args.sequence, dtype=torch.int64)
        plain.backward(plain.loss(tokens, tokens))
        plain.step()


def train(args):
    torch.set_num_threads(args.threads)
    way = WAYS[args.way](args)  # its packages are loaded before anything is measured
    warm_up(args)
    torch.manual_seed(1)
    args.mode = "recompute" if way.recompute else "keep"
    with way.construction():
        model = gpt.GPT(args)
    rows = cuts_of(tokens_of(args.text.read_bytes(), args.sequence + 1), args.batch,
                   args.sequence + 1, torch.Generator().manual_seed(2))
    meter, losses = Meter(args.drives.split(",") if args.drives else [], model), []
    with way.open(model):
        for step in range(args.untimed + args.steps):
            if step == args.untimed:
                meter.begin()
            cut = next(rows)
            tokens, targets = cut[:, :-1].contiguous(), cut[:, 1:].contiguous()
            if args.pause == f"{step}:before":
                pause()
            began = time.perf_counter()
            with way.around():
                loss = way.loss(tokens, targets)
                if args.pause == f"{step}:between":
                    pause()
                way.backward(loss)
            way.step()
            losses.append(loss.item().hex())
            del loss
            if step >= args.untimed:
                meter.seconds.append(time.perf_counter() - began)
        found = meter.result()
    print(json.dumps({**found, "losses": losses}), flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    option = parser.add_argument
    option("--way", choices=list(WAYS), required=True)
    option("--drives", default="", help="whose counters say what was written")
    option("--devices", default="", help="of a store")
    option("--folder", type=Path, help="of a file system on the drives")
    option("--budget", type=int, help="bytes of activations, of the way that takes a budget")
    option("--text", type=Path, required=True)
    option("--pause", help="STEP:before or STEP:between its forward and its backward pass")
    for name in ("layers", "hidden", "heads", "sequence", "batch", "untimed", "steps", "threads"):
        option(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    args.dropout = 0.0
    return args


if __name__ == "__main__":
    train(arguments())
