# SPDX-License-Identifier: MIT
# spillway/_params/conversion.py - turn a parameter into an OnDrives, and back into a parameter
from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor, nn

from .._core.torch_compat import storage_of
from . import unasked
from .offloaded_param import OnDrives
from .residency import Memory, by_storage


def _shards() -> Any:
    from . import shards  # imported only if a model has shards, as it needs DTensor

    return shards


def adopt(param: nn.Parameter, place: Memory) -> None:
    """From now on the bytes of a parameter may leave memory."""
    unasked.install()
    by_storage[place.storage._cdata] = place
    if hasattr(param, "_local_tensor"):
        _shards().adopt(param, place)
        return
    param.__class__ = OnDrives
    param._spillway_place = place  # type: ignore[attr-defined]


def part(param: nn.Parameter, place: Memory) -> None:
    """Make it an ordinary parameter again; also after Ctrl-C interrupted this."""
    by_storage.pop(place.storage._cdata, None)
    if hasattr(param, "_local_tensor"):
        _shards().part(param, place)
        return
    param.__class__ = nn.Parameter
    vars(param).pop("_spillway_place", None)


def why_not(param: Any, least_bytes: int, kind: str = "cpu") -> Optional[str]:
    """Why a parameter must stay in memory; None if it need not.

    :param kind: of device that it is to be on
    """
    local = getattr(param, "_local_tensor", None)
    if local is not None:
        param = local
    if type(param) is not (nn.Parameter if local is None else Tensor):
        return f"it is a {type(param).__name__}"
    if param.layout is not torch.strided or param.device.type != kind:
        return f"it is {param.layout} on {param.device}"
    storage = storage_of(param)
    length = param.numel() * param.element_size()
    if length < least_bytes:
        return "it is short"
    if not param.is_contiguous():
        return "its elements are in another order"
    if storage.nbytes() != length:
        return "it has a part of a larger memory"
    if storage._cdata in by_storage:
        return "another parameter has the same memory"
    if not storage.resizable():
        return "its memory is not PyTorch's own"
    return None
