# SPDX-License-Identifier: MIT
# tests/python/test_loops.py - what else training loops do: the same numbers, or the same error
# layer: test all
"""Each program runs without spillway and with it. Then, what memory goes through that PyTorch does
not count."""
import contextlib
import functools
import gc
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, spectral_norm
from torch.utils.checkpoint import checkpoint

import spillway.torch
from offloading import (Layers, Save, equal, gradients_of, in_threads, left_in, offload_all, raw,
                        save, settle, with_sizes)
from spillway._core.torch_compat import is_before

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
        self.offs.append(offload_all(self.store, model))
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


# ---- Loops ---------------------------------------------------------------------------------------


def adversaries(where):
    """Two models with a context each, spectral norms and running statistics changed in forward, and
    a gradient penalty."""
    maker = nn.Sequential(nn.Linear(16, SIZE), nn.BatchNorm1d(SIZE), nn.ReLU(True),
                          nn.Linear(SIZE, SIZE))
    judge = nn.Sequential(spectral_norm(nn.Linear(SIZE, SIZE)), nn.Softplus(),
                          parametrizations.spectral_norm(nn.Linear(SIZE, 1)))
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
            loss = judge(made.detach()).mean() - judge(torch.randn(
                32, SIZE)).mean() + (slope.norm(2, 1) - 1).pow(2).mean()
            where.settle()
        step(steppers[1], loss)
        with judging:
            loss = -judge(made).mean()
        where.settle()
        step(steppers[0], loss)
        losses.append(loss.detach())
    return losses, maker, judge


def backward_twice(where):
    x = torch.randn(200, 200, requires_grad=True)
    with where.context():
        y = (x.exp() * x.sin()).sum()
        where.settle()
        y.backward(retain_graph=True)
        first = x.grad.clone()
        y.backward()
    return first, x.grad


def double_backward(where):
    x = torch.randn(SIZE, SIZE, requires_grad=True)
    with where.context():
        y = (x.exp() * x.tanh() @ x).sum()
        where.settle()
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        where.settle()
        (first**2).sum().backward()
    return x.grad


def several_losses(where):
    x = torch.randn(SIZE, SIZE, requires_grad=True)
    with where.context():
        h = x.sigmoid()
        where.settle()
        h.exp().sum().backward(retain_graph=True)
        h.log().sum().backward()
    return x.grad


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
        return F.linear(F.linear(x, weights[0], weights[1]).tanh(), weights[2],
                        weights[3]).pow(2).mean()

    with where.context(model):
        for _ in range(3):
            where.settle()
            gradients = torch.autograd.grad(loss_of(weights), weights, create_graph=True)
            weights = [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)]
        where.settle()
        loss_of(weights).backward()
    return [weight.grad for weight in first]


def one_beside(where):
    """What its modules change, or fill later, without counting it is known if the context's model
    has them, too."""
    model = nn.ModuleList([
        nn.Linear(SIZE, SIZE),
        nn.Sequential(nn.Linear(SIZE, SIZE), nn.RReLU(), nn.BatchNorm1d(SIZE))
    ])
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
    gate, some = nn.Linear(SIZE, 4), nn.ModuleList(
        nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU()) for _ in range(4))
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

        in_threads(*(functools.partial(use, number) for number in range(4)))
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
        y = (rows.sin() * rows).sum() + (parts.tanh() * parts).sum() + h.as_strided(
            (100, 100), (0, 1), 17).pow(3).sum()
        where.settle()
        y.backward()
    return x.grad


def rrelu_put_in_later(where):
    """Its noise is drawn after it was saved: what such a module saves stays where it is, since
    whenever the module is there: from before the context is entered, or in it."""
    models = []
    for inside in (False, True):
        model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, SIZE))
        off = where.context(model)
        if not inside:
            model[1] = nn.RReLU()
        for _ in range(2):
            with off:
                if inside:
                    model[1] = nn.RReLU()
                loss = model(torch.randn(200, SIZE)).pow(2).sum()
                where.settle()
                loss.backward()
        models.append(model)
    return models


def nested(where):
    """Such tensors have no memory of their own; nor have those of vmap."""
    if not hasattr(torch, "nested"):
        pytest.skip("this PyTorch has no nested tensors")
    weight = torch.randn(4, 8, requires_grad=True)
    with where.context():
        parts = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)]).requires_grad_()
        y = torch.nested.to_padded_tensor(F.linear(parts, weight), 0.0)
        where.settle()
        y.pow(2).sum().backward()
    return weight.grad


def batched_gradients(where):
    x = torch.arange(50.0, requires_grad=True)
    with where.context():
        y = x.sin() * x
        rows = torch.autograd.grad(y, x, torch.eye(50), is_grads_batched=True, create_graph=True)[0]
        where.settle()
        rows.sum().backward()
    return x.grad


def autocast(where):
    """Without oneDNN: its bf16 instructions are not on every machine that says so."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU(), nn.Linear(SIZE, SIZE))
    without = torch.backends.mkldnn.flags(enabled=False)
    with where.context(model), torch.autocast("cpu", torch.bfloat16), without:
        output = model(torch.randn(64, SIZE))
        assert output.dtype is torch.bfloat16
        where.settle()
        output.float().pow(2).sum().backward()
    return model


def checkpoints(where, reentrant=False):
    """Their own hooks lie inside ours; what is recomputed is kept."""
    x = torch.randn(300, 300, requires_grad=True)
    with where.context():
        h = checkpoint(lambda t: t.sin().exp(), x.cos(), use_reentrant=reentrant)
        y = checkpoint(lambda t: t.tanh().exp(), h, use_reentrant=reentrant).sum()
        where.settle()
        y.backward()
    return x.grad


def checkpoints_reentrant(where):
    return checkpoints(where, reentrant=True)


def checkpoint_inputs_in_lists(where):
    """Where PyTorch does not show them to hooks (xtuner 1979), and the test holds the list."""
    x = torch.randn(300, 300, requires_grad=True)
    with where.context():
        held = [x.exp(), {"more": x.sin()}]
        y = checkpoint(lambda first, rest: first * rest[0] + rest[1]["more"], x.cos(), held,
                       use_reentrant=False)
        where.settle()
        y.sum().backward()
    return x.grad


@pytest.mark.parametrize("wait", [True, False], ids=["stored", "at once"])
@pytest.mark.parametrize("program", [
    adversaries, backward_twice, double_backward, several_losses, stepped_between, equilibrium,
    learning_to_learn, one_beside, experts, truncated, never_used, threads_on_one_graph, spectra,
    windows, autocast, checkpoints, checkpoints_reentrant, checkpoint_inputs_in_lists,
    nested, batched_gradients, rrelu_put_in_later,
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


# ---- Memory that changes without being counted ---------------------------------------------------


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
    off = offload_all(store)
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
    off = offload_all(store)
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
def test_a_parameter_is_given_other_memory(off, trained):
    """As DeepSpeed does, which lets its memory go until it is used: what is the parameter's .data
    then is used."""
    weight, seen = nn.Parameter(torch.zeros(300, 300), requires_grad=trained), []
    with off:
        y = save(seen, weight)
        weight.data = torch.empty(0)
        weight.data = torch.ones(300, 300)
        y.sum().backward()
    assert torch.equal(seen[0][0], torch.ones(300, 300))
    del y


class Parts(Layers):
    """Never called itself."""

    forward = None

    def training_step(self, x):
        return super().forward(x).square().sum()


@pytest.mark.parametrize("called", [False, True])
def test_steps_of_a_model_that_is_not_called_itself(store, called):
    """They are seen by what is saved; what several calls of a model that is called say stays theirs
    to say."""
    torch.manual_seed(SEED)
    model = Parts()
    if called:
        model.forward = model.training_step
    off = offload_all(store, model)
    with off:
        for step in range(1, 5):
            (model if called else model.training_step)(torch.randn(8, SIZE)).backward()
            stats = off.stats()
            assert (stats.steps, stats.tensors_kept_backward) == (step, 0)
            model.zero_grad(set_to_none=True)
        if called:  # a part of it after the backward pass does not count as a step
            model.layers[0](torch.randn(8, SIZE)).sum().backward()
            assert off.stats().steps == 4


class Whitened(Parts):
    """Something is saved before its layers, and none of them is called by it itself."""

    checkpoints = False

    def __init__(self):
        super().__init__(width=SIZE)
        self.scale = nn.Parameter(torch.ones(SIZE))

    def training_step(self, x):
        x = (x * self.scale).sin()
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True) if self.checkpoints else layer(x)
        return x.square().sum()


def twice_differentiable(loss, _):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of cycles
        loss.backward(create_graph=True)


def penalty(loss, model):
    gradients = torch.autograd.grad(loss, model.parameters(), create_graph=True)
    (loss + sum(gradient.square().sum() for gradient in gradients)).backward()


def hessian_product(loss, model):
    gradients = torch.autograd.grad(loss, model.parameters(), create_graph=True)
    torch.autograd.grad(sum((gradient * 2).sum() for gradient in gradients), model.parameters())


@pytest.mark.parametrize("checkpoints, backward", [
    (False, lambda loss, _: loss.backward()), (True, lambda loss, _: loss.backward()),
    (False, twice_differentiable), (False, penalty), (False, hessian_product)],
    ids=["plain", "reentrant checkpoints", "create_graph", "penalty", "hessian"])
def test_steps_in_one_context_around_the_loop(store, checkpoints, backward):
    """Of a model that is never called itself, whatever its backward passes save."""
    if checkpoints and is_before("2.1"):
        pytest.skip("this PyTorch does not tell which node runs")
    torch.manual_seed(SEED)
    model = Whitened()
    model.checkpoints = checkpoints
    off = offload_all(store, model)
    with off:
        for step in range(1, 7):
            loss = model.training_step(torch.randn(8, SIZE))
            assert off.stats().steps == step
            backward(loss, model)
            assert off.stats().steps == step
            model.zero_grad(set_to_none=True)
            del loss


class Flow(nn.Module):
    """Neither it nor a part of it is ever called: it is asked for something else."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(SIZE, SIZE) / 9) for _ in range(4))

    def log_prob(self, x):
        for weight in self.weights:
            x = (x @ weight).tanh() + x
        return x.square().sum()


@pytest.mark.parametrize("options", [
    {"mode": "observe"}, {"mode": "spill"}, {"mode": "fastest"},
    {"mode": "budget", "budget_bytes": 4 * SIZE * SIZE * 4}
], ids=lambda options: options["mode"])
def test_steps_of_a_model_of_which_no_module_is_called(store, options):
    """A step begins with the first tensor that is saved after a backward pass."""
    def run(context):
        torch.manual_seed(SEED)
        model, found = Flow(), []
        off = context(model)
        for step in range(1, 7):
            with off:
                loss = model.log_prob(torch.randn(SIZE, SIZE))
                again = step % 2 == 0
                gradients = torch.autograd.grad(loss, model.parameters(), create_graph=again)
                found += [gradient.detach() for gradient in gradients]
                if again:  # what is saved in the backward pass begins none
                    sum(gradient.square().sum() for gradient in gradients).backward()
            if isinstance(off, spillway.torch.Offload):
                assert off.stats().steps == step
        return found + gradients_of(model), off

    expected, _ = run(lambda model: contextlib.nullcontext())
    got, off = run(lambda model: spillway.torch.offload(
        model, store, **with_sizes(min_bytes=1, **options)))
    assert equal(got, expected)
    assert off.stats().steps == 6
