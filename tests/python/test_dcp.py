# SPDX-License-Identifier: MIT
# tests/python/test_dcp.py - checkpoints of torch.distributed in a store: whole, or those before
# layer: all
"""Ranks are children of this process, as in test_optimizer_ranks."""
import errno
import gc
import os

import pytest
import torch
from torch import nn

import spillway
import spillway.torch
from conftest import make_store
from offloading import shards
from test_optimizer_ranks import RANKS, local_of, model_of, run_ranks, together

pytest.importorskip("torch.distributed.checkpoint.storage", reason="this PyTorch has none")
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.api import CheckpointException  # noqa: E402

from spillway._export import dcp as dcp_module  # noqa: E402
from spillway._values.pack import pack  # noqa: E402
from spillway.checkpoint import StoreReader, StoreWriter  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def parts(folder):
    paths = make_store(folder, 2, 96 << 20, partitions=RANKS)
    return paths


def contents(seed):
    """Tensors of several types, one without elements, a number, and what is not a tensor."""
    torch.manual_seed(seed)
    return {"model": {"wide": torch.randn(300, 70), "half": torch.randn(33).bfloat16(),
                      "nothing": torch.zeros(0, 3), "number": torch.tensor(2.5)},
            "groups": [{"lr": 0.5, "betas": (0.5, 0.25)}], "step": seed, "words": "some"}


def empty(like):
    if isinstance(like, torch.Tensor):
        return torch.zeros_like(like)
    if isinstance(like, dict):
        return {name: empty(value) for name, value in like.items()}
    return [empty(item) for item in like] if isinstance(like, list) else type(like)()


def assert_same(one, other):
    if isinstance(one, torch.Tensor):
        assert one.dtype is other.dtype and torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name])
    else:
        assert one == other


def load(drives, like, **options):
    found = empty(like)
    dcp.load(found, storage_reader=StoreReader(drives), **options)
    return found


def test_what_was_saved_is_loaded(formatted):
    for step in (1, 2, 5):
        dcp.save(contents(step), storage_writer=StoreWriter(formatted, step))
        assert_same(load(formatted, contents(0)), contents(step))
    assert spillway.committed(formatted) == spillway.CommitInfo(5, None)
    some = {"model": {"half": torch.zeros(33)}}  # of another type
    dcp.load(some, storage_reader=StoreReader(formatted))
    assert torch.equal(some["model"]["half"], contents(5)["model"]["half"].float())
    with pytest.raises(CheckpointException, match="higher number"):
        dcp.save(contents(6), storage_writer=StoreWriter(formatted, 5))
    with pytest.raises(ValueError, match="leave checkpoint_id out"):
        dcp.save(contents(6), checkpoint_id="6", storage_writer=StoreWriter(formatted, 6))
    assert_same(load(formatted, contents(0)), contents(5))
    spillway.Store(formatted).close()  # it is not open any more


def test_nothing_of_others_is_given_up(formatted):
    with spillway.Store(formatted, arena_bytes=8 << 20) as store:
        model = nn.Linear(3, 3)
        optimizer = spillway.torch.Optimizer(torch.optim.SGD, model.parameters(), store)
        optimizer.commit(step=7)
    for attempt in (lambda: dcp.save(contents(9), storage_writer=StoreWriter(formatted, 9)),
                    lambda: load(formatted, contents(0))):
        with pytest.raises(CheckpointException, match="something else committed"):
            attempt()
    assert spillway.committed(formatted) == spillway.CommitInfo(7, None)


def test_there_is_none(formatted):
    with pytest.raises(CheckpointException, match="has no checkpoint"):
        load(formatted, contents(0))


@pytest.mark.parametrize("change", [
    lambda described: described.pop("where"), lambda described: described.update(tensors=7),
    lambda described: described["where"][0].pop(), lambda described: described.update(others=None),
    lambda described: described["where"].clear(),
    lambda described: [place.__setitem__(4, 1 << 40) for place in described["where"]],
    lambda described: [place.__setitem__(3, 99) for place in described["where"]],
    lambda described: [place.__setitem__(2, -1) for place in described["where"]],
    lambda described: [place.__setitem__(2, 1 << 40) for place in described["where"]],
    lambda described: described["tensors"]["wide"][3].__setitem__(0, [[0, 0], [300, 7000]]),
])
def test_a_record_that_lies_is_refused(formatted, change):
    wide = {"wide": torch.randn(300, 70)}
    dcp.save(wide, storage_writer=StoreWriter(formatted, 1))
    with spillway.Store(formatted) as store:
        said, objects = dcp_module._restored(store)
        change(said["checkpoint"])
        store.commit([thing for thing, _ in objects], 2, dcp_module._MAGIC + pack(said))
    with pytest.raises(CheckpointException, match="damaged"):
        dcp.load({"wide": torch.zeros(300, 70)}, storage_reader=StoreReader(formatted))
    spillway.Store(formatted).close()


def sharded(seed):
    """Of FSDP2, and what all ranks have."""
    model = model_of("fsdp")
    torch.manual_seed(seed)
    with torch.no_grad():
        for param in model.parameters():
            local_of(param).copy_(torch.randn(param.shape)[:0] if not local_of(param).numel()
                                  else torch.randn(local_of(param).shape))
    return model


needs_shards = pytest.mark.skipif(not shards(), reason="this PyTorch has no fully_shard, or only "
                                  "for GPUs: 2.7 has")


@needs_shards
def test_shards_of_two_ranks_go_to_two_ranks_and_to_one(parts, folder):
    """And from one rank to shards of two."""
    def save(rank):
        model = sharded(rank)
        dcp.save({"model": model.state_dict(), "step": 3}, storage_writer=StoreWriter(parts, 3))
        return {name: value.full_tensor() for name, value in model.state_dict().items()}

    def load_shards(rank):
        model = sharded(100 + rank)
        found = {"model": model.state_dict(), "step": 0}
        dcp.load(found, storage_reader=StoreReader(parts))
        assert found["step"] in (3, 4)
        return {name: value.full_tensor() for name, value in found["model"].items()}

    wanted, _ = together(folder, save)
    for found in together(folder, load_shards):
        assert_same(found, wanted)
    whole = {"model": {name: torch.zeros_like(value) for name, value in wanted.items()}, "step": 0}
    dcp.load(whole, storage_reader=StoreReader(parts))
    assert_same(whole["model"], wanted)
    dcp.save({"model": {name: value + 1 for name, value in wanted.items()}, "step": 4},
             storage_writer=StoreWriter(parts, 4))
    for found in together(folder, load_shards):
        assert_same(found, {name: value + 1 for name, value in wanted.items()})


@needs_shards
def test_a_rank_that_dies_or_fails_leaves_the_checkpoint_before(parts, folder):
    def save(rank, step, fails=None):
        model = sharded(10 * step + rank)
        writer = StoreWriter(parts, step)
        if fails == rank:
            def fail(*_, **__):
                raise spillway.SpillwayError(errno.EIO, "a drive failed")
            writer._commit = fail
        dcp.save({"model": model.state_dict()}, storage_writer=writer)
        return {name: value.full_tensor() for name, value in model.state_dict().items()}

    def killed(rank):
        """Rank 1 has committed, rank 0 has not."""
        writer = StoreWriter(parts, 2)
        if rank == 0:
            writer._commit = lambda *_, **__: os._exit(0)
        dcp.save({"model": sharded(rank).state_dict()}, storage_writer=writer)

    def failing(rank):
        for failed, step in ((0, 2), (1, 3)):
            with pytest.raises(CheckpointException, match="a drive failed"):
                save(rank, step, failed)
        return save(rank, 4)

    def check(wanted):
        whole = {"model": {name: torch.zeros_like(value) for name, value in wanted.items()}}
        dcp.load(whole, storage_reader=StoreReader(parts))
        assert_same(whole["model"], wanted)

    first, _ = together(folder, lambda rank: save(rank, 1))
    run_ranks(folder, killed, seconds=60)
    assert spillway.committed(parts, 0).number == 1
    assert spillway.committed(parts, 1) == spillway.CommitInfo(2, 1)
    check(first)
    last, _ = together(folder, failing)
    check(last)


def test_a_checkpoint_that_another_saves_meanwhile_stays(formatted, monkeypatch):
    """Two processes that each think to be alone: the second has seen that there is none yet, and
    waits until the first has closed the store."""
    seen = []

    def committed(*arguments):
        found = spillway.committed(*arguments)
        seen.append(found)
        if len(seen) == 2:
            monkeypatch.setattr(dcp_module, "committed", spillway.committed)
            dcp.save(contents(1), storage_writer=StoreWriter(formatted, 1))
        return found

    monkeypatch.setattr(dcp_module, "committed", committed)
    with pytest.raises(CheckpointException, match="another process has saved a checkpoint in"):
        dcp.save(contents(2), storage_writer=StoreWriter(formatted, 2))
    assert seen == [None, None]
    assert_same(load(formatted, contents(0)), contents(1))
    dcp.save(contents(3), storage_writer=StoreWriter(formatted, 3))
    assert_same(load(formatted, contents(0)), contents(3))


def test_a_save_that_others_have_ended_does_not_keep_the_store(formatted):
    """Rank 0's, where another rank has failed: its writer is in a circle with the exception."""
    writer = StoreWriter(formatted, 1)
    writer.set_up_storage_writer(True)
    writer.itself = writer
    del writer
    gc.disable()
    try:
        dcp.save(contents(2), storage_writer=StoreWriter(formatted, 2))
    finally:
        gc.enable()
    assert_same(load(formatted, contents(0)), contents(2))
