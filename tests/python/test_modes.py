# SPDX-License-Identifier: MIT
# tests/python/test_modes.py - PyTorch's defaults and modes around calls change nothing
"""A default device or type, and modes of autograd, decide what a tensor is that is made without
words about it. The device is "meta", whose tensors have no memory: what lands there is lost."""
import contextlib
import io
import json

import pytest
import torch
from torch import nn

import spillway
import spillway.torch
from offloading import Layers, with_sizes
from spillway import checkpoint
from spillway._core.torch_compat import is_before

HAS_DEVICES = hasattr(torch, "set_default_device")
needs_devices = pytest.mark.skipif(not HAS_DEVICES, reason="this PyTorch has no default device")
needs_hooks = pytest.mark.skipif(is_before("2.1"), reason="this PyTorch has no such hooks")


@contextlib.contextmanager
def default_device():
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


# In the last two there is nothing to differentiate.
MODES = {
    "device": default_device, "context": lambda: torch.device("meta"), "dtype": default_dtype,
    "no_grad": lambda: torch.set_grad_enabled(False), "inference": torch.inference_mode}
PARAMS = [pytest.param(mode, id=name, marks=needs_devices if name in ("device", "context") else ())
          for name, mode in MODES.items()]
every_mode = pytest.mark.parametrize("mode", PARAMS)
mode_of_training = pytest.mark.parametrize("mode", PARAMS[:3])


def model_of(dtype=torch.float32):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 3)).to(dtype)


def give_grads(step, *models):
    generator = torch.Generator().manual_seed(step)
    for params in zip(*(model.parameters() for model in models)):
        grad = torch.randn(params[0].shape, generator=generator, dtype=torch.float32)
        for param in params:
            param.grad = grad.to(param.dtype)


def assert_equal(one, other):
    for mine, yours in zip(one.parameters(), other.parameters()):
        assert mine.dtype == yours.dtype and torch.equal(mine, yours)


def dtype_of(mode):
    """The same for what PyTorch's own does, which the type decides."""
    return default_dtype() if mode is default_dtype else contextlib.nullcontext()


@every_mode
@pytest.mark.parametrize("name, options", [
    ("AdamW", {"lr": 0.01}), ("Adagrad", {}), ("SGD", {"lr": 0.1, "momentum": 0.9})])
def test_an_optimizer_steps_commits_resumes_and_loads(formatted, mode, name, options):
    cls = getattr(torch.optim, name)
    ours, theirs = model_of(), model_of()

    def made(model, store, **more):
        return spillway.torch.Optimizer(cls, model.named_parameters(), store, tile=101,
                                        **options, **more)

    with dtype_of(mode):
        plain = cls(theirs.parameters(), foreach=False, **options)
        for step in range(3):
            give_grads(step, theirs)
            plain.step()
    with spillway.Store(formatted, arena_bytes=8 << 20) as store:
        with mode():
            optimizer = made(ours, store)
        for step in range(3):
            give_grads(step, ours)
            with mode():
                optimizer.step()
        assert_equal(ours, theirs)
        extra = {"tensor": torch.arange(5.0), "step": 3}
        with mode():
            state = optimizer.state_dict()
            optimizer.commit(extra=extra)
        for value in (value for entry in state["state"].values() for value in entry.values()):
            assert not isinstance(value, torch.Tensor) or value.device.type == "cpu"
        copy = io.BytesIO()
        torch.save(state, copy)
    other = model_of()
    with spillway.Store(formatted, arena_bytes=8 << 20) as store:
        with mode():
            optimizer = made(other, store)
            resumed = optimizer.resume()
        assert resumed.step == 3 and torch.equal(resumed.extra["tensor"], extra["tensor"])
        (resumed.extra["tensor"] * torch.ones(5, requires_grad=True)).sum().backward()
        assert_equal(other, theirs)
        with mode():
            optimizer.load_state_dict(state)
            optimizer.load_parameters(dict(theirs.named_parameters()))
        for step in range(3, 5):  # outside of the mode, and inside again
            give_grads(step, other, theirs)
            with dtype_of(mode):
                plain.step()
            with mode() if step == 4 else dtype_of(mode):
                optimizer.step()
            assert_equal(other, theirs)


@every_mode
@pytest.mark.parametrize("format, what", [
    ("safetensors", "parameters"), ("safetensors", "all"), ("torch", "all"), ("torch", "masters")])
def test_a_model_leaves_and_returns(formatted, folder, mode, format, what):
    model = model_of(torch.bfloat16)

    def made(model, store):
        return spillway.torch.Optimizer(torch.optim.AdamW, model.named_parameters(), store,
                                        masters=True)

    with spillway.Store(formatted, arena_bytes=8 << 20) as store:
        optimizer = made(model, store)
        give_grads(0, model)
        optimizer.step()
        optimizer.commit(extra={"tensor": torch.arange(3)})
    path = folder / "model"
    with spillway.Store(formatted, read_only=True, arena_bytes=8 << 20) as store, mode():
        checkpoint.export(store, path, format, what)
    with spillway.Store(formatted, read_only=True, arena_bytes=8 << 20) as store:
        checkpoint.export(store, f"{path}.plain", format, what)
    assert path.read_bytes() == (folder / "model.plain").read_bytes()
    if format == "torch" and is_before("2.1"):
        return
    other = model_of(torch.bfloat16)
    for param in other.parameters():
        param.data.zero_()
    with spillway.Store(formatted, arena_bytes=8 << 20, commit=None) as store:
        with mode():
            optimizer = made(other, store)
            if (format, what) == ("torch", "all"):
                checkpoint.import_(optimizer, path, "all")
            else:
                checkpoint.import_(optimizer, path)
        assert_equal(model, other)
        give_grads(1, other)
        optimizer.step()


def trained(model, off, steps, mode, optimizer):
    """The losses. What the mode would change of the model's own is not in it."""
    torch.manual_seed(5)
    losses = []
    for _ in range(steps):
        x = torch.randn(16, 100)
        with off:
            loss = model(x).square().mean()
            loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        with torch.inference_mode(), off:
            losses.append(model(x).sum().item())
        with mode(), off:
            pass
    return losses


@every_mode
@pytest.mark.parametrize("options", [
    {"mode": "spill"}, {"mode": "fastest"},
    {"mode": "budget", "budget_bytes": 100_000, "recompute": "auto"},
    pytest.param({"mode": "spill", "parameters": True, "parameter_bytes": 200_000},
                 marks=needs_hooks)], ids=["spill", "fastest", "budget", "parameters"])
def test_training_with_what_was_made_in_a_mode(formatted, mode, options):
    plain = Layers()
    model = Layers()
    model.load_state_dict(plain.state_dict())
    of_plain = torch.optim.SGD(plain.parameters(), lr=0.1)
    wanted = trained(plain, contextlib.nullcontext(), 4, contextlib.nullcontext, of_plain)
    with spillway.Store(formatted, arena_bytes=16 << 20) as store:
        with mode():
            off = spillway.torch.offload(model, store, **with_sizes(min_bytes=1, **options))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert trained(model, off, 4, mode, optimizer) == wanted
        with mode():
            assert off.stats().steps
            assert json.dumps(str(off.report()))
            off.close()
        assert_equal(model, plain)


@mode_of_training
@pytest.mark.parametrize("options", [
    {"mode": "spill"}, {"mode": "budget", "budget_bytes": 100_000, "recompute": "auto"},
    pytest.param({"mode": "spill", "parameters": True, "parameter_bytes": 200_000},
                 marks=needs_hooks)], ids=["spill", "budget", "parameters"])
@pytest.mark.parametrize("over", [
    {}, pytest.param({"in_backward": True}, marks=needs_hooks),
    pytest.param({"gradients": True}, marks=needs_hooks)],
    ids=["plain", "in_backward", "gradients"])
def test_whole_steps_in_a_mode(formatted, mode, options, over):
    """Forward, backward and step; the inputs are there before."""
    plain = Layers()
    model = Layers()
    model.load_state_dict(plain.state_dict())
    inputs = [torch.randn(16, 100) for _ in range(4)]
    of_plain = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, foreach=False)
    for x in inputs:
        plain(x).square().mean().backward()
        if over != {"in_backward": True}:
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        of_plain.step()
        of_plain.zero_grad()
    with spillway.Store(formatted, arena_bytes=32 << 20) as store, mode():
        off = spillway.torch.offload(model, store, **with_sizes(min_bytes=1, **options))
        optimizer = spillway.torch.Optimizer(torch.optim.SGD, model.named_parameters(), store,
                                             lr=0.1, momentum=0.9, **over)
        for x in inputs:
            with off:
                model(x).square().mean().backward()
            if over != {"in_backward": True}:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        optimizer.commit()
        assert_equal(model, plain)
        off.close()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@every_mode
def test_checkpoints_of_torch_distributed(formatted, mode):
    pytest.importorskip("torch.distributed.checkpoint.storage", reason="this PyTorch has none")
    import torch.distributed.checkpoint as dcp

    from spillway.checkpoint import StoreReader, StoreWriter

    content = {"wide": torch.randn(300, 70), "half": torch.randn(33).bfloat16(), "step": 7}
    found = {"wide": torch.zeros(300, 70), "half": torch.zeros(33), "step": 0}  # of another type
    with mode():
        dcp.save(content, storage_writer=StoreWriter(formatted, 1))
        dcp.load(found, storage_reader=StoreReader(formatted))
    assert torch.equal(found["wide"], content["wide"]) and found["step"] == 7
    assert torch.equal(found["half"], content["half"].float())
