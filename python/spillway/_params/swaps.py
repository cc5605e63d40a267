# SPDX-License-Identifier: MIT
# spillway/_params/swaps.py - torch.utils.swap_tensors() of parameters on drives
"""After torch.__future__.set_swap_module_params_on_conversion(True), and for some tensors without
that, PyTorch gives a parameter other contents in model.to(), model.half() and load_state_dict() by
exchanging those of two tensors. It refuses tensors that have weak references, such as parameters on
drives. So these are ordinary parameters while it does that, one by one."""
from __future__ import annotations

import functools
import logging
from typing import Any, Callable, List, Tuple

import torch

from .offloaded_param import CLASSES, OnDrives, as_parameter

_log = logging.getLogger("spillway")


def install() -> None:
    """Once in a process; PyTorch 2.3 or later has the function."""
    swap = getattr(torch.utils, "swap_tensors", None)
    if swap is not None and not hasattr(swap, "is_ours"):
        torch.utils.swap_tensors = _of_ordinary(swap)  # type: ignore[attr-defined]


def _is_on_drives(tensor: Any) -> bool:
    return (type(tensor) in CLASSES and tensor._spillway_place is not None
            and (type(tensor) is OnDrives or hasattr(tensor, "_local_tensor")))


def _of_ordinary(swap: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    @functools.wraps(swap)
    def swap_tensors(t1: Any, t2: Any) -> None:
        found: List[Tuple[Any, Any, str]] = [
            (tensor, tensor._spillway_place.owner, tensor._spillway_place.on_drives.name)
            for tensor in (t1, t2) if _is_on_drives(tensor)]
        for tensor, owner, _ in found:
            owner.check_alike(tensor, t2 if tensor is t1 else t1)
        for tensor, owner, _ in found:
            owner.release(tensor, tensor._spillway_place)
        try:
            swap(t1, t2)
        finally:
            for tensor, owner, name in found:
                as_parameter(tensor)
                if not owner.closed and not owner.adopt(tensor, name):
                    _log.info("%s stays in memory from now on", name)

    swap_tensors.is_ours = True  # type: ignore[attr-defined]
    return swap_tensors
