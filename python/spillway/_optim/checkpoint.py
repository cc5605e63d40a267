# SPDX-License-Identifier: MIT
# spillway/_optim/checkpoint.py - an optimizer that was saved: in a commit, or as a state_dict
"""The in-memory part of an optimizer as the bytes of a commit; and a state_dict of torch.optim,
checked against an offloaded optimizer: what does not fit is said before anything is changed."""
from __future__ import annotations

import copy
import dataclasses
import errno
import itertools
import logging
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .._core.library import SpillwayError
from .._values.nested import flat, nested
from .._values.pack import pack, unpack
from .inner import Options
from .tile_step import MASTER, ON_DRIVES, Entry, local_of

_log = logging.getLogger("spillway")

_FORMAT = 1

# What the records have for a parameter, by name.
Shapes = Mapping[str, Tuple[int, ...]]


@dataclasses.dataclass
class Checkpoint:
    """``rank``: which process, of how many; ``groups`` are options without parameters; ``entries``
    are of all parameters, in order; ``names`` are theirs, group by group; ``rows`` (ranks.py) are
    what this process has of each; ``run`` is the same on all ranks that committed together, and
    differs from one start to the next. None: an earlier version did not write them."""

    optimizer: str
    step: int
    rank: Tuple[int, int]
    groups: List[Options]
    entries: List[Entry]
    random: Dict[str, Any]
    extra: Any
    names: Optional[List[List[str]]] = None
    rows: Optional[List[Any]] = None
    run: Optional[str] = None

    @property
    def rows_by_name(self) -> Dict[str, Any]:
        names = itertools.chain.from_iterable(self.names or [])
        return dict(zip(names, self.rows or []))


def is_same_run(one: Optional[str], other: Optional[str]) -> bool:
    """As far as that is known."""
    return one is None or other is None or one == other


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
        "rows": pack(checkpoint.rows, "rows"),
        "run": pack(checkpoint.run, "run"),
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
        later = {name: unpack(parts[name]) if name in parts else None
                 for name in ("names", "rows", "run")}
    except (ValueError, TypeError, KeyError) as error:
        raise SpillwayError(errno.EUCLEAN, "the commit in the store is not of an optimizer: "
                            f"{error}") from error
    return Checkpoint(groups=groups, entries=entries, rank=(rank, count), **later, **named)


# ---- A state_dict --------------------------------------------------------------------------------


def loaded_groups(groups: Sequence[Options], state_dict: Dict[str, Any]) -> List[Options]:
    """The options of a state_dict, with the parameters that there are.

    :raises ValueError: it has other groups
    """
    saved = state_dict["param_groups"]
    if len(saved) != len(groups):
        raise ValueError(f"the state_dict has {len(saved)} groups of parameters, the optimizer "
                         f"{len(groups)}")
    merged = []
    for number, (group, new) in enumerate(zip(groups, saved)):
        if len(new["params"]) != len(group["params"]):
            raise ValueError(f"group {number} of the state_dict has {len(new['params'])} "
                             f"parameters, that of the optimizer {len(group['params'])}")
        options = copy.deepcopy({name: value for name, value in new.items() if name != "params"})
        if "param_names" in group:
            options.setdefault("param_names", group["param_names"])
        else:
            options.pop("param_names", None)
        merged.append({**options, "params": group["params"]})
    return merged


def _cast(value: Any, name: str, dtype: torch.dtype) -> Any:
    """As torch.optim does with what it loads: numbers of a parameter are of its type, but for the
    count of steps."""
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    value = value.detach()
    if value.dim() > 0:
        return value  # is cast as it is copied into a record
    return value.to("cpu", dtype if name != "step" else value.dtype, copy=True)


def loaded_entries(params: Sequence[Tensor], fields: Sequence[Shapes],
                   state_dict: Dict[str, Any]) -> List[Optional[Options]]:
    """The state of each parameter, of a sharded one what is here; None: it has none. Without the
    masters that a class of PyTorch has loaded: it makes them of the parameter's type, and goes on
    without them.

    :param fields: what the records have for each
    :raises ValueError: a tensor is of another shape, or has no field
    """
    numbers = itertools.chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    entries: List[Optional[Options]] = []
    cast: List[int] = []
    for number, param, names in zip(numbers, params, fields):
        state = state_dict["state"].get(number)
        if not state:
            entries.append(None if state is None else {})
            continue
        dtype = torch.float32 if MASTER in names else param.dtype
        entry = {}
        for name, value in flat(state).items():
            if name == MASTER and MASTER not in names:
                continue
            value = local_of(value)
            if name == MASTER and isinstance(value, Tensor) and value.dtype is not torch.float32:
                cast.append(number)
                continue
            _check(number, names, name, value)
            entry[name] = _cast(value, name, dtype)
        entries.append(nested(entry))
    if cast:
        _log.warning("the state_dict has masters that are not float32, of parameter %d and %d "
                     "more: an optimizer that keeps none has loaded them and left them as they "
                     "were, so the masters are the parameters as they are now", cast[0],
                     len(cast) - 1)
    return entries


def _check(number: int, names: Shapes, name: str, value: Any) -> None:
    if name in names:
        if isinstance(value, Tensor) and tuple(value.shape) != names[name]:
            raise ValueError(f"{name} of parameter {number} has the shape {tuple(value.shape)}, "
                             f"and not {names[name]}")
    elif isinstance(value, Tensor) and value.dim() > 0:
        raise ValueError(f"the state_dict has {name} of parameter {number}, for which there is no "
                         "room in the records: make the optimizer with the options with which it "
                         "was saved")


def loaded_parameters(names: Sequence[str], params: Sequence[Tensor], fields: Sequence[Shapes],
                      values: Mapping[str, Tensor]) -> List[Tensor]:
    """The new value of each parameter.

    :param fields: what the records have for each
    :raises ValueError: one is missing, of another shape, or would lose bits
    """
    missing = [name for name in names if name not in values]
    if missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise ValueError(f"there is no {', '.join(missing[:4])}{more}, which the model has")
    found = []
    for name, param, kept in zip(names, params, fields):
        value = values[name]
        dtype = torch.float32 if MASTER in kept else param.dtype
        if not isinstance(value, Tensor) or value.shape != local_of(param).shape:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"{name} is {shape}, and the model's has the shape "
                             f"{tuple(local_of(param).shape)}")
        if (not value.dtype.is_floating_point
                or torch.promote_types(value.dtype, dtype) is not dtype):
            raise ValueError(f"{name} is {value.dtype}, which does not fit into {dtype} without "
                             "loss: convert it first")
        found.append(value.detach())
    return found
