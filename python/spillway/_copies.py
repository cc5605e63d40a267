# SPDX-License-Identifier: MIT
# spillway/_copies.py - what a scope saves when it is tried, copied to be compared
from __future__ import annotations

from typing import Any, Dict, List, Optional, Set

from torch import Tensor

from ._scopes import identities, tensors_in


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
        self._bases: Dict[int, Tensor] = {}  # held: no other one has its identity

    def add(self, tensor: Tensor) -> None:
        self.tensors.append(_copy_of(tensor))
        base = tensor._base
        # Of others a view is not given up.
        if (base is not None and base.requires_grad and not base.is_leaf and not base._version
                and id(base) not in self._bases and not identities([base]) & self._given):
            self._bases[id(base)] = base
            self.tensors.append(_copy_of(base))
