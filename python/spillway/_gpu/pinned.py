# SPDX-License-Identifier: MIT
# spillway/_gpu/pinned.py - the store's arena, pinned while copies use it
"""A device copies from and to pinned memory while the host does something else. Memory can be
pinned once at a time, and a store may have two who want it: activations and the optimizer's."""
from __future__ import annotations

import threading
from ctypes import byref, c_size_t, c_void_p
from typing import Any, Tuple

import torch

from .._core.library import check, fast
from ..store import Store

_lock = threading.Lock()


def pin(table: Any, device: torch.device, store: Store) -> Tuple[int, int]:
    """Pin the store's arena for a device: once for each call of unpin().

    :param table: as accelerator.Table
    :return: address and length of the arena
    :raises RuntimeError: the system refuses to pin more memory
    """
    address, length = c_void_p(), c_size_t()
    check(fast.spw_store_arena(store.handle, byref(address), byref(length)))
    assert address.value is not None
    with _lock:
        if not store.arena_users:
            table.pin(device, address.value, length.value)
        store.arena_users = store.arena_users + (store.arena_users[:1] or [(table, device)])
    return address.value, length.value


def unpin(store: Store, address: int) -> None:
    """Once for each pin(), before the store closes."""
    with _lock:
        table, device = store.arena_users.pop()
        if not store.arena_users:
            table.unpin(device, address)
