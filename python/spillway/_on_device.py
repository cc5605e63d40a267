# SPDX-License-Identifier: MIT
# spillway/_on_device.py - what autograd saves on a device: from the hooks to _device.py and back
"""All of the hooks that a model without tensors on a device does without. What is checked here
of a tensor is what the hooks in C check of one in host memory."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import queue
import threading
import time
import weakref
from ctypes import byref, c_uint64
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Protocol, Set, Tuple

import torch
from torch import Tensor

from ._device import Copy, Port, Shape
from ._library import CopyOut, Offer, SpillwayError, Taken, blocking, check, fast
from ._native import hooks
from ._steptrace import StepTrace
from ._tensors import COUNTED, counted_by, flagged, nothing_on, on, plain, raise_modified
from ._torch_compat import WeakStorage, storage_of
from ._verdicts import Verdict, can_be_summed, sums_of
from .cache import Cache

if TYPE_CHECKING:  # imported only for a model that has tensors on a device
    from ._session import Session

_log = logging.getLogger("spillway")

_PRUNE_MIN = 1024  # storages in mind before those that are gone are forgotten
_DRAIN_MAX = 64
_HINT_NONE, _HINT_PIN, _HINT_AGAIN, _HINT_GIVE_UP, _HINT_INPUT = 0, 3, 4, 5, 6
_KEEP, _DEDUP, _COPY, _COPY_AGAIN, _WAIT, _AGAIN = 0, 2, 3, 4, 5, 6  # what became of an offer
_TAKE_AGAIN = 1
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
            self.counter = counted_by(tensor, nothing_on(tensor.device))

    def lend(self, memory: Tensor) -> Tensor:
        """What was read back, as it is handed out: with the same counter, for the next use may
        get the same memory."""
        return memory if self.counter is None or COUNTED else counted_by(self.counter, memory)

    def _now(self) -> int:
        witness = self.witness() if self.counter is None else self.counter
        return self.number if witness is None else witness._version

    def check(self, shown: Optional[Tensor]) -> None:
        """
        :param shown: a tensor of this use, for the words, if there is one
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


class Computed(Protocol):
    """One run of a scope, which can be done again: _again.Frame."""

    def compute(self) -> None: ...


class SavedOnDevice:
    """A saved tensor of a device that the cache knows: its id, and its shape."""

    __slots__ = (
        "session",
        "version",
        "device",
        "id",
        "scope",
        "shape",
        "offset",
        "dense",
        "length",
        "conj",
        "neg",
        "borrowed",
        "frame",
        "__weakref__",
    )

    def __init__(
        self, session: "Session", version: _Version, tensor: Tensor, conj: bool, neg: bool
    ) -> None:
        self.session = session
        self.version = version
        self.device = tensor.device
        self.id = 0  # set when the cache has it
        self.scope = 0
        size, stride, itemsize = tensor.size(), tensor.stride(), tensor.element_size()
        self.shape: Shape = tensor.dtype, size, stride
        self.offset = tensor.storage_offset() * itemsize
        self.dense = tensor.is_contiguous()  # nothing but its elements is in its range
        if self.dense:
            self.length = tensor.numel() * itemsize
        else:
            self.length = (1 + sum((n - 1) * step for n, step in zip(size, stride))) * itemsize
        self.conj = conj
        self.neg = neg
        # What was handed out last, as long as this may be used again. What autograd alone has it
        # changes in place, so as to add gradients: one of these may be what was saved.
        self.borrowed: Optional[Tensor] = None
        self.frame: Optional[Computed] = None  # it was given up, and this computes it again

    def is_kept(self, tensor: Tensor, storage_length: int) -> bool:
        """No elements, or not all of them there; or what must stay the tensor that it is: a part
        of a storage that is no view, views of one, and what is no view and has no dimensions."""
        if not 0 < self.length <= storage_length - self.offset:
            return True
        base = tensor._base
        if base is None:
            return self.length < storage_length or not self.shape[1]
        return self.length < storage_length and base.numel() * base.element_size() < storage_length

    def unpack(self) -> Tensor:
        """The hook."""
        session = self.session
        began = 0 if session.tracer is None else time.perf_counter_ns()
        assert session.device is not None
        session.unpacked = True
        loaded = session.device.load(self)
        while loaded is None:
            self._compute()
            loaded = session.device.load(self)
        base, start = loaded
        verdict = session.device.verdict_on(self)
        if verdict is not None:
            verdict.expect()
        tensor = self.version.lend(base)
        if start is not None:
            tensor = on(tensor, *self.shape, self.offset - start, self.conj, self.neg)
        elif self.conj or self.neg:
            tensor = flagged(tensor, self.conj, self.neg)
        self.version.check(tensor)
        self.borrowed = tensor
        if session.tracer is not None:
            session.trace("use", began, self)
        return tensor

    def _compute(self) -> None:
        self.version.check(None)  # what was modified is not asked for
        frame = self.frame
        if frame is None:
            raise SystemError("a tensor was given up that no scope has saved")
        frame.compute()
        if self.frame is frame:
            raise SystemError(
                "a scope was computed again, and has not given what it saved before"
            )

    def is_like(self, other: "SavedOnDevice") -> bool:
        """In all but its bytes."""
        names = "device", "shape", "offset", "conj", "neg"
        return all(getattr(self, name) == getattr(other, name) for name in names)


class _Owner:
    """Memory of a device that the cache may still have copied, or handed out: held until its token
    is back."""

    __slots__ = ("tensor", "version", "stream", "produced")

    def __init__(self, tensor: Tensor, version: _Version, stream: Any, produced: Any) -> None:
        self.tensor = tensor
        self.version = version
        self.stream = stream
        self.produced = produced  # the event after what computed it


class _Users:
    """The saved tensors that are one entry of the cache."""

    __slots__ = ("count", "unused", "stream", "begin", "shape", "base", "copy", "given", "verdict")

    def __init__(self, stream: Any) -> None:
        self.count = 0
        self.unused = 0  # that did not use it yet, if each does once
        self.stream = stream  # on which it was saved
        self.begin = 0  # of what was copied, in the storage
        self.shape: Optional[Shape] = None  # of the one that is all of that
        # On the device again, until the last use or as long as there are several users.
        self.base: Optional[Tensor] = None
        self.copy: Optional[Copy] = None  # that brought it
        # It was given up: these sums, and of which part of the storage.
        self.given: Optional[Tuple[List[Tensor], int, int]] = None
        self.verdict: Optional[Verdict] = None  # and was computed again


class _End(weakref.ref[Any]):
    """The end of a saved tensor, noted in a list (by a list's own append) and seen to later: an
    exception of Ctrl-C that came in a finaliser would be lost."""

    __slots__ = ("id",)
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    id: int


class DeviceTensors:
    """Tensors of devices, as a session sees them. Any thread may save and load: autograd has one
    per device for the backward pass.

    :param port: of which devices
    """

    def __init__(self, port: Port, cache: Cache) -> None:
        self.port = port
        self.table = port.table
        self._kind = port.kind
        self._cache = cache
        self._lock = threading.Lock()  # not held while a take waits
        self._records: Dict[int, _Record] = {}  # of storages, by their identity
        self._prune_at = _PRUNE_MIN
        self._serial = itertools.count(1)
        self._owners: Dict[int, _Owner] = {}
        self._users: Dict[int, _Users] = {}
        self._ends: Set[_End] = set()
        self._ended: List[Any] = []  # of type _End
        # What calls are given, under the lock: made once.
        self._tokens = (c_uint64 * _DRAIN_MAX)()
        self._number, self._to_number = _with_reference(c_uint64())
        self._offered, self._to_offer = _with_reference(Offer())
        self._copy, self._to_copy = _with_reference(CopyOut())
        self._taken, self._to_taken = _with_reference(Taken())
        self._is_due = False  # the cache may have tokens to give back
        self._scope = 0  # the borders of scopes so far,
        self._used_scope = 0  # and what the backward pass has come to
        # By device, so that one that is late holds nothing of another back.
        self._notifiers: Dict[torch.device, _Notifier] = {}

    def has(self, tensor: Tensor) -> bool:
        """Whether it is one of such a device."""
        return tensor.device.type == self._kind

    def capturing(self) -> bool:
        """Whether a graph is captured now, with all that is saved."""
        return bool(self.table.capturing())

    # ---- Saving ----------------------------------------------------------------------------------

    def save(
        self, session: "Session", tensor: Tensor, is_input: bool = False
    ) -> Optional[SavedOnDevice]:
        """None: the caller keeps it.

        :param is_input: it is what a scope is computed again from
        """
        if self.table.capturing() or _passes_by(session, tensor):
            return None
        try:
            storage = storage_of(tensor)
        except (RuntimeError, NotImplementedError):  # a tensor of vmap has none
            return None
        if storage._cdata in session.excluded:
            return None
        total = storage.nbytes()
        with self._lock:
            version, key = self._version_of(tensor, storage, session.steps)
            conj, neg = tensor.dtype.is_complex and tensor.is_conj(), tensor.is_neg()
            held = plain(tensor, conj, neg)
            saved = SavedOnDevice(session, version, held, conj, neg)
            if saved.is_kept(tensor, total):
                return None
            token = next(self._serial)
            offer = self._offered
            offer.storage_key, offer.storage_version = key, version.epoch
            offer.storage_bytes, offer.storage_len_bytes = storage.data_ptr(), total
            offer.offset_bytes, offer.len_bytes = saved.offset, saved.length
            offer.owner = token
            hint = _HINT_INPUT if is_input else _hint_of(session, storage)
            result = self._cache.call(self._offer, token, hint, saved, held)
            # What a scope is computed again from is needed before any other is.
            if result < 0 or (is_input and result == _AGAIN):
                return None
            if result != _KEEP:
                version.watch(held)
            if result == _AGAIN:
                session.frame.give_up(saved)
        while result == _WAIT:
            result = self._cache.call(self._retry, saved, token)
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
        self, handle: int, token: int, hint: int, saved: SavedOnDevice, held: Tensor
    ) -> int:
        """The cache is not closed before this returns; but it may be about to."""
        self._tell(handle, False)
        table = self.table
        stream = table.current_stream(saved.device)
        # Before the call: it is held from when the cache has it.
        owner = self._owners[token] = _Owner(held, saved.version, stream, table.mark(stream))
        device = self.port.number(saved.device)
        result: int = fast.spw_cache_offer_device(
            handle, self._to_offer, device, hint, self._to_number, self._to_copy
        )
        if result in (_DEDUP, _COPY_AGAIN) or result < 0:
            del self._owners[token]
        if result < 0:
            return result
        self._note_user(saved, self._number.value, stream)
        if result == _AGAIN:
            result = self._give_up(handle, saved.id, owner)
        if result in (_COPY, _COPY_AGAIN):
            self._copy_out(handle, owner, saved)
        self._finish_if_closing()
        return result

    def _give_up(self, handle: int, number: int, owner: _Owner) -> int:
        """Its memory goes, and its sums stay. Without memory for these it is kept. Return: what
        became of the offer."""
        users, copy = self._users[number], self._copy
        begin, length = copy.offset_bytes, copy.len_bytes
        try:
            if users.given is None:
                users.given = sums_of(owner.tensor, begin, length), begin, length
        except RuntimeError as error:
            _log.warning("a tensor cannot be given up: %s", str(error))
            check(fast.spw_cache_restore(handle, number, self._to_offer))
            return _KEEP
        del self._owners[self._offered.owner]
        return _AGAIN

    def _note_user(self, saved: SavedOnDevice, number: int, stream: Any) -> None:
        saved.id, saved.scope = number, self._scope
        users = self._users.get(number)
        if users is None:
            users = self._users[number] = _Users(stream)
        users.count += 1
        users.unused += 1
        end = _End(saved, self._ended.append)
        end.id = number
        self._ends.add(end)

    def _copy_out(self, handle: int, owner: _Owner, saved: SavedOnDevice) -> None:
        """What the cache has said last. A copy that cannot begin gives its staging memory back: the
        tensor stays where it is."""
        copy, number, shape = self._copy, saved.id, None
        begin, length, staging = copy.offset_bytes, copy.len_bytes, copy.staging
        if saved.dense and begin == saved.offset and length == saved.length:
            shape = saved.shape
        users = self._users[number]
        users.begin, users.shape = begin, shape
        following = self._number
        following.value = copy.order
        try:
            event = self.port.copy_out(
                owner.tensor, owner.stream, owner.produced, begin, length, staging, number, shape
            )
        except BaseException as error:
            if not self.port.is_copying_out(number):
                fast.spw_cache_copied(handle, number, -errno.EIO)
                self._is_due = True
            if not isinstance(error, RuntimeError):
                raise
            # Not the error itself, which holds it: a log may be kept.
            _log.warning("a tensor cannot be copied from its device: %s", str(error))
            return
        if self.table.notifies:
            self._notify(owner.tensor.device, event)
        since = owner.produced
        while following.value:
            self.port.order(following.value, since)
            self._is_due = True
            if fast.spw_cache_ordered(handle, following.value, self._to_number) < 0:
                return
            since = self.port.times.mark(owner.stream) if following.value else None

    def _notify(self, device: torch.device, event: Any) -> None:
        notifier = self._notifiers.get(device)
        if notifier is None:
            on_end = weakref.WeakMethod(self._on_end)
            notifier = self._notifiers[device] = _Notifier(self.table, on_end)
        notifier.events.put(event)

    def _retry(self, handle: int, saved: SavedOnDevice, token: int) -> int:
        """The host is ahead of the device: its lead is what waiting takes."""
        if not blocking.spw_cache_wait_write(handle):
            with self._lock:
                oldest = self.port.oldest_out()
            if oldest is None:  # an interrupt came between a copy's end and its being told
                return _KEEP
            try:
                self.table.finish(oldest)
            except RuntimeError:  # ended() tells of it
                pass
        with self._lock:
            self._go_on()
            result: int = fast.spw_cache_copy_retry(handle, saved.id, self._to_copy)
            if result == _COPY:
                self._copy_out(handle, self._owners[token], saved)
            self._finish_if_closing()
        return result

    # ---- Using -----------------------------------------------------------------------------------

    def load(self, saved: SavedOnDevice) -> Optional[Tuple[Tensor, Optional[int]]]:
        """A tensor on the device, and where in the saved storage its own begins; None: it is of the
        saved one's shape, but for flags. The stream that computes now waits for the bytes.

        :return: None: it was given up, and is to be computed again

        :raises SpillwayError: the drive failed, or the cache is closed; a graph is being captured
        """
        if self.table.capturing():
            raise SpillwayError(
                errno.EBUSY,
                "a tensor that was saved before cannot be used while a graph is captured: capture "
                "its forward pass with it",
            )
        return self._cache.call(self._load, saved)  # type: ignore[no-any-return]

    def _load(self, handle: int, saved: SavedOnDevice) -> Optional[Tuple[Tensor, Optional[int]]]:
        """As _offer()."""
        with self._lock:
            times = self.port.times
            moves_on = saved.scope != self._used_scope and not times.stands
            if moves_on and saved.device == times.device:
                self._used_scope = saved.scope
                times.border(handle)
            self._tell(handle, True)
            users = self._users[saved.id]
            stream = self.table.current_stream(saved.device)
            # A mark before anybody waits for the bytes; None: the host knows that they are there.
            since = None
            if users.copy is None or not users.copy.ended:
                since = times.mark(stream)
            if users.base is not None and users.copy is not None and users.copy.taken:
                return self._used(saved, users, stream, since)
        return self._take(handle, saved, users, stream, since)

    def _used(
        self, saved: SavedOnDevice, users: _Users, stream: Any, since: Any
    ) -> Tuple[Tensor, Optional[int]]:
        base, copy = users.base, users.copy
        assert base is not None and copy is not None
        self.port.use(copy, base, stream, since)
        copy.taken = True
        users.unused -= users.unused > 0
        if users.count > 1:  # others get it, too
            return base, users.begin
        users.base = users.copy = None
        return base, None if copy.shape is saved.shape else users.begin

    def _take(
        self, handle: int, saved: SavedOnDevice, users: _Users, stream: Any, since: Any
    ) -> Optional[Tuple[Tensor, Optional[int]]]:
        taken, part = Taken(), (saved.offset, saved.length)
        to_taken = byref(taken)
        try:
            while True:
                result = blocking.spw_cache_take(handle, saved.id, *part, to_taken)
                if result == _TAKE_AGAIN:
                    return None
                if result < 0:
                    check(result)
                with self._lock:
                    if taken.owner:
                        return self._of_owner(self._owners[taken.owner], saved, stream, users)
                    if taken.bytes:
                        self._bring(users, stream, taken, saved.id)
                        taken.lease = 0
                    elif users.base is None:  # its copy ahead could not begin
                        continue
                    used = self._used(saved, users, stream, since)
                    self._finish_if_closing()
                    return used
        finally:
            self._is_due = True
            if taken.lease:  # nothing is copied from there
                fast.spw_cache_return(handle, taken.lease)

    def _of_owner(
        self, owner: _Owner, saved: SavedOnDevice, stream: Any, users: _Users
    ) -> Tuple[Tensor, int]:
        if owner.tensor._version != owner.version.number:
            saved.version.modified = True
        if stream != owner.stream:
            self.table.wait(stream, owner.produced)
            self.table.keep(owner.tensor, stream)
        users.unused -= users.unused > 0
        return owner.tensor, 0

    def _bring(self, users: _Users, stream: Any, taken: Taken, number: int) -> None:
        """What a lease has to the device; that is returned when it is there."""
        address, length = taken.bytes - taken.storage_bytes_before, taken.storage_bytes_total
        copy = self.port.copy_in(stream, address, length, taken.lease, number, users.shape)
        users.base, users.copy = copy.held, copy

    def _ahead(self, handle: int) -> None:
        taken = self._taken
        while fast.spw_cache_ahead(handle, self._to_number, self._to_taken) == 1:
            number = self._number.value
            users = self._users.get(number)
            try:
                if users is not None:
                    self._bring(users, users.stream, taken, number)
                    taken.lease = 0
            finally:
                if taken.lease:
                    fast.spw_cache_return(handle, taken.lease)

    # ---- Computing again -------------------------------------------------------------------------

    def verdict_on(self, saved: SavedOnDevice) -> Optional[Verdict]:
        """None: it was not computed again."""
        return self._users[saved.id].verdict

    def restore(self, saved: SavedOnDevice, tensor: Tensor, verdict: Verdict) -> None:
        """What was given up has been computed again; whether it is the same the verdict says.

        :raises ValueError: it is not, as can be seen without its bytes
        """
        session = saved.session
        storage = storage_of(tensor)
        with self._lock:
            if self._users[saved.id].verdict is not None:
                return  # with another tensor on the same memory
            version, _ = self._version_of(tensor, storage, session.steps)
            conj, neg = tensor.dtype.is_complex and tensor.is_conj(), tensor.is_neg()
            held = plain(tensor, conj, neg)
            if not saved.is_like(SavedOnDevice(session, version, held, conj, neg)):
                raise ValueError("a tensor has become one of another shape, or place in memory")
            self._cache.call(self._restore, saved, held, version, storage, verdict)

    def _restore(
        self,
        handle: int,
        saved: SavedOnDevice,
        held: Tensor,
        version: _Version,
        storage: Any,
        verdict: Verdict,
    ) -> None:
        users, offer, token = self._users[saved.id], self._offered, next(self._serial)
        assert users.given is not None
        then, begin, length = users.given
        offer.storage_bytes, offer.storage_len_bytes = storage.data_ptr(), storage.nbytes()
        offer.offset_bytes, offer.len_bytes = saved.offset, saved.length
        offer.owner = token
        if begin + length > storage.nbytes() or not can_be_summed(storage):
            raise ValueError("the memory of a tensor has become another")
        # Before the call, which says that it is there.
        verdict.sums.append((then, sums_of(held, begin, length)))
        users.verdict = verdict
        stream = self.table.current_stream(saved.device)
        self._owners[token] = _Owner(held, version, stream, self.table.mark(stream))
        result = fast.spw_cache_restore(handle, saved.id, self._to_offer)
        if result:
            del self._owners[token]
        if result < 0:
            check(result)

    def computes_again(self, begins: bool) -> None:
        """What the devices are given from now on is no part of the step; or is one again."""
        with self._lock:
            if not self.table.capturing():
                self.port.times.stand(begins)

    # ---- Going on --------------------------------------------------------------------------------

    def progress(self) -> None:
        """Go on with what can go on. Not if somebody does: it may be this thread, that runs the
        handler of a signal."""
        if self._lock.acquire(blocking=False):
            try:
                self._is_due = True
                self._go_on()
            finally:
                self._lock.release()

    def border(self) -> None:
        """A step, a stage or a scope begins or ends here."""
        with self._lock:
            self._scope += 1
            if not self._cache.closed and not self.table.capturing():
                with contextlib.suppress(SpillwayError):  # closed by another thread since
                    self._cache.call(self.port.times.border)

    def _on_end(self) -> None:
        """A copy has ended: called by a thread that waits for that."""
        with self._lock:
            self._go_on()

    def _go_on(self, ahead: bool = False) -> None:
        if not self._cache.closed and not self.table.capturing():
            with contextlib.suppress(SpillwayError):  # closed by another thread since
                self._cache.call(self._tell, ahead)
                self._cache.call(self.port.times.come)

    def _tell(self, handle: int, ahead: bool) -> None:
        """The cache hears what has ended, and memory is let go that it needs no longer."""
        for number, result in self.port.ended_out():
            self._is_due = True
            fast.spw_cache_copied(handle, number, result)
        for number, _ in self.port.ended_in():
            self._is_due = True
            fast.spw_cache_return(handle, number)
        if self.port.times.news:
            self.port.times.tell(handle)
        while self._ended:
            end = self._ended.pop()
            self._ends.discard(end)
            self._is_due = True
            self._end_user(handle, end.id)
        count, tokens = 0, self._tokens
        if self._is_due:  # one that is noted meanwhile is for the next time
            count, self._is_due = _DRAIN_MAX, False
        while count == _DRAIN_MAX:
            count = fast.spw_cache_drain_device(handle, tokens, _DRAIN_MAX)
            for token in tokens[:count]:
                del self._owners[token]
        if ahead:
            self._ahead(handle)

    def _end_user(self, handle: int, number: int) -> None:
        users = self._users[number]
        users.count -= 1
        users.unused = min(users.unused, users.count)
        if users.count <= 1 and not users.unused and users.copy is not None:
            self.port.drop(users.copy)
            users.base = users.copy = None
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

    def watch(self, tracer: Optional[StepTrace]) -> None:
        """What the devices do is recorded from now on, or no longer."""
        with self._lock:
            self.port.times.watch(tracer)

    def part(self) -> None:
        """The cache is about to close: copies from and to its memory end first."""
        for notifier in list(self._notifiers.values()):
            notifier.end()
        with self._lock:
            self.port.finish()

    def forget(self) -> None:
        """The cache is closed."""
        for things in (self._records, self._owners, self._users, self._ends, self._ended):
            things.clear()  # type: ignore[attr-defined]
        self.port.unpin()


def _with_reference(memory: Any) -> Tuple[Any, Any]:
    """It, and what a call is given of it."""
    return memory, byref(memory)


class _Notifier:
    """A thread that waits for copies out to end, while the host is elsewhere: their writes begin
    then, and their memory is let go."""

    def __init__(self, table: Any, on_end: "weakref.WeakMethod[Callable[[], None]]") -> None:
        self.events: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_notify, args=(table, self.events, on_end), name="spillway", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Calling it twice does nothing."""
        self.events.put(None)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()


def _notify(table: Any, events: "queue.SimpleQueue[Any]", on_end: Any) -> None:
    event: Any
    for event in iter(events.get, None):
        try:
            table.finish(event)
        except RuntimeError:  # Port.ended() tells of it
            pass
        method = on_end()
        if method is not None:
            method()
        del event, method


def _hint_of(session: "Session", storage: Any) -> int:
    if session.excluding:
        return _HINT_PIN
    if not isinstance(session.frame, hooks.Frame) or not can_be_summed(storage):
        return _HINT_NONE
    return _HINT_GIVE_UP if session.gives_up else _HINT_AGAIN


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
    return "_TE_do_not_offload" in tensor.__dict__


def device_tensors(device: torch.device, cache: Cache) -> Optional[DeviceTensors]:
    """For tensors of such a device. None: they are kept; training goes on as without spillway, and
    the log says why."""
    try:
        store = None if cache.mode == "observe" else cache.store
        return DeviceTensors(Port(_table(device.type), device, store), cache)
    except RuntimeError as error:
        _log.warning("tensors on %s are kept there: %s", device.type, error)
        return None


def _table(kind: str) -> Any:
    from ._accelerator import Table

    return Table(kind)
