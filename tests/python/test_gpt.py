# SPDX-License-Identifier: MIT
# tests/python/test_gpt.py - the GPT of the examples trains to the same bits in every mode
import argparse
import sys

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import spillway.torch
from conftest import ROOT
from offloading import assert_same_run, left_in, settle, trained, with_sizes
from spillway.demo.data import collect_text, tokens_of

sys.path.insert(0, str(ROOT / "python/examples"))
import common  # noqa: E402
from gpt import GPT, batches  # noqa: E402

OPTIONS = {"layers": 4, "hidden": 128, "heads": 4, "sequence": 128, "batch": 2, "dropout": 0.0}
TEXT = tokens_of(collect_text(ROOT / "include"), 1000)


def train(off_of=None, recompute=False):
    torch.manual_seed(0)
    args = argparse.Namespace(**OPTIONS, mode="recompute" if recompute else "keep")
    model = GPT(args)
    source = batches(args, TEXT, torch.Generator().manual_seed(0))
    return trained(model, lambda: next(source), off_of,
                   lambda model, batch: common.loss_of(model(*batch[0]), batch[1]),
                   optimizer=torch.optim.AdamW(model.parameters()))


def watched(model):
    return spillway.torch.offload(model, None, mode="observe")


@pytest.fixture(scope="module")
def plain():
    return train()


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("options", [
    {}, {"mode": "spill"}, {"min_bytes": 1}, {"staging_bytes": 1 << 20},
    {"prefetch_bytes": 256 << 10, "min_bytes": 1},
    {"scopes": lambda name, module: name.endswith("attention")}, {"scopes": []},
], ids=["default", "fixed rule", "all", "little staging", "little prefetch", "own scopes",
        "no scopes"])
def test_identical(store, plain, options, recompute):
    run = train(lambda model: spillway.torch.offload(model, store, **with_sizes(**options)),
                recompute)
    assert_same_run(run, plain)
    stats = run.off.stats()
    # On slow drives all may be asked for before it is written.
    assert stats.bytes_spilled + stats.bytes_forwarded > 0
    assert stats.steps == 3 and (recompute or stats.bytes_deduplicated > 0)
    assert left_in(run.off) == (0, 0, 0)


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_identical_when_watched(plain, recompute):
    run = train(watched, recompute)
    assert_same_run(run, plain)
    assert left_in(run.off) == (0, 0, 0)


def test_identical_with_newer_checkpoints(store, plain, monkeypatch):
    def newer(function, *inputs, use_reentrant):
        return checkpoint(function, *inputs, use_reentrant=False)

    monkeypatch.setattr(common, "checkpoint", newer)
    assert_same_run(train(lambda model: spillway.torch.offload(model, store), True), plain)


def test_it_needs_less_memory(store):
    def with_fast_drives(model):
        """Each layer waits for its writes: how fast the drives of a busy machine are is not the
        question."""
        off = spillway.torch.offload(model, store, mode="spill")
        for block in model.blocks:
            block.register_forward_hook(lambda *_: settle(off) and None)
        return off

    spill, watch = train(with_fast_drives).off, train(watched).off
    assert spill.activation_peak_bytes < watch.activation_peak_bytes
