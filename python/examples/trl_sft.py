#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# python/examples/trl_sft.py - a small Llama under trl's SFTTrainer, with less memory
"""Fine-tune a Llama, made of its configuration, on this repository's own text, a token a byte.

  spillway format --devices /dev/a,/dev/b
  python3 python/examples/trl_sft.py --devices /dev/a,/dev/b

Without --devices activations stay in memory, and the losses are the same.
"""
from __future__ import annotations

import argparse
import sys
import tempfile
from typing import Any

import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from common import run, say_activations, trainer_options
from small_llama import make_model, make_tokenizer, pieces_of
from spillway.integrations.transformers import enable

def texts_of(args: argparse.Namespace) -> Dataset:
    return Dataset.from_dict({"text": pieces_of(args)})


def make_trainer(args: argparse.Namespace) -> Any:
    tokenizer = make_tokenizer()
    model = make_model(args, tokenizer)
    config = SFTConfig(
        tempfile.gettempdir() + "/spillway-trl-sft", max_steps=args.steps, save_strategy="no",
        per_device_train_batch_size=args.batch, max_length=args.sequence, logging_steps=1,
        activation_checkpointing=False,  # it would recompute what is spilled
        bf16=torch.cuda.is_available(), disable_tqdm=not sys.stderr.isatty(), report_to="none",
        seed=20)
    return SFTTrainer(model, config, train_dataset=texts_of(args), processing_class=tokenizer)


def train() -> None:
    args = trainer_options(__doc__).parse_args()
    trainer = make_trainer(args)
    callback = enable(trainer, args.devices.split(",")) if args.devices else None
    trainer.train()
    if callback is not None and callback.stats is not None:
        say_activations(callback.stats)


if __name__ == "__main__":
    sys.exit(run("trl_sft", train))
