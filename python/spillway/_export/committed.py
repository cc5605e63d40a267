# SPDX-License-Identifier: MIT
# spillway/_export/committed.py - find the tensors of an optimizer in a commit, and where they lie
"""This reads the descriptions in the records, which are not trusted, and no tensors."""
from __future__ import annotations

import dataclasses
import errno
import json
import math
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import torch

from .._core.library import SpillwayError
from .._optim.tile_step import MASTER
from .._optim.tiles import COMPACT, Compact, item_bytes
from .._values.pack import DTYPES
from ..state import CommittedRecord, committed_state
from ..store import Store

# The field of a record that has parameters as they are.
PARAMETER = "parameter"
# What a class may keep besides floating point numbers.
_COUNTS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
# A record that is a parameter by itself: PREFIX, its group, its name.
_BY_ITSELF = "parameter/"


@dataclasses.dataclass(frozen=True)
class Part:
    """A range of bytes of an object in a store; object 0 means zeros. ``store``: which, of several
    partitions with a commit each."""

    thing: int
    offset: int
    len_bytes: int
    store: int = 0


@dataclasses.dataclass(frozen=True)
class CompactPiece:
    """Elements [start, stop) of compact masters: where their checksum, low halves and carry bits
    are, and which bit of the latter is the first."""

    start: int
    stop: int
    parts: Tuple[Part, Part, Part]
    first: int

    @property
    def count(self) -> int:
        return self.stop - self.start


@dataclasses.dataclass(frozen=True)
class Committed:
    """A tensor of a commit: ``parts``, one after the other, have its elements in order, in the
    type ``stored``. They are exported as ``dtype``: for a master that is the type of its
    parameter. If it has ``compact`` pieces, ``parts`` are those of each, each time followed by
    those of the parameter's elements."""

    name: str
    shape: Tuple[int, ...]
    stored: torch.dtype
    dtype: torch.dtype
    parts: Tuple[Part, ...]
    compact: Tuple[CompactPiece, ...] = ()

    @property
    def count(self) -> int:
        if self.compact:
            return self.compact[-1].stop - self.compact[0].start
        return sum(part.len_bytes for part in self.parts) // item_bytes(self.stored)

    @property
    def len_bytes(self) -> int:
        """The length after the export."""
        return self.count * item_bytes(self.dtype)


# For each field, the tensors by the names of their parameters.
Fields = Dict[str, Dict[str, Committed]]


def _between(parts: Tuple[Part, ...], start: int, stop: int) -> List[Part]:
    """Of the bytes of these parts, one after the other, those from ``start`` to ``stop``."""
    found, at = [], 0
    for part in parts:
        begin, end = max(start - at, 0), min(stop - at, part.len_bytes)
        if begin < end:
            offset = 0 if part.thing == 0 else part.offset + begin
            found.append(dataclasses.replace(part, offset=offset, len_bytes=end - begin))
        at += part.len_bytes
    return found


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _stored(field: str, name: Any) -> torch.dtype:
    """The type of a field."""
    if field in (MASTER, PARAMETER) or DTYPES[name] not in _COUNTS:
        return _type(name)
    return DTYPES[name]


def _type(name: Any) -> torch.dtype:
    dtype = DTYPES[name]
    if not dtype.is_floating_point:
        raise ValueError(f"{name} is not a type of a parameter")
    return dtype


def _with_weights(pieces: Sequence[CompactPiece], weights: Committed) -> Tuple[Part, ...]:
    """The parts of compact masters, those of each piece followed by its parameter's."""
    parts: List[Part] = []
    for piece in pieces:
        if piece.count > 0:  # nothing is read for others (stream.py)
            parts += [*piece.parts, *_between(weights.parts, 2 * piece.start, 2 * piece.stop)]
    return tuple(parts)


class _Commit:
    """The fields of records, each with its tensors by the names of their parameters.

    :param store: its number among several
    """

    def __init__(self, store: int = 0) -> None:
        self._store = store
        self.fields: Dict[str, Dict[str, Committed]] = {}
        self.compact: Dict[str, Committed] = {}  # masters that lack their parameters

    def add(self, record: CommittedRecord) -> None:
        """:raises ValueError, TypeError, KeyError: not a record of an optimizer"""
        said = json.loads(record.shape)
        if record.name.startswith(_BY_ITSELF):
            self._add_parameter(record, said)
            return
        dtype = _type(said["dtype"])
        for field, stored, offset, *own in said["fields"]:
            at = _whole(offset)
            if stored == COMPACT:
                self._add_compact(record, field, dtype, at, said["parameters"])
                continue
            if own:  # not a number for each element of the record's only parameter
                (name, *_), = said["parameters"]
                self._add_piece(record, field, _stored(field, stored), dtype, at,
                                [name, *own, 0, math.prod(map(_whole, own[0]))])
                continue
            for piece in said["parameters"]:
                at = self._add_piece(record, field, _stored(field, stored), dtype, at, piece)

    def _add_piece(self, record: CommittedRecord, field: str, stored: torch.dtype,
                   dtype: torch.dtype, at: int, piece: Any) -> int:
        name, sides, start, stop = piece
        shape = tuple(map(_whole, sides))
        length = (_whole(stop) - _whole(start)) * item_bytes(stored)
        if type(name) is not str or not 0 <= length <= record.len_bytes - at:
            raise ValueError("an element is outside of it")
        tensors = self.fields.setdefault(field, {})
        before = tensors.get(name) or Committed(name, shape, stored, dtype, ())
        if (before.count, before.shape, before.stored) != (start, shape, stored):
            raise ValueError(f"{name} is there twice, or not in order")
        part = Part(record.thing, at, length, self._store)
        tensors[name] = dataclasses.replace(before, parts=(*before.parts, part))
        return at + length

    def _add_compact(self, record: CommittedRecord, field: str, dtype: torch.dtype, at: int,
                     pieces: Any) -> None:
        if field != MASTER or dtype is not torch.bfloat16:
            raise ValueError("only masters of bfloat16 parameters are compact")
        elements = sum(_whole(stop) - _whole(start) for _, _, start, stop in pieces)
        places = Compact.of(elements, len(pieces))
        if at + places.len_bytes > record.len_bytes:
            raise ValueError("an element is outside of it")
        done = 0
        for number, (name, sides, start, stop) in enumerate(pieces):
            shape = tuple(map(_whole, sides))
            before = self.compact.get(name) or Committed(name, shape, torch.float32, dtype, ())
            if type(name) is not str or start > stop or (
                    before.shape != shape or start != (before.count if before.compact else 0)):
                raise ValueError(f"{name} is there twice, or not in order")
            count, first = stop - start, done % 8
            bits = at + places.carry + done // 8
            parts = (Part(record.thing, at + places.sums + 8 * number, 8, self._store),
                     Part(record.thing, at + 2 * done, 2 * count, self._store),
                     Part(record.thing, bits, -(-(first + count) // 8), self._store))
            piece = CompactPiece(start, stop, parts, first)
            self.compact[name] = dataclasses.replace(before, compact=(*before.compact, piece))
            done += count

    def _add_parameter(self, record: CommittedRecord, said: Any) -> None:
        """Add a parameter that has a record of its own. If its elements are not in order, those
        of its master are used."""
        _, _, name = record.name.split("/", 2)
        shape = tuple(map(_whole, said["shape"]))
        dtype, count, in_order = _type(said["dtype"]), 1, True
        for side, stride in reversed(list(zip(shape, said["stride"]))):
            in_order = in_order and (side == 1 or stride == count)
            count *= side
        length = count * item_bytes(dtype)
        if length > record.len_bytes or name in self.fields.get(PARAMETER, {}):
            raise ValueError("it is there twice, or not as a whole")
        if not in_order and name in self.fields.get(MASTER, {}):
            return
        if not in_order:
            raise ValueError("its elements lie in another order than that of its shape")
        part = Part(record.thing, 0, length, self._store)
        self.fields.setdefault(PARAMETER, {})[name] = Committed(name, shape, dtype, dtype, (part,))

    def check_whole(self) -> None:
        """:raises ValueError: a tensor lacks elements"""
        for tensors in (*self.fields.values(), self.compact):
            for tensor in tensors.values():
                count = math.prod(tensor.shape)
                if tensor.count != count:
                    raise ValueError(f"{tensor.name} has {tensor.count} elements, and not {count}")


def _read(store: Store, number: int) -> _Commit:
    """:raises SpillwayError: as fields_of()"""
    commit = _Commit(number)
    name = "it"
    try:
        for record in committed_state(store):
            name = f"record {record.name}"
            commit.add(record)
        name = "it"
        commit.check_whole()
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _not_of_an_optimizer(f"{name}: {error}") from error
    return commit


def _not_of_an_optimizer(words: str) -> SpillwayError:
    return SpillwayError(errno.EUCLEAN, f"the commit in the store is not of an optimizer: {words}")


def fields_of(stores: Sequence[Store], rows: Sequence[Mapping[str, Any]] = ({},)) -> Fields:
    """The tensors of the commit that opening a store has restored, or of one that several ranks
    have made: for each field of an optimizer's records, by the names of their parameters.

    :param stores: one for each rank, or the only one
    :param rows: of each, by the names of parameters: which are there, and how many there are in all
        (Rows, ranks.py)
    :raises SpillwayError: ENODATA nothing is committed; EUCLEAN the commit is not of an optimizer,
        or ranks lack rows; EALREADY it is in use
    """
    commits = [_read(store, number) for number, store in enumerate(stores)]
    try:
        fields = {field: _joined([(commit.fields.get(field, {}), of_rank)
                                  for commit, of_rank in zip(commits, rows)])
                  for field in dict.fromkeys(name for commit in commits for name in commit.fields)}
        compact = _joined([(commit.compact, of_rank) for commit, of_rank in zip(commits, rows)])
        for name, tensor in compact.items():
            weights = fields.get(PARAMETER, {}).get(name)
            if weights is None or (weights.shape, weights.dtype) != (tensor.shape, tensor.dtype):
                raise ValueError(f"it: {name} is not there beside its master")
            fields.setdefault(MASTER, {})[name] = dataclasses.replace(
                tensor, parts=_with_weights(tensor.compact, weights))
    except (ValueError, TypeError) as error:
        raise _not_of_an_optimizer(str(error)) from error
    return fields


def _joined(ranks: Sequence[Tuple[Mapping[str, Committed], Mapping[str, Any]]]
            ) -> Dict[str, Committed]:
    """The tensors of one field of all ranks."""
    joined: Dict[str, Committed] = {}
    for name in dict.fromkeys(name for tensors, _ in ranks for name in tensors):
        shards = [(rows.get(name), tensors[name]) for tensors, rows in ranks if name in tensors]
        joined[name] = shards[0][1] if shards[0][0] is None else _one_of(shards)
    return joined


def _one_of(shards: List[Tuple[Any, Committed]]) -> Committed:
    """A tensor of the rows that ranks have.

    :raises ValueError: these are not all
    """
    whole = shards[0][1]
    total, done = shards[0][0][1], 0
    row = math.prod(whole.shape[1:])
    parts: List[Part] = []
    compact: List[CompactPiece] = []
    for (first, of), shard in sorted(shards, key=lambda shard: shard[0][0]):
        if (of, shard.shape[1:], shard.stored) != (total, whole.shape[1:], whole.stored):
            raise ValueError(f"the ranks disagree about {whole.name}")
        rows = shard.shape[0]
        if rows == 0 or first + rows == done:  # nothing, or the same on another rank
            continue
        if first != done:
            raise ValueError(f"rows {done} to {first - 1} of {whole.name} are of no rank, or of "
                             "two")
        parts += shard.parts
        compact += [dataclasses.replace(piece, start=piece.start + first * row,
                                        stop=piece.stop + first * row) for piece in shard.compact]
        done += rows
    if done != total:
        raise ValueError(f"rows {done} to {total - 1} of {whole.name} are of no rank")
    return dataclasses.replace(whole, shape=(total, *whole.shape[1:]), parts=tuple(parts),
                               compact=tuple(compact))


def cut_from(fields: Fields, field: str, name: str, start: int, stop: int
             ) -> Tuple[Committed, int]:
    """
    :return: a tensor of elements [start, stop) of another, in the type that is stored, and how many
        of its elements come before them, since compact masters are put together piece by piece
    """
    tensor = fields[field][name]
    tensor = dataclasses.replace(tensor, dtype=tensor.stored)
    stored = item_bytes(tensor.stored)
    if not tensor.compact:
        parts = tuple(_between(tensor.parts, start * stored, stop * stored))
        return dataclasses.replace(tensor, parts=parts), 0
    pieces = tuple(piece for piece in tensor.compact if piece.start < stop and start < piece.stop)
    parts = _with_weights(pieces, fields[PARAMETER][name])
    return dataclasses.replace(tensor, compact=pieces, parts=parts), start - pieces[0].start


def parameters_of(fields: Fields, masters: bool) -> List[Committed]:
    """The model's parameters, in the order of the records.

    :param masters: export a parameter's master, if it has one, without rounding it to the
        parameter's type
    """
    as_they_are, of_masters = fields.get(PARAMETER, {}), fields.get(MASTER, {})
    if not masters:
        return list({**of_masters, **as_they_are}.values())
    return [dataclasses.replace(tensor, dtype=tensor.stored)
            for tensor in {**as_they_are, **of_masters}.values()]


def state_of(fields: Fields) -> Fields:
    """The optimizer's state with masters, each tensor in the type in which it is stored."""
    return {field: {name: dataclasses.replace(tensor, dtype=tensor.stored)
                    for name, tensor in tensors.items()}
            for field, tensors in fields.items() if field != PARAMETER}
