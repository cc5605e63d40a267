# SPDX-License-Identifier: MIT
# spillway/wear.py - how long drives last that are written so much: asked of the C library
"""Every byte that spills is written, and drives may be written only so much. The library says how
long they last; nothing is computed here."""
from __future__ import annotations

import ctypes
import dataclasses
import os
import re
from ctypes import byref
from typing import Literal, Optional, Tuple, Union

from ._core import library
from ._core.library import blocking, check, to_dataclass

_BASES = ("unknown", "health", "rating", "rating alone")


# Bytes per day, or in words: "2TB/day", "5 years".
Cap = Union[int, float, str]

_UNITS = {"MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}
_WORDS = re.compile(r"\s*(\d+(?:\.\d*)?)\s*(?:(years?)|([MGTP]B)(?:\s*/\s*day|\s+a\s+day)?)\s*")


def cap_of(wear: Cap) -> Tuple[int, float]:
    """A cap on what is written as (bytes per day, years), of which one is 0.

    :raises ValueError: it is neither, or not above 0
    """
    found = _WORDS.fullmatch(wear) if isinstance(wear, str) else None
    if found and found[2]:
        per_day, years = 0.0, float(found[1])
    elif found:
        per_day, years = float(found[1]) * _UNITS[found[3]], 0.0
    elif isinstance(wear, str):
        raise ValueError(f'wear must be bytes per day, "2TB/day" or "5 years", not {wear!r}')
    else:
        per_day, years = float(wear), 0.0
    if not (per_day >= 1 or years > 0) or per_day >= 1 << 63:
        raise ValueError(f"wear must be above 0, and be possible: {wear!r}")
    return int(per_day), years


@dataclasses.dataclass(frozen=True)
class Wear:
    """How long a drive lasts. Lengths are bytes.

    :param basis: "unknown": see reason; "health": what its health page says is written and used;
        "rating": the rating given, less what the health page says is used; "rating alone": the
        rating given, as of a new drive
    :param percentage_used: as the drive says, 100 and above when used up; None: it cannot be asked
    :param left_bytes: that it may still be written; None: unknown
    :param years: until they are; None: unknown, or nothing is written
    :param reason: why the health page, or what is left, is not known; or ""
    """

    basis: Literal["unknown", "health", "rating", "rating alone"]
    percentage_used: Optional[int]
    left_bytes: Optional[float]
    bytes_per_day: float
    years: Optional[float]
    reason: str


def wear_of(path: str, written_bytes: float, seconds: float,
            endurance_bytes: float = 0) -> Wear:
    """How long a drive lasts at this rate of writes.

    :param path: the drive; "": none is asked
    :param endurance_bytes: that it may be written in its life, by its maker; 0: not known
    :raises SpillwayError: EINVAL an amount below 0, or a time that is not above 0
    """
    struct = library.WearStruct()
    check(blocking.spw_wear(os.fsencode(path) or None, endurance_bytes, written_bytes, seconds,
                            byref(struct), ctypes.sizeof(struct)))
    known = struct.basis != 0
    return to_dataclass(
        Wear, struct, basis=_BASES[struct.basis],
        percentage_used=struct.percentage_used if struct.has_health else None,
        left_bytes=struct.left_bytes if known else None,
        years=struct.years if struct.years >= 0 else None)
