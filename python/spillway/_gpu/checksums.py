# SPDX-License-Identifier: MIT
# spillway/_gpu/checksums.py - checksums of memory, to see without a copy that it is unchanged
from __future__ import annotations

from typing import Any, List

import torch
from torch import Tensor

from .._core.torch_compat import storage_of

_WORD = 8  # bytes


def can_checksum(storage: Any) -> bool:
    """Whether its words lie where a device can read them."""
    return bool(storage.data_ptr() % _WORD == 0)


def checksums_of(tensor: Tensor, begin: int, length: int) -> List[Tensor]:
    """Of part of the tensor's storage, taken for a square of words: the sums of its rows and of its
    columns, modulo 2^64, and what is left over. One word that differs always shows, and what is
    random shows but for a chance of 2^-64; what has only moved has other sums of rows or columns.
    One pass over the memory each, in the order of the stream that computes.

    :param begin: of the storage, a whole number of words
    """
    storage, device = storage_of(tensor), tensor.device
    count, rest = divmod(length, _WORD)
    words = torch.empty(0, dtype=torch.int64, device=device)
    words.set_(storage, begin // _WORD, (count,), (1,))
    side = 1 << (count.bit_length() + 1) // 2
    rows = count // side
    square = words.narrow(0, 0, rows * side).view(rows, side)
    sums = [square.sum(0), square.sum(1)]
    if count > rows * side:
        sums.append(words.narrow(0, rows * side, count - rows * side).clone())
    if rest:
        tail = torch.empty(0, dtype=torch.uint8, device=device)
        sums.append(tail.set_(storage, begin + count * _WORD, (rest,), (1,)).to(torch.int64))
    return sums
