# SPDX-License-Identifier: MIT
# tests/device/late.py - the late device as PyTorch and spillway see it
"""Imports the module that late.cpp was compiled to, whose folder is on sys.path. What the tests ask
of a machine is in Machine, here and in gpu.py."""

import gc
import types

import torch

import late_device

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
    """As spillway._gpu.accelerator.Table.

    :param notifies: whether a thread waits for events: then a seed does not say all that happens
    """

    def __init__(self, notifies=False):
        self.notifies = notifies
        self.times = True
        self.captures = False

    def capturing(self):
        return self.captures

    def current_stream(self, device):
        return torch.accelerator.current_stream(device)

    def new_stream(self, device):
        return torch.Stream(device)

    def _of_events(self):
        if self.captures:
            raise Graph("an event from outside")

    def record(self, stream):
        self._of_events()
        return stream.record_event()

    def mark(self, stream):
        self._of_events()
        return stream.record_event(torch.Event(stream.device, enable_timing=True))

    def elapsed(self, begin, end):
        return round(begin.elapsed_time(end) * 1e6)

    def wait(self, stream, event):
        self._of_events()
        stream.wait_event(event)

    def done(self, event):
        self._of_events()
        return event.query()

    def finish(self, event):
        event.synchronize()

    def keep(self, tensor, stream):
        tensor.record_stream(stream)

    def copy(self, to, source, stream):
        with stream:
            to.copy_(source, non_blocking=True)

    def empty(self, shape, stream):
        dtype, size, stride = shape
        with stream:
            return torch.empty_strided(size, stride, dtype=dtype, device=stream.device)

    def pinned(self, shape, dtype):
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)

    def pinned_bytes(self, length):
        return 1 << (length - 1).bit_length() if length else 0

    def on(self, stream):
        return stream

    def numa_node(self, device):
        return -1

    def pin(self, device, address, length):
        late_device.pin(address, length)

    def unpin(self, device, address):
        late_device.unpin(address)


class Machine:
    """Two late devices."""

    kind, count = "late", 2
    table = Table

    def be_late(self, seed, by_itself, when_asked, sides_run):
        """From now on: the chances that a task runs, and whether side streams run at once."""
        late_device.seed(seed, by_itself, when_asked, sides_run)

    def tasks_take(self, operator_ns, copied_byte_ns):
        """By the streams' own clocks; the host does not wait for them."""
        late_device.tasks_take(operator_ns, copied_byte_ns)

    def keep_pace(self, paced):
        """From now on tasks take their time by the host's clock."""
        late_device.keep_pace(paced)

    def clock_ns(self):
        """Of the stream that computes, when all has run."""
        return late_device.clock_ns(0)

    def own_ns(self):
        """Of this thread's time, what the device took to be one."""
        return late_device.own_ns()

    def host_waits(self):
        """How often the host has waited for a stream that computes."""
        return late_device.counters(0)["host_waits"]

    def copies_waited(self):
        """How often the host has waited for a copy, and with it for the stream that it is on."""
        return late_device.counters(0)["copies_waited"]

    def begin_peak(self):
        torch.accelerator.reset_peak_memory_stats()

    def peak(self):
        return late_device.counters(0)["peak"]

    def reserved(self):
        return late_device.counters(0)["reserved"]

    def begin_pinned_peak(self):
        late_device.reset_pinned_peak()

    def pinned_peak(self):
        """The most bytes of PyTorch's pinned memory in use, as it rounds them."""
        return late_device.counters(0)["pinned_peak"]

    def memory(self):
        """Bytes of each device, and pinned, when all has run."""
        gc.collect()
        torch.accelerator.synchronize()
        allocated = [late_device.counters(number)["allocated"] for number in range(self.count)]
        return allocated + [late_device.counters(0)["pinned"]]
