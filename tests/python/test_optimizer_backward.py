# SPDX-License-Identifier: MIT
# tests/python/test_optimizer_backward.py - parameters stepped while the backward pass goes on
import pytest
import torch
from torch import nn

import spillway
import spillway.torch
from fake_state import FakeState, FakeStore, committed_records
from spillway import _records

HOOKS = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")
needs_hooks = pytest.mark.skipif(not HOOKS, reason="this PyTorch has no hook for it")


@pytest.fixture(autouse=True)
def faked(monkeypatch):
    monkeypatch.setattr(_records, "State", FakeState)
    monkeypatch.setattr(_records, "committed_records", committed_records)


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
def test_gradients_are_freed_as_tiles_are_stepped():
    ours, _ = made()
    optimizer = tiled(ours, 100)
    ours(torch.randn(8, 20)).backward()
    assert all(param.grad is None for param in ours.parameters())
    with pytest.raises(RuntimeError, match="no step.. has ended it"):
        optimizer.commit()
    optimizer.step()
    assert optimizer.commit() == 1


@needs_hooks
def test_a_second_backward_pass_is_refused():
    ours, _ = made()
    optimizer = tiled(ours)
    ours(torch.randn(8, 20)).backward()
    with pytest.raises(RuntimeError, match="a second backward pass before step"):
        ours(torch.randn(8, 20)).backward()
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
def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(RuntimeError, match="before their gradients have been reduced"):
        tiled(Model())
