#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/bench/operations.py - single operations recomputed, in four models beside plain training
"""Each step of a model runs plain, watched and with recompute="operations", without a store, in
another order each time; ratios are of the same step. Plain steps run in the same process, so they
pay for mapped blocks, too (docs/GUIDE.md, Memory of the process): ratios do not show it. Losses
and all gradients are compared to the last bit. Writes operations.json.
Exit status: 0; 1 a bit differs; 130 interrupted."""
import argparse
import contextlib
import sys
import time
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
from rounds import rotated, shown  # noqa: E402
from spillway.bench import results  # noqa: E402

UNTIMED = 3  # steps: measured, watched, timed by spillway itself
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


class Ways:
    """The same model trained in each way, a step at a time, with the same numbers."""

    def __init__(self, model):
        self.model = model
        self.watched = st.offload(model, None, mode="observe")
        self.spared = st.offload(model, None, recompute="operations")
        self.contexts = {"plain": contextlib.nullcontext(), "watched": self.watched,
                         "operations": self.spared}

    def step(self, way, inputs, targets, seed):
        """(seconds, loss, gradients)"""
        torch.manual_seed(seed)
        self.model.zero_grad()
        began = time.perf_counter()
        with self.contexts[way]:
            loss = common.loss_of(self.model(*inputs), targets)
            loss.backward()
        return time.perf_counter() - began, loss.item(), [
            parameter.grad.clone() for parameter in self.model.parameters()]


def measure(args, name):
    """Rows of one model."""
    model_of, batches_of = MODELS[name]
    torch.manual_seed(1)
    text = common.tokens_of((ROOT / "HACKING.md").read_bytes(), 4 * args.sequence)
    batches = batches_of(args, text, torch.Generator().manual_seed(1))
    ways, ratios, peaks, differ = Ways(model_of(args)), [], [], 0
    for number in range(UNTIMED + args.steps):
        inputs, targets = next(batches)
        found = {way: ways.step(way, inputs, targets, number)
                 for way in rotated(list(ways.contexts), number)}
        plain, spared = found["plain"], found["operations"]
        differ += plain[1] != spared[1] or not all(map(torch.equal, plain[2], spared[2]))
        if number >= UNTIMED:
            ratios.append(spared[0] / plain[0])
            peaks.append(ways.spared.activation_peak_bytes / ways.watched.activation_peak_bytes)
        ways.watched.reset_peak()
        ways.spared.reset_peak()
        print(f"{name} {number + 1}/{UNTIMED + args.steps}", file=sys.stderr)
    ways.watched.close()
    ways.spared.close()
    goal = PEAKS[name]
    return [results.row(f"{name}: steps whose loss or gradients differ", differ, at_most=0),
            results.row(f"{name}: peak of activations / plain", peaks, "ratio", at_most=goal),
            results.row(f"{name}: step / plain", ratios, "ratio", at_most=STEP)]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--models", default=",".join(MODELS), help="separated by commas (all)")
    for name, default in (("layers", 12), ("hidden", 512), ("sequence", 256), ("batch", 4),
                          ("steps", 7)):
        option(f"--{name}", type=int, default=default, help=f"({default})")
    option("--scores", action="store_true", help="attention that saves its scores, as the examples")
    option("--out", default=".", help="folder for operations.json")
    args = parser.parse_args()
    args.heads, args.dropout, args.mode = max(1, args.hidden // 64), 0.0, "keep"
    unknown = set(args.models.split(",")) - set(MODELS)
    if unknown:
        parser.error(f"--models: there is no {', '.join(sorted(unknown))}")
    if not args.scores:
        common.Attention.forward = fused
    torch.set_num_threads(1)
    rows, where = [], results.machine()
    title = (f"Single operations recomputed: {args.layers} layers, hidden {args.hidden}, "
             f"{args.batch} x {args.sequence} tokens, host tensors, no store")
    with shown("operations", rows):
        for name in args.models.split(","):
            rows += measure(args, name)
            results.write(Path(args.out, "operations.json"), title, rows, where)
    return 0 if all(row["met"] for row in rows if "differ" in row["name"]) else 1


if __name__ == "__main__":
    sys.exit(main())
