# SPDX-License-Identifier: MIT
# spillway/_grads/gradients.py - gradients=True: move gradients to drives during the backward pass
"""Each tile of the state has a tile of gradients, which is not part of commits. A complete gradient
is written into the tiles of its parameter, each tile when all its parameters have their gradients,
and its memory is freed. A StoredGradient replaces it as ``grad``. From a device it comes by way of
pinned memory, and is written when it is there (departures.py).

Invariants:
G1  a gradient is current as long as its StoredGradient is the grad of its parameter, or inside it
G2  the elements of a current gradient in a tile are in the tile's record, unless the tile is in
    ``left``: then they are in ``held``, or, if ``adds``, they are the sum of record and ``held``
G3  a record is cleared only if no current gradient has its only copy of elements there
G4  at most ``_open_max`` tiles wait for gradients that they lack
"""
from __future__ import annotations

import collections
import contextlib
import logging
import threading
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor

from .._core.library import SpillwayError
from .._core.tensors import name_of
from .._optim.layout import GRADIENT
from .._optim.records import Records
from .._optim.tile_step import Scratch, local_of, piece_of, read_piece, write_piece
from .._optim.tiled import Tiled, check_gradient
from .._optim.tiles import Piece, Tile
from .ddp_buckets import Reduced
from .departures import Departures
from .stored_placeholder import Gradient, Question, StoredGradient

_log = logging.getLogger("spillway")

_DEAD = ("this gradient was on drives, and is not any more: its parameter has another one, it was "
         "dropped meanwhile, or an error or Ctrl-C came while it was added to. zero_grad(), and "
         "begin again with the gradients of this step")


class Gradients:
    """The gradients of an optimizer, on drives.

    :param records: of the optimizer's layout
    :param whole: returns the optimizer's state, or raises what is wrong with it
    :param reduced: the source of the gradients; None: autograd
    :param departures: how those of a device come to the host
    """

    # The step begins with the first tile, whose gradients are in memory: the backward pass ends
    # with it.
    alternates = False

    def __init__(self, params: Sequence[Tensor], records: Records, whole: Callable[[], Tiled],
                 reduced: Optional[Reduced], departures: Departures) -> None:
        self._departures = departures
        self._params = params
        self._records = records
        self._whole = whole
        self._reduced = reduced
        self._lock = threading.RLock()  # autograd has a thread per device
        layout = records.layout
        self._beside = dict(zip((tile.name for tile in layout.tiles), layout.gradients))
        self._tiles_of: List[List[Tile]] = [[] for _ in params]
        for tile in layout.gradients:
            for piece in tile.pieces:
                self._tiles_of[piece.parameter].append(tile)
        self._open_max = 1 + len({(tile.group, tile.dtype) for tile in layout.gradients})
        self._hooked: Set[int] = set()
        self._current: Any = weakref.WeakValueDictionary()  # Gradient by number of its parameter
        self._pass: Optional[Set[int]] = None  # with gradients of this backward pass
        self._waiting: Dict[str, Tile] = collections.OrderedDict()
        self._order: List[Tile] = list(layout.gradients[::-1])  # in the order of their writes
        self._written: Dict[str, Tile] = {}  # tiles written in this pass
        self._filled: Set[str] = set()  # tiles whose records were written since they were cleared
        self._grads_to_set: Dict[int, StoredGradient] = {}  # to be set at the end of the pass
        self._postponed = False  # a drive failed: the other gradients stay in memory
        self._asked: Set[Question] = set()  # questions between the last two steps
        self._asked_now: Set[Question] = set()
        self._reading = False  # a pass over all gradients has begun
        self._scratch = Scratch()
        self._handles: List[Any] = []
        self._hook_all()
        if reduced is not None:
            reduced.follow({id(param): number for number, param in enumerate(params)},
                           lambda number: self._arrived(number, to_mark=False), self._mark)

    def _hook_all(self) -> None:
        """Hook all parameters that require a gradient. Others may require one in a later step."""
        for number, param in enumerate(self._params):
            if param.requires_grad and number not in self._hooked:
                self._hooked.add(number)
                self._handles.append(self._hook(number, param))

    def _hook(self, number: int, param: Any) -> Any:
        # Autograd holds the hook where the garbage collector does not look, so a strong reference
        # in it would keep this object alive for good.
        found = weakref.ref(self)

        def arrived(_: Tensor) -> None:
            here = found()
            if here is not None and (here._reduced is None or not here._reduced.reduces):
                here._arrived(number, to_mark=True)

        return param.register_post_accumulate_grad_hook(arrived)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._reduced is not None:
            self._reduced.unfollow()

    # ---- During a backward pass ------------------------------------------------------------------

    def _enter(self, number: int) -> None:
        """A backward pass is about to change a gradient: notice whether a new pass has begun."""
        self._whole()
        if self._pass is None or number in self._pass:
            self._begin_backward()

    def _begin_backward(self) -> None:
        self._pass, self._postponed, self._reading = set(), False, False
        self._grads_to_set.clear()
        if self._written:
            self._order = [*self._written.values(),
                           *(tile for tile in self._order if tile.name not in self._written)]
            self._written = {}
        alive = {number for number in range(len(self._params)) if self._of(number) is not None}
        for number in set(self._current.keys()) - alive:
            self._current.pop(number, None)
        for tile in self._order:
            if alive.isdisjoint(piece.parameter for piece in tile.pieces):
                self._clear(tile)
                self._waiting.pop(tile.name, None)
        self._records.begin_pass(self._order)

    def _clear(self, tile: Tile) -> None:
        """Clear the record of a tile, whose content will not be read any more (G3)."""
        if tile.name in self._filled:
            self._records.clear(tile)
            self._filled.discard(tile.name)

    def _arrived(self, number: int, to_mark: bool) -> None:
        """A gradient is complete. Called by a thread of autograd.

        :param to_mark: set its placeholder as ``grad`` now, not at the end of the pass
        """
        with self._lock, torch.no_grad():
            check_gradient(self._params[number])
            self._enter(number)
            assert self._pass is not None
            gradient = self._taken_over(number, to_mark)
            self._pass.add(number)
            if not gradient.adds:  # the whole gradient is in memory
                for question in self._asked:
                    gradient.answers[question] = self._computed(gradient, question)
            for tile in self._tiles_of[number]:
                self._waiting[tile.name] = tile
            self._depart(gradient)
            self._write()

    def _depart(self, gradient: Gradient) -> None:
        """Copy what is held to the host, if it is on a device; no one waits, unless the host has no
        room for it. A reducer's buffer is not left to a copy: the reducer writes into it again."""
        held = gradient.held
        if self._reduced is not None or held is None or not self._departures.takes(held):
            return
        while (self._departures.lacks(held.numel() * held.element_size()) and not self._postponed
               and (self._write_one() or self._departures.wait_for_return())):
            if gradient.held is not held:  # its own tiles were written
                return
        departure = self._departures.begin(held)
        if departure is not None:
            gradient.departs(departure)

    def _taken_over(self, number: int, to_mark: bool) -> Gradient:
        param = self._params[number]
        grad = local_of(param.grad)
        if isinstance(grad, StoredGradient):  # it was added to
            self.check(grad.gradient)
            return grad.gradient
        if grad.requires_grad:
            raise RuntimeError("backward(create_graph=True): a gradient on drives has no graph. "
                               "Leave gradients=True out")
        wanted = self._tiles_of[number][0].dtype
        if grad.dtype != wanted:
            raise TypeError(f"a gradient is {name_of(grad.dtype)}, and records have room for "
                            f"{name_of(wanted)}: set grad_dtype before the optimizer is made")
        gradient = Gradient(number, self, grad, (tile.name for tile in self._tiles_of[number]))
        stored = StoredGradient(gradient, grad)
        self._current[number] = gradient
        if to_mark:
            _set(param, stored)
        else:
            self._grads_to_set[number] = stored
        return gradient

    def _mark(self) -> None:
        """The pass has ended: set the placeholders. Copy gradients that still lie in the
        reducer's buffers, which the next pass overwrites."""
        with self._lock, torch.no_grad():
            for number, stored in self._grads_to_set.items():
                if stored.gradient.held is not None:
                    stored.gradient.hold(stored.gradient.held.clone())
                self._params[number].grad = stored
            self._grads_to_set.clear()

    def _is_complete(self, tile: Tile) -> bool:
        assert self._pass is not None
        return all(piece.parameter in self._pass or piece.parameter not in self._hooked
                   for piece in tile.pieces)

    def _has_landed(self, tile: Tile) -> bool:
        """Whether no gradient of a tile is on its way from a device."""
        return all(gradient.has_landed() for gradient in (
            self._current.get(piece.parameter) for piece in tile.pieces)
                   if gradient is not None and tile.name in gradient.left)

    def _write(self) -> None:
        """Write the complete tiles, and those that have waited longest (G4)."""
        for tile in self._to_write():
            if self._postponed:
                return
            if self._has_landed(tile):
                self._try_to_write(tile)

    def _write_one(self) -> bool:
        """Write the tile that has waited longest, even if this has to wait for a copy. Return:
        False if there is none."""
        tile = next(iter(self._to_write()), None)
        if tile is not None:
            self._try_to_write(tile)
        return tile is not None

    def _to_write(self) -> List[Tile]:
        complete = [tile for tile in self._waiting.values() if self._is_complete(tile)]
        others = [tile for tile in self._waiting.values() if not self._is_complete(tile)]
        return complete + others[:max(0, len(others) - self._open_max)]

    def _try_to_write(self, tile: Tile) -> None:
        try:
            self._write_tile(tile)
        except SpillwayError as error:
            _log.warning("%s cannot be written, and what it lacks stays in memory: %s",
                         tile.name, error)
            self._postponed = True

    def _write_tile(self, tile: Tile) -> None:
        current = [(piece, self._current[piece.parameter]) for piece in tile.pieces
                   if piece.parameter in self._current]
        found = [(piece, gradient) for piece, gradient in current if tile.name in gradient.left]
        if found:
            if len(found) == len(current) and not any(gradient.adds for _, gradient in found):
                self._clear(tile)  # the whole tile is written, so its old content need not be read
            self._filled.add(tile.name)
            self._put(tile, found)
            self._written[tile.name] = tile
        self._waiting.pop(tile.name, None)

    def _put(self, tile: Tile, found: List[Tuple[Piece, Gradient]]) -> None:
        """Write gradients into the record of a tile (G2)."""
        inside = False
        try:
            with self._records.taken(tile) as taken:
                inside = taken.changed = True
                for piece, gradient in found:
                    into = taken.views[GRADIENT][piece.offset:piece.end]
                    if gradient.adds:
                        into.add_(piece_of(gradient.memory(), piece).to("cpu"))
                    else:
                        read_piece(gradient.memory(), piece, into)
            for _, gradient in found:
                gradient.left.discard(tile.name)
                if not gradient.left:
                    gradient.held, gradient.departure, gradient.adds = None, None, False
        except BaseException:
            if inside:  # it is not known how much has been added
                for _, gradient in found:
                    self._current.pop(gradient.number, None)
            raise

    # ---- Called by the placeholders of gradients -------------------------------------------------

    def check(self, gradient: Gradient) -> None:
        """:raises RuntimeError: the gradient is not current (G1)"""
        if self._current.get(gradient.number) is not gradient:
            raise RuntimeError(_DEAD)

    def add(self, gradient: Gradient, other: Tensor) -> None:
        """Add to a gradient, with the same numbers in the same order as autograd does: at once if
        the whole gradient is in memory, else to each record when it is written next.

        :raises SpillwayError: a drive failed; nothing was added
        """
        with self._lock, torch.no_grad():
            self._enter(gradient.number)
            self.check(gradient)
            all_tiles = {tile.name for tile in self._tiles_of[gradient.number]}
            if gradient.later:
                value = self._read(gradient)
                (gradient.held, gradient.departure, gradient.adds, gradient.left,
                 gradient.later) = value, None, False, all_tiles, []
            elif gradient.adds or gradient.left != all_tiles:
                for tile in self._tiles_of[gradient.number]:
                    if tile.name in gradient.left:
                        self._write_tile(tile)
                gradient.held, gradient.departure, gradient.adds, gradient.left = (
                    other, None, True, all_tiles)
            elif gradient.departure is not None:  # nothing of it is written yet
                gradient.hold(self._departures.back(gradient.departure, gradient.device))
            gradient.answers.clear()
            if not gradient.adds:
                assert gradient.held is not None
                gradient.held.add_(other)

    def answer(self, gradient: Gradient, question: Question) -> Tensor:
        """Answer a question. If it was asked between the last two steps too, it was answered when
        the gradient arrived; otherwise this reads the gradient.

        :raises SpillwayError: a drive failed
        """
        with self._lock, torch.no_grad():
            if not gradient.later:
                self._asked_now.add(question)
            if question not in gradient.answers:
                self._begin_reading(gradient)
                gradient.answers[question] = self._computed(gradient, question)
            return gradient.answers[question].clone()

    def value(self, gradient: Gradient) -> Tensor:
        """The whole gradient, in memory.

        :raises SpillwayError: a drive failed
        """
        with self._lock, torch.no_grad():
            return self._read(gradient)

    def _computed(self, gradient: Gradient, question: Question) -> Tensor:
        function, args, kwargs = question
        is_here = (not gradient.adds and not gradient.later and gradient.held is not None
                   and gradient.departure is None)
        answer: Tensor = function(gradient.held if is_here else self._read(gradient), *args,
                                  **dict(kwargs))
        return answer

    def _begin_reading(self, gradient: Gradient) -> None:
        """The other gradients will be asked for next, in the order of parameters: prefetch their
        records."""
        if not self._reading and not gradient.is_of_zeros and (
                gradient.held is None or gradient.adds):
            self._records.begin_pass(self._records.layout.gradients)
            self._reading, self._pass = True, None

    def _read(self, gradient: Gradient) -> Tensor:
        """The gradient in new memory, with the strides with which it arrived."""
        if gradient.is_of_zeros:
            value = self._empty(gradient)
        elif gradient.departure is not None and not gradient.adds:
            value = self._departures.back(gradient.departure, gradient.device)
        elif gradient.held is not None and not gradient.adds:
            value = gradient.held.clone()
        else:
            value = self._read_records(gradient)
        for change in gradient.later:
            change(value)
        return value

    def _empty(self, gradient: Gradient) -> Tensor:
        param = local_of(self._params[gradient.number])
        return torch.empty_strided(gradient.shape, gradient.strides, device=param.device,
                                   dtype=self._tiles_of[gradient.number][0].dtype)

    def _read_records(self, gradient: Gradient) -> Tensor:
        value = self._empty(gradient)
        for tile in self._tiles_of[gradient.number]:
            with self._records.taken(tile) as taken:
                for piece in tile.pieces:
                    if piece.parameter == gradient.number:
                        found = self._content(gradient, tile, piece, taken.views[GRADIENT])
                        write_piece(value, piece, found)
        return value

    def _content(self, gradient: Gradient, tile: Tile, piece: Piece,
                 view: Optional[Tensor]) -> Tensor:
        """The elements of a piece (G2), without the changes in ``later``. ``view``: of the
        record."""
        if tile.name not in gradient.left:
            assert view is not None
            return view[piece.offset:piece.end]
        held = piece_of(gradient.memory(), piece)
        if not gradient.adds:
            return held
        assert view is not None
        return view[piece.offset:piece.end] + held.to("cpu")

    # ---- A step ----------------------------------------------------------------------------------

    def _of(self, number: int) -> Optional[Gradient]:
        """The current gradient of a parameter, if it is on drives.

        :raises RuntimeError: its placeholder is there, but the gradient is not current any more
        """
        grad = self._params[number].grad
        grad = None if grad is None else local_of(grad)
        if not isinstance(grad, StoredGradient):
            return None
        if grad.gradient.number != number:
            raise RuntimeError(_DEAD)
        self.check(grad.gradient)
        return grad.gradient

    def check_all(self) -> None:
        """:raises RuntimeError: a gradient on drives is not current any more"""
        for number in range(len(self._params)):
            self._of(number)

    def records_of(self, tile: Tile) -> List[Tile]:
        """The records that the step of a tile needs, in the order of their use."""
        beside = self._beside[tile.name]
        for piece in tile.pieces:
            gradient = self._of(piece.parameter)
            if gradient is not None and not gradient.is_of_zeros and (
                    beside.name not in gradient.left or gradient.adds):
                return [beside, tile]
        return [tile]

    @contextlib.contextmanager
    def of_tile(self, tile: Tile) -> Iterator[Callable[[Piece], Tensor]]:
        """A context with a function that returns the gradient of a piece of the tile, flat."""
        beside, *others = self.records_of(tile)
        if not others:
            yield lambda piece: self._piece(tile, piece, None)
            return
        with self._records.taken(beside) as taken:
            view = taken.views[GRADIENT]
            before = view._version
            yield lambda piece: self._piece(tile, piece, view)
            taken.changed = view._version != before  # a class may do so as it steps

    def _piece(self, tile: Tile, piece: Piece, view: Optional[Tensor]) -> Tensor:
        gradient = self._of(piece.parameter)
        grad: Any = self._params[piece.parameter].grad
        if gradient is None:  # an ordinary gradient, set by the caller
            return piece_of(grad, piece)
        if not gradient.later:
            return self._content(gradient, self._beside[tile.name], piece, view)
        dtype = self._beside[tile.name].dtype
        memory = self._scratch.of("changed", dtype, tile.count)[piece.offset:piece.end]
        if not gradient.is_of_zeros:
            memory.copy_(self._content(gradient, self._beside[tile.name], piece, view))
        for change in gradient.later:
            change(memory)
        return memory

    def end_step(self) -> None:
        """A step has ended: the next backward pass belongs to another."""
        self._hook_all()
        self._pass, self._reading = None, False
        self._departures.reap()
        self._asked, self._asked_now = self._asked_now, set()


def _set(param: Any, stored: StoredGradient) -> None:
    """Set the placeholder as the grad of a parameter, or inside its DTensor."""
    if hasattr(param.grad, "_local_tensor"):
        param.grad._local_tensor = stored
    else:
        param.grad = stored
