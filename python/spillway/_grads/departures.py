# SPDX-License-Identifier: MIT
# spillway/_grads/departures.py - gradients on their way from a device to the host
"""A gradient that is complete is copied to pinned memory of the host on a stream of its own, and
the device's memory is returned when too much has gathered there. The host does not wait for that:
the stream that computes gets the memory back once the copy has ended, in the order of its work.
What needs the bytes waits for that one copy.

Invariants:
V1  memory is kept, on the device and in the host, while a copy from or to it may run; that of the
    device until then or until the stream that made it was told to wait
V2  at most ``device_bytes`` of gradients that have departed are on the device, at every lag
"""
from __future__ import annotations

import collections
import dataclasses
import logging
import time
import weakref
from typing import Any, Deque, Dict, Optional

import torch
from torch import Tensor

from .._core.library import bytes_text

_log = logging.getLogger("spillway")


@dataclasses.dataclass(frozen=True)
class GradientStats:
    """Counters of gradients that leave a device during the backward pass. ``host_bytes``: of them
    in pinned memory, now; ``host_bytes_over``: by how much their limit was exceeded at most, by
    what cannot be used yet; ``waits``: uses that waited for a copy, for ``wait_ns`` altogether."""

    copies: int
    bytes_copied: int
    waits: int
    wait_ns: int
    host_limit_bytes: int
    host_bytes: int
    host_bytes_max: int
    host_bytes_over: int
    device_limit_bytes: int
    device_bytes_max: int


class _Counts:
    def __init__(self) -> None:
        self.copies = self.bytes_copied = self.waits = self.wait_ns = 0
        self.host_bytes_max = self.host_bytes_over = self.device_bytes_max = 0


class Departure:
    """A gradient in host memory, or on its way there. ``memory``: of the host, whose bytes are
    there once land() has returned; ``source``: the device's, while it is kept; ``frees``: bytes
    that are free there when it is not; ``returns``: it goes to a device, and keeps ``whole``, whose
    memory that is, counted until then."""

    __slots__ = ("memory", "length", "frees", "source", "stream", "event", "returns", "whole",
                 "_table", "_counts", "__weakref__")

    def __init__(self, table: Any, counts: _Counts, memory: Tensor, source: Optional[Tensor],
                 stream: Any, event: Any) -> None:
        self._table = table
        self._counts = counts
        self.memory = memory
        self.length = 0 if source is None else source.numel() * source.element_size()
        self.frees = self.length
        self.source = source
        self.stream = stream
        self.event = event
        self.returns = False
        self.whole: Optional["Departure"] = None

    def has_landed(self) -> bool:
        """Whether the bytes are there; no one waits."""
        if self.event is not None and self._table.done(self.event):
            self.event = self.source = None
        return self.event is None

    def land(self) -> Tensor:
        """The host's memory with the bytes; waits for this copy."""
        if not self.has_landed():
            began_ns = time.perf_counter_ns()
            self._table.finish(self.event)
            self.event = self.source = None
            self._counts.waits += 1
            self._counts.wait_ns += time.perf_counter_ns() - began_ns
        return self.memory


class Departures:
    """Of one optimizer. Used under its lock.

    :param device_bytes: of gradients that are copied, on the device
    :param host_bytes: of those in pinned memory, after which lacks() says so
    """

    def __init__(self, device_bytes: int, host_bytes: int) -> None:
        self.device_bytes, self.host_bytes = device_bytes, host_bytes
        self._counts = _Counts()
        self._tables: Dict[str, Any] = {}  # by kind of device; None: it has none
        self._sides: Dict[torch.device, Any] = {}
        self._flying: Deque[Departure] = collections.deque()  # copies that may not have ended
        self._alive: "weakref.WeakSet[Departure]" = weakref.WeakSet()
        self._said = False

    def takes(self, grad: Any) -> bool:
        """Whether a gradient is one that can be copied so."""
        return (grad.device.type not in ("cpu", "meta") and type(grad) is Tensor
                and not grad.requires_grad and self._table(grad.device.type) is not None)

    def _table(self, kind: str) -> Any:
        if kind not in self._tables:
            from .._gpu import accelerator  # only if there are such gradients

            try:
                self._tables[kind] = accelerator.table_of(kind)
            except RuntimeError as error:
                _log.info("gradients on %s are copied one by one: %s", kind, error)
                self._tables[kind] = None
        return self._tables[kind]

    @property
    def bytes(self) -> int:
        """In the host's memory."""
        return sum(departure.length for departure in list(self._alive))

    def lacks(self, length: int) -> bool:
        """Whether there is no room in the host's memory for that much, beside others."""
        self.reap()
        if self._is_short(length):
            self._drop_landed()
        return self._is_short(length)

    def _drop_landed(self) -> None:
        """All of them: copies to a device may end before earlier ones from it."""
        self._flying = collections.deque(
            departure for departure in self._flying if not departure.has_landed())

    def _is_short(self, length: int) -> bool:
        used = self.bytes
        return used > 0 and used + length > self.host_bytes

    def wait_for_return(self) -> bool:
        """Wait for the oldest copy to a device, whose host memory is free then. False: there is
        none."""
        for departure in self._flying:
            if departure.returns and not departure.has_landed():
                departure.land()
                self._drop_landed()
                return True
        return False

    def begin(self, grad: Tensor, is_kept: bool = False) -> Optional[Departure]:
        """Begin to copy what the current stream has made. None: the system pins no more memory.

        :param is_kept: the device keeps it all the same
        """
        self.reap()
        table = self._table(grad.device.type)
        if not _is_dense(grad):
            grad = grad.contiguous()
        memory = self._pinned(table, grad)
        if memory is None:
            return None
        stream = table.current_stream(grad.device)
        side = self._sides.get(grad.device)
        if side is None:
            side = self._sides[grad.device] = table.new_stream(grad.device)
        table.wait(side, table.record(stream))
        try:
            table.copy(memory, grad, side)
            departure = Departure(table, self._counts, memory, grad, stream, table.record(side))
            self._flying.append(departure)
        except BaseException:  # perhaps it has begun (V1)
            table.finish(table.record(side))
            raise
        if is_kept:
            departure.frees = 0
        self._alive.add(departure)
        self._note(departure)
        self._let_go()
        return departure

    def _note(self, departure: Departure) -> None:
        counts, used = self._counts, self.bytes
        counts.copies += 1
        counts.bytes_copied += departure.length
        counts.host_bytes_max = max(counts.host_bytes_max, used)
        counts.host_bytes_over = max(counts.host_bytes_over, used - self.host_bytes)

    def stats(self) -> GradientStats:
        return GradientStats(host_limit_bytes=self.host_bytes, host_bytes=self.bytes,
                             device_limit_bytes=self.device_bytes, **vars(self._counts))

    def _pinned(self, table: Any, grad: Tensor) -> Optional[Tensor]:
        try:
            flat = table.pinned((grad.numel(),), grad.dtype)
        except RuntimeError as error:
            if not self._said:
                self._said = True
                _log.warning("a gradient of %s stays on %s until it is used: %s", bytes_text(
                    grad.numel() * grad.element_size()), grad.device, error)
            return None
        memory: Tensor = flat.as_strided(grad.shape, grad.stride())
        return memory

    def _let_go(self) -> None:
        """Of the device's memory of the oldest (V2)."""
        here = [departure for departure in self._flying if departure.source is not None]
        left = sum(departure.frees for departure in here)
        for departure in here:
            if left <= self.device_bytes:
                break
            departure._table.wait(departure.stream, departure.event)
            # It may be memory of another stream, which has not waited.
            departure._table.keep(departure.source, departure.stream)
            departure.source = None
            left -= departure.frees
        self._counts.device_bytes_max = max(self._counts.device_bytes_max, left)

    def back(self, departure: Departure, device: torch.device) -> Tensor:
        """The gradient in new memory of the device, for the current stream; no one waits."""
        self.reap()
        table = self._table(device.type)
        stream = table.current_stream(device)
        memory = departure.memory
        value = torch.empty_strided(memory.shape, memory.stride(), dtype=memory.dtype,
                                    device=device)
        if departure.event is not None:
            table.wait(stream, departure.event)
        try:
            table.copy(value, memory, stream)
            copy = Departure(table, self._counts, memory, None, stream, table.record(stream))
            copy.returns, copy.whole = True, departure
            self._flying.append(copy)
        except BaseException:
            table.finish(table.record(stream))
            raise
        return value

    def copy_back(self, departure: Departure, into: Tensor) -> None:
        """What its memory has by now goes to the device, on the stream that it came from, which
        the caller of the backward pass gets to wait for; no one waits. The thread of another
        device has another one as the current stream."""
        table, stream = departure._table, departure.stream
        try:
            table.copy(into, departure.memory, stream)
            departure.event, departure.returns = table.record(stream), True
            self._flying.append(departure)
        except BaseException:
            table.finish(table.record(stream))
            raise

    def reap(self) -> None:
        """Release the memory of the copies that have ended."""
        while self._flying and self._flying[0].has_landed():
            self._flying.popleft()

    def close(self) -> None:
        """No copy runs any more."""
        while self._flying:
            self._flying[0].land()
            self._flying.popleft()

    def __del__(self) -> None:
        self.close()


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements are all in one piece of memory, in some order, each once."""
    return tensor.is_contiguous() or torch.empty_like(
        tensor, device="meta", memory_format=torch.preserve_format).stride() == tensor.stride()
