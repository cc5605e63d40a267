# SPDX-License-Identifier: MIT
# tests/python/test_interrupts.py - Ctrl-C at any place where a context is entered or left
import gc
import sys

import pytest
import torch

from offloading import Layers, equal, gradients_of, left_in, offload_each
from spillway._core.torch_compat import innermost_function


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
