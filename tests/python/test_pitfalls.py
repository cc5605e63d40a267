# SPDX-License-Identifier: MIT
# tests/python/test_pitfalls.py - what others stumbled over; numbers are of PyTorch's issues
# layer: test all
import functools
import gc
import inspect
import logging
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import spillway.torch
from offloading import equal, in_threads, left_in, offload_all, offload_each, save, settle


def test_use_in_the_order_of_saving(off):
    """#198014: not always the reverse. Prefetching guesses wrong then; the bytes are right."""
    with off:
        tensors = [torch.randn(50000) for _ in range(12)]
        expected = [tensor.clone() for tensor in tensors]
        seen = []
        outputs = [save(seen, tensor) for tensor in tensors]
        tensors.clear()
        settle(off)
        for output in outputs:
            output.sum().backward()
    assert equal([got for (got,) in seen], expected)
    del output
    outputs.clear()


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        first, second = ctx.saved_tensors[0], ctx.saved_tensors[0]
        assert torch.equal(first, second)
        return gradient * first


@pytest.mark.parametrize("wait", [True, False], ids=["stored", "forwarded"])
def test_unpacked_twice(off, wait):
    """#82156"""
    x = torch.randn(50000, requires_grad=True)
    with off:
        y = Twice.apply(x).sum()
        if wait:
            settle(off)
        y.backward()
    assert torch.equal(x.grad, x.detach().exp())
    del y


@pytest.mark.parametrize("reentrant", [True, False])
def test_offload_inside_a_checkpoint(off, reentrant):
    """The context is entered again when the function runs again."""
    def part(t):
        t = t.sin()
        with off:
            return t.exp().tanh()

    def run(function):
        torch.manual_seed(2)
        x = torch.randn(300, 300, requires_grad=True)
        checkpoint(function, x.cos(), use_reentrant=reentrant).sum().backward()
        return x.grad

    assert torch.equal(run(part), run(lambda t: t.sin().exp().tanh()))


def chosen(context, operation, *_args, **_kwargs):
    from torch.utils.checkpoint import CheckpointPolicy

    keep = operation in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.skipif(not hasattr(torch.utils.checkpoint, "create_selective_checkpoint_contexts"),
                    reason="this PyTorch has no selective checkpoints: 2.4 has")
@pytest.mark.parametrize("respect", [None, True, False])
def test_selective_checkpoints(off, respect):
    """#190581: what they choose to keep bypasses hooks, unless they are told otherwise, where they
    can be."""
    options = {} if respect is None else {"respect_saved_tensors_hooks": respect}
    if options and "respect_saved_tensors_hooks" not in inspect.signature(checkpoint).parameters:
        pytest.skip("this PyTorch has no respect_saved_tensors_hooks: 2.14 has")

    def run():
        torch.manual_seed(2)
        x, weight = (torch.randn(300, 300, requires_grad=True) for _ in range(2))
        contexts = functools.partial(torch.utils.checkpoint.create_selective_checkpoint_contexts,
                                     chosen)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of another default to come
            y = checkpoint(lambda t: (t.sin() @ weight).tanh().exp(), x, use_reentrant=False,
                           context_fn=contexts, **options)
        offers = off.stats().offers
        y.sum().backward()
        return x.grad, weight.grad, offers

    *expected, _ = run()
    with off:
        *got, offers = run()
    assert equal(got, expected)
    assert (offers > 0) == bool(respect)


def test_other_hooks_inside(off):
    """Only the innermost pair sees a tensor."""
    seen = []
    x = torch.randn(1000, requires_grad=True)
    with off:
        y = x.exp()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t.clone(),
                                                      lambda t: t):
            z = y.sin()
        z.sum().backward()
    assert len(seen) == 1 and off.stats().offers == 1
    assert torch.equal(x.grad, torch.autograd.grad(x.exp().sin().sum(), x)[0])
    seen.clear()
    del y, z


def test_other_hooks_outside(off):
    seen = []
    x = torch.randn(1000, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        with off:
            y = x.exp()
        z = y.sin()
    z.sum().backward()
    assert len(seen) == 1 and off.stats().offers == 1
    seen.clear()
    del y, z


def test_hooks_are_disabled(off, caplog):
    x = torch.randn(1000, requires_grad=True)
    disabled = torch.autograd.graph.disable_saved_tensors_hooks("not here")
    with disabled, caplog.at_level(logging.WARNING, "spillway"), off:
        x.exp().sum().backward()
    assert torch.equal(x.grad, x.detach().exp())
    assert "everything is kept in memory (not here)" in caplog.text
    assert off.stats().offers == 0
    with off:
        x.exp().sum().backward()
    assert off.stats().offers == 1


@pytest.mark.skipif(not hasattr(torch.autograd.graph, "allow_mutation_on_saved_tensors"),
                    reason="this PyTorch cannot")
def test_saved_tensors_may_be_modified(off, caplog):
    """Hooks inside of the context that allows it would take them from that."""
    x = torch.randn(1000, requires_grad=True)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        with caplog.at_level(logging.WARNING, "spillway"), off:
            y = x.exp()
            z = y.sin()
            y.mul_(2)
            z.sum().backward()
    assert torch.equal(x.grad, x.detach().exp().cos() * x.detach().exp())
    assert "everything is kept in memory" in caplog.text
    assert off.stats().offers == 0
    with off:
        x.exp().sum().backward()
    assert off.stats().offers == 1


def test_disabling_hooks_inside_is_refused_by_pytorch(off):
    x = torch.randn(1000, requires_grad=True)
    with off:
        with pytest.raises(RuntimeError, match="not here"):
            torch.autograd.graph.disable_saved_tensors_hooks("not here").__enter__()
        x.exp().sum().backward()
    assert torch.equal(x.grad, x.detach().exp())


def test_hooks_are_per_thread(off):
    """A forward pass of another thread is not seen; it may enter a context of its own."""
    grads = []

    def other():
        x = torch.ones(1000, requires_grad=True)
        x.exp().sum().backward()
        grads.append(x.grad)
        with pytest.raises(RuntimeError, match="active already"):
            off.__enter__()
        with pytest.raises(RuntimeError, match="not active in this thread"):
            off.__exit__(None, None, None)

    with off:
        in_threads(other)
        assert off.stats().offers == 0
        torch.ones(1000, requires_grad=True).exp().sum().backward()
    assert torch.equal(grads[0], torch.ones(1000).exp())
    assert off.stats().offers == 1
    with pytest.raises(RuntimeError, match="not active in this thread"):
        off.__exit__(None, None, None)


def test_leaving_in_the_backward_pass_is_refused(off):
    """#123196: PyTorch would crash later."""
    x = torch.randn(1000, requires_grad=True)
    with off:
        z = x.exp().sin()
        z.register_hook(lambda gradient: off.__exit__(None, None, None))
        with pytest.raises(RuntimeError, match="cannot be left inside of a backward pass"):
            z.sum().backward()
        del z
        settle(off)
        x.exp().sum().backward()
    assert torch.equal(x.grad, x.detach().exp())


def test_left_after_the_backward_pass_that_entered(off):
    """Autograd has dropped the hooks with its copy of the stack. Nothing of them is left."""
    x = torch.randn(1000, requires_grad=True)
    z = x.exp()
    z.register_hook(lambda gradient: off.__enter__() and None)
    z.sum().backward()
    offers = off.stats().offers
    off.__exit__(None, None, None)
    x.exp().sum().backward()
    assert off.stats().offers == offers
    with off:
        x.exp().sum().backward()
    assert off.stats().offers == offers + 1


def test_expanded_rows_are_stored_once(off):
    """trl 6241: a copy would be 1000 times as long."""
    seen = []
    with off:
        y = save(seen, torch.randn(1, 500).expand(1000, 500))
        settle(off)
        y.sum().backward()
    assert off.stats().bytes_spilled == 500 * 4
    assert seen[0][0].stride() == (0, 1)


def test_marked_as_not_to_offload(off):
    """By Transformer Engine, whose own code holds such tensors anyway."""
    seen = []
    marked = torch.randn(1000)
    marked._TE_do_not_offload = True
    with off:
        save(seen, marked).sum().backward()
    assert off.stats().offers == 0


@pytest.mark.parametrize("trained", [True, False])
def test_views_of_parameters_pass_by(off, trained):
    """#174960: FSDP2 gathers them after the model was entered, and takes the memory away before the
    backward pass."""
    weight = nn.Parameter(torch.randn(300, 300), requires_grad=trained)
    x = torch.randn(10, 300, requires_grad=True)
    with off:
        (x @ weight.t()[:, 5:]).sum().backward()
    assert off.stats().offers == 0
    assert torch.allclose(x.grad, weight.detach()[5:].sum(0).expand(10, 300), atol=1e-4)


def test_eval_mode_and_training_alternate(store):
    model = nn.Sequential(nn.Linear(128, 128), nn.Dropout(0.5), nn.BatchNorm1d(128),
                          nn.Linear(128, 128))
    off = offload_each(store, model)
    with off:
        for _ in range(3):
            model.train()(torch.randn(64, 128)).pow(2).sum().backward()
            with torch.no_grad():
                model.eval()(torch.randn(64, 128))
            model.eval()(torch.randn(64, 128)).pow(2).sum().backward()
    assert off.stats().steps == 6
    assert left_in(off) == (0, 0, 0)


class Numbers(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.full((1000,), float(index))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_a_data_loader(off, start):
    """Begun and ended inside the context, while tensors are stored."""
    loader = DataLoader(Numbers(), batch_size=2, num_workers=1, multiprocessing_context=start)
    sums = []
    with off:
        for batch in loader:
            x = batch.requires_grad_()
            x.sin().exp().sum().backward()
            sums.append(x.grad.sum().item())
    expected = [(x.sin().exp() * x.cos())
                for x in (torch.full((1000,), float(i)) for i in range(6))]
    assert sum(sums) == pytest.approx(sum(part.sum().item() for part in expected), rel=1e-5)


def test_a_function_excludes_what_is_there_when_it_is_entered(store):
    model = nn.Sequential(nn.Linear(300, 300))
    off = offload_all(store, model, exclude=lambda name, module: isinstance(module, nn.GELU))
    model.append(nn.GELU()) if hasattr(model, "append") else model.add_module("1", nn.GELU())
    with off:
        model(torch.randn(200, 300)).sum().backward()
    assert off.stats().tensors_kept_hint == 1


@pytest.mark.skipif(not hasattr(torch, "nested"), reason="this PyTorch has no nested tensors")
def test_a_nested_tensor_that_was_changed(off):
    """PyTorch's own error, not that there is no size."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(5, 2)])
    with off:
        output = nn.functional.linear(nested, torch.ones(2, 2, requires_grad=True))
        nested.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.backward(output.detach().clone())


MODULES = {
    "linear": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), (2, 3)),
    "convolution": (lambda: nn.Sequential(nn.Conv1d(2, 3, 2), nn.Softplus()), (1, 2, 4)),
    "norms": (lambda: nn.Sequential(nn.LayerNorm(4), nn.GELU(), nn.GroupNorm(1, 3)), (2, 3, 4)),
    "batch norm": (lambda: nn.BatchNorm1d(3), (4, 3)),
    "a view": (
        lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 2)),
        (2, 2, 3)),
    "a view, multiplied": (
        lambda: nn.Sequential(nn.Flatten(), nn.Softplus(), nn.Linear(6, 2), nn.GELU()), (2, 2, 3)),
    "softmax": (lambda: nn.Sequential(nn.Linear(3, 3), nn.Softmax(-1), nn.SiLU()), (2, 3)),
    "bilinear": (lambda: nn.Bilinear(3, 3, 2), (2, 3), (2, 3)),
}


@pytest.mark.parametrize("name", MODULES)
def test_second_derivatives(store, name):
    """By differences: the check changes its inputs through .data while a graph of them lives. Views
    of them are offloaded, too."""
    make, *sizes = MODULES[name]
    torch.manual_seed(7)
    model = make().double()
    off = spillway.torch.offload(model, store, sizes=spillway.torch.Sizes(min_bytes=0),
                                 mode="spill")
    inputs = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    with off:
        assert torch.autograd.gradcheck(model, inputs)
        assert torch.autograd.gradgradcheck(model, inputs)
    assert off.stats().offers > 0
    gc.collect()
    assert left_in(off) == (0, 0, 0)
