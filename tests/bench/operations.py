#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/bench/operations.py - single operations recomputed, in four models beside plain training
"""Each way of training runs in a process of its own, in turn, so that none pays for what another
does to the process (docs/GUIDE.md, Memory of the process): plain; with recompute="operations",
without a store; the same under `spillway run`. Ratios are of the same round; times are CPU time, of
user and kernel. Losses and all gradients are compared to the last bit. Writes operations.json.
Exit status: 0; 1 a bit differs; 130 interrupted."""
import argparse
import contextlib
import ctypes
import hashlib
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "python/examples")]

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import bert  # noqa: E402
import common  # noqa: E402
import gpt  # noqa: E402
import spillway.torch as st  # noqa: E402
import t5  # noqa: E402
from rounds import Rows, rotated, shown  # noqa: E402
from spillway._offload import heap  # noqa: E402
from spillway.bench import results  # noqa: E402

# Steps: measured, watched, timed by spillway itself; and until `spillway run` has forgotten them.
UNTIMED = 3 + 5
# As the examples' attention; the scores are not saved.
PEAKS = {"gpt": 0.62, "bert": 0.62, "t5": 0.7, "llama": 0.62}  # of plain training
STEP = 1.03


class Root(nn.Module):
    """As transformers writes it."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


class LlamaLayer(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        inner, self.heads = hidden * 8 // 3, heads
        self.norms = nn.ModuleList((Root(hidden), Root(hidden)))
        self.qkv, self.out, self.gate, self.up, self.down = (
            nn.Linear(*sizes, bias=False) for sizes in (
                (hidden, 3 * hidden), (hidden, hidden), (hidden, inner), (hidden, inner),
                (inner, hidden)))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for part in self.qkv(self.norms[0](x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.token, self.norm = nn.Embedding(256, args.hidden), Root(args.hidden)
        self.layers = nn.ModuleList(LlamaLayer(args.hidden, args.heads)
                                    for _ in range(args.layers))
        self.head = nn.Linear(args.hidden, 256, bias=False)

    def forward(self, tokens):
        x = self.token(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


MODELS = {"gpt": (gpt.GPT, gpt.batches), "bert": (bert.BERT, bert.batches),
          "t5": (t5.T5, t5.batches), "llama": (Llama, gpt.batches)}


def fused(attention, x, memory, mask):
    """In place of common.Attention's forward, which saves the scores: as models have it today."""
    q, k, v = (part.unflatten(-1, (attention.heads, -1)).transpose(1, 2) for part in (
        attention.query(x), *attention.key_value(memory).chunk(2, -1)))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return attention.out(y.transpose(1, 2).flatten(2))


OPTIONS = {"plain": None, "watched": {"mode": "observe"},
           "operations": {"recompute": "operations"}, "run": {"recompute": "operations"}}
WORDS = {"operations": "", "run": " under spillway run"}


def used():
    """(seconds of CPU time, page faults) of this process."""
    now = resource.getrusage(resource.RUSAGE_SELF)
    return now.ru_utime + now.ru_stime, now.ru_minflt


def bytes_of(tensor):
    """Without a copy."""
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())


class Training:
    """Of one model in one way."""

    def __init__(self, args):
        model_of, batches_of = MODELS[args.child_model]
        torch.manual_seed(1)
        text = common.tokens_of((ROOT / "HACKING.md").read_bytes(), 4 * args.sequence)
        self.batches = batches_of(args, text, torch.Generator().manual_seed(1))
        self.model, self.seen = model_of(args), hashlib.sha256()
        options = OPTIONS[args.child]
        self.off = None if options is None else st.offload(self.model, None, **options)

    def step(self, number):
        """(seconds of CPU time, page faults)"""
        inputs, targets = next(self.batches)
        torch.manual_seed(number)
        before = used()
        self.model.zero_grad()
        with self.off or contextlib.nullcontext():
            loss = common.loss_of(self.model(*inputs), targets)
            loss.backward()
        took = [now - then for now, then in zip(used(), before)]
        self.seen.update(loss.item().hex().encode())
        for parameter in self.model.parameters():
            self.seen.update(bytes_of(parameter.grad))
        return took

    def reset_peaks(self):
        Path("/proc/self/clear_refs").write_text("5")  # of RSS
        if self.off is not None:
            self.off.reset_peak()


def child(args):
    """What a process tells its parent."""
    training, steps = Training(args), []
    for number in range(UNTIMED + args.steps):
        if number == UNTIMED:
            training.reset_peaks()
        steps.append(training.step(number))
    cpu, faults = (statistics.median(each) for each in zip(*steps[UNTIMED:]))
    off = training.off
    print(json.dumps({"seen": training.seen.hexdigest(), "cpu": cpu, "faults": faults,
                      "resident": heap._status_bytes("VmHWM"),
                      "activations": 0 if off is None else off.activation_peak_bytes}))


def in_child(args, name, way):
    command = [sys.executable, __file__, *sys.argv[1:], "--child", way, "--child-model", name]
    if way == "run":
        command = [args.command, "run", "--", *command]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{name}, {way}: exit status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(args, name, rows):
    """Of one model."""
    watched = in_child(args, name, "watched")
    for number in range(args.rounds):
        ways = [way for way in OPTIONS if way != "watched"]
        found = {way: in_child(args, name, way) for way in rotated(ways, number)}
        plain, spared = found["plain"], found["operations"]
        rows.note(f"{name}: ways whose losses or gradients differ",
                  sum(each["seen"] != plain["seen"] for each in (watched, *found.values())),
                  at_most=0)
        rows.note(f"{name}: peak of activations / plain",
                  spared["activations"] / watched["activations"], "ratio", at_most=PEAKS[name])
        for way, words in WORDS.items():
            rows.note(f"{name}: CPU time of a step{words} / plain",
                      found[way]["cpu"] / plain["cpu"], "ratio", at_most=STEP)
            rows.note(f"{name}: peak of RSS{words} / plain",
                      found[way]["resident"] / plain["resident"], "ratio")
            rows.note(f"{name}: page faults of a step{words}", found[way]["faults"])
        rows.note(f"{name}: page faults of a step, plain", plain["faults"])
        print(f"{name} {number + 1}/{args.rounds}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--models", default=",".join(MODELS), help="separated by commas (all)")
    for name, default in (("layers", 12), ("hidden", 512), ("sequence", 256), ("batch", 4),
                          ("steps", 5), ("rounds", 5)):
        option(f"--{name}", type=int, default=default, help=f"({default})")
    option("--scores", action="store_true", help="attention that saves its scores, as the examples")
    option("--out", default=".", help="folder for operations.json")
    option("--command", default=ROOT / "build/spillway", help="spillway (build/spillway)")
    option("--child", choices=OPTIONS, help=argparse.SUPPRESS)
    option("--child-model", choices=MODELS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.heads, args.dropout, args.mode = max(1, args.hidden // 64), 0.0, "keep"
    unknown = set(args.models.split(",")) - set(MODELS)
    if unknown:
        parser.error(f"--models: there is no {', '.join(sorted(unknown))}")
    if not args.scores:
        common.Attention.forward = fused
    torch.set_num_threads(1)
    if args.child:
        return child(args)
    rows, shown_rows, where = Rows(), [], results.machine()
    title = (f"Single operations recomputed: {args.layers} layers, hidden {args.hidden}, "
             f"{args.batch} x {args.sequence} tokens, host tensors, no store")
    with shown("operations", shown_rows):
        for name in args.models.split(","):
            measure(args, name, rows)
            shown_rows[:] = rows.all()
            results.write(Path(args.out, "operations.json"), title, shown_rows, where)
    return 0 if all(row["met"] for row in shown_rows if "differ" in row["name"]) else 1


if __name__ == "__main__":
    sys.exit(main())
