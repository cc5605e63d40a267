# SPDX-License-Identifier: MIT
# tests/python/test_scopes_outer.py - layers are recomputed as a whole where their parts cannot be

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spillway.torch
from offloading import assert_same_run, equal, offload_each, trained
from spillway._recompute import scopes as scopes_module
from spillway._core import torch_compat

pytestmark = pytest.mark.skipif(torch_compat.is_before(scopes_module.OLDEST),
                                reason="this PyTorch cannot recompute")
WIDTH = 16


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, memory=None):
        return self.down(F.gelu(self.up(x)))


class Layer(nn.Module):
    """Of two parts."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Part(), Part()

    def forward(self, x):
        return x + self.second(self.first(x))


class OfLists(nn.Module):
    """As a block of a UNet, or what aggregates in a graph, is built."""

    def __init__(self):
        super().__init__()
        self.before = nn.ModuleList([Part(), Part()])
        self.after = nn.ModuleDict({"a": Part(), "b": Part()})

    def forward(self, x):
        y = sum(part(x).sin() for part in self.before)
        return x + self.after["a"](y) + self.after["b"](y.exp())


class NotCalled(Layer):
    """Its parts do something else than their forward."""

    def forward(self, x):
        return x + self.second.down(self.first.up(x).sin())


class Memory:
    pass


class GivesObjects(Layer):
    def forward(self, x):
        return x + self.second(self.first(x, Memory()), memory=Memory())


class GivesObject(Layer):
    def forward(self, x):
        return x + self.second(self.first(x), memory=Memory())


class Counts(Part):
    calls = 0

    def forward(self, x, memory=None):
        self.calls += 1
        return super().forward(x)


class GivesObjectsAndCounts(GivesObjects):
    def __init__(self):
        super().__init__()
        self.first, self.calls = Counts(), 0


def run(layer, off_of=None, steps=5, first=nn.Identity):
    torch.manual_seed(1)
    return trained(nn.Sequential(first(), layer(), layer(), layer()),
                   lambda: torch.randn(8, WIDTH), off_of, steps=steps)


def forced(model):
    off = offload_each(None, model, mode="budget", budget_bytes=1 << 40, recompute="auto")
    off._session.discards_all = True
    return off


@pytest.mark.parametrize("layer, first, later, why", [
    (Layer, 6, 6, "scopes inside"), (OfLists, 3, 3, None), (NotCalled, 0, 3, None),
    (GivesObjects, 0, 3, "arguments hold"), (GivesObject, 3, 3, "arguments hold"),
    (GivesObjectsAndCounts, 0, 0, "attribute first.calls")])
def test_whole_layers(layer, first, later, why):
    """:param first: how many scopes are recomputed in the second step, and in later ones"""
    plain, counts = run(layer), []
    for steps in (2, 5):
        found = run(layer, forced, steps)
        assert equal(found.gradients, plain.gradients[:steps])
        off = found.off
        counts.append(off.stats().scopes_again)
    # A whole layer is tried in the second step.
    tried = 1 if first == later else 2
    assert counts == [first, later * (5 - tried)]
    reasons = set(off._recomputer.refused.values())
    assert why is None or any(why in reason for reason in reasons), reasons
    assert off.stats().restores_refused == 0


def test_a_budget_is_met_by_whole_layers():
    """Half of what keeping takes, without drives. How many operations are recomputed depends on
    how long they took: the layers alone must be enough. What the first one gets is not the batch,
    which the caller holds."""
    def run_all(off_of=None):
        return run(OfLists, off_of, 8, lambda: nn.Linear(WIDTH, WIDTH))

    whole = run_all(lambda model: spillway.torch.offload(model, None, mode="observe")).off
    peak = whole.stats().activation_bytes_max

    def half(model):
        return offload_each(None, model, mode="budget", budget_bytes=peak // 2,
                            recompute="auto")

    found = run_all(half)
    assert_same_run(found, run_all())
    assert found.off.stats().plan_scopes_again > 0
    assert 0 < found.off.stats().plan_peak_bytes <= peak // 2


def test_explained_after_operations_were_chosen():
    """What the plan in force recomputes with its layer, operations have discarded since."""
    explained = []

    def off_of(model):
        off = offload_each(None, model, mode="budget", budget_bytes=16 << 10, recompute="auto")
        model.register_forward_pre_hook(lambda *_: explained.append(off.explain()))
        return off

    run(OfLists, off_of, steps=8, first=lambda: nn.Linear(WIDTH, WIDTH))
    assert explained[-1] and any(plan.done == "recompute" for plans in explained for plan in plans)
