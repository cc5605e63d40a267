# SPDX-License-Identifier: MIT
# spillway/_gpu/host_memory.py - pinned host memory in which copies of a device's tensors stay
"""It is pinned in pieces: where the system refuses as much as is asked for, half of that is tried,
and training goes on with what there is. A tensor lies in one piece."""
from __future__ import annotations

import logging
from ctypes import byref, c_size_t, c_void_p
from typing import Any, List, Tuple

import torch

from .._core.free_memory import free_memory, promised, share_of
from .._core.library import (ArenaOpts, SpillwayError, blocking, bytes_text, check, fast, options)
from ..cache import HOST_BYTES_MIN, Cache

_log = logging.getLogger("spillway")

_PIECE_BYTES = 32 << 20  # half of what was refused is tried, down to this
_PIECES_MAX = 64         # SPW_CACHE_HOST_PIECES_MAX


class HostMemory:
    """For one cache, which uses it until it closes.

    :param table: as accelerator.Table
    :param device: for which it is pinned first, and on whose NUMA node it is, if that is known
    """

    def __init__(self, table: Any, device: torch.device, cache: Cache) -> None:
        self._table, self._device = table, device
        self._arenas: List[Tuple[c_void_p, int]] = []  # pinned, with their addresses
        self.pieces: List[Tuple[int, int]] = []  # addresses and lengths
        self._refused = ""  # why the system gave no more
        try:
            self._pin_all(allowed(cache.host_bytes, cache.host_bytes, "are pinned"),
                          table.numa_node(device))
            for arena, _ in self._arenas:
                check(cache.call(fast.spw_cache_host_memory, arena))
        except BaseException:  # Ctrl-C; or the cache was closed meanwhile
            if cache.closed or not cache.stats().host_memory_bytes:
                self.close()  # else the cache has it until it closes
            raise
        self._tell(cache.host_bytes)

    def _pin_all(self, wanted: int, node: int) -> None:
        piece = wanted
        while wanted >= HOST_BYTES_MIN and len(self.pieces) < _PIECES_MAX:
            length = min(piece, wanted) // HOST_BYTES_MIN * HOST_BYTES_MIN
            if self._pin(length, node):
                wanted -= length
            elif length // 2 >= _PIECE_BYTES:
                piece = length // 2
            else:
                break

    def _pin(self, length: int, node: int) -> bool:
        """Whether there is a piece more."""
        opts, arena = options(ArenaOpts), c_void_p()
        opts.bytes, opts.numa_node, opts.no_hugetlb = length, node, True
        try:
            check(fast.spw_arena_open(byref(opts), byref(arena)))
        except SpillwayError as error:
            self._refused = str(error)
            return False
        address = int(fast.spw_arena_memory(arena, byref(c_size_t())))
        try:
            self._table.pin(self._device, address, length)
        except BaseException as error:
            blocking.spw_arena_close(arena)
            if not isinstance(error, RuntimeError):
                raise
            self._refused = str(error)
            return False
        self._arenas.append((arena, address))
        self.pieces.append((address, length))
        return True

    def _tell(self, wanted: int) -> None:
        total = sum(length for _, length in self.pieces)
        if self._refused:
            _log.warning(
                "host memory: of the %s of host_bytes %s could be pinned for %s, and are used: %s",
                bytes_text(wanted), bytes_text(total), self._device, self._refused)
        else:
            _log.info("host memory: %s are pinned for %s", bytes_text(total), self._device)

    def close(self) -> None:
        """The cache is closed. Calling it twice does nothing."""
        self.pieces.clear()
        while self._arenas:
            arena, address = self._arenas.pop()
            self._table.unpin(self._device, address)
            blocking.spw_arena_close(arena)


def allowed(wanted: int, given: int, use: str, to: Any = None) -> int:
    """Not more than is free, of which what is pinned cannot be taken back, and than is left by
    others in this process, which have not taken all of theirs yet.

    :param given: as host_bytes, of which this is wanted
    :param use: of what is allowed, in words
    :param to: of free_memory.takers, which is going to have this in place of what it was allowed
    """
    try:
        free = free_memory()
    except (OSError, ValueError) as error:  # no /proc, as in some sandboxes
        _log.warning("host_bytes: how much memory is free is not known, and 0 B %s: %s", use, error)
        return 0
    others = promised(but=to)
    most = share_of(max(0, free - others))
    if wanted > most:
        _log.warning(
            "host_bytes is %s, but this process and its control groups have %s of memory free%s: "
            "%s %s", bytes_text(given), bytes_text(free),
            f", and {bytes_text(others)} of that are for parameters of others" if others else "",
            bytes_text(most), use)
    return min(wanted, most)
