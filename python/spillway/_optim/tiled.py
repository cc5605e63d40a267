# SPDX-License-Identifier: MIT
# spillway/_optim/tiled.py - optimizer state over its tiles: stepped, read and filled
"""Invariants:
S1  a parameter's entry changes when all its pieces have been stepped, and not before
S2  between tiles all is whole: a step that ends there for an error can be finished later. Inside of
    a tile it is not: what comes then ends the use of this state
"""
from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import (AbstractSet, Any, Callable, ContextManager, Dict, Iterator, List, Optional,
                    Sequence, Tuple)

import torch
from torch import Tensor

from .._core.library import SpillwayError
from .._values.nested import flat, nested
from .inner import Act, Options
from .interleaved import Interleaved
from .masters import Masters, master_is_compact, master_of
from .records import Records, Taken
from .tile_step import (MASTER, ON_DRIVES, Entry, Scratch, TileStepper, local_of, part_of, piece_of,
                        read_piece, write_piece)
from .tiles import Piece, Tile

_BROKEN = ("the optimizer's state is not whole any more, since {what} failed half way ({error}). "
           "The last commit is: open the store again, create a new optimizer, and resume()")


def check_gradient(param: Any) -> None:
    """:raises TypeError: it is sparse, or sharded in another way than its parameter"""
    grad = param.grad
    if grad is not None and grad.layout is not torch.strided:
        raise TypeError("a gradient is sparse: give the layer that makes it sparse=False, or an "
                        "optimizer of its own")
    if grad is not None and getattr(grad, "placements", None) != getattr(param, "placements", None):
        raise TypeError(f"a parameter is placed as {param.placements}, and its gradient as "
                        f"{grad.placements}: redistribute() that first")


class InMemory:
    """Gradients, each as ``grad`` of its parameter."""

    # What was used last is used first in the next step.
    alternates = True

    def __init__(self, params: Sequence[Tensor]) -> None:
        self._params = params

    def records_of(self, tile: Tile) -> List[Tile]:
        """What a step of a tile takes, in order."""
        return [tile]

    def of_tile(self, tile: Tile) -> ContextManager[Callable[[Piece], Tensor]]:
        """While the context lasts, what gives the gradient of a piece of a tile, flat."""
        return contextlib.nullcontext(self._piece)

    def _piece(self, piece: Piece) -> Tensor:
        grad = self._params[piece.parameter].grad
        assert grad is not None
        return piece_of(grad, piece)

    def end_step(self) -> None:
        pass


@dataclasses.dataclass
class _Pass:
    """A step under way. It holds its gradients, to know them again."""

    grads: Dict[int, Tuple[Tensor, int]]
    left: List[Tile]
    after: Dict[int, Entry]


class Tiled:
    """What an optimizer keeps for its parameters, on drives and beside.

    :param params: all parameters, as pieces number them
    :param gradients: where they are; default: in memory
    :param on_drives: the numbers of parameters that a commit has by themselves
    :param interleaved: a device that steps a part of the tiles
    :param values: where the values of the parameters are, if not in themselves
    """

    def __init__(self, records: Records, stepper: TileStepper, params: Sequence[Tensor],
                 gradients: Any = None, on_drives: AbstractSet[int] = frozenset(),
                 interleaved: Optional[Interleaved] = None,
                 values: Optional[Sequence[Tensor]] = None) -> None:
        self._values = params if values is None else values
        self._on_drives = on_drives
        self._interleaved = interleaved
        self.records = records
        self._gradients = gradients or InMemory(params)
        self.entries: List[Entry] = [None] * len(params)
        self._stepper = stepper
        self._params = params
        self._masters = Masters(self._values, self.entries)
        self._scratch = Scratch()
        self._ascending = True
        self._pass: Optional[_Pass] = None
        self._broken: Optional[str] = None

    def field_shapes(self) -> List[Dict[str, Tuple[int, ...]]]:
        """Of each parameter, what the records have for it."""
        shapes: List[Dict[str, Tuple[int, ...]]] = [{} for _ in self._params]
        for tile in self.records.layout.tiles:
            for piece in tile.pieces:
                shape = tuple(local_of(self._params[piece.parameter]).shape)
                shapes[piece.parameter] = {
                    field.name: shape if field.shape is None else field.shape
                    for field in tile.fields}
        return shapes

    # ---- A step ----------------------------------------------------------------------------------

    @property
    def unfinished(self) -> bool:
        """A step ended between tiles, for an error: the next one finishes it."""
        return self._pass is not None

    def check_whole(self, to_finish: bool = False) -> None:
        """
        :param to_finish: the caller goes on with a step that has not ended
        :raises RuntimeError: the state is of no use any more, or in the middle of a step
        """
        if self._broken is not None:
            raise RuntimeError(self._broken)
        if self._pass is not None and not to_finish:
            raise RuntimeError("the last step did not end, for an error that it raised: call "
                               "step() again, with the same gradients, and it finishes")

    def step(self, groups: Sequence[Options]) -> None:
        """One step of all parameters that have gradients.

        :raises SpillwayError: a drive failed; the same call again finishes the step
        :raises RuntimeError: see check_whole(); or the gradients are not those of the step that is
            to be finished
        """
        self.check_whole(to_finish=True)
        grads = {number: (param.grad, local_of(param.grad)._version)
                 for number, param in enumerate(self._params) if param.grad is not None}
        if self._pass is None:
            tiles = [tile for tile in self.records.layout.tiles
                     if any(piece.parameter in grads for piece in tile.pieces)]
            # Parameters on drives are expected in the order of the step before.
            ascending = (self._ascending or not self._gradients.alternates
                         or bool(self._on_drives))
            self._pass = _Pass(grads, tiles if ascending else tiles[::-1], {})
        elif not _the_same(self._pass.grads, grads):
            raise RuntimeError("the last step did not end, for an error that it raised, and the "
                               "gradients are others now: go back to the last commit")
        under_way = self._pass
        try:
            if self._interleaved is not None:
                self._finish_interleaved(self._interleaved, under_way, groups)
            else:
                self._finish(under_way, groups)
        except SpillwayError:
            raise
        except BaseException as error:  # perhaps between a tile's step and the note of it
            self.end_use("a step", error)
            raise
        self._pass = None

    def _finish(self, under_way: _Pass, groups: Sequence[Options]) -> None:
        self.records.begin_pass([record for tile in under_way.left
                                 for record in self._gradients.records_of(tile)])
        while under_way.left:
            self._step_first(under_way, groups, self.step_tile)
        self.end_pass(under_way.after)
        self._gradients.end_step()

    def _finish_interleaved(self, device: Interleaved, under_way: _Pass,
                            groups: Sequence[Options]) -> None:
        """The same, where a device steps a part."""
        try:
            names = device.begin_pass(under_way.left)
            while under_way.left:
                if under_way.left[0].name in names:
                    device.finish()
                    self._step_first(under_way, groups, self._begin_tile)
                else:
                    self._step_first(under_way, groups, self.step_tile)
                    device.reap()
        finally:
            device.finish()
        self.end_pass(under_way.after)

    def _step_first(self, under_way: _Pass, groups: Sequence[Options],
                    step: Callable[[Tile, Options, Sequence[Piece]], Dict[int, Entry]]) -> None:
        tile = under_way.left[0]
        pieces = [piece for piece in tile.pieces if piece.parameter in under_way.grads]
        under_way.after.update(step(tile, groups[tile.group], pieces))
        under_way.left.pop(0)

    def _begin_tile(self, tile: Tile, group: Options,
                    pieces: Sequence[Piece]) -> Dict[int, Entry]:
        """As step_tile(), on the device, which goes on with it afterwards."""
        device = self._interleaved
        assert device is not None
        stepper, memory = device.stepper, device.memory_for(tile)
        if memory is None:
            return self.step_tile(tile, group, pieces)
        with contextlib.ExitStack() as held:
            gradient = held.enter_context(self._gradients.of_tile(tile))
            taken = held.enter_context(self.records.taken(tile))
            try:
                self._masters.renew(tile, pieces, self._masters.views(tile, taken))
                taken.changed = True
                after = device.begin(tile, taken, memory, held, lambda views: (
                    stepper.step(tile, views, group, self.entries, pieces, gradient)))
                self._masters.note(tile)
            except BaseException as error:
                self.end_use("a step", error)
                raise
        return after

    def end_pass(self, after: Dict[int, Entry]) -> None:
        """All pieces of these parameters have been stepped (S1)."""
        for number, entry in after.items():
            self.entries[number] = entry
        self._ascending = not self._ascending

    def step_tile(self, tile: Tile, group: Options, pieces: Sequence[Piece]) -> Dict[int, Entry]:
        """Step these pieces of a tile. Return: entries for end_pass()."""
        inside = False
        try:
            with self._gradients.of_tile(tile) as gradient, self.records.taken(tile) as taken:
                inside = taken.changed = True
                views = self._masters.views(tile, taken)
                self._masters.renew(tile, pieces, views)
                self._masters.look_at(tile, pieces, views)
                after = self._stepper.step(tile, views, group, self.entries, pieces, gradient)
                self._masters.keep(tile, taken, views, pieces)
                inside = False
        except BaseException as error:
            if inside:
                self.end_use("a step", error)
            raise
        return after

    def turn(self, groups: Sequence[Options], act: Act, numbers: AbstractSet[int]) -> None:
        """Classes turn the parameters that have state into others, or back.

        :param numbers: of their groups
        :raises SpillwayError: a drive failed: some are turned, so this state is of no use any more
        """
        after: Dict[int, Entry] = {}
        tiles = [tile for tile in self.records.layout.tiles if tile.group in numbers
                 and any(self.entries[piece.parameter] is not None for piece in tile.pieces)]
        try:
            self.records.begin_pass(tiles)
            for tile in tiles:
                after.update(self._turn_tile(tile, groups[tile.group], act))
        except BaseException as error:
            self.end_use("train() or eval()", error)
            raise
        for number, entry in after.items():
            self.entries[number] = entry

    def _turn_tile(self, tile: Tile, group: Options, act: Act) -> Dict[int, Entry]:
        pieces = [piece for piece in tile.pieces if self.entries[piece.parameter] is not None]
        with self.records.taken(tile) as taken:
            taken.changed = True
            views = self._masters.views(tile, taken)
            after = self._stepper.step(tile, views, group, self.entries, pieces, lambda _: None,
                                       act)
            self._masters.keep(tile, taken, views, pieces)
        return after

    def end_use(self, what: str, error: BaseException) -> None:
        """What came in between has left things half done (S2)."""
        words = str(error) or type(error).__name__
        self._broken = _BROKEN.format(what=what, error=words)

    # ---- All of it -------------------------------------------------------------------------------

    def visit(self, tiles: Sequence[Tile], function: Callable[[Tile, Taken], None],
              what: Optional[str] = None) -> None:
        """``function`` for each of these records, in memory.

        :param what: it changes things, which are not whole if this fails half way
        """
        try:
            self.records.begin_pass(tiles)
            for tile in tiles:
                if tile.fields:
                    with self.records.taken(tile) as taken:
                        function(tile, taken)
        except BaseException as error:
            if what is not None:
                self.end_use(what, error)
            raise

    def gathered(self) -> List[Optional[Dict[str, Any]]]:
        """The whole state of each parameter: tensors of its shape, in host memory. None: it has no
        state yet."""
        self.check_whole()
        shapes = self.field_shapes()
        whole: List[Optional[Dict[str, Any]]] = []
        for entry, param in zip(self.entries, self._params):
            whole.append(None if entry is None else {
                name: value.clone() if isinstance(value, Tensor) else value
                for name, value in entry.items()
            })

        def gather(tile: Tile, taken: Taken) -> None:
            views = self._masters.views(tile, taken)
            if taken.changed:
                self._masters.keep(tile, taken, views)
            for piece in tile.pieces:
                state = whole[piece.parameter]
                for field in tile.fields if state is not None else ():
                    assert state is not None
                    if field.name != MASTER and state.get(field.name) is None:
                        continue
                    if field.name not in state or state[field.name] is ON_DRIVES:
                        shape = shapes[piece.parameter][field.name]
                        state[field.name] = torch.empty(shape, dtype=field.dtype, device="cpu")
                    into = state[field.name].view(-1)
                    if field.shape is None:
                        into = into[piece.start:piece.stop]
                    into.copy_(part_of(views[field.name], field, piece))

        tiles = [tile for tile in self.records.layout.tiles
                 if any(whole[piece.parameter] is not None for piece in tile.pieces)]
        self.visit(tiles, gather)
        return [state and nested(state) for state in whole]

    def fill(self, whole: Sequence[Optional[Dict[str, Any]]]) -> None:
        """The other way: the state of each parameter, as gathered() gives it. A master that it has
        not comes from the parameter."""
        entries: List[Entry] = []
        whole = [state and flat(state) for state in whole]
        for state, names in zip(whole, self.field_shapes()):
            entries.append(None if state is None else {
                name: ON_DRIVES if name in names and isinstance(value, Tensor) else value
                for name, value in state.items() if name != MASTER
            })
        self._masters.forget()

        def scatter(tile: Tile, taken: Taken) -> None:
            views = self._masters.views(tile, taken)
            for piece in tile.pieces:
                state = whole[piece.parameter] or {}
                for field in tile.fields:
                    value = state.get(field.name)
                    if isinstance(value, Tensor):
                        into = part_of(views[field.name], field, piece)
                        if field.shape is None:
                            read_piece(value, piece, into)
                        else:
                            into.copy_(value.reshape(-1))
            taken.changed = True
            self._masters.round(tile, [piece for piece in tile.pieces if isinstance(
                (whole[piece.parameter] or {}).get(MASTER), Tensor)], views)
            self._masters.keep(tile, taken, views)

        tiles = [tile for tile in self.records.layout.tiles
                 if any(whole[piece.parameter] is not None for piece in tile.pieces)]
        self.visit(tiles, scatter, "load_state_dict()")
        self.entries[:], self._pass = entries, None

    def load_parameters(self, values: Sequence[Tensor]) -> None:
        """Parameters, and their masters, are these from now on.

        :param values: of each, of its shape, in host memory; what a master has more bits for than
            its parameter goes into the master
        """
        def fill(tile: Tile, taken: Taken) -> None:
            views = self._masters.views(tile, taken)
            for piece in tile.pieces:
                into = views[MASTER][piece.offset:piece.end]
                read_piece(values[piece.parameter], piece, into)
            taken.changed = True
            self._masters.keep(tile, taken, views)

        for param, value in zip(self._values, values):
            local_of(param).detach().copy_(value)
        self._masters.forget()
        finer = [tile for tile in self.records.layout.tiles if master_of(tile) is not None
                 and any(values[piece.parameter].dtype is not tile.dtype for piece in tile.pieces)]
        if finer:
            self.visit(finer, fill, "load_parameters()")

    def save_parameters(self) -> List[str]:
        """Before a commit: what of parameters is in memory alone goes to records.

        :return: what was changed after the last step, so that its compact masters belong to other
            values than the commit has of it; but of parameters on drives
        """
        def save(tile: Tile, taken: Taken) -> None:
            for piece in tile.pieces:
                into = taken.views["parameter"][piece.offset:piece.end]
                read_piece(self._values[piece.parameter], piece, into)
            taken.changed = True

        def save_masters(tile: Tile, taken: Taken) -> None:
            views = self._masters.views(tile, taken)
            taken.changed = self._masters.renew(tile, tile.pieces, views) or taken.changed
            self._masters.keep(tile, taken, views)

        layout = self.records.layout
        new = [tile for tile in layout.tiles
               if self._masters.missing(tile) or self._masters.may_differ(tile)]
        if new:
            self.visit(new, save_masters)
        if layout.copies:
            self.visit(layout.copies, save)
        return self._masters.changed(layout.tiles, self._on_drives)

    def restore(self, entries: Sequence[Entry]) -> None:
        """After resuming: parameters are those of the records, but for those on drives."""
        def restore(tile: Tile, taken: Taken) -> None:
            view = taken.views[MASTER if MASTER in taken.views else "parameter"]
            for piece in tile.pieces:
                if piece.parameter not in self._on_drives:
                    write_piece(self._values[piece.parameter], piece, view[piece.offset:piece.end])

        layout = self.records.layout
        runs = {(tile.group, tile.dtype) for tile, _ in layout.formers}
        whole = [tile for tile in layout.tiles
                 if master_of(tile) is not None and not master_is_compact(tile)
                 and (tile.group, tile.dtype) not in runs]
        copies = [tile for tile in layout.copies if (tile.group, tile.dtype) not in runs]
        to_visit = [tile for tile in (*whole, *copies, *layout.former_copies)
                    if not all(piece.parameter in self._on_drives for piece in tile.pieces)]
        if to_visit:
            self.visit(to_visit, restore, "resume()")
        for tile in (*layout.tiles, *[former for former, _ in layout.formers]):
            self._masters.note(tile)
        if layout.formers:
            self._convert(layout.formers, layout.former_copies)
        self.entries[:] = entries

    def order_of_refill(self) -> Iterator[Tuple[str, Piece]]:
        """The order in which refill() takes what records have: a field, and elements of a
        parameter."""
        for tile in (*self.records.layout.tiles, *self._copies_alone()):
            for field in tile.fields:
                for piece in tile.pieces if field.shape is None else ():
                    if piece.start < piece.stop:
                        yield field.name, piece
                if field.shape is not None:
                    yield field.name, Piece(tile.pieces[0].parameter, 0, math.prod(field.shape), 0)
            for piece in self._absent_from(tile):
                yield "parameter", piece

    def _copies_alone(self) -> List[Tile]:
        """Of parameters without masters."""
        with_masters = {(tile.group, tile.dtype) for tile in self.records.layout.tiles
                        if master_of(tile) is not None}
        return [tile for tile in self.records.layout.copies
                if (tile.group, tile.dtype) not in with_masters]

    def _absent_from(self, tile: Tile) -> List[Piece]:
        """Of parameters that are on drives by themselves, what has no master there."""
        return [piece for piece in tile.pieces if piece.parameter in self._on_drives
                and piece.start < piece.stop and master_of(tile) is None]

    def refill(self, entries: Sequence[Entry], following: Callable[[Tensor], None]) -> None:
        """After resuming what other records had: all of these, and the parameters.

        :param following: fills a flat tensor with what comes next, as in order_of_refill()
        """
        def fill(tile: Tile, taken: Taken) -> None:
            views = self._masters.views(tile, taken)
            for field in tile.fields:
                for piece in tile.pieces if field.shape is None else ():
                    if piece.start < piece.stop:
                        following(views[field.name][piece.offset:piece.end])
                if field.shape is not None:
                    following(views[field.name])
            for piece in self._absent_from(tile):
                values = self._scratch.of("parameter", tile.dtype, piece.stop - piece.start)
                following(values)
                write_piece(self._values[piece.parameter], piece, values)
            taken.changed = True
            for view in (views[name] for name in (MASTER, "parameter") if name in views):
                for piece in tile.pieces:
                    write_piece(self._values[piece.parameter], piece,
                                view[piece.offset:piece.end])
            self._masters.keep(tile, taken, views)

        tiles = [*self.records.layout.tiles, *self._copies_alone()]
        try:
            self.records.begin_pass(tiles)
            for tile in tiles:
                with self.records.taken(tile) as taken:
                    fill(tile, taken)
        except BaseException as error:
            self.end_use("resume()", error)
            raise
        self.entries[:] = entries

    def _convert(self, formers: Sequence[Tuple[Tile, Tile]], copies: Sequence[Tile]) -> None:
        """Tiles with one kind of masters from a commit's with the other."""
        try:
            self.records.begin_pass([tile for pair in formers for tile in pair])
            for former, tile in formers:
                with self.records.taken(former) as old, self.records.taken(tile) as new:
                    before = self._masters.views(former, old)
                    views = {**new.views, **before}
                    for name in new.views:
                        if name != MASTER or not master_is_compact(tile):
                            new.views[name].copy_(before[name])
                    new.changed = True
                    self._masters.round(tile, tile.pieces, views)
                    self._masters.keep(tile, new, views)
                self.records.clear(former)
            for copy in copies:
                self.records.clear(copy)
        except BaseException as error:
            self.end_use("resume()", error)
            raise


def _the_same(one: Dict[int, Tuple[Tensor, int]], other: Dict[int, Tuple[Tensor, int]]) -> bool:
    return one.keys() == other.keys() and all(
        one[number][0] is other[number][0] and one[number][1] == other[number][1]
        for number in one)
