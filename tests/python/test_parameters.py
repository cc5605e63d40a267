# SPDX-License-Identifier: MIT
# tests/python/test_parameters.py - parameters on drives: the same bits, whatever uses them
import contextlib
import copy
import errno
import functools
import gc
import io
import os
import pickle
import random
import sys
from typing import List, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import spillway
import spillway.torch
from conftest import SEED, emptied, make_store
from offloading import equal, gradients_of, offload_all
from spillway._params import materialize, offloaded_param
from spillway._params.parameters import Parameters, place_in
from spillway._params.residency import ABSENT, RESIDENT, Place

ABLE = materialize.storage_uses is not None
needs = pytest.mark.skipif(not ABLE, reason="this PyTorch counts no uses of storages: 2.1 does")
try:
    compiles = hasattr(torch, "compile") and torch.compile(lambda x: x, backend="eager")
except RuntimeError:  # this Python is too new for this PyTorch
    compiles = False
WIDTH = 160  # a matrix is 100 KiB
VOCABULARY = 120
LITTLE = 2 * 4 * WIDTH * WIDTH * 4  # bytes of the two largest parameters


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = self.query(self.norm(x)).chunk(3, -1)
        x = x + self.dropout(self.out((q @ k.transpose(-1, -2)).softmax(-1) @ v))
        return x + self.dropout(self.down(F.gelu(self.up(x))))


class GPT(nn.Module):
    """With a head that is the embedding."""

    def __init__(self, layers=4, dropout=0.1, recompute=False):
        super().__init__()
        self.recompute = recompute
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens):
        x = self.token(tokens)
        for block in self.blocks:
            if self.recompute:
                x = checkpoint(block, x, use_reentrant=self.recompute == "reentrant")
            else:
                x = block(x)
        return self.head(x)


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(VOCABULARY, (2, 17), generator=generator)


def loss_of(model, step):
    tokens = batch(step)
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def made(**options):
    torch.manual_seed(11)
    return GPT(**options)


def bytes_of(model):
    return sum(param.numel() * param.element_size() for param in model.parameters())


def assert_same(one, other):
    for (name, mine), yours in zip(one.named_parameters(), other.parameters()):
        assert torch.equal(mine.detach(), yours), name


def train(model, optimizer, steps, off=None, each=lambda: None):
    """Return: the losses.

    :param steps: of each the number of its batch, or those of its batches
    """
    losses = []
    for step in steps:
        for number in step if isinstance(step, tuple) else (step,):
            with off or contextlib.nullcontext():
                loss = loss_of(model, number)
                loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        each()
    return losses


def on_drives(store, model, limit=900 << 10, **options):
    """Four of the largest parameters in memory at most."""
    return offload_all(store, model, parameters=True, parameter_bytes=limit, **options)


def expect_the_same_steps(plain, ours, off):
    """Of models with parts of TorchScript, one of them on drives."""
    for model in (plain, ours):
        torch.manual_seed(12)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(3):
            # What its optimizer makes of a function changes with the calls in this process.
            with torch.jit.optimized_execution(False), \
                    off if model is ours else contextlib.nullcontext():
                model(torch.randn(8, WIDTH)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert off.parameter_stats().reads > 0
    assert_same(plain, ours)
    off.parameters_to_memory()


def over(store, model, **options):
    return spillway.torch.Optimizer(torch.optim.AdamW, model.named_parameters(), store, tile=20000,
                                    **options)


def absent(model):
    return [name for name, param in model.named_parameters()
            if place_in(param) is not None and place_in(param).state == ABSENT]


@pytest.mark.skipif(ABLE, reason="this PyTorch has what it takes")
def test_an_older_pytorch_is_refused_in_words(store):
    with pytest.raises(RuntimeError, match="parameters=True needs PyTorch 2.1"):
        spillway.torch.offload(made(), store, parameters=True)
    with pytest.raises(RuntimeError, match="materialize.. needs PyTorch 2.1"):
        spillway.torch.materialize(made, store)


@needs
@pytest.mark.parametrize("recompute", [False, True, "reentrant"],
                         ids=["saved", "again", "reentrant"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_bits_are_those_of_training_in_memory(store, recompute, accumulate):
    steps = [tuple(step * 8 + part for part in range(accumulate)) for step in range(4)]
    theirs = made(recompute=recompute)
    torch.manual_seed(3)
    losses = train(theirs, torch.optim.AdamW(theirs.parameters(), foreach=False), steps)
    ours = made(recompute=recompute)
    off = on_drives(store, ours)
    optimizer = over(store, ours)
    moved = []
    torch.manual_seed(3)
    assert train(ours, optimizer, steps, off, lambda: moved.append(absent(ours))) == losses
    assert all(moved)
    stats = off.parameter_stats()
    assert stats.total_bytes > 3 * stats.limit_bytes
    assert stats.memory_bytes <= stats.limit_bytes and stats.failures == 0
    assert stats.reads_ahead > stats.reads / 2
    assert_same(ours, theirs)
    off.parameters_to_memory()


@needs
@pytest.mark.parametrize("given, said", [(64 << 20, True), (900 << 10, False)])
def test_a_limit_that_holds_all_parameters_is_said(store, caplog, capsys, given, said):
    model = made()
    off = spillway.torch.offload(model, store, parameters=True,
                                 sizes=spillway.torch.Sizes(parameter_bytes=given))
    off.report()
    words = "parameters=True moves nothing: the "
    assert (words in caplog.text, words in capsys.readouterr().out) == (said, said)
    off.parameters_to_memory()


@needs
def test_where_nearly_all_fits_little_is_read(store):
    """A function of an optimizer uses a parameter several times on end: for the order of a step
    that is one use."""
    model, read = made(), []
    off = on_drives(store, model, bytes_of(model) - (200 << 10))
    optimizer = over(store, model, in_backward=True)
    train(model, optimizer, range(5), off,
          each=lambda: read.append(off.parameter_stats().bytes_read))
    assert 0 < read[-1] - read[-2] < off.parameter_stats().total_bytes / 2
    optimizer.close()
    off.parameters_to_memory()


@pytest.fixture
def tight(store):
    """A model, its parameters on drives, four of the largest in memory at most."""
    model = made()
    off = on_drives(store, model)
    assert absent(model)
    yield model, off
    off.parameters_to_memory()


@needs
def test_uses_between_steps_bring_them_in(tight):
    """Evaluation, generation, a state_dict, clipping, a norm, an optimizer of PyTorch."""
    ours, off = tight
    theirs = made()
    plain, other = (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
                    for model in (ours, theirs))
    for step in range(2):
        for model, optimizer in ((ours, plain), (theirs, other)):
            torch.manual_seed(step)
            with off if model is ours else torch.enable_grad():
                loss_of(model, step).backward()
            assert torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for param in model.parameters():
                    param.data.clamp_(-0.4, 0.4)  # which PyTorch does not count
                    param.mul_(0.99)
        for model in (ours, theirs):
            model.eval()
        with torch.no_grad():
            assert torch.equal(ours(batch(9)), theirs(batch(9)))
        for model in (ours, theirs):
            model.train()
        assert absent(ours)
        assert [float(one.norm()) for one in ours.parameters()] == \
            [float(one.norm()) for one in theirs.parameters()]
    state = ours.state_dict()
    assert equal(list(state.values()), list(theirs.state_dict().values()))
    assert not absent(ours)  # as long as they are referred to
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert equal(list(torch.load(file).values()), list(state.values()))
    del state
    assert off.parameter_stats().memory_bytes_over > 0
    again = pickle.loads(pickle.dumps(copy.deepcopy(ours)))
    assert_same(again, theirs)
    assert all(type(param) is nn.Parameter for param in again.parameters())
    assert_same(ours, theirs)
    assert absent(ours)


@needs
def test_a_view_of_a_parameter_stays_whole(tight):
    ours, off = tight
    weight = ours.blocks[0].up.weight
    rows = weight[3:5]
    number = weight.detach().numpy()[3, 7]
    for step in range(2):
        with off:
            loss_of(ours, step).backward()
    assert place_in(weight).state == RESIDENT
    assert rows[0, 7] == number
    rows.sum().backward()
    assert not place_in(weight).is_alone()
    del rows
    assert place_in(weight).is_alone()


@needs
def test_a_graph_that_was_made_outside_of_the_context(tight):
    """What it has saved comes in when it is used."""
    ours, off = tight
    theirs = made()
    for model in (ours, theirs):
        torch.manual_seed(1)
        loss = loss_of(model, 1) + sum((param * param).sum() for param in model.parameters())
        if model is ours:
            assert absent(ours)
        loss.backward()
    assert equal(gradients_of(ours), gradients_of(theirs))
    for model in (ours, theirs):
        torch.manual_seed(1)
        found = torch.autograd.grad(loss_of(model, 1), list(model.parameters()))
        last = found if model is ours else (last, found)
    assert equal(list(last[0]), list(last[1]))


@needs
def test_a_parameter_that_gets_other_memory(tight):
    ours, off = tight
    weight = ours.blocks[1].up.weight
    weight.data = torch.ones_like(weight)
    for step in range(2):
        with off:
            loss_of(ours, step).backward()
    assert bool((weight == 1).all())
    ours.double()
    assert weight.dtype is torch.float64
    theirs = made().double()
    theirs.blocks[1].up.weight.data = torch.ones_like(weight)
    assert_same(ours, theirs)


SWAPS = "swap_tensors" in dir(torch.utils)  # PyTorch 2.3


@needs
@pytest.mark.skipif(not SWAPS, reason="this PyTorch swaps no tensors")
def test_conversions_that_swap_tensors(store):
    """What a parameter becomes goes to the drives, too."""
    made_of = []
    for ours in (False, True):
        model = made(dropout=0.0)
        off = on_drives(store, model) if ours else contextlib.nullcontext()
        optimizer = (over(store, model) if ours else
                     torch.optim.AdamW(model.parameters(), foreach=False))
        values = []
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            for step in range(3):
                with off:
                    loss_of(model, step).backward()
                model.to("cpu")
                values.append([grad.clone() for grad in gradients_of(model)])
                optimizer.step()
                model.load_state_dict({name: param * 0.9
                                       for name, param in model.state_dict().items()})
                values.append([param.clone() for param in model.parameters()])
                model.zero_grad()
            torch.utils.swap_tensors(model.blocks[0].up.weight, model.blocks[1].up.weight)
            model.double()
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)
        values.append([param.clone() for param in model.parameters()])
        made_of.append(values)
        if ours:
            assert all(map(place_in, [param for name, param in model.named_parameters()
                                      if "weight" in name and "norm" not in name]))
            assert absent(model)
            optimizer.close()
            off.parameters_to_memory()
    assert all(map(equal, *made_of))


@needs
def test_a_parameter_of_a_parameter(tight):
    """It has the same memory, as in PyTorch."""
    ours, off = tight
    weight = ours.blocks[1].up.weight
    other = nn.Parameter(weight)
    assert isinstance(other, nn.Parameter) and other.is_leaf and other.requires_grad
    with torch.no_grad():
        other.mul_(2)
    for step in range(2):
        with off:
            loss_of(ours, step).backward()
    assert torch.equal(other, weight)
    assert torch.equal(other, made().blocks[1].up.weight * 2)
    assert type(weight.detach()) is torch.Tensor


@needs
def test_transforms_of_functions_of_parameters(tight):
    """They wrap their arguments, whose bytes stay for as long."""
    found = []
    for model in (tight[0], made()):
        model.eval()

        def loss(params):
            return F.cross_entropy(torch.func.functional_call(model, params, (batch(1),))
                                   .flatten(0, 1), batch(1).flatten())

        params = dict(model.named_parameters())
        ones = {name: torch.ones_like(param) for name, param in params.items()}
        gradients = torch.func.grad(loss)(params)
        rows = torch.func.vmap(lambda row: row.sum())(model.blocks[0].up.weight)
        found.append([*gradients.values(), rows, *torch.func.jvp(loss, (params,), (ones,))])
    assert equal(*found)
    del found, gradients, rows
    with tight[1]:
        loss_of(tight[0], 1).backward()
    assert absent(tight[0])


def bring_in_others(model, *params):
    """So that these parameters are on the drives alone."""
    for other in model.parameters():
        if all(other is not param for param in params):
            other.sum()
    assert all(place_in(param).state == ABSENT for param in params)


class Several(list):
    pass


class Pair(NamedTuple):
    one: torch.Tensor
    other: torch.Tensor


@needs
@pytest.mark.parametrize("kind", [Several, Pair._make], ids=["list", "tuple"])
def test_containers_of_a_class_of_their_own(tight, kind):
    """As torch.fx and named tuples are."""
    weights, others = ([block.up.weight for block in model.blocks[:2]]
                       for model in (tight[0], made()))
    bring_in_others(tight[0], *weights)
    assert torch.equal(torch.cat(kind(weights)), torch.cat(kind(others)))


@needs
@pytest.mark.skipif(not hasattr(torch, "jagged"), reason="this PyTorch has no jagged tensors")
def test_jagged_tensors_and_parameters(tight):
    """Their class is asked before that of a parameter after them."""
    found = []
    for model in (tight[0], made()):
        with tight[1] if model is tight[0] else contextlib.nullcontext():
            x = torch.nested.nested_tensor([torch.ones(3, WIDTH), torch.ones(5, WIDTH)],
                                           layout=torch.jagged)
            for block in model.blocks:
                x = block.down(F.gelu(block.up(x)))
            loss = x.values().pow(2).sum()
            loss.backward()
        found.append([loss.detach(), *gradients_of(model)])
    assert equal(*found)
    assert absent(tight[0])


class Doubled(torch.Tensor):
    """A linear layer makes twice as much of it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs)
        return result * 2 if func is F.linear and result is not NotImplemented else result


@needs
def test_classes_of_other_arguments_are_asked(tight):
    x = torch.ones(3, WIDTH).as_subclass(Doubled)
    one, other = (model.blocks[0].up(x) for model in (tight[0], made()))
    assert type(one) is type(other) is Doubled
    assert torch.equal(one.as_subclass(torch.Tensor), other.as_subclass(torch.Tensor))


@needs
def test_gradients_of_parameters_that_are_not_used(tight):
    found = []
    for model in (tight[0], made()):
        with tight[1] if model is tight[0] else contextlib.nullcontext():
            loss = model.blocks[0].up(torch.ones(2, WIDTH)).pow(2).sum()
            found.append(list(torch.autograd.grad(loss, list(model.parameters()),
                                                  materialize_grads=True)))
    assert equal(*found)


@needs
def test_memory_that_is_exported_stays(tight):
    """By DLPack: who gets it does not count among those who have the parameter's memory."""
    ours, off = tight
    weight = ours.blocks[0].up.weight.requires_grad_(False)
    other = torch.from_dlpack(weight)
    for step in range(2):
        with off:
            loss_of(ours, step).backward()
    assert place_in(weight).state == RESIDENT and absent(ours)
    assert torch.equal(other, made().blocks[0].up.weight)


@needs
def test_modules_choose_as_with_parameters_in_memory(store):
    """Their fast paths in evaluation, whose last bits are others."""
    def made_of_modules():
        torch.manual_seed(3)
        return nn.ModuleList([nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True),
                              nn.MultiheadAttention(WIDTH, 4, batch_first=True)]).eval()

    ours, theirs = made_of_modules(), made_of_modules()
    off = on_drives(store, ours)
    x = torch.randn(2, 7, WIDTH)
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(ours[0](x), theirs[0](x))
            assert torch.equal(ours[1](x, x, x)[0], theirs[1](x, x, x)[0])
    assert off.parameter_stats().reads > 0
    off.parameters_to_memory()


@needs
def test_modules_compile_as_before(store):
    """TorchScript, after a parameter has been on drives: it looks up by identity the function of
    PyTorch that fast paths ask."""
    off = on_drives(store, made())
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True).eval()
    x = torch.randn(2, 7, WIDTH)
    assert torch.equal(torch.jit.script(layer)(x), layer(x))
    off.parameters_to_memory()


def scripted(part):
    return torch.jit.script(part)


def traced(part):
    return torch.jit.trace(part, torch.randn(2, WIDTH))


def loaded(part):
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(part), file)
    file.seek(0)
    return torch.jit.load(file)


@needs
@pytest.mark.parametrize("convert, how", [(scripted, "offload"), (traced, "offload"),
                                          (loaded, "offload"), (scripted, "materialize"),
                                          (traced, "materialize"), (loaded, "materialize")])
def test_parameters_of_torchscript_stay_in_memory(store, convert, how):
    """What runs it asks no class of parameters for their bytes."""
    def made_with_parts():
        torch.manual_seed(11)
        return nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH),
            convert(nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(),
                                  nn.Linear(4 * WIDTH, WIDTH))),
            nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH))

    plain = made_with_parts()
    ours = (made_with_parts() if how == "offload" else
            spillway.torch.materialize(made_with_parts, store))
    off = on_drives(store, ours)
    names = {name for name, param in ours.named_parameters() if place_in(param) is not None}
    assert names == {"0.weight", "2.weight", "4.weight", "5.weight"}
    expect_the_same_steps(plain, ours, off)


@needs
@pytest.mark.parametrize("convert", [scripted, traced])
def test_a_model_on_drives_becomes_torchscript(store, convert):
    """What it becomes has the same parameters, so it is trained further with the model."""
    torch.manual_seed(11)
    plain = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))
    ours = copy.deepcopy(plain)
    off = on_drives(store, ours, 200 << 10)
    part, our_part = convert(plain[2:]), convert(ours[2:])
    names = {name for name, param in ours.named_parameters() if place_in(param) is not None}
    assert names == {"0.weight", "1.weight"}
    expect_the_same_steps(plain, ours, off)
    x = torch.randn(2, WIDTH)
    with torch.no_grad():
        assert torch.equal(part(x), our_part(x))


class OfFunctions(nn.Module):
    """Its layers are functions of TorchScript, which are given parameters."""

    def __init__(self):
        super().__init__()
        self.matrices = nn.ParameterList(nn.Parameter(torch.randn(WIDTH, WIDTH) / 12)
                                         for _ in range(7))

    def forward(self, x):
        *layers, one, two, three = self.matrices
        for weight in layers:
            x = SCRIPTED(x, weight)
        return ONE_OF_A_LIST([one, two], x=TRACED(x, three))


def by_matrix(x, weight):
    return (x @ weight).tanh()


def by_first(weights: List[torch.Tensor], x: torch.Tensor):
    return x @ weights[0] + x @ weights[1]


SCRIPTED, ONE_OF_A_LIST = torch.jit.script(by_matrix), torch.jit.script(by_first)
TRACED = torch.jit.trace(by_matrix, (torch.randn(2, WIDTH), torch.randn(WIDTH, WIDTH)))


@needs
def test_functions_of_torchscript_get_parameters(store):
    torch.manual_seed(11)
    plain = OfFunctions()
    ours = copy.deepcopy(plain)
    off = on_drives(store, ours, 250 << 10)
    expect_the_same_steps(plain, ours, off)


@needs
def test_parameters_shared_between_processes_stay_in_memory(store):
    """PyTorch cannot resize such a storage again: its process would end."""
    plain = made()
    expected = train(plain, torch.optim.SGD(plain.parameters(), 0.01), range(6))
    model = made()
    with on_drives(store, model) as off:
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        found = train(model, optimizer, range(2), off)
        model.share_memory()
        assert all(param.is_shared() for param in model.parameters())
        found += train(model, optimizer, range(2, 4), off)
        written = off.parameter_stats().bytes_written
        found += train(model, optimizer, range(4, 6), off)
        assert off.parameter_stats().bytes_written == written
        assert found == expected and not absent(model)
        assert_same(model, plain)
        first = next(model.parameters())
        memory = first.detach().numpy()
        child = os.fork()
        if child == 0:
            memory[...] = 0
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0 and not first.any()
        del memory
        off.parameters_to_memory()


@needs
def test_a_change_after_it_was_saved_raises_as_in_pytorch(tight):
    ours, off = tight
    with off:
        loss = loss_of(ours, 0)
        with torch.no_grad():
            ours.blocks[0].up.weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


class Whole(GPT):
    """One checkpoint around all blocks."""

    def forward(self, tokens):
        return self.head(checkpoint(nn.Sequential(*self.blocks), self.token(tokens),
                                    use_reentrant=False))


def in_place(model, step):
    with torch.no_grad():
        model.blocks[1].down.weight.mul_(1.5)


def exchanged(model, step):
    one, other = model.blocks[0].up, model.blocks[2].up
    one.weight, other.weight = other.weight, one.weight


def of_a_function(model, step):
    """Its parameters are the module's during the forward pass only."""
    names = [name for name, _ in model.named_parameters()]
    of_others = {name: dict(model.named_parameters())[name.replace("blocks.0", "blocks.3")]
                 for name in names}

    class Call(nn.Module):
        def forward(self, tokens):
            return torch.func.functional_call(model, of_others, (tokens,))

    return loss_of(Call(), step)


def under_mutations(model, step):
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        loss = loss_of(model, step)
        in_place(model, step)
        loss.backward()


def in_half(model, step):
    """Hooks that change what they save: of others, or of the program."""
    with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: tensor.bfloat16() if tensor.is_floating_point() else tensor,
            lambda packed: packed.float() if packed.is_floating_point() else packed):
        return loss_of(model, step)


@needs
@pytest.mark.parametrize("build, loss, change", [
    (functools.partial(GPT, recompute=True), loss_of, in_place),
    (functools.partial(GPT, recompute=True), loss_of, exchanged),
    (functools.partial(GPT, recompute=True), of_a_function, None),
    (Whole, loss_of, in_place), (GPT, under_mutations, None), (GPT, in_half, None)],
    ids=["checkpoint, in place", "checkpoint, exchanged", "checkpoint, functional_call",
         "checkpoint of all", "allowed", "hooks that round"])
def test_hooks_of_others_see_parameters(store, build, loss, change):
    """A checkpoint's second run uses what is there then. Nothing holds all that it saves."""
    gradients = []
    for ours in (False, True):
        torch.manual_seed(11)
        model = build(dropout=0.0)
        off = on_drives(store, model) if ours else torch.enable_grad()
        for step in range(3):
            with off:
                found = loss(model, step)
                if change is not None:
                    change(model, step)
                if found is not None:
                    found.backward()
            gradients.append([None if grad is None else grad.clone()
                              for grad in gradients_of(model)])
            with torch.no_grad():
                for param in model.parameters():
                    param.sub_(0 if param.grad is None else param.grad * 0.1)
            model.zero_grad()
        if ours:
            stats = off.parameter_stats()
            keeps = loss is under_mutations  # what PyTorch may have to clone
            assert stats.reads > 0 and bool(stats.memory_bytes_over) == keeps, stats
            off.parameters_to_memory()
    assert all(map(equal, gradients[:3], gradients[3:]))


@needs
@pytest.mark.skipif(not compiles, reason="no torch.compile, or not with this Python")
@pytest.mark.parametrize("how", ["a layer", "the model", "a function"])
def test_what_is_compiled_afterwards_uses_them(store, how):
    """What is traced has stand-ins for parameters, which are not taken for other memory of them."""
    def compiled(function):
        return torch.compile(function, backend="eager")

    plain, ours = made(dropout=0.0, layers=2), made(dropout=0.0, layers=2)
    off = on_drives(store, ours)
    by_weight = compiled(lambda x, weight: (x @ weight.t()).tanh())
    for model in (plain, ours):
        run = compiled(model) if how == "the model" else model
        if how == "a layer":
            model.blocks[0].forward = compiled(model.blocks[0].forward)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(3):
            with off if model is ours else contextlib.nullcontext():
                loss = loss_of(run, step)
                if how == "a function":
                    loss = loss + by_weight(torch.ones(3, WIDTH), model.blocks[1].up.weight).sum()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert off.parameter_stats().reads > 0
    assert all(map(place_in, [block.up.weight for block in ours.blocks]))
    assert_same(plain, ours)
    off.parameters_to_memory()


@needs
def test_they_come_back_to_memory(tight):
    ours, off = tight
    off.parameters_to_memory()
    assert all(type(param) is nn.Parameter for param in ours.parameters())
    assert_same(ours, made())
    assert off.parameter_stats() is None
    with off:
        loss_of(ours, 0).backward()


@needs
def test_what_does_not_fit_is_said_before_the_first_step(store):
    model = made()
    with pytest.raises(ValueError, match="too few by 319200: the largest parameter, "
                                         "blocks.0.up.weight, has 400.0 KiB"):
        spillway.torch.offload(model, store, parameters=True,
                               sizes=spillway.torch.Sizes(parameter_bytes=500_000))
    assert all(type(param) is nn.Parameter for param in model.parameters())
    with pytest.raises(ValueError, match="parameter_bytes must"):
        spillway.torch.offload(model, store, sizes=spillway.torch.Sizes(parameter_bytes=1 << 20))
    with pytest.raises(TypeError, match="needs an open store"):
        spillway.torch.offload(model, None, mode="observe", parameters=True)
    with pytest.raises(ValueError, match="has no values yet"):
        spillway.torch.offload(nn.LazyLinear(3), store, parameters=True)
    with pytest.raises(ValueError, match="is compiled"):
        compiled = made()
        compiled.compile()
        spillway.torch.offload(compiled, store, parameters=True)


@needs
def test_a_store_that_is_too_small(folder):
    drives = make_store(folder, 1, 20 << 20, "small")
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(6)))
    with spillway.Store(drives) as store:
        with pytest.raises(spillway.SpillwayError, match="too small by [0-9]+ bytes") as caught:
            spillway.torch.offload(model, store, parameters=True)
        assert caught.value.errno == errno.ENOSPC


@needs
def test_after_the_store_is_closed_words_say_which_parameter(formatted):
    model = made()
    with spillway.Store(formatted) as store:
        on_drives(store, model)
        names = absent(model)
    with pytest.raises(spillway.SpillwayError, match="was on the drives of a store that is closed"):
        dict(model.named_parameters())[names[0]].norm()
    with spillway.Store(formatted, checksums=False) as store:
        with pytest.raises(ValueError, match="checksums"):
            spillway.torch.offload(made(), store, parameters=True)


@needs
def test_materialize_makes_the_same_model_in_little_memory(store):
    torch.manual_seed(11)
    ours = spillway.torch.materialize(lambda: GPT(8), store, parameter_bytes=900 << 10)
    after = torch.rand(1)
    owner = place_in(ours.head.weight).owner
    stats = owner.stats()
    assert stats.memory_bytes_max <= 900 << 10 and stats.total_bytes > 5 * (900 << 10)
    assert place_in(ours.head.weight) is place_in(ours.token.weight)
    torch.manual_seed(11)
    theirs = GPT(8)
    assert torch.equal(after, torch.rand(1))
    assert_same(ours, theirs)
    off = on_drives(store, ours)
    stats = off.parameter_stats()
    assert stats.memory_bytes_over == 0, stats
    for model in (ours, theirs):
        torch.manual_seed(1)
        with off if model is ours else torch.enable_grad():
            loss_of(model, 1).backward()
    assert equal(gradients_of(ours), gradients_of(theirs))
    del off, ours
    gc.collect()
    assert emptied(store)
    with pytest.raises(TypeError, match="must return a torch.nn.Module"):
        spillway.torch.materialize(lambda: 3, store)
    with pytest.raises(TypeError, match="takes a function"):
        spillway.torch.materialize(made(), store)
    for device in "meta", "no such":  # before anything is made
        with pytest.raises(RuntimeError, match="PyTorch has no torch.meta|nvalid device|of device"):
            spillway.torch.materialize(lambda: pytest.fail("made"), store, device=device)
    torch.manual_seed(11)
    assert_same(spillway.torch.materialize(lambda: GPT(8), store, device="cpu"), theirs)


class Interrupt:
    """Raises at one line of what moves parameters, as Ctrl-C does. (Not where PyTorch's own guards
    are left: no signal is handled there.)"""

    FILES = "_params/residency.py", "_params/parameters.py"

    def __init__(self, place, inside=None):
        self.left = place
        self.outside_of = inside  # a function, from which on lines count

    def __call__(self, frame, event, _):
        code = frame.f_code
        if code.co_name == self.outside_of:
            self.outside_of = None
        if self.outside_of is not None:
            return None
        if not code.co_filename.endswith(self.FILES) or code.co_name in ("__del__", "gone"):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


@needs
def test_an_interrupt_loses_nothing(tight):
    """Wherever it comes: the next step has the same numbers."""
    ours, off = tight
    theirs = made()
    torch.manual_seed(1)
    loss_of(theirs, 1).backward()
    random_ = random.Random(SEED)
    lines = Interrupt(1 << 40)

    def step(interrupt=None):
        ours.zero_grad()
        torch.manual_seed(1)
        try:
            sys.settrace(interrupt)
            with off:
                loss_of(ours, 1).backward()
        finally:
            sys.settrace(None)

    step(lines)
    lines = (1 << 40) - lines.left
    for _ in range(15):
        with pytest.raises((KeyboardInterrupt, RuntimeError, SystemError)):
            step(Interrupt(random_.randint(1, lines // 2)))
        if off._active:
            off.__exit__(None, None, None)
        step()
        assert equal(gradients_of(ours), gradients_of(theirs))
    stats, places = off.parameter_stats(), off._parameters.places
    assert stats.memory_bytes == sum(place.storage.nbytes() for place in places)
    assert stats.memory_bytes <= stats.limit_bytes, "what was in use when Ctrl-C came leaves again"
    assert not any(place.held for place in places)
    assert_same(ours, theirs)


@needs
def test_an_interrupt_while_what_was_saved_goes(tight, monkeypatch):
    """At any line of Python that runs then: none too many are counted, with which memory would be
    emptied that something else has."""
    ours, _ = tight
    place = place_in(ours.blocks[0].up.weight)
    saved = [offloaded_param.Saved(place, ours.blocks[0].up.weight.t())]
    files = "_params/offloaded_param.py", "_params/residency.py"

    def interrupt(frame, event, _):
        if frame.f_code.co_filename.endswith(files):
            raise KeyboardInterrupt

    other = ours.blocks[0].up.weight.detach()
    assert not place.is_alone()
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # it keeps nothing
    try:
        sys.settrace(interrupt)
        saved.clear()
    finally:
        sys.settrace(None)
    assert not place.is_alone()
    del other
    assert place.is_alone()


@needs
def test_an_interrupt_while_memory_is_exchanged(store):
    """At every line of it: what is counted is what is there."""
    line, done = 0, False
    while not done:
        line += 1
        model = made(layers=1)
        off = on_drives(store, model)
        parameters, param = off._parameters, model.blocks[0].up.weight
        value = param.detach().clone()
        try:
            sys.settrace(Interrupt(line, inside="moved"))
            param.data = value
            done = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        places = parameters.places
        there = sum(place.length for place in places if place.storage.nbytes())
        assert parameters.memory_bytes == there, f"line {line}"
        assert torch.equal(param, value), f"line {line}"
        off.parameters_to_memory()
    assert line > 20


@needs
@pytest.mark.parametrize("recompute", [lambda name, module: True, "auto", "operations"],
                         ids=["asked for", "auto", "operations"])
def test_what_is_computed_again_holds_no_parameters(store, recompute):
    """In the backward pass a scope's forward function runs without its module's hooks. Neither that
    nor the step in which it is tried takes more memory than two parameters."""
    ours, theirs = made(dropout=0.0), made(dropout=0.0)
    off = on_drives(store, ours, limit=LITTLE, mode="fastest", recompute=recompute)
    off._session.discards_all = True
    for step in range(6):
        for model in (ours, theirs):
            model.zero_grad()
            with off if model is ours else torch.enable_grad():
                loss_of(model, step).backward()
        assert equal(gradients_of(ours), gradients_of(theirs))
    assert off.stats().tensors_given_up > 0
    stats = off.parameter_stats()
    assert stats.memory_bytes_over == 0, stats
    off.parameters_to_memory()


@needs
def test_what_comes_ahead_of_its_use_leaves_for_another(store, monkeypatch):
    """Of drives that are slow, where the next use is not the one that was expected."""
    monkeypatch.setattr(Place, "has_ended", lambda place: not place.request.value)
    params = [nn.Parameter(torch.full((WIDTH, WIDTH), float(number))) for number in range(5)]
    owner = Parameters(store, 2 * WIDTH * WIDTH * 4)
    for number, param in enumerate(params):
        assert owner.adopt(param, str(number))
    owner.expect([place_in(param) for param in params])
    for one, other in (0, 3), (1, 4), (2, 0):
        assert bool((params[one] == one).all())  # the next one is coming
        assert bool((params[one] + params[other] == one + other).all())
    stats = owner.stats()
    assert stats.reads_ahead > 0 and stats.memory_bytes_over == 0, stats
    owner.to_memory()
