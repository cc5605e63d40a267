# SPDX-License-Identifier: MIT
# tests/python/test_optimizer.py - an optimizer over records computes what PyTorch's does
"""Over records in plain memory (fake_state.py), which are overwritten when they are released."""
import copy
import errno
import gc
import random
import warnings
import weakref

import pytest
import torch

import spillway
import spillway.torch
from conftest import SEED
from fake_state import FakeStore
from pairs import (SHAPES, Pair, assert_same, each_class, give_grads, made, needs_hooks, of, over,
                   pair_of, reference)
from spillway._optim.tile_step import MASTER
from spillway._optim.layout import lay_out
from spillway._optim.tiles import Field, Laid

pytestmark = pytest.mark.usefixtures("fake_state")


def pair_with(shapes=SHAPES, name="AdamW", dtype=torch.float32, **options):
    return pair_of(*made(shapes, dtype), cls=getattr(torch.optim, name), **options)


# ---- The same numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [997, 20001, None])
@each_class
def test_bits_are_those_of_the_class(name, options, tile):
    pair = pair_with(name=name, tile=tile, **options)
    pair.train(5, none=0.3)
    pair.same_state()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_types_and_threads(dtype, threads):
    torch.set_num_threads(threads)  # conftest.py sets it back
    pair_with(((70001,), (65537, 2), (3,)), dtype=dtype, tile=50001).train(3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each_class
def test_masters_are_float32(name, options, dtype):
    pair = pair_with(((5, 77), (3,), (3001,)), name, dtype, tile=333, masters=True, **options)
    pair.train(5, none=0.3)
    state = of(pair.optimizer)["state"]
    for number, entry in state.items():
        if "master" in entry:
            assert_same(entry.pop("master"), pair.plain.masters[number].detach())
    assert_same({key: entry for key, entry in state.items() if entry}, of(pair.plain)["state"])


def test_groups_of_several_types_and_options():
    ours, theirs = made(((40, 5), (11,), (90,), (3, 3)))
    for params in (ours, theirs):
        params[1].data = params[1].data.double()
    options = [{"lr": 0.1}, {"betas": (0.5, 0.6), "weight_decay": 0.5}]
    groups = [[{"params": params[:2], **options[0]}, {"params": params[2:], **options[1]}]
              for params in (ours, theirs)]
    pair = Pair(ours, theirs, over(groups[0], torch.optim.Adam, tile=64),
                torch.optim.Adam(groups[1], foreach=False))
    pair.train(4)
    pair.same_state()


@pytest.mark.parametrize("flat", [False, True])
def test_distributed_checkpoints_take_the_state_as_it_is(flat):
    """They make a step of zeros where an optimizer says that it has none; and look up the names of
    what a parameter has, where all states are in one dictionary."""
    dcp = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    if flat and "flatten_optimizer_state_dict" not in dcp.StateDictOptions.__dataclass_fields__:
        pytest.skip("this PyTorch's are never flat")
    options = dcp.StateDictOptions(**({"flatten_optimizer_state_dict": True} if flat else {}))
    pair = pair_with(((5, 7), (300,)))
    models = [torch.nn.ParameterList(params) for params in (pair.ours, pair.theirs)]

    def saved():
        ours, theirs = (dcp.get_state_dict(model, optimizer, options=options)
                        for model, optimizer in zip(models, (pair.optimizer, pair.plain)))
        assert_same(ours[0], theirs[0])
        if flat:
            assert_same(*({name: value for name, value in state.items()
                           if name.startswith("state.")} for _, state in (ours, theirs)))
        else:
            assert_same(ours[1]["state"], theirs[1]["state"])
        return ours, theirs

    saved()
    pair.train(2)
    for params in models:
        params.zero_grad()
    before = copy.deepcopy(saved())
    pair.train(2)
    for model, optimizer, (params, state) in zip(models, (pair.optimizer, pair.plain), before):
        model.zero_grad()
        dcp.set_state_dict(model, optimizer, model_state_dict=params, optim_state_dict=state,
                           options=options)
    saved()
    pair.train(2)
    pair.same_state()


def test_what_is_asked_of_the_state_keeps_no_optimizer():
    """Its memory and what it has on the drives go with it, without a collection of garbage."""
    pair = pair_with(((5, 7), (300,)))
    pair.train(1)
    state, kept = pair.optimizer.state, weakref.ref(pair.optimizer)
    assert state
    gc.disable()
    try:
        del pair
        assert kept() is None and not state
    finally:
        gc.enable()


def test_state_that_is_on_drives_is_not_looked_for_in_vain():
    pair = pair_with(((5, 7), (300,)))
    ours, param = pair.optimizer, pair.ours[0]
    assert not ours.state and param not in ours.state and ours.state.get(param) is None
    pair.train(2)
    assert ours.state and param in ours.state and list(ours.state.items()) == []
    assert list(ours.state[param]) == list(pair.plain.state[pair.theirs[0]])
    for wrong in (lambda: ours.state[param]["step"], lambda: ours.state[torch.ones(2)],
                  lambda: ours.state.get(param).items(), ours.state[param].clear, ours.state.clear,
                  lambda: ours.state.pop(param), lambda: ours.state.update({param: {}}),
                  lambda: ours.state.__setitem__(param, {}), lambda: setattr(ours, "state", {})):
        with raises(RuntimeError, "state is on drives"):
            wrong()
    pair.train(2)
    ours.load_state_dict({**ours.state_dict(), "state": {}})
    pair.plain.state.clear()
    assert not ours.state
    pair.train(2)
    pair.same_state()


def test_layouts_that_are_not_flat():
    values = torch.randn(6, 5), torch.randn(2, 3, 4, 5), torch.randn(200, 300)
    ours, theirs = [[torch.nn.Parameter(values[0].t().contiguous().t()),
                     torch.nn.Parameter(values[1].to(memory_format=torch.channels_last)),
                     torch.nn.Parameter(values[2].clone())] for _ in range(2)]
    assert not ours[0].is_contiguous()
    pair = pair_of(ours, theirs, tile=17000)
    for _ in range(3):
        pair.give_grads()
        ours[2].grad = torch.randn(300, 200).t()
        theirs[2].grad = ours[2].grad.clone()
        assert not ours[2].grad.is_contiguous()
        pair.step()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("masters", [False, True])
def test_parameters_of_a_gpu_are_stepped_on_the_host(masters):
    dtype = torch.bfloat16 if masters else torch.float32
    ours, theirs = made(dtype=dtype)
    ours = [torch.nn.Parameter(param.detach().cuda()) for param in ours]
    store = FakeStore()
    tiled, plain = (over(params, store=store, tile=20001, masters=masters)
                    for params, store in ((ours, store), (theirs, FakeStore())))
    for _ in range(4):
        give_grads(ours, theirs, none=0.3)
        tiled.step()
        plain.step()
    assert_same([param.cpu() for param in ours], [param.detach() for param in theirs])
    tiled.commit()
    tiled.close()
    others = [torch.nn.Parameter(torch.zeros_like(param)) for param in ours]
    again = over(others, store=store, tile=20001, masters=masters)
    assert again.resume().step == 4
    assert_same([param.cpu() for param in others], [param.cpu() for param in ours])
    give_grads(others, theirs)
    again.step()
    plain.step()
    assert_same([param.cpu() for param in others], [param.detach() for param in theirs])


class Sets(torch.optim.SGD):
    """Does not write into the memory of a parameter, but gives it another."""

    @torch.no_grad()
    def step(self):
        for param in self.param_groups[0]["params"]:
            param.data = param - self.param_groups[0]["lr"] * param.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_class_that_sets_data_steps_the_parameter(dtype):
    ours, _ = made(((20000,), (3,)), dtype)
    expected = [(param - 0.5).detach() for param in ours]
    tiled = over(ours, Sets, lr=0.5, masters=dtype is torch.bfloat16)
    for param in ours:
        param.grad = torch.ones_like(param)
    tiled.step()
    assert_same([param.detach() for param in ours], expected)


def test_what_autograd_saved_is_known_to_have_changed():
    param = torch.nn.Parameter(torch.randn(20000))
    tiled = spillway.torch.Optimizer(torch.optim.SGD, [param], FakeStore(), lr=0.1, momentum=0.9)
    loss = (param * param).sum()
    param.grad = torch.ones(20000)
    tiled.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# ---- As torch.optim has it -----------------------------------------------------------------------


def test_a_scheduler_a_closure_and_hooks():
    pair = pair_with(((30,), (4, 4)), "SGD", lr=0.5, momentum=0.9)
    tiled, plain = pair.optimizers
    assert isinstance(tiled, torch.optim.Optimizer)
    schedulers = [torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=9)
                  for optimizer in pair.optimizers]
    calls = []
    if hasattr(tiled, "register_step_post_hook"):
        tiled.register_step_post_hook(lambda *_: calls.append(1))
    for _ in range(5):
        losses = []
        for params, optimizer in pair:
            def closure():
                optimizer.zero_grad()
                loss = sum((param * param).sum() for param in params)
                loss.backward()
                return loss

            losses.append(optimizer.step(closure).item())
        assert losses[0] == losses[1]
        for scheduler in schedulers:
            scheduler.step()
    pair.same()
    assert tiled.param_groups[0]["lr"] == plain.param_groups[0]["lr"] != 0.5
    assert len(calls) in (0, 5)


def test_hooks_of_all_optimizers_hear_whole_steps_only():
    optimizer_module = pytest.importorskip("torch.optim.optimizer")
    register = getattr(optimizer_module, "register_optimizer_step_pre_hook", None)
    if register is None:
        pytest.skip("this PyTorch has none")
    ours, _ = made(((100,), (100,)))
    tiled = over(ours, tile=50)
    heard = []
    handle = register(lambda optimizer, *_: heard.append(optimizer))
    try:
        give_grads(ours)
        tiled.step()
    finally:
        handle.remove()
    assert heard == [tiled]


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="no scaler of the host")
def test_a_scaler_skips_what_overflowed():
    pair = pair_with(((30,), (4, 4)))
    scalers = [torch.amp.GradScaler("cpu", init_scale=4.0) for _ in range(2)]
    for step in range(4):
        for scaler, (params, optimizer) in zip(scalers, pair):
            optimizer.zero_grad()
            scaler.scale(sum((param * param).sum() for param in params)).backward()
            if step == 2:
                params[0].grad[3] = float("inf")
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            scaler.step(optimizer)
            scaler.update()
    pair.same()
    assert pair.optimizer.steps == 3
    assert scalers[0].get_scale() == scalers[1].get_scale() == 2.0


@each_class
def test_state_dicts_both_ways(name, options):
    """Into PyTorch's and out of it, and on with the same numbers."""
    pair = pair_with(name=name, tile=997, **options)
    pair.train(2, none=0.3)
    pair.optimizer.close()
    options = {**options, "lr": 0.5}
    new = Pair(pair.theirs, pair.ours,
               over(pair.theirs, getattr(torch.optim, name), tile=2001, **options),
               reference(name, pair.ours, options))
    loaded = pair.plain.state_dict()
    kept = copy.deepcopy(loaded)
    new.optimizer.load_state_dict(loaded)
    assert_same(loaded, kept)
    # the first is closed: its state_dict was not asked for before, so from the plain one
    new.plain.load_state_dict(new.optimizer.state_dict())
    assert new.optimizer.param_groups[0]["lr"] == pair.plain.param_groups[0]["lr"]
    new.train(3, none=0.3)
    new.same_state()


def test_state_of_parameters_that_never_had_a_gradient():
    """Adagrad's own has it from the beginning, and steps nothing that has none."""
    pair = pair_with(((40, 5), (11,)), "Adagrad", initial_accumulator_value=0.1)
    give_grads(pair.ours[:1], pair.theirs[:1])
    pair.step()
    pair.same_state()
    for optimizer in reversed(pair.optimizers):
        optimizer.load_state_dict(pair.optimizer.state_dict())
    pair.train(1)
    pair.same_state()


@pytest.mark.parametrize("masters", [True, "compact"])
def test_a_state_dict_with_masters_comes_back(masters):
    ours, others = made(((5, 77), (3,)), torch.bfloat16)
    tiled, again = (over(params, masters=masters, tile=100) for params in (ours, others))
    for _ in range(3):
        give_grads(ours)
        tiled.step()
    with torch.no_grad():
        for mine, yours in zip(ours, others):
            yours.copy_(mine)
    again.load_state_dict(tiled.state_dict())
    both = Pair(ours, others, tiled, again)
    both.train(2)
    both.same_state()


def test_hooks_of_state_dicts():
    ours, _ = made(((30,),))
    tiled = over(ours)
    if not hasattr(tiled, "register_load_state_dict_pre_hook"):
        pytest.skip("this PyTorch has none")
    heard = []
    tiled.register_state_dict_post_hook(lambda _, content: heard.append(len(content["state"])))
    tiled.register_load_state_dict_pre_hook(lambda *_: heard.append("before"))
    tiled.register_load_state_dict_post_hook(lambda *_: heard.append("after"))
    give_grads(ours)
    tiled.step()
    tiled.load_state_dict(tiled.state_dict())
    assert heard == [1, "before", "after"]


def test_named_parameters():
    model = torch.nn.Linear(3, 2)
    tiled = over(model.named_parameters())
    give_grads(list(model.parameters()))
    tiled.step()
    state = tiled._tiled.records.state
    assert b'"weight"' in state.shapes[0] and b'"bias"' in state.shapes[0]


# ---- Records -------------------------------------------------------------------------------------


def test_passes_go_up_and_down_and_leave_out_what_has_no_gradient():
    ours, _ = made(((100,), (100,), (100,)))
    tiled = over(ours, tile=100)
    give_grads(ours)
    tiled.step()
    tiled.step()
    ours[1].grad = None
    tiled.step()
    assert tiled._tiled.records.state.orders == [[0, 1, 2], [2, 1, 0], [0, 2]]


def test_a_record_is_all_fields_of_a_run_and_fields_are_aligned():
    ours, _ = made(((100,), (31,)))
    tiled = over(ours, amsgrad=True, tile=70)
    tiles = tiled._tiled.records.layout.tiles
    assert [tile.count for tile in tiles] == [70, 61]
    for tile in tiles:
        assert [field.name for field in tile.fields] == ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]
        assert all(offset % 64 == 0 for offset in tile.offsets)
        assert tile.len_bytes >= 3 * 4 * tile.count
    covered = [(piece.parameter, index) for tile in tiles for piece in tile.pieces
               for index in range(piece.start, piece.stop)]
    assert covered == [(0, index) for index in range(100)] + [(1, index) for index in range(31)]


def laid_out(count, memory=None):
    """AdamW's, of @count float32 parameters."""
    fields = tuple(Field(name, torch.float32) for name in ("exp_avg", "exp_avg_sq"))
    laid = [[Laid(0, "weight", (count,), torch.float32)]]
    return lay_out(laid, lambda group, dtype: fields, MASTER, None, memory, 0, {})


def test_memory_is_2_percent_or_four_tiles():
    layout = laid_out(500 << 20)
    assert layout.state_bytes == 4000 << 20
    assert layout.memory_bytes == 4 * layout.record_bytes_max == 80 << 20
    assert laid_out(500 << 20, "10%").memory_bytes == 400 << 20
    small = laid_out(25 << 20)
    assert small.memory_bytes == 4 * small.record_bytes_max == 64 << 20
    assert laid_out(25 << 20, "5%").memory_bytes == 10 << 20


def test_many_small_parameters_share_calls():
    """Equal neighbours are one run: a step costs calls by the tile, not by the parameter."""
    runs = []

    class Recorded(torch.optim.AdamW):
        def step(self):
            runs.append(len(self.param_groups[0]["params"]))
            super().step()

    ours, _ = made(((5,),) * 300)
    tiled = over(ours, Recorded, tile=750)
    runs.clear()
    for _ in range(3):
        give_grads(ours)
        tiled.step()
    assert runs == [1, 1] * 3


# ---- What goes wrong -----------------------------------------------------------------------------


def raises(kind, words):
    return pytest.raises(kind, match=words)


@pytest.mark.parametrize("name", ["LBFGS", "SparseAdam"])
def test_classes_that_cannot_step_parameters_one_by_one_are_refused_by_name(name):
    store = FakeStore()
    with raises(TypeError, f"{name} cannot have its state on drives: .*use {name} itself"):
        over([torch.nn.Parameter(torch.zeros(3, 3))], getattr(torch.optim, name), store)
    assert store.state is None


class Noisy(torch.optim.SGD):
    def step(self):
        for param in self.param_groups[0]["params"]:
            param.grad.add_(torch.randn_like(param.grad))
        super().step()


class Normed(torch.optim.SGD):
    """By the norm of all gradients."""

    def step(self):
        params = self.param_groups[0]["params"]
        norm = sum(param.grad.norm() for param in params)
        for param in params:
            param.grad.div_(norm)
        super().step()


class Positional(torch.optim.SGD):
    def step(self):
        for number, param in enumerate(self.param_groups[0]["params"]):
            param.grad.mul_(number)
        super().step()


class Noting(torch.optim.SGD):
    def step(self):
        super().step()
        self.param_groups[0]["last"] = object()


@pytest.mark.parametrize("cls, words", [
    (Noisy, "depends on the others, or on chance"), (Normed, "depends on the others"),
    (Positional, "depends on the others"), (Noting, "changes its param_groups")])
def test_classes_are_tried(cls, words):
    with raises(TypeError, words):
        over([torch.nn.Parameter(torch.zeros(3))], cls, lr=0.1)


def test_wrong_arguments():
    make = spillway.torch.Optimizer
    params = [torch.nn.Parameter(torch.zeros(30))]
    adam, store = torch.optim.AdamW, FakeStore()
    with raises(TypeError, "optimizer_class must be a class"):
        make(adam(params), params, store)
    with raises(ValueError, "foreach=True is other arithmetic"):
        make(adam, params, store, foreach=True)
    with raises(ValueError, "Invalid learning rate"):
        make(adam, params, store, lr=-1.0)
    with raises(ValueError, "empty parameter list"):
        make(adam, [], store)
    with raises(ValueError, "more than one parameter group"):
        make(adam, [{"params": params}, {"params": params}], store)
    with raises(TypeError, "bfloat16: .* masters=True"):
        make(adam, [torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))], store)
    with raises(TypeError, "complex64"):
        make(adam, [torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))], store)
    with raises(ValueError, "less than four of the longest"):
        make(adam, params, store, memory=1000)
    with raises(ValueError, "at least 1 element"):
        make(adam, params, store, tile=0)
    with raises(ValueError, "memory must be bytes, or a size like .* or a share like"):
        make(adam, params, store, memory="much")
    assert store.state is None
    make(adam, params, store)
    with raises(spillway.SpillwayError, "has a state already"):
        make(adam, params, store)


@pytest.mark.parametrize("name, value", [
    ("masters", "compakt"), ("masters", None), ("masters", 1), ("masters", torch.tensor(True)),
    ("masters", "Compact"), ("masters", b"compact"), ("masters", ["compact"]),
    ("copies", True), ("copies", 1.0), ("copies", "2"), ("tile", True), ("tile", "5"),
    ("tile", 2.5), ("commit_every", True), ("commit_every", "3"), ("commit_extra", {"a": 1}),
    ("in_backward", "yes"), ("gradients", None), ("interleave", True), ("memory", True),
    ("process_group", False), ("process_group", 3)])
def test_no_option_is_taken_for_another_value(name, value):
    """In words that name it, before anything is changed."""
    store = FakeStore()
    params, _ = made(((30,),))
    with pytest.raises((TypeError, ValueError), match=f"^{name} must be"):
        over(params, store=store, **{name: value})
    assert store.state is None


def test_arguments_of_methods_are_not_taken_for_others():
    params, _ = made(((30,),))
    store = FakeStore()
    tiled = over(params, store=store)
    with raises(TypeError, "random must be True or False, not 'no'"):
        tiled.resume(random="no")
    with raises(TypeError, "keep_previous must be True or False, not 'no'"):
        tiled.commit(keep_previous="no")
    with raises(TypeError, "step must be a number, not a bool"):
        tiled.commit(step=True)
    assert store.durable is None
    with raises(TypeError, "store must be an open spillway.Store, not '/dev/nvme0n1'"):
        spillway.torch.Optimizer(torch.optim.AdamW, params, "/dev/nvme0n1")


@pytest.mark.parametrize("in_backward", [False, pytest.param(True, marks=needs_hooks)])
@pytest.mark.parametrize("changed, words", [
    (lambda tiled, param: tiled.param_groups[0]["params"].append(copy.deepcopy(param)), "other pa"),
    (lambda tiled, param: tiled.param_groups[0].update(params=[copy.deepcopy(param)]), "other pa"),
    (lambda tiled, param: tiled.param_groups.append({**tiled.param_groups[0], "params": [
        copy.deepcopy(param)]}), "other parameters than when the optimizer was made"),
    (lambda tiled, param: setattr(param, "data", param.data.bfloat16()),
     r"group0.param0 has another type .*: bfloat16 \(20000,\), and was float32"),
    (lambda tiled, param: setattr(param, "data", param.data.double()), "created: float64"),
    (lambda tiled, param: setattr(param, "data", torch.ones(40000)), r"float32 \(40000,\), and"),
    (lambda tiled, param: setattr(param, "data", param.data.view(200, 100)), "at32 .200, 100., "),
], ids=["one more", "another", "group", "bfloat16", "float64", "longer", "shape"])
def test_other_parameters_than_the_records_are_of_are_refused(changed, words, in_backward):
    """Some were stepped in part, in other arithmetic, or not at all, without a word."""
    (param,), _ = made(((20000,),))
    tiled = over([param], torch.optim.SGD, lr=0.5, in_backward=in_backward)
    (param * param).sum().backward()
    tiled.step()
    param.grad = None
    changed(tiled, param)
    before = param.detach().clone()
    with raises(RuntimeError, words):
        (param * param).sum().backward()
        tiled.step()
    assert torch.equal(param, before)


def test_a_store_that_is_too_small_says_so_at_once():
    params = [torch.nn.Parameter(torch.zeros(1 << 20))]
    # 8 MiB of state, and 4 of parameters, twice
    with raises(spillway.SpillwayError, f"too small by {4 << 20} bytes") as caught:
        over(params, store=FakeStore(20 << 20))
    assert caught.value.errno == errno.ENOSPC
    over(params, store=FakeStore(24 << 20))


def test_groups_are_added_before_the_first_step_only():
    ours, theirs = made(((30,), (4, 4), (5,)))
    pair = Pair(ours, theirs, over(ours[:1]), reference("AdamW", theirs[:1], {}))
    for params, optimizer in pair:
        optimizer.add_param_group({"params": params[1:2], "lr": 0.5})
    with raises(TypeError, "complex64"):
        pair.optimizer.add_param_group(
            {"params": [torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))]})
    pair.train(1)
    with raises(RuntimeError, "cannot be added after the first step"):
        pair.optimizer.add_param_group({"params": ours[2:]})
    pair.step()


def test_a_sparse_gradient_changes_nothing():
    ours, theirs = made(((4, 3),))
    embedding = torch.nn.Embedding(4, 3, sparse=True)
    tiled = over([*ours, embedding.weight])
    embedding(torch.tensor([1])).sum().backward()
    give_grads(ours)
    before = embedding.weight.detach().clone()
    with raises(TypeError, "a gradient is sparse"):
        tiled.step()
    assert_same(embedding.weight.detach(), before)
    assert_same(ours, theirs)


def test_options_that_need_another_field_are_refused_before_the_step():
    ours, theirs = made(((40,),))
    tiled = over(ours, torch.optim.SGD, lr=0.1)
    give_grads(ours)
    tiled.param_groups[0]["momentum"] = 0.9
    with raises(ValueError, "keeps momentum_buffer, for which there is no room"):
        tiled.step()
    assert_same(ours, theirs)
    tiled.param_groups[0]["momentum"] = 0
    tiled.step()


@pytest.mark.parametrize("change, words", [
    (lambda d: d["param_groups"].append(d["param_groups"][0]), "has 2 groups"),
    (lambda d: d["param_groups"][0]["params"].pop(), "has 1 parameters"),
    (lambda d: d["state"][0].update(exp_avg=torch.zeros(3)), r"has the shape \(3,\)"),
    (lambda d: d["state"][0].update(max_exp_avg_sq=torch.zeros(30)), "has max_exp_avg_sq"),
    (lambda d: d["param_groups"][0].update(amsgrad=True), "keeps max_exp_avg_sq"),
])
def test_a_state_dict_of_another_optimizer_changes_nothing(change, words):
    pair = pair_with(((30,), (4, 4)))
    pair.train(1)
    wrong = copy.deepcopy(pair.plain.state_dict())
    change(wrong)
    with raises(ValueError, words):
        pair.optimizer.load_state_dict(wrong)
    pair.same_state()


def test_a_step_that_a_drive_ends_is_finished_by_the_next():
    pair = pair_with(((300,), (4, 4), (500,)), tile=100)
    for fail_after in (1, 4, 7, None):
        pair.give_grads()
        if fail_after is not None:
            with pair.drive_fails(fail_after):
                pair.optimizer.step()
            for call in (pair.optimizer.commit, pair.optimizer.state_dict):
                with raises(RuntimeError, "call step.. again"):
                    call()
        pair.step()
    assert pair.optimizer.steps == 4
    pair.same_state()


def test_a_step_that_a_drive_ends_is_not_finished_with_other_gradients():
    pair = pair_with(((300,),), tile=100)
    pair.train(1)
    with pair.drive_fails(2):
        pair.optimizer.step()
    pair.ours[0].grad.mul_(2)
    with raises(RuntimeError, "the gradients are others now"):
        pair.optimizer.step()


def test_a_step_that_fails_inside_of_a_tile_ends_the_use(monkeypatch):
    ours, _ = made(((300,),))
    tiled = over(ours, tile=100)
    give_grads(ours)

    def fail(*_):
        raise MemoryError("no memory")

    monkeypatch.setattr(tiled._tiled._stepper, "_done", fail)
    with raises(MemoryError, "no memory"):
        tiled.step()
    assert not tiled._tiled.records.state.taken
    with raises(RuntimeError, "not whole any more, since a step failed half way .no memory."):
        tiled.step()


def test_it_is_not_copied():
    ours, _ = made(((3,),))
    tiled = over(ours)
    with raises(TypeError, "cannot be copied or pickled"):
        copy.deepcopy(tiled)


# ---- Commits -------------------------------------------------------------------------------------


def trained(optimizer, params, steps, generator):
    for _ in range(steps):
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
        optimizer.step()


@pytest.mark.parametrize("masters", [False, True, "compact"])
@each_class
def test_resumed_is_uninterrupted(name, options, masters):
    cls = getattr(torch.optim, name)
    ours, others = made(((40, 30), (7,), (500,)), torch.bfloat16 if masters else torch.float32)
    store = FakeStore()
    make = lambda params, lr: over(  # noqa: E731
        params, cls, store, tile=333, masters=masters, **{**options, "lr": lr})
    generator = torch.Generator().manual_seed(SEED)
    tiled = make(ours, 0.25)
    assert tiled.resume() is None
    trained(tiled, ours[:2], 2, generator)  # one is new after the commit
    extra = {"list": [1, 2.5, None], "tensor": torch.arange(3), "bytes": b"\0\1"}
    assert tiled.commit(extra=extra) == 2
    drawn, kept = torch.get_rng_state(), generator.get_state()
    trained(tiled, ours, 3, generator)
    tiled.close()
    torch.rand(5)
    again = make(others, 0.5)
    with raises(spillway.SpillwayError, "has commit 2 of this model.*call resume") as caught:
        trained(again, others, 1, generator)
    assert caught.value.errno == errno.EEXIST
    resumed = again.resume()
    assert resumed.step == again.steps == 2 and again.param_groups[0]["lr"] == 0.25
    assert_same(resumed.extra, extra)
    assert torch.equal(torch.get_rng_state(), drawn)
    generator.set_state(kept)
    trained(again, others, 3, generator)
    assert_same(ours, others)
    with raises(RuntimeError, "comes once, before the first step"):
        again.resume()
    assert again.commit() == 5


def test_commits_by_themselves():
    ours, _ = made(((30,),))
    store = FakeStore()
    tiled = over(ours, store=store, commit_every=2, commit_extra=lambda: {"at": tiled.steps})
    numbers = []
    for _ in range(5):
        give_grads(ours)
        tiled.step()
        numbers.append(store.durable and store.durable[0])
    assert numbers == [None, 2, 2, 4, 4]
    tiled.close()
    assert over(ours, store=store).resume() == (4, {"at": 4})


def test_what_cannot_go_with_a_commit_is_named():
    ours, _ = made(((30,),))
    store = FakeStore()
    tiled = over(ours, store=store)
    with raises(TypeError, r"extra\['a'\]\[1\] is a function"):
        tiled.commit(extra={"a": [1, lambda: 1]})
    assert store.durable is None


def test_a_commit_of_another_optimizer_changes_nothing():
    ours, others = made(((30,), (4, 4)))
    store = FakeStore()
    tiled = over(ours, torch.optim.Adam, store)
    give_grads(ours)
    tiled.step()
    tiled.commit()
    tiled.close()
    committed = copy.deepcopy(store.durable)
    before = [param.detach().clone() for param in others]

    def refused(words, params=others, cls=torch.optim.Adam):
        other = over(params, cls, store)
        with raises(spillway.SpillwayError, words):
            other.resume()
        other.close()

    refused("it is of torch.optim.adam.Adam, and this is .*NAdam", cls=torch.optim.NAdam)
    for params in (others[:1], [*others, torch.nn.Parameter(torch.zeros(3))], others[::-1]):
        refused("other records|another shape", params)
    store.durable = committed[0], committed[1], committed[2][:50]
    refused("is not of an optimizer")
    assert_same([param.detach() for param in others], before)
    store.durable = committed
    other = over(others, torch.optim.Adam, store)
    assert other.resume().step == 1
    assert_same(ours, others)


def test_objects_of_training_come_back_as_they_were():
    from spillway._values.pack import pack, unpack

    param = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([param], lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = {
            "scheduler": torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2]).state_dict(),
            3: (float("inf"), -0.0, 1e-320, 2**70, None, True, "é", b"\xff"),
            "tensors": [torch.randn(3, 4).to(dtype) for dtype in (
                torch.float64, torch.bfloat16, torch.int8, torch.bool)],
            "empty": [[], {}, (), torch.zeros(0, 3), torch.tensor(7)],
        }
    assert_same(unpack(pack(value)), value)


def test_bytes_of_a_commit_are_not_trusted():
    from spillway._values.pack import pack, unpack

    content = pack({"a": [1, torch.arange(9), b"abc"], "b": (2.5, "x")})
    source = random.Random(SEED)
    for _ in range(3000):
        damaged = bytearray(content[:source.randrange(len(content) + 1)]
                            if source.random() < 0.3 else content)
        for _ in range(source.randrange(1, 4)):
            if damaged:
                damaged[source.randrange(len(damaged))] = source.randrange(256)
        try:
            unpack(bytes(damaged))
        except ValueError:
            pass
