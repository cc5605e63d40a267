# SPDX-License-Identifier: MIT
# tests/python/fake_state.py - spillway.state.State in plain memory, strict about its contract
"""Memory that is released is overwritten, which exposes any later use of it. ``fail_after``
counts calls of take(): the one that makes it 0 fails, as a drive does."""
import ctypes
import errno

import spillway
from spillway.state import StateStats

BUFFERS = 4


class FakeStore:
    """What an optimizer asks of a store, and what is durable in it."""

    def __init__(self, capacity_bytes=1 << 40, arena_bytes=0):
        self.arena_bytes = arena_bytes
        self.capacity_bytes = capacity_bytes
        self.drives_missing = self.drives_retired = 0
        self.state = None
        self.durable = None  # (number, {name: (shape, bytes)}, extra)

    def stats(self):
        return self

    @property
    def committed(self):
        return self.durable and spillway.CommitInfo(self.durable[0], None)


def committed_records(store):
    if store.durable is None:
        return []
    return [(name, shape) for name, (shape, _) in store.durable[1].items()]


def committed_extra(store):
    return store.durable[2]


def error(number, words="said by the fake"):
    return spillway.SpillwayError(number, words)


class FakeState:
    def __init__(self, store, *, memory_bytes=0, record_bytes_max=0, copies=1, device_every=0):
        if store.state is not None:
            raise error(errno.EBUSY, "the store has a state already")
        store.state = self
        self.store = store
        assert memory_bytes >= BUFFERS * record_bytes_max
        assert record_bytes_max % 4096 == 0
        self.record_bytes_max = record_bytes_max
        self.memory = [ctypes.create_string_buffer(record_bytes_max + 4096) for _ in range(BUFFERS)]
        self.names, self.shapes, self.bytes = [], [], []
        self.transient, self.formers, self.cleared = set(), set(), []
        self.is_attached, self.attached, self.taken = False, None, {}
        self.orders, self.takes, self.gives = [], 0, []
        self.fail_after = None
        self.device_every, self.on_device, self.times = device_every, set(), []
        self.closed = False

    def close(self):
        if not self.closed:
            self.closed, self.store.state = True, None

    def add(self, name, len_bytes, shape):
        assert not self.is_attached and name not in self.names and isinstance(shape, bytes)
        assert 0 < len_bytes <= self.record_bytes_max and len(name) <= 512 and len(shape) <= 65536
        self.names.append(name)
        self.shapes.append(shape)
        self.bytes.append(bytes(len_bytes))
        return len(self.names) - 1

    def add_transient(self, name, len_bytes):
        number = FakeState.add(self, name, len_bytes, b"")
        self.transient.add(number)
        return number

    def add_former(self, name, len_bytes, shape):
        number = FakeState.add(self, name, len_bytes, shape)
        self.transient.add(number)
        self.formers.add(number)
        return number

    def attach(self):
        if self.is_attached:
            raise error(errno.EALREADY, "it is attached")
        if self.store.durable is None:
            self.is_attached = True
            return False
        number, records, extra = self.store.durable
        durable = {name for index, name in enumerate(self.names) if index not in self.transient}
        formers = {self.names[index] for index in self.formers}
        if (not set(records) <= durable | formers or not formers <= set(records)
                or (not formers and not durable <= set(records))):
            raise error(errno.EUCLEAN, "what is committed has other records")
        for index, name in enumerate(self.names):
            if name not in records or (index in self.transient and index not in self.formers):
                continue
            shape, content = records[name]
            if shape != self.shapes[index] or len(content) != len(self.bytes[index]):
                raise error(errno.EUCLEAN, f"{name} is of another shape")
        self.bytes = [records[name][1] if name in records else self.bytes[index]
                      for index, name in enumerate(self.names)]
        self.attached, self.attached_extra = number, extra
        self.is_attached = True
        return True

    def extra(self):
        return self.attached_extra

    def begin_pass(self, order):
        assert self.is_attached and not self.taken and len(set(order)) == len(order)
        self.orders.append(list(order))

    def update(self, order, can):
        """Without a number given, every record that the device can update."""
        self.begin_pass(order)
        every = self.device_every or 1
        chosen = [able and record % every == every - 1 for record, able in zip(order, can)]
        self.on_device = {record for record, is_chosen in zip(order, chosen) if is_chosen}
        return chosen

    def device_took(self, record, nanoseconds):
        assert record in self.taken and record in self.on_device
        self.times.append((record, nanoseconds))

    def take(self, record):
        assert self.is_attached and record not in self.taken
        if self.fail_after is not None:
            self.fail_after -= 1
            if self.fail_after <= 0:
                raise error(errno.EIO, "a drive failed")
        self.takes += 1
        memory = self.memory[self.takes % BUFFERS]
        address = ctypes.addressof(memory) + 4096 - ctypes.addressof(memory) % 4096
        ctypes.memmove(address, self.bytes[record], len(self.bytes[record]))
        self.taken[record] = address
        return address

    def give(self, record, changed):
        address, length = self.taken.pop(record), len(self.bytes[record])
        content = ctypes.string_at(address, length)
        if changed:
            self.bytes[record] = content
        else:
            assert content == self.bytes[record], "it was changed without saying so"
        self.gives.append((record, changed))
        ctypes.memset(address, 0xff, length)  # NaN

    def clear(self, record):
        assert self.is_attached and record not in self.taken
        self.bytes[record] = bytes(len(self.bytes[record]))
        self.cleared.append(record)

    def commit(self, number, extra, keep_previous=False):
        assert not self.taken
        last = self.store.durable
        if last is not None and number <= last[0]:
            raise error(errno.EINVAL, "the number is not above the last")
        records = {name: (shape, content)
                   for index, (name, shape, content) in enumerate(zip(self.names, self.shapes,
                                                                      self.bytes))
                   if index not in self.transient}
        self.store.durable = number, records, bytes(extra)

    def commit_release(self):
        pass

    def stats(self):
        return StateStats(**{**dict.fromkeys(StateStats.__annotations__, 0),
                             "records": len(self.names), "takes": self.takes})
