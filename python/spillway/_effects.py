# SPDX-License-Identifier: MIT
# spillway/_effects.py - what a run of a module has changed, and how that is put back
"""Whether a second run of a module has an effect shows in the first: all that its code can reach is
looked at before and after. That is its arguments, the attributes of its parts and what is inside of
them, and what its code uses of modules, classes and closures (_reach). Where it reaches something
that does not show whether it has changed, such as an iterator, that is said."""
from __future__ import annotations

import collections
import collections.abc
import contextlib
import contextvars
import enum
import functools
import io
import random
import types
import zlib
from typing import (Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, Optional, Tuple)

import torch
from torch import Tensor, nn

from ._on_drives import OnDrives
from ._random import is_everybodys
from ._reach import Reach, is_known
from ._torch_compat import storage_of

Found = Tuple[str, Any]
# By the ids of the code that it begins with, which it holds.
Elsewhere = Dict[FrozenSet[int], Tuple[List[Found], "Snapshot"]]

_VALUES = (type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis),
           torch.dtype, torch.device, torch.layout, torch.memory_format, enum.Enum)
_CODE = types.FunctionType, types.MethodType, type
_OF_HOOKS = {name for name, value in vars(nn.Module()).items() if isinstance(value, dict)
             } - {"_parameters", "_buffers", "_modules"}
# Known, and not looked into: what changes in these is theirs.
_OF_THEIR_OWN = {"torch", "numpy", "spillway", "logging", "threading", "concurrent", "asyncio",
                 "multiprocessing", "typing", "abc", "inspect", "importlib"}
# Of these an object may have attributes beside what it is.
_WITH_MORE = Tensor, dict, list, set, tuple, collections.deque
_THINGS_MAX = 50_000
_WORD = 8  # bytes


class Unseen(Exception):
    """Something within reach does not show whether it changes; with what, in words."""


def _is_value(thing: Any) -> bool:
    return isinstance(thing, _VALUES) or (
        isinstance(thing, (tuple, frozenset)) and all(map(_is_value, thing)))


def _is_same(one: Any, other: Any) -> bool:
    """The same object, or a value that cannot be told from it."""
    return one is other or (type(one) is type(other) and _is_value(one) and _is_value(other)
                            and repr(one) == repr(other))


def sum_of(tensor: Tensor) -> Optional[Tensor]:
    """Of the words of its storage, modulo 2^64, on its device; None: it has no bytes to read."""
    with contextlib.suppress(RuntimeError, NotImplementedError), torch.no_grad():
        storage, device = storage_of(tensor), tensor.device
        if storage.nbytes() == 0 or device.type == "meta":
            return None
        count = 0 if storage.data_ptr() % _WORD else storage.nbytes() // _WORD
        words = torch.empty(0, dtype=torch.int64, device=device)
        rest = torch.empty(0, dtype=torch.uint8, device=device)
        words.set_(storage, 0, (count,), (1,))
        rest.set_(storage, count * _WORD, (storage.nbytes() - count * _WORD,), (1,))
        return words.sum() + rest.sum()
    return None


# ---- Kinds of things -----------------------------------------------------------------------------


class _Watched:
    """A thing as it was."""

    def __init__(self, path: str, thing: Any) -> None:
        self.path = path
        self.thing = thing

    def inside(self) -> Iterable[Found]:
        """What it holds."""
        return ()

    def changed(self) -> Optional[str]:
        """In words; None: it has not."""
        raise NotImplementedError

    def has_begun(self) -> bool:
        """Whether nothing was there before in the place of what has changed."""
        return False

    def put_back(self) -> None:
        """If that is possible."""


class _Names(_Watched):
    """Values by names, as a look gives them."""

    def __init__(self, path: str, look: Callable[[], Dict[Any, Any]]) -> None:
        super().__init__(path, look)
        self._before = _raw(look())

    def _path_of(self, key: Any) -> str:
        return f"{self.path}{key}"

    def inside(self) -> Iterable[Found]:
        return ((self._path_of(key), value) for key, value in self._before.items())

    def _keys(self) -> Iterator[Any]:
        """Of what has changed."""
        before, after, missing = self._before, _raw(self.thing()), self
        if len(before) == len(after) and all(
                after.get(key, missing) is value for key, value in before.items()):
            return  # the usual case, and fast
        for key in {**before, **after}:
            if not _is_same(before.get(key, missing), after.get(key, missing)):
                yield key

    def changed(self) -> Optional[str]:
        return next((_words_of(self._path_of(key)) for key in self._keys()), None)

    def has_begun(self) -> bool:
        return all(self._before.get(key) is None for key in self._keys())


class _Items(_Names):
    """A dict; the attributes of an object are one."""

    def __init__(self, path: str, things: Dict[Any, Any]) -> None:
        self._things = things
        super().__init__(path, lambda: things)

    def put_back(self) -> None:
        ordered = isinstance(self._things, collections.OrderedDict)
        kind: Any = collections.OrderedDict if ordered else dict
        for key in list(self._keys()):
            if key in self._before:
                kind.__setitem__(self._things, key, self._before[key])
            else:
                kind.__delitem__(self._things, key)


def _raw(things: Any) -> Dict[Any, Any]:
    """A dict of a class of its own may make what it gives."""
    return dict(dict.items(things) if isinstance(things, dict) else things.items())


class _Row(_Watched):
    """A list, a deque or a set."""

    def __init__(self, path: str, thing: Any) -> None:
        super().__init__(path, thing)
        self._before = list(thing)

    def inside(self) -> Iterable[Found]:
        return ((self.path, value) for value in self._before)

    def changed(self) -> Optional[str]:
        same = len(self._before) == len(self.thing) and all(
            map(_is_same, self._before, self.thing))
        return None if same else _words_of(self.path)

    def put_back(self) -> None:
        if self.changed():
            self.thing.clear()
            getattr(self.thing, "update" if isinstance(self.thing, set) else "extend")(self._before)


class _Bytes(_Watched):
    """A tensor or an array."""

    def __init__(self, path: str, thing: Any, is_read: bool) -> None:
        super().__init__(path, thing)
        self._is_read = is_read
        self._before, self._sum = self._look(), self._sum_now()

    def _look(self) -> Tuple[Any, ...]:
        thing = self.thing
        if not isinstance(thing, Tensor):
            look = thing.tobytes if hasattr(thing, "tobytes") else thing.copy
            return type(thing), getattr(thing, "shape", None), zlib.crc32(look())
        if type(thing) not in (Tensor, nn.Parameter) or thing.layout is not torch.strided:
            return (thing._version,)
        return (thing._version, thing.shape, thing.stride(), thing.data_ptr(), thing.requires_grad,
                id(thing.grad) if thing.is_leaf else 0, len(thing._backward_hooks or ()))

    def _sum_now(self) -> Optional[Tensor]:
        return sum_of(self.thing) if self._is_read and isinstance(self.thing, Tensor) else None

    def changed(self) -> Optional[str]:
        same = self._before == self._look()
        if same and self._sum is not None:
            now = self._sum_now()
            same = now is not None and bool(self._sum == now)
        return None if same else _words_of(self.path, " in place")


def _words_of(path: str, how: str = "") -> str:
    before, found, name = path.rpartition("_buffers.")
    if found:
        return f"it changes a buffer ({before}{name}){how}"
    path = path.replace("_parameters.", "").replace("_modules.", "")
    if path.startswith(_ARGUMENT):
        return f"it changes its input{how}"
    if path.startswith(("global ", "class ", "what ")):
        return f"it changes {path}{how}"
    return f"it changes its attribute {path}{how}"


_ARGUMENT = "(argument)"


# ---- All within reach ----------------------------------------------------------------------------


class Snapshot:
    """Things and all that they hold, as they are now.

    :param reads: also the bytes of tensors, and what is held by other modules: before a trial
    :param reach: also what code uses; else that code is noted in ``codes``
    :raises Unseen: something does not show whether it changes
    """

    def __init__(self, things: List[Found], reads: bool = False,
                 reach: Optional[Reach] = None) -> None:
        self.codes: List[Found] = []
        self._watched: List[_Watched] = []
        self._seen: Dict[int, Any] = {}  # by their ids, which stay theirs as long as they are held
        self._parts = {thing for _, thing in things if isinstance(thing, nn.Module)}
        self._reads = reads
        self._reach = reach
        self._todo = list(things)
        while self._todo:
            path, thing = self._todo.pop()
            if id(thing) not in self._seen and not _is_value(thing):
                self._seen[id(thing)] = thing
                self._visit(path, thing)
        if len(self._seen) > _THINGS_MAX:
            raise Unseen(f"it reaches {len(self._seen)} things, which are too many to look at")

    def _watch(self, watched: _Watched) -> None:
        self._watched.append(watched)
        self._todo += watched.inside()

    def _visit(self, path: str, thing: Any) -> None:
        if isinstance(thing, dict):
            self._watch(_Items(_dotted(path), thing))
        elif isinstance(thing, (list, set, collections.deque)):
            self._watch(_Row(path, thing))
        elif isinstance(thing, (tuple, frozenset)):
            self._todo += [(path, value) for value in thing]
        elif isinstance(thing, Tensor):
            is_read = self._reads and not isinstance(thing, OnDrives)
            self._watched.append(_Bytes(path, thing, is_read))
        elif isinstance(thing, bytearray) or (
                type(thing).__module__ in ("numpy", "array") and hasattr(thing, "tobytes")):
            self._watched.append(_Bytes(path, thing, True))
        elif isinstance(thing, _CODE):
            self._visit_code(path, thing)
        elif isinstance(thing, nn.Module):
            if self._reads or thing in self._parts:
                self._visit_module(path, thing)
            self._visit_code(path, type(thing))
        else:
            self._visit_object(path, thing)
        if isinstance(thing, _WITH_MORE) and self._reads and not isinstance(thing, OnDrives):
            self._watch(_Items(_dotted(path), getattr(thing, "__dict__", {})))

    def _visit_module(self, path: str, module: nn.Module) -> None:
        watched = _Items(path, vars(module))
        self._watched.append(watched)
        # Often: without what each module has for hooks.
        self._todo += watched.inside() if self._reads else (
            (path + key, value) for key, value in vars(module).items() if key not in _OF_HOOKS)

    def _visit_code(self, path: str, thing: Any) -> None:
        if self._reach is None:
            self.codes.append((path, thing))
        elif thing not in (type, object):
            found, looks = self._reach.of(path, thing)
            self._todo += found
            for where, look in looks:
                self._watch(_Names(where, look))

    def _visit_object(self, path: str, thing: Any) -> None:
        kind = type(thing)
        if self._reads:
            _check_seen(path, thing)
        if isinstance(thing, functools.partial):
            self._todo += [(path, thing.func), (path, thing.args), (path, thing.keywords)]
        elif isinstance(thing, types.BuiltinMethodType):
            self._todo.append((path, None if isinstance(thing.__self__, types.ModuleType)
                               else thing.__self__))
        elif isinstance(thing, contextvars.ContextVar):
            self._watch(_Names(_dotted(path), lambda: {"value": thing.get(None)}))
        things = getattr(thing, "__dict__", None)
        if isinstance(things, dict) and "__wrapped__" in things:
            self._todo.append((path, things["__wrapped__"]))
        if is_known(kind.__module__) and (
                not isinstance(things, dict) or isinstance(thing, types.ModuleType)
                or kind.__module__.partition(".")[0] in _OF_THEIR_OWN):
            return
        if isinstance(things, dict):
            self._watch(_Items(_dotted(path), things))
        slots = [name for each in kind.__mro__ for name in _slots_of(each)]
        if slots:
            self._watch(_Names(_dotted(path), lambda: {
                name: getattr(thing, name) for name in slots if hasattr(thing, name)}))
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


class Reached:
    """All within reach of a module before a trial.

    :param elsewhere: what code uses, of earlier trials
    :raises Unseen: something does not show whether it changes
    """

    def __init__(self, module: nn.Module, arguments: Any, elsewhere: Elsewhere) -> None:
        things: List[Found] = [(_ARGUMENT, arguments)]
        things += [(name and f"{name}.", part) for name, part in module.named_modules()]
        self._own = Snapshot(things, reads=True)
        key = frozenset(id(code) for _, code in self._own.codes)
        found = elsewhere.get(key)
        if found is None or found[1].changed() is not None:
            found = elsewhere[key] = self._own.codes, Snapshot(
                self._own.codes, reads=True, reach=Reach())
        self._elsewhere = found[1]

    def changed(self) -> Optional[str]:
        """What, in words; None: nothing."""
        return self._own.changed() or self._elsewhere.changed()

    def has_begun(self) -> bool:
        return self._own.has_begun() and self._elsewhere.has_begun()


def _dotted(path: str) -> str:
    return path if not path or path.endswith(".") else f"{path}."


def _slots_of(kind: type) -> Tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


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
