# SPDX-License-Identifier: MIT
# spillway/_recompute/expressions.py - a tensor as the result of cheap operations on others
"""Which operations are cheap enough to run a second time for each tensor, and how a result is
computed once more. All of them are functions of their arguments alone: they draw no random numbers
and modify nothing. All work on rows, along the last dimensions, so that one row of a result can be
computed from one row of the arguments."""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from .._core.torch_compat import unseen_by_modes

_UNARY = ("abs exp gelu silu relu sigmoid tanh mish softplus elu leaky_relu hardtanh hardswish "
          "hardsigmoid log_sigmoid_forward neg reciprocal rsqrt sqrt sin cos square relu6 "
          "pow.Tensor_Scalar clamp clamp_min clamp_max _to_copy clone mul.Scalar add.Scalar "
          "sub.Scalar div.Scalar").split()
_BINARY = "mul.Tensor add.Tensor sub.Tensor div.Tensor".split()
_NORMS = "native_layer_norm _fused_rms_norm".split()


def _overloads(names: Sequence[str]) -> Dict[Any, str]:
    """Of this version of PyTorch, with the name of each."""
    found = {}
    for name in names:
        packet, _, overload = name.partition(".")
        operation = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if operation is not None:
            found[operation] = packet
    return found


CHEAP = _overloads(_UNARY + _BINARY + _NORMS)

Size = Tuple[int, ...]


class Leaf:
    """A saved tensor, by its place among those that the step saves.

    :param permuted: the dimensions of the argument, of those of the saved tensor; None: the same
    """

    __slots__ = ("place", "permuted")

    def __init__(self, place: int, permuted: Optional[Size]) -> None:
        self.place = place
        self.permuted = permuted

    def of(self, saved: Tensor) -> Tensor:
        return saved if self.permuted is None else saved.permute(self.permuted)


class Call:
    """The first result of an operation. Arguments are Leafs, Calls, and values."""

    __slots__ = ("operation", "args", "kwargs")

    def __init__(self, operation: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> None:
        self.operation = operation
        self.args = tuple(args)
        self.kwargs = kwargs

    @property
    def name(self) -> str:
        return CHEAP[self.operation]

    def leaves(self) -> List[Leaf]:
        found: List[Leaf] = []
        for each in self.args:
            if isinstance(each, Leaf):
                found.append(each)
            elif isinstance(each, Call):
                found += each.leaves()
        return found

    def is_fixed(self) -> bool:
        """Whether no argument is a number that may be another one in the next step; that of a norm
        is a setting of its module."""
        own = self.name in _NORMS or not any(
            isinstance(each, float) for each in (*self.args, *self.kwargs.values()))
        return own and all(each.is_fixed() for each in self.args if isinstance(each, Call))

    def of(self, value: Callable[[Leaf], Tensor]) -> Tensor:
        args = [value(each) if isinstance(each, Leaf) else
                each.of(value) if isinstance(each, Call) else each for each in self.args]
        result: Union[Tensor, Sequence[Tensor]] = self.operation(*args, **self.kwargs)
        return result if isinstance(result, Tensor) else result[0]


def computed(call: Call, value: Callable[[Leaf], Tensor]) -> Tensor:
    """Its result, whatever autocast, modes and hooks are in force."""
    with torch.no_grad(), torch._C._DisableAutocast(), unseen_by_modes():
        return call.of(value)


def _broadcast(shapes: Sequence[Sequence[int]]) -> List[int]:
    """As torch.broadcast_shapes(), which imports the compiler; only where they can be."""
    reached = [1] * max(map(len, shapes))
    for shape in shapes:
        for at, size in zip(range(len(reached) - len(shape), len(reached)), shape):
            if size != 1:
                reached[at] = size
    return reached


def row_of(call: Call, value: Callable[[Leaf], Tensor], part: float) -> Tuple[Tensor, int, int]:
    """A row of its result, how many elements are before it, and in the whole result.

    :param part: from 0, the first row, to 1, the last
    :raises RuntimeError: the arguments cannot be broadcast
    """
    values = {id(leaf): value(leaf) for leaf in call.leaves()}
    shape = _broadcast([each.shape for each in values.values()])
    places = [round(part * (size - 1)) for size in shape[:-1]]
    before, step = 0, shape[-1] if shape else 1
    for at, size in zip(reversed(places), reversed(shape[:-1])):
        before, step = before + at * step, step * size

    def row(leaf: Leaf) -> Tensor:
        tensor = values[id(leaf)]
        leading = tensor.dim() - 1
        if leading < 1:
            return tensor
        at = places[len(places) - leading:]
        sizes, strides = tensor.shape, tensor.stride()
        skipped = sum(place * strides[i] for i, place in enumerate(at) if sizes[i] > 1)
        return tensor.as_strided((*(1,) * leading, sizes[-1]), strides,
                                 tensor.storage_offset() + skipped)

    return computed(call, row), before, step
