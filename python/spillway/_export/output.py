# SPDX-License-Identifier: MIT
# spillway/_export/output.py - files that appear whole or not at all
"""Invariants:
O1  under its name is the whole file: it is written beside, as NAME.partial, made durable, and then
    renamed
O2  of several files all are whole before the first gets its name, and the last names the others:
    without it the set is not whole, so one that is replaced loses that first
O3  NAME.partial is locked by one writer: whether NAME may be written is decided once it is locked,
    and no other writer creates NAME before the lock is released
"""
from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import Any, Callable, List, Sequence

# Written out at a time, and dropped from the page cache then: it is not read again soon, and would
# take memory from others.
_WINDOW_BYTES = 16 << 20
_KEPT_WINDOWS = 4

# Called with the bytes that have been written.
Progress = Callable[[int], None]


class Output:
    """A file to be written from its beginning on. It has what zipfile needs of one."""

    def __init__(self, path: str, progress: Progress) -> None:
        self.path = path
        self._partial = path + ".partial"
        self._progress = progress
        self._advised = 0
        self._kept = False
        self._fd = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_partial():  # another was done between the two calls
                raise BlockingIOError
            os.ftruncate(self._fd, 0)  # what a killed one has left
        except BaseException as error:
            os.close(self._fd)
            if isinstance(error, BlockingIOError):
                raise OSError(errno.EBUSY, "another export writes it: have one rank "
                              "export, or give each a name of its own", self._partial) from error
            raise

    def _is_partial(self) -> bool:
        """Whether what is open still has that name: it may be a finished file by now."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self._partial))
        except FileNotFoundError:
            return False

    def write(self, content: Any) -> int:
        """All of it.

        :raises OSError: ENOSPC and the like, with the name of the file
        """
        left = memoryview(content)
        try:
            while left:
                left = left[os.write(self._fd, left):]
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), self.path) from error
        at = self.tell()
        if at - self._advised >= _WINDOW_BYTES:
            start = max(0, at - _KEPT_WINDOWS * _WINDOW_BYTES)
            os.posix_fadvise(self._fd, start, at - start, os.POSIX_FADV_DONTNEED)
            self._advised = at
        length = memoryview(content).nbytes
        self._progress(length)
        return length

    def tell(self) -> int:
        return os.lseek(self._fd, 0, os.SEEK_CUR)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self._fd, offset, whence)

    def flush(self) -> None:
        """Nothing is held back."""

    def sync(self) -> None:
        """:raises OSError: it could not be made durable"""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), self.path) from error

    def keep(self) -> None:
        os.rename(self._partial, self.path)
        self._kept = True

    def close(self) -> None:
        os.close(self._fd)

    def discard(self) -> None:
        """Nothing, if it has its name: what is called PATH.partial then is another's."""
        if not self._kept:
            with contextlib.suppress(OSError):
                os.unlink(self._partial)


class Outputs:
    """Files that get their names together, in order, where the context ends well; else none is
    left."""

    def __init__(self, path: str, progress: Progress, instead_of: Sequence[str] = ()) -> None:
        """
        :param path: what the export is called, whether that is one of the files or not (O3)
        :param instead_of: files that readers would take for these, and that go
        :raises OSError: EBUSY another export is called so
        """
        self._progress = progress
        self._instead_of = instead_of
        self._made: List[Output] = []
        self._held = Output(path, progress)

    def new(self, path: str) -> Output:
        """:raises OSError: it cannot be made"""
        output = self._held if path == self._held.path else Output(path, self._progress)
        self._made.append(output)
        return output

    def __enter__(self) -> "Outputs":
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        try:
            if kind is None:
                self._keep()
        finally:
            for output in {*self._made, self._held}:
                output.discard()
                output.close()

    def _keep(self) -> None:
        for output in self._made:
            output.sync()
        old = [self._made[-1].path] if len(self._made) > 1 else []  # O2
        for path in [*self._instead_of, *old]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        for output in self._made:
            output.keep()
        for folder in {os.path.dirname(os.path.abspath(output.path)) for output in self._made}:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def check_absent(paths: Sequence[str], overwrite: bool) -> None:
    """
    :raises FileExistsError: one is there, and is not to be overwritten
    """
    for path in paths:
        if not overwrite and os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "is there already", path)


def check_room(path: str, needed_bytes: int) -> None:
    """:raises OSError: ENOSPC a file system has no such room: says what is missing"""
    folder = os.path.dirname(os.path.abspath(path))
    found = os.statvfs(folder)
    missing = needed_bytes - found.f_bavail * found.f_frsize
    if missing > 0:
        raise OSError(errno.ENOSPC, f"the file system is too small by {missing} bytes, of "
                      f"{needed_bytes} that are to be written", folder)
