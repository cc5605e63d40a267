# SPDX-License-Identifier: MIT
# tests/ecosystem/test_trl.py - trainers of trl: the callback serves them
import pytest
import tokenizers
import torch
from datasets import Dataset
from transformers import (LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback)
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

import spillway
import spillway.torch
from places import bits_of, wait_after_layers
from spillway.integrations.transformers import SpillwayCallback, enable

WORDS = {name: index for index, name in enumerate(
    ["<pad>", "<eos>", *(f"w{number}" for number in range(62))])}

SPILL = {"mode": "spill", "sizes": spillway.torch.Sizes(min_bytes=0)}


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


def make_grpo(arguments, callbacks):
    """The model generates four completions of each prompt, which are rewarded by their variety."""
    def variety(completions, **_):
        return [float(len(set(completion.split()))) for completion in completions]

    data = Dataset.from_dict({"prompt": [said(number, 9) for number in range(4)]})
    given = GRPOConfig(**arguments, num_generations=4, max_completion_length=12)
    return GRPOTrainer(make_model(), variety, args=given, train_dataset=data,
                       processing_class=make_tokenizer(), callbacks=callbacks)


def arguments_of(folder, **more):
    return {"output_dir": str(folder / "out"), "use_cpu": True, "bf16": False,
            "report_to": "none", "disable_tqdm": True, "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2, "num_train_epochs": 1, "logging_steps": 1,
            "save_strategy": "no", "learning_rate": 1e-3, "seed": 5,
            "activation_checkpointing": False, **more}


def outcome(trainer):
    return ([entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
            bits_of(trainer.model))


def moved(stats):
    return stats.bytes_spilled + stats.bytes_forwarded


@pytest.mark.parametrize("make, losses", [(make_sft, 3), (make_dpo, 3), (make_grpo, 4)])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_same_losses(folder, drives, make, losses, checkpointing):
    """GRPO: what it generates is what it generates without, and saves nothing."""
    arguments = arguments_of(folder, activation_checkpointing=checkpointing)
    plain = make(arguments, [])
    plain.train()
    callback = SpillwayCallback(drives, **SPILL)
    trainer = make(arguments, [callback])
    trainer.train()
    expected = outcome(plain)
    assert outcome(trainer) == expected and len(expected[0]) == losses and any(expected[0])
    assert callback.stats.steps == 2 * losses and moved(callback.stats) > 0


@pytest.mark.parametrize("make", [make_sft, make_dpo, make_grpo])
def test_less_memory(folder, drives, make):
    """Than what plain training holds, which mode "observe" counts."""
    peaks = {}
    for mode in ("observe", "spill"):
        callback = SpillwayCallback(drives, mode=mode, sizes=spillway.torch.Sizes(
                min_bytes=0, prefetch_bytes="64KiB"))
        trainer = make(arguments_of(folder), [callback])
        wait_after_layers(trainer.model, lambda: callback.off)
        trainer.train()
        peaks[mode] = callback.stats.step_peak_bytes
    assert peaks["spill"] < 0.8 * peaks["observe"], peaks


def test_its_own_offload_is_refused(folder, drives):
    """Its hooks are nearer to the model than ours: nothing would be spilled. Without a device it
    cannot be made, only asked for."""
    trainer = make_sft(arguments_of(folder), [SpillwayCallback(drives)])
    trainer.args.activation_offloading = True
    with pytest.raises(ValueError, match="remove one of the two"):
        trainer.train()


@pytest.mark.parametrize("make", [make_sft, make_dpo])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError("mine")])
def test_ends_and_resumes(folder, drives, make, error):
    """What was interrupted goes on from its checkpoint as what was not."""
    class Raises(TrainerCallback):
        def on_substep_end(self, args, state, control, **given):
            if state.global_step == 2:
                raise error

    arguments = arguments_of(folder, save_strategy="steps", save_steps=1)
    whole = make(arguments, [])
    whole.train()
    trainer = make(arguments, [Raises()])
    callback = enable(trainer, drives, **SPILL)
    with pytest.raises(type(error)):
        trainer.train()
    assert callback.off.closed and moved(callback.stats) > 0
    spillway.Store(drives).close()
    again = make(arguments, [])
    callback = enable(again, drives, **SPILL)
    again.train(resume_from_checkpoint=str(folder / "out/checkpoint-2"))
    assert outcome(again) == outcome(whole) and callback.stats.steps == 2
