# SPDX-License-Identifier: MIT
# tests/python/test_operations.py - single operations that are recomputed: the same bits as without
import contextlib
import copy
import errno
import gc

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint

import spillway
import spillway.torch
from offloading import assert_same_run, equal, gradients_of, left_in, same_bits, trained
from spillway._core import torch_compat
from spillway._recompute import operations, scopes as scopes_module, watch
from spillway._recompute.expressions import Call, Leaf, Rows

pytestmark = pytest.mark.skipif(torch_compat.is_before(scopes_module.OLDEST),
                                reason="this PyTorch cannot recompute")
WIDTH, ROWS, STEPS = 64, 32, 6
BEGINS = 3  # steps until operations are recomputed: measured, watched, timed


@pytest.fixture(autouse=True)
def any_cost(monkeypatch):
    """What is recomputed does not depend on how busy the machine is."""
    monkeypatch.setattr(operations, "SLACK", 1e9)


def offload_of(model, store=None, **options):
    return spillway.torch.offload(model, store, **{
        "recompute": "operations", "sizes": spillway.torch.Sizes(min_bytes=1024), **options})


def names(off):
    return sorted(recipe.call.name for recipe in off._operations.recipes)


def train(model, off=None, steps=STEPS, input_of=None, backward=None):
    """Losses, and the gradients of each step."""
    model = copy.deepcopy(model) if off is None else model
    torch.manual_seed(2)
    losses, gradients = [], []
    for step in range(steps):
        x = input_of(step) if input_of else torch.randn(4, ROWS // 4, WIDTH)
        with off or contextlib.nullcontext():
            loss = model(x).float().square().mean()
            (backward or torch.Tensor.backward)(loss)
        losses.append(loss.item().hex())
        gradients.append([None if each is None else each.clone() for each in gradients_of(model)])
        model.zero_grad()
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients[-1]):
                if gradient is not None:
                    parameter -= 0.05 * gradient
    return losses, gradients


def same(model, expected=None, store=None, options=None, **given):
    """Training gives the same bits as without. Return: the offload."""
    plain = train(model, **given)
    off = offload_of(model, store, **(options or {}))
    run = train(model, off, **given)
    assert run[0] == plain[0]
    for ours, theirs in zip(run[1], plain[1]):
        assert all((a is None and b is None) or same_bits(a, b) for a, b in zip(ours, theirs))
    stats = off.stats()
    assert stats.restores_refused == 0
    assert stats.bytes_restored <= stats.bytes_given_up
    if expected is not None:
        assert names(off) == sorted(expected)
        assert (stats.tensors_given_up > 0) == bool(expected)
    gc.collect()
    assert left_in(off) == (0, 0, 0)
    return off


class Between(nn.Module):
    """An operation between two linear layers, which save what it is given, and its result."""

    def __init__(self, operation, dtype=torch.float32):
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.operation = operation
        self.to(dtype)

    def forward(self, x):
        y = self.enter(x.to(self.enter.weight.dtype))
        kept = y.square().sum() / 1000  # saves it, whatever the operation saves itself
        return self.leave(self.operation(self, y)) + kept


class Root(nn.Module):
    """A norm written out, as transformers writes it."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * y.to(x.dtype)


class Layer(nn.Module):
    def __init__(self, norm=nn.LayerNorm, dropout=0.0, gated=False, act=F.gelu):
        super().__init__()
        self.first, self.second = norm(WIDTH), norm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, 4 * WIDTH) if gated else None
        self.dropout, self.act = nn.Dropout(dropout), act

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2)
                   for part in self.qkv(self.first(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.out(y))
        y = self.second(x)
        z = self.act(self.up(y)) if self.gate is None else self.act(self.gate(y)) * self.up(y)
        return x + self.dropout(self.down(z))


class Model(nn.Module):
    def __init__(self, layers=3, **options):
        super().__init__()
        self.layers = nn.ModuleList(Layer(**options) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


# ---- Each operation ------------------------------------------------------------------------------

UNARY = {
    "gelu": F.gelu, "silu": F.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": F.relu,
    "mish": F.mish, "softplus": F.softplus, "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish, "abs": torch.abs, "neg": torch.neg,
    "exp": lambda x: torch.exp(x.tanh()), "sin": torch.sin, "cos": torch.cos,
    "pow": lambda x: x ** 3,
    "clone": lambda x: x.transpose(0, 1).contiguous(),
    "gelu, by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "mul, by two": lambda x: x * 2,
}
# A number may be another one in the next step.
NUMBERS = {"mul": lambda x: x * 0.3, "add": lambda x: x + 1.5,
           "clamp": lambda x: x.clamp(-0.5, 0.5),
           "leaky_relu": lambda x: F.leaky_relu(x, 0.3), "elu": F.elu}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16],
                         ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_each_of_one_operand(name, dtype):
    try:
        F.linear(torch.ones(1, 1, dtype=dtype), torch.ones(1, 1, dtype=dtype))
    except RuntimeError as error:  # PyTorch 2.1, of float16
        pytest.skip(str(error))
    torch.manual_seed(0)
    off = same(Between(lambda self, x: UNARY[name](x), dtype))
    assert name.partition(",")[0] in names(off)


@pytest.mark.parametrize("name", NUMBERS)
def test_with_a_number_it_is_kept(name):
    same(Between(lambda self, x: NUMBERS[name](x)), [])


@pytest.mark.parametrize("layout", ["plain", "transposed", "broadcast", "part"])
@pytest.mark.parametrize("name", ["mul", "add", "sub", "div"])
def test_each_of_two_operands(name, layout):
    def operation(self, x):
        other = {"plain": lambda: self.norm(x), "transposed": lambda: self.norm(x),
                 "broadcast": lambda: self.norm(x).mean(1, keepdim=True),
                 "part": lambda: self.norm(x)}[layout]()
        kept = (x * other).sum() * 0  # both are saved
        if layout == "transposed":
            x, other = x.transpose(0, 1), other.transpose(0, 1)
        if layout == "part":
            x, other = x[:, 1:], other[:, 1:]
        return getattr(torch, name)(x, other) + kept

    torch.manual_seed(0)
    same(Between(operation))


@pytest.mark.parametrize("width", [1, 31, 64, 100, 341, 512])
@pytest.mark.parametrize("rows", [(), (1,), (3, 7), (2, 1, 53)], ids=str)
@pytest.mark.parametrize("name", ["silu", "exp", "gelu"])
def test_rows_of_any_width(name, rows, width):
    """PyTorch computes the last elements of a tensor one by one: to other bits than many at once.
    Each row that is compared counts."""
    torch.manual_seed(0)
    x = torch.randn(*rows, width)
    operation = getattr(torch.ops.aten, name).default
    result = operation(x)
    compared = Rows(Call(operation, [Leaf(0, None)], {}), lambda leaf: x)
    assert compared.are_in(result)
    lines = result.view(-1, width)
    for row in {round(part * (len(lines) - 1)) for part in (0, 1)}:
        for at in {0, width // 2, width - 1}:
            before = lines[row, at].clone()
            lines[row, at] = torch.nextafter(before, torch.tensor(9.0))
            assert not compared.are_in(result)
            lines[row, at] = before
    assert compared.are_in(result)
    assert not compared.are_in(torch.cat([result, result]))


def test_a_width_that_is_no_multiple():
    torch.manual_seed(0)
    model = Between(lambda self, x: self.narrow(F.silu(self.wide(x))))
    model.wide, model.narrow = nn.Linear(WIDTH, 341), nn.Linear(341, WIDTH)
    assert "silu" in names(same(model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_norms(dtype):
    torch.manual_seed(0)
    same(Between(lambda self, x: self.norm(x), dtype), ["native_layer_norm"])
    if hasattr(nn, "RMSNorm"):
        model = Between(lambda self, x: self.rms(x), dtype)
        model.rms = nn.RMSNorm(WIDTH).to(dtype)
        assert names(same(model))
    model = Between(lambda self, x: self.root(x), dtype)
    model.root = Root(WIDTH).to(dtype)
    assert "mul" in names(same(model))


def test_a_norm_over_two_dimensions_is_kept():
    """Its rows are not along the last one."""
    model = Between(lambda self, x: self.both(x))
    model.both = nn.LayerNorm([ROWS // 4, WIDTH])
    same(model, [])


def test_what_draws_random_numbers_is_kept():
    off = same(Between(lambda self, x: torch.rand_like(x)))
    assert not set(names(off)) & {"rand_like"}


def test_a_cast_of_what_is_not_saved():
    """It is computed through the product, which only the cast sees."""
    def operation(self, x):
        return (x * self.norm(x)).to(torch.bfloat16).float()

    off = same(Between(operation))
    assert "_to_copy" in names(off)


# ---- Whole models --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {}, {"dropout": 0.1}, {"gated": True, "act": F.silu, "norm": Root}, {"act": F.relu},
], ids=["gpt", "dropout", "llama", "t5"])
@pytest.mark.parametrize("how", ["alone", "auto", "store", "budget"])
def test_transformers(options, how, store):
    torch.manual_seed(0)
    arguments = {"alone": {}, "auto": {"recompute": "auto"},
                 "store": {"recompute": "auto"},
                 "budget": {"recompute": "auto", "mode": "budget", "budget_bytes": 1 << 20}}[how]
    off = same(Model(**options), store=store if how == "store" else None, options=arguments)
    assert len(off._operations.recipes) >= 6
    assert off.stats().tensors_given_up > 0


def test_less_memory():
    model = Model(layers=8)
    keep = spillway.torch.offload(model, None, mode="observe")
    train(model, keep)
    off = offload_of(model)
    train(model, off, steps=BEGINS)
    off.reset_peak()
    train(model, off)
    stats, most = off.stats(), 0.72 * keep.stats().activation_bytes_max
    assert stats.activation_bytes_max < most
    assert 0 < stats.plan_peak_bytes < most  # the plan knows of it


def test_nothing_but_the_chosen_is_held():
    """A tensor that others are computed from is no longer held than without."""
    model = Model()
    off = offload_of(model)
    train(model, off)
    operations_ = off._operations
    assert not operations_._packed and not operations_._held and not operations_._frames


def test_accumulated_gradients():
    model = Model()
    def twice(loss):
        loss.backward(retain_graph=True)
        loss.backward()

    same(model, backward=twice)


def test_autocast():
    class Cast(Model):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x).float()

    same(Cast())

    def within(loss):  # as those do who write all in the context
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss.backward()

    same(Cast(), backward=within)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_inside(reentrant):
    class Checked(Model):
        def forward(self, x):
            x = x.requires_grad_()
            for i, layer in enumerate(self.layers):
                x = checkpoint(layer, x, use_reentrant=reentrant) if i == 1 else layer(x)
            return x

    off = same(Checked())
    assert names(off)


def test_a_second_derivative():
    def penalty(loss):
        gradients = torch.autograd.grad(loss, [each for each in parameters], create_graph=True)
        sum(each.square().sum() for each in gradients).backward()

    class Smooth(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = F.silu(layer(x))
            return x

    model = Smooth()
    for each in (copy.deepcopy(model), model):
        parameters = list(each.parameters())
        losses = []
        off = None if each is not model else offload_of(each)
        torch.manual_seed(2)
        for _ in range(STEPS):
            with off or contextlib.nullcontext():
                penalty(each(torch.randn(ROWS, WIDTH)).square().mean())
            losses.append([parameter.grad.clone() for parameter in parameters])
            each.zero_grad()
        if off is None:
            plain = losses
    assert equal(losses, plain)
    assert off.stats().tensors_given_up > 0


def test_a_compiled_model_is_the_compilers(caplog):
    caplog.set_level("INFO", "spillway")
    model = Model()
    compiled = torch.compile(model, backend="eager")
    off = offload_of(compiled)
    train(compiled, off)
    assert off._operations.recipes == []
    assert caplog.text.count("with torch.compile") == 1
    torch._dynamo.reset()


# ---- Steps that are not like the one that was watched --------------------------------------------


def test_other_lengths():
    lengths = iter([8, 8, 8, 8, 5, 11, 3, 8] * 2)
    off = same(Model(), input_of=lambda step: torch.randn(4, next(lengths), WIDTH), steps=8)
    assert off.stats().tensors_given_up > 4 * 6


def part_zeroed(x):
    x[0] = 0
    return x


class Changing(nn.Module):
    """The same shapes, and another operation from the fifth step on."""

    def __init__(self, first, then):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.first, self.then, self.steps = first, then, 0

    def forward(self, x):
        self.steps += 1
        act = self.first if self.steps < 5 else self.then
        for layer in self.layers:
            x = act(layer(x))
        return x


@pytest.mark.parametrize("first, then", [
    (F.gelu, F.silu), (F.silu, torch.sin),
    (F.gelu, lambda x: F.gelu(x, approximate="tanh")), (F.gelu, lambda x: x.mul(1)),
    (F.gelu, lambda x: F.gelu(x).add_(0.1)), (F.gelu, lambda x: part_zeroed(F.gelu(x))),
    (F.gelu, lambda x: F.gelu(x.clone())),
])
def test_another_operation(first, then):
    model = Changing(first, then)
    off = same(model, steps=10)
    assert off.stats().tensors_given_up > 0


def test_an_operation_that_was_interrupted_while_it_was_timed(monkeypatch):
    """Others like it tell how long it takes."""
    ended = watch.Watch.ended

    def interrupted(self):
        found = ended(self)
        list(found.values())[0].cost_ns = 1 << 60
        return found

    monkeypatch.setattr(watch.Watch, "ended", interrupted)
    monkeypatch.setattr(operations, "SLACK", 1e6)
    assert names(same(Changing(F.gelu, F.gelu))) == ["gelu"] * 3


def test_what_the_loss_saves_is_kept():
    """It is saved when the model has run: the step is not another one for that."""
    model = Changing(F.gelu, F.gelu)
    off = same(model)
    assert names(off) == ["gelu"] * 3 and off._operations._watches == 1


def test_layers_that_are_skipped():
    class Skipping(Model):
        steps = 0

        def forward(self, x):
            self.steps += 1
            for i, layer in enumerate(self.layers):
                if (self.steps * 7 + i) % 4 or self.steps <= BEGINS:
                    x = layer(x)
            return x

    model = Skipping(layers=4)
    for i, layer in enumerate(model.layers):
        layer.act = F.gelu if i % 2 else F.silu
    same(model, steps=12)


def test_a_forward_pass_that_raises():
    model = Model()
    plain = train(model)
    off = offload_of(model)
    train(model, off, steps=BEGINS + 1)
    hook = model.layers[1].second.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), off:
        model(torch.randn(4, ROWS // 4, WIDTH))
    hook.remove()
    fresh = copy.deepcopy(model)
    assert equal(train(fresh)[1], train(model, off)[1])
    assert plain[0]


def test_two_offloads_take_turns():
    one, other = Model(), Model(act=F.relu)
    plain = train(one), train(other)
    offs = offload_of(one), offload_of(other)
    assert [train(model, off)[0] for model, off in zip((one, other), offs)] == [
        each[0] for each in plain]


def rows_zeroed(act):
    """As of padded sequences: that is the same for many operations."""
    return lambda x: act(torch.cat([x[:1], x[1:] * 0]))


class Once(nn.Module):
    """A function of its own, and of the number of the step, between two layers."""

    def __init__(self, function):
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.function, self.steps = function, 0

    def forward(self, x):
        self.steps += 1
        return self.leave(self.function(self.enter(x), self.steps))


def viewed(y, _step):
    """A result, and a view of another type on it."""
    z = F.gelu(y)
    w = torch.view_as_complex(z.unflatten(-1, (-1, 2)))
    return z * torch.view_as_real(w * w).flatten(-2)


def copied_where_it_must_be(y, _step):
    """With a batch of one nothing is copied."""
    z = y.transpose(0, 1).contiguous()
    return (z.exp() * z).transpose(0, 1)


def of_many(y, _step):
    for _ in range(200):
        y = y.sin()
    return y


def of_other_strides(y, step):
    z = y if step < 5 else y.transpose(0, 1).contiguous().transpose(0, 1)
    return F.gelu(z) * z


def of_a_larger_storage(y, step):
    z = F.gelu(y)
    return z * z if step < 5 else torch.cat([z, z])[:len(z)] * z


@pytest.mark.parametrize("function", [
    viewed, of_many, of_other_strides, of_a_larger_storage,
    lambda y, step: rows_zeroed(F.gelu if step < 5 else F.silu)(y),
])
def test_what_looks_like_the_same(function):
    same(Once(function), steps=10)


def test_a_batch_of_one_in_the_watched_step():
    sizes = iter([4, 1, 4, 4, 4, 6, 1, 4] * 2)
    same(Once(copied_where_it_must_be), steps=8,
         input_of=lambda step: torch.randn(next(sizes), ROWS // 4, WIDTH))


def test_settings_that_change_in_between():
    def backward(loss):
        with torch.backends.mkldnn.flags(enabled=False):
            threads = torch.get_num_threads()
            torch.set_num_threads(threads + 1)
            try:
                loss.backward()
                assert torch.get_num_threads() == threads + 1
            finally:
                torch.set_num_threads(threads)

    same(Model(), backward=backward)


def test_a_watched_forward_pass_that_raises():
    """No mode is left behind."""
    model = Model()
    off = offload_of(model)
    train(model, off, steps=1)
    hook = model.layers[1].register_forward_hook(lambda *_: 1 / 0)
    with off:
        with pytest.raises(ZeroDivisionError):
            model(torch.randn(4, ROWS // 4, WIDTH))
        assert _get_current_dispatch_mode() is None
    hook.remove()
    fresh = copy.deepcopy(model)
    assert equal(train(fresh)[1], train(model, off)[1])


# ---- Modified in place ---------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["result", "operand"])
def test_modified_in_place_afterwards(what):
    """PyTorch raises; so does spillway, wherever the bytes are."""
    class Modifies(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.modifies = False

        def forward(self, x):
            y = self.up(x)
            z = F.gelu(y)
            result = self.down(z)
            if self.modifies:
                with torch.no_grad():
                    (z if what == "result" else y).add_(1)
            return result

    model = Modifies()
    off = offload_of(model)
    train(model, off)
    assert names(off) == ["gelu"]
    model.modifies = True
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        train(model)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        train(model, off)
    model.modifies = False
    fresh = copy.deepcopy(model)
    model.zero_grad()
    assert equal(train(fresh)[1], train(model, off)[1])


def test_modified_between_two_saves():
    """The first save is not used then; the second is of other bytes than those of the operation."""
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.one, self.two = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.steps = 0

        def forward(self, x):
            self.steps += 1
            y = F.gelu(self.up(x))
            first = self.one(y)
            if self.steps > BEGINS + 2:
                with torch.no_grad():
                    y.mul_(2)
                first = first.detach()
            return self.two(y) + first

    same(Twice(), steps=2 * BEGINS + 2)


def test_conjugated_numbers():
    def operation(self, x):
        y = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        z = y.conj() * y * 0.5
        return torch.view_as_real((z * z).resolve_conj()).flatten(-2)

    same(Between(operation))


@pytest.mark.parametrize("layout", ["strided", "jagged"])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors(layout):
    """Those of the strided layout have no strides."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def loss_of(model, x):
        parts = list(x.unbind())
        y = model(torch.nested.nested_tensor(parts, layout=getattr(torch, layout)))
        return y.to_padded_tensor(0.0).square().mean()

    def run(off_of=None):
        torch.manual_seed(2)
        ours = copy.deepcopy(model)
        return trained(ours, lambda: torch.randn(3, ROWS, WIDTH), off_of, loss_of, steps=STEPS,
                       optimizer=torch.optim.SGD(ours.parameters(), lr=0.05))

    assert_same_run(run(offload_of), run())


def test_a_model_on_meta():
    with torch.device("meta"):
        model = Model()
    off = offload_of(model)
    for _ in range(STEPS):
        with off:
            model(torch.empty(4, ROWS // 4, WIDTH, device="meta")).square().mean().backward()


def test_an_operand_modified_in_between_is_seen():
    """What is saved is not what the operation was given."""
    def operation(self, x):
        y = x * 1  # of its own
        z = F.gelu(y.detach())
        y.add_(1)
        return z + self.norm(y)

    same(Between(operation))


def test_bytes_that_differ_are_never_used(monkeypatch):
    """However that comes about: the backward pass raises, and the next step is right."""
    model = Model()
    off = offload_of(model)
    train(model, off)
    x = torch.randn(4, ROWS // 4, WIDTH)
    with off:
        loss = model(x).square().mean()
    with monkeypatch.context() as changed:
        changed.setattr(operations, "computed", lambda call, value: call.of(value) + 1)
        with pytest.raises(spillway.SpillwayError, match="would be wrong") as raised:
            loss.backward()
    assert raised.value.errno == errno.ESTALE
    model.zero_grad()
    fresh = copy.deepcopy(model)
    assert equal(train(fresh)[1], train(model, off)[1])
