# SPDX-License-Identifier: MIT
# tests/ecosystem/test_peft.py - peft's adapters: the same losses, nothing frozen is written
import peft
import pytest
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import spillway.torch
from places import bits_of
from spillway._offload.session import Session
from spillway.integrations.transformers import SpillwayCallback

LENGTH, WIDTH, LAYERS = 16, 64, 8
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
MODES = {"spill": {"mode": "spill"}, "fastest": {"mode": "fastest"},
         "budget": {"mode": "budget", "budget_bytes": "1MiB"},
         "operations": {"recompute": "operations"}}


class Tokens(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        tokens = (torch.arange(LENGTH) * (index % 7 + 1) + index) % 128
        return {"input_ids": tokens, "labels": tokens}


def make_trainer(folder, callbacks=(), bf16=True, **lora):
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=128, hidden_size=WIDTH, intermediate_size=192, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=4))
    adapted = peft.get_peft_model(model, peft.LoraConfig(
        r=4, lora_dropout=0.1, target_modules=LINEAR, **lora))
    arguments = TrainingArguments(
        str(folder / "out"), use_cpu=True, report_to="none", disable_tqdm=True, bf16=bf16,
        per_device_train_batch_size=2, num_train_epochs=1, logging_steps=1, save_strategy="no",
        learning_rate=1e-2, seed=5)
    return Trainer(adapted, arguments, train_dataset=Tokens(), callbacks=list(callbacks))


def outcome(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], bits_of(
        trainer.model)


@pytest.fixture
def of_frozen(monkeypatch):
    """The bytes of frozen weights, and of casts of them, that are offered to be written."""
    offered, weights = [], []

    def save(session, tensor):
        packed = super(Session, session).save(tensor)
        is_known = type(packed).__name__ == "Saved" and not session.excluding
        if is_known and tensor.dim() == 2 and not tensor.requires_grad:
            offered.extend(tensor.nbytes for each in weights for turned in (each, each.t())
                           if turned.shape == tensor.shape
                           and torch.equal(turned.to(tensor.dtype), tensor))
        return packed

    from spillway._offload.frozen import FrozenCopies

    packer = FrozenCopies.packer

    def always(self, operations):  # in Python, where what is saved is seen
        packer(self, operations)
        return self

    monkeypatch.setattr(FrozenCopies, "packer", always)
    monkeypatch.setattr(Session, "save", save, raising=False)
    return offered, weights


@pytest.mark.parametrize("mode, bf16", [("spill", False), *((mode, True) for mode in MODES)])
def test_the_same_losses_and_nothing_frozen_is_written(folder, drives, of_frozen, mode, bf16):
    offered, weights = of_frozen
    plain = make_trainer(folder, bf16=bf16)
    plain.train()
    callback = SpillwayCallback(drives, sizes=spillway.torch.Sizes(min_bytes=1024), **MODES[mode])
    trainer = make_trainer(folder, [callback], bf16)
    weights += [each.detach() for each in trainer.model.parameters()
                if not each.requires_grad and each.dim() == 2]
    trainer.train()
    assert outcome(trainer) == outcome(plain) and len(outcome(plain)[0]) == 5
    assert len(weights) == 2 + LAYERS * len(LINEAR) and offered == []
    assert callback.stats.steps == 5 and callback.stats.offers > 5 * LAYERS


def test_weight_decomposition(folder, drives):
    """DoRA: what is made of frozen weights and of trained ones is an activation."""
    plain = make_trainer(folder, use_dora=True)
    plain.train()
    callback = SpillwayCallback(drives, mode="spill", sizes=spillway.torch.Sizes(min_bytes=0))
    trainer = make_trainer(folder, [callback], use_dora=True)
    trainer.train()
    assert outcome(trainer) == outcome(plain)
    assert callback.stats.bytes_spilled + callback.stats.bytes_forwarded > 0
