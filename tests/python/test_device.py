# SPDX-License-Identifier: MIT
# tests/python/test_device.py - the way of a GPU's tensors, with calls that need none: their order,
# slow streams, faults
import contextlib
import ctypes
import errno
import gc
import inspect
import io
import json
import logging
import os
import subprocess
import threading
import time
import types
import weakref

import pytest
import torch
from torch import nn

import spillway
import spillway.torch
from conftest import BUILD, make_store, run_python
from offloading import (RAISED, Nothing, Save, WeakStorage, offload_all, offload_each, same_bits,
                        with_sizes)
from spillway._gpu import accelerator, device_tensors
from spillway._core import library
from spillway._core.hooks_loader import hooks
from spillway._core.torch_compat import in_backward, storage_of
from streams import Stream, Table, host_is_device


class Rig:
    """A session in which every tensor is one of a device, and what was asked of that in order."""

    def __init__(self, store, polls=0):
        self.log = []
        self.table = Table(polls, self.log)
        self.off = offload_all(store, Nothing())
        self.session = self.off._session
        host_is_device(self.off, self.table)
        self.device = self.session.device

    def save(self, tensor):
        return self.session.pack(tensor)

    def stats(self):
        return self.off.stats()

    def until(self, state):
        deadline = time.monotonic() + 30
        while not state(self.stats()):
            assert time.monotonic() < deadline, self.stats()

    def stored(self, count):
        """This many are on the drives and nowhere else."""
        self.until(lambda stats: stats.tensors_spilled == count
                   and stats.device_bytes == stats.device_staging_bytes == 0)

    def names(self):
        """What happened since the last call."""
        names = self.log[:]
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
        each.off.close()
        assert not each.table.pins


def test_both_tables_have_the_same_methods():
    def methods(table):
        return {name: list(inspect.signature(function).parameters)
                for name, function in vars(table).items() if callable(function) and name[0] != "_"}

    assert methods(Table) == methods(accelerator.Table)


# ---- Order ---------------------------------------------------------------------------------------


def test_save_and_use_in_order(rig):
    rig = rig()
    expected = torch.randn(1000)
    saved = rig.save(expected.clone())
    assert rig.names() == [("record", "main"), ("wait", "side1", "main"), ("copy", "side1"),
                           ("record", "side1")]
    rig.stored(1)
    assert rig.names() == []
    assert torch.equal(saved.unpack(), expected)
    assert rig.names() == [("empty", "main"), ("record", "main"), ("wait", "side2", "main"),
                           ("copy", "side2"), ("record", "side2"), ("wait", "main", "side2")]
    stats = rig.stats()
    assert (stats.bytes_copied, stats.bytes_spilled, stats.bytes_read) == (4000, 4000, 4000)


def test_nothing_is_written_before_the_copy_has_ended(rig):
    rig = rig(polls=None)
    tensor = torch.randn(1000)
    expected, storage = tensor.clone(), WeakStorage(storage_of(tensor))
    saved = rig.save(tensor)
    del tensor
    for _ in range(100):
        stats = rig.stats()
    assert (stats.copies, stats.tensors_spilled) == (0, 0)
    assert (stats.device_bytes, stats.device_staging_bytes) == (4000, 4000)
    assert not storage.expired()
    rig.table.polls = 0
    rig.stored(1)
    assert storage.expired()
    assert torch.equal(saved.unpack(), expected)


def test_what_the_device_still_has_is_used_from_there(rig):
    rig = rig(polls=None)
    tensor = torch.randn(1000)
    saved = rig.save(tensor)
    rig.names()
    assert saved.unpack().data_ptr() == tensor.data_ptr()
    assert rig.names() == []  # on the stream that it was saved on there is nothing to wait for
    assert rig.stats().bytes_forwarded == 4000
    rig.table.polls = 0
    rig.until(lambda stats: stats.device_staging_bytes == 0)
    assert rig.stats().copies == 1 and rig.stats().tensors_spilled == 0


@pytest.mark.parametrize("other", [False, True])
def test_what_stays_there_asks_nothing_of_the_device(store, other):
    """But an event, if another stream uses it."""
    table = Table()
    table.times = True
    off = offload_each(store, Nothing(), mode="observe")
    host_is_device(off, table)
    tensor = torch.randn(1000)
    saved, again = off._session.pack(tensor), off._session.pack(tensor)
    assert table.log == []
    if other:
        table.main = Stream("other")
    assert saved.unpack().data_ptr() == tensor.data_ptr()
    assert table.log == [("record", "main"), ("wait", "other", "main"), ("keep", "other")] * other
    del saved, again
    off.close()


def test_staging_memory_is_held_until_the_copy_out_of_it_has_ended(rig):
    rig = rig()
    saved = rig.save(torch.zeros(2048))
    rig.stored(1)
    rig.table.polls = None
    # A device that computes for long before it comes to wait.
    rig.table.wait = lambda stream, event: None
    used = saved.unpack()
    del saved
    for _ in range(100):
        assert rig.stats().device_staging_bytes == 8192
    rig.table.polls = 0
    rig.until(lambda stats: stats.device_staging_bytes == 0)
    assert torch.equal(used, torch.zeros(2048))


def test_dropped_during_the_copy_it_is_not_written(rig):
    rig = rig(polls=5)
    saved = rig.save(torch.zeros(2048))
    del saved
    rig.until(lambda stats: stats.entries == 0)
    stats = rig.stats()
    assert (stats.copies, stats.tensors_spilled, stats.device_staging_bytes) == (1, 0, 0)
    assert rig.session.known() == 1


def test_views_of_one_content_are_copied_once(rig):
    rig = rig(polls=4)
    tensor = torch.randn(1000)
    first = rig.save(tensor)
    second = rig.save(tensor[None])
    assert rig.names().count(("copy", "side1")) == 2  # once more, as it may have changed
    third = rig.save(tensor.add_(1))  # another content
    assert third.id != first.id == second.id
    rig.until(lambda stats: stats.tensors_spilled == 2 and stats.device_bytes == 0)


def test_what_is_saved_again_is_copied_again(rig):
    """Changes in between are not counted; once it has left the device they cannot be seen."""
    rig = rig(polls=4)
    tensor = torch.zeros(1000)
    first = rig.save(tensor)
    tensor.data.fill_(2)
    again = rig.save(tensor)
    assert again.id == first.id and rig.stats().bytes_copied_again == 4000
    rig.stored(1)
    tensor.data.fill_(3)
    second = rig.save(tensor)
    rig.stored(2)
    assert [saved.unpack()[999].item() for saved in (first, again, second)] == [2, 2, 3]


def test_what_several_use_is_copied_once(rig):
    """Autograd lets go of each user before the next one comes."""
    rig = rig(polls=4)
    tensor = torch.randn(1000)
    saved = [rig.save(tensor) for _ in range(3)]
    rig.stored(1)
    rig.names()
    while saved:
        assert torch.equal(saved.pop().unpack(), tensor)
    assert rig.names().count(("copy", "side2")) == 1
    rig.until(lambda stats: stats.entries == 0 and stats.device_staging_bytes == 0)
    assert rig.stats().takes == 1 and not rig.device._users


def test_what_a_user_let_go_unused_does_not_stay_on_the_device(rig):
    rig = rig(polls=4)
    tensor = torch.randn(1000)
    saved = [rig.save(tensor) for _ in range(2)]
    rig.stored(1)
    saved[0].unpack()
    users = rig.device._users[saved[0].id]
    assert users.base is not None
    saved.clear()
    rig.stats()
    assert users.base is None and rig.stats().entries == 0


def test_reading_ahead_in_the_reverse_order(rig):
    rig = rig()
    rig.session.cache.call(library.fast.spw_cache_step)
    saved = [rig.save(torch.full((2048,), float(i))) for i in range(12)]
    rig.stored(12)
    for i in reversed(range(12)):
        assert torch.equal(saved.pop().unpack(), torch.full((2048,), float(i)))
    stats = rig.stats()
    assert stats.misses == 1 and stats.prefetches == 11
    rig.until(lambda stats: stats.device_staging_bytes == stats.entries == 0)


def test_a_copy_that_cannot_begin_keeps_the_tensor(rig, caplog):
    rig = rig()

    def fail(to, source, stream):
        raise RuntimeError("CUDA error: no kernel image")

    copy, rig.table.copy = rig.table.copy, fail
    tensor = torch.ones(2048)
    with caplog.at_level(logging.WARNING, "spillway"):
        for _ in range(20):
            saved = rig.save(tensor.clone())
            assert rig.stats().device_staging_bytes == 0
            assert torch.equal(saved.unpack(), tensor)
            rig.session.cache.call(library.fast.spw_cache_step)
    assert rig.stats().copies_failed == 20 and "no kernel image" in caplog.text
    rig.table.copy = copy
    saved = rig.save(tensor)
    rig.stored(1)
    rig.table.copy = fail
    for _ in range(20):
        with pytest.raises(RuntimeError, match="no kernel image"):
            saved.unpack()
        assert rig.stats().device_staging_bytes == 0
    rig.table.copy = copy
    assert torch.equal(saved.unpack(), tensor)


def test_a_copy_that_fails_under_way_keeps_the_tensor(rig, caplog):
    rig = rig()
    tensor = torch.ones(2048)
    saved = rig.save(tensor)

    def fail(event):
        raise RuntimeError("CUDA error: device-side assert triggered")

    rig.table.done = fail
    with caplog.at_level(logging.WARNING, "spillway"):
        assert rig.stats().copies_failed == 1
    assert "device-side assert" in caplog.text
    assert saved.unpack().data_ptr() == tensor.data_ptr()
    assert rig.stats().device_staging_bytes == 0


def test_the_handler_of_a_signal_may_ask_for_counters(rig):
    """It runs between any two instructions, also with the lock held."""
    rig = rig()
    asked = threading.Thread(target=rig.stats, daemon=True)
    with rig.device._lock:
        asked.start()
        asked.join(30)
        assert not asked.is_alive()


def test_no_event_is_asked_for_while_a_graph_is_captured(rig):
    rig = rig()
    tensor = torch.zeros(2048)
    saved = rig.save(tensor)
    rig.table.graph = True
    assert not isinstance(rig.save(torch.ones(2048)), hooks.Saved)
    assert not isinstance(rig.save(tensor), hooks.Saved)  # is asked first
    rig.stats()
    rig.table.graph = False
    rig.stored(1)
    del saved


# ---- Times ---------------------------------------------------------------------------------------


class Timed(Table):
    """A mark is at the time that a clock shows when it is given."""

    times = True

    def __init__(self):
        super().__init__()
        self.now_ns = 0

    def mark(self, stream):
        event = self.record(stream)
        event.ns = self.now_ns
        self.now_ns += 1000
        return event

    def elapsed(self, begin, end):
        return end.ns - begin.ns


@pytest.fixture
def timed(store):
    made = []

    def make(table):
        rig = Rig(store)
        rig.table = table
        host_is_device(rig.off, table)
        rig.device = rig.session.device
        made.append(rig)
        return rig

    yield make
    for each in made:
        each.off.close()


def test_the_bus_and_stalls_are_told(timed):
    rig = timed(Timed())
    for _ in range(3):  # a rate is known when a step has ended
        rig.session.cache.call(library.fast.spw_cache_step)
        saved = [rig.save(torch.zeros(2048)) for _ in range(20)]
        rig.until(lambda stats: stats.staging_bytes == 0 and stats.device_bytes == 0)
        for each in saved:
            each.unpack()
        del saved, each
    stats = rig.stats()
    assert stats.bus_out_bytes_per_second == stats.bus_in_bytes_per_second == 8_192_000_000
    assert stats.device_stall_ns > 0 and stats.device_stall_ns % 1000 == 0
    assert stats.stall_ns == stats.device_stall_ns
    assert "waited for copies" in report_of(rig.off) and "8.19 GB/s out" in report_of(rig.off)


def test_the_clock_stands_until_the_outer_recomputation_ends(timed):
    """One may need what another one discarded."""
    rig = timed(Timed())
    kept, times = rig.save(torch.zeros(2048)), rig.device.port.times
    rig.session.recompute_begin()
    rig.session.recompute_begin()
    rig.session.recompute_end()
    assert times.stands
    rig.session.recompute_end()
    assert not times.stands
    del kept


def report_of(off):
    text = io.StringIO()
    off.report(text)
    return text.getvalue()


@pytest.mark.parametrize("at", range(3))
def test_ctrl_c_while_a_copy_is_timed(timed, at):
    """Its end is seen once more."""

    class Interrupted(Timed):
        until = None  # calls

        def elapsed(self, begin, end):
            if self.until is not None:
                self.until -= 1
                if self.until < 0:
                    self.until = None
                    raise KeyboardInterrupt
            return super().elapsed(begin, end)

    rig = timed(Interrupted())
    tensor, interrupts = torch.ones(2048), 0
    rig.table.until = at
    for _ in range(30):
        try:
            rig.save(tensor.clone()).unpack()
            rig.stats()
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts == 1
    saved = rig.save(tensor.clone())
    assert torch.equal(saved.unpack(), tensor)
    rig.until(lambda stats: stats.device_staging_bytes == 0)


def test_events_that_tell_no_times(timed, caplog):
    """Are asked no more; nothing else changes, and the host's waits are the stalls."""

    class Silent(Timed):
        def elapsed(self, begin, end):
            raise RuntimeError("profiling is off")

    rig = timed(Silent())
    with caplog.at_level(logging.WARNING, "spillway"):
        for _ in range(2):
            rig.session.cache.call(library.fast.spw_cache_step)
            saved = rig.save(torch.ones(2048))
            rig.until(lambda stats: stats.staging_bytes == 0 and stats.device_bytes == 0)
            assert torch.equal(saved.unpack(), torch.ones(2048))
    stats = rig.stats()
    assert caplog.text.count("profiling is off") == 1
    assert (stats.device_stall_ns, stats.host_wait_ns, stats.copies_failed) == (0, 0, 0)
    assert stats.stall_ns > 0 and stats.bus_out_bytes_per_second == 0


# ---- From the hooks to the drives ----------------------------------------------------------------


@pytest.fixture
def offload():
    """As spillway.torch.offload, where every tensor is one of a device."""

    def make(model, store, *, polls=0, waits=False, **options):
        table = Table(polls)
        off = spillway.torch.offload(model, store, **with_sizes(min_bytes=1, **options))
        host_is_device(off, table)
        if waits:
            wait_before_backward(off)
        return off

    return make


def wait_before_backward(off):
    """Drives are idle when the first tensor is used: nothing is kept by chance."""
    table, waits = off._session.device.table, threading.local()
    capturing = table.capturing

    def wait_and_ask():
        """What is asked first, of each use."""
        if in_backward() and not hasattr(waits, "under_way"):
            waits.under_way = True
            while off.stats().staging_bytes:
                pass
            del waits.under_way
        return capturing()

    table.capturing = wait_and_ask


def wait_for_spilled(off, count=1):
    deadline = time.monotonic() + 30
    while off.stats().tensors_spilled < count:
        assert time.monotonic() < deadline


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))
                                    for _ in range(4))

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
        kept = off.device_stats().device_staging_bytes, store.stats().objects
        if not any(kept) or time.monotonic() > deadline:
            return kept
        time.sleep(0.001)


@pytest.mark.parametrize("mode", ["fastest", "budget"])
def test_gradients_are_the_same_by_a_plan(store, offload, mode):
    expected, _ = gradients(lambda model: None, steps=6)
    options = {"budget_bytes": 100_000} if mode == "budget" else {}
    got, off = gradients(lambda model: offload(model, store, mode=mode, waits=True, **options),
                         steps=6)
    assert all(torch.equal(a, b) for a, b in zip(got, expected))
    assert left(store, off) == (0, 0)
    stats = off.stats()
    assert stats.plans > 0 and stats.steps_planned > 0 and stats.bytes_spilled > 0
    assert 0 < stats.plan_peak_bytes <= stats.plan_keep_all_bytes


def test_a_recording_is_planned_behind_a_bus(store, offload, folder):
    """Scopes and tensors of a device are recorded as those in host memory are."""
    path = folder / "step.jsonl.gz"
    _, off = gradients(lambda model: offload(model, store, mode="spill", record=path), steps=3)
    off.close()
    command = [BUILD / "spillway", "plan", "--trace", path, "--explain", "--json", "--budget", "1k"]
    command += ["--bandwidth", "1GB", "--bus", "20GB"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    plan = json.loads(done.stdout)
    assert plan["bus_bytes_per_second"] == 20e9 and plan["peak_keep_bytes"] > 0


def test_hints_hold_on_a_device(store, offload):
    """What an excluded module saves stays there, by a plan, too."""
    model = Layers()
    off = offload(model, store, waits=True, mode="budget", budget_bytes=50_000,
                  exclude=[model.layers[1]])
    for _ in range(50):  # where each of the first has a new plan, as under load
        with off:
            model(torch.randn(32, 64)).pow(2).sum().backward()
        stats = off.stats()
        if stats.steps_planned > 0 and stats.copies > 0:
            break
    assert stats.tensors_kept_hint > 0 and stats.steps_planned > 0 and stats.copies > 0


def test_what_a_plan_keeps_is_checked_for_changes(store, offload):
    model, off = Layers(), None
    off = offload(model, store, waits=True, mode="budget", budget_bytes=1 << 30)
    for step in range(4):
        with off:
            loss = model(torch.randn(32, 64)).pow(2).sum()
            if step < 3:
                loss.backward()
    assert off.stats().bytes_kept_planned > 0
    for tensor in off._session.device.held():
        tensor.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    del loss


@pytest.mark.parametrize("polls", [0, 3, None])
def test_the_same_gradients_at_any_speed_of_streams(store, offload, polls):
    expected, _ = gradients(lambda model: None)
    got, off = gradients(lambda model: offload(model, store, polls=polls, waits=polls == 0))
    assert all(torch.equal(a, b) for a, b in zip(got, expected))
    off._session.device.port.table.polls = 0
    assert left(store, off) == (0, 0)
    stats = off.stats()
    assert stats.offers > 30
    assert polls != 0 or stats.bytes_spilled > 0
    assert polls is not None or stats.bytes_forwarded > 0


def test_little_staging_memory_keeps_on_the_device(formatted, offload):
    expected, _ = gradients(lambda model: None)
    with spillway.Store(formatted) as store:
        all_there_is = []
        for length in (1 << 20, 4 << 10):
            address = ctypes.c_void_p()
            wanted = ctypes.c_void_p(store.handle), ctypes.c_size_t(length), ctypes.byref(address)
            while library.fast.spw_store_alloc(*wanted) == 0:
                all_there_is.append(address.value)
        got, off = gradients(lambda model: offload(model, store, polls=20))
        assert off.device_stats().bytes_kept_no_staging > 0
    assert all(torch.equal(a, b) for a, b in zip(got, expected))


def test_any_tensor_comes_back(store, offload):
    off = offload(Nothing(), store, mode="spill")
    spilled = 0
    for tensor in (torch.randn(40, 50), torch.randn(40, 50).t(), torch.randn(1, 50).expand(40, 50),
                   torch.arange(4000)[3::7], torch.randn(300).to(torch.bfloat16),
                   torch.randn(70).double(), torch.tensor(3.0), torch.rand(99) > 0.5,
                   torch.randn(30, dtype=torch.complex64).conj(),
                   torch.randn(30, dtype=torch.complex64).conj().imag, torch.randn(100000)[70000:],
                   torch.zeros(0)):
        seen, copy = [], tensor.clone(memory_format=torch.preserve_format)
        with off:
            off.step()
            y = Save.apply(torch.ones(1, requires_grad=True), seen, tensor)
            spilled += tensor.dim() > 0 and tensor.numel() > 0  # numbers stay where they are
            wait_for_spilled(off, spilled)
            y.sum().backward()
        got = seen[0][0]
        assert (got.size(), got.stride()) == (tensor.size(), tensor.stride()), tensor
        assert same_bits(got.contiguous(), copy.contiguous()), tensor
    del y
    assert left(store, off) == (0, 0)


@pytest.mark.parametrize("copied", [False, True])
def test_changed_in_place_on_the_device_and_then_gone(store, offload, copied):
    """Only the path can tell: it still has the tensor, or a copy of the changed bytes."""
    off = offload(Nothing(), store, polls=None)
    with off:
        y = torch.randn(300, 300, requires_grad=True).exp()
        z = y.sum()
        y.detach().zero_()
        del y
        if copied:
            off._session.device.port.table.polls = 0
            wait_for_spilled(off)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()
    del z


@pytest.mark.parametrize("stored", [True, False])
def test_changed_in_place(store, offload, stored):
    off = offload(Nothing(), store, polls=0 if stored else None)
    with off:
        y = torch.randn(300, 300, requires_grad=True).exp()
        if stored:
            wait_for_spilled(off)
        y.detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.parametrize("polls", [0, None], ids=["stored", "on the device"])
def test_what_was_handed_out_is_held_while_it_may_be_used_again(store, offload, polls):
    """What autograd alone has it changes in place, to add gradients: from PyTorch 2.5 on the next
    use would be an error."""
    off = offload(Nothing(), store, polls=polls)
    seen = []
    with off:
        y = Save.apply(torch.ones(1, requires_grad=True), seen, torch.randn(3000))
        if polls == 0:
            wait_for_spilled(off)
    for _ in range(2):
        y.backward(retain_graph=True)
        storage = WeakStorage(storage_of(seen.pop()[0]))
        gc.collect()
        assert not storage.expired()
    y.backward()
    seen.clear()
    off._session.device.port.table.polls = 0
    assert left(store, off) == (0, 0)
    assert storage.expired()


def test_parameters_and_excluded_modules_pass_by(store, offload):
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    off = offload(model, store, exclude=[model[1]])
    with off:
        model(torch.randn(8, 64)).sum().backward()
    assert off.stats().bytes_copied == 0


def test_a_full_store_keeps_tensors_in_pinned_memory(folder, offload, caplog):
    drives = make_store(folder, 1, 16 << 20)
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
        assert off.stats().bytes_kept_no_space > 0
    assert "no space on the drives: tensors stay in memory" in caplog.text


def test_wrong_bytes_of_a_drive_are_an_error(formatted, offload):
    with spillway.Store(formatted) as store:
        off = offload(Nothing(), store)
        x = torch.randn(500000, requires_grad=True)
        with off:
            z = x.exp().sum()
            wait_for_spilled(off)
            for path in formatted:
                with open(path, "r+b") as file:
                    file.seek(1 << 20)
                    file.write(os.urandom(32 << 20))
            with pytest.raises(RAISED, match=f"Errno {errno.EBADMSG}") as caught:
                z.backward()
        assert any(path in str(caught.value) for path in formatted)
        assert x.grad is None and off.stats().reads_failed == 1
        del z


def test_a_store_closed_inside_the_context(formatted, offload):
    store = spillway.Store(formatted)
    off = offload(Nothing(), store)
    x = torch.randn(1000, requires_grad=True)
    with off:
        y = x.exp().sum()
        store.close()
        with pytest.raises(RAISED, match="Errno 9. the tensor cache is closed"):
            y.backward()
    assert not off._session.device.port.table.pins
    with spillway.Store(formatted):  # the drives were released
        pass


def test_a_device_that_failed_keeps_no_drive(formatted, caplog):
    """After an error on the device CUDA answers every call with it."""
    store = spillway.Store(formatted)
    rig = Rig(store, polls=None)
    saved = rig.save(torch.zeros(1000))

    def fail(event):
        raise RuntimeError("CUDA error: device-side assert triggered")

    rig.table.finish = fail
    with caplog.at_level(logging.WARNING, "spillway"):
        store.close()
    assert "device-side assert" in caplog.text
    assert not rig.table.pins
    with spillway.Store(formatted):
        pass


class Runtime:
    """A CUDA runtime that pins nothing, and keeps the error until the next kernel asks for it."""

    kept = 0
    current = None

    def __init__(self):
        self.asked_on = []

    @contextlib.contextmanager
    def device(self, device):
        before, self.current = self.current, device
        yield
        self.current = before

    def fail(self, *_):
        self.asked_on.append(self.current)
        self.kept = 2
        return 2

    cudaHostRegister = cudaHostUnregister = fail

    def kernel(self, *args, **options):
        error, self.kept = self.kept, 0
        if error:
            raise RuntimeError("CUDA error: out of memory")


@pytest.fixture
def runtime(monkeypatch):
    """And a table of it."""
    runtime, table = Runtime(), accelerator.Table("cuda")
    table.module = types.SimpleNamespace(device=runtime.device, cudart=lambda: runtime)
    on_cpu = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *args, device=None, dtype=None: (
        runtime.kernel if device == "gpu" else on_cpu)(*args))
    return runtime, table


def test_memory_that_cannot_be_pinned_is_told(store, runtime, monkeypatch, caplog):
    runtime, table = runtime
    monkeypatch.setattr(accelerator, "table_of", lambda kind: table)
    caplog.set_level(logging.WARNING, "spillway")
    with spillway.torch.offload(Layers(), store) as off:
        gpu = types.SimpleNamespace(type="gpu")
        assert device_tensors.device_tensors(gpu, off._session.cache) is None
    assert "tensors on gpu are kept there: cudaHostRegister() of" in caplog.text
    # Not on the first device, which would make a context there in each rank.
    assert [device.type for device in runtime.asked_on] == ["gpu"]
    with pytest.raises(RuntimeError, match="out of memory"):
        runtime.kernel()  # the pending error was not asked for


def test_memory_that_cannot_be_unpinned_is_told(runtime, caplog):
    runtime, table = runtime
    with caplog.at_level(logging.WARNING, "spillway"):
        table.unpin("gpu", 4096)
    assert "cudaHostUnregister() failed" in caplog.text and runtime.asked_on == ["gpu"]
    runtime.kernel()  # the model's next does not raise


def test_a_device_without_streams_is_told(store, caplog):
    off = spillway.torch.offload(Layers(), store)
    with caplog.at_level(logging.WARNING, "spillway"):
        mps = types.SimpleNamespace(type="mps")
        assert device_tensors.device_tensors(mps, off._session.cache) is None
    assert "tensors on mps are kept there: " in caplog.text


def test_of_a_device_that_serves_nobody_all_is_kept(store):
    off = offload_each(store, Layers())
    with off:
        y = Save.apply(torch.ones(1, requires_grad=True), [], torch.empty(99, device="meta"))
        y = Save.apply(y, [], torch.empty(99, device="meta"))
    assert off.device_stats() is None and off.stats().offers == 0
    del y


def test_the_report_says_what_became_of_the_devices_tensors(store, offload, capsys):
    _, off = gradients(lambda model: offload(model, store))
    off.report()
    assert "on devices, peak" in capsys.readouterr().out


def test_training_on_the_cpu_touches_nothing_of_it(formatted):
    program = """
import sys, torch, spillway.torch
model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.GELU(), torch.nn.Linear(300, 300))
with spillway.Store(sys.argv[1:]) as store:
    off = spillway.torch.offload(model, store, mode="spill",
                                 sizes=spillway.torch.Sizes(min_bytes=1))
    with off:
        model(torch.randn(300, 300)).sum().backward()
    off.report()
    assert off.stats().offers == 2 and off.device_stats() is None
assert not [name for name in sys.modules if name.startswith("spillway._gpu.")]
assert not torch.cuda.is_initialized()
"""
    done = run_python("-c", program, *formatted)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("when", ["copy", "record"])
def test_a_copy_that_is_interrupted_has_ended(rig, when, monkeypatch):
    """Its memory is reused soon."""
    rig = rig(polls=None)
    staging, begun, copy = [], getattr(rig.table, when), rig.table.copy

    def copied(to, source, stream):
        staging.append(to)
        copy(to, source, stream)

    monkeypatch.setattr(rig.table, "copy", copied)
    begun = getattr(rig.table, when)

    def interrupted(*args):
        result = begun(*args)
        if when == "copy" or args[0] is not rig.table.main:
            monkeypatch.setattr(rig.table, when, begun)
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(rig.table, when, interrupted)
    tensor = torch.arange(1000.0)
    with pytest.raises(KeyboardInterrupt):
        rig.save(tensor)
    assert torch.equal(staging[0], tensor)
    stats = rig.stats()
    assert (stats.entries, stats.device_staging_bytes, stats.copies) == (0, 0, 0)
    staging[0].zero_()
    saved = rig.save(tensor.clone())
    assert not staging[1].any()
    rig.table.polls = 0
    rig.stored(1)
    assert torch.equal(staging[1], tensor) and torch.equal(saved.unpack(), tensor)


def test_a_copy_in_comes_after_the_copy_out(rig):
    """Of a host so far ahead that the memory of the first is let go."""
    rig = rig(polls=None)
    wait = rig.table.wait

    def wait_late(stream, event):
        """The stream that computes has much to do before it comes to wait."""
        if stream is not rig.table.main or event.stream.name != "side1":
            wait(stream, event)

    rig.table.wait = wait_late
    saved = [rig.save(torch.full((1000,), float(i))) for i in range(3)]
    stats = rig.stats()
    assert (stats.copies_ordered, stats.copies) == (1, 0)
    rig.names()
    assert torch.equal(saved[0].unpack(), torch.zeros(1000))
    names = rig.names()
    assert names.index(("wait", "side2", "side1")) < names.index(("copy", "side2"))


def test_a_copy_in_that_nobody_used_comes_before_its_memory_is_anybody_elses(rig):
    rig = rig()
    rig.session.cache.call(library.fast.spw_cache_step)
    saved = [rig.save(torch.full((1000,), float(i))) for i in range(6)]
    rig.stored(6)
    saved.pop().unpack()
    rig.until(lambda stats: stats.bytes_read == 6 * 4000)  # what is in memory is copied ahead
    saved.pop().unpack()
    rig.until(lambda _: any(rig.device._users[each.id].base is not None for each in saved))
    bases = [rig.device._users[each.id].base for each in saved]
    bases = [weakref.ref(base) for base in bases if base is not None]
    rig.names()
    saved.clear()
    rig.stats()
    assert rig.names().count(("wait", "main", "side2")) == len(bases) > 0
    assert all(base() is None for base in bases)


def test_all_copies_of_a_tensor_let_go_of_its_memory(rig):
    rig = rig(polls=None)
    # The device has much to do: of copies and waits it has no more than addresses and events.
    rig.table.copy = lambda to, source, stream: rig.log.append(("copy", stream.name))
    rig.table.wait = lambda stream, event: None
    rig.table.done = lambda event: False
    tensor = torch.randn(1000)
    saved = [rig.save(each) for each in (tensor, tensor[None], tensor[:, None])]
    storage = WeakStorage(storage_of(tensor))
    assert rig.names().count(("copy", "side1")) == 3
    del tensor
    saved += [rig.save(torch.zeros(1000)) for _ in range(2)]
    assert rig.stats().copies_ordered > 0 and storage.expired()
