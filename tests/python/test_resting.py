# SPDX-License-Identifier: MIT
# tests/python/test_resting.py - steps without hooks, where the plan moves nothing
"""Tensors shorter than min_bytes are never moved: here all are, and so nothing is."""
import contextlib
import gc
import threading
import weakref

import pytest
import torch
from torch import nn

import spillway.torch
from offloading import Layers, Save, assert_same_run, left_in, trained
from spillway._core.torch_compat import innermost_hooks
from spillway._offload.resting import call_of

if not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):
    pytest.skip("this PyTorch does not tell which hooks are innermost: no step rests",
                allow_module_level=True)

FIRST = 4  # steps that are seen before one rests
REST = 7  # that rest then


class Model(nn.Module):
    """Notes whether there are hooks on saved tensors where it runs."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.GELU()])
        self.seen = []

    def forward(self, x, *_args, **_kwargs):
        self.seen.append(innermost_hooks() is not None)
        for layer in self.layers:
            x = layer(x)
        return x


def batch(rows=2, **options):
    return torch.randn(rows, 8, **options)


def step(off, model, *args, **kwargs):
    """Return: whether it was seen."""
    with off:
        model(*(args or [batch()]), **kwargs).sum().backward()
    return model.seen[-1]


def rested(store, **options):
    """An offload some of whose steps have rested, and the next one may."""
    model = Model()
    off = spillway.torch.offload(model, store, **options)
    for _ in range(FIRST + 2):
        step(off, model)
    assert model.seen == [True] * FIRST + [False] * 2
    return model, off


def pattern(*counts):
    """:param counts: of steps in a row that are seen, of those that rest, that are seen, ..."""
    return [place % 2 == 0 for place, count in enumerate(counts) for _ in range(count)]


@pytest.mark.parametrize("around", ["step", "loop"])
def test_which_steps_are_seen(store, around):
    model = Model()
    off = spillway.torch.offload(model, store)
    expected = pattern(FIRST, 7, 1, 15, 1, 31, 1, 3)
    if around == "loop":
        with off:
            for _ in expected:
                model(batch()).sum().backward()
    else:
        for _ in expected:
            step(off, model)
    assert model.seen == expected
    stats = off.stats()
    assert stats.steps == len(expected)
    assert stats.steps_resting == expected.count(False)
    assert innermost_hooks() is None
    assert not model._forward_pre_hooks and not model.layers[0]._forward_hooks
    assert stats.offers == stats.takes and stats.offers % expected.count(True) == 0
    assert left_in(off) == (0, 0, 0)
    off.close()


def test_the_same_training(store):
    def run(off_of):
        torch.manual_seed(1)
        model = Layers(3, 16)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return trained(model, lambda: torch.randn(4, 16), off_of, steps=20, optimizer=optimizer)

    plain = run(None)
    offloaded = run(lambda model: spillway.torch.offload(model, store))
    assert_same_run(plain, offloaded)
    assert offloaded.off.stats().steps_resting > 0
    offloaded.off.close()


OTHER_CALLS = {
    "shape": lambda: ((batch(3),), {}),
    "dtype": lambda: ((batch(dtype=torch.float64).float().requires_grad_(),), {}),
    "gradient": lambda: ((batch(requires_grad=True),), {}),
    "number of arguments": lambda: ((batch(), batch()), {}),
    "flag": lambda: ((batch(), True), {}),
    "keyword": lambda: ((batch(),), {"mask": batch()}),
    "nested": lambda: ((batch(), [batch(), {"a": batch(5)}]), {}),
    "unknown": lambda: ((batch(), object()), {}),
}


@pytest.mark.parametrize("what", OTHER_CALLS)
def test_another_call_is_seen(store, what):
    model, off = rested(store)
    args, kwargs = OTHER_CALLS[what]()
    assert step(off, model, *args, **kwargs)
    assert not step(off, model)
    stats = off.stats()
    assert stats.steps == FIRST + 4 and stats.steps_resting == 3
    off.close()


@pytest.mark.parametrize("what", ["train", "autocast"])
def test_another_state_is_seen(store, what):
    model, off = rested(store)
    with torch.autocast("cpu", torch.bfloat16, enabled=what == "autocast"):
        model.train(what != "train")
        assert step(off, model)
    model.train()
    assert not step(off, model)
    off.close()


def test_another_thread_gets_no_hooks(store):
    """It calls the model in a way of its own, and this thread's steps go on to rest."""
    model, off = rested(store)
    found = []

    def other():
        model(batch(3)).sum().backward()
        found.append(innermost_hooks())

    with off:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        model(batch()).sum().backward()
    assert found == [None] and innermost_hooks() is None
    assert not step(off, model)
    off.close()


def test_what_is_trained_changes(store):
    model, off = rested(store)
    x, weight = batch(), torch.ones(8, requires_grad=True)

    def steps(count):
        del model.seen[:]
        for _ in range(count):
            with off:
                (model(x) * weight).sum().backward()
        return model.seen

    assert steps(REST - 2 + 2) == pattern(0, REST - 2, 1, 1)
    model.layers[0].weight.requires_grad_(False)
    # Of each eight that rest one is looked at; that step differs, and is the first of its kind.
    assert steps(9) == pattern(0, 7, 2)
    assert steps(1) == [False]
    model.layers[0].weight.requires_grad_(True)
    assert steps(10) == pattern(0, 7, 2, 1)
    off.close()


@pytest.mark.parametrize("what", ["progress", "accumulate", "step", "stage", "record", "spill",
                                  "observe"])
def test_where_each_step_is_seen(store, folder, what, capsys):
    options = {"progress": {"progress": True}, "record": {"record": folder / "trace"},
               "spill": {"mode": "spill"}, "observe": {"mode": "observe"}}.get(what, {})
    model = Model()
    off = spillway.torch.offload(model, store, **options)
    for _ in range(12):
        with off:
            if what in ("step", "stage"):
                off.step()
            if what == "stage":
                off.stage(0, "forward")
            losses = [model(batch()).sum() for _ in range(1 + (what == "accumulate"))]
            for loss in losses:
                loss.backward()
    assert all(model.seen) and off.stats().steps_resting == 0
    off.close()


def test_evaluation_is_no_step(store):
    model, off = rested(store)
    for _ in range(3):
        with off, torch.no_grad():
            model(batch())
    assert not step(off, model)
    assert off.stats().steps == FIRST + 3
    off.close()


def test_a_context_without_a_call_ends_it(store):
    model, off = rested(store)
    with off:
        pass
    assert step(off, model)
    assert not step(off, model)
    off.close()


def test_hooks_of_others_stay_theirs(store):
    model, off = rested(store)
    for rows in (2, 5, 2):  # the one in the middle would be seen
        with off:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t) as _:
                mine = innermost_hooks()
                loss = model(batch(rows)).sum()
                assert innermost_hooks() == mine
            loss.backward()
    assert innermost_hooks() is None
    assert step(off, model, batch(6))
    off.close()


def test_hooks_around_it(store):
    model = Model()
    off = spillway.torch.offload(model, store)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        around = innermost_hooks()
        for _ in range(FIRST + 3):
            step(off, model)
            assert innermost_hooks() == around
        step(off, model, batch(7))
        assert innermost_hooks() == around
    assert off.stats().steps_resting == 3
    off.close()


def test_a_pause_in_it(store):
    model, off = rested(store)
    with off:
        with off.paused():
            grads = torch.func.grad(lambda x: model(x).sum())(batch(9))
        assert grads.shape == (9, 8)
        model(batch()).sum().backward()
    assert off.stats().steps_resting == 3
    with off, off.paused():
        torch.func.grad(lambda x: model(x).sum())(batch())
    assert step(off, model)
    off.close()


def test_explicit_steps_begin_in_it(store):
    model, off = rested(store)
    with off:
        off.step()
        model(batch()).sum().backward()
    assert model.seen[-1]
    with off:
        off.step()
        model(batch()).sum().backward()
    assert model.seen[-1] and off.stats().steps == FIRST + 4
    off.close()


def test_a_trace_of_the_next_step(store, folder):
    model, off = rested(store)
    off.trace(folder / "trace.json")
    assert step(off, model)
    step(off, model)
    off.close()
    assert "layers.0" in (folder / "trace.json").read_text()


def test_memory_of_seen_steps_is_let_go(store):
    """Also if their graph ends while steps rest."""
    model = Model()
    off = spillway.torch.offload(model, store)
    seen, kept = [], []
    for number in range(FIRST + 2):
        with off:
            saved = torch.zeros(100)
            y = model(batch())
            if number == FIRST - 1:
                y = y.sum() + Save.apply(torch.ones(1, requires_grad=True), seen, saved).sum()
                y.backward(retain_graph=True)
                kept.append(y)
                weak = weakref.ref(saved.untyped_storage())
                del seen[:]
            else:
                y.sum().backward()
            del saved, y
        if number == FIRST:
            kept.clear()
            gc.collect()
    assert not model.seen[-1]
    assert off._session.held() == 0 and weak() is None
    off.close()


def test_it_is_closed_and_used_by_another_thread(store):
    model, off = rested(store)
    thread = threading.Thread(target=step, args=(off, model))
    thread.start()
    thread.join()
    assert model.seen[-1] is False
    off.close()
    with pytest.raises(spillway.SpillwayError), off:
        pass
    assert innermost_hooks() is None


def test_an_error_in_it(store):
    model, off = rested(store)
    for rows in (2, 4):
        with contextlib.suppress(ZeroDivisionError), off:
            model(batch(rows))
            raise ZeroDivisionError
    assert innermost_hooks() is None
    step(off, model)
    off.close()


@pytest.mark.parametrize("recompute", ["operations", "auto"])
def test_without_drives(recompute):
    model = Model()
    off = spillway.torch.offload(model, None, recompute=recompute)
    for _ in range(30):
        step(off, model)
    assert not all(model.seen)
    off.close()


CALLS = {
    "two tensors": lambda: ((batch(), batch(3, dtype=torch.float64)), {}),
    "keywords": lambda: ((batch(),), {"mask": batch(), "flag": True, "name": "a", "none": None}),
    "nested": lambda: ((batch(), [batch(), (1, 2.5)]), {"more": {"a": batch(5), "b": []}}),
    "numbers": lambda: ((batch(), 3, 10 ** 30, 0.25, "word"), {}),
}


def changed(args, kwargs):
    """Other calls that differ in one thing."""
    yield args[:-1], kwargs
    yield (*args, None), kwargs
    yield args, {**kwargs, "another": 1}
    if kwargs:
        first = next(iter(kwargs))
        yield args, {key: thing for key, thing in kwargs.items() if key != first}
        yield args, {**kwargs, first: "other"}
    tensors = batch(7), batch(dtype=torch.float16), batch(requires_grad=True)
    for other in (*tensors, 7, 3.0, True, "x", [], {}, torch.empty(2, 8, device="meta"),
                  nn.Parameter(batch()), object()):
        yield (other, *args[1:]), kwargs
        yield (*args[:-1], other), kwargs


@pytest.mark.parametrize("what", CALLS)
def test_c_knows_the_same_calls(store, what):
    """It says no, or what the package says; and yes to what the package has just found."""
    model, off = rested(store)
    resting, (args, kwargs) = off._resting, CALLS[what]()

    def knows(known, args, kwargs):
        resting.steps, resting.last, resting.call = 1, False, known
        return resting.rests(model, args, kwargs)

    with off:
        kind = call_of(model, args, kwargs)
        assert knows(kind, *CALLS[what]())
        for other_args, other_kwargs in changed(args, kwargs):
            known = knows(kind, other_args, other_kwargs)
            assert known == (call_of(model, other_args, other_kwargs) == kind)
        assert not knows(None, args, kwargs) and not knows(kind[:3], args, kwargs)
        assert not knows((kind[0], kind[1], not kind[2], None), args, kwargs)
        with torch.no_grad():
            assert not knows(kind, args, kwargs)
        with torch.autocast("cpu", torch.bfloat16):
            assert not knows(kind, args, kwargs)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            assert not knows(kind, args, kwargs)
    assert not knows(kind, args, kwargs)
    off.close()


def test_it_is_not_left_within_a_backward_pass(store):
    model, off = rested(store)
    errors = []

    def leave(grad):
        try:
            off.__exit__(None, None, None)
        except RuntimeError as error:
            errors.append(error)

    with off:
        y = model(batch())
        y.register_hook(leave)
        y.sum().backward()
        assert len(errors) == 1 and model._forward_pre_hooks
    assert not model._forward_pre_hooks and not model.seen[-1]
    assert not step(off, model)
    off.close()


def test_it_is_left_once(store):
    model, off = rested(store)
    step(off, model)
    with pytest.raises(RuntimeError):
        off.__exit__(None, None, None)
    with off:
        with pytest.raises(RuntimeError):
            off.__enter__()
        thread_errors = []

        def leave():
            try:
                off.__exit__(None, None, None)
            except RuntimeError as error:
                thread_errors.append(error)

        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
        assert len(thread_errors) == 1
        model(batch()).sum().backward()
    assert not model.seen[-1] and not model._forward_pre_hooks
    off.close()
