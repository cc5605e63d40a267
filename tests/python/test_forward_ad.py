# SPDX-License-Identifier: MIT
# tests/python/test_forward_ad.py - forward-mode AD and torch.func.jvp inside the context
# layer: test all
import contextlib

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import spillway.torch
from offloading import equal, gradients_of, offload_all, settle

jvp = getattr(getattr(torch, "func", None), "jvp", None)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(34, 128), nn.Linear(128, 128), nn.Linear(128, 32)])

    def forward(self, x, *times):
        x = torch.cat([x, *times], 1)
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def dual_levels(net, settled):
    """Zeros without memory are saved, too: the tangents of what has none."""
    with forward_ad.dual_level():
        out = net(forward_ad.make_dual(torch.randn(64, 34), torch.randn(64, 34)))
        settled()
        primal, tangent = forward_ad.unpack_dual(out)
        (tangent.square().sum() + primal.sum()).backward()
    return [out.detach()]


def one_memory_with_and_without_a_tangent(net, settled):
    weight = torch.randn(64, 34, requires_grad=True)
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.randn(64, 34), torch.ones(64, 34)).exp()
        y = weight * x * x.detach() + weight.sin() * x.detach() * x + net(x).sum()
        settled()
        torch.autograd.grad(y.sum(), weight, retain_graph=True)
        gradient, = torch.autograd.grad(y.sum(), weight)
        return [part.clone() for part in forward_ad.unpack_dual(gradient)]


def mean_flow(net, settled):
    x, noise, t = torch.randn(64, 32), torch.randn(64, 32), torch.rand(64, 1)
    r = t * torch.rand(64, 1)
    tangents = noise - x, torch.zeros_like(r), torch.ones_like(t)
    u, du = jvp(net, ((1 - t) * x + t * noise, r, t), tangents)
    settled()
    loss = nn.functional.mse_loss(u, (noise - x - (t - r) * du).detach())
    loss.backward()
    return [loss.detach()]


PROGRAMS = [dual_levels, one_memory_with_and_without_a_tangent]
if jvp is not None:
    PROGRAMS += [mean_flow]


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("mode", [
    {"mode": "observe"}, {"mode": "spill"}, {"mode": "fastest"},
    {"mode": "budget", "budget_bytes": 100_000, "recompute": "auto"}
], ids=lambda mode: mode["mode"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_same_numbers(store, program, mode):
    if "recompute" in mode and not hasattr(torch, "func"):
        pytest.skip("recomputation needs PyTorch 2.1")

    def run(offloaded):
        torch.manual_seed(7)
        net, found = Net(), []
        off = spillway.torch.offload(
            net, store, sizes=spillway.torch.Sizes(min_bytes=1), **mode) if offloaded else None
        for _ in range(4):
            if off is None:
                found += program(net, lambda: None)
            else:
                with off:
                    found += program(net, lambda: settle(off))
        return found + [gradient for gradient in gradients_of(net) if gradient is not None], off

    expected, _ = run(False)
    got, off = run(True)
    assert equal(got, expected)
    assert off.stats().offers > 0 and off.stats().steps == 4
    if mode["mode"] == "spill":
        assert off.stats().bytes_read > 0


@pytest.mark.skipif(jvp is None, reason="torch.func came with PyTorch 2.0")
def test_transforms_that_refuse_hooks(store):
    """What is saved before and after them is spilled all the same."""
    def run(off, settled):
        torch.manual_seed(7)
        weight = torch.randn(50, 50, requires_grad=True)
        with off:
            x = (torch.randn(50, 50) @ weight).tanh()
            with off.paused() if isinstance(off, spillway.torch.Offload) else off:
                y = torch.func.grad(lambda t: (t.sin() @ weight).square().sum())(x)
                z = torch.func.vmap(lambda row: row.exp() @ weight)(x)
            loss = (x.sin() * y * z).sum()
            settled()  # what is needed before its write has ended is forwarded, not spilled
            loss.backward()
        return weight.grad

    off = offload_all(store)
    got = run(off, lambda: settle(off))
    assert torch.equal(got, run(contextlib.nullcontext(), lambda: None))
    # On a busy machine writes take long, and there is no room for more in flight.
    assert off.stats().tensors_spilled + off.stats().tensors_kept_backpressure >= 3
    with off, pytest.raises(RuntimeError, match="support saved tensor hooks"):
        torch.func.grad(torch.sum)(torch.ones(3))


@pytest.mark.skipif(jvp is None, reason="torch.func came with PyTorch 2.0")
def test_paused_twice(store):
    """As by a function that is called where it is paused already."""
    off, x = offload_all(store), torch.ones(3, requires_grad=True)
    with off:
        with off.paused():
            with off.paused():
                torch.func.grad(torch.sum)(torch.ones(3))
            torch.func.grad(torch.sum)(torch.ones(3))
        x.exp().sum().backward()
    assert off.stats().offers == 1
    off.close()
    torch.func.grad(torch.sum)(torch.ones(3))  # nothing is left


def test_paused_where_hooks_are_disabled(store):
    off, x = offload_all(store), torch.ones(3, requires_grad=True)
    with torch.autograd.graph.disable_saved_tensors_hooks("none here"), off:
        with off.paused():
            pass
        x.exp().sum().backward()
    assert off.stats().offers == 0


def test_paused_where_others_have_hooks(store):
    off = offload_all(store)
    with off.paused():  # it is not active
        pass
    with off, saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        if not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):
            pytest.skip("this PyTorch does not tell whose hooks would be popped")
        with pytest.raises(RuntimeError, match="other hooks"):
            off.paused().__enter__()
    x = torch.ones(3, requires_grad=True)
    with off:
        x.exp().sum().backward()
    assert off.stats().offers == 1
