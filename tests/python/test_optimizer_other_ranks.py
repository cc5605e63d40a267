# SPDX-License-Identifier: MIT
# tests/python/test_optimizer_other_ranks.py - a commit is resumed on more ranks, or on fewer
# layer: all
"""The bits are those of one process that never stopped. Gradients are averaged over ranks, in an
order that depends on how many there are: here all ranks have the same data, and are a power of two,
so that their average is what each has, exactly."""
import errno
import logging
import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

import spillway
import spillway.checkpoint
import spillway.torch
from conftest import SEED, make_store
from offloading import shards
from spillway._core.torch_compat import is_before
from spillway._optim.checkpoint import Checkpoint
from spillway._optim.ranks import common_commit, rows_of
from spillway.checkpoint import __main__ as program
from test_optimizer_ranks import error_of, local_of, run_ranks, together

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(),
                                reason="PyTorch is built without torch.distributed")

needs_shards = pytest.mark.skipif(
    not shards(), reason="this PyTorch has no fully_shard, or only for GPUs: 2.7 has")
PARTITIONS = 4
EACH = 2  # steps, between commits


@pytest.fixture
def parts(folder):
    return make_store(folder, 2, 96 << 20, partitions=PARTITIONS)


def model_of(parallel, count, dtype=torch.float32, width=301):
    """Rows are not divisible by ranks, and of the last layer only rank 0 has any."""
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(20, width), nn.GELU(), nn.Linear(width, 64), nn.GELU(),
                          nn.Linear(64, 1)).to(dtype)
    if count == 1:
        return model, model
    if parallel == "ddp":
        return model, nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (count,))
    fully_shard(model[0], mesh=mesh)
    return model, fully_shard(model, mesh=mesh)


def opened(drives, rank, **options):
    options.setdefault("commit", spillway.torch.newest_of_all())
    return spillway.Store(drives, partition=rank, arena_bytes=8 << 20, **options)


def over(store, model, tile=1009, **options):
    return spillway.torch.Optimizer(torch.optim.AdamW, model.named_parameters(), store, tile=tile,
                                    lr=0.01, **options)


def step(model, called, optimizer, number):
    optimizer.zero_grad()
    data = torch.randn(16, 20, generator=torch.Generator().manual_seed(number))
    called(data.to(model[0].weight.dtype)).float().pow(2).mean().backward()
    optimizer.step()


def outcome(model, optimizer):
    """By name: which rows are here, the parameter and its state."""
    state = optimizer.state_dict()["state"]
    return {name: (rows_of(param), local_of(param).clone(),
                   {field: value.clone() for field, value in sorted(state[number].items())})
            for number, (name, param) in enumerate(model.named_parameters()) if number in state}


def trained(parallel, drives, rank, count, masters, steps=EACH, committing=True, **options):
    """(the first step, what was resumed, what came of these steps)"""
    model, called = model_of(parallel, count, torch.bfloat16 if masters else torch.float32)
    with opened(drives, rank) as store:
        optimizer = over(store, model, masters=masters, **options)
        found = optimizer.resume()
        assert found is None or found.extra["buffers"].tolist() == [found.step, 7]
        resumed = outcome(model, optimizer)
        begin = optimizer.steps
        for number in range(begin, begin + steps):
            step(model, called, optimizer, number)
        if committing:
            optimizer.commit(extra={"buffers": torch.tensor([optimizer.steps, 7])})
        return begin, resumed, outcome(model, optimizer)


def plain_run(folder, masters, steps):
    """What one process comes to that never stopped, after each number of steps."""
    def run(_):
        drives = make_store(folder, 1, 96 << 20, "plain")
        model, called = model_of("", 1, torch.bfloat16 if masters else torch.float32)
        if not masters:
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
        after = [None]
        with opened(drives, 0) as store:
            if masters:
                optimizer = over(store, model, masters=True)
            for number in range(steps):
                step(model, called, optimizer, number)
                after.append(outcome(model, optimizer))
        return after

    return together(folder, run, count=1)[0]


def assert_rows_of(ours, plain):
    assert ours.keys() == plain.keys()
    for name, (rows, param, state) in ours.items():
        _, plain_param, plain_state = plain[name]
        here = slice(None) if rows is None else slice(rows[0], rows[0] + len(param))
        assert torch.equal(param, plain_param[here]), name
        assert state.keys() == plain_state.keys()
        for field, value in state.items():
            expected = plain_state[field]
            assert torch.equal(value, expected[here] if expected.dim() else expected), (name, field)


needs_bfloat16 = pytest.mark.skipif(is_before("2.1"), reason="gloo of this PyTorch has no bfloat16")
CASES = [("ddp", False), pytest.param("ddp", "compact", marks=needs_bfloat16), *(
    pytest.param("fsdp", masters, marks=needs_shards) for masters in (False, True, "compact"))]


@pytest.mark.parametrize("parallel, masters", CASES)
def test_more_and_fewer_ranks(folder, parts, parallel, masters):
    """1, 2, 4 and 1 again. With masters their kind changes on the way."""
    counts = (1, 2, 4, 1)
    plain = plain_run(folder, masters, EACH * len(counts))
    for turn, count in enumerate(counts):
        kind = {1: True, 3: "compact"}.get(turn, masters) if masters else masters
        ranks = together(folder, lambda rank: trained(parallel, parts, rank, count, kind),
                         count=count)
        for begin, resumed, ended in ranks:
            assert begin == EACH * turn
            if begin:
                assert_rows_of(resumed, plain[begin])
            assert_rows_of(ended, plain[begin + EACH])
        have = [spillway.committed(parts, rank) for rank in range(PARTITIONS)]
        assert [info and info.number for info in have[:count]] == [begin + EACH] * count


# ---- Commits that some ranks have ----------------------------------------------------------------


def committing(drives, count, parallel="ddp", masters=False, turns=1):
    def run(rank):
        return trained(parallel, drives, rank, count, masters)

    return lambda folder: [together(folder, run, count=count) for _ in range(turns)][-1]


def had(drives):
    infos = [spillway.committed(drives, rank) for rank in range(PARTITIONS)]
    return [info and info.number for info in infos]


@pytest.mark.parametrize("all_have, count, expected", [
    ([{5: (0, 1)}, {}], 2, (5, 1)),
    ([{5: (0, 2)}, {5: (1, 2)}, {}, {}], 4, (5, 2)),
    ([{5: (0, 4)}, {5: (1, 4)}, {5: (2, 4)}, {5: (3, 4)}], 1, (5, 4)),
    # The first commit of more ranks, or of fewer, was not completed.
    ([{7: (0, 2), 5: (0, 1)}, {0: (1, 2)}], 2, (5, 1)),
    ([{7: (0, 2), 5: (0, 1)}, {7: (1, 2), 0: (1, 2)}], 2, (7, 2)),
    ([{7: (0, 1), 5: (0, 2)}, {5: (1, 2)}], 1, (7, 1)),
    ([{7: (0, 2), 5: (0, 4)}, {5: (1, 4)}, {5: (2, 4)}, {5: (3, 4)}], 2, (5, 4)),
    # Two of four have one that the others have not.
    ([{7: (0, 4), 5: (0, 4)}, {7: (1, 4), 5: (1, 4)}, {5: (2, 4)}, {5: (3, 4)}], 2, (5, 4)),
    # What is of an earlier run of more ranks is not found again, though its number is the same.
    ([{7: (0, 2)}, {7: (1, 2)}, {7: (2, 4), 5: (2, 4)}, {7: (3, 4), 5: (3, 4)}], 4, (7, 2)),
    ([{5: (0, 2)}, {5: (1, 2)}, {7: (2, 4), 6: (2, 4)}], 3, (5, 2)),
    ([{0: (0, 2)}, {}], 2, (None, 2)),
    ([{7: (0, 4), 0: (0, 4)}, {0: (1, 4)}, {0: (2, 4)}, {}], 2, (None, 2)),
])
def test_the_newest_that_is_whole(all_have, count, expected):
    assert common_commit(all_have, count) == expected


@pytest.mark.parametrize("all_have, count, number, words", [
    ([{7: (0, 2)}, {}], 1, errno.ENODATA, "rank 0 7 .of 2 ranks., rank 1 nothing"),
    ([{7: (0, 2)}, {7: (1, 4)}], 2, errno.ENODATA, "rank 0 7, rank 1 7 .of 4 ranks."),
    ([{}, {7: (1, 2)}], 1, errno.ENODATA, "rank 0 nothing, rank 1 7"),
    ([{7: (0, 1)}, {9: (0, 1)}], 2, errno.EEXIST, "the partition of rank 1 has commit 9"),
    ([{7: (0, 1)}, {9: None}], 2, errno.EEXIST, "the partition of rank 1 has commit 9"),
])
def test_nothing_is_discarded_that_is_something_else(all_have, count, number, words):
    with pytest.raises(spillway.SpillwayError, match=words) as caught:
        common_commit(all_have, count)
    assert caught.value.errno == number


@needs_shards
def test_a_partition_is_missing(folder, parts):
    committing(parts, 4, "fsdp")(folder)
    spillway.Store(parts, partition=2, commit=None).close()

    def refused(rank):
        return error_of(lambda: opened(parts, rank))

    for number, words in together(folder, refused):
        assert number == errno.ENODATA and "rank 2 nothing" in words
    with opened(parts, 0, commit="newest") as store:  # not asked of the others
        model, _ = model_of("", 1)
        before = [param.clone() for param in model.parameters()]
        optimizer = over(store, model)
        number, words = error_of(optimizer.resume)
        assert number == errno.ENODATA and "what rank 2 has" in words
        assert all(map(torch.equal, before, model.parameters()))
    assert had(parts) == [EACH, EACH, None, EACH]


@pytest.mark.parametrize("masters", [False, True, "compact"])
@pytest.mark.parametrize("count", [1, 4])
def test_experts_that_were_placed_by_hand(folder, parts, count, masters):
    """Rank 1 has another than rank 0, by the same name."""
    def expert(rank):
        torch.manual_seed(SEED + rank % 2)
        return nn.Linear(20, 64).to(torch.bfloat16 if masters else torch.float32)

    def begin(rank):
        with opened(parts, rank) as store:
            model = expert(rank)
            optimizer = over(store, model, masters=masters)
            model(torch.randn(4, 20).to(model.weight.dtype)).sum().backward()
            optimizer.step()
            optimizer.commit()

    def refused(rank):
        with opened(parts, rank) as store:
            model = expert(rank)
            before = [param.clone() for param in model.parameters()]
            number, words = error_of(over(store, model, masters=masters).resume)
            assert all(map(torch.equal, before, model.parameters()))
            return number, words

    def resumed(rank):
        with opened(parts, rank) as store:
            return over(store, expert(rank), masters=masters).resume().step

    together(folder, begin, count=2)
    found = together(folder, refused, count=count)
    assert any("is not sharded, and is not the same" in words for _, words in found), found
    assert {number for number, _ in found} == {errno.EUCLEAN}, found
    assert together(folder, resumed, count=2) == [1, 1]


def flip(drives, content):
    """The first byte of these, wherever they are."""
    places = [(path, Path(path).read_bytes().find(content)) for path in drives]
    (path, place), = [(path, place) for path, place in places if place >= 0]
    with open(path, "r+b") as drive:
        drive.seek(place)
        drive.write(bytes([255 - content[0]]))
    return bytes([255 - content[0]]) + content[1:]


@needs_shards
def test_a_partition_is_damaged(folder, parts):
    """It is noticed while parameters are read, and said on all ranks. The commit is there still."""
    plain = plain_run(folder, False, 2 * EACH)
    committing(parts, 4, "fsdp")(folder)
    rows = plain[EACH]["2.weight"][1][34:36]  # rank 2 has 16 rows of 64
    damaged = flip(parts, rows.numpy().tobytes())

    def refused(rank):
        model, _ = model_of("fsdp", 2)
        with opened(parts, rank) as store:
            optimizer = over(store, model)
            return error_of(optimizer.resume), error_of(optimizer.step)

    for (number, words), (_, after) in together(folder, refused):
        assert number == errno.EBADMSG and "not whole on all ranks: rank 1: " in words
        assert "The last commit is: open the store again" in after
    assert had(parts) == [EACH] * 4
    flip(parts, damaged)
    for begin, _, ended in committing(parts, 2, "fsdp")(folder):
        assert begin == EACH
        assert_rows_of(ended, plain[2 * EACH])


def test_another_training_is_not_discarded(folder, parts):
    """In the partition of a rank that was not there."""
    committing(parts, 1)(folder)
    with opened(parts, 1) as store:
        other = nn.Linear(3, 3)
        optimizer = over(store, other)
        other(torch.ones(3)).sum().backward()
        optimizer.step()
        optimizer.commit()

    def refused(rank):
        return error_of(lambda: opened(parts, rank))

    for number, words in together(folder, refused):
        assert number == errno.EEXIST and "rank 1 has commit 1 of something else" in words
    assert had(parts) == [EACH, 1, None, None]


@needs_shards
def test_old_partitions_are_not_found_again(folder, parts):
    """After fewer ranks have gone on, the others' commits are of an earlier run, even where a later
    commit has the same number."""
    plain = plain_run(folder, False, 3 * EACH)
    committing(parts, 4, "fsdp")(folder)
    committing(parts, 2, "fsdp")(folder)
    assert had(parts) == [2 * EACH] * 2 + [EACH] * 2
    for begin, resumed, ended in committing(parts, 4, "fsdp")(folder):
        assert begin == 2 * EACH
        assert_rows_of(resumed, plain[2 * EACH])
        assert_rows_of(ended, plain[3 * EACH])
    assert had(parts) == [3 * EACH] * 4


@needs_shards
@pytest.mark.parametrize("count", [1, 2, 4])
def test_killed_after_resuming(folder, parts, count):
    """And again: the commit stays until the next is whole."""
    plain = plain_run(folder, False, 2 * EACH)
    committing(parts, 2 if count != 2 else 4, "fsdp")(folder)

    def killed(rank):
        trained("fsdp", parts, rank, count, False, committing=False)
        torch.distributed.barrier()
        os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(2):
        assert run_ranks(folder, killed, count=count) == [-signal.SIGKILL] * count
    for begin, resumed, ended in committing(parts, count, "fsdp")(folder):
        assert begin == EACH
        assert_rows_of(resumed, plain[EACH])
        assert_rows_of(ended, plain[2 * EACH])


@needs_shards
def test_one_rank_has_not_committed_with_the_others(folder, parts):
    """The first commit of more ranks: all go back to that of fewer."""
    committing(parts, 2, "fsdp")(folder)

    def torn(rank):
        model, called = model_of("fsdp", 4)
        with opened(parts, rank) as store:
            optimizer = over(store, model)
            optimizer.resume()
            step(model, called, optimizer, EACH)
            if rank == 2:
                optimizer._tiled.records.state.commit = failing
            return error_of(lambda: optimizer.commit(extra={}))

    def failing(*_):
        raise spillway.SpillwayError(errno.EIO, "of the test")

    for number, words in together(folder, torn, count=4):
        assert number == errno.EIO and "rank 2: of the test" in words
    assert had(parts) == [EACH + 1, EACH + 1, None, EACH + 1]
    plain = plain_run(folder, False, 2 * EACH)
    for begin, _, ended in committing(parts, 4, "fsdp")(folder):
        assert begin == EACH
        assert_rows_of(ended, plain[2 * EACH])


@needs_shards
def test_drives_with_an_earlier_training(folder):
    """Each host has a store, where ranks of another training had the same step."""
    here, there = (make_store(folder, 2, 96 << 20, name, partitions=PARTITIONS)
                   for name in ("here", "there"))
    for drives in (here, there):
        committing(drives, 2, "fsdp")(folder)

    def on_two_hosts(rank):
        model, called = model_of("fsdp", 4)
        with opened(there if rank > 1 else here, rank, commit=None) as store:
            optimizer = over(store, model)
            for number in range(2 * EACH):
                step(model, called, optimizer, number)
            optimizer.commit()

    def refused(rank, count, drives):
        model, _ = model_of("fsdp", count)
        with opened(drives[rank > 1], rank) as store:
            return error_of(over(store, model).resume)

    # More ranks, whose drives have a whole commit of another training.
    for number, words in together(folder, lambda rank: refused(rank, 4, (here, there)), count=4):
        assert number == errno.EUCLEAN and "other drives" in words
    # Fewer, where the drives have the missing ranks of another training.
    committing(here, 4, "fsdp")(folder)
    together(folder, on_two_hosts, count=4)
    for number, words in together(folder, lambda rank: refused(rank, 2, (here, here))):
        assert number == errno.EUCLEAN and "other drives" in words
    with opened(here, 0, commit="newest", read_only=True) as store:
        number, words = error_of(lambda: spillway.checkpoint.export(store, folder / "m.pt",
                                                                    "torch"))
    assert number == errno.EUCLEAN and "other drives" in words


# ---- Other models and earlier versions -----------------------------------------------------------


@needs_shards
@pytest.mark.parametrize("change, words", [
    ({"width": 300}, r"of 0.weight it has .*\(301, 20\), and here it has .*\(300, 20\)"),
    ({"masters": True, "dtype": torch.bfloat16}, "of 0.weight it has .*, and here .* master"),
])
def test_another_model(folder, parts, change, words):
    committing(parts, 2, "fsdp")(folder)

    def refused(rank):
        given = dict(change)
        model, _ = model_of("fsdp", 4, given.pop("dtype", torch.float32), given.pop("width", 301))
        before = [local_of(param).clone() for param in model.parameters()]
        with opened(parts, rank) as store:
            error = error_of(over(store, model, **given).resume)
        assert all(map(torch.equal, before, map(local_of, model.parameters())))
        return error

    for number, said in together(folder, refused, count=4):
        assert number == errno.EUCLEAN
        with pytest.raises(AssertionError, match=words):
            raise AssertionError(said)
    assert had(parts) == [EACH, EACH, None, None]


@pytest.fixture
def earlier(monkeypatch):
    """A version that does not note rows."""
    made = Checkpoint.__init__

    def without_rows(self, *args, **given):
        made(self, *args, **given)
        self.rows = None

    monkeypatch.setattr(Checkpoint, "__init__", without_rows)
    yield
    monkeypatch.undo()


def test_a_commit_of_an_earlier_version(folder, parts, earlier, monkeypatch):
    """Whole parameters are taken."""
    plain = plain_run(folder, False, 3 * EACH)
    committing(parts, 2)(folder)
    monkeypatch.undo()
    for begin, resumed, ended in committing(parts, 4)(folder):
        assert_rows_of(resumed, plain[EACH])
        assert_rows_of(ended, plain[2 * EACH])
    for begin, _, ended in committing(parts, 1)(folder):
        assert_rows_of(ended, plain[3 * EACH])


@needs_shards
def test_shards_of_an_earlier_version(folder, parts, earlier, monkeypatch):
    """Are for as many ranks."""
    committing(parts, 2, "fsdp")(folder)
    monkeypatch.undo()

    def refused(rank):
        model, _ = model_of("fsdp", 4)
        with opened(parts, rank) as store:
            return error_of(over(store, model).resume)

    for number, words in together(folder, refused, count=4):
        assert number == errno.EUCLEAN and "resume on 2 ranks, and commit" in words
    committing(parts, 2, "fsdp")(folder)
    assert committing(parts, 4, "fsdp")(folder)[0][0] == 2 * EACH


# ---- With other options --------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon: 2.9 has")
def test_whole_parameters(folder, parts):
    def run(rank, count):
        model, called = model_of("ddp", count)
        matrices = [(name, param) for name, param in model.named_parameters() if param.dim() == 2]
        rest = [(name, param) for name, param in model.named_parameters() if param.dim() != 2]
        with opened(parts, rank) as store:
            optimizer = spillway.torch.Optimizer(torch.optim.AdamW, [
                {"params": matrices, "optimizer_class": torch.optim.Muon, "lr": 0.1},
                {"params": rest}], store, lr=0.01)
            optimizer.resume()
            for number in range(optimizer.steps, optimizer.steps + EACH):
                step(model, called, optimizer, number)
            optimizer.commit()
            state = optimizer.state_dict()["state"]
        return [param.detach() for param in model.parameters()], state

    def same(one, other):
        assert all(map(torch.equal, one[0], other[0])) and one[1].keys() == other[1].keys()
        for number, entry in one[1].items():
            assert all(torch.equal(torch.as_tensor(value), torch.as_tensor(other[1][number][name]))
                       for name, value in entry.items())

    never = [together(folder, lambda rank: run(rank, 1), count=1)[0] for _ in range(3)][-1]
    spillway.format_store(parts, partitions=PARTITIONS, force=True, erase=True)
    for count in (1, 4, 2):
        ranks = together(folder, lambda rank: run(rank, count), count=count)
    for found in ranks:
        same(found, never)


@needs_shards
@pytest.mark.parametrize("option", ["in_backward", "gradients"])
def test_during_the_backward_pass(folder, parts, option):
    plain = plain_run(folder, False, 3 * EACH)
    for turn, count in enumerate((2, 4, 2)):
        for begin, _, ended in together(folder, lambda rank: trained(
                "fsdp", parts, rank, count, False, **{option: True}), count=count):
            assert begin == EACH * turn
            assert_rows_of(ended, plain[begin + EACH])


@needs_shards
def test_sharded_by_another_dimension(folder, parts):
    """It is resumed on as many ranks, and refused on others."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    def run(rank, count):
        model, _ = model_of("", 1)
        fully_shard(model, mesh=init_device_mesh("cpu", (count,)), shard_placement_fn=lambda param:
                    Shard(1 if param is model[0].weight else 0))
        with opened(parts, rank) as store:
            optimizer = over(store, model)
            if count == 4:
                return error_of(optimizer.resume)
            optimizer.resume()
            step(model, model, optimizer, optimizer.steps)
            optimizer.commit()
            return optimizer.steps

    for steps in (1, 2):
        assert together(folder, lambda rank: run(rank, 2)) == [steps] * 2
    for number, words in together(folder, lambda rank: run(rank, 4), count=4):
        assert number == errno.EUCLEAN and "0.weight is sharded otherwise" in words
    with opened(parts, 0) as store:
        number, words = error_of(over(store, model_of("", 1)[0]).resume)
    assert number == errno.EUCLEAN and "0.weight is sharded otherwise" in words


# ---- Exports -------------------------------------------------------------------------------------


@needs_shards
@pytest.mark.parametrize("masters", [False, True, "compact"])
def test_shards_are_exported_as_whole_parameters(folder, parts, masters, caplog):
    plain = plain_run(folder, masters, EACH)[EACH]
    committing(parts, 4, "fsdp", masters)(folder)
    path = folder / "all.pt"
    with caplog.at_level(logging.WARNING, "spillway"), \
            opened(parts, 1, commit="newest", read_only=True) as store:
        spillway.checkpoint.export(store, path, "torch", "all")
        spillway.checkpoint.export(store, folder / "whole.safetensors", what="masters")
        spillway.checkpoint.export(store, folder / "one.pt", "torch", ranks="one")
        with pytest.raises(ValueError, match='ranks must be "all" or "one"'):
            spillway.checkpoint.export(store, folder / "two.pt", "torch", ranks="two")
    assert sum("shards alone" in record.message for record in caplog.records) == 1
    content = torch.load(path, weights_only=True)
    for number, (name, (_, param, state)) in enumerate(plain.items()):
        assert torch.equal(content["model"][name], param)
        for field, value in state.items():
            assert torch.equal(content["optimizer"]["state"][number][field], value), (name, field)
    one = torch.load(folder / "one.pt", weights_only=True)
    assert torch.equal(one["0.weight"], plain["0.weight"][1][76:152])
    model, _ = model_of("", 1, torch.bfloat16 if masters else torch.float32)
    spillway.format_store(parts, force=True, erase=True)
    with opened(parts, 0) as store:
        optimizer = over(store, model, masters=masters)
        spillway.checkpoint.import_(optimizer, path, "all")
        assert_rows_of(outcome(model, optimizer), plain)


@needs_shards
def test_an_export_needs_all_partitions(folder, parts):
    committing(parts, 2, "fsdp")(folder)
    with opened(parts, 0, commit="newest", read_only=True) as store:
        with opened(parts, 1, commit="newest"):
            number, words = error_of(lambda: spillway.checkpoint.export(store, folder / "m.pt",
                                                                        "torch"))
    assert number == errno.EBUSY and "without what rank 1 has" in words
    assert not (folder / "m.pt").exists()


@needs_shards
def test_the_command_exports_all_ranks(folder, parts, capsys):
    """Where no partition is named; and asks which, if another has a commit of its own."""
    def exported(*words):
        path = folder / f"{len(words)}.safetensors"
        status = program.main(["export", *parts, "--to", str(path), *words])
        return status, capsys.readouterr(), path

    committing(parts, 2, "fsdp")(folder)
    assert exported()[0] == 0
    whole = spillway.checkpoint._content_of(str(exported("--overwrite")[2]))
    assert whole["0.weight"].shape == (301, 20)
    assert exported("--partition", "1")[0] == 0
    one = spillway.checkpoint._content_of(str(folder / "2.safetensors"))
    assert one["0.weight"].shape == (150, 20)
    spillway.format_store(parts, partitions=PARTITIONS, force=True, erase=True)
    committing(parts, 1)(folder)
    assert exported("--overwrite", "--json", "--what=all")[0] == 0
    with opened(parts, 2) as store:
        store.commit([], 1)
    status, said, _ = exported("--overwrite", "--json", "--what=all")
    assert status == 1 and "partition 2 of the store has a commit, too" in said.err
