#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# python/examples/small_llama.py - a small Llama and text, as files for programs that train them
"""Make a Llama of its configuration, a tokenizer with a token a byte, and this repository's own
text as questions and answers. Nothing is downloaded.

  python3 python/examples/small_llama.py small && cd small
  axolotl train .../python/examples/axolotl.yaml
  python3 -m spillway.integrations.llamafactory .../python/examples/llamafactory.yaml
"""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Dict, List

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from spillway.demo.data import text_in

END = "<end>"


def make_tokenizer() -> PreTrainedTokenizerFast:
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), END]
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)


def make_model(args: argparse.Namespace, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    torch.manual_seed(20)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=args.hidden, intermediate_size=3 * args.hidden,
        num_hidden_layers=args.layers, num_attention_heads=args.hidden // 64,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id))


def pieces_of(args: argparse.Namespace) -> List[str]:
    """Of the text, a sequence each."""
    letters = text_in(args.text).decode("latin-1")
    return [letters[start : start + args.sequence]
            for start in range(0, len(letters) - args.sequence + 1, args.sequence)]


def row_of(piece: str) -> Dict[str, str]:
    half = len(piece) // 2
    return {"text": piece, "instruction": piece[:half], "input": "", "output": piece[half:]}


def make(args: argparse.Namespace) -> None:
    tokenizer = make_tokenizer()
    model = make_model(args, tokenizer)
    model.save_pretrained(args.folder / "model")
    tokenizer.save_pretrained(args.folder / "model")
    rows = [row_of(piece) for piece in pieces_of(args)[: args.rows]]
    (args.folder / "text.json").write_text(json.dumps(rows), encoding="utf-8")
    names = {"text": {"file_name": "text.json"}}  # as LLaMA-Factory finds it
    (args.folder / "dataset_info.json").write_text(json.dumps(names), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("folder", type=Path)
    option("--layers", type=int, default=8)
    option("--hidden", type=int, default=256, help="a multiple of 64 (256)")
    option("--sequence", type=int, default=512, help="bytes of a piece of text (512)")
    option("--rows", type=int, default=64, help="how many pieces (64)")
    option("--text", type=Path, default=Path(__file__).resolve().parents[2],
           help="file or folder to train on")
    make(parser.parse_args())
    return 0


if __name__ == "__main__":
    sys.exit(main())
