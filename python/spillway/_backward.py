# SPDX-License-Identifier: MIT
# spillway/_backward.py - tiles are stepped during the backward pass, and gradients freed there
"""Invariants:
B1  a tile is stepped once between two calls of step(), with the gradients that its parameters have
    from one backward pass
B2  a gradient is freed when all tiles that its parameter lies in have been stepped
"""
from __future__ import annotations

import logging
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

import torch
from torch import Tensor

from ._arithmetic import Entry
from ._elementwise import Options
from ._library import SpillwayError
from ._tiled import Tiled, check_gradient
from ._tiles import Tile

_log = logging.getLogger("spillway")

SCALED = ("in_backward=True steps parameters during the backward pass, with gradients that a "
          "GradScaler has not unscaled yet: make the optimizer without it, or train in bfloat16")


def check_supported() -> None:
    """
    :raises RuntimeError: this PyTorch has no hook for it, or gradients are reduced after it
    """
    if not hasattr(Tensor, "register_post_accumulate_grad_hook"):
        raise RuntimeError(f"in_backward=True needs PyTorch 2.1, this is {torch.__version__}: "
                           "leave it out, the numbers are the same")
    distributed = torch.distributed
    if (distributed.is_available() and distributed.is_initialized()
            and distributed.get_world_size() > 1):
        raise RuntimeError("in_backward=True steps parameters before their gradients have been "
                           "reduced over all processes: leave it out where there are several")


class DuringBackward:
    """Of an optimizer: which gradients have come, and which tiles have been stepped.

    :param whole: the optimizer's state, or what is wrong with it as an exception
    :param groups: the options of groups as they are now
    """

    def __init__(self, params: Sequence[Tensor], whole: Callable[[], Tiled],
                 groups: Callable[[], List[Options]]) -> None:
        self._params = params
        self._whole = whole
        self._groups = groups
        self._lock = threading.Lock()  # each device has a thread of autograd's
        self._here: Set[int] = set()  # parameters whose gradients have come
        self._stepped: Set[str] = set()  # tiles
        self._after: Dict[int, Entry] = {}
        self._order: List[Tile] = []  # in which tiles were stepped
        self._next_order: Optional[List[Tile]] = None
        self._postponed = False  # a drive failed: the rest is left to step()
        self._tiles_of: Optional[List[List[Tile]]] = None
        self._handles: List[Any] = []
        self._hooked: Set[int] = set()
        for number, param in enumerate(params):
            if param.requires_grad:
                self._hooked.add(number)
                self._handles.append(self._hook(number, param))

    def _hook(self, number: int, param: Any) -> Any:
        return param.register_post_accumulate_grad_hook(lambda _: self._arrived(number))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

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
            check_supported()
            order = self._next_order or tiled.records.layout.tiles[::-1]
            tiled.records.begin_pass(order)
        return tiled

    def _arrived(self, number: int) -> None:
        """A gradient is complete, in a thread of autograd's."""
        with self._lock, torch.no_grad():
            if number in self._here:
                raise RuntimeError(
                    "a second backward pass before step(): with in_backward=True the first has "
                    "stepped parameters already. Call step() after each, or leave it out to "
                    "accumulate gradients")
            check_gradient(self._params[number])
            tiled = self._begin()
            self._here.add(number)
            assert self._tiles_of is not None
            for tile in self._tiles_of[number]:
                if not self._postponed and self._is_complete(tile):
                    try:
                        self._step_tile(tiled, tile)
                    except SpillwayError as error:
                        _log.warning("%s is left to step(), and its gradients stay: %s", tile.name,
                                     error)
                        self._postponed = True

    def _is_complete(self, tile: Tile) -> bool:
        return all(piece.parameter in self._here or piece.parameter not in self._hooked
                   for piece in tile.pieces)

    def _step_tile(self, tiled: Tiled, tile: Tile) -> None:
        pieces = [piece for piece in tile.pieces
                  if self._params[piece.parameter].grad is not None]
        if pieces:
            self._after.update(tiled.step_tile(tile, self._groups()[tile.group], pieces))
            self._order.append(tile)
        self._stepped.add(tile.name)
        assert self._tiles_of is not None
        for piece in pieces:  # B2
            if all(other.name in self._stepped for other in self._tiles_of[piece.parameter]):
                self._params[piece.parameter].grad = None

    def finish(self) -> None:
        """What is left of the step: tiles with a parameter that has got no gradient.

        :raises SpillwayError: a drive failed; the same call again finishes the step
        """
        with self._lock:
            tiled = self._begin()
            for tile in tiled.records.layout.tiles[::-1]:
                if tile.name not in self._stepped:
                    self._step_tile(tiled, tile)
            tiled.end_pass(self._after)
            self._next_order = self._order + [
                tile for tile in tiled.records.layout.tiles if tile.name not in
                {done.name for done in self._order}]
            self._here, self._stepped, self._after, self._order = set(), set(), {}, []
            self._postponed = False
