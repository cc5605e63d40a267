# SPDX-License-Identifier: MIT
# spillway/_device.py - copies between the memory of devices and the store's arena
"""Carries out what the cache decides, and decides nothing.

Out: the stream that computes records an event; a side stream waits for it, copies into staging
     memory and records another. When that has come the copy has ended.
In:  new memory is taken by the stream that computes, so that it is of its own; a side stream waits
     for that, copies and records an event, for which the stream that computes waits.

No stream is waited for here but at the end.
"""
from __future__ import annotations

import errno
import logging
from collections import deque
from ctypes import byref, c_char, c_size_t, c_void_p
from typing import Any, Deque, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from ._library import check, fast
from ._torch_compat import storage_of
from .store import Store

_log = logging.getLogger("spillway")

_OUT, _IN = 0, 1
# An event, what it is the end of, and what is held till then.
_Copies = Deque[Tuple[Any, int, Tensor]]


class Port:
    """For one thread at a time.

    :param table: the CUDA calls, as _cuda.Table has them
    :param store: whose arena is pinned until unpin(); None: nothing is copied
    :raises RuntimeError: the memory cannot be pinned
    """

    def __init__(self, table: Any, store: Optional[Store]) -> None:
        self.table = table
        self._streams: Dict[Tuple[torch.device, int], Any] = {}
        self._numbers: Dict[torch.device, int] = {}
        # By device: one that is late holds nothing of another back.
        self._copies: Tuple[Dict[torch.device, _Copies], Dict[torch.device, _Copies]] = {}, {}
        self._pinned: Optional[int] = None
        if store is not None:
            address, length = c_void_p(), c_size_t()
            check(fast.spw_store_arena(store.handle, byref(address), byref(length)))
            table.pin(address.value, length.value)
            self._pinned = address.value

    def number(self, device: torch.device) -> int:
        """The device's, from 1 on."""
        return self._numbers.setdefault(device, len(self._numbers) + 1)

    def copy_out(
        self, tensor: Tensor, produced: Any, begin: int, length: int, staging: int, number: int
    ) -> None:
        """Part of the tensor's storage to staging memory, after an event."""
        device, table = tensor.device, self.table
        side = self._side(device, _OUT)
        table.wait(side, produced)
        copies = self._copies[_OUT].setdefault(device, deque())
        source = _bytes_of(tensor, begin, length)
        self._copy(_bytes_at(staging, length), source, side, copies, number, tensor)

    def copy_in(
        self, device: torch.device, address: int, length: int, lease: int
    ) -> Tuple[Tensor, Any]:
        """New memory of the device with bytes of a lease, and the event after the copy."""
        table = self.table
        side, consumer = self._side(device, _IN), table.current_stream(device)
        base = table.empty(length, device, consumer)
        table.wait(side, table.record(consumer))
        copies = self._copies[_IN].setdefault(device, deque())
        return base, self._copy(base, _bytes_at(address, length), side, copies, lease, base)

    def _copy(
        self, to: Tensor, source: Tensor, side: Any, copies: _Copies, number: int, held: Tensor
    ) -> Any:
        """Copy, and note it. If it is not noted, by Ctrl-C, its memory is soon somebody else's: so
        it has ended then."""
        noted = len(copies)
        try:
            self.table.copy(to, source, side)
            event = self.table.record(side)
            copies.append((event, number, held))
            return event
        except BaseException:
            if len(copies) == noted:
                self._finish(side)
            raise

    def _finish(self, side: Any) -> None:
        try:
            self.table.finish(self.table.record(side))
        except RuntimeError as error:  # nothing runs on that device any more
            _log.warning("a copy to or from the device failed: %s", error)

    def is_copying_out(self, number: int) -> bool:
        """Such a copy is noted: ended() will tell of it."""
        return any(number == each[1] for copies in self._copies[_OUT].values() for each in copies)

    def ended(self) -> Tuple[List[Tuple[int, int]], List[Tuple[int, int]]]:
        """The copies out that have ended since the last call, as (tensor, 0 or a negative errno),
        and those in, as (lease, the same)."""
        if self.table.capturing():
            return [], []
        return self._end(_OUT, self.table.done), self._end(_IN, self.table.done)

    def finish(self) -> None:
        """Wait for all copies. They are forgotten."""
        for direction in (_OUT, _IN):
            self._end(direction, self._finished)

    def unpin(self) -> None:
        """The store may be closed. Calling it twice does nothing."""
        address, self._pinned = self._pinned, None
        if address is not None:
            self.table.unpin(address)

    def _end(self, direction: int, done: Any) -> List[Tuple[int, int]]:
        ended = []
        for copies in self._copies[direction].values():
            while copies:
                event, number, _ = copies[0]
                result = 0
                try:
                    if not done(event):
                        break
                except RuntimeError as error:  # so does every call from now on: nothing runs there
                    _log.warning("a copy to or from the device failed: %s", error)
                    result = -errno.EIO
                ended.append((number, result))
                copies.popleft()
        return ended

    def _finished(self, event: Any) -> bool:
        self.table.finish(event)
        return True

    def _side(self, device: torch.device, direction: int) -> Any:
        stream = self._streams.get((device, direction))
        if stream is None:
            stream = self._streams[device, direction] = self.table.new_stream(device)
        return stream


def _bytes_at(address: int, length: int) -> Tensor:
    """Host memory."""
    return torch.frombuffer((c_char * length).from_address(address), dtype=torch.uint8)


def _bytes_of(tensor: Tensor, begin: int, length: int) -> Tensor:
    """Part of the tensor's storage."""
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(storage_of(tensor), begin, (length,), (1,))
