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
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from common import run, say_activations, trainer_options
from spillway.demo.data import text_in
from spillway.integrations.transformers import enable

END = "<end>"


def make_tokenizer() -> PreTrainedTokenizerFast:
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), END]
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)


def texts_of(args: argparse.Namespace) -> Dataset:
    """Pieces of a sequence each."""
    letters = text_in(args.text).decode("latin-1")
    return Dataset.from_dict({"text": [letters[start : start + args.sequence] for start in range(
        0, len(letters) - args.sequence + 1, args.sequence)]})


def make_trainer(args: argparse.Namespace) -> Any:
    torch.manual_seed(20)
    tokenizer = make_tokenizer()
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=args.hidden, intermediate_size=3 * args.hidden,
        num_hidden_layers=args.layers, num_attention_heads=args.hidden // 64,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id))
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
