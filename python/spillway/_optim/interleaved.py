# SPDX-License-Identifier: MIT
# spillway/_optim/interleaved.py - tiles stepped by a device while the host steps others
"""Which tiles that are, C says (state/update.c), by what both take. A tile's record is copied to
the device, stepped there with the parameters and gradients that the device has, and copied back:
all on one stream of its own.

Invariants:
D1  a record is taken from before it is copied to the device until the copy back has ended
D2  a tile is the device's only if that has all its parameters and gradients, each parameter lying
    flat: then nothing of it is written on another stream meanwhile
D3  one tile at a time; when the step ends, none
"""
from __future__ import annotations

import contextlib
import logging
from typing import Any, Callable, Dict, Optional, Sequence, Set

import torch
from torch import Tensor

from .._core.library import bytes_text
from .._gpu.pinned import pin, unpin
from ..store import Store
from .records import Records, Taken
from .tile_step import Entry, TileStepper, flat_of, local_of, views_of
from .tiles import Tile, item_bytes

_log = logging.getLogger("spillway")

# Of one field of a tile: copies of parameters and gradients, and what classes have between their
# operations.
_FIELDS_BETWEEN = 5


class _Step:
    """Of a tile that is on the device."""

    def __init__(self, tile: Tile, begin: Any) -> None:
        self.tile = tile
        self.begin = begin
        self.end: Any = None  # both are marks
        self.record = contextlib.ExitStack()  # while it is open, the record is taken (D1)


class Interleaved:
    """The device's part of an optimizer's steps. Used by one thread.

    :param store: which closes this before itself
    :param stepper_of: that steps tiles on a device
    :param compare: told of a device once, before it steps anything. RuntimeError: it cannot
    """

    def __init__(self, store: Store, records: Records, params: Sequence[Tensor],
                 stepper_of: Callable[[torch.device], TileStepper],
                 compare: Callable[[torch.device], None]) -> None:
        self._store = store
        self._records = records
        self._params = params
        self._stepper_of = stepper_of
        self._compare = compare
        self._device: Optional[torch.device] = None
        self._off = False  # it cannot be, which was said
        self._table: Any = None
        self._stream: Any = None
        self._arena = 0
        self._step: Optional[_Step] = None
        self.stepper: Any = None
        self.closed = False

    # ---- Which tiles -----------------------------------------------------------------------------

    def begin_pass(self, tiles: Sequence[Tile]) -> Set[str]:
        """A step of these tiles begins.

        :return: the names of those that begin() is to be called for
        """
        device = self._ready()
        tiles = [tile for tile in tiles if tile.fields]
        can = [device is not None and self._has(device, tile) for tile in tiles]
        if not tiles:
            return set()
        if any(can):
            # So that what is measured is not the end of the backward pass.
            self._table.finish(self._table.record(self._table.current_stream(device)))
        return self._records.begin_update(tiles, can)

    def _has(self, device: torch.device, tile: Tile) -> bool:
        """D2"""
        for piece in tile.pieces:
            param = self._params[piece.parameter]
            grad = param.grad
            if flat_of(param, device) is None:
                return False
            if grad is not None and local_of(grad).device != device:
                return False
        return True

    def _ready(self) -> Optional[torch.device]:
        """The device, once there is one that can be used."""
        if self._device is None and not self._off and not self.closed:
            device = device_of(self._params)
            if device is not None:
                self._open(device)
        return self._device

    def _open(self, device: torch.device) -> None:
        from .._gpu import accelerator

        try:
            table = accelerator.table_of(device.type)
            if not table.times:
                raise RuntimeError("PyTorch does not tell how long it takes there")
            self._compare(device)
            arena, _ = pin(table, device, self._store)
        except RuntimeError as error:
            self._give_up(f"{device.type}: {error}")
            return
        self._store.add_dependent(self)
        self._arena, self._table, self._device = arena, table, device
        self._stream = table.new_stream(device)
        self.stepper = self._stepper_of(device)

    def _give_up(self, why: str) -> None:
        self._off = True
        _log.warning("the host steps all tiles, as without interleave=: %s", why)

    # ---- A tile ----------------------------------------------------------------------------------

    def memory_for(self, tile: Tile) -> Optional[Tensor]:
        """Allocate a tile's memory on the device.

        :returns: bytes; None if the device has no room: the host steps this tile and all that
            follow
        """
        if self._device is None:
            return None
        between = _FIELDS_BETWEEN * tile.count * max(item_bytes(field.dtype)
                                                     for field in tile.fields)
        try:
            # The update will need room for intermediate results beside the tile. To find out now
            # whether the device has both, before any state is changed, allocate both.
            room = self._empty(between)
            memory = self._empty(tile.len_bytes)
            del room
        except RuntimeError:  # out of memory
            self._device = None
            self._give_up(f"the device has no {bytes_text(tile.len_bytes + between)} for a tile; "
                          "give the optimizer a smaller tile=")
            return None
        return memory

    def _empty(self, len_bytes: int) -> Tensor:
        memory: Tensor = self._table.empty((torch.uint8, (len_bytes,), (1,)), self._stream)
        return memory

    def begin(self, tile: Tile, taken: Taken, memory: Tensor, held: contextlib.ExitStack,
              step: Callable[[Dict[str, Tensor]], Dict[int, Entry]]) -> Dict[int, Entry]:
        """Copy, step and copy back; finish() is told when that has ended.

        :param held: what gives the record back; closed by finish()
        :param step: of these fields, with what is given to the current stream
        :return: what that returns
        """
        assert self._step is None and taken.memory is not None
        table, stream = self._table, self._stream
        table.wait(stream, table.record(table.current_stream(self._device)))
        under_way = _Step(tile, table.mark(stream))
        try:
            table.copy(memory, taken.memory, stream)
            with table.on(stream):
                after = step(views_of(tile, memory))
            table.copy(taken.memory, memory, stream)
            under_way.end = table.mark(stream)
            under_way.record = held.pop_all()
            self._step = under_way
        except BaseException:
            if self._step is None:  # the record is released now (D1)
                table.finish(table.record(stream))
            raise
        return after

    def reap(self) -> None:
        """See whether the tile on the device has ended."""
        if self._step is not None and self._table.done(self._step.end):
            self.finish()

    def finish(self) -> None:
        """Wait for the tile on the device, if there is one, and give its record back.

        :raises RuntimeError: the device has failed
        """
        if self._step is None:
            return
        self._table.finish(self._step.end)
        step, self._step = self._step, None
        with step.record:
            self._records.device_took(step.tile,
                                      max(0, self._table.elapsed(step.begin, step.end)))

    # ---- The end ---------------------------------------------------------------------------------

    def _before_close(self) -> None:
        """Called by the store before it closes. Nothing is to be done here."""

    def close(self) -> None:
        """By the store, or the optimizer."""
        arena, self._arena, self.closed = self._arena, 0, True
        if not arena:
            return
        try:
            if self._step is not None:
                self._table.finish(self._step.end)
        finally:
            unpin(self._store, arena)
            self._store.drop_dependent(self)

    def __del__(self) -> None:
        if getattr(self, "_arena", 0):
            self.close()


def device_of(params: Sequence[Tensor]) -> Optional[torch.device]:
    """The first that one of them is on; None: all are in host memory."""
    devices = (local_of(param).device for param in params)
    return next((device for device in devices if device.type != "cpu"), None)
