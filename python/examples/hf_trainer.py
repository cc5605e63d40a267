#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# python/examples/hf_trainer.py - a small Llama of transformers under its Trainer, with less memory
"""Train a Llama, made of its configuration, to say the next byte of this repository's own text.

  spillway format --devices /dev/a,/dev/b
  python3 python/examples/hf_trainer.py --devices /dev/a,/dev/b

Without --devices activations stay in memory, and the losses are the same. After Ctrl-C, --resume
goes on from the last checkpoint, with spillway or without.
"""
from __future__ import annotations

import argparse
import sys
import tempfile
from typing import Any, Dict

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from common import run, say_activations, trainer_options
from spillway.demo.data import text_in, tokens_of
from spillway.integrations.transformers import enable


def options() -> argparse.Namespace:
    parser = trainer_options(__doc__)
    option = parser.add_argument
    option("--output", default=tempfile.gettempdir() + "/spillway-hf-trainer",
           help="where checkpoints go")
    option("--save-steps", type=int, default=10)
    option("--resume", action="store_true", help="from the last checkpoint there")
    return parser.parse_args()


class Text(Dataset):
    """A sequence of bytes each, one after the other."""

    def __init__(self, text: bytes, length: int) -> None:
        tokens = tokens_of(text, length)
        self.rows = tokens[: len(tokens) // length * length].view(-1, length)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def make_trainer(chosen: argparse.Namespace) -> Any:
    torch.manual_seed(20)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=256, hidden_size=chosen.hidden, intermediate_size=3 * chosen.hidden,
        num_hidden_layers=chosen.layers, num_attention_heads=chosen.hidden // 64))
    arguments = TrainingArguments(
        chosen.output, max_steps=chosen.steps, per_device_train_batch_size=chosen.batch,
        save_steps=chosen.save_steps, logging_steps=1, disable_tqdm=not sys.stderr.isatty(),
        report_to="none", seed=20)
    return Trainer(model, arguments, train_dataset=Text(text_in(chosen.text), chosen.sequence))


def train() -> None:
    chosen = options()
    trainer = make_trainer(chosen)
    callback = enable(trainer, chosen.devices.split(",")) if chosen.devices else None
    try:
        trainer.train(resume_from_checkpoint=chosen.resume)
    except KeyboardInterrupt:
        print("hf_trainer: interrupted; --resume goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)
    if callback is not None and callback.stats is not None:
        say_activations(callback.stats)


if __name__ == "__main__":
    sys.exit(run("hf_trainer", train))
