# SPDX-License-Identifier: MIT
# spillway/integrations/_block.py - the settings of spillway in a program's configuration file
"""
spillway:
  devices: [/dev/nvme1n1, /dev/nvme2n1]
  mode: budget
  budget_bytes: 20GiB

All is checked before the program loads a model.
"""
from __future__ import annotations

import dataclasses
import difflib
import importlib.metadata
import inspect
import logging
from typing import Any, Dict, List, Mapping, Optional

from torch import nn

from .._offload.arguments import check_arguments
from ..torch import Sizes, offload
from .transformers import SpillwayCallback

_log = logging.getLogger("spillway")

# What a file cannot say, or what the callback gives by itself.
_NOT_IN_FILES = ("model", "store", "sizes", "scopes", "exclude", "parameters", "former")
_SIZES = tuple(field.name for field in dataclasses.fields(Sizes) if field.name != "parameter_bytes")
_OPTIONS = tuple(name for name in inspect.signature(offload).parameters
                 if name not in _NOT_IN_FILES)
KEYS = ("devices", *_OPTIONS, *_SIZES)


def _check_keys(block: Mapping[Any, Any]) -> None:
    for key in block:
        if key not in KEYS:
            near = difflib.get_close_matches(str(key), KEYS, 1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"unknown key {key!r}{meant}; there are {', '.join(KEYS)}")


def devices_of(block: Mapping[str, Any]) -> Optional[List[str]]:
    """None: without drives."""
    value = block.get("devices")
    if value is None:
        return None
    drives = value.split(",") if isinstance(value, str) else value
    if not isinstance(drives, (list, tuple)) or not drives or not all(
            isinstance(drive, str) and drive for drive in drives):
        raise ValueError(f"devices must be a list of drives, not {value!r}")
    return list(drives)


def callback_of(block: Any) -> SpillwayCallback:
    """The callback for a trainer of transformers that a block asks for.

    :raises ValueError: an unknown key, a value that cannot be, neither drives nor recomputing
    """
    try:
        if not isinstance(block, Mapping) or not block:
            raise ValueError("the block must name drives, such as devices: [/dev/nvme1n1]")
        _check_keys(block)
        devices = devices_of(block)
        given: Dict[str, Any] = {key: value for key, value in block.items()
                                 if value is not None and key != "devices"}
        sizes = Sizes(**{name: given.pop(name) for name in _SIZES if name in given})
        check_arguments(nn.Module(), given.get("mode", "fastest"), given.get("budget_bytes"), sizes,
                        devices, given.get("recompute", "never"), given.get("host_bytes"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"spillway: {error}") from error
    return SpillwayCallback(devices, sizes=sizes, **given)


def trained(callback: SpillwayCallback, program: str) -> None:
    """A program's training is over: its trainer may not have said so, nor have called spillway."""
    callback.end()
    if callback.stats is None or callback.stats.steps == 0:
        _log.warning("spillway: %s %s trained without calling spillway: nothing was spilled",
                     program, importlib.metadata.version(program))
