# SPDX-License-Identifier: MIT
# tests/python/test_verdicts.py - checksums by which a device compares what is recomputed
import itertools

import pytest
import torch

from spillway._recompute import scopes as scopes_module
from spillway._core import torch_compat
from spillway._gpu.checksums import checksums_of

pytestmark = pytest.mark.skipif(torch_compat.is_before(scopes_module.OLDEST),
                                reason="this PyTorch cannot recompute")


def sums(tensor, begin=0, length=None):
    sums = checksums_of(tensor, begin, tensor.nbytes - begin if length is None else length)
    return torch.cat(sums).tolist()


def random_bytes(count):
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 64, 100, 1000])
def test_each_bit_counts(length):
    memory = random_bytes(length)
    expected = sums(memory)
    assert sums(memory.clone()) == expected
    for place, bit in itertools.product(range(length), range(8)):
        memory[place] ^= 1 << bit
        assert sums(memory) != expected, (place, bit)
        memory[place] ^= 1 << bit
    assert sums(memory) == expected


@pytest.mark.parametrize("count", [2, 3, 16, 17, 40])
def test_words_that_moved_count(count):
    words = random_bytes(8 * count).view(torch.int64)
    expected = sums(words)
    for one, other in itertools.combinations(range(count), 2):
        moved = words.clone()
        moved[one], moved[other] = words[other], words[one]
        assert sums(moved) != expected, (one, other)


def test_what_is_outside_of_the_part_does_not_count():
    memory = random_bytes(400)
    expected = sums(memory, 16, 100)
    memory[:16] = 0
    memory[116:] = 0
    assert sums(memory, 16, 100) == expected == sums(memory[16:116].clone())


def test_few_are_kept():
    assert len(sums(torch.zeros(1 << 20))) <= 3 << 10
