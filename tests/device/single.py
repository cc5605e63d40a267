# SPDX-License-Identifier: MIT
# tests/device/single.py - cases of fixed.py: single operations that are recomputed on a device
"""Each trains with and without: a step that is right without spillway does not fail with it, and
has the same bits."""

import functools
import logging

import torch
from torch import nn
from torch.nn import functional as F

import spillway.torch
from spillway._gpu import accelerator
from spillway._recompute import expressions

from machine import machine
from seeds import same
from troubles import Troubled

NEVER, HALF, AT_ONCE = (0, 0, False), (0.3, 0.25, False), (0, 1, True)  # how late
LAYERS, WIDTH, ROWS, STEPS = 8, 64, 512, 12
BEGINS = 3  # steps until operations are recomputed: measured, watched, timed


class Model(nn.Module):
    """Linear layers, and between them what a function makes of the number of the step."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.function, self.steps = function, 0
        self.to(machine.kind)

    def forward(self, x):
        for layer in self.layers:
            x = self.function(layer(x), self.steps)
        self.steps += 1
        return x


def offload(model):
    table = Troubled(machine.table())
    accelerator.table_of = lambda kind: table
    return spillway.torch.offload(model, None, recompute="operations",
                                  sizes=spillway.torch.Sizes(min_bytes=4096))


def train(model, off, after_step=lambda: None):
    """The bits of each gradient."""
    seen = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        batch = torch.randn(ROWS, WIDTH, generator=generator).to(machine.kind)
        if off is None:
            model(batch).pow(2).mean().backward()
        else:
            with off:
                model(batch).pow(2).mean().backward()
        seen += [parameter.grad.cpu() for parameter in model.parameters()]
        model.zero_grad()
        after_step()
    return seen


def names_of(off):
    return {recipe.call.name for recipe in off._operations.recipes if recipe.refused is None}


def another_operation(_store, how_late, first, then, at):
    """From one step on, in the same places: it is kept, and a later step watched."""
    machine.be_late(1, *how_late)

    def function(x, step):
        return (first if step < at else then)(x)

    plain = train(Model(function), None)
    model = Model(function)
    off = offload(model)
    assert same(train(model, off), plain), "gradients differ"
    assert off.stats().tensors_given_up > 0
    assert first.__name__ not in names_of(off), names_of(off)
    off.close()


@functools.lru_cache(maxsize=None)
def noisy():
    """An operation that gives other bits when the model does not call it."""
    library = torch.library.Library("spillway_tests", "DEF")
    library.define("noisy(Tensor x) -> Tensor")
    state = {"inside": False, "library": library, "again": 0}

    def compute(x):
        y = x.sin()
        if not state["inside"] and state["begun"]:
            state["again"] += 1
            y[1, 1] += 1  # of a row that is not among those that are compared each time
        return y

    library.impl("noisy", compute, "CompositeExplicitAutograd")

    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            state["inside"] = True
            try:
                return torch.ops.spillway_tests.noisy(x)
            finally:
                state["inside"] = False

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0].cos()

    state["apply"] = Noisy.apply
    return state


def other_bytes_each_time(_store, how_late):
    """After it was tried: it is left out, wherever it is, and others are recomputed."""
    machine.be_late(1, *how_late)
    state = noisy()
    expressions.CHEAP[torch.ops.spillway_tests.noisy.default] = "noisy"
    words = logging.getLogger("spillway")
    told, level = Told(), words.level
    words.addHandler(told)
    words.setLevel(logging.INFO)
    state["begun"] = False

    def function(x, step):
        state["begun"] = step >= 2  # it is tried in the second step
        return F.gelu(state["apply"](x))

    try:
        plain = train(Model(function), None)
        model, state["again"] = Model(function), 0
        off = offload(model)
        assert same(train(model, off), plain), "gradients differ"
        assert state["again"] > 0, "it was not computed twice"
        assert names_of(off) == {"gelu"}, names_of(off)
        assert off.stats().tensors_given_up > 0
        assert sum("no result of noisy" in line for line in told.lines) == 1, told.lines
        off.close()
    finally:
        words.removeHandler(told)
        words.setLevel(level)
        del expressions.CHEAP[torch.ops.spillway_tests.noisy.default]


class Told(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def what_is_held_is_bounded(_store, how_late):
    """However far the host is ahead."""
    machine.be_late(1, *how_late)
    model = Model(lambda x, step: F.gelu(x))
    off = offload(model)
    before = machine.memory()
    most = [0]
    add = type(off._operations)._settle

    def settle(operations, most_bytes):
        add(operations, most_bytes)
        if operations._comparisons is not None and most_bytes is not None:
            most[0] = max(most[0], operations._comparisons.held_bytes())

    type(off._operations)._settle = settle
    try:
        train(model, off, after_step=gc_settled)
    finally:
        type(off._operations)._settle = add
    result = ROWS * WIDTH * 4
    assert len(off._operations.recipes) >= LAYERS - 1
    assert most[0] <= 2 * result, (most, result)
    assert (most[0] > 0) == (how_late is not AT_ONCE), most
    off.close()
    assert machine.memory() == before


def gc_settled():
    machine.memory()


CASES = {}
for _words, _late in {"ahead": NEVER, "ahead by some": HALF, "behind": AT_ONCE}.items():
    for _at in (BEGINS + 1, BEGINS + 3):
        for _first, _then in ((F.gelu, F.silu), (F.silu, torch.tanh)):
            CASES[f"{_then.__name__} for {_first.__name__} from step {_at} on: the host is "
                  f"{_words}"] = functools.partial(another_operation, how_late=_late,
                                                   first=_first, then=_then, at=_at)
    CASES[f"an operation with other bytes each time: the host is {_words}"] = functools.partial(
        other_bytes_each_time, how_late=_late)
    if machine.kind == "late":
        CASES[f"what is held until it is compared is bounded: the host is {_words}"] = (
            functools.partial(what_is_held_is_bounded, how_late=_late))
