# SPDX-License-Identifier: MIT
# tests/python/streams.py - CUDA calls that need no GPU
"""The table has the methods of spillway._gpu.accelerator.Table. The CPU computes, at once, as
stream "main"; side streams do what they are given when they are waited for, or after some
polls."""
import contextlib

import torch

from spillway._gpu.device_tensors import DeviceTensors, port_of
from spillway._core.torch_compat import storage_of


def host_is_device(off, table):
    """From now on an Offload takes tensors in host memory for those of a device."""
    cache = off._session.cache
    device = torch.device("cpu")
    off._session.device = DeviceTensors(port_of(table, device, cache), cache)


class Stream:
    device = torch.device("cpu")

    def __init__(self, name):
        self.name, self.given, self.did = name, [], 0

    def run(self, count):
        while self.did < count:
            self.given[self.did]()
            self.given[self.did] = None
            self.did += 1


class Event:
    def __init__(self, stream):
        self.stream, self.after, self.polls = stream, len(stream.given), 0


class Table:
    """polls: how often an event is asked for before it has come; None: it never comes by itself."""

    def __init__(self, polls=0, log=None):
        self.polls, self.log = polls, [] if log is None else log
        self.main, self.sides, self.pins, self.graph = Stream("main"), 0, {}, False

    notifies = times = False

    def capturing(self):
        return self.graph

    def current_stream(self, device):
        return self.main

    def new_stream(self, device):
        self.sides += 1
        return Stream(f"side{self.sides}")

    def record(self, stream):
        self.log.append(("record", stream.name))
        return Event(stream)

    def mark(self, stream):
        return self.record(stream)

    def elapsed(self, begin, end):
        raise AssertionError("these events have no times")

    def wait(self, stream, event):
        self.log.append(("wait", stream.name, event.stream.name))
        if event.stream is not self.main:  # which has done what it was given
            event.stream.run(event.after)

    def done(self, event):
        assert not self.graph, "an event was asked for while a graph is captured"
        event.polls += 1
        if self.polls is not None and event.polls > self.polls:
            event.stream.run(event.after)
        return event.stream.did >= event.after

    def finish(self, event):
        event.stream.run(event.after)

    def keep(self, tensor, stream):
        self.log.append(("keep", stream.name))

    def copy(self, to, source, stream):
        self.log.append(("copy", stream.name))
        source = source.detach()  # a device has the address, whatever becomes of the tensor
        stream.given.append(lambda: to.copy_(source))

    def empty(self, shape, stream):
        self.log.append(("empty", stream.name))
        dtype, size, stride = shape
        memory = torch.empty_strided(size, stride, dtype=dtype)
        storage_of(memory).fill_(0xEE)
        return memory

    def pinned(self, shape, dtype):
        return torch.empty(shape, dtype=dtype)

    def on(self, stream):
        return contextlib.nullcontext()

    def numa_node(self, device):
        return -1

    def pinned_bytes(self, length):
        return length

    def pin(self, device, address, length):
        self.pins[address] = length

    def unpin(self, device, address):
        del self.pins[address]
