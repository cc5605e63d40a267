# SPDX-License-Identifier: MIT
# tests/python/test_optimizer_gradients.py - gradients that are on drives come to the same bits
import copy
import gc
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import spillway
from fake_state import FakeStore
from offloading import WeakStorage
from pairs import (HOOKS, Model, Pair, copied, interrupted_after, models,
                   models_with_float32_gradients, needs_hooks, needs_types, over, pair_of,
                   params_of)
from spillway._grads.stored_placeholder import StoredGradient

pytestmark = pytest.mark.usefixtures("fake_state")
needs_scaler = pytest.mark.skipif(not (HOOKS and hasattr(torch.amp, "GradScaler")),
                                  reason="no scaler of the host")


def stored(tile=100, **options):
    return models(tile, gradients=True, **options)


@pytest.mark.skipif(HOOKS, reason="this PyTorch has the hook")
@pytest.mark.parametrize("option", ["gradients", "in_backward"])
def test_an_older_pytorch_is_refused_in_words(option):
    with pytest.raises(RuntimeError, match=f"{option}=True needs PyTorch 2.1"):
        over(Model(), **{option: True})


# ---- The same bits -------------------------------------------------------------------------------


@needs_hooks
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("tile", [29, 100, 500, 5000])
def test_bits_are_those_of_gradients_in_memory(tile, times):
    """With parameters that a pass leaves out, alone or in all of a step."""
    pair = stored(tile)
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 1, 0.5) for one in pair.optimizers]
    for step in range(6):
        for number in range(times):
            pair.backward(without=2 if step % 3 == 1 or number == 1 else None)
            pair.same_gradients()
        pair.step()
        for scheduler in schedulers:
            scheduler.step()
    assert pair.optimizer.steps == 6


@needs_hooks
@pytest.mark.parametrize("norm_type", [2.0, 1.0, 0.5, float("inf")])
def test_norms_and_clipping_are_torchs(norm_type):
    """Asked in every step, then not, then again, twice, and in the middle of accumulating."""
    pair = stored()
    for step in range(8):
        pair.backward()
        if step != 3:
            for max_norm in (0.5, 0.01)[:1 + (step == 5)]:
                pair.clip(max_norm, norm_type)
        if step == 6:
            pair.backward(times=2)
            pair.clip(0.5, norm_type)
        if step == 7:
            for model in pair.models:
                clip_grad_value_(model.parameters(), 0.001)
                for param in model.parameters():
                    param.grad /= 3
                    param.grad.mul_(0.7)
        pair.same_gradients()
        pair.step()


@needs_hooks
def test_a_norm_that_is_asked_in_each_step_reads_nothing():
    pair, taken = stored(), []
    for _ in range(3):
        pair.backward()
        before = pair.optimizer.stats().takes
        pair.clip(1.0)
        taken.append(pair.optimizer.stats().takes - before)
        pair.step()
    assert taken[0] > 0 and taken[1:] == [0, 0]


@needs_hooks
def test_a_norm_that_is_not_finite():
    ours = stored().ours
    ours(torch.full((8, 20), float("nan"))).backward()
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_(ours.parameters(), 1.0, error_if_nonfinite=True)


@needs_scaler
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("times", [1, 2])
def test_a_scaler_finds_what_is_not_finite_and_skips_that_step(times, clips):
    pair = stored()
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2) for _ in range(2)]
    for step in range(6):
        for _ in range(times):
            x = torch.randn(8, 20)
            for model, scaler in zip(pair.models, scalers):
                (scaler.scale(model(x)) * (float("inf") if step == 2 else 1.0)).backward()
        norms = []
        for (model, one), scaler in zip(pair, scalers):
            if clips:
                scaler.unscale_(one)
                norms.append(clip_grad_norm_(model.parameters(), 0.5))
            scaler.step(one)
            scaler.update()
            one.zero_grad()
        assert not clips or torch.equal(*norms) or step == 2
        assert scalers[0].get_scale() == scalers[1].get_scale()
        pair.same()
    assert pair.optimizer.steps == 5


@needs_hooks
@pytest.mark.parametrize("masters", [True, "compact"])
@pytest.mark.parametrize("tile", [100, 5000])
def test_masters(tile, masters):
    pair = stored(tile, dtype=torch.bfloat16, masters=masters)
    for _ in range(4):
        pair.backward(times=2)
        pair.clip()
        pair.step()


@needs_hooks
@needs_types
@pytest.mark.parametrize("masters", [True, "compact"])
def test_gradients_of_another_type_than_their_parameters(masters):
    pair = models_with_float32_gradients(gradients=True, masters=masters)
    ours = pair.ours
    for _ in range(3):
        pair.backward(times=3)
        assert ours.last.weight.grad.dtype is torch.float32
        pair.step()
    pair.optimizer.close()
    ours.first.weight.grad_dtype = torch.bfloat16
    with pytest.raises(ValueError, match="give each type a group of its own"):
        over(ours, gradients=True, masters=True)
    ours.first.weight.grad_dtype = torch.float32
    over(ours, gradients=True, masters=True)
    ours.last.weight.grad_dtype = torch.bfloat16
    with pytest.raises(TypeError, match="is bfloat16, and records have room for float32"):
        ours(torch.randn(8, 20).bfloat16()).backward()


@needs_hooks
@pytest.mark.parametrize("cls, options", [(torch.optim.SGD, {"lr": 0.1}), (torch.optim.RAdam, {})])
def test_groups_with_options_of_their_own_and_other_classes(cls, options):
    ours = Model()
    theirs = copied(ours)
    groups = [[{"params": [p for p in model.parameters() if p.dim() == 1]},
               {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1}]
              for model in (ours, theirs)]
    pair = Pair(ours, theirs, over(groups[0], cls, tile=100, gradients=True, **options),
                cls(groups[1], foreach=False, **options))
    for _ in range(3):
        pair.backward(times=2)
        pair.step()


@needs_hooks
@pytest.mark.parametrize("options, retain_graph", [
    ({}, True), ({"reentrant": False}, False), ({"reentrant": True}, False)],
    ids=["retained", "checkpoint", "reentrant"])
def test_graphs_that_are_used_again(options, retain_graph):
    pair = stored(model=lambda: Model(**options))
    for _ in range(3):
        x = torch.randn(8, 20)
        for model in pair.models:
            loss = model(x)
            for _ in range(1 + retain_graph):
                loss.backward(retain_graph=retain_graph)
        pair.step()


@needs_hooks
def test_parameters_that_share_a_gradient():
    """What is held to be added later must not be changed."""
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.three = (nn.Parameter(torch.randn(300)) for _ in range(3))

        def forward(self, x):
            return ((self.one + self.two + self.three) * x).sum()

    pair = stored(250, model=Sum, cls=torch.optim.SGD, lr=0.1)
    for _ in range(3):
        for _ in range(3):
            pair.backward(x=torch.randn(300))
            pair.same_gradients()
        pair.step()


@needs_hooks
def test_layouts_that_are_not_flat():
    class Convolution(nn.Conv2d):
        def forward(self, x):
            return super().forward(x).pow(2).sum()

    pair = stored(50, model=lambda: Convolution(3, 5, 3).to(memory_format=torch.channels_last))
    for _ in range(3):
        for _ in range(2):
            pair.backward(x=torch.randn(2, 3, 8, 8))
        pair.clip()
        pair.step()


@needs_hooks
def test_the_first_gradient_is_not_added_to_anything():
    """-0 stays -0."""
    param = nn.Parameter(torch.ones(300))
    optimizer = over([param], torch.optim.SGD, tile=100, gradients=True, lr=0.1)
    for _ in range(2):
        (param * -0.0).sum().backward()
        assert torch.signbit(torch.empty(300).copy_(param.grad)).all()
        optimizer.step()
        optimizer.zero_grad()


# ---- As a gradient elsewhere ---------------------------------------------------------------------


@needs_hooks
def test_gradients_are_dropped_as_in_memory():
    """By the optimizer, the model, or one by one; and without that the next is added."""
    pair = stored()
    for number in range(8):
        pair.backward()
        if number % 2:
            pair.step(zero=False)
        for model, one in pair:
            if number == 1:
                one.zero_grad()
            elif number == 2:
                model.zero_grad()
            elif number == 4:
                model.layers[1].weight.grad = None
        pair.same()
        pair.same_gradients()
    pair.zero_grad()
    pair.step()


@needs_hooks
def test_gradients_that_somebody_puts_there():
    pair = stored()
    for _ in range(2):
        pair.backward()
        for model in pair.models:
            model.first.weight.grad = torch.full((30, 20), 0.5)
            model.last.bias.grad = torch.tensor([0.25])
        pair.step(zero=False)
        pair.backward()
        pair.step()


@needs_hooks
@pytest.mark.parametrize("zero", [
    lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
    lambda model, optimizer: model.zero_grad(set_to_none=False),
    lambda model, optimizer: torch._foreach_zero_([param.grad for param in model.parameters()])],
    ids=["the optimizer", "the model", "a list"])
@pytest.mark.parametrize("times", [1, 2])
def test_gradients_become_zero_as_in_memory(zero, times):
    """What was there is not read any more. A layer without a gradient is stepped with zeros."""
    pair = stored(cls=torch.optim.AdamW, lr=0.01)
    for number in range(5):
        for _ in range(times):
            pair.backward(without=2 if number == 3 else None)
            pair.same_gradients()
        if number % 2:
            pair.clip(0.1)
        pair.step(zero=False)
        before = pair.optimizer.stats().takes
        for model, one in pair:
            zero(model, one)
        pair.same_gradients()
        if number == 4:
            pair.clip(1.0)
            pair.step(zero=False)
            assert pair.optimizer.stats().takes - before == len(
                pair.optimizer._tiled.records.layout.tiles)
    pair.step()


@needs_hooks
@pytest.mark.parametrize("use", [
    lambda grad: float(grad.norm(dim=0)[0] + grad[0, 0]), lambda grad: grad.abs(),
    lambda grad: copy.deepcopy(grad), lambda grad: grad + 1,
    lambda grad: grad.mul_(torch.ones(grad.shape)), lambda grad: grad.add_(1.0, alpha=2),
    lambda grad: grad.copy_(torch.ones(grad.shape)), lambda grad: torch.save(grad, "/dev/null")])
def test_what_reads_a_gradient_is_told(use):
    pair = stored()
    pair.backward()
    weight = pair.ours.first.weight
    with pytest.raises(RuntimeError, match="this gradient is on drives"), torch.no_grad():
        use(weight.grad)
    assert repr(weight.grad) == "<a gradient of (30, 20) on drives>"
    pair.step()


@needs_hooks
def test_a_gradient_that_was_replaced_is_no_other():
    def not_there(call):
        with pytest.raises(RuntimeError, match="was on drives, and is not any more"):
            call()

    pair = stored()
    ours, optimizer = pair.ours, pair.optimizer
    pair.backward()
    one, two = ours.layers[1].weight, ours.layers[2].weight
    before = one.grad, two.grad
    one.grad, two.grad = two.grad, one.grad
    not_there(optimizer.step)
    one.grad, two.grad = before
    pair.step()
    pair.backward(without=2)  # nor one whose record is of no use any more
    two.grad = before[1]
    not_there(optimizer.step)
    two.grad = None
    pair.zero_grad()
    pair.backward()
    one.grad = before[0]
    for call in (optimizer.step, lambda: clip_grad_norm_(ours.parameters(), 1.0), pair.backward):
        not_there(call)
    optimizer.zero_grad()
    optimizer.step()
    assert optimizer.steps == 2


@needs_hooks
def test_what_cannot_be():
    ours = Model()
    with pytest.raises(ValueError, match="leave one of them out"):
        over(ours, gradients=True, in_backward=True)
    with pytest.raises(TypeError, match="gradients must be True, False, or the Distributed"):
        over(ours, gradients="yes")
    optimizer = over(ours, gradients=True)
    with pytest.raises(RuntimeError, match="a gradient on drives has no graph"), \
            warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch's, once in a process
        ours(torch.randn(8, 20)).backward(create_graph=True)
    optimizer.close()
    embedding = nn.Embedding(10, 3, sparse=True)
    over(embedding, gradients=True)
    with pytest.raises(TypeError, match="a gradient is sparse"):
        embedding(torch.tensor([1])).sum().backward()


@needs_hooks
@pytest.mark.parametrize("option", ["gradients", "in_backward"])
def test_gradients_that_are_reduced_later_are_refused(monkeypatch, option):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    with pytest.raises(RuntimeError, match=f"{option}=True uses gradients before"):
        over(Model(), process_group=None, **{option: True})
    with pytest.raises(TypeError, match="not Model" if option == "in_backward" else "Distributed"):
        over(Model(), process_group=None, **{option: Model()})


# ---- Memory --------------------------------------------------------------------------------------


class Watch:
    """How many bytes of gradients were alive at once, of all that have been computed."""

    def __init__(self, model):
        self.seen, self.most = [], 0
        for param in model.parameters():
            param.register_hook(self.look)

    def look(self, grad):
        storage = grad.untyped_storage()
        self.seen.append((WeakStorage(storage), storage.nbytes()))
        self.most = max(self.most, self.alive())

    def alive(self):
        self.seen = [(weak, nbytes) for weak, nbytes in self.seen if not weak.expired()]
        return sum(nbytes for _, nbytes in self.seen)


@needs_hooks
@pytest.mark.parametrize("without", [None, 7])
@pytest.mark.parametrize("tile", [900, 4000, 9000])
def test_gradients_of_two_scopes_are_in_memory_at_most(tile, without):
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(16))

        def forward(self, x, without=None):
            for number, layer in enumerate(self.layers):
                x = x if number == without else layer(x).tanh()
            return x.pow(2).sum()

    pair = stored(tile, model=Deep)
    watch = Watch(pair.ours)
    scope = 65 * 64 * 4
    for _ in range(2):
        for _ in range(3):
            pair.backward(x=torch.randn(4, 64), without=without)
        pair.clip(1.0)
        pair.step()
    # Where one layer has none, a tile waits for it, while another fills.
    assert 0 < watch.most <= (2 if without is None else 3) * max(scope, tile * 4)
    assert watch.alive() == 0


@needs_hooks
def test_many_parameters_without_a_gradient_keep_none_of_the_others_in_memory():
    """As of experts, of which a pass uses each second."""
    class Experts(nn.ModuleList):
        def __init__(self):
            super().__init__(nn.Linear(16, 16) for _ in range(64))

        def forward(self, x):
            for number in range(0, len(self), 2):
                x = self[number](x)
            return x.sum()

    pair = stored(500, model=Experts)
    watch = Watch(pair.ours)
    for _ in range(2):
        pair.backward(x=torch.randn(4, 16))
        pair.step()
    assert watch.most <= 6 * 17 * 16 * 4


@needs_hooks
def test_nothing_keeps_a_model_whose_gradients_are_on_drives():
    ours = Model()
    optimizer = over(ours, tile=100, gradients=True)
    ours(torch.randn(8, 20)).backward()
    there = weakref.ref(ours), weakref.ref(optimizer)
    grad = ours.first.weight.grad
    del ours, optimizer
    gc.collect()
    assert [each() for each in there] == [None, None]
    with pytest.raises(RuntimeError, match="the optimizer .* is gone"):
        torch.empty(30, 20).copy_(grad)
    assert isinstance(grad, StoredGradient)


# ---- Commits and errors --------------------------------------------------------------------------


@needs_hooks
@pytest.mark.parametrize("gradients", [True, False])
def test_a_commit_does_not_have_them(gradients):
    """They go on here; after resuming there are none."""
    store = FakeStore()
    pair = stored(store=store)
    for _ in range(2):
        pair.backward()
        pair.step()
    pair.backward()
    pair.optimizer.commit()
    assert not any("gradient" in name for name in store.durable[1])
    theirs, state = copy.deepcopy(pair.theirs), copy.deepcopy(pair.plain.state_dict())
    pair.backward()
    pair.step(zero=False)
    pair.optimizer.close()

    theirs.zero_grad()
    pair = pair_of(Model(), theirs, store=store, tile=100, gradients=gradients)
    assert pair.optimizer.resume().step == 2
    pair.plain.load_state_dict(state)
    pair.backward()
    pair.step()


@needs_hooks
@pytest.mark.parametrize("fail_after", [1, 2, 5])
def test_what_a_drive_refuses_stays_in_memory(fail_after, caplog):
    pair = stored(300)
    for step in range(4):
        pair.state.fail_after = fail_after if step % 2 else None
        pair.backward()
        assert ("cannot be written" in caplog.text) == (step > 0)
        if step % 2:
            with pytest.raises(spillway.SpillwayError, match="a drive failed"):
                pair.optimizer.step()
            with pytest.raises(RuntimeError, match="the last step did not end"):
                pair.ours(torch.randn(8, 20)).backward()
            pair.state.fail_after = None
        pair.step()
    assert pair.optimizer.steps == 4


@needs_hooks
def test_a_drive_that_fails_in_the_middle_of_a_step():
    pair = stored(300)
    pair.backward(times=2)
    pair.clip(0.1)
    for fail_after in (1, 2, 3, 4, 5):
        with pair.drive_fails(fail_after):
            pair.optimizer.step()
    pair.step()


@needs_hooks
def test_a_drive_that_fails_while_gradients_are_added():
    """It is reported, and what was there is dropped and recomputed."""
    pair = stored()
    pair.backward()
    pair.clip(0.1)
    with pair.drive_fails(1):
        pair.ours(torch.randn(8, 20)).backward()
    pair.zero_grad()
    pair.backward()
    pair.step()


@needs_hooks
def test_an_interrupt_while_gradients_are_added_leaves_no_other_number(monkeypatch):
    """It is unknown what has been added: no caller gets it."""
    pair = stored()
    pair.backward()
    add, count = torch.Tensor.add_, [0]

    def interrupted(tensor, *args, **kwargs):
        result = add(tensor, *args, **kwargs)
        count[0] += 1
        if count[0] == 3:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "add_", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pair.ours(torch.randn(8, 20)).backward()
    for call in (pair.optimizer.step, lambda: clip_grad_norm_(params_of(pair.ours), 1.0)):
        with pytest.raises(RuntimeError, match="an error or Ctrl-C came while it was added to"):
            call()
    pair.zero_grad()
    pair.backward()
    pair.step()


@needs_hooks
def test_an_interrupt_while_records_are_declared(monkeypatch):
    """When the state has one and it is not noted yet: the next backward pass goes on from there."""
    at, count = 0, [0]
    while count[0] >= at:
        pair, at, count = stored(tile=900), at + 1, [0]
        state = pair.optimizer._tiled.records.state

        def ended(function, count=count, at=at):
            def call(*given):
                result = function(*given)
                count[0] += 1
                if count[0] == at:
                    raise KeyboardInterrupt
                return result
            return call

        with monkeypatch.context() as patched:
            for name in ("add", "add_transient", "attach"):
                patched.setattr(state, name, ended(getattr(state, name)))
            try:
                pair.backward()
            except KeyboardInterrupt:
                pair.zero_grad()
                pair.backward()
        pair.step()
    assert at > 10


@needs_hooks
@pytest.mark.parametrize("option", [None, "gradients", "in_backward"])
def test_an_interrupt_between_tiles_of_a_step_ends_the_use_of_the_state(option):
    """A tile might have been stepped that is not known to be."""
    ours = Model()
    optimizer = over(ours, tile=100, **({option: True} if option else {}))
    with interrupted_after(optimizer._tiled, "step_tile"):
        ours(torch.randn(8, 20)).backward()
        assert option != "in_backward"
        optimizer.step()
    for call in (optimizer.step, optimizer.commit):
        with pytest.raises(RuntimeError, match="state is not whole any more"):
            call()
