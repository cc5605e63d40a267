# SPDX-License-Identifier: MIT
# tests/python/test_optimizer_compact.py - masters that are kept beside the bfloat16 weights
"""Over records in plain memory (fake_state.py), compared bit for bit with masters of 4 bytes."""
import ctypes
import logging

import pytest
import torch
from torch import nn

from conftest import SEED
from fake_state import FakeStore
from pairs import assert_same, each_class, give_grads, made, models, needs_hooks, of, over
from spillway._core.library import blocking

pytestmark = pytest.mark.usefixtures("fake_state")
SHAPES = ((5, 77), (3,), (0, 3), (), (3001,), (33, 3))


# ---- The two halves of a number ------------------------------------------------------------------


def bits_of(numbers):
    return torch.tensor(numbers, dtype=torch.int64).to(torch.int32)


def packed(masters, weights, first=0, fill=0):
    """(low halves, carry bits, checksum), what is lost, of how many NaN bits are"""
    count = len(masters)
    low = torch.empty(count, dtype=torch.int16)
    carry = torch.full(((first + count + 7) // 8 + 1,), fill, dtype=torch.uint8)
    total, nans = ctypes.c_uint64(), ctypes.c_uint64()
    lost = blocking.spw_state_masters_pack(
        masters.data_ptr(), weights.data_ptr(), count, low.data_ptr(), carry.data_ptr(), first,
        ctypes.byref(total), ctypes.byref(nans))
    return (low, carry, total.value), lost, nans.value


def unpacked(weights, low, carry, total, first=0):
    """(bits, whether the weights are the same)"""
    masters = torch.empty(len(weights), dtype=torch.int32)
    same = blocking.spw_state_masters_unpack(masters.data_ptr(), weights.data_ptr(), len(weights),
                                             low.data_ptr(), carry.data_ptr(), first, total)
    return masters, bool(same)


def is_nan(bits):
    return (bits & 0x7fffffff) > 0x7f800000


def every_upper_half():
    """All upper halves, with the lower ones next to where rounding changes, and some others."""
    generator = torch.Generator().manual_seed(SEED)
    low = torch.cat([torch.tensor([0, 1, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff]),
                     torch.randint(1 << 16, (24,), generator=generator)])
    high = torch.arange(1 << 16)
    return ((high[:, None] << 16) | low).view(-1).to(torch.int32)


@pytest.mark.parametrize("first", [0, 3, 8])
def test_every_number_comes_back(first):
    bits = every_upper_half()
    weights = bits.view(torch.float32).bfloat16()
    kept, lost, nans = packed(bits, weights, first)
    odd = is_nan(bits) & ((bits & 0xffff) != 0)
    assert lost == 0 and nans == odd.sum()
    again, same = unpacked(weights, *kept, first)
    assert same and torch.equal(again[~odd], bits[~odd])
    # Of these NaN only the low half is lost.
    assert torch.equal(again[odd], bits[odd] >> 16 << 16 | 0x400000)


@pytest.mark.parametrize("count", [0, 1, 5, 7, 8, 9, 63, 64, 65, 127, 200, 513])
@pytest.mark.parametrize("first", [0, 1, 5, 7, 8, 15, 64])
def test_any_length_at_any_bit(count, first):
    """The bits before and after belong to other pieces."""
    bits = torch.randint(-1 << 31, 1 << 31, (count,), generator=torch.Generator().manual_seed(count)
                         ).to(torch.int32)
    bits[is_nan(bits)] &= ~0xffff
    weights = bits.view(torch.float32).bfloat16()
    for fill in (0, 255):
        kept, lost, nans = packed(bits, weights, first, fill)
        assert (lost, nans) == (0, 0)
        again, same = unpacked(weights, *kept, first)
        assert same and torch.equal(again, bits)
        of_bits = [kept[1][bit // 8] >> bit % 8 & 1 for bit in range(len(kept[1]) * 8)]
        others = of_bits[:first] + of_bits[first + count:]
        assert all(bit == fill & 1 for bit in others)


def test_rounding_is_compared_with_numpy():
    numpy = pytest.importorskip("numpy")
    bits = every_upper_half()
    bits = bits[~is_nan(bits)]
    weights = bits.view(torch.float32).bfloat16()
    (low, carry, _), _, _ = packed(bits, weights)
    numbers = bits.numpy().view(numpy.uint32)
    high = (weights.view(torch.int16).numpy().view(numpy.uint16) - (numbers >> 16)) & 0xffff
    assert numpy.array_equal(low.numpy().view(numpy.uint16), (numbers & 0xffff))
    assert numpy.array_equal(numpy.unpackbits(carry.numpy(), bitorder="little")[:len(high)], high)


@pytest.mark.parametrize("weight", [0x3f82, 0x3f7f, 0xbf80, 0x7fc0])
def test_weights_that_are_not_the_masters_rounded_are_counted(weight):
    master = bits_of([0x3f800123])
    weights = bits_of([weight]).to(torch.int16).view(torch.bfloat16)
    assert packed(master, weights)[1] == 1


def test_other_weights_are_the_masters():
    bits = torch.randn(1000).view(torch.int32)
    weights = bits.view(torch.float32).bfloat16()
    kept, _, _ = packed(bits, weights)
    for changed in (0, 500, 999):
        other = weights.clone()
        other.view(torch.int16)[changed] ^= 1
        again, same = unpacked(other, *kept)
        assert not same and torch.equal(again, other.float().view(torch.int32))


# ---- Steps ---------------------------------------------------------------------------------------


def both(shapes=SHAPES, cls=torch.optim.AdamW, tile=333, **options):
    """(parameters, optimizer) with compact masters, and with those of 4 bytes."""
    pairs = zip(made(shapes, torch.bfloat16), ("compact", True))
    return [(params, over(params, cls, tile=tile, masters=masters, **options))
            for params, masters in pairs]


def stepped(one, other, steps=1, none=0.0):
    for _ in range(steps):
        give_grads(one[0], other[0], none=none)
        one[1].step()
        other[1].step()
        assert_same(one[0], other[0])


@pytest.mark.parametrize("tile", [997, None])
@each_class
def test_bits_are_those_of_whole_masters(name, options, tile):
    one, other = both(cls=getattr(torch.optim, name), tile=tile, **options)
    stepped(one, other, 5, none=0.3)
    assert_same(of(one[1]), of(other[1]))


NUMBERS = [0.0, -0.0, 1e-40, -1e-45, 1e-38, 3e38, -3.38e38, float("inf"), -float("inf"),
           float("nan"), -float("nan"), 1.0, 1e-3, 256.0, -1e-8]


@pytest.mark.parametrize("cls, options", [
    (torch.optim.AdamW, {"lr": 1e-2}), (torch.optim.SGD, {"lr": 1.0, "momentum": 0.9}),
    (torch.optim.SGD, {"lr": 1e30})])
def test_a_thousand_steps_with_any_gradient(cls, options):
    """Of every kind of number; elements become infinite and NaN on the way, in every place."""
    generator = torch.Generator().manual_seed(SEED)
    one, other = both(((200,), (7, 5)), cls, tile=100, **options)
    rare = torch.tensor(NUMBERS)
    for step in range(1000):
        for mine, theirs in zip(one[0], other[0]):
            grad = torch.randn(mine.shape, generator=generator) * 10.0 ** (step % 13 - 8)
            chosen = torch.rand(mine.shape, generator=generator) < 2e-4
            drawn = rare[torch.randint(len(rare), mine.shape, generator=generator)]
            grad = torch.where(chosen, drawn, grad).bfloat16()
            mine.grad, theirs.grad = grad, grad.clone()
        one[1].step()
        other[1].step()
        assert_same(one[0], other[0])
    assert_same(of(one[1]), of(other[1]))
    numbers = torch.cat([param.detach().view(-1) for param in one[0]])
    assert numbers.isnan().any() and numbers.isfinite().any()


def test_every_bfloat16_number_is_stepped():
    """Not all are changed by a step, and each of them stays what it is."""
    every = torch.arange(1 << 16).to(torch.int16).view(torch.bfloat16)
    pairs = []
    for masters in ("compact", True):
        params = [nn.Parameter(every.clone())]
        pairs.append((params, over(params, torch.optim.SGD, tile=10007, lr=1e-3, masters=masters)))
    one, other = pairs
    stepped(one, other, 20)
    assert_same(of(one[1]), of(other[1]))


@needs_hooks
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_steps_in_the_backward_pass(dtype):
    pair = models(dtype=dtype, in_backward=True, masters="compact")
    for _ in range(4):
        pair.backward()
        pair.step()


def test_records_are_shorter_and_float16_has_four_bytes():
    """20.25 bytes per parameter and step are read and written, instead of 24."""
    for dtype, masters, length in ((torch.bfloat16, "compact", 10.125), (torch.bfloat16, True, 12),
                                   (torch.float16, "compact", 12)):
        params, _ = made(((1 << 20,),), dtype)
        tiled = over(params, masters=masters)
        tiles = tiled._tiled.records.layout.tiles
        assert sum(tile.len_bytes for tile in tiles) - length * (1 << 20) < 300 * len(tiles)
        give_grads(params)
        tiled.step()


def test_a_device_that_steps_some_is_refused_in_words():
    params, _ = made(((30,),), torch.bfloat16)
    with pytest.raises(ValueError, match="with interleave a device steps some"):
        over(params, masters="compact", interleave=2)


def test_odd_nan_are_said(caplog):
    """Of float32 gradients: the one thing that is lost, and it stays NaN."""
    param = nn.Parameter(torch.ones(300, dtype=torch.bfloat16))
    tiled = over([param], torch.optim.SGD, lr=1.0, masters="compact", tile=100)
    values = torch.ones(300)
    values[7] = bits_of([0x7fc12345]).view(torch.float32)[0]
    with caplog.at_level(logging.WARNING, "spillway"):
        tiled.load_parameters({"group0.param0": values})
        tiled.load_parameters({"group0.param0": values})
    assert len([line for line in caplog.messages if "NaN with bits of its low half" in line]) == 1
    master = tiled.state_dict
    give_grads([param])
    tiled.step()
    kept = master()["state"][0]["master"]
    assert kept.isnan()[7] and kept.isnan().sum() == 1


# ---- Weights that something else has changed -----------------------------------------------------


CHANGES = {
    "data": lambda param: setattr(param, "data", param.data * 1.5),
    "in place": lambda param: param.data.mul_(1.5),
    "no_grad": lambda param: param.detach().copy_(param * 1.5),
    "one bit": lambda param: param.data.view(-1).view(torch.int16)[0].bitwise_xor_(1),
    "NaN": lambda param: param.data.view(-1)[-1].fill_(float("nan")),
    "sign of zero": lambda param: param.data.view(-1)[3].mul_(-1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_parameter_is_its_own_master(change, caplog):
    """And the others keep theirs, bit for bit."""
    shapes = ((500,), (90, 4), (33,))
    one, other = both(shapes, tile=128)
    for params, _ in (one, other):
        params[1].data.view(-1)[3] = 0.0
    stepped(one, other, 3)
    assert "was changed" not in caplog.text
    state = of(one[1])
    with torch.no_grad():
        change(one[0][1])
        change(other[0][1])
    # In memory, by hand: the pieces that were changed begin from what they are.
    masters = [entry["master"] for entry in of(other[1])["state"].values()]
    flat, old = one[0][1].detach().view(-1), masters[1].view(-1)
    begin = 500 % 128
    cuts = [0, *range(128 - begin, 360, 128), 360]
    for start, stop in zip(cuts, cuts[1:]):
        part = flat[start:stop].float()
        if not torch.equal(part.bfloat16().view(torch.int16),
                           old[start:stop].bfloat16().view(torch.int16)):
            old[start:stop] = part
    content = other[1].state_dict()
    content["state"][1]["master"] = masters[1]
    other[1].load_state_dict(content)
    with caplog.at_level(logging.WARNING, "spillway"):
        stepped(one, other, 3)
    assert_same(of(one[1]), of(other[1]))
    said = [line for line in caplog.messages if "was changed since" in line]
    assert len(said) == 1 and "group0.param1[" in said[0]
    assert state["state"][0]["master"] is not None


def test_a_frozen_parameter_that_is_changed(caplog):
    """It gets no gradient, and shares its tile with one that does."""
    one, other = both(((20,), (30,)))
    stepped(one, other, 2)
    value = torch.randn(30).bfloat16()
    for params, tiled in (one, other):
        params[1].data.copy_(value)
        params[0].grad = torch.ones(20, dtype=torch.bfloat16)
        params[1].grad = None
        tiled.step()
        assert_same(params[1].detach(), value)
    assert_same(one[0][0], other[0][0])
    assert one[1].state_dict()["state"][1]["master"].equal(value.float())
    assert "group0.param1[0:30] was changed" in caplog.text


def test_the_same_value_once_more_changes_nothing():
    """As load_state_dict() of a model with its own state."""
    one, other = both()
    for _ in range(3):
        stepped(one, other)
        for param in one[0]:
            param.data = param.data.clone()
            with torch.no_grad():
                param.copy_(param.clone())
    assert_same(of(one[1]), of(other[1]))


def test_a_state_dict_brings_its_own_masters():
    """Into parameters that are others: they are what its masters come to, at once."""
    one, other = both()
    stepped(one, other, 3)
    fresh, plain = both()
    for tiled, source in ((fresh[1], other[1]), (plain[1], one[1])):
        tiled.load_state_dict(source.state_dict())
    assert_same(fresh[0], one[0])
    give_grads(fresh[0], plain[0])
    for _, tiled in (fresh, plain):
        tiled.step()
    assert_same(fresh[0], plain[0])
    assert_same(of(fresh[1]), of(plain[1]))


def test_float32_values_go_into_the_masters():
    one, other = both()
    stepped(one, other, 2)
    values = {f"group0.param{number}": torch.randn(param.shape)
              for number, param in enumerate(one[0])}
    for _, tiled in (one, other):
        assert tiled.load_parameters(values) == []
    stepped(one, other, 2, none=0.5)
    assert_same(of(one[1]), of(other[1]))


# ---- Commits -------------------------------------------------------------------------------------


KINDS = [("compact", "compact"), (True, "compact"), ("compact", True)]


@pytest.mark.parametrize("before, after", KINDS)
@each_class
def test_a_commit_is_resumed_with_either_kind(name, options, before, after):
    cls = getattr(torch.optim, name)
    store = FakeStore()
    ours, theirs = made(SHAPES, torch.bfloat16)
    first = over(ours, cls, store, tile=333, masters=before, **options)
    plain = over(theirs, cls, tile=333, masters=True, **options)
    for _ in range(3):
        give_grads(ours, theirs, none=0.3)
        first.step()
        plain.step()
    first.commit()
    first.close()
    for kind in (after, before, after):  # there, back and there again, with a step in between
        others = [nn.Parameter(torch.zeros_like(param)) for param in ours]
        again = over(others, cls, store, masters=kind, **options)
        assert again.resume().step == again.steps
        assert_same(others, theirs)
        give_grads(others, theirs, none=0.3)
        again.step()
        plain.step()
        assert_same(others, theirs)
        assert_same(of(again), of(plain))
        again.commit()
        assert all(name.startswith(("compact/", "parameters/") if kind == "compact" else "state/")
                   for name in store.durable[1])
        again.close()


@pytest.mark.parametrize("before, after", KINDS[1:])
def test_a_conversion_that_ends_early_is_begun_anew(before, after):
    """A drive fails at every take of a record in turn; the commit is what it was."""
    store = FakeStore()
    ours, others = made(((500,), (90,)), torch.bfloat16)
    first = over(ours, store=store, tile=100, masters=before)
    for _ in range(2):
        give_grads(ours)
        first.step()
    first.commit()
    wanted, committed = of(first), store.durable
    first.close()
    for calls in range(1, 100):
        again = over(others, store=store, masters=after)
        state = again._tiled.records.state
        state.fail_after = calls
        try:
            again.resume()
            break
        except OSError:
            assert store.durable is committed
            with pytest.raises(RuntimeError, match="not whole any more"):
                again.step()
        again.close()
    assert calls > 10
    state.fail_after = None
    assert_same(others, ours)
    assert_same(of(again), wanted)


def test_parameters_are_changed_between_a_step_and_its_commit(caplog):
    """The commit has the changed ones, and they are what training goes on from."""
    store = FakeStore()
    ours, _ = made(SHAPES, torch.bfloat16)
    first = over(ours, store=store, tile=333, masters="compact")
    give_grads(ours)
    first.step()
    ours[4].data.mul_(3)
    first.commit()
    wanted, values = of(first), [param.detach().clone() for param in ours]
    first.close()
    caplog.clear()
    others = [nn.Parameter(torch.zeros_like(param)) for param in ours]
    again = over(others, store=store, masters="compact")
    again.resume()
    assert_same([param.detach() for param in others], values)
    assert_same(of(again), wanted)
    assert "group0.param4[0:" in caplog.text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_whole_masters_say_what_they_lose(dtype, caplog):
    """Of parameters that something else has changed. What is the same again, what the optimizer
    itself has loaded or not stepped yet, is not spoken of."""
    one, other = made(((500,), (90, 4)), dtype)
    ours, plain = over(one, tile=128, masters=True), over(other, tile=128, masters=True)
    with torch.no_grad():
        for params in (one, other):
            params[1].mul_(2)
    stepped((one, ours), (other, plain), 2)
    before = [param.detach().clone() for param in one]
    with torch.no_grad():
        one[1].view(-1)[200] += 1
        one[1].copy_(before[1])
        for params in (one, other):  # a NaN has several patterns of bits
            params[0].grad = torch.full_like(params[0], float("nan"))
    ours.step()
    plain.step()
    with torch.no_grad():
        one[0].neg_()
    ours.load_state_dict(ours.state_dict())
    stepped((one, ours), (other, plain), 1)
    assert "was changed" not in caplog.text
    with torch.no_grad():
        one[1].view(-1)[200] += 1
    stepped((one, ours), (other, plain), 2)
    said, = (line for line in caplog.messages if "was changed" in line)
    assert said.startswith("group0.param1[") and "loses that change" in said
    assert_same([param.detach() for param in one], [param.detach() for param in other])
    assert_same(of(ours), of(plain))


def test_a_commit_while_averaged_weights_are_swapped_in(caplog):
    """It has these, as its message says; never their upper halves with the lower ones of others.
    Once the trained ones are back, so are their masters."""
    store = FakeStore()
    one, other = made(((500,), (90, 4)), torch.bfloat16)
    ours = over(one, store=store, tile=128, masters="compact")
    plain = over(other, tile=128, masters=True)
    average = torch.optim.swa_utils.AveragedModel(nn.ParameterList(one))
    stepped((one, ours), (other, plain), 3)
    ours.commit(1)
    assert "changed after" not in caplog.text
    trained = [param.detach().clone() for param in one]
    averaged = [param.detach().clone() for param in average.parameters()]

    def swap(values):
        for param, value in zip(one, values):
            param.data.copy_(value)

    swap(averaged)
    ours.commit(2)
    said, = (line for line in caplog.messages if "changed after the last step" in line)
    assert said.startswith("commit 2: group0.param0[0:128] and 7 more parts were changed")
    swap(trained)
    caplog.clear()
    ours.commit(3)
    assert "changed after" not in caplog.text
    assert_same(of(ours), of(plain))
    stepped((one, ours), (other, plain), 2)
    # A crash would go back to the averaged ones: all of their bits, and none of the others'.
    swap(averaged)
    ours.commit(4)
    ours.close()
    again = over([nn.Parameter(torch.zeros_like(param)) for param in one], store=store,
                 masters="compact")
    again.resume()
    for entry, value in zip(of(again)["state"].values(), averaged):
        assert_same(entry["master"], value.float())


def has_arithmetic(dtype):
    """On the CPU."""
    try:
        torch.ones(1, dtype=dtype).addcmul_(*torch.ones(2, 1, dtype=dtype))
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("masters", [True, "compact"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(
    torch.float16, marks=pytest.mark.skipif(
        not has_arithmetic(torch.float16), reason="this PyTorch does not step float16 on a CPU"))])
def test_masters_that_another_optimizer_has_kept(masters, dtype, caplog):
    """A class of PyTorch keeps them in its state as they came, rounded, and steps without them."""
    params, _ = made(((300,), (40,)), dtype)
    tiled, plain = over(params, masters=masters), torch.optim.AdamW(params, foreach=False)
    give_grads(params)
    tiled.step()
    plain.load_state_dict(tiled.state_dict())
    for _ in range(2):
        give_grads(params)
        plain.step()
    values = [param.detach().clone() for param in params]
    tiled.load_state_dict(plain.state_dict())
    assert_same([param.detach() for param in params], values)
    for entry, value in zip(of(tiled)["state"].values(), values):
        assert_same(entry["master"], value.float())
    wanted = [nn.Parameter(value.float()) for value in values]
    again = torch.optim.AdamW(wanted, foreach=False)
    again.load_state_dict(plain.state_dict())
    give_grads(params)
    for one, other in zip(wanted, params):
        one.grad = other.grad.float()
    tiled.step()
    again.step()
    assert_same([param.detach() for param in params], [one.detach().to(dtype) for one in wanted])
    said, = caplog.messages
    assert "masters that are not float32, of parameter 0 and 1 more" in said


KINDS = pytest.mark.parametrize("before, after", [
    (True, True), (True, "compact"), ("compact", True), ("compact", "compact")])


@KINDS
def test_a_teacher_that_is_never_stepped(before, after, caplog):
    """As in MoCo: a frozen copy that the optimizer has as well, and that the program moves. Commits
    have it as it is, and no one has lost anything."""
    store = FakeStore()

    def begun(masters):
        student, teacher = made(((500,), (70,)), torch.bfloat16)
        teacher = [param.requires_grad_(False) for param in teacher]
        return student, teacher, over([*student, *teacher], store=store, tile=128, masters=masters)

    def move(student, teacher, tiled):
        give_grads(student)
        tiled.step()
        for one, other in zip(student, teacher):
            other.data = other.data * 0.5 + one.data * 0.5

    for masters in (before, after, before, after):
        student, teacher, tiled = begun(masters)
        if tiled.resume() is not None:
            assert_same([param.detach() for param in (*student, *teacher)], values)
        for number in range(2):  # the second finds records that are written
            for _ in range(2):
                move(student, teacher, tiled)
            tiled.commit()
        values = [param.detach().clone() for param in (*student, *teacher)]
        tiled.close()
    assert "was changed" not in caplog.text and "were changed" not in caplog.text


@pytest.mark.parametrize("masters", [True, "compact"])
def test_a_parameter_that_is_changed_before_its_first_step(masters, caplog):
    """It begins from what it is then, although the record that it shares has been written."""
    params, _ = made(((100,), (70,)), torch.bfloat16)
    tiled = over(params, masters=masters)
    give_grads(params[:1])
    tiled.step()
    value = torch.randn(70).bfloat16()
    params[1].data.copy_(value)
    wanted = nn.Parameter(value.float())
    give_grads(params)
    wanted.grad = params[1].grad.float()
    tiled.step()
    torch.optim.AdamW([wanted], foreach=False).step()
    assert_same(params[1].detach(), wanted.detach().bfloat16())
    assert_same(of(tiled)["state"][1]["master"], wanted.detach())
    assert "was changed" not in caplog.text


def test_one_part_is_changed_before_a_commit(caplog):
    params, _ = made(((500,), (90, 4)), torch.bfloat16)
    ours = over(params, tile=128, masters="compact")
    give_grads(params)
    ours.step()
    params[0].data[499] += 1
    ours.commit()
    assert "commit 1: group0.param0[384:500] was changed after the last step" in caplog.text


def test_parameters_of_another_checkpoint_after_resuming(caplog):
    store = FakeStore()
    ours, _ = made(((300,),), torch.bfloat16)
    first = over(ours, store=store, masters="compact")
    give_grads(ours)
    first.step()
    first.commit()
    first.close()
    again = over(ours, store=store, masters="compact")
    again.resume()
    value = torch.randn(300).bfloat16()
    ours[0].data.copy_(value)
    assert again.state_dict()["state"][0]["master"].equal(value.float())
    assert "was changed since the optimizer has stepped it" in caplog.text


@pytest.mark.parametrize("before, after", [(False, "compact"), ("compact", False)])
def test_a_commit_without_masters_is_another(before, after):
    """Of a class that steps bfloat16 itself."""
    muon = getattr(torch.optim, "Muon", None)
    if muon is None:
        pytest.skip("this PyTorch has no Muon")
    store = FakeStore()
    ours, _ = made(((30, 20),), torch.bfloat16)
    first = over(ours, muon, store, masters=before)
    give_grads(ours)
    first.step()
    first.commit()
    first.close()
    committed = store.durable
    again = over(ours, muon, store, masters=after)
    with pytest.raises(OSError, match="other records|another shape"):
        again.resume()
    assert store.durable is committed


@pytest.mark.parametrize("masters", ["compact", True])
def test_a_state_dict_after_parameters_were_loaded(masters):
    """Their masters were those of the parameters before."""
    params, _ = made(((300,),), torch.bfloat16)
    tiled = over(params, masters=masters)
    give_grads(params)
    tiled.step()
    value = torch.randn(300).bfloat16()
    tiled.load_parameters({"group0.param0": value})
    assert tiled.state_dict()["state"][0]["master"].equal(value.float())
    params[0].grad = torch.ones(300, dtype=torch.bfloat16)
    tiled.step()
    assert not params[0].equal(value)


def test_a_frozen_parameter_in_the_memory_of_a_trained_one():
    def trained(masters):
        torch.manual_seed(SEED)
        param = nn.Parameter(torch.randn(100).bfloat16())
        head = nn.Parameter(param.data[:50], requires_grad=False)
        optimizer = over([param, head], masters=masters, lr=0.1)
        for _ in range(3):
            param.grad = torch.randn(100).bfloat16()
            optimizer.step()
        return param.detach()

    assert torch.equal(trained("compact"), trained(True))
