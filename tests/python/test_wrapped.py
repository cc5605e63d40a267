# SPDX-License-Identifier: MIT
# tests/python/test_wrapped.py - DTensors and jagged tensors spill, others are counted
# layer: test all
import contextlib
import io
import logging

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spillway.torch
from offloading import equal, gradients_of, offload_all, save, settle, with_sizes
from spillway._core.torch_compat import is_before

MODES = [{"mode": "observe"}, {"mode": "spill"}, {"mode": "fastest"},
         {"mode": "budget", "budget_bytes": 300_000, "recompute": "auto"}]
WIDTH = 64
INPLACE = "modified by an inplace operation"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.gates = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        a, b, c = self.gates(self.norm(x)).chunk(3, -1)
        x = x + a.tanh() * b.sigmoid() * c
        return x + self.narrow(F.gelu(self.wide(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def jagged(step):
    if not hasattr(torch, "jagged") or is_before("2.3"):
        pytest.skip("jagged tensors need PyTorch 2.3")
    return torch.nested.nested_tensor(
        [torch.randn(length, WIDTH) for length in (17 + step, 50, 128)], layout=torch.jagged)


def jagged_loss(net, step):
    return net(jagged(step)).values().square().mean()


@pytest.fixture(scope="module")
def mesh():
    """Of one rank."""
    if is_before("2.5") or not torch.distributed.is_available():
        pytest.skip("DTensors are tried from PyTorch 2.5 on")
    from torch.distributed.device_mesh import init_device_mesh

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def in_parallel(net, mesh):
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)

    for block in net.blocks:
        parallelize_module(block, mesh, {
            "wide": ColwiseParallel(use_local_output=False),
            "narrow": RowwiseParallel(input_layouts=Shard(-1))})
    return net


def train(store, make, loss_of, options):
    """Without a store: plain training. Return: losses and gradients, and the context."""
    torch.manual_seed(3)
    net, found = make(), []
    off = None if store is None else spillway.torch.offload(
        net, store, **with_sizes(min_bytes=1, **options))
    for step in range(5):
        with contextlib.nullcontext() if off is None else off:
            loss = loss_of(net, step)
            if off is not None:
                settle(off)
            loss.backward()
        found.append(loss.detach())
    local = [getattr(one, "_local_tensor", one) for one in gradients_of(net)]
    return found + local, off


@pytest.mark.parametrize("options", MODES, ids=lambda options: options["mode"])
def test_jagged_tensors(store, options, caplog):
    expected, _ = train(None, Net, jagged_loss, options)
    got, off = train(store, Net, jagged_loss, options)
    assert equal(got, expected)
    assert off.stats().activation_bytes_max > 200 * WIDTH * 4
    assert options["mode"] != "spill" or off.stats().bytes_read > 10 * 200 * WIDTH * 4
    assert "stay in memory" not in caplog.text


@pytest.mark.parametrize("options", MODES, ids=lambda options: options["mode"])
def test_tensor_parallel(store, mesh, options, caplog):
    """The same figures as without."""
    def loss_of(net, step):
        return net(torch.randn(256, WIDTH)).square().mean()

    expected, plain = train(store, Net, loss_of, options)
    got, off = train(store, lambda: in_parallel(Net(), mesh), loss_of, options)
    assert equal(got, expected)
    assert off.stats().tensors_kept_hint == 0
    if options["mode"] == "observe":
        assert off.stats().activation_bytes_max == plain.stats().activation_bytes_max
    assert options["mode"] != "spill" or off.stats().bytes_read > plain.stats().bytes_read * .9
    assert "stay in memory" not in caplog.text


def test_the_same_dtensor(store, mesh):
    from torch.distributed.tensor import DTensor, Shard

    off, seen = offload_all(store), []
    with off:
        whole = DTensor.from_local(torch.randn(30, 40), mesh, [Shard(0)]) * 2
        part = whole.t()[3:]
        expected = [(one._spec, one.stride(), one.to_local().stride(), one.to_local().clone())
                    for one in (whole, part)]
        y = save(seen, whole, part)
        del whole, part
        stats = settle(off)
        assert stats.bytes_spilled > 0 and stats.activation_bytes == 0
        y.sum().backward()
    for back, (spec, stride, inner_stride, local) in zip(seen[0], expected):
        assert type(back) is DTensor and not back.requires_grad and back.grad_fn is None
        assert (back._spec, back.stride()) == (spec, stride)
        assert torch.equal(back.to_local(), local) and back.to_local().stride() == inner_stride


def test_the_same_jagged_tensor(off):
    seen = []
    with off:
        tensor = jagged(0) * 2
        offsets, values = tensor.offsets(), tensor.values().clone()
        y = save(seen, tensor)
        del tensor
        assert settle(off).bytes_spilled == values.numel() * 4
        y.sum().backward()
    back, = seen[0]
    assert back.offsets() is offsets and torch.equal(back.values(), values)
    (back + torch.nested.nested_tensor_from_jagged(values, offsets)).sum()  # of the same shape


@pytest.mark.parametrize("stored", [True, False])
def test_a_jagged_tensor_changed_in_place(off, stored):
    with off:
        weight = torch.randn(WIDTH, requires_grad=True)
        tensor = jagged(0) * 2
        y = (tensor * weight).values().sum()
        if stored:
            settle(off)
        tensor.mul_(2)
        with pytest.raises(RuntimeError, match=INPLACE):
            y.backward()


def test_a_jagged_tensor_changed_before_it_is_saved_again(off):
    """What is inside of it does not count that."""
    seen = []
    with off:
        tensor = jagged(0) * 2
        y = save(seen, tensor)
        settle(off)
        tensor.mul_(2)
        z = save(seen, tensor)
        expected = tensor.values().clone()
        del tensor
        settle(off)
        z.sum().backward()
        del y
    assert torch.equal(seen[0][0].values(), expected)


class Special(torch.Tensor):
    pass


def test_other_classes_are_counted_and_named(store, caplog):
    off, seen = offload_all(store), []
    special = torch.randn(1000, 100).as_subclass(Special)
    sparse = torch.eye(500).to_sparse()
    with caplog.at_level(logging.WARNING, "spillway"), off:
        y = save(seen, special, sparse)
        z = save(seen, special)
        assert off.stats().activation_bytes == 400_000 + 500 * (16 + 4)
        (y + z).sum().backward()
        del y, z
    assert type(seen[1][0]) is Special or is_before("2.0")  # then hooks lose subclasses
    assert seen[1][1].layout is torch.sparse_coo
    assert caplog.text.count("the class Special stay") == 1
    assert caplog.text.count("the layout torch.sparse_coo stay") == 1
    assert off.stats().activation_bytes == 0 and off.stats().bytes_spilled == 0
    report = io.StringIO()
    off.report(report)
    assert "781.2 KiB in 2 saved tensors of the class Special stayed in memory" in report.getvalue()
    assert any("of the class Special stayed in memory" in hint for hint in off._run().hints)


class Closed(torch.Tensor):
    """Refuses, by an error of its own, to be taken apart."""

    def __tensor_flatten__(self):
        raise ValueError("cannot be traced")


class ClosedLocal(Closed):
    __tensor_unflatten__ = None

    @property
    def _local_tensor(self):
        raise ValueError("not here")


@pytest.mark.parametrize("cls", [Closed, ClosedLocal])
def test_a_class_that_cannot_be_taken_apart_is_kept(off, cls):
    with off:
        tensor, seen = torch.randn(100).as_subclass(cls), []
        y = save(seen, tensor)
        y.sum().backward()
        del y
    assert torch.equal(seen[0][0].as_subclass(torch.Tensor), tensor.as_subclass(torch.Tensor))


def test_parts_of_a_storage_that_are_no_views_are_counted(off):
    """As the gates of nn.LSTM: once for all of them, and with the rest that they hold."""
    with off:
        parts = torch.unsafe_chunk(torch.randn(4000), 4)
        y = save([], *parts)
        assert (off.stats().activation_bytes, off.stats().bytes_kept_hint) == (16_000, 16_000)
        y.sum().backward()
        del y
    assert off.stats().activation_bytes == 0
