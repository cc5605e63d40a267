# SPDX-License-Identifier: MIT
# tests/python/test_changed.py - a backward pass changes in place what it was handed
# layer: test all
"""Each program runs twice, without spillway and with it: both give the same gradients, or both the
same error."""
import contextlib
import functools
import gc
import inspect
import threading
import time

import pytest
import torch

import spillway
import spillway.torch
from conftest import emptied, given_back
from offloading import equal, in_threads, left_in, offload_all, settle
from streams import Table, host_is_device


@pytest.fixture
def store(one_store):
    """Empty again after each test."""
    yield one_store
    Where.close_devices()
    assert emptied(one_store), f"the test left objects in the store: {one_store.stats()}"


INPLACE = "modified by an inplace operation"


class Change(torch.autograd.Function):
    """Saves tensors, and changes the first by ``change`` in the backward pass."""

    @staticmethod
    def forward(ctx, x, change, *saved):
        ctx.save_for_backward(*saved)
        ctx.change, ctx.count = change, len(saved)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        tensors = ctx.saved_tensors
        if ctx.change is not None:
            with torch.no_grad():
                ctx.change(tensors[0])
        return (gradient, None) + (None,) * ctx.count


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y.clone()


class Scaled(Exp):
    """It computes its gradient in what it saved, as fused losses do to spare memory."""

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return y.mul_(gradient)


class Computed(Exp):
    """Its gradient is what it saved: right for a sum."""

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0]


class Where:
    """Where the bytes are when they are used. A device is one without a GPU: every tensor is on
    it."""

    opened = []

    def __init__(self, store, what):
        self.off = None
        self.what = what
        if what.startswith("device"):
            self._open_on_device(store)
        elif what != "without":
            self.off = offload_all(store, min_bytes=1 << 30 if what == "kept" else 1)

    @staticmethod
    def close_devices():
        """Each has half of the store's arena."""
        while Where.opened:
            Where.opened.pop().close()

    def _open_on_device(self, store):
        self.close_devices()
        # Copies to host memory end at once, or never.
        self._table = Table(polls=0 if self.what == "device: stored" else None)
        self.off = offload_all(store, min_bytes=1 << 40 if self.what == "device: kept" else 1)
        host_is_device(self.off, self._table)
        Where.opened.append(self.off)

    def context(self):
        return self.off if self.off is not None else contextlib.nullcontext()

    def saved(self):
        """All that was saved is where it is meant to be."""
        if self.what == "stored":
            settle(self.off)
        elif self.what == "device: stored":
            while self.off.stats().staging_bytes:
                pass

    def left(self):
        """All 0 when every graph is gone."""
        gc.collect()
        kept = 0
        if self.what.startswith("device"):
            self._table.polls = 0
            deadline = time.monotonic() + 10
            stats = self.off.stats()
            while stats.device_staging_bytes + stats.entries and time.monotonic() < deadline:
                stats = self.off.stats()
            kept = stats.device_staging_bytes + stats.entries
        return (*left_in(self.off), kept)


def outcome(program, where):
    torch.manual_seed(5)
    try:
        got = program(where)
        got = got and [gradient.clone() for gradient in got]  # they may lie in memory of the cache
    except RuntimeError as error:
        assert INPLACE in str(error)
        got = INPLACE
    if where.off is not None:
        assert where.left() == (0, 0, 0, 0)
    return got


def same(program, store, what):
    expected = outcome(program, Where(store, "without"))
    got = outcome(program, Where(store, what))
    if expected is INPLACE or got is INPLACE:
        assert got is expected
    else:
        assert len(got) == len(expected) and equal(got, expected)
    return expected


def _test_of(program, expected_error):
    """A test of a program, which gets where its bytes are, in each of ``what``."""
    names = list(inspect.signature(program).parameters)[1:]

    def test(store, what, **given):
        got = same(lambda where: program(where, **given), store, what)
        assert (got is INPLACE) == expected_error

    keyword = inspect.Parameter.KEYWORD_ONLY
    test.__signature__ = inspect.Signature(
        [inspect.Parameter(name, keyword) for name in ("store", "what", *names)])
    test.__name__, test.__doc__ = program.__name__, program.__doc__
    return test


def raises(program):
    return _test_of(program, True)


def same_gradients(program):
    return _test_of(program, False)


@pytest.fixture(
    params=["stored", "forwarded", "kept", "device: stored", "device: forwarded", "device: kept"])
def what(request):
    return request.param


def leaf(*size, dtype=torch.float32):
    return torch.randn(*(size or (20000,)), dtype=dtype, requires_grad=True)


# ---- Errors --------------------------------------------------------------------------------------


@raises
def test_the_graph_is_used_again(where):
    x = leaf()
    with where.context():
        z = (2 * Scaled.apply(x)).sum()
        where.saved()
        z.backward(retain_graph=True)
        assert torch.equal(x.grad, 2 * x.detach().exp())
        z.backward()


def test_the_words(store):
    def program(where):
        with where.context():
            z = Scaled.apply(leaf(300)).sum()
            where.saved()
            z.backward(retain_graph=True)
            with pytest.raises(RuntimeError, match=INPLACE) as caught:
                z.backward()
        return str(caught.value)

    for what in ("without", "stored", "forwarded", "device: stored", "device: forwarded"):
        text = program(Where(store, what))
        words = "operation: [torch.FloatTensor [300]] is at version 1; expected version 0 instead"
        assert words in text, what
    gc.collect()


CHANGES = {
    "itself": lambda t: t.mul_(2),
    "a part": lambda t: t[3:5].zero_(),
    "detached": lambda t: t.detach().add_(1),
    "an alias": lambda t: t.view(-1).neg_(),
    "as another type": lambda t: t.view(torch.int32).add_(1),
    "the last bytes": lambda t: t.flatten()[-1:].fill_(7),
}


@pytest.mark.parametrize("change", CHANGES)
@raises
def test_another_operation_saved_it(where, change):
    x = leaf()
    with where.context():
        y = x * 1
        a = y.sin()
        b = Change.apply(a, CHANGES[change], y)  # the later one is used first
        where.saved()
        b.sum().backward()
    return [x.grad]


VIEWS = {
    "a slice": lambda y: y[7:9000],
    "transposed": lambda y: y.view(100, 200).t(),
    "expanded": lambda y: y[:50].view(50, 1).expand(50, 9),
    "as another type": lambda y: y.view(torch.int32),
    "as a shorter type": lambda y: y.view(torch.float16),
    "as booleans": lambda y: y.view(torch.uint8).bitwise_and_(1).view(torch.bool),
}


@pytest.mark.parametrize("changed_first", [True, False],
                         ids=["the view is changed", "the storage is changed"])
@pytest.mark.parametrize("view", VIEWS)
@raises
def test_views_of_one_storage(where, view, changed_first):
    """They are handed out on the same memory."""
    x = leaf(1)
    with where.context():
        y = torch.randn(20000)
        seen = VIEWS[view](y)
        one, other = (seen, y) if changed_first else (y, seen)
        z = Change.apply(x, None, other)
        z = Change.apply(z, lambda t: (t.view(-1)[:3] if t.is_contiguous() else t[:1, :1]).zero_(),
                         one)
        del y, seen, one, other
        where.saved()
        z.sum().backward()
    return [x.grad]


LAZY = {
    "conj": lambda c: c.conj(),
    "conj of a view": lambda c: c.view(100, 50).t().conj(),
    "imaginary part": lambda c: c.imag,
    "of the conjugate": lambda c: c.conj().imag,
    "negated": lambda c: torch._neg_view(c.real),
}


@pytest.mark.parametrize("make", LAZY)
@pytest.mark.parametrize("changed_first", [True, False])
@raises
def test_lazy_views(where, make, changed_first):
    x = leaf(1)
    with where.context():
        y = torch.randn(5000, dtype=torch.complex64)
        seen = LAZY[make](y)
        one, other = (seen, y) if changed_first else (y, seen)
        z = Change.apply(Change.apply(x, None, other), lambda t: t.mul_(2), one)
        del y, seen, one, other
        where.saved()
        z.sum().backward()
    return [x.grad]


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.int64, torch.complex128])
@raises
def test_types(where, dtype):
    x = leaf(1)
    with where.context():
        z = Change.apply(x, lambda t: t.zero_(), torch.ones(5000, dtype=dtype)).sum()
        where.saved()
        z.backward(retain_graph=True)
        z.backward()


@raises
def test_it_is_changed_between_the_uses(where):
    """Through a reference that outlives the backward pass; and once more after it was
    used again."""
    x, held = leaf(1), []
    with where.context():
        z = Change.apply(x, held.append, torch.randn(20000)).sum()
        where.saved()
        z.backward(retain_graph=True)
        z.backward(retain_graph=True)
        held[0].zero_()
        z.backward()


def test_in_another_thread(store, what):
    def program(where):
        x, errors = leaf(), []

        def use(output):
            try:
                output.sum().backward()
            except RuntimeError as error:
                errors.append(str(error))

        with where.context():
            y = x * 1
            outputs = [y.sin(), Change.apply(x, lambda t: t.zero_(), y)]
            where.saved()
            while outputs:
                in_threads(functools.partial(use, outputs.pop()))
        assert len(errors) == 1 and INPLACE in errors[0]
        return [x.grad]

    same(program, store, what)


def test_by_several_threads_at_once(store, what):
    """The first thread changes it; all that come later are told so, and none gets changed bytes."""
    where = Where(store, what)
    count = 8
    y = torch.randn(20000)
    expected, got, errors = y.clone(), [], []

    def keep_and_change(tensor):
        got.append(torch.equal(tensor, expected))
        barrier.wait()
        tensor.zero_()

    barrier = threading.Barrier(count)
    x = leaf(1)
    with where.context():
        outputs = [Change.apply(x, keep_and_change, y) for _ in range(2 * count)]
        del y
        where.saved()

    def use(output):
        try:
            output.backward()
        except RuntimeError as error:
            errors.append(str(error))

    for _ in range(2):  # at once, then the others
        in_threads(*(functools.partial(use, outputs.pop()) for _ in range(count)))
    assert got == [True] * count
    assert len(errors) == count and all(INPLACE in error for error in errors)
    assert where.left() == (0, 0, 0, 0)


@raises
def test_double_backward(where):
    """What the first backward pass changes the second one uses."""
    x = leaf()
    with where.context():
        y = x.exp()
        z = Change.apply(y * y, lambda t: t.mul_(2), y)
        where.saved()
        (first,) = torch.autograd.grad(z.sum(), x, create_graph=True)
        where.saved()
        first.pow(2).sum().backward()
    return [x.grad]


# ---- What PyTorch does not count -----------------------------------------------------------------


UNCOUNTED = {
    "all": lambda t: t.data.mul_(2),
    "a view": lambda t: t.data[3:5].zero_(),
    "by NumPy": lambda t: t.detach().numpy().__imul__(2),
    "the last bytes": lambda t: t.data[-1:].fill_(7),
}


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("change", UNCOUNTED)
@same_gradients
def test_changed_between_two_passes(where, change, settled):
    """What is saved after the change is not a duplicate of what was saved before it."""
    x = leaf()
    with where.context():
        y = x * 1
        first = y.sin()
        if settled:
            where.saved()
        UNCOUNTED[change](y)
        second = y.cos() + y.exp()
        if settled:
            where.saved()
        second.sum().backward()
    del first
    return [x.grad]


@pytest.mark.parametrize("settled", [True, False])
@same_gradients
def test_changed_between_many_passes(where, settled):
    x = leaf()
    with where.context():
        y = x * 1
        outputs = []
        for _ in range(5):
            outputs += [y.sin(), y.exp()]
            if settled:
                where.saved()
            y.data.add_(1)
        last = y.tan().sum()
        where.saved()
        last.backward()
    del outputs
    return [x.grad]


@pytest.mark.parametrize("settled", [True, False])
@same_gradients
def test_a_view_of_what_changed(where, settled):
    x = leaf()
    with where.context():
        y = x * 1
        first = (y * y).sum()
        if settled:
            where.saved()
        y.data[15000:].fill_(3)
        second = y[14000:].sin().sum() + y[:100].sin().sum()
        if settled:
            where.saved()
        second.backward()
    del first
    return [x.grad]


# ---- What PyTorch takes --------------------------------------------------------------------------


@same_gradients
def test_the_last_use(where):
    x = leaf()
    with where.context():
        z = Scaled.apply(x).pow(2).sum()
        where.saved()
        z.backward()
    return [x.grad]


@same_gradients
def test_accumulation(where):
    """The gradient may be what was saved itself, and outlives the graph. Whether the context is
    left does not matter."""
    x = leaf()
    for inside in (True, True, False, False):
        with where.context():
            z = Scaled.apply(x).sum() + Scaled.apply(x).sum()
            where.saved()
            if inside:
                z.backward()
        if not inside:
            z.backward()
        del z
    return [x.grad]


@same_gradients
def test_used_again_and_not_changed(where):
    x = leaf()
    with where.context():
        y = x.exp()
        z = (y * y.sin() * y.view(100, 200).t().reshape(-1)).sum()
        where.saved()
        for _ in range(3):
            z.backward(retain_graph=True)
    return [x.grad]


@pytest.mark.parametrize("first", [True, False])
@same_gradients
def test_the_gradient_is_what_was_saved(where, first):
    """Gradients are added in place where nothing else refers to them."""
    x = leaf()
    with where.context():
        outputs = [Computed.apply, lambda x: x * 3]
        z = sum(output(x).sum() for output in (reversed(outputs) if first else outputs))
        where.saved()
        for _ in range(3):
            z.backward(retain_graph=True)
    return [x.grad]


def test_it_is_taken_over_as_gradient(store, what):
    """Some versions of PyTorch do so where there are hooks, and add to it in place. The third time
    the gradient would be wrong."""
    def program(where):
        x = leaf()
        with where.context():
            z = Computed.apply(x).sum()
            where.saved()
            for _ in range(2):
                z.backward(retain_graph=True)
            assert torch.equal(x.grad, 2 * x.detach().exp())
            z.backward(retain_graph=True)
        return [x.grad]

    expected = outcome(program, Where(store, "without"))
    got = outcome(program, Where(store, what))
    assert got is INPLACE or torch.equal(got[0], expected[0])


@pytest.mark.parametrize("what", ["stored", "device: stored"])
def test_saved_anew_after_the_change(store, what):
    """The change was one of memory that was read back, not of the tensor, which still has what it
    had."""
    where = Where(store, what)
    x = leaf(1)
    seen = []
    y = torch.randn(20000)
    expected = y.clone()
    with where.context():
        first = Change.apply(x, lambda t: t.zero_(), y)
        where.saved()
        first.backward(retain_graph=True)
        second = Change.apply(x, seen.append, y)
        where.saved()
        second.backward()
        assert torch.equal(seen.pop(), expected)
        with pytest.raises(RuntimeError, match=INPLACE):
            first.backward()
    del first, second
    assert where.left() == (0, 0, 0, 0)


def test_a_graph_that_is_kept_does_not_keep_the_drives(formatted):
    """What was read back is held as long as it may be used again, and no longer than the store is
    open."""
    x = leaf()
    with spillway.Store(formatted) as store:
        off = Where(store, "stored").off
        with off:
            z = (x.exp() * x.sin()).sum()
            settle(off)
            z.backward(retain_graph=True)
    given_back(formatted)
    with pytest.raises((RuntimeError, spillway.SpillwayError), match="the tensor cache is closed"):
        z.backward()
