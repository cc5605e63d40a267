#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# tests/bench/figures.py - what coverage, simulation, soak and fuzzing found, as the table of
# docs/RELIABILITY.md
"""Usage: tests/bench/figures.py BUILD FILE
 Reads what `make coverage`, `make sim`, `make soak` and `make fuzz` left in BUILD, BUILD-coverage
and BUILD-fuzz, and writes the table in FILE between its markers; what was not run is not in it."""

import json
import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "python/spillway/bench"))

import results  # noqa: E402

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


def fill(page, begin, end, text):
    """Put ``text`` between the markers of a page."""
    before, _, rest = Path(page).read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        sys.exit(f"figures: {page} has no markers")
    Path(page).write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def main(build, page):
    rows = []
    for read, path in ((of_sim, f"{build}/sim.json"), (of_soak, f"{build}/soak.json"),
                       (of_coverage, f"{build}-coverage/coverage.txt"),
                       (of_fuzz, f"{build}-fuzz/fuzz-executions")):
        if Path(path).exists():
            rows += read(Path(path))
    if not rows:
        print(f"figures: nothing was run in {build}: {page} stays as it is")
        return
    fill(page, BEGIN, END, results.table(rows))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
