# SPDX-License-Identifier: MIT
# spillway/_optim/ranks.py - processes that commit the same step, each in its partition
"""Invariants:
R1  while a commit is under way every rank has the one that all had before: it is released when all
    are known to have the new one
R2  the first commit of a store comes after one with the number FIRST. So a rank that has nothing
    lacks nothing where the others have FIRST still, and has lost something where they do not
"""
from __future__ import annotations

import errno
import logging
from typing import (Any, Callable, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Union)

import torch
from torch import distributed

from .._core.library import SpillwayError
from ..state import committed_extra
from ..store import Path, Store, committed
from .checkpoint import decoded
from .tile_step import local_of

_log = logging.getLogger("spillway")

FIRST = 0

# "all": all processes, where torch.distributed has several; None: this one, by itself.
Group = Union["torch.distributed.ProcessGroup", Literal["all"], None]

_Answer = Tuple[Any, Optional[Tuple[int, str]]]  # a result, or an errno and words


def world() -> Tuple[int, int]:
    """(which process this is, of how many)"""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


class Ranks:
    """The processes of a group, of which this is one. What one calls, all have to call."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.in_doubt = False  # a gather did not end: what the others know is not known here

    @property
    def count(self) -> int:
        return distributed.get_world_size(self._group)

    @property
    def rank(self) -> int:
        return distributed.get_rank(self._group)

    def gather(self, mine: Any) -> List[Any]:
        """What each gives, in their order.

        :raises RuntimeError: as torch.distributed does, where another has died
        """
        every: List[Any] = [None] * self.count
        self.in_doubt = True
        distributed.all_gather_object(every, mine, group=self._group)
        self.in_doubt = False
        return every

    def run_on_all(self, function: Callable[[], Any], what: str) -> List[Any]:
        """Call the function on every rank, and return all results in the order of ranks. It must
        not communicate with other ranks: if it failed on one, the others would wait for ever.

        :param what: what could not be done; the error begins with it
        :raises SpillwayError: on every rank if it failed on any: which, and why. A rank whose own
            exception is of another kind raises that one instead
        """
        error, mine = None, None
        try:
            mine = function()
        except Exception as caught:
            error = caught
        answers: List[_Answer] = self.gather((mine, None if error is None else _told(error)))
        failed = [(rank, *words) for rank, (_, words) in enumerate(answers) if words is not None]
        if not failed:
            return [result for result, _ in answers]
        if error is not None and not isinstance(error, SpillwayError):
            raise error
        words = "; ".join(f"rank {rank}: {why}" for rank, _, why in failed)
        raise SpillwayError(failed[0][1], f"{what}: {words}") from error


def _told(error: Exception) -> Tuple[int, str]:
    if isinstance(error, SpillwayError):
        return error.errno or errno.EIO, str(error.strerror)
    return errno.ECANCELED, f"{type(error).__name__}: {error}"


def ranks_of(group: Group) -> Optional[Ranks]:
    """None: this process is by itself.

    :raises ValueError: it is not a group
    """
    if group is None:
        return None
    if isinstance(group, str):
        if group != "all":
            raise ValueError(f'process_group must be a group, "all" or None, not {group!r}')
        return Ranks(None) if world()[1] > 1 else None
    if not hasattr(group, "size"):
        raise ValueError(f'process_group must be a group, "all" or None, not {group!r}')
    ranks = Ranks(group)
    return ranks if ranks.count > 1 else None


def say_each(values: Sequence[Any]) -> str:
    return ", ".join(f"rank {rank} {value}" for rank, value in enumerate(values))


# ---- Which commit --------------------------------------------------------------------------------


# By the numbers of the commits that a partition has: which rank made each, of how many. None: that
# is not known, and it is taken to be of this rank of as many as there are.
Has = Mapping[int, Optional[Tuple[int, int]]]


def look(paths: Sequence[Path], partition: int, rank: Tuple[int, int]) -> Has:
    """
    :param rank: which this is, of how many; a commit of an earlier version by the same process of
        all is taken to be of it
    """
    info = committed(paths, partition)
    if info is None:
        return {}
    has: Dict[int, Optional[Tuple[int, int]]] = {}
    for number in {info.number, info.number if info.previous is None else info.previous}:
        try:
            with peeked(paths, partition, number) as store:
                said = decoded(committed_extra(store)).rank
        except SpillwayError:  # not an optimizer's; or opening it says what is wrong
            has[number] = None
        else:
            has[number] = rank if said == world() else said
    return has


def peeked(paths: Sequence[Path], partition: int, number: int, arena_bytes: int = 1 << 20) -> Store:
    """A commit of a partition, which may be open elsewhere, to be read."""
    return Store(paths, partition=partition, commit=number, read_only=True, shared=True,
                 arena_bytes=arena_bytes, hugetlb=False)


def common_commit(all_have: Sequence[Has], count: int) -> Tuple[Optional[int], int]:
    """The newest commit that all ranks have that made it.

    :param all_have: of each rank, and of others that were there before
    :param count: of ranks now
    :return: its number, None: no first one was completed; and how many ranks made it
    :raises SpillwayError: ENODATA ranks have commits, but none that is whole; EEXIST a rank that
        was not there has one of another training
    """
    for number in sorted(all_have[0], reverse=True):
        made_by = (all_have[0][number] or (0, count))[1]
        if made_by <= len(all_have) and all(
                number in has and (has[number] or (0, count))[1] == made_by
                for has in all_have[:made_by]):
            _check_new(all_have[:count], made_by)
            return number, made_by
    if all(not has or FIRST in has for has in all_have):  # R2
        return None, count
    have = [" and ".join(_say_commit(number, has[number], count) for number in sorted(has))
            or "nothing" for has in all_have]
    raise SpillwayError(
        errno.ENODATA, f"there is no commit that all ranks have: {say_each(have)}. Nothing is "
        "changed. Have all of them the drives and the partitions that they had? If what there is "
        "is not wanted any more: commit=None")


def _say_commit(number: int, made: Optional[Tuple[int, int]], count: int) -> str:
    return str(number) if made is None or made[1] == count else f"{number} (of {made[1]} ranks)"


def _check_new(all_have: Sequence[Has], made_by: int) -> None:
    """What ranks have that did not make the commit is of these ranks, in an earlier run."""
    for rank, has in enumerate(all_have):
        others = [number for number, made in has.items() if made is None or made[0] != rank]
        if rank >= made_by and others:
            raise SpillwayError(
                errno.EEXIST, f"the commit is of {made_by} ranks, and the partition of rank {rank} "
                f"has commit {others[0]} of something else, which would be discarded. Nothing is "
                "changed. Give the ranks other partitions; or, if it is not wanted any more: "
                "spillway state drop")


def newest_of_all(process_group: Group = "all") -> Callable[[Sequence[Path], int], Optional[int]]:
    """For ``Store(commit=...)``: the newest commit that all processes of a group have. All of them
    have to open their stores then; no commit is discarded before they agree. It may have been made
    by more processes than there are now, or by fewer, if each had the partition of its rank.

    >>> store = spillway.Store(drives, partition=rank, commit=st.newest_of_all())

    :param process_group: as of Optimizer
    :return: a function; opening the store by it raises SpillwayError on all ranks: if the commits
        of one cannot be read (it says which, and why); with ENODATA if they have none in common;
        with EEXIST if a rank that is new has a commit of another training
    """
    def choose(paths: Sequence[Path], partition: int) -> Optional[int]:
        ranks = ranks_of(process_group)
        rank, count = (0, 1) if ranks is None else (ranks.rank, ranks.count)

        def on_each(function: Callable[[], Any]) -> List[Any]:
            if ranks is None:
                return [function()]
            return ranks.run_on_all(function, "what is committed cannot be read")

        all_have = on_each(lambda: look(paths, partition, (rank, count)))
        made = [made for made in all_have[0].values() if made is not None]
        of_most = max(made, key=lambda one: one[1], default=(0, count))
        if of_most[1] > count:
            all_have = on_each(lambda: _with_others(paths, partition, all_have, of_most)
                               if rank == 0 else None)[0]
        number, made_by = common_commit(all_have, count)
        if any(max(has, default=number) != number for has in all_have[:made_by]):
            _log.warning("the newest commit that all ranks have is %s; later ones, of some, "
                         "are discarded", "none" if number is None else number)
        if rank < made_by or number is None:
            return number
        if all_have[rank]:
            _log.warning("commit %d is of %d ranks: what partition %d has of an earlier run is "
                         "discarded", number, made_by, partition)
        return None

    return choose


def _with_others(paths: Sequence[Path], partition: int, all_have: Sequence[Has],
                 made: Tuple[int, int]) -> List[Has]:
    """Also of ranks that were there before. Call this on rank 0.

    :param made: by which rank what this one has was made, of how many
    """
    index, before = made
    if len(all_have) > 1:
        return [*all_have, *(_look_at(paths, partition + other)
                             for other in range(len(all_have), before))]
    return [all_have[0] if other == index else _look_at(paths, partition - index + other)
            for other in range(before)]


def _look_at(paths: Sequence[Path], partition: int) -> Has:
    """The same of a rank that was there before; nothing, if it cannot be read."""
    try:
        return look(paths, partition, (-1, -1))
    except SpillwayError as error:
        _log.warning("what partition %d has committed cannot be read: %s", partition,
                     error.strerror)
        return {}


# ---- Which rows ----------------------------------------------------------------------------------


# Of a parameter, what a rank has: None: all of it. Or the first of its rows that are here, and how
# many there are in all.
Rows = Union[Tuple[int, int], Literal["other"], None]


def rows_of(param: Any) -> Rows:
    """:return: "other": it is sharded otherwise than by its first dimension"""
    placements = [(dim, placement) for dim, placement in enumerate(getattr(param, "placements", ()))
                  if not placement.is_replicate()]
    if not placements:
        return None
    if any(type(placement).__name__ != "Shard" or placement.dim != 0
           for _, placement in placements):
        return "other"
    first, rows = 0, param.shape[0]
    for dim, _ in placements:  # as torch.chunk() cuts
        most = -(-rows // param.device_mesh.size(dim))
        skipped = min(rows, most * param.device_mesh.get_local_rank(dim))
        first, rows = first + skipped, min(most, rows - skipped)
    return (first, param.shape[0]) if rows == local_of(param).shape[0] else "other"


# ---- A commit ------------------------------------------------------------------------------------


class CommonCommits:
    """Commits of the same step by all ranks.

    :param release: what was kept of this rank is not needed any more
    """

    def __init__(self, ranks: Ranks, release: Callable[[], None]) -> None:
        self.ranks = ranks
        self._release = release
        self._to_release = False  # all have the last one, and the one before is kept still

    def commit(self, commit: Callable[[], int]) -> int:
        """
        :param commit: commits, keeps the one before, and returns the number
        :raises SpillwayError: on all, where it failed on any: R1 holds, a later one may succeed
        :raises RuntimeError: whether the others have the last one is not known
        """
        if self.ranks.in_doubt:
            raise RuntimeError("the processes did not get to agree on the last commit, so none can "
                               "follow: open the stores again with commit=newest_of_all(), and "
                               "resume()")

        def release_and_commit() -> int:
            self._release_kept()
            return commit()

        numbers = self.ranks.run_on_all(
            release_and_commit, "the commit is not complete (all ranks have the one before still, "
            "if there was one; training can go on, and a later commit may succeed)")
        if len(set(numbers)) > 1:
            raise SpillwayError(errno.EINVAL, "the ranks have committed different steps: "
                                f"{say_each(numbers)}. All have the commit before still: commit "
                                "the same one, above these")
        self._to_release = True
        try:
            self._release_kept()
        except SpillwayError as error:
            _log.warning("commit %d is complete, but the one before takes up its space until the "
                         "next: %s", numbers[0], error)
        return numbers[0]

    def _release_kept(self) -> None:
        if self._to_release:
            self._release()
            self._to_release = False
