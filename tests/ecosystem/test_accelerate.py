# SPDX-License-Identifier: MIT
# tests/ecosystem/test_accelerate.py - a loop of accelerate (on several ranks: test_ranks.py)
import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import spillway
import spillway.torch
from places import bits_of, wait_after_layers

WIDTH, BATCHES = 128, 8
SPILL = {"mode": "spill", "sizes": spillway.torch.Sizes(min_bytes=0)}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1)) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def train(devices=None, before=False, resume=None, stop=BATCHES, save=None, waits=False,
          spilling=None, within=None, **options):
    """The losses, what was trained, and the counters.

    :param before: offload() is given the model as it was before prepare()
    :param spilling: other arguments of offload()
    :param within: called in each step, between its passes, with the number of the step
    """
    torch.manual_seed(3)
    accelerator = Accelerator(cpu=True, **options)
    bare = Model()
    rows = torch.randn(16 * BATCHES * accelerator.num_processes, WIDTH)
    model, optimizer, loader = accelerator.prepare(
        bare, torch.optim.AdamW(bare.parameters(), lr=1e-3),
        DataLoader(TensorDataset(rows), 16, shuffle=False))
    if resume is not None:
        accelerator.load_state(resume)
        loader = accelerator.skip_first_batches(loader, 4)
    off = spillway.torch.offload(bare if before else model, devices,
                                 **(spilling or (SPILL if devices else {"mode": "observe"})))
    if waits:
        wait_after_layers(bare, lambda: off)
    losses = []
    try:
        for number, (batch,) in enumerate(loader):
            if number == stop:
                break
            with accelerator.accumulate(model), off:
                loss = F.mse_loss(model(batch), batch.flip(0))
                if within is not None:
                    within(number)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item().hex())
        if save is not None:
            accelerator.save_state(save)
        stats = off.stats()
    finally:
        off.close()
        accelerator.free_memory()
    return losses, bits_of(bare), stats


def moved(stats):
    """On slow drives all may be asked for before it is written."""
    return stats.bytes_spilled + stats.bytes_forwarded


@pytest.fixture(autouse=True)
def fresh():
    """An Accelerator remembers the options of the last."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 3},
                                     {"mixed_precision": "bf16"}], ids=str)
def test_the_same_losses(drives, options, before):
    plain = train(**options)
    spilled = train(drives, before, **options)
    assert spilled[:2] == plain[:2] and len(plain[0]) == BATCHES
    assert moved(spilled[2]) > 0


def test_less_memory(drives):
    """Than what plain training holds, which mode "observe" counts."""
    peaks = {mode: train(drives, waits=True, spilling={
        "mode": mode, "sizes": spillway.torch.Sizes(min_bytes=0, prefetch_bytes="16KiB")
    })[2].step_peak_bytes
        for mode in ("observe", "spill")}
    assert peaks["spill"] < 0.7 * peaks["observe"], peaks


def test_resumes(folder, drives):
    train(drives, stop=4, save=folder / "state")
    plain = train(resume=folder / "state")
    spilled = train(drives, resume=folder / "state")
    assert spilled[:2] == plain[:2] and len(plain[0]) == BATCHES - 4


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError("mine")])
def test_ends(drives, error):
    """Between the passes of a step; the next training in the same process is unaffected."""
    def within(number):
        if number == 3:
            raise error

    plain = train()
    with pytest.raises(type(error)):
        train(drives, within=within)
    spillway.Store(drives).close()
    assert train(drives)[:2] == plain[:2]
