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
from typing import Any, Callable, List, Literal, Optional, Sequence, Set, Tuple, Union

import torch
from torch import distributed

from .._core.library import SpillwayError
from ..store import CommitInfo, Path, committed

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

    def together(self, function: Callable[[], Any], what: str) -> List[Any]:
        """What the function returns on each. It must not wait for others.

        :param what: that could not be done, for the error
        :raises SpillwayError: on every rank, where it failed on any: which, and why; but an
            exception of another kind is raised where it came from
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


def _numbers(info: Optional[CommitInfo]) -> Set[int]:
    if info is None:
        return set()
    return {info.number} if info.previous is None else {info.number, info.previous}


def common_commit(infos: Sequence[Optional[CommitInfo]]) -> Optional[int]:
    """The newest commit that all ranks have, of what each has; None: no first one was completed.

    :raises SpillwayError: ENODATA ranks have commits, but none in common
    """
    every = [_numbers(info) for info in infos]
    common = set.intersection(*every)
    if common:
        return max(common)
    if all(not numbers or FIRST in numbers for numbers in every):  # R2
        return None
    have = [" and ".join(map(str, sorted(numbers))) or "nothing" for numbers in every]
    raise SpillwayError(
        errno.ENODATA, f"there is no commit that all ranks have: {say_each(have)}. Nothing is "
        "changed. Have all of them the drives and the partitions that they had, and are they as "
        "many? If what there is is not wanted any more: commit=None")


def newest_of_all(process_group: Group = "all") -> Callable[[Sequence[Path], int], Optional[int]]:
    """For ``Store(commit=...)``: the newest commit that all processes of a group have. All of them
    have to open their stores then; no commit is discarded before they agree.

    >>> store = spillway.Store(drives, partition=rank, commit=st.newest_of_all())

    :param process_group: as of Optimizer
    :return: a function, by which opening the store raises SpillwayError on all: what a rank has
        cannot be read (which, and why); or ENODATA, ranks have commits, but none in common
    """
    def choose(paths: Sequence[Path], partition: int) -> Optional[int]:
        ranks = ranks_of(process_group)
        if ranks is None:
            return common_commit([committed(paths, partition)])
        infos = ranks.together(lambda: committed(paths, partition),
                               "what is committed cannot be read")
        number = common_commit(infos)
        if any(info is not None and info.number != number for info in infos):
            _log.warning("the newest commit that all ranks have is %s; later ones, of some, "
                         "are discarded", "none" if number is None else number)
        return number

    return choose


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

        numbers = self.ranks.together(
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
