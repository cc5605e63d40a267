# SPDX-License-Identifier: MIT
# tests/python/test_trials.py - what the trials of the first step cost, and what they compare
import contextlib
import itertools
import sys
import weakref

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from offloading import offload_each
from spillway._core import torch_compat
from spillway._recompute import effects, scopes as scopes_module, watched

pytestmark = pytest.mark.skipif(torch_compat.is_before(scopes_module.OLDEST),
                                reason="this PyTorch cannot recompute")
WIDTH, ROWS = 512, 256
SMALL = 64 << 10  # bytes: checksums, states of generators


@pytest.fixture
def runs():
    """A list that modules may change without being refused: a trial does not look into sys."""
    sys.runs = []
    yield sys.runs
    del sys.runs


def reasons_after_one_step(layer):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), layer)
    with offload_each(None, model, mode="budget", budget_bytes=1 << 40, recompute="auto") as off:
        with off:
            model(torch.randn(1, WIDTH)).abs().sum().backward()
        return off._recomputer.refused.get(layer)


# ---- Memory --------------------------------------------------------------------------------------


def peak_of_one_step(layers, recompute):
    """Of all memory that PyTorch allocates."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), *layers)
    off = recompute and offload_each(None, model, mode="budget", budget_bytes=1 << 40,
                                     recompute="auto")
    x = torch.randn(ROWS, WIDTH)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        with off or contextlib.nullcontext():
            model(x).sum().backward()
    if off:
        assert not any(layer in off._recomputer.refused for layer in layers)
        off.close()
    events = [event for event in profiled.profiler.kineto_results.events()
              if event.name() == "[memory]"]
    events.sort(key=lambda event: getattr(event, "start_ns", getattr(event, "start_us", None))())
    return max(itertools.accumulate(event.nbytes() for event in events))


class Sines(nn.Module):
    COUNT = 8

    def forward(self, x):
        for _ in range(self.COUNT):
            x = x.sin()
        return x


@pytest.mark.parametrize("layers, saved", [
    # Nothing but parameters and arguments: what the second run gives is no more than a result.
    (lambda: [nn.Linear(WIDTH, WIDTH) for _ in range(2)], 1),
    (lambda: [Sines(), Sines()], Sines.COUNT),
], ids=["parameters", "tensors"])
def test_a_trial_takes_memory_for_one_more_scope(layers, saved):
    more = peak_of_one_step(layers(), True) - peak_of_one_step(layers(), False)
    assert more <= saved * ROWS * WIDTH * 4 + SMALL


# ---- Time ----------------------------------------------------------------------------------------


class Knowing(nn.Module):
    """A layer that knows the whole model."""

    def __init__(self, model, hold):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.model = hold(model)

    def forward(self, x):
        return self.linear(x).sin()


class Known(nn.Module):
    def __init__(self, count, hold):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.layers = nn.ModuleList(Knowing(self, hold) for _ in range(count))

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x


def first_step(count, hold, looks):
    """Return: (how often a tensor was looked at, the reasons of all layers)"""
    del looks[:]
    model = Known(count, hold)
    with offload_each(None, model, mode="budget", budget_bytes=1 << 40, recompute="auto") as off:
        with off:
            model(torch.randn(2, 4)).sum().backward()
        return len(looks), [off._recomputer.refused.get(layer) for layer in model.layers]


@pytest.mark.parametrize("hold", [weakref.ref, lambda model: [model]], ids=["weak", "list"])
def test_time_grows_with_the_number_of_layers_that_know_the_model(hold, monkeypatch):
    looks, look = [], watched.Memory._look
    monkeypatch.setattr(watched.Memory, "_look", lambda self: looks.append(0) or look(self))
    monkeypatch.setattr(effects, "_BEYOND_MAX", 10_000, raising=False)
    few, reasons = first_step(4, hold, looks)
    assert reasons == [None] * 4
    some, _ = first_step(40, hold, looks)
    many, reasons = first_step(80, hold, looks)
    assert many - some < 1.5 * (some - few)  # and not four times as many
    assert reasons[-1] == ("it can reach other modules (model): to look at them for each layer "
                           "takes too long")


# ---- What is compared ----------------------------------------------------------------------------


class Multiplies(nn.Module):
    """By what is not the same in any two runs."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def forward(self, x):
        sys.runs.append(0)
        return x * self.other(torch.eye(WIDTH), len(sys.runs))


def swapped(eye, run):
    """Its rows and columns have the same sums whatever the run."""
    return eye.roll(run, 0)


def strided(eye, run):
    wide = eye.repeat(1, 2)
    wide[3, 6] = run
    return wide[:, ::2]


def parts(eye, run):
    return torch.complex(eye.double(), eye.double() * run).conj()


def flags(eye, run):
    eye[5, 5] = run
    return eye > 1


def halves(eye, run):
    return eye.bfloat16() * run


@pytest.mark.parametrize("other", [swapped, strided, parts, flags, halves])
def test_what_differs_is_seen(runs, other):
    assert reasons_after_one_step(Multiplies(other)) == "a second run saves other tensors"
    assert len(runs) == 2


@pytest.mark.parametrize("other", [strided, parts, flags, halves])
def test_what_is_the_same_is_seen(runs, other):
    def once(eye, run):
        return other(eye, 7)

    assert reasons_after_one_step(Multiplies(once)) is None
    assert len(runs) == 2


def test_what_is_modified_afterwards_is_not_compared(runs):
    """Nothing needs it in the backward pass: plain training goes on, too."""
    class Modifies(nn.Module):
        def forward(self, x):
            sys.runs.append(0)
            one = x * 2
            one.sin()
            one.add_(1)
            return x.sin()

    assert reasons_after_one_step(Modifies()) == ("what it saves is modified in place afterwards")
    assert len(runs) == 2
