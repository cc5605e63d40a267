# SPDX-License-Identifier: MIT
# tests/python/test_long.py - many steps: nothing grows
import ctypes
import gc
import os

import pytest
import torch

from conftest import emptied
from offloading import Layers, left_in, offload_each

STEPS, WARM = 200, 50
PAGE_BYTES = os.sysconf("SC_PAGESIZE")


def resident_bytes():
    """What is free goes back to the system first: malloc keeps as much as was in use at once, which
    hangs on the drives' speed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


@pytest.mark.parametrize("mode", ["spill", "fastest"])
def test_200_steps_leave_nothing_behind(store, mode):
    """Each saved tensor has 256 KiB: one that a step leaves behind would be 37 MiB in the end. 16
    MiB are for the DMA memory and for what PyTorch and the planner take at their leisure. A
    descriptor or an extent is never left."""
    torch.manual_seed(1)
    model = Layers(4, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    off = offload_each(store, model, mode=mode)
    session, seen = off._session, []
    for step in range(STEPS):
        with off:
            model(torch.randn(1024, 64)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step + 1 in (WARM, STEPS):
            assert left_in(off) == (0, 0, 0) and emptied(store)
            assert store.stats().used_bytes == 0
            seen.append((resident_bytes(), os.listdir("/proc/self/fd"), session.known()))
    (before, descriptors, known), (after, descriptors_after, known_after) = seen
    assert sorted(descriptors_after) == sorted(descriptors)
    assert known_after <= known + 64  # identities of storages are forgotten at the next step
    if not os.environ.get("SANITIZE"):  # a sanitizer keeps what is freed
        more = after - before
        assert more < 16 << 20, f"{more} bytes more are resident after {STEPS - WARM} steps"
    assert off.stats().steps == STEPS
