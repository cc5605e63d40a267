# SPDX-License-Identifier: MIT
# tests/python/test_interrupts.py - Ctrl-C at any place where a context is entered or left
import gc
import sys

import torch

from offloading import Layers, equal, gradients_of, left_in, offload_each


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


def test_a_context_is_entered_or_left_or_nothing(store):
    torch.manual_seed(1)
    model = Layers(2, 64)
    off = offload_each(store, model, exclude=[model.layers[1]])
    expected = step(model, off)
    interrupts, half = 0, 0
    while True:
        interrupt = Interrupt(interrupts + 1)
        try:
            step(model, off, interrupt)
        except KeyboardInterrupt:
            interrupts += 1
        if interrupt.left > 0:  # there are fewer lines
            break
        if off._active:  # in the first lines of leaving it, before it could do anything
            half += 1
            off.__exit__(None, None, None)
        assert not any(module._forward_hooks or module._forward_pre_hooks
                       for module in model.modules())
        offers = off.stats().offers
        torch.ones(100, requires_grad=True).exp()
        assert off.stats().offers == offers, f"hooks are left by interrupt {interrupts}"
        assert equal(step(model, off), expected)
    assert interrupts > 50 and half <= 5
    gc.collect()
    assert left_in(off) == (0, 0, 0)
