# SPDX-License-Identifier: MIT
# tests/device/updates.py - cases of fixed.py: an optimizer whose tiles the device steps in part
"""On the late device arithmetic is the host's, so the bits are; on a GPU they need not be."""

import contextlib

import torch
from torch import nn

import spillway
import spillway.torch
from spillway import SpillwayError
from spillway._gpu import accelerator

from machine import machine
from troubles import Troubled

NEVER, HALF, AT_ONCE = (0, 0, False), (0.3, 0.25, False), (0, 1, True)  # how late
SHAPES = ((300, 200), (7,), (50000,), (40, 30), (20000,))
TILE = 20000
CLASSES = (("SGD", {"lr": 0.1, "momentum": 0.9}), ("AdamW", {}), ("Adam", {"amsgrad": True}),
           ("NAdam", {}), ("ASGD", {"t0": 2}))


def models(dtype=torch.float32):
    """The same parameters on the device and on the host."""
    torch.manual_seed(1)
    values = [torch.randn(shape).to(dtype) for shape in SHAPES]
    return ([nn.Parameter(value.to(machine.kind)) for value in values],
            [nn.Parameter(value.clone()) for value in values])


def give_grads(ours, theirs, step):
    generator = torch.Generator().manual_seed(step)
    for mine, plain in zip(ours, theirs):
        plain.grad = torch.randn(plain.shape, generator=generator).to(plain.dtype)
        mine.grad = plain.grad.to(machine.kind)


def are_same(ours, theirs):
    return all(torch.equal(mine.detach().cpu(), plain) for mine, plain in zip(ours, theirs))


@contextlib.contextmanager
def optimizer_of(store, params, name="AdamW", interleave=3, **options):
    """With what it asks of the device, which troubles may come over."""
    table = Troubled(machine.table())
    before, accelerator.table_of = accelerator.table_of, lambda kind: table
    optimizer = spillway.torch.Optimizer(getattr(torch.optim, name), params, store, tile=TILE,
                                         interleave=interleave, **options)
    optimizer.table = table
    try:
        yield optimizer
    finally:
        optimizer.close()
        accelerator.table_of = before


def bits_are_the_hosts(store):
    for number, (name, options) in enumerate(CLASSES):
        for dtype, how_late in ((torch.float32, NEVER), (torch.float32, HALF),
                                (torch.bfloat16, HALF)):
            machine.be_late(number, *how_late)
            ours, theirs = models(dtype)
            masters = {"masters": True} if dtype is torch.bfloat16 else {}
            with optimizer_of(store, ours, name, **masters, **options) as mine:
                for step in range(4):
                    give_grads(ours, theirs, step)
                    mine.step()
                took = mine.stats()
                state = mine.state_dict()
            # The same by the host, when the store is free.
            with optimizer_of(store, theirs, name, None, **masters, **options) as plain:
                for step in range(4):
                    give_grads(ours, theirs, step)
                    plain.step()
                expected = plain.state_dict()
            assert took.device_records == 4 * 2, took
            assert took.updates == 4 and took.host_ns > 0
            assert are_same(ours, theirs), f"{name} in {dtype}: other parameters"
            for key, entry in expected["state"].items():
                for field, value in entry.items():
                    same = (torch.equal(value, state["state"][key][field])
                            if isinstance(value, torch.Tensor)
                            else value == state["state"][key][field])
                    assert same, f"{name} in {dtype}: other {field}"


def memory_is_back(store):
    machine.be_late(3, *HALF)
    ours, theirs = models()
    give_grads(ours, theirs, 0)
    before = machine.memory()
    with optimizer_of(store, ours) as mine:
        for _ in range(3):
            mine.step()
        pinned = machine.memory()[-1]
        assert pinned == before[-1] + 1, "the arena is pinned once"
    del mine
    assert machine.memory() == before, f"{machine.memory()}, was {before}"


def a_drive_fails_meanwhile(store):
    """While a tile is on the device. The same call again finishes the step."""
    machine.be_late(4, *NEVER)
    ours, theirs = models()
    plain = torch.optim.AdamW(theirs, foreach=False)
    with optimizer_of(store, ours, interleave=2) as mine:
        state = mine._tiled.records.state
        take = state.take
        for step in range(6):
            give_grads(ours, theirs, step)
            left = [step + 1]

            def failing(record, left=left):
                left[0] -= 1
                if left[0] == 0:
                    raise SpillwayError(5, "a drive failed")
                return take(record)

            state.take = failing
            try:
                mine.step()
                raise AssertionError("no drive failed")
            except SpillwayError:
                pass
            state.take = take
            mine.step()
            plain.step()
            assert are_same(ours, theirs), f"step {step}"


def interrupts_leave_nothing(store):
    """At any call that is made of the device."""
    for calls in range(0, 40, 3):
        machine.be_late(calls, *HALF)
        ours, theirs = models()
        give_grads(ours, theirs, 0)
        before = machine.memory()
        with optimizer_of(store, ours, interleave=2) as mine:
            mine.step()
            mine.table.until_interrupt = calls
            interrupted = False
            try:
                mine.step()
            except KeyboardInterrupt:
                interrupted = True
            mine.table.until_interrupt = None
            if interrupted:
                try:
                    mine.step()
                    raise AssertionError("a step that was interrupted in a tile is gone on with")
                except RuntimeError as error:
                    assert "not whole any more" in str(error), error
        del mine
        assert machine.memory() == before, f"after {calls} calls: {machine.memory()}, was {before}"


def the_share_is_by_what_both_take(store):
    """A device that takes nothing does every second tile, and one that takes long none."""
    memory = {"memory": 16 << 20}  # all of the state: no drive is waited for
    for byte_ns, expected in ((0, 2), (100000, 0)):
        machine.be_late(5, *AT_ONCE)
        machine.tasks_take(0, byte_ns)
        try:
            ours, theirs = models()
            with optimizer_of(store, ours, interleave="measured", **memory) as mine:
                for step in range(4):
                    give_grads(ours, theirs, step)
                    mine.step()
                took = mine.stats()
            assert took.updates == 4, took
            assert took.device_every == expected, took
            # One in each of two, then as was measured.
            assert took.device_records == 2 + 2 * (3 if expected else 0), took
            assert took.device_ns == took.device_bytes * 2 * byte_ns, took
        finally:
            machine.tasks_take(0, 0)


def activations_and_state_share_the_arena(store):
    """Which is pinned once, for both, and until the last has left."""
    machine.be_late(6, *HALF)
    before = machine.memory()[-1]
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).to(machine.kind)
    params = list(model.parameters())
    with optimizer_of(store, params, interleave=2) as mine:
        off = spillway.torch.offload(model, store, mode="spill",
                                     sizes=spillway.torch.Sizes(min_bytes=4096))
        for _ in range(2):
            with off:
                model(torch.randn(512, 64).to(machine.kind)).pow(2).mean().backward()
            mine.step()
        assert machine.memory()[-1] == before + 1
        off.close()
        assert machine.memory()[-1] == before + 1
        mine.step()
    assert machine.memory()[-1] == before


CASES = {"memory is back after updates": memory_is_back,
         "activations and state share the arena": activations_and_state_share_the_arena}
if machine.kind == "late":
    CASES.update({"an update in part on the device has the host's bits": bits_are_the_hosts,
                  "a drive fails while a tile is on the device": a_drive_fails_meanwhile,
                  "interrupts of an update leave nothing": interrupts_leave_nothing,
                  "the device's share is by what both take": the_share_is_by_what_both_take})
