# SPDX-License-Identifier: MIT
# tests/device/troubles.py - Ctrl-C and failures at any call that spillway makes of a device
"""Troubled stands before a table of calls (spillway._gpu.accelerator.Table, or late.py's)."""

import contextlib
import threading

FAILURES = 3  # one after the other


class Troubled:
    """The table's calls, some of which are interrupted or fail."""

    def __init__(self, table):
        self.table = table
        self.until_interrupt = None  # calls till Ctrl-C
        self.until_failure = None  # copies till some raise

    def __getattr__(self, name):
        return getattr(self.table, name)

    def _called(self):
        # A thread of spillway's own gets no signals.
        if self.until_interrupt is not None and threading.current_thread().name != "spillway":
            self.until_interrupt -= 1
            if self.until_interrupt < 0:
                self.until_interrupt = None
                raise KeyboardInterrupt

    @contextlib.contextmanager
    def _call(self):
        """Ctrl-C comes before or after the call."""
        self._called()
        yield
        self._called()

    def record(self, stream):
        with self._call():
            return self.table.record(stream)

    def mark(self, stream):
        with self._call():
            return self.table.mark(stream)

    def wait(self, stream, event):
        with self._call():
            self.table.wait(stream, event)

    def done(self, event):
        with self._call():
            return self.table.done(event)

    def keep(self, tensor, stream):
        with self._call():
            self.table.keep(tensor, stream)

    def copy(self, to, source, stream):
        if self.until_failure is not None:
            self.until_failure -= 1
            if -FAILURES <= self.until_failure < 0:
                raise RuntimeError("the copy fails by order")
        with self._call():
            self.table.copy(to, source, stream)

    def empty(self, shape, stream):
        with self._call():
            return self.table.empty(shape, stream)
