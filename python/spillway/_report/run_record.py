# SPDX-License-Identifier: MIT
# spillway/_report/run_record.py - Run: the figures of a training run, to JSON and back
from __future__ import annotations

import collections.abc
import dataclasses
import json
import math
from typing import Any, Literal, Sequence, Tuple, Union, get_args, get_origin, get_type_hints

from .._core.library import VERSION
from ..cache import POINTS_MAX, CacheStats, Mode
from ..store import DriveStats
from ..wear import Wear

# (seconds, bytes in memory, bytes if nothing were spilled), as of Cache.profile()
Profile = Sequence[Tuple[float, int, int]]


@dataclasses.dataclass(frozen=True)
class Run:
    """The figures that a report shows. ``drives`` and ``before``: counters now and at the start
    of the run."""

    model: str
    mode: Mode
    when: str
    seconds: float
    stats: CacheStats
    profile: Profile
    drives: Sequence[DriveStats]
    before: Sequence[DriveStats]
    wear: Sequence[Tuple[str, Wear]]
    backend: str
    hints: Sequence[str]
    # peak memory of the process, and what it would be if no activation were spilled; 0: not known.
    # heap: why freed memory stays in the C library's heap
    resident_bytes_max: int = 0
    resident_plain_bytes: int = 0
    heap: str = ""


def json_of(run: Run) -> str:
    """The text of the JSON file: the version of spillway, and the members of the run."""
    return json.dumps({"spillway": VERSION, "run": dataclasses.asdict(run)}, indent=1,
                      allow_nan=False) + "\n"


def run_of(text: str) -> Run:
    """Read what json_of() wrote. Members that this version does not know are ignored.

    :raises ValueError: the text is not a report, or of another version, or invalid
    """
    try:
        document = json.loads(text)
        version, run = document["spillway"], document["run"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ValueError("it is not a report of spillway in JSON") from None
    try:
        found: Run = _value_of(Run, run, "run")
        _check(found)
    except ValueError as error:
        other = "" if version == VERSION else (
            f"; it says that spillway {str(version)[:40]!r} wrote it, and this is {VERSION}")
        raise ValueError(f"{error}{other}") from None
    return found


def _check(run: Run) -> None:
    times = [-1.0, *(point[0] for point in run.profile)]
    if len(run.profile) > POINTS_MAX or any(
            later - earlier < 1e-9 for earlier, later in zip(times, times[1:])):
        raise ValueError("run.profile: its times do not go up")
    if len(run.drives) > len(run.before):
        raise ValueError("run.before: drives are missing")


_LARGEST = {int: 1 << 64, float: 1e30}


def _value_of(kind: Any, value: Any, name: str) -> Any:
    """Check and convert a value, and everything in it, to a type."""
    origin, parts = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        types = get_type_hints(kind)
        fields = [field.name for field in dataclasses.fields(kind)
                  if field.name in value or field.default is dataclasses.MISSING]
        missing = [field for field in fields if field not in value]
        if missing:
            raise ValueError(f"{name}.{missing[0]} is not there")
        make: Any = kind
        return make(**{
            field: _value_of(types[field], value[field], f"{name}.{field}") for field in fields})
    if origin is Union:  # an optional value
        return None if value is None else _value_of(parts[0], value, name)
    if origin is Literal and value in parts:
        return value
    if origin is collections.abc.Sequence and isinstance(value, list):
        return [_value_of(parts[0], one, f"{name}[{index}]") for index, one in enumerate(value)]
    if origin is tuple and isinstance(value, list) and len(value) == len(parts):
        return tuple(_value_of(part, one, name) for part, one in zip(parts, value))
    if kind in (str, bool) and isinstance(value, kind):
        return value
    if kind is int and type(value) is int and 0 <= value < _LARGEST[int]:
        return value
    if kind is float and type(value) in (int, float) and math.isfinite(value) and (
            abs(value) < _LARGEST[float]):
        return float(value)
    raise ValueError(f"{name} makes no sense")
