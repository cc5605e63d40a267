# SPDX-License-Identifier: MIT
# spillway/_recompute/watched.py - a snapshot of a value: has it changed, and how to restore it
from __future__ import annotations

import array
import collections
import contextlib
import enum
import mmap
import sys
import zlib
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

import torch
from torch import Tensor, nn

from .._core.torch_compat import storage_of

Found = Tuple[str, Any]  # where, and what

VALUES = (type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis),
          torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum)
ARGUMENT = "(argument)"  # in place of where, of what a module is given
_CONTAINERS = dict, list, set, collections.deque, tuple, frozenset
_BUFFERS = bytearray, array.array, mmap.mmap
_CONTENT_MAX = 256 << 20  # bytes of an array: some 0.3 s


class Unseen(Exception):
    """Something within reach does not show whether it changes; with what, in words."""


def _is_value(thing: Any) -> bool:
    return isinstance(thing, VALUES) or (
        isinstance(thing, (tuple, frozenset)) and all(map(_is_value, thing)))


def _is_same(one: Any, other: Any) -> bool:
    """The same object, or a value that cannot be told from it."""
    return one is other or (type(one) is type(other) and _is_value(one) and _is_value(other)
                            and repr(one) == repr(other))


def builtin_of(thing: Any) -> Any:
    """The container that it is: by its methods, those of a class of its own are not called."""
    kind: Any = type(thing)
    return kind if kind in _CONTAINERS else next(
        (each for each in _CONTAINERS if issubclass(kind, each)), None)


def is_array(thing: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return isinstance(thing, _BUFFERS) or (
        numpy is not None and isinstance(thing, (numpy.ndarray, numpy.generic)))


def _checksum_of_content(path: str, thing: Any) -> Optional[int]:
    """Of an array; None: it cannot be written.

    :raises Unseen: it is too large to be read
    """
    is_numpy = not isinstance(thing, _BUFFERS)
    if not thing.flags.writeable if is_numpy else memoryview(thing).readonly:
        return None
    size = thing.nbytes if is_numpy else memoryview(thing).nbytes
    if size > _CONTENT_MAX:
        raise Unseen(f"it can reach an array of {size >> 20} MiB ({path.rstrip('.')}), which is "
                     "too large to look at")
    if is_numpy:
        numpy: Any = sys.modules["numpy"]
        thing = numpy.ascontiguousarray(thing).reshape(-1).view(numpy.uint8)
    return zlib.crc32(thing)


def dotted(path: str) -> str:
    return path if not path or path.endswith(".") else f"{path}."


def _checksums_now(tensor: Tensor) -> Optional[List[Tensor]]:
    """Of all of its storage, on its device; None: it has no bytes to read."""
    from .._gpu.checksums import can_checksum, checksums_of  # only if something is tried

    with contextlib.suppress(RuntimeError, NotImplementedError), torch.no_grad():
        storage, device = storage_of(tensor), tensor.device
        if storage.nbytes() == 0 or device.type == "meta":
            return None
        if can_checksum(storage):
            return checksums_of(tensor, 0, storage.nbytes())
        memory = torch.empty(0, dtype=torch.uint8, device=device)
        return [memory.set_(storage, 0, (storage.nbytes(),), (1,)).clone()]
    return None


class Watched:
    """A thing as it was."""

    def __init__(self, path: str, thing: Any) -> None:
        self.path = path
        self.thing = thing

    def inside(self) -> Iterable[Found]:
        """What it holds."""
        return ()

    def changed(self) -> Optional[str]:
        """In words; None: it has not."""
        raise NotImplementedError

    def has_begun(self) -> bool:
        """Whether what has changed was empty before."""
        return False

    def put_back(self) -> None:
        """If that is possible."""


class Names(Watched):
    """Values by names, as a look gives them."""

    def __init__(self, path: str, look: Callable[[], Dict[Any, Any]]) -> None:
        super().__init__(path, look)
        self._before = _raw(look())

    def _path_of(self, key: Any) -> str:
        return f"{self.path}{key}"

    def inside(self) -> Iterable[Found]:
        return ((self._path_of(key), value) for key, value in self._before.items())

    def _keys(self) -> Iterator[Any]:
        """Of what has changed."""
        before, after, missing = self._before, _raw(self.thing()), self
        if len(before) == len(after) and all(
                after.get(key, missing) is value for key, value in before.items()):
            return  # the usual case, and fast
        for key in {**before, **after}:
            if not _is_same(before.get(key, missing), after.get(key, missing)):
                yield key

    def changed(self) -> Optional[str]:
        return next((_words_of(self._path_of(key)) for key in self._keys()), None)

    def has_begun(self) -> bool:
        return all(self._before.get(key) is None for key in self._keys())


class Items(Names):
    """A dict; the attributes of an object are one."""

    def __init__(self, path: str, things: Dict[Any, Any]) -> None:
        self._things = things
        super().__init__(path, lambda: things)

    def put_back(self) -> None:
        ordered = isinstance(self._things, collections.OrderedDict)
        kind: Any = collections.OrderedDict if ordered else dict
        for key in list(self._keys()):
            if key in self._before:
                kind.__setitem__(self._things, key, self._before[key])
            else:
                kind.__delitem__(self._things, key)


def _raw(things: Any) -> Dict[Any, Any]:
    """A dict of a class of its own may make what it gives."""
    return dict(dict.items(things) if isinstance(things, dict) else things.items())


class Row(Watched):
    """A list, a deque or a set."""

    def __init__(self, path: str, thing: Any) -> None:
        super().__init__(path, thing)
        self._kind = builtin_of(thing)
        self._before = list(self._kind.__iter__(thing))

    def inside(self) -> Iterable[Found]:
        return ((self.path, value) for value in self._before)

    def changed(self) -> Optional[str]:
        same = len(self._before) == self._kind.__len__(self.thing) and all(
            map(_is_same, self._before, self._kind.__iter__(self.thing)))
        return None if same else _words_of(self.path)

    def put_back(self) -> None:
        if self.changed():
            self._kind.clear(self.thing)
            fill = self._kind.update if self._kind is set else self._kind.extend
            fill(self.thing, self._before)


class Memory(Watched):
    """A tensor."""

    def __init__(self, path: str, thing: Tensor, is_read: bool) -> None:
        super().__init__(path, thing)
        self._before, self._checksums = self._look(), _checksums_now(thing) if is_read else None

    def _look(self) -> Tuple[Any, ...]:
        thing = self.thing
        version = None if thing.is_inference() else thing._version
        if type(thing) not in (Tensor, nn.Parameter) or thing.layout is not torch.strided:
            return (version,)
        return (version, thing.shape, thing.stride(), thing.data_ptr(), thing.requires_grad,
                id(thing.grad) if thing.is_leaf else 0, len(thing._backward_hooks or ()))

    def changed(self) -> Optional[str]:
        same = self._before == self._look()
        if same and self._checksums is not None:
            now = _checksums_now(self.thing)
            same = now is not None and all(map(torch.equal, self._checksums, now))
        return None if same else _words_of(self.path, " in place")


class Array(Watched):
    """Of NumPy, or bytes that can be written."""

    def __init__(self, path: str, thing: Any, is_read: bool) -> None:
        super().__init__(path, thing)
        self._is_read = is_read
        self._before = self._look()

    def _look(self) -> Tuple[Any, ...]:
        thing = self.thing
        return (memoryview(thing).nbytes if isinstance(thing, _BUFFERS) else thing.shape,
                _checksum_of_content(self.path, thing) if self._is_read else None)

    def changed(self) -> Optional[str]:
        return None if self._before == self._look() else _words_of(self.path, " in place")


def _words_of(path: str, how: str = "") -> str:
    before, found, name = path.rpartition("_buffers.")
    if found:
        return f"it changes a buffer ({before}{name}){how}"
    path = path.replace("_parameters.", "").replace("_modules.", "")
    if path.startswith(ARGUMENT):
        return f"it changes its input{how}"
    if path.startswith(("global ", "class ", "what ")):
        return f"it changes {path}{how}"
    return f"it changes its attribute {path}{how}"
