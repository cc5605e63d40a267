# SPDX-License-Identifier: MIT
# spillway/_on_device.py - what autograd saves on a device: from the hooks to the way of its bytes (_device.py) and back
"""All of the hooks that a model without tensors on a device does without. What is checked here of a tensor is what the
hooks in C check of one in host memory."""
from __future__ import annotations

import itertools
import logging
import time
import weakref
from typing import TYPE_CHECKING, Any, Dict, Optional, Set

import torch
from torch import Tensor, nn

from ._library import SpillwayError
from ._tensors import COUNTED, NOTHING, counted_by, on, plain, raise_modified
from ._torch_compat import WeakStorage, storage_of
from .store import Store

if TYPE_CHECKING:  # imported only for a model that has tensors on a device
    from ._device import DevicePath, Entry
    from ._session import Session

_log = logging.getLogger("spillway")

SPILLED = ("cpu", "cuda")  # devices whose tensors spill
_PRUNE_MIN = 1024  # storages in mind before those that are gone are forgotten
_MIN_BYTES = 64 << 10  # smaller tensors are kept, as the cache does by default


class _Version:
    """One content of one storage: what all tensors saved from it have in common."""

    __slots__ = ("number", "epoch", "step", "modified", "witness", "counter")

    def __init__(self, tensor: Tensor, number: int, epoch: int, step: int) -> None:
        self.number = number  # the tensor's version counter when it was saved
        self.epoch = epoch
        self.step = step  # when it was saved first
        self.modified = False  # changed in place while its bytes were not yet safe
        self.witness = weakref.ref(tensor)  # shares the version counter with all others
        # A tensor that shares it too and has no memory: of what may leave the device.
        self.counter: Optional[Tensor] = None

    def watch(self, tensor: Tensor) -> None:
        """From now on it is seen for good when the content, which ``tensor`` has, is modified."""
        if self.counter is None:
            self.counter = counted_by(tensor, NOTHING)

    def lend(self, memory: Tensor) -> Tensor:
        """What was read back, as it is handed out: with the same counter, for the next use may get the same memory."""
        return memory if self.counter is None or COUNTED else counted_by(self.counter, memory)

    def _now(self) -> int:
        witness = self.witness() if self.counter is None else self.counter
        return self.number if witness is None else witness._version

    def check(self, shown: Tensor) -> None:
        """
        :param shown: a tensor of this use, for the words
        """
        now = self._now()
        if self.modified or now != self.number:
            raise_modified(shown, now, self.number)

    def current(self, number: int) -> bool:
        """Whether a tensor of this storage that has version ``number`` now still has the same content."""
        return number == self.number == self._now() and not self.modified


class _Record:
    """A storage that is or was alive, by its identity."""

    __slots__ = ("key", "weak", "version", "epochs")

    def __init__(self, key: int, storage: Any) -> None:
        self.key = key
        self.weak = WeakStorage(storage)
        self.version: Optional[_Version] = None
        self.epochs = 0

    def version_of(self, tensor: Tensor, step: int) -> _Version:
        """In each step another one, as in host memory."""
        number = tensor._version
        version = self.version
        if version is None or version.step != step or not version.current(number):
            version = self.version = _Version(tensor, number, self.epochs, step)
            self.epochs += 1
        return version


class SavedOnDevice:
    """A saved tensor of a device: its shape, and where its bytes are."""

    id = 0  # it has none of the cache

    def __init__(self, session: "Session", version: _Version, tensor: Tensor, conj: bool, neg: bool) -> None:
        self.session = session
        self.version = version
        self.entry: Optional["Entry"] = None
        self.dtype = tensor.dtype
        self.size = size = tensor.size()
        self.stride = stride = tensor.stride()
        itemsize = tensor.element_size()
        self.offset = tensor.storage_offset() * itemsize
        if tensor.is_contiguous():
            self.length = tensor.numel() * itemsize
        else:
            self.length = (1 + sum((n - 1) * step for n, step in zip(size, stride))) * itemsize
        self.conj = conj
        self.neg = neg
        # What was handed out last, as long as this may be used again. What autograd alone has it changes in place, so as to
        # add gradients: one of these may be what was saved.
        self.borrowed: Optional[Tensor] = None

    def is_kept(self, tensor: Tensor, storage_length: int) -> bool:
        """No elements, or not all of them there; or what must stay the tensor that it is: a part of a storage that is no
        view, views of one, and what is no view and has no dimensions."""
        if not 0 < self.length <= storage_length - self.offset:
            return True
        base = tensor._base
        if base is None:
            return self.length < storage_length or not self.size
        return self.length < storage_length and base.numel() * base.element_size() < storage_length

    def unpack(self) -> Tensor:
        """The hook."""
        session, began = self.session, time.perf_counter_ns()
        assert session.device is not None and self.entry is not None
        session.unpacked = True
        base, start = session.device.path.load(self.entry)
        lent = self.version.lend(base)
        tensor = on(lent, self.dtype, self.size, self.stride, self.offset - start, self.conj, self.neg)
        self.version.check(tensor)
        self.borrowed = tensor
        session.trace("use", began, self)
        return tensor


class DeviceTensors:
    """Tensors of a device, as a session sees them."""

    def __init__(self, path: "DevicePath") -> None:
        self.path = path
        self._records: Dict[int, _Record] = {}  # of storages, by their identity
        self._prune_at = _PRUNE_MIN
        self._serial = itertools.count(1)

    def has(self, tensor: Tensor) -> bool:
        """Whether it is one of the device."""
        return bool(self.path.table.is_device(tensor))

    def save(self, session: "Session", tensor: Tensor) -> Optional[SavedOnDevice]:
        """None: the caller keeps it."""
        if _passes_by(session, tensor):
            return None
        try:
            storage = storage_of(tensor)
        except (RuntimeError, NotImplementedError):  # a tensor of vmap has none
            return None
        if storage._cdata in session.excluded:
            return None
        record = self._records.get(storage._cdata)
        if record is None:
            if len(self._records) >= self._prune_at:
                self.prune()
            record = self._records[storage._cdata] = _Record(next(self._serial), storage)
        version = record.version_of(tensor, session.steps)
        conj, neg = tensor.dtype.is_complex and tensor.is_conj(), tensor.is_neg()
        held = plain(tensor, conj, neg)
        saved = SavedOnDevice(session, version, held, conj, neg)
        if saved.is_kept(tensor, storage.nbytes()):
            return None
        entry = self.path.save(held, (record.key, version.epoch), version, saved.offset, saved.length, saved)
        if entry is None:
            return None
        if not entry.kept:
            version.watch(held)
        saved.entry = entry
        return saved

    def prune(self) -> None:
        """Forget storages that are gone: nobody can save them again, and keys are never reused."""
        self._records = {address: record for address, record in self._records.items() if not record.weak.expired()}
        self._prune_at = max(_PRUNE_MIN, 2 * len(self._records))

    def known(self) -> int:
        """How many storages are kept in mind."""
        return len(self._records)

    def forget(self) -> None:
        """Nothing is saved any more."""
        self._records.clear()


def _passes_by(session: "Session", tensor: Tensor) -> bool:
    if session.excluding or session.cache.forgotten:
        return True
    if tensor.__class__ is not Tensor or tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return True
    if tensor.is_leaf and tensor.requires_grad:
        return True
    if tensor._base is not None and tensor._base.__class__ is not Tensor:
        return True  # part of a parameter, whose memory FSDP takes away and fills again behind everybody's back
    return hasattr(tensor, "_TE_do_not_offload")  # Transformer Engine's mark, which Megatron sets too


def device_table(devices: Set[str]) -> Any:
    """The CUDA calls, for a model that has tensors on such a device."""
    if "cuda" not in devices:
        return None
    from ._cuda import Table

    return Table()


def device_tensors(
    model: nn.Module, store: Optional[Store], mode: str, min_bytes: Optional[int], budget_bytes: Optional[int]
) -> Optional[DeviceTensors]:
    """For tensors of a GPU, if the model has any. Without it they are kept: training goes on as without spillway."""
    devices = {t.device.type for t in itertools.chain(model.parameters(), model.buffers())}
    if devices.difference(SPILLED):
        _log.warning(
            "the model is on %s: only what is saved in host memory and on CUDA devices spills; tensors of other devices "
            "are kept",
            " and ".join(sorted(devices)),
        )
    table = device_table(devices)
    if table is None or store is None or mode == "observe":
        return None
    from ._device import DevicePath, StoreTransfers
    from ._device_plan import DevicePlan

    plan, pinned_bytes = None, store.arena_bytes // 2
    if mode in ("fastest", "budget"):
        plan = DevicePlan(table, mode, budget_bytes or 0, pinned_bytes, store.chunk_bytes * len(store.drive_stats()))
    try:
        least = _MIN_BYTES if min_bytes is None else min_bytes
        return DeviceTensors(DevicePath(table, StoreTransfers(store), pinned_bytes, least, plan))
    except (SpillwayError, RuntimeError) as error:
        _log.warning("no pinned memory: tensors on the GPU are kept there (%s)", error)
        return None
