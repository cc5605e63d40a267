# SPDX-License-Identifier: MIT
# spillway/_optim/layout.py - all records of an optimizer, and the memory they pass through
from __future__ import annotations

import dataclasses
import errno
import re
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch

from .._core.library import Size, SpillwayError, size
from .._core.tensors import name_of
from ..store import Store
from .tiles import (Field, Kept, Laid, Tile, Wholes, beside, cut, element_bytes, has_whole,
                    has_master, is_compact, item_bytes, kept_bytes, run_name, whole, with_fields)

Memory = Union[Size, None]

GRADIENT = "gradient"
# One is used while one comes, one goes and one waits; with gradients beside two are used.
BUFFERS_MIN = 4
_BUFFERS_MIN_BESIDE = 6
_TILE_BYTES_MAX = 32 << 20
# Shorter ones pass faster than the drives answer: with 4 MiB a training step waited for 3 % of its
# time, with 16 for 0.5 (GPT of 43 million parameters, stepped during the backward pass).
_TILE_BYTES_MIN = 16 << 20
# So that four tiles are 2 % of the state.
_TILES = 200
_PERCENT = 2
_PAGE_BYTES = 4096

FieldsOf = Callable[[int, torch.dtype], Kept]


@dataclasses.dataclass(frozen=True)
class Layout:
    """``tiles`` have what the optimizer keeps, and are used in each step; ``copies`` are of
    parameters without a master, or with a compact one, and are used by commits alone. ``gradients``
    are beside tiles, one for each or none at all, and of no commit.

    ``formers`` are records of a commit with the other kind of masters, each with the tile that
    takes its place; ``former_copies`` are of the parameters of compact ones."""

    tiles: Tuple[Tile, ...]
    copies: Tuple[Tile, ...]
    gradients: Tuple[Tile, ...]
    formers: Tuple[Tuple[Tile, Tile], ...]
    former_copies: Tuple[Tile, ...]
    record_bytes_max: int
    memory_bytes: int
    state_bytes: int

    @property
    def needed_bytes(self) -> int:
        """On the drives: a commit stays until the next is durable."""
        return (2 * sum(_whole_pages(tile.len_bytes) for tile in self.records)
                + sum(_whole_pages(tile.len_bytes) for tile in self.gradients))

    @property
    def records(self) -> List[Tile]:
        return [tile for tile in (*self.tiles, *self.copies) if tile.fields]


def _whole_pages(len_bytes: int) -> int:
    return -(-len_bytes // _PAGE_BYTES) * _PAGE_BYTES


def run_prefix(compact: bool) -> str:
    """Of the names of records: those with compact masters have others."""
    return "compact" if compact else "state"


def _runs_of(groups: Sequence[Sequence[Laid]]) -> List[Tuple[int, List[Laid]]]:
    """(group, its parameters of one type), for all types of all groups."""
    runs = []
    for number, group in enumerate(groups):
        by_type: Dict[torch.dtype, List[Laid]] = {}
        for laid in group:
            by_type.setdefault(laid.dtype, []).append(laid)
        runs += [(number, run) for run in by_type.values()]
    return runs


def memory_of(memory: Memory, state_bytes: int) -> Optional[int]:
    """Bytes, of a size or of "2%" of the state; None where none are given.

    :raises ValueError: it is neither
    """
    if memory is None:
        return None
    share = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", str(memory))
    if share is not None:
        return int(state_bytes * float(share[1]) / 100)
    if isinstance(memory, bool):
        raise TypeError("memory must be a size, not a bool")
    return size("memory", memory, ', or a share like "2%" of the state')


def _share_of(arena_bytes: int) -> int:
    """The default share of the arena for records: the store's own copies need the rest."""
    return arena_bytes // 8 * 3


def _tile_bytes(state_bytes: int, memory_bytes: Optional[int], arena_bytes: int,
                buffers: int) -> int:
    """The default length of the longest record: enough records fit the memory at once."""
    wanted = max(_TILE_BYTES_MIN, state_bytes // _TILES)
    for room in (memory_bytes, _share_of(arena_bytes) if arena_bytes else None):
        if room is not None:
            wanted = min(wanted, room // buffers)
    return max(_PAGE_BYTES, min(wanted, _TILE_BYTES_MAX) // _PAGE_BYTES * _PAGE_BYTES)


def least_bytes(groups: Sequence[Sequence[Laid]], fields_of: FieldsOf, master: str) -> int:
    """As needed_bytes of all records, before anything is cut."""
    total = 0
    for number, run in _runs_of(groups):
        kept = fields_of(number, run[0].dtype)
        of_element = element_bytes(_beside_of(number, run))
        if not has_whole(kept, run, master):
            of_element += 2 * item_bytes(run[0].dtype)
        total += 2 * kept_bytes(kept, run) + int(sum(laid.count for laid in run) * of_element)
    return total


def _beside_of(group: int, run: Sequence[Laid]) -> Tuple[Field, ...]:
    """What the records beside those of a run have, if there are any.

    :raises ValueError: more than one type
    """
    types = {laid.gradient for laid in run}
    if len(types) > 1:
        raise ValueError(
            f"group {group} has parameters of {name_of(run[0].dtype)} whose gradients are of "
            "different types: give each type a group of its own")
    dtype, = types
    return () if dtype is None else (Field(GRADIENT, dtype),)


def lay_out(groups: Sequence[Sequence[Laid]], fields_of: FieldsOf, master: str, tile: Optional[int],
            memory: Memory, arena_bytes: int, committed: Mapping[str, int],
            interleaved: bool = False) -> Layout:
    """
    :param groups: the parameters of each
    :param fields_of: of a group and a type
    :param master: the name of a field from which a parameter can be made again
    :param tile: elements of the longest tile; None: as many as fit the memory
    :param arena_bytes: of the store; 0: not known
    :param committed: the longest tile of each run that is committed, which it keeps unless ``tile``
        is given
    :param interleaved: a device has one of the records while the host goes on with others
    :raises ValueError: the memory is less than four tiles
    """
    runs = [(number, run, fields_of(number, run[0].dtype)) for number, run in _runs_of(groups)]
    state_bytes = sum(kept_bytes(kept, run) for _, run, kept in runs)
    given_bytes = memory_of(memory, state_bytes)
    has_beside = any(_beside_of(number, run) for number, run, _ in runs)
    buffers = (_BUFFERS_MIN_BESIDE if has_beside else BUFFERS_MIN) + interleaved
    tile_bytes = _tile_bytes(state_bytes, given_bytes, arena_bytes, buffers)
    tiles: List[Tile] = []
    gradients: List[Tile] = []
    formers: List[Tuple[Tile, Tile]] = []
    former_copies: List[Tile] = []
    for number, run, kept in runs:
        extra = _beside_of(number, run)
        prefix = run_prefix(is_compact(kept, run))
        other = run_prefix(not is_compact(kept, run))
        before = None  # how the commit has the run, if otherwise
        if (has_master(kept, run, master)
                and run_name(prefix, number, run[0].dtype) not in committed):
            before = committed.get(run_name(other, number, run[0].dtype))
        if isinstance(kept, Wholes):
            cut_of_run = whole(prefix, number, run, kept)
        else:
            limit = tile
            if limit is None:
                limit = int(tile_bytes // max(1, element_bytes(kept), element_bytes(extra)))
                limit = committed.get(run_name(prefix, number, run[0].dtype),
                                      before or max(1, limit))
            cut_of_run = cut(prefix, number, run, kept, limit)
        tiles += cut_of_run
        if before is not None:
            formers += [(with_fields(item, other, _other_kind(item.fields, master)), item)
                        for item in cut_of_run]
            if not is_compact(kept, run):
                former_copies += _copies(number, run, committed, 1)
        gradients += [beside(item, "gradients", *extra) for item in cut_of_run if extra]
    longest = max([item.len_bytes for item in (*tiles, *gradients) if item.fields] or [tile_bytes])
    copies: List[Tile] = []
    for number, run, kept in runs:
        if not has_whole(kept, run, master):
            copies += _copies(number, run, committed, longest)
    former = [item for item, _ in formers]
    longest = _whole_pages(max([item.len_bytes for item in (*tiles, *copies, *gradients, *former,
                                                            *former_copies)] or [longest]))
    memory_bytes = _checked(given_bytes, buffers * longest, state_bytes, arena_bytes,
                            any(item.shape is not None and _whole_pages(item.len_bytes) == longest
                                for item in tiles))
    return Layout(tuple(tiles), tuple(copies), tuple(gradients), tuple(formers),
                  tuple(former_copies), longest, memory_bytes, state_bytes)


def _copies(number: int, run: Sequence[Laid], committed: Mapping[str, int],
            longest: int) -> List[Tile]:
    """Tiles for copies of those parameters of a run that stay in memory.

    :param longest: most bytes of a record, where the commit has no such records yet
    """
    run = [laid for laid in run if not laid.on_drives]
    if not run:
        return []
    field = Field("parameter", run[0].dtype)
    limit = max(1, longest // item_bytes(field.dtype))
    limit = committed.get(run_name("parameters", number, run[0].dtype), limit)
    return cut("parameters", number, run, [field], limit)


def _other_kind(fields: Sequence[Field], master: str) -> List[Field]:
    """The same with masters of the other kind."""
    return [dataclasses.replace(field, compact=not field.compact) if field.name == master else field
            for field in fields]


def _checked(given_bytes: Optional[int], least: int, state_bytes: int, arena_bytes: int,
             is_whole: bool) -> int:
    """:param is_whole: the longest record is of a parameter that is not cut"""
    if given_bytes is None:
        wanted = state_bytes * _PERCENT // 100
        if arena_bytes:
            wanted = min(wanted, _share_of(arena_bytes))
        return max(wanted, least)
    if given_bytes < least:
        raise ValueError(
            f"memory of {given_bytes} bytes is less than four of the longest records, with "
            f"gradients six, with interleave one more, {least} bytes: give more"
            + (", since the longest is of a parameter that its class steps as a whole"
               if is_whole else ", or a smaller tile"))
    return given_bytes


def check_room(store: Store, needed_bytes: int, copies: int) -> None:
    """As far as can be told before anything is declared: there is room for all of it in each of its
    copies; in one, if drives are missing.

    :raises SpillwayError: ENOSPC there is not; says how many bytes are missing
    """
    stats = store.stats()
    if stats.drives_missing or stats.drives_retired:
        copies = 1
    needed_bytes *= copies
    missing = needed_bytes - stats.capacity_bytes
    if missing > 0:
        what = "in two copies, " if copies == 2 else ""
        raise SpillwayError(
            errno.ENOSPC, f"the store is too small by {missing} bytes: the optimizer's records "
            f"take {needed_bytes} bytes, {what}as all but gradients are there twice: a commit "
            "stays until the next is durable. Give it more drives")
