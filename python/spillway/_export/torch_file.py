# SPDX-License-Identifier: MIT
# spillway/_export/torch_file.py - write a file as torch.save() does, but stream its tensors
"""The file is a zip archive without compression: the pickled value (data.pkl), and the bytes of
each tensor (data/0, data/1 ...). torch.load(weights_only=True) reads it, or maps it with mmap=True.
"""
from __future__ import annotations

import collections
import contextlib
import io
import pickle
import struct
import zipfile
from typing import Any, Iterable, List, Sequence, Tuple, Union

import torch
from torch import Tensor

from .._core.tensors import buffer_of
from ..store import Store
from .committed import Committed
from .output import Output, Outputs
from .stream import leaving

_FOLDER = "archive"
# Bytes of tensors begin at multiples of this, as in files of torch.save().
_ALIGN_BYTES = 64
# Lengths in a zip file: an entry's header without its name, and the extra fields of zipfile.
_ENTRY_BYTES, _ZIP64_BYTES, _EXTRA_BYTES = 30, 20, 4
_PADDING = 0x4246


class _Storage:
    """The bytes of a tensor, to which the pickle refers by a key."""

    def __init__(self, tensor: Union[Committed, Tensor], key: str) -> None:
        self.tensor = tensor
        self.key = key
        self.count = tensor.numel() if isinstance(tensor, Tensor) else tensor.count


def _strides(shape: Sequence[int]) -> Tuple[int, ...]:
    strides = [1]
    for side in reversed(shape[1:]):
        strides.append(strides[-1] * max(side, 1))
    return tuple(reversed(strides)) if shape else ()


class _Pickler(pickle.Pickler):
    """Pickles tensors of a commit, and tensors in memory, as PyTorch does."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=2)
        self.storages: List[_Storage] = []

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, (Committed, Tensor)):
            return NotImplemented
        if isinstance(value, Tensor):
            value = value.detach().cpu().contiguous()
        storage = _Storage(value, str(len(self.storages)))
        self.storages.append(storage)
        shape = tuple(value.shape)
        return torch._utils._rebuild_tensor_v2, (
            storage, 0, shape, _strides(shape), False, collections.OrderedDict())

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, _Storage):
            return None
        kind = _STORAGES[value.tensor.dtype]
        return "storage", kind, value.key, "cpu", value.count


# The class that a pickle names for each element type.
_STORAGES = {
    torch.float64: torch.DoubleStorage, torch.float32: torch.FloatStorage,
    torch.float16: torch.HalfStorage, torch.bfloat16: torch.BFloat16Storage,
    torch.int64: torch.LongStorage, torch.int32: torch.IntStorage,
    torch.int16: torch.ShortStorage, torch.int8: torch.CharStorage,
    torch.uint8: torch.ByteStorage, torch.bool: torch.BoolStorage,
    torch.complex128: torch.ComplexDoubleStorage, torch.complex64: torch.ComplexFloatStorage
}


class TorchWriter:
    """
    :param value: as for torch.save(): dicts and lists, with tensors of a commit and in memory
    :param order: the tensors of the commit in the order in which their bytes are read
    :raises TypeError: a tensor is of a type that cannot be written
    """

    def __init__(self, path: str, value: Any, order: Sequence[Committed]) -> None:
        content = io.BytesIO()
        pickler = _Pickler(content)
        try:
            pickler.dump(value)
        except KeyError as error:
            raise TypeError(f"a tensor of {error} cannot go to a file of PyTorch") from error
        self._pickle = content.getvalue()
        keys = {id(storage.tensor): storage.key for storage in pickler.storages}
        self._order = [(tensor, keys[id(tensor)]) for tensor in order]
        self._others = [storage for storage in pickler.storages
                        if isinstance(storage.tensor, Tensor)]
        self.paths = [path]
        # The last term is about what the entries' headers and names take.
        self.len_bytes = len(self._pickle) + sum(tensor.len_bytes for tensor in order) + \
            512 * (len(pickler.storages) + 4)

    def write(self, stores: Sequence[Store], outputs: Outputs) -> None:
        """
        :raises SpillwayError: raised by leaving()
        :raises OSError: the file cannot be written
        """
        output = outputs.new(self.paths[0])
        file: Any = output  # Output has the methods that zipfile needs
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            _add(archive, output, "data.pkl", [self._pickle])
            _add(archive, output, "byteorder", [b"little"])
            for storage in self._others:
                assert isinstance(storage.tensor, Tensor)
                _add(archive, output, f"data/{storage.key}", [buffer_of(storage.tensor)])
            tensors = [tensor for tensor, _ in self._order]
            with contextlib.closing(leaving(stores, tensors)) as those:
                for (_, key), (_, views) in zip(self._order, those):
                    _add(archive, output, f"data/{key}", views)
            _add(archive, output, "version", [b"3\n"])


def _add(archive: zipfile.ZipFile, output: Output, name: str,
         views: Iterable[Any]) -> None:
    entry = zipfile.ZipInfo(f"{_FOLDER}/{name}")
    begin = output.tell() + _ENTRY_BYTES + len(entry.filename) + _ZIP64_BYTES + _EXTRA_BYTES
    padding = -begin % _ALIGN_BYTES
    entry.extra = struct.pack("<HH", _PADDING, padding) + b"\0" * padding
    # The length is known only at the end, so use a header with room for any length.
    with archive.open(entry, "w", force_zip64=True) as file:
        for view in views:
            file.write(view)
