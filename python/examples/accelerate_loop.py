#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# python/examples/accelerate_loop.py - the GPT of gpt.py in a loop of accelerate
"""Train a small GPT on the repository's own text.

  spillway format --devices /dev/a,/dev/b
  python3 python/examples/accelerate_loop.py --devices /dev/a,/dev/b

Without --devices activations stay in memory, and the losses are the same. `accelerate launch` and
`torchrun` start several ranks: `spillway format --partitions N` for N of them.
"""
from __future__ import annotations

import contextlib
import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import spillway.torch as st
from common import cuts_of, gpt_options, loss_of, run, say_activations, text_of
from gpt import GPT


def train() -> None:
    args = gpt_options(__doc__)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(20)
    model = GPT(args)
    seed = torch.Generator().manual_seed(20)
    pieces = args.steps * args.batch * accelerator.num_processes
    rows = next(cuts_of(text_of(args), pieces, args.sequence + 1, seed))
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=3e-4),
        DataLoader(TensorDataset(rows), args.batch))
    with contextlib.ExitStack() as stack:
        off = None
        if args.devices:
            off = st.offload(model, args.devices.split(","))
            stack.callback(off.close)
        for step, (cut,) in enumerate(loader):
            with accelerator.accumulate(model), off or contextlib.nullcontext():
                loss = loss_of(model(cut[:, :-1].contiguous()), cut[:, 1:])
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            print(f"  step {step + 1}  loss {loss.item():.6f}", flush=True)
        if off is not None:
            say_activations(off.stats())
    accelerator.end_training()


if __name__ == "__main__":
    sys.exit(run("accelerate_loop", train))
