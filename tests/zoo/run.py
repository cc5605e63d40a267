#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/zoo/run.py - trains models of public packages in every mode: they must not notice
"""Usage: tests/zoo/run.py --build FOLDER [--jobs N] [--timeout SECONDS] [WORD...]

Each model of models.py trains 8 steps without spillway and in each mode: losses, gradients of each
step, parameters, buffers and the states of random generators in the end must be the same to the
last bit; a budget is met, or what is said names it; and no file is written but the store's. By the
interpreter that runs this, each model in a process of its own (child.py): a row in which that ends
or hangs has failed, and the rows after it go on in another. With words, only models whose package
or name contains one. Peaks and counts are in FOLDER/zoo/results.json.
"""
import argparse
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tests", "runner"))

import drives  # noqa: E402
import models  # noqa: E402
import outcomes  # noqa: E402

CHILD = os.path.join(ROOT, "tests", "zoo", "child.py")
MODES = ["plain", "observe", "spill", "fastest", "budget", "budget, recompute",
         "operations"]
LAST_LINES = 6  # of a child's errors, where it ended


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD",
                        help="only models whose package or name contains one of these")
    parser.add_argument("--build", default="build", help="the build folder (build)")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1),
                        help="models at once (2)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds per row (120)")
    return parser.parse_args()


class Zoo:
    def __init__(self, args):
        self.build, self.timeout = os.path.abspath(args.build), args.timeout
        self.scratch = drives.Scratch(None, args.build)
        self.models = [model for model in models.MODELS if not args.words or any(
            word in f"{model.package} {model.name}" for word in args.words)]
        self.lock = threading.Lock()
        self.rows = []

    def train(self, model):
        """One row after another; what ends the process ends one."""
        left = list(MODES)
        while left:
            left = self.train_in_child(model, left)

    def train_in_child(self, model, modes):
        """Return: the modes that are left."""
        left = list(modes)
        with tempfile.TemporaryDirectory(dir=self.scratch.path) as folder, \
                tempfile.TemporaryFile(dir=self.scratch.path) as errors:
            child = subprocess.Popen(
                [sys.executable, CHILD, model.name, *modes], cwd=folder, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=errors, env=self.environment(folder),
                start_new_session=True)
            for line in self.lines_of(child):
                left.remove(line["mode"])
                self.note(model, line)
            outcomes.end_group(child)
            errors.seek(0)
            last = errors.read().decode(errors="replace").splitlines()[-LAST_LINES:]
        if left:
            self.note(model, {"mode": left.pop(0), "seconds": 0, "problems": [
                self.how_ended(child.returncode) + "".join(f"\n{line}" for line in last)]})
        return left

    def how_ended(self, status):
        if status == -signal.SIGKILL:
            return f"it hung, and was killed after {self.timeout:.0f} s (or memory ran out)"
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit {status}"

    def lines_of(self, child):
        """What it says of each row, until it ends or one takes too long."""
        def kill():
            os.killpg(child.pid, signal.SIGKILL)

        begun = time.monotonic()
        while True:
            timer = threading.Timer(self.timeout, kill)
            timer.start()
            line = child.stdout.readline()
            timer.cancel()
            timer.join()
            if not line:
                break
            yield {**json.loads(line), "seconds": time.monotonic() - begun}
            begun = time.monotonic()
        child.wait()

    def environment(self, folder):
        """Whatever is written beside the store is seen in its folder."""
        return dict(os.environ, HOME=folder, TMPDIR=folder, XDG_CACHE_HOME=folder,
                    PYTHONPATH=os.path.join(ROOT, "python"), PYTHONDONTWRITEBYTECODE="1",
                    HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", PYTHONFAULTHANDLER="1",
                    SPILLWAY_LIBRARY=os.path.join(self.build, "libspillway.so"))

    def note(self, model, row):
        row = {"package": model.package, "model": model.name, **row}
        peaks, plain = row.get("peaks"), row.get("peak_plain")
        peak = f"peak {max(peaks[3:]) / plain:.2f} of plain's" if peaks and plain else ""
        with self.lock:
            self.rows.append(row)
            print(f"  {'FAIL' if row['problems'] else 'ok':<5}{row['seconds']:6.1f} s  "
                  f"{model.package:<16}{model.name:<31}{row['mode']:<19}{peak}", flush=True)
            for problem in row["problems"]:
                print("         | " + problem.replace("\n", "\n         | "), flush=True)

    def tally(self):
        tally = outcomes.Tally()
        for row in self.rows:
            if row["problems"]:
                name = f"{row['package']} {row['model']}"
                tally.failed += 1
                tally.failures.append((name, row["mode"], row["problems"][0]))
            else:
                tally.passed += 1
        return tally


def main():
    args = parse_arguments()
    zoo = Zoo(args)
    if not zoo.models:
        raise SystemExit("no model has a name with " + " or ".join(args.words))
    try:
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(zoo.train, zoo.models))
    finally:
        left = zoo.scratch.remove()
    tally = zoo.tally()
    for problem in left:
        tally.fail("left behind", problem)
    path = os.path.join(zoo.build, "zoo", "results.json")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(zoo.rows, file, indent=1)
    tally.close()
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
