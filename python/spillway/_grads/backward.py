# SPDX-License-Identifier: MIT
# spillway/_grads/backward.py - tiles are stepped and gradients freed in the backward pass
"""Invariants:
B1  a tile is stepped once between two calls of step(), with the gradients that its parameters have
    from one backward pass
B2  a gradient is freed when all tiles that its parameter lies in have been stepped
B3  a tile is stepped once nothing reads its parameters any more; step() itself is after all reads
"""
from __future__ import annotations

import logging
import threading
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

import torch
from torch import Tensor

from .._core.library import SpillwayError
from .._optim.arithmetic import Entry, are_equal
from .._optim.elementwise import Options
from .._optim.tiled import Tiled, check_gradient
from .._optim.tiles import Piece, Tile
from .ddp_buckets import Reduced, check_reduced
from .freed_placeholder import Freed
from .param_readers import Readers

_log = logging.getLogger("spillway")

SCALED = ("in_backward=True steps parameters during the backward pass, with gradients that a "
          "GradScaler has not unscaled yet: make the optimizer without it, or train in bfloat16")
_CHANGED = ("the options of group {} have changed since the backward pass, in which "
            "in_backward=True has stepped parameters with those before: change them before it. "
            "With those before, step() finishes this step")
_AGAIN = ("a second backward pass before step(): with in_backward=True the first has stepped "
          "parameters already. Call step() after each, or leave it out to accumulate gradients. If "
          "an error ended the first, go back to the last commit")


class DuringBackward:
    """Of an optimizer: which gradients have come, and which tiles have been stepped.

    :param whole: the optimizer's state, or what is wrong with it as an exception
    :param groups: the options of groups as they are now
    :param reduced: the gradients come from there; None: from autograd
    """

    def __init__(self, params: Sequence[Tensor], whole: Callable[[], Tiled],
                 groups: Callable[[], List[Options]], reduced: Optional[Reduced]) -> None:
        self._params = params
        self._whole = whole
        self._groups = groups
        self._reduced = reduced
        self._lock = threading.Lock()  # each device has a thread of autograd's
        self._here: Set[int] = set()  # parameters whose gradients have come
        self._stepped: Set[str] = set()  # tiles
        self._changed: Set[int] = set()  # parameters of which a tile was stepped
        self._freed: Set[int] = set()  # parameters whose gradients were
        self._waiting: List[Tile] = []  # whose gradients are there, for readers
        self._after: Dict[int, Entry] = {}
        self._options: Dict[int, Options] = {}  # of groups, that tiles have been stepped with
        self._order: Dict[str, Tile] = {}  # in which tiles were stepped
        self._finished: Set[str] = set()  # tiles of which finish() has stepped what was left
        self._next_order: Optional[List[Tile]] = None
        self._postponed = False  # a drive failed: the rest is left to step()
        self._tiles_of: Optional[List[List[Tile]]] = None
        self._handles: List[Any] = []
        self._readers = Readers(params, self._changed.__contains__)
        self._hooked: Set[int] = set()
        self._hook_all()
        if reduced is not None:
            reduced.follow({id(param): number for number, param in enumerate(params)},
                           self._arrived, self._mark)

    def _hook_all(self) -> None:
        """What needs no gradient yet may do so in a later step."""
        for number, param in enumerate(self._params):
            if param.requires_grad and number not in self._hooked:
                self._hooked.add(number)
                if self._reduced is None:
                    self._handles.append(self._hook(number, param))

    def _hook(self, number: int, param: Any) -> Any:
        # Autograd has the hook where the garbage collector does not look: what it held would never
        # be freed.
        found = weakref.ref(self)

        def arrived(_: Tensor) -> None:
            here = found()
            if here is not None:
                here._arrived(number)
                here._mark()

        return param.register_post_accumulate_grad_hook(arrived)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._readers.remove()
        if self._reduced is not None:
            self._reduced.unfollow()

    @property
    def under_way(self) -> bool:
        """Gradients have come that no step() has ended."""
        return bool(self._here or self._stepped)

    def _begin(self) -> Tiled:
        tiled = self._whole()
        if self._tiles_of is None:
            self._tiles_of = [[] for _ in self._params]
            for tile in tiled.records.layout.tiles:
                for piece in tile.pieces:
                    self._tiles_of[piece.parameter].append(tile)
        if not self._here:
            check_reduced("in_backward", self._params, self._reduced)
            tiled.records.begin_pass(self._next_order or tiled.records.layout.tiles[::-1])
        return tiled

    def _arrived(self, number: int) -> None:
        """A gradient is complete, in a thread of autograd's."""
        with self._lock, torch.no_grad():
            if number in self._here:
                raise RuntimeError(_AGAIN)
            check_gradient(self._params[number])
            tiled = self._begin()
            self._here.add(number)
            assert self._tiles_of is not None
            self._waiting += filter(self._is_complete, self._tiles_of[number])
            self._step_waiting(tiled)

    def _is_complete(self, tile: Tile) -> bool:
        return all(piece.parameter in self._here or piece.parameter not in self._hooked
                   for piece in tile.pieces)

    def _step_waiting(self, tiled: Tiled) -> None:
        """Step the tiles whose parameters nothing reads any more (B3)."""
        waiting, self._waiting = self._waiting, []
        for tile in waiting:
            if self._postponed or any(self._readers.has(piece.parameter) for piece in tile.pieces):
                self._waiting.append(tile)
                continue
            pieces = [piece for piece in tile.pieces if piece.parameter in self._hooked]
            try:
                self._step_tile(tiled, tile, pieces)
                self._free(tile)
            except SpillwayError as error:
                _log.warning("%s is left to step(), and its gradients stay: %s", tile.name, error)
                self._postponed = True
                self._waiting.append(tile)

    def _step_tile(self, tiled: Tiled, tile: Tile, pieces: Sequence[Piece],
                   also_done: Optional[Set[str]] = None) -> None:
        """:param also_done: gets the tile's name, too"""
        pieces = [piece for piece in pieces if self._params[piece.parameter].grad is not None]
        options = self._groups()[tile.group]
        try:
            if pieces:
                self._after.update(tiled.step_tile(tile, options, pieces))
                self._options[tile.group] = _copied(options)
                self._order.setdefault(tile.name, tile)
                self._changed.update(piece.parameter for piece in pieces)
            self._stepped.add(tile.name)
            if also_done is not None:
                also_done.add(tile.name)
        except SpillwayError:
            raise
        except BaseException as error:  # perhaps between a tile's step and the note of it
            tiled.end_use("a step", error)
            raise

    def _free(self, tile: Tile) -> None:
        """What has been stepped with all its tiles (B2)."""
        assert self._tiles_of is not None
        for number in {piece.parameter for piece in tile.pieces} & self._changed:
            if all(other.name in self._stepped for other in self._tiles_of[number]):
                self._params[number].grad = None
                self._freed.add(number)

    def _mark(self) -> None:
        """Use of a freed gradient must raise an error, until step()."""
        with self._lock:
            for number in self._freed:
                self._params[number].grad = Freed(self._params[number])
            self._freed.clear()

    def _unmark(self) -> None:
        for number in self._here:
            if isinstance(self._params[number].grad, Freed):
                self._params[number].grad = None

    def finish(self) -> None:
        """What is left of the step: tiles with a parameter that has got no gradient, or that was
        read until the end.

        :raises SpillwayError: a drive failed; the same call again finishes the step
        :raises RuntimeError: options are others than those of what has been stepped
        """
        with self._lock:
            tiled = self._begin()
            for group, options in enumerate(self._groups()):
                if not are_equal(self._options.get(group, options), options):
                    raise RuntimeError(_CHANGED.format(group))
            self._unmark()
            for param in self._params:
                check_gradient(param)
            for tile in tiled.records.layout.tiles[::-1]:
                # In a tile that has been stepped there may be what needs a gradient since then.
                if tile.name in self._finished:
                    continue
                pieces = [piece for piece in tile.pieces if tile.name not in self._stepped
                          or piece.parameter not in self._hooked]
                self._step_tile(tiled, tile, pieces, self._finished)
            for number in self._changed:
                self._params[number].grad = None
            tiled.end_pass(self._after)
            self._next_order = [*self._order.values(),
                                *(tile for tile in tiled.records.layout.tiles
                                  if tile.name not in self._order)]
            of_step: Any
            for of_step in (self._here, self._stepped, self._changed, self._freed, self._after,
                            self._options, self._finished, self._order):
                of_step.clear()
            self._waiting = []
            self._postponed = False
            self._hook_all()
            self._readers.begin_step()
            # The first records are read while the next forward pass goes on.
            tiled.records.begin_pass(self._next_order)


def _copied(options: Options) -> Options:
    """A learning rate may be a tensor, which its owner changes."""
    return {name: value.clone() if isinstance(value, Tensor) else value
            for name, value in options.items()}
