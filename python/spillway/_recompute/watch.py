# SPDX-License-Identifier: MIT
# spillway/_recompute/watch.py - one step seen operation by operation: what is made of saved tensors
"""Autograd does not tell a hook which operation made the tensor that it saves. So one step is seen
through a dispatch mode, which notes the operation behind each storage, and each saved tensor is
looked up there. Nothing is held but a few of the tensors that were saved last."""
from __future__ import annotations

import collections
import contextlib
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from .._core.tensors import WeakStorage
from .._core.torch_compat import OwnMode, storage_of, unseen_by_modes
from .._offload.trial_saves import Held, is_same
from .._params.offloaded_param import held
from .expressions import CHEAP, Call, Leaf, Rows, Size, computed, differs

_DEPTH_MAX = 4     # operations in a row whose results are not saved
_CHAIN_MAX = 16    # of results in a row that are all discarded: one is computed within the next
_HELD_MAX = 8      # saved last; what they are made into is saved soon after
_PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.memory_format)


Kind = Tuple[torch.dtype, Size]


def kind_of(tensor: Tensor) -> Kind:
    """What a save has in all steps: its type, and the order of its dimensions in memory."""
    strided = tensor.layout is torch.strided and not tensor.is_nested
    strides = tensor.stride() if strided else ()
    return tensor.dtype, tuple(sorted(range(len(strides)), key=lambda i: -strides[i]))


class _Seen(NamedTuple):
    """A tensor as it was."""

    storage: int
    shape: Size
    stride: Size
    offset: int
    dtype: torch.dtype
    version: int


def _seen(tensor: Tensor) -> _Seen:
    return _Seen(storage_of(tensor)._cdata, tuple(tensor.shape), tensor.stride(),
                 tensor.storage_offset(), tensor.dtype, tensor._version)


class _Made(NamedTuple):
    """By what a storage was made: its operands are as _Seen, in place of tensors."""

    operation: Any
    args: Tuple[Any, ...]
    kwargs: Dict[str, Any]
    result: _Seen
    weak: List[WeakStorage]


class Recipe:
    """How a saved tensor is computed from others that are saved before it.

    :param first: the place of its first save; others of the same storage may follow
    :param cost_ns: of the operations, on the host; 0: not known
    """

    __slots__ = ("call", "first", "last", "dtype", "leaves", "length", "cost_ns", "depth",
                 "refused")

    def __init__(self, call: Call, first: int, tensor: Tensor, cost_ns: int, depth: int) -> None:
        self.call = call
        self.first = self.last = first
        self.dtype = tensor.dtype  # of all its saves
        self.leaves = sorted({leaf.place for leaf in call.leaves()})
        self.length = storage_of(tensor).nbytes()
        self.cost_ns = cost_ns
        self.depth = depth  # recipes in a row, of which each is computed from the last
        self.refused: Optional[str] = None

    @property
    def kind(self) -> Tuple[Any, ...]:
        """What may make the bytes of its result differ from one time to the next."""
        return self.call.names, self.dtype


def _is_whole(tensor: Tensor) -> bool:
    """Whether it has all of its storage, row after row."""
    return (tensor.is_contiguous() and tensor.storage_offset() == 0
            and storage_of(tensor).nbytes() == tensor.numel() * tensor.element_size())


def _permutation(of: _Seen, saved: _Seen) -> Optional[Size]:
    """The dimensions of an argument, of those of a saved tensor on the same memory."""
    if of.offset != saved.offset or len(of.shape) != len(saved.shape):
        return None
    left = list(enumerate(zip(saved.shape, saved.stride)))
    order = []
    for wanted in zip(of.shape, of.stride):
        found = next((each for each in left if each[1] == wanted), None)
        if found is None:
            return None
        left.remove(found)
        order.append(found[0])
    return tuple(order)


class Watch(OwnMode):
    """Of the forward pass of one step; pushed while the model runs.

    :param min_bytes: smaller tensors are kept in any case
    """

    def __init__(self, min_bytes: int) -> None:
        super().__init__()
        self.recipes: Dict[int, Recipe] = {}  # by the place of each save
        self.kinds: List[Kind] = []  # of all places
        self._min_bytes = max(1, min_bytes)
        self._made: Dict[int, _Made] = {}  # by the identity of the storage
        self._saved: Dict[int, List[Tuple[int, _Seen, WeakStorage]]] = {}  # the same
        self._of_storage: Dict[int, Recipe] = {}  # the same
        self._unread: List[Tuple[Recipe, Tensor]] = []  # whether the bytes differ: of devices
        self._held: "collections.OrderedDict[int, Held]" = collections.OrderedDict()

    # ---- Operations ------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.is_plain(types):
            return self.of_subclass(func, types, args, kwargs)
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        try:
            if func in CHEAP:
                self._note(func, args, kwargs, result)
            elif func._schema.is_mutable:
                self._forget(func, args, kwargs)
        except Exception:  # of a kind of tensor that shows less: training goes on
            self._made.clear()
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        first = result if isinstance(result, Tensor) else result[0]
        weak: List[WeakStorage] = [WeakStorage(first)]

        def noted(thing: Any) -> Any:
            if not isinstance(thing, Tensor):
                return thing
            weak.append(WeakStorage(thing))
            return _seen(thing)

        made = _Made(func, tuple(map(noted, args)), kwargs, _seen(first), weak)
        plain = all(isinstance(each, (*_PLAIN, _Seen)) or _is_row(each) for each in made.args) and (
            all(isinstance(each, _PLAIN) for each in kwargs.values()))
        if plain and _is_whole(first) and not any(map(_is_lazy, [first, *args])):
            self._made[made.result.storage] = made
        else:
            self._made.pop(made.result.storage, None)

    def _forget(self, func: Any, args: Any, kwargs: Any) -> None:
        """What is modified in place is not a result any more."""
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            thing = args[place] if place < len(args) else kwargs.get(argument.name)
            for tensor in thing if isinstance(thing, (list, tuple)) else [thing]:
                if isinstance(tensor, Tensor):
                    self._made.pop(storage_of(tensor)._cdata, None)

    # ---- What is saved ---------------------------------------------------------------------------

    def saved(self, tensor: Tensor) -> None:
        """The next place of the step. What is saved after the model has run is kept: by then all
        that it could be computed from has been let go of (Operations.forget())."""
        place = len(self.kinds)
        self.kinds.append(kind_of(tensor))
        if (self.is_pushed and type(tensor) in (Tensor, nn.Parameter)
                and tensor.layout is torch.strided):
            with contextlib.suppress(Exception), unseen_by_modes():
                self._saved_at(place, tensor)  # of a kind that shows less: it is kept

    def _saved_at(self, place: int, tensor: Tensor) -> None:
        if not _is_lazy(tensor):
            seen = _seen(tensor)
            if tensor.nbytes >= self._min_bytes:
                recipe = self._of_storage.get(seen.storage) or self._found(place, tensor, seen)
                if recipe is not None and recipe.dtype is tensor.dtype and seen.version == 0:
                    recipe.last = place
                    self.recipes[place] = self._of_storage[seen.storage] = recipe
            self._saved.setdefault(seen.storage, []).append((place, seen, WeakStorage(tensor)))
            self._held[place] = held(tensor)
            if len(self._held) > _HELD_MAX:
                self._held.popitem(last=False)

    def _found(self, place: int, tensor: Tensor, seen: _Seen) -> Optional[Recipe]:
        made = self._made.get(seen.storage)
        if made is None or seen.version != 0 or made.result.version != 0:
            return None  # or modified in place since
        call = self._call(made, place, 1)
        if call is None or not call.leaves() or not call.is_fixed():
            return None
        if any(leaf.place not in self._held for leaf in call.leaves()):
            return None
        return self._tried(call, place, tensor)

    def _call(self, made: _Made, place: int, depth: int) -> Optional[Call]:
        """Its operands are saved, or made of what is."""
        args: List[Any] = []
        for each in made.args:
            if isinstance(each, _Seen):
                each = self._leaf(each) or self._inner(each, place, depth)
                if each is None:
                    return None
            args.append(each)
        if CHEAP[made.operation] == "native_layer_norm" and len(made.args[1]) != 1:
            return None  # its rows are not along the last dimension
        return Call(made.operation, args, made.kwargs)

    def _inner(self, operand: _Seen, place: int, depth: int) -> Optional[Call]:
        made = self._made.get(operand.storage)
        if made is None or made.result != operand or depth == _DEPTH_MAX:
            return None
        return self._call(made, place, depth + 1)

    def _leaf(self, operand: _Seen) -> Optional[Leaf]:
        for place, seen, _ in reversed(self._saved.get(operand.storage, ())):
            if seen.version == operand.version and seen.dtype is operand.dtype:
                order = _permutation(operand, seen)
                if order is not None:
                    return Leaf(place, None if order == tuple(range(len(order))) else order)
        return None

    def _tried(self, call: Call, place: int, tensor: Tensor) -> Optional[Recipe]:
        """Computed once more here, and compared bit for bit."""
        def value(leaf: Leaf) -> Tensor:
            return leaf.of(self._held[leaf.place].unpack())

        began = time.perf_counter_ns()
        result = computed(call, value)
        cost_ns = time.perf_counter_ns() - began
        if not _is_whole(result):
            return None
        depth = 1 + max(self.recipes[leaf.place].depth if leaf.place in self.recipes else 0
                        for leaf in call.leaves())
        if depth > _CHAIN_MAX:
            return None
        again = result.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if tensor.is_cpu:
            if not is_same(again, tensor) or not Rows(call, value).are_in(tensor):
                return None
            return Recipe(call, place, tensor, cost_ns, depth)
        if again.dtype is not tensor.dtype:
            return None
        recipe = Recipe(call, place, tensor, 0, depth)
        self._unread.append(
            (recipe, differs(again, tensor) | Rows(call, value).differ_in(tensor)))
        return recipe

    def ended(self) -> Dict[int, Recipe]:
        """What was found, by the place of each save. Waits for what devices compared."""
        by_device: Dict[torch.device, List[Tuple[Recipe, Tensor]]] = {}
        for each in self._unread:
            by_device.setdefault(each[1].device, []).append(each)
        for found in by_device.values():
            answers = torch.stack([each[1] for each in found]).tolist()
            for (recipe, _), differ in zip(found, answers):
                if differ:
                    recipe.refused = "a second time its bytes differ"
        self._unread.clear()
        return {place: recipe for place, recipe in self.recipes.items() if recipe.refused is None}


def _is_lazy(thing: Any) -> bool:
    """Whether its elements are conjugated or negated when they are read."""
    return isinstance(thing, Tensor) and (thing.is_conj() or thing.is_neg())


def _is_row(thing: Any) -> bool:
    """A list of numbers."""
    return isinstance(thing, (list, tuple)) and all(isinstance(each, int) for each in thing)
