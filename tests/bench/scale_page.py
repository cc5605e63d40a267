#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# tests/bench/scale_page.py - what make bench-scale found of the model, as the table of SCALING.md
"""Usage: tests/bench/scale_page.py SCALE.JSON FILE
 Writes the table in FILE between its markers; without SCALE.JSON it stays as it is."""

import json
import re
import sys
from pathlib import Path

import figures

BEGIN, END = "<!-- scale: begin -->\n", "<!-- scale: end -->\n"
MEASURED = re.compile(r"(\d+) null drives?, 1 worker, checksums (on|off): (put|get), CPU time of a "
                      r"GiB")
# What a reader sizes a box with.
SHOWN = re.compile(r"memory: (read|XXH3|copied.*), CPU time of a GiB|.*: cores that 100 GB/s .*|"
                   r".*: two workers on two cores.*|.*: what one I/O thread reaches .*|"
                   r".*: instructions of a 1 MiB chunk in (store|engine|alloc|checksums)")


def table_of(rows):
    """CPU time in milliseconds: of each configuration, and as the model has it."""
    measured = {(int(found[1]), found[2], found[3]): each["value"] for each in rows
                if (found := MEASURED.fullmatch(each["name"]))}
    one_pass = next(each["value"] for each in rows
                    if each["name"] == "memory: XXH3, CPU time of a GiB")
    lines = ["| null drives | checksums | put: ms of CPU for a GiB | model | get: ms of CPU for a "
             "GiB | model |", "|---:|---|---:|---:|---:|---:|"]
    for checksums, drives in sorted({(key[1], key[0]) for key in measured}):
        cells = [str(drives), checksums]
        for way in ("put", "get"):
            model = measured[1, "off", way] + (one_pass if checksums == "on" else 0)
            cells += [f"{measured[drives, checksums, way] * 1e3:.1f}", f"{model * 1e3:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(found, page):
    if not Path(found).exists():
        print(f"scale: {found} is missing (make bench-scale): {page} stays as it is")
        return
    document = json.loads(Path(found).read_text(encoding="utf-8"))
    rows, where = document["rows"], document["machine"]
    if not any(MEASURED.fullmatch(each["name"]) for each in rows):
        print(f"scale: {found} has not the case 'scaling': {page} stays as it is")
        return
    words = (f"{where['cpu']}, {where['cores']} cores, Linux {where['kernel']}, {where['date']}, "
             f"load {where['load']:.1f} before.\n")
    shown = [each for each in rows if SHOWN.fullmatch(each["name"])]
    figures.fill(page, BEGIN, END, f"{words}\n{table_of(rows)}\n{figures.results.table(shown)}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
