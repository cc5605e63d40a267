# SPDX-License-Identifier: MIT
# spillway/_grads/freed_placeholder.py - placeholder of a gradient that was used and freed
from __future__ import annotations

from typing import Any

from torch import Tensor

from .._optim.tile_step import gradient_type

_WORDS = ("this gradient has been used and freed: with in_backward=True parameters are stepped "
          "during the backward pass, so gradients cannot be clipped, scaled, accumulated or read. "
          "Call step() after each backward pass, or leave in_backward out")


class Freed(Tensor):
    """The ``grad`` of a parameter whose gradient was freed, until step(). It has no memory, and
    using it raises an error, whereas None would silently be left out of a norm."""

    @staticmethod
    def __new__(cls: Any, param: Tensor) -> Freed:
        make: Any = Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
        return make(cls, param.shape, strides=param.stride(), dtype=gradient_type(param),
                    device=param.device, layout=param.layout)

    def __init__(self, param: Tensor) -> None:
        pass

    def __repr__(self, **_: Any) -> str:
        return f"<a gradient of {tuple(self.shape)} that has been used and freed>"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(_WORDS)
