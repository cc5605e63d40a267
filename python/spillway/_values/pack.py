# SPDX-License-Identifier: MIT
# spillway/_values/pack.py - plain objects and tensors as bytes, and back without running code
"""For what goes with a commit. Numbers, strings, bytes, lists, tuples, dicts, sets and tensors come
back as they were, bit for bit; nothing else is taken, and nothing that is read can run code or make
another object. The same bytes whatever PyTorch's version.

The bytes: the length of a JSON text (8 bytes, little-endian), the text, then all tensors' bytes.
Each value in the text is null, true, false, a number, a string, or a list that begins with what it
is.
"""
from __future__ import annotations

import collections
import ctypes
import json
from typing import Any, Callable, Dict, List

import torch
from torch import Tensor

from .._core.tensors import name_of

_PLAIN = (type(None), bool, int, float, str)
_SEQUENCES: Dict[str, Callable[[List[Any]], Any]] = {"list": list, "tuple": tuple, "set": set}
_MAPPINGS: Dict[str, Callable[[Any], Any]] = {
    "dict": dict, "ordered": collections.OrderedDict,
    "counter": lambda pairs: collections.Counter(dict(pairs))
}
_MAPPING_TYPES: Dict[type, str] = {
    dict: "dict", collections.OrderedDict: "ordered", collections.Counter: "counter"
}
DTYPES = {name_of(value): value for value in vars(torch).values()
           if isinstance(value, torch.dtype)}


class _Packer:
    def __init__(self) -> None:
        self.tail = bytearray()

    def packed(self, value: Any, where: str) -> Any:
        """:raises TypeError: ``value``, which is at ``where``, is of no type that is taken"""
        if type(value) in _PLAIN:
            return value
        if isinstance(value, Tensor):
            return self._tensor(value, where)
        if isinstance(value, (bytes, bytearray)):
            return ["bytes", len(self.tail), self._append(bytes(value))]
        if isinstance(value, torch.dtype):
            return ["dtype", name_of(value)]
        if type(value) in _MAPPING_TYPES:
            return [_MAPPING_TYPES[type(value)],
                    *([self.packed(key, f"a key of {where}"),
                       self.packed(item, f"{where}[{key!r}]")] for key, item in value.items())]
        kind: Any
        for name, kind in (("list", list), ("tuple", (tuple, torch.Size)), ("set", set)):
            if isinstance(value, kind) and not hasattr(value, "_fields"):
                return [name, *(self.packed(item, f"{where}[{index}]")
                                for index, item in enumerate(value))]
        if isinstance(value, (int, float)) and hasattr(value, "item"):  # NumPy's
            return value.item()
        raise TypeError(
            f"{where} is a {type(value).__name__}, which cannot go with a commit: give numbers, "
            "strings, bytes, tensors, and lists and dicts of them (of a scheduler or a scaler: its "
            "state_dict())")

    def _append(self, content: bytes) -> int:
        self.tail += content
        return len(content)

    def _tensor(self, tensor: Tensor, where: str) -> Any:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise TypeError(f"{where} is a tensor that is sparse or quantized, which cannot go "
                            "with a commit: give a dense one")
        dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        length = dense.numel() * dense.element_size()
        content = ctypes.string_at(dense.data_ptr(), length) if length else b""
        return ["tensor", name_of(tensor.dtype), list(tensor.shape), len(self.tail),
                self._append(content)]


def pack(value: Any, where: str = "extra") -> bytes:
    """
    :param where: what it is called in errors
    :raises TypeError: something in it is of no type that is taken; says where it is
    """
    packer = _Packer()
    text = json.dumps(packer.packed(value, where)).encode()
    return len(text).to_bytes(8, "little") + text + bytes(packer.tail)


def _sliced(tail: memoryview, begin: Any, length: Any) -> memoryview:
    if not (type(begin) is type(length) is int and 0 <= begin <= begin + length <= len(tail)):
        raise ValueError("bytes that are not there")
    return tail[begin:begin + length]


def _unpacked_tensor(tail: memoryview, name: Any, shape: Any, begin: Any, length: Any) -> Tensor:
    dtype = DTYPES[name]
    tensor = torch.empty([int(side) for side in shape], dtype=dtype, device="cpu")
    content = _sliced(tail, begin, length)
    if tensor.numel() * tensor.element_size() != len(content):
        raise ValueError("a tensor's shape is not of its bytes")
    if len(content):
        ctypes.memmove(tensor.data_ptr(), bytes(content), len(content))
    return tensor


def _unpacked(value: Any, tail: memoryview) -> Any:
    if not isinstance(value, list):
        return value
    kind, *rest = value
    if kind in _SEQUENCES:
        return _SEQUENCES[kind]([_unpacked(item, tail) for item in rest])
    if kind in _MAPPINGS:
        return _MAPPINGS[kind]([(_unpacked(key, tail), _unpacked(item, tail))
                                for key, item in rest])
    if kind == "bytes":
        return bytes(_sliced(tail, *rest))
    if kind == "dtype":
        return DTYPES[rest[0]]
    if kind == "tensor":
        return _unpacked_tensor(tail, *rest)
    raise ValueError(f"{kind!r} is not known")


def unpack(content: bytes) -> Any:
    """What pack() was given.

    :raises ValueError: the bytes are damaged, or were made by something else
    """
    try:
        length = int.from_bytes(content[:8], "little")
        view = memoryview(content)
        return _unpacked(json.loads(bytes(_sliced(view[8:], 0, length))), view[8 + length:])
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError, RecursionError) as error:
        raise ValueError(f"the bytes that go with the commit cannot be read: {error}") from error
