#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# scripts/counters.py - write what the tables of counters generate; called by make
"""Usage: scripts/counters.py [--check | --stub FILE]

Writes docs/COUNTERS.md from the tables of the built library.
--check: writes nothing; exit status 1 if the page is another.
--stub: writes the types of python/spillway/_core/counted.py instead.
"""
import dataclasses
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
# The package is imported where it lies.
from spillway._core import counted  # noqa: E402

# Of counted.py what the package uses: the rest is for this script.
STUB = '''# SPDX-License-Identifier: MIT
# spillway/_core/counted.pyi - the fields of the library's counters
import dataclasses
from typing import Any

CacheStruct: Any
StoreStruct: Any
StateStruct: Any
'''
PAGE = '''# Counters

Written by `make counters` from the tables of [counters.h](../include/spillway/counters.h).

A *total* only grows, from when the cache, store or state was opened; a *gauge* is of now, of the
last step that ended, or of the plan in force; a *peak* is the most of a gauge. The names are those
of Python, of C and of `spillway top --json`. In OpenMetrics the unit comes last, and times are in
seconds: `stall_ns` of a cache is `spillway_cache_stall_seconds_total`, `bytes_spilled` is
`spillway_cache_spilled_bytes_total`; `wear_bytes_per_day` is `spillway_cache_wear_limit_bytes`.
'''
HEADINGS = {
    "cache": "A tensor cache: `off.stats()`, `spw_cache_stats()`",
    "store": "A store: `Store.stats()`, `spw_store_stats()`",
    "state": "Training state: `State.stats()`, `spw_state_stats()`",
}


def stub():
    text = STUB
    for cls in (counted.CacheStats, counted.DeviceStats, counted.StoreStats, counted.StateStats):
        text += f"\n@dataclasses.dataclass(frozen=True)\nclass {cls.__name__}:\n"
        text += "".join(f"    {field.name}: int\n" for field in dataclasses.fields(cls))
        if cls is counted.CacheStats:
            text += "    @property\n    def stall_seconds(self) -> float: ...\n"
    return text


def page():
    text = PAGE
    for name in counted.TABLES:
        rows = counted.table_of(name)
        text += f"\n## {HEADINGS[name]}\n"
        for group in dict.fromkeys(row.group for row in rows):
            text += f"\n| {group} | kind | unit | |\n|---|---|---|---|\n"
            text += "".join(f"| `{row.name}` | {row.kind} | {row.unit} | {row.help} |\n"
                            for row in rows if row.group == group)
    return text


def main():
    path = ROOT / "docs/COUNTERS.md"
    if not sys.argv[1:]:
        path.write_text(page(), encoding="utf-8")
    elif sys.argv[1:] == ["--check"]:
        if path.read_text(encoding="utf-8") != page():
            sys.exit("docs/COUNTERS.md is not what the tables say: make counters")
    elif sys.argv[1] == "--stub" and len(sys.argv) == 3:
        Path(sys.argv[2]).write_text(stub(), encoding="utf-8")
    else:
        sys.exit(__doc__)


main()
