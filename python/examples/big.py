#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# python/examples/big.py - a GPT of which parameters, state, gradients and activations are on drives
"""    spillway format --devices /dev/nvme1n1,/dev/nvme2n1
    python3 python/examples/big.py --devices /dev/nvme1n1,/dev/nvme2n1 --steps 1000

In memory are the parameters that a layer or two needs, and tiles of the rest; with --device cuda in
that of the GPU and of the host. Kill it at any moment and run it again: it goes on from the last
commit, and the losses are those of one that was not.
"""
from __future__ import annotations

import argparse
import json
import time
from typing import Any, Dict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spillway
import spillway.torch as st


class Block(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.heads = max(1, hidden // 64)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.query_key_value(self.norm1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(  # type: ignore[attr-defined]
            q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return x


class GPT(nn.Module):
    """Its head is its embedding."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.token = nn.Embedding(options.vocabulary, options.hidden)
        self.position = nn.Embedding(options.sequence, options.hidden)
        self.blocks = nn.ModuleList(Block(options.hidden) for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.hidden)
        self.head = nn.Linear(options.hidden, options.vocabulary, bias=False)
        self.head.weight = self.token.weight
        for table in (self.token, self.position):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def options(argv: Any = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--devices", required=True, help="of a store, separated by commas")
    option("--device", default="cpu", help="what computes, such as cuda (cpu)")
    option("--device-limit", metavar="BYTES", type=int, help="most bytes of tensors on a CUDA "
           "device (all it has)")
    option("--in-memory", action="store_true", help="leave everything in its memory, and nothing "
           "on the drives: to compare with")
    option("--layers", type=int, default=24)
    option("--hidden", type=int, default=1024)
    option("--vocabulary", type=int, default=32000)
    option("--sequence", type=int, default=256)
    option("--batch", type=int, default=4)
    option("--steps", type=int, default=100)
    option("--every", type=int, default=10, help="steps from commit to commit (10)")
    option("--parameter-bytes", help="most bytes of parameters in memory (three of the largest "
           "layer)")
    option("--json", metavar="FILE", help="what each step came to, a line of JSON for each")
    option("--arena-bytes", default="64MiB", help="memory of the store, for the optimizer's tiles")
    return parser.parse_args(argv)


def batch_of(chosen: argparse.Namespace) -> Tensor:
    """Made up: each token tells the next. The generator is part of a commit."""
    start = torch.randint(chosen.vocabulary, (chosen.batch, 1))
    return (start + 3 * torch.arange(chosen.sequence + 1)) % chosen.vocabulary


class Notes:
    """Of each step: the loss, the time, and how much of it waited for drives."""

    def __init__(self, chosen: argparse.Namespace, off: Any, optimizer: Any) -> None:
        self._file = open(chosen.json, "w", encoding="ascii") if chosen.json else None
        self._device, self._off, self._optimizer = chosen.device, off, optimizer
        self._waits = self._all_waits()

    def _all_waits(self) -> Dict[str, float]:
        if self._off is None:
            return {}
        return {"parameter_wait_seconds": self._off.parameter_stats().wait_ns / 1e9,
                "state_wait_seconds": self._optimizer.stats().wait_ns / 1e9,
                "activation_wait_seconds": self._off.stats().stall_seconds}

    def write(self, **line: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()

    def step(self, number: int, loss: float, seconds: float) -> None:
        print(f"step {number} loss {loss:.6f} {seconds:.2f} s {loss.hex()}", flush=True)
        waits = self._all_waits()
        self.write(step=number, loss=loss, loss_hex=loss.hex(), seconds=seconds,
                   **{name: waits[name] - self._waits[name] for name in waits})
        self._waits = waits

    def end(self) -> None:
        if self._off is not None:
            stats = self._off.stats()
            saved = (stats.bytes_offered - stats.bytes_deduplicated) // max(1, stats.steps)
            self.write(parameter_bytes=self._off.parameter_stats().total_bytes,
                       activation_bytes=stats.plan_keep_all_bytes or saved)
        if self._device != "cpu":
            self.write(device_peak_bytes=peak_of(self._device))
        if self._file is not None:
            self._file.close()


def peak_of(device: str) -> int:
    """The most bytes of tensors that a device has had."""
    name = "allocated_bytes.all.peak"
    if hasattr(torch, "accelerator") and hasattr(torch.accelerator, "memory_stats"):
        return int(torch.accelerator.memory_stats(device)[name])
    return int(getattr(torch, torch.device(device).type).memory_stats(device)[name])


def step_of(chosen: argparse.Namespace, model: nn.Module) -> Tensor:
    tokens = batch_of(chosen).to(chosen.device)
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    return loss.detach()


def train_in_memory(chosen: argparse.Namespace) -> None:
    model = GPT(chosen).to(chosen.device)
    model.head.weight = model.token.weight
    # foreach=False: the loops over single tensors, whose bits those on drives have
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    notes = Notes(chosen, None, optimizer)
    for number in range(1, chosen.steps + 1):
        began = time.monotonic()
        loss = step_of(chosen, model)
        optimizer.step()
        optimizer.zero_grad()
        notes.step(number, loss.item(), time.monotonic() - began)
    notes.end()


def train(chosen: argparse.Namespace, store: spillway.Store) -> None:
    sizes = st.Sizes(parameter_bytes=chosen.parameter_bytes)
    model = st.materialize(lambda: GPT(chosen), store, parameter_bytes=chosen.parameter_bytes,
                           device=chosen.device)
    off = st.offload(model, store, parameters=True, sizes=sizes,
                     mode="fastest" if chosen.device == "cpu" else "spill")
    optimizer = st.Optimizer(torch.optim.AdamW, model.named_parameters(), store, lr=1e-4,
                             in_backward=True)
    notes = Notes(chosen, off, optimizer)
    resumed = optimizer.resume()
    if resumed is not None:
        print(f"resumed after step {resumed.step}", flush=True)
        notes.write(resumed=resumed.step)
    began = time.monotonic()
    while optimizer.steps < chosen.steps:
        with off:
            loss = step_of(chosen, model)
        optimizer.step()
        number = loss.item()
        ended = time.monotonic()
        notes.step(optimizer.steps, number, ended - began)
        began = ended  # a commit's time is the next step's
        if optimizer.steps % chosen.every == 0:
            optimizer.commit()  # what is committed has been said: a kill loses no line
    notes.end()
    if chosen.json is None:
        off.report()


def main() -> None:
    chosen = options()
    torch.manual_seed(0)
    if chosen.device_limit and torch.device(chosen.device).type == "cuda":
        total = torch.cuda.get_device_properties(chosen.device).total_memory
        torch.cuda.set_per_process_memory_fraction(chosen.device_limit / total)
    if chosen.in_memory:
        train_in_memory(chosen)
        return
    with spillway.Store(chosen.devices.split(","), arena_bytes=chosen.arena_bytes) as store:
        train(chosen, store)


if __name__ == "__main__":
    main()
