# SPDX-License-Identifier: MIT
# spillway/_optim/tiles.py - which run of which parameters lies where in which record
"""Parameters of one group and one type are laid flat, one after the other, and cut into tiles. A
tile is a record on drives: for each field (exp_avg, exp_avg_sq) the elements of all its pieces,
contiguous. Pure: no tensor is touched.

Invariants:
T1  every element of every parameter is in exactly one piece of one tile
T2  the pieces of a tile are adjacent: each begins at the offset where the one before ends
T3  a tile has parameters of one group and of one type; one that is stepped as a whole is alone
"""
from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from .._core.tensors import name_of

# Fields begin where a cache line does: vector instructions then split none.
_ALIGN_BYTES = 64
# Of a tile's description: C takes 64 KiB.
_DESCRIPTION_BYTES_MAX = 32 << 10
# What a description has in place of the type of a field of compact masters.
COMPACT = "compact"


@dataclasses.dataclass(frozen=True)
class Field:
    """What a record has for each element of its parameters, or, of a parameter that is stepped as a
    whole, a tensor of this shape. ``compact``: float32 masters of bfloat16 parameters, without what
    these have (Compact)."""

    name: str
    dtype: torch.dtype
    shape: Optional[Tuple[int, ...]] = None
    compact: bool = False

    def len_bytes(self, elements: int, pieces: int) -> int:
        """In a record of that many."""
        if self.compact:
            return Compact.of(elements, pieces).len_bytes
        count = elements if self.shape is None else math.prod(self.shape)
        return count * item_bytes(self.dtype)

    @property
    def element_bytes(self) -> float:
        return COMPACT_BYTES if self.compact else item_bytes(self.dtype)


# 16 bits and one.
COMPACT_BYTES = 2.125


@dataclasses.dataclass(frozen=True)
class Compact:
    """A field of compact masters: two bytes of each, from the beginning; a bit of each, from
    ``carry`` on; eight bytes of each piece, from ``sums`` on, which are a checksum of the parameter
    that they belong to. docs/FORMAT.md has more."""

    carry: int
    sums: int
    len_bytes: int

    @staticmethod
    def of(elements: int, pieces: int) -> "Compact":
        carry = _aligned(2 * elements)
        sums = _aligned(carry + -(-elements // 8))
        return Compact(carry, sums, sums + 8 * pieces)


@dataclasses.dataclass(frozen=True)
class Wholes:
    """What a class keeps for parameters that it steps as wholes, by their shape. ``steps_all``: it
    steps those without a gradient, too."""

    by_shape: Mapping[Tuple[int, ...], Tuple[Field, ...]]
    steps_all: bool = False


# Of the parameters of a group that have the same type.
Kept = Union[Tuple[Field, ...], Wholes]


def fields_for(kept: Kept, shape: Tuple[int, ...]) -> Tuple[Field, ...]:
    """Of a record that has a parameter of this shape."""
    return kept.by_shape[shape] if isinstance(kept, Wholes) else kept


@dataclasses.dataclass(frozen=True)
class Laid:
    """A parameter as the layout sees it. ``number`` counts through all groups."""

    number: int
    name: str
    shape: Tuple[int, ...]
    dtype: torch.dtype
    gradient: Optional[torch.dtype] = None  # the type of its gradients, where they go to drives
    on_drives: bool = False  # the parameter itself: a commit has it without a copy

    @property
    def count(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count


@dataclasses.dataclass(frozen=True)
class Piece:
    """Elements [start, stop) of a flat parameter, from element ``offset`` of a tile on."""

    parameter: int
    start: int
    stop: int
    offset: int

    @property
    def end(self) -> int:
        return self.offset + self.stop - self.start


@dataclasses.dataclass(frozen=True)
class Tile:
    """A record: ``count`` elements of each field, the i-th field from byte ``offsets[i]`` on.
    ``dtype`` is that of its parameters, or of its gradients. ``shape``: of its only parameter,
    which is stepped as a whole."""

    name: str
    group: int
    dtype: torch.dtype
    fields: Tuple[Field, ...]
    offsets: Tuple[int, ...]
    count: int
    pieces: Tuple[Piece, ...]
    len_bytes: int
    description: bytes
    shape: Optional[Tuple[int, ...]] = None

    @property
    def parameters(self) -> List[str]:
        """The names of the first few, with the elements that are in it."""
        described = json.loads(self.description)["parameters"]
        names = [f"{name}[{start}:{stop}]" for name, _, start, stop in described[:4]]
        return names + ["..."] * (len(described) > 4)


def item_bytes(dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=dtype, device="cpu").element_size()


def element_bytes(fields: Sequence[Field]) -> float:
    """Bytes of a record per element."""
    return sum(field.element_bytes for field in fields)


def kept_bytes(kept: Kept, parameters: Sequence[Laid]) -> int:
    """Of the records of these, without what aligns their fields."""
    return sum(field.len_bytes(laid.count, 1) for laid in parameters
               for field in fields_for(kept, laid.shape))


def field_of(fields: Sequence[Field], name: str) -> Optional[Field]:
    return next((field for field in fields if field.name == name), None)


def has_master(kept: Kept, parameters: Sequence[Laid], name: str) -> bool:
    """Whether the records of these have such a field."""
    return field_of(fields_for(kept, parameters[0].shape), name) is not None


def has_whole(kept: Kept, parameters: Sequence[Laid], name: str) -> bool:
    """Whether the records of these have such a field, and all of it."""
    field = field_of(fields_for(kept, parameters[0].shape), name)
    return field is not None and not field.compact


def is_compact(kept: Kept, parameters: Sequence[Laid]) -> bool:
    """Whether the records of these have compact masters."""
    return any(field.compact for field in fields_for(kept, parameters[0].shape))


def _aligned(len_bytes: int) -> int:
    return -(-len_bytes // _ALIGN_BYTES) * _ALIGN_BYTES


def _offsets(fields: Sequence[Field], count: int, pieces: int) -> Tuple[Tuple[int, ...], int]:
    """(where each field begins, how long the record is), in bytes"""
    offsets, end = [], 0
    for field in fields:
        offsets.append(end)
        end += _aligned(field.len_bytes(count, pieces))
    return tuple(offsets), max(end, _ALIGN_BYTES)


def _described(laid: Laid, piece: Piece) -> List[Any]:
    return [laid.name, list(laid.shape), piece.start, piece.stop]


def _cut(parameters: Sequence[Laid], limit: int) -> Iterator[List[Piece]]:
    """Pieces of tiles of up to ``limit`` elements."""
    pieces: List[Piece] = []
    used = described = 0
    for laid in parameters:
        start = 0
        while True:
            stop = min(laid.count, start + limit - used)
            pieces.append(Piece(laid.number, start, stop, used))
            used += stop - start
            described += len(json.dumps(_described(laid, pieces[-1])))
            if used == limit or described > _DESCRIPTION_BYTES_MAX:
                yield pieces
                pieces, used, described = [], 0, 0
            start = stop
            if start == laid.count:
                break
    if pieces:
        yield pieces


def run_name(prefix: str, group: int, dtype: torch.dtype) -> str:
    return f"{prefix}/group{group}/{name_of(dtype)}"


def run_of(record: str) -> str:
    """The name of the run that a record is of."""
    return record.rpartition("/")[0]


def cut(prefix: str, group: int, parameters: Sequence[Laid], fields: Sequence[Field],
        limit: int) -> List[Tile]:
    """The tiles of parameters of one group and one type.

    :param limit: elements of the longest tile
    """
    run = run_name(prefix, group, parameters[0].dtype)
    laid_of = {laid.number: laid for laid in parameters}
    return [_tile(f"{run}/{number}", group, laid_of, pieces, fields, limit)
            for number, pieces in enumerate(_cut(parameters, limit))]


def whole(prefix: str, group: int, parameters: Sequence[Laid], wholes: Wholes) -> List[Tile]:
    """A tile for each parameter of one group and one type."""
    run = run_name(prefix, group, parameters[0].dtype)
    return [dataclasses.replace(
        _tile(f"{run}/{number}", group, {laid.number: laid},
              [Piece(laid.number, 0, laid.count, 0)],
              fields_for(wholes, laid.shape), max(1, laid.count)), shape=laid.shape)
            for number, laid in enumerate(parameters)]


def _tile(name: str, group: int, laid_of: Mapping[int, Laid], pieces: Sequence[Piece],
          fields: Sequence[Field], limit: int) -> Tile:
    count, dtype = pieces[-1].end, laid_of[pieces[0].parameter].dtype
    offsets, len_bytes = _offsets(fields, count, len(pieces))
    description = json.dumps({
        "parameters": [_described(laid_of[piece.parameter], piece) for piece in pieces],
        "dtype": name_of(dtype),
        "tile": limit,
        "fields": _fields_described(fields, offsets),
    }).encode()
    return Tile(name, group, dtype, tuple(fields), offsets, count, tuple(pieces), len_bytes,
                description)


def _fields_described(fields: Sequence[Field], offsets: Sequence[int]) -> List[Any]:
    return [[field.name, COMPACT if field.compact else name_of(field.dtype), offset,
             *([] if field.shape is None else [list(field.shape)])]
            for field, offset in zip(fields, offsets)]


def with_fields(tile: Tile, prefix: str, fields: Sequence[Field]) -> Tile:
    """A record of other fields for the same pieces."""
    offsets, len_bytes = _offsets(fields, tile.count, len(tile.pieces))
    said = {**json.loads(tile.description), "fields": _fields_described(fields, offsets)}
    return dataclasses.replace(
        tile, name=f"{prefix}/{tile.name.partition('/')[2]}", fields=tuple(fields),
        offsets=offsets, len_bytes=len_bytes, description=json.dumps(said).encode())


def beside(tile: Tile, prefix: str, field: Field) -> Tile:
    """A record with one field for the same pieces, of which no commit has a description."""
    offsets, len_bytes = _offsets([field], tile.count, len(tile.pieces))
    name = f"{prefix}/{tile.name.partition('/')[2]}"
    return Tile(name, tile.group, field.dtype, (field,), offsets, tile.count, tile.pieces,
                len_bytes, b"")
