# SPDX-License-Identifier: MIT
# spillway/_offload/trial_copies.py - copies of what a scope saves in a trial run, to compare
from __future__ import annotations

from typing import Any, Dict, List, Optional, Set

from torch import Tensor

from .._core.scopes import identities, tensors_in


def _copy_of(tensor: Tensor) -> Optional[Tensor]:
    """None: it cannot be copied, or there is no memory for that. Training goes on without."""
    try:
        return tensor.detach().clone()
    except Exception:
        return None


class Copies:
    """Of one run of a scope.

    What is recomputed is compared with all of a view's storage. So that is compared here, too, once
    for all views: an operation of others may leave a part of its result unwritten.

    :param arguments: of the scope: what they are views of is not made by it
    """

    def __init__(self, arguments: Any) -> None:
        self.tensors: List[Optional[Tensor]] = []
        self._given: Set[int] = identities(tensors_in(arguments))
        # By address: unique as long as these hold the memory. They do not hold the graph, which
        # would never be released.
        self._bases: Dict[int, Tensor] = {}

    def add(self, tensor: Tensor) -> None:
        self.tensors.append(_copy_of(tensor))
        base = tensor._base
        # Of others a view is not given up.
        if (base is None or not base.requires_grad or base.is_leaf or base._version
                or identities([base]) & self._given):
            return
        try:
            place = base.data_ptr()
        except RuntimeError:  # it has no memory
            return
        if place not in self._bases:
            self._bases[place] = base.detach()
            self.tensors.append(_copy_of(base))
