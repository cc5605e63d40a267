# SPDX-License-Identifier: MIT
# spillway/_core/wrapped.py - saved tensor subclasses: which memory of theirs spills
"""A DTensor (tensor parallel) and a jagged nested tensor are a shell around one plain tensor that
has the elements. That goes to the cache like any other, and comes back in a new shell like the one
that was saved. Of other classes the tensors inside are counted and stay where they are."""
from __future__ import annotations

import contextlib
import inspect
from typing import Any, Dict, Iterable, List, Optional, Tuple

import torch
from torch import Tensor

from .hooks_loader import hooks
from .library import SpillwayError
from .tensors import NOTHING, bytes_of, raise_modified
from .torch_compat import storage_of, without_torch_function

def elements_of(tensor: Tensor) -> Optional[str]:
    """The attribute with the elements of a DTensor or of a jagged tensor, by what they have:
    their modules' names change with PyTorch's versions."""
    if not hasattr(type(tensor), "__tensor_unflatten__"):
        return None
    if hasattr(tensor, "_local_tensor") and hasattr(tensor, "_spec"):
        return "_local_tensor"
    if hasattr(tensor, "_values") and hasattr(tensor, "_offsets") and tensor.is_nested:
        return "_values"  # others know the offsets, by which object they are
    return None


def _sparse_parts(tensor: Tensor) -> List[Tensor]:
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    rows = tensor.layout in (torch.sparse_csr, getattr(torch, "sparse_bsr", None))
    indices = ([tensor.crow_indices(), tensor.col_indices()] if rows
               else [tensor.ccol_indices(), tensor.row_indices()])
    return [*indices, tensor.values()]


def memory_of(tensor: Tensor, depth: int = 4) -> List[Tensor]:
    """The memory of a tensor subclass as plain tensors; none: it is not known, or its class raises
    an error."""
    with contextlib.suppress(Exception), without_torch_function():
        if type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_nested:
            return [bytes_of(tensor, 0, storage_of(tensor).nbytes())]
        if hasattr(type(tensor), "__tensor_flatten__"):
            names = tensor.__tensor_flatten__()[0]  # type: ignore[attr-defined]
            inner = [getattr(tensor, name) for name in names]
            return [part for one in inner if isinstance(one, Tensor) and depth
                    for part in ([one] if type(one) is Tensor else memory_of(one, depth - 1))]
        if tensor.layout is not torch.strided:
            return _sparse_parts(tensor)
        if tensor.is_nested:
            return [tensor.values()]
        return [bytes_of(tensor, 0, storage_of(tensor).nbytes())]
    return []


class Wrapped:
    """A saved DTensor, or a jagged one."""

    __slots__ = ("_shell", "_version", "_elements", "_inner", "_place")

    def __init__(self, tensor: Tensor, name: str, elements: Any) -> None:
        self._inner: Dict[str, Any] = {}
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        self._inner = {one: getattr(tensor, one) for one in names}
        self._inner[name] = None
        self._place: Tuple[str, Any, Any] = name, tensor.size(), tensor.stride()
        self._elements = elements
        setattr(tensor, name, NOTHING)  # what is left counts changes, and has no memory
        self._shell, self._version = tensor, tensor._version

    def unpack(self) -> Tensor:
        shell, (name, size, stride) = self._shell, self._place
        if shell._version != self._version:
            raise_modified(None, shell._version, self._version)
        elements = hooks.unpack(self._elements)
        with torch.no_grad(), without_torch_function():
            inner = {**self._inner, name: elements}
            make = type(shell).__tensor_unflatten__  # type: ignore[attr-defined]
            _, context = shell.__tensor_flatten__()  # type: ignore[attr-defined]
            given = (size, stride)[:len(inspect.signature(make).parameters) - 2]
            tensor: Tensor = make(inner, context, *given)
            if hasattr(shell, "_spec"):
                tensor._spec = shell._spec  # type: ignore[attr-defined]
        return tensor


def wrapped(tensor: Tensor, save: Any) -> Optional[Any]:
    """What stands for a tensor of which the elements spill; None: it is of another class, or they
    do not.

    :param save: of a session, for the elements
    """
    try:
        with torch.no_grad(), without_torch_function():
            name = elements_of(tensor)
            if name is None or isinstance(tensor._base, torch.nn.Parameter):
                return None
            if tensor.device.type != "cpu" and tensor._version:
                return None  # the elements count no changes, and there nothing compares them
            shell = tensor.detach()
            elements = save(getattr(shell, name), tensor._base is not None)
            if not isinstance(elements, hooks.Kept):
                return Wrapped(shell, name, elements)
    except SpillwayError:
        raise
    except Exception:  # of the class: it is kept as it is
        pass
    return None


def kind_of(tensor: Tensor) -> str:
    """What makes the tensor other than plain and dense, for messages."""
    if type(tensor) is not Tensor:
        return f"the class {type(tensor).__qualname__}"
    if tensor.is_quantized:
        return f"the type {tensor.dtype}"
    return "nested tensors" if tensor.is_nested else f"the layout {tensor.layout}"


def bytes_in(parts: Iterable[Tensor]) -> int:
    return sum(part.numel() * part.element_size() for part in parts)
