# SPDX-License-Identifier: MIT
# spillway/_optim/checkpoint.py - the in-memory part of an optimizer, as the bytes of a commit
from __future__ import annotations

import dataclasses
import errno
import logging
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .._core.library import SpillwayError
from .arithmetic import ON_DRIVES, Entry
from .elementwise import Options
from .pack import pack, unpack

_log = logging.getLogger("spillway")

_FORMAT = 1


@dataclasses.dataclass
class Checkpoint:
    """``rank``: which process, of how many; ``groups`` are options without parameters; ``entries``
    are of all parameters, in order; ``names`` are theirs, group by group. None: an earlier version
    did not write them."""

    optimizer: str
    step: int
    rank: Tuple[int, int]
    groups: List[Options]
    entries: List[Entry]
    random: Dict[str, Any]
    extra: Any
    names: Optional[List[List[str]]] = None


def random_state() -> Dict[str, Any]:
    """Of PyTorch's generators: the host's, and each GPU's if any is in use."""
    devices: Sequence[Tensor] = ()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        devices = torch.cuda.get_rng_state_all()
    return {"host": torch.get_rng_state(), "cuda": list(devices)}


def set_random_state(state: Dict[str, Any]) -> None:
    torch.set_rng_state(state["host"])
    devices = state["cuda"]
    count = torch.cuda.device_count() if devices else 0
    for index, device_state in enumerate(devices[:count]):
        torch.cuda.set_rng_state(device_state, index)
    if len(devices) > count:
        _log.warning("the commit has the random states of %d GPUs, of which %d are here",
                     len(devices), count)


def encoded(checkpoint: Checkpoint) -> bytes:
    """
    :raises TypeError: an option or something in ``extra`` is of a type that cannot go with a commit
    """
    entries = [None if entry is None else
               [[name, value is ON_DRIVES, None if value is ON_DRIVES else value]
                for name, value in entry.items()] for entry in checkpoint.entries]
    parts = {"optimizer": checkpoint.optimizer, "step": checkpoint.step,
             "rank": list(checkpoint.rank), "random": checkpoint.random, "extra": checkpoint.extra}
    # By themselves, so that an error names what the caller gave.
    return pack({
        "format": _FORMAT,
        **{name: pack(value, name) for name, value in parts.items()},
        "groups": [pack(group, f"param_groups[{number}]")
                   for number, group in enumerate(checkpoint.groups)],
        "entries": pack(entries, "state"),
        "names": pack(checkpoint.names, "names"),
    })


def decoded(content: bytes) -> Checkpoint:
    """
    :raises SpillwayError: EUCLEAN these are not the bytes of an optimizer's commit
    """
    try:
        parts = unpack(content)
        if parts["format"] != _FORMAT:
            raise ValueError(f"it has format {parts['format']}, this package knows {_FORMAT}")
        entries: List[Entry] = [
            None if entry is None else
            {name: ON_DRIVES if is_on_drives else value for name, is_on_drives, value in entry}
            for entry in unpack(parts["entries"])
        ]
        named = {name: unpack(parts[name]) for name in ("optimizer", "step", "random", "extra")}
        rank, count = unpack(parts["rank"])
        groups = [unpack(group) for group in parts["groups"]]
        names = unpack(parts["names"]) if "names" in parts else None
    except (ValueError, TypeError, KeyError) as error:
        raise SpillwayError(errno.EUCLEAN, "the commit in the store is not of an optimizer: "
                            f"{error}") from error
    return Checkpoint(groups=groups, entries=entries, rank=(rank, count), names=names,
                      **named)
