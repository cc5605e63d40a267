# SPDX-License-Identifier: MIT
# tests/python/test_elementwise.py - which classes of optimizer may have their state on drives
"""Classes whose state or arithmetic depends on how many elements there are, and in which shape, are
refused before anything is changed; what a class makes of its options is what its steps get."""
import copy
import threading

import pytest
import torch

from fake_state import FakeStore
from pairs import HOOKS, Pair, made, over
from spillway._optim.elementwise import probe
from spillway._optim.inner import made_options

pytestmark = pytest.mark.usefixtures("fake_state")


def proven(cls, *shapes, **options):
    """The names of its fields."""
    group = made_options(cls, {}, options)
    return [field.name for field in probe(cls, group, options, torch.float32, shapes)]


def refused(cls, words, *shapes, **options):
    with pytest.raises(TypeError, match=f"{cls.__name__} cannot have its state on drives: {words}"):
        proven(cls, *shapes, **options)


class Plain(torch.optim.Optimizer):
    """Momentum, with what a subclass says of its state."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    def new_state(self, param):
        return {"average": torch.zeros_like(param)}

    def averaged(self, state, grad):
        return state["average"].mul_(0.9).add_(grad)

    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state.update(self.new_state(param))
                param.sub_(self.averaged(state, param.grad) * group["lr"])


class Subclass(torch.Tensor):
    """A number of 8 bits for each element, and a scale for each block: looks like float32."""


class Blocks(Plain):
    """As torchao has it."""

    def new_state(self, param):
        state = torch.zeros_like(param)
        if param.numel() >= 4096 and param.numel() % 256 == 0:
            state = state.as_subclass(Subclass)
        return {"average": state}


class Codes(Plain):
    """As bitsandbytes has it."""

    long = 4096

    def new_state(self, param):
        state = super().new_state(param)
        if param.numel() >= self.long:
            state["scales"] = torch.zeros(-(-param.numel() // 256))
        return state


class LongCodes(Codes):
    long = 100_000


class Halves(Plain):
    """Of long ones only. The state has the shape of the parameter, and is a plain tensor."""

    def new_state(self, param):
        short = param.numel() < 4096
        return {"average": torch.zeros_like(param, dtype=torch.float32 if short else torch.float16)}


class LongHalves(Halves):
    def new_state(self, param):
        return Plain.new_state(self, param) if param.numel() < 200_000 else super().new_state(param)


class Factored(Plain):
    """As Adafactor, where both sides are long."""

    least = 128

    def averaged(self, state, grad):
        if grad.dim() == 2 and min(grad.shape) >= self.least:
            grad = grad - grad.mean(dim=0, keepdim=True)
        return super().averaged(state, grad)


class LongFactored(Factored):
    least = 250


class Centered(Plain):
    """Gradients of convolutions have a mean of 0."""

    def averaged(self, state, grad):
        if grad.dim() > 3:
            grad = grad - grad.mean(dim=(1, 2, 3), keepdim=True)
        return super().averaged(state, grad)


class Counting(Plain):
    """Its steps, and not those of each parameter."""

    calls = 0

    def step(self):
        self.calls += 1
        super().step()

    def averaged(self, state, grad):
        return super().averaged(state, grad) / self.calls


class Squashed(Plain):
    """By a function that has other bits for the last elements of a tensor."""

    def averaged(self, state, grad):
        return super().averaged(state, grad).sign() * grad.abs().sigmoid()


class Scaling(Plain):
    def add_param_group(self, group):
        super().add_param_group(group)
        self.param_groups[-1]["lr"] *= 0.5


class TensorRates(Plain):
    """As torchao's classes."""

    def add_param_group(self, group):
        super().add_param_group(group)
        rate = self.param_groups[-1]["lr"]
        if not isinstance(rate, torch.Tensor):
            self.param_groups[-1]["lr"] = torch.tensor(rate, dtype=torch.float32)
        self.param_groups[-1].setdefault("decoupled", True)

    def step(self):
        if not all(isinstance(group["lr"], torch.Tensor) for group in self.param_groups):
            raise RuntimeError("lr was changed to a number")
        super().step()


@pytest.mark.parametrize("cls, words, shapes", [
    (Blocks, "for 28672 elements its state has average, which is a Subclass, and not a plain", []),
    (Codes, "for 28672 elements its state has scales of another shape than the parameter", []),
    (LongCodes, "for 110000 elements its state has scales of another", [(110, 1000)]),
    (Halves, "what it does to an element depends on others, on how many there are", []),
    (LongHalves, "what it does to an element depends on others, on how", [(3000, 100)]),
    (Factored, "what it does to an element depends on others", []),
    (LongFactored, "what it does to an element depends on others", [(7,), (2000, 1000)]),
    (Centered, "what it does to an element depends on others", []),
    (Counting, "it counts in itself, neither in its groups nor in the state of .*: calls", []),
    (Squashed, "what it does to an element depends on others", []),
    (Scaling, "the group has lr=0.05, of which its constructor makes 0.025", []),
], ids=lambda value: getattr(value, "__name__", None))
def test_what_depends_on_how_many_there_are_is_refused(cls, words, shapes):
    refused(cls, words, *shapes)


@pytest.mark.parametrize("cls, shapes", [
    (LongCodes, [(9, 1000)]), (LongHalves, [(100, 100), (3,)]), (LongFactored, [(2000, 10)]),
    (Plain, [(), (0, 3), (700, 1000), (1 << 20,)]), (torch.optim.AdamW, [(3, 300, 700)]),
    (torch.optim.RAdam, [(70000, 1, 1, 9)])], ids=lambda value: getattr(value, "__name__", None))
def test_what_no_parameter_comes_to_is_not_asked_for(cls, shapes):
    assert proven(cls, *shapes)


def test_nothing_is_changed_where_a_class_is_refused():
    params = [torch.nn.Parameter(torch.randn(64, 128)), torch.nn.Parameter(torch.randn(3))]
    before = copy.deepcopy(params)
    store = FakeStore()
    for param in params:
        param.grad = torch.ones_like(param)
    with pytest.raises(TypeError, match="Blocks cannot have its state .*use Blocks itself"):
        over(params, Blocks, store, tile=2048)
    assert store.state is None
    assert all(map(torch.equal, params, before))


@pytest.mark.parametrize("rate", [0.125, torch.tensor(0.125)], ids=["number", "tensor"])
def test_options_are_what_the_class_makes_of_them(rate):
    ours, theirs = made(((6000,), (50, 100)))
    pair = Pair(ours, theirs, over(ours[:1], TensorRates, tile=1000, lr=copy.deepcopy(rate)),
                TensorRates(theirs[:1], lr=copy.deepcopy(rate)))
    for params, optimizer in pair:
        optimizer.add_param_group({"params": params[1:], "lr": 0.5})
    for _ in range(3):
        with torch.no_grad():
            pair.train(1)
        for optimizer in pair.optimizers:
            optimizer.param_groups[0]["lr"].mul_(0.5)
    for mine, yours in zip(*(optimizer.param_groups for optimizer in pair.optimizers)):
        assert mine["decoupled"] is yours["decoupled"] is True
        assert torch.equal(mine["lr"], yours["lr"]) and mine["lr"].dtype == yours["lr"].dtype


class Tag:
    """Is the same as itself alone."""


@pytest.mark.parametrize("tag", [Tag(), threading.Lock(), [Tag()]], ids=["object", "lock", "list"])
def test_a_group_may_have_objects_of_its_owner(tag):
    group = made_options(torch.optim.Adam, {"tag": tag}, {})
    assert group["tag"] is tag
    assert len(probe(torch.optim.Adam, group, {}, torch.float32)) == 2


class Retags(Plain):
    def step(self):
        super().step()
        self.param_groups[0]["tag"] = Tag()


def test_an_object_of_a_group_that_steps_replace_is_refused():
    group = made_options(Retags, {"tag": Tag()}, {})
    with pytest.raises(TypeError, match="changes its param_groups"):
        probe(Retags, group, {}, torch.float32)


def test_options_that_the_class_does_not_take_are_refused_before_the_step():
    param = torch.nn.Parameter(torch.randn(3000))
    before = param.detach().clone()
    tiled = over([param], TensorRates, tile=1000)
    param.grad = torch.ones(3000)
    rate, tiled.param_groups[0]["lr"] = tiled.param_groups[0]["lr"], 0.1
    with pytest.raises(TypeError, match=r"cannot .* has lr=0.1, of which .* tensor\(0.1"):
        tiled.step()
    assert torch.equal(param, before)
    tiled.param_groups[0]["lr"] = rate
    tiled.step()
    assert torch.equal(param, before - 0.1 * param.grad)


def test_classes_of_torchao_whose_state_has_few_bits(monkeypatch):
    of_torchao = pytest.importorskip("torchao.optim")
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    for name in ("AdamW8bit", "AdamW4bit", "AdamWFp8"):
        for rate in (1e-2, torch.tensor(1e-2)):
            refused(getattr(of_torchao, name), "for 28672 elements its state has exp_avg, which is "
                    "a OptimState.*, and not a plain tensor", lr=rate)


def test_classes_of_bitsandbytes_whose_state_has_few_bits():
    of_bitsandbytes = pytest.importorskip("bitsandbytes.optim")
    for name in ("Adam8bit", "AdamW8bit", "Lion8bit", "RMSprop8bit", "PagedAdamW8bit"):
        refused(getattr(of_bitsandbytes, name), "for 28672 elements its state has .* of another "
                "shape than the parameter")
    refused(of_bitsandbytes.AdamW8bit, "for 200000 elements its state has", (200, 1000),
            min_8bit_size=1 << 17)
    assert proven(of_bitsandbytes.AdamW32bit) == ["state1", "state2"]


# ---- Steps that change nothing -------------------------------------------------------------------


def steps_of(optimizer, params, grads, rates=()):
    """One for each gradient, with these rates."""
    for number, grad in enumerate(grads):
        for param in params:
            param.grad = None if grad is None else torch.full(param.shape, grad)
        if rates:
            optimizer.param_groups[0]["lr"] = rates[number]
        optimizer.step()


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if "changed no" in record.getMessage()]


@pytest.mark.parametrize("in_backward", [False, True])
@pytest.mark.parametrize("grads, rates, words", [
    ([None] * 5, (), "none of the optimizer's 2 parameters has got a gradient. Are they those of"),
    ([1.0] * 5, [0.0] * 5, "lr is 0 in all groups. Was it, or the scheduler"),
    ([0.0] * 5, (), "all gradients are 0. Does the loss depend"),
    ([1.0] * 5, [1e-30] * 5, "too small for the parameters' type: lr is 1e-30. Give"),
], ids=["none", "rate", "zero", "small"])
def test_steps_that_change_no_parameter_are_said_once(caplog, grads, rates, words, in_backward):
    if in_backward and not HOOKS:
        pytest.skip("this PyTorch has no such hook")
    params = [torch.nn.Parameter(torch.ones(300)), torch.nn.Parameter(torch.ones(5, 5))]
    tiled = over(params, torch.optim.SGD, tile=100, lr=0.5, in_backward=in_backward)
    steps_of(tiled, params, grads, rates)
    found, = warnings_of(caplog)
    assert found.startswith("steps 1 to 2 changed no parameter: ") and words in found


def test_frozen_copies_are_said(caplog):
    copies = [torch.ones(300), torch.ones(3)]
    tiled = over(copies)
    steps_of(tiled, copies, [None] * 3)
    assert "none of the optimizer's 2 parameters requires a gradient" in warnings_of(caplog)[0]


@pytest.mark.parametrize("grads, rates", [
    ([1.0] * 5, [0.0, 0.1, 0.0, 0.0, 0.0]), ([0.0, 1.0, 0.0, 0.0, None], ()),
    ([None, 1.0, None, None, None], ()), ([1.0], [0.0])],
    ids=["a warm-up, and the end", "zero at first", "none at first", "one step"])
def test_what_does_change_is_not_said(caplog, monkeypatch, grads, rates):
    """And is not compared for longer than until then."""
    param = torch.nn.Parameter(torch.ones(300))
    tiled = over([param], torch.optim.SGD, tile=100, lr=0.5)
    steps_of(tiled, [param], grads[:2], rates)
    monkeypatch.setattr(torch, "equal", None)
    steps_of(tiled, [param], grads[2:], rates[2:])
    assert not warnings_of(caplog)


def test_one_element_that_changes_is_enough(caplog):
    """Of masters, though their parameters may stay as they are when they are rounded."""
    param = torch.nn.Parameter(torch.ones(300, dtype=torch.bfloat16))
    tiled = over([param], torch.optim.SGD, tile=100, lr=1e-4, masters=True)
    for _ in range(4):
        param.grad = torch.zeros_like(param)
        param.grad[299] = 1
        tiled.step()
    assert torch.equal(param, torch.ones_like(param)) and not warnings_of(caplog)
