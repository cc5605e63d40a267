# SPDX-License-Identifier: MIT
# spillway/_core/handle.py - a handle of the library, closed once however many use it
from __future__ import annotations

import atexit
import contextlib
import errno
import os
import weakref
from typing import Any, Iterable, Iterator, List, Optional

from .library import SpillwayError, log


class Handle:
    """What a Store and a Cache have in common. Any thread may use it, and close it meanwhile: the
    last use then ends it. Both lists are changed by append and pop alone, so that one ends it.
    """

    _closed_words = _copied_words = ""

    def __init__(self, handle: Optional[int]) -> None:
        self._handle = handle
        self._closing: List[int] = []  # the handle, from close() until nothing uses it any more
        self._uses: List[None] = []  # calls under way, and what keeps it open besides
        self.forgotten = False  # it is a parent process'
        handles.add(self)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def __reduce__(self) -> Any:
        """Neither copied nor pickled: both would close it."""
        raise TypeError(self._copied_words)

    @property
    def handle(self) -> int:
        """The C handle.

        :raises SpillwayError: EBADF it is closed
        """
        if self._handle is None:
            raise SpillwayError(errno.EBADF, self._closed_words)
        return self._handle

    @property
    def closed(self) -> bool:
        return self._handle is None

    def call(self, function: Any, *arguments: Any) -> Any:
        """``function(handle, *arguments)``. A close() by another thread meanwhile takes effect when
        it has returned. What was logged until then is handed on.

        :raises SpillwayError: EBADF it is closed
        """
        self._uses.append(None)  # before the handle is asked for: closing waits for it from now on
        try:
            return function(self._handle or self.handle, *arguments)
        finally:
            self._end_use()
            log.drain()

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """The C handle, which stays open while the context lasts, for calls that begin and end
        something.

        :raises SpillwayError: EBADF it is closed
        """
        self._uses.append(None)
        try:
            yield self.handle
        finally:
            self._end_use()
            log.drain()

    def close(self) -> None:
        """Wait for I/O in flight, forget everything and give the drives back. Closing twice does
        nothing.

        A store closes its caches first. Memory of a cache that a tensor uses stays valid: the end
        of its last use then closes the cache, and its store.
        """
        try:
            if self._handle is not None:
                self._before_close()
        finally:
            self._close()

    def _before_close(self) -> None:
        """Runs while the handle is still valid. A store calls it of its dependents first."""

    def _close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is None:
            return
        try:
            self._before_end()
        finally:
            self._closing.append(handle)
            self._finish()

    def forget(self) -> None:
        """Drop the handle without closing: for a child of fork(), to which it does not belong."""
        self._handle = None
        self._closing.clear()
        self.forgotten = True

    def _end_use(self) -> None:
        self._uses.pop()
        if self._closing:
            self._finish()

    def _finish(self) -> None:
        if self._uses or (self._closing and self._is_lent()):
            return
        try:
            handle = self._closing.pop()
        except IndexError:  # another thread has it
            return
        self._end(handle)
        log.drain()

    def _before_end(self) -> None:
        """No new use can begin."""

    def _is_lent(self) -> bool:
        """Whether something keeps it that is not counted here; its end then calls _finish()."""
        return False

    def _end(self, handle: int) -> None:
        raise NotImplementedError


def close_all(owners: Iterable[Any]) -> None:
    """Close each, whatever goes wrong with another.

    :raises BaseException: what the first that failed raised
    """
    failure = None
    for owner in list(owners):
        try:
            owner.close()
        except BaseException as error:
            failure = failure or error
    if failure is not None:
        raise failure


handles: "weakref.WeakSet[Any]" = weakref.WeakSet()


def _forget_handles() -> None:
    """A child of fork() does not have the library's threads: using or closing a handle there would
    wait for ever."""
    for owner in list(handles):
        owner.forget()


os.register_at_fork(after_in_child=_forget_handles)
# Python does not let go of every object at its end, and the status page of a store that is not
# closed stays in /dev/shm.
atexit.register(close_all, handles)
