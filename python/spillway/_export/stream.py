# SPDX-License-Identifier: MIT
# spillway/_export/stream.py - leaving(): stream the bytes of a commit through two buffers
"""One buffer is filled while the other is used. Both are in the store's arena, so drives
transfer without a copy."""
from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from ctypes import byref, c_ubyte, c_void_p
from typing import Any, Callable, Generator, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .._core.library import blocking, check, fast
from .._core.tensors import buffer_of
from .._optim.masters import unpack
from .._optim.tile_step import Scratch
from .._optim.tiles import item_bytes
from ..store import Store, end_of
from .committed import Committed, CompactPiece, Part

_BUFFER_BYTES_MAX = 16 << 20
_PAGE_BYTES = 4096
_PREFETCH = 1


class _Buffer:
    """A buffer in the arena of the first store, into which a part is read. ``view``: the part that
    was read."""

    def __init__(self, handles: Sequence[int], len_bytes: int) -> None:
        self._handles = handles
        self._request = c_void_p()
        self._memory = c_void_p()
        check(fast.spw_store_alloc(handles[0], len_bytes, byref(self._memory)))
        assert self._memory.value is not None
        self._whole = memoryview((c_ubyte * len_bytes).from_address(self._memory.value))
        self.view = self._whole[:0]

    def begin(self, part: Part) -> None:
        self.view = self._whole[:part.len_bytes]
        if part.thing == 0:
            assert self._memory.value is not None
            ctypes.memset(self._memory.value, 0, part.len_bytes)
            return
        check(blocking.spw_store_get(self._handles[part.store], part.thing, part.offset,
                                     self._memory, part.len_bytes, _PREFETCH, None,
                                     byref(self._request)))

    def end(self) -> None:
        """Wait until the part is read. Ctrl-C meanwhile is raised afterwards: until then the drives
        use the buffer.

        :raises SpillwayError: they cannot be read
        """
        result, interruption = end_of(self._request)
        if interruption is not None:
            raise interruption
        check(result)

    def __enter__(self) -> "_Buffer":
        return self

    def __exit__(self, *_: object) -> None:
        end_of(self._request)
        fast.spw_store_release(self._handles[0], self._memory)


def _joined(parts: Sequence[Part]) -> List[Part]:
    """Merge parts that are adjacent in an object."""
    runs: List[Part] = []
    for part in parts:
        if part.len_bytes == 0:
            continue
        last = runs[-1] if runs else None
        if last and (last.store, last.thing, last.offset + last.len_bytes) == (
                part.store, part.thing, part.offset):
            runs[-1] = dataclasses.replace(last, len_bytes=last.len_bytes + part.len_bytes)
        else:
            runs.append(part)
    return runs


def _cut(run: Part, len_max: int, chunk_bytes: int) -> Iterator[Part]:
    """Cut a run into parts that fit into a buffer. Chunks are read and verified as a whole, so
    cut between chunks where possible."""
    at, stop = run.offset, run.offset + run.len_bytes
    while at < stop:
        end = (at + len_max) // chunk_bytes * chunk_bytes
        end = min(stop, end if end > at else at + len_max)
        yield dataclasses.replace(run, offset=at, len_bytes=end - at)
        at = end


def _buffer_bytes(store: Store, runs: Sequence[Part], most: int) -> int:
    """The length of a buffer: that of the longest run, up to a quarter of the arena."""
    longest = max((run.len_bytes for run in runs), default=1)
    room = min(most, store.arena_bytes // 4 or most)
    return max(_PAGE_BYTES, min(longest + _PAGE_BYTES - 1, room) // _PAGE_BYTES * _PAGE_BYTES)


def _pieces(stores: Sequence[Store], parts: Sequence[Part],
            most: int) -> Generator[memoryview, None, None]:
    """The bytes of all parts, one after the other; each view is valid until the next one is
    requested.

    :raises SpillwayError: they cannot be read; ENOBUFS the store's arena is used up
    """
    runs = _joined(parts)
    len_bytes = _buffer_bytes(stores[0], runs, most)
    with contextlib.ExitStack() as held:
        handles = [held.enter_context(store.held()) for store in stores]
        used, coming = [held.enter_context(_Buffer(handles, len_bytes)) for _ in range(2)]
        for run in runs:
            for part in _cut(run, len_bytes, stores[0].chunk_bytes):
                coming.begin(part)
                if used.view:
                    yield used.view
                coming.end()
                used, coming = coming, used
        if used.view:
            yield used.view


class _Rounding:
    """Converts masters to the type of their parameters, as copy_() rounds."""

    def __init__(self) -> None:
        self._memory: Optional[Tensor] = None

    def __call__(self, view: memoryview, tensor: Committed) -> memoryview:
        if tensor.stored is tensor.dtype:
            return view
        source = torch.frombuffer(view, dtype=tensor.stored)
        memory = self._memory
        if memory is None or memory.dtype is not tensor.dtype or memory.numel() < source.numel():
            memory = self._memory = torch.empty(source.numel(), dtype=tensor.dtype, device="cpu")
        return buffer_of(memory[:source.numel()].copy_(source))


class _Joining:
    """Puts compact masters together with their parameters, a piece at a time."""

    def __init__(self, bytes_of: Callable[[int], Iterator[memoryview]]) -> None:
        self._bytes_of = bytes_of
        self._scratch = Scratch()

    def _read(self, purpose: str, len_bytes: int) -> Tensor:
        memory, at = self._scratch.of(purpose, torch.uint8, len_bytes), 0
        for part in self._bytes_of(len_bytes):
            memory[at:at + len(part)].copy_(torch.frombuffer(part, dtype=torch.uint8))
            at += len(part)
        return memory

    def __call__(self, piece: CompactPiece) -> Iterator[memoryview]:
        if piece.count == 0:
            return
        sums = self._read("sum", 8).view(torch.int64)
        low = self._read("low", 2 * piece.count)
        carry = self._read("carry", piece.parts[2].len_bytes)
        weights = self._read("weights", 2 * piece.count).view(torch.bfloat16)
        masters = self._scratch.of("masters", torch.float32, piece.count)
        unpack(masters, weights, low.data_ptr(), carry.data_ptr(), piece.first, int(sums[0]))
        yield buffer_of(masters)


def leaving(stores: Sequence[Store], tensors: Sequence[Committed],
            most: int = _BUFFER_BYTES_MAX
            ) -> Generator[Tuple[Committed, Iterator[memoryview]], None, None]:
    """Yield each tensor with views of its bytes, in this order. Use a view before the next one, and
    all views of a tensor before the next tensor. The stores stay open until the generator is
    closed.

    :param stores: as parts number them; the buffers are in the arena of the first
    :param most: bytes of a buffer
    :raises SpillwayError: a drive failed; EBADMSG one returned other bytes; ENXIO they are on a
        missing drive; ENOBUFS the first store's arena is used up
    """
    rounded = _Rounding()
    with contextlib.closing(_pieces(stores, [part for tensor in tensors
                                            for part in tensor.parts], most)) as pieces:
        rest: Any = memoryview(b"")

        def stored(left: int) -> Iterator[memoryview]:
            nonlocal rest
            while left > 0:
                rest = rest or next(pieces)
                view = rest[:left]
                rest = rest[len(view):]
                left -= len(view)
                yield view

        joined = _Joining(stored)

        def bytes_of(tensor: Committed) -> Iterator[memoryview]:
            views = (view for piece in tensor.compact for view in joined(piece)) \
                if tensor.compact else stored(tensor.count * item_bytes(tensor.stored))
            for view in views:
                yield rounded(view, tensor)

        for tensor in tensors:
            yield tensor, bytes_of(tensor)
