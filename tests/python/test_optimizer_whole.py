# SPDX-License-Identifier: MIT
# tests/python/test_optimizer_whole.py - classes that step whole parameters, alone and beside others
"""Muon multiplies matrices, Adafactor has means of rows: their state is on drives by the parameter,
and comes to the bits of PyTorch's own for-loop."""
import copy
import math
import os
import random
import signal
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spillway
import spillway.checkpoint
import spillway.torch
from conftest import SEED, make_store
from fake_state import FakeStore
from pairs import HOOKS, Pair, assert_same, give_grads, made, needs_hooks, of, over
from spillway._optim.inner import made_options
from spillway._optim.whole import probe_whole

MUON = getattr(torch.optim, "Muon", None)
needs_muon = pytest.mark.skipif(MUON is None, reason="this PyTorch has no Muon: 2.9 has")
MATRICES = ((40, 30), (30, 40), (64, 64), (1, 9), (40, 30), (300, 7))
SHAPES = (*MATRICES, (7,), (3, 4, 5), ())


# ---- Classes that step whole parameters ----------------------------------------------------------


class Lamb(torch.optim.Optimizer):
    """The step of a parameter is as long as the parameter."""

    def __init__(self, params, lr=0.1, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta})

    def params(self):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    yield group, param, self.state[param]

    @torch.no_grad()
    def step(self):
        for group, param, state in self.params():
            if not state:
                state["average"] = torch.zeros_like(param)
            state["average"].lerp_(param.grad, 1 - group["beta"])
            length, change = param.norm(), state["average"].norm() + 1e-6
            param.sub_(state["average"] * (group["lr"] * length / change))


class Shampoo(Lamb):
    """With a matrix for each side of a parameter, a count, and a float64 that is replaced."""

    @torch.no_grad()
    def step(self):
        for group, param, state in self.params():
            if not state:
                state["step"] = 0
                for side, length in enumerate(param.shape):
                    state[f"side{side}"] = torch.eye(length, dtype=torch.float64)
            state["step"] += 1
            change = param.grad.double()
            for side in range(param.dim()):
                flat = change.movedim(side, 0).reshape(param.shape[side], -1)
                state[f"side{side}"] = state[f"side{side}"] * 0.9 + flat @ flat.t()
                factor = state[f"side{side}"].diagonal().clamp(min=1e-9).pow(-0.25)
                change = change * factor.view(-1, *[1] * (param.dim() - side - 1))
            param.sub_(change.to(param.dtype), alpha=group["lr"] / state["step"])


class Sides(Lamb):
    """As Shampoo, in lists: a matrix for each side but long ones, and averages by their share."""

    @torch.no_grad()
    def step(self):
        for group, param, state in self.params():
            if not state:
                state["sides"] = [torch.eye(length) if length < 100 else []
                                  for length in param.shape]
                state["averages"] = {0.5: torch.zeros_like(param), "slow": (torch.zeros(()), None)}
                state["turns"] = torch.randn(param.numel(), 2, generator=torch.Generator(
                ).manual_seed(1)).t() if param.dim() == 2 else None
            change = param.grad.clone()
            for side, matrix in enumerate(state["sides"]):
                if len(matrix):
                    flat = change.movedim(side, 0).reshape(param.shape[side], -1)
                    state["sides"][side] = matrix.lerp(flat @ flat.t(), 0.1).t().contiguous().t()
                    factor = state["sides"][side].diagonal().clamp(min=1e-9).pow(-0.25)
                    change = change * factor.view(-1, *[1] * (param.dim() - side - 1))
            if state["turns"] is not None:
                turned = state["turns"] @ change.reshape(-1, 1)
                state["turns"].mul_(0.9).add_(change.reshape(1, -1))
                change = change + turned.sum() * 1e-3
            average, (count, _) = state["averages"][0.5], state["averages"]["slow"]
            state["averages"]["slow"] = count + 1, None
            param.sub_(average.lerp_(change, 0.5), alpha=group["lr"] / float(count + 1))


class Codes(Lamb):
    """Numbers of 8 bits, and a scale for all of them."""

    @torch.no_grad()
    def step(self):
        for group, param, state in self.params():
            if not state:
                state["codes"] = torch.zeros_like(param, dtype=torch.int8)
                state["scale"] = torch.ones(1)
            average = state["codes"].float() * state["scale"]
            average = average.lerp(param.grad, 0.5)
            longest = average.abs().max() if average.numel() else torch.ones(())
            scale = longest.clamp(min=1e-12) / 127
            state["scale"].fill_(scale)
            state["codes"].copy_((average / scale).round())
            param.sub_(average, alpha=group["lr"])


class WithAux(torch.optim.Optimizer):
    """Groups of two kinds in one class: matrices by Newton's iteration, the others elementwise. It
    takes no other options, and steps what has no gradient as if it were zero."""

    def __init__(self, groups):
        for group in groups:
            names = {"params", "lr", "matrices", "momentum"}
            assert group.keys() <= names, group.keys() - names
            group.setdefault("momentum", 0.9 if group["matrices"] else 0.5)
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    param.grad = torch.zeros_like(param)
                state = self.state[param]
                if not state:
                    state["buffer"] = torch.zeros_like(param)
                change = state["buffer"].lerp_(param.grad, 1 - group["momentum"])
                if group["matrices"]:
                    change = change / (change.norm() + 1e-7)
                    for _ in range(3):
                        change = 1.5 * change - 0.5 * change @ change.t() @ change
                param.sub_(change, alpha=group["lr"])


OWN = [(Lamb, {}, SHAPES), (Shampoo, {}, SHAPES[:-1]), (Sides, {}, SHAPES[:-1]),
       (Codes, {}, (*SHAPES[:-1], (0, 3)))]
if MUON is not None:
    OWN += [(MUON, {"lr": 0.1}, MATRICES),
            (MUON, {"lr": 0.1, "nesterov": False, "adjust_lr_fn": "match_rms_adamw"}, MATRICES)]
if hasattr(torch.optim, "Adafactor"):
    OWN += [(torch.optim.Adafactor, {}, SHAPES), (torch.optim.Adafactor, {"beta2_decay": -0.5,
                                                                       "lr": 0.5}, SHAPES)]
each_own = pytest.mark.parametrize("cls, options, shapes", OWN, ids=lambda value: getattr(
    value, "__name__", "-".join(value) if isinstance(value, dict) else None))


def pair_with(cls, options, shapes, dtype=torch.float32, store=None, **ours):
    mine, theirs = made(shapes, dtype)
    store = FakeStore() if store is None else store
    loops = {"foreach": False} if "foreach" in cls([nn.Parameter(torch.ones(2, 2))],
                                                   **options).defaults else {}
    return Pair(mine, theirs, over(mine, cls, store, **options, **ours),
                cls(theirs, **options, **loops))


@pytest.mark.usefixtures("fake_state")
class TestBits:
    @each_own
    def test_are_those_of_the_class(self, cls, options, shapes):
        pair = pair_with(cls, options, shapes)
        pair.train(7, none=0.3)
        pair.same_state()
        tiles = pair.optimizer._tiled.records.layout.tiles
        assert [len(tile.pieces) for tile in tiles] == [1] * len(shapes)

    @each_own
    @pytest.mark.parametrize("dtype, kind", [
        (torch.bfloat16, True), (torch.float16, True), (torch.bfloat16, "compact")])
    def test_with_masters(self, cls, options, shapes, dtype, kind):
        mine, theirs = made(shapes, dtype)
        masters = [nn.Parameter(param.detach().float()) for param in theirs]
        plain = pair_with(cls, options, shapes).plain
        plain = cls(masters, **options)
        tiled = over(mine, cls, masters=kind, **options)
        for _ in range(5):
            give_grads(mine, theirs, none=0.3)
            for master, param in zip(masters, theirs):
                master.grad = None if param.grad is None else param.grad.float()
            tiled.step()
            plain.step()
            assert_same(mine, [nn.Parameter(master.detach().to(dtype)) for master in masters])
        state = of(tiled)["state"]
        for number, entry in state.items():
            if "master" in entry:
                assert_same(entry.pop("master"), masters[number].detach())
        assert_same({key: entry for key, entry in state.items() if entry}, of(plain)["state"])

    @needs_muon
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    def test_state_has_the_type_of_the_class(self, dtype):
        """Without masters: nothing is cut, so nothing rounds otherwise."""
        pair = pair_with(MUON, {"lr": 0.1}, MATRICES, dtype)
        pair.train(5)
        pair.same_state()
        assert pair.optimizer.state_dict()["state"][0]["momentum_buffer"].dtype == dtype

    @each_own
    def test_of_a_state_dict_both_ways(self, cls, options, shapes):
        """PyTorch's own makes the parameters' type of all that it loads, which is not tried."""
        pair = pair_with(cls, options, shapes)
        pair.train(2)
        mine = copy.deepcopy(pair.theirs)
        theirs, plain = copy.deepcopy((pair.theirs, pair.plain))
        again = Pair(mine, theirs, over(mine, cls, **options), plain)
        again.optimizer.load_state_dict(pair.plain.state_dict())
        if cls not in (Shampoo, Codes):
            again.plain.load_state_dict(pair.optimizer.state_dict())
        again.train(3)
        again.same_state()

    @each_own
    def test_of_a_commit(self, cls, options, shapes):
        store = FakeStore()
        pair = pair_with(cls, options, shapes, store=store)
        pair.train(2, none=0.3)
        pair.optimizer.commit()
        theirs, plain = copy.deepcopy((pair.theirs, pair.plain))
        pair.train(1)
        pair.optimizer.close()
        mine, _ = made(shapes)
        again = Pair(mine, theirs, over(mine, cls, store, **options), plain)
        assert again.optimizer.resume().step == 2
        again.same()
        again.train(3)
        again.same_state()

    @needs_hooks
    @pytest.mark.parametrize("option", ["in_backward", "gradients"])
    @each_own
    def test_during_the_backward_pass(self, cls, options, shapes, option):
        pair = pair_with(cls, options, shapes, **{option: True})
        for step in range(4):
            grads = [torch.randn(param.shape) for param in pair.ours]
            for params in pair.models:
                torch.autograd.backward([(param * grad).sum()
                                         for param, grad in zip(params, grads)])
            if option == "gradients":
                pair.clip()
            pair.step()
        pair.same_state()

    @needs_muon
    def test_after_a_drive_failed(self):
        pair = pair_with(MUON, {"lr": 0.1}, MATRICES)
        for fail_after in (1, 3, 5, None):
            pair.give_grads()
            if fail_after is not None:
                with pair.drive_fails(fail_after):
                    pair.optimizer.step()
            pair.step()
        pair.same_state()

    @needs_muon
    def test_of_a_gradient_in_another_order(self):
        pair = pair_with(MUON, {"lr": 0.1}, ((40, 60),))
        for _ in range(3):
            pair.give_grads()
            for params in pair.models:
                params[0].grad = params[0].grad.t().contiguous().t()
            pair.step()


# ---- Beside others -------------------------------------------------------------------------------


def groups_of(params, **matrices):
    """(Muon's, AdamW's)"""
    return ([param for param in params if param.dim() == 2],
            [param for param in params if param.dim() != 2])


def mixed(params, store, **ours):
    matrices, rest = groups_of(params)
    return spillway.torch.Optimizer(MUON, [
        {"params": matrices, "lr": 0.1, "weight_decay": 0.01},
        {"params": rest, "optimizer_class": torch.optim.AdamW, "lr": 0.01},
    ], store, momentum=0.9, **ours)


class Both:
    """PyTorch's two, as recipes have them."""

    def __init__(self, params):
        matrices, rest = groups_of(params)
        self.each = (MUON(matrices, lr=0.1, weight_decay=0.01, momentum=0.9),
                     torch.optim.AdamW(rest, lr=0.01, foreach=False))

    def step(self):
        for one in self.each:
            one.step()

    def zero_grad(self):
        for one in self.each:
            one.zero_grad()

    def state_dict(self):
        """As of one that has both."""
        state, groups, count = {}, [], 0
        for one in self.each:
            content = one.state_dict()
            group, = content["param_groups"]
            state.update({count + number: entry for number, entry in content["state"].items()})
            numbers = [count + number for number in group["params"]]
            groups.append({**group, "params": numbers})
            count += len(numbers)
        return {"state": state, "param_groups": groups}


@needs_muon
@pytest.mark.usefixtures("fake_state")
class TestBeside:
    @pytest.mark.parametrize("tile", [50, None])
    @pytest.mark.parametrize("option", [
        {}, pytest.param({"in_backward": True}, marks=needs_hooks),
        pytest.param({"gradients": True}, marks=needs_hooks)
    ], ids=["", "in_backward", "gradients"])
    def test_muon_and_adamw_are_those_two(self, option, tile):
        mine, theirs = made(SHAPES)
        tiled = mixed(mine, FakeStore(), tile=tile, **option)
        pair = Pair(mine, theirs, tiled, Both(theirs))
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(one, 0.7)
                      for one in (tiled, *pair.plain.each)]
        for _ in range(5):
            grads = [torch.randn(param.shape) for param in mine]
            for params in pair.models:
                torch.autograd.backward([(param * grad).sum()
                                         for param, grad in zip(params, grads)])
            pair.step()
            for scheduler in schedulers:
                scheduler.step()
        pair.same_state()
        assert "betas" not in tiled.param_groups[0] and "momentum" not in tiled.param_groups[1]
        assert "Muon and AdamW" in repr(tiled)

    @needs_hooks
    @pytest.mark.parametrize("grad", [None, 0.0])
    def test_an_update_that_is_skipped_too_late_is_refused(self, grad):
        """A matrix and what AdamW steps, dropped or replaced."""
        mine, theirs = made(SHAPES)
        tiled = mixed(mine, FakeStore(), in_backward=True)
        pair = Pair(mine, theirs, tiled, Both(theirs))
        for number in (0, len(SHAPES) - 1):
            grads = [torch.randn(param.shape) for param in mine]
            for params in pair.models:
                torch.autograd.backward([(param * grad).sum()
                                         for param, grad in zip(params, grads)])
            mine[number].grad = None if grad is None else torch.full_like(mine[number], grad)
            with pytest.raises(RuntimeError, match="since the backward pass.*call step.. once"):
                tiled.step()
            pair.step()
        pair.same_state()

    def test_a_commit_knows_the_classes(self):
        store = FakeStore()
        mine, others = made(SHAPES)
        tiled = mixed(mine, store)
        give_grads(mine)
        tiled.step()
        tiled.commit()
        tiled.close()
        matrices, rest = groups_of(others)
        other = spillway.torch.Optimizer(MUON, [
            {"params": matrices}, {"params": rest, "optimizer_class": torch.optim.Adam}], store)
        with pytest.raises(spillway.SpillwayError, match="it is of .*AdamW, and this is .*Adam$|"
                           "it is of .*AdamW, and this is .*Adam[.]"):
            other.resume()
        other.close()
        again = mixed(others, store)
        assert again.resume().step == 1
        both = Pair(mine, others, tiled, again)
        assert_same(mine, others)
        give_grads(others)
        again.step()
        assert_same(of(again), of(both.optimizers[1]))

    def test_a_group_is_added(self):
        mine, theirs = made(SHAPES)
        matrices, rest = groups_of(mine)
        tiled = over(matrices, MUON, lr=0.1, weight_decay=0.01, momentum=0.9)
        given = {"params": rest, "optimizer_class": torch.optim.AdamW, "lr": 0.01}
        tiled.add_param_group(given)
        assert given.keys() == {"params", "optimizer_class", "lr"}
        with pytest.raises(TypeError, match="the group's optimizer_class must be a class like"):
            tiled.add_param_group({"params": [nn.Parameter(torch.ones(3))],
                                   "optimizer_class": "AdamW"})
        pair = Pair(mine, theirs, tiled, Both(theirs))
        pair.train(3)
        pair.same_state()

    def test_the_first_group_may_have_its_own(self):
        mine, theirs = made(SHAPES)
        matrices, rest = groups_of(mine)
        tiled = spillway.torch.Optimizer(torch.optim.AdamW, [
            {"params": matrices, "optimizer_class": MUON, "lr": 0.1, "weight_decay": 0.01,
             "momentum": 0.9}, {"params": rest}], FakeStore(), lr=0.01)
        pair = Pair(mine, theirs, tiled, Both(theirs))
        pair.train(3)
        pair.same_state()


@pytest.mark.usefixtures("fake_state")
class TestOneClassOfBoth:
    def groups(self, params):
        matrices, rest = groups_of(params)
        return [{"params": matrices, "matrices": True, "lr": 0.1},
                {"params": rest, "matrices": False, "lr": 0.01}]

    def test_groups_are_stepped_as_they_can_be(self):
        mine, theirs = made(SHAPES)
        pair = Pair(mine, theirs, over(self.groups(mine), WithAux, tile=20),
                    WithAux(self.groups(theirs)))
        schedulers = [torch.optim.lr_scheduler.OneCycleLR(one, 0.5, total_steps=9,
                                                          cycle_momentum=False)
                      for one in pair.optimizers]
        for _ in range(5):
            pair.train(1)
            for scheduler in schedulers:
                scheduler.step()
        pair.same_state()
        tiles = pair.optimizer._tiled.records.layout.tiles
        assert [tile.shape for tile in tiles[:len(MATRICES)]] == list(MATRICES)
        assert {tile.shape for tile in tiles[len(MATRICES):]} == {None}
        assert max(tile.count for tile in tiles[len(MATRICES):]) <= 20

    def test_what_would_be_stepped_without_a_gradient_is_said(self):
        """The class's own loses weight there, which no record would."""
        mine, _ = made(SHAPES)
        tiled = over(self.groups(mine), WithAux)
        give_grads(mine)
        mine[2].grad = None
        before = copy.deepcopy(mine)
        with pytest.raises(RuntimeError, match="group0.param2 has no gradient, and WithAux steps "
                           "such parameters as well: give it zeros"):
            tiled.step()
        assert_same(mine, before)
        mine[2].grad = torch.zeros_like(mine[2])
        tiled.step()
        if HOOKS:
            with pytest.raises(ValueError, match="WithAux steps parameters without a gradi"):
                over(self.groups(mine), WithAux, in_backward=True)


# ---- What is refused -----------------------------------------------------------------------------


class Growing(Lamb):
    """Its state gets longer by the step."""

    @torch.no_grad()
    def step(self):
        for group, param, state in self.params():
            norm = param.norm().view(1)
            state["norms"] = torch.cat([state.get("norms", norm), norm])
            param.sub_(param.grad * state["norms"].mean() * group["lr"])


class Later(Lamb):
    """Has something from its third step on."""

    @torch.no_grad()
    def step(self):
        for group, param, state in self.params():
            state["step"] = state.get("step", 0) + 1
            if state["step"] == 3:
                state["late"] = torch.zeros_like(param)
            param.sub_(param.grad / param.grad.norm() * group["lr"])


class Clipped(Lamb):
    """By the norm of all gradients."""

    @torch.no_grad()
    def step(self):
        norm = sum(param.grad.norm() for _, param, _ in self.params())
        for _, param, _ in self.params():
            param.grad.div_(norm)
        super().step()


class Listed(Lamb):
    @torch.no_grad()
    def step(self):
        super().step()
        for _, param, state in self.params():
            state["sides"] = {*param.shape}


class Gaps(Lamb):
    @torch.no_grad()
    def step(self):
        super().step()
        for _, param, state in self.params():
            state["sides"] = torch.zeros(3, 5)[:, ::2]


class Chance(Lamb):
    @torch.no_grad()
    def step(self):
        for _, param, _ in self.params():
            param.grad.mul_(torch.rand(()))
        super().step()


class Calls(Lamb):
    calls = 0

    @torch.no_grad()
    def step(self):
        self.calls += 1
        for _, param, _ in self.params():
            param.grad.div_(param.grad.norm() * self.calls)
        super().step()


class Moves(Lamb):
    @torch.no_grad()
    def step(self):
        super().step()
        self.param_groups[0]["sums"] = torch.ones(3)


@pytest.mark.usefixtures("fake_state")
@pytest.mark.parametrize("cls, words", [
    (Growing, r"its state changes its shape or type: norms is float32 \(2,\) after the first step, "
     r"and float32 \(3,\) later"),
    (Later, r"its state changes its shape or type: late is not there after the first step, and"),
    (Clipped, "what it does to a parameter depends on the others, or on chance: it needs several"),
    (Listed, "its state has sides, a set: only plain tensors and numbers can be in a record"),
    (Gaps, "its state has sides, with gaps between its elements"),
    (Chance, ".*depends on the others, or on chance"),
    (Calls, "it counts in itself, neither in its groups nor in the state of .*: calls"),
    (Moves, "it changes its param_groups as it steps: sums, a Tensor"),
    (torch.optim.LBFGS, "a step on parameters of float32 .4, 5., .7, 3. fails: "),
], ids=lambda value: getattr(value, "__name__", ""))
def test_a_class_that_needs_more_is_refused(cls, words):
    params, _ = made(((4, 5), (7, 3)))
    before, store = copy.deepcopy(params), FakeStore()
    with pytest.raises(TypeError, match=f"^{cls.__name__} cannot have its state on drives: {words}"
                       f".*use {cls.__name__} itself, in memory$"):
        over(params, cls, store)
    assert store.state is None
    assert_same(params, before)


@needs_muon
@pytest.mark.usefixtures("fake_state")
def test_parameters_that_muon_cannot_step_are_named():
    mine, _ = made(((4, 5), (7,)))
    store = FakeStore()
    with pytest.raises(TypeError, match="Muon cannot .*only supports 2D .*optimizer_class="):
        over(mine, MUON, store)
    turned = nn.Parameter(torch.randn(5, 4).t())
    with pytest.raises(TypeError, match="group0.param1 is not contiguous, so that Muon may come"):
        over([mine[0], turned], MUON, store)
    with pytest.raises(ValueError, match="interleave has a device step .* Muon steps whole"):
        over(mine[:1], MUON, store, interleave=2)
    with pytest.raises(ValueError, match="longest is of a parameter that its class steps"):
        over([nn.Parameter(torch.zeros(100, 100))], MUON, store, memory=40000, tile=10)
    with pytest.raises(ValueError, match="foreach=True is other arithmetic"):
        over([{"params": mine[:1]}, {"params": mine[1:], "optimizer_class": torch.optim.AdamW,
                                    "foreach": True}], MUON, store)
    with pytest.raises(TypeError, match="lrr"):
        over(mine[:1], MUON, store, lrr=0.1)
    assert store.state is None


@needs_muon
@pytest.mark.usefixtures("fake_state")
def test_a_class_that_changes_its_mind_ends_the_use():
    """As it steps, for what was too long to be tried."""
    class Changes(Lamb):
        changed = False

        @torch.no_grad()
        def step(self):
            super().step()
            for _, _, state in self.params():
                if Changes.changed:
                    state["average"] = state["average"].half()

    mine, _ = made(((40, 30),))
    tiled = over(mine, Changes)
    give_grads(mine)
    tiled.step()
    Changes.changed = True
    with pytest.raises(RuntimeError, match=r"Changes has made for 1200 elements average of "
                       r"float16 \(40, 30\), which was another in the .* use Changes itself"):
        tiled.step()
    with pytest.raises(RuntimeError, match="not whole any more"):
        tiled.step()


@pytest.mark.usefixtures("fake_state")
def test_a_class_that_keeps_more_later_ends_the_use():
    """Later than it can be tried for, as one that averages from a step on."""
    class Averages(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            super().step(closure)
            for group in self.param_groups:
                for param in group["params"]:
                    state = self.state[param]
                    state["count"] = state.get("count", 0) + 1
                    if state["count"] == 20:
                        state["average"] = param.clone()

    mine, _ = made(((40, 30),))
    tiled = over(mine, Averages, lr=0.1)
    for _ in range(19):
        give_grads(mine)
        tiled.step()
    give_grads(mine)
    with pytest.raises(RuntimeError, match="Averages has made for 1200 elements average, which was "
                       "not there in the steps .* last commit, and use Averages itself, in memory"):
        tiled.step()


def test_what_is_kept_is_known_for_long_parameters():
    """Which are not stepped in full for that if the state has their shape."""
    shapes = [(3000, 4000), (1 << 12, 1 << 10), (7,)]
    found = probe_whole(Lamb, made_options(Lamb, {}, {}), {}, torch.float32, shapes)
    assert [[(field.name, field.shape) for field in found.by_shape[shape]]
            for shape in shapes] == [[("average", None)]] * 3
    found = probe_whole(Codes, made_options(Codes, {}, {}), {}, torch.float32, shapes)
    assert [[(field.name, field.shape) for field in found.by_shape[shape]]
            for shape in shapes] == [[("codes", None), ("scale", (1,))]] * 3


# ---- Models, over drives -------------------------------------------------------------------------


class Root(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Block(nn.Module):
    def __init__(self, kind, width, heads=2):
        super().__init__()
        bias, self.heads, self.is_gpt = kind == "gpt", heads, kind == "gpt"
        self.norms = nn.ModuleList((nn.LayerNorm if bias else Root)(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)
        self.up, self.down = nn.Linear(width, 4 * width, bias), nn.Linear(4 * width, width, bias)
        self.gate = None if bias else nn.Linear(width, 4 * width, False)

    def turned(self, x):
        """Rotary positions."""
        half = x.shape[-1] // 2
        angles = torch.arange(x.shape[-2])[:, None] / 100 ** (torch.arange(half) / half)
        angles = angles.to(x.dtype)
        one, other = x[..., :half], x[..., half:]
        return torch.cat([one * angles.cos() - other * angles.sin(),
                          one * angles.sin() + other * angles.cos()], -1)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for part in self.qkv(self.norms[0](x)).chunk(3, -1))
        if not self.is_gpt:
            q, k = self.turned(q), self.turned(k)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        inner = self.up(self.norms[1](x))
        inner = F.gelu(inner) if self.is_gpt else F.silu(self.gate(self.norms[1](x))) * inner
        return x + self.down(inner)


class Decoder(nn.Module):
    """A GPT or a Llama of 4 layers."""

    def __init__(self, kind, width=32, words=40, length=16):
        super().__init__()
        self.token, self.position = nn.Embedding(words, width), nn.Embedding(length, width)
        if kind != "gpt":
            self.position = None
        self.blocks = nn.Sequential(*(Block(kind, width) for _ in range(4)))
        self.norm = (nn.LayerNorm if kind == "gpt" else Root)(width)
        self.head = nn.Linear(width, words, False)

    def forward(self, words):
        x = self.token(words)
        if self.position is not None:
            x = x + self.position.weight
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), words[:, 1:].flatten())

    def parts(self):
        """(matrices of the layers, all others), as recipes have them"""
        matrices = [param for param in self.blocks.parameters() if param.dim() == 2]
        of_blocks = set(map(id, matrices))
        return matrices, [param for param in self.parameters() if id(param) not in of_blocks]


def decoder(kind, dtype=torch.float32):
    torch.manual_seed(SEED)
    return Decoder(kind).to(dtype)


STEPS = 50


def over_drives(model, store, **options):
    matrices, rest = model.parts()
    return spillway.torch.Optimizer(MUON, [
        {"params": matrices, "lr": 0.02, "momentum": 0.95},
        {"params": rest, "optimizer_class": torch.optim.AdamW, "lr": 3e-3, "weight_decay": 0.1},
    ], store, **options)


def in_memory(model, params=None):
    """:param params: (matrices, others), instead of the model's"""
    matrices, rest = params or model.parts()
    return (MUON(matrices, lr=0.02, momentum=0.95),
            torch.optim.AdamW(rest, lr=3e-3, weight_decay=0.1, foreach=False))


def train_step(model, optimizers, before=lambda: None):
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss = model(torch.randint(40, (4, 16)))
    loss.backward()
    before()
    for optimizer in optimizers:
        optimizer.step()
    return loss.item()


def plain_outcome(kind):
    """(parameters, states of Muon and of AdamW), after STEPS"""
    model = decoder(kind)
    optimizers = in_memory(model)
    torch.manual_seed(SEED + 1)
    for _ in range(STEPS):
        train_step(model, optimizers)
    return ([param.detach() for param in model.parameters()],
            [list(optimizer.state_dict()["state"].values()) for optimizer in optimizers])


def assert_same_outcome(outcome, optimizer, model):
    params, states = outcome
    assert_same([param.detach() for param in model.parameters()], params)
    assert_same(list(optimizer.state_dict()["state"].values()), [*states[0], *states[1]])


def opened(drives, **options):
    return spillway.Store(drives, arena_bytes=8 << 20, **options)


@needs_muon
@pytest.mark.parametrize("option", [
    {}, *[pytest.param({name: True}, marks=needs_hooks) for name in ("in_backward", "gradients")]
], ids=["", "in_backward", "gradients"])
@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_muon_and_adamw_train_a_model_to_the_same_bits(folder, kind, option):
    model = decoder(kind)
    with opened(make_store(folder, 2, 64 << 20)) as store:
        optimizer = over_drives(model, store, tile=1009, **option)
        torch.manual_seed(SEED + 1)
        for _ in range(STEPS):
            train_step(model, [optimizer])
        assert optimizer.stats().bytes_read > 0
        assert_same_outcome(plain_outcome(kind), optimizer, model)


@needs_muon
@pytest.mark.parametrize("kind, of_masters", [("gpt", True), ("llama", "compact")])
def test_masters_of_bfloat16(folder, kind, of_masters):
    """The gradients of bfloat16 parameters step float32 masters, of both classes."""
    ours, theirs = decoder(kind, torch.bfloat16), decoder(kind, torch.bfloat16)
    masters = [[nn.Parameter(param.detach().float()) for param in part] for part in theirs.parts()]
    plain = in_memory(None, masters)

    def to_masters():
        for mine, part in zip(masters, theirs.parts()):
            for master, param in zip(mine, part):
                master.grad = None if param.grad is None else param.grad.float()

    with opened(make_store(folder, 2, 64 << 20)) as store:
        optimizer = over_drives(ours, store, tile=1009, masters=of_masters)
        for step in range(20):
            torch.manual_seed(SEED + step)
            train_step(ours, [optimizer])
            torch.manual_seed(SEED + step)
            theirs.zero_grad()
            train_step(theirs, plain, to_masters)
            with torch.no_grad():
                for mine, part in zip(masters, theirs.parts()):
                    for master, param in zip(mine, part):
                        param.copy_(master)
            assert_same(ours, theirs)


def run_to_the_end(kind, drives, results):
    """From the last commit on; it commits every fifth step."""
    model = decoder(kind)
    torch.manual_seed(SEED + 1)
    with opened(drives) as store:
        optimizer = over_drives(model, store, tile=1009)
        optimizer.resume()
        while optimizer.steps < STEPS:
            train_step(model, [optimizer])
            if optimizer.steps % 5 == 0:
                optimizer.commit()
        torch.save([[param.detach() for param in model.parameters()],
                    list(optimizer.state_dict()["state"].values())], results)


def run_in_child(*args, seconds):
    """Return: whether it came to its end, before a signal did."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)  # the parent's are not here, and would be waited for
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            run_to_the_end(*args)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGALRM), f"the child ended by itself, with {status}"
    return status == 0


@needs_muon
@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_a_run_that_is_killed_comes_to_the_same_bits(folder, kind):
    source = random.Random(SEED)
    torch.set_num_threads(1)  # conftest.py sets it back
    outcome = plain_outcome(kind)
    drives = make_store(folder, 2, 64 << 20)
    begun = time.monotonic()
    assert run_in_child(kind, drives, folder / "whole", seconds=1000)
    seconds = time.monotonic() - begun
    kills, ended = 0, False
    spillway.format_store(drives, force=True, erase=True)
    while not ended or kills == 0:
        if ended:  # faster than the run that was timed: once more, from the start
            seconds /= 2
            spillway.format_store(drives, force=True, erase=True)
        ended = run_in_child(kind, drives, folder / "killed", seconds=(
            seconds * source.uniform(0.2, 0.9) if kills < 6 else 1000))
        kills += not ended
    print(f"killed {kills} times")
    for name in ("whole", "killed"):
        params, states = torch.load(folder / name)
        assert_same(params, outcome[0])
        assert_same(states, [*outcome[1][0], *outcome[1][1]])


@needs_muon
def test_exported_and_imported(folder):
    """State of all shapes, and of integers."""
    drives = make_store(folder, 2, 64 << 20)
    mine, others = made(SHAPES[:-1])
    groups = [{"params": mine[:2]}, {"params": mine[2:4], "optimizer_class": Codes},
              {"params": mine[4:], "optimizer_class": torch.optim.Adafactor, "lr": 0.5}]
    with opened(drives) as store:
        optimizer = spillway.torch.Optimizer(MUON, groups, store)
        for _ in range(3):
            give_grads(mine)
            optimizer.step()
        optimizer.commit()
        state = optimizer.state_dict()
    with opened(drives, read_only=True) as store:
        spillway.checkpoint.export(store, folder / "all.pt", "torch", "all")
    with opened(drives, read_only=True) as store:
        spillway.checkpoint.export(store, folder / "all.safetensors", "safetensors", "all")
    exported = torch.load(folder / "all.pt", weights_only=True)
    assert_same(exported["optimizer"]["state"], state["state"])
    spillway.format_store(drives, force=True, erase=True)
    groups = [{**group, "params": others[begin:end]}
              for group, (begin, end) in zip(groups, ((0, 2), (2, 4), (4, None)))]
    with opened(drives) as store:
        again = spillway.torch.Optimizer(MUON, groups, store)
        spillway.checkpoint.import_(again, folder / "all.pt", what="all")
        assert_same(mine, others)
        assert_same(again.state_dict()["state"], state["state"])


def test_lengths_of_wholes_are_counted():
    """So that a store that is too small is refused before anything is declared."""
    sides = 64
    found = probe_whole(Shampoo, made_options(Shampoo, {}, {}), {}, torch.float32, [(sides, 3)])
    assert [math.prod(field.shape or (sides, 3)) for field in found.by_shape[sides, 3]] == [
        sides * sides, 9]
