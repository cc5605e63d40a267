# SPDX-License-Identifier: MIT
# tests/ecosystem/test_pipeline.py - the activations of DeepSpeed's pipeline engine, on two ranks
"""Each rank is a stage, and a process that is forked from this one."""
import re
import sys

import deepspeed
import pytest
import torch
from deepspeed.pipe import PipelineModule
from torch import nn

import spillway
import spillway.schedules
import spillway.torch
from places import fork_ranks, wait_after_layers

STAGES, MICRO_BATCHES, STEPS, WIDTH, ROWS = 2, 4, 3, 128, 64


def run(folder, *devices):
    """What each rank has found, and its peak of activations."""
    ranks = fork_ranks(folder, lambda: train(devices))
    said = [rank.communicate() for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), said
    found = [re.search(r"^(rank .+), at most (\d+) bytes$", out, re.MULTILINE).groups()
             for out, _ in said]
    return [losses for losses, _ in found], [int(peak) for _, peak in found]


def test_the_same_losses_in_less_memory(folder, drives):
    spillway.wipe_store(drives)
    spillway.format_store(drives, partitions=STAGES)
    plain, peaks = run(folder)
    spilled, less = run(folder, *drives)
    assert spilled == plain and len(plain) == STAGES
    assert all(one < 0.7 * other for one, other in zip(less, peaks)), (less, peaks)


@pytest.mark.parametrize("engine", [object()], ids=["no engine"])
def test_something_else(engine):
    with pytest.raises(TypeError, match="has no _exec_schedule"):
        spillway.schedules.attach_deepspeed(engine, None)


# ---- A rank --------------------------------------------------------------------------------------


def batches():
    """Of the same numbers each time, without an end."""
    seed = torch.Generator().manual_seed(7)
    while True:
        rows = torch.randn(ROWS, WIDTH, generator=seed)
        yield rows, rows.flip(0)


def train(devices):
    """Losses, what was trained, and what an offload was told in each step."""
    deepspeed.init_distributed()
    torch.manual_seed(3)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)]
    module = PipelineModule(layers, num_stages=STAGES, loss_fn=nn.functional.mse_loss,
                            partition_method="uniform")
    engine, *_ = deepspeed.initialize(
        model=module, optimizer=torch.optim.AdamW(module.parameters(), lr=1e-3),
        config={"train_micro_batch_size_per_gpu": ROWS, "steps_per_print": 1 << 30,
                "gradient_accumulation_steps": MICRO_BATCHES})
    off = spillway.torch.offload(module, devices or None,
                                 sizes=spillway.torch.Sizes(min_bytes=0, prefetch_bytes="16KiB"),
                                 mode="spill" if devices else "observe")
    wait_after_layers(module, lambda: off)
    told, stage = [], off.stage

    def listening(micro_batch, phase, next=None):
        told.append((micro_batch, phase))
        stage(micro_batch, phase, next=next)

    off.stage = listening
    detach = spillway.schedules.attach_deepspeed(engine, off)
    data, losses = batches(), []
    for _ in range(STEPS):
        with off:
            losses.append(engine.train_batch(data).item().hex())
    detach()
    stats = off.stats()
    off.close()
    assert (stats.bytes_spilled + stats.bytes_forwarded > 0) == bool(devices)
    assert stats.steps == STEPS, stats.steps
    passes = sorted((number, phase) for number in range(MICRO_BATCHES)
                    for phase in ("forward", "backward"))
    assert len(told) == STEPS * len(passes), told
    for step in range(STEPS):
        assert sorted(told[step * len(passes):][:len(passes)]) == passes
    total = sum(param.double().sum().item() for param in module.parameters())
    sys.stdout.write(f"rank {torch.distributed.get_rank()} {' '.join(losses)} {total.hex()}, "
                     f"at most {stats.step_peak_bytes} bytes\n")
    torch.distributed.destroy_process_group()
