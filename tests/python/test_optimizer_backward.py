# SPDX-License-Identifier: MIT
# tests/python/test_optimizer_backward.py - parameters stepped while the backward pass goes on
import gc
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import spillway
from pairs import (HOOKS, Model, models, models_with_float32_gradients, needs_types, over,
                   params_of)
from spillway._grads.freed_placeholder import Freed

pytestmark = [pytest.mark.usefixtures("fake_state"),
              pytest.mark.skipif(not HOOKS, reason="this PyTorch has no hook for it")]

try:
    compiles = hasattr(torch, "compile") and torch.compile(lambda x: x, backend="eager")
except RuntimeError:  # this Python is too new for it
    compiles = False


def tiled(tile=500, **options):
    return models(tile, in_backward=True, **options)


@pytest.mark.parametrize("tile", [100, 500, 5000])
def test_bits_are_those_of_a_step_afterwards(tile):
    pair = tiled(tile)
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 1, 0.5) for one in pair.optimizers]
    for step in range(5):
        pair.backward(without=2 if step % 2 else None)
        pair.step(zero=False)
        assert all(param.grad is None for param in pair.ours.parameters())
        pair.plain.zero_grad()
        for scheduler in schedulers:
            scheduler.step()
    assert pair.optimizer.steps == 5


@needs_types
@pytest.mark.parametrize("masters", [True, "compact"])
def test_gradients_of_another_type_than_their_parameters(masters):
    """And zeros of that type, for what has none in the step after."""
    pair = models_with_float32_gradients(in_backward=True, masters=masters)
    for step in range(4):
        pair.backward(without=2 if step % 2 else None)
        pair.step(zero=False)
        for one in pair.optimizers:
            one.zero_grad(set_to_none=False)


@needs_types
def test_a_large_gradient_of_another_type_than_its_parameter():
    """A step of the parameter's own memory would be refused half way."""
    ours, theirs = (nn.Parameter(torch.ones(200, 100)) for _ in range(2))
    tiled_one = over([ours], torch.optim.SGD, lr=0.1)
    plain = torch.optim.SGD([theirs], lr=0.1, foreach=False)
    for _ in range(2):
        grad = torch.randn(200, 100).bfloat16()
        for param, optimizer in ((ours, tiled_one), (theirs, plain)):
            param.grad_dtype = torch.bfloat16
            param.grad = grad.clone()
            optimizer.step()
    assert torch.equal(ours, theirs)


def test_a_forward_pass_before_step_is_said_to_read_new_parameters():
    """Once; training goes on with the same bits. Before the backward pass and after step() it is
    none of that."""
    pair = tiled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair.backward()
        pair.step()
        with torch.no_grad():
            pair.ours.eval()(torch.ones(4, 20))
    pair.ours.train()
    for number in range(2):
        pair.backward()
        with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pair.ours.eval()(torch.ones(4, 20))
        assert [str(one.message).split(", and")[1].split(" has")[0] for one in caught] == [
            " in_backward=True"] * (number == 0)
        pair.ours.train()
        pair.step()


def test_options_are_looked_at_as_often_however_many_tiles_there_are():
    """Each gradient that comes asks for them."""
    counts = []
    for tile in (100, 5000):
        pair, asked = tiled(tile), []
        fields_of = pair.optimizer._fields_of

        def counted(*kind, fields_of=fields_of, asked=asked):
            asked.append(kind)
            return fields_of(*kind)

        pair.optimizer._fields_of = counted
        pair.backward()
        pair.step()
        counts.append(len(asked))
    assert counts[0] == counts[1] > 0


def test_gradients_are_freed_as_tiles_are_stepped():
    pair = tiled(100)
    pair.backward(without=0)
    assert all(isinstance(param.grad, Freed) for param in pair.ours.parameters())
    with pytest.raises(RuntimeError, match="no step.. has ended it"):
        pair.optimizer.commit()
    pair.step()
    assert pair.optimizer.commit() == 1


@pytest.mark.parametrize("tile", [100, 5000])
def test_a_second_backward_pass_is_refused(tile):
    """Whether the gradient is freed, or there still for a tile that lacks another."""
    pair = tiled(tile)
    pair.backward(without=2)
    with pytest.raises(RuntimeError, match="Call step.. after each"):
        pair.ours(torch.randn(8, 20), 2).backward()
    pair.optimizer.step()


@pytest.mark.parametrize("look", [
    lambda params: nn.utils.clip_grad_norm_(params, 1.0),
    lambda params: nn.utils.clip_grad_norm_(params, 1.0, foreach=False),
    lambda params: nn.utils.clip_grad_value_(params, 1.0),
    lambda params: [float(param.grad.norm()) for param in params],
], ids=["norm", "norm of each", "value", "look"])
def test_who_looks_at_gradients_before_step_is_told(look):
    pair = tiled(100)
    pair.backward()
    with pytest.raises(RuntimeError, match="this gradient has been used and freed"):
        look(list(pair.ours.parameters()))
    assert "used and freed" in repr(pair.ours.last.weight.grad)
    pair.step(zero=False)
    assert all(param.grad is None for param in pair.ours.parameters())


def _zero(params):
    for param in params:
        param.grad = torch.zeros_like(param)


TOO_LATE = {
    "the optimizer's zero_grad": lambda optimizer, _model: optimizer.zero_grad(),
    "the model's zero_grad": lambda _optimizer, model: model.zero_grad(),
    "one is dropped": lambda _optimizer, model: setattr(model.last.weight, "grad", None),
    "all are replaced": lambda _optimizer, model: _zero(model.parameters()),
}


@pytest.mark.parametrize("skip", TOO_LATE.values(), ids=TOO_LATE)
@pytest.mark.parametrize("tile, without", [(100, None), (500, 2), (5000, None), (100, 0)])
def test_an_update_that_is_skipped_too_late_is_refused(tile, without, skip):
    """Parameters have been stepped, some of them in some of their tiles only. Where none was, all
    is as in PyTorch."""
    pair = tiled(tile)
    for step in range(3):
        pair.backward(without=without)
        if step == 1:
            stepped = pair.optimizer._during._changed
            assert stepped or tile == 5000
            skip(pair.optimizer, pair.ours)
            for number, (mine, yours) in enumerate(zip(*map(params_of, pair.models))):
                if number not in stepped:
                    yours.grad = mine.grad
            if stepped:
                with pytest.raises(RuntimeError, match=r"(dropped|replaced) since the backward "
                                   r"pass.*call step\(\) once more"):
                    pair.optimizer.step()
                with pytest.raises(RuntimeError, match="no step.. has ended it"):
                    pair.optimizer.commit()
        pair.step()


def test_a_gradient_that_changes_after_a_part_of_it_was_used_is_refused():
    """There is no way back: half of the parameter was stepped with what it was."""
    pair = tiled(500)
    pair.backward(without=2)
    during = pair.optimizer._during
    number, param = next((number, param) for number, param in enumerate(pair.ours.parameters())
                         if number in during._changed and not isinstance(param.grad, Freed))
    param.grad.mul_(0.5)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=rf"gradient of .*{number}.* was changed since .*the "
                           r"last commit\.$"):
            pair.optimizer.step()


class Doubles(torch.optim.SGD):
    """As some do with decay: it has the gradient itself changed."""

    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.grad.mul_(2)
        return super().step(closure)


class Halves(nn.Module):
    """Two tiles have most of the weight, and a third one its end, with what is not used."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(205, 200))
        self.unused = nn.Parameter(torch.randn(50))

    def forward(self, x):
        return (x @ self.weight).tanh()


def test_a_class_may_change_gradients_in_place():
    """The second tile has its piece of the gradient changed after the first has used its own."""
    pair = models(20000, model=Halves, cls=Doubles, lr=0.1, in_backward=True)
    for _ in range(3):
        x = torch.randn(8, 205)
        for model in pair.models:
            model(x).pow(2).mean().backward()
        assert not isinstance(pair.ours.weight.grad, Freed) and pair.optimizer._during._changed
        pair.step()


def test_a_gradient_that_nothing_has_used_may_be_dropped_or_changed():
    """It is stepped with what it is then, or not at all."""
    pair = tiled(500)
    for step in range(3):
        pair.backward(without=2)
        during = pair.optimizer._during
        unused = [number for number, param in enumerate(pair.ours.parameters())
                  if param.grad is not None and number not in during._changed]
        assert len(unused) > 1
        for model in pair.models:
            params = list(model.parameters())
            params[unused[0]].grad = None
            params[unused[1]].grad.mul_(0.5)
        pair.step()


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
def test_options_that_change_between_the_backward_pass_and_the_step_are_refused(rate):
    """Some parameters have been stepped with those before."""
    pair = tiled(100, cls=torch.optim.SGD, lr=rate)
    for lr in (0.1, 0.2):
        for one in pair.optimizers:
            _set_rate(one, lr)
        pair.backward()
        _set_rate(pair.optimizer, 0.3)
        with pytest.raises(RuntimeError, match="options of group 0 have changed"):
            pair.optimizer.step()
        _set_rate(pair.optimizer, lr)
        pair.step()


def _set_rate(optimizer, lr):
    group, = optimizer.param_groups
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr


@pytest.mark.parametrize("option", ["in_backward", "gradients"])
@pytest.mark.parametrize("tile", [100, 5000])
def test_parameters_that_need_a_gradient_later(option, tile):
    """As docs/STATE.md advises. From the second step on their gradients do not stay."""
    pair = models(tile, **{option: True})
    for model in pair.models:
        model.layers[2:4].requires_grad_(False)
    for step in range(6):
        if step in (2, 4):
            for model in pair.models:
                model.layers[1 + step // 2].requires_grad_(True)
        pair.backward()
        if step == 3:
            assert type(pair.ours.layers[2].weight.grad) is not torch.Tensor or tile == 5000
        if step in (2, 4):  # and again what is left after a failure
            with pair.drive_fails(3 if tile == 100 else 1):
                pair.optimizer.step()
        pair.step()


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="no scaler of the host")
def test_a_scaler_is_refused():
    pair = tiled()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(pair.ours(torch.randn(8, 20))).backward()
    with pytest.raises(RuntimeError, match="a GradScaler has not unscaled"):
        scaler.step(pair.optimizer)


@pytest.mark.parametrize("fail_after", [1, 3])
def test_what_a_drive_refuses_during_the_pass_is_stepped_at_its_end(fail_after, caplog):
    pair = tiled(300)
    for step in range(3):
        pair.state.fail_after = fail_after if step == 1 else None
        pair.backward()
        if step == 1:
            assert "is left to step()" in caplog.text
            with pytest.raises(spillway.SpillwayError, match="a drive failed"):
                pair.optimizer.step()
            pair.state.fail_after = None
        pair.step()
    assert pair.optimizer.steps == 3


# ---- Who reads parameters after their gradients have come ---------------------------------------


class Readers(nn.Module):
    """Each way to read a weight a second time, later in the backward pass than its gradient comes.

    Of a layer that is used twice the second use has a part in the gradient. The backward pass of
    the first is later, and reads the weight as it was.
    """

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.before = nn.Linear(20, 20)
        self.layer = Detachable(20, 20)
        self.after = nn.Linear(20, 1)

    def forward(self, x):
        return self.after(getattr(self, self.way)(self.before(x)).tanh()).sum()

    def used(self, x):
        return self.layer(x)

    def detached(self, x):
        return self.layer(functional.linear(x, self.layer.weight.detach()))

    def detached_and_kept(self, x):
        """Until the next step replaces it."""
        self.kept = self.layer.weight.detach()
        return self.layer(torch.mm(x, self.kept))

    def recomputed(self, x):
        return self.layer(checkpoint(self.layer, x, True, use_reentrant=False))

    def recomputed_with_a_part(self, x):
        return self.layer(checkpoint(self.layer, x, use_reentrant=False))

    def recomputed_once(self, x):
        return checkpoint(self.layer, x, use_reentrant=False)

    def reentrant_once(self, x):
        return checkpoint(self.layer, x, use_reentrant=True)

    def tied(self, x):
        return functional.linear(self.layer(x), self.layer.weight)

    def unseen(self, x):
        """The gradient comes from a use that is not a call of the layer."""
        x = checkpoint(self.layer, x, True, use_reentrant=False)
        return functional.linear(x, self.layer.weight)

    def reentrant(self, x):
        """A backward pass of its own for each use."""
        x = checkpoint(self.layer, x, use_reentrant=True)
        return checkpoint(self.layer, x, use_reentrant=True)


class Detachable(nn.Linear):
    def forward(self, x, detached=False):
        weight = self.weight.detach() if detached else self.weight
        return functional.linear(x, weight, self.bias)


@pytest.mark.parametrize("retain_graph", [False, True])
@pytest.mark.parametrize("way", ["detached", "detached_and_kept", "recomputed",
                                 "recomputed_with_a_part",
                                 "recomputed_once", "reentrant_once", "tied"])
def test_a_parameter_is_stepped_after_its_last_reader(way, retain_graph):
    pair = tiled(100, model=lambda: Readers(way), lr=0.1)
    for _ in range(4):
        x = torch.randn(8, 20)
        for model in pair.models:
            model(x).backward(retain_graph=retain_graph)
        pair.step(zero=False)
        assert all(param.grad is None for param in pair.ours.parameters())
        pair.plain.zero_grad()


def use_and_change(module, gradients, _):
    """A backward hook."""
    weight = next(module.parameters())
    scale = 1 + weight.detach().norm()
    with torch.no_grad():
        weight.mul_(0.9)
    return tuple(None if one is None else one * scale for one in gradients)


@pytest.mark.parametrize("whose", ["a layer's", "the model's", "all modules'", pytest.param(
    "a compiled layer's", marks=pytest.mark.skipif(not compiles, reason="no torch.compile"))])
def test_a_backward_hook_has_the_parameters_of_before_their_step(whose, caplog):
    pair = tiled(100, model=lambda: Readers("used"), lr=0.1)
    called = list(pair.models)
    if whose == "all modules'":
        handles = [nn.modules.module.register_module_full_backward_hook(use_and_change)]
    else:
        handles = [(model if whose == "the model's" else model.layer).register_full_backward_hook(
            use_and_change) for model in pair.models]
    if whose == "a compiled layer's":
        called = [torch.compile(model, backend="eager") for model in pair.models]
    for _ in range(4):
        x = torch.randn(8, 20, requires_grad=True)
        for model in called:
            model(x).backward()
        pair.step(zero=False)
        pair.plain.zero_grad()
    for handle in handles:
        handle.remove()
    assert caplog.text.count("has a backward hook") == 1


@pytest.mark.parametrize("way, words", [("unseen", "Detachable.weight is read again"),
                                        ("reentrant", "a second backward pass before step")])
def test_a_reader_that_was_not_foreseen_is_an_error_and_no_other_number(way, words):
    ours = Readers(way)
    optimizer = over(ours, tile=100, in_backward=True)
    with pytest.raises(RuntimeError, match=words):
        ours(torch.randn(8, 20)).backward()
    optimizer.close()


def test_evaluation_does_not_keep_gradients():
    ours = Readers("recomputed_once")
    optimizer = over(ours, tile=100, in_backward=True)
    for _ in range(2):
        ours.eval()
        with torch.no_grad():
            ours(torch.randn(8, 20))
        ours.train()
        ours(torch.randn(8, 20)).backward()
        assert all(isinstance(param.grad, Freed) for param in ours.parameters())
        optimizer.step()


def test_readers_are_watched_as_long_as_the_optimizer_is_there():
    watching = torch.nn.modules.module._global_forward_pre_hooks
    gc.collect()
    nn.Identity()(0)  # those of earlier ones go
    before = len(watching)
    first, second = (over(Model(), in_backward=True) for _ in range(2))
    assert len(watching) == before + 2
    first.close()
    assert len(watching) == before + 1
    there = weakref.ref(second)
    del second
    gc.collect()
    assert there() is None
    nn.Identity()(0)  # the next module that is called removes the hook
    assert len(watching) == before


@pytest.mark.skipif(not compiles, reason="no torch.compile, or not with this Python")
def test_an_optimizer_may_be_collected_while_something_is_compiled():
    """Trial after trial in one program: PyTorch looks up the hooks that were there as it began."""
    optimizers = [over(Model(), in_backward=True)]
    gone = weakref.ref(optimizers[0])

    def backend(graph, _):
        optimizers.clear()
        gc.collect()
        return graph.forward

    layer = nn.Linear(20, 30)
    x = torch.randn(8, 20)
    assert torch.equal(torch.compile(layer, backend=backend)(x), layer(x))
    assert gone() is None
