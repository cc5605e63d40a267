# SPDX-License-Identifier: MIT
# spillway/_params/offloaded_param.py - OnDrives: a parameter with bytes on drives, fetched on use
"""A parameter that goes to drives becomes an OnDrives, in place. PyTorch calls its class before
each function that gets one, so that its bytes are brought into memory and stay while the function
runs. PyTorch counts the views of it that live longer, and this file sees what is saved for the
backward pass. So no use finds an empty storage, in whatever way a parameter is used: by its module,
by another one, between steps, or by an optimizer of PyTorch.
"""
from __future__ import annotations

import collections
import functools
import inspect
import sys
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Union

import torch
from torch import Tensor, nn

from .._core.tensors import raise_modified
from .._core.torch_compat import (SavedTensorsHooks, innermost_function, is_compiling,
                                  without_torch_function)
from .residency import Memory, place_of

OLDEST = "2.1"

_COMPILED = "torch.compile traces a parameter on drives, and runs what uses it uncompiled"

# Attributes of a tensor that give access to its bytes.
_OF_BYTES = {"data", "T", "mT", "H", "mH", "real", "imag"}
_WITHOUT_BYTES = (
    "size stride dim ndimension numel nelement element_size is_contiguous storage_offset "
    "untyped_storage is_floating_point is_complex is_signed get_device has_names is_conj is_neg "
    "is_inference is_same_size requires_grad_ register_hook register_post_accumulate_grad_hook "
    "retain_grad __hash__ __len__ _is_view").split()
_FUNCTIONS_WITHOUT_BYTES = ("is_floating_point is_complex numel is_same_size is_conj is_neg "
                            "is_inference _has_compatible_shallow_copy_type").split()
_SET = ("grad", "requires_grad", "names", "_grad", "_backward_hooks", "_post_accumulate_grad_hooks")


def _without_bytes() -> Set[Any]:
    """The functions that need only metadata of a tensor, not its bytes."""
    found: Set[Any] = set()
    for name in dir(Tensor):
        static = inspect.getattr_static(Tensor, name)
        if inspect.isgetsetdescriptor(static) and name not in _OF_BYTES:
            found.add(static.__get__)
        if inspect.isgetsetdescriptor(static) and name in _SET:
            found.update((static.__set__, static.__delete__))
    found.update(getattr(Tensor, name) for name in _WITHOUT_BYTES if hasattr(Tensor, name))
    found.update(getattr(torch, name) for name in _FUNCTIONS_WITHOUT_BYTES if hasattr(torch, name))
    return found


_NEED_NO_BYTES = _without_bytes()
_MAKES_PARAMETERS = nn.Parameter.__new__.__code__
_GIVE_ADDRESSES = {Tensor.data_ptr}


def makes_parameter(func: Any) -> bool:
    """Whether nn.Parameter(parameter) is what has called the function of a class that calls this:
    it asks for a tensor of the same class."""
    return func is Tensor.detach and sys._getframe(2).f_code is _MAKES_PARAMETERS


# The classes of tensors whose bytes belong to a place.
CLASSES: Set[Any] = set()


def needs_no_bytes(func: Any) -> bool:
    return func in _NEED_NO_BYTES


class OnDrives(nn.Parameter):
    """A parameter with bytes on drives. ``_spillway_place``: where they are; None for a copy,
    which is an ordinary parameter."""

    _spillway_place: Optional[Memory] = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _NEED_NO_BYTES:
            with without_torch_function():
                return func(*args, **kwargs)
        if func is torch.autograd.grad:
            return _grad(*args, **kwargs)
        if _goes_on(func):
            return func(*_as_views(args), **_as_views(kwargs))
        if makes_parameter(func):
            return _alias(_run(func, args, kwargs, gathered(args, kwargs)))
        others = tuple(each for each in types if not each.__module__.startswith("spillway."))
        return _run(func, args, kwargs, gathered(args, kwargs),
                    functools.partial(_asked, others, func) if others else None)

    def __deepcopy__(self, memo: Dict[int, Any]) -> Any:
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.data.clone(memory_format=torch.preserve_format),
                                          self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, _: Any) -> Any:
        return (torch._utils._rebuild_parameter,  # type: ignore[attr-defined]
                (self.data, self.requires_grad, collections.OrderedDict()))


def _alias(tensor: Any) -> Any:
    """A parameter that has the memory of one on drives, which stays where it is for as long."""
    tensor.__class__ = OnDrives
    return tensor


def as_parameter(tensor: Any) -> None:
    """An alias, of one that is not on drives any more."""
    if type(tensor) is OnDrives and tensor._spillway_place is None:
        tensor.__class__ = nn.Parameter
        tensor.__dict__.pop("_is_param", None)


def _grad(outputs: Any, inputs: Any, *args: Any, materialize_grads: bool = False,
          **kwargs: Any) -> Any:
    """Call torch.autograd.grad() with gradient edges instead of parameters: it may recompute
    modules, which must not run inside a function of the parameters."""
    def edge(thing: Any) -> Any:
        if type(thing) is OnDrives and thing.requires_grad:
            return torch.autograd.graph.get_gradient_edge(thing)
        return thing

    inputs = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    found = torch.autograd.grad(outputs, tuple(map(edge, inputs)), *args, **kwargs)
    if not materialize_grads:
        return found
    zeros = functools.partial(torch.zeros_like, requires_grad=kwargs.get("create_graph", False))
    return tuple(zeros(one) if grad is None else grad for grad, one in zip(found, inputs))


def _goes_on(func: Any) -> bool:
    """Whether the memory is used after a function has returned: by a collective that is waited for
    later, or by those who get what DLPack exports."""
    return (func is Tensor.__dlpack__
            or getattr(func, "__module__", None) == "torch.distributed.distributed_c10d")


def _as_views(thing: Any) -> Any:
    """What stays in memory for as long as something has it, in place of parameters."""
    if type(thing) in CLASSES and thing._spillway_place is not None:
        return thing.detach().requires_grad_(thing.requires_grad)
    if type(thing) in (tuple, list):
        return type(thing)(map(_as_views, thing))
    if type(thing) is dict:
        return {key: _as_views(item) for key, item in thing.items()}
    return thing


def _asked(others: Tuple[Any, ...], func: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function by the classes of its other arguments, as PyTorch does where parameters have
    none of their own."""
    for each in others:
        result = each.__torch_function__(func, others, args, kwargs)
        if result is not NotImplemented:
            return result
    return NotImplemented


CLASSES.add(OnDrives)


def gathered(*things: Any) -> List[Any]:
    """The parameters among these arguments that have a place."""
    found: List[Any] = []
    for thing in things:
        _gather(thing, found)
    return found


def _gather(thing: Any, into: List[Any]) -> None:
    if type(thing) in CLASSES:
        if thing._spillway_place is not None:
            into.append(thing)
    elif isinstance(thing, (tuple, list)):
        for item in thing:
            _gather(item, into)
    elif isinstance(thing, dict):
        for item in thing.values():
            _gather(item, into)


def call_with(func: Any, args: Any, kwargs: Any) -> Any:
    """Call a function of PyTorch that asks no class, with what may be parameters."""
    params = gathered(args, kwargs)
    return _run(func, args, kwargs, params) if params else func(*args, **kwargs)


def _run(func: Any, args: Any, kwargs: Any, params: List[Any],
         ask: Optional[Callable[..., Any]] = None) -> Any:
    """Call a function of parameters, while their bytes are in memory.

    :param ask: is called instead, with the classes of other arguments in force
    """
    places: List[Memory] = [param._spillway_place for param in params]
    owners = {place.owner: None for place in places}
    uses: List[Any] = []
    try:
        for owner in owners:
            uses.append(owner.hold(place for place in places if place.owner is owner))
        if ask is not None:
            return _saving(ask, args, kwargs, places)
        with without_torch_function():
            return _saving(func, args, kwargs, places)
    finally:
        for place in places:
            place.was_given(func, func in _GIVE_ADDRESSES)
        for param, place in zip(params, places):
            _follow(param, place)  # while its memory is held, which only others may have by now
        uses.clear()
        for owner in owners:
            owner.released()


def _follow(param: Any, place: Memory) -> None:
    """Notice that the parameter was given other memory, as by setting ``data``."""
    with without_torch_function():
        if not place.fits(getattr(param, "_local_tensor", param)):
            if is_compiling():  # it is a stand-in for the parameter
                raise RuntimeError(_COMPILED)
            place.owner.moved(param, place)


# ---- What is saved for the backward pass ---------------------------------------------------------


class Saved:
    """A parameter, or a view of it, that autograd has saved; its use brings the bytes into
    memory.

    :param counts: refuse what was changed since, as autograd does where there are no hooks
    """

    __slots__ = ("_counts", "_place", "_tensor", "_version", "__weakref__")

    def __init__(self, place: Memory, tensor: Tensor, counts: bool = True) -> None:
        self._place = place
        self._counts = counts
        self._version = tensor._version
        if isinstance(tensor, OnDrives):
            self._tensor: Tensor = tensor
        else:
            self._tensor = tensor.detach()
            place.note_view(self)

    def is_modified(self) -> bool:
        return self._counts and self._tensor._version != self._version

    def unpack(self) -> Tensor:
        """Return a new tensor each time: the bytes stay in memory while it exists."""
        place = self._place
        if self.is_modified():
            raise_modified(self._tensor, self._tensor._version, self._version)
        use = place.owner.hold([place])
        try:
            with without_torch_function():
                return self._tensor.detach()
        finally:
            del use
            place.owner.released()


class Kept:
    """Another tensor saved when there are no outer hooks: kept as autograd would keep it."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: Tensor) -> None:
        # Detach an output: it would hold its own node and never be freed.
        self._tensor = tensor if tensor.is_leaf and tensor.requires_grad else tensor.detach()
        self._version = tensor._version

    def is_modified(self) -> bool:
        return self._tensor._version != self._version

    def unpack(self) -> Tensor:
        if self.is_modified():
            raise_modified(self._tensor, self._tensor._version, self._version)
        return self._tensor


def held(tensor: Tensor) -> Union[Saved, Kept]:
    """A tensor, to be unpacked later. Of a parameter on drives no memory is held meanwhile."""
    place = place_of(tensor)
    return Kept(tensor) if place is None else Saved(place, tensor)


class _StandIn(Tensor):
    """What PyTorch's checkpoints get to save of a parameter. They keep what their second run saves
    until it is used, all that they recompute at once: this has no memory."""

    saved: Saved
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def of(cls, tensor: Tensor, saved: Saved) -> Tensor:
        made: Any = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, tensor.shape, strides=tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        made.saved = saved
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls.of(args[0], args[0].saved)
        raise NotImplementedError(f"{func} of a parameter on drives that a checkpoint has saved")


class _Others:
    """A saved tensor as packed by the outer hooks. Where these return the tensor itself, and it is
    a parameter's, no memory is held."""

    __slots__ = ("_packed", "_unpack")

    def __init__(self, tensor: Tensor, place: Optional[Memory], hooks: Tuple[Any, Any]) -> None:
        pack, self._unpack = hooks
        given = tensor
        if place is not None and _is_of_checkpoint(pack):
            given = _StandIn.of(tensor, Saved(place, tensor, counts=False))
        self._packed = pack(given)
        if place is not None and self._packed is tensor:
            self._packed = Saved(place, tensor, counts=False)

    def unpack(self) -> Tensor:
        packed = self._packed
        tensor = self._unpack(packed.unpack() if isinstance(packed, Saved) else packed)
        if isinstance(tensor, _StandIn):
            return tensor.saved.unpack()
        if isinstance(tensor, OnDrives) and tensor._spillway_place is not None:
            return Saved(tensor._spillway_place, tensor, counts=False).unpack()
        return tensor


def _is_of_checkpoint(pack: Any) -> bool:
    return getattr(pack, "__module__", None) == "torch.utils.checkpoint"


def _copies(pack: Any, tensor: Tensor) -> bool:
    """Whether it is save_on_cpu(), which would copy each parameter of a device to the host."""
    name = f"{getattr(pack, '__module__', '')}.{getattr(pack, '__qualname__', '')}"
    return name.startswith("torch.autograd.graph.save_on_cpu.") and not tensor.is_cpu


def _unpack(packed: Any) -> Tensor:
    tensor: Tensor = packed.unpack()
    return tensor


def _hooks_of(below: Optional[Tuple[Any, Any]]) -> SavedTensorsHooks:
    def pack(tensor: Tensor) -> Any:
        place = tensor._spillway_place if isinstance(tensor, OnDrives) else place_of(tensor)
        if below is not None and not (place is not None and _copies(below[0], tensor)):
            return _Others(tensor, place, below)
        return Kept(tensor) if place is None else Saved(place, tensor)

    return SavedTensorsHooks(pack, _unpack)


def _see_parameters(pack: Any) -> bool:
    """Whether these hooks are the package's own, which handle parameters already."""
    owner = getattr(pack, "__self__", None)
    module = getattr(pack if owner is None else type(owner), "__module__", None)
    return str(module).startswith("spillway.")


def _saving(func: Any, args: Any, kwargs: Any, places: List[Memory]) -> Any:
    below = innermost_function(False) if torch.is_grad_enabled() else None
    if not torch.is_grad_enabled() or (below is not None and _see_parameters(below[0])):
        return func(*args, **kwargs)
    hooks = _hooks_of(below)
    try:
        try:
            hooks.push()
        except RuntimeError:  # PyTorch allows no hooks here, so saved parameters cannot be seen
            for place in places:
                place.pinned = True
        return func(*args, **kwargs)
    finally:
        hooks.pop()
