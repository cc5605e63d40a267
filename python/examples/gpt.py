#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# python/examples/gpt.py - a decoder-only GPT that learns the next byte
"""Train a small GPT on the repository's own text, in one of three modes.

  spillway format --devices /dev/a,/dev/b
  python3 python/examples/gpt.py --mode spillway --devices /dev/a,/dev/b
"""
import argparse
import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is open yet: no traceback

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common import Attention, Batches, FeedForward, cuts_of, main, run_block


class Block(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(args.hidden), nn.LayerNorm(args.hidden)
        self.attention = Attention(args.hidden, args.heads)
        self.mlp = FeedForward(args.hidden, F.gelu)
        self.dropout = nn.Dropout(args.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.dropout(self.attention(normed, normed, mask))
        x = x + self.dropout(self.mlp(self.norm2(x)))
        return x


class GPT(nn.Module):
    future: Tensor

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.recompute = args.mode == "recompute"
        self.token = nn.Embedding(256, args.hidden)
        self.position = nn.Embedding(args.sequence, args.hidden)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.hidden)
        self.head = nn.Linear(args.hidden, 256, bias=False)
        self.register_buffer("future",
                             torch.full((args.sequence, args.sequence), -torch.inf).triu(1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight
        for block in self.blocks:
            x = run_block(block, self.recompute, x, self.future)
        logits: Tensor = self.head(self.norm(x))
        return logits


def batches(args: argparse.Namespace, text: Tensor, generator: torch.Generator) -> Batches:
    for rows in cuts_of(text, args.batch, args.sequence + 1, generator):
        yield (rows[:, :-1].contiguous(),), rows[:, 1:].contiguous()


if __name__ == "__main__":
    sys.exit(main("gpt", __doc__, GPT, batches))
