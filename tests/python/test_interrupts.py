# SPDX-License-Identifier: MIT
# tests/python/test_interrupts.py - Ctrl-C at any place where a context is entered or left
import dis
import gc
import sys
import threading

import pytest
import torch

from offloading import Layers, equal, gradients_of, left_in, offload_each
from streams import Table, host_is_device
from spillway._core.torch_compat import innermost_function
from spillway._params.residency import Owner


class Interrupt:
    """Raises at one line of what entering and leaving a context calls: where Python would raise for
    a signal."""

    def __init__(self, place):
        self.left = place

    def __call__(self, frame, event, _):
        files = "spillway/torch.py", "spillway/_core/torch_compat.py"
        code = frame.f_code
        if not code.co_filename.endswith(files) or code.co_name == "__del__":
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.place = code.co_filename, frame.f_lineno
                raise KeyboardInterrupt
        return self


def step(model, off, interrupt=None):
    """Its gradients."""
    model.zero_grad()
    try:
        sys.settrace(interrupt)
        with off:
            sys.settrace(None)
            model(torch.ones(32, 64)).pow(2).mean().backward()
            sys.settrace(interrupt)
    finally:
        sys.settrace(None)
    return [gradient.clone() for gradient in gradients_of(model)]


def will_rest(off):
    return off._resting.now and not off._resting.last


@pytest.mark.parametrize("rests", [False, True])
def test_a_context_is_entered_or_left_or_nothing(store, rests):
    """:param rests: interrupted are steps that rest"""
    if rests and innermost_function is None:
        pytest.skip("this PyTorch does not tell which hooks are innermost: no step rests")
    torch.manual_seed(1)
    model = Layers(2, 64)
    options = {} if rests else {"mode": "spill"}
    off = offload_each(store, model, exclude=[model.layers[1]], **options)
    expected = step(model, off)
    interrupts, half = 0, set()
    while True:
        while rests and not will_rest(off):
            step(model, off)
        interrupt = Interrupt(interrupts + 1)
        try:
            step(model, off, interrupt)
        except KeyboardInterrupt:
            interrupts += 1
        if interrupt.left > 0:  # there are fewer lines
            break
        if off._active:  # in the first lines of leaving it, before it could do anything
            half.add(interrupt.place)  # some of them twice: later steps have more lines before
            off.__exit__(None, None, None)
        assert not any(module._forward_hooks or module._forward_pre_hooks
                       for module in model.modules())
        offers = off.stats().offers
        torch.ones(100, requires_grad=True).exp()
        assert off.stats().offers == offers, f"hooks are left by interrupt {interrupts}"
        assert equal(step(model, off), expected)
    assert interrupts > (20 if rests else 50) and len(half) <= 5
    assert (off.stats().steps_resting > 0) == rests
    gc.collect()
    assert left_in(off) == (0, 0, 0)


class AfterCall:
    """Raises when one call has ended, before its result is used: there, too, Python would raise for
    a signal."""

    CALLS = {number for name, number in dis.opmap.items() if name.startswith("CALL")}

    def __init__(self, place, name):
        self.left = place
        self._name = name
        self._was_call = False

    def __call__(self, frame, event, _):
        if frame.f_code.co_name != self._name:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if self._was_call:
                self.left -= 1
                if self.left == 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            self._was_call = frame.f_code.co_code[frame.f_lasti] in self.CALLS
        return self


def interrupt_each_call(function, name):
    """Interrupt each call of the innermost function of this name. Return: how many there are."""
    for place in range(1, 100):
        interrupt = AfterCall(place, name)
        try:
            sys.settrace(interrupt)
            function()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        if interrupt.left > 0:
            return place - 1
    raise AssertionError("still not all")


def is_free(lock):
    """For another thread."""
    found = []

    def take():
        found.append(lock.acquire(blocking=False))
        if found[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return found[0]


class Few(Owner):
    def _reap_freed(self):
        self._gone.clear()


def test_a_parameter_that_ends_leaves_no_lock():
    owner = Few()
    gone = owner._when_gone("a place")
    assert interrupt_each_call(lambda: gone(None), "gone") > 3
    gone(None)
    assert not owner._gone and is_free(owner._lock)


def test_progress_leaves_no_lock(store):
    off = offload_each(store, Layers(2, 64))
    host_is_device(off, Table())
    device = off._session.device
    assert interrupt_each_call(device.progress, "progress") > 0
    device.progress()
    assert is_free(device._lock)
    off.close()


def test_progress_of_a_thread_that_makes_progress(store):
    """As of a signal's handler: it does not wait for itself."""
    off = offload_each(store, Layers(2, 64))
    host_is_device(off, Table())
    device = off._session.device
    with device._lock:
        device.progress()
    assert is_free(device._lock)
    off.close()
