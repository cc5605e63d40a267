# SPDX-License-Identifier: MIT
# spillway/_recompute/expressions.py - a tensor as the result of cheap operations on others
"""Which operations are cheap enough to run a second time for each tensor, and how a result is
computed once more. All of them are functions of their arguments alone: they draw no random numbers
and modify nothing. All work on rows, along the last dimensions, so that one row of a result can be
computed from one row of the arguments."""
from __future__ import annotations

import itertools
import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from .._core.torch_compat import storage_of, unseen_by_modes
from .._offload.trial_saves import bits_of, is_same

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

    @property
    def names(self) -> Tuple[str, ...]:
        """Of all its operations, the last one first."""
        inner = (each.names for each in self.args if isinstance(each, Call))
        return (self.name, *itertools.chain.from_iterable(inner))

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


_PARTS = 0, 0.25, 0.5, 0.75, 1  # rows: the first, the last, and between them

# The most elements that PyTorch computes at once, of one byte each. Those that are left at the end
# it computes one by one, which may give other bits.
_AT_ONCE = 128


class Rows:
    """A few rows of a result, computed from those rows of its arguments alone.

    ``count``: elements of the whole result

    :raises RuntimeError: the arguments cannot be broadcast
    """

    __slots__ = ("count", "_call", "_values", "_width", "_row_offsets", "_where", "_padding")

    def __init__(self, call: Call, value: Callable[[Leaf], Tensor]) -> None:
        self._call = call
        self._values = {id(leaf): value(leaf) for leaf in call.leaves()}
        *leading, self._width = _broadcast([each.shape for each in self._values.values()]) or [1]
        self._where = list(dict.fromkeys(
            tuple(round(part * (size - 1)) for size in leading) for part in _PARTS))
        self._row_offsets = []
        for places in self._where:
            row = 0
            for at, size in zip(places, leading):
                row = row * size + at
            self._row_offsets.append(row * self._width)
        rows = math.prod(leading)
        self.count = rows * self._width
        # As many elements are left at the end as in the whole result.
        self._padding = (rows - len(self._where)) % _AT_ONCE if self._width % _AT_ONCE else 0

    def _of(self, leaf: Leaf) -> Tensor:
        """The rows of an argument, one after another."""
        tensor = self._values[id(leaf)]
        *leading, width = tensor.shape or (1,)
        if not leading:
            return tensor
        strides, offset = tensor.stride(), tensor.storage_offset()
        ones = (1,) * (len(leading) - 1)
        steps = [stride if size > 1 else 0 for size, stride in zip(leading, strides)]
        parts, repeated = [], 1 + self._padding
        for places in self._where:
            at = places[len(places) - len(leading):]
            skipped = sum(place * step for place, step in zip(at, steps))
            parts.append(tensor.as_strided((repeated, *ones, width), (0, *strides[1:]),
                                           offset + skipped))
            repeated = 1
        return torch.cat(parts)

    def are_in(self, tensor: Tensor) -> bool:
        """Whether they are the same, bit for bit, in a tensor on all of the result."""
        both = self._both(tensor)
        return both is not None and is_same(*both)

    def differ_in(self, tensor: Tensor) -> Tensor:
        """The same on a device, without waiting for it: whether they are not."""
        both = self._both(tensor)
        if both is None:
            return torch.ones((), dtype=torch.bool, device=tensor.device)
        return differs(*both)

    def _both(self, tensor: Tensor) -> Optional[Tuple[Tensor, Tensor]]:
        """Computed, and in the tensor; None: they cannot be compared."""
        if self.count == 0 or self.count * tensor.element_size() != storage_of(tensor).nbytes():
            return None
        rows = computed(self._call, self._of)
        if rows.dtype is not tensor.dtype:
            return None
        saved_rows = [tensor.as_strided((1, self._width), (self._width, 1), offset)
                      for offset in self._row_offsets]
        return rows.reshape(-1, self._width)[self._padding:], torch.cat(saved_rows)


def differs(one: Tensor, other: Tensor) -> Tensor:
    """Whether a bit of two tensors of one type and shape does, where they are."""
    return torch.ne(bits_of(one), bits_of(other)).any()
