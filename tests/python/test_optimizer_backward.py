# SPDX-License-Identifier: MIT
# tests/python/test_optimizer_backward.py - parameters stepped while the backward pass goes on
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import spillway
import spillway.torch
from fake_state import FakeState, FakeStore, committed_records
from spillway._optim import records
from spillway._grads.freed_placeholder import Freed

HOOKS = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")
needs_hooks = pytest.mark.skipif(not HOOKS, reason="this PyTorch has no hook for it")


@pytest.fixture(autouse=True)
def faked(monkeypatch):
    monkeypatch.setattr(records, "State", FakeState)
    monkeypatch.setattr(records, "committed_records", committed_records)


class Model(nn.Module):
    """With layers of which a pass may leave one out, and one used twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(20, 30)
        self.layers = nn.ModuleList(nn.Linear(30, 30) for _ in range(4))
        self.last = nn.Linear(30, 1)

    def forward(self, x, without=None):
        x = self.first(x)
        for number, layer in enumerate(self.layers):
            if number != without:
                x = layer(x).tanh()
        return self.last(self.layers[0](x)).sum()


def made():
    torch.manual_seed(7)
    ours = Model()
    theirs = Model()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def tiled(model, tile=500, cls=torch.optim.AdamW, **options):
    return spillway.torch.Optimizer(cls, model.parameters(), FakeStore(), tile=tile,
                                    in_backward=True, **options)


def assert_same(one, other):
    for mine, yours in zip(one.parameters(), other.parameters()):
        assert torch.equal(mine, yours)


@pytest.mark.skipif(HOOKS, reason="this PyTorch has the hook")
def test_an_older_pytorch_is_refused_in_words():
    with pytest.raises(RuntimeError, match="in_backward=True needs PyTorch 2.1"):
        tiled(Model())


@needs_hooks
@pytest.mark.parametrize("tile", [100, 500, 5000])
def test_bits_are_those_of_a_step_afterwards(tile):
    ours, theirs = made()
    optimizer, plain = tiled(ours, tile), torch.optim.AdamW(theirs.parameters(), foreach=False)
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 1, 0.5) for one in (optimizer, plain)]
    for step in range(5):
        x = torch.randn(8, 20)
        without = 2 if step % 2 else None
        for model, one in ((ours, optimizer), (theirs, plain)):
            one.zero_grad()
            model(x, without).backward()
            one.step()
        for scheduler in schedulers:
            scheduler.step()
        assert all(param.grad is None for param in ours.parameters())
        assert_same(ours, theirs)
    assert optimizer.steps == 5


@needs_hooks
def test_options_are_looked_at_as_often_however_many_tiles_there_are():
    """Each gradient that comes asks for them."""
    counts = []
    for tile in (100, 5000):
        ours, _ = made()
        optimizer, asked = tiled(ours, tile), []
        fields_of = optimizer._fields_of

        def counted(*kind, fields_of=fields_of, asked=asked):
            asked.append(kind)
            return fields_of(*kind)

        optimizer._fields_of = counted
        ours(torch.randn(8, 20)).backward()
        optimizer.step()
        counts.append(len(asked))
    assert counts[0] == counts[1] > 0


@needs_hooks
def test_gradients_are_freed_as_tiles_are_stepped():
    ours, _ = made()
    optimizer = tiled(ours, 100)
    ours(torch.randn(8, 20), 0).backward()
    assert all(isinstance(param.grad, Freed) for param in ours.parameters())
    with pytest.raises(RuntimeError, match="no step.. has ended it"):
        optimizer.commit()
    optimizer.step()
    assert optimizer.commit() == 1


@needs_hooks
def test_a_second_backward_pass_is_refused():
    """Whether the gradient is freed, or there still for a tile that lacks another."""
    for tile in (100, 5000):
        ours, _ = made()
        optimizer = tiled(ours, tile)
        ours(torch.randn(8, 20), 2).backward()
        with pytest.raises(RuntimeError, match="Call step.. after each"):
            ours(torch.randn(8, 20), 2).backward()
        optimizer.step()


@needs_hooks
@pytest.mark.parametrize("look", [
    lambda params: nn.utils.clip_grad_norm_(params, 1.0),
    lambda params: nn.utils.clip_grad_norm_(params, 1.0, foreach=False),
    lambda params: nn.utils.clip_grad_value_(params, 1.0),
    lambda params: [float(param.grad.norm()) for param in params],
], ids=["norm", "norm of each", "value", "look"])
def test_who_looks_at_gradients_before_step_is_told(look):
    ours, theirs = made()
    optimizer, plain = tiled(ours, 100), torch.optim.AdamW(theirs.parameters(), foreach=False)
    x = torch.randn(8, 20)
    ours(x).backward()
    with pytest.raises(RuntimeError, match="this gradient has been used and freed"):
        look(list(ours.parameters()))
    assert "used and freed" in repr(ours.last.weight.grad)
    optimizer.step()
    theirs(x).backward()
    plain.step()
    assert_same(ours, theirs)
    assert all(param.grad is None for param in ours.parameters())


@needs_hooks
def test_gradients_may_be_dropped_before_step():
    ours, _ = made()
    optimizer = tiled(ours, 100)
    ours(torch.randn(8, 20)).backward()
    optimizer.zero_grad()
    assert all(param.grad is None for param in ours.parameters())
    optimizer.step()


@needs_hooks
@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
def test_options_that_change_between_the_backward_pass_and_the_step_are_refused(rate):
    """Some parameters have been stepped with those before."""
    ours, theirs = made()
    optimizer = tiled(ours, 100, torch.optim.SGD, lr=rate)
    plain = torch.optim.SGD(theirs.parameters(), foreach=False, lr=0.1)
    for lr in (0.1, 0.2):
        x = torch.randn(8, 20)
        for model, one in ((ours, optimizer), (theirs, plain)):
            _set_rate(one, lr)
            model(x).backward()
        _set_rate(optimizer, 0.3)
        with pytest.raises(RuntimeError, match="options of group 0 have changed"):
            optimizer.step()
        _set_rate(optimizer, lr)
        for one in (optimizer, plain):
            one.step()
            one.zero_grad()
        assert_same(ours, theirs)


def _set_rate(optimizer, lr):
    group, = optimizer.param_groups
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr


@needs_hooks
@pytest.mark.parametrize("option", ["in_backward", "gradients"])
@pytest.mark.parametrize("tile", [100, 5000])
def test_parameters_that_need_a_gradient_later(option, tile):
    """As docs/STATE.md advises. From the second step on their gradients do not stay."""
    ours, theirs = made()
    for model in (ours, theirs):
        model.layers[2:4].requires_grad_(False)
    optimizer = spillway.torch.Optimizer(torch.optim.AdamW, ours.parameters(), FakeStore(),
                                         tile=tile, **{option: True})
    plain = torch.optim.AdamW(theirs.parameters(), foreach=False)
    for step in range(6):
        if step in (2, 4):
            for model in (ours, theirs):
                model.layers[1 + step // 2].requires_grad_(True)
        x = torch.randn(8, 20)
        for model, one in ((ours, optimizer), (theirs, plain)):
            model(x).backward()
            if one is optimizer and step == 3:
                assert type(ours.layers[2].weight.grad) is not torch.Tensor or tile == 5000
            if one is optimizer and step in (2, 4):  # and again what is left after a failure
                optimizer._tiled.records.state.fail_after = 3 if tile == 100 else 1
                with pytest.raises(spillway.SpillwayError):
                    optimizer.step()
                optimizer._tiled.records.state.fail_after = None
            one.step()
            one.zero_grad()
        assert_same(ours, theirs)


@needs_hooks
def test_an_interrupt_between_tiles_ends_the_use_of_the_state(monkeypatch):
    """A tile might have been stepped that is not known to be."""
    ours, _ = made()
    optimizer = tiled(ours, 100)
    step_tile = optimizer._tiled.step_tile

    def interrupted(*args):
        step_tile(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(optimizer._tiled, "step_tile", interrupted)
        ours(torch.randn(8, 20)).backward()
    with pytest.raises(RuntimeError, match="state is not whole any more"):
        optimizer.step()


@needs_hooks
@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="no scaler of the host")
def test_a_scaler_is_refused():
    ours, _ = made()
    optimizer = tiled(ours)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(ours(torch.randn(8, 20))).backward()
    with pytest.raises(RuntimeError, match="a GradScaler has not unscaled"):
        scaler.step(optimizer)


@needs_hooks
@pytest.mark.parametrize("fail_after", [1, 3])
def test_what_a_drive_refuses_during_the_pass_is_stepped_at_its_end(fail_after, caplog):
    ours, theirs = made()
    optimizer, plain = tiled(ours, 300), torch.optim.AdamW(theirs.parameters(), foreach=False)
    for step in range(3):
        x = torch.randn(8, 20)
        state = optimizer._tiled.records.state
        state.fail_after = fail_after if step == 1 else None
        ours(x).backward()
        if step == 1:
            assert "is left to step()" in caplog.text
            with pytest.raises(spillway.SpillwayError, match="a drive failed"):
                optimizer.step()
            state.fail_after = None
        optimizer.step()
        plain.zero_grad()
        theirs(x).backward()
        plain.step()
        assert_same(ours, theirs)
    assert optimizer.steps == 3


@needs_hooks
def test_gradients_that_are_reduced_later_are_refused(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    with pytest.raises(RuntimeError, match="in_backward=True uses gradients before"):
        tiled(Model(), process_group=None)
    with pytest.raises(TypeError, match="not Model"):
        spillway.torch.Optimizer(torch.optim.AdamW, Model().parameters(), FakeStore(),
                                 in_backward=Model(), process_group=None)


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


def read(way):
    torch.manual_seed(7)
    ours = Readers(way)
    theirs = Readers(way)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@needs_hooks
@pytest.mark.parametrize("retain_graph", [False, True])
@pytest.mark.parametrize("way", ["detached", "detached_and_kept", "recomputed",
                                 "recomputed_with_a_part",
                                 "recomputed_once", "reentrant_once", "tied"])
def test_a_parameter_is_stepped_after_its_last_reader(way, retain_graph):
    ours, theirs = read(way)
    optimizer = tiled(ours, 100, lr=0.1)
    plain = torch.optim.AdamW(theirs.parameters(), foreach=False, lr=0.1)
    for _ in range(4):
        x = torch.randn(8, 20)
        for model, one in ((ours, optimizer), (theirs, plain)):
            one.zero_grad()
            model(x).backward(retain_graph=retain_graph)
            one.step()
        assert_same(ours, theirs)
        assert all(param.grad is None for param in ours.parameters())


@needs_hooks
@pytest.mark.parametrize("way, words", [("unseen", "Detachable.weight is read again"),
                                        ("reentrant", "a second backward pass before step")])
def test_a_reader_that_was_not_foreseen_is_an_error_and_no_other_number(way, words):
    ours, _ = read(way)
    optimizer = tiled(ours, 100)
    with pytest.raises(RuntimeError, match=words):
        ours(torch.randn(8, 20)).backward()
    optimizer.close()


@needs_hooks
def test_evaluation_does_not_keep_gradients():
    ours, _ = read("recomputed_once")
    optimizer = tiled(ours, 100)
    for _ in range(2):
        ours.eval()
        with torch.no_grad():
            ours(torch.randn(8, 20))
        ours.train()
        ours(torch.randn(8, 20)).backward()
        assert all(isinstance(param.grad, Freed) for param in ours.parameters())
        optimizer.step()


@needs_hooks
def test_readers_are_watched_as_long_as_the_optimizer_is_there():
    watching = torch.nn.modules.module._global_forward_pre_hooks
    gc.collect()
    before = len(watching)
    ours, _ = made()
    first, second = tiled(ours), tiled(made()[0])
    assert len(watching) == before + 2
    first.close()
    assert len(watching) == before + 1
    there = weakref.ref(second)
    del second
    gc.collect()
    assert there() is None
    assert len(watching) == before
