# SPDX-License-Identifier: MIT
# tests/python/test_long.py - many steps: nothing grows
import ctypes
import gc
import os

import pytest
import torch
from torch import nn

import spillway
import spillway.torch
from conftest import emptied
from offloading import left_in

STEPS, WARM = 200, 50
PAGE_BYTES = os.sysconf("SC_PAGESIZE")


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def resident_bytes():
    """What is free goes back to the system first: malloc keeps as much as was in use at once, which hangs on the drives' speed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


@pytest.fixture
def small_store(drives):
    """With little DMA memory: all of it may become resident at any time."""
    spillway.format_store(drives)
    with spillway.Store(drives, arena_bytes=8 << 20) as store:
        yield store


@pytest.mark.parametrize("mode", ["spill", "fastest"])
def test_200_steps_leave_nothing_behind(small_store, mode):
    """Each saved tensor has 256 KiB: one that a step leaves behind would be 37 MiB in the end. 16 MiB are for the DMA memory and
    for what PyTorch and the planner take at their leisure. A descriptor or an extent is never left."""
    store = small_store
    torch.manual_seed(1)
    model = Layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    off = spillway.torch.offload(model, store, min_bytes=1, mode=mode)
    session, seen = off._session, []
    for step in range(STEPS):
        with off:
            model(torch.randn(1024, 64)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step + 1 in (WARM, STEPS):
            assert left_in(off) == (0, 0, 0) and emptied(store)
            seen.append((resident_bytes(), sorted(os.listdir("/proc/self/fd")), store.stats().used_bytes, session.known()))
    (before, descriptors, extents, held_before), (after, descriptors_after, extents_after, held_after) = seen
    assert descriptors_after == descriptors
    assert extents == extents_after == 0
    assert held_after <= held_before + 64  # identities of storages are forgotten at the next step
    if not os.environ.get("SANITIZE"):  # a sanitizer keeps what is freed
        assert after - before < 16 << 20, f"{after - before} bytes more are resident after {STEPS - WARM} steps"
    assert off.stats().steps == STEPS
