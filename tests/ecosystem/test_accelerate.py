# SPDX-License-Identifier: MIT
# tests/ecosystem/test_accelerate.py - loops of accelerate, on one rank and on two
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import spillway
import spillway.torch

WIDTH, BATCHES = 128, 8
SPILL = {"mode": "spill", "min_bytes": 0}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1)) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def train(devices=None, before=False, resume=None, stop=BATCHES, save=None, **options):
    """The losses, what was trained, and how many bytes went out."""
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
                                 **(SPILL if devices else {"mode": "observe"}))
    losses = []
    for number, (batch,) in enumerate(loader):
        if number == stop:
            break
        with accelerator.accumulate(model), off:
            loss = F.mse_loss(model(batch), batch.flip(0))
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item().hex())
    if save is not None:
        accelerator.save_state(save)
    stats = off.stats()
    off.close()
    accelerator.free_memory()
    return losses, list(bare.state_dict().values()), stats.bytes_spilled + stats.bytes_forwarded


def assert_same(one, other):
    assert one[0] == other[0] and one[0]
    assert all(map(torch.equal, one[1], other[1]))


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
    assert_same(plain, spilled)
    assert spilled[2] > 0


def test_resumes(folder, drives):
    train(drives, stop=4, save=folder / "state")
    plain = train(resume=folder / "state")
    spilled = train(drives, resume=folder / "state")
    assert_same(plain, spilled)
    assert len(spilled[0]) == BATCHES - 4


def test_two_ranks(folder):
    """DistributedDataParallel, each rank on a partition of its own."""
    drives = [str(folder / "drive0"), str(folder / "drive1")]
    for path in drives:
        with open(path, "wb") as file:
            file.truncate(256 << 20)
    spillway.format_store(drives, partitions=2)
    said = []
    for devices in ([], drives):
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
             __file__, *devices], capture_output=True, text=True, cwd=Path(__file__).parent)
        assert done.returncode == 0, done.stderr
        said.append(sorted(line for line in done.stdout.splitlines() if line.startswith("rank")))
    assert said[0] == said[1] and len(said[0]) == 2


if __name__ == "__main__":
    found = train(sys.argv[1:] or None)
    assert (found[2] > 0) == (len(sys.argv) > 1)
    total = sum(tensor.double().sum().item() for tensor in found[1])
    sys.stdout.write(f"rank {torch.distributed.get_rank()} {' '.join(found[0])} {total.hex()}\n")
    torch.distributed.destroy_process_group()
