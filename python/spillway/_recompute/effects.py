# SPDX-License-Identifier: MIT
# spillway/_recompute/effects.py - what a run of a module changed, and how to restore it
"""Whether a second run of a module has an effect shows in the first: all that its code can reach is
looked at before and after. That is its arguments, the attributes of its parts and what is inside of
them, and what its code uses of modules, classes and closures (_reach). Where it reaches something
that does not show whether it has changed, such as an iterator, that is said."""
from __future__ import annotations

import collections
import collections.abc
import contextlib
import contextvars
import functools
import io
import random
import sys
import types
import weakref
from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Tuple

import torch
from torch import Tensor, nn

from .._core.torch_compat import storage_of
from .._params.offloaded_param import OnDrives
from .generators import is_everybodys
from .reach import Reach, is_known
from .watched import (ARGUMENT, VALUES, Array, Found, Items, Memory, Names, Row, Unseen, Watched,
                      builtin_of, dotted, is_array)

_CODE = types.FunctionType, types.MethodType, type
_OF_HOOKS = {name for name, value in vars(nn.Module()).items() if isinstance(value, dict)
             } - {"_parameters", "_buffers", "_modules"}
# Known, and not looked into: what changes in these is theirs.
_OF_THEIR_OWN = {"torch", "numpy", "spillway", "logging", "threading", "concurrent", "asyncio",
                 "multiprocessing", "typing", "abc", "inspect", "importlib"}
# Of these an object may have attributes beside what it is.
_WITH_MORE = Tensor, dict, list, set, tuple, collections.deque
# Shared with another process or with code in C, which may change them unseen.
_SHARED = {f"multiprocessing.{name}" for name in (
    "connection", "managers", "queues", "shared_memory", "sharedctypes")}
_ITEMS_MAX = 200_000  # in all containers together: some 0.1 s to look at
# In modules that are not parts of the one on trial, for all trials of a step: some 10 s.
_BEYOND_MAX = 1_000_000
_TENSOR_COST, _BYTES_COST = 10, 1 << 16  # a tensor costs as much as 10 items, and these bytes 1


def _bytes_of(tensor: Tensor) -> int:
    """Of its storage; 0: it shows none."""
    with contextlib.suppress(RuntimeError, NotImplementedError):
        return int(storage_of(tensor).nbytes())
    return 0


def attributes_of(thing: Any) -> Any:
    """Its __dict__, without a __getattr__ of its own; None: it has none."""
    try:
        return object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return None


class Snapshot:
    """Things and all that they hold, as they are now.

    :param reads: also the bytes of tensors: before a trial
    :param reach: also what code uses, and all modules; else the code is noted in ``beyond``, and
        with ``reads`` the modules that are not among the things
    :raises Unseen: something does not show whether it changes
    """

    def __init__(self, things: List[Found], reads: bool = False,
                 reach: Optional[Reach] = None) -> None:
        self.beyond: List[Found] = []
        self.cost = 0  # of a look at its modules, in items
        self._watched: List[Watched] = []
        self._seen: Dict[int, Any] = {}  # by their ids, which stay theirs as long as they are held
        self._parts = {thing for _, thing in things if isinstance(thing, nn.Module)}
        self._reads = reads
        self._reach = reach
        self._items = 0
        self._todo = list(things)
        while self._todo:
            path, thing = self._todo.pop()
            if id(thing) not in self._seen:
                self._seen[id(thing)] = thing
                self._visit(path, thing)

    def _count(self, path: str, count: int) -> None:
        """Items of a container, before they are copied."""
        self._items += count
        if self._items > _ITEMS_MAX:
            raise Unseen(f"it reaches {self._items} things ({path.rstrip('.')}), which are too "
                         "many to look at")

    def _queue(self, found: Iterable[Found]) -> None:
        self._todo += (each for each in found if not isinstance(each[1], VALUES))

    def _watch(self, watched: Watched) -> None:
        self._watched.append(watched)
        self._queue(watched.inside())

    def _visit(self, path: str, thing: Any) -> None:
        builtin = builtin_of(thing)
        if builtin is not None:
            self._visit_container(path, thing, builtin)
        elif isinstance(thing, nn.Module):
            if self._reach is not None or thing in self._parts:
                self._visit_module(path, thing)
            elif self._reads:
                self.beyond.append((path, thing))
            self._visit_code(path, type(thing))
        elif isinstance(thing, Tensor):
            is_read = self._reads and not isinstance(thing, OnDrives)
            self._watched.append(Memory(path, thing, is_read))
            self.cost += _TENSOR_COST + (_bytes_of(thing) // _BYTES_COST if is_read else 0)
        elif isinstance(thing, _CODE):
            self._visit_code(path, thing)
        elif is_array(thing):
            self._visit_array(path, thing)
        else:
            self._visit_object(path, thing)
        if self._reads and not isinstance(thing, OnDrives) and (
                isinstance(thing, _WITH_MORE) or is_array(thing)):
            self._watch(Items(dotted(path), attributes_of(thing) or {}))

    def _visit_container(self, path: str, thing: Any, kind: Any) -> None:
        self._count(path, kind.__len__(thing))
        if kind is dict:
            self._watch(Items(dotted(path), thing))
        elif kind in (tuple, frozenset):
            self._queue((path, value) for value in kind.__iter__(thing))
        else:
            self._watch(Row(path, thing))

    def _visit_array(self, path: str, thing: Any) -> None:
        if not getattr(getattr(thing, "dtype", None), "hasobject", False):
            self._watched.append(Array(path, thing, self._reads))
            return
        numpy: Any = sys.modules["numpy"]
        self._count(path, thing.size)
        self._watch(Names(dotted(path), lambda: dict(
            enumerate(numpy.asarray(thing).reshape(-1).tolist()))))

    def _visit_module(self, path: str, module: nn.Module) -> None:
        path = dotted(path)
        watched = Items(path, vars(module))
        self.cost += len(vars(module))
        self._count(path, len(vars(module)))
        self._watched.append(watched)
        # Often: without what each module has for hooks.
        self._queue(watched.inside() if self._reads else (
            (path + key, value) for key, value in vars(module).items() if key not in _OF_HOOKS))

    def _visit_code(self, path: str, thing: Any) -> None:
        if self._reach is None:
            self.beyond.append((path, thing))
        elif thing not in (type, object):
            found, looks = self._reach.of(path, thing)
            self._queue(found)
            for where, look in looks:
                self._watch(Names(where, look))

    def _visit_object(self, path: str, thing: Any) -> None:
        kind = type(thing)
        if self._reads:
            _check_seen(path, thing)
        if isinstance(thing, functools.partial):
            self._todo += [(path, thing.func), (path, thing.args), (path, thing.keywords)]
        elif isinstance(thing, weakref.ref):
            self._queue([(path, weakref.ref.__call__(thing))])
        elif isinstance(thing, types.MappingProxyType):
            self._count(path, len(thing))
            self._watch(Names(dotted(path), lambda: thing))
        elif isinstance(thing, collections.abc.MappingView):
            name = "mapping" if hasattr(thing, "mapping") else "_mapping"
            self._queue([(path, getattr(thing, name))])
        elif isinstance(thing, types.BuiltinMethodType):
            if not isinstance(thing.__self__, types.ModuleType):
                self._queue([(path, thing.__self__)])
        elif isinstance(thing, contextvars.ContextVar):
            self._watch(Names(dotted(path), lambda: {"value": thing.get(None)}))
        things = attributes_of(thing)
        if isinstance(things, dict) and "__wrapped__" in things:
            self._todo.append((path, things["__wrapped__"]))
        if isinstance(thing, types.ModuleType):  # code looks at what it uses of it (_reach)
            return
        if is_known(kind.__module__) and (
                not isinstance(things, dict)
                or kind.__module__.partition(".")[0] in _OF_THEIR_OWN):
            return
        if isinstance(things, dict):
            self._count(path, len(things))
            self._watch(Items(dotted(path), things))
        slots = slots_of(kind)
        if slots:
            self._watch(Names(dotted(path), lambda: in_slots(thing, slots)))
        elif self._reads and not isinstance(things, dict) and not _is_bare(kind):
            raise Unseen(f"it can reach a {kind.__name__} ({path.rstrip('.')}), which does not "
                         "show whether it changes")
        self._visit_code(path, kind)

    def changed(self) -> Optional[str]:
        """What, in words; None: nothing."""
        return next(filter(None, (watched.changed() for watched in self._watched)), None)

    def has_begun(self) -> bool:
        """Whether all that has changed is what was not there before, as where something is kept
        from the first run on."""
        return all(watched.has_begun() for watched in self._watched if watched.changed())

    def put_back(self) -> Optional[str]:
        """It is again as it was, as far as that is possible. Return: what had changed, in words."""
        what = self.changed()
        if what is not None:
            for watched in self._watched:
                watched.put_back()
        return what


def snapshot_of(module: nn.Module) -> Snapshot:
    """What is its own, to be put back."""
    return Snapshot([(name and f"{name}.", part) for name, part in module.named_modules()])


class Beyond:
    """What modules reach besides their parts, as code and other modules. The trials of a step share
    what they see of it; each looks again, so where layers know the whole model, the time grows with
    the square of their number."""

    def __init__(self) -> None:
        # By the ids of what it begins with, which it holds.
        self._seen: Dict[FrozenSet[int], Tuple[List[Found], Snapshot]] = {}
        self._cost = 0

    def clear(self) -> None:
        self._seen.clear()
        self._cost = 0

    def of(self, things: List[Found]) -> Snapshot:
        """As they are now.

        :raises Unseen: something does not show whether it changes; or the trials of this step have
            looked at too much
        """
        key = frozenset(id(thing) for _, thing in things)
        found = self._seen.get(key)
        if found is not None:
            self._charge(found[1], things)
        if found is None or found[1].changed() is not None:
            found = self._seen[key] = things, Snapshot(things, reads=True, reach=Reach())
            self._charge(found[1], things)
        return found[1]

    def _charge(self, snapshot: Snapshot, things: List[Found]) -> None:
        """A look at it."""
        self._cost += snapshot.cost
        if self._cost > _BEYOND_MAX:
            path = next((path for path, thing in things if isinstance(thing, nn.Module)), "")
            raise Unseen(f"it can reach other modules ({path.rstrip('.') or 'by its code'}): to "
                         "look at them for each layer takes too long")


class Reached:
    """All within reach of a module before a trial.

    :raises Unseen: something does not show whether it changes
    """

    def __init__(self, module: nn.Module, arguments: Any, beyond: Beyond) -> None:
        things: List[Found] = [(ARGUMENT, arguments)]
        things += [(name and f"{name}.", part) for name, part in module.named_modules()]
        self._own = Snapshot(things, reads=True)
        self._beyond = beyond.of(self._own.beyond)

    def changed(self) -> Optional[str]:
        """What, in words; None: nothing."""
        return self._own.changed() or self._beyond.changed()

    def has_begun(self) -> bool:
        return self._own.has_begun() and self._beyond.has_begun()


def slots_of(kind: type) -> List[Any]:
    """Their descriptors: of a name that begins with two underscores, the class has another."""
    return [slot for each in kind.__mro__ if "__slots__" in vars(each)
            for slot in vars(each).values() if isinstance(slot, types.MemberDescriptorType)]


def in_slots(thing: Any, slots: List[Any]) -> Dict[str, Any]:
    found = {}
    for slot in slots:
        with contextlib.suppress(AttributeError):  # there is nothing in it
            found[slot.__name__] = slot.__get__(thing)
    return found


def _is_bare(kind: type) -> bool:
    """Whether its objects hold nothing: by a class in Python, which says so."""
    return all("__slots__" in vars(each) for each in kind.__mro__ if each is not object)


def _check_seen(path: str, thing: Any) -> None:
    kind = type(thing)
    name = f"{kind.__name__} ({path.rstrip('.')})"
    if isinstance(thing, (torch.Generator, random.Random)) or (
            kind.__module__.startswith("numpy.random")):
        if is_everybodys(thing):
            return
        raise Unseen(f"it draws from a generator that is not PyTorch's: it can reach a {name}")
    if isinstance(thing, (collections.abc.Iterator, io.IOBase)) or kind.__module__ == "_queue":
        raise Unseen(f"it can reach a {name}, which does not show whether it is used")
    if (isinstance(thing, memoryview) or kind in weakref.ProxyTypes or kind.__module__ in _SHARED
            or _is_of_c(thing)):
        raise Unseen(f"it can reach a {name}, which does not show whether it changes")


def _is_of_c(thing: Any) -> bool:
    """Whether it is data of ctypes."""
    ctypes: Any = sys.modules.get("ctypes")
    return ctypes is not None and not isinstance(thing, ctypes._CFuncPtr) and isinstance(
        thing, ctypes._SimpleCData.__mro__[1])
