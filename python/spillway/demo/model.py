# SPDX-License-Identifier: MIT
# spillway/demo/model.py - a decoder-only GPT, written plainly
"""Nothing here knows of spillway."""
from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclasses.dataclass(frozen=True)
class Config:
    layers: int = 12
    hidden: int = 512
    heads: int = 8
    sequence: int = 512
    vocabulary: int = 256


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.out = nn.Linear(config.hidden, config.hidden)
        future = torch.ones(config.sequence, config.sequence, dtype=torch.bool).triu(1)
        self.register_buffer("future", future)

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, hidden = x.shape
        q, k, v = self.qkv(x).view(batch, sequence, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(self.future[:sequence, :sequence], -math.inf).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, sequence, hidden))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.hidden)
        self.up = nn.Linear(config.hidden, 4 * config.hidden)
        self.down = nn.Linear(4 * config.hidden, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """:param recompute: keep only the input of each block and compute the block again in the backward pass"""

    def __init__(self, config: Config, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.token = nn.Embedding(config.vocabulary, config.hidden)
        self.position = nn.Embedding(config.sequence, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True) if self.recompute else block(x)
        return self.head(self.norm(x))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
