# SPDX-License-Identifier: MIT
# spillway/_optim/loading.py - a state_dict of torch.optim, checked against an offloaded optimizer
"""Nothing is changed here: what does not fit is said before anything is."""
from __future__ import annotations

import copy
import itertools
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set

import torch
from torch import Tensor

from .arithmetic import MASTER, local_of
from .elementwise import Options


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


def loaded_entries(params: Sequence[Tensor], fields: Sequence[Set[str]],
                   state_dict: Dict[str, Any]) -> List[Optional[Options]]:
    """The state of each parameter, of a sharded one what is here; None: it has none.

    :param fields: what the records have for each
    :raises ValueError: a tensor is of another shape, or has no field
    """
    numbers = itertools.chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    entries: List[Optional[Options]] = []
    for number, param, names in zip(numbers, params, fields):
        state = state_dict["state"].get(number)
        if not state:
            entries.append(None if state is None else {})
            continue
        dtype = torch.float32 if MASTER in names else param.dtype
        entry = {}
        for name, value in state.items():
            if name == MASTER and MASTER not in names:
                continue
            value = local_of(value)
            _check(number, local_of(param), names, name, value)
            entry[name] = _cast(value, name, dtype)
        entries.append(entry)
    return entries


def _check(number: int, param: Tensor, names: Set[str], name: str, value: Any) -> None:
    if name in names:
        if isinstance(value, Tensor) and value.shape != param.shape:
            raise ValueError(f"{name} of parameter {number} has the shape {tuple(value.shape)}, "
                             f"the parameter {tuple(param.shape)}")
    elif isinstance(value, Tensor) and value.dim() > 0:
        raise ValueError(f"the state_dict has {name} of parameter {number}, for which there is no "
                         "room in the records: make the optimizer with the options with which it "
                         "was saved")


def loaded_parameters(names: Sequence[str], params: Sequence[Tensor], fields: Sequence[Set[str]],
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
