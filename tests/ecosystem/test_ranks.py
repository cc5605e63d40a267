# SPDX-License-Identifier: MIT
# tests/ecosystem/test_ranks.py - trainers on two ranks, replicated by DDP and sharded by FSDP
"""Ranks are forked, with the environment that torchrun gives (that itself starts those of
test_examples.py and test_deepspeed.py), and each says on its output what it has found.

accelerate, and so the Trainer of transformers, shards on accelerators alone: on a CPU it takes
DistributedDataParallel, whatever it was told. Here it is told that the CPU is one, and all that
follows is its own. Lightning's FSDPStrategy refuses a CPU, and PyTorch's FSDP of version 1 without
a device; its ModelParallelStrategy, of version 2, does not.
"""
import contextlib
import importlib
import json
import os
import signal
from unittest import mock

import pytest

import spillway
import spillway.torch
from places import bits_of, fork_ranks, make_drives, wait_after_layers

SPILL = {"mode": "spill", "sizes": spillway.torch.Sizes(min_bytes=0)}
# What is left in memory is little, so that it shows how much is gone.
TIGHT = {"sizes": spillway.torch.Sizes(min_bytes=0, prefetch_bytes="16KiB")}
ERRORS = {"exception": ZeroDivisionError("mine"), "Ctrl-C": KeyboardInterrupt()}
FAILS_IN, SAVES_EVERY = 5, 2  # steps


class Run:
    """What the phases of all kinds have in common.

    :param phase: its name, of which the folder is made where it saves
    :param spilling: arguments of offload(), or None: plain
    :param tell: it trains without an end, and tells once that it does
    """

    def __init__(self, folder, phase, drives=None, spilling=None, error=None, resumes=None,
                 waits=False, tell=None):
        self.folder, self.drives, self.spilling = folder / phase, drives, spilling
        self.error, self.resumes, self.waits, self.tell = error, resumes, waits, tell
        self.saves, self.endless, self.has_told = error is not None, tell is not None, False

    def told(self, number):
        """A step begins, counted from 0."""
        if self.endless and number == 3 and not self.has_told:
            self.has_told = True
            self.tell("trains on")
        if self.error is not None and number == FAILS_IN:
            raise self.error


# ---- transformers --------------------------------------------------------------------------------


def train_transformers(run, **arguments):
    from accelerate.state import GradientState
    from test_transformers import make_trainer
    from transformers import TrainerCallback

    from spillway.integrations.transformers import enable

    class Tells(TrainerCallback):
        """Between the two micro-batches of a step."""

        def on_substep_end(self, args, state, control, **given):
            run.told(state.global_step)

    GradientState._reset_state()  # which an interrupted training leaves within a step
    trainer = make_trainer(
        run.folder, callbacks=[Tells()], samples=48, gradient_accumulation_steps=2,
        **({"save_strategy": "steps", "save_steps": SAVES_EVERY} if run.saves else {}),
        **({"num_train_epochs": 100000} if run.endless else {}), **arguments)
    callback = None if run.spilling is None else enable(trainer, run.drives, **run.spilling)
    if run.waits:
        wait_after_layers(trainer.model, lambda: callback.off)
    try:
        trainer.train(resume_from_checkpoint=run.resumes)
    finally:
        assert callback is None or callback.off.closed
    losses = [(entry["loss"], entry["grad_norm"])
              for entry in trainer.state.log_history if "loss" in entry]
    return losses, bits_of(trainer.model), callback and callback.stats


def saved_by_transformers(run):
    return str(run.folder / f"out/checkpoint-{FAILS_IN - 1}")


@contextlib.contextmanager
def the_cpu_is_an_accelerator():
    from accelerate import DistributedType, PartialState

    chosen = "gloo", DistributedType.MULTI_GPU
    with mock.patch.object(PartialState, "_prepare_backend", lambda *_, **__: chosen), \
         mock.patch.dict(os.environ, ACCELERATE_TORCH_DEVICE="cpu"):
        yield


def train_sharded_by_trainer(run, version):
    """On a CPU version 1 sends no model to other ranks, and of a whole one that it gathers to be
    saved it frees the memory at once: shards are saved."""
    options = {"version": version}
    if version == 1:
        options |= {"sync_module_states": False, "state_dict_type": "SHARDED_STATE_DICT"}
    with the_cpu_is_an_accelerator():
        return train_transformers(run, fsdp=True, fsdp_config=options)


# ---- accelerate ----------------------------------------------------------------------------------


def train_accelerate(run, plugin=None):
    from accelerate.state import AcceleratorState
    from test_accelerate import train

    AcceleratorState._reset_state(True)
    options = {} if plugin is None else {"fsdp_plugin": plugin()}
    given = dict(spilling=run.spilling or {"mode": "observe"}, waits=run.waits, **options)
    if run.saves:  # as a loop of one's own does, after the step before
        train(run.drives, stop=FAILS_IN - 1, save=run.folder, **given)
        AcceleratorState._reset_state(True)
    drives = None if run.spilling is None else run.drives
    while True:
        found = train(drives, resume=run.resumes, within=run.told, **given)
        if not run.endless:
            return found


def saved_by_accelerate(run):
    return run.folder


def sharding_of_accelerate():
    from accelerate import FullyShardedDataParallelPlugin

    return FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap",
                                          transformer_cls_names_to_wrap=["Sequential"])


def train_sharded_by_accelerate(run):
    with the_cpu_is_an_accelerator():
        return train_accelerate(run, sharding_of_accelerate)


# ---- Lightning -----------------------------------------------------------------------------------


def train_lightning(run, sharded=False):
    from lightning.pytorch import Callback
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
    from test_lightning import BATCHES, fit

    from spillway.integrations.lightning import SpillwayCallback

    class Tells(Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            run.told(trainer.global_step)

    callback = None if run.spilling is None else SpillwayCallback(run.drives, **run.spilling)
    saving = [ModelCheckpoint(run.folder, "{step}", every_n_train_steps=SAVES_EVERY, save_top_k=-1)]
    prepared = None
    if run.waits:
        def prepared(module):
            wait_after_layers(module, lambda: callback.off)
    try:
        callbacks = [*([callback] if callback else []), Tells(), *(saving if run.saves else [])]
        module = fit(run.folder, callbacks, batches=2 * BATCHES, shards=sharded, devices=2,
                     strategy=ModelParallelStrategy(2, 1) if sharded else DDPStrategy(),
                     enable_checkpointing=run.saves, ckpt_path=run.resumes, prepared=prepared,
                     **({"max_epochs": -1} if run.endless else {}))
    finally:
        assert callback is None or callback.off.closed
    losses = [loss.item().hex() for loss in module.losses]
    return losses, bits_of(module), callback and callback.stats


def saved_by_lightning(run):
    return run.folder / f"step={FAILS_IN - 1}.ckpt"


# ---- The kinds -----------------------------------------------------------------------------------

KINDS = {
    "transformers, DDP": (train_transformers, saved_by_transformers),
    "transformers, FSDP 1": (lambda run: train_sharded_by_trainer(run, 1), saved_by_transformers),
    "transformers, FSDP 2": (lambda run: train_sharded_by_trainer(run, 2), saved_by_transformers),
    "accelerate, DDP": (train_accelerate, saved_by_accelerate),
    "accelerate, FSDP 2": (train_sharded_by_accelerate, saved_by_accelerate),
    "Lightning, DDP": (train_lightning, saved_by_lightning),
    "Lightning, FSDP 2": (lambda run: train_lightning(run, sharded=True), saved_by_lightning),
}


def summary(found):
    """As JSON takes it."""
    losses, bits, stats = found
    return {"losses": losses, "bits": bits} | ({} if stats is None else {
        "moved": stats.bytes_spilled + stats.bytes_forwarded,
        "peak": stats.step_peak_bytes})


class Rank:
    """What a rank does in a test, with a kind of training."""

    def __init__(self, kind, folder, drives):
        self.train, self.saved = KINDS[kind]
        self.folder, self.drives = folder, drives

    def trains(self):
        """Plainly, and watched and spilling."""
        found = {"plain": summary(self.train(Run(self.folder, "plain")))}
        for mode in ("observe", "spill"):
            run = Run(self.folder, mode, self.drives, {"mode": mode, **TIGHT}, waits=True)
            found[mode] = summary(self.train(run))
        return found

    def fails(self):
        """In each way, and from the checkpoint before it trains on."""
        found = {}
        for name, error in ERRORS.items():
            run, ended = Run(self.folder, name, self.drives, SPILL, error=error), None
            try:
                self.train(run)
            except BaseException as caught:  # Lightning makes a SystemExit of Ctrl-C
                ended = type(caught).__name__
            found[name] = ended
        for name, spilling in (("plain", None), ("spilled", SPILL)):
            resumed = Run(self.folder, f"resumed {name}", self.drives, spilling,
                          resumes=self.saved(run))
            found[f"resumed {name}"] = summary(self.train(resumed))
        return found

    def goes_on(self, tell):
        """Until it is interrupted."""
        self.train(Run(self.folder, "endless", self.drives, SPILL, tell=tell))


def forked(folder, function):
    """What packages print helps to find an error; the function is given what the test asserts."""
    def rank():
        import torch

        with os.fdopen(os.dup(1), "w", encoding="utf-8") as output:
            os.dup2(2, 1)
            torch.distributed.init_process_group("gloo")
            function(lambda what: print(json.dumps(what), file=output, flush=True))

    return fork_ranks(folder, rank)


def found_by(ranks):
    said = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors for _, errors in said)
    return [json.loads(out) for out, _ in said]


@pytest.fixture(params=KINDS)
def kind(request):
    """Its package is imported once, before any rank is forked."""
    for name in ("transformers", "accelerate", "lightning"):
        if name in request.param.lower():
            importlib.import_module(f"test_{name}")
    return request.param


@pytest.fixture
def drives(folder):
    """Of two partitions, one for each rank."""
    return make_drives(folder, partitions=2)


def test_the_same_losses_in_less_memory(folder, drives, kind):
    """Than what plain training holds, which mode "observe" counts."""
    rank = Rank(kind, folder, drives)
    for found in found_by(forked(folder, lambda tell: tell(rank.trains()))):
        plain, observed, spilled = found["plain"], found["observe"], found["spill"]
        assert plain["losses"] == observed["losses"] == spilled["losses"]
        assert plain["bits"] == observed["bits"] == spilled["bits"] and len(plain["losses"]) > 5
        assert observed["moved"] == 0 < spilled["moved"]
        assert spilled["peak"] < 0.7 * observed["peak"], found


def test_ends_and_resumes(folder, drives, kind):
    """From the checkpoint before, to what comes of it without spillway."""
    rank = Rank(kind, folder, drives)
    for found in found_by(forked(folder, lambda tell: tell(rank.fails()))):
        assert found["exception"] == "ZeroDivisionError"
        assert found["Ctrl-C"] in ("KeyboardInterrupt", "SystemExit")
        plain, spilled = found["resumed plain"], found["resumed spilled"]
        assert spilled["losses"] == plain["losses"] and plain["losses"]
        assert spilled["bits"] == plain["bits"] and spilled["moved"] > 0


def test_interrupted(folder, drives, kind):
    """By Ctrl-C while both train: each partition is free."""
    ranks = forked(folder, Rank(kind, folder, drives).goes_on)
    try:
        begun = [rank.stdout.readline() for rank in ranks]
        for rank in ranks:
            rank.send_signal(signal.SIGINT)
        said = [rank.communicate()[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert begun == ['"trains on"\n'] * 2, "\n".join(said)
    assert all(rank.returncode > 0 for rank in ranks)  # none was killed
    for partition in range(2):
        spillway.Store(drives, partition=partition).close()
