# SPDX-License-Identifier: MIT
# tests/python/offloading.py - what the tests of spillway.torch share
import contextlib
import ctypes
import time

import torch
from torch import nn

import spillway
import spillway.torch
from spillway import _native

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


class Nothing(nn.Module):
    """A model without parameters, for tests that save by themselves."""


def settle(off):
    """All accepted writes have ended and their memory has been let go."""
    deadline = time.monotonic() + 30
    while True:
        stats = off.stats()
        off._session.drain()  # afterwards: a write that ended between the two would still have its memory
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
    """Entries, held memory and objects that are left; all 0 when every graph is gone. What was freed during its I/O goes
    when that has ended."""
    store = off._session.cache._store
    deadline = time.monotonic() + 10
    while True:
        off._session.drain()
        left = off.stats().entries, off._session.held(), 0 if store is None else store.stats().objects
        if not any(left) or time.monotonic() > deadline:
            return left
        time.sleep(0.001)


TAKE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)


@contextlib.contextmanager
def hooks_call(take=None, **things):
    """The hooks call this in place of spw_cache_take(), and these in place of what they call of PyTorch by these names."""
    addresses = list(_native.addresses())
    if take is not None:
        addresses[1] = ctypes.cast(take, ctypes.c_void_p).value
    _native.hooks.connect(tuple(addresses), {**_native.things(), **things}, _native.types())
    try:
        yield
    finally:
        _native.hooks.connect(_native.addresses(), _native.things(), _native.types())
