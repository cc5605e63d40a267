# SPDX-License-Identifier: MIT
# tests/python/offloading.py - what the tests of spillway.torch share
import contextlib
import ctypes
import dataclasses
import threading
import time
import typing

import torch
from torch import nn

import spillway
import spillway.torch
from spillway._core import hooks_loader
from spillway._core.torch_compat import expired, free_weak_ref

# What a hook raises, which PyTorch 1.13 hands on as a RuntimeError that has its text.
RAISED = (RuntimeError, spillway.SpillwayError)


class Save(torch.autograd.Function):
    """Saves tensors as they are, and hands what comes back to a list in the backward pass."""

    @staticmethod
    def forward(ctx, x, seen, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.seen, ctx.count = seen, len(tensors)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.seen.append(ctx.saved_tensors)
        return (gradient, None) + (None,) * ctx.count


def save(seen, *tensors):
    return Save.apply(torch.ones(1, requires_grad=True), seen, *tensors)


class Nothing(nn.Module):
    """A model without parameters, for tests that save by themselves."""


class Layers(nn.Module):
    """Each is two scopes: a linear layer and what follows it."""

    def __init__(self, count=4, width=100):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU())
                                    for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class WeakStorage:
    """Holds a storage weakly. While it does, no other storage can have the same _cdata, though
    the memory may be gone."""

    __slots__ = ("_address", "_free")

    def __init__(self, storage):
        self._free = free_weak_ref  # kept here: the module may be gone when __del__ runs
        self._address = storage._weak_ref()

    def __del__(self):
        self._free(self._address)

    def expired(self):
        return expired(self._address)


def with_sizes(**options):
    """Those of offload(), with sizes among them where Sizes has them."""
    names = {field.name for field in dataclasses.fields(spillway.torch.Sizes)} & options.keys()
    sizes = spillway.torch.Sizes(**{name: options.pop(name) for name in names})
    return {"sizes": sizes, **options}


def offload_each(store, model=None, **options):
    """As by default, but tensors of any size."""
    model = Nothing() if model is None else model
    return spillway.torch.offload(model, store, **with_sizes(**{"min_bytes": 1, **options}))


def offload_all(store, model=None, **options):
    """All that is saved is written, by the fixed rule."""
    return offload_each(store, model, **{"mode": "spill", **options})


def gradients_of(model):
    return [parameter.grad for parameter in model.parameters()]


def equal(these, those):
    """To the last bit: tensors, None, or lists of them."""
    if these is None or those is None:
        return these is those
    if isinstance(these, torch.Tensor):
        return torch.equal(these, those)
    return len(these) == len(those) and all(map(equal, these, those))


class Run(typing.NamedTuple):
    """A training, plain or with an offload: of each backward pass the loss, of each step the
    gradient of each parameter."""

    losses: list
    gradients: list
    off: object


def trained(model, draw, off_of=None, loss_of=None, *, steps=3, accumulate=1, optimizer=None,
            mode=contextlib.nullcontext, before=None, each=None):
    """
    :param draw: a batch
    :param off_of: the offload of a model; None: plain training
    :param loss_of: of model and batch; None: the mean square
    :param mode: around each pass
    :param before: called with model and step between a forward and its backward pass
    :param each: called after each step
    """
    off = off_of(model) if off_of else None
    losses, gradients = [], []
    for step in range(steps):
        for _ in range(accumulate):
            batch = draw()
            with mode(), off or contextlib.nullcontext():
                loss = loss_of(model, batch) if loss_of else model(batch).square().mean()
                if before is not None:
                    before(model, step)
                loss.backward()
            losses.append(loss.item().hex())
            del loss
        gradients.append([grad if grad is None else grad.clone() for grad in gradients_of(model)])
        if optimizer is not None:
            optimizer.step()
        model.zero_grad()
        if each is not None:
            each()
    return Run(losses, gradients, off)


def assert_same_run(one, other):
    assert one.losses == other.losses and equal(one.gradients, other.gradients)


def in_threads(*functions):
    """All at once, to their end."""
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def settle(off):
    """All accepted writes have ended and their memory has been let go."""
    deadline = time.monotonic() + 30
    while True:
        stats = off.stats()
        # afterwards: a write that ended between the two would still have its memory
        off._session.drain()
        if stats.staging_bytes == 0:
            return off.stats()
        assert time.monotonic() < deadline, f"writes do not end: {stats}"
        time.sleep(0.001)


def same_bits(a, b):
    """Same type, shape, strides and bytes (NaN payloads and the sign of zero included)."""
    if (a.dtype, a.size(), a.stride()) != (b.dtype, b.size(), b.stride()):
        return False
    return raw(a) == raw(b)


def raw(tensor):
    """The elements' bytes in logical order."""
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten()
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.view(torch.int16)
    return tensor.numpy().tobytes()


def left_in(off):
    """Entries, held memory and objects that are left; all 0 when every graph is gone. What was
    freed during its I/O goes when that has ended."""
    store = off._session.cache.store
    deadline = time.monotonic() + 10
    while True:
        off._session.drain()
        objects = 0 if store is None else store.stats().objects
        left = off.stats().entries, off._session.held(), objects
        if not any(left) or time.monotonic() > deadline:
            return left
        time.sleep(0.001)


TAKE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64,
                        ctypes.c_uint64, ctypes.c_void_p)


@contextlib.contextmanager
def hooks_call(take=None, **things):
    """The hooks call this in place of spw_cache_take(), and these in place of what they call of
    PyTorch by these names."""
    addresses = list(hooks_loader.addresses())
    if take is not None:
        addresses[1] = ctypes.cast(take, ctypes.c_void_p).value
    hooks_loader.hooks.connect(tuple(addresses), {**hooks_loader.things(), **things},
                               hooks_loader.types())
    try:
        yield
    finally:
        hooks_loader.hooks.connect(hooks_loader.addresses(), hooks_loader.things(),
                                   hooks_loader.types())


def shards():
    """Whether this PyTorch has fully_shard, on CPUs."""
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: F401
    except (ImportError, ValueError):  # the latter from PyTorch 1 under Python 3.11
        return False
    return hasattr(torch.cpu.Stream, "record_event")
