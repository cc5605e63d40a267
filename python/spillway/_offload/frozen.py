# SPDX-License-Identifier: MIT
# spillway/_offload/frozen.py - copies of frozen weights, which are not activations
"""Autocast makes a copy in another type of each frozen weight, and a quantized layer one that it
can compute with: in each step, and autograd saves them. They are the same in every step, so they
stay in memory, as they do without spillway, and are never written.

Nothing tells a hook what a tensor was made of. So one step is seen through a dispatch mode, which
follows what is made of frozen weights and of constants alone. From then on such a copy is known by
its type, shape and strides: an activation that is taken for one stays in memory, no more."""
from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Set, Tuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .._core.library import bytes_text
from .._core.scopes import identities, tensors_in
from .._core.tensors import WeakStorage
from .._core.torch_compat import (OwnMode, has_compiled, is_before, is_compiled, is_compiling,
                                  storage_of, unseen_by_modes, watcher_now)
from ..report import percent_text

if TYPE_CHECKING:
    from .session import Packer, Session

_WATCHES_MAX = 8  # steps that are watched: one each time that other parameters are trained

_Kind = Tuple[torch.dtype, Tuple[int, ...], Tuple[int, ...]]


def _bytes_in(tensors: Iterable[Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def _weights_of(model: nn.Module) -> Iterable[Tensor]:
    return itertools.chain(model.parameters(), model.buffers())


def frozen_of(model: nn.Module) -> List[Tensor]:
    """Parameters that are not trained; and buffers, where these are more than what is trained, as
    those of packed weights: those of other models are statistics and masks."""
    trained = [each for each in model.parameters() if each.requires_grad]
    frozen: List[Tensor] = [each for each in model.parameters() if not each.requires_grad]
    buffers = list(model.buffers())
    return frozen + (buffers if _bytes_in(buffers) > _bytes_in(trained) else [])


class _Watch(OwnMode):
    """What is made of frozen weights, and of constants."""

    def __init__(self, frozen: Set[int]) -> None:
        super().__init__()
        self.frozen = frozen  # storages, by their identity
        self._constant: Set[int] = set()  # the same
        self._weak: Dict[int, WeakStorage] = {}  # of what was made

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """PyTorch: what is compiled meanwhile, as by torch.cond(), is compiled as ever. What it
        does is not seen, and no copies."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.is_plain(types):
            return self.of_subclass(func, types, args, kwargs)
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if is_compiling():  # torch.cond() does, and would compile what follows
            return result
        # Of a kind of tensor that shows less: what is made of it is an activation.
        with contextlib.suppress(Exception):
            self._note(func, args, kwargs, result)
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        given = list(tensors_in((args, kwargs)))
        keys = {storage_of(each)._cdata for each in given if each.dim() > 0}
        is_known = (keys <= self.frozen | self._constant
                    and torch.Tag.nondeterministic_seeded not in func.tags
                    and not any(each.requires_grad for each in given))
        is_frozen = is_known and bool(keys & self.frozen)
        for tensor in itertools.chain(tensors_in(result), _written(func, args, kwargs)):
            key = storage_of(tensor)._cdata
            if key in keys and not func._schema.is_mutable:
                continue  # a view
            self.frozen.discard(key)
            self._constant.discard(key)
            if is_known:
                self._weak[key] = WeakStorage(tensor)
                (self.frozen if is_frozen else self._constant).add(key)


def _written(func: Any, args: Any, kwargs: Any) -> Iterable[Tensor]:
    """What an operation modifies in place."""
    if func._schema.is_mutable:
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield from tensors_in(
                    args[place] if place < len(args) else kwargs.get(argument.name))


class FrozenCopies:
    """Those that a step saves, of an Offload.

    :param min_bytes: smaller tensors are kept in any case
    """

    def __init__(self, min_bytes: int) -> None:
        self.operations: Optional["Packer"] = None  # saves all others; None: the session does
        self.base_bytes = 0  # of the frozen weights themselves
        self._last_bytes = 0  # of copies, in the last step that ended
        self._bytes = 0       # in this one
        self._min_bytes = max(1, min_bytes)
        self._kinds: Set[_Kind] = set()
        self._watch: Optional[_Watch] = None
        self._watched: Set[Tuple[bool, ...]] = set()
        self._is_needed = not is_before("2.1")

    def step_begins(self) -> None:
        self._last_bytes, self._bytes = self._bytes, 0

    @property
    def step_bytes(self) -> int:
        """Of copies, in a step."""
        return max(self._last_bytes, self._bytes)

    def words(self, step_bytes: int) -> str:
        """What they come to; "": there are none. @step_bytes: of activations without spilling"""
        if not self.step_bytes:
            return ""
        return (f"copies of frozen weights, {bytes_text(self.step_bytes)} in a step "
                f"({percent_text(self.step_bytes, step_bytes)} of its activations), stayed in "
                "memory and were not written: autocast, or a quantized layer, makes them of "
                f"{bytes_text(self.base_bytes)} of frozen weights. Weights that are loaded in the "
                "type that they are computed in, such as bfloat16, need none")

    def packer(self, operations: Optional["Packer"]) -> Optional["Packer"]:
        """What saves tensors: where there are no copies, what saves all others."""
        self.operations = operations
        return self if self._kinds or self._watch is not None else operations

    def watch_begins(self, model: nn.Module, trained: Tuple[bool, ...]) -> bool:
        """The model is called. @trained: of each parameter, whether it is.

        :return: whether it is watched
        """
        if (not self._is_needed or trained in self._watched or self._watch is not None
                or watcher_now() is not None or any(map(is_lazy, _weights_of(model)))):
            return False
        self._is_needed = len(self._watched) + 1 < _WATCHES_MAX
        self._watched.add(trained)
        frozen = frozen_of(model)
        self.base_bytes = _bytes_in(frozen)
        if (self.base_bytes < self._min_bytes or has_compiled()
                or any(map(is_compiled, model.modules()))):
            return False
        self._watch = _Watch(identities(frozen))
        self._watch.push()
        return True

    def watch_ends(self) -> bool:
        """The model has run. Return: whether it was watched, in this thread."""
        if self._watch is None or not self._watch.pop():
            return False
        self._watch = None
        return True

    def pack(self, session: "Session", tensor: Tensor) -> Any:
        """What autograd keeps."""
        kind = None if tensor.requires_grad else self._kind_of(session, tensor)
        if kind is None:
            return self._saved(session, tensor)
        self._kinds.add(kind)
        self._bytes += tensor.numel() * tensor.element_size()
        session.excluding += 1
        try:
            return self._saved(session, tensor)
        finally:
            session.excluding -= 1

    def input(self, session: "Session", tensor: Tensor) -> Any:
        """What a scope that has run keeps of an input; None: the session saves it."""
        return None if self.operations is None else self.operations.input(session, tensor)

    def _saved(self, session: "Session", tensor: Tensor) -> Any:
        if self.operations is None:
            return session.save(tensor)
        return self.operations.pack(session, tensor)

    def _kind_of(self, session: "Session", tensor: Tensor) -> Optional[_Kind]:
        """Of a copy of frozen weights; None: it is not one."""
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
            return None
        kind = tensor.dtype, tuple(tensor.shape), tensor.stride()
        if kind not in self._kinds and not self._is_seen(tensor):
            return None
        with contextlib.suppress(RuntimeError, NotImplementedError):
            return None if storage_of(tensor)._cdata in session.excluded else kind
        return None

    def _is_seen(self, tensor: Tensor) -> bool:
        """Whether it is known by the watch."""
        if self._watch is None or tensor.numel() * tensor.element_size() < self._min_bytes:
            return False
        with contextlib.suppress(RuntimeError, NotImplementedError), unseen_by_modes():
            return storage_of(tensor)._cdata in self._watch.frozen
        return False
