# SPDX-License-Identifier: MIT
# spillway/_device.py - copies between the memory of devices and the store's arena
"""Carries out what the cache decides, and decides nothing.

Out: the stream that computes records an event; a side stream waits for it, copies into staging
     memory and records another. When that has come the copy has ended. A host that is ahead of the
     device does not see it come: order() lets go of the memory all the same.
In:  new memory is taken by the stream that computes, so that it is of its own; another side stream
     waits for that, copies and records an event, for which whoever uses the bytes waits.

How long a stream that computes waits for either is noted: _device_times.py.

No stream is waited for by the host here but at the end.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from ctypes import c_char
from typing import Any, Deque, Dict, Iterator, List, Optional, Tuple

import torch
from torch import Tensor

from ._device_times import DeviceTimes
from ._pinned import pin, unpin
from ._torch_compat import storage_of
from .store import Store

_log = logging.getLogger("spillway")

Shape = Tuple[torch.dtype, Tuple[int, ...], Tuple[int, ...]]  # type, size, stride: all of a range


class Copy:
    """One that is under way, or has been."""

    __slots__ = (
        "number",
        "stream",
        "length",
        "shape",
        "begin",
        "event",
        "since",
        "stalled_ns",
        "held",
        "earlier",
        "taken",
        "ended",
    )

    def __init__(self, number: int, stream: Any, held: Tensor, length: int) -> None:
        self.number = number  # out: the tensor's; in: the lease
        self.stream = stream  # that computes: the memory is of its pool
        self.length = length
        self.shape: Optional[Shape] = None  # in: of the memory; None: bytes
        self.begin: Any = None  # a mark, of some
        self.event: Any = None  # its end
        self.since: Any = None  # a mark of a stream that waits for it, before anybody did
        self.stalled_ns = 0  # so long did that wait
        self.held: Optional[Tensor] = held  # until nobody else gets its memory before the end
        self.earlier: Optional[Copy] = None  # out: another one of the same tensor
        self.taken = False  # in: what was ahead of its use has been used
        self.ended = False  # as the host has seen


class _Way:
    """From a device, or to it."""

    __slots__ = ("is_out", "stream", "begun", "copies")

    def __init__(self, is_out: bool) -> None:
        self.is_out = is_out
        self.stream: Any = None  # that copies, from the first copy on
        self.begun = 0  # copies so far
        self.copies: Deque[Copy] = deque()  # of whose end the host does not know, in order


class _Device:
    """One that was met. One that is late holds nothing of another back."""

    __slots__ = ("number", "out", "back", "streams")

    def __init__(self, number: int) -> None:
        self.number = number
        self.out, self.back = _Way(True), _Way(False)
        self.streams: List[Any] = []  # on which something was saved


class Port:
    """For one thread at a time.

    :param table: streams and events, as _accelerator.Table has them
    :param device: for which the memory is pinned first
    :param store: whose arena is pinned until unpin(); None: nothing is copied
    :raises RuntimeError: the memory cannot be pinned
    """

    def __init__(self, table: Any, device: torch.device, store: Optional[Store]) -> None:
        self.table = table
        self.times = DeviceTimes(table, device)
        self.kind = device.type
        self._devices: Dict[torch.device, _Device] = {}
        self._out: Dict[int, Copy] = {}  # the last one of each tensor
        self._pinned: Optional[Tuple[torch.device, int, Store]] = None
        self._arena: Optional[Tensor] = None  # until then
        # The same as elements, how many and how long; None: none can lie there.
        self._arenas: Dict[torch.dtype, Optional[Tuple[Tensor, int, int]]] = {}
        if store is not None:
            address, length = pin(table, device, store)
            self._pinned = device, address, store
            self._arena = _bytes_at(address, length)

    def number(self, device: torch.device) -> int:
        """The device's, from 1 on."""
        return self._of(device).number

    def _of(self, device: torch.device) -> _Device:
        known = self._devices.get(device)
        if known is None:
            known = self._devices[device] = _Device(len(self._devices) + 1)
        return known

    def copy_out(
        self,
        tensor: Tensor,
        stream: Any,
        after: Any,
        begin: int,
        length: int,
        staging: int,
        number: int,
        shape: Optional[Shape] = None,
    ) -> Any:
        """Part of the tensor's storage to staging memory, after an event of the stream.

        :param shape: the tensor's, if it is that part
        :return: the event of its end
        """
        device = self._of(tensor.device)
        if stream not in device.streams:
            device.streams.append(stream)
        to = None if shape is None else self._staging_as(staging, length, shape)
        if to is None:
            source, to = _bytes_of(tensor, begin, length), self._staging(staging, length)
        else:
            source = tensor
        copy = Copy(number, stream, tensor, length)
        self._copy(device.out, to, source, after, None, copy)
        copy.earlier = self._out.get(number)
        self._out[number] = copy
        return copy.event

    def order(self, number: int, since: Any) -> None:
        """What a stream is given from now on comes after the copies out of this tensor, which is
        held no longer. Of which stream's pool its memory is nobody says: so this is done for each
        that saves.

        :param since: a mark of one of them, the last that it was given
        """
        copy = self._out.get(number)
        if copy is None or copy.held is None:
            return
        device = copy.held.device
        for stream in self._devices[device].streams:
            self.table.wait(stream, copy.event)
        copy.since = since
        self.times.waits(device, copy)
        each: Optional[Copy] = copy
        while each is not None:
            each.held, each = None, each.earlier

    def copy_in(
        self,
        stream: Any,
        address: int,
        length: int,
        lease: int,
        number: int,
        shape: Optional[Shape] = None,
    ) -> Copy:
        """New memory of the stream's pool, and into it the bytes of a lease: after the copy out, if
        that is under way.

        :param shape: of a tensor that is all of it
        """
        out = self._out.get(number)
        source = None if shape is None else self._staging_as(address, length, shape)
        if source is None:
            source, shape = self._staging(address, length), None
        base = self.table.empty(shape or (torch.uint8, (length,), (1,)), stream)
        after = self.table.record(stream)
        copy = Copy(lease, stream, base, length)
        copy.shape = shape
        self._copy(self._of(base.device).back, base, source, after, out, copy)
        return copy

    def use(self, copy: Copy, base: Tensor, stream: Any, since: Any) -> None:
        """What the stream is given from now on comes after a copy in, into this memory.

        :param since: a mark of the stream, before anybody waited for the bytes; or None
        """
        self.table.wait(stream, copy.event)
        if copy.since is None and since is not None:
            copy.since = since
            self.times.waits(base.device, copy)
        if stream != copy.stream:
            self.table.keep(base, stream)
        copy.held = None

    def drop(self, copy: Copy) -> None:
        """Nobody uses a copy in."""
        if copy.held is not None:
            self.table.wait(copy.stream, copy.event)
            copy.held = None

    def _copy(
        self, way: _Way, to: Tensor, source: Tensor, after: Any, out: Optional[Copy], copy: Copy
    ) -> None:
        """Copy, and note it. If it is not noted, by Ctrl-C, its memory is soon somebody else's: so
        it has ended then."""
        table, side, copies = self.table, way.stream, way.copies
        if side is None:
            side = way.stream = table.new_stream(copy.held.device)  # type: ignore[union-attr]
        table.wait(side, after)
        if out is not None:
            table.wait(side, out.event)
        try:
            copy.begin = self.times.begin(side, way.begun)
            way.begun += 1
            table.copy(to, source, side)
            copy.event = table.mark(side)
            copies.append(copy)
        except BaseException:
            if not copies or copies[-1] is not copy:
                self._finish(side)
            raise

    def _finish(self, side: Any) -> None:
        try:
            self.table.finish(self.table.record(side))
        except RuntimeError as error:  # nothing runs on that device any more
            _log.warning("a copy to or from the device failed: %s", error)

    def is_copying_out(self, number: int) -> bool:
        """Such a copy is noted: ended() will tell of it."""
        return any(
            number == each.number for device in self._devices.values() for each in device.out.copies
        )

    def ended_out(self) -> Iterator[Tuple[int, int]]:
        """The copies out that have ended and were not told of: (tensor, 0 or a negative errno)."""
        return self._end(True, self.table.done)

    def ended_in(self) -> Iterator[Tuple[int, int]]:
        """The copies in: (lease, the same)."""
        return self._end(False, self.table.done)

    def oldest_out(self) -> Any:
        """The event of a copy out for which all others of its device wait; None: there is none."""
        for device in self._devices.values():
            if device.out.copies:
                return device.out.copies[0].event
        return None

    def finish(self) -> None:
        """Wait for all copies. They are forgotten."""
        for is_out in (True, False):
            for _ in self._end(is_out, self._finished):
                pass

    def unpin(self) -> None:
        """The store may be closed. Calling it twice does nothing."""
        pinned, self._pinned, self._arena = self._pinned, None, None
        self._arenas.clear()
        if pinned is not None:
            unpin(pinned[2], pinned[1])

    def _end(self, is_out: bool, done: Any) -> Iterator[Tuple[int, int]]:
        for device, known in self._devices.items():
            copies = known.out.copies if is_out else known.back.copies
            while copies:
                copy = copies[0]
                result = 0
                try:
                    if not done(copy.event):
                        break
                except RuntimeError as error:  # so does every call from now on: nothing runs there
                    _log.warning("a copy to or from the device failed: %s", error)
                    result = -errno.EIO
                copy.ended = True
                if result == 0:
                    self.times.ended(device, copy, is_out)
                copies.popleft()
                if is_out:
                    copy.held = None
                    if self._out.get(copy.number) is copy:
                        del self._out[copy.number]
                yield copy.number, result

    def _finished(self, event: Any) -> bool:
        self.table.finish(event)
        return True

    def _staging(self, address: int, length: int) -> Tensor:
        if self._pinned is not None and self._arena is not None:  # a part of it is made sooner
            begin = address - self._pinned[1]
            if 0 <= begin <= self._arena.numel() - length:
                return self._arena.narrow(0, begin, length)
        return _bytes_at(address, length)

    def _staging_as(self, address: int, length: int, shape: Shape) -> Optional[Tensor]:
        """The same as such elements. None: they cannot lie there."""
        dtype, size, stride = shape
        if dtype not in self._arenas:
            self._arenas[dtype] = _elements(self._arena, dtype)
        elements = self._arenas[dtype]
        if elements is None or self._pinned is None:
            return None
        arena, count, itemsize = elements
        begin, rest = divmod(address - self._pinned[1], itemsize)
        if rest or not 0 <= begin <= count - length // itemsize:
            return None
        return arena.as_strided(size, stride, begin)


def _bytes_at(address: int, length: int) -> Tensor:
    """Host memory."""
    return torch.frombuffer((c_char * length).from_address(address), dtype=torch.uint8)


def _elements(arena: Optional[Tensor], dtype: torch.dtype) -> Optional[Tuple[Tensor, int, int]]:
    if arena is None:
        return None
    itemsize = torch.empty(0, dtype=dtype).element_size()
    count = arena.numel() // itemsize
    try:
        return arena[: count * itemsize].view(dtype), count, itemsize
    except RuntimeError:  # elements that are no whole bytes
        return None


def _bytes_of(tensor: Tensor, begin: int, length: int) -> Tensor:
    """Part of the tensor's storage."""
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(storage_of(tensor), begin, (length,), (1,))
