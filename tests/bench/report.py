# SPDX-License-Identifier: MIT
# tests/bench/report.py - medians, ratios, the tables and the charts
"""Every figure is the median of the rounds; the spread is the smallest and the largest. A ratio is the median of the ratios within each
round, so that a slow minute of the machine does not count against one side."""

import json
import os
import platform
import re
import shlex
import statistics
import subprocess
from pathlib import Path

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
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def device_words(device):
    queue = queue_folder(device)
    if not queue.is_dir():
        return f"{device}: a file of {os.path.getsize(device) / GIB:.1f} GiB"
    sectors = int(read_text(queue.parent / "size", "0"))
    model = read_text(queue.parent / "device" / "model", "no model")
    return (f"{device}: {sectors * 512 / GIB:.1f} GiB, {model}, blocks of {read_text(queue / 'logical_block_size')}, scheduler "
            f"{read_text(queue / 'scheduler')}, polling {read_text(queue / 'io_poll', 'no')}")


def machine(devices, kind, programs):
    cpu = re.search(r"^model name\s*:\s*(.+)$", read_text("/proc/cpuinfo"), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB", read_text("/proc/meminfo"), re.MULTILINE)
    return {
        "cpu": f"{cpu.group(1) if cpu else platform.machine()}, {os.cpu_count()} cores",
        "memory_gib": round(int(memory.group(1)) / (1 << 20), 1) if memory else None,
        "kernel": platform.release(),
        "fio": first_line([programs["fio"], "--version"]),
        "spillway": first_line([programs["spillway"], "--version"]),
        "huge_pages_free_mib": free_huge_bytes() >> 20,
        "transparent_huge_pages": read_text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "load_before": read_text("/proc/loadavg"),
        "drives_kind": "loop devices over memory" if kind == "rig" else "given",
        "drives": [device_words(device) for device in devices],
    }


def middle(rounds, key):
    values = [key(r) for r in rounds]
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summarize(series):
    """One entry of report.json."""
    good = [r for r in series.rounds if r]
    entry = {
        "job": series.case.job,
        "section": series.case.section,
        "settings": dict(series.case.settings),
        "runner": series.runner.name,
        "peer": series.runner.peer,
        "metric": series.case.metric,
        "complete": series.case.complete,
        "command": shlex.join(series.command),
        "refused": series.failures[0] if series.failures and not good else None,
        "failures": series.failures,
        "idle_cpu_seconds": series.idle_cpu_seconds,
        "rounds": series.rounds,
    }
    if good:
        entry["bandwidth"] = middle(good, lambda r: r["bandwidth"])
        entry["iops"] = middle(good, lambda r: r["iops"])
        entry["cpu_us_per_io"] = middle(good, lambda r: 1e6 * r["cpu_seconds"] / r["ios"])
        entry["cpu_seconds_per_gib"] = middle(good, lambda r: r["cpu_seconds"] / r["bytes"] * GIB)
        entry["latency_ns"] = {
            key: statistics.median(r["latency_ns"][key] for r in good if key in r["latency_ns"])
            for key in good[0]["latency_ns"]
        }
    return entry


def ratio(entry, peers, metric):
    """The median over the rounds of this runner's figure to the best peer's of the same round."""
    ratios = []
    for number, mine in enumerate(entry["rounds"]):
        theirs = [p["rounds"][number][metric] for p in peers if p["rounds"][number]]
        if mine and theirs:
            ratios.append(mine[metric] / max(theirs))
    return statistics.median(ratios) if ratios else None


def add_ratios(entries):
    for entry in entries:
        # Jobs that run to their end are tests: what fio calls the time of a read that verifies differs from case to case.
        entry["ratio_to_best_peer"] = None
        if entry["complete"]:
            continue
        same = [e for e in entries if (e["job"], e["section"]) == (entry["job"], entry["section"])]
        entry["ratio_to_best_peer"] = ratio(entry, [e for e in same if e["peer"]], entry["metric"])
        inside = [e for e in same if e["runner"] == "spillway in fio"]
        if entry["runner"] == "spillway bench" and inside:
            entry["ratio_to_engine_in_fio"] = ratio(entry, inside, entry["metric"])
            entry["latency_to_engine_in_fio"] = ratio(entry, inside, "in_flight_ns")


def figure(entry):
    if entry["metric"] == "iops":
        value, unit, scale = entry["iops"], "k IOPS", 1e3
    else:
        value, unit, scale = entry["bandwidth"], "GB/s", 1e9
    return f"{value['median'] / scale:.2f} {unit}", f"{value['min'] / scale:.2f}-{value['max'] / scale:.2f}"


def cpu_words(entry):
    return f"{entry['cpu_us_per_io']['median']:.2f} us", f"{entry['cpu_seconds_per_gib']['median']:.4f} s"


def latency_words(entry):
    value = entry["latency_ns"].get("99.000000")
    return f"{value / 1e3:.0f} us" if value else "-"


def table_row(entry):
    command = f"`{entry['command']}`" if entry["command"] else "-"
    if entry["refused"]:
        return f"| {entry['runner']} | not run: {entry['refused']} | | | | | | {command} |"
    runner = entry["runner"] + (f" ({len(entry['failures'])} runs failed: {entry['failures'][0]})" if entry["failures"] else "")
    (value, spread), (per_io, per_gib) = figure(entry), cpu_words(entry)
    shown = f"{entry['ratio_to_best_peer']:.2f}" if entry["ratio_to_best_peer"] else "-"
    return f"| {runner} | {value} | {spread} | {shown} | {per_io} | {per_gib} | {latency_words(entry)} | {command} |"


def honesty(entries):
    """One engine through two tools: what differs is the tools."""
    rows = [e for e in entries if e.get("ratio_to_engine_in_fio")]
    if not rows:
        return []
    lines = ["## One engine, two tools", "", "`spillway bench` against the same engine inside fio. Far from 1.00, one of the two "
             "measures something else. Latency, the mean from submission to completion, leaves out what a tool does between two "
             "transfers: at depth 1 on a drive in memory that is a fifth of the time. On the drive of 100 MB/s both wait for the drive, and "
             "there the ratio has to be 1.", "",
             "| job | section | ratio | of latency |", "|---|---|---|---|"]
    lines += [f"| {e['job']} | {e['section']} | {e['ratio_to_engine_in_fio']:.3f} | {e['latency_to_engine_in_fio']:.3f} |" for e in rows]
    return [*lines, *[f"| all | median | {statistics.median(e['ratio_to_engine_in_fio'] for e in rows):.3f} | "
                      f"{statistics.median(e['latency_to_engine_in_fio'] for e in rows):.3f} |"], ""]


def instructions(data):
    rows = data["instructions"]
    if not rows:
        return []
    lines = ["## Instructions", "", "In user space per I/O, 4 KiB random reads at depth 64 in batches of 16, random numbers included.", "",
             "| program | instructions | command |", "|---|---|---|"]
    lines += [f"| {row['runner']} | {row['per_io']:.1f} | `{row['command']}` |" for row in rows]
    return [*lines, f"| ratio | {rows[1]['per_io'] / rows[0]['per_io']:.2f} | |", ""]


def markdown(data, charts):
    m = data["machine"]
    lines = [
        "# spillway against fio",
        "",
        f"{data['date']}, {data['rounds']} interleaved rounds of {data['seconds']:.2f} s each, {data['duration_seconds']:.0f} s in all.",
        "",
        f"- {m['cpu']}, {m['memory_gib']} GiB, Linux {m['kernel']}, load before {m['load_before']}",
        f"- {m['fio']}, {m['spillway']}; huge pages free {m['huge_pages_free_mib']} MiB, transparent ones {m['transparent_huge_pages']}",
        f"- idle CPUs {'wait awake' if m['cpus_kept_awake'] else 'may sleep'}",
        f"- drives: {m['drives_kind']}",
        *[f"  - {words}" for words in m["drives"]],
        *[f"- left out: {words}" for words in data["left_out"]],
        "",
        "Figures are medians over the rounds, with the smallest and the largest. The ratio is to the best fio row of the same round. "
        "CPU is the time of all threads of the process but the main one, kernel threads included, less that of setting up. Latency is "
        "the 99th percentile from submission to completion. The command beside a number is the one that gave it.",
        "",
        *[f"![{chart.stem}]({chart.name})\n" for chart in charts],
    ]
    for title in dict.fromkeys((e["job"], e["section"]) for e in data["series"]):
        lines += [f"## {title[0].removesuffix('.fio')}: {title[1]}", "",
                  "| runner | median | spread | ratio | CPU per I/O | CPU per GiB | p99 | command |", "|---|---|---|---|---|---|---|---|"]
        lines += [table_row(e) for e in data["series"] if (e["job"], e["section"]) == title]
        lines.append("")
    return "\n".join(lines + honesty(data["series"]) + instructions(data)) + "\n"


# ---- Charts --------------------------------------------------------------------------------------------------------------------------


def size_number(text):
    return float(text[:-1]) * {"k": 1, "m": 1024}[text[-1]]


def lines_of(entries, key):
    """{runner: [(x, entry)]} of what was run, x ascending."""
    result = {}
    for entry in entries:
        if not entry["refused"] and "bandwidth" in entry:
            result.setdefault(entry["runner"], []).append((key(entry), entry))
    return {runner: sorted(points, key=lambda p: p[0]) for runner, points in result.items()}


def line_chart(plt, lines, value, words, path):
    """A line per runner with a band from the smallest to the largest round."""
    figure_, axes = plt.subplots(figsize=(8, 4.5))
    for runner, points in lines.items():
        x = [p[0] for p in points]
        values = [value(p[1]) for p in points]
        axes.plot(x, [v["median"] for v in values], marker="o", label=runner)
        axes.fill_between(x, [v["min"] for v in values], [v["max"] for v in values], alpha=0.12)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({p[0] for points in lines.values() for p in points}))
    axes.get_xaxis().set_major_formatter(plt.FuncFormatter(lambda v, _: f"{v:g}"))
    axes.set_ylim(bottom=0)
    axes.set(title=words[0], xlabel=words[1], ylabel=words[2])
    axes.grid(alpha=0.3)
    axes.legend()
    figure_.tight_layout()
    figure_.savefig(path, dpi=120)
    plt.close(figure_)


def latency_chart(plt, entries, path):
    figure_, axes = plt.subplots(figsize=(8, 4.5))
    for entry in entries:
        keys = sorted(entry["latency_ns"], key=float)
        axes.plot([f"{float(k):g}" for k in keys], [entry["latency_ns"][k] / 1e3 for k in keys], marker="o", label=entry["runner"])
    axes.set_yscale("log")
    axes.set(title=f"Latency, {entries[0]['section']}", xlabel="percentile", ylabel="us")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure_.tight_layout()
    figure_.savefig(path, dpi=120)
    plt.close(figure_)


def scaled(entry, name, scale):
    return {key: value / scale for key, value in entry[name].items()}


def draw(data, out):
    """What was not run is not drawn. Return: the files."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    charts, series = [], data["series"]
    for rw, word in (("write", "Writes"), ("read", "Reads")):
        lines = lines_of([e for e in series if e["job"] == "bs-sweep.fio" and e["settings"].get("rw") == rw],
                         lambda e: size_number(e["settings"]["bs"]))
        if lines:
            charts.append(out / f"bandwidth-{rw}.png")
            line_chart(plt, lines, lambda e: scaled(e, "bandwidth", 1e9), (f"{word}, depth 8", "block size, KiB", "GB/s"), charts[-1])
    lines = lines_of([e for e in series if e["job"] == "rand-4k.fio" and e["settings"].get("rw") == "randread"],
                     lambda e: int(e["settings"]["iodepth"]))
    if lines:
        charts.append(out / "iops.png")
        line_chart(plt, lines, lambda e: scaled(e, "iops", 1e3), ("4 KiB random reads", "depth", "k IOPS"), charts[-1])
    for section in ("rand-read-depth-1", "rand-read-depth-16"):
        entries = [e for e in series if e["section"] == section and not e["refused"] and e.get("latency_ns")]
        if entries:
            charts.append(out / f"latency-{section}.png")
            latency_chart(plt, entries, charts[-1])
    return charts


def write(data, out):
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.png"):
        old.unlink()
    (out / "report.json").write_text(json.dumps(data, indent=1) + "\n")
    (out / "report.md").write_text(markdown(data, draw(data, out)))
