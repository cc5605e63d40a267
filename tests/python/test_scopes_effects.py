# SPDX-License-Identifier: MIT
# tests/python/test_scopes_effects.py - what a second run of a scope would leave behind
"""Each model leaves something where others can see it when it runs. After training with
recomputation that is what it is after training without."""
import array
import collections
import contextlib
import ctypes
import functools
import gc
import itertools
import math
import multiprocessing
import queue
import random
import sys
import types
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import conftest
from offloading import assert_same_run, offload_each, trained
from spillway._recompute import scopes as scopes_module, effects, watched
from spillway._core import torch_compat

np = pytest.importorskip("numpy")

pytestmark = pytest.mark.skipif(torch_compat.is_before(scopes_module.OLDEST),
                                reason="this PyTorch cannot recompute")
WIDTH, LAYERS, STEPS = 16, 3, 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.25)

    def note(self, y):
        """What it leaves behind."""

    def forward(self, x):
        y = F.gelu(self.up(x))
        self.note(y)
        return x + self.drop(self.down(y))


def offload_of(model):
    off = offload_each(None, model, mode="budget", budget_bytes=1 << 40, recompute="auto")
    off._session.discards_all = True
    return off


def run(layer, recompute, seen, before=lambda model: None, each=lambda model, step: None,
        loss_of=lambda y, model: y.square().mean(), steps=STEPS, mode=contextlib.nullcontext):
    """(the run, what was seen at the end)"""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    model = nn.Sequential(*(layer() for _ in range(LAYERS)))

    def off_of(model):
        off = offload_of(model) if recompute else None
        before(model)
        return off

    found = trained(model, lambda: torch.randn(8, WIDTH), off_of,
                    lambda model, x: loss_of(model(x), model), steps=steps, mode=mode, before=each)
    return found, [seen(model), torch.rand(2).tolist(), random.random(), np.random.rand()]


def same(layer, seen=lambda model: None, again=None, **given):
    """:param again: whether anything is recomputed; None: it does not matter
    :return: why scopes are not, and how many recomputations there were"""
    (plain, end), (spilled, spilled_end) = (run(layer, recompute, seen, **given)
                                            for recompute in (False, True))
    assert_same_run(spilled, plain)
    assert spilled_end == end
    off = spilled.off
    count = off.stats().scopes_again
    recomputer = off._recomputer
    reasons = {recomputer.names[module]: why for module, why in recomputer.refused.items()}
    assert again is None or (count > 0) == again, reasons
    assert off.stats().restores_refused == 0
    return reasons, count


def refused(layer, seen, words, **given):
    reasons, _ = same(layer, seen, again=False, **given)
    assert len(reasons) == LAYERS and all(words in why for why in reasons.values()), reasons


def test_without_effects():
    assert same(Layer, again=True) == ({}, LAYERS * (STEPS - 1))


# ---- Hooks of others -----------------------------------------------------------------------------


TABLES = {
    "forward": lambda part, call: part.register_forward_hook(lambda *_: call()),
    "forward_pre": lambda part, call: part.register_forward_pre_hook(lambda *_: call()),
    "backward": lambda part, call: part.register_full_backward_hook(lambda *_: call()),
    "backward_pre": lambda part, call: part.register_full_backward_pre_hook(lambda *_: call()),
}


@pytest.mark.parametrize("kind", TABLES)
def test_hooks_of_parts(kind):
    def before(model):
        model.calls = []
        for layer in model:
            TABLES[kind](layer.up, lambda: model.calls.append(1))

    refused(Layer, lambda model: len(model.calls), "its part up has hooks", before=before)


def test_a_loss_of_what_a_hook_has_seen():
    def before(model):
        model.seen = {}
        model[2].up.register_forward_hook(
            lambda part, args, result: model.seen.__setitem__("up", result))

    def loss_of(y, model):
        return model.seen["up"].square().mean()

    reasons, _ = same(Layer, again=True, before=before, loss_of=loss_of)
    assert list(reasons) == ["2"]


def test_hooks_that_come_after_the_trial():
    """Before a forward pass: the scope is left out; before its backward pass: they do not run."""
    def each(model, step):
        if step == 1:
            model.calls = []
            model[0].up.register_forward_hook(lambda *_: model.calls.append(1))

    reasons, _ = same(Layer, lambda model: len(model.calls), again=True, each=each)
    assert reasons == {"0": "its part up has hooks"}


def test_a_forward_that_is_put_in_its_place():
    def before(model):
        model.calls = []
        for layer in model:
            def forward(self, x):
                model.calls.append(1)
                return nn.Linear.forward(self, x)

            layer.up.forward = types.MethodType(forward, layer.up)

    refused(Layer, lambda model: len(model.calls), "a forward of its own", before=before)


def test_a_forward_that_is_put_in_its_place_before_the_backward_pass():
    def each(model, step):
        if step == 1:
            model.calls = []
            forward = model[0].up.forward
            model[0].up.forward = lambda x: model.calls.append(1) or forward(x)

    reasons, _ = same(Layer, lambda model: len(model.calls), again=True, each=each)
    assert list(reasons) == ["0"]


@pytest.mark.parametrize("when", ["before", "between"])
def test_hooks_of_all_modules(when):
    calls, handles = [], []
    register = nn.modules.module.register_module_forward_hook

    def before(model):
        calls.clear()
        if when == "before":
            handles.append(register(lambda *_: calls.append(1) and None))

    def each(model, step):
        if when == "between" and step == 1:
            handles.append(register(lambda *_: calls.append(1) and None))
        if step == STEPS - 1:
            handles.pop().remove()

    reasons, _ = same(Layer, lambda model: len(calls), again=when == "between", before=before,
                      each=each)
    assert set(reasons.values()) == {"there are hooks for all modules"}


def test_modes_that_change_before_the_backward_pass():
    """It is recomputed as it was; then it is left in the mode that it was given."""
    def before(model):
        model.register_forward_pre_hook(lambda model, _: model.train() and None)

    reasons, count = same(Layer, lambda model: model.training, again=True, before=before,
                          each=lambda model, step: model.eval() and None)
    assert not reasons and count == LAYERS * (STEPS - 1)


def test_a_mode_that_sees_all_operations():
    seen = []

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "mm" in str(func):  # spillway looks at tensors by other operations
                seen.append(func)
            return func(*args, **(kwargs or {}))

    def before(model):
        seen.clear()

    same(Layer, lambda model: len(seen), again=False, before=before, mode=Counts)


def test_a_mode_that_comes_later():
    """Nothing is recomputed while it is there, and its hooks for all modules refuse no scope."""
    counter = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode
    flops, steps = [], iter(range(2 * STEPS))

    def mode():
        step = next(steps) % STEPS
        if step == 0:
            flops.clear()
        flops.append(counter(display=False) if step == 1 else contextlib.nullcontext())
        return flops[-1]

    reasons, count = same(Layer, lambda model: flops[1].get_total_flops(), again=True, mode=mode)
    assert not reasons and count == LAYERS * (STEPS - 2)


def test_transforms_while_it_is_paused():
    """What runs there is not tried, and so not refused."""
    model = nn.Sequential(*(Layer() for _ in range(LAYERS)))
    off = offload_of(model)
    for _ in range(2):
        with off:
            with off.paused():
                torch.func.vmap(model, randomness="different")(torch.ones(3, 8, WIDTH))
            model(torch.ones(8, WIDTH)).square().mean().backward()
    assert not off._recomputer.refused and off.stats().scopes_again == LAYERS


# ---- Attributes ----------------------------------------------------------------------------------


class Holder:
    __slots__ = ("count", "rows")

    def __init__(self):
        self.count, self.rows = 0, []


class Private:
    __slots__ = ("__count",)

    def __init__(self):
        self.__count = 0

    def bump(self):
        self.__count += 1
        return self.__count


def _of_objects():
    found = np.empty(1, dtype=object)
    found[0] = []
    return found


class OfItsOwn(dict):
    """With attributes beside its items."""

    def __init__(self, count):
        super().__init__()
        self.count = count


class Settings:
    def __init__(self):
        self.inner = types.SimpleNamespace(count=0)


COUNT, ROWS, TABLE = 0, [], torch.zeros(3)
OF_CLASS = {}


def _count_globally(self, y):
    global COUNT
    COUNT += 1


def _through_a_function(self, y):
    _append(y)


def _append(y):
    ROWS.append(y.detach().mean().item())


ATTRIBUTES = {
    "a number": (lambda self: setattr(self, "seen", 0),
                 lambda self, y: setattr(self, "seen", self.seen + 1), "attribute seen"),
    "a list": (lambda self: setattr(self, "seen", []),
               lambda self, y: self.seen.append(y.detach().sum().item()), "attribute seen"),
    "a list of the same length": (lambda self: setattr(self, "seen", [0]),
                                  lambda self, y: self.seen.__setitem__(0, self.seen[0] + 1),
                                  "attribute seen"),
    "a dict": (lambda self: setattr(self, "seen", {"n": 0}),
               lambda self, y: self.seen.update(n=self.seen["n"] + 1), "attribute seen.n"),
    "a dict inside of others": (lambda self: setattr(self, "seen", [({"n": [0]},)]),
                                lambda self, y: self.seen[0][0]["n"].append(1), "seen"),
    "an ordered dict": (
        lambda self: setattr(self, "seen", collections.OrderedDict()),
        lambda self, y: self.seen.__setitem__(len(self.seen), 1), "attribute seen"),
    "a deque": (lambda self: setattr(self, "seen", collections.deque([0], maxlen=1)),
                lambda self, y: self.seen.append(self.seen[0] + 1), "attribute seen"),
    "a set": (lambda self: setattr(self, "seen", set()),
              lambda self, y: self.seen.add(len(self.seen)), "attribute seen"),
    "a tensor": (lambda self: setattr(self, "seen", torch.zeros(2 * WIDTH)),
                 lambda self, y: self.seen.mul_(0.9).add_(y.detach().mean(0)), "in place"),
    "a tensor through .data": (lambda self: setattr(self, "seen", torch.zeros(())),
                               lambda self, y: self.seen.data.add_(1), "in place"),
    "a tensor through NumPy": (lambda self: setattr(self, "seen", torch.zeros(3)),
                               lambda self, y: self.seen.numpy().__iadd__(1), "in place"),
    "a tensor whose numbers move": (
        lambda self: setattr(self, "seen", torch.arange(5)),
        lambda self, y: self.seen.numpy().__setitem__(slice(5), self.seen.roll(1).numpy()),
        "in place"),
    "a new tensor": (lambda self: setattr(self, "seen", torch.zeros(2 * WIDTH)),
                     lambda self, y: setattr(self, "seen", self.seen + y.detach().mean(0)),
                     "attribute seen"),
    "an array": (lambda self: setattr(self, "seen", np.zeros(3)),
                 lambda self, y: self.seen.__iadd__(1), "in place"),
    "a buffer": (lambda self: self.register_buffer("seen", torch.zeros(())),
                 lambda self, y: self.seen.add_(1), "a buffer (seen)"),
    "a new buffer": (lambda self: self.register_buffer("seen", torch.zeros(())),
                     lambda self, y: setattr(self, "seen", self.seen + 1), "a buffer (seen)"),
    "a parameter": (lambda self: setattr(self, "seen", nn.Parameter(torch.ones(3))),
                    lambda self, y: self.seen.data.mul_(0.5), "seen in place"),
    "an object": (lambda self: setattr(self, "seen", Settings()),
                  lambda self, y: setattr(self.seen.inner, "count", self.seen.inner.count + 1),
                  "seen.inner.count"),
    "an object with slots": (lambda self: setattr(self, "seen", Holder()),
                             lambda self, y: (setattr(self.seen, "count", self.seen.count + 1),
                                              self.seen.rows.append(1)), "seen"),
    "a part's": (lambda self: setattr(self.up, "seen", 0),
                 lambda self, y: setattr(self.up, "seen", self.up.seen + 1), "up.seen"),
    "a method of a list": (lambda self: setattr(self, "seen", [].append),
                           lambda self, y: self.seen(1), "seen"),
    "an attribute of a tensor": (lambda self: setattr(self.up.weight, "seen", 0),
                                 lambda self, y: setattr(self.up.weight, "seen",
                                                         self.up.weight.seen + 1), "weight.seen"),
    "an attribute of a dict": (lambda self: setattr(self, "seen", OfItsOwn(count=0)),
                               lambda self, y: setattr(self.seen, "count", self.seen.count + 1),
                               "seen.count"),
    "a queue": (lambda self: setattr(self, "seen", queue.Queue()),
                lambda self, y: self.seen.put(1), "seen"),
    "bytes": (lambda self: setattr(self, "seen", bytearray(1)),
              lambda self, y: self.seen.append(1), "seen in place"),
    "numbers": (lambda self: setattr(self, "seen", array.array("d")),
                lambda self, y: self.seen.append(1), "seen in place"),
    "a counter": (lambda self: setattr(self, "seen", collections.Counter()),
                  lambda self, y: self.seen.update("a"), "seen.a"),
    "what is held weakly": (lambda self: setattr(self, "seen", weakref.WeakKeyDictionary()),
                            lambda self, y: self.seen.__setitem__(self.up, len(self.seen)), "seen"),
    "private slots": (lambda self: setattr(self, "seen", Private()),
                      lambda self, y: self.seen.bump() and None, "seen"),
    "a view of a dict": (lambda self: setattr(self, "seen", {"a": []}.values()),
                         lambda self, y: [each.append(1) for each in self.seen], "seen.a"),
    "a mapping that is only read": (
        lambda self: setattr(self, "seen", types.MappingProxyType({"a": []})),
        lambda self, y: self.seen["a"].append(1), "seen.a"),
    "an array of objects": (lambda self: setattr(self, "seen", _of_objects()),
                            lambda self, y: self.seen[0].append(1), "seen.0"),
    "a masked array": (lambda self: setattr(self, "seen", np.ma.zeros(3)),
                       lambda self, y: self.seen.__setitem__(0, self.seen[0] + 1), "in place"),
    "a view of memory": (lambda self: setattr(self, "seen", memoryview(bytearray(1))),
                         lambda self, y: self.seen.__setitem__(0, self.seen[0] + 1),
                         "does not show whether it changes"),
    "data in C": (lambda self: setattr(self, "seen", ctypes.c_int(0)),
                  lambda self, y: setattr(self.seen, "value", self.seen.value + 1),
                  "does not show whether it changes"),
    "what processes share": (lambda self: setattr(self, "seen", multiprocessing.Value("i", 0)),
                             lambda self, y: setattr(self.seen, "value", self.seen.value + 1),
                             "does not show whether it changes"),
    "a hook": (lambda self: None,
               lambda self, y: self.up.register_forward_hook(lambda *_: None), "hooks"),
}


def shown(thing):
    """To compare by."""
    if isinstance(thing, (torch.Tensor, np.ndarray)):
        return thing.tolist()
    if isinstance(thing, Settings):
        return thing.inner.count
    if isinstance(thing, OfItsOwn):
        return thing.count
    if isinstance(thing, (queue.Queue, weakref.WeakKeyDictionary)):
        return list(thing.queue if isinstance(thing, queue.Queue) else thing.values())
    if isinstance(thing, types.BuiltinMethodType):
        return thing.__self__
    if isinstance(thing, Private):
        return thing.bump()
    if isinstance(thing, (types.MappingProxyType, type({}.values()), memoryview)):
        return list(thing.values() if isinstance(thing, types.MappingProxyType) else thing)
    if hasattr(thing, "value"):
        return thing.value
    return (thing.count, thing.rows) if isinstance(thing, Holder) else thing


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_attributes(kind):
    begin, note, words = ATTRIBUTES[kind]

    class Notes(Layer):
        def __init__(self):
            super().__init__()
            begin(self)

        def note(self, y):
            note(self, y)

    def seen(model):
        return [shown(getattr(part, "seen")) for layer in model
                for part in (layer, layer.up, layer.up.weight) if hasattr(part, "seen")]

    refused(Notes, seen, words)


def test_what_is_held_by_a_weak_reference():
    class Notes(Layer):
        def note(self, y):
            self.owner().inner.count += 1

    def before(model):
        model.owner = Settings()
        for layer in model:
            layer.owner = weakref.ref(model.owner)

    refused(Notes, lambda model: model.owner.inner.count, "owner.inner.count", before=before)


def test_that_looking_calls_nothing_of_theirs():
    class Reader(list):
        reads = 0

        def __iter__(self):
            Reader.reads += 1
            return super().__iter__()

        def __len__(self):
            Reader.reads += 1
            return super().__len__()

    class Lazy:
        __slots__ = ("value",)

        def __getattr__(self, name):
            raise RuntimeError(f"{name} is not there yet")

    class Holds(Layer):
        def __init__(self):
            super().__init__()
            self.reader, self.lazy = Reader([1, 2]), Lazy()

    def before(model):
        Reader.reads = 0

    reasons, _ = same(Holds, lambda model: Reader.reads, again=True, before=before)
    assert not reasons


def test_arrays_of_all_kinds():
    class Holds(Layer):
        def __init__(self):
            super().__init__()
            self.held = [np.float32(1), np.datetime64("2020-01-01"), np.array(1.5), np.ones((0, 3)),
                         np.array("2020-01-01", "M8[s]"), np.zeros((4, 4)).T[1:], np.array(["a"]),
                         np.zeros(2, dtype=[("a", "i4"), ("b", "f8")])]

    reasons, _ = same(Holds, again=True)
    assert not reasons


def test_too_much_to_look_at():
    class Holds(Layer):
        def __init__(self):
            super().__init__()
            self.numbers = [0] * (effects._ITEMS_MAX + 1)

    refused(Holds, lambda model: None, "too many to look at")


def test_arrays_are_read_in_the_trial_alone(monkeypatch):
    calls, after = [], []
    sum_of_content = watched._checksum_of_content

    def count(path, thing):
        calls.append(path)
        return sum_of_content(path, thing)

    class Holds(Layer):
        def __init__(self):
            super().__init__()
            self.table = np.zeros(3)

    monkeypatch.setattr(watched, "_checksum_of_content", count)
    same(Holds, again=True, each=lambda model, step: after.append(len(calls)))
    assert after[STEPS] > 0 and after[STEPS] == len(calls)  # of the second training, spilled


@pytest.mark.parametrize("mode", ["c", "r"])
def test_large_arrays(monkeypatch, tmp_path, mode):
    """They are not read; one that cannot be written need not be."""
    np.ones(100).tofile(tmp_path / "table")

    class Holds(Layer):
        def __init__(self):
            super().__init__()
            self.table = np.memmap(tmp_path / "table", mode=mode)

    monkeypatch.setattr(watched, "_CONTENT_MAX", 100)
    reasons, _ = same(Holds, again=mode == "r")
    (tmp_path / "table").unlink()
    assert all("too large to look at" in why for why in reasons.values())


def _in_a_module(self, y):
    import conftest
    conftest.seen.append(1)


def _make_a_global(self, y):
    global MADE
    try:
        MADE += 1
    except NameError:
        MADE = 1


def _in_a_package(self, y):
    PACKAGE.inner.seen.append(1)


PACKAGE = types.ModuleType("package")
PACKAGE.inner = types.ModuleType("package.inner")
PACKAGE.inner.seen = []

TABLES_BY_NAME = {}
ELSEWHERE = {
    "imported when it runs": (_in_a_module, lambda: list(conftest.seen), "conftest.seen"),
    "of a package": (_in_a_package, lambda: list(PACKAGE.inner.seen), "package.inner.seen"),
    "a global": (_count_globally, lambda: COUNT, "global"),
    "through a function": (_through_a_function, lambda: list(ROWS), "ROWS"),
    "a global tensor": (lambda self, y: TABLE.add_(1), TABLE.tolist, "TABLE"),
    "of a class": (lambda self, y: setattr(Holder, "total", getattr(Holder, "total", 0) + 1),
                   lambda: Holder.total, "Holder"),
    "of a class, not there before": (
        lambda self, y: setattr(Settings, "made", getattr(Settings, "made", 0) + 1),
        lambda: Settings.made, "class Settings.made"),
    "a global, not there before": (_make_a_global, lambda: MADE, "MADE"),
    "a default": (lambda self, y, rows=ROWS: rows.append(1), lambda: list(ROWS),
                  "default of"),
}


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_elsewhere(kind):
    note, seen, words = ELSEWHERE[kind]

    def before(model):
        global COUNT
        COUNT, Holder.total = 0, 0
        conftest.seen = []
        PACKAGE.inner.seen.clear()
        ROWS.clear()
        TABLE.zero_()
        globals().pop("MADE", None)
        if hasattr(Settings, "made"):
            del Settings.made

    class Notes(Layer):
        def note(self, y):
            return note(self, y)

    refused(Notes, lambda model: seen(), words, before=before)


class Lazy(types.ModuleType):
    """As packages make that import their parts when these are first used."""


LAZY = Lazy("lazy")
LAZY.numbers = itertools.count()
LAZY.used = math.sqrt


def test_of_a_module_only_what_is_used():
    class Uses(Layer):
        def note(self, y):
            LAZY.used(4)

    model = nn.Sequential(Uses())
    off = offload_of(model)
    for _ in range(2):
        with off:
            model(torch.ones(8, WIDTH)).mean().backward()
    assert off.stats().scopes_again == 1


def test_what_code_reaches_is_not_held():
    """Longer than trials may follow."""
    class Uses(Layer):
        def note(self, y):
            TABLES_BY_NAME.get("a")

    TABLES_BY_NAME["a"] = torch.zeros(3)
    model = nn.Sequential(Uses())
    off = offload_of(model)
    with off:
        loss = model(torch.ones(8, WIDTH)).mean()
        table = weakref.ref(TABLES_BY_NAME.pop("a"))
        gc.collect()
        assert table() is None
        loss.backward()
    with off:
        model(torch.ones(8, WIDTH)).mean().backward()
    assert off.stats().scopes_again == 1


def test_closures():
    made = []

    def make():
        count, rows = 0, {}

        class Notes(Layer):
            def note(self, y):
                nonlocal count
                count += 1
                rows[count] = y.detach().mean().item()
                made[:] = [(count, dict(rows))]

        return Notes

    _, plain = run(make(), False, lambda model: list(made))
    spilled, end = run(make(), True, lambda model: list(made))
    assert end == plain
    assert spilled.off.stats().scopes_again == 0


def test_what_does_not_show():
    """An iterator is used up, which does not show."""
    class Counts(Layer):
        def __init__(self):
            super().__init__()
            self.numbers = iter(range(100))

        def note(self, y):
            next(self.numbers)

    refused(Counts, lambda model: [next(layer.numbers) for layer in model], "does not show")


KEPT = {}


@pytest.mark.parametrize("kind", ["attribute", "dict", "global"])
def test_what_is_kept_from_the_first_run_on(kind):
    """A cache that is full after it does not change any more: it is tried in the second step."""
    class Keeps(Layer):
        def __init__(self):
            super().__init__()
            self.kept, self.table = None, {}

        def note(self, y):
            if kind == "attribute" and self.kept is None:
                self.kept = torch.ones(y.shape[-1])
            things = self.table if kind == "dict" else KEPT
            if kind != "attribute" and y.shape not in things:
                things[y.shape] = torch.ones(y.shape[-1])

    KEPT.clear()
    reasons, count = same(Keeps, again=True, before=lambda model: KEPT.clear())
    # Of a global the first scope alone meets the first run.
    assert reasons == {} and count >= LAYERS * (STEPS - 2)


def test_what_is_changed_now_and_then():
    """Not in the trial: a recomputation puts it back, and is the last one."""
    class Now(Layer):
        def __init__(self):
            super().__init__()
            self.seen, self.when = [], types.SimpleNamespace(now=False)

        def note(self, y):
            if self.when.now:
                self.seen.append(y.detach().mean().item())

    def each(model, step):
        model[1].when.now = step == 1

    reasons, _ = same(Now, lambda model: [layer.seen for layer in model], again=True, each=each)
    assert list(reasons) == ["1"] and "when it was recomputed" in reasons["1"]


def test_what_is_held_from_an_evaluation():
    class Keeps(Layer):
        def forward(self, x):
            y = super().forward(x)
            if not self.training:
                self.last = y
            return y

    def each(model, step):
        if step == 1:
            with torch.inference_mode():
                model.eval()(torch.ones(8, WIDTH))
            model.train()

    reasons, _ = same(Keeps, again=True, each=each)
    assert not reasons


class Raises:
    """Where it is looked at."""

    @property
    def __class__(self):
        raise KeyError("on purpose")


@pytest.mark.parametrize("held,words", [
    (lambda: [0] * (effects._ITEMS_MAX + 1), "too many to look at"), (Raises, "on purpose")])
def test_what_cannot_be_seen_any_more(held, words):
    """The step is right, and that recomputation was the last one."""
    class Holds(Layer):
        def __init__(self):
            super().__init__()
            self.held = []

    def each(model, step):
        if step == 1:
            model[1].held.append(held())

    reasons, count = same(Holds, again=True, each=each)
    assert list(reasons) == ["1"] and words in reasons["1"], reasons
    assert "could not be seen" in reasons["1"] and count == LAYERS * (STEPS - 1) - 2


def test_undoing_goes_on():
    done, undos = [], []

    def raises(error, times):
        def undo():
            done.append(error)
            if done.count(error) <= times:
                raise error

        undos.append(undo)

    for error, times in ((KeyError, 1), (KeyboardInterrupt, 1), (OSError, 1), (ValueError, 0)):
        raises(error, times)
    with pytest.raises(OSError):
        scopes_module._undo(undos)
    assert done == [ValueError, OSError, KeyboardInterrupt, KeyboardInterrupt, KeyError]


# ---- Arguments -----------------------------------------------------------------------------------


def test_lists_among_the_arguments():
    class Takes(Layer):
        def forward(self, pair):
            x, notes = pair if isinstance(pair, tuple) else (pair, [])
            notes.append(x.detach().mean().item())
            return super().forward(x), notes

    def loss_of(pair, model):
        model.notes = pair[1]
        return pair[0].square().mean() * len(pair[1])

    same(Takes, lambda model: model.notes, loss_of=loss_of)


# ---- Generators ----------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: np.random.randint(100),
                                  lambda: random.gauss(0, 1), lambda: torch.rand(()).item()],
                         ids=["random", "numpy", "numpy's integers", "Gaussian", "torch"])
@pytest.mark.parametrize("rare", [False, True])
def test_generators_of_everybody(draw, rare):
    """They are as the forward pass found them when it is recomputed, and are put back."""
    class Draws(Layer):
        when = types.SimpleNamespace(now=True)

        def forward(self, x):
            return super().forward(x) * (1 + (draw() if self.when.now else 0))

    def each(model, step):
        Draws.when.now = step > 1 or not rare

    def before(model):
        Draws.when.now = not rare

    reasons, _ = same(Draws, again=True, before=before, loss_of=lambda y, model: y.square().mean())
    assert not reasons


@pytest.mark.skipif(not hasattr(np.random, "set_bit_generator"), reason="NumPy before 1.24")
@pytest.mark.parametrize("draws", [False, True])
def test_another_generator_of_numpy(draws, request):
    """Exchanged between the passes: what is drawn in the backward pass is what was drawn before."""
    request.addfinalizer(functools.partial(
        np.random.set_bit_generator, np.random.get_bit_generator()))

    class Draws(Layer):
        def forward(self, x):
            return super().forward(x) * (1 + (np.random.rand() if draws else 0))

    def each(model, step):
        if step in (1, STEPS - 1):
            kind = np.random.PCG64 if step == 1 else np.random.MT19937
            np.random.set_bit_generator(kind(1))

    reasons, _ = same(Draws, again=True, each=each)
    assert not reasons


OWN = {
    "torch.Generator": lambda: torch.Generator(),
    "random.Random": lambda: random.Random(1),
    "numpy.random.Generator": lambda: np.random.default_rng(1),
    "numpy.random.RandomState": lambda: np.random.RandomState(1),
}


@pytest.mark.parametrize("kind", OWN)
def test_generators_of_their_own(kind):
    class Draws(Layer):
        def __init__(self):
            super().__init__()
            self.noise = OWN[kind]()

        def note(self, y):
            if isinstance(self.noise, torch.Generator):
                torch.rand(1, generator=self.noise)
            else:
                self.noise.normal(0, 1) if hasattr(self.noise, "normal") else self.noise.random()

    def seen(model):
        noise = model[0].noise
        return (torch.rand(1, generator=noise).item() if kind == "torch.Generator"
                else noise.random() if hasattr(noise, "random") else noise.rand())

    refused(Draws, seen, "draws from a generator")


def test_sizes_by_sympy():
    """As einx computes them. Its own generator orders what it asks itself: no result changes."""
    pytest.importorskip("sympy")

    class Sizes(Layer):
        def forward(self, x):
            import sympy

            size = sympy.Symbol("size", integer=True)
            return super().forward(x) * int(sympy.solve(sympy.Eq(8 * size, x.shape[0]))[0])

    assert same(Sizes, again=True) == ({}, LAYERS * (STEPS - 1))


def test_a_configuration_that_may_fetch(monkeypatch):
    """As those of transformers that know of a backbone: asking for its files takes locks, and their
    code counts."""
    hub = types.ModuleType("huggingface_hub")
    exec("import itertools\nlocks = itertools.count()\ndef fetch():\n    return next(locks)\n",
         vars(hub))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)

    class Configuration:
        def __post_init__(self):
            import huggingface_hub
            huggingface_hub.fetch()

    class Configured(Layer):
        def __init__(self):
            super().__init__()
            self.config = Configuration()

    assert same(Configured, again=True) == ({}, LAYERS * (STEPS - 1))
