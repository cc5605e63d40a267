# SPDX-License-Identifier: MIT
# spillway/_on_device.py - what autograd saves on a device: from the hooks to _device.py and back
"""All of the hooks that a model without tensors on a device does without. What is checked here
of a tensor is what the hooks in C check of one in host memory."""
from __future__ import annotations

import errno
import itertools
import logging
import threading
import time
import weakref
from ctypes import byref, c_uint64
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set, Tuple

import torch
from torch import Tensor, nn

from ._library import Copy, Offer, SpillwayError, Taken, blocking, check, fast
from ._tensors import COUNTED, NOTHING, counted_by, on, plain, raise_modified
from ._torch_compat import WeakStorage, storage_of
from .cache import Cache

if TYPE_CHECKING:  # imported only for a model that has tensors on a device
    from ._device import Port
    from ._session import Session

_log = logging.getLogger("spillway")

SPILLED = ("cpu", "cuda")  # devices whose tensors spill
_PRUNE_MIN = 1024  # storages in mind before those that are gone are forgotten
_DRAIN_MAX = 64
_HINT_NONE, _HINT_PIN = 0, 3
_KEEP, _DEDUP, _COPY, _COPY_AGAIN = 0, 2, 3, 4  # what became of an offer
_KEYS = 1 << 63  # storages in host memory have lower keys


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
        """What was read back, as it is handed out: with the same counter, for the next use may
        get the same memory."""
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
        """Whether a tensor of this storage that has version ``number`` now still has the same
        content."""
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
    """A saved tensor of a device that the cache knows: its id, and its shape."""

    def __init__(
        self, session: "Session", version: _Version, tensor: Tensor, conj: bool, neg: bool
    ) -> None:
        self.session = session
        self.version = version
        self.device = tensor.device
        self.id = 0  # set when the cache has it
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
        # What was handed out last, as long as this may be used again. What autograd alone has it
        # changes in place, so as to add gradients: one of these may be what was saved.
        self.borrowed: Optional[Tensor] = None

    def is_kept(self, tensor: Tensor, storage_length: int) -> bool:
        """No elements, or not all of them there; or what must stay the tensor that it is: a part
        of a storage that is no view, views of one, and what is no view and has no dimensions."""
        if not 0 < self.length <= storage_length - self.offset:
            return True
        base = tensor._base
        if base is None:
            return self.length < storage_length or not self.size
        return self.length < storage_length and base.numel() * base.element_size() < storage_length

    def unpack(self) -> Tensor:
        """The hook."""
        session, began = self.session, time.perf_counter_ns()
        assert session.device is not None
        session.unpacked = True
        base, start = session.device.load(self)
        view = self.version.lend(base)
        tensor = on(
            view, self.dtype, self.size, self.stride, self.offset - start, self.conj, self.neg
        )
        self.version.check(tensor)
        self.borrowed = tensor
        session.trace("use", began, self)
        return tensor


class _Owner:
    """Memory of a device that the cache may still have copied, or handed out: held until its token
    is back."""

    __slots__ = ("tensor", "version", "produced")

    def __init__(self, tensor: Tensor, version: _Version, produced: Any) -> None:
        self.tensor = tensor
        self.version = version
        self.produced = produced  # the event after what computed it


class _Users:
    """The saved tensors that are one entry of the cache."""

    __slots__ = ("count", "unused", "base", "arrived", "begin")

    def __init__(self) -> None:
        self.count = 0
        self.unused = 0  # that did not use it yet, if each does once
        # On the device again, until the last use or as long as there are several users.
        self.base: Optional[Tensor] = None
        self.arrived: Any = None
        self.begin = 0  # in the storage


class _End(weakref.ref):
    """The end of a saved tensor, noted in a list (by a list's own append) and seen to later: an
    exception of Ctrl-C that came in a finaliser would be lost."""

    __slots__ = ("id",)
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    id: int


class DeviceTensors:
    """Tensors of devices, as a session sees them. Any thread may save and load: autograd has one
    per device for the backward pass."""

    def __init__(self, port: "Port", cache: Cache) -> None:
        self.port = port
        self._cache = cache
        self._lock = threading.Lock()  # not held while a take waits
        self._records: Dict[int, _Record] = {}  # of storages, by their identity
        self._prune_at = _PRUNE_MIN
        self._serial = itertools.count(1)
        self._owners: Dict[int, _Owner] = {}
        self._users: Dict[int, _Users] = {}
        self._ends: Set[_End] = set()
        self._ended: List[_End] = []

    def has(self, tensor: Tensor) -> bool:
        """Whether it is one of a device."""
        return bool(self.port.table.is_device(tensor))

    def save(self, session: "Session", tensor: Tensor) -> Optional[SavedOnDevice]:
        """None: the caller keeps it."""
        if self.port.table.capturing() or _passes_by(session, tensor):
            return None
        try:
            storage = storage_of(tensor)
        except (RuntimeError, NotImplementedError):  # a tensor of vmap has none
            return None
        if storage._cdata in session.excluded:
            return None
        with self._lock:
            self._go_on()
            version, key = self._version_of(tensor, storage, session.steps)
            conj, neg = tensor.dtype.is_complex and tensor.is_conj(), tensor.is_neg()
            held = plain(tensor, conj, neg)
            saved = SavedOnDevice(session, version, held, conj, neg)
            if saved.is_kept(tensor, storage.nbytes()):
                return None
            token = next(self._serial)
            address, total = storage.data_ptr(), storage.nbytes()
            offer = Offer(key, version.epoch, address, total, saved.offset, saved.length, token)
            hint = _HINT_PIN if session.excluding else _HINT_NONE
            result = self._cache.call(self._offer, offer, hint, saved, held, version)
            if result < 0:
                return None
            if result != _KEEP:
                version.watch(held)
            return saved

    def _version_of(self, tensor: Tensor, storage: Any, step: int) -> Tuple[_Version, int]:
        """And the storage's key."""
        record = self._records.get(storage._cdata)
        if record is None:
            if len(self._records) >= self._prune_at:
                self.prune()
            record = _Record(_KEYS + next(self._serial), storage)
            self._records[storage._cdata] = record
        return record.version_of(tensor, step), record.key

    def _offer(
        self,
        handle: int,
        offer: Offer,
        hint: int,
        saved: SavedOnDevice,
        held: Tensor,
        version: _Version,
    ) -> int:
        """The cache is not closed before this returns; but it may be about to."""
        table, number, copy = self.port.table, c_uint64(), Copy()
        produced = table.record(table.current_stream(held.device))
        # Before the call: it is held from when the cache has it.
        self._owners[offer.owner] = _Owner(held, version, produced)
        device, to_number, to_copy = self.port.number(held.device), byref(number), byref(copy)
        result: int = fast.spw_cache_offer_device(
            handle, byref(offer), device, hint, to_number, to_copy
        )
        if result in (_DEDUP, _COPY_AGAIN) or result < 0:
            del self._owners[offer.owner]
        if result < 0:
            return result
        self._note_user(saved, number.value)
        if result in (_COPY, _COPY_AGAIN):
            self._copy_out(handle, held, produced, copy, saved.id)
        self._finish_if_closing()
        return result

    def _note_user(self, saved: SavedOnDevice, number: int) -> None:
        saved.id = number
        users = self._users.setdefault(number, _Users())
        users.count += 1
        users.unused += 1
        end = _End(saved, self._ended.append)
        end.id = number
        self._ends.add(end)

    def _copy_out(self, handle: int, held: Tensor, produced: Any, copy: Copy, number: int) -> None:
        """A copy that cannot begin gives its staging memory back: the tensor stays where it is."""
        begin, length, staging = copy.offset_bytes, copy.len_bytes, copy.staging
        try:
            self.port.copy_out(held, produced, begin, length, staging, number)
        except BaseException as error:
            if not self.port.is_copying_out(number):
                fast.spw_cache_copied(handle, number, -errno.EIO)
            if not isinstance(error, RuntimeError):
                raise
            # Not the error itself, which holds it: a log may be kept.
            _log.warning("a tensor cannot be copied from its device: %s", str(error))

    def load(self, saved: SavedOnDevice) -> Tuple[Tensor, int]:
        """A tensor on the device, and where in the saved storage its own begins. The stream that
        computes now waits for the bytes.

        :raises SpillwayError: the drive failed, or the cache is closed
        """
        table = self.port.table
        with self._lock:
            self._cache.handle
            self._go_on()
            users = self._users[saved.id]
            users.unused -= users.unused > 0
            if users.base is not None:
                base, consumer = users.base, table.current_stream(saved.device)
                table.wait(consumer, users.arrived)
                table.keep(base, consumer)
                if users.count <= 1:
                    users.base = users.arrived = None
                return base, users.begin
        return self._cache.call(self._take, saved, users)  # type: ignore[no-any-return]

    def _take(self, handle: int, saved: SavedOnDevice, users: _Users) -> Tuple[Tensor, int]:
        """As _offer()."""
        taken, table = Taken(), self.port.table
        try:
            part = saved.offset, saved.length
            check(blocking.spw_cache_take(handle, saved.id, *part, byref(taken)))
            with self._lock:
                consumer = table.current_stream(saved.device)
                if not taken.bytes:
                    owner = self._owners[taken.owner]
                    if owner.tensor._version != owner.version.number:
                        owner.version.modified = True
                    table.wait(consumer, owner.produced)
                    table.keep(owner.tensor, consumer)
                    return owner.tensor, 0
                before, length = taken.storage_bytes_before, taken.storage_bytes_total
                begin, address = saved.offset - before, taken.bytes - before
                base, arrived = self.port.copy_in(saved.device, address, length, taken.lease)
                taken.lease = 0
                table.wait(consumer, arrived)
                if users.count > 1:
                    users.base, users.arrived, users.begin = base, arrived, begin
                self._finish_if_closing()
                return base, begin
        finally:
            if taken.lease:  # nothing is copied from there
                fast.spw_cache_return(handle, taken.lease)

    def progress(self) -> None:
        """Go on with what can go on. Not if somebody does: it may be this thread, that runs the
        handler of a signal."""
        if self._lock.acquire(blocking=False):
            try:
                self._go_on()
            finally:
                self._lock.release()

    def _go_on(self) -> None:
        if not self._cache.closed:
            try:
                self._cache.call(self._tell)
            except SpillwayError:  # closed by another thread since
                pass

    def _tell(self, handle: int) -> None:
        """The cache hears what has ended, and memory is let go that it needs no longer."""
        copied, returned = self.port.ended()
        for number, result in copied:
            fast.spw_cache_copied(handle, number, result)
        for number, _ in returned:
            fast.spw_cache_return(handle, number)
        while self._ended:
            end = self._ended.pop()
            self._ends.discard(end)
            self._end_user(handle, end.id)
        count = _DRAIN_MAX
        tokens = (c_uint64 * _DRAIN_MAX)()
        while count == _DRAIN_MAX:
            count = fast.spw_cache_drain_device(handle, tokens, _DRAIN_MAX)
            for token in tokens[:count]:
                del self._owners[token]

    def _end_user(self, handle: int, number: int) -> None:
        users = self._users[number]
        users.count -= 1
        users.unused = min(users.unused, users.count)
        if users.count <= 1 and not users.unused:
            users.base = users.arrived = None
        if not users.count:
            del self._users[number]
        fast.spw_cache_release(handle, number)

    def _finish_if_closing(self) -> None:
        if self._cache.closed:
            self.port.finish()

    def prune(self) -> None:
        """Forget storages that are gone: nobody can save them again, and keys are never reused."""
        self._records = {
            address: record
            for address, record in self._records.items()
            if not record.weak.expired()
        }
        self._prune_at = max(_PRUNE_MIN, 2 * len(self._records))

    def known(self) -> int:
        """How many storages, saved tensors and tokens are kept in mind."""
        return len(self._records) + len(self._ends) + len(self._owners)

    def part(self) -> None:
        """The cache is about to close: copies from and to its memory end first."""
        with self._lock:
            self.port.finish()

    def forget(self) -> None:
        """The cache is closed."""
        for things in (self._records, self._owners, self._users, self._ends, self._ended):
            things.clear()  # type: ignore[attr-defined]
        self.port.unpin()


def _passes_by(session: "Session", tensor: Tensor) -> bool:
    if session.cache.forgotten:
        return True
    if (
        tensor.__class__ is not Tensor
        or tensor.layout is not torch.strided
        or tensor.is_nested
        or tensor.is_quantized
    ):
        return True
    if tensor.is_leaf and tensor.requires_grad:
        return True
    if tensor._base is not None and tensor._base.__class__ is not Tensor:
        # Part of a parameter, whose memory FSDP takes away and fills again behind everybody's back.
        return True
    # Transformer Engine's mark, which Megatron sets too.
    return hasattr(tensor, "_TE_do_not_offload")


def device_table(devices: Set[str]) -> Any:
    """The CUDA calls, for a model that has tensors on such a device."""
    if "cuda" not in devices:
        return None
    from ._cuda import Table

    return Table()


def device_tensors(model: nn.Module, cache: Cache, mode: str) -> Optional[DeviceTensors]:
    """For tensors of a GPU, if the model has any. Without it they are kept: training goes on as
    without spillway."""
    devices = {t.device.type for t in itertools.chain(model.parameters(), model.buffers())}
    if devices.difference(SPILLED):
        _log.warning(
            "the model is on %s: only what is saved in host memory and on CUDA devices spills; "
            "tensors of other devices are kept",
            " and ".join(sorted(devices)),
        )
    table = device_table(devices)
    if table is None:
        return None
    from ._device import Port

    try:
        return DeviceTensors(Port(table, None if mode == "observe" else cache.store), cache)
    except RuntimeError as error:
        _log.warning("no pinned memory: tensors on the GPU are kept there (%s)", error)
        return None
