# SPDX-License-Identifier: MIT
# tests/ecosystem/test_transformers.py - models under their Trainer: the same losses, less memory
import copy
import logging
import sys

import pytest
import torch
import transformers
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

import spillway
import spillway.torch
from places import wait_after_layers
from spillway._recompute import operations
from spillway.integrations.transformers import SpillwayCallback, enable

VOCABULARY, LENGTH = 256, 64
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 192,
         "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
DECODERS = {"llama": "LlamaForCausalLM", "qwen": "Qwen3ForCausalLM"}
# Everything goes to the drives that is not among what the backward pass needs first.
SPILL = {"mode": "spill", "sizes": spillway.torch.Sizes(min_bytes=0)}


class Tokens(Dataset):
    """The same for the same index: of a sequence each token says which one is next."""

    def __init__(self, count, encoder):
        self.count, self.encoder = count, encoder

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        tokens = (torch.arange(LENGTH) * (index % 7 + 1) + index) % VOCABULARY
        return {"input_ids": tokens, "labels": tokens.flip(0) if self.encoder else tokens}


def make_model(name):
    torch.manual_seed(3)
    if name == "t5":
        return transformers.T5ForConditionalGeneration(transformers.T5Config(
            vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=192, num_layers=3, num_heads=4,
            decoder_start_token_id=0))
    kind = getattr(transformers, DECODERS[name])
    return kind(kind.config_class(**SIZES, head_dim=16, attention_dropout=0.1))


def make_trainer(folder, name="llama", callbacks=(), samples=24, **arguments):
    given = {"per_device_train_batch_size": 2, "num_train_epochs": 1, "logging_steps": 1,
             "save_strategy": "no", "learning_rate": 1e-3, "seed": 5, **arguments}
    return Trainer(
        make_model(name), callbacks=list(callbacks),
        args=TrainingArguments(str(folder / "out"), use_cpu=True, report_to="none",
                               disable_tqdm=True, **given),
        train_dataset=Tokens(samples, name == "t5"), eval_dataset=Tokens(4, name == "t5"))


def outcome(trainer):
    """Every loss, of evaluation too, and the bits of what was trained."""
    losses = [{name: entry[name] for name in ("step", "loss", "grad_norm", "eval_loss")
               if name in entry} for entry in trainer.state.log_history]
    return losses, copy.deepcopy(trainer.model.state_dict())


def assert_same(one, other):
    assert one[0] == other[0] and len(one[0]) > 2
    assert all(torch.equal(one[1][name], other[1][name]) for name in one[1])


def spilled(stats):
    """On slow drives all may be asked for before it is written."""
    return stats.bytes_spilled + stats.bytes_forwarded


KINDS = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 3},
    "bf16": {"bf16": True},
    "evaluation": {"eval_strategy": "steps", "eval_steps": 2},
    "checkpointing": {"activation_checkpointing": True},
    "reentrant": {"activation_checkpointing": True,
                  "activation_checkpointing_kwargs": {"use_reentrant": True}},
    "compiled": {"torch_compile": True, "torch_compile_backend": "aot_eager"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["llama", "qwen", "t5"])
def test_the_same_losses(folder, drives, name, kind):
    plain = make_trainer(folder, name, **KINDS[kind])
    plain.train()
    callback = SpillwayCallback(drives, **SPILL)
    trainer = make_trainer(folder, name, [callback], **KINDS[kind])
    trainer.train()
    assert_same(outcome(plain), outcome(trainer))
    assert spilled(callback.stats) > 0 and callback.off.closed
    assert callback.stats.steps == 12  # micro-batches


@pytest.mark.parametrize("kind", ["plain", "accumulation", "bf16", "checkpointing"])
@pytest.mark.parametrize("name", ["llama", "t5"])
def test_less_memory(folder, drives, name, kind):
    """Than what plain training holds, which mode "observe" counts."""
    peaks = {}
    for mode in ("observe", "spill"):
        callback = SpillwayCallback(drives, mode=mode, sizes=spillway.torch.Sizes(
                min_bytes=0, prefetch_bytes="64KiB"))
        trainer = make_trainer(folder, name, [callback], **KINDS[kind])
        wait_after_layers(trainer.model, lambda: callback.off)
        trainer.train()
        peaks[mode] = callback.stats.step_peak_bytes
    assert peaks["spill"] < 0.7 * peaks["observe"], peaks


def test_a_budget_is_handed_on(folder, drives):
    callback = SpillwayCallback(drives, mode="budget", budget_bytes="1MiB",
                                sizes=spillway.torch.Sizes(min_bytes=0))
    make_trainer(folder, callbacks=[callback]).train()
    assert callback.stats.steps == 12


class Raises(TrainerCallback):
    """In the middle of a step: of the second micro-batch of one."""

    def __init__(self, error, step):
        self.error, self.step = error, step

    def on_substep_end(self, args, state, control, **given):
        if state.global_step == self.step:
            raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError("mine")])
def test_ends_and_resumes(folder, drives, error):
    """What was interrupted goes on from its checkpoint as what was not."""
    given = {"gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 2}
    whole = make_trainer(folder, **given)
    whole.train()
    trainer = make_trainer(folder, callbacks=[Raises(error, 5)], **given)
    callback = enable(trainer, drives, **SPILL)
    with pytest.raises(type(error)):
        trainer.train()
    assert callback.off.closed and spilled(callback.stats) > 0
    spillway.Store(drives).close()
    again = make_trainer(folder, **given)
    callback = enable(again, drives, **SPILL)
    again.train(resume_from_checkpoint=str(folder / "out/checkpoint-4"))
    assert_same(outcome(whole), outcome(again))
    assert callback.stats.steps == 4  # two steps of two


def test_a_training_that_was_interrupted_is_over_when_the_next_begins(folder, drives):
    callback = SpillwayCallback(drives, **SPILL)
    trainer = make_trainer(folder, callbacks=[callback, Raises(ZeroDivisionError(), 1)],
                           gradient_accumulation_steps=2)
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert not callback.off.closed
    other = SpillwayCallback(drives, **SPILL)
    make_trainer(folder, callbacks=[other]).train()
    assert callback.off.closed and other.stats.steps == 12
    callback.end()


def test_what_it_did_is_told_afterwards(folder, drives, caplog, capsys):
    caplog.set_level(logging.INFO, logger="spillway")
    callback = SpillwayCallback(drives, **SPILL)
    make_trainer(folder, callbacks=[callback]).train()
    said = [line.getMessage() for line in caplog.records if line.name == "spillway"]
    assert any("LlamaForCausalLM, mode 'spill': activations" in line and line.endswith(" 12 steps")
               for line in said)
    assert "spillway: activations" not in capsys.readouterr().err
    callback.off.report()
    assert "activations in the last step, peak" in capsys.readouterr().out


def test_one_line_at_the_end_and_a_page(folder, drives, capsys):
    callback = SpillwayCallback(drives, report=folder / "run.html", **SPILL)
    make_trainer(folder, callbacks=[callback]).train()
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("spillway:")]
    assert len(said) == 1 and " -> " in said[0] and " written, waited " in said[0], said
    page = (folder / "run.html").read_text()
    step = said[0].split(" -> ")[1].split(",")[0]  # the page says the same of the last step
    assert f"<b>{step}</b>" in page and "Activations in the last step" in page


def test_the_same_trainer_trains_twice(folder, drives):
    plain = make_trainer(folder)
    plain.train()
    plain.train()
    callback = SpillwayCallback(drives, **SPILL)
    trainer = make_trainer(folder, callbacks=[callback])
    trainer.train()
    trainer.train()
    assert_same(outcome(plain), outcome(trainer))


def test_it_stops_in_the_middle_of_a_step(folder, drives):
    class Stops(TrainerCallback):
        def on_substep_end(self, args, state, control, **given):
            control.should_training_stop = state.global_step == 1

    callback = SpillwayCallback(drives, **SPILL)
    make_trainer(folder, callbacks=[callback, Stops()], gradient_accumulation_steps=2).train()
    assert callback.off.closed
    torch.randn(8, requires_grad=True).exp().sum().backward()


def test_drives_without_a_store_are_named_before_the_first_step(folder):
    (folder / "empty").write_bytes(bytes(1 << 20))
    trainer = make_trainer(folder, callbacks=[SpillwayCallback(str(folder / "empty"))])
    with pytest.raises(spillway.SpillwayError, match="is not a drive of a spillway store"):
        trainer.train()


def test_a_store_that_is_open_stays_open(folder, drives):
    with spillway.Store(drives) as store:
        callback = SpillwayCallback(store, **SPILL)
        make_trainer(folder, callbacks=[callback]).train()
        assert not store.closed and store.stats().objects == 0


def test_parameters_of_a_compiled_model_are_refused(folder, drives):
    """Before a step: what is compiled is a wrapper of the model that the callback is given."""
    with spillway.Store(drives) as store:
        trainer = make_trainer(folder, callbacks=[SpillwayCallback(store, parameters=True)],
                               torch_compile=True, torch_compile_backend="aot_eager")
        with pytest.raises(ValueError, match="leave one of the two out"):
            trainer.train()


def test_label_smoothing(folder, drives):
    """The loss is computed outside of the model."""
    plain = make_trainer(folder, label_smoothing_factor=0.1)
    plain.train()
    trainer = make_trainer(folder, label_smoothing_factor=0.1)
    enable(trainer, drives, **SPILL)
    trainer.train()
    assert_same(outcome(plain), outcome(trainer))


@pytest.mark.parametrize("kind", ["plain", "evaluation"])
def test_a_model_of_which_others_make_the_trainer(folder, drives, kind):
    """And from its end on as without: the second time."""
    plain = make_trainer(folder, **KINDS[kind])
    plain.train()
    plain.train()
    trainer = make_trainer(folder, **KINDS[kind])
    callback = enable(trainer.model, drives, **SPILL)
    trainer.train()
    callback.end()
    trainer.train()
    assert_same(outcome(plain), outcome(trainer))
    assert callback.stats.steps == 12 and spilled(callback.stats) > 0


@pytest.fixture
def nothing_compiled():
    """As in a new process: where one has compiled anything, no operations are watched."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()
        dynamo.utils.counters.clear()


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("kind", ["plain", "accumulation", "bf16", "checkpointing"])
@pytest.mark.parametrize("name", ["llama", "qwen", "t5"])
def test_operations_are_recomputed_without_drives(folder, monkeypatch, name, kind):
    monkeypatch.setattr(operations, "SLACK", 1e9)  # however busy the machine is
    plain = make_trainer(folder, name, **KINDS[kind])
    plain.train()
    callback = SpillwayCallback(None, recompute="operations",
                                sizes=spillway.torch.Sizes(min_bytes=0))
    trainer = make_trainer(folder, name, [callback], **KINDS[kind])
    trainer.train()
    assert_same(outcome(plain), outcome(trainer))
    stats = callback.stats
    assert stats.tensors_given_up > 0 or kind == "checkpointing"
    assert stats.bytes_restored == stats.bytes_given_up and stats.bytes_spilled == 0
