# SPDX-License-Identifier: MIT
# spillway/_core/free_memory.py - how much memory this process may still take
from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any, Iterator, Optional, Tuple

# By version of control groups: where they are, the limit, what is used of it, and of that what the
# system takes back when it has to.
_FILES = {
    2: ("", "memory.max", "memory.current", "inactive_file"),
    1: ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def _available(root: Path) -> int:
    """To all of the machine, without swapping."""
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise OSError("/proc/meminfo has no MemAvailable")


def _number(path: Path) -> Optional[int]:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _groups(root: Path) -> Iterator[Tuple[int, Path]]:
    """(version, folder) of this process' control group and of those around it. In a container the
    group may have another name than outside: then that of the container alone is there."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, name = line.split(":", 2)
        version = 2 if number == "0" else 1 if "memory" in controllers.split(",") else 0
        if version:
            top = root / "sys/fs/cgroup" / _FILES[version][0]
            folder = top / name.strip("/")
            yield version, folder
            yield from ((version, each) for each in folder.parents
                        if each == top or top in each.parents)


def _reclaimable(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.split()[0] == name)


def _left(version: int, folder: Path) -> Optional[int]:
    """What a group may still use; None: it has no limit."""
    _, limit_name, used_name, cache_name = _FILES[version]
    limit, used = _number(folder / limit_name), _number(folder / used_name)
    if limit is None or used is None:
        return None
    return max(0, limit - used + _reclaimable(folder / "memory.stat", cache_name))


# Of what is free the rest is left to this process, and to others.
_PARTS, _OF_PARTS = 7, 8


# Those that may take memory which they do not have yet: ``bytes_to_come`` says how much.
takers: "weakref.WeakSet[Any]" = weakref.WeakSet()


def promised(but: Any = None) -> int:
    """Bytes of free memory that others in this process are going to take.

    :param but: what this one is going to take is not counted
    """
    return sum(taker.bytes_to_come for taker in list(takers) if taker is not but)


def share_of(free_bytes: int) -> int:
    """How much of free memory is held for good at most: a control group that has no more ends its
    processes."""
    return free_bytes // _OF_PARTS * _PARTS


def free_memory(root: Path = Path("/")) -> int:
    """What the machine has available, and this process' control groups let it take.

    :raises OSError: there is no /proc/meminfo, as in some sandboxes
    """
    lefts = [_left(*group) for group in _groups(root)]
    return min([_available(root), *(left for left in lefts if left is not None)])
