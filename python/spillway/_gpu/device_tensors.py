# SPDX-License-Identifier: MIT
# spillway/_gpu/device_tensors.py - tensors on a device, as the session sees them
"""Saving and using tensors is in C: hooks/offering.c and using.c. Imported only for a model with
tensors on a device."""

from __future__ import annotations

import contextlib
import errno
import logging
import queue
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from .._core.hooks_loader import hooks
from .._core.library import SpillwayError, log
from .._core.torch_compat import storage_of
from .._report.step_trace import StepTrace
from ..cache import Cache
from . import accelerator
from .checksums import can_checksum, checksums_of
from .copies import Port
from .host_memory import HostMemory
from .recompute_check import Verdict

if TYPE_CHECKING:
    from .._recompute.scopes import Frame

_log = logging.getLogger("spillway")

# Of a discarded tensor: its checksums, and the bytes of its storage that they cover: begin, length.
DiscardedChecksums = Tuple[List[Tensor], int, int]


class DeviceTensors(hooks.OnDevice):  # type: ignore[misc]
    """Tensors of devices, as a session sees them. Any thread may save and load: autograd has one
    per device for the backward pass.

    :param port: copies from and to the devices
    """

    port: Port
    _lock: threading.Lock  # not held while a take waits
    _scope: int  # scope borders so far

    def __new__(cls, port: Port, cache: Cache) -> "DeviceTensors":
        new: DeviceTensors = super().__new__(
            cls, port, cache, threading.Lock(), port.table.notifies
        )
        return new

    def __init__(self, port: Port, cache: Cache) -> None:
        self.table = port.table
        self._cache = cache
        # By device, so that a slow one does not delay another.
        self._notifiers: Dict[torch.device, _Notifier] = {}
        self._recomputing = 0  # how deep

    def has(self, tensor: Tensor) -> bool:
        """Whether the tensor is on such a device."""
        return tensor.device.type == self.port.kind

    def capturing(self) -> bool:
        """Whether a graph is being captured, with the tensors saved in it."""
        return bool(self.table.capturing())

    # ---- Saving ----------------------------------------------------------------------------------

    def _notify(self, device: torch.device, event: Any) -> None:
        """Wait for a copy that has begun."""
        notifier = self._notifiers.get(device)
        if notifier is None:
            on_end = weakref.WeakMethod(self._on_end)
            notifier = self._notifiers[device] = _Notifier(self.table, on_end)
        notifier.events.put(event)

    def _not_copied(self, error: RuntimeError) -> None:
        # Not the error itself: it holds the tensor, and a log may be kept.
        _log.warning("a tensor cannot be copied from its device: %s", str(error))

    def _refuse(self) -> None:
        raise SpillwayError(
            errno.EBUSY,
            "a tensor that was saved before cannot be used while a graph is captured: capture "
            "its forward pass with it",
        )

    # ---- Recomputing -----------------------------------------------------------------------------

    def _checksums_of(self, tensor: Tensor, begin: int,
                      length: int) -> Optional[DiscardedChecksums]:
        """Checksums of a discarded tensor. None: no memory for them."""
        try:
            return checksums_of(tensor, begin, length), begin, length
        except RuntimeError as error:
            _log.warning("a tensor cannot be discarded: %s", str(error))
            return None

    def _compare(self, frame: "Frame", given: DiscardedChecksums, tensor: Tensor) -> Verdict:
        """Compare the checksums with those of the recomputed tensor.

        :raises ValueError: it differs in more than its bytes
        """
        then, begin, length = given
        storage = storage_of(tensor)
        if begin + length > storage.nbytes() or not can_checksum(storage):
            raise ValueError("the memory of a tensor has changed")
        verdict = frame.verdict()
        verdict.checksums.append((then, checksums_of(tensor, begin, length)))
        return verdict

    def recomputes(self, begins: bool) -> None:
        """The work that devices get from now on is a recomputation; or part of the step again."""
        with self._lock:
            # One recomputation may need another; the first may have begun before this object did.
            self._recomputing = max(0, self._recomputing + (1 if begins else -1))
            if not self.table.capturing():
                self.port.times.stand(self._recomputing > 0)

    # ---- Progress --------------------------------------------------------------------------------

    def progress(self) -> None:
        """Continue what can be continued; not while another call does so, which may be of this same
        thread, interrupted by a signal handler."""
        try:
            self._progress()
        finally:
            log.drain()

    def border(self) -> None:
        """A step, a stage or a scope begins or ends here."""
        with self._lock:
            self._scope += 1
            if not self._cache.closed and not self.table.capturing():
                with contextlib.suppress(SpillwayError):  # closed by another thread meanwhile
                    self._cache.call(self.port.times.border)

    def _on_end(self) -> None:
        """A copy has ended: called by the thread that waited for it."""
        with self._lock:
            self._go_on()

    def watch(self, tracer: Optional[StepTrace]) -> None:
        """Record what the devices do; None: no longer."""
        with self._lock:
            self.port.times.watch(tracer)

    def part(self) -> None:
        """Before the cache closes: end the copies from and to its memory."""
        for notifier in list(self._notifiers.values()):
            notifier.end()
        with self._lock:
            self.port.finish()

    def forget(self) -> None:
        """The cache is closed."""
        super().forget()
        self.port.unpin()


class _Notifier:
    """A thread that waits for copies out to end, so that their writes begin and their memory is
    released while the host is busy elsewhere."""

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


def device_tensors(device: torch.device, cache: Cache) -> Optional[DeviceTensors]:
    """For tensors of such a device. None: they are kept on the device, as without spillway, and the
    log says why."""
    try:
        return DeviceTensors(port_of(accelerator.table_of(device.type), device, cache), cache)
    except RuntimeError as error:
        _log.warning("tensors on %s are kept there: %s", device.type, error)
        return None


def port_of(table: Any, device: torch.device, cache: Cache) -> Port:
    """To the memory that the cache has copies in.

    :raises RuntimeError: the arena cannot be pinned
    """
    moves = cache.mode != "observe"
    port = Port(table, device, cache.store if moves else None)
    if moves and cache.host_bytes:
        try:
            port.use(HostMemory(table, device, cache))
        except BaseException:  # Ctrl-C: the arena must not stay pinned
            port.unpin()
            raise
    return port
