# SPDX-License-Identifier: MIT
# tests/python/test_skipping.py - layers that a model skips at random, others in each step
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spillway.torch
from spillway._core import torch_compat
from spillway._recompute import scopes as scopes_module

LAYERS, WIDTH, ROWS = 6, 64, 256
STEPS, SETTLE = 24, 12
SAVED = LAYERS * ROWS * WIDTH * 4 * 8  # bytes, roughly: what a step without skipping saves


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Skipping(nn.Module):
    def __init__(self, stem):
        super().__init__()
        self.stem = stem
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            if torch.rand(()) >= 0.3:
                x = layer(x)
        return self.head(x).sum()


STEMS = {"stem": lambda: nn.Linear(WIDTH, WIDTH), "none": nn.Identity}


def model_of(stem):
    torch.manual_seed(0)
    return Skipping(STEMS[stem]())


def gradients_in(model, step):
    torch.manual_seed(step)
    model.zero_grad()
    model(torch.randn(ROWS, WIDTH)).backward()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def same(one, other):
    return all(a is None and b is None or torch.equal(a, b) for a, b in zip(one, other))


@pytest.mark.parametrize("how", ["never", "auto"])
@pytest.mark.parametrize("stem", STEMS)
def test_plans_hold_whatever_is_skipped(formatted, how, stem):
    """Without a stem the first layer that runs reads the model's own input, which is not saved."""
    if how == "auto" and torch_compat.is_before(scopes_module.OLDEST):
        pytest.skip("this PyTorch cannot recompute")
    ours, theirs = model_of(stem), model_of(stem)
    with spillway.torch.offload(ours, formatted, mode="budget", budget_bytes=SAVED * 2 // 3,
                                sizes=spillway.torch.Sizes(min_bytes=1024), recompute=how) as off:
        for step in range(STEPS):
            if step == SETTLE:
                before = off.stats()
            assert same(gradients_in(ours, step), gradients_in(theirs, step))
        torch.manual_seed(0)
        ours(torch.randn(ROWS, WIDTH))  # the last step ends
        stats = off.stats()
    assert stats.steps_planned - before.steps_planned >= STEPS - SETTLE - 1
    assert stats.steps_fixed <= SETTLE + 1
