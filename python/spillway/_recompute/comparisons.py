# SPDX-License-Identifier: MIT
# spillway/_recompute/comparisons.py - on a device: hold what is discarded until it is compared
"""The host does not wait for a device to tell whether a few rows of a result are what its
operation makes: the result is discarded before that is known. So its memory is held until the
device has compared them; if they differ, what is held is used in place of what is recomputed. Of
all that is held at a time there is a limit. Beyond it the host waits for the oldest comparison,
while the device still has the work that came after."""
from __future__ import annotations

import collections
import weakref
from typing import TYPE_CHECKING, Any, Callable, Deque, List, NamedTuple, Optional, Protocol

import torch
from torch import Tensor

from .expressions import Leaf, Rows, computed, differs
from .watch import Recipe

if TYPE_CHECKING:
    from .._gpu.recompute_check import Verdicts

ROWS, WHOLE = 1, 2  # bits of an answer: what differs


def compared(recipe: Recipe, value: Callable[[Leaf], Tensor], tensor: Tensor,
             whole: bool) -> Tensor:
    """An answer, on the device: of some rows, or also of all of the result."""
    answer = Rows(recipe.call, value).differ_in(tensor).to(torch.uint8) * ROWS
    if whole:
        again = computed(recipe.call, value)
        answer += WHOLE * differs(
            again.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()), tensor)
    return answer


class Holder(Protocol):
    """operations.OperationFrame"""

    recipe: Recipe
    held: Optional[Tensor]


class _Comparison(NamedTuple):
    frame: "weakref.ReferenceType[Holder]"
    recipe: Recipe
    answer: Tensor
    event: Any  # when it has come


class Comparisons:
    """Of all frames on devices, the oldest first.

    :param found: called with each answer that is not 0
    """

    def __init__(self, verdicts: "Verdicts", found: Callable[[Recipe, int], None]) -> None:
        self._verdicts = verdicts
        self._found = found
        self._open: Deque[_Comparison] = collections.deque()

    def add(self, frame: Holder, tensor: Tensor, answer: Tensor) -> None:
        frame.held = tensor.detach()  # without the graph, which would hold all
        event = self._verdicts.event_on(tensor.device)
        self._open.append(_Comparison(weakref.ref(frame), frame.recipe, answer, event))

    def held_bytes(self) -> int:
        return sum(each.recipe.length for each in self._open if _is_held(each))

    def settle(self, most_bytes: Optional[int] = None) -> None:
        """What has been answered is held no longer. @most_bytes: wait while more is held."""
        while self._open:
            if not self._verdicts.has_come(self._open[0].event) and (
                    most_bytes is None or self.held_bytes() <= most_bytes):
                return
            self._read(self._open.popleft())

    def _read(self, comparison: _Comparison) -> None:
        frame, answer = comparison.frame(), self._verdicts.read(comparison.answer, comparison.event)
        if answer:
            self._found(comparison.recipe, answer)
        elif frame is not None:
            frame.held = None


def _is_held(comparison: _Comparison) -> bool:
    """Else its graph is gone, or what was held has been used."""
    frame = comparison.frame()
    return frame is not None and frame.held is not None


def limit_of(recipes: List[Recipe]) -> int:
    """Of what is held at a time: two results, so that the host is ahead by what follows one."""
    lengths = [recipe.length for recipe in recipes]
    return max(2 * max(lengths, default=0), sum(lengths) // 16)
