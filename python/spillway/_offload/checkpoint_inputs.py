# SPDX-License-Identifier: MIT
# spillway/_offload/checkpoint_inputs.py - what checkpoints get in keyword arguments and containers
"""A non-reentrant checkpoint saves its positional tensors, so hooks see them. What it gets in
keyword arguments, tuples, lists, dicts and functools.partial it keeps as it is, in memory:
checkpoint(layer, hidden_states=x) would spill nothing. Here such activations are saved as the
positional ones are.

Only activations: masks and position embeddings need no gradient, and all layers share them. PyTorch
recomputes from what the arguments contain then, and any code that holds one may change it until
then. So it is saved when the next checkpoint begins, and only if nothing else refers to it by then.
"""
from __future__ import annotations

import collections
import functools
import inspect
import sys
import threading
import weakref
from typing import Any, Callable, Dict, Iterator, Optional, Set, Tuple

import torch
from torch import Tensor

from .._core.scopes import tensors_in
from .._core.torch_compat import is_compiling, storage_uses, unseen_by_modes

_NAME = "_checkpoint_without_reentrant_generator"
_INSTALLED = "_spillway_saves_inputs"

_TRIES = 4  # to save one: what else is saved of it may be on its way out of memory until then

# .owner: a weak reference to whose hooks save; .held: by identity, weak references to what
# checkpoints hold and is not saved yet
_waiting = threading.local()
_storage_references: Optional[Callable[[int], int]] = (
    storage_uses if hasattr(Tensor, "_use_count") else None)


class _Save(torch.autograd.Function):
    """Its node holds a tensor as autograd saves it: through the hooks. No backward pass reaches
    it."""

    @staticmethod
    def forward(ctx: Any, _tracked: Tensor, tensor: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(tensor)
        return torch.empty(0, dtype=torch.float32, device="cpu")


class _Held:
    """Stands for an activation, a list or a dict that a checkpoint holds."""

    def __init__(self, value: Any) -> None:
        self.value = value      # None: saved, or taken apart
        self.saved: Any = None  # has the activation as .saved_tensors
        self.parts: Any = None  # of the list or dict
        self.changed: Any = None  # what a recomputation has changed in place: later ones get that
        self.tries = 0
        self.lock = threading.Lock()  # a backward pass may run in another thread

    def references(self) -> Tuple[int, ...]:
        """How often the value is referred to: as it is, as a tensor in C++, by its memory."""
        if not isinstance(self.value, Tensor):
            return (sys.getrefcount(self.value),)
        assert _storage_references is not None
        return (sys.getrefcount(self.value), self.value._use_count(),  # type: ignore[attr-defined]
                _storage_references(self.value.untyped_storage()._cdata))

    def save_if_alone(self) -> bool:
        """If nothing else refers to the value: it can not be changed after that.

        :returns: whether it need not be tried again"""
        with self.lock:
            return self._save_if_alone()

    def _save_if_alone(self) -> bool:
        self.tries += 1
        if isinstance(self.value, Tensor) and not _is_activation(self.value):
            return True  # it has got an attribute since
        if self.references() != _ALONE[isinstance(self.value, Tensor)]:
            return self.tries == _TRIES
        if isinstance(self.value, Tensor):
            tracked = torch.empty(0, dtype=torch.float32, device="cpu", requires_grad=True)
            result = _Save.apply(tracked, self.value)  # type: ignore[no-untyped-call]
            self.saved = result.grad_fn
        elif isinstance(self.value, dict):
            self.parts = {key: _take(part, inside=True) for key, part in self.value.items()}
        else:
            self.parts = [_take(part, inside=True) for part in self.value]
        self.value = None
        return True

    def restored(self, found: Dict["_Held", Any]) -> Any:
        """:param found: what was restored for the same call"""
        if self not in found:
            with self.lock:  # from here on it is referred to, and not saved
                value = self.value
            if self.changed is not None:
                value = self.changed
            elif self.saved is not None:
                value, = self.saved.saved_tensors
            elif isinstance(self.parts, dict):
                value = {key: _fill(part, found) for key, part in self.parts.items()}
            elif self.parts is not None:
                value = [_fill(part, found) for part in self.parts]
            found[self] = value
        return found[self]

    def used(self, value: Any, before: Any) -> None:
        """Without spillway the next recomputation gets what this one has changed, too.

        :param before: _state_of() what was restored, before the function got it"""
        if self.value is None and self.changed is None and not _is_in(before, value):
            self.changed = value


def _state_of(value: Any) -> Any:
    """What tells whether it is changed in place."""
    return value._version if isinstance(value, Tensor) else value.copy()


def _is_in(state: Any, value: Any) -> bool:
    """Whether a value is as it was then."""
    if isinstance(value, Tensor):
        return bool(value._version == state)
    if isinstance(value, dict):
        return _same(value, state) and len(value) == len(state) and _same(
            value.values(), state.values())
    return len(value) == len(state) and _same(value, state)


def _held_alone() -> Dict[bool, Tuple[int, ...]]:
    """references() to what only a _Held refers to, as these versions count them. By: a tensor?"""
    counts = {False: _Held([]).references()}
    if _storage_references is not None:
        held = _Held(torch.empty(1, dtype=torch.float32, device="cpu", requires_grad=True) * 1)
        held.references()
        counts[True] = held.references()
    return counts


_ALONE = _held_alone()


class _Partial:
    """Stands for a functools.partial with something in it that is replaced."""

    def __init__(self, function: Any, arguments: Any, keywords: Dict[str, Any]) -> None:
        self.function, self.arguments, self.keywords = function, arguments, keywords


def _is_activation(value: Any) -> bool:
    """Of strided elements, and nothing else: attributes that a program gave it would be lost."""
    return (type(value) is Tensor and value.requires_grad and not value.is_leaf
            and value.layout is torch.strided and not value.is_nested and not value.__dict__)


def _has_activations(container: Any) -> bool:
    parts = container.values() if isinstance(container, dict) else container
    return any(_is_activation(part) or type(part) is tuple and _has_activations(part)
               for part in parts)


def _held(value: Any) -> _Held:
    """The same for a value that another checkpoint holds already."""
    reference = _waiting.held.get(id(value))
    held = None if reference is None else reference()
    if held is None or held.value is not value:
        held = _Held(value)
        _waiting.held[id(value)] = weakref.ref(held)
    return held


def _take(value: Any, inside: bool = False) -> Any:
    """:param inside: of a list or dict: those that it contains stay what they are
    :returns: the value, if nothing in it is replaced; else what _fill() makes it from"""
    if _is_activation(value):
        return _held(value)
    if type(value) is tuple:
        taken = tuple(_take(part, inside) for part in value)
        return value if _same(taken, value) else taken
    if type(value) in (list, dict):
        return _held(value) if not inside and _has_activations(value) else value
    if type(value) is functools.partial and not value.__dict__:
        arguments = _take(value.args, inside)
        keywords = {key: _take(part, inside) for key, part in value.keywords.items()}
        if arguments is not value.args or not _same(keywords.values(), value.keywords.values()):
            return _Partial(value.func, arguments, keywords)
    return value


def _same(these: Any, those: Any) -> bool:
    return all(one is other for one, other in zip(these, those))


def _fill(taken: Any, found: Dict[_Held, Any]) -> Any:
    if isinstance(taken, _Held):
        return taken.restored(found)
    if isinstance(taken, _Partial):
        return functools.partial(
            taken.function, *_fill(taken.arguments, found),
            **{key: _fill(part, found) for key, part in taken.keywords.items()})
    if type(taken) is tuple:
        filled = tuple(_fill(part, found) for part in taken)
        return taken if _same(filled, taken) else filled
    return taken


def _devices(values: Any) -> Iterator[Tensor]:
    """An empty tensor on each device but the CPU: the checkpoint keeps the state of the random
    numbers of the devices on which it finds tensors."""
    found = {part.device: part for part in torch.utils._pytree.tree_flatten(values)[0]
             if isinstance(part, Tensor) and part.device.type != "cpu"}
    return (part.detach().new_empty(0) for part in found.values())


def _known_in(function: Any, args: Any, keywords: Dict[str, Any]) -> Set[int]:
    """Tensors that the function may know again, by identity: those that it gets twice, as
    attention does with itself, and those to which a program gave attributes. The checkpoint would
    get another tensor for each that it saves."""
    partial = (function.args, function.keywords) if type(function) is functools.partial else ()
    given = args, keywords, partial
    counts = collections.Counter(map(id, tensors_in(given)))
    return {id(each) for each in tensors_in(args)
            if counts[id(each)] > 1 or type(each) is Tensor and each.__dict__}


class _Call:
    """A function and its arguments, without the activations among them. Called with the positional
    arguments that the checkpoint keeps, it calls the function with all."""

    def __init__(self, function: Any, args: Any, keywords: Dict[str, Any]) -> None:
        self._function = _take(function)
        known = _known_in(function, args, keywords)
        # Other positional tensors the checkpoint saves itself.
        taken = [arg if isinstance(arg, Tensor) and id(arg) not in known else _take(arg)
                 for arg in args]
        own = [part is arg and id(arg) not in known for part, arg in zip(taken, args)]
        self._keywords = {key: _take(value) for key, value in keywords.items()}
        self._args = [None if is_own else part for is_own, part in zip(own, taken)]
        self.positional = [arg if is_own else None for is_own, arg in zip(own, args)]
        self.positional += _devices([arg for is_own, arg in zip(own, args) if not is_own])
        self.holds = not (self._function is function and all(own)
                          and _same(self._keywords.values(), keywords.values()))

    def __call__(self, *kept: Any) -> Any:
        found: Dict[_Held, Any] = {}
        # The mode of a selective checkpoint counts the operations that it sees.
        with unseen_by_modes():
            args = [arg if part is None else _fill(part, found)
                    for arg, part in zip(kept, self._args)]
            function = _fill(self._function, found)
            keywords = {key: _fill(value, found) for key, value in self._keywords.items()}
        states = {held: _state_of(value) for held, value in found.items()}
        try:
            return function(*args, **keywords)
        finally:  # also where the recomputation has what it needs
            for held, state in states.items():
                held.used(found[held], state)


def _save_what_waits(owner: Any) -> None:
    """Of the checkpoints that began before this one."""
    former = getattr(_waiting, "owner", None)
    if former is None or former() is not owner:
        _waiting.owner, _waiting.held = weakref.ref(owner), {}
    # A list or dict that is taken apart adds what it contained, to be tried in the same pass.
    keys = list(_waiting.held)
    while keys:
        for key in keys:
            held = _waiting.held[key]()
            if held is None or held.save_if_alone():
                del _waiting.held[key]
        keys = [key for key in _waiting.held if key not in keys]


def _is_transformed() -> bool:
    """By torch.func, or for derivatives forward, which _Save does not have."""
    return (torch.autograd.forward_ad._current_level >= 0
            or torch._C._functorch.peek_interpreter_stack() is not None)


def _saving(begin: Callable[..., Any], owner_here: Callable[[], Any]) -> Callable[..., Any]:
    """:param begin: what checkpoints begin with: of function, arguments, keyword arguments"""
    @functools.wraps(begin)
    def saving(function: Any, args: Any, keywords: Dict[str, Any], *options: Any,
               **named: Any) -> Any:
        owner = None if is_compiling() or not torch.is_grad_enabled() else owner_here()
        if owner is not None and not owner.excluding and not _is_transformed():
            _save_what_waits(owner)
            call = _Call(function, args, keywords)
            if call.holds:
                function, args, keywords = call, tuple(call.positional), {}
        return begin(function, args, keywords, *options, **named)

    return saving


def _saving_joined(begin: Callable[..., Any], owner_here: Callable[[], Any],
                   count: int) -> Callable[..., Any]:
    """The same where function, options, arguments and keyword arguments are given in one list.

    :param count: of the options
    """
    def apart(function: Any, args: Any, keywords: Dict[str, Any], *options: Any) -> Any:
        return begin(function, *options, *args, **keywords)

    saving = _saving(apart, owner_here)

    @functools.wraps(begin)
    def joined(function: Any, *given: Any, **keywords: Any) -> Any:
        return saving(function, given[count:], keywords, *given[:count])

    return joined


def install(owner_here: Callable[[], Any]) -> None:
    """If PyTorch's checkpoints have been imported and begin as those of a version that is known:
    once in a process.

    :param owner_here: whose hooks would save a tensor now; None: no session's
    """
    module: Any = sys.modules.get("torch.utils.checkpoint")
    if (module is None or _storage_references is None or hasattr(module, _INSTALLED)
            or not hasattr(torch.autograd.forward_ad, "_current_level")
            or not hasattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack")):
        return
    setattr(module, _INSTALLED, True)
    for name in (_NAME + "_impl", _NAME):  # 2.14 or later; 2.1 or later
        begin = getattr(module, name, None)
        if begin is None:
            continue
        parameters = list(inspect.signature(begin).parameters.values())
        kinds = [parameter.kind for parameter in parameters]
        if [parameter.name for parameter in parameters[:3]] == ["fn", "args", "kwargs"]:
            setattr(module, name, _saving(begin, owner_here))
        elif inspect.Parameter.VAR_POSITIONAL in kinds:
            count = kinds.index(inspect.Parameter.VAR_POSITIONAL) - 1
            setattr(module, name, _saving_joined(begin, owner_here, count))
        return
