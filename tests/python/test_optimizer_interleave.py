# SPDX-License-Identifier: MIT
# tests/python/test_optimizer_interleave.py - tiles that a device steps while the host steps others
"""The device is the host's memory: a copy back from it happens when it is waited for, or asked for
often enough. tests/device has a device of its own."""
import contextlib
import gc
import logging

import pytest
import torch

import spillway
import spillway.torch
from fake_state import FakeStore
from pairs import each_class, give_grads, made, over, pair_of
from spillway._optim import interleaved as interleaved_module
from spillway._gpu import accelerator


class Stream:
    def __init__(self):
        self.given = []

    def run(self):
        while self.given:
            self.given.pop(0)()


class Event:
    def __init__(self, stream):
        self.stream, self.polls = stream, 0


class Table:
    """polls: how often an event is asked for before it has come; bytes_max: memory of the device.
    fail: called before each call, by name."""

    times = True

    def __init__(self, polls=1, bytes_max=1 << 40, fail=lambda name: None):
        self.polls, self.bytes_max, self.fail = polls, bytes_max, fail
        self.main, self.out = Stream(), 0

    def current_stream(self, device):
        return self.main

    def new_stream(self, device):
        return Stream()

    def record(self, stream):
        self.fail("record")
        return Event(stream)

    mark = record

    def wait(self, stream, event):
        self.fail("wait")

    def elapsed(self, begin, end):
        return 7

    def done(self, event):
        self.fail("done")
        event.polls += 1
        if event.polls > self.polls:
            event.stream.run()
        return not event.stream.given

    def finish(self, event):
        event.stream.run()
        self.fail("finish")

    @contextlib.contextmanager
    def on(self, stream):
        stream.run()
        yield

    def copy(self, to, source, stream):
        self.fail("copy")
        stream.given.append(lambda: to.copy_(source))

    def empty(self, shape, stream):
        if shape[1][0] > self.bytes_max:
            raise RuntimeError("out of memory")
        return torch.full(shape[1], 0xEE, dtype=shape[0])


@pytest.fixture(autouse=True)
def fake(fake_state, monkeypatch):
    torch.manual_seed(1)
    monkeypatch.setattr(interleaved_module, "device_of", lambda params: torch.device("cpu"))
    monkeypatch.setattr(interleaved_module, "pin", lambda table, device, store: (4096, 1 << 20))
    monkeypatch.setattr(interleaved_module, "unpin", lambda store, address: None)
    yield
    gc.collect()  # what is closed then is of this device


@pytest.fixture
def table(monkeypatch):
    made_here = Table()
    monkeypatch.setattr(accelerator, "table_of", lambda kind: made_here)
    return made_here


class Store(FakeStore):
    """With what is closed before it."""

    def __init__(self):
        super().__init__()
        self.dependents = []

    def add_dependent(self, dependent):
        self.dependents.append(dependent)

    def drop_dependent(self, dependent):
        self.dependents.remove(dependent)


def interleaved(ours=None, interleave=3, tile=997, store=None, **options):
    return over(made()[0] if ours is None else ours, store=store or Store(), tile=tile,
                interleave=interleave, **options)


def pair_with(params=(), interleave=3, tile=997, **options):
    return pair_of(*(params or made()), store=Store(), tile=tile, interleave=interleave, **options)


# ---- The same numbers ----------------------------------------------------------------------------


@each_class
def test_bits_are_those_of_the_class(name, options, table):
    pair = pair_with(cls=getattr(torch.optim, name), **options)
    pair.train(4, none=0.3)
    pair.same_state()
    if name != "SGD" or "momentum" in options:
        assert pair.state.times


@pytest.mark.parametrize("polls", [0, 1000])
def test_a_device_may_be_early_or_late(polls, table):
    table.polls = polls
    pair = pair_with()
    pair.train(3, none=0.3)
    pair.same_state()


def test_masters_are_stepped_on_the_device(table):
    pair = pair_with(made(dtype=torch.bfloat16), 2, masters=True)
    pair.train(4)
    assert len(pair.state.times) > 4 * 30


def test_a_record_is_back_when_the_copy_back_has_ended(table):
    """FakeState refuses what was changed unsaid, and what it is given twice."""
    table.polls = 1000  # so it is waited for
    pair = pair_with(interleave=4)
    pair.train(1)
    state = pair.state
    assert not state.taken
    gives = [record for record, _ in state.gives]
    for record in state.on_device:  # the host has stepped three more, or the step has ended
        others = [other for other in range(record + 1, record + 4) if other in gives]
        assert all(gives.index(other) < gives.index(record) for other in others)
    assert {nanoseconds for _, nanoseconds in state.times} == {7}


# ---- What goes wrong -----------------------------------------------------------------------------


def test_a_drive_that_fails_meanwhile(table):
    pair = pair_with()
    for step in range(4):
        pair.give_grads()
        if step:
            with pair.drive_fails(5 * step):
                pair.optimizer.step()
            assert not pair.state.taken
        pair.step()
    pair.same_state()


def test_a_device_without_memory_leaves_all_to_the_host(table, caplog):
    table.bytes_max = 0
    pair = pair_with()
    pair.train(3)
    assert not pair.state.times
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1 and "the device has no" in said[0] and "smaller tile=" in said[0]


@pytest.mark.parametrize("why", ["no streams", "no times", "no arithmetic"])
def test_a_device_that_cannot_leaves_all_to_the_host(why, monkeypatch, table, caplog):
    def no_table(kind):
        raise RuntimeError("PyTorch has no streams of it")

    def no_arithmetic(*_):
        raise RuntimeError("not implemented there")

    if why == "no streams":
        monkeypatch.setattr(accelerator, "table_of", no_table)
    elif why == "no times":
        table.times = False
    else:
        monkeypatch.setattr(spillway.optimizer, "is_same_on", no_arithmetic)
    pair_with().train(2)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "the host steps all tiles" in caplog.text


@pytest.mark.parametrize("call", range(0, 60, 3))
def test_an_interrupt_ends_a_step_and_nothing_else(call, table):
    """Whole and to be gone on with, or not whole, which is said; the record is back."""
    calls = [call]

    def fail(_):
        calls[0] -= 1
        if calls[0] < 0:
            table.fail = lambda name: None
            raise KeyboardInterrupt

    store = Store()
    ours, _ = made()
    tiled = interleaved(ours, store=store, tile=1997)
    give_grads(ours)
    tiled.step()
    table.fail = fail
    give_grads(ours)
    with pytest.raises(KeyboardInterrupt):
        tiled.step()
    give_grads(ours)
    with pytest.raises(RuntimeError, match="not whole any more"):
        tiled.step()
    tiled.close()
    assert not store.dependents


def test_a_device_that_fails_ends_the_use(table):
    def fail(name):
        if name == "finish":
            raise RuntimeError("illegal address")

    ours, _ = made()
    tiled = interleaved(ours)
    give_grads(ours)
    tiled.step()
    table.fail = fail
    with pytest.raises(RuntimeError, match="illegal address"):
        tiled.step()
    table.fail = lambda name: None
    with pytest.raises(RuntimeError, match="not whole any more"):
        tiled.step()


# ---- What is asked for ---------------------------------------------------------------------------


def test_other_bits_are_told(table, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "spillway")
    ours, _ = made()
    give_grads(ours)
    interleaved(ours).step()
    assert "AdamW comes to the same bits on cpu" in caplog.text
    monkeypatch.setattr(spillway.optimizer, "is_same_on", lambda *_: False)
    interleaved(ours).step()
    assert "AdamW in float32 comes to other bits on cpu than on the host" in caplog.text


def test_without_a_device_all_is_the_hosts(monkeypatch):
    monkeypatch.setattr(interleaved_module, "device_of", lambda params: None)
    pair = pair_with(interleave="measured")
    pair.train(1)
    assert not pair.state.on_device


def test_parameters_that_do_not_lie_flat_stay_with_the_host(table):
    """Also the other tiles that have a part of them."""
    ours = [torch.nn.Parameter(torch.randn(40, 50).t()), torch.nn.Parameter(torch.randn(3000))]
    pair = pair_with((ours, [torch.nn.Parameter(param.detach().clone()) for param in ours]), 2)
    pair.train(2)
    assert pair.state.on_device == {3, 5}  # 0 to 2 have some of the first


@pytest.mark.parametrize("interleave", [1, 0, True, "always", 2.5])
def test_a_wrong_number_is_refused(interleave):
    with pytest.raises(ValueError, match='interleave must be "measured"'):
        interleaved(interleave=interleave)


@pytest.mark.parametrize("other", ["in_backward", "gradients"])
def test_gradients_that_are_gone_cannot_be_on_the_device(other):
    with pytest.raises(ValueError, match="interleave is for gradients"):
        interleaved(**{other: True})


def test_a_device_takes_one_more_buffer(table):
    layout = interleaved()._tiled.records.layout
    assert layout.memory_bytes >= 5 * layout.record_bytes_max
    with pytest.raises(ValueError, match="with interleave one more"):
        interleaved(memory=4 * layout.record_bytes_max)
