# SPDX-License-Identifier: MIT
# tests/python/test_loops.py - what training loops do besides: the same numbers as without, or the same error
# layer: test all
"""Each program runs without spillway and with it. Then, what memory goes through that PyTorch does not count."""
import contextlib
import gc
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, spectral_norm

import spillway.torch
from offloading import Nothing, Save, left_in, raw, settle

SEED = 7
INPLACE = "modified by an inplace operation"
SIZE = 100


class Where:
    """Where a program's saved tensors go; of several models each has a context of its own."""

    def __init__(self, store, wait):
        self.store, self.wait, self.offs = store, wait, []

    def context(self, model=None):
        if self.store is None:
            return contextlib.nullcontext()
        self.offs.append(spillway.torch.offload(model or Nothing(), self.store, min_bytes=1, mode="spill"))
        return self.offs[-1]

    def step(self):
        for off in self.offs:
            off.step()

    def settle(self):
        if self.wait:
            for off in self.offs:
                settle(off)


def bits(thing):
    if isinstance(thing, torch.Tensor):
        return raw(thing)
    if isinstance(thing, nn.Module):
        return [bits([p, p.grad]) for p in thing.parameters()] + [bits(b) for b in thing.buffers()]
    return [bits(each) for each in thing] if isinstance(thing, (list, tuple)) else thing


def outcome(program, where):
    torch.manual_seed(SEED)
    try:
        return bits(program(where))
    except RuntimeError as error:
        assert INPLACE in str(error)
        return INPLACE


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# ---- Loops -------------------------------------------------------------------------------------------------------------


def adversaries(where):
    """Two models with a context each, spectral norms and running statistics changed in forward, and a gradient penalty."""
    maker = nn.Sequential(nn.Linear(16, SIZE), nn.BatchNorm1d(SIZE), nn.ReLU(True), nn.Linear(SIZE, SIZE))
    judge = nn.Sequential(spectral_norm(nn.Linear(SIZE, SIZE)), nn.Softplus(), parametrizations.spectral_norm(nn.Linear(SIZE, 1)))
    steppers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in (maker, judge)]
    making, judging = where.context(maker), where.context(judge)
    losses = []
    for _ in range(2):
        with making:
            made = maker(torch.randn(32, 16))
        with judging:
            mixed = (made.detach() + torch.randn(32, SIZE)).requires_grad_()
            (slope,) = torch.autograd.grad(judge(mixed).sum(), mixed, create_graph=True)
            where.settle()
            loss = judge(made.detach()).mean() - judge(torch.randn(32, SIZE)).mean() + (slope.norm(2, 1) - 1).pow(2).mean()
            where.settle()
        step(steppers[1], loss)
        with judging:
            loss = -judge(made).mean()
        where.settle()
        step(steppers[0], loss)
        losses.append(loss.detach())
    return losses, maker, judge


def stepped_between(where):
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, SIZE))
    with where.context(model):
        y = model(torch.randn(8, SIZE))
        where.settle()
        y.pow(2).sum().backward(retain_graph=True)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        y.sum().backward()


def equilibrium(where):
    """A hook takes gradients of a graph that is kept, within the backward pass of another."""
    layer = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh())
    x = torch.randn(8, SIZE)
    with where.context(layer):
        with torch.no_grad():
            z = layer(layer(x) + x)
        z = layer(z + x)
        fixed = z.detach().requires_grad_()
        again = layer(fixed + x)

        def solve(gradient):
            y = gradient
            for _ in range(3):
                y = torch.autograd.grad(again, fixed, y, retain_graph=True)[0] + gradient
            return y

        z.register_hook(solve)
        where.settle()
        z.pow(2).sum().backward()
    del z, again  # a cycle with the hook
    return layer


def learning_to_learn(where):
    """Parameters are results of steps before."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, 1))
    weights = first = [p.detach().clone().requires_grad_() for p in model.parameters()]
    x = torch.randn(16, SIZE)

    def loss_of(weights):
        return F.linear(F.linear(x, weights[0], weights[1]).tanh(), weights[2], weights[3]).pow(2).mean()

    with where.context(model):
        for _ in range(3):
            where.settle()
            gradients = torch.autograd.grad(loss_of(weights), weights, create_graph=True)
            weights = [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)]
        where.settle()
        loss_of(weights).backward()
    return [weight.grad for weight in first]


def one_beside(where):
    """What its modules change, or fill later, without counting it is known if the context's model has them, too."""
    model = nn.ModuleList([nn.Linear(SIZE, SIZE), nn.Sequential(nn.Linear(SIZE, SIZE), nn.RReLU(), nn.BatchNorm1d(SIZE))])
    off = where.context(model)
    for _ in range(2):
        where.step()
        with off:
            y = model[1](model[0](torch.randn(8, SIZE)))
            model[1].eval()
            z = model[1](y)
            model[1].train()
            y = (model[1](z) * z).sum()
            where.settle()
            y.backward()
    return model


def experts(where):
    gate, some = nn.Linear(SIZE, 4), nn.ModuleList(nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU()) for _ in range(4))
    x = torch.randn(64, SIZE, requires_grad=True)
    with where.context():
        values, chosen = gate(x).softmax(-1).topk(2, -1)
        y = torch.zeros_like(x)
        for index, expert in enumerate(some):
            rows, place = (chosen == index).nonzero(as_tuple=True)
            y = y.index_add(0, rows, expert(x.index_select(0, rows)) * values[rows, place, None])
        y = y.scatter_add(1, chosen, values) * y.gather(1, chosen).sum()
        where.settle()
        y.pow(2).sum().backward()
    return x.grad, gate, some


def truncated(where):
    """The graph goes on from step to step, and is used again each time."""
    cell, h, losses = nn.GRUCell(16, SIZE), torch.zeros(8, SIZE), []
    off = where.context(cell)
    for _ in range(4):
        with off:
            h = cell(torch.randn(8, 16), h)
            where.settle()
            h.pow(2).sum().backward(retain_graph=True)
        losses.append(h.detach())
    return losses, cell


def never_used(where):
    """Some losses are only looked at."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, SIZE))
    off, losses = where.context(model), []
    for _ in range(6):
        with off:
            losses.append(model(torch.randn(8, SIZE)).exp().sum())
    where.settle()
    losses[3].backward()
    return [loss.detach() for loss in losses], model


def threads_on_one_graph(where):
    x, got = torch.randn(SIZE, SIZE, requires_grad=True), [None] * 4
    with where.context():
        h = (x.exp() * x.sin()).tanh()
        losses = [(h * number).exp().sum() for number in range(4)]
        where.settle()

        def use(number):
            got[number] = torch.autograd.grad(losses[number], x, retain_graph=True)[0]

        threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return got


def spectra(where):
    x = torch.randn(64, 64, requires_grad=True)
    weight = torch.randn(64, 33, dtype=torch.complex64, requires_grad=True)
    with where.context():
        f = torch.fft.rfft2(x) * weight
        f = f + f.conj() * weight.abs() + torch.view_as_complex(torch.view_as_real(f).tanh())
        y = torch.fft.irfft2(f.conj() * weight.angle().exp()) + (f.imag * f.real).sum()
        where.settle()
        y.mean().backward()
    return x.grad, weight.grad


def windows(where):
    x = torch.randn(4000, requires_grad=True)
    with where.context():
        h = x.exp()
        rows, parts = h.as_strided((997, 16), (4, 1)), h.unfold(0, 32, 8)
        y = (rows.sin() * rows).sum() + (parts.tanh() * parts).sum() + h.as_strided((100, 100), (0, 1), 17).pow(3).sum()
        where.settle()
        y.backward()
    return x.grad


@pytest.mark.parametrize("wait", [True, False], ids=["stored", "at once"])
@pytest.mark.parametrize("program", [
    adversaries, stepped_between, equilibrium, learning_to_learn, one_beside, experts, truncated, never_used, threads_on_one_graph, spectra,
    windows,
])
def test_a_loop(store, program, wait):
    expected = outcome(program, Where(None, wait))
    where = Where(store, wait)
    assert outcome(program, where) == expected
    assert (expected is INPLACE) == (program is stepped_between)
    gc.collect()
    for off in where.offs:
        off._session.drain()
    assert [left_in(off) for off in where.offs] == [(0, 0, 0)] * len(where.offs)


# ---- Memory that changes without being counted ---------------------------------------------------------------------------


def shared(tensor):
    """As when it is sent to another process."""
    tensor.share_memory_()


def resized(tensor):
    """As by code that takes the memory of activations away, and fills it again."""
    held, storage = tensor.clone(), tensor.storage()
    storage.resize_(0)
    storage.resize_(tensor.numel())
    tensor.data.copy_(held)


@pytest.mark.parametrize("move", [shared, resized])
@pytest.mark.parametrize("wait", [True, False], ids=["stored", "at once"])
def test_memory_that_becomes_another(store, move, wait):
    """While the write waits: what it had belongs to others then, and is not what is written."""
    off = spillway.torch.offload(Nothing(), store, min_bytes=1, mode="spill")
    seen, x = [], torch.ones(1, requires_grad=True)
    tensor = torch.randn(10000)
    expected = tensor.clone()
    with off:
        y = Save.apply(x, seen, tensor.view(100, 100).t())
        move(tensor)
        others = [torch.full((10000,), 7.0) for _ in range(50)]
        if wait:
            settle(off)
        y = Save.apply(y, seen, tensor)  # where it is now
        y.sum().backward()
    (now,), (got,) = seen
    assert torch.equal(got, expected.view(100, 100).t()) and torch.equal(now, expected)
    del y, tensor, got, now, others
    seen.clear()
    assert left_in(off) == (0, 0, 0)
    off._session.prune()
    assert off._session.known() == 0


@pytest.mark.parametrize("graph", ["is gone", "is left"])
def test_memory_that_is_filled_anew_in_each_step(store, graph):
    """By NumPy. What a graph has that is left from the step before is not what is saved now."""
    off = spillway.torch.offload(Nothing(), store, min_bytes=1, mode="spill")
    seen, graphs, x = [], [], torch.ones(1, requires_grad=True)
    tensor = torch.zeros(10000)
    array = tensor.numpy()
    with off:
        for number in range(4):
            if graph == "is left":
                off.step()
            array[:] = number
            y = Save.apply(x, seen, tensor)
            settle(off)
            y.sum().backward(retain_graph=graph == "is left")
            assert torch.equal(seen.pop()[0], torch.full((10000,), float(number)))
            if graph == "is left":
                graphs.append(y)
            del y
    graphs.clear()
    assert left_in(off) == (0, 0, 0)


@pytest.mark.parametrize("trained", [True, False])
def test_a_parameter_is_given_other_memory(store, trained):
    """As DeepSpeed does, which lets its memory go until it is used: what is the parameter's .data then is used."""
    off = spillway.torch.offload(Nothing(), store, min_bytes=1, mode="spill")
    weight, seen = nn.Parameter(torch.zeros(300, 300), requires_grad=trained), []
    x = torch.ones(1, requires_grad=True)
    with off:
        y = Save.apply(x, seen, weight)
        weight.data = torch.empty(0)
        weight.data = torch.ones(300, 300)
        y.sum().backward()
    assert torch.equal(seen[0][0], torch.ones(300, 300))


def test_views_of_parts_that_do_not_know_of_each_other(store):
    """Views of what torch.unsafe_chunk() gives are kept, as the parts are."""
    off = spillway.torch.offload(Nothing(), store, min_bytes=1, mode="spill")
    seen, x = [], torch.ones(1, requires_grad=True)
    with off:
        one, other = torch.unsafe_chunk(torch.randn(200, 400), 2, 1)
        expected = one.clone()
        y = Save.apply(x, seen, one.t(), one[1:], one[:, :50])
        other.sigmoid_()
        y.sum().backward()
    assert [torch.equal(*pair) for pair in zip(seen[0], (expected.t(), expected[1:], expected[:, :50]))] == [True] * 3
    assert off.stats().offers == 0


class Parts(nn.Module):
    """Never called itself."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU()) for _ in range(3))

    def training_step(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().sum()


@pytest.mark.parametrize("called", [False, True])
def test_steps_of_a_model_that_is_not_called_itself(store, called):
    """They are seen by its layers; what several calls of a model that is called say stays theirs to say."""
    torch.manual_seed(SEED)
    model = Parts()
    if called:
        model.forward = model.training_step
    off = spillway.torch.offload(model, store, min_bytes=1, mode="spill")
    with off:
        for step in range(1, 5):
            (model if called else model.training_step)(torch.randn(8, SIZE)).backward()
            stats = off.stats()
            assert (stats.steps, stats.tensors_kept_backward) == (step, 0)
            model.zero_grad(set_to_none=True)
        if called:  # a part of it after the backward pass is no step of its own
            model.layers[0](torch.randn(8, SIZE)).sum().backward()
            assert off.stats().steps == 4
