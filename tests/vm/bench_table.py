# SPDX-License-Identifier: MIT
# tests/vm/bench_table.py - interleaved rounds of the same work by several tools in the virtual machine, as a table, JSON and Markdown
"""A figure is the median over the rounds. A ratio is the median of the ratios within each round, with the least and the most, so that a slow
minute of the machine does not count against one side.

BENCH_ROUNDS (5), BENCH_SECONDS per run (2), BENCH_ONLY: a word that the row's name must contain, BENCH_OUT: the folder of report.md and
results.json.
"""
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
SECONDS = os.environ.get("BENCH_SECONDS", "2")
ONLY = os.environ.get("BENCH_ONLY", "")
OURS = "ours"


def run(command):
    """Operations and bytes per second of all jobs, and CPU seconds of the process per byte."""
    with tempfile.NamedTemporaryFile(mode="w+", encoding="utf-8") as out:
        before = os.times()
        done = subprocess.run(command + [f"--output={out.name}"], capture_output=True, text=True, check=False)
        after = os.times()
        if done.returncode != 0:
            sys.exit(f"{shlex.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        report = out.read()
    sides = [job[side] for job in json.loads(report[report.index("{"):])["jobs"] for side in ("read", "write")]
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"iops": sum(side["iops"] for side in sides), "bw": sum(side["bw_bytes"] for side in sides),
            "cpu": cpu / max(sum(side["io_bytes"] for side in sides), 1)}


def spread(values):
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def shown(value, unit):
    return f"{value / 1e3:.1f} k IOPS" if unit == "iops" else f"{value / 2**20:.0f} MiB/s"


def shown_spread(values):
    return f"{values['median']:.2f} ({values['least']:.2f}, {values['most']:.2f})"


class Table:
    """Rows as they are measured; `ours` is this project's tool in the heading. write() leaves them in BENCH_OUT, if that is named."""

    def __init__(self, title, ours):
        self.title = title
        self.rows = []
        self.lines = []
        self.say(f"| work | fio, best of | fio | {ours} | ratio, median (least, most) | CPU time, ratio |")
        self.say("|---|---|---|---|---|---|")

    def say(self, line):
        self.lines.append(line)
        print(line, flush=True)

    def measure(self, name, unit, theirs, ours):
        """theirs: commands by name; ours: one command. The order turns round in each round. unit: "iops" or "bw" """
        if ONLY not in name:
            return
        commands = [*theirs.items(), (OURS, ours)]
        rounds = [{who: run(command) for who, command in (commands if number % 2 == 0 else commands[::-1])} for number in range(ROUNDS)]
        medians = {who: statistics.median(values[who][unit] for values in rounds) for who, _ in commands}
        best = max(theirs, key=medians.get)
        ratio = spread([values[OURS][unit] / values[best][unit] for values in rounds])
        cpu = spread([values[OURS]["cpu"] / values[best]["cpu"] for values in rounds])
        self.rows.append({"work": name, "unit": unit, "peer": best, "medians": medians, "ratio": ratio, "cpu_ratio": cpu, "rounds": rounds,
                          "commands": {who: shlex.join(command) for who, command in commands}})
        self.say(f"| {name} | {best} | {shown(medians[best], unit)} | {shown(medians[OURS], unit)} | {shown_spread(ratio)} | {shown_spread(cpu)} |")

    def write(self):
        folder = os.environ.get("BENCH_OUT")
        if not folder:
            return
        now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        machine = f"Linux {platform.release()} in QEMU without KVM, {os.cpu_count()} processors"
        with open(os.path.join(folder, "results.json"), "w", encoding="utf-8") as out:
            json.dump({"title": self.title, "date": now, "machine": machine, "rounds": ROUNDS, "seconds": float(SECONDS), "rows": self.rows}, out, indent=1)
            out.write("\n")
        words = [f"# {self.title}", "", f"{now}, {ROUNDS} interleaved rounds of {SECONDS} s each; {machine}.", "",
                 "An emulated drive measures the emulator as much as the tools: only ratios mean anything, and of them the large ones.", "",
                 *self.lines, "", *[f"- {row['work']}, {who}: `{command}`" for row in self.rows for who, command in row["commands"].items()], ""]
        with open(os.path.join(folder, "report.md"), "w", encoding="utf-8") as out:
            out.write("\n".join(words))
