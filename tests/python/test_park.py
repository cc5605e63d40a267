# SPDX-License-Identifier: MIT
# tests/python/test_park.py - memory is returned between steps, and comes back with its bytes
import contextlib
import copy
import gc
import io
import json
import logging
import resource
import subprocess

import pytest
import torch
from torch import nn

import spillway
import spillway.torch as st
from conftest import make_store, started
from offloading import Layers, equal, gradients_of, offload_all, shards
from spillway._core.torch_compat import is_before

pytestmark = pytest.mark.skipif(is_before("2.1"), reason="park() takes PyTorch 2.1 or later")


def step(model, optimizer, off=None):
    with off if off is not None else contextlib.nullcontext():
        loss = model(torch.randn(8, 100)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def run(parks, store, steps=4, zero=True):
    torch.manual_seed(3)
    model = Layers()
    model.register_buffer("mean", torch.randn(2000))
    optimizer = torch.optim.AdamW(model.parameters())
    off = offload_all(store, model) if parks else None
    losses = []
    for _ in range(steps):
        losses.append(step(model, optimizer, off))
        if parks:
            with off.park(optimizer) as parked:
                assert parked.bytes > 4 * 4 * 40000  # parameters, gradients and two moments
                assert model.layers[0][0].weight.untyped_storage().nbytes() == 0
        if zero:
            optimizer.zero_grad()
    state = [value for each in optimizer.state.values() for value in each.values()]
    return losses, list(model.parameters()), list(model.buffers()), state, gradients_of(model)


@pytest.mark.parametrize("zero", [True, False])
def test_training_goes_on_as_without(store, zero):
    found, plain = run(True, store, zero=zero), run(False, None, zero=zero)
    assert found[0] == plain[0]
    for those, these in zip(found[1:], plain[1:]):
        assert equal(those, these)
    assert store.stats().objects == 0


def test_memory_is_given_back(store):
    def resident():
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    model = nn.Linear(2000, 1000)
    weight = model.weight.detach().clone()
    st.park(store, model).unpark()  # the store's own memory has been used
    before = resident()
    parked = st.park(store, model)
    assert parked.bytes == 4 * (2000 * 1000)  # the bias is less than a page
    assert before - resident() > 7 << 20
    parked.unpark()
    parked.unpark()  # does nothing
    assert torch.equal(model.weight, weight)
    assert type(model.weight) is nn.Parameter


@pytest.mark.parametrize("use", [
    lambda model: model(torch.ones(1, 100)),
    lambda model: model.layers[0][0](torch.ones(1, 100)),
    lambda model: model.layers[0][0].weight + 1,
    lambda model: model.layers[0][0].weight.data_ptr(),
    lambda model: model.layers[0][0].weight.grad.mul_(2),
    lambda model: model.state_dict(),
    lambda model: copy.deepcopy(model),
    lambda model: torch.save(model, io.BytesIO()),
    lambda model: torch.save(model.layers[0][0].weight, io.BytesIO()),
    lambda model: model.double(),
    lambda model: torch.optim.SGD(model.parameters()).step(),
    lambda model: torch.optim.Adam(model.parameters(), foreach=True).step(),
    lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    lambda model: model.layers[0][0].weight.tolist(),
    lambda model: nn.functional.linear(torch.ones(1, 100), model.layers[0][0].weight),
    lambda model: torch._foreach_add_(list(model.parameters()), 1)])
def test_no_use_meanwhile(store, use):
    model = Layers()
    model(torch.ones(1, 100)).sum().backward()
    expected = [param.detach().clone() for param in model.parameters()], gradients_of(model)
    expected[1][:] = [each.clone() for each in expected[1]]
    with st.park(store, model):
        with pytest.raises(RuntimeError, match="parked"):
            use(model)
        assert model.layers[0][0].weight.shape == (100, 100)
        assert "parked" in repr(model.layers[0][0].weight)
        model.eval()
        assert "Linear" in repr(model)
    assert equal(list(model.parameters()), expected[0])
    assert equal(gradients_of(model), expected[1])


def test_a_graph_that_needs_it(store, caplog):
    """It runs afterwards, and raises meanwhile, whether it has a view of a weight or the weight."""
    torch.manual_seed(1)
    weight, other = (torch.randn(100, 100, requires_grad=True) for _ in range(2))
    x = torch.randn(100, 100, requires_grad=True)

    def graph():
        return (torch.mm(x * weight, other.t()) * other).sum()

    expected = torch.autograd.grad(graph(), (x, weight, other))
    result = graph()
    with caplog.at_level(logging.WARNING), st.park(store, [weight, other]) as parked:
        assert parked.bytes == 40000
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.backward(inputs=[x], retain_graph=True)
    assert "39.1 KiB stay in memory, which has views, or a graph needs it" in caplog.text
    assert equal(torch.autograd.grad(result, (x, weight, other)), expected)


@pytest.mark.parametrize("ends", ["retained", "only the gradient"])
def test_a_graph_that_adds_to_a_gradient(store, caplog, ends):
    """It asks neither for a version nor for a class, so it would write to no memory."""
    model, x = nn.Embedding(100, 100), torch.arange(5)
    graph = model(x).sum()
    graph.backward(retain_graph=True)
    expected = model.weight.grad.clone()
    if ends == "retained":
        with st.park(store, model) as parked:
            assert parked.bytes == 80000
            with pytest.raises(RuntimeError, match="add to a gradient.*parked"):
                graph.backward(retain_graph=True)
    elif hasattr(torch.Tensor, "_use_count"):
        with caplog.at_level(logging.WARNING), st.park(store, model.weight.grad) as parked:
            assert parked.bytes == 0  # whose it is, is not known
            graph.backward(retain_graph=True)
        assert "39.1 KiB stay in memory" in caplog.text
        expected *= 2
    assert torch.equal(model.weight.grad, expected)
    graph.backward()
    assert not torch.equal(model.weight.grad, expected)


def test_no_copy(store):
    with st.park(store, nn.Linear(100, 100)) as parked, pytest.raises(TypeError, match="copied"):
        copy.copy(parked)


def test_what_stays(store, caplog):
    import numpy

    array = torch.from_numpy(numpy.ones(5000))
    shared = torch.ones(5000).share_memory_()
    viewed = torch.ones(5000)
    view = viewed[10:]
    small = torch.ones(10)
    with caplog.at_level(logging.WARNING), \
            st.park(store, [array, shared, viewed, small]) as parked:
        assert parked.bytes == 0
        assert array.sum() == 5000 and shared.sum() == 5000 and view.sum() == 4990
    assert "NumPy" in caplog.text and "processes" in caplog.text and "has views" in caplog.text
    halves = list(torch.arange(5000.).split(2500))
    with st.park(store, halves) as parked:  # all that has the memory, with what they are views of
        assert parked.bytes == 20000
        with pytest.raises(RuntimeError, match="parked"):
            halves[1].sum()
    assert torch.equal(torch.cat(halves), torch.arange(5000.))


def test_tied_and_nested(store):
    model = nn.Sequential(nn.Embedding(50, 100), nn.Linear(100, 50, bias=False))
    model[1].weight = model[0].weight
    before = model[0].weight.detach().clone()
    with st.park(store, model, model[0].weight, [model[1].weight]) as outer:
        assert outer.bytes == 20000
        with st.park(store, model) as inner:  # is parked already
            assert inner.bytes == 0
        with pytest.raises(RuntimeError, match="parked"):
            model[0].weight.sum()
    assert torch.equal(model[1].weight, before) and model[1].weight is model[0].weight


def test_no_room(folder):
    """Nothing is parked then, and nothing is left in the store."""
    model = nn.Linear(8000, 4000)
    before = model.weight.detach().clone()
    with spillway.Store(make_store(folder, count=1, size_bytes=100 << 20)) as store:
        with pytest.raises(spillway.SpillwayError, match="no 128000000 bytes left"):
            st.park(store, [torch.ones(5000)], model)
        assert torch.equal(model.weight, before) and type(model.weight) is nn.Parameter
        assert store.stats().objects == 0


def test_wrong_bytes_on_the_drives(store, formatted):
    """They are not returned; what is left stays parked, and comes once the drives are right."""
    model = Layers(2, 300)
    before = [param.detach().clone() for param in model.parameters()]
    parked = st.park(store, model)
    content = []
    for path in formatted:
        with open(path, "r+b") as file:
            content.append(file.read())
            file.seek(1 << 20)
            file.write(bytes(each ^ 1 for each in content[-1][1 << 20:3 << 20]))
    for _ in range(2):
        with pytest.raises(spillway.SpillwayError, match="other bytes"):
            parked.unpark()
        with pytest.raises(RuntimeError, match="parked"):
            model(torch.ones(1, 300))
    for path, each in zip(formatted, content):
        with open(path, "r+b") as file:
            file.write(each)
    parked.unpark()
    assert equal(list(model.parameters()), before)


@pytest.mark.parametrize("at", [0, 1, 3])
def test_interrupted(store, monkeypatch, at):
    """Nothing is parked then."""
    model, calls, put = Layers(), [], spillway.Store.put

    def interrupted(self, buffer):
        calls.append(None)
        if len(calls) > at:
            raise KeyboardInterrupt
        return put(self, buffer)

    before = [param.detach().clone() for param in model.parameters()]
    monkeypatch.setattr(spillway.Store, "put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        st.park(store, model)
    assert equal(list(model.parameters()), before)
    model(torch.ones(1, 100)).sum().backward()
    assert store.stats().objects == 0


def test_dropped_or_closed(store):
    model = nn.Linear(100, 100)
    before = model.weight.detach().clone()
    st.park(store, model)
    gc.collect()
    assert torch.equal(model.weight, before)
    parked = st.park(store, model)
    store.close()
    assert torch.equal(model.weight, before) and parked.closed
    with pytest.raises(spillway.SpillwayError, match="closed"):
        st.park(store, model)


def test_wrong_use(store, tmp_path):
    with pytest.raises(TypeError, match="takes modules"):
        st.park(store, [1])
    with pytest.raises(ValueError, match="needs drives"):
        st.offload(Layers(), None, mode="observe").park()
    off = offload_all(store, Layers())
    with off, pytest.raises(RuntimeError, match="leave the offload context"):
        off.park()


# ---- Shards --------------------------------------------------------------------------------------

SHARDED = """
import hashlib, json, logging, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import spillway, spillway.torch as st

rank, meeting, drives, kind = sys.argv[1:]
rank = int(rank)
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
torch.manual_seed(1)
model = nn.Sequential(*(nn.Linear(100, 101) if i % 2 == 0 else nn.Linear(101, 100)
                        for i in range(4)))
mesh = init_device_mesh("cpu", (2,))
for layer in model:
    fully_shard(layer, mesh=mesh, reshard_after_forward=kind != "kept")
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
uses = {
    "add": lambda: model[0].weight + 1,
    "gather": lambda: model[0].weight.full_tensor(),
    "local": lambda: model[0].weight.to_local() + 1,
    "unshard": lambda: model[0].unshard(),
    "forward": lambda: model[0](torch.randn(8, 100)),
    "gradient": lambda: model[0].weight.grad.mul_(2),
    "clip": lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    "step": optimizer.step,
    "save": lambda: model.state_dict()["0.weight"].sum(),
    "state": lambda: optimizer.state[model[0].weight]["exp_avg"].add_(1),
}
left, allowed = [], []
store = spillway.Store(drives.split(","), partition=rank) if drives else None
generator = torch.Generator().manual_seed(10 + rank)
digest = hashlib.sha256()
for step in range(3):
    model(torch.randn(8, 100, generator=generator)).pow(2).mean().backward()
    optimizer.step()
    if store is not None:
        with st.park(store, model, optimizer) as parked:
            large = [part for param in model.parameters() if param.ndim == 2
                     for part in (param, param.grad, *optimizer.state[param].values())
                     if part.ndim == 2]
            left += [part._local_tensor.untyped_storage().nbytes() for part in large]
            for name, use in uses.items() if step == 1 else ():
                try:
                    use()
                    allowed.append(name)
                except RuntimeError as error:
                    if "call unpark() first" not in str(error):
                        allowed.append(f"{name}: {error}")
    for param in model.parameters():
        for part in (param, param.grad, *optimizer.state[param].values()):
            part = part.detach()
            local = getattr(part, "to_local", lambda: part)()
            digest.update(local.clone().numpy().tobytes())
    optimizer.zero_grad()
if store is not None:
    store.close()
print(json.dumps({"digest": digest.hexdigest(), "left": left, "allowed": allowed}))
dist.destroy_process_group()
"""


@pytest.mark.skipif(not shards(),
                    reason="this PyTorch has no fully_shard, or only for GPUs: 2.7 has")
@pytest.mark.parametrize("kind", ["freed", "kept"])
def test_shards_of_two_processes(drives, folder, kind):
    """What fully_shard has sharded, and the optimizer's state of it, of which each use is refused
    with a message: below them, operations reach memory that is not there."""
    spillway.format_store(drives, partitions=2)

    def run(name, paths):
        with contextlib.ExitStack() as stack:
            ranks = [stack.enter_context(started(
                "-c", SHARDED, rank, folder / name, paths, kind, stdout=subprocess.PIPE,
                env={"GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(folder)})) for rank in range(2)]
            ended = [(rank.communicate(timeout=120), rank.returncode) for rank in ranks]
        # PyTorch alone has been seen to abort at its end, with all of its output written.
        assert not paths or [status for _, status in ended] == [0, 0], ended
        return [json.loads(output) for (output, _), _ in ended]

    plain, parked = run("plain", ""), run("parked", ",".join(drives))
    assert [rank["digest"] for rank in parked] == [rank["digest"] for rank in plain]
    for rank in parked:
        assert rank["left"] == [0] * (4 * 4 * 3)
        assert rank["allowed"] == []


class Pair(torch.Tensor):
    """Of two tensors. It has memory of its own class, if any."""

    @staticmethod
    def __new__(cls, one, other):
        return torch.Tensor._make_wrapper_subclass(cls, one.shape, dtype=one.dtype)

    def __init__(self, one, other):
        self.one, self.other = one, other

    def __tensor_flatten__(self):
        return ["one", "other"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(arg.one if isinstance(arg, Pair) else arg for arg in args), **(kwargs or {}))


class Final(Pair):
    """Nothing can be made of it that refuses."""

    def __init_subclass__(cls):
        raise TypeError("final")


def test_tensors_of_tensors(store, caplog):
    """Operations reach what they consist of where that would not refuse."""
    parts = [torch.randn(2000) for _ in range(4)]
    pair, final = Pair(*parts[:2]), Final(*parts[2:])
    before = [part.clone() for part in parts]
    version = pair._version
    with caplog.at_level(logging.WARNING, "spillway"), st.park(store, [pair, final]) as parked:
        for use in (lambda: pair + 1, lambda: pair.mul_(2), lambda: torch.cat([pair, pair])):
            with pytest.raises(RuntimeError, match="call unpark.. first"):
                use()
        assert pair.shape == (2000,)
        assert parked.bytes == 2 * 8000
        assert (final + 1).equal(before[2] + 1)
        assert "15.6 KiB stay in memory, which belongs to tensors of a class" in caplog.text
    assert type(pair) is Pair and pair._version == version
    assert equal(parts, before)
    assert (pair + 1).equal(before[0] + 1)


def test_a_step_while_parked_counts_nothing(store):
    torch.manual_seed(3)
    model = Layers()
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    with st.park(store, model, optimizer):
        with pytest.raises(RuntimeError, match=r"step\(\) was called"):
            optimizer.step()
    assert {int(state["step"]) for state in optimizer.state.values()} == {1}
    step(model, optimizer)
