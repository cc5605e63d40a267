# SPDX-License-Identifier: MIT
# spillway/_optim/masters.py - float32 masters of parameters of 16 bits, in their records
"""A record has them whole, or compact: what the bfloat16 parameter has of its master, which is the
master rounded, is not kept twice. So a compact master is put together from both before a step, and
taken apart after it (state/masters.c), bit for bit.

Invariants:
M1  a master is in its record from the first time that the record is written; before, it comes from
    the parameter. Until its parameter's first step the parameter counts, where they differ: it may
    be a frozen copy that the program moves, as a teacher is
M2  compact masters are put together only with the parameter that they were taken apart from, by its
    checksum; a parameter that something else has changed is its own master from then on
"""
from __future__ import annotations

import ctypes
import functools
import json
import logging
from typing import AbstractSet, Dict, List, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor

from .._core.library import blocking
from .records import Taken
from .tile_step import MASTER, Entry, Scratch, flat_of, read_piece, write_piece
from .tiles import Compact, Field, Piece, Tile, field_of

_log = logging.getLogger("spillway")

# A fifth of the time of torch.equal(), which is slow for types of 16 bits.
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t

_ADVICE = "give masters=True, which keeps all of a master"


def master_of(tile: Tile) -> Optional[Field]:
    return field_of(tile.fields, MASTER)


def master_is_compact(tile: Tile) -> bool:
    field = master_of(tile)
    return field is not None and field.compact


def unpack(masters: Tensor, weights: Tensor, low: int, carry: int, first: int, total: int) -> bool:
    """Put masters together.

    :param low: the address of their low halves
    :param carry: of their carry bits, of which theirs begin at ``first``
    :param total: the checksum of the weights to which they belong
    :return: whether the weights are these; else they are the masters
    """
    return bool(blocking.spw_state_masters_unpack(
        masters.data_ptr(), weights.data_ptr(), len(weights), low, carry, first,
        total & (1 << 64) - 1))


def are_same(weights: Tensor, total: int) -> bool:
    """Whether weights have this checksum."""
    return bool(blocking.spw_state_masters_unpack(
        None, weights.data_ptr(), len(weights), None, None, 0, total & (1 << 64) - 1))


class _Halves:
    """A field of compact masters in a record.

    :param view: its bytes
    """

    def __init__(self, tile: Tile, view: Tensor) -> None:
        places = Compact.of(tile.count, len(tile.pieces))
        self._low = view.data_ptr()
        self._carry = self._low + places.carry
        self._sums = view[places.sums:places.len_bytes].view(torch.int64)

    def sum_of(self, number: int) -> int:
        """The checksum of the weights of a piece."""
        return int(self._sums[number])

    def unpack(self, number: int, piece: Piece, weights: Tensor, masters: Tensor) -> bool:
        """:return: whether the weights are those of pack(); else they are the masters"""
        return unpack(masters, weights, self._low + 2 * piece.offset, self._carry, piece.offset,
                      self.sum_of(number))

    def pack(self, number: int, piece: Piece, weights: Tensor, masters: Tensor) -> Tuple[int, int]:
        """:return: how many are lost, and of how many NaN some bits are"""
        total, nans = ctypes.c_uint64(), ctypes.c_uint64()
        lost = blocking.spw_state_masters_pack(
            masters.data_ptr(), weights.data_ptr(), len(weights), self._low + 2 * piece.offset,
            self._carry, piece.offset, ctypes.byref(total), ctypes.byref(nans))
        self._sums[number] = ctypes.c_int64(total.value).value
        return lost, nans.value


class Masters:
    """Of one optimizer.

    :param params: as pieces number them
    :param entries: of each, None until its first step; changed in place
    """

    def __init__(self, params: Sequence[Tensor], entries: Sequence[Entry]) -> None:
        self._params = params
        self._entries = entries
        self._there: Set[Tuple[str, int]] = set()  # M1: tile and offset of the piece
        # The checksums of the weights that compact ones belong to, as far as they were seen.
        self._sums: Dict[Tuple[str, int], int] = {}
        self._scratch = Scratch()
        self._said_changed = self._said_lost = self._said_nan = False

    def forget(self) -> None:
        """All come from the parameters again."""
        self._there.clear()
        self._sums.clear()

    def changed(self, tiles: Sequence[Tile], but: AbstractSet[int]) -> List[str]:
        """The pieces that something else has changed since their masters were used last; but those
        that were never stepped.

        :param but: the numbers of parameters that are left out
        """
        return [_name(tile, number) for tile in tiles if master_is_compact(tile)
                for number, piece in enumerate(tile.pieces)
                if piece.parameter not in but and self._entries[piece.parameter] is not None
                and (tile.name, number) in self._sums
                and not are_same(self._weights(piece), self._sums[tile.name, number])]

    def missing(self, tile: Tile) -> bool:
        """Whether some are not in their record."""
        return master_of(tile) is not None and any(
            (tile.name, piece.offset) not in self._there for piece in tile.pieces)

    def note(self, tile: Tile) -> None:
        """They are in their record."""
        if master_of(tile) is not None:
            self._there.update((tile.name, piece.offset) for piece in tile.pieces)

    def views(self, tile: Tile, taken: Taken) -> Dict[str, Tensor]:
        """The fields of a record with all masters, each of float32. What is changed in them is in
        the record after keep()."""
        if master_of(tile) is None:
            return taken.views
        halves = None
        masters = taken.views[MASTER]
        if master_is_compact(tile):
            halves = _Halves(tile, masters)
            masters = self._scratch.of("master", torch.float32, tile.count)
        for number, piece in enumerate(tile.pieces):
            into = masters[piece.offset:piece.end]
            if (tile.name, piece.offset) not in self._there:  # M1
                read_piece(self._params[piece.parameter], piece, into)
                taken.changed = True
            elif halves is not None and piece.start < piece.stop:
                if halves.unpack(number, piece, self._weights(piece), into):
                    self._sums[tile.name, number] = halves.sum_of(number)
                else:
                    self._say_changed(tile, number)
        return {**taken.views, MASTER: masters}

    def may_differ(self, tile: Tile) -> bool:
        """Whether parameters count that its record may not have: of a compact master the parameter
        itself is committed."""
        return master_of(tile) is not None and not master_is_compact(tile) and any(
            self._entries[piece.parameter] is None for piece in tile.pieces)

    def renew(self, tile: Tile, pieces: Sequence[Piece], views: Dict[str, Tensor]) -> bool:
        """What something has changed of these pieces before their first step is its own master
        (M1). Return: whether any was."""
        changed = False
        for piece in pieces if self.may_differ(tile) else ():
            masters = views[MASTER][piece.offset:piece.end]
            if self._entries[piece.parameter] is None and not self._is_rounded(masters, piece):
                read_piece(self._params[piece.parameter], piece, masters)
                changed = True
        return changed

    def _is_rounded(self, masters: Tensor, piece: Piece) -> bool:
        """Whether a piece is its masters, rounded."""
        weights = self._weights(piece)
        rounded = self._scratch.of("rounded", weights.dtype, len(weights))
        rounded.copy_(masters)
        return _is_same(rounded, weights)

    def look_at(self, tile: Tile, pieces: Sequence[Piece], views: Dict[str, Tensor]) -> None:
        """Before a step: say once what of these pieces something else has changed, and the step
        will lose. Of parameters in host memory: others would have to be copied for it."""
        if self._said_lost or MASTER not in views or master_is_compact(tile):
            return
        for piece in pieces:
            if (flat_of(self._params[piece.parameter]) is not None
                    and (tile.name, piece.offset) in self._there
                    and not self._is_rounded(views[MASTER][piece.offset:piece.end], piece)):
                self._say_lost(tile, tile.pieces.index(piece))
                return

    def keep(self, tile: Tile, taken: Taken, views: Dict[str, Tensor],
             stepped: Optional[Sequence[Piece]] = None) -> None:
        """The masters of views(), to which the parameters have been rounded, are in the record.

        :param stepped: the pieces that have been changed, if not all: others are left as they are,
            since their parameters may share memory with those
        :raises RuntimeError: a parameter is not its master rounded
        """
        if master_is_compact(tile):
            halves = _Halves(tile, taken.views[MASTER])
            changed = None if stepped is None else {piece.parameter for piece in stepped}
            for number, piece in enumerate(tile.pieces):
                if piece.start == piece.stop:
                    continue
                masters = views[MASTER][piece.offset:piece.end]
                if changed is not None and piece.parameter not in changed:
                    if (tile.name, piece.offset) in self._there:
                        continue
                    read_piece(self._params[piece.parameter], piece, masters)
                self._pack(tile, halves, number, piece, masters)
        self.note(tile)

    def _pack(self, tile: Tile, halves: _Halves, number: int, piece: Piece,
              masters: Tensor) -> None:
        lost, nans = halves.pack(number, piece, self._weights(piece), masters)
        self._sums[tile.name, number] = halves.sum_of(number)
        if lost:
            raise RuntimeError(
                f"{_name(tile, number)} has {lost} elements that are not their masters rounded to "
                f"bfloat16. Was it changed during the step? Else {_ADVICE}")
        if nans and not self._said_nan:
            self._said_nan = True
            _log.warning("%s has NaN with bits of its low half set, which compact masters lose; it "
                         "stays NaN. For these bits %s. This is said once", _name(tile, number),
                         _ADVICE)

    def round(self, tile: Tile, pieces: Sequence[Piece], views: Dict[str, Tensor]) -> None:
        """Parameters of compact masters are these, rounded."""
        if master_is_compact(tile):
            for piece in pieces:
                write_piece(self._params[piece.parameter], piece,
                            views[MASTER][piece.offset:piece.end])

    def _weights(self, piece: Piece) -> Tensor:
        """Of a piece, in host memory."""
        param = self._params[piece.parameter]
        flat = flat_of(param)
        if flat is not None:
            return flat[piece.start:piece.stop]
        weights = self._scratch.of("weights", param.dtype, piece.stop - piece.start)
        read_piece(param, piece, weights)
        return weights

    def _say_changed(self, tile: Tile, number: int) -> None:
        if not self._said_changed and self._entries[tile.pieces[number].parameter] is not None:
            self._said_changed = True
            _log.warning("%s was changed since the optimizer has stepped it: its elements are the "
                         "masters now, as they are. This is said once, of the first",
                         _name(tile, number))

    def _say_lost(self, tile: Tile, number: int) -> None:
        self._said_lost = True
        _log.warning("%s was changed since the optimizer has stepped it, such as by "
                     "load_state_dict() of the model. Its float32 master was not, so this step "
                     'loses that change: masters="compact" takes those of bfloat16 parameters, '
                     "load_state_dict() of the optimizer all. This is said once, of the first",
                     _name(tile, number))


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Flat ones of 16 bits. PyTorch rounds a NaN to several, by where it is in a tensor."""
    if _memcmp(one.data_ptr(), other.data_ptr(), one.numel() * one.element_size()) == 0:
        return True
    bits = [tensor.view(torch.int16) for tensor in (one, other)]
    return not bool(((bits[0] != bits[1]) & ~(one.isnan() & other.isnan())).any())


def _name(tile: Tile, number: int) -> str:
    name, _, start, stop = json.loads(tile.description)["parameters"][number]
    return f"{name}[{start}:{stop}]"


@functools.lru_cache(maxsize=None)
def _rounds(device: torch.device) -> bool:
    high = torch.arange(1 << 16, dtype=torch.int64, device="cpu") << 16
    low = torch.tensor([0, 1, 0x7fff, 0x8000, 0x8001, 0xffff], dtype=torch.int64, device="cpu")
    bits = (high[:, None] | low).view(-1).to(torch.int32)
    masters = bits.view(torch.float32)
    there = torch.empty(len(masters), dtype=torch.bfloat16, device=device)
    there.copy_(masters)
    weights = there.cpu()
    ahead = ((weights.view(torch.int16).to(torch.int32) & 0xffff) - (bits >> 16)) & 0xffff
    is_nan = masters.isnan()
    return bool((torch.where(is_nan, weights.isnan(), ahead <= 1)).all())


def check_rounding(params: Sequence[Tensor]) -> None:
    """A master can be put together from a parameter that is one of its two neighbours.

    :raises ValueError: a device makes something else of some
    """
    for device in dict.fromkeys(param.device for param in params
                                if param.dtype is torch.bfloat16):
        if not _rounds(device):
            raise ValueError(f'masters="compact" needs bfloat16 parameters that are their masters '
                             f"rounded, which {device.type} does not make of some: {_ADVICE}")
