# SPDX-License-Identifier: MIT
# spillway/_recompute/module_state.py - what a module and its parts have when it runs
"""Between the forward pass of a module and its recomputation a program may have given it other
attributes, parameters, buffers or parts: another adapter is active, torch.func.functional_call()
has ended, a weight is frozen, a rate is another one. Its second run is to see those of the first.
What else the module's code can reach, and what is inside of tensors and of objects, is not kept.

Attributes that are results of operations, or large tensors, are held weakly: a model may put the
output of a layer on it, whose graph holds what belongs to the step before, and so on."""
from __future__ import annotations

import dataclasses
import functools
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from torch import Tensor, nn

from .effects import attributes_of, in_slots, slots_of

# Dicts of a module by name, in each of its instances.
_TABLES = "_parameters", "_buffers", "_modules"
# Those of PyTorch itself, hooks for instance, which foreign_hooks.py is about.
_INTERNAL = set(vars(nn.Module())) - {"training"}
_PLAIN = type(None), bool, int, float, str
_DEPTH = 4  # of containers in which tensors are held weakly
_LARGE_BYTES = 64 << 10

State = Tuple[nn.Module, Dict[str, Any], Dict[str, Dict[str, Any]]]


class _Weak(weakref.ref):  # type: ignore[type-arg]
    """To a tensor. An attribute may be another weak reference itself."""

    __slots__ = ()


class _Copy:
    """Of a container: its class, and what it held by key, index or field."""

    __slots__ = ("kind", "items")

    def __init__(self, kind: Any, items: Dict[Any, Any]) -> None:
        self.kind, self.items = kind, items

    def made(self) -> Any:
        """A container that holds the same.

        :raises ReferenceError: a tensor is gone
        """
        items = {name: _item(kept) for name, kept in self.items.items()}
        if self.kind in (dict, list, set):
            return self.kind(items if self.kind is not list else items.values())
        if issubclass(self.kind, tuple):
            return tuple.__new__(self.kind, items.values())
        made = object.__new__(self.kind)
        for name, item in items.items():
            object.__setattr__(made, name, item)
        return made


def _items_of(value: Any) -> Optional[Dict[Any, Any]]:
    """Of a container; None: of something else, or of one that cannot be made again."""
    kind = type(value)
    if kind is dict:
        return dict(value)
    if kind is set:
        return dict.fromkeys(value)
    if kind in (list, tuple) or isinstance(value, tuple) and hasattr(kind, "_fields"):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(kind) and getattr(kind, "__new__") is object.__new__:
        # What lies there, without its class: transformers' configurations refuse to give some.
        return {**in_slots(value, slots_of(kind)), **(attributes_of(value) or {})}
    return None


class _Keeping:
    """Makes what is kept of attributes, and of the items in them: of a container a copy, if it is
    the attribute itself or has something that is held weakly. Others stay as they are: code may
    compare them by identity."""

    def __init__(self) -> None:
        self._known: Dict[int, Any] = {}  # by identity of containers

    def kept(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, nn.Parameter):
            return value
        if isinstance(value, Tensor):
            is_large = value.numel() * value.element_size() > _LARGE_BYTES
            return _Weak(value) if is_large or value.grad_fn is not None else value
        if type(value) in _PLAIN or depth == _DEPTH:
            return value
        if id(value) in self._known:
            return self._known[id(value)]
        self._known[id(value)] = value  # where it contains itself
        self._known[id(value)] = found = self._of_container(value, depth)
        return found

    def _of_container(self, value: Any, depth: int) -> Any:
        items = _items_of(value)
        if items is None:  # results of transformers' models are dicts and dataclasses
            both = isinstance(value, dict) and dataclasses.is_dataclass(value)
            return _Weak(value) if both and self._some(value.values(), depth) else value
        kept = {name: self.kept(item, depth + 1) for name, item in items.items()}
        is_own = not depth and type(value) in (dict, list, set, tuple)
        return _Copy(type(value), kept) if is_own or _has_weak(kept.values()) else value

    def _some(self, items: Iterable[Any], depth: int) -> bool:
        return _has_weak([self.kept(item, depth + 1) for item in items])


def _has_weak(items: Iterable[Any]) -> bool:
    return any(type(item) in (_Weak, _Copy) for item in items)


def _item(kept: Any) -> Any:
    """:raises ReferenceError: a tensor is gone"""
    if type(kept) is _Copy:
        return kept.made()
    if type(kept) is not _Weak:
        return kept
    value = kept()
    if value is None or not _is_there(value):
        raise ReferenceError("a tensor is gone")
    return value


def _is_kept(now: Any, kept: Any) -> bool:
    """Whether a value is what was kept, or a container that holds the same."""
    if type(kept) is not _Copy:
        return now is (kept() if type(kept) is _Weak else kept)
    if type(now) is not kept.kind:
        return False
    items = _items_of(now) or {}
    if kept.kind is set:
        return items == kept.items
    return len(items) == len(kept.items) and all(
        (one is other or type(one) is int) and _is_kept(items[one], kept.items[other])
        for one, other in zip(items, kept.items))


def _is_table(now: Any, then: Dict[str, Any]) -> bool:
    return len(now) == len(then) and all(
        one is other and now[one] is then[one] for one, other in zip(now, then))


def _is_there(tensor: Any) -> bool:
    """Whether it still has its memory: FSDP frees what it has gathered."""
    return not isinstance(tensor, Tensor) or type(tensor) not in (Tensor, nn.Parameter) or (
        tensor.numel() == 0 or tensor.untyped_storage().nbytes() > 0)


class ModuleState:
    """Of a module and its parts, as they are now."""

    def __init__(self, module: nn.Module) -> None:
        self._parts: List[State] = []
        self._trained: List[Tuple[Any, bool]] = []  # parameters, and whether they need gradients
        keeping = _Keeping()
        for part in module.modules():
            things = vars(part)
            own = {name: keeping.kept(value) for name, value in things.items()
                   if name not in _INTERNAL}
            tables = {name: dict(things[name]) for name in _TABLES if things.get(name)}
            self._parts.append((part, own, tables))
            self._trained += [(parameter, parameter.requires_grad)
                              for parameter in tables.get("_parameters", {}).values()
                              if parameter is not None]
        self._undos: List[Callable[[], Any]] = []

    def take(self) -> None:
        """Give them back what they had then, until put_back()."""
        for part, own, tables in self._parts:
            things = vars(part)
            for name in [name for name in things if name not in _INTERNAL and name not in own]:
                self._undos.append(functools.partial(things.__setitem__, name, things[name]))
                del things[name]
            for name, kept in own.items():
                if name in things and _is_kept(things[name], kept):
                    continue
                try:
                    value = _item(kept)
                except ReferenceError:  # what is there now stays
                    continue
                if name not in things:
                    self._undos.append(functools.partial(things.pop, name, None))
                else:
                    self._undos.append(functools.partial(things.__setitem__, name, things[name]))
                things[name] = value
            for name in _TABLES:
                self._take_table(things, name, tables.get(name, {}))
        for parameter, requires_grad in self._trained:
            if parameter.requires_grad != requires_grad and parameter.is_leaf:
                self._undos.append(
                    functools.partial(parameter.requires_grad_, parameter.requires_grad))
                parameter.requires_grad_(requires_grad)

    def _take_table(self, things: Dict[str, Any], name: str, then: Dict[str, Any]) -> None:
        now = things.get(name)
        if now is None or _is_table(now, then) or not all(map(_is_there, then.values())):
            return
        self._undos.append(functools.partial(things.__setitem__, name, now))
        things[name] = type(now)(then)

    def put_back(self) -> None:
        while self._undos:
            self._undos[-1]()
            self._undos.pop()
