# SPDX-License-Identifier: MIT
# tests/python/test_parameters_store.py - parameters and optimizer on drives: durable together
# layer: all
import errno
import functools
import os
import random
import runpy
import signal
import subprocess
import time

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import spillway
import spillway.torch
from conftest import EXAMPLES, SEED, make_store, options_of, started
from offloading import offload_all
from spillway import checkpoint
from spillway._params import residency
from spillway._params.residency import LEAVING, Place
from test_optimizer_ranks import PARALLEL, together
from test_parameters import SWAPS, GPT, assert_same, loss_of, made, needs, on_drives, over, train

pytestmark = needs
LIMIT = 900 << 10
STEPS = 20


def opened(drives, **options):
    return spillway.Store(drives, **{"arena_bytes": 8 << 20, **options})


def both(store, model, **options):
    """An offload and an optimizer."""
    return on_drives(store, model), over(store, model, **options)


def in_memory(model, steps):
    return train(model, torch.optim.AdamW(model.parameters(), foreach=False), range(steps))


@pytest.mark.parametrize("options", [{}, {"in_backward": True}, {"gradients": True}],
                         ids=["step", "in backward", "gradients"])
def test_a_commit_is_gone_on_from(formatted, options):
    """Twice: the second time from a commit that a resumed training has made. After the commit
    parameters are changed, which is forgotten."""
    torch.manual_seed(5)
    theirs = GPT(2)
    losses = in_memory(theirs, STEPS)
    found = []
    for start, end in ((0, 7), (7, 14), (14, STEPS)):
        torch.manual_seed(5)
        with spillway.Store(formatted, arena_bytes=12 << 20) as store:
            model = spillway.torch.materialize(lambda: GPT(2), store, parameter_bytes=LIMIT)
            off, optimizer = both(store, model, **options)
            resumed = optimizer.resume()
            assert (resumed.step if resumed else 0) == start
            found += train(model, optimizer, range(start, end), off)
            written = store.stats().bytes_put
            optimizer.commit()
            # What was on the drives is not written again.
            assert store.stats().bytes_put - written < off.parameter_stats().total_bytes
            if end == STEPS:
                assert_same(model, theirs)
            train(model, optimizer, range(90, 91), off)
    assert found == losses


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon: 2.9 has")
@pytest.mark.parametrize("options", [{}, {"in_backward": True}, {"gradients": True}],
                         ids=["step", "in backward", "gradients"])
def test_matrices_on_drives_are_stepped_whole(formatted, options):
    """By Muon, and all else by AdamW; after a commit, too."""
    def parts(model):
        matrices = [param for param in model.parameters() if param.dim() == 2]
        return matrices, [param for param in model.parameters() if param.dim() != 2]

    torch.manual_seed(5)
    theirs = GPT(2)
    matrices, rest = parts(theirs)
    muon = torch.optim.Muon(matrices, lr=0.01)
    adamw = torch.optim.AdamW(rest, lr=1e-3, foreach=False)
    muon.register_step_post_hook(lambda *_: (adamw.step(), adamw.zero_grad()))
    losses, found = train(theirs, muon, range(8)), []
    for start, end in ((0, 4), (4, 8)):
        torch.manual_seed(5)
        with spillway.Store(formatted, arena_bytes=12 << 20) as store:
            model = spillway.torch.materialize(lambda: GPT(2), store, parameter_bytes=LIMIT)
            off = on_drives(store, model)
            matrices, rest = parts(model)
            optimizer = spillway.torch.Optimizer(torch.optim.Muon, [
                {"params": matrices}, {"params": rest, "optimizer_class": torch.optim.AdamW,
                                       "lr": 1e-3}], store, lr=0.01, **options)
            resumed = optimizer.resume()
            assert (resumed.step if resumed else 0) == start
            found += train(model, optimizer, range(start, end), off)
            optimizer.commit()
            if end == 8:
                assert_same(model, theirs)
    assert found == losses


def resumed(formatted):
    """The parameters of the newest commit."""
    with opened(formatted) as store:
        model = made()
        off, optimizer = both(store, model)
        optimizer.resume()
        off.parameters_to_memory()
    return {name: param.detach().clone() for name, param in model.named_parameters()}


def test_what_others_change_is_committed(formatted):
    """A state_dict() has the memory of the parameters, and writes to it go unnoticed."""
    with opened(formatted) as store:
        model = made()
        _, optimizer = both(store, model)
        content = model.state_dict()
        optimizer.commit(step=1)
        for tensor in content.values():
            tensor.fill_(3)
        optimizer.commit(step=2)
        del content, tensor
    assert all(bool((param == 3).all()) for param in resumed(formatted).values())


def swapped_after_numpy(model):
    """NumPy has had the memory, which PyTorch resizes no more."""
    assert model.blocks[0].up.weight.detach().numpy().any()
    torch.utils.swap_tensors(model.blocks[0].up.weight, model.blocks[1].up.weight)


def of_numpy(model):
    weight = model.blocks[0].up.weight
    weight.data = torch.from_numpy(weight.detach().clone().numpy() + 0.125)


def part_of_a_larger_one(model):
    weight = model.blocks[0].up.weight
    larger = torch.ones(2 * weight.numel()) / 8
    weight.data = larger[weight.numel():].view(weight.shape)


def of_torchscript(model):
    torch.jit.script(model.blocks[0].up)


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("changed", [
    pytest.param(swapped_after_numpy, marks=pytest.mark.skipif(
        not SWAPS, reason="this PyTorch swaps no tensors")), of_numpy, part_of_a_larger_one,
    of_torchscript])
def test_memory_that_cannot_leave_is_committed(formatted, changed, before):
    """Its values, at each commit.

    :param before: steps, until it is given that
    """
    theirs = made(dropout=0.0)
    optimizer = torch.optim.AdamW(theirs.parameters(), foreach=False)
    losses = train(theirs, optimizer, range(before))
    changed(theirs)
    losses += train(theirs, optimizer, range(before, 8))
    with opened(formatted) as store:
        model = made(dropout=0.0)
        off, optimizer = both(store, model)
        found = train(model, optimizer, range(before), off)
        changed(model)
        found += train(model, optimizer, range(before, 4), off)
        optimizer.commit()
        found += train(model, optimizer, range(4, 6), off)
        optimizer.commit()
        train(model, optimizer, range(6, 8), off)
    with opened(formatted) as store:
        model = made(dropout=0.0)
        off, optimizer = both(store, model)
        assert optimizer.resume().step == 6
        assert found + train(model, optimizer, range(6, 8), off) == losses
        off.parameters_to_memory()
    assert_same(model, theirs)


@pytest.mark.parametrize("changed", [of_numpy, part_of_a_larger_one, of_torchscript])
def test_memory_that_cannot_leave_is_resumed(formatted, changed):
    """By the same program: it is given that before resume()."""
    theirs = made(dropout=0.0)
    changed(theirs)
    losses = train(theirs, torch.optim.AdamW(theirs.parameters(), foreach=False), range(6))
    found = []
    for steps in (range(4), range(4, 6)):
        with opened(formatted) as store:
            model = made(dropout=0.0)
            off, optimizer = both(store, model)
            changed(model)
            resumed = optimizer.resume()
            assert (resumed.step if resumed else 0) == steps.start
            found += train(model, optimizer, steps, off)
            optimizer.commit()
            off.parameters_to_memory()
    assert found == losses
    assert_same(model, theirs)


def test_what_has_left_the_drives_for_good_is_not_committed(formatted):
    with opened(formatted) as store:
        model = made(dropout=0.0)
        off, optimizer = both(store, model)
        train(model, optimizer, range(2), off)
        off.parameters_to_memory()
        with pytest.raises(RuntimeError, match="was on drives when the optimizer was made"):
            optimizer.commit()


def test_a_commit_fails_where_a_write_did_while_room_was_made(formatted, monkeypatch):
    """What has one copy is brought in to get two, and what was written before leaves for it."""
    with opened(formatted) as store:
        model = made()
        wanted = {name: param.detach().clone() for name, param in model.named_parameters()}
        off = offload_all(store, model, parameter_bytes=LIMIT, parameters=True)
        for step in range(2):
            with off, torch.no_grad():
                loss_of(model, step)
        optimizer = over(store, model, copies=2)
        end, end_of, failed = Place.end, residency.end_of, []

        def fails_once(place, store):
            def ended(request):
                result, interruption = end_of(request)
                if place.state == LEAVING and not failed:
                    failed.append(place)
                    result = -errno.EIO
                return result, interruption

            monkeypatch.setattr(residency, "end_of", ended)
            return end(place, store)

        monkeypatch.setattr(Place, "end", fails_once)
        with pytest.raises(spillway.SpillwayError) as raised:
            optimizer.commit(step=1)
        assert failed and raised.value.errno == errno.EIO
        optimizer.commit(step=2)
    after = resumed(formatted)
    assert all(torch.equal(after[name], wanted[name]) for name in wanted)


def test_another_type_than_the_optimizer_knows_is_not_committed(formatted):
    with opened(formatted) as store:
        model = made()
        _, optimizer = both(store, model)
        optimizer.commit(step=1)
        model.double()
        with pytest.raises(RuntimeError, match="another type or shape"):
            optimizer.commit(step=2)


def small(dtype):
    torch.manual_seed(5)
    return GPT(2, dropout=0.0).to(dtype)


@pytest.mark.parametrize("masters", [False, True, "compact"],
                         ids=["float32", "masters", "compact"])
def test_they_leave_as_a_file_and_come_back(formatted, folder, masters):
    """Into a model whose parameters are on drives as well."""
    def make():
        return small(torch.bfloat16 if masters else torch.float32)

    path = folder / "model"
    with opened(formatted) as store:
        model = make()
        off, optimizer = both(store, model, masters=masters)
        train(model, optimizer, range(2), off)
        optimizer.commit()
        wanted = {name: param.detach().clone() for name, param in model.named_parameters()}
    with opened(formatted, read_only=True) as store:
        for format, what in (("safetensors", "parameters"), ("torch", "masters")):
            checkpoint.export(store, path.with_suffix(f".{what}"), format, what)
    with opened(formatted, commit=None) as store:
        model = make()
        off, optimizer = both(store, model, masters=masters)
        for what in ("parameters", "masters"):
            with torch.no_grad():
                for param in model.parameters():
                    param.fill_(7)
            assert checkpoint.import_(optimizer, path.with_suffix(f".{what}")) == []
            for name, param in model.named_parameters():
                assert torch.equal(param.detach(), wanted[name]), name
        train(model, optimizer, range(1), off)
        optimizer.commit()


@pytest.mark.parametrize("kinds", [(True, True), ("compact", "compact"), (True, "compact"),
                                   ("compact", True)])
def test_masters_and_a_mirror(formatted, kinds):
    """bfloat16 parameters with masters, each on two drives: without one drive all is there."""
    with opened(formatted) as store:
        model = small(torch.bfloat16)
        off, optimizer = both(store, model, masters=kinds[0], copies=2)
        train(model, optimizer, range(2), off)
        optimizer.commit()
        expected = train(model, optimizer, range(2, 4), off)
        off.parameters_to_memory()
    with opened(formatted[1:]) as store:
        other = small(torch.bfloat16)
        off, optimizer = both(store, other, masters=kinds[1], copies=2)
        assert optimizer.resume().step == 2
        assert train(other, optimizer, range(2, 4), off) == expected
        assert_same(other, model)


@pytest.mark.parametrize("masters", [True, "compact"])
def test_parameters_that_a_commit_had_in_memory_are_not_taken_for_empty(formatted, masters):
    with opened(formatted) as store:
        model = small(torch.bfloat16)
        optimizer = over(store, model, masters=True)
        train(model, optimizer, range(1))
        optimizer.commit()
    with opened(formatted) as store:
        model = small(torch.bfloat16)
        wanted = [param.detach().clone() for param in model.parameters()]
        _, optimizer = both(store, model, masters=masters)
        with pytest.raises(spillway.SpillwayError) as caught:
            optimizer.resume()
        assert caught.value.errno == errno.EUCLEAN
        assert all(map(torch.equal, wanted, [param.detach() for param in model.parameters()]))


def test_a_store_of_another_model_is_refused_and_unchanged(formatted):
    with opened(formatted) as store:
        model = made()
        off, optimizer = both(store, model)
        train(model, optimizer, range(1), off)
        optimizer.commit()
    for other, on_drives in ((GPT(3), True), (made(), False)):
        with opened(formatted) as store:
            if on_drives:
                _, optimizer = both(store, other)
            else:
                optimizer = over(store, other)
            with pytest.raises(spillway.SpillwayError, match="has other records") as caught:
                optimizer.resume()
            assert caught.value.errno == errno.EUCLEAN
            assert on_drives or "parameters=True" in str(caught.value)
    with opened(formatted) as store:
        again = made()
        _, optimizer = both(store, again)
        with pytest.raises(spillway.SpillwayError, match="call resume.. first"):
            optimizer.commit()
        assert optimizer.resume().step == 1
        assert_same(again, model_after(1))


def model_after(steps):
    model = made()
    in_memory(model, steps)
    return model


def test_the_order_of_the_calls_is_said(formatted, folder):
    model = made()
    with spillway.Store(formatted, arena_bytes=32 << 20) as store:
        optimizer = spillway.torch.Optimizer(torch.optim.AdamW, model.named_parameters(), store)
        spillway.torch.offload(model, store, parameters=True,
                               sizes=spillway.torch.Sizes(parameter_bytes=LIMIT))
        loss_of(model, 0).backward()
        with pytest.raises(RuntimeError, match="make it after offload.parameters=True"):
            optimizer.step()
        drives = make_store(folder, 2, name="other")
        with spillway.Store(drives, arena_bytes=8 << 20) as other:
            with pytest.raises(ValueError, match="on the drives of another store"):
                spillway.torch.Optimizer(torch.optim.AdamW, model.named_parameters(), other)
            with pytest.raises(ValueError, match="are in another store"):
                spillway.torch.offload(model, other, parameters=True)


@pytest.mark.parametrize("when", ["now and then", "always"])
def test_drives_that_fail(formatted, monkeypatch, when):
    """What cannot be written stays; what cannot be read is an error that names the parameter, and
    the same call later succeeds. The numbers are the same."""
    theirs = model_after(4)
    random_ = random.Random(SEED)
    end = Place.end
    failing = []

    def ends(place, store):
        error = end(place, store)
        if error is None and failing and place.state == residency.RESIDENT and (
                when == "always" or random_.random() < 0.3):
            if place.is_clean and place.is_alone():
                place.empty()  # as after a read that failed
            return spillway.SpillwayError(errno.EIO, "said by the test")
        return error

    monkeypatch.setattr(Place, "end", ends)
    model = made()
    with opened(formatted) as store:
        off, optimizer = both(store, model)
        for step in range(4):
            state = torch.get_rng_state()
            if step == 2:
                failing.append(None)
            while True:
                torch.set_rng_state(state)
                try:
                    with off:
                        loss_of(model, step).backward()
                    break
                except (spillway.SpillwayError, RuntimeError) as error:
                    assert "cannot be read" in str(error) and "said by the test" in str(error)
                    failing.clear()
                    optimizer.zero_grad()
            failing.clear()
            optimizer.step()
            optimizer.zero_grad()
        assert_same(model, theirs)


SMALL = {"layers": 2, "hidden": 128, "vocabulary": 500, "sequence": 16, "batch": 2}


def big_in_memory():
    """The example's model, trained without spillway: losses by step, as it prints them, and
    parameters by name."""
    example = runpy.run_path(str(EXAMPLES / "big.py"))
    chosen = example["options"](options_of(devices="none", **SMALL))
    torch.manual_seed(0)
    model = example["GPT"](chosen)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    losses = {}
    for step in range(1, STEPS + 1):
        tokens = example["batch_of"](chosen)
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses[str(step)] = loss.item().hex()
    return losses, dict(model.named_parameters())


AT_COMMIT = 0  # killed as soon as the first commit has returned
DIES = """
import os, runpy, signal, sys, spillway.torch
commit = spillway.torch.Optimizer.commit
def commit_and_die(*arguments, **options):
    commit(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)
spillway.torch.Optimizer.commit = commit_and_die
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def losses_in(text):
    return {line.split()[1]: line.split()[-1] for line in text.splitlines()
            if line.startswith("step ")}


def test_killed_and_resumed_the_bits_are_those_of_memory(folder):
    """The example, killed as soon as its first commit has returned, and twice in the middle of a
    step."""
    drives = make_store(folder, 2, 64 << 20, "killed")
    random_ = random.Random(SEED)
    losses, parameters = big_in_memory()
    dies = folder / "dies.py"
    dies.write_text(DIES)
    found = {}
    for last in (AT_COMMIT, *sorted(random_.sample(range(3, STEPS // 2), 2)), None):
        with started(*([dies] if last == AT_COMMIT else []), EXAMPLES / "big.py",
                     *options_of(devices=drives, parameter_bytes="2MiB", steps=STEPS, every=2,
                                 **SMALL), stdout=subprocess.PIPE) as process:
            lines = []
            for line in process.stdout:  # to its end: it goes on until it is killed
                lines.append(line)
                if last is not None and line.startswith(f"step {last} "):
                    time.sleep(random_.random() / 20)
                    os.killpg(process.pid, signal.SIGKILL)
            found.update(losses_in("".join(lines)))
            status = process.wait()
            assert status == -signal.SIGKILL or (status == 0 and str(STEPS) in found)
            if last == AT_COMMIT:
                assert list(found) == ["1", "2"]  # there it ended, and 2 was said
    assert found == losses  # a step is said before it is committed, so no kill loses its line
    with spillway.Store(drives, read_only=True) as store:
        checkpoint.export(store, folder / "model.pt", "torch")
    committed = torch.load(folder / "model.pt")
    assert set(committed) == set(parameters)
    assert all(torch.equal(committed[name], param) for name, param in parameters.items())


@pytest.mark.parametrize("parallel", PARALLEL)
def test_two_ranks(folder, parallel):
    """Against the same without spillway; the second time from the commit of the first."""
    drives = make_store(folder, 2, 96 << 20, "ranks", partitions=2)

    def model_of():
        model = made(dropout=0.0, layers=2)
        if parallel == "ddp":
            return DistributedDataParallel(model)
        from torch.distributed.fsdp import fully_shard
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        return model

    def whole(model):
        return [getattr(value, "full_tensor", value.clone)() for value in
                model.state_dict().values()]

    def trained(rank, steps, kept):
        model = model_of()
        torch.manual_seed(7 + rank)
        if not kept:
            return in_memory(model, steps), whole(model)
        with spillway.Store(drives, partition=rank, arena_bytes=8 << 20,
                            commit=spillway.torch.newest_of_all()) as store:
            off, optimizer = both(store, model, in_backward=model if parallel == "ddp" else True)
            resumed = optimizer.resume()
            begin = resumed.step if resumed else 0
            losses = train(model, optimizer, range(begin, steps), off)
            stats = off.parameter_stats()
            assert stats.parameters >= 6 and stats.reads > 0 and stats.failures == 0
            optimizer.commit()
            if parallel != "ddp":
                for convert in model.blocks[0].up.double, functools.partial(model.to, "cpu"):
                    with pytest.raises(RuntimeError) as raised:
                        convert()
                    assert "parameters_to_memory() first" in str(raised.value.__cause__)
            values = whole(model)
            off.parameters_to_memory()
            assert all(torch.equal(one, other) for one, other in zip(values, whole(model)))
            return losses, values

    plain = together(folder, lambda rank: trained(rank, STEPS, False))
    first = together(folder, lambda rank: trained(rank, STEPS // 2, True))
    second = together(folder, lambda rank: trained(rank, STEPS, True))
    for rank in range(2):
        assert first[rank][0] + second[rank][0] == plain[rank][0]
        for mine, yours in zip(second[rank][1], plain[rank][1]):
            assert torch.equal(mine, yours)


@pytest.mark.skipif(not hasattr(distributed.distributed_c10d, "has_torch_function"),
                    reason="collectives of this PyTorch ask no class")
def test_a_collective_that_is_waited_for_later(folder):
    """It has the memory of the parameters until then."""
    drives = make_store(folder, 2, 96 << 20, "ranks", partitions=2)

    def reduced(rank):
        model, others = made(dropout=0.0, layers=2), distributed.new_group([0, 1])
        with opened(drives, partition=rank) as store, torch.no_grad():
            off = on_drives(store, model)
            if rank == 1:  # the other's are under way, and others have come in their place
                distributed.barrier(others)
            works = [distributed.all_reduce(param, async_op=True) for param in model.parameters()]
            for param in model.parameters():
                param.sum()
            if rank == 0:
                distributed.barrier(others)
            for work in works:
                work.wait()
            del works
            off.parameters_to_memory()
            return [param.clone() for param in model.parameters()]

    plain = [2 * param for param in made(dropout=0.0, layers=2).parameters()]
    for found in together(folder, reduced):
        assert all(map(torch.equal, found, plain))
