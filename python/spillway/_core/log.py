# SPDX-License-Identifier: MIT
# spillway/_core/log.py - the library's log as lines of Python's logging
"""Threads of the library may not wait for the interpreter. So they leave their lines in a ring in
C, and the next call into the library from Python passes them to the logger "spillway.library".
"""
from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from ctypes import c_void_p
from typing import Any

_log = logging.getLogger("spillway.library")

_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)
_LINES = 256


class LibraryLog:
    """Where the library's log goes.

    :param library: whose functions keep the interpreter's lock
    :param sink_type: struct spw_log
    :param line_type: struct spw_log_line
    """

    def __init__(self, library: Any, sink_type: Any, line_type: Any) -> None:
        self._library = library
        self._sink_type = sink_type
        self._line_type = line_type
        self._renew()
        # What a parent process has not read is its own; its threads, which may hold the ring's
        # lock, are not here.
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        """The ring before, if there is one, stays: handles of a parent process name it."""
        self._ring = c_void_p()
        write = ctypes.cast(self._library.spw_log_ring_write, c_void_p)
        # Without memory nothing is logged, rather than fork() fail.
        made = self._library.spw_log_ring_open(_LINES, ctypes.byref(self._ring)) == 0
        self.sink = self._sink_type(write, self._ring) if made else self._sink_type()

    def drain(self) -> None:
        """Hand on what has been logged since. What is wrong with a handler or a filter ends no
        training step."""
        while self._ring and self._library.spw_log_ring_read(self._ring, None):
            line = self._line_type()
            if self._library.spw_log_ring_read(self._ring, ctypes.byref(line)):
                with contextlib.suppress(Exception):
                    self._tell(line)

    def _tell(self, line: Any) -> None:
        if line.lost:
            _log.warning("%d lines of the log were lost: they were not read in time", line.lost)
        _log.log(_LEVELS[line.level], "%s", line.text.decode(errors="replace"))
