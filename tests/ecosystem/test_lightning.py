# SPDX-License-Identifier: MIT
# tests/ecosystem/test_lightning.py - under Lightning: the same losses, less memory, every end
import copy
import importlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.checkpoint import checkpoint

import spillway
import spillway.torch
from places import wait_after_layers
from spillway.integrations.lightning import SpillwayCallback

WIDTH, LAYERS, BATCHES, ROWS = 128, 10, 8, 16
INPUT_BYTES = 4 * ROWS * WIDTH
SPILL = {"mode": "spill", "sizes": spillway.torch.Sizes(min_bytes=0)}


def make_module(package, recompute, whole, shards):
    class Module(package.LightningModule):
        """Its step calls the module, or only parts of it."""

        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1))
                for _ in range(LAYERS))
            self.losses, self.validated = [], []

        def forward(self, x):
            for layer in self.layers:
                if recompute == "by name":
                    x = checkpoint(layer, input=x, use_reentrant=False)
                else:
                    x = checkpoint(layer, x, use_reentrant=False) if recompute else layer(x)
            return x

        def configure_model(self):
            if shards:
                from torch.distributed.fsdp import fully_shard

                for layer in self.layers:
                    fully_shard(layer, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch, index):
            out = self(*batch) if whole else self.forward(*batch)
            loss = F.mse_loss(out, batch[0].flip(0))
            self.losses.append(loss.detach())
            return loss

        def validation_step(self, batch, index):
            self.validated.append(F.mse_loss(self(*batch), batch[0]))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    torch.manual_seed(3)
    return Module()


def fit(folder, callbacks, name="lightning.pytorch", ckpt_path=None, recompute=False, whole=True,
        shards=False, prepared=None, batches=BATCHES, **options):
    package = importlib.import_module(name)
    module = make_module(package, recompute, whole, shards)
    if prepared is not None:
        prepared(module)
    rows = torch.randn(ROWS * batches, WIDTH, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(rows), ROWS)
    trainer = package.Trainer(**{
        "max_epochs": 1, "accelerator": "cpu", "logger": False, "enable_progress_bar": False,
        "enable_model_summary": False, "enable_checkpointing": False,
        "default_root_dir": folder, "num_sanity_val_steps": 0, **options}, callbacks=callbacks)
    trainer.fit(module, loader, loader, ckpt_path=ckpt_path)
    return module


def bits(module):
    return module.losses, module.validated, list(copy.deepcopy(module.state_dict()).values())


def assert_same(one, other):
    for these, those in zip(bits(one), bits(other)):
        assert len(these) == len(those) > 0
        assert all(map(torch.equal, these, those))


@pytest.mark.parametrize("options", [
    {}, {"accumulate_grad_batches": 3}, {"precision": "bf16-mixed"}, {"val_check_interval": 2},
    {"recompute": True}, {"recompute": "by name"}, {"whole": False}, {"gradient_clip_val": 0.1},
    {"name": "pytorch_lightning"}], ids=str)
def test_the_same_losses(folder, drives, options):
    plain = fit(folder, [], **options)
    callback = SpillwayCallback(drives, **SPILL)
    spilled = fit(folder, [callback], **options)
    assert_same(plain, spilled)
    assert callback.off.closed and callback.stats.steps == BATCHES
    # With checkpoints, too: their inputs go through the hooks.
    assert callback.stats.bytes_spilled + callback.stats.bytes_forwarded > 0


@pytest.mark.parametrize("options, saved", [
    ({"whole": True}, 3), ({"whole": False}, 3), ({"recompute": True}, 1),
    ({"recompute": "by name"}, 1)], ids=str)
def test_less_memory(folder, drives, options, saved):
    """:param saved: by each layer, in sizes of its input"""
    peaks = {}
    for mode in ("observe", "spill"):
        callback = SpillwayCallback(drives, mode=mode, sizes=spillway.torch.Sizes(
                min_bytes=0, prefetch_bytes="16KiB"))

        fit(folder, [callback], **options,
            prepared=lambda module: wait_after_layers(module, lambda: callback.off))
        peaks[mode] = callback.stats.step_peak_bytes
    assert peaks["observe"] >= LAYERS * saved * INPUT_BYTES
    assert peaks["spill"] < 0.7 * peaks["observe"], peaks


def raises(name, error, batch):
    class Raises(importlib.import_module(name).Callback):
        """Within a step, before its gradients are used."""

        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            if trainer.global_step == batch:
                raise error

    return Raises()


@pytest.mark.parametrize("error, ends", [(ZeroDivisionError("mine"), ZeroDivisionError),
                                         (KeyboardInterrupt(), (KeyboardInterrupt, SystemExit))],
                         ids=["exception", "Ctrl-C"])
def test_ends_and_resumes(folder, drives, error, ends):
    """The loader starts from the beginning: what was interrupted goes on as without spillway."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    options = {"enable_checkpointing": True}
    saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=2, save_top_k=-1)
    callback = SpillwayCallback(drives, **SPILL)
    with pytest.raises(ends):
        fit(folder, [callback, raises("lightning.pytorch", error, 5), saving], **options)
    assert callback.off.closed and callback.stats.steps == 6
    spillway.Store(drives).close()
    options["ckpt_path"] = folder / "step=4.ckpt"
    plain = fit(folder / "plain", [], **options)
    callback = SpillwayCallback(drives, **SPILL)
    resumed = fit(folder / "resumed", [callback], **options)
    assert callback.stats.steps == len(resumed.losses) == BATCHES - 4
    assert_same(plain, resumed)


def test_drives_without_a_store_are_named(folder):
    (folder / "drive").write_bytes(bytes(1 << 20))
    with pytest.raises(spillway.SpillwayError, match="is not a drive of a spillway store"):
        fit(folder, [SpillwayCallback(str(folder / "drive"))])
