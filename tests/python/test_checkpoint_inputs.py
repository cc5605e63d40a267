# SPDX-License-Identifier: MIT
# tests/python/test_checkpoint_inputs.py - what checkpoints get in keyword arguments and containers
import contextlib
import functools
import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from offloading import (assert_same_run, equal, gradients_of, left_in, offload_all,
                        trained)
from spillway._core.torch_compat import is_before
from spillway._offload import checkpoint_inputs
from streams import Table, host_is_device

pytestmark = pytest.mark.skipif(
    is_before("2.6"), reason="PyTorch does not tell which hooks are the innermost")

WIDTH, LAYERS, ROWS = 64, 5, 96
INPUT = 4 * WIDTH * ROWS


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1),
                                   nn.Linear(WIDTH, WIDTH))

    def forward(self, x=None, boxed=None):
        if boxed is not None:
            x = boxed["x"] if isinstance(boxed, dict) else boxed[0]
        return x + self.inner(x)


CALLS = {
    "keyword": lambda layer, x: checkpoint(layer, x=x, use_reentrant=False),
    "partial": lambda layer, x: checkpoint(functools.partial(layer, x=x), use_reentrant=False),
    "tuple": lambda layer, x: checkpoint(layer, None, (x, 3), use_reentrant=False),
    "list": lambda layer, x: checkpoint(layer, None, [x], use_reentrant=False),
    "dict": lambda layer, x: checkpoint(layer, None, {"x": x}, use_reentrant=False),
    "dict in keyword": lambda layer, x: checkpoint(layer, boxed={"x": x}, use_reentrant=False),
    "dict in tuple": lambda layer, x: checkpoint(lambda pair: layer(boxed=pair[1]), (7, {"x": x}),
                                                 use_reentrant=False),
}


class Model(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.call = call

    def forward(self, x):
        x = x.clone().requires_grad_() * 2
        for layer in self.layers:
            x = self.call(layer, x)
        return x


def run(call, store=None, offload={}, **options):
    torch.manual_seed(11)
    model = Model(call)
    return trained(model, lambda: torch.randn(ROWS, WIDTH),
                   store and functools.partial(offload_all, store, **offload),
                   optimizer=torch.optim.SGD(model.parameters(), 0.1), **options)


def same_as_plain(call, store, **options):
    spilled = run(call, store, **options)
    spilled.off.close()
    assert_same_run(run(call, **options), spilled)


@pytest.mark.parametrize("name, call", CALLS.items(), ids=CALLS)
def test_each_input_goes_through_the_hooks(store, name, call):
    same_as_plain(call, store)
    most = run(call, store, offload={"mode": "observe"}).off.stats().activation_bytes_max
    # And the model's result. The last layer's input stays: no checkpoint follows.
    assert most == INPUT * LAYERS, most / INPUT


def same_twice_backward(call, store, inside):
    """The gradients of two backward passes of one loss, inside of the context or after it."""
    def gradients(off):
        torch.manual_seed(11)
        model = Model(call)
        with off(model):
            loss = model(torch.randn(ROWS, WIDTH)).square().mean()
            if inside:
                loss.backward(retain_graph=True)
                loss.backward()
        if not inside:
            loss.backward(retain_graph=True)
            loss.backward()
        return gradients_of(model)

    plain = gradients(lambda model: contextlib.nullcontext())
    assert equal(plain, gradients(lambda model: offload_all(store, model)))


def test_backward_outside_of_the_context(store):
    same_twice_backward(CALLS["keyword"], store, inside=False)


def nested(layer, x):
    """The inner one's input is the outer one's to recompute."""
    def outer(x):
        return checkpoint(layer, x=checkpoint(torch.tanh, input=x * 2, use_reentrant=False),
                          use_reentrant=False)

    return checkpoint(outer, x=x, use_reentrant=False)


class Reused(nn.Module):
    """Its dict is the caller's, who changes it before the backward pass: PyTorch recomputes from
    what is then in it, which is wrong, and the same here."""

    def forward(self, layer, x):
        self.state["x"] = x
        return checkpoint(layer, boxed=self.state, use_reentrant=False)

    def __init__(self):
        super().__init__()
        self.state = {}


def noting(layer, x):
    """The function changes what it gets."""
    def function(boxes):
        boxes.append(boxes[0].tanh())
        return (layer(boxed=boxes) + boxes[-1]).tanh()

    return checkpoint(function, [x], use_reentrant=False)


def deeper(layer, x):
    return checkpoint(lambda box: layer(boxed=box["in"][0]), {"in": ([x], 1), "no": None},
                      use_reentrant=False)


def both(layer, x):
    """Positional, by name, and the same one twice."""
    return checkpoint(lambda a, b, c: (layer(a) + b[0] * c["x"][0]).tanh(), x, b=(x, x),
                      c={"x": (x,)}, use_reentrant=False)


@pytest.mark.parametrize("call", [nested, Reused(), noting, deeper, both],
                         ids=["nested", "reused", "noting", "deeper", "both"])
def test_other_programs(store, call):
    same_as_plain(call, store)


def changing(then):
    """Something else still holds the input, and changes it when the next checkpoint has begun."""
    def call(layer, x):
        result = CALLS["keyword"](layer, x)
        with torch.no_grad():
            for other in call.held:
                other.add_(1)
        call.held = [then(x)]
        return result

    call.held = []
    return call


@pytest.mark.parametrize("then", [lambda x: x, torch.Tensor.detach, lambda x: x.view(-1)[1:],
                                  lambda x: x.data], ids=["itself", "detached", "view", "data"])
def test_an_input_changed_in_place(store, then):
    """PyTorch recomputes from what it is changed to, which may be wrong, and is the same here."""
    same_as_plain(changing(then), store)


def test_an_input_of_all_layers(store):
    """As an encoder's result: held once, not saved while the model holds it."""
    class Crossed(Model):
        def forward(self, x):
            memory = x.clone().requires_grad_().sin()
            for layer in self.layers:
                x = checkpoint(lambda x, memory, layer=layer: layer(x + memory), x, memory=memory,
                               use_reentrant=False)
            return x

    def crossed(store=None):
        torch.manual_seed(11)
        model = Crossed(None)
        return trained(model, lambda: torch.randn(ROWS, WIDTH),
                       store and functools.partial(offload_all, store),
                       optimizer=torch.optim.SGD(model.parameters(), 0.1))

    spilled = crossed(store)
    spilled.off.close()
    assert_same_run(crossed(), spilled)


GIVEN = {
    "positional": lambda attention, x: checkpoint(attention, x, x, x, use_reentrant=False),
    "by name": lambda attention, x: checkpoint(attention, x, key=x, value=x, use_reentrant=False),
    "partial": lambda attention, x: checkpoint(functools.partial(attention, key=x, value=x), x,
                                               use_reentrant=False),
}


@pytest.mark.parametrize("name", GIVEN)
def test_an_input_that_is_given_several_times(store, name):
    """Attention with itself computes otherwise than with another tensor of the same elements."""
    def call(layer, x):
        x = x[:, None]
        return layer(GIVEN[name](nn.MultiheadAttention(WIDTH, 2), x)[0][:, 0])

    same_as_plain(call, store)


def test_an_error_in_a_checkpoint(store):
    """It is the program's own, and training goes on."""
    def failing(x):
        raise ZeroDivisionError("mine")

    model = Model(CALLS["keyword"])
    with offload_all(store, model) as off:
        with off, pytest.raises(ZeroDivisionError, match="mine"):
            checkpoint(failing, x=torch.randn(ROWS, WIDTH, requires_grad=True).exp(),
                       use_reentrant=False)
        with off:
            model(torch.randn(ROWS, WIDTH)).sum().backward()
        assert not any(left_in(off))


@pytest.mark.parametrize("begin", [lambda other, things: None, None], ids=["other", "none"])
def test_checkpoints_of_an_unknown_version_are_left_alone(monkeypatch, begin):
    module = torch.utils.checkpoint
    for name in [checkpoint_inputs._NAME, checkpoint_inputs._NAME + "_impl"]:
        monkeypatch.setattr(module, name, begin, raising=False)
    monkeypatch.setattr(module, checkpoint_inputs._INSTALLED, True, raising=False)
    monkeypatch.delattr(module, checkpoint_inputs._INSTALLED)
    checkpoint_inputs.install(lambda: None)
    assert getattr(module, checkpoint_inputs._NAME) is begin
    assert hasattr(module, checkpoint_inputs._INSTALLED)


def tagged(layer, x):
    """The function reads an attribute that a program gave the tensor."""
    x = x * 1
    x.factor = 0.5
    return checkpoint(lambda x: layer(x * x.factor), x=x, use_reentrant=False)


def tagged_first(layer, x):
    x = x * 1
    x.factor = 0.5
    return checkpoint(lambda x: layer(x * x.factor), x, use_reentrant=False)


def sparse(layer, x):
    return checkpoint(lambda x: layer(x.to_dense()), x=x.to_sparse(), use_reentrant=False)


def in_place(layer, x):
    """Two checkpoints hold the tensor that each changes to what it is already."""
    x, function = x * 1, lambda x: layer(torch.relu_(x))
    return (checkpoint(function, x=x, use_reentrant=False)
            + checkpoint(function, x=x, use_reentrant=False))


def beside_jvp(layer, x):
    torch.func.jvp(lambda y: checkpoint(layer.inner[0], input=y * 1, use_reentrant=False),
                   (torch.ones(3, WIDTH),), (torch.ones(3, WIDTH),))
    return CALLS["keyword"](layer, x * 1)


@pytest.mark.parametrize("call", [tagged, tagged_first, sparse, in_place, beside_jvp],
                         ids=["tagged", "tagged first", "sparse", "in place", "beside jvp"])
def test_programs_that_saving_would_break(store, call):
    same_as_plain(call, store)


def test_a_graph_of_which_a_list_is_changed_is_used_twice(store):
    """Each recomputation changes what the next one gets."""
    def counting(layer, x):
        def function(boxes):
            boxes["count"] += 1
            return layer(boxes["x"] * boxes["count"])

        return checkpoint(function, {"x": x, "count": 0}, use_reentrant=False)

    same_twice_backward(counting, store, inside=True)


def test_selective_checkpoints_on_a_device(store):
    """Their mode does not see the operations that bring an input back."""
    def selective(layer, x):
        contexts = functools.partial(torch.utils.checkpoint.create_selective_checkpoint_contexts,
                                     [torch.ops.aten.addmm.default])
        return checkpoint(layer, x=x, use_reentrant=False, context_fn=contexts)

    def on_device(store, model):
        off = offload_all(store, model)
        host_is_device(off, Table())
        return off

    spilled = trained_by(selective, functools.partial(on_device, store))
    spilled.off.close()
    assert_same_run(trained_by(selective), spilled)


def trained_by(call, off_of=None):
    torch.manual_seed(11)
    return trained(Model(call), lambda: torch.randn(ROWS, WIDTH), off_of)


def test_a_dropped_offload_is_closed(store):
    """What waits to be saved does not keep it."""
    off = offload_all(store, Model(None))
    with off:
        checkpoint(torch.tanh, torch.randn(ROWS, WIDTH, requires_grad=True),
                   use_reentrant=False).sum().backward()
    session = weakref.ref(off._session)
    del off
    gc.collect()
    assert session() is None


class SeenLock:
    """A lock that tells when a thread has to wait for it."""

    def __init__(self, waits):
        self._lock, self._waits = threading.Lock(), waits

    def __enter__(self):
        if not self._lock.acquire(blocking=False):
            self._waits.set()
            self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()


def test_a_backward_pass_recomputes_while_the_next_checkpoint_saves(monkeypatch):
    """In another thread, which changes the dict that is being saved: later recomputations get what
    it has changed, as without spillway."""
    goes_on = threading.Event()  # the thread has ended, or waits
    held = checkpoint_inputs._Held({"x": "before"})
    held.lock = SeenLock(goes_on)

    def recompute():
        value = held.restored({})
        state = checkpoint_inputs._state_of(value)
        value["x"] = "changed"
        held.used(value, state)
        goes_on.set()

    thread = threading.Thread(target=recompute)

    def take(part, inside):
        thread.start()
        goes_on.wait()
        return part

    monkeypatch.setattr(checkpoint_inputs, "_take", take)
    assert held.save_if_alone() and held.value is None
    thread.join()
    assert held.restored({}) == {"x": "changed"}
