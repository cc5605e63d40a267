# SPDX-License-Identifier: MIT
# tests/python/test_optimizer_ranks.py - ranks that commit together, and all go back to one step
# layer: all
"""Ranks are children of this process, which has imported what they need."""
import contextlib
import errno
import itertools
import os
import pickle
import random
import select
import signal
import socket
import tempfile
import time
import traceback
from pathlib import Path

import pytest
import torch
from torch import nn

import spillway
import spillway.torch
from conftest import SEED, make_store
from offloading import shards
from pairs import needs_hooks
from spillway._grads.freed_placeholder import Freed
from spillway._optim.ranks import Ranks, common_commit
from spillway.state import State
from spillway.store import CommitInfo

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(),
                                reason="PyTorch is built without torch.distributed")

RANKS = 2
STEPS = 12
PARALLEL = ["ddp", pytest.param("fsdp", marks=pytest.mark.skipif(
    not shards(), reason="this PyTorch has no fully_shard, or only for GPUs: 2.7 has"))]
numbers = itertools.count()


@pytest.fixture
def parts(folder):
    """Drives with a partition for each rank."""
    paths = make_store(folder, 2, 96 << 20, partitions=RANKS)
    return paths


# ---- Processes -----------------------------------------------------------------------------------


def begin(rank, count, meeting, function, before):
    """In a child, which ends here."""
    status = 1
    try:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(1)  # those of the parent's are not here, and would be waited for
        before(rank)
        torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank,
                                             world_size=count)
        function(rank)
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def run_ranks(folder, function, before=lambda rank: None, seconds=None, count=RANKS):
    """``function(rank)`` in each. Return: how each ended; all are dead then.

    :param seconds: they are killed then
    """
    meeting = folder / f"meeting{next(numbers)}"
    children = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            begin(rank, count, meeting, function, before)
        children.append(child)
    ends = [os.pidfd_open(child) for child in children]
    try:
        poll = select.poll()
        for end in ends:
            poll.register(end, select.POLLIN)
        deadline = time.monotonic() + (120 if seconds is None else seconds)
        left = set(ends)
        while left:
            ended = poll.poll(max(0, deadline - time.monotonic()) * 1000)
            if not ended:
                break
            for end, _ in ended:
                poll.unregister(end)
                left.discard(end)
    finally:
        # All stand still before one dies: none sees that, and ends for it.
        for child in children:
            os.kill(child, signal.SIGSTOP)
        for child in children:
            os.waitid(os.P_PID, child, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            os.kill(child, signal.SIGKILL)
        for end in ends:
            os.close(end)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return statuses


def together(folder, function, count=RANKS, **options):
    """What the function returns on each rank."""
    results = [folder / f"result{rank}" for rank in range(count)]

    def saved(rank):
        results[rank].write_bytes(pickle.dumps(function(rank)))

    assert run_ranks(folder, saved, count=count, **options) == [0] * count
    return [pickle.loads(result.read_bytes()) for result in results]


@pytest.fixture
def meet_and_die():
    """Of a rank: both die, when both have come so far. So none sees the other's end before its
    own."""
    ends = socket.socketpair()
    for end in ends:
        end.settimeout(120)

    def meet_and_die(rank):
        ends[rank].send(b"-")
        assert ends[rank].recv(1) == b"-"
        os.kill(os.getpid(), signal.SIGKILL)

    yield meet_and_die
    for end in ends:
        end.close()


# ---- Training ------------------------------------------------------------------------------------


def model_of(parallel, **options):
    """Shards are of different lengths, and one is empty.

    :param options: of DistributedDataParallel
    """
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(20, 301), nn.GELU(), nn.Linear(301, 64), nn.GELU(),
                          nn.Linear(64, 1))
    if parallel == "ddp":
        return nn.parallel.DistributedDataParallel(model, **options)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    mesh = init_device_mesh("cpu", (RANKS,))
    by_columns = model[4].weight
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh, shard_placement_fn=lambda param: Shard(
        1 if param is by_columns else 0))
    return model


def local_of(tensor):
    return tensor.detach().to_local() if hasattr(tensor, "to_local") else tensor.detach()


def opened(drives, rank, **options):
    options.setdefault("commit", spillway.torch.newest_of_all())
    return spillway.Store(drives, partition=rank, arena_bytes=8 << 20, **options)


def over(store, params, tile=1009, **options):
    return spillway.torch.Optimizer(torch.optim.AdamW, params, store, tile=tile, lr=0.01, **options)


def step(model, optimizer):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 20)).pow(2).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()


def outcome(model, optimizer):
    """Parameters and state, of sharded ones what is here."""
    state = optimizer.state_dict()["state"]
    return [local_of(param).clone() for param in model.parameters()], [
        {name: local_of(value).clone() for name, value in sorted(entry.items())}
        for _, entry in sorted(state.items())]


def train_plain(parallel, rank):
    model = model_of(parallel)
    torch.manual_seed(SEED + 1 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    for _ in range(STEPS):
        step(model, optimizer)
    return outcome(model, optimizer)


@pytest.fixture(scope="module")
def plain():
    """What ranks come to without spillway; they train once for all tests."""
    known = {}

    def of(parallel):
        if parallel not in known:
            with tempfile.TemporaryDirectory() as folder:
                known[parallel] = together(Path(folder), lambda rank: train_plain(parallel, rank))
        return known[parallel]

    return of


def train(parallel, drives, rank, resumed=None, failing=()):
    """Until STEPS are made, from the last commit on. It commits every other step.

    :param resumed: here it is noted at which step
    :param failing: commits for which it is an error
    """
    model = model_of(parallel)
    torch.manual_seed(SEED + 1 + rank)
    with opened(drives, rank) as store:
        optimizer = over(store, model.parameters())
        found = optimizer.resume()
        if resumed is not None:
            resumed.append(found and found.step)
        assert found is None or found.extra == f"rank {rank}"
        while optimizer.steps < STEPS:
            step(model, optimizer)
            if optimizer.steps % 2 == 0:
                if optimizer.steps in failing:
                    with pytest.raises(spillway.SpillwayError, match="rank 1: drive 2"):
                        optimizer.commit(extra=f"rank {rank}")
                else:
                    optimizer.commit(extra=f"rank {rank}")
        return outcome(model, optimizer)


def assert_same(one, other):
    (params, states), (other_params, other_states) = one, other
    assert all(map(torch.equal, params, other_params))
    assert len(states) == len(other_states)
    for state, other_state in zip(states, other_states):
        assert state.keys() == other_state.keys()
        assert all(torch.equal(state[name], other_state[name]) for name in state)


def committed(drives):
    return [spillway.committed(drives, rank) for rank in range(RANKS)]


@pytest.mark.parametrize("parallel", PARALLEL)
def test_bits_are_those_of_the_class(folder, parts, plain, parallel):
    ours, plain = together(folder, lambda rank: train(parallel, parts, rank)), plain(parallel)
    for rank in range(RANKS):
        assert_same(ours[rank], plain[rank])
    assert committed(parts) == [CommitInfo(STEPS, None)] * RANKS
    if parallel == "fsdp":
        assert any(len(param) == 0 for param in plain[1][0])


# ---- Whole parameters ----------------------------------------------------------------------------


needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"),
                                reason="this PyTorch has no Muon: 2.9 has")


def parts_of(model):
    """(Muon's, AdamW's)"""
    params = list(model.parameters())
    return [param for param in params if param.dim() == 2], [
        param for param in params if param.dim() != 2]


def train_matrices(rank, store, option):
    """By Muon and AdamW, on drives or in memory."""
    model = model_of("ddp")
    matrices, rest = parts_of(model)
    torch.manual_seed(SEED + 1 + rank)
    if store is None:
        optimizers = [torch.optim.Muon(matrices, lr=0.1),
                      torch.optim.AdamW(rest, lr=0.01, foreach=False)]
    else:
        optimizers = [spillway.torch.Optimizer(torch.optim.AdamW, [
            {"params": matrices, "optimizer_class": torch.optim.Muon, "lr": 0.1},
            {"params": rest}], store, lr=0.01, **{name: model for name in option})]
        found = optimizers[0].resume()
        assert (found and found.step) in (None, STEPS // 2)
    begin = optimizers[0].steps if store is not None else 0
    end = STEPS if begin or store is None else STEPS // 2
    for _ in range(end - begin):
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(torch.randn(16, 20)).pow(2).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    if store is not None:
        optimizers[0].commit()
    states = [entry for optimizer in optimizers
              for _, entry in sorted(optimizer.state_dict()["state"].items())]
    return [param.detach() for param in model.parameters()], states


@needs_muon
@pytest.mark.parametrize("option", [
    [], pytest.param(["in_backward"], marks=needs_hooks),
    pytest.param(["gradients"], marks=needs_hooks)], ids=["", "in_backward", "gradients"])
def test_muon_has_the_whole_matrix_on_each_rank(folder, parts, option):
    """Half of the steps, and after that the others by new processes."""
    plain = together(folder, lambda rank: train_matrices(rank, None, option))

    def over_store(rank):
        with opened(parts, rank) as store:
            return train_matrices(rank, store, option)

    together(folder, over_store)
    ours = together(folder, over_store)
    for rank in range(RANKS):
        assert_same(ours[rank], plain[rank])


@needs_muon
@pytest.mark.skipif(not shards(), reason="this PyTorch has no fully_shard, or only for GPUs")
def test_a_shard_is_not_a_matrix(folder, parts):
    def refused(rank):
        matrices, _ = parts_of(model_of("fsdp"))
        with opened(parts, rank) as store:
            with pytest.raises(TypeError, match="group0.param0 is sharded over processes, and Muon "
                               "needs the whole parameter, .*ignored_params"):
                spillway.torch.Optimizer(torch.optim.Muon, matrices, store)

    together(folder, refused)


# ---- During the backward pass --------------------------------------------------------------------


IN_BACKWARD = [pytest.param("ddp", {"gradient_as_bucket_view": view, "bucket_cap_mb": 0.01},
                            id=f"ddp-{'views' if view else 'copies'}") for view in (False, True)]
IN_BACKWARD.append(pytest.param("fsdp", {}, id="fsdp", marks=PARALLEL[1].marks))


def during(parallel, model):
    return model if parallel == "ddp" else True


def accumulate(parallel, model):
    """A backward pass whose gradients are not reduced yet."""
    with contextlib.ExitStack() as stack:
        if parallel == "ddp":
            stack.enter_context(model.no_sync())
        for part in (model, model[0]) if parallel == "fsdp" else ():
            part.set_requires_gradient_sync(False)
            stack.callback(part.set_requires_gradient_sync, True)
        model(torch.randn(16, 20)).pow(2).mean().backward()


def trained(function, folder, parts, parallel, options, option,
            params_of=lambda model: list(model.parameters()), also=lambda model, first: first):
    """What ``function`` returns on each rank, with an optimizer over a store and with PyTorch's;
    their parameters and states are the same.

    :param option: of the first: in_backward or gradients
    :param also: another optimizer, beside the one of these parameters
    """
    def in_memory(rank):
        return function(parallel, rank, options, lambda model: also(model, torch.optim.AdamW(
            params_of(model), lr=0.01, foreach=False)))

    def over_store(rank):
        with opened(parts, rank) as store:
            return function(parallel, rank, options, lambda model: also(model, over(
                store, params_of(model), **{option: model if parallel == "ddp" else True})))

    plain, ours = together(folder, in_memory), together(folder, over_store)
    for rank in range(RANKS):
        assert_same(ours[rank][:2], plain[rank][:2])
    return zip(ours, plain)

def train_in_backward(parallel, rank, options, make):
    """
    :param make: an optimizer of a model
    :return: also how many gradients there were after a backward pass, at most; of those that are
        accumulated all are there before
    """
    model = model_of(parallel, **options)
    torch.manual_seed(SEED + 1 + rank)
    optimizer = make(model)
    left = 0
    for number in range(STEPS):
        optimizer.zero_grad()
        accumulated = number % 3 == 2
        if accumulated:
            accumulate(parallel, model)
        model(torch.randn(16, 20)).pow(2).mean().backward()
        if not accumulated:
            left = max(left, sum(param.grad is not None and not isinstance(param.grad, Freed)
                                 for param in model.parameters()))
        optimizer.step()
    return (*outcome(model, optimizer), left)


@needs_hooks
@pytest.mark.parametrize("parallel, options", IN_BACKWARD)
def test_tiles_are_stepped_after_the_reduction(folder, parts, parallel, options):
    for ours, plain in trained(train_in_backward, folder, parts, parallel, options, "in_backward"):
        assert (ours[2], plain[2]) == (0, 6)


def partly_used(model, optimizer):
    """Parameters of which some tiles were stepped in the backward pass, and some were not."""
    return [param for number, param in enumerate(model.parameters())
            if number in optimizer._during._changed and not isinstance(param.grad, Freed)]


def backward_read_to_the_end(model):
    """A backward pass. The tiles of the second layer are left to step(): something still has its
    weight. Return: what has it."""
    loss = model(torch.randn(16, 20)).pow(2).mean()
    reader = model.module[2].weight.detach()
    loss.backward()
    return reader


def replace(param, grad):
    param.grad = grad


TOO_LATE = [lambda optimizer, _model, _param: optimizer.zero_grad(),
            lambda _optimizer, model, _param: model.zero_grad(),
            lambda _optimizer, _model, param: replace(param, None),
            lambda _optimizer, _model, param: replace(param, torch.zeros_like(param))]


@needs_hooks
@pytest.mark.parametrize("view", [False, True])
def test_an_update_that_is_skipped_too_late_is_refused(folder, parts, view):
    """Whichever way it is skipped; one more call of step() makes it. The last gradient is changed
    in part: that ends it."""
    def train(parallel, rank, options, make):
        model = model_of(parallel, **options)
        torch.manual_seed(SEED + 1 + rank)
        optimizer = make(model)
        ours = isinstance(optimizer, spillway.torch.Optimizer)
        for skip in TOO_LATE:
            optimizer.zero_grad()
            reader = backward_read_to_the_end(model)
            if ours:
                unused = [(param, param.grad) for number, param in enumerate(model.parameters())
                          if number not in optimizer._during._changed]
                skip(optimizer, model, partly_used(model, optimizer)[-1])
                with pytest.raises(RuntimeError, match=r"(dropped|replaced) since the backward "
                                   r"pass.*call step\(\) once more"):
                    optimizer.step()
                for param, grad in unused:  # those may be skipped
                    param.grad = grad
            optimizer.step()
            del reader
        found = outcome(model, optimizer)
        if ours:
            reader = backward_read_to_the_end(model)
            partly_used(model, optimizer)[-1].grad[:1].add_(1)
            for _ in range(2):
                with pytest.raises(RuntimeError, match=r"was changed since .*the last commit\.$"):
                    optimizer.step()
            del reader
        return found

    trained(train, folder, parts, "ddp", {"gradient_as_bucket_view": view}, "in_backward")


@needs_hooks
@pytest.mark.parametrize("view", [False, True])
def test_what_is_no_other_update_is_no_error(folder, parts, view):
    """A gradient that nothing has used is changed, beside others of its bucket that were used; one
    that was used is replaced by its copy, as a reducer does when it makes new buckets."""
    def train(parallel, rank, options, make):
        model = model_of(parallel, **options)
        torch.manual_seed(SEED + 1 + rank)
        optimizer = make(model)
        ours = isinstance(optimizer, spillway.torch.Optimizer)
        for number in range(4):
            optimizer.zero_grad()
            reader = backward_read_to_the_end(model)
            assert not ours or partly_used(model, optimizer)
            list(model.parameters())[2].grad.mul_(0.5)
            if ours and number > 1:
                param = partly_used(model, optimizer)[-1]
                replace(param, param.grad.clone())
            optimizer.step()
            del reader
        return outcome(model, optimizer)

    trained(train, folder, parts, "ddp", {"gradient_as_bucket_view": view}, "in_backward")


def train_with_clipping(parallel, rank, options, make):
    """Micro-batches, of which each, the last or all but the first are reduced.

    :param make: an optimizer of a model
    :return: also the norms, and the gradients that are there as plain tensors, at most
    """
    model = model_of(parallel, **options)
    torch.manual_seed(SEED + 1 + rank)
    optimizer = make(model)
    norms, plain = [], 0
    for number in range(STEPS):
        for micro in range(3):
            if number % 3 == 1 and micro < 2 or number % 3 == 2 and micro == 0:
                accumulate(parallel, model)
            else:
                model(torch.randn(16, 20)).pow(2).mean().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        norms.append(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        plain = max(plain, sum(type(local_of(param.grad)) is torch.Tensor
                               for param in model.parameters()))
        optimizer.step()
        optimizer.zero_grad()
    return (*outcome(model, optimizer), norms, plain)


@needs_hooks
@pytest.mark.parametrize("parallel, options", IN_BACKWARD)
def test_gradients_on_drives_are_those_of_the_reduction(folder, parts, parallel, options):
    """Whatever is reduced when: the norms are the same, too."""
    for ours, plain in trained(train_with_clipping, folder, parts, parallel, options, "gradients"):
        assert all(map(torch.equal, ours[2], plain[2]))
        assert (ours[3], plain[3]) == (0, 6)


def train_with_evaluation(rank, options, make, forward, none):
    """
    :param forward: between the backward pass and step(): with or without gradients; None: there is
        none
    :param none: of zero_grad(set_to_none=)
    :return: also what that gives
    """
    model = model_of("ddp", **options)
    torch.manual_seed(SEED + 1 + rank)
    optimizer = make(model)
    seen = []
    for number in range(6):
        optimizer.zero_grad(set_to_none=none)
        if number % 3 == 2:
            accumulate("ddp", model)
        model(torch.randn(16, 20)).pow(2).mean().backward()
        if forward is not None:
            with torch.set_grad_enabled(forward == "with gradients"):
                seen.append(model(torch.ones(4, 20)).detach().clone())
        optimizer.step()
    return (*outcome(model, optimizer), seen)


@needs_hooks
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("option, forward, none", [
    ("in_backward", None, False), ("gradients", "without gradients", True),
    ("gradients", "with gradients", True)])
def test_evaluation_and_zeroed_gradients(folder, parts, view, option, forward, none):
    def function(_, rank, options, make):
        return train_with_evaluation(rank, options, make, forward, none)

    options = {"gradient_as_bucket_view": view, "bucket_cap_mb": 0.01}
    for ours, plain in trained(function, folder, parts, "ddp", options, option):
        assert len(ours[2]) == len(plain[2]) and all(map(torch.equal, ours[2], plain[2]))


@needs_hooks
def test_parameters_of_another_optimizer_are_reduced_too(folder, parts):
    """Of one DistributedDataParallel."""
    class Two:
        def __init__(self, *optimizers):
            self.zero_grad = lambda: [one.zero_grad() for one in optimizers]
            self.step = lambda: [one.step() for one in optimizers]
            self.state_dict = optimizers[0].state_dict

    def both(model, first):
        return Two(first, torch.optim.SGD(list(model.parameters())[:2], lr=0.1, foreach=False))

    for ours, _ in trained(train_in_backward, folder, parts, "ddp", {"bucket_cap_mb": 0.01},
                           "in_backward", lambda model: list(model.parameters())[2:], both):
        assert ours[2] == 2


def train_with_uneven_inputs(parallel, rank, options, make):
    """The first rank ends earlier, and helps the other then."""
    model = model_of(parallel, **options)
    torch.manual_seed(SEED + 1 + rank)
    optimizer = make(model)
    with model.join():
        for _ in range(3 + 2 * rank):
            optimizer.zero_grad()
            model(torch.randn(16, 20)).pow(2).mean().backward()
            optimizer.step()
    return outcome(model, optimizer)


@needs_hooks
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("option", ["in_backward", "gradients"])
def test_ranks_with_uneven_inputs(folder, parts, option, view):
    options = {"gradient_as_bucket_view": view, "bucket_cap_mb": 0.01}
    for _ in trained(train_with_uneven_inputs, folder, parts, "ddp", options, option):
        pass


@needs_hooks
@pytest.mark.parametrize("divides, masters, words", [
    (False, False, "that a communication hook is not told"),
    (True, True, "and not its masters")])
def test_a_join_that_comes_to_other_numbers_is_refused(folder, parts, divides, masters, words):
    def refuse(rank):
        model = model_of("ddp")
        with opened(parts, rank) as store:
            over(store, model.parameters(), in_backward=model, masters=masters)
            with model.join(divide_by_initial_world_size=divides):
                with pytest.raises(RuntimeError, match=words):
                    model(torch.randn(16, 20)).sum().backward()
                os._exit(0)

    assert run_ranks(folder, refuse) == [0] * RANKS


@needs_hooks
def test_what_cannot_be_reduced_first_is_refused(folder, parts):
    def refuse(rank):
        with opened(parts, rank) as store:
            for name in ("find_unused_parameters", "static_graph"):
                model = model_of("ddp", **{name: True})
                with pytest.raises(ValueError, match="static_graph=True"):
                    over(store, model.parameters(), in_backward=model)
            model = model_of("ddp")
            with pytest.raises(RuntimeError, match="none of those whose gradients it reduces"):
                over(store, [nn.Parameter(torch.ones(3))], in_backward=model)
            with pytest.raises(RuntimeError, match="called once"):  # the hook of the one before
                over(store, model.parameters(), in_backward=model)
            with pytest.raises(RuntimeError, match="give in_backward=model"):
                over(store, model.parameters(), in_backward=True)

    together(folder, refuse)


# ---- Crashes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", PARALLEL)
def test_ranks_that_are_killed_at_any_moment_come_to_the_same_bits(folder, parts, plain, parallel):
    source = random.Random(SEED)
    others = make_store(folder, 1, 96 << 20, "other", partitions=RANKS)
    begun = time.monotonic()
    together(folder, lambda rank: train(parallel, others, rank))
    seconds = time.monotonic() - begun
    results = [folder / f"killed{rank}" for rank in range(RANKS)]

    def saved(rank):
        results[rank].write_bytes(pickle.dumps(train(parallel, parts, rank)))

    kills, statuses = 0, []
    while statuses != [0] * RANKS or kills == 0:
        if statuses == [0] * RANKS:  # faster than the run that was timed: once more, from the start
            seconds /= 2
            spillway.format_store(parts, partitions=RANKS, force=True, erase=True)
        statuses = run_ranks(folder, saved, seconds=seconds * source.uniform(0.05, 0.9)
                             if kills < 8 else None)
        assert set(statuses) <= {0, -signal.SIGKILL}
        kills += statuses != [0] * RANKS
        assert kills <= 8
    print(f"killed {kills} times")
    for rank in range(RANKS):
        assert_same(pickle.loads(results[rank].read_bytes()), plain(parallel)[rank])


class Moment:
    """Ranks die around a commit.

    :param die: of a rank
    :param number: that one rank makes, and dies before it knows of the other
    :param ahead: which
    :param behind: the other dies before it makes this one
    :param fails: an earlier commit, which rank 1 cannot make
    """

    def __init__(self, die, number, ahead, behind, fails):
        self.die, self.number, self.ahead = die, number, ahead
        self.behind, self.fails = behind, fails

    def __call__(self, rank):
        commit, gather = State.commit, Ranks.gather
        done = []

        def commit_or_die(state, number, *arguments):
            if number == self.behind and rank != self.ahead:
                self.die(rank)
            if number == self.fails and rank == 1:
                raise spillway.SpillwayError(errno.EIO, "drive 2 could not flush")
            commit(state, number, *arguments)
            done.append(number)

        def gather_or_die(ranks, mine):
            if done[-1:] == [self.number]:
                self.die(rank)
            return gather(ranks, mine)

        State.commit, Ranks.gather = commit_or_die, gather_or_die


@pytest.mark.parametrize("parallel", PARALLEL)
@pytest.mark.parametrize("number, ahead, behind, fails, infos, step", [
    (6, 0, 6, None, [CommitInfo(6, 4), CommitInfo(4, None)], 4),
    (6, 1, 6, None, [CommitInfo(4, None), CommitInfo(6, 4)], 4),
    (2, 0, 0, None, [CommitInfo(2, 0), None], None),
    (2, 1, 2, None, [CommitInfo(0, None), CommitInfo(2, 0)], 2),
    (6, 0, 6, 4, [CommitInfo(6, 2), CommitInfo(2, None)], 2),
    (4, 0, 4, 2, [CommitInfo(4, 0), CommitInfo(0, None)], 2)],
    ids=["0 ahead", "1 ahead", "before the first", "in the first", "one failed",
         "the first failed"])
def test_killed_between_the_commits_of_two_ranks(folder, parts, plain, meet_and_die, parallel,
                                                 number, ahead, behind, fails, infos, step):
    moment = Moment(meet_and_die, number, ahead, behind, fails)
    assert run_ranks(folder, lambda rank: train(parallel, parts, rank, failing=[fails]),
                     before=moment) == [-signal.SIGKILL] * RANKS
    assert committed(parts) == infos

    def resumed_and_trained(rank):
        resumed = []
        return train(parallel, parts, rank, resumed), resumed

    ours = together(folder, resumed_and_trained)
    for rank in range(RANKS):
        assert_same(ours[rank][0], plain(parallel)[rank])
        assert ours[rank][1] == [step]


def test_killed_before_one_rank_has_released(folder, parts, meet_and_die):
    """All have the new one: none goes back."""
    def before(rank):
        release = State.commit_release
        releases = []

        def release_or_die(state):
            releases.append(None)
            if rank == 1 or len(releases) < 3:
                release(state)
            if len(releases) == 3:
                meet_and_die(rank)

        State.commit_release = release_or_die

    assert run_ranks(folder, lambda rank: train("ddp", parts, rank),
                     before=before) == [-signal.SIGKILL] * RANKS
    assert committed(parts) == [CommitInfo(6, 4), CommitInfo(6, None)]

    def resumed(rank):
        steps = []
        train("ddp", parts, rank, steps)
        return steps

    assert together(folder, resumed) == [[6], [6]]


# ---- Shards --------------------------------------------------------------------------------------


@pytest.mark.skipif(not shards(),
                    reason="this PyTorch has no fully_shard, or only for GPUs: 2.7 has")
@pytest.mark.parametrize("kind", [True, "compact"])
def test_masters_of_shards_and_the_state_of_the_class(folder, parts, kind):
    def masters(rank):
        model = model_of("fsdp").bfloat16()
        masters = [nn.Parameter(local_of(param).float()) for param in model.parameters()]
        plain = torch.optim.AdamW(masters, lr=0.01, foreach=False)
        with opened(parts, rank) as store:
            optimizer = over(store, model.parameters(), masters=kind)
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(16, 20).bfloat16()).pow(2).mean().backward()
                for master, param in zip(masters, model.parameters()):
                    master.grad = param.grad.to_local().float()
                plain.step()
                optimizer.step()
                for master, param in zip(masters, model.parameters()):
                    assert torch.equal(local_of(param), master.detach().bfloat16())

    def loaded(rank):
        ours, theirs = model_of("fsdp"), model_of("fsdp")
        plain = torch.optim.AdamW(theirs.parameters(), lr=0.01, foreach=False)
        with opened(parts, rank) as store:
            optimizer = over(store, ours.parameters())
            optimizer.step()
            for number in range(4):
                for model, each in ((theirs, plain), (ours, optimizer)):
                    if number >= 2 or each is plain:
                        torch.manual_seed(SEED + number)
                        step(model, each)
                if number == 1:  # what is sharded is taken over, too
                    optimizer.load_state_dict(plain.state_dict())
                    with torch.no_grad():
                        for mine, yours in zip(ours.parameters(), theirs.parameters()):
                            mine.copy_(yours)
            assert_same(outcome(ours, optimizer), outcome(theirs, plain))
            optimizer.load_state_dict(optimizer.state_dict())
            assert_same(outcome(ours, optimizer), outcome(theirs, plain))

    together(folder, masters)
    together(folder, loaded)


@pytest.mark.skipif(not shards(),
                    reason="this PyTorch has no fully_shard, or only for GPUs: 2.7 has")
def test_shards_that_are_not_flat(folder, parts):
    def run(rank):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Replicate, Shard

        mesh = init_device_mesh("cpu", (RANKS,))

        def sharded(values, placement=Shard(0)):
            return DTensor.from_local(values, mesh, [placement])

        value = torch.randn(300, 200)
        param = nn.Parameter(sharded(value.t()))
        master = nn.Parameter(value.t().clone())
        assert not param.to_local().is_contiguous()
        plain = torch.optim.AdamW([master], lr=0.01, foreach=False)
        with opened(parts, rank) as store:
            optimizer = over(store, [param], tile=17000)
            for _ in range(3):
                grad = torch.randn(300, 200)
                param.grad, master.grad = sharded(grad.t()), grad.t()
                optimizer.step()
                plain.step()
                assert torch.equal(local_of(param), master.detach())
            state = optimizer.state_dict()["state"][0]
            assert torch.equal(state["exp_avg"], plain.state_dict()["state"][0]["exp_avg"])
            param.grad = sharded(torch.zeros(RANKS * 200, 300), Replicate())
            with pytest.raises(TypeError, match="and its gradient as .*Replicate"):
                optimizer.step()

    together(folder, run)


# ---- Errors --------------------------------------------------------------------------------------


def linear_over(store, **options):
    model = nn.Linear(300, 20)
    return model, over(store, model.parameters(), **options)


def few_steps(model, optimizer, count=1):
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.ones(2, 300)).sum().backward()
        optimizer.step()


def error_of(function):
    """Its number and its words, or its type."""
    with pytest.raises((OSError, TypeError, ValueError, RuntimeError)) as caught:
        function()
    if isinstance(caught.value, spillway.SpillwayError):
        return caught.value.errno, caught.value.strerror
    return type(caught.value).__name__, str(caught.value)


def test_a_commit_that_one_rank_cannot_make(folder, parts):
    def run(rank):
        with opened(parts, rank) as store:
            model, optimizer = linear_over(store)
            few_steps(model, optimizer)
            optimizer.commit()
            few_steps(model, optimizer)
            strange = error_of(lambda: optimizer.commit(extra=object() if rank == 1 else None))
            different = error_of(lambda: optimizer.commit(step=5 + rank))
            torch.distributed.barrier()
            kept = committed(parts)
            torch.distributed.barrier()
            optimizer.commit(step=7)
            return strange, different, kept

    for rank, (strange, different, kept) in enumerate(together(folder, run)):
        assert strange[0] == ("TypeError" if rank == 1 else errno.ECANCELED)
        assert rank == 1 or "rank 1: TypeError: " in strange[1]
        assert different[0] == errno.EINVAL and "rank 0 5, rank 1 6" in different[1]
        assert kept == [CommitInfo(5, 1), CommitInfo(6, 1)]
    assert committed(parts) == [CommitInfo(7, None)] * RANKS


def test_a_commit_that_one_rank_cannot_release(folder, parts):
    """It is released before the next, without which no next is made."""
    def run(rank):
        release, failures = State.commit_release, [None] * 2

        def failing(state):
            if rank == 1 and failures:
                failures.pop()
                raise spillway.SpillwayError(errno.EIO, "drive 2 could not flush")
            release(state)

        with opened(parts, rank) as store:
            model, optimizer = linear_over(store)
            few_steps(model, optimizer)
            State.commit_release = failing
            optimizer.commit()
            few_steps(model, optimizer)
            error = error_of(optimizer.commit)
            torch.distributed.barrier()
            kept = committed(parts)
            torch.distributed.barrier()
            optimizer.commit(step=3)
            return error, kept

    for error, kept in together(folder, run):
        assert error[0] == errno.EIO and "rank 1: drive 2 could not flush" in error[1]
        assert kept == [CommitInfo(2, 1), CommitInfo(1, 0)]
    assert committed(parts) == [CommitInfo(3, None)] * RANKS


def test_after_an_agreement_that_did_not_end_no_commit_follows(folder, parts):
    def run(rank):
        def interrupted(*_, **__):
            raise KeyboardInterrupt

        with opened(parts, rank) as store:
            model, optimizer = linear_over(store)
            gather = torch.distributed.all_gather_object
            torch.distributed.all_gather_object = interrupted
            with pytest.raises(KeyboardInterrupt):
                optimizer.commit()
            torch.distributed.all_gather_object = gather
            few_steps(model, optimizer)
            return error_of(optimizer.commit)

    assert all("did not get to agree" in words for _, words in together(folder, run))


def test_a_store_that_is_opened_without_the_others(folder, parts):
    """Is refused at the first start: at a crash it would be too late."""
    def run(rank):
        with opened(parts, rank, commit="newest") as store:
            refused = error_of(lambda: linear_over(store))
            model, optimizer = linear_over(store, process_group=None)
            few_steps(model, optimizer, 2 + rank)
            optimizer.commit(keep_previous=True)
            optimizer.commit_release()
        torch.distributed.barrier()
        lost = error_of(lambda: opened(parts, rank))
        with opened(parts, rank, commit=2 + rank) as store:
            _, optimizer = linear_over(store)
            different = error_of(optimizer.resume)
            together_only = error_of(lambda: optimizer.commit(keep_previous=True))
        return refused, lost, different, together_only

    for refused, lost, different, together_only in together(folder, run):
        assert refused[0] == "ValueError" and "newest_of_all()" in refused[1]
        assert lost[0] == errno.ENODATA and "rank 0 2, rank 1 3" in lost[1]
        assert different[0] == errno.EUCLEAN and "rank 0 2, rank 1 3" in different[1]
        assert together_only[0] == "ValueError" and "process_group=None" in together_only[1]
    assert committed(parts) == [CommitInfo(2, None), CommitInfo(3, None)]


def test_a_rank_with_the_partition_of_another_or_none(folder, parts):
    def committing(rank):
        with opened(parts, rank) as store:
            model, optimizer = linear_over(store)
            few_steps(model, optimizer)
            optimizer.commit()

    def swapped(rank):
        with opened(parts, 1 - rank) as store:
            _, optimizer = linear_over(store)
            swapped = error_of(optimizer.resume)
        torch.distributed.barrier()
        none = error_of(lambda: opened(parts, 2 * rank))
        unread = error_of(lambda: opened(parts, None))
        return swapped, none, unread

    together(folder, committing)
    for swapped, none, unread in together(folder, swapped):
        assert swapped[0] == errno.EUCLEAN and "rank 0: " in swapped[1] and "rank 1: " in swapped[1]
        assert "it is of rank 1 of 2, and this is rank 0 of 2" in swapped[1]
        assert none[0] == errno.EINVAL and "rank 1: partition 2 does not exist" in none[1]
        assert unread[0] == "ValueError"
    with opened(parts, 1) as store:  # one process goes on with what one of several had
        _, optimizer = linear_over(store)
        assert optimizer.resume().step == 1


# ---- Which commit --------------------------------------------------------------------------------


def had(info):
    """Two numbers, of the same ranks."""
    return {number: None for number in info or () if number is not None}


@pytest.mark.parametrize("infos, number", [
    ([(5, None), (5, None)], 5),
    ([(5, 3), (3, None)], 3),
    ([(3, None), (5, 3), (5, 3)], 3),
    ([(5, 3), (5, None)], 5),
    ([(5, 3), (5, 3)], 5),
    ([(5, 3), (7, 3)], 3),
    ([(5, 0), (0, None)], 0),
    ([(5, 0), None], None),
    ([None, (0, None)], None),
    ([None, None], None),
    ([(5, None)], 5),
])
def test_the_newest_that_all_have(infos, number):
    all_have = [had(info) for info in infos]
    assert common_commit(all_have, len(all_have)) == (number, len(all_have))
    assert common_commit(all_have[::-1], len(all_have)) == (number, len(all_have))


@pytest.mark.parametrize("infos, words", [
    ([(5, None), None], "rank 0 5, rank 1 nothing"),
    ([(7, 5), (9, None)], "rank 0 5 and 7, rank 1 9"),
    ([(5, 0), None, (5, None)], "rank 1 nothing"),
])
def test_nothing_in_common_is_an_error(infos, words):
    """And not a reason to start over: what some ranks have would be lost."""
    with pytest.raises(spillway.SpillwayError, match=words) as caught:
        common_commit([had(info) for info in infos], len(infos))
    assert caught.value.errno == errno.ENODATA


def test_one_process_needs_no_group(parts):
    with opened(parts, 1) as store:
        model, optimizer = linear_over(store)
        few_steps(model, optimizer)
        optimizer.commit()
    assert committed(parts) == [None, CommitInfo(1, None)]
    with opened(parts, 1) as store:
        assert linear_over(store)[1].resume().step == 1
    with pytest.raises(ValueError, match="process_group must be"), opened(parts, 0) as store:
        linear_over(store, process_group="some")
