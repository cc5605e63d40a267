# SPDX-License-Identifier: MIT
# spillway/_gpu/copies.py - slow paths of the copies between devices and pinned memory of the host
"""The copies are in C: hooks/port.c."""

from __future__ import annotations

import logging
from ctypes import c_char
from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from .._core.hooks_loader import hooks
from ..store import Store
from .device_times import DeviceTimes
from .host_memory import HostMemory
from .pinned import pin, unpin

_log = logging.getLogger("spillway")

Shape = Tuple[torch.dtype, Tuple[int, ...], Tuple[int, ...]]  # type, size, stride: all of a range


class Port(hooks.Port):  # type: ignore[misc]
    """For one thread at a time.

    :param table: streams and events, as accelerator.Table has them
    :param device: for which the memory is pinned first
    :param store: whose arena is pinned until unpin(); None: nothing is copied there
    :raises RuntimeError: the memory cannot be pinned
    """

    table: Any
    times: DeviceTimes
    kind: str

    def __new__(cls, table: Any, device: torch.device, store: Optional[Store]) -> "Port":
        new: Port = super().__new__(cls, table, DeviceTimes(table, device), device.type)
        return new

    def __init__(self, table: Any, device: torch.device, store: Optional[Store]) -> None:
        self._store = store
        self._host: Optional[HostMemory] = None
        self._arena_begin = 0
        if store is not None:
            self._arena_begin, arena_bytes = pin(table, device, store)
            self.add_region(self._arena_begin, arena_bytes)

    def use(self, host: HostMemory) -> None:
        """Copies may stay there, until unpin()."""
        self._host = host
        for address, length in host.pieces:
            self.add_region(address, length)

    def unpin(self) -> None:
        """The cache is closed, and the store may be. Calling it twice does nothing."""
        store, self._store = self._store, None
        host, self._host = self._host, None
        self.drop_regions()
        if host is not None:
            host.close()
        if store is not None:
            unpin(store, self._arena_begin)

    def _elements(self, dtype: torch.dtype, address: int, length: int) -> Optional[Tensor]:
        """A region as such elements. None: they cannot lie there."""
        itemsize = torch.empty(0, dtype=dtype, device="cpu").element_size()
        try:
            return self._bytes_at(address, length // itemsize * itemsize).view(dtype)
        except RuntimeError:  # elements of less than a byte
            return None

    def _bytes_at(self, address: int, length: int) -> Tensor:
        """Host memory."""
        return torch.frombuffer((c_char * length).from_address(address), dtype=torch.uint8)

    def _failed(self, error: RuntimeError) -> None:
        """Of the device, while something waits for a copy, or asks for it."""
        _log.warning("a copy to or from the device failed: %s", error)

    def _abort(self, side: Any) -> None:
        """What that stream was given has ended when this returns."""
        try:
            self.table.finish(self.table.record(side))
        except RuntimeError as error:  # nothing runs on that device any more
            self._failed(error)
