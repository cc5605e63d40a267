# SPDX-License-Identifier: MIT
# tests/python/test_scopes.py - scopes that are recomputed: the same bits, or an error that says why
import collections
import contextlib
import copy
import dataclasses
import errno
import gc
import logging
import os
import sys
import threading
import time
import types
import typing
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import spillway
import spillway.torch
from conftest import ROOT
from offloading import (RAISED, assert_same_run, equal, gradients_of, left_in, offload_each, settle,
                        trained)
from spillway._recompute import scopes as scopes_module
from spillway._core import torch_compat
from spillway._recompute.generators import Random

pytestmark = pytest.mark.skipif(torch_compat.is_before(scopes_module.OLDEST),
                                reason="this PyTorch cannot recompute")
WIDTH = 32


class Half(nn.Module):
    def __init__(self, dropout=0.25):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(dropout)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, scale=None):
        y = self.dropout(self.down(F.gelu(self.up(self.norm(x)))))
        return y if scale is None else y * scale


class Layer(nn.Module):
    def __init__(self, half=Half):
        super().__init__()
        self.first, self.second = half(), half()

    def forward(self, x):
        x = x + self.first(x)
        return x + self.second(x)


class Model(nn.Module):
    def __init__(self, layers=3, half=Half):
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer(half) for _ in range(layers))

    def forward(self, x):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x)
        return self.leave(x)


def again(model, store=None, forced=True, **options):
    """An offload that gives up whatever it may; not forced: what its plan says."""
    off = offload_each(store, model, **{
        "mode": "budget", "budget_bytes": 1 << 40, "recompute": "auto", **options})
    off._session.discards_all = forced
    return off


def train(off_of=None, model_of=Model, **options):
    torch.manual_seed(1)
    model = model_of()
    return trained(model, lambda: torch.randn(16, WIDTH), off_of,
                   optimizer=torch.optim.SGD(model.parameters(), lr=0.05), **options)


def check_same(model_of=Model, scopes_again=True, **arguments):
    """Training gives the same bits as without, and leaves nothing. Return: the offload."""
    options = arguments.pop("options", {})
    plain = train(model_of=model_of, **arguments)
    run = train(lambda model: again(model, **options), model_of=model_of, **arguments)
    assert_same_run(run, plain)
    off = run.off
    stats = off.stats()
    assert (stats.scopes_again > 0) == scopes_again, reasons(off)
    assert stats.restores_refused == 0
    gc.collect()
    assert left_in(off) == (0, 0, 0)
    return off


def reasons(off):
    return {off._recomputer.names[module]: why for module, why in off._recomputer.refused.items()}


# ---- The same bits -------------------------------------------------------------------------------


def test_same_with_dropout():
    off = check_same()
    stats = off.stats()
    # In the first step each is tried.
    assert stats.scopes_again == 2 * 6
    assert stats.bytes_given_up == stats.bytes_restored > 0
    assert all(why == "there are scopes inside of it" for why in reasons(off).values())


class Pair(typing.NamedTuple):
    out: torch.Tensor
    what: str = "an output"


@dataclasses.dataclass(frozen=True)
class Output:
    out: torch.Tensor
    others: typing.Any = None


@dataclasses.dataclass
class Result(collections.OrderedDict):
    """As transformers' models return."""

    out: typing.Any

    def __post_init__(self):
        self["out"] = self.out


class Adapted(Half):
    """What it computes depends on things that a program may change before the backward pass."""

    def __init__(self):
        super().__init__(dropout=0.0)
        self.adapters = nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in "ab"})
        self.active, self.scales, self.tables = "a", [0.5], {"shift": 0.25}
        self.register_buffer("mask", torch.ones(WIDTH))
        self.register_parameter("extra", None)
        self.tensors = [torch.full((1 << 15,), value) for value in (1.0, 2.0)]
        self.large = Output(self.tensors[0], (Pair(self.tensors[0]),))

    def forward(self, x, scale=None):
        x = x * self.large.out[0] * self.large.others[0].out[1]
        x = x * self.scales[0] * self.mask + self.tables["shift"] * vars(self).get("gain", 1.0)
        x = x if self.extra is None else x * self.extra
        return super().forward(x, scale) + self.adapters[self.active](x).tanh()


def parts_of(model):
    return [part for part in model.modules() if isinstance(part, Adapted)]


def switched(part):
    part.active = "b"


def other_rate(part):
    part.dropout.p = 0.75


def list_in_place(part):
    part.scales[0] = 3.0


def dict_in_place(part):
    part.tables["shift"] = -1.0


def another_dataclass(part):
    part.large = Output(part.tensors[1], (Pair(part.tensors[1]),))


def attribute_added(part):
    part.gain = 2.0


def attribute_gone(part):
    del part.active


def other_buffer(part):
    part.mask = torch.zeros(WIDTH)


def other_parameter(part):
    part.up.weight = nn.Parameter(torch.zeros_like(part.up.weight))


def parameter_added(part):
    part.extra = nn.Parameter(torch.zeros(WIDTH))


def other_part(part):
    part.up = nn.Linear(WIDTH, 4 * WIDTH)


def frozen(part):
    part.up.weight.requires_grad_(False)
    part.norm.requires_grad_(False)


@pytest.mark.parametrize("change", [
    switched, other_rate, list_in_place, dict_in_place, another_dataclass, attribute_added,
    attribute_gone, other_buffer, other_parameter, parameter_added, other_part, frozen],
    ids=lambda change: change.__name__)
def test_same_when_the_module_is_changed_before_the_backward_pass(change):
    """It is recomputed as it was, and is then as it was changed."""
    def gradients(off_of=None):
        torch.manual_seed(1)
        model, found, states = Model(half=Adapted), [], []
        off = off_of(model) if off_of else contextlib.nullcontext()
        for step in range(3):
            before = copy.deepcopy(model.state_dict())
            parameters = list(model.parameters())
            with off:
                loss = model(torch.randn(16, WIDTH)).square().mean()
                if step:
                    for part in parts_of(model):
                        change(part)
                loss.backward()
            found.append([loss] + [None if parameter.grad is None else parameter.grad.clone()
                                   for parameter in parameters])
            states.append([(part.active if "active" in vars(part) else None, part.scales,
                            part.tables, vars(part).get("gain"), part.dropout.p,
                            part.large.out[0].item(),
                            [parameter.requires_grad for parameter in part.parameters()],
                            list(part.state_dict()), part.mask.sum().item(),
                            part.up.weight.detach().sum().item())
                           for part in parts_of(model)])
            for part in parts_of(model):
                part.active, part.scales, part.tables = "a", [0.5], {"shift": 0.25}
                part.large = Output(part.tensors[0], (Pair(part.tensors[0]),))
                vars(part).pop("gain", None)
                part.extra = None
                part.requires_grad_(True)
            model.load_state_dict(before)
            model.zero_grad()
        return found, states, off

    plain, plain_states, _ = gradients()
    run, states, off = gradients(again)
    for ours, theirs in zip(run, plain):
        assert all(map(equal, ours, theirs))
    assert states == plain_states
    assert off.stats().scopes_again > 6, reasons(off)
    assert off.stats().restores_refused == 0


@dataclasses.dataclass
class Settings:
    """As transformers' configurations of models whose layers differ."""

    rate: float = 0.0
    heads: int = 4

    def __getattribute__(self, name):
        if name == "heads":
            raise RuntimeError("each layer has its own")
        return super().__getattribute__(name)


def test_same_where_a_dataclass_refuses_to_give_a_field():
    class Configured(Half):
        def __init__(self):
            super().__init__()
            self.settings = Settings()

        def forward(self, x, scale=None):
            return super().forward(x, scale) + self.settings.rate

    off = check_same(lambda: Model(half=Configured))
    assert off.stats().scopes_again == 2 * 6, reasons(off)


class Showing(Model):
    """It puts the output of each layer on it. Nothing is computed of the last one's."""

    def __init__(self, show):
        super().__init__()
        self.show = show
        self.beside = Half()

    def forward(self, x):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x)
            layer.first.shown = self.show(x)
        self.beside.shown = self.show(self.beside(x))
        return self.leave(x)


def inside(thing):
    """The tensors."""
    if isinstance(thing, torch.Tensor):
        return [thing]
    if isinstance(thing, dict):
        thing = list(thing.values())
    elif not isinstance(thing, (list, tuple)):
        thing = list(getattr(thing, "__dict__", {}).values())
    return [tensor for each in thing for tensor in inside(each)]


@pytest.mark.parametrize("show", [
    lambda y: y, lambda y: [y], lambda y: (y, y), lambda y: {"out": y}, Pair, Output,
    lambda y: Output(None, [Pair(y)]), lambda y: {"a": [y, {"b": (y,)}]}, Result,
    lambda y: torch.cat([y.detach()] * 64)],
    ids=["tensor", "list", "tuple", "dict", "named tuple", "dataclass", "inside of a dataclass",
         "nested", "dict dataclass", "large"])
def test_what_a_layer_is_given_is_not_held(show):
    """Each would hold that of the step before, and large ones take memory beside the others."""
    model = Showing(show)
    off = again(model, scopes=[part for part in model.modules() if isinstance(part, Half)])
    shown = []

    def see(*_):  # what the layers of the step before were given, when all have new
        alive.append(sum(each() is not None for each in shown))

    alive = []
    model.leave.register_forward_pre_hook(see)
    for _ in range(5):
        with off:
            model(torch.randn(16, WIDTH)).square().mean().backward()
        parts = [part for part in model.modules() if isinstance(part, Half)]
        for part in parts:
            shown.extend(map(weakref.ref, inside(vars(part).get("shown"))))
        model.zero_grad()
    assert off.stats().scopes_again > 0, reasons(off)
    assert alive == [0] * 5


@pytest.mark.skipif(not hasattr(torch, "func"), reason="this PyTorch has no torch.func")
def test_same_with_parameters_of_a_function():
    """Those of functional_call() are the module's during the forward pass only."""
    def loss_of(model, x):
        scaled = {name: parameter * 1.5 for name, parameter in model.named_parameters()}
        return torch.func.functional_call(model, scaled, (x,)).square().mean()

    check_same(loss_of=loss_of)


@pytest.mark.parametrize("how", ["batched", "vmap"])
def test_same_for_several_gradients_at_once(how):
    """Dropout draws random numbers, which PyTorch refuses where it computes them all at once."""
    def run(off_of=None):
        torch.manual_seed(1)
        model, found = Model(), []
        off = off_of(model) if off_of else contextlib.nullcontext()
        for _ in range(3):
            x = torch.randn(16, WIDTH, requires_grad=True)
            with off:
                y = model(x).square().mean(0)
                each = torch.eye(WIDTH)
                if how == "batched":
                    rows, = torch.autograd.grad(y, x, each, is_grads_batched=True,
                                                retain_graph=True)
                else:
                    rows = torch.func.vmap(
                        lambda row: torch.autograd.grad(y, x, row, retain_graph=True)[0])(each)
                y.sum().backward()
            found.append([rows, *gradients_of(model)])
            model.zero_grad()
        return found, off

    if how == "vmap" and not hasattr(torch, "func"):
        pytest.skip("this PyTorch has no torch.func")
    plain, _ = run()
    ours, off = run(again)
    for one, other in zip(ours, plain):
        assert all(map(equal, one, other))
    assert off.stats().scopes_again == 2 * 6, reasons(off)


class Meanwhile:
    """What a layer calls while it runs."""

    call = None


class Beside(Half):
    def forward(self, x, scale=None):
        y = self.up(self.norm(x))
        if Meanwhile.call is not None:
            Meanwhile.call(x.detach())
        return self.down(F.gelu(y))


@pytest.mark.parametrize("gradients", [False, True], ids=["evaluates", "trains"])
@pytest.mark.parametrize("what", ["part", "model"])
def test_another_thread_calls_parts(what, gradients):
    """It enters them in the middle of this one's forward pass, and leaves them after it."""
    def run(off_of=None):
        torch.manual_seed(1)
        model, found = Model(half=Beside), []
        called = model if what == "model" else model.layers[2].first
        off = off_of(model) if off_of else contextlib.nullcontext()

        def step(x, begins):
            entered, left = threading.Event(), threading.Event()
            others = []

            def other(x):
                with torch.set_grad_enabled(gradients):
                    called(x)

            def call(x):
                if not others:
                    others.append(threading.Thread(target=other, args=(x,)))
                    others[0].start()
                    assert entered.wait(30)
                elif threading.current_thread() is others[0] and not entered.is_set():
                    entered.set()
                    assert left.wait(30)

            with off:
                Meanwhile.call = call if begins else None
                loss = model(x).square().mean()
                Meanwhile.call = None
                left.set()
                for thread in others:
                    thread.join()
                loss.backward()
            return loss

        for number in range(5):  # in the first step scopes are tried
            loss = step(torch.randn(16, WIDTH), number > 0)
            found.append([loss, *[gradient.clone() for gradient in gradients_of(model)]])
            model.zero_grad()
        return found, off

    plain, _ = run()
    ours, off = run(again)
    for one, other in zip(ours, plain):
        assert all(map(equal, one, other))
    assert off.stats().steps == 5
    assert off.stats().scopes_again == 6 * 4, reasons(off)


def test_same_with_autocast():
    def loss_of(model, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x).float().square().mean()

    check_same(loss_of=loss_of)


def test_same_when_gradients_accumulate():
    check_same(accumulate=3)


def test_same_with_two_passes_before_the_backward_pass():
    check_same(loss_of=lambda model, x: model(x).square().mean() + model(x + 1).square().mean())


def test_same_on_drives(store):
    """Inputs are written and come back to be computed from."""
    off = check_same(options={"store": store})
    # On slow drives all may be asked for before it is written.
    assert off.stats().bytes_spilled + off.stats().bytes_forwarded > 0


def test_same_with_tied_weights_and_one_module_used_twice():
    class Tied(Model):
        def __init__(self):
            super().__init__()
            self.layers[1].first = self.layers[0].first
            self.layers[2].second.up.weight = self.layers[0].second.up.weight

    check_same(Tied)


def unwritten(x, rows):
    """As torch.empty(), with bytes that differ each time for sure."""
    memory = x.new_empty(rows, WIDTH)
    memory.data.view(-1).fill_(float(time.perf_counter_ns() % 1_000_003))
    return memory


@pytest.mark.parametrize("part", [slice(16), slice(None, None, 2)], ids=["begin", "gaps"])
def test_same_where_a_buffer_is_written_in_part(part):
    class Part(Half):
        def forward(self, x):
            buffer = unwritten(x, 32 if part.stop else 31)
            buffer[part] = super().forward(x)
            return buffer[part].sin()

    check_same(lambda: Model(half=Part))


class Fills(torch.autograd.Function):
    """As a kernel of others: its writes count as no change."""

    @staticmethod
    def forward(ctx, x):
        result = unwritten(x, 32)
        result.data[:16] = x
        return result

    @staticmethod
    def backward(ctx, gradient):
        return gradient[:16]


def test_a_result_that_is_written_in_part_is_seen_in_the_trial():
    class Part(Half):
        def forward(self, x):
            return Fills.apply(super().forward(x))[:16].sin()

    off = check_same(lambda: Model(half=Part), scopes_again=False)
    assert list(reasons(off).values()).count("a second run saves other tensors") == 6


def test_parts_of_what_one_operation_made_are_given_up():
    class Chunks(nn.Module):
        def __init__(self):
            super().__init__()
            self.both, self.inner = nn.Linear(WIDTH, 8 * WIDTH), nn.Sequential(nn.Identity())

        def forward(self, x):
            one, other = self.both(x).chunk(2, -1)
            return (one * other)[:, :WIDTH] * 0.1

    off = check_same(lambda: Model(half=Chunks))
    assert off.stats().bytes_given_up >= 2 * 6 * 16 * 8 * WIDTH * 4


def test_same_with_arguments_in_all_places():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = Half()

        def forward(self, pair, scale, options=None):
            return (self.body(pair[0], scale=scale) + options["more"] * pair[1]).tanh()

    class Arguments(Model):
        def __init__(self):
            super().__init__()
            self.deep = nn.ModuleList([Deep(), Deep()])

        def forward(self, x):
            x = super().forward(x)
            for deep in self.deep:
                x = deep((x, x * 2), x.mean(), options={"more": x + 1})
            return x

    check_same(Arguments)


def test_same_with_one_argument_several_times():
    """As attention with itself, which looks whether it is."""
    class Attending(Model):
        def __init__(self):
            super().__init__()
            self.attention = nn.ModuleList([nn.MultiheadAttention(WIDTH, 2)])

        def forward(self, x):
            x = super().forward(x)
            for each in self.attention:
                rows = x[:, None]
                x = x + each(rows, rows, rows, need_weights=False)[0][:, 0]
            return x

    assert "attention.0" not in reasons(check_same(Attending))


def test_same_with_evaluation_in_between():
    def loss_of(model, x):
        loss = model(x).square().mean()
        with torch.no_grad():
            model(x)
        return loss

    check_same(loss_of=loss_of)


def test_same_when_used_twice():
    """The graph is kept for a second backward pass: nothing is computed twice for it."""
    def run(off):
        torch.manual_seed(1)
        model = Model()
        off = off(model)
        for _ in range(2):
            with off or contextlib.nullcontext():
                loss = model(torch.ones(16, WIDTH)).square().mean()
                loss.backward(retain_graph=True)
                loss.backward()
        return gradients_of(model), off

    plain, _ = run(lambda model: None)
    gradients, off = run(again)
    assert equal(gradients, plain)
    assert off.stats().scopes_again == 6


def test_same_with_double_backward():
    def loss_of(model, x):
        x = x.requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).square().mean(), x, create_graph=True)
        return gradient.square().sum()

    check_same(lambda: Model().eval(), loss_of=loss_of)


def test_by_the_plan(store):
    """A budget that keeping does not meet is met, with or without drives."""
    whole = train(lambda model: again(model, forced=False)).off.stats().step_peak_bytes
    for options in ({}, {"store": store}):
        def off_of(model):
            off = again(model, forced=False, budget_bytes=whole // 2, **options)
            for layer in model.layers:  # what is on its way to the drives gets there, and is seen
                layer.register_forward_hook(lambda *_: settle(off) and None)
            return off

        plain, run = train(steps=5), train(off_of, steps=5)
        assert_same_run(run, plain)
        stats = run.off.stats()
        assert stats.steps_planned > 0 and stats.plan_mismatches == 0
        assert 0 < stats.plan_peak_bytes <= whole // 2
        assert options or stats.scopes_again > 0
        assert left_in(run.off) == (0, 0, 0)


def test_explained(capsys):
    model = Model()
    off = again(model, forced=False, budget_bytes=1 << 40)
    assert off.explain() == []
    assert "no plan is in force" in capsys.readouterr().out
    whole = train(lambda model: again(model, forced=False)).off.stats().step_peak_bytes

    def half_of(model):
        return again(model, forced=False, budget_bytes=whole // 2,
                     recompute=lambda name, module: name != "layers.0.first")

    off = train(half_of).off
    plans = off.explain()
    printed = capsys.readouterr().out
    names = [plan.scope for plan in plans]
    assert names == ["", *(f"layers.{layer}.{half}" for layer in range(3)
                           for half in ("first", "second")), ""][:len(names)]
    by_name = {plan.scope: plan for plan in plans if plan.scope}
    assert by_name["layers.0.first"].refused == "not asked for"
    assert by_name["layers.0.first"].recompute_seconds is None
    recomputed = [plan for plan in plans if plan.done == "recompute"]
    assert len(recomputed) == off.stats().plan_scopes_again > 0
    for plan in recomputed:
        assert plan.given_up_bytes > 0 and plan.recompute_seconds > 0 and plan.refused == ""
    for plan in plans:
        assert plan.why in printed and plan.scope in printed
        # The command says the same of a recorded step.
        assert f'"{plan.why}"' in (ROOT / "tools/plan/explain.c").read_text()
    assert "not asked for" in printed and "GIVEN UP" in printed


def test_generators_of_devices_are_put_back(monkeypatch):
    """Of a backend that has them."""
    device, states = torch.device("meta", 1), []
    backend = types.SimpleNamespace(
        get_rng_state=lambda device: f"of {device}",
        set_rng_state=lambda state, device: states.append((state, device)))
    monkeypatch.setattr(torch, "meta", backend, raising=False)
    random = Random([device, torch.device("xla", 0)])
    before = torch.rand(3)
    random.restore()
    assert torch.equal(torch.rand(3), before)
    assert states == [("of meta:1", device)]


# ---- What is refused -----------------------------------------------------------------------------


def refused_by(half, words, **options):
    off = check_same(lambda: Model(half=half), scopes_again=False, options=options)
    assert all(words in why or "inside" in why for why in reasons(off).values())
    assert len(reasons(off)) == 9


def test_what_is_random_by_itself():
    class Noisy(Half):
        def forward(self, x):
            return super().forward(x) * (1 + int.from_bytes(os.urandom(2), "big"))

    run = train(again, model_of=lambda: Model(half=Noisy), steps=2)
    assert "second run" in str(reasons(run.off))
    assert run.off.stats().scopes_again == 0


def test_what_counts():
    class Counts(Half):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    refused_by(Counts, "attribute calls")


def test_what_changes_a_buffer():
    class Batch(Half):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(WIDTH)

    refused_by(Batch, "buffer")


def test_what_changes_a_buffer_in_training_alone():
    """What was tried in one mode is tried again in another."""
    class Batch(Half):
        def __init__(self):
            super().__init__(dropout=0)
            self.norm = nn.BatchNorm1d(WIDTH)

    def run(off_of):
        torch.manual_seed(1)
        model = Model(half=Batch).eval()
        off = off_of(model)
        for step in range(4):
            model.train(step >= 2)
            with off or contextlib.nullcontext():
                model(torch.randn(16, WIDTH)).square().mean().backward()
        return [*gradients_of(model), *model.buffers()], off

    plain, _ = run(lambda model: None)
    tensors, off = run(again)
    assert equal(tensors, plain)
    assert off.stats().scopes_again == 6  # of the second step
    assert "buffer" in str(reasons(off))


def test_what_changes_its_input():
    class InPlace(Half):
        def forward(self, x):
            return super().forward(x.mul_(2))

    class Copies(Layer):
        def forward(self, x):
            x = x + self.first(x.clone())
            return x + self.second(x.clone())

    class InPlaceModel(Model):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Copies(InPlace) for _ in range(3))

    off = check_same(InPlaceModel, scopes_again=False)
    assert "in place" in str(reasons(off))


def test_what_is_changed_afterwards():
    """PyTorch allows it where the input is not saved."""
    class Bare(nn.Module):
        def forward(self, x):
            return (x * 3).sin()  # saves what it multiplies, and not x

    class Changed(Model):
        def __init__(self):
            super().__init__()
            self.bare = nn.ModuleList([Bare(), Bare()])

        def forward(self, x):
            x = super().forward(x)
            for bare in self.bare:
                y = bare(x)
                x.add_(1)
                x = y
            return x

    # Two steps are enough for the mistake, had it not been seen in the first.
    off = check_same(Changed)
    assert "changed in place after" in str(reasons(off))


def test_what_has_hooks():
    def with_hook():
        model = Model()
        model.layers[1].first.register_forward_hook(lambda module, args, result: result * 1)
        return model

    off = check_same(with_hook)
    assert reasons(off)["layers.1.first"] == "it has hooks of its own"


@pytest.mark.parametrize("name, advice", [("Memory", ""), (
    "DynamicCache", "; transformers makes none with model.config.use_cache = False")])
def test_what_takes_other_things(name, advice):
    Memory = type(name, (), {})

    class Takes(Half):
        def forward(self, x, memory=None):
            return super().forward(x)

    class TakesLayer(Layer):
        def forward(self, x):
            x = x + self.first(x, Memory())
            return x + self.second(x, memory=[Memory()])

    class TakesModel(Model):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(TakesLayer(Takes) for _ in range(3))

    off = check_same(TakesModel)  # by whole layers, which are not given any
    why = f"its arguments hold a {name}, which may change{advice}"
    assert why in reasons(off).values()


def test_checkpoints_stay():
    class Checkpointed(Model):
        def forward(self, x):
            x = self.enter(x)
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return self.leave(x)

    off = check_same(Checkpointed, scopes_again=False)
    assert "recomputed already" in str(reasons(off))


def test_checkpoints_inside():
    class Inside(Half):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    check_same(lambda: Model(half=Inside))


def test_only_those_asked_for():
    off = check_same(options={"recompute": lambda name, module: name == "layers.1.second"})
    assert off.stats().scopes_again == 2
    assert list(reasons(off).values()).count("not asked for") == 8


def test_never(store):
    with pytest.raises(ValueError, match="a store is needed: give drives"):
        spillway.torch.offload(Model(), None, mode="budget", budget_bytes=1)
    with pytest.raises(ValueError, match="recompute"):
        spillway.torch.offload(Model(), store, recompute="always")
    off = spillway.torch.offload(Model(), store, mode="spill", recompute="auto")
    assert off._recomputer is None


def test_what_is_odd_is_no_reason_to_fail(monkeypatch):
    class Odd(scopes_module.Frame):
        def hold(self):
            raise MemoryError("no memory")

    monkeypatch.setattr(scopes_module, "Frame", Odd)
    off = check_same(scopes_again=False)
    assert "MemoryError: no memory" in str(reasons(off))


# ---- What goes wrong -----------------------------------------------------------------------------


def refused_in_backward(off, model, x):
    """A weight changes between the passes of a step, which PyTorch does not count. Return: what the
    error says."""
    with off:
        loss = model(x).square().mean()
        with torch.no_grad():
            model.layers[2].second.up.weight.data.add_(1)
        with pytest.raises(RAISED, match="layers.2.second was recomputed") as caught:
            loss.backward()
    assert isinstance(caught.value, spillway.SpillwayError)
    assert caught.value.errno == errno.ESTALE
    return str(caught.value)


def test_a_module_that_changes_later(caplog):
    """The backward pass ends with an error, never with wrong gradients; training goes on."""
    class Changes(Half):
        shift = [0.0]  # of all: no attribute of its own changes

        def forward(self, x):
            return super().forward(x) * self.shift[0]

    torch.manual_seed(1)
    model = Model(half=Changes)
    off = again(model)
    x = torch.randn(16, WIDTH)
    for _ in range(2):
        with off:
            model(x).square().mean().backward()
    caplog.set_level(logging.INFO, "spillway")
    refused_in_backward(off, model, x)
    assert "layers.2.second is not recomputed" in caplog.text
    gc.collect()
    assert left_in(off) == (0, 0, 0)
    stats = off.stats()
    assert stats.restores_refused == 1
    model.zero_grad()
    with off:
        model(x).square().mean().backward()
    assert all(gradient is not None for gradient in gradients_of(model))
    assert off.stats().scopes_again == stats.scopes_again + 5


def test_a_module_that_catches_why_it_cannot_be_recomputed():
    """It is an error nevertheless, and not the process's end."""
    class Catches(Half):
        def forward(self, x):
            try:
                return super().forward(x)
            except Exception:
                return super().forward(x)

    torch.manual_seed(1)
    model = Model(half=Catches)
    off = again(model)
    x = torch.randn(16, WIDTH)
    with off:
        model(x).square().mean().backward()
    assert "caught" in refused_in_backward(off, model, x)
    gc.collect()
    assert left_in(off) == (0, 0, 0)


def test_modified_in_place_after_it_was_saved():
    """As PyTorch has it: what was saved was changed, wherever its bytes are."""
    class Saves(Half):
        def forward(self, x):
            self.seen.append(torch.sigmoid(x))
            return self.seen[-1] * 2

    seen = []
    Saves.seen = seen
    model = Model(half=Saves)
    off = again(model, recompute=lambda name, module: True)
    for _ in range(2):
        seen.clear()
        with off:
            loss = model(torch.ones(16, WIDTH)).sum()
            if off.stats().bytes_given_up:
                with torch.no_grad():
                    seen[-1].add_(1)
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    loss.backward()
            else:
                loss.backward()
    seen.clear()


@pytest.fixture
def unseen(monkeypatch):
    """Where changes of a module are not looked for: in a module of Python's own."""
    monkeypatch.setattr(sys, "calls", 0, raising=False)
    monkeypatch.setattr(sys, "fail_at", 0, raising=False)


@pytest.mark.parametrize("where", ["trial", "forward", "again"])
def test_exceptions_in_forward(where, unseen):
    class Fails(Half):
        def forward(self, x):
            sys.calls += 1
            y = super().forward(x)
            if sys.calls == sys.fail_at:
                raise KeyError("on purpose")
            return y.sin()

    torch.manual_seed(1)
    model = Model(half=Fails)
    off = again(model)
    x = torch.randn(16, WIDTH)
    # Of six scopes: each runs twice in the first step, once in the forward pass of the second.
    sys.fail_at = {"trial": 3, "forward": 12 + 3, "again": 12 + 6 + 1}[where]
    failed = 0
    for _ in range(4):
        with off:
            try:
                model(x).square().mean().backward()
            except (KeyError, spillway.SpillwayError):
                failed += 1
    assert failed == 1
    gc.collect()
    assert left_in(off) == (0, 0, 0)
    assert off._session.frame is None and off._session.trial is None


@pytest.mark.parametrize("at", range(1, 14))
def test_interrupts(at, unseen):
    """Ctrl-C in the middle of recomputing: the same pass can be made once more."""
    class Interrupted(Half):
        def forward(self, x):
            y = super().forward(self.tick(x))
            return self.tick(y)

        def tick(self, y):
            sys.calls -= 1
            if sys.calls == 0:
                raise KeyboardInterrupt
            return y * 1

    def run(off_of, interrupts):
        torch.manual_seed(1)
        model = Model(half=Interrupted)
        off = off_of(model) if off_of else None
        x = torch.randn(16, WIDTH)
        for step in range(3):
            model.zero_grad()
            with off or contextlib.nullcontext():
                loss = model(x).square().mean()
                if step == 1 and interrupts:
                    sys.calls = at
                    state = torch.get_rng_state()
                    try:
                        loss.backward(retain_graph=True)
                    except KeyboardInterrupt:
                        model.zero_grad()
                        assert equal(torch.get_rng_state(), state)
                        loss.backward()
                    sys.calls = 0
                else:
                    loss.backward()
            del loss
        return [gradient.clone() for gradient in gradients_of(model)], off

    plain, _ = run(None, False)
    gradients, off = run(again, True)
    assert equal(gradients, plain)
    assert off.stats().scopes_again >= 12
    gc.collect()
    assert left_in(off) == (0, 0, 0)


def test_graphs_that_are_dropped():
    model = Model()
    off = again(model)
    for _ in range(3):
        with off:
            model(torch.ones(16, WIDTH))
    assert off.stats().bytes_given_up > 0
    with off:
        model(torch.ones(16, WIDTH)).sum().backward()
        model(torch.ones(16, WIDTH))
    gc.collect()
    assert left_in(off) == (0, 0, 0)


def test_closed_before_the_backward_pass():
    model = Model()
    off = again(model)
    with off:
        model(torch.ones(16, WIDTH)).sum().backward()
        loss = model(torch.ones(16, WIDTH)).sum()
    off.close()
    with pytest.raises(RAISED, match="closed"):
        loss.backward()


def test_the_report_counts_it(capsys):
    off = check_same()
    off.report()
    table = capsys.readouterr().out
    assert "discarded, to be recomputed" in table
    assert f"by {off.stats().scopes_again} recomputations" in table
