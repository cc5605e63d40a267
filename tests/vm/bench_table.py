# SPDX-License-Identifier: MIT
# tests/vm/bench_table.py - interleaved rounds of the same work by several tools in the virtual
# machine
"""A ratio is taken within a round, so that a slow minute of the machine does not count against one
side. An emulated drive measures the emulator as much as the tools: only ratios mean anything, and
of them the large ones.
 BENCH_ROUNDS (5), BENCH_SECONDS per run (2), BENCH_ONLY: a word that the row's name must contain,
BENCH_OUT: the folder of NAME.json; without it nothing is written.
"""
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/spillway/bench"))

import results  # noqa: E402

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
SECONDS = os.environ.get("BENCH_SECONDS", "2")
ONLY = os.environ.get("BENCH_ONLY", "")
OURS = "ours"


def run(command):
    """Operations and bytes per second of all jobs, and CPU seconds of the process per byte."""
    with tempfile.NamedTemporaryFile(mode="w+", encoding="utf-8") as out:
        before = os.times()
        done = subprocess.run(command + [f"--output={out.name}"], capture_output=True, text=True,
                              check=False)
        after = os.times()
        if done.returncode != 0:
            sys.exit(f"{shlex.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        report = out.read()
    sides = [job[side] for job in json.loads(report[report.index("{"):])["jobs"]
             for side in ("read", "write")]
    cpu = after.children_user - before.children_user
    cpu += after.children_system - before.children_system
    return {"iops": sum(side["iops"] for side in sides),
            "bw": sum(side["bw_bytes"] for side in sides),
            "cpu": cpu / max(sum(side["io_bytes"] for side in sides), 1)}


class Table:
    """Rows as they are measured. write() leaves them in BENCH_OUT, if that is named."""

    def __init__(self, name, title, ours):
        self.name, self.title, self.ours = name, title, ours
        self.rows, self.where = [], results.machine(["emulated NVMe drives, QEMU without KVM"])

    def measure(self, name, unit, theirs, ours):
        """theirs: commands by name; ours: one command. The order turns round in each round. unit:
        "iops" or "bw" """
        if ONLY not in name:
            return
        commands = [*theirs.items(), (OURS, ours)]
        rounds = [{who: run(command) for who, command in commands[::1 if number % 2 == 0 else -1]}
                  for number in range(ROUNDS)]
        best = max(theirs, key=lambda who: statistics.median(each[who][unit] for each in rounds))
        words, scale = ("k IOPS", 1e3) if unit == "iops" else ("MiB/s", 2**20)
        made = [results.row(f"{name}: {title}", [values[who][unit] / scale for values in rounds],
                            words, command=shlex.join(command))
                for title, who, command in ((f"fio {best}", best, theirs[best]),
                                            (self.ours, OURS, ours))]
        made += [results.row(f"{name}: {self.ours} / fio{title}",
                             [v[OURS][key] / v[best][key] for v in rounds], "ratio")
                 for title, key in (("", unit), (", CPU time", "cpu"))]
        print(results.table(made), flush=True)
        self.rows += made

    def write(self):
        folder = os.environ.get("BENCH_OUT")
        if folder:
            results.write(Path(folder) / f"{self.name}.json", self.title, self.rows, self.where)
