# SPDX-License-Identifier: MIT
# spillway/_cuda.py - the CUDA calls of the device path, one method each
"""Everything that spillway asks of CUDA. Nothing here decides anything: _device.py does, and is tested with another table
of the same methods that runs without a GPU. Imported only for a model that has tensors on one."""
from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

_log = logging.getLogger("spillway")

_HOST_REGISTER_PORTABLE = 1  # pinned for all devices of the process


class Table:
    """Streams are torch.cuda.Stream, events torch.cuda.Event. All calls return at once but finish()."""

    def is_device(self, tensor: Tensor) -> bool:
        return tensor.is_cuda

    def capturing(self) -> bool:
        """A CUDA graph is being captured: no event of it can be asked for."""
        return torch.cuda.is_current_stream_capturing()

    def current_stream(self, device: torch.device) -> Any:
        return torch.cuda.current_stream(device)

    def new_stream(self, device: torch.device) -> Any:
        return torch.cuda.Stream(device)

    def record(self, stream: Any) -> Any:
        """An event after all that the stream was given so far."""
        return stream.record_event()

    def wait(self, stream: Any, event: Any) -> None:
        """What the stream is given from now on begins after the event. The caller does not wait."""
        stream.wait_event(event)

    def done(self, event: Any) -> bool:
        return event.query()

    def finish(self, event: Any) -> None:
        """The caller waits for one event, never for a stream or the device."""
        event.synchronize()

    def keep(self, tensor: Tensor, stream: Any) -> None:
        """The allocator gives the tensor's memory to nobody else before the stream has done what it was given so far."""
        tensor.record_stream(stream)

    def copy(self, to: Tensor, source: Tensor, stream: Any) -> None:
        with torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)

    def empty(self, length: int, device: torch.device, stream: Any) -> Tensor:
        """Bytes on the device, in the stream's order: what was done before with that memory is given to the same stream."""
        with torch.cuda.stream(stream):
            return torch.empty(length, dtype=torch.uint8, device=device)

    def pin(self, address: int, length: int) -> None:
        """
        :raises RuntimeError: the system pins no more memory
        """
        torch.cuda.init()  # what torch.cuda.cudart() needs
        result = torch.cuda.cudart().cudaHostRegister(address, length, _HOST_REGISTER_PORTABLE)
        if int(result) != 0:
            _forget_error()
            raise RuntimeError(f"cudaHostRegister() of {length} bytes failed: {result}")

    def unpin(self, address: int) -> None:
        result = torch.cuda.cudart().cudaHostUnregister(address)
        if int(result) != 0:
            _forget_error()
            _log.warning("cudaHostUnregister() failed, the arena's memory stays pinned: %s", result)


def _forget_error() -> None:
    """The runtime keeps the error of a call for whoever asks next in this thread: that is PyTorch after its next kernel, which
    would raise in the model. No binding asks for it, so a kernel of our own does."""
    try:
        torch.ones(1, device="cuda")
    except RuntimeError:
        pass
