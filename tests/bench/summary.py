# SPDX-License-Identifier: MIT
# tests/bench/summary.py - the drives in words; medians, ratios and rows of what was run
"""Every figure is the median of the rounds. A ratio is taken within each round, so that a slow
minute of the machine does not count against one side."""

import os
import shlex
import statistics
import subprocess
from pathlib import Path

from rounds import results

GIB = 1 << 30


def read_text(path, default=""):
    try:
        return Path(path).read_text().strip()
    except OSError:
        return default


def queue_folder(device):
    """/sys/block/NAME/queue of the disk, for a partition that of its disk."""
    name = os.path.basename(os.path.realpath(device))
    folder = Path("/sys/class/block") / name
    if not (folder / "queue").exists():
        folder = folder.resolve().parent
    return folder / "queue"


def polls(device):
    return read_text(queue_folder(device) / "io_poll") == "1"


def free_huge_bytes():
    return int(read_text("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0")) << 21


def first_line(argv):
    try:
        return subprocess.run(argv, capture_output=True, text=True,
                              check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def device_words(device):
    queue = queue_folder(device)
    if not queue.is_dir():
        return f"{device}: a file of {os.path.getsize(device) / GIB:.1f} GiB"
    sectors = int(read_text(queue.parent / "size", "0"))
    model = read_text(queue.parent / "device" / "model", "no model")
    return (f"{device}: {sectors * 512 / GIB:.1f} GiB, {model}, blocks of "
            f"{read_text(queue / 'logical_block_size')}, scheduler "
            f"{read_text(queue / 'scheduler')}, polling {read_text(queue / 'io_poll', 'no')}")


def machine(devices, kind, programs):
    words = ["loop devices over memory" if kind == "rig" else "given",
             *[device_words(device) for device in devices]]
    return results.machine(words) | {
        "fio": first_line([programs["fio"], "--version"]),
        "spillway": first_line([programs["spillway"], "--version"]),
        "huge_pages_free_mib": free_huge_bytes() >> 20,
        "transparent_huge_pages": read_text("/sys/kernel/mm/transparent_hugepage/enabled"),
    }


def summarize(series):
    """One entry of `series` in bench.json."""
    good = [r for r in series.rounds if r]
    entry = {"job": series.case.job, "section": series.case.section,
             "settings": dict(series.case.settings), "runner": series.runner.name,
             "peer": series.runner.peer, "metric": series.case.metric,
             "complete": series.case.complete, "command": shlex.join(series.command),
             "refused": series.failures[0] if series.failures and not good else None,
             "failures": series.failures, "idle_cpu_seconds": series.idle_cpu_seconds,
             "rounds": series.rounds}
    if good:
        values = [run["bandwidth"] for run in good]
        entry["bandwidth"] = {"median": statistics.median(values), "min": min(values),
                              "max": max(values)}
    return entry


def ratios(entry, peers, key):
    """Of every round: this runner's figure to that of the best peer, where both are large
    enough."""
    found = []
    for number, mine in enumerate(entry["rounds"]):
        theirs = [p["rounds"][number] for p in peers if p["rounds"][number]]
        if mine and theirs:
            best = max(theirs, key=lambda run: run[entry["metric"]])
            found += [key(mine) / key(best)] if key(mine) and key(best) else []
    return found


def rows_of(entry, entries):
    """What is ours, and against the best of fio's."""
    same = [e for e in entries if (e["job"], e["section"]) == (entry["job"], entry["section"])]
    peers = [e for e in same if e["peer"]]
    metric = entry["metric"]
    name = f"{entry['job'].removesuffix('.fio')}: {entry['section']}: {entry['runner']}"
    unit, scale = ("k IOPS", 1e3) if metric == "iops" else ("GB/s", 1e9)
    good = [run for run in entry["rounds"] if run]
    rows = [results.row(name, [run[metric] / scale for run in good], unit,
                        command=entry["command"])]
    shown = [("", lambda run: run[metric]),
             (", CPU time of an I/O", lambda run: run["cpu_seconds"] / run["ios"])]
    if entry["settings"].get("iodepth") == "1":
        shown.append((", p99 of the latency", lambda run: run["latency_ns"].get("99.000000", 0)))
    for words, key in shown:
        found = ratios(entry, peers, key)
        rows += [results.row(f"{name} / best of fio{words}", found, "ratio")] if found else []
    inside = [e for e in same if e["runner"] == "spillway in fio"]
    if entry["runner"] == "spillway bench" and inside:
        # One engine, two tools: where the drive is the limit this has to be 1.
        found = ratios(entry, inside, lambda run: run[metric])
        rows += [results.row(f"{name} / spillway in fio", found, "ratio")] if found else []
    return rows


def write(data, path):
    rows = []
    for entry in data["series"]:
        # Jobs that run to their end are tests: what fio calls the time of a read that verifies
        # differs from case to case.
        if not entry["peer"] and not entry["complete"] and any(entry["rounds"]):
            rows += rows_of(entry, data["series"])
    failed = sum(len(entry["failures"]) for entry in data["series"])
    rows.append(results.row("runs that failed", failed, at_most=0))
    rows += [results.row(f"instructions in user space of a 4 KiB read: {each['runner']}",
                         each["per_io"],
                         command=each["command"]) for each in data["instructions"]]
    results.write(path, "The engine against fio", rows, data.pop("machine"), **data)
