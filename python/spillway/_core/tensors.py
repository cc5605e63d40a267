# SPDX-License-Identifier: MIT
# spillway/_core/tensors.py - new tensors on existing memory, and the memory of a tensor
"""Such a tensor has no graph, and counts its changes in place with another one that had the same
bytes."""
from __future__ import annotations

import contextlib
import ctypes
import functools
from typing import Any, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .torch_compat import free_weak_ref, storage_of

with torch.inference_mode(False):  # whatever this is imported in
    NOTHING = torch.empty(0, dtype=torch.float32, device="cpu")


class WeakStorage:
    """Keeps the identity of a storage from being that of another one, not its memory."""

    __slots__ = ("identity", "_free")

    def __init__(self, tensor: Tensor) -> None:
        self._free = free_weak_ref
        self.identity = 0  # if it has no storage, the next line raises
        self.identity = storage_of(tensor)._weak_ref()

    def __del__(self) -> None:
        if self.identity:
            self._free(self.identity)


@contextlib.contextmanager
def normal_mode() -> Iterator[None]:
    """What is made here is of use outside of the caller's inference mode, too; autograd is off."""
    with torch.inference_mode(False), torch.no_grad():
        yield


@functools.lru_cache(maxsize=None)
def nothing_on(device: torch.device) -> Tensor:
    """A tensor without memory whose memory may be set to such of the device."""
    with torch.inference_mode(False):
        return torch.empty(0, dtype=torch.float32, device=device)


def counted_by(counter: Tensor, memory: Tensor) -> Tensor:
    """A tensor with the version counter of one tensor, and with the memory, the type and the
    shape of another; inside a transform of torch.func, which forbids that, with its own counter."""
    tensor = counter.detach()
    try:
        tensor.data = memory
    except RuntimeError:
        return memory
    return tensor


def _autograd_counts() -> bool:
    """Whether autograd counts changes of what a hook hands out with those of what was saved,
    whatever was handed out: so up to PyTorch 2.4 (its issue 128611)."""
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, lambda packed: other)
    other: Any
    with torch.inference_mode(False), torch.enable_grad(), hooks:
        other = torch.zeros(1, dtype=torch.float32, device="cpu").add_(1)
        leaf = torch.zeros(1, dtype=torch.float32, device="cpu", requires_grad=True)
        node = leaf.sin().grad_fn
        return bool(node._saved_self._version != other._version)  # type: ignore[union-attr]


COUNTED = _autograd_counts()


def raise_modified(tensor: Optional[Tensor], now: int, expected: int) -> None:
    """
    :raises RuntimeError: in the words of PyTorch's own check
    """
    if tensor is None:
        what = "it"
    elif tensor.is_nested:  # has no size of its own
        what = f"[{tensor.type()} {tensor._nested_tensor_size()}]"
    else:
        what = f"[{tensor.type()} {list(tensor.size())}]"
    raise RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: {what} is at version {now}; expected version {expected} instead. "
        "Hint: use the out-of-place form of the operation that changed it after it was used.")


def plain(tensor: Tensor, conj: bool, neg: bool) -> Tensor:
    """The tensor without its graph and without the flags that it has."""
    held = tensor.detach()
    if neg:
        held = torch._neg_view(held)
    return held.conj() if conj else held


def flagged(tensor: Tensor, conj: bool, neg: bool) -> Tensor:
    """A view of the tensor with these flags."""
    if conj:
        tensor = tensor.conj()
    return torch._neg_view(tensor) if neg else tensor


def on(base: Tensor, dtype: torch.dtype, size: Any, stride: Any, offset_bytes: int, conj: bool,
       neg: bool) -> Tensor:
    """A tensor of any type on the storage of another one, with whose changes it counts its own."""
    if base.dtype is dtype:
        offset = offset_bytes // base.element_size()
        return flagged(base.as_strided(size, stride, offset), conj, neg)
    empty = torch.empty(0, dtype=dtype, device=base.device)
    offset = offset_bytes // empty.element_size()
    return flagged(counted_by(base, empty.set_(storage_of(base), offset, size, stride)), conj, neg)


def bytes_of(tensor: Tensor, begin: int, length: int) -> Tensor:
    """Part of the tensor's storage."""
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(storage_of(tensor), begin, (length,), (1,))


def buffer_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor in host memory, which it must outlive."""
    len_bytes = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_ubyte * len_bytes).from_address(tensor.data_ptr()))


# ---- Memory in common ----------------------------------------------------------------------------


def _bounds(tensor: Tensor) -> Tuple[int, int]:
    """The addresses of its first byte, and of the byte after its last."""
    begin = tensor.data_ptr()
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride()))
    return begin, begin + (last + 1) * tensor.element_size()


def _have_common(one: Tensor, other: Tensor) -> bool:
    """Of two whose bounds overlap: interleaved columns of a matrix have none."""
    if one.is_contiguous() and other.is_contiguous():
        return True
    (begin, end), (first, last) = _bounds(one), _bounds(other)
    begin, end = min(begin, first), max(end, last)
    marks = torch.zeros(end - begin, dtype=torch.bool, device="cpu")

    def bytes_of(tensor: Tensor) -> Tensor:
        size = tensor.element_size()
        return marks.as_strided((*tensor.shape, size),
                                (*(stride * size for stride in tensor.stride()), 1),
                                tensor.data_ptr() - begin)

    bytes_of(one).fill_(True)
    return bool(bytes_of(other).any())


def pairs_in_same_memory(tensors: Sequence[Optional[Tensor]]) -> Iterator[Tuple[int, int]]:
    """The numbers of any two that have bytes in common, the smaller first; a tensor that is there
    twice has. None is left out."""
    found: List[Tuple[str, int, int, int]] = []
    for number, tensor in enumerate(tensors):
        if tensor is not None and tensor.numel():
            found.append((str(tensor.device), *_bounds(tensor), number))
    found.sort()
    before: List[Tuple[str, int, int, int]] = []
    for device, begin, end, number in found:
        before = [item for item in before if item[0] == device and item[2] > begin]
        for *_, other in before:
            one, two = tensors[min(other, number)], tensors[max(other, number)]
            assert one is not None and two is not None
            if _have_common(one.detach(), two.detach()):
                yield min(other, number), max(other, number)
        before.append((device, begin, end, number))


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")
