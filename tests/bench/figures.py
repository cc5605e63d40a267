#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# tests/bench/figures.py - what coverage, simulation, soak and fuzzing found, as the table of
# docs/generated/figures.md
"""Usage: tests/bench/figures.py BUILD FILE
 Reads what `make coverage`, `make sim`, `make soak` and `make fuzz` left in BUILD, BUILD-coverage
and BUILD-fuzz, and writes the table in FILE between its markers; what was not run keeps its
rows."""

import json
import re
import sys
from pathlib import Path

from rounds import results

BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"


def of_sim(path):
    found = json.loads(path.read_text())
    name = "simulated drives"
    return [results.row(f"{name}: seeds without a finding", found["seeds"]),
            results.row(f"{name}: operations", found["operations"]),
            results.row(f"{name}: simulated time", found["seconds"], "s"),
            results.row(f"{name}: faults of the rarest of {found['kinds']} kinds", found["least"])]


def of_soak(path):
    found = json.loads(path.read_text())
    programs = found["programs"].values()
    return [results.row("soak: time", found["seconds"] / 60, "min"),
            results.row("soak: faults", len(found["faults"])),
            results.row("soak: stores made", found["generations"]),
            results.row("soak: errors, each with a drive that earned it",
                        sum(error["count"] for program in programs
                            for error in program["errors"].values())),
            results.row("soak: violations", len(found["violations"]), at_most=0)]


def of_coverage(path):
    rows = []
    for line in path.read_text().splitlines():
        found = re.match(r"  (\w[^%]*?) +([\d.]+) % of +\d+ lines +([\d.]+) % of +\d+ branches",
                         line)
        if found:
            rows += [results.row(f"coverage, {found[1]}: {what}", float(found[group]), "%")
                     for what, group in (("lines", 2), ("branches", 3))]
    return rows


def of_fuzz(path):
    counts = {}
    for line in path.read_text().splitlines():
        name, count = line.split()
        counts[name] = counts.get(name, 0) + int(count)
    return [results.row(f"fuzzing, {name}: executions", count) for name, count in counts.items()]


# How the rows of each begin; where what they are of is left.
SOURCES = (("simulated drives: ", of_sim, "/sim.json"), ("soak: ", of_soak, "/soak.json"),
           ("coverage, ", of_coverage, "-coverage/coverage.txt"),
           ("fuzzing, ", of_fuzz, "-fuzz/fuzz-executions"))


def parts_of(page, begin, end):
    """What is before the markers, between them, and after them."""
    before, _, rest = Path(page).read_text(encoding="utf-8").partition(begin)
    between, found, after = rest.partition(end)
    if not found:
        sys.exit(f"figures: {page} has no markers")
    return before, between, after


def fill(page, begin, end, text):
    """Put ``text`` between the markers of a page."""
    before, _, after = parts_of(page, begin, end)
    Path(page).write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def main(build, page):
    head, kept = results.table([]), parts_of(page, BEGIN, END)[1].splitlines(keepends=True)
    rows = []
    for name, read, place in SOURCES:
        path = Path(build + place)
        if path.exists():
            rows.append(results.table(read(path)).removeprefix(head))
        else:
            rows += [line for line in kept if line.startswith(f"| {name}")]
    fill(page, BEGIN, END, head + "".join(rows))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
