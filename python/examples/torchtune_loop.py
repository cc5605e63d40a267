#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# python/examples/torchtune_loop.py - a Llama of torchtune's, trained as its recipes do
"""Train a small Llama on the repository's own text.

  spillway format --devices /dev/a,/dev/b
  python3 python/examples/torchtune_loop.py --devices /dev/a,/dev/b

Without --devices activations stay in memory, and the losses are the same. A recipe of torchtune
needs the line with install() alone, and enable_activation_offloading=True in its configuration.
"""
from __future__ import annotations

import argparse
import sys
from typing import Optional

import torch
from torchtune import training
from torchtune.models.llama3 import llama3

from common import cuts_of, loss_of, run, say_activations, text_of, trainer_options
from spillway.integrations.torchtune import Switch, install


def train(args: argparse.Namespace, switch: Optional[Switch]) -> None:
    torch.manual_seed(20)
    model = llama3(vocab_size=256, num_layers=args.layers, num_heads=args.hidden // 64,
                   num_kv_heads=args.hidden // 64, embed_dim=args.hidden,
                   max_seq_len=args.sequence)
    context = training.get_act_offloading_ctx_manager(model, switch is not None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    rows = cuts_of(text_of(args), args.batch, args.sequence + 1, torch.Generator().manual_seed(20))
    for step in range(args.steps):
        cut = next(rows)
        with context:
            logits = model(cut[:, :-1].contiguous())
        loss = loss_of(logits, cut[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"  step {step + 1}  loss {loss.item():.6f}", flush=True)
    if switch is not None and switch.off is not None:
        say_activations(switch.off.stats())


def main() -> int:
    args = trainer_options(__doc__).parse_args()
    switch = install(args.devices.split(",")) if args.devices else None
    try:
        return run("torchtune_loop", lambda: train(args, switch))
    finally:
        if switch is not None:
            switch.end()


if __name__ == "__main__":
    sys.exit(main())
