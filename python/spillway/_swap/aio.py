# SPDX-License-Identifier: MIT
# spillway/_swap/aio.py - AioHandle: DeepSpeed's handle for asynchronous I/O, on a store
from __future__ import annotations

import contextlib
import errno
import weakref
from typing import Any, Callable, List, Optional, Set

import torch
from torch import Tensor

from .._core.library import SpillwayError
from .files import Files, Io, Space

_ALIGN_BYTES = 512


class AioHandle:
    """Has the methods of ``aio_handle`` of DeepSpeed's op ``async_io``. Files of swap folders are
    objects of a store; all others stay files, which a handle of DeepSpeed's own reads and writes.
    Errors of objects are SpillwayErrors, raised by async_pread(), async_pwrite() or wait(); wait()
    still waits for everything that was pending.

    :param space: the files of the swap folders
    :param make_own: makes DeepSpeed's own handle, with the same arguments
    """

    def __init__(self, space: Space, make_own: Callable[..., Any], block_size: int = 1 << 20,
                 queue_depth: int = 128, single_submit: bool = False, overlap_events: bool = False,
                 intra_op_parallelism: int = 1) -> None:
        self._space = space
        self._make_own = make_own
        self._own: Any = None
        self._own_pending = False
        self._given = (block_size, queue_depth, single_submit, overlap_events,
                       intra_op_parallelism)
        self._pending: List[Io] = []
        self._written: Files = {}
        self._memory: Set[int] = set()
        leave = _Leave(space, self._pending, self._written, self._memory)
        weakref.finalize(self, space.left.append, leave).atexit = False

    def get_block_size(self) -> int:
        return self._given[0]

    def get_queue_depth(self) -> int:
        return self._given[1]

    def get_single_submit(self) -> bool:
        return self._given[2]

    def get_overlap_events(self) -> bool:
        return self._given[3]

    def get_intra_op_parallelism(self) -> int:
        return self._given[4]

    def get_alignment(self) -> int:
        return _ALIGN_BYTES * self._given[4]

    # ---- Reading and writing ---------------------------------------------------------------------

    def read(self, buffer: Tensor, filename: str, validate: bool, file_offset: int = 0) -> int:
        if not self._space.has(filename):
            return int(self._own_handle().read(buffer, filename, validate, file_offset))
        self._read(buffer, filename, file_offset)
        self.wait()
        return 0

    def write(self, buffer: Tensor, filename: str, validate: bool, file_offset: int = 0) -> int:
        if not self._space.has(filename):
            return int(self._own_handle().write(buffer, filename, validate, file_offset))
        self._write(buffer, filename, file_offset)
        self.wait()
        return 0

    def pread(self, buffer: Tensor, filename: str, validate: bool, is_async: bool,
              file_offset: int = 0) -> int:
        if not self._space.has(filename):
            return self._own_result(is_async, self._own_handle().pread(
                buffer, filename, validate, is_async, file_offset))
        self._read(buffer, filename, file_offset)
        return 0 if is_async else self.wait()

    def pwrite(self, buffer: Tensor, filename: str, validate: bool, is_async: bool,
               file_offset: int = 0) -> int:
        if not self._space.has(filename):
            return self._own_result(is_async, self._own_handle().pwrite(
                buffer, filename, validate, is_async, file_offset))
        self._write(buffer, filename, file_offset)
        return 0 if is_async else self.wait()

    def sync_pread(self, buffer: Tensor, filename: str, file_offset: int = 0) -> int:
        return self.pread(buffer, filename, False, False, file_offset)

    def sync_pwrite(self, buffer: Tensor, filename: str, file_offset: int = 0) -> int:
        return self.pwrite(buffer, filename, False, False, file_offset)

    def async_pread(self, buffer: Tensor, filename: str, file_offset: int = 0) -> int:
        return self.pread(buffer, filename, False, True, file_offset)

    def async_pwrite(self, buffer: Tensor, filename: Any = None, file_offset: int = 0, *,
                     fd: Optional[int] = None) -> int:
        """:param fd: the descriptor of an ordinary file, which ``filename`` may be as well"""
        if fd is not None or isinstance(filename, int):
            return self._own_result(True, self._own_handle().async_pwrite(
                buffer, filename if fd is None else fd, file_offset))
        return self.pwrite(buffer, filename, False, True, file_offset)

    def wait(self) -> int:
        """Wait for all pending transfers. Return: their number.

        :raises SpillwayError: the error of the first transfer that failed
        """
        pending = self._pending[:]
        interruption: Optional[BaseException] = None
        for io in pending:
            try:
                io.finish()
            except BaseException as raised:  # by a signal handler
                interruption = raised
        del self._pending[:len(pending)]
        count = len(pending)
        if self._own_pending:
            self._own_pending = False
            count += self._own.wait()
        if interruption is not None:
            raise interruption
        for io in pending:
            if io.error is not None:
                raise io.error
        return count

    def _read(self, buffer: Tensor, path: str, offset: int) -> None:
        if _is_plain(buffer):
            self._space.read(path, buffer, offset, self._start, lambda error: None)
            return
        memory = torch.empty(buffer.shape, dtype=buffer.dtype, device="cpu")

        def ended(error: Optional[SpillwayError]) -> None:
            if error is None:
                buffer.copy_(memory)

        self._space.read(path, memory, offset, self._start, ended)

    def _write(self, buffer: Tensor, path: str, offset: int) -> None:
        if offset:
            raise ValueError(f"{path}: a swapped tensor is written from its beginning on, not from "
                             f"{offset}")
        memory = buffer if _is_plain(buffer) else buffer.detach().cpu().contiguous()
        self._space.write(path, memory, self._written, self._start)

    def _start(self, io: Io, function: Any, *arguments: Any) -> None:
        self._pending.append(io)  # before it begins, as Ctrl-C may come at any time
        while True:
            try:
                io.begin(function, *arguments)
                return
            except SpillwayError as error:
                # Pending transfers hold requests and room: wait for one, and retry.
                if error.errno in (errno.ENOBUFS, errno.ENOSPC) and self._finish_one(io):
                    continue
                if error.errno == errno.ENOSPC and io.make_room():
                    continue
                self._pending.remove(io)
                io.end(error)
                assert io.error is not None
                raise io.error from None

    def _finish_one(self, but: Io) -> bool:
        for io in self._pending:
            if not io.has_ended and io is not but:
                io.finish()
                return True
        return False

    def _own_handle(self) -> Any:
        if self._own is None:
            self._own = self._make_own(*self._given)
        return self._own

    def _own_result(self, is_async: bool, result: int) -> int:
        if is_async and result == 0:
            self._own_pending = True
        elif result > 0:  # the handle has waited for all its transfers
            self._own_pending = False
        return result

    # ---- Memory ----------------------------------------------------------------------------------

    def new_cpu_locked_tensor(self, num_elem: int, example_tenosr: Tensor) -> Tensor:
        """A tensor of shape (num_elem,) and the example's type, in memory that drives access
        without a copy."""
        if not num_elem:
            return torch.empty(0, dtype=example_tenosr.dtype, device="cpu")
        memory = self._space.lock_memory(num_elem * example_tenosr.element_size())
        tensor = torch.frombuffer(memory, dtype=example_tenosr.dtype)
        self._memory.add(tensor.data_ptr())
        return tensor

    def free_cpu_locked_tensor(self, tensor: Tensor) -> bool:
        """Return: whether it was one of new_cpu_locked_tensor()."""
        self._memory.discard(tensor.data_ptr())
        return self._space.unlock_memory(tensor.data_ptr())

    def is_pinned(self, buffer: Tensor) -> bool:
        """Whether a tensor is in memory of new_cpu_locked_tensor(), or pinned by PyTorch."""
        return buffer.device.type == "cpu" and (
            self._space.is_locked(buffer.data_ptr()) or buffer.is_pinned())


def _is_plain(buffer: Tensor) -> bool:
    return buffer.device.type == "cpu" and buffer.is_contiguous()


class _Leave:
    """The finalizer of a handle: releases its transfers, files and memory."""

    def __init__(self, space: Space, pending: List[Io], written: Files, memory: Set[int]) -> None:
        self._space, self._pending = space, pending
        self._written, self._memory = written, memory

    def __call__(self) -> None:
        for io in self._pending:
            io.finish()
        self._space.forget(self._written, self._written)
        for address in self._memory:
            with contextlib.suppress(SpillwayError):
                self._space.unlock_memory(address)
