# SPDX-License-Identifier: MIT
# spillway/_params/residency.py - Place: where a parameter's bytes are, and their transfers
"""A place is the memory of one parameter, and the object in the store with its current or earlier
bytes. The parameter's tensors stay valid, as does anything else that shares their storage: the
storage is emptied while the bytes are only on the drives, and filled again before a use.

RESIDENT  the bytes are in memory; the object may be out of date
LEAVING   the bytes are in memory, and are being written as a new object
ABSENT    the bytes are only in the object, and the storage has no memory
COMING    the bytes are being read into memory

Invariants:
P1  the storage has memory if and only if the place is not ABSENT
P2  a storage is emptied only if its object has the same bytes, by their checksums, and nothing uses
    it but the parameter itself and tensors saved for a backward pass
P3  while a place is LEAVING or COMING its bytes are not used: a use waits
P4  an object is freed only after the next one has been written
"""
from __future__ import annotations

import errno
import threading
import weakref
from ctypes import byref, c_uint64, c_void_p
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from .._core.library import SpillwayError, blocking, check, error_of, fast
from .._core.torch_compat import storage_of, storage_uses
from ..store import Store, end_of, run

RESIDENT, LEAVING, ABSENT, COMING = "resident", "leaving", "absent", "coming"

_ALLOWED = {
    RESIDENT: (LEAVING, ABSENT),
    LEAVING: (RESIDENT,),
    ABSENT: (COMING,),
    COMING: (RESIDENT, ABSENT),  # or the read failed
}
URGENT, PREFETCH = 0, 1  # enum spw_class


def _uses_of_one() -> int:
    """The use count that PyTorch reports for a storage held by one tensor and a place."""
    tensor = torch.empty(1, dtype=torch.float32, device="cpu")
    storage = storage_of(tensor)
    return int(storage_uses(storage._cdata))


_USES_OF_ONE = 0 if storage_uses is None else _uses_of_one()


def extra_uses(storage: Any, tensors: int) -> int:
    """How many hold a storage beside this many tensors and one place."""
    return int(storage_uses(storage._cdata)) - (_USES_OF_ONE + tensors - 1)


class Use:
    """A use of places by a function. The places are held as long as this object exists, so
    Ctrl-C never leaves one held for good."""

    __slots__ = ("__weakref__",)


class Owner:
    """Of places: it drops those whose parameters were freed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # autograd has a thread per device
        self._gone: List[Any] = []  # places whose parameters were freed

    def _when_gone(self, place: Any) -> Callable[[Any], None]:
        found = weakref.ref(self)

        def gone(_: Any) -> None:
            here = found()
            if here is None:
                return
            here._gone.append(place)
            # The garbage collector may call this anywhere, even while this thread has the lock.
            lock: Any = here._lock
            if lock._is_owned():
                return
            try:  # Ctrl-C may come as soon as acquire() returns
                if lock.acquire(blocking=False):
                    here._reap_freed()
            finally:
                try:
                    lock.release()
                except RuntimeError:  # another thread has it
                    pass

        return gone

    def _reap_freed(self) -> None:
        """Drop the places in ``_gone``. The lock is held."""
        raise NotImplementedError


class Memory:
    """The memory of a parameter, in the host or on a device, which is there from time to time.
    ``held``: the current uses. ``pinned``: other holders of the memory cannot be counted.
    ``views``: what has saved a tensor on the storage for a backward pass, as long as that exists.
    ``order``: the indices of its uses in the recorded step, ``last`` the number of its last one
    (order.py)."""

    __slots__ = ("owner", "storage", "length", "tensors", "held", "pinned", "views", "order",
                 "last")

    def __init__(self, owner: Any, tensor: torch.Tensor, shared: bool = False) -> None:
        self.owner = owner
        self.storage = storage_of(tensor)
        self.length: int = self.storage.nbytes()
        # The number of tensors that share the storage for good, such as FSDP's view of a shard.
        self.tensors = storage_uses(self.storage._cdata) - _USES_OF_ONE + 1 if shared else 1
        self.held: Dict["weakref.ReferenceType[Use]", None] = {}
        self.pinned = False
        self.views: Dict["weakref.ReferenceType[Any]", None] = {}
        self.order: List[int] = []
        self.last = 0

    @property
    def on_drives(self) -> "Place":
        """What is known of the parameter's bytes on the drives."""
        raise NotImplementedError

    def hold(self, use: Use) -> None:
        self.held[weakref.ref(use, self.held.pop)] = None

    def note_view(self, saved: Any) -> None:
        """Something has a tensor on the storage. Ctrl-C cannot come between its end and the count:
        were one too many counted, the memory would be emptied while something unknown has it."""
        self.views[weakref.ref(saved, self.views.pop)] = None

    def is_alone(self) -> bool:
        """Whether all holders of the memory are known (P2)."""
        return not self.held and not self.pinned and not self.has_other_holders()

    def has_other_holders(self) -> bool:
        """Whether more than the parameter itself, and what is saved of it, has the memory."""
        return extra_uses(self.storage, self.tensors + len(self.views)) != 0

    def fits(self, param: torch.Tensor) -> bool:
        """Whether the parameter, which a function has got, still has this memory."""
        return bool(storage_of(param)._cdata == self.storage._cdata)

    def was_given(self, func: Any, addresses: bool) -> None:
        """A function has got the parameter.

        :param addresses: and has returned where its memory is
        """
        self.pinned = self.pinned or addresses


class Place(Memory):
    """The memory in the host and the object of a parameter. ``is_clean``: the object has the same
    bytes as the memory, which was not used since that was checked. ``room``: bytes of memory
    that it takes while it is there."""

    __slots__ = ("name", "state", "object", "copies", "request", "written", "is_clean", "failed",
                 "number", "kinds", "room")

    def __init__(self, name: str, owner: Any, tensor: torch.Tensor, shared: bool) -> None:
        super().__init__(owner, tensor, shared)
        self.name = name
        self.room: int = owner.room_of(self.length)
        self.state = RESIDENT
        self.object = 0
        self.copies = 0  # number of copies of the object
        self.request = c_void_p()
        self.written = c_uint64()  # the object that is being written
        self.is_clean = False
        self.failed: Optional[SpillwayError] = None  # the error of a write in this step
        self.number = 0
        self.kinds: Tuple[Any, ...] = ()  # of a shard: the classes before it was adopted

    def __repr__(self) -> str:
        return f"<{self.name}: {self.length} bytes, {self.state}>"

    def become(self, state: str) -> None:
        """Change the state. No other function does."""
        assert state in _ALLOWED[self.state], f"{self} does not become {state}"
        self.owner.count(self, state)
        self.state = state

    @property
    def on_drives(self) -> "Place":
        return self

    # ---- Uses ------------------------------------------------------------------------------------

    def has_same(self, store: Store) -> bool:
        """Whether the object has the bytes that are in memory (P2); nothing is read."""
        if self.is_clean:
            return True
        if not self.object:
            return False
        result = store.call(blocking.spw_store_holds, self.object, self.storage.data_ptr(), 0,
                            self.length)
        return check(result) == 1

    # ---- Memory ----------------------------------------------------------------------------------

    def has_other_holders(self) -> bool:
        """Or other processes, that share it: PyTorch cannot resize such a storage back from 0."""
        return self.storage.is_shared() or super().has_other_holders()

    def noticed(self) -> str:
        """The state, corrected if Ctrl-C came between releasing the memory and noting that."""
        if self.state == RESIDENT and self.storage.nbytes() == 0:
            self.become(ABSENT)
        return self.state

    def empty(self) -> bool:
        """Free the memory. Return: False if PyTorch does not free it."""
        try:
            self.storage.resize_(0)
        except RuntimeError:
            self.pinned = True
            return False
        if self.state != ABSENT:
            self.become(ABSENT)
        return True

    # ---- Transfers -------------------------------------------------------------------------------

    def begin_write(self, store: Store, copies: int) -> None:
        """:raises SpillwayError: it cannot be; nothing is changed"""
        self.request, self.written = c_void_p(), c_uint64()
        self.become(LEAVING)
        try:
            check(store.call(blocking.spw_store_put_copies, self.storage.data_ptr(), self.length,
                             copies, None, byref(self.written), byref(self.request)))
        finally:
            self.has_begun()
        self.copies = copies

    def begin_read(self, store: Store, cls: int) -> None:
        """:raises SpillwayError: it cannot be; nothing is changed
        :raises RuntimeError: there is no memory for it; the same"""
        self.request = c_void_p()
        self.become(COMING)
        try:
            self.storage.resize_(self.length)
            check(store.call(blocking.spw_store_get, self.object, 0, self.storage.data_ptr(),
                             self.length, cls, None, byref(self.request)))
        finally:
            self.has_begun()

    def has_begun(self) -> bool:
        """Whether the transfer has started, as Ctrl-C may come at any time. If not, restore the
        state before."""
        if self.request.value:
            return True
        if self.state == LEAVING:
            if self.written.value != self.object:
                _free(self.owner.store, self.written.value)
            self.become(RESIDENT)
        elif self.state == COMING:
            self.empty()
        return False

    def raise_to_urgent(self) -> None:
        """A use waits for the transfer now: raise its priority."""
        if self.request.value:
            fast.spw_request_raise(self.request, URGENT)

    def has_ended(self) -> bool:
        """Whether the transfer in flight has ended, without waiting."""
        return (not self.request.value
                or fast.spw_request_wait_any(byref(self.request), 1, 0) >= 0)

    def end(self, store: Store) -> Optional[SpillwayError]:
        """Wait for the transfer in flight. Return: its error, or None. A Ctrl-C meanwhile is
        raised afterwards."""
        if not self.has_begun():
            return None
        result, interruption = end_of(self.request)
        error = error_of(result) if result < 0 else None
        if self.state == COMING and error is None:
            self.become(RESIDENT)
            self.is_clean = True
        elif self.state == COMING:
            self.empty()
        elif error is None:
            before, self.object = self.object, self.written.value
            self.become(RESIDENT)
            # Other holders of the memory may change it without notice.
            self.is_clean = self.is_alone()
            _free(store, before)  # P4
        else:
            self.become(RESIDENT)
            self.failed = error
            _free(store, self.written.value)
        if interruption is not None:
            raise interruption
        return error

    def replace(self, store: Store, other: int) -> None:
        """Take the bytes of another object from now on.

        :raises SpillwayError: they cannot be read into memory that others use; that memory has
            undefined bytes then, and the call must be repeated
        """
        self.is_clean = False
        if self.state != ABSENT and not (self.is_alone() and self.empty()):
            run(store.call, blocking.spw_store_get, other, 0, self.storage.data_ptr(),
                self.length, URGENT, None)
        before, self.object = self.object, other
        if before != other:
            _free(store, before)

    def drop(self, store: Store) -> None:
        """The parameter was freed: free the object."""
        _free(store, self.object)
        self.object = 0


def _free(store: Store, thing: int) -> None:
    if thing and not store.closed:
        result = store.call(fast.spw_store_free, thing)
        if result != -errno.ENOENT:
            check(result)


# Of all parameters, by the identity of their storages.
by_storage: Dict[int, Memory] = {}


def place_of(tensor: torch.Tensor) -> Optional[Memory]:
    """The parameter's whose memory a plain tensor has, or has a part of."""
    try:
        return by_storage.get(storage_of(tensor)._cdata)
    except (RuntimeError, NotImplementedError):  # sparse, or inside vmap: it has no storage
        return None
