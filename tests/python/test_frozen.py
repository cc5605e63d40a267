# SPDX-License-Identifier: MIT
# tests/python/test_frozen.py - adapters on frozen weights: no copies of the weights are written
import contextlib
import io
import threading

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from offloading import assert_same_run, in_threads, offload_each, trained
from spillway._core.torch_compat import is_before

WIDTH, RANK, LAYERS, ROWS = 96, 4, 4, 48

pytestmark = pytest.mark.skipif(is_before("2.1"), reason="operations cannot be watched there")


class Lora(nn.Module):
    """A frozen linear layer, and an adapter beside it."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.dropout = nn.Dropout(0.1)
        self.down = nn.Linear(WIDTH, RANK, bias=False)
        self.up = nn.Linear(RANK, WIDTH, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(self.dropout(x)))


class Packed(nn.Module):
    """Weights of four bits, two in a byte, each row with a scale."""

    def __init__(self):
        super().__init__()
        self.register_buffer("packed", torch.randint(0, 256, (WIDTH, WIDTH // 2)).byte())
        self.register_buffer("scale", torch.rand(WIDTH, 1) / 8)
        self.register_buffer("table", torch.linspace(-1, 1, 16))

    def forward(self, x):
        halves = torch.stack([self.packed & 15, self.packed >> 4], -1).view(WIDTH, WIDTH)
        weight = torch.empty_like(self.table[halves.long()])
        weight.copy_(self.table[halves.long()]).mul_(self.scale)
        return nn.functional.linear(x, weight.to(x.dtype))


class Adapted(nn.Module):
    def __init__(self, make_base):
        super().__init__()
        torch.manual_seed(2)
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), Lora(make_base()), nn.GELU())
                                    for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


BASES = {"float32": lambda: nn.Linear(WIDTH, WIDTH), "packed": Packed,
         "bfloat16": lambda: nn.Linear(WIDTH, WIDTH).bfloat16()}
COPY = WIDTH * WIDTH * 2  # of a weight, in bfloat16


def batch():
    return torch.randn(ROWS, WIDTH)


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


def run(kind, off_of=None, mode=autocast, **options):
    model = Adapted(BASES[kind])
    torch.manual_seed(5)
    given = [each for each in model.parameters() if each.requires_grad]
    return trained(model, batch, off_of, mode=mode, steps=5,
                   optimizer=torch.optim.SGD(given, lr=0.1), **options)


@pytest.fixture
def written(monkeypatch):
    """What was saved and may be written: (type, shape) of each."""
    from spillway._offload.frozen import FrozenCopies

    saved = []
    saves = FrozenCopies._saved

    def noted(self, session, tensor):
        if not session.excluding:
            saved.append((tensor.dtype, tuple(tensor.shape)))
        return saves(self, session, tensor)

    monkeypatch.setattr(FrozenCopies, "_saved", noted)
    return saved


@pytest.mark.parametrize("options", [{"mode": "spill"}, {"mode": "fastest"},
                                     {"mode": "budget", "budget_bytes": 1 << 19},
                                     {"recompute": "operations"}, {"recompute": "auto"}],
                         ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("kind", ["float32", "packed"])
def test_copies_of_frozen_weights_are_not_written(store, written, kind, options):
    plain = run(kind)
    ours = run(kind, lambda model: offload_each(store, model, **options))
    assert_same_run(plain, ours)
    stats = ours.off.stats()
    # The activations, of which none is as wide as it is high, are written as before.
    assert (torch.bfloat16, (ROWS, WIDTH)) in written and stats.steps == 5
    assert (torch.bfloat16, (WIDTH, WIDTH)) not in written
    assert stats.bytes_kept_hint >= 5 * LAYERS * COPY


def test_the_report_tells_of_them(store):
    ours = run("float32", lambda model: offload_each(store, model, mode="spill"))
    table = io.StringIO()
    ours.off.report(table)
    copies = f"copies of frozen weights, {LAYERS * COPY / 1024:.1f} KiB in a step (24 % of"
    assert copies in table.getvalue(), table.getvalue()
    assert "145.5 KiB of frozen weights" in table.getvalue(), table.getvalue()


@pytest.mark.parametrize("kind, mode", [("float32", contextlib.nullcontext),
                                        ("bfloat16", autocast)])
def test_where_there_are_no_copies_none_are_told(store, kind, mode):
    """And what is saved is saved as without frozen weights, by the hooks in C."""
    ours = run(kind, lambda model: offload_each(store, model, mode="spill"), mode)
    table = io.StringIO()
    ours.off.report(table)
    assert "copies of frozen weights" not in table.getvalue()
    assert ours.off._session.operations is None


def test_what_is_frozen_later(store, written):
    """As in adversarial training, where two parts take turns."""
    def off_of(model):
        return offload_each(store, model, mode="spill")

    def turned(off_of=None):
        model = Adapted(BASES["float32"])
        bases = [layer[1].base.weight for layer in model.layers]
        torch.manual_seed(5)

        def turn():
            for weight in bases:
                weight.requires_grad_(not weight.requires_grad)
            written.clear()

        return trained(model, batch, off_of, mode=autocast, steps=4, each=turn)

    assert_same_run(turned(), turned(off_of))


def test_what_data_were_mixed_into_is_no_copy(store):
    """Nor is what is drawn at random in the shape of one."""
    class Mixes(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH), requires_grad=False)
            self.gain = nn.Parameter(torch.randn(WIDTH, 1), requires_grad=False)
            self.scale = nn.Parameter(torch.ones(1, WIDTH))

        def forward(self, x):
            mixed = self.weight.clone()
            mixed[:ROWS].add_(x)
            noise = torch.empty_like(self.weight).uniform_()
            return self.scale * mixed * noise * self.gain.exp()

    def each(off_of=None):
        torch.manual_seed(4)
        return trained(Mixes(), batch, off_of)

    ours = each(lambda model: offload_each(store, model, mode="spill"))
    assert_same_run(each(), ours)
    assert ours.off._frozen.step_bytes == WIDTH * 4  # exp() alone


def test_an_exception_in_the_forward_pass_ends_the_watch(store):
    from torch.utils import _python_dispatch

    model = Adapted(BASES["float32"])
    off = offload_each(store, model, mode="spill")
    with pytest.raises(RuntimeError), off:
        model(torch.randn(ROWS, WIDTH + 1))
    assert _python_dispatch._get_current_dispatch_mode() is None
    off.close()


def modes():
    return torch._C._len_torch_dispatch_stack()


def test_an_exception_that_the_caller_handles_ends_the_watch(store):
    model = Adapted(BASES["float32"])
    with offload_each(store, model, mode="spill"):
        with pytest.raises(RuntimeError):
            model(torch.randn(ROWS, WIDTH + 1))
        assert modes() == 0


@pytest.mark.parametrize("grad", [True, False])
def test_a_call_in_another_thread_leaves_the_watch_of_this_one(store, grad):
    """It begins after this one's, and ends before: the mode is in the stack of this thread."""
    model, here, left = Adapted(BASES["float32"]), threading.get_ident(), []

    def call():
        with torch.set_grad_enabled(grad), autocast():
            model(batch())
        left.append(modes())

    def in_between(*_):
        if threading.get_ident() == here:
            in_threads(call)

    model.layers[2].register_forward_pre_hook(in_between)
    off = offload_each(store, model, mode="spill")
    with off, autocast():
        model(batch()).sum().backward()
        assert modes() == 0 and left == [0]
    assert off._frozen.step_bytes >= LAYERS * COPY


def branches(x):
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


def traced(x):
    exported = torch.export.export(nn.Softplus(), (torch.ones(2),)).module()
    return x * exported(torch.ones(2))[0]


@pytest.mark.skipif(not hasattr(TorchDispatchMode, "supports_higher_order_operators"),
                    reason="in this PyTorch such calls know no modes")
@pytest.mark.parametrize("within, options", [
    (branches, {"mode": "spill"}), (traced, {"mode": "spill"}),
    (traced, {"recompute": "operations"})])
def test_calls_that_trace_while_a_step_is_watched(store, monkeypatch, within, options):
    """Nothing is compiled before: else no step is watched."""
    for place in ("_offload.frozen", "_recompute.operations"):
        monkeypatch.setattr(f"spillway.{place}.has_compiled", lambda: False)

    class Calls(Adapted):
        def forward(self, x):
            return within(super().forward(x))

    def each(off_of=None):
        torch.manual_seed(5)
        return trained(Calls(BASES["float32"]), batch, off_of, mode=autocast)

    ours = each(lambda model: offload_each(store, model, **options))
    assert ours.off._frozen.step_bytes == LAYERS * COPY
    assert_same_run(each(), ours)


def test_other_models_are_not_watched(store):
    """Whose buffers are fewer than what is trained: masks, statistics."""
    class Masks(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)
            self.register_buffer("mask", torch.ones(ROWS, WIDTH).tril() > 0)

        def forward(self, x):
            return self.inner(x).masked_fill(self.mask.logical_not(), 0)

    ours = trained(Masks(), batch, lambda model: offload_each(store, model, mode="spill"))
    assert ours.off._frozen.base_bytes == 0 and ours.off._session.operations is None
