# SPDX-License-Identifier: MIT
# spillway/_export/all_ranks.py - a commit that several ranks made, each in its partition, as one
from __future__ import annotations

import contextlib
import errno
import logging
from typing import Any, Callable, ContextManager, Dict, Iterable, List, Set, Tuple

import torch
from torch import Tensor

from .._core.library import SpillwayError
from .._optim.checkpoint import Checkpoint, decoded, is_same_run
from .._optim.tile_step import MASTER, Entry, are_equal
from ..state import committed_extra
from ..store import Store
from .committed import PARAMETER, Fields, cut_from, fields_of
from .stream import leaving

_log = logging.getLogger("spillway")

_COMPARED = 1024  # elements of each parameter

# Of a field, by name, and of a parameter, by name: elements [start, stop).
Wanted = Tuple[str, str, int, int]
# The store of a rank.
Opened = Callable[[int], ContextManager[Store]]


class AllRanks:
    """Of the commit of several ranks: ``fields`` are whole tensors, of sharded parameters put
    together; ``checkpoint`` is that of one rank, with the entries of all. Close it when the tensors
    have been read.

    :param opened: at this commit
    :param rank: which is asked first, and alone if it has all
    :param count: of ranks
    :raises SpillwayError: EUCLEAN a partition has something else; ranks contradict each other, or
        lack rows; or as opening a store
    """

    def __init__(self, opened: Opened, rank: int, count: int) -> None:
        self._opened = contextlib.ExitStack()
        try:
            first = self._open(opened, rank)
            checkpoint = _checkpoint_of(first, rank, count)
            self.checkpoint, self.stores, self._checkpoints = checkpoint, [first], [checkpoint]
            if any(rows is not None for rows in checkpoint.rows or ()):
                self._open_all(opened, rank, count)
            rows = [checkpoint.rows_by_name for checkpoint in self._checkpoints]
            self.fields: Fields = fields_of(self.stores, rows)
            self._join_entries()
        except BaseException:
            self.close()
            raise

    def _open(self, opened: Opened, rank: int) -> Store:
        try:
            return self._opened.enter_context(opened(rank))
        except SpillwayError as error:
            raise SpillwayError(error.errno, "the commit cannot be read without what rank "
                                f"{rank} has of it: {error.strerror}") from error

    def _open_all(self, opened: Opened, rank: int, count: int) -> None:
        stores = {rank: self.stores[0]}
        checkpoints = {rank: self.checkpoint}
        for other in range(count):
            if other != rank:
                stores[other] = self._open(opened, other)
                checkpoints[other] = _checkpoint_of(stores[other], other, count)
        order = [rank, *(other for other in range(count) if other != rank)]
        self.stores = [stores[other] for other in order]
        self._checkpoints = [checkpoints[other] for other in order]
        for other in order[1:]:
            of_other = checkpoints[other]
            if ((of_other.step, of_other.names, of_other.optimizer, len(of_other.rows or ()))
                    != (self.checkpoint.step, self.checkpoint.names, self.checkpoint.optimizer,
                        len(self.checkpoint.rows or ()))):
                raise _unclean(f"ranks {rank} and {other} have made it at different steps, or of "
                               "different models")
            if not is_same_run(of_other.run, self.checkpoint.run):
                raise _unclean(f"ranks {rank} and {other} have not made it together: has one of "
                               "them had other drives, on another host?")
        for name, rows in self.checkpoint.rows_by_name.items():
            if rows == "other":
                raise _unclean(f"{name} is sharded otherwise than by its first dimension, which "
                               "only the same ranks can resume")

    def _join_entries(self) -> None:
        """Of each parameter that of a rank which has rows of it.

        :raises SpillwayError: EUCLEAN they differ
        """
        if len(self._checkpoints) == 1:
            return
        with_rows: Dict[str, Set[int]] = {}
        for tensors in self.fields.values():
            for name, tensor in tensors.items():
                with_rows.setdefault(name, set()).update(part.store for part in tensor.parts)
        names = [name for group in self.checkpoint.names or () for name in group]
        entries: List[Entry] = []
        for number, name in enumerate(names):
            known = [self._checkpoints[store].entries[number]
                     for store in sorted(with_rows.get(name) or {0})]
            if not all(are_equal(known[0], entry) for entry in known):
                raise _unclean(f"ranks disagree about the steps of {name}")
            entries.append(known[0])
        self.checkpoint.entries[:] = entries

    def reading(self, wanted: Iterable[Wanted], most: int) -> "Reading":
        """Read these, one after the other.

        :param most: bytes of each of two buffers
        """
        return Reading(self, wanted, most)

    def close(self) -> None:
        self._opened.close()


def check_same(opened: Opened, rank: int, ranks: int, count: int) -> None:
    """Where other ranks than those of a commit go on from it, each takes a parameter that is not
    sharded from one of them. Experts or stages that were placed by hand differ, and would be lost:
    so the beginnings of such parameters are compared.

    :param opened: at this commit
    :param rank: this one, of ``ranks``: together they look at all
    :param count: of ranks that made it
    :raises SpillwayError: EUCLEAN they differ
    """
    first = rank % count
    expected = _beginnings(opened, first, count)
    for other in sorted({0, *range(rank, count, ranks)} - {first}):
        try:
            found = _beginnings(opened, other, count)
        except SpillwayError as error:
            if error.errno != errno.ENODATA:
                raise
            _log.warning("rank %d has nothing of the commit: what ranks have whole is taken to be "
                         "the same there", other)
            continue
        for name, beginning in expected.items():
            if found.get(name, beginning) != beginning:
                raise _unclean(f"{name} is not sharded, and is not the same on ranks {first} and "
                               f"{other}; so only {count} ranks can resume it")


def _beginnings(opened: Opened, rank: int, count: int) -> Dict[str, bytes]:
    """Of the parameters that a rank has whole."""
    with opened(rank) as store:
        rows = _checkpoint_of(store, rank, count).rows_by_name
        fields = fields_of([store])
        cuts = [cut_from(fields, field, name, 0, _COMPARED)[0]
                for field in (MASTER, PARAMETER) for name in fields.get(field, ())
                if rows.get(name) is None
                and (field == PARAMETER or name not in fields.get(PARAMETER, ()))]
        with contextlib.closing(leaving([store], cuts, _COMPARED * 8)) as tensors:
            return {tensor.name: b"".join(map(bytes, views)) for tensor, views in tensors}


class Reading:
    """
    :raises SpillwayError: EUCLEAN something is not there
    """

    def __init__(self, ranks: AllRanks, wanted: Iterable[Wanted], most: int) -> None:
        cuts = [cut_from(ranks.fields, *one) for one in wanted]
        self._tensors = leaving(ranks.stores, [tensor for tensor, _ in cuts], most)
        self._skipped = iter([skipped for _, skipped in cuts])

    def __call__(self, into: Tensor) -> None:
        """Fill a flat tensor, of the type that is stored, with the next."""
        tensor, views = next(self._tensors)
        at = -next(self._skipped)
        for view in views:
            source = torch.frombuffer(view, dtype=tensor.stored)
            begin, end = max(at, 0), min(at + len(source), len(into))
            if begin < end:
                into[begin:end].copy_(source[begin - at:end - at])
            at += len(source)
        if at < len(into):
            raise _unclean(f"{tensor.name} has fewer elements than it should")

    def close(self) -> None:
        self._tensors.close()


def _checkpoint_of(store: Store, rank: int, count: int) -> Checkpoint:
    checkpoint = decoded(committed_extra(store))
    if checkpoint.rank != (rank, count):
        raise _unclean("partition {} has a commit of rank {} of {}, where that of rank {} of {} "
                       "should be".format(store.stats().partition, *checkpoint.rank, rank, count))
    return checkpoint


def _unclean(words: str) -> SpillwayError:
    return SpillwayError(errno.EUCLEAN, f"the commit cannot be put together: {words}")


def shapes_of(fields: Fields) -> Dict[str, Dict[str, Any]]:
    """By the names of parameters, the (type, shape) of each field; of masters it is the type of
    their parameters."""
    shapes: Dict[str, Dict[str, Any]] = {}
    for field, tensors in fields.items():
        for name, tensor in tensors.items():
            dtype = tensor.dtype if field == MASTER else tensor.stored
            shapes.setdefault(name, {})[field] = dtype, tensor.shape
    return shapes
