# SPDX-License-Identifier: MIT
# tests/python/test_tensors.py - every kind of tensor comes back bit for bit; what passes by
# layer: test all
import pytest
import torch
from torch import nn

import spillway.torch
from conftest import emptied
from offloading import (Nothing, WeakStorage, equal, left_in, offload_all, offload_each, same_bits,
                        save, settle)

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
    torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64, torch.complex128
]


def random_bits(count, dtype):
    """Any bit pattern that the type has: infinities, NaNs, denormals."""
    if dtype is torch.bool:
        return torch.randint(2, (count,)).bool()
    raw = torch.randint(256, (count * torch.empty(0, dtype=dtype).element_size(),),
                        dtype=torch.uint8)
    return raw.view(dtype)


KINDS = {
    "contiguous": lambda t: t.view(64, 64),
    "transposed": lambda t: t.view(64, 64).t(),
    "permuted": lambda t: t.view(4, 16, 64).permute(2, 0, 1),
    "slice in the middle": lambda t: t[1001:3001],
    "small slice at the end": lambda t: t[-7:],
    "every third": lambda t: t[1::3],
    "expanded": lambda t: t[:64].view(64, 1).expand(64, 9),
    "expanded scalar": lambda t: t[5].expand(3, 4),
    "overlapping": lambda t: t.as_strided((50, 60), (3, 2), 11),
    "0-d": lambda t: t[77],
    "one element, odd strides": lambda t: t.as_strided((1, 1), (999, 77), 5),
    "channels last": lambda t: t.view(2, 8, 16, 16).contiguous(memory_format=torch.channels_last),
    "no elements": lambda t: t[5:5],
}


# Of what was not computed, they stay in memory.
SMALL = {"small slice at the end", "expanded", "expanded scalar", "overlapping", "0-d",
         "one element, odd strides"}


@pytest.fixture
def store(one_store):
    """Empty again after each test."""
    yield one_store
    assert emptied(one_store), f"the test left objects in the store: {one_store.stats()}"


def saved_and_back(off, tensor, stored=True):
    """The tensor after a trip through save_for_backward; the original's memory is released in
    between unless something else refers to it."""
    seen = []
    with off:
        y = save(seen, tensor)
        del tensor
        if stored:
            settle(off)
        y.sum().backward()
    return seen[0][0]


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "forwarded"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
def test_bits(off, dtype, kind, stored):
    torch.manual_seed(17)
    tensor = KINDS[kind](random_bits(4096, dtype))
    if tensor.is_contiguous():
        expected = tensor.clone().as_strided(tensor.size(), tensor.stride())
    else:
        expected = KINDS[kind](tensor._base.clone() if tensor._is_view() else tensor)
    back = saved_and_back(off, tensor, stored)
    assert same_bits(back, tensor)
    del tensor
    assert same_bits(back, expected)
    assert not back.requires_grad and back.grad_fn is None
    if stored and back.numel() and kind not in SMALL:
        assert off.stats().bytes_spilled > 0


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "forwarded"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "no elements"])
def test_the_storage_around_a_view(off, kind, stored):
    """A backward may look there by as_strided(), whose offset is an absolute one."""
    torch.manual_seed(17)
    whole = torch.randn(4096, requires_grad=True) * 1
    view = KINDS[kind](whole)
    place = view.storage_offset(), view.stride()
    around = whole.detach().clone()
    if kind == "channels last":  # a copy
        around = view.detach().as_strided((4096,), (1,), 0).clone()
    del whole
    back = saved_and_back(off, view, stored)
    assert (back.storage_offset(), back.stride()) == place
    assert same_bits(back.as_strided((4096,), (1,), 0), around)
    if stored and kind not in SMALL:
        assert off.stats().bytes_spilled > 0


def test_many_small_parts_of_something_computed(off):
    """Each would be compared with the whole, or move it again: it stays in memory, and counts."""
    whole = torch.randn(100, 1000, requires_grad=True)
    backs = [saved_and_back(off, whole[place:place + 2]) for place in (17, 50)]
    assert off.stats().bytes_spilled == 0
    assert off.stats().activation_bytes_max >= 100 * 1000 * 4
    for back in backs:
        assert torch.equal(back.as_strided((100, 1000), (1000, 1), 0), whole)


def test_the_storage_around_a_small_part_of_something_given(off):
    """It is in memory anyway: nothing is written for it."""
    data = torch.randn(100, 1000)
    back = saved_and_back(off, data[17:19])
    assert off.stats().bytes_spilled == 0
    assert back.storage_offset() == 17000
    assert torch.equal(back.as_strided((100, 1000), (1000, 1), 0), data)


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "forwarded"])
@pytest.mark.parametrize("make", [
    lambda c: c.conj(),
    lambda c: c.t().conj(),
    lambda c: c.conj().imag,
    lambda c: c.imag,
    lambda c: torch.view_as_real(c),
    lambda c: torch._neg_view(c.real),
], ids=["conj", "conj of a view", "negative bit", "imaginary part", "as real", "negated view"])
def test_lazy_views(off, make, stored):
    tensor = make(torch.randn(32, 40, dtype=torch.complex64))
    conj, neg, expected = tensor.is_conj(), tensor.is_neg(), tensor.clone()
    back = saved_and_back(off, tensor, stored)
    assert (back.is_conj(), back.is_neg(), back.stride()) == (conj, neg, tensor.stride())
    assert torch.equal(back, expected)
    if stored:
        assert off.stats().bytes_spilled > 0


def test_views_of_one_storage_are_stored_once(off):
    storage = torch.randn(3, 1000, 16)
    q, k, v = storage.unbind()
    seen = []
    with off:
        y = save(seen, storage, q, k, v, v.t(), storage.view(torch.int32))
        expected = [t.clone() for t in (storage, q, k, v, v.t(), storage.view(torch.int32))]
        del storage, q, k, v
        stats = settle(off)
        assert stats.bytes_spilled == 3 * 1000 * 16 * 4
        assert (stats.tensors_spilled, stats.tensors_deduplicated) == (1, 5)
        assert stats.activation_bytes == 0
        y.sum().backward()
        assert off.stats().bytes_read == 3 * 1000 * 16 * 4
    assert equal(seen[0], expected)


def test_memory_is_freed_when_it_is_written(off):
    from spillway._core.torch_compat import storage_of

    seen = []
    with off:
        tensor = torch.randn(1000, 1000)
        weak = WeakStorage(storage_of(tensor))
        y = save(seen, tensor)
        del tensor
        settle(off)
        assert weak.expired()
        y.sum().backward()


def test_an_address_used_again_is_another_storage(off):
    """Freed memory comes back at the same address; the bytes must not be mixed up."""
    seen, outputs, expected = [], [], []
    with off:
        for value in range(20):
            tensor = torch.full((70000,), float(value))
            outputs.append(save(seen, tensor))
            expected.append(value)
            del tensor
            settle(off)
        sum(outputs).sum().backward()
    assert sorted(t[0][0].item() for t in seen) == expected
    assert all(bool((t[0] == t[0][0]).all()) for t in seen)


def test_a_version_of_its_own_for_each_content(off):
    """Also when an alias hides the change from the version counter."""
    seen = []
    with off:
        tensor = torch.zeros(50000)
        save([], tensor)
        alias = tensor.data
        tensor.add_(1)  # the alias has a version counter of its own
        y = save(seen, alias)
        y.sum().backward()
    assert bool((seen[0][0] == 1).all())
    assert off.stats().tensors_deduplicated == 0


def test_parameters_buffers_and_inputs_pass_by(store):
    model = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300)).eval()
    off = offload_each(store, model)
    batch = torch.randn(200, 300)
    with off:
        # before forward the batch is a tensor like any other
        y = nn.functional.linear(batch, model[0].weight)
        assert off.stats().offers == 1
        z = model(batch)
        offers = off.stats().offers
        (y.sum() + z.sum()).backward()
    # The output of the linear layer and nothing else: not its input, weights, bias, running mean.
    assert offers == 2


def test_a_replaced_parameter_is_still_a_parameter(store):
    model = nn.Sequential(nn.Linear(300, 300, bias=False))
    off = offload_each(store, model)
    with off:
        model[0].weight.data = torch.randn(300, 300)
        model(torch.randn(10, 300, requires_grad=True)).sum().backward()
    assert off.stats().offers == 0


def test_other_tensors_pass_by(off):
    class Special(torch.Tensor):
        pass

    sparse = torch.eye(5).to_sparse()
    special = torch.randn(100).as_subclass(Special)
    quantized = torch.quantize_per_tensor(torch.randn(100), 0.1, 0, torch.qint8)
    seen = []
    with off:
        save(seen, sparse, special, quantized).sum().backward()
    assert off.stats().bytes_spilled == 0
    assert off.stats().bytes_kept_hint == 5 * (16 + 4) + 100 * 4 + 100  # they are counted
    assert torch.equal(seen[0][0].to_dense(), torch.eye(5))
    assert torch.equal(seen[0][1], special)
    assert torch.equal(seen[0][2].int_repr(), quantized.int_repr())


def test_small_tensors_are_kept(store):
    off = offload_all(store, min_bytes=4000)
    small, large = torch.randn(999), torch.randn(1000)
    seen = []
    with off:
        save(seen, small, large).sum().backward()
    stats = off.stats()
    assert stats.tensors_kept_small == 1 and stats.tensors_spilled + stats.tensors_forwarded > 0
    assert torch.equal(seen[0][0], small) and torch.equal(seen[0][1], large)


def test_observe_keeps_everything_and_counts():
    off = spillway.torch.offload(Nothing(), None, mode="observe")
    a, b = torch.randn(10000), torch.randn(20000)
    seen = []
    with off:
        y = save(seen, a, a.view(100, 100), b)
        assert off.activation_peak_bytes == 30000 * 4
        y.sum().backward()
    assert off.stats().bytes_spilled == 0
    assert seen[0][0].data_ptr() == a.data_ptr()
    del seen, y
    assert off.stats().activation_bytes == 0
    assert left_in(off) == (0, 0, 0)
    off.reset_peak()
    assert off.activation_peak_bytes == 0
