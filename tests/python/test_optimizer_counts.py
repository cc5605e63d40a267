# SPDX-License-Identifier: MIT
# tests/python/test_optimizer_counts.py - classes that count their steps in their groups
"""Most classes of other packages keep a count of steps, or numbers that follow from it, in
``param_groups``. Each tile begins with the same options and makes the same of them, which is tried;
after the step the groups have it."""
import copy

import pytest
import torch
from torch import nn

from fake_state import FakeStore
from pairs import Masters, Model, Pair, assert_same, give_grads, made, needs_hooks, of, over

pytestmark = pytest.mark.usefixtures("fake_state")

SHAPES = ((7,), (30, 20), (1,), (), (0, 3), (50,))


class Counts(torch.optim.Optimizer):
    """An average of gradients, a rate that warms up, and the sum of its rates; the state of a
    parameter begins in the first step of its group."""

    def __init__(self, params, lr=0.1, decay=0.0, foreach=False):
        super().__init__(params, {"lr": lr, "decay": decay, "rates": 0.0, "rate_max": -1.0})
        for group in self.param_groups:
            group.setdefault("begun", False)

    def change(self, group, param, state):
        return state["average"]

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            rate = group["lr"] * min(1, group["step"] / 5)
            group["rates"] += rate
            group["rate_max"] = max(rate, group["rate_max"])
            group["begun"] = True
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["average"] = torch.zeros_like(param)
                state["average"].lerp_(param.grad, 0.1)
                param.mul_(1 - group["decay"])
                param.sub_(self.change(group, param, state), alpha=rate / group["rates"])


class InTensors(Counts):
    """Counts in a tensor and in a list, in place."""

    def __init__(self, params, **options):
        super().__init__(params, **options)
        for group in self.param_groups:
            group.setdefault("count", torch.zeros((), dtype=torch.int32))
            group.setdefault("last", [0, None])

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["count"] += 1
            group["last"][group.get("step", 0) % 2] = int(group["count"])
        super().step()


class Waits(Counts):
    """Counts only from its third step on."""

    @torch.no_grad()
    def step(self):
        super().step()
        for group in self.param_groups:
            if group["step"] > 2:
                group["waited"] = group.get("waited", 0.0) + group["lr"]


class CountsWhole(Counts):
    def change(self, group, param, state):
        return state["average"] / (state["average"].norm() + group["step"])


class Early(Counts):
    """Its state begins with the first step of its group, as it was usual."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for param in group["params"]:
                if param.grad is None:
                    continue
                if group["step"] == 1:
                    self.state[param]["average"] = torch.zeros_like(param)
                self.state[param]["average"].lerp_(param.grad, 0.1)
                param.mul_(1 - group["decay"])
                param.sub_(self.state[param]["average"], alpha=group["lr"] / group["step"])


class AtFirst(Counts):
    """Begins to count when it is made."""

    def __init__(self, params, **options):
        super().__init__(params, **options)
        for group in self.param_groups:
            group["step"] = 0


each_class = pytest.mark.parametrize("cls", [Counts, CountsWhole, InTensors, Waits])


def groups_of(params):
    return [{"params": params[:2]}, {"params": params[2:], "lr": 0.02}]


def pair_of(cls, ours=None, groups=groups_of, masters=False, **options):
    ours, theirs = made(SHAPES, torch.bfloat16 if masters else torch.float32) if ours is None else (
        ours, copy.deepcopy(ours))
    mine, yours = [list(params.parameters()) if isinstance(params, nn.Module) else params
                   for params in (ours, theirs)]
    plain = Masters(yours, cls) if masters else cls(groups(yours))
    given = mine if masters else groups(mine)
    return Pair(ours, theirs, over(given, cls, tile=100, masters=masters, **options), plain)


def numbers_of(optimizer):
    return [{name: value for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups]


def same_groups(pair):
    mine, yours = map(numbers_of, pair.optimizers)
    for one, other in zip(mine, yours):
        assert_same({name: one[name] for name in other}, other)


@each_class
def test_groups_have_what_was_counted(cls):
    pair = pair_of(cls)
    for step in range(12):
        pair.train(1, none=0.3)
        same_groups(pair)
        assert pair.optimizer.param_groups[0]["step"] == step + 1
    pair.same_state()


@each_class
@pytest.mark.parametrize("masters", [True, "compact"])
def test_with_masters(cls, masters):
    pair = pair_of(cls, masters=masters)
    pair.train(8)
    assert_same(pair.optimizer.param_groups[0]["rates"], pair.plain.inner.param_groups[0]["rates"])


@needs_hooks
@each_class
@pytest.mark.parametrize("option", ["in_backward", "gradients"])
def test_during_the_backward_pass(cls, option):
    torch.manual_seed(3)
    pair = pair_of(cls, Model(), **{option: True})
    for step in range(8):
        pair.backward(without=step % 4)
        pair.step()
        same_groups(pair)
    pair.same_state()


@pytest.mark.parametrize("cls", [Counts, CountsWhole, InTensors, Waits, AtFirst])
def test_a_group_without_gradients_counts_as_well(cls):
    pair = pair_of(cls)
    for step in range(9):
        pair.give_grads()
        for params in pair.models if step < 3 else ():
            for param in params[2:]:
                param.grad = None
        pair.step()
        same_groups(pair)
    assert pair.optimizer.param_groups[1]["step"] == 9
    pair.same_state()


@pytest.mark.parametrize("cls", [Counts, Early, AtFirst])
def test_options_are_changed_meanwhile(cls):
    """What a class keeps is tried again then, from its first step on."""
    pair = pair_of(cls)
    for step in range(6):
        for optimizer in pair.optimizers:
            optimizer.param_groups[0]["decay"] = 0.01 * (step > 2)
            optimizer.param_groups[1]["lr"] *= 0.9
        pair.train(1)
    same_groups(pair)
    pair.same_state()


def test_a_parameter_that_begins_later_does_not_begin_to_count_again():
    pair = pair_of(AtFirst)
    for step in range(6):
        pair.give_grads()
        for params in pair.models if step < 4 else ():
            params[1].grad = None
        pair.step()
        same_groups(pair)
    pair.same_state()


@pytest.mark.parametrize("cls", [Counts, CountsWhole, InTensors, Waits, Early])
def test_a_commit_has_what_was_counted(cls):
    store = FakeStore()
    pair = pair_of(cls, store=store)
    pair.train(7)
    pair.optimizer.commit()
    theirs, plain = copy.deepcopy((pair.theirs, pair.plain))
    pair.train(1)
    pair.optimizer.close()
    ours, _ = made(SHAPES)
    again = Pair(ours, theirs, over(groups_of(ours), cls, store, tile=100), plain)
    assert again.optimizer.resume().step == 7
    same_groups(again)
    again.train(4)
    same_groups(again)
    again.same_state()


@each_class
def test_states_are_exchanged_with_the_class(cls):
    pair = pair_of(cls)
    pair.train(4)
    ours, theirs = made(SHAPES)
    other = Pair(ours, theirs, over(groups_of(ours), cls, tile=100), cls(groups_of(theirs)))
    for params in other.models:
        for param, value in zip(params, pair.ours):
            param.data.copy_(value.detach())
    other.optimizer.load_state_dict(of(pair.plain))
    other.plain.load_state_dict(of(pair.optimizer))
    other.train(3)
    same_groups(other)
    other.same_state()


# ---- Classes that train other values than those that are to be evaluated -------------------------


class Turns(torch.optim.Optimizer):
    """Parameters are between a fast sequence and its average while they are trained."""

    def __init__(self, params, lr=0.1, foreach=False):
        super().__init__(params, {"lr": lr, "trains": False, "weights": 0.0})

    def near(self, state):
        return 0.9

    @torch.no_grad()
    def turn(self, trains, share):
        for group in self.param_groups:
            if group["trains"] != trains:
                for param in group["params"]:
                    state = self.state[param]
                    if "fast" in state:
                        param.lerp_(state["fast"], share(self.near(state)))
                group["trains"] = trains

    def train(self):
        self.turn(True, lambda near: 1 - near)

    def eval(self):
        self.turn(False, lambda near: 1 - 1 / near)

    @torch.no_grad()
    def step(self):
        if not all(group["trains"] for group in self.param_groups):
            raise RuntimeError("call train() first")
        for group in self.param_groups:
            group["weights"] += group["lr"] ** 2
            share = group["lr"] ** 2 / group["weights"]
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["fast"] = param.clone()
                param.lerp_(state["fast"], share)
                param.sub_(param.grad, alpha=group["lr"] * 0.1)
                state["fast"].sub_(param.grad, alpha=group["lr"])


class TurnsWhole(Turns):
    """By a norm, of which a tile has a part."""

    def near(self, state):
        return 0.9 + 0.05 / (1 + float(state["fast"].norm()))


each_turning = pytest.mark.parametrize("cls", [Turns, TurnsWhole])


def turned(pair, name):
    for optimizer in pair.optimizers:
        getattr(optimizer, name)()
    pair.same()
    same_groups(pair)


@each_turning
@pytest.mark.parametrize("options", [
    {}, {"masters": True}, {"masters": "compact"},
    pytest.param({"in_backward": True}, marks=needs_hooks),
    pytest.param({"gradients": True}, marks=needs_hooks),
], ids=lambda options: "-".join(options))
def test_other_values_are_evaluated(cls, options):
    torch.manual_seed(3)
    masters = options.get("masters", False)
    if masters:
        pair = pair_of(cls, **options)
        pair.plain.train, pair.plain.eval = pair.plain.inner.train, pair.plain.inner.eval
    else:
        pair = pair_of(cls, Model(), **options)
    for step in range(6):
        for name in ("train", "eval", "train")[step % 3 > 0:]:
            turned_masters(pair, name) if masters else turned(pair, name)
        if masters:
            pair.train(1)
            continue
        pair.backward(without=step % 3)
        pair.step()
    if not masters:
        pair.same_state()


def turned_masters(pair, name):
    for optimizer in pair.optimizers:
        getattr(optimizer, name)()
    for param, master in zip(pair.theirs, pair.plain.masters):
        param.detach().copy_(master)
    pair.same()


@each_turning
def test_a_commit_may_come_between(cls):
    store = FakeStore()
    pair = pair_of(cls, store=store)
    turned(pair, "train")
    pair.train(3, none=0.2)
    turned(pair, "eval")
    pair.optimizer.commit()
    pair.optimizer.close()
    ours, _ = made(SHAPES)
    again = Pair(ours, pair.theirs, over(groups_of(ours), cls, store, tile=100), pair.plain)
    assert again.optimizer.resume().step == 3
    again.same()
    same_groups(again)
    turned(again, "train")
    again.train(3)
    again.same_state()


def test_a_second_call_reads_nothing():
    pair = pair_of(Turns)
    turned(pair, "train")
    pair.train(2)
    takes = pair.optimizer.stats().takes
    turned(pair, "train")
    assert pair.optimizer.stats().takes == takes
    turned(pair, "eval")
    assert pair.optimizer.stats().takes > takes


def test_a_class_without_train_and_eval_has_nothing_to_do():
    ours, _ = made(SHAPES)
    tiled, before = over(ours), copy.deepcopy(ours)
    tiled.train()
    tiled.eval()
    assert_same(ours, before)
    tiled.add_param_group({"params": [nn.Parameter(torch.ones(3))]})


@each_turning
def test_a_drive_that_fails_as_they_are_turned(cls):
    pair = pair_of(cls)
    turned(pair, "train")
    pair.train(2)
    with pair.drive_fails(2):
        pair.optimizer.eval()
    with pytest.raises(RuntimeError, match=r"since train\(\) or eval\(\) failed half way"):
        pair.optimizer.train()


# ---- What cannot be ------------------------------------------------------------------------------


class ByGradient(Counts):
    @torch.no_grad()
    def step(self):
        super().step()
        for group in self.param_groups:
            group["sum"] = sum(float(param.grad.sum()) for param in group["params"]
                               if param.grad is not None)


class WithGradient(Counts):
    """Counts only steps in which something has a gradient."""

    @torch.no_grad()
    def step(self):
        super().step()
        for group in self.param_groups:
            if any(param.grad is not None for param in group["params"]):
                group["stepped"] = group.get("stepped", 0) + 1


class Replaces(Counts):
    @torch.no_grad()
    def step(self):
        super().step()
        self.param_groups[0]["last"] = object()


class KeepsRate(Counts):
    """What its rate was when it was made."""

    def __init__(self, params, **options):
        super().__init__(params, **options)
        self.at_first = [group["lr"] for group in self.param_groups]

    @torch.no_grad()
    def step(self):
        super().step()
        for group, at_first in zip(self.param_groups, self.at_first):
            for param in group["params"]:
                param.clamp_(min=-group["lr"] / at_first)


class KeepsRateWhole(KeepsRate, CountsWhole):
    pass


class Forgets(Counts):
    @torch.no_grad()
    def step(self):
        super().step()
        self.param_groups[0].pop("begun")


class TurnsInItself(Turns):
    trains = False

    def turn(self, trains, share):
        super().turn(trains, share)
        self.trains = trains


class Swaps(Turns):
    @torch.no_grad()
    def turn(self, trains, share):
        self.param_groups[0]["trains"] = True
        for param in self.param_groups[0]["params"]:
            state = self.state[param]
            if state:
                state["fast"], before = param.clone(), state["fast"]
                param.copy_(before)


class InItself(Counts):
    calls = 0

    @torch.no_grad()
    def step(self):
        self.calls += 1
        if self.calls % 100 == 0:
            self.param_groups[0]["params"][0].zero_()
        super().step()


@pytest.mark.parametrize("cls, words", [
    (ByGradient, "it changes its param_groups as it steps, by what it steps: sum"),
    (WithGradient, "it changes its param_groups as it steps, by its gradients: stepped"),
    (Replaces, "it changes its param_groups as it steps: last, a object"),
    (KeepsRate, "what it does to a parameter depends on the others, or on chance"),
    (KeepsRateWhole, "what it does to a parameter depends on the others, or on chance"),
    (Forgets, "it changes its param_groups as it steps: begun is gone"),
    (InItself, "it counts in itself, neither in its groups nor in the state of its parameters: "
               "calls"),
    (TurnsInItself, "it counts in itself, neither in its groups nor in the state of .*: trains"),
    (Swaps, r"its groups do not have whether eval\(\) was called"),
], ids=lambda value: getattr(value, "__name__", ""))
def test_what_follows_from_more_than_a_count_is_refused(cls, words):
    with pytest.raises(TypeError, match=f"{cls.__name__} cannot have its state on drives: {words}"):
        over(made(SHAPES)[0], cls)


class Late(Counts):
    """Otherwise than in the steps that are tried."""

    what = None

    @torch.no_grad()
    def step(self):
        super().step()
        group = self.param_groups[0]
        if group["step"] == 10:
            group["late"] = self.what(group["params"])


class LateObject(Late):
    what = staticmethod(lambda params: object())


class LateGradient(Late):
    what = staticmethod(lambda params: float(params[0].grad.flatten()[0]))


@pytest.mark.parametrize("cls, words", [
    (LateObject, "late, a object"), (LateGradient, "by what it steps: late")])
def test_a_change_that_comes_later_ends_the_step(cls, words):
    ours, _ = made(((300,), (30, 20)))
    tiled = over(ours, cls, tile=100)
    for _ in range(9):
        give_grads(ours)
        tiled.step()
    give_grads(ours)
    with pytest.raises(RuntimeError, match=f"{cls.__name__} has not stepped as it did when it was "
                       f"tried: it changes its param_groups as it steps.*{words}.*Return to the "
                       "last commit"):
        tiled.step()
    with pytest.raises(RuntimeError, match="not whole any more"):
        tiled.step()
