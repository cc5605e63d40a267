#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/bench/plan_replays.py - recorded steps, replayed by plans of what is kept, spilled and
# recomputed; called by tests/bench/plan.sh
"""Usage: tests/bench/plan_replays.py COMMAND TRACE...

Each step goes through the cache, again and again, on a simulated drive of f times what it takes to
spill all that it saves in half of it, within a budget that is a part of what keeping takes: in
virtual time, the same on every machine. Prints rows: how near the steps come to their plans.
"""
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from spillway.bench import results  # noqa: E402

CASES = ((0.5, 0.25), (0.5, 0.5), (0.2, 0.5), (0.2, 0.75))
SCALE = 0.02  # of tensors, which are memory, and of the drive: times stay as they are
STEPS, UNTIMED = 10, 4  # the first measure, and are corrected


def ask(*words):
    return json.loads(subprocess.run(list(map(str, words)), check=True,
                                     stdout=subprocess.PIPE).stdout)


def rows_of(command, trace):
    name = trace.stem
    step = ask(command, "plan", "--trace", trace, "--json")
    tensor_bytes = max(json.loads(line).get("bytes", 0)
                       for line in trace.read_text(encoding="utf-8").splitlines())
    for f, part in CASES:
        rate = int(f * step["bandwidth_needed_bytes_per_second"])
        budget = int(part * step["peak_keep_bytes"])
        found = ask(command, "replay", trace, "--bandwidth", rate, "--mode", "budget", "--budget",
                    budget, "--recompute", "--steps", STEPS, "--scale", SCALE, "--json")
        steps = found["steps"][UNTIMED:]
        words = f"{name}, f = {f:g}, {100 * part:g} % of keep, replayed"
        yield results.row(f"{words}: step, of what its plan says", [
            each["step_seconds"] / each["plan"]["step_seconds"] for each in steps], at_most=1.05)
        yield results.row(f"{words}: peak above the plan's, in tensors", [
            max(0, each["activation_peak_bytes"] - each["plan"]["peak_bytes"]) / tensor_bytes
            for each in steps], at_most=1)
        yield results.row(f"{words}: scopes recomputed", [
            each["plan"]["scopes_recomputed"] for each in steps])


def main():
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    for trace in sys.argv[2:]:
        for row in rows_of(sys.argv[1], Path(trace)):
            print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
