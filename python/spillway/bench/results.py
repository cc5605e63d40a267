# SPDX-License-Identifier: MIT
# spillway/bench/results.py - NAME.json, which each bench writes, and the page made of all of them
"""NAME.json holds {"title", "machine", "rows"}; a row has a name, its value with the lowest and the
highest of all rounds, a unit, the goal and whether it is met, and the command that gave it. Needs
nothing but Python.

  results.py render FOLDER PAGE > NEW_PAGE          a table for each NAME.json in FOLDER; of the
                                                    others what PAGE has
  results.py run NAME TITLE FOLDER -- COMMAND...    a command that prints a row per line, as JSON
"""
from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence, Union

Row = Dict[str, Any]
Values = Union[float, Sequence[float]]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def machine(drives: Iterable[str] = ()) -> Dict[str, Any]:
    """A description of this machine; ``drives``: descriptions of the drives."""
    cpu = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return {
        "cpu": cpu.group(1) if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory.group(1)) / (1 << 20), 1) if memory else None,
        "kernel": platform.release(),
        "load": float((_read("/proc/loadavg").split() or ["0"])[0]),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "drives": list(drives),
    }


def row(name: str, values: Values, unit: str = "", at_most: Optional[float] = None,
        at_least: Optional[float] = None, command: str = "") -> Row:
    """A row with the median of the values of all rounds."""
    numbers = [float(value) for value in (values if isinstance(values, Sequence) else [values])]
    value = statistics.median(numbers)
    found: Row = {"name": name, "value": value, "low": min(numbers), "high": max(numbers),
                  "unit": unit}
    found.update(goal=None, met=None, command=command)
    if at_most is not None:
        found.update(goal=f"at most {at_most:g}", met=value <= at_most)
    if at_least is not None:
        found.update(goal=f"at least {at_least:g}", met=value >= at_least)
    return found


def write(path: Path, title: str, rows: List[Row], where: Dict[str, Any], **more: Any) -> None:
    """Write NAME.json. ``more`` goes only into the file; the page shows the rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    document = {"title": title, "machine": where, "rows": rows, **more}
    new.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def updated(path: Path, rows: List[Row]) -> List[Row]:
    """The rows of a file, with rows of the same names replaced and others added."""
    known: List[Row] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    by_name = {each["name"]: each for each in [*known, *rows]}
    return list(by_name.values())


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def table(rows: Iterable[Row]) -> str:
    lines = ["| what | median | lowest to highest | unit | goal | met |",
             "|---|---:|---:|---|---|---|"]
    for each in rows:
        spread = ""
        if each["low"] != each["high"]:
            spread = f"{_shown(each['low'])} to {_shown(each['high'])}"
        met = {None: "", True: "yes", False: "**no**"}[each["met"]]
        cells = [each["name"], _shown(each["value"]), spread, each["unit"], each["goal"] or "", met]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def matrix(found: Dict[str, Any]) -> str:
    """A table of {"columns", "rows", "notes"}, for benches that compare more than numbers."""
    lines = ["| " + " | ".join(found["columns"]) + " |",
             "|---" + "|---:" * (len(found["columns"]) - 1) + "|"]
    lines += ["| " + " | ".join(cells) + " |" for cells in found["rows"]]
    notes = [textwrap.fill(note.replace("|", "\\|"), 100, subsequent_indent="  ",
                           initial_indent="- ", break_long_words=False,
                           break_on_hyphens=False) for note in found["notes"]]
    return "\n".join([*lines, "", *notes]) + "\n"


def section(document: Dict[str, Any], name: str) -> str:
    where = document["machine"]
    words = [where["cpu"], f"{where['cores']} cores", f"{where['memory_gib']} GiB",
             f"Linux {where['kernel']}"]
    words += [f"load {where['load']:.1f} before", where["date"], *where["drives"]]
    goals = [each for each in document["rows"] if each["met"] is not None]
    met = f" {sum(each['met'] for each in goals)} of {len(goals)} goals are met." if goals else ""
    head = f"## {document['title']}\n\n`{name}.json`: {'; '.join(words)}.{met}\n\n"
    first = matrix(document["matrix"]) + "\n" if "matrix" in document else ""
    return head + first + table(document["rows"])


def sections_of(page: str) -> Dict[str, str]:
    """The sections of an earlier page, by the names of their files."""
    parts = re.split(r"^(?=## )", page, flags=re.MULTILINE)[1:]
    named = ((re.search(r"^`([\w-]+)\.json`: ", part, re.MULTILINE), part) for part in parts)
    return {name.group(1): part.rstrip("\n") + "\n" for name, part in named if name}


def render(folder: Path, page: str) -> str:
    """:raises ValueError: a file was not written by write()"""
    sections = sections_of(page)
    found = sorted(folder.glob("*.json"))
    for path in found:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or not {"title", "machine", "rows"} <= set(document):
            raise ValueError(f"{path} has no title, machine and rows")
        sections[path.stem] = section(document, path.stem)
    if not found:
        raise ValueError(f"{folder} has no results: run a bench first (make help)")
    head = ("# Results\n\nGenerated by `make results` from the files that the benches left in "
            "`build/bench`. A bench that has not run since\nkeeps its section. "
            "[RESULTS.md](../RESULTS.md) is the summary, [BENCHMARKING.md](../BENCHMARKING.md) the "
            "method; the\nJSON files name the command of each row. Compare ratios, not numbers of "
            "different machines.\n")
    return "\n".join([head, *(sections[name] for name in sorted(sections))])


def run(name: str, title: str, folder: Path, command: List[str]) -> int:
    """Run a bench that only prints rows, and write NAME.json for it."""
    where = machine()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        return done.returncode
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    for each in rows:
        each["command"] = shlex.join(command)
    write(folder / f"{name}.json", title, rows, where)
    print(table(rows), end="")
    return 0


def main(words: List[str]) -> int:
    if len(words) == 3 and words[0] == "render":
        try:
            print(render(Path(words[1]), _read(words[2])), end="")
        except (OSError, ValueError) as error:
            print(f"results: {error}", file=sys.stderr)
            return 1
        return 0
    if len(words) > 5 and words[0] == "run" and words[4] == "--":
        return run(words[1], words[2], Path(words[3]), words[5:])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
