# SPDX-License-Identifier: MIT
# tests/python/test_departures.py - host memory of gradients that leave a device, by when copies end
import types

import pytest
import torch

from pairs import models, needs_hooks
from spillway._grads.departures import Departures
from spillway._grads.freed_placeholder import Freed


class Table:
    """A device whose copies end when told to."""

    def __init__(self):
        self.copies, self.stream = [], types.SimpleNamespace(stream_id=1)

    def record(self, stream):
        self.copies.append(types.SimpleNamespace(has_ended=False))
        return self.copies[-1]

    def done(self, event):
        return event.has_ended

    def finish(self, event):
        event.has_ended = True

    def end(self):
        for event in self.copies:
            event.has_ended = True

    def pinned(self, shape, dtype):
        return torch.empty(shape, dtype=dtype)

    def copy(self, into, source, stream):
        into.copy_(source)

    def current_stream(self, device):
        return self.stream

    new_stream = current_stream

    def wait(self, stream, event):
        pass

    keep = wait


@pytest.fixture
def table():
    return Table()


@pytest.fixture
def departures(table):
    """With room for three gradients of ten bytes."""
    found = Departures(1 << 20, 30)
    found._tables["cpu"] = table
    yield found
    table.end()


def begun(departures):
    return departures.begin(torch.ones(10, dtype=torch.uint8))


def test_room_is_free_beside_a_copy_that_has_not_ended(table, departures):
    value = begun(departures)
    table.end()
    departures.copy_back(value, torch.empty(10, dtype=torch.uint8))
    back = table.copies[-1]
    others = [begun(departures), begun(departures)]
    assert departures.lacks(10) and not back.has_ended
    for event in table.copies:
        event.has_ended = event is not back
    others.clear()
    assert not departures.lacks(10) and not back.has_ended
    assert departures.bytes == 10


@pytest.mark.parametrize("way", ["forth", "back"])
def test_a_copy_to_the_device_holds_room_until_it_ends(table, departures, way):
    values = [begun(departures) for _ in range(3)]
    table.end()
    for value in values:
        if way == "forth":
            departures.copy_back(value, torch.empty(10, dtype=torch.uint8))
        else:
            departures.back(value, torch.device("cpu"))
    del value
    values.clear()
    assert departures.bytes == 30 and departures.lacks(10)
    assert departures.wait_for_return() and not departures.lacks(10)
    assert departures.bytes == 20
    assert departures.wait_for_return() and departures.wait_for_return()
    assert departures.bytes == 0 and not departures.wait_for_return()


def test_a_copy_from_the_device_is_not_waited_for(table, departures):
    kept = [begun(departures) for _ in range(3)]
    assert departures.lacks(10) and not departures.wait_for_return()
    assert kept and not any(event.has_ended for event in table.copies)


@needs_hooks
@pytest.mark.usefixtures("fake_state")
def test_a_gradient_that_a_backward_hook_may_use_stays(table, monkeypatch):
    """Those of other modules leave."""
    monkeypatch.setattr(Departures, "takes", lambda *_: True)
    monkeypatch.setattr(Departures, "_table", lambda *_: table)
    left = []

    def halve(module, *_):
        for param in module.parameters():
            left.append(isinstance(param.grad, Freed))
            param.grad.mul_(0.5)

    pair = models(500, in_backward=True)
    for model in pair.models:
        model.layers[2].register_full_backward_hook(halve)
    for _ in range(3):
        pair.backward()
        assert isinstance(pair.ours.layers[1].weight.grad, Freed)
        pair.step()
    assert left and not any(left)
