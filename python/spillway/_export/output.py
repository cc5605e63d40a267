# SPDX-License-Identifier: MIT
# spillway/_export/output.py - Output, Outputs: files that appear whole or not at all
"""Invariants:
O1  a file under its own name is whole: it is written as NAME.partial, made durable, then renamed
O2  of several files all are whole before the first gets its name, and the last one names the
    others: a set without it is incomplete, so an old set that is replaced loses its last file first
O3  NAME.partial is locked by one writer: a writer decides whether NAME may be written after it has
    the lock, and no other writer creates NAME before the lock is released
"""
from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import Any, Callable, List, Sequence

# After this many more bytes, pages written before are dropped from the page cache: they are not
# read again soon, and would take memory from others.
_WINDOW_BYTES = 16 << 20
_KEPT_WINDOWS = 4

# A function that is called with the number of bytes written.
Progress = Callable[[int], None]


class Output:
    """A file that is written from beginning to end, with the methods that zipfile needs."""

    def __init__(self, path: str, progress: Progress) -> None:
        self.path = path
        self._partial = path + ".partial"
        self._progress = progress
        self._advised = 0
        self._kept = False
        self._fd = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._is_partial():  # another writer finished between the two calls
                raise BlockingIOError
            os.ftruncate(self._fd, 0)  # a killed writer may have left some
        except BaseException as error:
            os.close(self._fd)
            if isinstance(error, BlockingIOError):
                raise OSError(errno.EBUSY, "another export writes it: have one rank "
                              "export, or give each a name of its own", self._partial) from error
            raise

    def _is_partial(self) -> bool:
        """Whether the open file is still NAME.partial: its writer may have renamed it by now."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self._partial))
        except FileNotFoundError:
            return False

    def write(self, content: Any) -> int:
        """Write all of it.

        :raises OSError: such as ENOSPC, with the name of the file
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
        """Does nothing, as nothing is buffered."""

    def sync(self) -> None:
        """:raises OSError: the file could not be made durable"""
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
        """Remove the file, unless it was renamed: then PATH.partial belongs to another writer."""
        if not self._kept:
            with contextlib.suppress(OSError):
                os.unlink(self._partial)


class Outputs:
    """Files that get their names together, in order, if the context ends without an exception;
    otherwise none is left."""

    def __init__(self, path: str, progress: Progress, instead_of: Sequence[str] = ()) -> None:
        """
        :param path: the name of the export, whether or not one of the files has it (O3)
        :param instead_of: files to remove, as readers would prefer them to these
        :raises OSError: EBUSY another export of this name is running
        """
        self._progress = progress
        self._instead_of = instead_of
        self._made: List[Output] = []
        self._held = Output(path, progress)

    def new(self, path: str) -> Output:
        """:raises OSError: the file cannot be created"""
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
    :raises FileExistsError: a file exists, and must not be overwritten
    """
    for path in paths:
        if not overwrite and os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "is there already", path)


def check_room(path: str, needed_bytes: int) -> None:
    """:raises OSError: ENOSPC the file system has too little room; the message says how much is
        missing"""
    folder = os.path.dirname(os.path.abspath(path))
    found = os.statvfs(folder)
    missing = needed_bytes - found.f_bavail * found.f_frsize
    if missing > 0:
        raise OSError(errno.ENOSPC, f"the file system is too small by {missing} bytes, of "
                      f"{needed_bytes} that are to be written", folder)
