# SPDX-License-Identifier: MIT
# spillway/_export/safetensors.py - safetensors files: write them as a stream, read them by mapping
"""A file begins with the length of its header (8 bytes, little-endian) and the header, in JSON: for
each tensor its type, its shape, and where its bytes begin and end behind the header. The tensors'
bytes follow each other without gaps. A model of several files has an index file beside them.

Nothing that is read is trusted.
"""
from __future__ import annotations

import contextlib
import json
import mmap
import os
import warnings
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

import torch
from torch import Tensor

from .._optim.tiles import item_bytes
from ..store import Store
from .committed import Committed
from .output import Outputs
from .stream import leaving

_TYPES = {
    name: getattr(torch, of_torch)
    for name, of_torch in (
        ("F64", "float64"), ("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16"),
        ("I64", "int64"), ("I32", "int32"), ("I16", "int16"), ("I8", "int8"), ("U8", "uint8"),
        ("BOOL", "bool"), ("U64", "uint64"), ("U32", "uint32"), ("U16", "uint16"),
        ("C64", "complex64"), ("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2"))
    if hasattr(torch, of_torch)
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_METADATA = "__metadata__"
# The safetensors package accepts no longer header.
_HEADER_BYTES_MAX = 100_000_000
_INDEX_BYTES_MAX = 100_000_000
# The bytes of the first tensor begin at a page of the file.
_ALIGN_BYTES = 4096


# ---- Writing -------------------------------------------------------------------------------------


def _header(tensors: Sequence[Committed], metadata: Dict[str, str]) -> bytes:
    described: Dict[str, Any] = {_METADATA: metadata}
    at = 0
    for tensor in tensors:
        described[tensor.name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape),
                                  "data_offsets": [at, at + tensor.len_bytes]}
        at += tensor.len_bytes
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGN_BYTES)
    if len(text) > _HEADER_BYTES_MAX:
        raise ValueError(f"the names of {len(tensors)} tensors are longer than a header of "
                         "safetensors may be: give a smaller shard_bytes")
    return len(text).to_bytes(8, "little") + text


def _shards(tensors: Sequence[Committed], shard_bytes: int) -> List[List[Committed]]:
    """Divide tensors into files, larger types first, so that each begins at a multiple of its
    element size."""
    shards: List[List[Committed]] = [[]]
    used = 0
    for tensor in sorted(tensors, key=lambda tensor: -item_bytes(tensor.dtype)):
        if shards[-1] and used + tensor.len_bytes > shard_bytes:
            shards.append([])
            used = 0
        shards[-1].append(tensor)
        used += tensor.len_bytes
    return shards


def _shard_paths(path: str, count: int) -> List[str]:
    """model-00001-of-00003.safetensors, for model.safetensors."""
    if count == 1:
        return [path]
    stem, ending = os.path.splitext(path)
    return [f"{stem}-{number:05}-of-{count:05}{ending}" for number in range(1, count + 1)]


class SafetensorsWriter:
    """
    :param path: of the file; several files have numbers in their names, and an index,
        PATH.index.json
    :param shard_bytes: at most this many bytes of tensors go into a file, unless a single tensor
        has more
    :param metadata: for the header
    """

    def __init__(self, path: str, tensors: Sequence[Committed], shard_bytes: int,
                 metadata: Dict[str, str]) -> None:
        for tensor in tensors:
            if tensor.name == _METADATA:
                raise ValueError(f"no tensor of safetensors can be called {_METADATA}")
        self._shards = _shards(tensors, shard_bytes)
        self._metadata = metadata
        self._headers = [_header(shard, metadata) for shard in self._shards]
        self.paths = _shard_paths(path, len(self._shards))
        self._index_path = path + ".index.json"
        if len(self._shards) > 1:
            self.paths.append(self._index_path)
        self.len_bytes = sum(map(len, self._headers)) + sum(tensor.len_bytes for tensor in tensors)

    def write(self, stores: Sequence[Store], outputs: Outputs) -> None:
        """
        :raises SpillwayError: raised by leaving()
        :raises OSError: a file cannot be written
        """
        for shard, header, path in zip(self._shards, self._headers, self.paths):
            output = outputs.new(path)
            output.write(header)
            with contextlib.closing(leaving(stores, shard)) as tensors:
                for _, views in tensors:
                    for view in views:
                        output.write(view)
        if len(self._shards) > 1:  # its name completes the set (output.py)
            outputs.new(self._index_path).write(self._index())

    def _index(self) -> bytes:
        where = {tensor.name: os.path.basename(path)
                 for shard, path in zip(self._shards, self.paths) for tensor in shard}
        total = sum(tensor.len_bytes for shard in self._shards for tensor in shard)
        return json.dumps({"metadata": {**self._metadata, "total_size": total},
                           "weight_map": where}, indent=2).encode() + b"\n"


# ---- Reading -------------------------------------------------------------------------------------


class _File:
    """One mapped file. Its tensors are views of it: the kernel reads them on use, and may evict
    them."""

    def __init__(self, path: str) -> None:
        """:raises ValueError: the file is damaged, or not of safetensors"""
        self._path = path
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= min(_HEADER_BYTES_MAX, size - 8):
                raise ValueError(f"{path}: not a safetensors file: its header would have "
                                 f"{length} bytes, and the file has {size}")
            text = file.read(length)
            self._begin = 8 + length
            try:
                self.described = _described(json.loads(text), size - self._begin)
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise ValueError(f"{path}: the header is damaged, or none of safetensors: "
                                 f"{error}") from error
            self._memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)

    def tensor(self, name: str) -> Tensor:
        dtype, shape, begin, end = self.described[name]
        if begin == end:
            return torch.empty(shape, dtype=dtype, device="cpu")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warning that the buffer is not writable
            content = torch.frombuffer(self._memory, dtype=torch.uint8, count=end - begin,
                                       offset=self._begin + begin)
        if content.data_ptr() % item_bytes(dtype):  # another writer may not have aligned it
            content = content.clone()
        return content.view(dtype).view(shape)


_Description = Tuple[torch.dtype, List[int], int, int]


def _described(header: Any, data_bytes: int) -> Dict[str, _Description]:
    """:raises ValueError, TypeError, KeyError: the header is invalid"""
    found: Dict[str, _Description] = {}
    for name, said in dict(header).items():
        if name == _METADATA:
            continue
        begin, end = said["data_offsets"]
        shape = said["shape"]
        if any(type(number) is not int or number < 0 for number in [begin, end, *shape]):
            raise ValueError(f"{name}: an invalid number")
        if said["dtype"] not in _TYPES:
            raise ValueError(f"{name}: this PyTorch has no type {said['dtype']}")
        dtype = _TYPES[said["dtype"]]
        length = item_bytes(dtype)
        for side in shape:
            length *= side
        if end - begin != length:
            raise ValueError(f"{name}: {end - begin} bytes, and its shape needs {length}")
        found[name] = dtype, shape, begin, end
    at = 0
    for name, (_, _, begin, end) in sorted(found.items(), key=lambda item: item[1][2:]):
        if begin != at:
            raise ValueError(f"{name} does not begin where the tensor before it ends")
        at = end
    if at != data_bytes:
        raise ValueError(f"its tensors have {at} bytes, and the file {data_bytes}: was it cut off?")
    return found


class SafetensorsReader(Mapping[str, Tensor]):
    """The tensors of a file, or of all files of an index.

    :param path: of the file; PATH.index.json if there are several
    """

    def __init__(self, path: str) -> None:
        """:raises ValueError: a file is damaged, or not of safetensors"""
        index = path if path.endswith(".index.json") else path + ".index.json"
        if path != index and (os.path.lexists(path) or not os.path.lexists(index)):
            file = _File(path)
            self._where = dict.fromkeys(file.described, file)
        else:
            self._where = _files_of(index)

    def __getitem__(self, name: str) -> Tensor:
        return self._where[name].tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)


def _files_of(index: str) -> Dict[str, _File]:
    """The files of an index, by the names of their tensors."""
    with open(index, "rb") as file:
        text = file.read(_INDEX_BYTES_MAX + 1)
    try:
        if len(text) > _INDEX_BYTES_MAX:
            raise ValueError("it is too long")
        names = dict(json.loads(text)["weight_map"])
        for name in names.values():
            # Only files beside the index are opened.
            if type(name) is not str or os.path.basename(name) != name or name in ("", ".", ".."):
                raise ValueError(f"{name!r} is not a file name")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{index}: not a safetensors index: {error}") from error
    folder = os.path.dirname(index)
    files = {name: _File(os.path.join(folder, name)) for name in set(names.values())}
    where = {}
    for name, file_name in names.items():
        if name not in files[file_name].described:
            raise ValueError(f"{index}: {file_name} has no {name}")
        where[name] = files[file_name]
    return where
