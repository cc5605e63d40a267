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
from torch.utils.checkpoint import checkpoint

import spillway
import spillway.torch
from fake_state import FakeState, FakeStore, committed_records
from offloading import WeakStorage
from spillway._optim import records
from spillway._grads.stored_placeholder import StoredGradient

HOOKS = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")
needs_hooks = pytest.mark.skipif(not HOOKS, reason="this PyTorch has no hook for it")
needs_scaler = pytest.mark.skipif(not (HOOKS and hasattr(torch.amp, "GradScaler")),
                                  reason="no scaler of the host")
needs_types = pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"),
                                 reason="gradients are of their parameters' type")


@pytest.fixture(autouse=True)
def faked(monkeypatch):
    monkeypatch.setattr(records, "State", FakeState)
    monkeypatch.setattr(records, "committed_records", committed_records)


class Model(nn.Module):
    """With layers of which a pass may leave one out, a tied one, and one that is checkpointed."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.first = nn.Linear(20, 30)
        self.layers = nn.ModuleList(nn.Linear(30, 30) for _ in range(4))
        self.last = nn.Linear(30, 1)
        self.reentrant = reentrant

    def forward(self, x, without=None):
        x = self.first(x)
        for number, layer in enumerate(self.layers):
            if number == without:
                continue
            if self.reentrant is not None and number == 1:
                x = checkpoint(layer, x, use_reentrant=self.reentrant).tanh()
            else:
                x = layer(x).tanh()
        return self.last(self.layers[0](x)).pow(2).sum()


def made(dtype=torch.float32, **options):
    torch.manual_seed(7)
    ours = Model(**options).to(dtype)
    return ours, copy.deepcopy(ours)


def over(model, tile=500, cls=torch.optim.AdamW, store=None, params=None, **options):
    return spillway.torch.Optimizer(cls, params or model.parameters(), store or FakeStore(),
                                    tile=tile, gradients=True, **options)


def plain_of(model, cls=torch.optim.AdamW, params=None, **options):
    return cls(params or model.parameters(), foreach=False, **options)


def backward(*models, times=1, **options):
    """The same for all."""
    for _ in range(times):
        x = torch.randn(8, 20).to(next(models[0].parameters()).dtype)
        for model in models:
            model(x, **options).backward()


def bits(tensor):
    """-0 is another number than 0 here."""
    return tensor.detach().contiguous().view({2: torch.int16, 4: torch.int32}[tensor.itemsize])


def assert_same(one, other):
    for mine, yours in zip(one.parameters(), other.parameters()):
        assert torch.equal(bits(mine), bits(yours))


def assert_same_gradients(one, other):
    """Read as DistributedDataParallel does."""
    for mine, yours in zip(one.parameters(), other.parameters()):
        assert (mine.grad is None) == (yours.grad is None)
        if mine.grad is not None:
            assert torch.equal(bits(torch.empty_like(yours.grad).copy_(mine.grad)),
                               bits(yours.grad))


@pytest.mark.skipif(HOOKS, reason="this PyTorch has the hook")
def test_an_older_pytorch_is_refused_in_words():
    with pytest.raises(RuntimeError, match="gradients=True needs PyTorch 2.1"):
        over(Model())


# ---- The same bits -------------------------------------------------------------------------------


@needs_hooks
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("tile", [7, 100, 500, 5000])
def test_bits_are_those_of_gradients_in_memory(tile, times):
    """With parameters that a pass leaves out, alone or in all of a step."""
    ours, theirs = made()
    optimizer, plain = over(ours, tile), plain_of(theirs)
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 1, 0.5) for one in (optimizer, plain)]
    for step in range(6):
        for number in range(times):
            backward(ours, theirs, without=2 if step % 3 == 1 or number == 1 else None)
            assert_same_gradients(ours, theirs)
        for one in (optimizer, plain):
            one.step()
            one.zero_grad()
        for scheduler in schedulers:
            scheduler.step()
        assert_same(ours, theirs)
    assert optimizer.steps == 6


@needs_hooks
@pytest.mark.parametrize("norm_type", [2.0, 1.0, 0.5, float("inf")])
def test_norms_and_clipping_are_torchs(norm_type):
    """Asked in every step, then not, then again, twice, and in the middle of accumulating."""
    ours, theirs = made()
    optimizer, plain = over(ours, 100), plain_of(theirs)
    for step in range(8):
        backward(ours, theirs)
        if step != 3:
            for max_norm in (0.5, 0.01)[:1 + (step == 5)]:
                norms = [clip_grad_norm_(model.parameters(), max_norm, norm_type)
                         for model in (ours, theirs)]
                assert torch.equal(*norms)
        if step == 6:
            backward(ours, theirs, times=2)
            norms = [clip_grad_norm_(model.parameters(), 0.5, norm_type)
                     for model in (ours, theirs)]
            assert torch.equal(*norms)
        if step == 7:
            for model in (ours, theirs):
                clip_grad_value_(model.parameters(), 0.001)
                for param in model.parameters():
                    param.grad /= 3
                    param.grad.mul_(0.7)
        assert_same_gradients(ours, theirs)
        for one in (optimizer, plain):
            one.step()
            one.zero_grad()
        assert_same(ours, theirs)


@needs_hooks
def test_a_norm_that_is_asked_in_each_step_reads_nothing():
    ours, _ = made()
    optimizer = over(ours, 100)
    taken = []
    for _ in range(3):
        backward(ours)
        before = optimizer.stats().takes
        clip_grad_norm_(ours.parameters(), 1.0)
        taken.append(optimizer.stats().takes - before)
        optimizer.step()
        optimizer.zero_grad()
    assert taken[0] > 0 and taken[1:] == [0, 0]


@needs_hooks
def test_a_norm_that_is_not_finite():
    ours, _ = made()
    over(ours, 100)
    ours(torch.full((8, 20), float("nan"))).backward()
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_(ours.parameters(), 1.0, error_if_nonfinite=True)


@needs_scaler
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("times", [1, 2])
def test_a_scaler_finds_what_is_not_finite_and_skips_that_step(times, clips):
    ours, theirs = made()
    optimizer, plain = over(ours, 100), plain_of(theirs)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
               for _ in range(2)]
    for step in range(6):
        for _ in range(times):
            x = torch.randn(8, 20)
            for model, scaler in zip((ours, theirs), scalers):
                (scaler.scale(model(x)) * (float("inf") if step == 2 else 1.0)).backward()
        norms = []
        for model, one, scaler in zip((ours, theirs), (optimizer, plain), scalers):
            if clips:
                scaler.unscale_(one)
                norms.append(clip_grad_norm_(model.parameters(), 0.5))
            scaler.step(one)
            scaler.update()
            one.zero_grad()
        assert not clips or torch.equal(*norms) or step == 2
        assert scalers[0].get_scale() == scalers[1].get_scale()
        assert_same(ours, theirs)
    assert optimizer.steps == 5


@needs_hooks
@pytest.mark.parametrize("tile", [100, 5000])
def test_masters(tile):
    ours, theirs = made(torch.bfloat16)
    masters = [nn.Parameter(param.detach().float()) for param in theirs.parameters()]
    optimizer, plain = over(ours, tile, masters=True), torch.optim.AdamW(masters, foreach=False)
    for _ in range(4):
        backward(ours, theirs, times=2)
        norms = [clip_grad_norm_(model.parameters(), 0.5) for model in (ours, theirs)]
        assert torch.equal(*norms)
        for master, param in zip(masters, theirs.parameters()):
            master.grad = param.grad.float()
        plain.step()
        optimizer.step()
        for master, param in zip(masters, theirs.parameters()):
            param.detach().copy_(master)
            param.grad = None
        optimizer.zero_grad()
        assert_same(ours, theirs)


@needs_hooks
@needs_types
def test_gradients_of_another_type_than_their_parameters():
    ours, theirs = made(torch.bfloat16)
    for model in (ours, theirs):
        for param in model.parameters():
            param.grad_dtype = torch.float32
    masters = [nn.Parameter(param.detach().float()) for param in theirs.parameters()]
    optimizer, plain = over(ours, masters=True), torch.optim.AdamW(masters, foreach=False)
    for _ in range(3):
        backward(ours, theirs, times=3)
        assert ours.last.weight.grad.dtype is torch.float32
        for master, param in zip(masters, theirs.parameters()):
            master.grad = param.grad.clone()
        plain.step()
        optimizer.step()
        for master, param in zip(masters, theirs.parameters()):
            param.detach().copy_(master)
            param.grad = None
        optimizer.zero_grad()
        assert_same(ours, theirs)
    optimizer.close()
    ours.first.weight.grad_dtype = torch.bfloat16
    with pytest.raises(ValueError, match="give each type a group of its own"):
        over(ours, masters=True)
    ours.first.weight.grad_dtype = torch.float32
    over(ours, masters=True)
    ours.last.weight.grad_dtype = torch.bfloat16
    with pytest.raises(TypeError, match="is bfloat16, and records have room for float32"):
        backward(ours)


@needs_hooks
def test_groups_with_options_of_their_own_and_other_classes():
    for cls, options in ((torch.optim.SGD, {"lr": 0.1}), (torch.optim.RAdam, {})):
        ours, theirs = made()
        groups = [[{"params": [p for p in model.parameters() if p.dim() == 1]},
                   {"params": [p for p in model.parameters() if p.dim() > 1],
                    "weight_decay": 0.1}] for model in (ours, theirs)]
        optimizer = over(ours, 100, cls, params=groups[0], **options)
        plain = plain_of(theirs, cls, params=groups[1], **options)
        for _ in range(3):
            backward(ours, theirs, times=2)
            for one in (optimizer, plain):
                one.step()
                one.zero_grad()
            assert_same(ours, theirs)


@needs_hooks
@pytest.mark.parametrize("options, retain_graph", [
    ({}, True), ({"reentrant": False}, False), ({"reentrant": True}, False)],
    ids=["retained", "checkpoint", "reentrant"])
def test_graphs_that_are_used_again(options, retain_graph):
    ours, theirs = made(**options)
    optimizer, plain = over(ours, 100), plain_of(theirs)
    for _ in range(3):
        x = torch.randn(8, 20)
        for model, one in ((ours, optimizer), (theirs, plain)):
            loss = model(x)
            for _ in range(1 + retain_graph):
                loss.backward(retain_graph=retain_graph)
            one.step()
            one.zero_grad()
        assert_same(ours, theirs)


@needs_hooks
def test_parameters_that_share_a_gradient():
    """What is held to be added later must not be changed."""
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.three = (nn.Parameter(torch.randn(300)) for _ in range(3))

        def forward(self, x):
            return ((self.one + self.two + self.three) * x).sum()

    torch.manual_seed(3)
    ours = Sum()
    theirs = copy.deepcopy(ours)
    optimizer, plain = over(ours, 250, torch.optim.SGD, lr=0.1), plain_of(
        theirs, torch.optim.SGD, lr=0.1)
    for _ in range(3):
        for _ in range(3):
            x = torch.randn(300)
            for model in (ours, theirs):
                model(x).backward()
            assert_same_gradients(ours, theirs)
        for one in (optimizer, plain):
            one.step()
            one.zero_grad()
        assert_same(ours, theirs)


@needs_hooks
def test_layouts_that_are_not_flat():
    torch.manual_seed(5)
    ours = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
    theirs = copy.deepcopy(ours)
    optimizer, plain = over(ours, 50), plain_of(theirs)
    for _ in range(3):
        for _ in range(2):
            x = torch.randn(2, 3, 8, 8)
            for model in (ours, theirs):
                model(x).pow(2).sum().backward()
        norms = [clip_grad_norm_(model.parameters(), 0.5) for model in (ours, theirs)]
        assert torch.equal(*norms)
        for one in (optimizer, plain):
            one.step()
            one.zero_grad()
        assert_same(ours, theirs)


@needs_hooks
def test_the_first_gradient_is_not_added_to_anything():
    """-0 stays -0."""
    param = nn.Parameter(torch.ones(300))
    optimizer = over(None, 100, torch.optim.SGD, params=[param], lr=0.1)
    for _ in range(2):
        (param * -0.0).sum().backward()
        assert torch.signbit(torch.empty(300).copy_(param.grad)).all()
        optimizer.step()
        optimizer.zero_grad()


# ---- As a gradient elsewhere ---------------------------------------------------------------------


@needs_hooks
def test_gradients_are_dropped_as_in_memory():
    """By the optimizer, the model, or one by one; and without that the next is added."""
    ours, theirs = made()
    optimizer, plain = over(ours, 100), plain_of(theirs)
    for number in range(8):
        backward(ours, theirs)
        if number % 2:
            for one in (optimizer, plain):
                one.step()
        for model, one in ((ours, optimizer), (theirs, plain)):
            if number == 1:
                one.zero_grad()
            elif number == 2:
                model.zero_grad()
            elif number == 4:
                model.layers[1].weight.grad = None
        assert_same(ours, theirs)
        assert_same_gradients(ours, theirs)
    optimizer.zero_grad()
    optimizer.step()
    theirs.zero_grad()
    plain.step()
    assert_same(ours, theirs)


@needs_hooks
def test_gradients_that_somebody_puts_there():
    ours, theirs = made()
    optimizer, plain = over(ours, 100), plain_of(theirs)
    for _ in range(2):
        backward(ours, theirs)
        for model in (ours, theirs):
            model.first.weight.grad = torch.full((30, 20), 0.5)
            model.last.bias.grad = torch.tensor([0.25])
        for one in (optimizer, plain):
            one.step()
        backward(ours, theirs)
        for one in (optimizer, plain):
            one.step()
            one.zero_grad()
        assert_same(ours, theirs)


@needs_hooks
@pytest.mark.parametrize("use", [
    lambda grad: float(grad.norm(dim=0)[0] + grad[0, 0]), lambda grad: grad.abs(),
    lambda grad: copy.deepcopy(grad), lambda grad: grad + 1, lambda grad: grad.zero_(),
    lambda grad: grad.mul_(torch.ones(grad.shape)), lambda grad: grad.add_(1.0, alpha=2),
    lambda grad: grad.copy_(torch.ones(grad.shape)), lambda grad: torch.save(grad, "/dev/null")])
def test_what_reads_a_gradient_is_told(use):
    ours, theirs = made()
    optimizer, plain = over(ours, 100), plain_of(theirs)
    backward(ours, theirs)
    with pytest.raises(RuntimeError, match="this gradient is on drives"), torch.no_grad():
        use(ours.first.weight.grad)
    assert repr(ours.first.weight.grad) == "<a gradient of (30, 20) on drives>"
    for one in (optimizer, plain):
        one.step()
    assert_same(ours, theirs)


@needs_hooks
def test_a_gradient_that_was_replaced_is_no_other():
    ours, theirs = made()
    optimizer, plain = over(ours, 100), plain_of(theirs)
    backward(ours, theirs)
    one, two = ours.layers[1].weight, ours.layers[2].weight
    before = one.grad, two.grad
    one.grad, two.grad = two.grad, one.grad
    with pytest.raises(RuntimeError, match="was on drives, and is not any more"):
        optimizer.step()
    one.grad, two.grad = before
    for each in (optimizer, plain):
        each.step()
        each.zero_grad()
    assert_same(ours, theirs)
    backward(ours, without=2)  # nor one whose record is of no use any more
    two.grad = before[1]
    with pytest.raises(RuntimeError, match="was on drives, and is not any more"):
        optimizer.step()
    two.grad = None
    optimizer.zero_grad()
    backward(ours, theirs)
    one.grad = before[0]
    for call in (optimizer.step, lambda: clip_grad_norm_(ours.parameters(), 1.0),
                 lambda: backward(ours)):
        with pytest.raises(RuntimeError, match="was on drives, and is not any more"):
            call()
    optimizer.zero_grad()
    optimizer.step()
    assert optimizer.steps == 2


@needs_hooks
def test_what_cannot_be():
    ours, _ = made()
    with pytest.raises(ValueError, match="leave one of them out"):
        over(ours, in_backward=True)
    with pytest.raises(TypeError, match="gradients must be True, False, or the Distributed"):
        spillway.torch.Optimizer(torch.optim.AdamW, ours.parameters(), FakeStore(), gradients="yes")
    optimizer = over(ours)
    with pytest.raises(RuntimeError, match="a gradient on drives has no graph"), \
            warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch's, once in a process
        ours(torch.randn(8, 20)).backward(create_graph=True)
    optimizer.close()
    embedding = nn.Embedding(10, 3, sparse=True)
    over(embedding)
    with pytest.raises(TypeError, match="a gradient is sparse"):
        embedding(torch.tensor([1])).sum().backward()


@needs_hooks
def test_gradients_that_are_reduced_later_are_refused(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    with pytest.raises(RuntimeError, match="gradients=True uses gradients before"):
        over(Model(), process_group=None)


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

    ours = Deep()
    theirs = copy.deepcopy(ours)
    optimizer, plain = over(ours, tile), plain_of(theirs)
    watch = Watch(ours)
    scope = 65 * 64 * 4
    for _ in range(2):
        for _ in range(3):
            x = torch.randn(4, 64)
            for model in (ours, theirs):
                model(x, without).backward()
        clip_grad_norm_(ours.parameters(), 1.0)
        clip_grad_norm_(theirs.parameters(), 1.0)
        for one in (optimizer, plain):
            one.step()
            one.zero_grad()
        assert_same(ours, theirs)
    # Where one layer has none, a tile waits for it, while another fills.
    assert 0 < watch.most <= (2 if without is None else 3) * max(scope, tile * 4)
    assert watch.alive() == 0


@needs_hooks
def test_many_parameters_without_a_gradient_keep_none_of_the_others_in_memory():
    """As of experts, of which a pass uses each second."""
    layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(64))
    theirs = copy.deepcopy(layers)
    optimizer, plain = over(layers, 500), plain_of(theirs)
    watch = Watch(layers)
    for _ in range(2):
        x = torch.randn(4, 16)
        for each in (layers, theirs):
            out = x
            for layer in each[::2]:
                out = layer(out)
            out.sum().backward()
        for one in (optimizer, plain):
            one.step()
            one.zero_grad()
        assert_same(layers, theirs)
    assert watch.most <= 6 * 17 * 16 * 4


@needs_hooks
def test_nothing_keeps_a_model_whose_gradients_are_on_drives():
    ours, _ = made()
    optimizer = over(ours, 100)
    backward(ours)
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
    ours, theirs = made()
    optimizer, plain = over(ours, 100, store=store), plain_of(theirs)
    for _ in range(2):
        backward(ours, theirs)
        for one in (optimizer, plain):
            one.step()
            one.zero_grad()
    backward(ours, theirs)
    optimizer.commit()
    assert not any("gradient" in name for name in store.committed[1])
    committed = copy.deepcopy(theirs), copy.deepcopy(plain.state_dict())
    backward(ours, theirs)
    for one in (optimizer, plain):
        one.step()
    assert_same(ours, theirs)
    optimizer.close()

    ours, _ = made()
    optimizer = spillway.torch.Optimizer(torch.optim.AdamW, ours.parameters(), store, tile=100,
                                         gradients=gradients)
    assert optimizer.resume().step == 2
    theirs = committed[0]
    theirs.zero_grad()
    plain = plain_of(theirs)
    plain.load_state_dict(committed[1])
    backward(ours, theirs)
    for one in (optimizer, plain):
        one.step()
    assert_same(ours, theirs)


@needs_hooks
@pytest.mark.parametrize("fail_after", [1, 2, 5])
def test_what_a_drive_refuses_stays_in_memory(fail_after, caplog):
    ours, theirs = made()
    optimizer, plain = over(ours, 300), plain_of(theirs)
    for step in range(4):
        state = optimizer._tiled.records.state
        state.fail_after = fail_after if step % 2 else None
        backward(ours, theirs)
        assert ("cannot be written" in caplog.text) == (step > 0)
        if step % 2:
            with pytest.raises(spillway.SpillwayError, match="a drive failed"):
                optimizer.step()
            with pytest.raises(RuntimeError, match="the last step did not end"):
                backward(ours)
            state.fail_after = None
        for one in (optimizer, plain):
            one.step()
            one.zero_grad()
        assert_same(ours, theirs)
    assert optimizer.steps == 4


@needs_hooks
def test_a_drive_that_fails_in_the_middle_of_a_step():
    ours, theirs = made()
    optimizer, plain = over(ours, 300), plain_of(theirs)
    backward(ours, theirs, times=2)
    for model in (ours, theirs):
        clip_grad_norm_(model.parameters(), 0.1)
    state = optimizer._tiled.records.state
    for fail_after in (1, 2, 3, 4, 5):
        state.fail_after = fail_after
        with pytest.raises(spillway.SpillwayError, match="a drive failed"):
            optimizer.step()
    state.fail_after = None
    optimizer.step()
    plain.step()
    assert_same(ours, theirs)


@needs_hooks
def test_a_drive_that_fails_while_gradients_are_added():
    """It is reported, and what was there is dropped and recomputed."""
    ours, theirs = made()
    optimizer, plain = over(ours, 100), plain_of(theirs)
    backward(ours, theirs)
    clip_grad_norm_(ours.parameters(), 0.1)
    state = optimizer._tiled.records.state
    state.fail_after = 1
    with pytest.raises(spillway.SpillwayError, match="a drive failed"):
        backward(ours)
    state.fail_after = None
    optimizer.zero_grad()
    plain.zero_grad()
    backward(ours, theirs)
    for one in (optimizer, plain):
        one.step()
    assert_same(ours, theirs)


@needs_hooks
def test_an_interrupt_while_gradients_are_added_leaves_no_other_number(monkeypatch):
    """It is unknown what has been added: no caller gets it."""
    ours, theirs = made()
    optimizer, plain = over(ours, 100), plain_of(theirs)
    backward(ours, theirs)
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
            backward(ours)
    for call in (optimizer.step, lambda: clip_grad_norm_(ours.parameters(), 1.0)):
        with pytest.raises(RuntimeError, match="an error or Ctrl-C came while it was added to"):
            call()
    optimizer.zero_grad()
    plain.zero_grad()
    backward(ours, theirs)
    for one in (optimizer, plain):
        one.step()
    assert_same(ours, theirs)


@needs_hooks
def test_an_interrupt_between_tiles_of_a_step_ends_the_use_of_the_state(monkeypatch):
    """A tile might have been stepped that is not known to be."""
    for gradients in (False, True):
        ours, _ = made()
        optimizer = spillway.torch.Optimizer(torch.optim.AdamW, ours.parameters(), FakeStore(),
                                             tile=300, gradients=gradients)
        backward(ours)
        step_tile = optimizer._tiled.step_tile

        def interrupted(*args, step_tile=step_tile):
            step_tile(*args)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(optimizer._tiled, "step_tile", interrupted)
            optimizer.step()
        with pytest.raises(RuntimeError, match="state is not whole any more"):
            optimizer.step()
        with pytest.raises(RuntimeError, match="state is not whole any more"):
            optimizer.commit()
