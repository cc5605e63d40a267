# SPDX-License-Identifier: MIT
# spillway/_gpu/accelerator.py - all calls of PyTorch about a device, one method each
"""Streams, events and memory of any backend that has them. Nothing here decides anything:
copies.py says what follows what, device_tensors.py what is done at all. Imported only when a tensor
on a device is met."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Tuple

import torch
from torch import Tensor

from .copies import Shape

_log = logging.getLogger("spillway")

_HOST_REGISTER_PORTABLE = 1  # pinned for all devices of the process


def synchronize(device: torch.device) -> None:
    """The caller waits for all streams of the device."""
    module: Any = getattr(torch, device.type, None)
    (module if hasattr(module, "synchronize") else torch.accelerator).synchronize(device)


def empty_cache(device: torch.device) -> None:
    """The allocator returns the memory that it keeps for the next use, if it can."""
    module: Any = getattr(torch, device.type, None)
    if hasattr(module, "empty_cache"):
        module.empty_cache()


class Table:
    """Streams are torch.Stream or torch.cuda.Stream. All calls return at once but finish().

    :param kind: the type of the devices, as torch.device has it
    :raises RuntimeError: spillway knows of no streams or no pinned memory of this kind
    """

    notifies = True  # a thread may wait for events

    def __init__(self, kind: str) -> None:
        self.module: Any = getattr(torch, kind, None)
        for name in ("current_stream", "Stream"):
            if not hasattr(self.module, name):
                raise RuntimeError(f"PyTorch has no torch.{kind}.{name}")
        self._enters = hasattr(torch.Stream, "__enter__")  # from PyTorch 2.6 on
        self.times = hasattr(getattr(self.module, "Event", None), "elapsed_time")
        if not hasattr(self.module, "cudart"):
            raise RuntimeError(f"spillway knows no way to pin memory for {kind}")

    def capturing(self) -> bool:
        """A graph is being captured: no event of it can be asked for, and it may wait for no event
        from outside."""
        return bool(self.module.is_current_stream_capturing())

    def current_stream(self, device: torch.device) -> Any:
        return self.module.current_stream(device)

    def new_stream(self, device: torch.device) -> Any:
        return self.module.Stream(device)

    def record(self, stream: Any) -> Any:
        """An event after all that the stream was given so far."""
        return stream.record_event()

    def mark(self, stream: Any) -> Any:
        """The same, for elapsed() where ``times``."""
        if not self.times:
            return self.record(stream)
        return stream.record_event(self.module.Event(enable_timing=True))

    def elapsed(self, begin: Any, end: Any) -> int:
        """Nanoseconds between two marks of a device that have come; negative: in the other order.

        :raises RuntimeError: it does not tell
        """
        return round(begin.elapsed_time(end) * 1e6)

    def wait(self, stream: Any, event: Any) -> None:
        """What the stream is given from now on begins after the event. The caller does not wait."""
        stream.wait_event(event)

    def done(self, event: Any) -> bool:
        """
        :raises RuntimeError: nothing runs on that device any more
        """
        return bool(event.query())

    def finish(self, event: Any) -> None:
        """The caller waits for one event, without the interpreter's lock; never for a stream or the
        device.

        :raises RuntimeError: as done()
        """
        event.synchronize()

    def keep(self, tensor: Tensor, stream: Any) -> None:
        """Keep the allocator from reusing the tensor's memory before the stream has done its work
        so far."""
        tensor.record_stream(stream)

    def copy(self, to: Tensor, source: Tensor, stream: Any) -> None:
        with self.on(stream):
            to.copy_(source, non_blocking=True)

    def empty(self, shape: Shape, stream: Any) -> Tensor:
        """Memory of the stream's device, in the stream's order: what was done before with that
        memory is given to the same stream."""
        dtype, size, stride = shape
        with self.on(stream):
            return torch.empty_strided(size, stride, dtype=dtype, device=stream.device)

    def pinned(self, shape: Tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory of the host that a device copies from and to while the host does something else.
        It is PyTorch's, and can be resized.

        :raises RuntimeError: the system pins no more memory
        """
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)

    def pinned_bytes(self, length: int) -> int:
        """Of memory that is pinned for that length: PyTorch rounds up to a power of two."""
        return 1 << (length - 1).bit_length() if length else 0

    def on(self, stream: Any) -> Any:
        """A context in which the stream is the current one of its device, which is the current
        one."""
        return stream if self._enters else self.module.stream(stream)

    def numa_node(self, device: torch.device) -> int:
        """Whose memory is nearest to the device; -1: it is not known."""
        try:
            of = self.module.get_device_properties(device)
            place = f"{of.pci_domain_id:04x}:{of.pci_bus_id:02x}:{of.pci_device_id:02x}.0"
            return int(Path(f"/sys/bus/pci/devices/{place}/numa_node").read_text())
        except (AttributeError, OSError, RuntimeError, ValueError):
            return -1

    def pin(self, device: torch.device, address: int, length: int) -> None:
        """
        :raises RuntimeError: the system pins no more memory
        """
        with self.module.device(device):  # else a context is made on the first one
            result = self.module.cudart().cudaHostRegister(address, length, _HOST_REGISTER_PORTABLE)
            if int(result) != 0:
                self._forget_error(device)
                raise RuntimeError(f"cudaHostRegister() of {length} bytes failed: {result}")

    def unpin(self, device: torch.device, address: int) -> None:
        with self.module.device(device):
            result = self.module.cudart().cudaHostUnregister(address)
            if int(result) != 0:
                self._forget_error(device)
                _log.warning(
                    "cudaHostUnregister() failed, the arena's memory stays pinned: %s", result
                )

    def _forget_error(self, device: torch.device) -> None:
        """The runtime keeps the error of a call until the next check in this thread: PyTorch's,
        after its next kernel, would raise in the model. No binding clears it, so a kernel of our
        own does."""
        try:
            torch.ones(1, dtype=torch.float32, device=device)
        except RuntimeError:
            pass


def table_of(kind: str) -> Any:
    """Of devices of this type; tests put theirs here.

    :raises RuntimeError: as Table()
    """
    return Table(kind)
