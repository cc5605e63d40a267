# SPDX-License-Identifier: MIT
# tests/device/late.py - the late device as PyTorch and spillway see it
"""Imports the module that late.cpp was compiled to, whose folder is on sys.path."""

import contextlib
import threading
import types

import torch

import late_device as machine

torch.utils.rename_privateuse1_backend("late")
torch._register_device_module(
    "late",
    types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 2,
        current_device=torch.accelerator.current_device_index,
        set_device=torch.accelerator.set_device_index,
        get_amp_supported_dtype=lambda: [torch.bfloat16],
        manual_seed_all=lambda seed: None,
        _is_in_bad_fork=lambda: False,
        _lazy_init=lambda: None,
    ),
)


class Graph(RuntimeError):
    """What may not be done while a graph is captured."""


class Table:
    """As spillway._accelerator.Table.

    :param notifies: whether a thread waits for events: then a seed does not say all that happens
    """

    def __init__(self, notifies=False):
        self.notifies = notifies
        self.captures = False
        self.until_interrupt = None  # calls till Ctrl-C

    def _called(self):
        # A thread of spillway's own gets no signals.
        if self.until_interrupt is not None and threading.current_thread().name != "spillway":
            self.until_interrupt -= 1
            if self.until_interrupt < 0:
                self.until_interrupt = None
                raise KeyboardInterrupt

    @contextlib.contextmanager
    def _call(self, of_events=True):
        """Ctrl-C comes before or after the call."""
        if of_events and self.captures:
            raise Graph("an event from outside")
        self._called()
        yield
        self._called()

    def capturing(self):
        return self.captures

    def current_stream(self, device):
        return torch.accelerator.current_stream(device)

    def new_stream(self, device):
        return torch.Stream(device)

    def record(self, stream):
        with self._call():
            return stream.record_event()

    def wait(self, stream, event):
        with self._call():
            stream.wait_event(event)

    def done(self, event):
        with self._call():
            return event.query()

    def finish(self, event):
        event.synchronize()

    def keep(self, tensor, stream):
        with self._call():
            tensor.record_stream(stream)

    def copy(self, to, source, stream):
        with self._call(), stream:
            to.copy_(source, non_blocking=True)

    def empty(self, length, stream):
        with self._call(), stream:
            return torch.empty(length, dtype=torch.uint8, device=stream.device)

    def pin(self, device, address, length):
        machine.pin(address, length)

    def unpin(self, device, address):
        machine.unpin(address)
