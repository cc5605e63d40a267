# SPDX-License-Identifier: MIT
# spillway/_grads/stored_placeholder.py - StoredGradient: placeholder of a gradient on drives
"""Between a backward pass and a step PyTorch does little with gradients: it adds the next one,
scales or clips all elements, and asks for a norm and whether all are finite. A tensor without
memory that can do these is accepted as a gradient by autograd, ``clip_grad_norm_``, ``GradScaler``,
DistributedDataParallel and DTensor. Any other use raises an error that says what to do.
"""
from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, Protocol, Set, Tuple

import torch
from torch import Tensor

from .departures import Departure

_aten: Any = torch.ops.aten
_UNREADABLE = (
    "this gradient is on drives, where gradients=True has written it: it can be accumulated, "
    "clipped, multiplied, unscaled by a GradScaler, set to zero and dropped (zero_grad()), but not "
    "be used for {}")

# A question about a gradient: a function of it, and the function's other arguments.
Question = Tuple[Any, Tuple[Any, ...], Tuple[Tuple[str, Any], ...]]


class Owner(Protocol):
    """The interface of what holds the gradients. Its functions raise RuntimeError for a gradient
    that was replaced or dropped."""

    def check(self, gradient: Gradient) -> None:
        ...

    def add(self, gradient: Gradient, other: Tensor) -> None:
        ...

    def answer(self, gradient: Gradient, question: Question) -> Tensor:
        ...

    def value(self, gradient: Gradient) -> Tensor:
        ...


class Gradient:
    """The gradient of a parameter, or of this rank's part of one.

    ``held``: the whole gradient in memory, until it is written into the records of ``left``. If
    ``adds``, the tensor to be added to these records instead. ``departure``: the copy of ``held``
    in host memory, which may still be in flight; then only memory() may read it.
    ``later``: elementwise functions that were called since the last addition; not applied yet.
    ``answers``: results of queries such as isfinite(), dropped when an element changes.
    """

    __slots__ = ("number", "owner", "held", "departure", "device", "adds", "left", "later",
                 "answers", "shape", "strides", "__weakref__")

    def __init__(self, number: int, owner: Owner, held: Tensor, records: Iterable[str]) -> None:
        self.number = number
        self.owner = weakref.ref(owner)
        self.held: Optional[Tensor] = held
        self.departure: Optional[Departure] = None
        self.device = held.device
        self.adds = False
        self.left: Set[str] = set(records)
        self.later: List[Callable[[Tensor], Any]] = []
        self.answers: Dict[Question, Tensor] = {}
        self.shape, self.strides = held.shape, held.stride()

    def hold(self, held: Optional[Tensor]) -> None:
        self.held, self.departure = held, None

    def departs(self, departure: Departure) -> None:
        """What is held is the host's memory from now on."""
        self.held, self.departure = departure.memory, departure

    def memory(self) -> Tensor:
        """What is held; waits until it is there."""
        assert self.held is not None
        return self.held if self.departure is None else self.departure.land()

    def has_landed(self) -> bool:
        return self.departure is None or self.departure.has_landed()

    def here(self) -> Owner:
        """:raises RuntimeError: the gradient was replaced or dropped, or its optimizer is gone"""
        owner = self.owner()
        if owner is None:
            raise RuntimeError("the optimizer that had this gradient on drives is gone")
        owner.check(self)
        return owner

    def change(self, function: Callable[[Tensor], Any]) -> None:
        """Apply an elementwise function later, when the gradient is read."""
        self.here()
        self.later.append(function)
        self.answers.clear()

    def set_to_zero(self) -> None:
        """Likewise; what was there is not read any more."""
        self.here()
        self.later, self.answers = [Tensor.zero_], {}

    @property
    def is_of_zeros(self) -> bool:
        """Whether it was set to zero, and perhaps changed since."""
        return self.later[:1] == [Tensor.zero_]


def is_finite(tensor: Tensor) -> Tensor:
    """Whether all elements are finite, computed without memory per element."""
    if tensor.numel() == 0:
        return torch.ones((), dtype=torch.bool, device=tensor.device)
    least, most = torch.aminmax(tensor)
    return torch.isfinite(least) & torch.isfinite(most)


class StoredGradient(Tensor):
    """A tensor without memory, the ``grad`` of a parameter or inside a DTensor there."""

    gradient: Gradient

    @staticmethod
    def __new__(cls: Any, gradient: Gradient, like: Tensor) -> StoredGradient:
        make: Any = Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
        stored: StoredGradient = make(cls, gradient.shape, strides=gradient.strides,
                                      dtype=like.dtype, device=like.device, layout=like.layout)
        stored.gradient = gradient
        return stored

    def __init__(self, gradient: Gradient, like: Tensor) -> None:
        pass

    def __repr__(self, **_: Any) -> str:
        return f"<a gradient of {tuple(self.shape)} on drives>"

    def __reduce_ex__(self, _: Any) -> Any:
        raise RuntimeError(_UNREADABLE.format("a copy or a file"))

    def __deepcopy__(self, _: Any) -> Any:
        raise RuntimeError(_UNREADABLE.format("a copy or a file"))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        able = _ABLE.get(func)
        if able is None:
            raise RuntimeError(_UNREADABLE.format(func))
        return able(func, *args, **(kwargs or {}))


def _unreadable(func: Any) -> RuntimeError:
    return RuntimeError(_UNREADABLE.format(func))


def _add(func: Any, stored: Any, other: Any, **more: Any) -> Any:
    """Add a gradient to the stored one, as autograd accumulates."""
    if (more or not isinstance(stored, StoredGradient) or isinstance(other, StoredGradient)
            or other.shape != stored.shape or other.layout is not torch.strided):
        raise _unreadable(func)
    stored.gradient.here().add(stored.gradient, other)
    return stored


def _elementwise(func: Any, stored: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply a function whose other arguments are the same for all elements."""
    given = [*args, *kwargs.values()]
    if not isinstance(stored, StoredGradient) or any(
            isinstance(value, (list, tuple)) or isinstance(value, Tensor) and
            (isinstance(value, StoredGradient) or value.dim() > 0) for value in given):
        raise _unreadable(func)
    # Copy tensors among the arguments: they may change before the function is applied.
    args = tuple(value.clone() if isinstance(value, Tensor) else value for value in args)

    def change(tensor: Tensor) -> None:
        func(tensor, *(value.to(tensor.device) if isinstance(value, Tensor) else value
                       for value in args), **kwargs)

    stored.gradient.change(change)
    return stored


def _zero(func: Any, stored: Any) -> Any:
    stored.gradient.set_to_zero()
    return stored


def _norm(func: Any, stored: Any, *args: Any, **kwargs: Any) -> Tensor:
    hashable = tuple(tuple(value) if isinstance(value, list) else value for value in args)
    question = func, hashable, tuple(sorted(kwargs.items()))
    return stored.gradient.here().answer(stored.gradient, question)


class _OfOne:
    """A function of a single tensor, made of a function of a list of tensors."""

    def __init__(self, func: Any) -> None:
        self.func = func

    def __call__(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        found = self.func([tensor], *args, **kwargs)
        return None if found is None else found[0]


def _each(func: Any, able: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a list of tensors, only some of which are placeholders; DTensor calls these."""
    of_one = _OfOne(func)

    def each(_: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        found = [able(of_one, tensor, *args, **kwargs) if isinstance(tensor, StoredGradient)
                 else of_one(tensor, *args, **kwargs) for tensor in tensors]
        return found if able is _norm else None

    return each


def _copy(func: Any, into: Any, stored: Any, non_blocking: bool = False) -> Any:
    """Copy the values into memory, as DistributedDataParallel does before it reduces."""
    if isinstance(into, StoredGradient):
        raise _unreadable(func)
    return into.copy_(stored.gradient.here().value(stored.gradient), non_blocking)


def _again(func: Any, stored: Any, size: Any = None) -> Any:
    """The same gradient, in the same shape: what a DTensor's to_local() does."""
    if size is not None and tuple(size) != tuple(stored.shape):
        raise _unreadable(func)
    return StoredGradient(stored.gradient, stored)


def _unscale(func: Any, tensors: Any, found_inf: Tensor, inv_scale: Tensor) -> None:
    """Unscale gradients in a list, as a GradScaler does."""
    for tensor in tensors:
        if not isinstance(tensor, StoredGradient):
            func([tensor], found_inf, inv_scale)
            continue
        gradient = tensor.gradient
        if not gradient.here().answer(gradient, (is_finite, (), ())):
            found_inf.fill_(1.0)
        gradient.change(_unscaling(func, inv_scale.clone()))


def _unscaling(func: Any, inv_scale: Tensor) -> Callable[[Tensor], Any]:
    def change(tensor: Tensor) -> None:
        scale = inv_scale.to(tensor.device)
        func([tensor], torch.zeros_like(scale), scale)

    return change


_OF_LISTS: Dict[str, Callable[..., Any]] = {
    "_foreach_norm.Scalar": _norm,
    "_foreach_zero_.default": _zero,
    "_foreach_mul_.Tensor": _elementwise,
    "_foreach_mul_.Scalar": _elementwise,
    "_foreach_clamp_min_.Scalar": _elementwise,
    "_foreach_clamp_max_.Scalar": _elementwise,
}
_ABLE: Dict[Any, Callable[..., Any]] = {
    _aten.add_.Tensor: _add,
    _aten.linalg_vector_norm.default: _norm,
    _aten.copy_.default: _copy,
    _aten.zero_.default: _zero,
    _aten.detach.default: _again,
    _aten.view.default: _again,
    **dict.fromkeys((_aten.mul_.Tensor, _aten.mul_.Scalar, _aten.div_.Tensor, _aten.div_.Scalar,
                     _aten.clamp_.default), _elementwise),
}
for _name, _able in _OF_LISTS.items():  # not every version of PyTorch has all of them
    _packet, _, _overload = _name.partition(".")
    _func = getattr(getattr(_aten, _packet, None), _overload, None)
    if _func is not None:
        _ABLE[_func] = _each(_func, _able)
if hasattr(_aten, "_amp_foreach_non_finite_check_and_unscale_"):
    _ABLE[_aten._amp_foreach_non_finite_check_and_unscale_.default] = _unscale
