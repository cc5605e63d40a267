# SPDX-License-Identifier: MIT
# tests/python/test_autograd.py - in-place changes, several backward passes, the context's life
# layer: test all
import contextlib
import errno
import gc
import logging
import os

import pytest
import torch
from torch import nn

import spillway
import spillway.torch
from conftest import given_back, make_store
from offloading import (RAISED, Layers, Nothing, equal, gradients_of, in_threads, left_in,
                        offload_all, offload_each, save, settle)


INPLACE = "modified by an inplace operation"


@pytest.mark.parametrize("stored", [True, False], ids=["after the write", "at once"])
@pytest.mark.parametrize("change", [
    lambda y: y.add_(1),
    lambda y: y.view(-1)[3:5].zero_(),
    lambda y: y.detach().mul_(2),
], ids=["itself", "a view", "detached"])
def test_changed_in_place(off, change, stored):
    with off:
        y = torch.randn(300, 300, requires_grad=True).exp()
        if stored:
            settle(off)
        with torch.no_grad():
            change(y)
        with pytest.raises(RuntimeError, match=INPLACE):
            y.sum().backward()
    del y


def test_changed_in_place_while_kept(store):
    off = spillway.torch.offload(Nothing(), store, sizes=spillway.torch.Sizes(min_bytes=1 << 30))
    with off:
        y = torch.randn(300, requires_grad=True).exp()
        y.add_(1)
        with pytest.raises(RuntimeError, match=INPLACE):
            y.sum().backward()


def test_a_parameter_changed_in_place(store):
    model = nn.Linear(5, 5)
    off = spillway.torch.offload(model, store)
    with off:
        y = model(torch.randn(3, 5, requires_grad=True)).sum()
        with torch.no_grad():
            model.weight.add_(1)
        with pytest.raises(RuntimeError, match=INPLACE):
            y.backward()


def test_a_change_before_the_save_is_no_fault(off):
    with off:
        x = torch.randn(1000, requires_grad=True)
        y = (x * 1).mul_(2)
        z = y.exp()
        z.sum().backward()
    assert torch.equal(x.grad, torch.exp(x.detach() * 2) * 2)


def test_bytes_changed_during_the_write_are_never_used(off):
    """Many large tensors, changed at once after the save: some before, some during, some after
    their write."""
    outputs = []
    with off:
        for _ in range(16):
            y = torch.randn(1 << 20, requires_grad=True).exp()
            y.detach().zero_()
            outputs.append(y)
        for y in outputs:
            with pytest.raises(RuntimeError, match=INPLACE):
                y.sum().backward()
    del y
    outputs.clear()


def test_backward_after_the_context(off):
    x = torch.randn(100, 100, requires_grad=True)
    with off:
        y = x.exp().sum()
        settle(off)
    y.backward()
    assert torch.equal(x.grad, x.detach().exp())
    del y


def test_backward_in_other_threads(off):
    outputs, leaves = [], []
    with off:
        for _ in range(8):
            leaves.append(torch.randn(300, 300, requires_grad=True))
            outputs.append((leaves[-1].exp().sin() * leaves[-1]).sum())
    in_threads(*(outputs.pop(0).backward for _ in leaves))
    for leaf in leaves:
        assert torch.equal(leaf.grad, torch.autograd.grad((leaf.exp().sin() * leaf).sum(), leaf)[0])


def test_a_graph_that_is_dropped_leaves_nothing(off):
    with off:
        y = torch.randn(1000, requires_grad=True).exp()
        del y
        assert left_in(off)[:2] == (0, 0) or settle(off).entries == 0


class Faulty(Layers):
    """Its forward pass may end between two layers."""

    fault = None

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if self.fault == index:
                raise ArithmeticError("in forward")
        return x


class Boom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("in backward")


def step_of(model, off):
    torch.manual_seed(11)
    model.zero_grad()
    with off:
        model(torch.randn(64, 100)).pow(2).sum().backward()
    return [gradient.clone() for gradient in gradients_of(model)]


@pytest.mark.parametrize("where", ["forward", "layer", "backward"])
def test_after_an_exception_the_next_step_works(store, where):
    torch.manual_seed(1)
    model = Faulty()
    off = offload_each(store, model)
    expected = step_of(model, off)
    with pytest.raises(ArithmeticError):
        with off:
            if where == "forward":
                model.fault = 2
                model(torch.randn(64, 100))
            elif where == "layer":
                handle = model.layers[2][0].register_forward_pre_hook(
                    lambda *_: Boom.backward(None, None))
                try:
                    model(torch.randn(64, 100))
                finally:
                    handle.remove()
            else:
                Boom.apply(model(torch.randn(64, 100))).sum().backward()
    model.fault = None
    gc.collect()
    assert left_in(off) == (0, 0, 0)
    for _ in range(2):
        assert equal(step_of(model, off), expected)
    assert left_in(off) == (0, 0, 0)


def test_entered_twice(off, store):
    other = spillway.torch.offload(Nothing(), store)
    with off:
        torch.randn(1000, requires_grad=True).exp().sum().backward()
        with pytest.raises(RuntimeError, match="this offload context is active already"):
            off.__enter__()
        with pytest.raises(RuntimeError, match="active in this thread already"):
            other.__enter__()
    assert off.stats().offers == 1
    with other:
        pass


def test_hooks_go_with_the_context(store):
    model = Layers()
    off = offload_each(store, model)
    for _ in range(3):
        step_of(model, off)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    offers = off.stats().offers
    model(torch.randn(64, 100)).sum().backward()
    assert off.stats().offers == offers


def test_no_grad_is_left_alone(store):
    model = Layers()
    off = offload_each(store, model)
    with off, torch.no_grad():
        model(torch.randn(64, 100))
    assert (off.stats().offers, off.stats().steps) == (0, 0)


@pytest.mark.parametrize("passes", ["one by one", "accumulated", "forward first"])
def test_steps(store, passes):
    """A step begins with the first forward pass after a backward pass, or where step() says so."""
    def run(context):
        torch.manual_seed(1)
        model = Layers()
        off = context(model)
        for _ in range(3):
            if passes == "accumulated" and isinstance(off, spillway.torch.Offload):
                off.step()
            losses = []
            for _ in range(1 if passes == "one by one" else 3):
                with off:
                    losses.append(model(torch.randn(64, 100)).pow(2).sum())
                    if passes != "forward first":
                        losses.pop().backward()
            for loss in losses:
                loss.backward()
        return gradients_of(model), off

    expected, _ = run(lambda model: contextlib.nullcontext())
    got, off = run(lambda model: offload_each(store, model))
    assert equal(got, expected) and off.stats().steps == 3


def test_a_store_closed_inside_the_context(formatted):
    store = spillway.Store(formatted)
    off = offload_all(store)
    x = torch.randn(1000, requires_grad=True)
    with off:
        y = x.exp().sum()
        store.close()
        with pytest.raises(RAISED, match="Errno 9. the tensor cache is closed"):
            y.backward()
        with pytest.raises(RAISED, match="Errno 9. the tensor cache is closed"):
            x.exp()
    with pytest.raises(spillway.SpillwayError, match="closed"):
        off.__enter__()
    given_back(formatted)


def test_lent_memory_outlives_the_store(formatted):
    seen = []
    with spillway.Store(formatted) as store:
        off = offload_all(store)
        tensor = torch.randn(100000)
        expected = tensor.clone()
        with off:
            y = save(seen, tensor)
            del tensor
            settle(off)
            y.sum().backward()
    assert torch.equal(seen[0][0], expected)
    seen.clear()
    given_back(formatted)


def test_closing_inside_the_context_is_refused(off):
    with off:
        with pytest.raises(RuntimeError, match="leave the offload context"):
            off.close()


def test_damaged_drives_give_an_error_and_never_wrong_bytes(formatted):
    with spillway.Store(formatted) as store:
        off = offload_all(store)
        x = torch.randn(500000, requires_grad=True)
        with off:
            y = x.exp()
            z = y.sum()
            del y
            settle(off)
            for path in formatted:  # all data blocks; the superblocks are at both ends
                size = os.path.getsize(path)
                with open(path, "r+b") as file:
                    file.seek(1 << 20)
                    file.write(os.urandom(min(size - (2 << 20), 32 << 20)))
            with pytest.raises(RAISED, match=f"Errno {errno.EBADMSG}") as caught:
                z.backward()
        assert any(path in str(caught.value) for path in formatted)
        assert x.grad is None


def test_drives_that_fail_in_backward_give_an_error_that_names_one(formatted):
    """They end before the data: reads fail. The next step, whose writes succeed, works."""
    with spillway.Store(formatted) as store:
        off = offload_all(store)
        x = torch.randn(500000, requires_grad=True)
        with off:
            z = x.exp().sum()
            settle(off)
            for path in formatted:
                os.truncate(path, 8192)
            with pytest.raises(RAISED, match="Errno ") as caught:
                z.backward()
            assert any(path in str(caught.value) for path in formatted)
            assert x.grad is None
            del z, caught  # its frames hold the tensor
            x.exp().sum().backward()
        assert torch.equal(x.grad, x.detach().exp())
        assert off.stats().reads_failed > 0
        assert left_in(off) == (0, 0, 0)


def test_a_full_store_keeps_tensors_and_says_so(folder, caplog):
    drives = make_store(folder, 1, 16 << 20)
    torch.manual_seed(1)
    x = torch.randn(1 << 20, requires_grad=True)  # 4 MiB each

    def run():
        h = x
        for _ in range(8):
            h = h.sin()
        return torch.autograd.grad(h.sum(), x)[0]

    expected = run()
    with spillway.Store(drives) as store, caplog.at_level(logging.WARNING, "spillway"):
        off = spillway.torch.offload(Nothing(), store)
        for _ in range(2):
            with off:
                off.step()
                assert torch.equal(run(), expected)
        with off:
            off.step()
        assert off.stats().bytes_kept_no_space > 0
        assert "no space on the drives: tensors stay in memory" in caplog.text


def test_a_forked_child_can_drop_what_it_inherited(off):
    x = torch.randn(1000, requires_grad=True)
    with off:
        y = x.exp().sum()
        child = os.fork()
        if child == 0:
            del y
            gc.collect()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        y.backward()
    assert torch.equal(x.grad, x.detach().exp())
    del y


def test_layers():
    inner = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    model = nn.Sequential(nn.Linear(1, 1), nn.Sequential(inner, nn.ModuleList([nn.Linear(1, 1)])),
                          nn.Linear(1, 1))
    layers = spillway.torch.layers_of(model)
    assert layers == [model[0], inner[0], inner[1], model[1][1][0], model[2]]
    assert spillway.torch.layers_of(Layers())[0] is not None
    assert spillway.torch.layers_of(nn.Linear(1, 1)) == []
