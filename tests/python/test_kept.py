# SPDX-License-Identifier: MIT
# tests/python/test_kept.py - what the plan keeps is saved without an entry of the cache
# layer: test all
import pytest
import torch

from offloading import (RAISED, Layers, assert_same_run, hooks_call, left_in, offload_each, save,
                        settle, trained)

SIDE = 256
BYTES = SIDE * SIDE * 4
LEARNT_MAX = 8  # steps until the plan is in force: it is searched for beside one of them


@pytest.fixture
def seen():
    """What backward passes are handed."""
    found = []
    yield found
    found.clear()


def planned(store, program, seen=()):
    """:return: an offload whose plan keeps all that the program saves"""
    off = offload_each(store, mode="budget", budget_bytes=1 << 30)
    for _ in range(LEARNT_MAX):
        with off:
            out = program()
            settle(off)  # without an ended write the drives are not known, and nothing is planned
            out.backward()
        del out
        if seen:
            seen.clear()
        if off.stats().steps_planned > 0:
            break
    stats = off.stats()
    assert stats.steps_planned > 0 and stats.plan_tensors_spilled == 0, stats
    assert not any(left_in(off))
    return off


def tensors(count=3, rows=SIDE):
    x = torch.ones(rows, SIDE, requires_grad=True)
    return [x * (k + 1) for k in range(count)]


def deep(x):
    for _ in range(8):
        x = x.sin()
    return x


def ended(off):
    """Nothing is left, and no step was another than was planned for."""
    assert not any(left_in(off))
    assert off.stats().activation_bytes == off.stats().plan_mismatches == 0
    off.close()


def test_no_entries(one_store, seen):
    off = planned(one_store, lambda: save(seen, *tensors()), seen)
    before = off.stats()
    with off:
        a, b, c = tensors()
        out = save(seen, a, b, c)
        stats = off.stats()
        assert stats.entries == 0 and stats.activation_bytes == 3 * BYTES
        assert stats.offers - before.offers == 3
        out.backward()
    assert all(torch.equal(one, other) for one, other in zip(seen[-1], (a, b, c)))
    assert off.stats().takes - before.takes == 3
    del out
    seen.clear()
    ended(off)


@pytest.mark.parametrize("part", [
    lambda t: t, lambda t: t.t(), lambda t: t.view(-1), lambda t: t[8:], lambda t: t[:, 3:],
    lambda t: t.detach()], ids=["itself", "turned", "flat", "rows", "columns", "detached"])
def test_the_same_bytes_again(one_store, seen, part):
    """They count once, wherever in the storage they begin."""
    def program():
        a, b, c = tensors()
        return save(seen, a, b, part(a), c)

    off = planned(one_store, program, seen)
    before = off.stats()
    with off:
        out = program()
        stats = off.stats()
        assert stats.entries == 0 and stats.activation_bytes == 3 * BYTES
        assert stats.tensors_deduplicated - before.tensors_deduplicated == 1
        out.backward()
    a, _b, again, _c = seen[-1]
    assert torch.equal(again, part(a)) and again.stride() == part(a).stride()
    del out, a, _b, again, _c
    seen.clear()
    ended(off)


def test_other_bytes_at_its_address(one_store, seen):
    """Changed since it was saved, it is another tensor."""
    def program():
        a = torch.ones(SIDE, SIDE)
        first = save(seen, a)
        a.add_(1)
        return save(seen, a), first

    off = planned(one_store, lambda: program()[0], seen)
    before = off.stats()
    with off:
        out, first = program()
        assert off.stats().entries == 0 and off.stats().activation_bytes == 2 * BYTES
        assert off.stats().tensors_deduplicated == before.tensors_deduplicated
        out.backward()
        assert torch.equal(seen[-1][0], torch.full((SIDE, SIDE), 2.0))
        with pytest.raises(RAISED, match="modified by an inplace operation"):
            first.backward()
    off.close()


@pytest.mark.parametrize("change", [
    lambda t: t.detach().add_(1), lambda t: t.detach()[3:].zero_(),
    lambda t: t.detach().view(-1).mul_(2)], ids=["all", "a part", "a view"])
def test_changed_in_place(one_store, seen, change):
    off = planned(one_store, lambda: save(seen, *tensors()), seen)
    with off:
        a, b, c = tensors()
        out = save(seen, a, b, c)
        assert off.stats().entries == 0
        change(b)
        with pytest.raises(RAISED, match="modified by an inplace operation"):
            out.backward()
    off.close()


def test_used_twice(one_store, seen):
    def program():
        x = torch.full((SIDE, SIDE), 0.5, requires_grad=True)
        return deep(x).sum(), x

    off = planned(one_store, lambda: program()[0], seen)
    with off:
        out, x = program()
        assert off.stats().entries == 0
        out.backward(retain_graph=True)
        once = x.grad.clone()
        assert off.stats().activation_bytes > 0
        out.backward()
    assert torch.equal(x.grad, 2 * once)
    del out
    ended(off)


def test_twice_differentiated(one_store, seen):
    def program():
        x = torch.full((SIDE, SIDE), 0.5, requires_grad=True)
        first, = torch.autograd.grad(deep(x).sum(), x, create_graph=True)
        return first.square().sum(), x

    out, x = program()
    out.backward()
    off = planned(one_store, lambda: program()[0], seen)
    with off:
        out, y = program()
        out.backward()
    assert torch.equal(x.grad, y.grad)
    off.close()


def test_another_size(one_store, seen):
    """The step is another one, and is known as that; the next is planned for again."""
    off = planned(one_store, lambda: save(seen, *tensors()), seen)
    before = off.stats().bytes_offered
    with off:
        a, b, c = tensors(rows=2 * SIDE)
        out = save(seen, a, b, c)
        assert off.stats().entries == 3 and off.stats().bytes_offered - before == 6 * BYTES
        out.backward()
    assert off.stats().plan_mismatches == 1
    assert all(torch.equal(one, other) for one, other in zip(seen[-1], (a, b, c)))
    off.close()


def test_what_is_not_offered_has_no_place(one_store, seen):
    """A leaf that is trained looks like what is saved after it."""
    def program():
        x = torch.ones(SIDE, SIDE, requires_grad=True)
        return save(seen, x, x * 1, x * 2)

    off = planned(one_store, program, seen)
    with off:
        out = program()
        assert off.stats().entries == 0 and off.stats().activation_bytes == 2 * BYTES
        out.backward()
    del out
    seen.clear()
    ended(off)


def test_parameters_on_drives_do_not_stay(one_store, seen):
    """Where some are, each tensor is looked at for being one."""
    off = planned(one_store, lambda: save(seen, *tensors()), seen)
    off._session.places = {}
    with off:
        out = save(seen, *tensors())
        assert off.stats().entries == 3
        out.backward()
    off.close()


def test_closed_meanwhile(one_store, seen):
    """Its memory is not the cache's: it is there."""
    off = planned(one_store, lambda: save(seen, *tensors()), seen)
    with off:
        a, b, c = tensors()
        out = save(seen, a, b, c)
    off.close()
    out.backward()
    assert torch.equal(seen[-1][1], b)


def test_closed_while_it_is_looked_at(one_store, seen):
    """By another thread, where what is asked of the tensor runs Python, as in PyTorch 1."""
    off = planned(one_store, lambda: save(seen, *tensors()), seen)

    def address(tensor):
        off._session.close()
        return tensor.data_ptr()

    with off, hooks_call(address=address), pytest.raises(RAISED, match="closed"):
        save(seen, *tensors())


def test_kept_by_an_earlier_step(one_store, seen):
    """It is saved in this step, too, and has a place of its own there."""
    x = torch.ones(SIDE, SIDE)
    off = planned(one_store, lambda: save(seen, x), seen)
    with off:
        earlier = save(seen, x)
        save(seen, torch.ones(SIDE, SIDE)).backward()
    before = off.stats()
    with off:
        out = save(seen, x)
        assert off.stats().activation_bytes == before.activation_bytes + BYTES
        assert off.stats().tensors_deduplicated == before.tensors_deduplicated
        out.backward()
    earlier.backward()
    assert seen[-1][0] is not None and torch.equal(seen[-1][0], x)
    off.close()


def test_the_first_one_goes_first(one_store, seen):
    """Its bytes count as long as they are kept."""
    def program():
        a = torch.ones(SIDE, SIDE)
        return save(seen, a), save(seen, a)

    off = planned(one_store, lambda: sum(program()), seen)
    with off:
        first, again = program()
        first.backward()
        seen.clear()
        del first
        assert off.stats().entries == 0 and off.stats().activation_bytes == BYTES
        again.backward()
        seen.clear()
        del again
        assert off.stats().activation_bytes == 0
    ended(off)


def test_some_leave(store):
    """Beside what leaves, in the same steps: the same training, and the memory that is planned."""
    torch.manual_seed(1)
    model = Layers(count=8, width=64)
    batches = [torch.randn(64, 64) for _ in range(12)]
    counts = []

    def count(_model, _step):
        stats = settle(off)
        counts.append((stats.entries, stats.plan_tensors_spilled, stats.plan_tensors))

    def run(off_of):
        left = iter(batches)
        return trained(model, lambda: next(left), off_of, steps=len(batches), before=count)

    off = None

    def opened(model):
        nonlocal off
        off = offload_each(store, model, mode="budget", budget_bytes=12 * 64 * 64 * 4)
        return off

    ours = run(opened)
    entries, spilled, planned_for = counts[-1]
    assert entries == spilled and 0 < spilled < planned_for == counts[0][0]
    assert off.stats().plan_mismatches == 0
    assert not any(left_in(off))
    off.close()
    left = iter(batches)
    assert_same_run(ours, trained(model, lambda: next(left), steps=len(batches)))
