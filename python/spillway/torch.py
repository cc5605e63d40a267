# SPDX-License-Identifier: MIT
# spillway/torch.py - spills what autograd saves for the backward pass
"""PyTorch: training with less memory and the same numbers.

>>> with spillway.Store(drives) as store:
...     off = spillway.torch.offload(model, store)
...     for batch in batches:
...         with off:
...             loss = model(batch).mean()
...             loss.backward()
...         optimizer.step()

The model is not changed. Inside the context the tensors that autograd saves are offered to the tensor cache (in C: it
decides what is written, kept, read ahead and handed back); every tensor comes back bit for bit.

What passes by untouched: parameters, buffers, the arguments of the model's forward (and views of them), tensors that
are not plain dense tensors in host memory or on a CUDA device, and tensors without elements.

In-place modification. PyTorch raises in backward when a saved tensor was modified after it was saved, by whomever: also by
a backward pass that was handed it. So does this, wherever the bytes are. What PyTorch does not count (through .data,
through NumPy) is not seen by it either.

Errors. What goes wrong in the backward pass (a drive fails, the store was closed) is a SpillwayError; PyTorch 1.13
hands it on as a RuntimeError that has its text. Wrong bytes are never handed to autograd.
"""
from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
import os
import struct
import sys
import threading
import time
import weakref
from ctypes import byref, c_char, c_uint64
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, TextIO, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from . import _library, _native
from ._library import SpillwayError, blocking, fast
from ._steptrace import StepTrace
from ._torch_compat import SavedTensorsHooks, WeakStorage, in_backward, is_compiling, register_forward_pre_hook, storage_of
from .cache import HINT_NONE, HINT_PIN, OFFER_DEDUP, OFFER_SPILL, STAGE_BACKWARD, STAGE_FORWARD, Cache, CacheStats
from .report import DeviceStats, Progress, table_of
from .store import Path, Store

if TYPE_CHECKING:  # imported only for a model that has tensors on a device
    from ._device import DevicePath, Entry

__all__ = ["Offload", "offload"]

_log = logging.getLogger("spillway")
_DRAIN_MAX = 64
_DRAIN_CALLS = 4  # saving and using short tensors drains once in so many
_DRAIN_BYTES = 256 << 10  # what is short in this sense: draining costs a call into the library
_MIN_BYTES = 64 << 10  # smaller tensors of a GPU are kept; the cache has its own default, the same

Scopes = Union[None, Iterable[nn.Module], Callable[[str, nn.Module], bool]]
Exclude = Union[None, Iterable[Union[nn.Module, Tensor]], Callable[[str, nn.Module], bool]]
Stage = Tuple[int, str]  # a micro-batch, and "forward" or "backward"

_SPILLED = ("cpu", "cuda")  # devices whose tensors spill
_STAGES = {"forward": STAGE_FORWARD, "backward": STAGE_BACKWARD}


with torch.inference_mode(False):  # whatever this is imported in
    _NOTHING = torch.empty(0)


def _counted_by(counter: Tensor, memory: Tensor) -> Tensor:
    """A tensor with the version counter of one tensor, and with the memory, the type and the shape of another."""
    tensor = counter.detach()
    tensor.data = memory
    return tensor


def _autograd_counts() -> bool:
    """Whether autograd counts changes of what a hook hands out with those of what was saved, whatever was handed out: so up to
    PyTorch 2.4 (its issue 128611)."""
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, lambda packed: other)
    with torch.inference_mode(False), torch.enable_grad(), hooks:
        other = torch.zeros(1).add_(1)
        node = torch.zeros(1, requires_grad=True).sin().grad_fn
        return bool(node._saved_self._version != other._version)  # type: ignore[union-attr]


_COUNTED = _autograd_counts()


class _Version:
    """One content of one storage: what all tensors saved from it have in common."""

    __slots__ = ("number", "epoch", "step", "modified", "moved", "witness", "counter")

    def __init__(self, tensor: Tensor, number: int, epoch: int, step: int) -> None:
        self.number = number  # the tensor's version counter when it was saved
        self.epoch = epoch  # what the cache knows it by
        self.step = step  # when it was saved first
        self.modified = False  # changed in place while its bytes were not yet safe
        self.moved: Optional[Tensor] = None  # has the bytes, if their memory was changed for another meanwhile
        self.witness = weakref.ref(tensor)  # shares the version counter with all others
        # A tensor that shares it too and has no memory: of what may leave memory.
        self.counter: Optional[Tensor] = None

    def watch(self, tensor: Tensor) -> None:
        """From now on it is seen for good when the content, which ``tensor`` has, is modified."""
        if self.counter is None:
            self.counter = _counted_by(tensor, _NOTHING)

    def lend(self, memory: Tensor) -> Tensor:
        """What was read back, as it is handed out: with the same counter, for the next use may get the same memory."""
        return memory if self.counter is None or _COUNTED else _counted_by(self.counter, memory)

    def check(self, shown: Optional[Tensor] = None) -> None:
        """
        :param shown: a tensor of this use, for the words
        """
        witness = self.witness() if self.counter is None else self.counter
        now = self.number if witness is None else witness._version
        if self.modified or now != self.number:
            _raise_modified(shown, now, self.number)

    def current(self, number: int) -> bool:
        """Whether a tensor of this storage that has version ``number`` now still has the same content."""
        if number != self.number or self.modified:
            return False
        witness = self.witness() if self.counter is None else self.counter
        return witness is None or witness._version == number


def _raise_modified(tensor: Optional[Tensor], now: int, expected: int) -> None:
    if tensor is None:
        what = "it"
    elif tensor.is_nested:  # has no size of its own
        what = f"[{tensor.type()} {tensor._nested_tensor_size()}]"
    else:
        what = f"[{tensor.type()} {list(tensor.size())}]"
    raise RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation"
        f": {what} is at version {now}; expected version {expected} instead. "
        "Hint: use the out-of-place form of the operation that changed it after it was used."
    )


class _StorageRecord:
    """A storage that is or was alive, by its identity."""

    __slots__ = ("key", "weak", "version", "epochs")

    def __init__(self, key: int, storage: Any) -> None:
        self.key = key
        self.weak = WeakStorage(storage)
        self.version: Optional[_Version] = None
        self.epochs = 0

    def version_of(self, tensor: Tensor, step: int) -> _Version:
        """In each step another one: memory that is filled anew between steps in a way that PyTorch does not count, by NumPy
        perhaps, is not what a graph has that is left from before."""
        number = tensor._version
        version = self.version
        if version is None or version.step != step or not version.current(number):
            version = self.version = _Version(tensor, number, self.epochs, step)
            self.epochs += 1
        return version


class _Owner:
    """Memory that the cache may still read: held until the cache gives its token back."""

    __slots__ = ("tensor", "version", "record", "address")

    def __init__(self, tensor: Tensor, version: _Version, record: _StorageRecord, address: int) -> None:
        self.tensor = tensor
        self.version = version
        self.record = record
        self.address = address  # of the storage, as the cache has it

    def mark(self) -> None:
        """The cache needs the memory no longer. Whether it was modified while the cache still read it; or is another one: a
        tensor that is sent to another process, or resized, takes its bytes to other memory, and what it had may have been
        used by others before the cache read it."""
        if self.tensor._version != self.version.number:
            self.version.modified = True
        if storage_of(self.tensor).data_ptr() != self.address:
            self.version.moved = self.tensor
            if self.record.version is self.version:  # which else would hold its own storage
                self.record.version = None


class _Lease(c_char * (1 << 46)):  # type: ignore[misc]
    """Memory of the cache as a buffer that PyTorch can wrap. The length is a bound, not a size: only what is asked for
    is touched."""

    session: "_Session"  # outlives its memory
    last_use: Optional["_LastUse"]


class _LastUse:
    """Returns a lease when it is dropped: for memory that is still lent when the cache is to be closed."""

    def __init__(self, session: "_Session", lease: int) -> None:
        self._session, self._lease = session, lease

    def __del__(self) -> None:
        self._session.cache.return_lease(self._lease)


class _End(weakref.ref):
    """The end of an object, noted in a list (by a list's own append) and seen to at the next drain.

    Not by __del__: Python drops an exception there, and a Ctrl-C that comes in during a long operation is raised in the
    first Python code that runs after it, which often would be a finaliser.
    """

    __slots__ = ("number",)
    __hash__ = object.__hash__  # by identity, not by what is referred to: that may have no hash
    __eq__ = object.__eq__
    number: int


class _Kept:
    """A saved tensor that passes by the cache, checked as PyTorch would."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor if _is_parameter(tensor) else tensor.detach()
        self.version = tensor._version

    def unpack(self) -> Tensor:
        if self.tensor._version != self.version:
            _raise_modified(self.tensor, self.tensor._version, self.version)
        return self.tensor


def _is_parameter(tensor: Tensor) -> bool:
    """Held as it is: what is made its .data is used, and what was is let go, as DeepSpeed relies on. All else is held without
    its graph (an output that holds its own node would never be freed), which views have from what they are views of."""
    return tensor.is_leaf and (tensor.requires_grad or isinstance(tensor, nn.Parameter)) and tensor._base is None


class _Saved:
    """A saved tensor that the cache knows: its id, and its shape."""

    __slots__ = ("session", "id", "version", "dtype", "size", "stride", "offset", "itemsize", "length", "conj", "neg",
                 "borrowed", "__weakref__")

    def __init__(self, session: "_Session", version: _Version, tensor: Tensor, conj: bool, neg: bool) -> None:
        self.session = session
        self.version = version
        self.dtype = tensor.dtype
        self.size = size = tensor.size()
        self.stride = stride = tensor.stride()
        self.itemsize = itemsize = tensor.element_size()
        self.offset = tensor.storage_offset() * itemsize
        if tensor.is_contiguous():
            self.length = tensor.numel() * itemsize
        else:
            self.length = (1 + sum((n - 1) * step for n, step in zip(size, stride))) * itemsize
        self.conj = conj
        self.neg = neg
        self.id = 0  # set when the cache has it
        # What was handed out last, as long as this may be used again. What autograd alone has it changes in place, so as to
        # add gradients: one of these may be what was saved.
        self.borrowed: Optional[Tensor] = None

    def lies_in(self, storage_length: int) -> bool:
        """It has elements, and all of them are there."""
        return 0 < self.length and self.offset + self.length <= storage_length

    def is_kept_as_it_is(self, tensor: Tensor, storage_length: int) -> bool:
        """What must stay the tensor that it is. A part of a storage that is no view, as the gates of nn.LSTM are, and views of
        one: the rest changes in place, during the write perhaps, and no version counter that we could look at tells. And what
        is no view and has no dimensions, and so is a number of Python perhaps: its type yields to that of others, that of a
        copy does not."""
        base = tensor._base
        if base is None:
            return self.length < storage_length or not self.size
        return self.length < storage_length and base.numel() * base.element_size() < storage_length

    def unpack(self) -> Tensor:
        return self.session.unpack(self)

    def on(self, base: Tensor, storage_offset: int) -> Tensor:
        """This tensor on the memory of another one, whose storage begins ``storage_offset`` bytes after this one's."""
        offset = (self.offset - storage_offset) // self.itemsize
        if base.dtype is self.dtype:
            tensor = base.as_strided(self.size, self.stride, offset)
        else:
            tensor = _of_type(base, self.dtype, offset, self.size, self.stride)
        return self._flagged(tensor)

    def on_bytes(self, lease: _Lease, offset: int) -> Tensor:
        """This tensor on any address; for storages that do not begin at a multiple of the element."""
        elements = self.length // self.itemsize
        flat = self.version.lend(torch.frombuffer(lease, dtype=self.dtype, count=elements, offset=offset))
        return self._flagged(flat.as_strided(self.size, self.stride, 0))

    def _flagged(self, tensor: Tensor) -> Tensor:
        if self.conj:
            tensor = tensor.conj()
        if self.neg:
            tensor = torch._neg_view(tensor)
        return tensor


class _SavedOnDevice(_Saved):
    """A saved tensor of a GPU."""

    __slots__ = ("entry",)
    entry: "Entry"

    def unpack(self) -> Tensor:
        return self.session.unpack_on_device(self)


class _Session:
    """What outlives the context: the cache, the memory it may read, the memory it lent. Every saved tensor holds it."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.device: Optional["DevicePath"] = None  # for tensors of a GPU, where the model has any
        self.excluded: Set[int] = set()
        self.excluding = 0  # modules that are excluded and run now
        self.tracer: Optional[StepTrace] = None
        self.unpacked = False  # a backward pass has been seen since this was last cleared
        self.steps = 0
        self._owners: Dict[int, _Owner] = {}
        self._storages: Dict[int, _StorageRecord] = {}
        self._prune_at = 1024
        self._serial = itertools.count(1)
        # Structs ready for use, and pointers to them; a list is a thread-safe stack.
        self._offers: List[Tuple[Any, Any, Any, Any]] = []
        self._takes: List[Tuple[Any, Any]] = []
        self._undrained = 0  # tensors saved since the last drain
        self._drain_lock = threading.RLock()  # the handler of a signal may come in, and ask for counters
        self._drained = (c_uint64 * _DRAIN_MAX)()
        self._ends: Set[_End] = set()  # of saved tensors and leases that are alive
        self._ended: List[_End] = []  # saved tensors that are gone
        self._returned: List[_End] = []  # leases that are gone
        cache.before_close = weakref.WeakMethod(self._part_with_leases)
        cache.after_close = weakref.WeakMethod(self._forget_owners)

    def pack(self, tensor: Tensor) -> Any:
        if tensor.__class__ is not Tensor or tensor.layout is not torch.strided or tensor.is_nested:
            return _Kept(tensor)
        on_device = self.device is not None and self.device.table.is_device(tensor)
        if not (on_device or tensor.is_cpu):
            return _Kept(tensor)
        try:
            storage = storage_of(tensor)
        except (RuntimeError, NotImplementedError):  # a tensor of vmap has none
            return _Kept(tensor)
        if storage._cdata in self.excluded or tensor.is_quantized or (tensor.is_leaf and tensor.requires_grad):
            return _Kept(tensor)
        if tensor._base is not None and tensor._base.__class__ is not Tensor:
            return _Kept(tensor)  # part of a parameter, whose memory FSDP takes away and fills again behind everybody's back
        if hasattr(tensor, "_TE_do_not_offload"):  # Transformer Engine's mark, which Megatron sets too
            return _Kept(tensor)
        began = time.perf_counter_ns() if self.tracer is not None else 0
        saved = self._offer_on_device(tensor, storage) if on_device else self._offer(tensor, storage)
        self._drain_after(_DRAIN_BYTES + 1 if saved is None else saved.length)
        if began:
            self._trace("save", began, storage.nbytes() if saved is None else saved.length, saved)
        return _Kept(tensor) if saved is None else saved

    def _trace(self, what: str, began: int, length: int, saved: Optional[_Saved]) -> None:
        tracer, handle = self.tracer, self.cache._handle
        if tracer is not None and handle is not None:
            tracer.tensor(what, began, length, 0 if saved is None else saved.id, self.cache.stats())

    def _record(self, storage: Any) -> _StorageRecord:
        record = self._storages.get(storage._cdata)
        if record is None:
            if len(self._storages) >= self._prune_at:
                self.prune()
            record = self._storages[storage._cdata] = _StorageRecord(next(self._serial), storage)
        return record

    def prune(self) -> None:
        """Forget storages that are gone: nobody can offer them again, and serial keys are never reused."""
        self._storages = {address: record for address, record in self._storages.items() if not record.weak.expired()}
        self._prune_at = max(1024, 2 * len(self._storages))

    def _offer(self, tensor: Tensor, storage: Any) -> Optional[_Saved]:
        """The tensor as the cache knows it; None: the caller keeps it."""
        cache = self.cache
        if cache.closed:
            if cache.forgotten:
                return None
            cache.handle  # which raises
        if self._ended:  # this is no duplicate of what nobody has any more
            self.drain()
        record = self._record(storage)
        version = record.version_of(tensor, self.steps)
        held, conj, neg = _plain(tensor)
        saved = _Saved(self, version, held, conj, neg)
        storage_length = storage.nbytes()
        if not saved.lies_in(storage_length) or saved.is_kept_as_it_is(tensor, storage_length):
            return None
        token = next(self._serial)
        structs = self._offers.pop() if self._offers else _offer_structs()
        bytes_, to_offer, number, to_number = structs
        address = storage.data_ptr()
        _pack_offer(bytes_, 0, record.key, version.epoch, address, storage_length, saved.offset, saved.length, token)
        # Before the call: another thread may drain the token before this one goes on.
        self._owners[token] = _Owner(held, version, record, address)
        try:
            result = cache.call(fast.spw_cache_offer_hint, to_offer, HINT_PIN if self.excluding else HINT_NONE, to_number)
        except SpillwayError:  # closed by another thread since
            self._owners.pop(token, None)
            raise
        if result < 0:
            del self._owners[token]
            return None
        if result == OFFER_DEDUP:
            self._owners.pop(token, None)
        elif result == OFFER_SPILL:
            version.watch(held)
        saved.id = number.value
        self._note_end(saved, self._ended, saved.id)
        self._offers.append(structs)
        return saved

    def _offer_on_device(self, tensor: Tensor, storage: Any) -> Optional[_Saved]:
        assert self.device is not None
        record = self._record(storage)
        version = record.version_of(tensor, self.steps)
        held, conj, neg = _plain(tensor)
        saved = _SavedOnDevice(self, version, held, conj, neg)
        if self.excluding or self.cache.forgotten or not saved.lies_in(storage.nbytes()):
            return None
        if saved.is_kept_as_it_is(tensor, storage.nbytes()):
            return None
        entry = self.device.save(held, (record.key, version.epoch), version, saved.offset, saved.length, saved)
        if entry is None:
            return None
        if not entry.kept:
            version.watch(held)
        saved.entry = entry
        return saved

    def unpack_on_device(self, saved: _SavedOnDevice) -> Tensor:
        assert self.device is not None
        self.unpacked = True
        began = time.perf_counter_ns() if self.tracer is not None else 0
        base, start = self.device.load(saved.entry)
        tensor = saved.on(saved.version.lend(base), start)
        saved.version.check(tensor)
        saved.borrowed = tensor
        if began:
            self._trace("use", began, saved.length, None)
        return tensor

    def unpack(self, saved: _Saved) -> Tensor:
        self.unpacked = True
        began = time.perf_counter_ns() if self.tracer is not None else 0
        tensor = None
        while tensor is None:
            address, token, lease, before, total = self._take(saved)
            if address:
                tensor = self._from_lease(saved, address - before, lease, before, total)
            else:
                tensor = self._from_owner(saved, token)
        self._drain_after(saved.length)
        if saved.version.moved is not None:
            tensor = saved.on(saved.version.moved, 0)
        saved.version.check(tensor)
        if self.cache._handle is not None:  # else closed meanwhile: its memory is to be given back
            saved.borrowed = tensor
        if began:
            self._trace("use", began, saved.length, saved)
        return tensor

    def _take(self, saved: _Saved) -> Tuple[int, int, int, int, int]:
        """The members of spw_taken. Begins a use of the cache, which ends here unless the bytes are lent."""
        cache = self.cache
        structs = self._takes.pop() if self._takes else _taken_structs()
        bytes_, to_taken = structs
        bytes_[_LEASE] = _NO_LEASE
        cache.begin_use()
        try:
            handle = cache._handle or cache.handle
            result = blocking.spw_cache_take(handle, saved.id, saved.offset, saved.length, to_taken)
        except BaseException:  # Ctrl-C meanwhile is raised when the bytes are lent
            lease = _unpack_taken(bytes_)[2]
            if lease:
                cache.return_lease(lease)
            else:
                cache.end_use()
            raise
        if result < 0:
            error = _library.error_of(result)
            cache.end_use()
            # Memory that was modified during its write fails its checksum: the modification is the fault, not the drive.
            self.drain()
            saved.version.check()
            if saved.version.moved is not None:  # so may memory that was not the tensor's any more, which has the bytes
                return 0, 0, 0, 0, 0
            try:
                raise error
            finally:
                del error  # else it would hold itself, by its traceback, and what was saved
        taken = _unpack_taken(bytes_)
        self._takes.append(structs)
        if not taken[0]:
            cache.end_use()
        return taken  # type: ignore[return-value]

    def _from_owner(self, saved: _Saved, token: int) -> Optional[Tensor]:
        """None: another thread drained the token since; the next take reads the bytes."""
        if saved.version.moved is not None:
            return saved.on(saved.version.moved, 0)
        owner = self._owners.get(token)
        if owner is None:
            return None
        if owner.tensor._version != owner.version.number:
            saved.version.modified = True
        return saved.on(owner.tensor, 0)

    def _from_lease(self, saved: _Saved, address: int, number: int, before: int, total: int) -> Tensor:
        """The use begun by _take() ends with the last tensor on the lease's memory, which begins at ``address``."""
        lease = _Lease.from_address(address)
        lease.session = self
        self._note_end(lease, self._returned, number)
        if self.cache._handle is None:  # closed by another thread since: nobody looks at the list any more
            self._part_with_leases()
        itemsize = saved.itemsize
        if before % itemsize:
            return saved.on_bytes(lease, before)
        if total % itemsize:
            base = torch.frombuffer(lease, dtype=torch.uint8, count=total)
        else:
            base = torch.frombuffer(lease, dtype=saved.dtype, count=total // itemsize)
        return saved.on(saved.version.lend(base), saved.offset - before)

    def _note_end(self, thing: Any, ended: List[_End], number: int) -> None:
        end = _End(thing, ended.append)
        end.number = number
        self._ends.add(end)

    def _drain_after(self, length: int) -> None:
        """After short tensors were saved or used it is time for a drain now and then only.

        Returns when no thread is about to note that memory was modified during its write, with whose token it came.
        """
        self._undrained += 1
        if length > _DRAIN_BYTES or self._undrained >= _DRAIN_CALLS:
            self.drain()
        else:
            with self._drain_lock:
                pass

    def drain(self) -> None:
        """Tell the cache what is used no longer, and let go of the memory that it needs no longer."""
        self._undrained = 0
        if self.cache._handle is not None:
            with self._drain_lock:
                handle = self.cache._handle  # asked for with the lock held: it is valid until _part_with_leases() gets that
                if handle is not None:
                    self._tell_ends(handle)
                    self._drop_owners(handle)

    def _tell_ends(self, handle: int) -> None:
        while self._returned:
            end = self._returned.pop()
            self._ends.discard(end)
            self.cache.return_lease(end.number)
        while self._ended:
            end = self._ended.pop()
            self._ends.discard(end)
            fast.spw_cache_release(handle, end.number)

    def _drop_owners(self, handle: int) -> None:
        count = _DRAIN_MAX
        while count == _DRAIN_MAX:
            count = fast.spw_cache_drain(handle, self._drained, _DRAIN_MAX)
            for token in self._drained[:count] if count > 0 else ():
                self._owners.pop(token).mark()

    def _part_with_leases(self) -> None:
        """The cache closes: from now on the end of a lease is told at once, and the last one lets the cache close."""
        with self._drain_lock:
            for end in list(self._ends):  # other threads may note some meanwhile
                saved = end()
                if isinstance(saved, _Saved):
                    saved.borrowed = None
            while self._returned:
                self.cache.return_lease(self._returned.pop().number)
            for end in list(self._ends):
                thing = end()
                if isinstance(thing, _Lease):
                    thing.last_use = _LastUse(self, end.number)
            self._ends.clear()
            self._ended.clear()

    def _forget_owners(self) -> None:
        """The cache is closed and reads no memory any more."""
        self._owners.clear()
        self._storages.clear()

    def held(self) -> int:
        """How much memory is held because the cache may read it."""
        return len(self._owners)

    def known(self) -> int:
        """How many storages, saved tensors and leases are kept in mind."""
        return len(self._storages) + len(self._ends) + len(self._ended) + len(self._returned)

    def close(self) -> None:
        if self.device is not None:
            self.device.close()
        self._part_with_leases()  # the cache's own call does not come any more when both are garbage
        self.cache.close()

    def __del__(self) -> None:
        self.close()


def _plain_with(tensor: Tensor, conj: bool, neg: bool) -> Tensor:
    """The tensor without its graph and without the flags that it has."""
    held = tensor.detach()
    if neg:
        held = torch._neg_view(held)
    return held.conj() if conj else held


def _flagged(tensor: Tensor, conj: bool, neg: bool) -> Tensor:
    if conj:
        tensor = tensor.conj()
    return torch._neg_view(tensor) if neg else tensor


def _on(held: Tensor, dtype: torch.dtype, size: Any, stride: Any, offset_bytes: int, conj: bool, neg: bool) -> Tensor:
    """A tensor of any type on the storage of another one."""
    itemsize = torch.empty(0, dtype=dtype).element_size()
    return _flagged(_of_type(held, dtype, offset_bytes // itemsize, size, stride), conj, neg)


def _of_type(base: Tensor, dtype: torch.dtype, offset: int, size: Any, stride: Any) -> Tensor:
    """A tensor of any type on the storage of another one, with whose changes it counts its own."""
    empty = torch.empty(0, dtype=dtype, device=base.device)
    return _counted_by(base, empty.set_(storage_of(base), offset, size, stride))


# The hooks in C, or None.
_hooks = _native.load({
    "plain": _plain_with, "flagged": _flagged, "on": _on, "raise_modified": _raise_modified, "nothing": _NOTHING,
    "counted": _COUNTED,
})


class _FastSession(*(() if _hooks is None else (_hooks.Session,)), _Session):  # type: ignore[misc]
    """A session whose hooks are in C, for plain tensors in host memory."""

    def _pack_watched(self, tensor: Tensor) -> Any:
        """With a recording, or for a model that has tensors on a device."""
        if self.device is not None and self.device.table.is_device(tensor):
            return _Session.pack(self, tensor)
        began = time.perf_counter_ns()
        packed = self.save(tensor)
        if self.tracer is not None and isinstance(packed, _hooks.Saved):
            self._trace("save", began, packed.length, packed)
        return packed

    def _use_watched(self, saved: Any) -> Tensor:
        began = time.perf_counter_ns()
        tensor = self.use(saved)
        if self.tracer is not None:
            self._trace("use", began, saved.length, saved)
        return tensor

    @staticmethod
    def _error_of(result: int) -> SpillwayError:
        return _library.error_of(result)

    def prune(self) -> None:
        """Forget storages that are gone: nobody can offer them again, and serial keys are never reused."""
        _Session.prune(self)  # of a device
        _hooks.Session.prune(self)

    def held(self) -> int:
        """How much memory is held because the cache may read it."""
        return self.counts()[0]

    def known(self) -> int:
        """How many storages are kept in mind."""
        return _Session.known(self) + self.counts()[1]

    def _part_with_leases(self) -> None:
        """Those who use them count themselves."""
        self.part()

    def _forget_owners(self) -> None:
        _Session._forget_owners(self)
        self.forget()


# Structs as bytes: setting and reading their members one by one takes longer than the call.
_pack_offer = struct.Struct("=QQQQQQQ").pack_into
_unpack_taken = struct.Struct("=QQQQQ").unpack
_LEASE, _NO_LEASE = slice(16, 24), bytes(8)


def _offer_structs() -> Tuple[Any, Any, Any, Any]:
    """A spw_offer, as bytes and as a pointer; an id and a pointer to it."""
    held, number = bytearray(ctypes.sizeof(_library.Offer)), c_uint64()
    return held, byref(_library.Offer.from_buffer(held)), number, byref(number)


def _taken_structs() -> Tuple[Any, Any]:
    """A spw_taken, as bytes and as a pointer."""
    held = bytearray(ctypes.sizeof(_library.Taken))
    return held, byref(_library.Taken.from_buffer(held))


def _plain(tensor: Tensor) -> Tuple[Tensor, bool, bool]:
    """The tensor without its graph and without the flags for conjugate and negative, and the flags."""
    held = tensor.detach()
    conj, neg = tensor.dtype.is_complex and tensor.is_conj(), tensor.is_neg()
    if neg:
        held = torch._neg_view(held)
    if conj:
        held = held.conj()
    return held, conj, neg


def _unpack(packed: Any) -> Tensor:
    return packed.unpack()


def _tensors_in(thing: Any, depth: int = 4) -> Iterable[Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(thing, Tensor):
        yield thing
    elif depth and isinstance(thing, (tuple, list)):
        for item in thing:
            yield from _tensors_in(item, depth - 1)
    elif depth and isinstance(thing, dict):
        for item in thing.values():
            yield from _tensors_in(item, depth - 1)


def _identities(tensors: Iterable[Tensor]) -> Set[int]:
    found = set()
    for tensor in tensors:
        if not is_lazy(tensor) and tensor.layout is torch.strided and tensor.device.type in _SPILLED and not tensor.is_nested:
            try:
                found.add(storage_of(tensor)._cdata)
            except (RuntimeError, NotImplementedError):  # a tensor of vmap has none
                pass
    return found


class _Hook:
    """A function that a module calls. The copy of a module, or one that was saved and loaded, calls one that does nothing; so do
    modules inside of what torch.compile makes one piece of, that has no layers any more."""

    __slots__ = ("_method", "_given")

    def __init__(self, method: Callable[..., None], *given: Any) -> None:
        self._method = weakref.WeakMethod(method)  # whoever has the hooks keeps what they belong to for no longer
        self._given = given

    def __call__(self, *arguments: Any) -> None:
        if not is_compiling():
            method = self._method()
            if method is not None:
                method(*self._given, *arguments)

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, (nn.ModuleList, nn.Sequential))


def layers_of(model: nn.Module) -> List[nn.Module]:
    """The layers of a model: the children of its outermost ModuleLists and Sequentials, in order; none lies inside
    another."""
    layers: List[nn.Module] = []
    seen: Set[int] = set()

    def visit(module: nn.Module, inside: bool) -> None:
        for child in module.children():
            if _is_container(child):
                visit(child, True)
            elif not inside:
                visit(child, False)
            elif id(child) not in seen and not isinstance(child, torch.jit.ScriptModule):  # which takes no hooks
                seen.add(id(child))
                layers.append(child)

    visit(model, _is_container(model))
    return layers


def _scopes_of(model: nn.Module, scopes: Scopes) -> List[nn.Module]:
    if scopes is None:
        return layers_of(model)
    if callable(scopes):
        return [module for name, module in model.named_modules() if scopes(name, module)]
    return list(scopes)


# The noise that it multiplies by is saved before it is drawn: only what stays where it is will be right.
_FILLS_LATER = nn.RReLU


def _excluded_of(model: nn.Module, exclude: Exclude) -> List[Union[nn.Module, Tensor]]:
    """What is excluded of the model as it is now."""
    fills_later = [module for module in model.modules() if isinstance(module, _FILLS_LATER)]
    return _excluded_by_user(model, exclude) + fills_later


def _excluded_by_user(model: nn.Module, exclude: Exclude) -> List[Union[nn.Module, Tensor]]:
    if exclude is None:
        return []
    if callable(exclude) and not isinstance(exclude, nn.Module):
        return [module for name, module in model.named_modules() if exclude(name, module)]
    things = [exclude] if isinstance(exclude, (nn.Module, Tensor)) else list(exclude)
    for thing in things:
        if not isinstance(thing, (nn.Module, Tensor)):
            raise TypeError(f"exclude takes modules and tensors, not {type(thing).__name__}")
    return things


_active = threading.local()


class Offload:
    """A context in which what autograd saves is spilled. Made by offload(); entered once per step, or once around a
    loop.

    Backward may run inside or after the context. A step begins with the first forward pass after a backward pass;
    programs that run several forward passes per step (gradient accumulation) say so by calling step() at the start of
    each.
    """

    def __init__(
        self,
        model: nn.Module,
        cache: Cache,
        scopes: List[nn.Module],
        exclude: Exclude = None,
        own_store: Optional[Store] = None,
        device: Optional["DevicePath"] = None,
        progress: Union[bool, TextIO] = False,
    ) -> None:
        self._model = model
        self._scopes = scopes
        self._exclude = exclude
        self._excluded_hooks = _Hook(self._excluded_enter), _Hook(self._excluded_leave)
        self._excluded_modules: Set[nn.Module] = set()  # that have them
        self._own_store = own_store
        self._drives_before = [] if cache.store is None else cache.store.drive_stats()  # others may have used the store
        self._session = _Session(cache) if _hooks is None else _FastSession(cache)
        self._session.device = device
        self._progress = Progress(sys.stderr if progress is True else progress) if progress else None
        self._hooks: Optional[SavedTensorsHooks] = None
        self._module_hooks: List[Tuple[Callable[..., Any], nn.Module, _Hook]] = []  # the same ones each time: compiled code asks
        self._handles: List[Any] = []
        self._active = False
        self._in_backward = False  # entered there: by a function that a checkpoint runs again
        self._entered: List[bool] = []  # scopes entered and not left: whether the cache was told
        self._explicit_steps = False
        self._explicit_stages = False
        self._called = False  # by itself, once at least: that tells where passes begin
        self._begun = False
        self._trace_path: Optional[Path] = None
        self._micro_batch = 0
        self._troubles: Dict[str, int] = {}

    # ---- The context -----------------------------------------------------------------------------------------------

    def __enter__(self) -> "Offload":
        if self._active:
            raise RuntimeError(
                "this offload context is active already; leave it before entering it again (where an interrupt left it half "
                "way, by __exit__(None, None, None))"
            )
        if getattr(_active, "offload", None) is not None:
            raise RuntimeError(
                "an offload context is active in this thread already: autograd serves only the innermost one: leave the "
                "first before entering the next"
            )
        self._session.cache.handle  # a closed store is told now, not in backward
        self._hooks = SavedTensorsHooks(self._session.pack, _unpack if _hooks is None else _hooks.unpack)
        try:
            self._active, _active.offload = True, self  # from here on leaving it undoes what has been done, whatever comes in between
            self._in_backward = in_backward()
            self._push_hooks()
            self._refresh_excluded()
            self._install()
            if getattr(self._model, "_compiled_call_impl", None) is not None:  # compiled in place, it does not call its hooks
                self._begin_step_if_due()
        except BaseException:
            if self._active:
                self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *exc_info: Any) -> None:
        interrupted = None
        checked: List[bool] = []
        while not checked or self._active:  # a Ctrl-C meanwhile is raised afterwards: in a notebook, training goes on after it
            try:
                if not checked:
                    checked.append(self._check_leaving())
                self._leave(checked[0])
            except KeyboardInterrupt as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted
        self._session.drain()
        if self._session.device is not None:
            self._session.device.progress()
        self._write_trace()
        if self._session.unpacked and not self._explicit_steps:  # else the step may go on; its end is told when it is known
            self._tell_progress()

    def _push_hooks(self) -> None:
        assert self._hooks is not None
        try:
            self._hooks.push()
        except RuntimeError as error:
            # disable_saved_tensors_hooks(), or a transform that cannot have them. Training goes on as without spillway.
            _log.warning("PyTorch takes no hooks for saved tensors here: everything is kept in memory (%s)", error)

    def _check_leaving(self) -> bool:
        """Whether it is left within a backward pass."""
        if getattr(_active, "offload", None) is not self:
            raise RuntimeError(
                "this offload context is not active in this thread: PyTorch has hooks per thread, so leave it in the thread "
                "that entered it, and once"
            )
        within = in_backward()
        if within and not self._in_backward:
            # Popped from the copy, the hooks would go and their place on the thread's own stack stay.
            raise RuntimeError(
                "the offload context cannot be left inside of a backward pass, by a hook: leave it after backward() returns"
            )
        return within

    def _leave(self, within_backward: bool) -> None:
        """May be interrupted anywhere, and is then called again."""
        self._leave_all()
        while self._handles:
            self._handles[-1].remove()  # a second time it does nothing
            self._handles.pop()
        self._excluded_modules.clear()
        if self._hooks is not None and within_backward == self._in_backward:
            self._hooks.pop()
        self._hooks = None
        self._active, _active.offload = False, None

    def close(self) -> None:
        """Close the cache. Tensors saved before can no longer be used for a backward pass."""
        if self._active:
            raise RuntimeError("leave the offload context before closing it")
        self._write_trace()
        self._tell_progress()
        if self._progress is not None:
            self._progress.end()
        self._session.tracer = None
        self._session.close()
        if self._own_store is not None:
            self._own_store.close()

    def step(self) -> None:
        """A training step begins. Needed only when a step has several forward passes; from the first call on it must be
        called in every step."""
        self._explicit_steps = True
        self._begin_step()

    def stage(self, micro_batch: int, phase: str, next: Optional[Stage] = None) -> None:
        """The schedule of a pipeline goes on to the forward or backward pass of a micro-batch: call it before each.

        From the first call on every pass must be told, and every step by step(): nothing is guessed any more.

        :param micro_batch: counted from 0 in each step; several model chunks per rank give each pair of micro-batch and
            chunk a number of its own
        :param phase: "forward" or "backward"
        :param next: the (micro_batch, phase) that comes after it, if that is known: reading ahead goes on into it
        :raises ValueError: no such phase, or a micro-batch below 0
        """
        here = _stage_of(micro_batch, phase)
        then = None if next is None else _stage_of(*next)
        if self._session.cache.forgotten:
            return
        self._explicit_steps = self._explicit_stages = True
        if not self._begun:
            self._begin_step()
        if then is None:
            self._session.cache.call(fast.spw_cache_stage, *here)
        else:
            self._session.cache.call(fast.spw_cache_stage_next, *here, *then)
        if self._session.tracer is not None:
            self._session.tracer.mark(f"{phase} {micro_batch}")
        self._session.drain()

    def _begin_step_if_due(self) -> None:
        """With the first forward pass after a backward pass."""
        if not self._explicit_steps and (self._session.unpacked or not self._begun):
            self._begin_step()

    def _begin_step(self) -> None:
        if self._session.cache.forgotten:  # a child of fork(), a worker of a data loader perhaps: it keeps what it saves
            return
        self._next_trace()
        self._tell_progress()
        session = self._session
        if session.device is not None:
            session.device.step()
        session.cache.call(fast.spw_cache_step)
        session.steps += 1
        self._begun = True
        self._micro_batch = 0
        session.unpacked = False
        session.prune()
        self._tell_troubles()

    def _refresh_excluded(self) -> None:
        """The model may have been changed since."""
        model = self._model
        things = _excluded_of(model, self._exclude)
        tensors = (thing for thing in things if isinstance(thing, Tensor))
        self._session.excluded = _identities(itertools.chain(model.parameters(), model.buffers(), tensors))
        for module in things:
            if isinstance(module, nn.Module) and module not in self._excluded_modules:
                self._excluded_modules.add(module)
                self._handles.append(module.register_forward_pre_hook(self._excluded_hooks[0]))
                self._handles.append(module.register_forward_hook(self._excluded_hooks[1]))

    def _tell_troubles(self) -> None:
        """The step goes on when drives are full or fail; the log says so."""
        stats = self.stats()
        on_device = self.device_stats()
        for name, words in (
            ("bytes_kept_no_space", "the store is full: tensors were kept in memory"),
            ("bytes_kept_error", "drives failed: tensors were kept in memory"),
            ("bytes_kept_changed", "memory that was saved twice changed in between in a way that PyTorch does not count (.data, NumPy): "
             "it was kept"),
            ("bytes_kept_entries", "more tensors than the cache has entries for: they were kept in memory"),
        ):
            total = getattr(stats, name) + getattr(on_device, name, 0)
            if total > self._troubles.get(name, 0):
                _log.warning("%s (%d bytes in the last step)%s", words, total - self._troubles.get(name, 0), self._drives_out())
                self._troubles[name] = total

    def _drives_out(self) -> str:
        store = self._session.cache.store
        drives = [] if store is None or store.closed else store.drive_stats()
        return "".join(
            f"; {drive.path} is out of service: {'there is no space below it' if drive.full else 'it failed'}" for drive in drives if drive.retired
        )

    # ---- Where the model is ----------------------------------------------------------------------------------------

    def _install(self) -> None:
        if not self._module_hooks:
            self._make_hooks()
        for register, module, hook in self._module_hooks:
            self._handles.append(register(module, hook))

    def _make_hooks(self) -> None:
        before, after = nn.Module.register_forward_pre_hook, nn.Module.register_forward_hook
        hooks = [(register_forward_pre_hook, self._model, _Hook(self._model_enter)), (after, self._model, _Hook(self._model_leave))]
        names = {id(module): name for name, module in self._model.named_modules()}
        for key, module in enumerate(self._scopes, 1):
            name = names.get(id(module)) or type(module).__name__
            hooks += [(before, module, _Hook(self._scope_enter, key, name)), (after, module, _Hook(self._scope_leave))]
        self._module_hooks = hooks

    def _excluded_enter(self, _module: nn.Module, _args: Any) -> None:
        self._session.excluding += 1

    def _excluded_leave(self, _module: nn.Module, _args: Any, _result: Any) -> None:
        self._session.excluding = max(0, self._session.excluding - 1)

    def _model_enter(self, _module: nn.Module, args: Any, kwargs: Any = None) -> None:
        if not torch.is_grad_enabled() or self._session.cache.forgotten or not self._active:
            return
        self._leave_all()  # of a forward pass that raised
        self._refresh_excluded()
        self._session.excluded |= _identities(_tensors_in((args, kwargs)))
        self._called = True
        self._begin_pass()

    def _begin_pass(self) -> None:
        self._begin_step_if_due()
        if not self._explicit_stages:
            self._session.cache.call(fast.spw_cache_stage, self._micro_batch, STAGE_FORWARD)
            self._micro_batch += 1

    def _model_leave(self, _module: nn.Module, _args: Any, _result: Any) -> None:
        self._session.drain()
        if self._session.device is not None:
            self._session.device.progress()

    def _scope_enter(self, key: int, name: str, _module: nn.Module, _args: Any) -> None:
        session = self._session
        # A checkpoint that computes again stops, from PyTorch 2.1 on, when it has what it needs: nobody leaves then.
        told = torch.is_grad_enabled() and not session.cache.forgotten and not in_backward()
        self._entered.append(told)
        if told and (session.unpacked or not self._begun) and not self._called and not self._explicit_steps:
            self._refresh_excluded()
            self._begin_pass()  # of a model whose parts alone are called, as by model.training_step()
        if told:
            session.cache.call(fast.spw_cache_scope_enter, key)
            if session.tracer is not None:
                session.tracer.begin(name)
            session.drain()

    def _scope_leave(self, _module: nn.Module, _args: Any, _result: Any) -> None:
        if self._entered and self._entered.pop() and not self._session.cache.forgotten:
            self._session.cache.call(fast.spw_cache_scope_leave)
            if self._session.tracer is not None:
                self._session.tracer.end()
            self._session.drain()

    def _leave_all(self) -> None:
        self._session.excluding = 0
        while self._entered:
            if self._entered.pop() and not self._session.cache.closed:
                with contextlib.suppress(SpillwayError):  # closed by another thread since
                    self._session.cache.call(fast.spw_cache_scope_leave)
                if self._session.tracer is not None:
                    self._session.tracer.end()

    # ---- What it did -----------------------------------------------------------------------------------------------

    def stats(self) -> CacheStats:
        """Counters since offload() was called."""
        self._session.drain()
        return self._session.cache.stats()

    def device_stats(self) -> Optional[DeviceStats]:
        """What became of tensors on CUDA devices since offload() was called; None: the model has none there."""
        if self._session.device is None:
            return None
        self._session.device.progress()
        return self._session.device.stats()

    def _tell_progress(self) -> None:
        if self._progress is not None and not self._session.cache.closed:
            self._progress.tell(self.stats())

    @property
    def activation_peak_bytes(self) -> int:
        """The most bytes in memory at once that held activations: saved tensors, staging and prefetched memory."""
        return self.stats().activation_bytes_max

    def report(self, file: Optional[TextIO] = None) -> None:
        """Print a table of what the cache and the drives did since offload() was called, to standard output or a file."""
        print(table_of(self.stats(), self._session.cache.store, self._drives_before, self.device_stats()), file=file or sys.stdout)

    def trace(self, path: Path) -> None:
        """Record the next whole step, for Perfetto (ui.perfetto.dev) or chrome://tracing.

        The file shows layers, stages, each tensor saved and used, how long its use waited, and how much memory held
        activations, waited to be written and was read ahead. It is complete when the step after begins, or at close();
        and is written each time that the context is left meanwhile. Recording costs some microseconds per tensor.

        :raises OSError: the file cannot be made
        """
        with open(path, "w", encoding="ascii"):  # told now, not after the step
            pass
        self._trace_path = path

    def _next_trace(self) -> None:
        self._write_trace()
        self._session.tracer = None
        if self._trace_path is not None:
            self._session.tracer = StepTrace(self._trace_path, self.stats())
            self._trace_path = None

    def _write_trace(self) -> None:
        """A trace that cannot be written is no reason to end the training."""
        if self._session.tracer is not None and not self._session.cache.forgotten:
            try:
                self._session.tracer.write()
            except OSError as error:
                _log.warning("the trace is not written: %s", error)

    def reset_peak(self) -> None:
        """Let activation_peak_bytes start anew."""
        self._session.cache.reset_peak()


def _stage_of(micro_batch: int, phase: str) -> Tuple[int, int]:
    if phase not in _STAGES:
        raise ValueError(f'the phase must be "forward" or "backward", not {phase!r}')
    return _library.number("micro_batch", micro_batch, 32), _STAGES[phase]


def rank_of_environment() -> Optional[int]:
    """The number of this process on its machine, as torchrun, Open MPI, MVAPICH and Slurm give it; None: there is none."""
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "RANK"):
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return None


def _opened(store: Any, rank: Optional[int]) -> Tuple[Optional[Store], Optional[Store]]:
    """(the store, the same if it was opened here)"""
    if rank is not None:
        rank = _library.number("rank", rank, 31)
    if store is None:
        return None, None
    if isinstance(store, Store):
        if rank is not None and store.stats().partition != rank:
            raise ValueError(
                f"the store is open on partition {store.stats().partition}, but rank is {rank}: open it with "
                f"Store(drives, partition={rank}), or give offload() the drives and it does"
            )
        return store, None
    drives = [os.fspath(store)] if isinstance(store, (str, os.PathLike)) else list(store)
    if rank is None:
        rank = rank_of_environment()
    opened = Store(drives, partition=rank)
    return opened, opened


def _device_table(devices: Set[str]) -> Any:
    """The CUDA calls, for a model that has tensors on such a device."""
    if "cuda" not in devices:
        return None
    from ._cuda import Table

    return Table()


def _device_path(
    model: nn.Module, store: Optional[Store], mode: str, min_bytes: int, budget_bytes: Optional[int]
) -> Optional["DevicePath"]:
    """The way for tensors of a GPU, if the model has any. Without it they are kept: training goes on as without
    spillway."""
    devices = {t.device.type for t in itertools.chain(model.parameters(), model.buffers())}
    if devices.difference(_SPILLED):
        _log.warning(
            "the model is on %s: only what is saved in host memory and on CUDA devices spills; tensors of other devices "
            "are kept",
            " and ".join(sorted(devices)),
        )
    table = _device_table(devices)
    if table is None or store is None or mode == "observe":
        return None
    from ._device import DevicePath, StoreTransfers
    from ._device_plan import DevicePlan

    plan, pinned_bytes = None, store.arena_bytes // 2
    if mode in ("fastest", "budget"):
        plan = DevicePlan(table, mode, budget_bytes or 0, pinned_bytes, store.chunk_bytes * len(store.drive_stats()))
    try:
        return DevicePath(table, StoreTransfers(store), pinned_bytes, min_bytes, plan)
    except (SpillwayError, RuntimeError) as error:
        _log.warning("no pinned memory: tensors on the GPU are kept there (%s)", error)
        return None


def offload(
    model: nn.Module,
    store: Union[None, Store, Path, Sequence[Path]],
    *,
    min_bytes: Optional[int] = None,
    staging_bytes: Optional[int] = None,
    prefetch_bytes: Optional[int] = None,
    mode: str = "fastest",
    budget_bytes: Optional[int] = None,
    scopes: Scopes = None,
    exclude: Exclude = None,
    rank: Optional[int] = None,
    record: Optional[Path] = None,
    progress: Union[bool, TextIO] = False,
) -> Offload:
    """A context manager that spills what autograd saves onto a store. See the module's text for use.

    :param model: used to know parameters, buffers and layers; not changed
    :param store: an open store; or the drives of one, which is then opened on the partition of this rank and closed by
        close(); may be None in mode "observe"
    :param min_bytes: smaller tensors are kept (default 64 KiB)
    :param staging_bytes: most bytes that wait to be written at once; beyond it tensors are kept (default 1 GiB)
    :param prefetch_bytes: most bytes read ahead; 0, the default: as much as the largest scope spilled
    :param mode: "fastest": after a first step that is only measured, plan the lowest peak without waiting for drives;
        "budget": plan the fewest bytes written such that activations fit budget_bytes; "spill": by a fixed rule, all but
        what the backward pass needs first; "observe": keep everything and count what plain training holds
    :param budget_bytes: with mode "budget": most bytes of activations in memory
    :param exclude: what is never written: modules (all that is saved while one runs its forward) and tensors, or a
        function of (name, module)
    :param rank: the partition for this process, of a store formatted with as many as there are ranks on the machine;
        default: LOCAL_RANK and the like from the environment, else any that is free
    :param progress: True, or a text file: a line per step, on a terminal one that rewrites itself (standard error)
    :param record: a file for a trace of the cache, for ``spillway plan``; complete after close()
    :param scopes: the modules after which the cache decides: a list, or a function of (name, module); default: the
        children of the outermost ModuleLists and Sequentials
    :raises SpillwayError: the store is closed; no memory
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError("a ScriptModule tells nobody that it runs: give the nn.Module that calls it, or one made for that")
    if (mode == "budget") != (budget_bytes is not None):
        raise ValueError('mode "budget" and budget_bytes belong together: give both or neither')
    for name, value in (("min_bytes", min_bytes), ("staging_bytes", staging_bytes), ("prefetch_bytes", prefetch_bytes),
                        ("budget_bytes", budget_bytes)):
        if value is not None:
            _library.number(name, value, 64)
    if exclude is not None and not callable(exclude) and not isinstance(exclude, Tensor):
        exclude = list(exclude)  # an iterator gives its things once
    _excluded_of(model, exclude)  # what is wrong with it is told now
    scope_modules = _scopes_of(model, scopes)
    opened, own = _opened(store, rank)
    try:
        cache = Cache(
            opened,
            mode=mode,
            min_bytes=min_bytes,
            staging_bytes=staging_bytes,
            prefetch_bytes=prefetch_bytes,
            memory_bytes=budget_bytes,
            record=record,
            record_model=type(model).__name__,
        )
        device = _device_path(model, opened, mode, _MIN_BYTES if min_bytes is None else min_bytes, budget_bytes)
    except BaseException:
        if own is not None:
            own.close()
        raise
    return Offload(model, cache, scope_modules, exclude, own, device, progress)
