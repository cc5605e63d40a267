#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# python/examples/bert.py - a BERT encoder that learns to fill in masked bytes
"""Train a small BERT on the repository's own text, in one of three modes.

  spillway format --devices /dev/a,/dev/b
  python3 python/examples/bert.py --mode spillway --devices /dev/a,/dev/b
"""
import argparse
import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is open yet: no traceback

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common import IGNORED, Attention, Batches, FeedForward, cuts_of, main, run_block

MASK = 256  # the token after the bytes
MASKED_SHARE = 0.15


class Block(nn.Module):
    """As in the original: each norm comes after its sum."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.attention = Attention(args.hidden, args.heads)
        self.mlp = FeedForward(args.hidden, F.gelu)
        self.norm1, self.norm2 = nn.LayerNorm(args.hidden), nn.LayerNorm(args.hidden)
        self.dropout = nn.Dropout(args.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x, x, None)))
        x = self.norm2(x + self.dropout(self.mlp(x)))
        return x


class BERT(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.recompute = args.mode == "recompute"
        self.token = nn.Embedding(256 + 1, args.hidden)
        self.position = nn.Embedding(args.sequence, args.hidden)
        self.norm = nn.LayerNorm(args.hidden)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.transform = nn.Sequential(nn.Linear(args.hidden, args.hidden), nn.GELU(),
                                       nn.LayerNorm(args.hidden))
        self.bias = nn.Parameter(torch.zeros(256 + 1))
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.token(tokens) + self.position.weight)
        for block in self.blocks:
            x = run_block(block, self.recompute, x)
        # the embedding is also the output's weight
        return F.linear(self.transform(x), self.token.weight, self.bias)


def batches(args: argparse.Namespace, text: Tensor, generator: torch.Generator) -> Batches:
    for rows in cuts_of(text, args.batch, args.sequence, generator):
        masked = torch.rand(rows.shape, generator=generator) < MASKED_SHARE
        masked[:, 0] = True  # in a tiny batch too there is something to learn
        yield (rows.masked_fill(masked, MASK),), rows.masked_fill(~masked, IGNORED)


if __name__ == "__main__":
    sys.exit(main("bert", __doc__, BERT, batches))
