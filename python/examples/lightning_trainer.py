#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# python/examples/lightning_trainer.py - the GPT of gpt.py under Lightning's Trainer
"""Train a small GPT on the repository's own text.

  spillway format --devices /dev/a,/dev/b
  python3 python/examples/lightning_trainer.py --devices /dev/a,/dev/b

Without --devices activations stay in memory, and the losses are the same.
"""
from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from common import gpt_options, loss_of, run, say_activations, text_of
from gpt import GPT, batches
from spillway.integrations.lightning import SpillwayCallback


class Pieces(IterableDataset):
    """Micro-batches of the text, the same for the same seed."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.text = args, text_of(args)

    def __iter__(self) -> Any:
        return batches(self.args, self.text, torch.Generator().manual_seed(20))


class Module(LightningModule):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.model = GPT(args)

    def training_step(self, batch: Any, index: int) -> Tensor:
        inputs, targets = batch
        loss = loss_of(self.model(*inputs), targets)
        print(f"  step {index + 1}  loss {loss.item():.6f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-4)


def train() -> None:
    args = gpt_options(__doc__)
    torch.manual_seed(20)
    callback = SpillwayCallback(args.devices.split(",")) if args.devices else None
    trainer = Trainer(max_steps=args.steps, callbacks=[callback] if callback else [],
                      accelerator="cpu", logger=False, enable_checkpointing=False,
                      enable_model_summary=False, enable_progress_bar=False)
    trainer.fit(Module(args), DataLoader(Pieces(args), batch_size=None))
    if callback is not None and callback.stats is not None:
        say_activations(callback.stats)


if __name__ == "__main__":
    sys.exit(run("lightning_trainer", train))
