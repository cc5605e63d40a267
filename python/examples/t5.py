#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# python/examples/t5.py - a T5 encoder-decoder that learns to restore spans taken out of the text
"""Train a small T5 on the repository's own text, in one of three modes. Half of --layers decode,
the rest encode.

  spillway format --devices /dev/a,/dev/b
  python3 python/examples/t5.py --mode spillway --devices /dev/a,/dev/b
"""
import argparse
import math
import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is open yet: no traceback

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common import Attention, Batches, FeedForward, cuts_of, main, run_block

SPAN = 3  # bytes that one sentinel stands for
SPACING = 20  # bytes from which one span is taken: 15 %
SENTINELS = 100
START = 256 + SENTINELS
VOCABULARY = START + 1


class RMSNorm(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


class RelativeBias(nn.Module):
    """What the scores of all layers gain by the distance of two tokens: exact when near, by powers
    of two when far."""

    def __init__(self, heads: int, both_ways: bool) -> None:
        super().__init__()
        self.both_ways = both_ways
        self.table = nn.Embedding(32, heads)

    def forward(self, length: int) -> Tensor:
        distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        powers = distance.abs().clamp(min=8).float().div(8).log() / math.log(16)
        far = 8 + (powers * 8).long().clamp(max=7)
        bucket = torch.where(distance.abs() < 8, distance.abs(), far) + 16 * (distance > 0)
        bias: Tensor = self.table(bucket).permute(2, 0, 1)
        return bias if self.both_ways else bias + torch.full((length, length), -torch.inf).triu(1)


class Block(nn.Module):
    def __init__(self, args: argparse.Namespace, decodes: bool) -> None:
        super().__init__()
        self.attention = Attention(args.hidden, args.heads, bias=False)
        self.across = Attention(args.hidden, args.heads, bias=False) if decodes else None
        self.norms = nn.ModuleDict({
            name: RMSNorm(args.hidden)
            for name in ("self", "across", "mlp")[::1 if decodes else 2]
        })
        self.mlp = FeedForward(args.hidden, F.relu, bias=False)
        self.dropout = nn.Dropout(args.dropout)

    def forward(self, x: Tensor, bias: Tensor, memory: Tensor) -> Tensor:
        normed = self.norms["self"](x)
        x = x + self.dropout(self.attention(normed, normed, bias))
        if self.across is not None:
            x = x + self.dropout(self.across(self.norms["across"](x), memory, None))
        x = x + self.dropout(self.mlp(self.norms["mlp"](x)))
        return x


class T5(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.recompute = args.mode == "recompute"
        decoders = args.layers // 2
        self.token = nn.Embedding(VOCABULARY, args.hidden)
        self.encoder = nn.ModuleList(
            Block(args, decodes=False) for _ in range(args.layers - decoders))
        self.decoder = nn.ModuleList(Block(args, decodes=True) for _ in range(decoders))
        self.encoder_bias = RelativeBias(args.heads, True)
        self.decoder_bias = RelativeBias(args.heads, False)
        self.encoder_norm, self.decoder_norm = RMSNorm(args.hidden), RMSNorm(args.hidden)
        self.head = nn.Linear(args.hidden, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, shifted: Tensor) -> Tensor:
        memory, bias = self.token(tokens), self.encoder_bias(tokens.shape[1])
        for block in self.encoder:
            memory = run_block(block, self.recompute, memory, bias, memory)
        memory = self.encoder_norm(memory)
        x, bias = self.token(shifted), self.decoder_bias(shifted.shape[1])
        for block in self.decoder:
            x = run_block(block, self.recompute, x, bias, memory)
        logits: Tensor = self.head(self.decoder_norm(x))
        return logits


def batches(args: argparse.Namespace, text: Tensor, generator: torch.Generator) -> Batches:
    """The encoder reads the text with a sentinel for every span taken out; the decoder writes each
    sentinel and its span."""
    if args.sequence < SPAN:
        raise ValueError(f"--sequence must be at least {SPAN}, the length of a span")
    spans = min(SENTINELS, max(1, args.sequence // SPACING))
    room = args.sequence // spans
    for rows in cuts_of(text, args.batch, args.sequence, generator):
        starts = torch.arange(spans) * room + torch.randint(max(1, room - SPAN),
                                                            (spans,), generator=generator)
        sentinels = torch.arange(256, 256 + spans).expand(len(rows), spans)
        gone = starts[:, None] + torch.arange(SPAN)
        targets = torch.cat([sentinels[..., None], rows[:, gone]], -1).flatten(1)
        rest = torch.ones(args.sequence, dtype=torch.bool)
        rest[gone[:, 1:].flatten()] = False
        tokens = rows.index_copy(1, starts, sentinels)[:, rest]
        yield (tokens, torch.cat([torch.full((len(rows), 1), START), targets[:, :-1]], 1)), targets


if __name__ == "__main__":
    sys.exit(main("t5", __doc__, T5, batches))
