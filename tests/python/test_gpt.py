# SPDX-License-Identifier: MIT
# tests/python/test_gpt.py - a small GPT trains to the same bits in every mode and leaves nothing behind; the demo's own
# parts
import contextlib
import os

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import spillway.torch
from conftest import ROOT
from offloading import left_in, settle
from spillway.demo.data import batches, collect_text, tokens_of
from spillway.demo.model import GPT, Config, loss_of

CONFIG = Config(layers=4, hidden=128, heads=4, sequence=128)
TEXT = tokens_of(collect_text(ROOT / "include"), 1000)


def train(off_of=None, steps=3, recompute=False, seed=0):
    """(losses, gradients of every step, the offload)"""
    torch.manual_seed(seed)
    model = GPT(CONFIG, recompute=recompute)
    optimizer = torch.optim.AdamW(model.parameters())
    source = batches(TEXT, 2, CONFIG.sequence, seed)
    off = off_of(model) if off_of else None
    losses, gradients = [], []
    for _ in range(steps):
        tokens, targets = next(source)
        with off or contextlib.nullcontext():
            loss = loss_of(model(tokens), targets)
            loss.backward()
        losses.append(loss.item().hex())
        gradients.append([p.grad.clone() for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    return losses, gradients, off


@pytest.fixture(scope="module")
def plain():
    return train()


def same(run, plain):
    return run[0] == plain[0] and all(
        torch.equal(a, b) for mine, others in zip(run[1], plain[1]) for a, b in zip(mine, others))


@pytest.mark.parametrize("options", [
    {}, {"mode": "spill"}, {"min_bytes": 1}, {"staging_bytes": 1 << 20}, {"prefetch_bytes": 256 << 10, "min_bytes": 1},
    {"scopes": lambda name, module: name.endswith("attention")}, {"scopes": []},
], ids=["default", "fixed rule", "all", "little staging", "little prefetch", "own scopes", "no scopes"])
def test_identical(store, plain, options):
    run = train(lambda model: spillway.torch.offload(model, store, **options))
    assert same(run, plain)
    stats = run[2].stats()
    # On slow drives all may be asked for before it is written.
    assert stats.bytes_spilled + stats.bytes_forwarded > 0 and stats.bytes_deduplicated > 0 and stats.steps == 3
    assert left_in(run[2]) == (0, 0, 0)


def test_identical_on_libaio(drives, plain):
    spillway.format_store(drives)
    with spillway.Store(drives, backend="libaio") as store:
        assert same(train(lambda model: spillway.torch.offload(model, store)), plain)


def test_identical_when_watched(plain):
    run = train(lambda model: spillway.torch.offload(model, None, mode="observe"))
    assert same(run, plain)
    assert left_in(run[2]) == (0, 0, 0)


@pytest.mark.parametrize("watched", [True, False], ids=["watched", "spilled"])
def test_identical_with_recomputation(store, plain, watched):
    run = train(lambda model: spillway.torch.offload(model, None if watched else store,
                                                     mode="observe" if watched else "spill"), recompute=True)
    assert same(run, plain)
    assert left_in(run[2]) == (0, 0, 0)


def test_identical_with_newer_checkpoints(store, plain, monkeypatch):
    def newer(function, x, use_reentrant):
        return checkpoint(function, x, use_reentrant=False)

    monkeypatch.setattr("spillway.demo.model.checkpoint", newer)
    assert same(train(lambda model: spillway.torch.offload(model, store), recompute=True), plain)


def test_it_needs_less_memory(store):
    watch = train(lambda model: spillway.torch.offload(model, None, mode="observe"))[2]

    def with_fast_drives(model):
        """Each layer waits for its writes: how fast the drives of a busy machine are is not the question."""
        off = spillway.torch.offload(model, store, mode="spill")
        for block in model.blocks:
            block.register_forward_hook(lambda *_: settle(off) and None)
        return off

    spill = train(with_fast_drives)[2]
    assert spill.activation_peak_bytes < watch.activation_peak_bytes


def test_many_steps_do_not_grow(store):
    off = train(lambda model: spillway.torch.offload(model, store), steps=2)[2]
    files, storages = len(os.listdir("/proc/self/fd")), off._session.known()
    off = train(lambda model: spillway.torch.offload(model, store), steps=25)[2]
    assert left_in(off) == (0, 0, 0)
    assert len(os.listdir("/proc/self/fd")) <= files
    assert off._session.known() <= storages
