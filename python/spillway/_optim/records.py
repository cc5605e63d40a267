# SPDX-License-Identifier: MIT
# spillway/_optim/records.py - the records of an optimizer, one in memory at a time
from __future__ import annotations

import contextlib
import errno
import json
import weakref
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional, Sequence, Set, Tuple

from torch import Tensor

from .._core.library import SpillwayError
from ..state import State, committed_records
from ..store import Store
from .layout import Layout
from .tile_step import memory_at, views_of
from .tiles import Tile, run_of


def committed_limits(store: Store) -> Dict[str, int]:
    """The longest tile, in elements, of each run of parameters in the store's commit: a resumed
    optimizer has the same, whatever its memory is."""
    limits = {}
    for name, shape in committed_records(store):
        try:
            limits[run_of(name)] = int(json.loads(shape)["tile"])
        except (ValueError, TypeError, KeyError):  # not an optimizer's: attach() says so
            continue
    return limits


def refuse_state(*_: Any, **__: Any) -> NoReturn:
    """:raises RuntimeError: always"""
    raise RuntimeError(
        "the optimizer's state is on drives, not in optimizer.state: state_dict() gives all of "
        "it, load_state_dict() replaces it, with {**optimizer.state_dict(), \"state\": {}} by "
        "none, as for new parameters")


class _Names(Dict[str, None]):
    """The names of a parameter's state; its values are on drives."""

    __getitem__ = __setitem__ = __delitem__ = get = refuse_state  # type: ignore[assignment]
    items = values = copy = refuse_state  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = refuse_state  # type: ignore[assignment]


class StateOnDrives(Dict[Tensor, Any]):
    """``state`` of an optimizer whose state is on drives. Programs ask it whether there is any:
    PyTorch's distributed checkpoints make a step where it is false; and what a parameter's is
    named, to load a flat one. It has no items; what looks for a value, or changes any, raises.

    :param names_of: a method: the names of a parameter's state, None where it has none; of None:
        those of any. Its object is not kept alive, as this is a part of it
    """

    def __init__(self, names_of: Callable[[Optional[Tensor]], Optional[List[str]]]) -> None:
        super().__init__()
        self._method = weakref.WeakMethod(names_of)

    def _names_of(self, param: Optional[Tensor]) -> Optional[List[str]]:
        names_of = self._method()
        return None if names_of is None else names_of(param)

    def __bool__(self) -> bool:
        return self._names_of(None) is not None

    def __contains__(self, param: object) -> bool:
        return isinstance(param, Tensor) and self._names_of(param) is not None

    def __getitem__(self, param: Any) -> Any:
        names = self._names_of(param)
        return refuse_state() if names is None else _Names(dict.fromkeys(names))

    def get(self, param: Any, default: Any = None) -> Any:
        return self[param] if param in self else default

    __setitem__ = __delitem__ = refuse_state  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = refuse_state  # type: ignore[assignment]


class Taken:
    """A record that is in memory: its bytes, None where it has none, and its fields, flat.
    ``changed``: it has to be written."""

    __slots__ = ("memory", "views", "changed")

    def __init__(self) -> None:
        self.memory: Optional[Tensor] = None
        self.views: Dict[str, Tensor] = {}
        self.changed = False


class Records:
    """The state of a store with the records of a layout.

    :param objects: records besides that are objects of the caller's: name, bytes, what is in it
    """

    def __init__(self, store: Store, layout: Layout, copies: int = 1,
                 objects: Sequence[Tuple[str, int, bytes]] = (), device_every: int = 0) -> None:
        self.layout = layout
        self._objects = objects
        self.state = State(store, memory_bytes=layout.memory_bytes,
                           record_bytes_max=layout.record_bytes_max, copies=copies,
                           device_every=device_every)
        self._numbers: Dict[str, int] = {}
        self._adding = ""  # the name that was declared last
        self._attaching = self._attached = False
        self._order: List[int] = []  # of the pass
        self._taken = False  # a record, in this pass
        self.resumable = False  # there is a commit that was not resumed yet

    def attach(self, empty: bool = False) -> None:
        """Once: declare all records. Where this fails it may be tried again.

        :param empty: they are zero, to replace those of the commit
        :raises SpillwayError: ENOSPC, EUCLEAN, as State.attach()
        """
        if self._attached:
            return
        self._declare_all(empty)
        interrupted, self._attaching = self._attaching, True
        try:
            self.resumable = self.state.attach_empty() if empty else self.state.attach()
        except SpillwayError as error:
            self._attaching = False
            if error.errno == errno.EUCLEAN:
                raise SpillwayError(errno.EUCLEAN, self._another_model(error)) from error
            if error.errno != errno.EALREADY or not interrupted:
                raise
            self.resumable = self.state.attached is not None  # Ctrl-C came before it was noted
        self._attached = True

    def _declare_all(self, empty: bool) -> None:
        """Those that are not declared yet. Numbers are in the order of declarations, and Ctrl-C may
        have come before the last one was noted."""
        if self.state.stats().records > len(self._numbers):
            self._numbers[self._adding] = len(self._numbers)
        state = self.state
        for tile in self.layout.records:
            self._declare(state.add, tile.name, tile.len_bytes, tile.description)
        for tile in (*[former for former, _ in self.layout.formers], *self.layout.former_copies):
            if not empty:
                self._declare(state.add_former, tile.name, tile.len_bytes, tile.description)
        for tile in self.layout.gradients:
            self._declare(state.add_transient, tile.name, tile.len_bytes)
        for name, len_bytes, description in self._objects:
            self._declare(state.add_object, name, len_bytes, description)

    def _declare(self, add: Callable[..., int], name: str, *what: Any) -> None:
        if name not in self._numbers:
            self._adding = name
            self._numbers[name] = add(name, *what)

    def _another_model(self, error: SpillwayError) -> str:
        words = str(error.strerror)
        for tile in self.layout.records:
            if f"{tile.name} " in words + " ":
                words += f" (here it is of {', '.join(tile.parameters)})"
        return (f"{words}. The names, shapes and types of parameters, their groups, what the class "
                "keeps for them, whether they are on drives (offload(parameters=True)) and have "
                "masters, and tile= must be those of the commit, which is unchanged")

    def object(self, name: str) -> int:
        """What the commit that was attached has by this name, or what was set since."""
        return self.state.object(self._numbers[name])

    def set_object(self, name: str, thing: int) -> None:
        """For the next commit."""
        self.state.set_object(self._numbers[name], thing)

    def close(self) -> None:
        self.state.close()

    def begin_pass(self, tiles: Sequence[Tile]) -> None:
        """It may be said before, so that the first records are read meanwhile."""
        order = [self._numbers[tile.name] for tile in tiles if tile.fields]
        if order and (self._taken or order != self._order):
            self.state.begin_pass(order)
            self._order, self._taken = order, False

    def begin_update(self, tiles: Sequence[Tile], can: Sequence[bool]) -> Set[str]:
        """The same of a step, of which a device can do these tiles.

        :return: the names of those that it is to
        """
        self._order, self._taken = [self._numbers[tile.name] for tile in tiles], False
        device = self.state.update(self._order, can)
        return {tile.name for tile, on_device in zip(tiles, device) if on_device}

    def device_took(self, tile: Tile, nanoseconds: int) -> None:
        """For such a tile, before it is released."""
        self.state.device_took(self._numbers[tile.name], nanoseconds)

    def clear(self, tile: Tile) -> None:
        """What is in it is not needed any more."""
        self.state.clear(self._numbers[tile.name])

    @contextlib.contextmanager
    def taken(self, tile: Tile) -> Iterator[Taken]:
        """A record is in memory while the context lasts; afterwards its views must not be used."""
        if not tile.fields:  # the class keeps nothing for elements
            yield Taken()
            return
        number = self._numbers[tile.name]
        self._taken = True
        address = self.state.take(number)
        taken = Taken()
        try:
            taken.memory = memory_at(address, tile.len_bytes)
            taken.views = views_of(tile, taken.memory)
            yield taken
        finally:
            taken.memory, taken.views = None, {}
            self.state.give(number, taken.changed)
