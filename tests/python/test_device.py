# SPDX-License-Identifier: MIT
# tests/python/test_device.py - the way of a GPU's tensors, with CUDA calls that need none: their order, slow streams, faults
import errno
import gc
import inspect
import logging
import os
import random
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch import nn

import spillway
import spillway.torch
from conftest import ROOT, make_drives
from offloading import RAISED, Nothing, Save, same_bits
from spillway import _cuda, _device, _device_plan, _library, _on_device
from spillway._torch_compat import WeakStorage, storage_of
from streams import Table


class Transfers(_device.StoreTransfers):
    """Of a store, noted; they end only when they are let, or waited for. Gets begin only below requests_max."""

    def __init__(self, store, log):
        super().__init__(store)
        self.log, self.hold, self.requests, self.requests_max, self.refused = log, False, 0, 4096, 0

    def put(self, address, length):
        self.log.append(("put",))
        self.requests += 1
        return super().put(address, length)

    def get(self, thing, address, length, urgent):
        if self.requests >= self.requests_max:
            self.refused += 1
            raise spillway.SpillwayError(errno.ENOBUFS, "all requests are in use")
        self.log.append(("get", "urgent" if urgent else "ahead"))
        self.requests += 1
        return super().get(thing, address, length, urgent)

    def test(self, request):
        result = None if self.hold else super().test(request)
        if result is not None:
            self.log.append(("ended",))
            self.requests -= 1
        return result

    def wait(self, request):
        self.requests -= 1
        return super().wait(request)


class Version:
    number, modified = 0, False


class User:
    pass


class Rig:
    """A path over a store, and what it did in order."""

    def __init__(self, store, polls=0, pinned_bytes=1 << 20):
        self.log = []
        self.table, self.transfers = Table(polls, self.log), Transfers(store, self.log)
        self.path = _device.DevicePath(self.table, self.transfers, pinned_bytes, 1)
        self.keys = iter(range(1 << 30))

    def save(self, tensor):
        user = User()
        entry = self.path.save(tensor, (next(self.keys), 0), Version(), 0, tensor.numel() * tensor.element_size(), user)
        return entry, user

    def until(self, state):
        while not state():
            self.path.progress()

    def names(self):
        """What happened since the last call."""
        names = [event for event in self.log]
        self.log.clear()
        return names


@pytest.fixture
def rig(store):
    made = []

    def make(**options):
        made.append(Rig(store, **options))
        return made[-1]

    yield make
    for each in made:
        each.transfers.hold = False
        each.path.close()
        assert not each.table.pinned


def value(loaded, like):
    base, begin = loaded
    assert begin == 0
    return torch.empty(0, dtype=like.dtype).set_(base._storage() if not hasattr(base, "untyped_storage")
                                                 else base.untyped_storage(), 0, like.size(), like.stride())


def test_both_tables_have_the_same_methods():
    def methods(table):
        return {name: list(inspect.signature(function).parameters) for name, function in vars(table).items()
                if callable(function) and name[0] != "_"}

    assert methods(Table) == methods(_cuda.Table)


# ---- Order ---------------------------------------------------------------------------------------------------------------


def test_save_and_use_in_order(rig):
    rig = rig()
    tensor = torch.randn(1000)
    expected = tensor.clone()
    entry, user = rig.save(tensor)
    assert rig.names() == [("record", "main"), ("wait", "side1", "main"), ("keep", "side1"), ("copy", "side1"),
                           ("record", "side1")]
    assert entry.tensor is tensor
    rig.until(entry.stored)
    assert rig.names() == [("put",), ("ended",)]
    assert entry.tensor is None and rig.path.stats().pinned_bytes_used == 0
    assert torch.equal(value(rig.path.load(entry), expected), expected)
    assert rig.names() == [("get", "urgent"), ("empty", "side1"), ("copy", "side1"), ("record", "side1"),
                           ("wait", "main", "side1"), ("keep", "main")]
    stats = rig.path.stats()
    assert (stats.bytes_spilled, stats.bytes_read) == (4000, 4000)


def test_nothing_is_put_before_the_copy_has_ended(rig):
    rig = rig(polls=None)
    tensor = torch.randn(1000)
    entry, user = rig.save(tensor)
    for _ in range(100):
        rig.path.progress()
    assert ("put",) not in rig.names() and entry.tensor is tensor
    base, _ = rig.path.load(entry)  # from the device, which still has it
    assert base is tensor
    assert rig.names() == [("wait", "main", "main"), ("keep", "main")]
    rig.table.polls = 0
    rig.until(entry.stored)
    assert rig.names() == [("put",), ("ended",)]


def test_a_slot_is_not_used_again_before_its_put_has_ended(rig):
    rig = rig(pinned_bytes=8192)
    rig.transfers.hold = True
    first, user = rig.save(torch.zeros(2048))
    rig.path.progress()
    assert first.tensor is None and ("put",) in rig.names()
    assert rig.save(torch.ones(2048))[0].kept  # it stays on the device
    assert rig.path.stats().bytes_kept_no_slot == 8192
    rig.transfers.hold = False
    rig.until(first.stored)
    second, other = rig.save(torch.ones(2048))
    rig.until(second.stored)
    assert torch.equal(value(rig.path.load(first), torch.zeros(2048)), torch.zeros(2048))


def test_a_slot_is_not_used_again_before_the_copy_out_of_it_has_ended(rig):
    rig = rig(pinned_bytes=8192)
    entry, user = rig.save(torch.zeros(2048))
    rig.until(entry.stored)
    rig.table.polls = None
    rig.table.wait = lambda stream, event: None  # a device that computes for long before it comes to wait
    base, _ = rig.path.load(entry)
    rig.path.progress()
    assert rig.save(torch.ones(2048))[0].kept
    rig.table.polls = 0
    rig.path.progress()
    assert not rig.save(torch.ones(2048))[0].kept
    assert torch.equal(base, torch.zeros(8192, dtype=torch.uint8))


def test_a_write_that_nobody_needs_any_more_ends_first(rig, store):
    rig = rig(pinned_bytes=8192)
    rig.transfers.hold = True
    entry, user = rig.save(torch.zeros(2048))
    rig.path.progress()
    del user
    for _ in range(10):
        rig.path.progress()
    assert rig.path.stats().pinned_bytes_used == 8192
    rig.transfers.hold = False
    rig.until(lambda: rig.path.stats().pinned_bytes_used == 0)
    del entry
    assert not rig.save(torch.ones(2048))[0].kept


def test_dropped_during_the_copy_it_is_not_put(rig):
    rig = rig(polls=5)
    entry, user = rig.save(torch.zeros(2048))
    del user
    rig.until(lambda: rig.path.stats().pinned_bytes_used == 0)
    assert ("put",) not in rig.names()


def test_views_of_one_content_are_copied_once(rig):
    rig = rig(polls=4)
    tensor, users = torch.randn(1000), [User(), User()]
    first = rig.path.save(tensor, (7, 0), Version(), 0, 4000, users[0])
    assert rig.path.save(tensor[500:], (7, 0), Version(), 2000, 2000, users[1]) is first
    other = rig.path.save(tensor, (7, 1), Version(), 0, 4000, users[1])
    assert other is not first  # another content
    rig.until(lambda: first.stored() and other.stored())
    base, _ = rig.path.load(first)
    rig.names()
    again, _ = rig.path.load(first)  # still on the device: somebody else may want it
    assert again is base and rig.names() == [("wait", "main", "side1"), ("keep", "main")]
    users.pop(0)
    rig.path.progress()
    assert first.base is None


def test_what_is_saved_again_is_copied_again(rig):
    """Nobody counts what has changed in between; once it has left the device nobody sees it either."""
    rig = rig(polls=4)
    tensor, users = torch.zeros(1000), [User(), User(), User()]
    first = rig.path.save(tensor, (7, 0), Version(), 0, 4000, users[0])
    other, user = rig.save(torch.ones(1000))
    tensor.data.fill_(2)
    assert rig.path.save(tensor, (7, 0), Version(), 0, 4000, users[1]) is first
    assert rig.path.stats().bytes_copied_again == 4000
    rig.until(lambda: first.stored() and other.stored())
    tensor.data.fill_(3)
    second = rig.path.save(tensor, (7, 0), Version(), 0, 4000, users[2])
    rig.until(second.stored)
    assert [value(rig.path.load(entry), tensor)[999].item() for entry in (first, second)] == [2, 3]


def test_what_several_use_is_read_once(rig):
    """Autograd lets go of each user before the next one comes."""
    rig = rig(polls=4)
    tensor, users = torch.randn(1000), [User(), User(), User()]
    for user in users:
        entry = rig.path.save(tensor, (7, 0), Version(), 0, 4000, user)
    del user
    rig.until(entry.stored)
    while users:
        assert torch.equal(value(rig.path.load(entry), tensor), tensor)
        users.pop()
    assert rig.names().count(("get", "urgent")) == 1 and entry.base is None


def test_what_a_user_let_go_unused_does_not_stay_on_the_device(rig):
    rig = rig(polls=4)
    tensor, users = torch.randn(1000), [User(), User()]
    for user in users:
        entry = rig.path.save(tensor, (7, 0), Version(), 0, 4000, user)
    del user
    rig.until(entry.stored)
    rig.path.load(entry)
    assert entry.base is not None
    users.clear()
    rig.path.progress()
    assert entry.base is None


def test_reading_ahead_in_the_reverse_order(rig):
    rig = rig(pinned_bytes=16 * 8192)
    saved = [rig.save(torch.full((2048,), float(i))) for i in range(12)]
    for entry, _ in saved:
        rig.until(entry.stored)
    rig.names()
    for i in reversed(range(12)):
        assert torch.equal(value(rig.path.load(saved[i][0]), torch.empty(2048)), torch.full((2048,), float(i)))
        saved.pop()
    happened = rig.names()
    assert happened.count(("get", "urgent")) == 1 and happened.count(("get", "ahead")) == 11
    assert rig.path.stats().pinned_bytes_used_max <= 16 * 8192
    rig.until(lambda: rig.path.stats().pinned_bytes_used == 0)
    assert rig.path._ahead_bytes == 0


def test_what_was_used_is_not_read_ahead(rig):
    """Out of order; then in order and once more, as by a second backward pass."""
    rig = rig()
    saved = [rig.save(torch.full((2048,), float(i))) for i in range(6)]
    for entry, _ in saved:
        rig.until(entry.stored)
    for order, urgent, ahead in (((4, 5, 2, 3, 0, 1), 2, 4), ((5, 4, 3, 2, 1, 0), 1, 5)):
        for i in order:
            assert torch.equal(value(rig.path.load(saved[i][0]), torch.empty(2048)), torch.full((2048,), float(i)))
        happened = rig.names()
        assert (happened.count(("get", "urgent")), happened.count(("get", "ahead"))) == (urgent, ahead)


def test_reading_ahead_while_the_device_has_what_is_used(rig):
    rig = rig()
    first, user = rig.save(torch.zeros(2048))
    rig.until(first.stored)
    rig.table.polls = None
    last, other = rig.save(torch.ones(2048))
    rig.path.load(last)
    assert last.tensor is not None and first.reading and rig.path.stats().prefetches == 1


def test_reading_ahead_past_what_needs_no_read(rig):
    """Longer than all that may be read ahead, and on the device still."""
    rig = rig(pinned_bytes=8 * 8192)
    first, user = rig.save(torch.zeros(2048))
    rig.until(first.stored)
    rig.table.polls = None
    long, other = rig.save(torch.ones(5 * 2048))
    last, another = rig.save(torch.ones(2048))
    rig.path.load(last)
    assert long.tensor is not None and first.reading and rig.path.stats().prefetches == 1


def test_what_is_saved_again_during_its_copy_is_read_ahead(rig):
    """Nobody needed it when a step began, and then somebody did."""
    rig = rig(polls=None)
    tensor, users = torch.zeros(2048), [User(), User()]
    first = rig.path.save(tensor, (7, 0), Version(), 0, 8192, users[1])
    rig.path.progress()
    users.pop()
    rig.path.step()
    assert not first.users and first.tensor is not None
    assert rig.path.save(tensor, (7, 0), Version(), 0, 8192, users[0]) is first
    last, user = rig.save(torch.ones(2048))
    rig.table.polls = 0
    rig.until(lambda: first.stored() and last.stored())
    rig.path.load(last)
    assert rig.path.stats().prefetches == 1 and first.reading


def test_without_a_slot_it_reads_into_other_memory(rig):
    rig = rig(pinned_bytes=8192)
    first, user = rig.save(torch.zeros(2048))
    rig.until(first.stored)
    rig.table.polls = None
    second, other = rig.save(torch.ones(2048))  # is being copied for ever
    assert torch.equal(value(rig.path.load(first), torch.zeros(2048)), torch.zeros(2048))
    assert rig.path.stats().reads_outside_pinned == 1


def test_a_read_waits_for_a_request_that_a_write_has(rig):
    rig = rig()
    first, user = rig.save(torch.zeros(2048))
    rig.until(first.stored)
    rig.transfers.hold, rig.transfers.requests_max = True, 1
    second, other = rig.save(torch.ones(2048))
    rig.path.progress()
    assert second.request is not None
    assert torch.equal(value(rig.path.load(first), torch.zeros(2048)), torch.zeros(2048))
    assert rig.transfers.refused == 1 and second.stored()
    assert rig.path.stats().stall_ns > 0 and rig.path._ahead_bytes == 0


def test_a_read_waits_for_a_request_that_another_read_has(rig):
    rig = rig()
    saved = [rig.save(torch.full((2048,), float(i))) for i in range(3)]
    for entry, _ in saved:
        rig.until(entry.stored)
    rig.transfers.hold, rig.transfers.requests_max = True, 1
    for i in (2, 0, 1):  # with 2 the path reads 1 ahead
        assert torch.equal(value(rig.path.load(saved[i][0]), torch.empty(2048)), torch.full((2048,), float(i)))
    assert rig.names().count(("get", "urgent")) == 2 and rig.transfers.refused == 2  # one of them of a guess
    stats = rig.path.stats()
    assert (stats.prefetch_hits, stats.reads_outside_pinned) == (1, 0)


def test_a_read_waits_for_a_request_that_others_have(rig, monkeypatch):
    rig = rig()
    entry, user = rig.save(torch.ones(2048))
    rig.until(entry.stored)
    monkeypatch.setattr(_device, "_LOOKS_MAX", 3)
    rig.transfers.requests_max = 0
    with pytest.raises(spillway.SpillwayError, match="all requests are in use"):  # for ever
        rig.path.load(entry)
    rig.until(lambda: rig.path.stats().pinned_bytes_used == 0)
    assert rig.transfers.refused == 3

    def look(seconds):
        rig.transfers.requests_max = 1

    monkeypatch.setattr(time, "sleep", look)
    assert torch.equal(value(rig.path.load(entry), torch.ones(2048)), torch.ones(2048))


def test_what_is_interrupted_while_it_waits_waits_again(rig, monkeypatch):
    """Ctrl-C comes in during a wait for drives, and is raised after it."""
    rig = rig()
    first, user = rig.save(torch.ones(2048))
    rig.until(first.stored)

    class Interrupted:
        def __getattr__(self, name):
            function = getattr(_library.blocking, name)

            def call(*arguments):
                result = function(*arguments)
                if "wait" in name:
                    monkeypatch.undo()
                    raise KeyboardInterrupt
                return result

            return call

    monkeypatch.setattr(_device, "blocking", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        rig.path.load(first)
    assert torch.equal(value(rig.path.load(first), torch.ones(2048)), torch.ones(2048))
    rig.transfers.hold = True
    second, other = rig.save(torch.zeros(2048))
    rig.path.progress()
    assert second.request is not None
    monkeypatch.setattr(_device, "blocking", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        rig.path.close()
    assert rig.table.pinned
    rig.path.close()
    assert not rig.table.pinned


def test_the_handler_of_a_signal_may_ask_for_counters(rig):
    """It runs between any two instructions, also with the lock held."""
    rig = rig()
    asked = threading.Thread(target=lambda: (rig.path.progress(), rig.path.stats()), daemon=True)
    with rig.path._lock:
        asked.start()
        asked.join(30)
        assert not asked.is_alive()


def test_no_event_is_asked_for_while_a_graph_is_captured(rig):
    rig = rig()
    entry, user = rig.save(torch.zeros(2048))
    rig.table.graph = True
    assert rig.save(torch.ones(2048))[0] is None
    rig.path.progress()
    rig.table.graph = False
    rig.until(entry.stored)


def test_ranges():
    """Against a list of bytes."""
    seed = int(os.environ.get("SPW_SEED", random.randrange(1 << 32)))
    print(f"SPW_SEED={seed}")
    rng = random.Random(seed)
    ranges, used, taken = _device.Ranges(64), [False] * 64, []
    for _ in range(2000):
        if taken and rng.random() < 0.5:
            begin, length = taken.pop(rng.randrange(len(taken)))
            ranges.give(begin, length)
            used[begin : begin + length] = [False] * length
            continue
        length = rng.randint(1, 16)
        begin = ranges.take(length)
        free = "".join("x" if each else "." for each in used)
        assert (begin is None) == ("." * length not in free)
        if begin is not None:
            assert begin == free.index("." * length)
            used[begin : begin + length] = [True] * length
            taken.append((begin, length))


# ---- From the hooks to the drives ----------------------------------------------------------------------------------------


@pytest.fixture
def offload(monkeypatch):
    """As spillway.torch.offload, where every tensor is one of a device."""
    def make(model, store, *, polls=0, waits=False, **options):
        table = Table(polls)
        monkeypatch.setattr(_on_device, "device_table", lambda devices: table)
        off = spillway.torch.offload(model, store, min_bytes=1, **options)
        if waits:
            wait_before_backward(off)
            # 8 KiB take 0.8 ms, and so long again to be read: in the next millisecond they are wanted.
            monkeypatch.setattr(_device_plan.Busy, "bytes_per_second", lambda busy: 10_000_000)
        return off

    return make


def wait_before_backward(off):
    """Drives have done what they were given when the first tensor is used: nothing is kept by chance."""
    path = off._session.device.path
    load = path.load

    def wait_and_load(entry):
        while path._copying or path._writing:
            path.progress()
        return load(entry)

    path.load = wait_and_load


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def gradients(context_of, steps=3):
    model = Layers()
    off = context_of(model)
    for step in range(steps):
        batch = torch.randn(32, 64, generator=torch.Generator().manual_seed(step))
        with off or torch.enable_grad():
            model(batch).pow(2).sum().backward()
    return [parameter.grad for parameter in model.parameters()], off


def left(store, off):
    gc.collect()
    deadline = time.monotonic() + 10
    while True:
        kept = off.device_stats().pinned_bytes_used, store.stats().objects
        if not any(kept) or time.monotonic() > deadline:
            return kept
        time.sleep(0.001)


class Bench:
    """A plan over steps of tensors of 1000 bytes, one saved per millisecond and used in the reverse order."""

    def __init__(self, mode="fastest", memory_bytes=0, polls=0):
        self.table = Table(polls)
        self.plan = _device_plan.DevicePlan(self.table, mode, memory_bytes, 1 << 20, 1)

    def step(self, count=20, *, write=1_000_000, read=1_000_000, stall_ns=0, length=1000):
        """What stays, of the tensors of a step; the speeds and the wait are of the step before."""
        plan, table = self.plan, self.table
        plan.begin_step(write, read, stall_ns)
        kept, rows = [], []
        for _ in range(count):
            kept.append(plan.keeps(length))
            event = table.record_timed(table.main)
            if plan.measures():
                rows.append(plan.saved(length, event))
        for row in reversed(rows):
            plan.used(row, table.record_timed(table.main))
        return kept


def test_what_is_used_first_stays_by_the_plan():
    """A tensor is written in a millisecond and read in another: those saved last would only be waited for."""
    bench = Bench()
    assert not any(bench.step())
    kept = bench.step()
    assert bench.plan.result.feasible and bench.plan.result.stall_ns == 0
    assert kept[-1] and not all(kept) and bench.plan.result.peak_bytes < bench.plan.result.peak_keep_all_bytes == 20_000
    timed = bench.table.timed
    assert bench.step() == kept
    assert bench.table.timed - timed == 20  # the stand-in's own: what is planned for is not measured again


def test_a_budget_writes_as_little_as_it_needs():
    spilled = {}
    for budget in (30_000, 15_000, 8_000):
        bench = Bench("budget", budget)
        bench.step()
        spilled[budget] = bench.step().count(False)
        assert bench.plan.result.peak_bytes <= budget
    assert spilled[30_000] == 0 < spilled[15_000] < spilled[8_000] < 20


def test_without_known_speeds_nothing_is_planned():
    bench = Bench()
    bench.step(write=0, read=0)
    assert not any(bench.step(write=0)) and bench.plan.result is None
    assert any(bench.step(write=1_000_000, read=0))  # that of before counts


def test_a_step_is_planned_when_its_events_have_come():
    bench = Bench(polls=None)
    bench.table.main.given.append(lambda: None)  # is under way
    bench.step()
    assert not any(bench.step()) and bench.plan.result is None
    bench.table.polls = 0
    assert any(bench.step())


def test_another_step_goes_by_the_rule_and_is_planned_anew():
    bench = Bench()
    bench.step()
    assert any(bench.step())
    first = bench.plan.result
    assert not any(bench.step(length=2000))
    assert bench.plan.result is first
    bench.step(length=2000)  # measured: the one before did not go by the plan
    assert any(bench.step(length=2000)) and bench.plan.result is not first


def test_waiting_for_drives_asks_for_another_plan():
    bench = Bench()
    bench.step()
    kept = bench.step()
    bench.step()
    first = bench.plan.result
    assert bench.step(stall_ns=10_000_000) == kept  # is measured again
    slower = bench.step(write=250_000, read=250_000)
    assert bench.plan.result is not first and slower.count(True) > kept.count(True)


def test_waiting_again_and_again_keeps_more_and_more():
    """Though the drives seem to be as fast as they were."""
    bench = Bench()
    bench.step()
    kept = [bench.step().count(True)]
    while kept[-1] < 20 and len(kept) < 60:
        bench.step(stall_ns=10_000_000)  # is measured again
        kept.append(bench.step(stall_ns=10_000_000).count(True))
    assert kept == sorted(kept) and kept[0] < kept[5] < kept[10]
    steps = 0
    while bench.plan._caution < 1.0:
        bench.step()
        steps += 1
    assert 20 <= steps <= 1000


def test_a_step_that_the_planner_refuses_goes_by_the_rule(monkeypatch, caplog):
    bench = Bench()
    monkeypatch.setattr(bench.table, "nanoseconds", lambda begin, end: 1 << 63)
    bench.step()
    with caplog.at_level(logging.WARNING, "spillway"):
        assert not any(bench.step())
    assert "no plan for tensors on the device" in caplog.text


def test_busy_time_is_counted_once():
    busy = _device_plan.Busy()
    assert busy.bytes_per_second() == 0
    for began, ended in ((0, 2_000), (1_000, 3_000)):
        busy.began(began)
    busy.ended(2_000, 600)
    busy.ended(3_000, 0)  # it failed
    busy.began(10_000)
    busy.ended(13_000, 600)
    assert busy.bytes_per_second() == 1200 * 1_000_000_000 // 6_000
    assert busy.bytes_per_second() == 0


def test_a_transfer_under_way_when_the_speed_is_asked_for():
    """Its time is not left out with those that ended while it ran."""
    busy = _device_plan.Busy()
    busy.began(0)
    busy.ended(1_000, 100)
    busy.began(2_000)
    for now in range(3_000, 102_000, 1_000):  # one after the other, without a pause between them
        busy.began(now)
        busy.ended(now, 100)
    assert busy.bytes_per_second() == 100 * 100 * 1_000_000_000 // 100_000
    busy.ended(102_000, 100)
    assert busy.bytes_per_second() == 100 * 1_000_000_000 // 1_000


@pytest.mark.parametrize("mode", ["fastest", "budget"])
def test_gradients_are_the_same_by_a_plan(store, offload, mode):
    expected, _ = gradients(lambda model: None, steps=6)
    options = {"budget_bytes": 100_000} if mode == "budget" else {}
    got, off = gradients(lambda model: offload(model, store, mode=mode, waits=True, **options), steps=6)
    assert all(torch.equal(a, b) for a, b in zip(got, expected))
    assert left(store, off) == (0, 0)
    stats = off.device_stats()
    assert stats.plans > 0 and stats.bytes_kept_planned > 0
    assert mode == "fastest" or stats.plan_peak_bytes <= 100_000
    assert 0 < stats.plan_peak_bytes <= stats.plan_keep_all_bytes


def test_what_a_plan_keeps_is_checked_for_changes(store, offload):
    model, off = Layers(), None
    off = offload(model, store, waits=True, mode="budget", budget_bytes=1 << 30)
    for step in range(4):
        with off:
            loss = model(torch.randn(32, 64)).pow(2).sum()
            if step < 3:
                loss.backward()
    assert off.device_stats().bytes_kept_planned > 0
    path = off._session.device.path
    while path._reading:  # ahead, in a step before, for nothing
        path.progress()
    for entries in path._entries.values():
        for entry in entries:
            assert entry.kept
            entry.tensor.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    del loss


@pytest.mark.parametrize("polls", [0, 3, None])
def test_the_same_gradients_at_any_speed_of_streams(store, offload, polls):
    expected, _ = gradients(lambda model: None)
    got, off = gradients(lambda model: offload(model, store, polls=polls))
    assert all(torch.equal(a, b) for a, b in zip(got, expected))
    off._session.device.path.table.polls = 0
    assert left(store, off) == (0, 0)
    stats = off.device_stats()
    assert stats.tensors_offered > 30 and off.stats().offers == 0
    assert polls != 0 or stats.bytes_spilled > 0
    assert polls is not None or stats.bytes_forwarded > 0


def test_little_pinned_memory_keeps_on_the_device(drives, offload):
    spillway.format_store(drives)
    expected, _ = gradients(lambda model: None)
    with spillway.Store(drives, arena_bytes=16 << 20) as store:
        store.arena_bytes = 32 << 10
        got, off = gradients(lambda model: offload(model, store, polls=20))
        assert off.device_stats().bytes_kept_no_slot > 0
    assert all(torch.equal(a, b) for a, b in zip(got, expected))


def test_any_tensor_comes_back(store, offload):
    off = offload(Nothing(), store)
    spilled = 0
    for tensor in (
        torch.randn(40, 50), torch.randn(40, 50).t(), torch.randn(1, 50).expand(40, 50), torch.arange(4000)[3::7],
        torch.randn(300).to(torch.bfloat16), torch.randn(70).double(), torch.tensor(3.0), torch.rand(99) > 0.5,
        torch.randn(30, dtype=torch.complex64).conj(), torch.randn(30, dtype=torch.complex64).conj().imag,
        torch.randn(100000)[99000:], torch.zeros(0),
    ):
        seen, copy = [], tensor.clone(memory_format=torch.preserve_format)
        with off:
            y = Save.apply(torch.ones(1, requires_grad=True), seen, tensor)
            spilled += tensor.dim() > 0 and tensor.numel() > 0  # numbers stay where they are
            while off.device_stats().tensors_spilled < spilled:
                pass
            y.sum().backward()
        got = seen[0][0]
        assert (got.size(), got.stride()) == (tensor.size(), tensor.stride()), tensor
        assert same_bits(got.contiguous(), copy.contiguous()), tensor
    del y
    assert left(store, off) == (0, 0)


def test_changed_in_place_while_it_is_on_the_device_and_then_gone(store, offload):
    """The tensor that the path still has is the changed one."""
    off = offload(Nothing(), store, polls=None)
    with off:
        y = torch.randn(300, 300, requires_grad=True).exp()
        z = y.sum()
        y.detach().zero_()
        del y
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()
    del z


@pytest.mark.parametrize("stored", [True, False])
def test_changed_in_place(store, offload, stored):
    off = offload(Nothing(), store, polls=0 if stored else None)
    with off:
        y = torch.randn(300, 300, requires_grad=True).exp()
        while stored and off.device_stats().tensors_spilled == 0:
            pass
        y.detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_changed_in_place_before_a_slow_copy_and_then_gone(store, offload):
    """The copy has the changed bytes, and nobody but the path can tell."""
    off = offload(Nothing(), store, polls=None)
    with off:
        y = torch.randn(300, 300, requires_grad=True).exp()
        z = y.sum()
        y.detach().zero_()
        del y
        off._session.device.path.table.polls = 0
        while off.device_stats().tensors_spilled == 0:
            pass
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()
    del z


@pytest.mark.parametrize("polls", [0, None], ids=["stored", "on the device"])
def test_what_was_handed_out_is_held_while_it_may_be_used_again(store, offload, polls):
    """What autograd alone has it changes in place, to add gradients: from PyTorch 2.5 on the next use would be an error."""
    off = offload(Nothing(), store, polls=polls)
    seen = []
    with off:
        y = Save.apply(torch.ones(1, requires_grad=True), seen, torch.randn(3000))
        while polls == 0 and off.device_stats().tensors_spilled == 0:
            pass
    for _ in range(2):
        y.backward(retain_graph=True)
        storage = WeakStorage(storage_of(seen.pop()[0]))
        gc.collect()
        assert not storage.expired()
    y.backward()
    seen.clear()
    off._session.device.path.table.polls = 0
    assert left(store, off) == (0, 0)
    assert storage.expired()


def test_parameters_and_excluded_modules_pass_by(store, offload):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    off = offload(model, store, exclude=[model[1]])
    with off:
        model(torch.randn(8, 64)).sum().backward()
    assert off.device_stats().tensors_offered == 0


def test_a_full_store_keeps_tensors_in_pinned_memory(folder, offload, caplog):
    drives = make_drives(folder, 1, 16 << 20)
    spillway.format_store(drives)
    x = torch.randn(1 << 20, requires_grad=True)  # 4 MiB each

    def run():
        h = x
        for _ in range(8):
            h = h.sin()
        return torch.autograd.grad(h.sum(), x)[0]

    expected = run()
    with spillway.Store(drives) as store, caplog.at_level(logging.WARNING, "spillway"):
        off = offload(Nothing(), store)
        with off:
            off.step()
            assert torch.equal(run(), expected)
            off.step()
        assert off.device_stats().bytes_kept_no_space > 0
    assert "the store is full" in caplog.text


def test_wrong_bytes_of_a_drive_are_an_error(drives, offload):
    spillway.format_store(drives)
    with spillway.Store(drives) as store:
        off = offload(Nothing(), store)
        x = torch.randn(500000, requires_grad=True)
        with off:
            z = x.exp().sum()
            while off.device_stats().tensors_spilled == 0:
                pass
            for path in drives:
                with open(path, "r+b") as file:
                    file.seek(1 << 20)
                    file.write(os.urandom(32 << 20))
            with pytest.raises(RAISED, match=f"Errno {errno.EBADMSG}") as caught:
                z.backward()
        assert any(path in str(caught.value) for path in drives)
        assert x.grad is None and off.device_stats().reads_failed == 1
        del z


def test_a_store_closed_inside_the_context(drives, offload):
    spillway.format_store(drives)
    store = spillway.Store(drives)
    off = offload(Nothing(), store)
    x = torch.randn(1000, requires_grad=True)
    with off:
        y = x.exp().sum()
        store.close()
        with pytest.raises(RAISED, match="Errno 9. the store is closed"):
            y.backward()
    assert not off._session.device.path.table.pinned
    with spillway.Store(drives):  # the drives were given back
        pass


def test_a_device_that_failed_keeps_no_drive(drives, caplog):
    """After an error on the device CUDA answers every call with it."""
    spillway.format_store(drives)
    store = spillway.Store(drives)
    rig = Rig(store, polls=None)
    entry, user = rig.save(torch.zeros(1000))

    def fail(event):
        raise RuntimeError("CUDA error: device-side assert triggered")

    rig.table.finish = fail
    with caplog.at_level(logging.WARNING, "spillway"):
        store.close()
    assert "device-side assert" in caplog.text
    assert not rig.table.pinned
    with spillway.Store(drives):
        pass


@pytest.fixture
def runtime(monkeypatch):
    """A CUDA runtime that pins nothing, and keeps the error until the next kernel asks for it."""
    class Runtime:
        kept = 0

        def fail(self, *_):
            self.kept = 2
            return 2

        cudaHostRegister = cudaHostUnregister = fail

        def kernel(self, *args, **options):
            error, self.kept = self.kept, 0
            if error:
                raise RuntimeError("CUDA error: out of memory")

    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    on_cpu = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *args, **options: (runtime.kernel if options.get("device") == "cuda" else on_cpu)(
        *args, **options))
    return runtime


def test_memory_that_cannot_be_pinned_is_told(store, runtime, monkeypatch, caplog):
    table = Table()
    table.pin = _cuda.Table().pin
    monkeypatch.setattr(_on_device, "device_table", lambda devices: table)
    with caplog.at_level(logging.WARNING, "spillway"):
        off = spillway.torch.offload(Layers(), store)
    assert "tensors on the GPU are kept there (cudaHostRegister() of" in caplog.text
    assert off.device_stats() is None
    runtime.kernel()  # the model's next does not raise


def test_memory_that_cannot_be_unpinned_is_told(runtime, caplog):
    with caplog.at_level(logging.WARNING, "spillway"):
        _cuda.Table().unpin(4096)
    assert "cudaHostUnregister() failed" in caplog.text
    runtime.kernel()


def test_the_report_says_what_became_of_the_devices_tensors(store, offload, capsys):
    _, off = gradients(lambda model: offload(model, store))
    off.report()
    assert "offered on devices" in capsys.readouterr().out


def test_training_on_the_cpu_touches_nothing_of_it(drives):
    spillway.format_store(drives)
    program = """
import sys, torch, spillway.torch
model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.GELU(), torch.nn.Linear(300, 300))
with spillway.Store(sys.argv[1:]) as store:
    off = spillway.torch.offload(model, store, min_bytes=1, mode="spill")
    with off:
        model(torch.randn(300, 300)).sum().backward()
    off.report()
    assert off.stats().offers == 2 and off.device_stats() is None
assert not {"spillway._cuda", "spillway._device", "spillway._device_plan"} & set(sys.modules)
assert not torch.cuda.is_initialized()
"""
    done = subprocess.run([sys.executable, "-c", program, *drives], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    assert done.returncode == 0, done.stderr
