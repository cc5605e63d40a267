# SPDX-License-Identifier: MIT
# tests/python/test_scopes_leaves.py - scopes that are recomputed from a leaf that is trained
"""As where embeddings require a gradient (transformers' enable_input_require_grads(), adversarial
training, a learnt prompt): such a leaf stays in memory, and is not offered."""
import contextlib
import errno
import gc

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spillway
from offloading import RAISED, equal, gradients_of, left_in, offload_each
from spillway._core import torch_compat
from spillway._recompute import scopes as scopes_module

pytestmark = pytest.mark.skipif(torch_compat.is_before(scopes_module.OLDEST),
                                reason="this PyTorch cannot recompute")
WIDTH, LAYERS, STEPS = 32, 3, 6


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(0.25)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    """Its first layer takes the argument."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Embeds(Model):
    """Its first layer takes what a frozen embedding made."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, WIDTH).requires_grad_(False)
        self.leaf = None

    def forward(self, x):
        self.leaf = self.embedding((x.abs() * 8).long().sum(-1) % 64).requires_grad_()
        return super().forward(self.leaf)


class Prompted(Model):
    """Each layer takes the same parameter, and nothing else."""

    def __init__(self):
        super().__init__()
        self.prompt = nn.Parameter(torch.ones(16, WIDTH))

    def forward(self, x):
        return x + sum(layer(self.prompt) for layer in self.layers)


def offloaded(model, **options):
    """Whole layers are the scopes."""
    return offload_each(None, model, **{
        "mode": "budget", "budget_bytes": 1, "recompute": lambda name, module: True,
        "scopes": list(model.layers), **options})


def train(kind, off_of=None, passes=1, between=None):
    """
    :param between: called with the model between the forward and the backward pass
    Return: losses, the leaf's and all parameters' gradients of each step, and the offload."""
    torch.manual_seed(1)
    model, seen = kind(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    off = off_of(model) if off_of else None
    for _ in range(STEPS):
        x = torch.randn(16, WIDTH, requires_grad=kind is Model)
        with off or contextlib.nullcontext():
            loss = model(x).square().mean()
            if between is not None:
                between(model)
            for left in reversed(range(passes)):
                loss.backward(retain_graph=left > 0)
        leaf = getattr(model, "leaf", x)
        seen.append([loss.detach(), None if leaf.grad is None else leaf.grad.clone(),
                     *(grad if grad is None else grad.clone() for grad in gradients_of(model))])
        optimizer.step()
        optimizer.zero_grad()
    return seen, off


@pytest.mark.parametrize("kind", [Model, Embeds, Prompted])
def test_same(kind):
    plain, _ = train(kind)
    assert all(step[1] is not None for step in plain) == (kind is not Prompted)
    seen, off = train(kind, offloaded)
    assert equal(seen, plain)
    stats = off.stats()
    assert stats.plan_scopes_again == LAYERS
    assert stats.scopes_again == LAYERS * (STEPS - 2)  # those by a plan
    assert stats.restores_refused == stats.bytes_spilled == 0
    gc.collect()
    assert left_in(off) == (0, 0, 0)


@pytest.mark.parametrize("kind", [Model, Embeds, Prompted])
def test_same_when_the_graph_is_kept(kind):
    """No plan frees memory by recomputing then: all is discarded by force."""
    def forced(model):
        off = offloaded(model)
        off._session.discards_all = True
        return off

    plain, _ = train(kind, passes=2)
    seen, off = train(kind, forced, passes=2)
    assert equal(seen, plain)
    assert off.stats().scopes_again == LAYERS * (STEPS - 1)  # once for both passes
    gc.collect()
    assert left_in(off) == (0, 0, 0)


def test_the_leaf_costs_nothing():
    """It does not count as an activation, whatever is recomputed from it."""
    _, off = train(Model, offloaded)
    first = off.explain()[1]
    assert (first.scope, first.done) == ("layers.0", "recompute")
    assert 0 < first.saved_bytes <= first.given_up_bytes + 1  # the element that stands for it


def test_a_leaf_that_the_forward_pass_changes():
    """PyTorch allows it where the leaf is not saved: the scope is refused, and no step fails."""
    class Scales(nn.Module):
        def forward(self, x):
            return (x * 3).sin()  # saves what it multiplies, and not x

    class Changing(Prompted):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Scales() for _ in range(LAYERS))

        def forward(self, x):
            y = super().forward(x)
            with torch.no_grad():
                self.prompt.mul_(0.5)
            return y

    plain, _ = train(Changing)
    seen, off = train(Changing, offloaded)
    assert equal(seen, plain)
    assert off.stats().scopes_again == 0
    assert set(off._recomputer.refused.values()) == {
        "its input is changed in place after it has run"}


class Shifts(nn.Module):
    """Adds things to what it computes, which autograd does not save."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.shift = nn.Parameter(torch.zeros(WIDTH))
        self.register_buffer("noise", torch.zeros(WIDTH))

    def forward(self, prompt):
        return self.down(torch.tanh(self.up(prompt * 3) + self.shift + self.noise))


@pytest.mark.parametrize("what", ["input", "up.bias", "shift", "noise"])
def test_what_the_program_changes_before_the_backward_pass(what):
    """As one that balances experts, clips a prompt or draws noise does. PyTorch allows it of what
    it has not saved: no step fails."""
    class Changed(Prompted):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Shifts() for _ in range(LAYERS))

    @torch.no_grad()
    def between(model):
        if what == "input":
            model.prompt.mul_(0.5)
            return
        for layer in model.layers:
            (layer.noise if what == "noise" else layer.get_parameter(what)).add_(0.1)

    plain, _ = train(Changed, between=between)
    seen, off = train(Changed, offloaded, between=between)
    assert equal(seen, plain)
    assert off.stats().scopes_again == 0
    assert set(off._recomputer.refused.values()) == {
        f"its {what} is changed in place after it has run"}
    _, off = train(Changed, offloaded)
    assert off.stats().scopes_again > 0


def test_a_result_that_hides_its_tensors():
    """It would not be known when the backward pass comes to the layer."""
    class Hidden:
        def __init__(self, tensor):
            self.tensor = tensor

    class Hides(Layer):
        def forward(self, x):
            return Hidden(super().forward(x))

    class Hiding(Model):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Hides() for _ in range(LAYERS))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).tensor
            return x

    plain, _ = train(Hiding)
    seen, off = train(Hiding, offloaded)
    assert equal(seen, plain)
    assert off.stats().scopes_again == 0
    assert set(off._recomputer.refused.values()) == {
        "its result has no tensors with gradients, or hides them"}


def test_a_leaf_that_is_changed():
    """In place, before it is used: an error, as where PyTorch holds it. The next step is right."""
    torch.manual_seed(1)
    model = Model()
    off = offloaded(model)
    batch = torch.randn(16, WIDTH)
    for _ in range(STEPS):
        with off:
            model(batch.clone().requires_grad_()).square().mean().backward()
    again = off.stats().scopes_again
    leaf = batch.clone().requires_grad_()
    with off:
        loss = model(leaf).square().mean()
        with torch.no_grad():
            leaf.add_(1)
        with pytest.raises(RAISED, match="modified by an inplace operation") as caught:
            loss.backward()
    assert isinstance(caught.value, spillway.SpillwayError) and caught.value.errno == errno.ESTALE
    assert "layers.0" in str(caught.value)
    assert off.stats().scopes_again == again + LAYERS
    del loss, caught, leaf
    gc.collect()
    assert left_in(off) == (0, 0, 0)

    def gradients(offload):
        model.zero_grad()
        leaf = batch.clone().requires_grad_()
        with offload:
            model(leaf).square().mean().backward()
        return [leaf.grad, *(gradient.clone() for gradient in gradients_of(model))]

    model.eval()  # without dropout
    assert equal(gradients(off), gradients(contextlib.nullcontext()))
