# SPDX-License-Identifier: MIT
# tests/ecosystem/test_trl.py - trainers of trl: the callback serves them
import copy

import pytest
import tokenizers
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from spillway.integrations.transformers import SpillwayCallback

WORDS = {name: index for index, name in enumerate(
    ["<pad>", "<eos>", *(f"w{number}" for number in range(62))])}


def make_tokenizer():
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="<pad>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def make_model():
    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=len(WORDS), hidden_size=64, intermediate_size=192, num_hidden_layers=3,
        num_attention_heads=2, pad_token_id=0, eos_token_id=1))


def said(number, length):
    return " ".join(f"w{(number * place) % 62}" for place in range(1, length))


def make_sft(arguments, callbacks):
    data = Dataset.from_dict({"text": [said(number, 40) for number in range(12)]})
    return SFTTrainer(make_model(), SFTConfig(**arguments, max_length=64), train_dataset=data,
                      processing_class=make_tokenizer(), callbacks=callbacks)


def make_dpo(arguments, callbacks):
    data = Dataset.from_dict({
        "prompt": [said(number, 9) for number in range(12)],
        "chosen": [" " + said(number + 1, 30) for number in range(12)],
        "rejected": [" " + said(number + 2, 30) for number in range(12)]})
    return DPOTrainer(make_model(), make_model(), args=DPOConfig(**arguments), train_dataset=data,
                      processing_class=make_tokenizer(), callbacks=callbacks)


@pytest.mark.parametrize("make", [make_sft, make_dpo])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_same_losses(folder, drives, make, checkpointing):
    arguments = {"output_dir": str(folder / "out"), "use_cpu": True, "bf16": False,
                 "report_to": "none", "disable_tqdm": True, "per_device_train_batch_size": 2,
                 "gradient_accumulation_steps": 2, "num_train_epochs": 1, "logging_steps": 1,
                 "save_strategy": "no", "learning_rate": 1e-3, "seed": 5,
                 "activation_checkpointing": checkpointing}
    callback = SpillwayCallback(drives, mode="spill", min_bytes=0)
    outcomes = []
    for callbacks in ([], [callback]):
        trainer = make(arguments, callbacks)
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        outcomes.append((losses, copy.deepcopy(trainer.model.state_dict())))
    plain, spilled = outcomes
    assert plain[0] == spilled[0] and len(plain[0]) == 3
    assert all(torch.equal(plain[1][name], spilled[1][name]) for name in plain[1])
    assert callback.stats.steps == 6
    assert callback.stats.bytes_spilled + callback.stats.bytes_forwarded > 0
