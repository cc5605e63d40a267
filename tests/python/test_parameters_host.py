# SPDX-License-Identifier: MIT
# tests/python/test_parameters_host.py - host_bytes of parameters on drives: what stays is not read
"""What a step reads is compared with what the rule promises: none reads less than the one that
knows the future, which this file computes from the uses that there were."""
import contextlib
import gc
import logging

import pytest
import torch
from torch import nn

import spillway
import spillway.torch
from offloading import equal, gradients_of
from spillway import plan
from spillway._gpu import host_memory
from spillway._params import materialize
from spillway._params.parameters import Parameters, place_in
from spillway._params.residency import Place

pytestmark = pytest.mark.skipif(materialize.storage_uses is None,
                                reason="this PyTorch counts no uses of storages: 2.1 does")
MIB = 1 << 20
WIDTH, LAYERS = 512, 8  # a matrix is 1 MiB
MATRIX = WIDTH * WIDTH * 4
TOTAL = LAYERS * MATRIX
NEAR = 2 * MATRIX  # of what comes that soon the next may be read before what is needed last can go


def chain():
    torch.manual_seed(1)
    return nn.Sequential(*(layer for _ in range(LAYERS)
                           for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


def loss_of(model, number):
    rows = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(number))
    return model(rows).pow(2).mean()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)


def ours(model, store, **options):
    return spillway.torch.Optimizer(torch.optim.SGD, model.named_parameters(), store, lr=0.1,
                                    momentum=0.9, tile=100000, **options)


def steps_of(model, micros, steps, off=None, optimizer=None, each=lambda: None):
    """Losses and all gradients of each step."""
    found = []
    for step in range(steps):
        losses = []
        for micro in range(micros):
            with off or contextlib.nullcontext():
                loss = loss_of(model, step * micros + micro)
                loss.backward()
            losses.append(loss.item())
        found.append((losses, gradients_of(model)))
        if optimizer is not None:
            optimizer.step()
        for param in model.parameters():
            param.grad = None
        each()
    return found


def assert_same(one, other):
    assert len(one) == len(other)
    for (losses, grads), (other_losses, other_grads) in zip(one, other):
        assert losses == other_losses and len(grads) == 2 * LAYERS and equal(grads, other_grads)


class Watched:
    """All uses, and the most bytes of parameters that have had memory."""

    def __init__(self, monkeypatch, model):
        self.uses, self.bytes_max, self.steps = [], 0, []
        self._params = list(model.parameters())
        use, begin_read = Parameters._use, Place.begin_read

        def used(owner, place):
            self.uses.append(place)
            use(owner, place)

        def begun(place, *args):
            begin_read(place, *args)
            self.bytes_max = max(self.bytes_max, self.bytes)

        monkeypatch.setattr(Parameters, "_use", used)
        monkeypatch.setattr(Place, "begin_read", begun)

    @property
    def bytes(self):
        places = filter(None, map(place_in, self._params))
        return sum(place.storage.nbytes() for place in places)

    def step_ends(self):
        self.steps.append(len(self.uses))

    def least_reads(self, room_bytes):
        """Of each step, in bytes, of what knows which uses are to come (Belady's rule)."""
        following, last = [0] * len(self.uses), {}
        for number in reversed(range(len(self.uses))):
            following[number] = last.get(self.uses[number], len(self.uses) * 2)
            last[self.uses[number]] = number
        here, reads, found = {}, 0, []
        for number, place in enumerate(self.uses):
            if place not in here:
                reads += place.length
                if (len(here) + 1) * MATRIX > room_bytes:
                    del here[max(here, key=lambda each: here[each])]
            here[place] = following[number]
            if number + 1 in self.steps:
                found.append(reads)
                reads = 0
        return found


@contextlib.contextmanager
def over(store, model, host_bytes, **options):
    off = spillway.torch.offload(model, store, mode="observe", parameters=True,
                                 host_bytes=host_bytes, **options)
    try:
        yield off
    finally:
        off.parameters_to_memory()
        off.close()


@pytest.mark.parametrize("micros", [1, 4])
@pytest.mark.parametrize("host_bytes", [2 * MIB, 5 * MIB, 7 * MIB, 8 * MIB, 64 * MIB])
def test_what_stays_is_not_read(store, monkeypatch, host_bytes, micros):
    """As few bytes as can be: what memory does not hold, for each pass."""
    expected = steps_of(chain(), micros, 6)
    model, reads = chain(), []
    with over(store, model, host_bytes) as off:
        watched = Watched(monkeypatch, model)
        assert watched.bytes <= host_bytes

        def each():
            watched.step_ends()
            reads.append(store.stats().bytes_read)  # there is nothing else on the drives

        assert_same(steps_of(model, micros, 6, off, each=each), expected)
        of_steps = [after - before for before, after in zip(reads, reads[1:])]
        kept = min(host_bytes // MATRIX * MATRIX, TOTAL)
        assert watched.least_reads(kept)[2:] == [2 * micros * (TOTAL - kept)] * 4
        # What is prefetched at the end of a step is of the next one.
        ahead = MATRIX if kept < TOTAL else 0
        assert abs(sum(of_steps[1:]) - 4 * 2 * micros * (TOTAL - kept)) <= ahead, of_steps
        assert max(of_steps[1:]) <= 2 * micros * (TOTAL - kept) + ahead, of_steps
        assert watched.bytes_max <= host_bytes
        stats = off.parameter_stats()
        assert stats.limit_bytes == min(host_bytes, TOTAL) and stats.total_bytes == TOTAL
        assert stats.memory_bytes_max <= stats.limit_bytes and stats.memory_bytes_over == 0
        assert (stats.bytes_read > 0) == (kept < TOTAL)


@pytest.mark.parametrize("micros, options", [
    (1, None), (4, None), (1, {}), (4, {}), (4, {"gradients": True}), (1, {"in_backward": True})],
    ids=["PyTorch's", "PyTorch's, 4", "ours", "ours, 4", "gradients, 4", "in the backward pass"])
@pytest.mark.parametrize("host_bytes", [5 * MIB, 7 * MIB])
def test_what_an_optimizer_changes_stays(store, monkeypatch, host_bytes, micros, options):
    """Its step is one use more of all parameters, in an order of its own; what is held in memory
    has its values, and is not read for them."""
    theirs, model, steps = chain(), chain(), 9
    expected = steps_of(theirs, micros, steps, optimizer=sgd(theirs))
    found, reads = [], []
    with over(store, model, host_bytes) as off:
        optimizer = sgd(model) if options is None else ours(model, store, **options)
        watched = Watched(monkeypatch, model)

        def each():
            watched.step_ends()
            reads.append(off.parameter_stats().bytes_read)

        with contextlib.closing(optimizer) if options is not None else contextlib.nullcontext():
            for step in range(steps):
                losses = []
                for micro in range(micros):
                    with off:
                        loss = loss_of(model, step * micros + micro)
                        loss.backward()
                    losses.append(loss.item())
                found.append(losses)
                optimizer.step()
                optimizer.zero_grad()
                each()
        assert found == [losses for losses, _ in expected]
        of_steps = [after - before for before, after in zip(reads, reads[1:])]
        passes = 2 * micros + ("in_backward" not in (options or {}))
        least = watched.least_reads(host_bytes)[1:]
        # Where passes in one direction follow each other, what is near is read early: before the
        # optimizer's pass, and after it. What is prefetched at the end is of the next step.
        read, count = sum(of_steps[3:]), len(of_steps[3:])
        assert sum(least[3:]) - NEAR <= read <= sum(least[3:]) + count * 2 * NEAR, of_steps
        assert read <= count * (passes * (TOTAL - host_bytes) + 2 * NEAR), of_steps
        assert watched.bytes_max <= host_bytes + off.parameter_stats().memory_bytes_over
        assert off.parameter_stats().memory_bytes_over == 0
    assert equal([param.detach() for param in model.parameters()],
                 [param.detach() for param in theirs.parameters()])


@pytest.mark.parametrize("micros, options", [(4, {"gradients": True}), (1, {"in_backward": True})],
                         ids=["4", "1"])
@pytest.mark.parametrize("host_bytes", [3 * MIB, 5 * MIB, 8 * MIB])
def test_a_step_is_as_planned(store, host_bytes, micros, options):
    """What `python -m spillway.plan --host-bytes` says of bytes read and written, and of memory."""
    model, seen = chain(), []
    said, = (row for row in plan.plan(
        plan.Model("chain", TOTAL // 4, 4, MATRIX, MATRIX, 1, 1, micros, 1.0),
        plan.optimizer_of("momentum", 4), plan.Machine(1 << 40, 1 << 40, 1e9, 1e9, 1e9),
        ("parameters", "optimizer", "gradients"), host_bytes).rows if row.kind == "parameters")
    with over(store, model, host_bytes) as off:
        optimizer = ours(model, store, **options)
        with contextlib.closing(optimizer):
            for step in range(9):
                for micro in range(micros):
                    with off:
                        loss_of(model, step * micros + micro).backward()
                optimizer.step()
                optimizer.zero_grad()
                stats = off.parameter_stats()
                seen.append((stats.bytes_read, stats.bytes_written))
            assert stats.memory_bytes_max <= said.memory_bytes
    read, written = ((last - first) / 5 for first, last in zip(seen[3], seen[8]))
    # Passes in one direction, of the optimizer and of the next forward pass, read some early.
    more = 2 * NEAR if micros > 1 else MATRIX // 2
    assert abs(read - said.read_bytes) <= more, (read / MATRIX, said)
    assert abs(written - said.written_bytes) <= more, (written / MATRIX, said)


def test_passes_in_one_direction_keep_what_they_can(store):
    """The one used longest ago is used next: what is evicted for that reads all, every time."""
    model, theirs = chain(), chain()
    with over(store, model, 6 * MIB) as off, torch.no_grad():
        read = 0
        for number in range(6):
            assert torch.equal(loss_of(model, number), loss_of(theirs, number))
            before, read = read, off.parameter_stats().bytes_read
        assert read - before <= TOTAL - (6 * MIB - NEAR), (read - before) / MATRIX


def test_changes_by_others_are_not_lost(store):
    """In what stays and in what has left: by PyTorch's functions, and past them."""
    model, theirs = chain(), chain()
    with over(store, model, 5 * MIB) as off:
        for step in range(4):
            found = [steps_of(each, 2, 1, within) for each, within in ((model, off),
                                                                       (theirs, None))]
            assert_same(*found)
            for each in model, theirs:
                with torch.no_grad():
                    each[2 * step].weight.mul_(0.5)
                    each[14 - 2 * step].weight.data.add_(0.25)
                    memory = each[6].weight.data.numpy()
                    memory += 0.125
        assert 0 < off.parameter_stats().bytes_read


def test_a_materialized_model_stays_within_it(store):
    torch.manual_seed(1)
    model = spillway.torch.materialize(chain, store, parameter_bytes=2 * MIB)
    with over(store, model, 6 * MIB) as off:
        assert_same(steps_of(model, 2, 3, off), steps_of(chain(), 2, 3))
        stats = off.parameter_stats()
        assert stats.memory_bytes_over == 0 and stats.memory_bytes_max <= 6 * MIB < TOTAL
        assert 2 * MIB < stats.memory_bytes


def test_more_than_is_free_is_not_used(store, monkeypatch, caplog):
    model = spillway.torch.materialize(chain, store, parameter_bytes=2 * MIB)
    monkeypatch.setattr(host_memory, "free_memory", lambda: 2 * MIB)
    with caplog.at_level(logging.WARNING, "spillway"), over(store, model, 7 * MIB) as off:
        assert ("host_bytes is 7.0 MiB, but this process and its control groups have 2.0 MiB of "
                "memory free") in caplog.text
        assert off.parameter_stats().limit_bytes <= 2 * MIB + 2 * MIB // 8 * 7
        steps_of(model, 1, 2, off)


def test_a_second_model_has_of_what_is_left(store, monkeypatch, caplog):
    """Of what the first is going to take, nothing; and all when that is gone."""
    def made():
        return spillway.torch.materialize(chain, store, parameter_bytes=2 * MIB)

    monkeypatch.setattr(host_memory, "free_memory", lambda: 8 * MIB)
    with over(store, made(), 7 * MIB) as one:
        assert one.parameter_stats().limit_bytes == 7 * MIB and not caplog.text
        to_come = 7 * MIB - one.parameter_stats().memory_bytes
        assert to_come >= 5 * MIB
        with caplog.at_level(logging.WARNING, "spillway"), over(store, made(), 7 * MIB) as other:
            stats = other.parameter_stats()
            assert stats.limit_bytes <= 2 * MIB + (8 * MIB - to_come) // 8 * 7 < 7 * MIB
            assert (f"have 8.0 MiB of memory free, and {to_come / MIB:.1f} MiB of that are for "
                    "parameters of others") in caplog.text
        steps_of(one._model, 1, 1, one)  # has taken all of it, and is still there
        caplog.clear()
        with over(store, made(), 7 * MIB) as other:
            assert other.parameter_stats().limit_bytes == 7 * MIB
    gc.collect()
    with over(store, made(), 7 * MIB) as after:
        assert after.parameter_stats().limit_bytes == 7 * MIB and not caplog.text


@pytest.mark.parametrize("host_bytes, options, words", [
    ("2MiB", {"sizes": spillway.torch.Sizes(parameter_bytes="4MiB")}, "give one of them"),
    (1 << 60, {}, "and this machine has"),
    ("1MiB", {}, "host_bytes must be at least 2.0 MiB"),
    (0, {}, "host_bytes must be at least 2.0 MiB")])
def test_what_cannot_be_is_refused(store, host_bytes, options, words):
    model = chain()
    with pytest.raises(ValueError, match=words):
        with over(store, model, host_bytes, **options):
            pass
    assert not any(map(place_in, model.parameters()))


def test_less_than_two_of_the_largest_is_refused(store):
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024))
    with pytest.raises(ValueError, match="host_bytes is 3145728, too few by 5242880: the largest "
                       "parameter, 0.weight, has 4.0 MiB"):
        with over(store, model, "3MiB"):
            pass
    assert not any(map(place_in, model.parameters()))
