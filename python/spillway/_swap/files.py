# SPDX-License-Identifier: MIT
# spillway/_swap/files.py - Space: swap folders whose files are objects of a store
"""Invariants:
W1  a name has the bytes of its last write, or that write's error: never the bytes before
W2  an object is freed when the write of its successor has ended, or before that write begins if
    there is no room for both
W3  memory is held until the drives are done with it
"""
from __future__ import annotations

import collections
import contextlib
import errno
import inspect
import logging
import mmap
import os
import shutil
import threading
from ctypes import byref, c_uint64, c_void_p
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, Set

import torch
from torch import Tensor

from .._core.library import SpillwayError, blocking, check, error_of, fast
from ..store import Store, end_of

_log = logging.getLogger("spillway")

_PIECE_BYTES = 16 << 20  # bytes at a time of a file that is exported
_HUGE_BYTES = 2 << 20
_URGENT_READ = 0

Ended = Callable[[Optional[SpillwayError]], None]
Start = Callable[..., None]  # (io, function, *arguments)


class Io:
    """A transfer in flight. Its end is noted once, by the first caller that asks.

    :param memory: the source or destination
    :param ended: is called with the result: None, or the error
    :param make_room: discards something that is on the drives; returns False if there is nothing
    """

    def __init__(self, store: Store, path: str, memory: Tensor, ended: Ended,
                 make_room: Callable[[], bool] = lambda: False) -> None:
        self._store, self._path = store, path
        self._memory: Optional[Tensor] = memory
        self._ended: Optional[Ended] = ended
        self.make_room = make_room
        self._lock = threading.Lock()
        self._request = c_void_p()
        self.error: Optional[SpillwayError] = None

    def begin(self, function: Any, *arguments: Any) -> None:
        """:raises SpillwayError: the store refuses the transfer"""
        check(self._store.call(function, *arguments, byref(self._request)))

    @property
    def has_ended(self) -> bool:
        return self._ended is None

    def finish(self) -> None:
        """Wait for the end of the transfer, whose error is in ``error`` then.

        :raises BaseException: raised by a signal handler meanwhile; the transfer has ended
            nevertheless
        """
        with self._lock:
            if self._ended is None:
                return
            result, interruption = -errno.EINTR, None  # the result if the transfer was not begun
            try:
                if self._request.value:
                    result, interruption = self._store.call(lambda _: end_of(self._request))
                self.end(_error_of(result))
            except SpillwayError as error:  # the store was closed
                self.end(error)
        if interruption is not None:
            raise interruption

    def end(self, error: Optional[SpillwayError]) -> None:
        """Note the end of the transfer, once."""
        ended, self._ended, self._memory = self._ended, None, None
        if error is not None:
            self.error = SpillwayError(error.errno, f"{self._path}: {error.strerror}")
        if ended is not None:
            ended(self.error)


def _error_of(result: int) -> Optional[SpillwayError]:
    if result == -errno.EINTR:
        return SpillwayError(errno.EINTR, "interrupted: how it ended is not known")
    return error_of(result) if result < 0 else None


class _File:
    """The object under a name.

    :param owner: the files of its last writer
    """

    def __init__(self, store: Store, owner: "Files") -> None:
        self._store = store
        self.owner = owner
        self.thing = self.length = 0
        self.write: Optional[Io] = None  # the last write

    def wrote(self, thing: int, length: int, error: Optional[SpillwayError]) -> None:
        """A write has ended: keep its object, or its error (W1), and free the object before
        (W2)."""
        before, self.thing, self.length = self.thing, thing, length
        self._free(before)
        if error is not None:
            self._free(thing)
            self.thing = 0

    def settle(self) -> None:
        """Wait for the write in flight, if there is one."""
        if self.write is not None:
            self.write.finish()

    def content(self, path: str) -> int:
        """The object with the file's bytes.

        :raises SpillwayError: ENOENT nothing was written; or the error of the last write (W1)
        """
        self.settle()
        error = None if self.write is None else self.write.error
        if error is not None:
            raise SpillwayError(error.errno,
                                f"{error.strerror}. What was to be written is lost: go on from a "
                                "checkpoint")
        if not self.thing:
            raise _nothing_in(path)
        return self.thing

    def forget(self) -> bool:
        """Free the object. Return: whether there was one."""
        thing, self.thing = self.thing, 0
        self._free(thing)
        return thing != 0

    def _free(self, thing: int) -> None:
        if thing:
            with contextlib.suppress(SpillwayError):  # the store was closed
                self._store.call(fast.spw_store_free, thing)


Files = Dict[str, _File]


def _nothing_in(path: str) -> SpillwayError:
    return SpillwayError(errno.ENOENT, f"{path}: nothing was written under this name")


class Space:
    """The files of swap folders, each a name for an object. Any thread may use it.

    :param open_store: is called once, at the first use
    """

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open_store = open_store
        self.opened: Optional[Store] = None
        self._lock = threading.Lock()
        self._files: Files = {}
        self._imported: Files = {}
        self._locked: Dict[int, mmap.mmap] = {}  # by address
        # Cleanups of handles that were freed. The garbage collector may run at any time, so it only
        # notes them.
        self.left: Deque[Callable[[], None]] = collections.deque()
        self.folders: Set[str] = set()
        self.copied: Set[str] = set()  # folders that copytree() has copied

    def store(self) -> Store:
        """:raises SpillwayError: the store cannot be opened"""
        while self.left:
            self.left.popleft()()
        with self._lock:
            if self.opened is None:
                self.opened = self._open_store()
            return self.opened

    def has(self, path: Any) -> bool:
        """Whether this is the name of an object here, not of a file."""
        return isinstance(path, str) and os.path.dirname(path) in self.folders

    def add(self, folder: str, empty: bool = False) -> None:
        """From now on the files of a folder are objects.

        :param empty: remove the objects that it has
        """
        self.folders.add(folder)
        if empty:
            self.forget(self._names_in(folder))

    # ---- Files -----------------------------------------------------------------------------------

    def write(self, path: str, memory: Tensor, owner: Files, start: Start) -> None:
        """Begin to overwrite a file."""
        store = self.store()
        length = memory.numel() * memory.element_size()
        with self._lock:
            file, thing = self._file_of(store, path, owner), c_uint64()
            file.write = Io(store, path, memory,
                            lambda error: file.wrote(thing.value, length, error), file.forget)
            start(file.write, blocking.spw_store_put, memory.data_ptr(), length, None, byref(thing))

    def read(self, path: str, memory: Tensor, offset: int, start: Start, ended: Ended) -> None:
        """Begin to fill memory with the bytes of a file from ``offset`` on.

        :raises SpillwayError: ENOENT there is no such file; or the error of its last write
        """
        store = self.store()
        length = memory.numel() * memory.element_size()
        with self._lock:
            if path not in self._files:
                raise _nothing_in(path)
            start(Io(store, path, memory, ended), blocking.spw_store_get,
                  self._files[path].content(path), offset, memory.data_ptr(), length, _URGENT_READ,
                  None)

    def _file_of(self, store: Store, path: str, owner: Files) -> _File:
        """Get or make a file, wait for its write in flight, and give it to this owner."""
        file = self._files.setdefault(path, _File(store, owner))
        file.settle()
        file.owner.pop(path, None)
        owner[path], file.owner = file, owner
        return file

    def _names_in(self, folder: str) -> List[str]:
        with self._lock:
            return sorted(path for path in self._files if os.path.dirname(path) == folder)

    def forget(self, paths: Iterable[str], owner: Optional[Files] = None) -> None:
        """Remove files; with an owner, only those that no other owner has written since."""
        for path in list(paths):
            with self._lock:
                file = self._files.get(path)
                if file is None or (owner is not None and file.owner is not owner):
                    continue
                del self._files[path]
                file.owner.pop(path, None)
                file.settle()
                file.forget()

    def forget_all(self) -> None:
        self.forget(self._files)

    # ---- Copies ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def copied_as_files(self) -> Iterator[None]:
        """A context in which shutil.copytree() from or to a swap folder copies its objects."""
        copytree = shutil.copytree

        def copy(src: Any, dst: Any, *args: Any, **given: Any) -> Any:
            if dst in self.folders:
                self._import(src, dst)
                return dst
            made = copytree(src, dst, *args, **given)
            if src in self.folders:
                bound = inspect.signature(copytree).bind(src, dst, *args, **given)
                self._export(src, dst, bound.arguments.get("ignore"))
            return made

        self.copied.clear()
        shutil.copytree = copy
        try:
            yield
        finally:
            shutil.copytree = copytree

    def _export(self, folder: str, target: str, ignore: Any) -> None:
        paths = {os.path.basename(path): path for path in self._names_in(folder)}
        ignored = ignore(folder, list(paths)) if ignore is not None else ()
        store, piece = self.store(), memoryview(mmap.mmap(-1, _PIECE_BYTES))
        for name, path in paths.items():
            if name in ignored:
                continue
            with self._lock:
                file = self._files[path]
                thing, length = file.content(path), file.length
            with open(os.path.join(target, name), "wb") as out:
                for offset in range(0, length, _PIECE_BYTES):
                    part = piece[:min(_PIECE_BYTES, length - offset)]
                    store.get_into(thing, part, offset)
                    out.write(part)
        self.copied.add(folder)

    def _import(self, source: str, folder: str) -> None:
        store = self.store()
        for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
            length = entry.stat().st_size
            if not length:
                continue
            memory = mmap.mmap(-1, length)
            with open(entry.path, "rb") as file:
                if file.readinto(memory) != length:
                    raise OSError(errno.EIO, "it became shorter meanwhile", entry.path)
            thing = store.put(memory)
            path = os.path.join(folder, entry.name)
            with self._lock:
                file_here = self._file_of(store, path, self._imported)
                file_here.write = None
                file_here.wrote(thing, length, None)
        self.copied.add(folder)

    # ---- Memory ----------------------------------------------------------------------------------

    def lock_memory(self, length: int) -> mmap.mmap:
        """Allocate whole pages, registered with the drives until unlock_memory()."""
        store, memory = self.store(), mmap.mmap(-1, length)
        if length >= _HUGE_BYTES:
            memory.madvise(mmap.MADV_HUGEPAGE)
        address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        result = store.call(blocking.spw_store_register, address, length)
        if result < 0:
            _log.warning("memory for swapped tensors is as any other to the drives: %s",
                         error_of(result).strerror)
        with self._lock:
            self._locked[address] = memory
        return memory

    def unlock_memory(self, address: int) -> bool:
        """Return: whether this was memory of lock_memory(). Tensors that use the memory keep it
        alive."""
        with self._lock:
            if address not in self._locked:
                return False
            result = 0
            with contextlib.suppress(SpillwayError):  # the store was closed
                result = self._unregister(address)
            if result != -errno.EBUSY:  # W3: a late write of a drive may still use the memory
                del self._locked[address]
            return True

    def _unregister(self, address: int) -> int:
        assert self.opened is not None
        return int(self.opened.call(blocking.spw_store_unregister, address))

    def is_locked(self, address: int) -> bool:
        with self._lock:
            return any(start <= address < start + len(memory)
                       for start, memory in self._locked.items())
