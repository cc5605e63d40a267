# SPDX-License-Identifier: MIT
# tests/python/test_scopes_nested.py - scopes that are recomputed from results of single operations
"""As in transformers' Llama: attention and feed-forward take what a norm outside of them made,
which is discarded by itself."""
import contextlib
import gc

import pytest
import torch
from torch import nn

from offloading import WeakStorage, equal, gradients_of, left_in, offload_each
from spillway._core import torch_compat
from spillway._core.torch_compat import storage_of
from spillway._recompute import operations, scopes

pytestmark = pytest.mark.skipif(torch_compat.is_before(scopes.OLDEST),
                                reason="this PyTorch cannot recompute")
WIDTH, LAYERS, STEPS = 64, 3, 8


class Norm(nn.Module):
    """As transformers writes it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


class Part(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.up, self.act = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU()
        self.out = nn.Sequential(nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(dropout))

    def forward(self, x):
        return self.out(self.act(self.up(x)).sin())


class Layer(nn.Module):
    part = Part

    def __init__(self, dropout):
        super().__init__()
        self.norms = nn.ModuleList((Norm(), Norm()))
        self.first, self.second = self.part(dropout), self.part(dropout)

    def forward(self, x):
        x = x + self.first(self.norms[0](x))
        return x + self.second(self.norms[1](x))


class OfComplex(Part):
    """Its input has the memory of the norm's result, and another type."""

    def forward(self, x):
        return super().forward(torch.view_as_real(x).flatten(-2))


class ComplexLayer(Layer):
    part = OfComplex

    def forward(self, x):
        one, other = (torch.view_as_complex(norm(x).unflatten(-1, (-1, 2)))
                      for norm in self.norms)
        return x + self.first(one) + self.second(other)


class Model(nn.Module):
    def __init__(self, dropout=0.25, layer=Layer):
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(layer(dropout) for _ in range(LAYERS))

    def forward(self, x):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture(autouse=True)
def no_slack(monkeypatch):
    """All operations that can be recomputed are, however long that takes."""
    monkeypatch.setattr(operations, "SLACK", 1e9)


def train(off_of=None, passes=1, layer=Layer):
    """Return: losses and gradients of each step; the offload."""
    torch.manual_seed(1)
    model, seen = Model(layer=layer), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    off = off_of(model) if off_of else None
    for _ in range(STEPS):
        with off or contextlib.nullcontext():
            loss = model(torch.randn(32, WIDTH)).square().mean()
            for left in reversed(range(passes)):
                loss.backward(retain_graph=left > 0)
        seen.append([loss.detach(), *(gradient.clone() for gradient in gradients_of(model))])
        optimizer.step()
        optimizer.zero_grad()
    return seen, off


def offloaded(model, recompute="auto"):
    return offload_each(None, model, mode="budget", budget_bytes=1, recompute=recompute)


def forced(model):
    off = offloaded(model)
    off._session.discards_all = True
    return off


@pytest.mark.parametrize("passes", [1, 2])
def test_same_by_force(passes):
    plain, _ = train(passes=passes)
    seen, off = train(forced, passes)
    assert equal(seen, plain)
    stats = off.stats()
    norms = [each for each in off._operations.recipes if each.call.name == "mul"]
    assert len(norms) >= 2 * LAYERS and stats.restores_refused == 0
    gc.collect()
    assert left_in(off) == (0, 0, 0)


@pytest.mark.parametrize("by", [forced, offloaded])
def test_an_input_of_another_type(by):
    """No operation makes it again."""
    plain, _ = train(layer=ComplexLayer)
    seen, off = train(by, layer=ComplexLayer)
    assert equal(seen, plain)
    assert off.stats().restores_refused == 0
    gc.collect()
    assert left_in(off) == (0, 0, 0)


def test_an_input_leaves_memory():
    torch.manual_seed(1)
    model, made = Model(), []
    off = forced(model)
    for layer in model.layers:
        for norm in layer.norms:
            norm.register_forward_hook(
                lambda module, args, result: made.append(WeakStorage(storage_of(result))))
    for step in range(STEPS):
        made.clear()
        with off:
            loss = model(torch.randn(32, WIDTH)).square().mean()
            gone = [each.expired() for each in made]
            loss.backward()
        del loss
    assert len(gone) == 2 * LAYERS and all(gone), gone
    assert off.stats().restores_refused == 0


def test_by_the_plan():
    """What a scope is recomputed from need not be there: an operation makes it again first."""
    plain, _ = train()
    seen, off = train(offloaded)
    assert equal(seen, plain)
    stats = off.stats()
    assert stats.plan_scopes_again >= 2 * LAYERS - 1, stats
    assert stats.restores_refused == 0
    assert stats.step_peak_bytes <= 1.05 * stats.plan_peak_bytes, stats
    _, alone = train(lambda model: offloaded(model, "operations"))
    assert stats.step_peak_bytes < 0.7 * alone.stats().step_peak_bytes
    gc.collect()
    assert left_in(off) == (0, 0, 0)
