# SPDX-License-Identifier: MIT
# tests/python/test_host_memory.py - copies of a GPU's tensors that stay in host memory, with calls
# that need no GPU
import gc
import io
import logging

import pytest
import torch
from torch import nn

import spillway
import spillway.torch
from conftest import make_store
from offloading import (RAISED, Layers, Nothing, Save, assert_same_run, left_in, same_bits, trained,
                        with_sizes)
from spillway._core import free_memory
from spillway._gpu import host_memory
from streams import Table, host_is_device

MIB = 1 << 20


class Refusing(Table):
    """Pins no more than so much at once, and in all."""

    def __init__(self, at_once, in_all):
        super().__init__()
        self.at_once, self.in_all, self.tried = at_once, in_all, []

    def pin(self, device, address, length):
        self.tried.append(length)
        if length > self.at_once or length + sum(self.pins.values()) > self.in_all:
            raise RuntimeError("the system pins no more")
        super().pin(device, address, length)


@pytest.fixture
def offload():
    """As spillway.torch.offload, where every tensor is one of a device."""
    made = []

    def make(model, store, host_bytes="8MiB", table=None, polls=0, **options):
        table = Table(polls) if table is None else table
        off = spillway.torch.offload(model, store, host_bytes=host_bytes,
                                     **with_sizes(min_bytes=1, **options))
        host_is_device(off, table)
        made.append(off)
        return off

    yield make
    for off in made:
        table = off._session.device.table
        off.close()
        assert not table.pins


def sent_to_drives(stats):
    """Tensors; slow drives may have written none of them before all were used."""
    return stats.tensors_spilled + stats.tensors_forwarded


def drawn():
    generator = torch.Generator().manual_seed(7)
    return lambda: torch.randn(32, 100, generator=generator)


def layers():
    torch.manual_seed(1)
    return Layers()


def pieces(off):
    return [length for _, length in off._session.device.port._host.pieces]


# ---- Training ------------------------------------------------------------------------------------


@pytest.mark.parametrize("polls", [0, 3, None])
def test_nothing_is_written_where_all_has_room(store, offload, polls):
    expected = trained(layers(), drawn(), steps=5)
    run = trained(layers(), drawn(), lambda model: offload(model, store, polls=polls), steps=5)
    assert_same_run(run, expected)
    run.off._session.device.port.table.polls = 0
    assert left_in(run.off) == (0, 0, 0)
    stats = run.off.stats()
    assert stats.bytes_spilled == stats.bytes_read == stats.host_bytes == 0
    assert polls is None or 0 < stats.bytes_to_host <= stats.bytes_copied
    assert stats.host_memory_bytes == 8 * MIB


@pytest.mark.parametrize("mode", ["fastest", "budget"])
def test_without_drives(offload, mode):
    options = {"budget_bytes": 50_000} if mode == "budget" else {}
    expected = trained(layers(), drawn(), steps=5)
    run = trained(layers(), drawn(), lambda model: offload(model, None, mode=mode, **options),
                  steps=5)
    assert_same_run(run, expected)
    assert left_in(run.off) == (0, 0, 0)
    assert run.off.stats().host_hits > 0


@pytest.mark.parametrize("mode", ["spill", "fastest"])
def test_what_has_no_room_is_written(store, offload, mode):
    model, x = Nothing(), torch.randn(300_000, requires_grad=True)  # 1.1 MiB: two fit

    def run():
        h = x
        for _ in range(6):
            h = h.sin()
        return torch.autograd.grad(h.sum(), x)[0]

    expected = run()
    off = offload(model, store, "4MiB", mode=mode)
    for _ in range(3):
        with off:
            off.step()
            assert torch.equal(run(), expected)
    stats = off.stats()
    assert stats.tensors_to_host > 0 and sent_to_drives(stats) > 0
    assert stats.host_bytes_max <= stats.host_memory_bytes == 4 * MIB


def test_what_has_no_room_stays_without_drives(offload):
    x = torch.randn(300_000, requires_grad=True)
    off = offload(Nothing(), None, "2MiB")
    with off:
        off.step()
        h = x
        for _ in range(6):
            h = h.sin()
        h.sum().backward()
    stats = off.stats()
    assert stats.tensors_to_host == 1 and stats.tensors_kept_no_staging == 4  # x is a leaf


def test_drives_that_are_full_are_not_needed(folder, offload):
    """What stays in host memory does not notice."""
    with spillway.Store(make_store(folder, 1, 16 << 20)) as store:
        x = torch.randn(MIB, requires_grad=True)  # 4 MiB each
        off = offload(Nothing(), store, "64MiB", mode="spill")
        with off:
            off.step()
            h = x
            for _ in range(8):
                h = h.sin()
            h.sum().backward()
        assert off.stats().tensors_to_host == 7 and off.stats().bytes_kept_no_space == 0


def test_any_tensor_comes_back(offload):
    off = offload(Nothing(), None)
    hosted = 0
    for tensor in (torch.randn(40, 50), torch.randn(40, 50).t(), torch.randn(1, 50).expand(40, 50),
                   torch.arange(4000)[3::7], torch.randn(300).to(torch.bfloat16),
                   torch.rand(99) > 0.5, torch.randn(30, dtype=torch.complex64).conj().imag,
                   torch.randn(100000)[70000:]):
        seen, copy = [], tensor.clone(memory_format=torch.preserve_format)
        with off:
            off.step()
            y = Save.apply(torch.ones(1, requires_grad=True), seen, tensor)
            hosted += 1
            assert off.stats().tensors_to_host == hosted
            y.sum().backward()
        got = seen[0][0]
        assert (got.size(), got.stride()) == (tensor.size(), tensor.stride()), tensor
        assert same_bits(got.contiguous(), copy.contiguous()), tensor
    del y
    assert off.stats().host_hits == hosted


def test_used_again_and_differentiated_twice(offload):
    def run():
        x = torch.randn(300, 300, generator=torch.Generator().manual_seed(2), requires_grad=True)
        y = (x.exp() * x.sin()).sum()
        first, = torch.autograd.grad(y, x, retain_graph=True)
        again, = torch.autograd.grad(y, x, create_graph=True)
        return first, again, *torch.autograd.grad(again.square().sum(), x)

    expected = run()
    off = offload(Nothing(), None)
    for _ in range(3):
        with off:
            off.step()
            assert all(map(torch.equal, run(), expected))
    assert off.stats().host_hits > 0
    gc.collect()
    assert off.stats().host_bytes == 0


@pytest.mark.parametrize("polls", [0, None], ids=["in host memory", "on the device"])
def test_changed_in_place(offload, polls):
    off = offload(Nothing(), None, polls=polls)
    with off:
        y = torch.randn(300, 300, requires_grad=True).exp()
        assert off.stats().tensors_to_host == (polls == 0)
        y.detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_an_exception_in_the_middle_leaves_nothing(offload):
    class Failing(Layers):
        def forward(self, x):
            for layer in self.layers[:2]:
                x = layer(x)
            raise ValueError("in the middle")

    off = offload(Failing(), None)
    for _ in range(3):
        with pytest.raises(ValueError, match="in the middle"), off:
            off._model(torch.randn(32, 100))
        gc.collect()
        assert left_in(off) == (0, 0, 0)
        assert off.stats().host_bytes == 0
    assert off.stats().tensors_to_host > 0


def test_closed_with_copies_in_it(offload):
    off = offload(Nothing(), None)
    table = off._session.device.table
    with off:
        y = torch.randn(300, 300, requires_grad=True).exp().sum()
    assert off.stats().host_bytes > 0 and table.pins
    off.close()
    assert not table.pins
    with pytest.raises(RAISED, match="Errno 9. the tensor cache is closed"):
        y.backward()


# ---- How much of it there is ---------------------------------------------------------------------


@pytest.mark.parametrize("value,error,words", [
    (0, ValueError, "at least 2.0 MiB, not 0 B: leave it out"),
    ("0", ValueError, "at least 2.0 MiB"),
    (1 << 20, ValueError, "at least 2.0 MiB, not 1.0 MiB"),
    (-1, ValueError, "host_bytes must not be negative"),
    ("-4GiB", ValueError, "host_bytes must be bytes, or a size like"),
    ("lots", ValueError, "host_bytes must be bytes, or a size like"),
    (True, TypeError, "host_bytes must be bytes, or a size like"),
    (False, TypeError, "not False"),
    (1.5e9, TypeError, "float"),
    (float("nan"), TypeError, "float"),
    ("4096TiB", ValueError, "and this machine has"),
    (1 << 63, ValueError, "and this machine has"),
])
def test_nonsense_is_refused(drives, value, error, words):
    """Before drives are opened, which are not formatted."""
    for store in (None, drives):
        with pytest.raises(error, match=words):
            spillway.torch.offload(nn.Linear(1, 1), store, host_bytes=value)


def test_it_does_not_make_up_for_a_store_in_every_mode():
    with pytest.raises(ValueError, match="a store is needed"):
        spillway.torch.offload(nn.Linear(1, 1), None, mode="spill", host_bytes="8MiB")
    with pytest.raises(ValueError, match="host_bytes= for a model on a GPU"):
        spillway.torch.offload(nn.Linear(1, 1), None)


def test_all_at_once(offload, caplog):
    with caplog.at_level(logging.INFO, "spillway"):
        off = offload(layers(), None, "200MiB")
    assert pieces(off) == [200 * MIB]
    assert "host memory: 200.0 MiB are pinned for cpu" in caplog.text


def test_pinned_in_pieces_where_the_system_refuses_more(offload, caplog):
    table = Refusing(at_once=64 * MIB, in_all=150 * MIB)
    with caplog.at_level(logging.WARNING, "spillway"):
        off = offload(layers(), None, "256MiB", table)
    assert pieces(off) == [64 * MIB, 64 * MIB]
    assert table.tried == [256 * MIB, 128 * MIB, 64 * MIB, 64 * MIB, 64 * MIB, 32 * MIB]
    assert off.stats().host_memory_bytes == 128 * MIB
    assert ("of the 256.0 MiB of host_bytes 128.0 MiB could be pinned for cpu, and are used: the "
            "system pins no more") in caplog.text
    run = trained(off._model, drawn(), lambda model: off)
    assert_same_run(run, trained(layers(), drawn()))
    assert off.stats().tensors_to_host > 0


def test_a_system_that_pins_nothing(store, offload, caplog):
    """Training goes on: on the drives, whose arena is pinned, or on the device."""
    for drives in (store, None):
        table = Refusing(at_once=store.arena_bytes, in_all=store.arena_bytes)
        table.at_once = store.arena_bytes if drives else 0
        caplog.clear()
        off = offload(layers(), drives, "512MiB" if drives else "64MiB", table,
                      mode="spill" if drives else "fastest")
        assert "0 B could be pinned" in caplog.text
        run = trained(off._model, drawn(), lambda model: off)
        assert_same_run(run, trained(layers(), drawn()))
        stats = off.stats()
        assert stats.tensors_to_host == 0
        assert (sent_to_drives(stats) > 0) == (drives is not None)
        off.close()


def test_not_more_than_is_free(offload, monkeypatch, caplog):
    monkeypatch.setattr(host_memory, "free_memory", lambda: 80 * MIB)
    with caplog.at_level(logging.WARNING, "spillway"):
        off = offload(layers(), None, "1GiB")
    assert pieces(off) == [70 * MIB]
    assert ("host_bytes is 1.0 GiB, but this process and its control groups have 80.0 MiB of "
            "memory free: 70.0 MiB are pinned") in caplog.text


def test_not_what_others_are_going_to_take(offload, monkeypatch, caplog):
    class Taker:
        bytes_to_come = 48 * MIB

    taker = Taker()
    free_memory.takers.add(taker)
    monkeypatch.setattr(host_memory, "free_memory", lambda: 80 * MIB)
    off = offload(layers(), None, "64MiB")
    assert pieces(off) == [28 * MIB]
    assert "80.0 MiB of memory free, and 48.0 MiB of that are for parameters of" in caplog.text
    off.close()
    taker.bytes_to_come = 81 * MIB
    assert host_memory.allowed(MIB, MIB, "are used") == 0
    assert host_memory.allowed(MIB, MIB, "are used", taker) == MIB
    del taker
    assert host_memory.allowed(MIB, MIB, "are used") == MIB


def test_ctrl_c_while_it_is_pinned(offload):
    class Interrupted(Table):
        def pin(self, device, address, length):
            if self.pins:
                raise KeyboardInterrupt
            if length > 32 * MIB:
                raise RuntimeError("the system pins no more")
            super().pin(device, address, length)

    off = spillway.torch.offload(layers(), None, host_bytes="64MiB")
    table = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        host_is_device(off, table)
    assert not table.pins and off.stats().host_memory_bytes == 0
    off.close()


def test_a_watching_cache_pins_nothing(offload):
    off = offload(layers(), None, mode="observe")
    assert not off._session.device.table.pins
    run = trained(off._model, drawn(), lambda model: off)
    assert_same_run(run, trained(layers(), drawn()))
    assert off.stats().bytes_copied == 0


# ---- What is told of it --------------------------------------------------------------------------


def test_the_report_says_what_stayed(offload):
    run = trained(layers(), drawn(), lambda model: offload(model, None))
    text = io.StringIO()
    run.off.report(text)
    stats = run.off.stats()
    rows = dict(line.split("  ", 1) for line in map(str.strip, text.getvalue().splitlines())
                if "  " in line)
    assert rows["host memory, peak"].strip().endswith("of 8.0 MiB")
    assert rows["stayed there, not written"].strip().endswith(f"in {stats.tensors_to_host} tensors")
    assert rows["came back from there"].strip() == f"{stats.host_hits} times"
    assert run.off.device_stats().bytes_to_host == stats.bytes_to_host


def test_a_model_without_a_device_is_told(store, caplog):
    """Once, in the log, and in reports."""
    for drives in None, store:
        caplog.clear()
        with spillway.torch.offload(layers(), drives, host_bytes="8MiB") as off:
            assert not caplog.text
            for _ in range(3):
                with off:
                    off._model(torch.randn(4, 100)).sum().backward()
            text = io.StringIO()
            off.report(text)
        assert "hint: host_bytes has no use" in text.getvalue()
        assert caplog.text.count("host_bytes has no use: it keeps copies of tensors of a GPU") == 1
        assert ("Without drives all stays in memory" in caplog.text) == (drives is None)


def test_a_model_that_moves_to_a_device_is_not_told_any_more(caplog):
    with spillway.torch.offload(layers(), None, host_bytes="8MiB") as off:
        for moves in False, True:
            if moves:
                host_is_device(off, Table())
            with off:
                off._model(torch.randn(4, 100)).sum().backward()
        text = io.StringIO()
        off.report(text)
    assert caplog.text.count("host_bytes has no use") == 1
    assert "host_bytes has no use" not in text.getvalue()
