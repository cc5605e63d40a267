# SPDX-License-Identifier: MIT
# spillway/_offload/trial_saves.py - whether a second run of a scope saves the same as the first
"""Nothing is copied. What the first run saved is held until the second run has saved its own, and
is compared then; its graph holds it as well, unless it has been spilled since. A tensor that was
modified in place after it was saved can no longer be compared, and counts as different.

What is recomputed is compared with all of a view's storage. So that is compared here, too, once for
all views: an operation of others may leave a part of its result unwritten.
"""
from __future__ import annotations

from typing import Any, Iterator, List, Optional, Set, Union

import torch
from torch import Tensor

from .._core.scopes import identities, tensors_in
from .._core.tensors import plain
from .._core.torch_compat import unseen_by_modes
from .._params.offloaded_param import Kept, Saved, held

# To compare bits, whatever the strides: of complex numbers of 16 bytes, as pairs.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Held = Union[Saved, Kept]

DIFFERS = "a second run saves other tensors"
MODIFIED = "what it saves is modified in place afterwards"


class _Shown:
    """What one run of a scope shows of what it saves.

    :param arguments: of the scope: what they are views of is not made by it
    """

    def __init__(self, arguments: Any) -> None:
        self._given: Set[int] = identities(tensors_in(arguments))
        self._bases: Set[int] = set()  # addresses: unique as long as the graph holds the views

    def by(self, tensor: Tensor) -> Iterator[Tensor]:
        yield tensor
        base = tensor._base
        # Of others a view is not discarded.
        if (base is None or not base.requires_grad or base.is_leaf or base._version
                or identities([base]) & self._given):
            return
        try:
            place = base.data_ptr()
        except RuntimeError:  # it has no memory
            return
        if place not in self._bases:
            self._bases.add(place)
            yield base


def _differs(one: Held, other: Tensor) -> Optional[str]:
    """In words; None: it is the same, bit for bit."""
    if one.is_modified():
        return MODIFIED
    return None if is_same(one.unpack(), other) else DIFFERS


class FirstRun:
    """:param arguments: of the scope"""

    def __init__(self, arguments: Any) -> None:
        self._shown = _Shown(arguments)
        self.held: List[Optional[Held]] = []  # None: it cannot be compared

    def add(self, tensor: Tensor) -> None:
        for each in self._shown.by(tensor):
            try:
                self.held.append(held(each))
            except Exception:  # training goes on without
                self.held.append(None)


class SecondRun:
    """:param first: lets go of each tensor when it has been compared"""

    def __init__(self, first: FirstRun, arguments: Any) -> None:
        self._shown = _Shown(arguments)
        self._left = first.held[::-1]
        self._differs: Optional[str] = None
        first.held.clear()

    def add(self, tensor: Tensor) -> None:
        for each in self._shown.by(tensor):
            one = self._left.pop() if self._left else None
            if self._differs is None:
                with unseen_by_modes():  # comparing is not part of the run
                    self._differs = DIFFERS if one is None else _differs(one, each)

    def differs(self) -> Optional[str]:
        """In words; None: both have saved the same."""
        return DIFFERS if self._left else self._differs


def bits_of(tensor: Tensor) -> Tensor:
    if tensor.dtype is torch.bool:
        return tensor
    if tensor.element_size() not in _INTEGERS:
        tensor = torch.view_as_real(tensor)
    return tensor.view(_INTEGERS[tensor.element_size()])


def _is_same_memory(one: Tensor, other: Tensor) -> bool:
    place = one.data_ptr()
    return place != 0 and place == other.data_ptr() and one.stride() == other.stride() and (
        one.device == other.device)


def is_same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit. Of the same memory nothing is read."""
    flags = one.is_conj(), one.is_neg()
    if (one.dtype is not other.dtype or one.shape != other.shape
            or flags != (other.is_conj(), other.is_neg())):
        return False
    one, other = plain(one, *flags), plain(other, *flags)
    return _is_same_memory(one, other) or torch.equal(bits_of(one), bits_of(other))
