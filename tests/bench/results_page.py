#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# tests/bench/results_page.py - the figures that matter, of all that make results has collected
"""Usage: tests/bench/results_page.py RESULTS PAGE

Writes between the markers of PAGE the rows of RESULTS that SHOWN names, and each bench with its
date and how many of its goals are met.
"""

import re
import sys
from pathlib import Path

import figures

results = figures.results
SHOWN_BEGIN, SHOWN_END = "<!-- shown: begin -->\n", "<!-- shown: end -->\n"
BENCHES_BEGIN, BENCHES_END = "<!-- benches: begin -->\n", "<!-- benches: end -->\n"

# Of which bench, which row, and what a reader should know about it.
SHOWN = (
    ("peers", "spillway: step time / plain", "CPU, GPT, 4 drives: step time, of plain PyTorch's"),
    ("peers", "spillway: peak of activations", "the same: peak of activations"),
    ("peers", "plain PyTorch: peak of activations", "plain PyTorch: peak of activations"),
    ("peers", "recompute: step time / plain",
     "`torch.utils.checkpoint` of each block: step time, of plain PyTorch's"),
    ("peers", "spillway, all on drives: step time / plain",
     "activations, parameters and optimizer state on drives: step time, of plain PyTorch's"),
    ("device", "fastest / keep: step time",
     "GPU (H200, simulated drives of 6 GB/s), GPT: step time, of plain PyTorch's"),
    ("device", "budget / keep: step time", "the same within a memory budget"),
    ("device", "recompute / keep: step time", "checkpointing on that GPU"),
    ("replay", "simulated drive, fastest: longest step over the step without I/O",
     "recorded steps, any bandwidth: longest step, of the step without I/O"),
    ("replay", "gpt at 8 GB/s, fastest: peak, of all kept",
     "recorded GPT, 8 GB/s: activations that stay in memory"),
    ("state", "parameters and state on drives, GPT of 12 layers, hidden 768, 2048 tokens, "
     "file-backed: tokens per second / in memory",
     "parameters and optimizer state on drives: tokens per second, of those in memory"),
    ("store", "4 drives at 500 MB/s, 16 MiB objects: arena: put / fio",
     "store, 4 throttled drives: put bandwidth, of fio's"),
    ("store", "3 drives at 500 and one at 125 MB/s, 16 MiB objects: arena: put / fio",
     "store, one of the four drives at a quarter: put bandwidth, of fio's"),
    ("cache", "offer + take, kept, planning", "tensor cache: CPU time of an offer and a take"),
)


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def shown_of(sections):
    """:raises SystemExit: a row is missing: it was renamed, and SHOWN was not"""
    lines = ["| what | median | lowest to highest | goal | met |", "|---|---:|---:|---|---|"]
    for bench, name, words in SHOWN:
        rows = [cells for cells in map(cells_of, sections.get(bench, "").splitlines())
                if cells[0] == name]
        if len(rows) != 1:
            sys.exit(f"results_page: {bench} has {len(rows)} rows of the name {name!r}, not one")
        _, median, spread, unit, goal, met = rows[0]
        if unit not in ("", "ratio"):
            median += f" {unit}"
        lines.append(f"| {words} | {median} | {spread} | {goal} | {met} |")
    return "\n".join(lines) + "\n"


def benches_of(sections, where):
    lines = ["| bench | when | goals met |", "|---|---|---|"]
    for name, text in sorted(sections.items()):
        title = re.match(r"## (.*)\n", text)[1]
        head = re.search(r"^`[\w-]+\.json`: .*$", text, re.M)[0]
        met = re.search(r"(\d+ of \d+) goals are met", head)
        anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        lines.append(f"| [{title.split(':')[0]}]({where}#{anchor}) | "
                     f"{re.search(r'20[0-9]{2}-[0-9]{2}-[0-9]{2}', head)[0]} | "
                     f"{met[1] if met else 'none set'} |")
    return "\n".join(lines) + "\n"


def main(found, page):
    sections = results.sections_of(Path(found).read_text(encoding="utf-8"))
    figures.fill(page, SHOWN_BEGIN, SHOWN_END, shown_of(sections))
    where = Path(found).relative_to(Path(page).parent)
    figures.fill(page, BENCHES_BEGIN, BENCHES_END, benches_of(sections, where))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
