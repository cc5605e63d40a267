#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/pytorch/suite.py - PyTorch's own tests of autograd and modules, all saved on drives
"""Usage: tests/pytorch/suite.py --build FOLDER [--jobs N] [--timeout SECONDS] [WORD...]

The tests that fetch.sh has put into FOLDER/pytorch-suite run without hooks on saved tensors, with
hooks that only copy, and with spillway's, by which every tensor is written to drives that are files
and read back (hooked.py). A test has failed if it ends otherwise than without hooks, and not as
with hooks that only copy, by the same error: what those change too is due to there being hooks at
all, a test that asks for the saved tensor itself for example. With words, only tests whose names
contain one.

The drives are files in TMPDIR; without that in memory, where that takes O_DIRECT (Linux 6.6), for a
test may save a tensor thousands of times, and wait for each. What became of each test is in
FOLDER/pytorch-suite/results.json, the output in FOLDER/pytorch-suite/runs. A test that ends the
process, or takes longer than the timeout, is noted, and the run goes on after it.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tests", "runner"))

import drives  # noqa: E402
import outcomes  # noqa: E402

PYTHON = "/usr/bin/python3"  # whose PyTorch is Debian's, of which the tests are
# The folder's own conftest.py and the configuration of the tree around it are for PyTorch's runs.
PYTEST_OPTIONS = ("-p hooked -p no:cacheprovider -p no:faulthandler -p no:warnings --noconftest "
                  "-c /dev/null --rootdir=. -q --tb=short --color=no").split()
WAYS = ("plain", "copies", "spilled")
# those that take longest first
FILES = ("test_nn.py", "test_modules.py", "test_autograd.py", "nn/test_*.py")
DRIVE_MIB = 1024  # sparse; of four drives, that may be in memory, for each job
NOTHING_SELECTED = 5  # pytest's exit status
LOG_LINES_SHOWN = 20


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD",
                        help="only tests whose names contain one of these")
    parser.add_argument("--build", default="build", help="the build folder (build)")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1),
                        help="files of tests at once (2)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds per test (600)")
    return parser.parse_args()


class Run:
    """One file of tests in one of the WAYS."""

    def __init__(self, suite, way, file):
        self.suite, self.way, self.file = suite, way, file
        self.name = f"{file} {way}"
        base = os.path.join(suite.folder, "runs", way, file.replace("/", "_").removesuffix(".py"))
        self.log_path, self.results_path = base + ".log", base + ".jsonl"
        self.tests = {}  # name: what hooked.py noted of it
        self.problem = None  # why it is not whole

    def execute(self):
        """Again until no test ends the process."""
        os.makedirs(os.path.dirname(self.log_path), exist_ok=True)
        current = "none yet"
        while current:
            new_drives = drives.Place(self.suite.scratch, drives.FILES[0], DRIVE_MIB)
            with new_drives as place, open(self.log_path, "wb") as log:
                status = self.suite.run_process(self.command(), self.environment(place), log)
            current, ended = self.read_results()
            if current:
                self.note_end(current, status)
        if not ended:
            self.problem = f"{how_ended(status)}, in no test\n{self.last_words()}"

    def command(self):
        selected = ["-k", " or ".join(self.suite.words)] if self.suite.words else []
        return [PYTHON, "-m", "pytest", *PYTEST_OPTIONS, *selected, self.file]

    def environment(self, place):
        paths = (f"{ROOT}/tests/pytorch", f"{self.suite.folder}/modules", f"{ROOT}/python")
        env = dict(os.environ, PYTHONPATH=":".join(paths), PYTHONDONTWRITEBYTECODE="1",
                   OMP_NUM_THREADS="1", TMPDIR=place.tmp,
                   SPILLWAY_LIBRARY=f"{self.suite.build}/libspillway.so", SPW_SUITE_WAY=self.way,
                   SPW_SUITE_RESULTS=self.results_path, SPW_SUITE_TIMEOUT=str(self.suite.timeout),
                   SPW_TEST_DEVICES=" ".join(place.devices))
        for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"):
            env.pop(name, None)
        return env

    def read_results(self):
        """(the test that had begun and not ended, whether the run came to its end)"""
        current, ended = None, False
        if os.path.exists(self.results_path):
            with open(self.results_path, encoding="utf-8") as file:
                for what in map(json.loads, file):
                    if "begun" in what:
                        current = what["begun"]
                    elif "test" in what:
                        self.tests[what["test"]] = what
                        current = None
                    ended = "ended" in what
        return current, ended

    def note_end(self, test, status):
        words = self.last_words()
        hung = words.startswith("Timeout (")
        what = {"test": test, "outcome": "hung" if hung else "crashed", "seconds": 0,
                "message": f"{how_ended(status)}\n{words}"}
        with open(self.results_path, "a", encoding="utf-8") as file:
            file.write(json.dumps(what) + "\n")
        self.tests[test] = what

    def last_words(self):
        """What faulthandler wrote, else the last lines."""
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            lines = log.read().splitlines()
        begun = [number for number, line in enumerate(lines)
                 if line.startswith(("Timeout (", "Fatal Python error"))]
        return "\n".join(lines[begun[-1]:][:LOG_LINES_SHOWN] if begun else lines[-LOG_LINES_SHOWN:])

    def summary(self):
        """How many tests ended in which way."""
        return dict(collections.Counter(test["outcome"] for test in self.tests.values()))


def how_ended(status):
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


class Suite:
    def __init__(self, args):
        self.words, self.timeout = args.words, args.timeout
        self.build = os.path.abspath(args.build)
        self.folder = os.path.join(self.build, "pytorch-suite")
        self.test_folder = os.path.join(self.folder, "test")
        in_memory = (not os.environ.get("TMPDIR") and os.path.isdir("/dev/shm")
                     and drives.takes_o_direct("/dev/shm"))
        self.scratch = drives.Scratch("/dev/shm" if in_memory else None, args.build)
        self.running = set()
        self.lock = threading.Lock()
        self.ending = False

    def files(self):
        for pattern in FILES:
            for path in sorted(glob.glob(os.path.join(self.test_folder, pattern))):
                yield os.path.relpath(path, self.test_folder)

    def run_process(self, command, env, log):
        with self.lock:
            if self.ending:
                raise KeyboardInterrupt
            # Else a killed runner's tests would go on, on drives that the next run removes.
            process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command],
                                       cwd=self.test_folder, env=env, stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            self.running.add(process)
        try:
            return process.wait()
        finally:
            outcomes.end_group(process)
            with self.lock:
                self.running.discard(process)

    def end(self):
        with self.lock:
            self.ending = True
            for process in self.running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def execute(self, jobs):
        runs = [Run(self, way, file) for file in self.files() for way in WAYS]
        shutil.rmtree(os.path.join(self.folder, "runs"), ignore_errors=True)
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(self.execute_one, run) for run in runs]
            try:
                for future in concurrent.futures.as_completed(futures):
                    future.result()
            except BaseException:
                for future in futures:
                    future.cancel()
                self.end()
                raise
        return runs

    @staticmethod
    def execute_one(run):
        begun = time.monotonic()
        run.execute()
        outcomes = [f"{count} {outcome}" for outcome, count in sorted(run.summary().items())]
        print(f"  {'FAIL' if run.problem else 'ran':<5}{time.monotonic() - begun:6.1f} s  "
              f"{run.name}  ({', '.join(outcomes) or 'no test'})", flush=True)


# ---- What differs --------------------------------------------------------------------------------


# What may differ, by the beginning of a test's name, and why.
EXPECTED = {
    "test_nn.py::TestNN::test_RReLU": "its noise is saved before it is drawn, so that what a copy "
    "has is chance; in a model offload() leaves it alone",
}


def error_in(message):
    """The first line of the error's text."""
    return next((line[2:].strip() for line in message.splitlines() if line.startswith("E ")), "")


def verdict(name, plain, copies, ours):
    """("passed", "skipped" or "failed", why) of what a test did without hooks, with hooks that
    copy, and with spillway's."""
    outcome = ours["outcome"]
    if outcome == plain["outcome"]:
        if outcome == "passed":
            return "passed", ""
        return "skipped", f"{outcome} without hooks, too"
    error = error_in(ours["message"])
    if outcome == copies["outcome"] and error == error_in(copies["message"]):
        return "skipped", f"{outcome} with hooks that only copy, too: {error}"
    for beginning, reason in EXPECTED.items():
        if name.startswith(beginning):
            return "skipped", f"{outcome}: {reason}"
    return "failed", (f"{plain['outcome']} without hooks, {copies['outcome']} with hooks that only "
                      f"copy, {outcome} with spillway's")


def compare(runs, tally):
    """Into the tally. Return the table: of each test, what it did in each way."""
    tests = collections.defaultdict(dict)
    for run in runs:
        for name, what in run.tests.items():
            tests[name][run.way] = what
    missing = {"outcome": "not run", "message": ""}
    why_skipped = collections.Counter()
    for name, by_way in tests.items():
        plain, copies, ours = (by_way.get(way, missing) for way in WAYS)
        word, why = verdict(name, plain, copies, ours)
        if word == "failed":
            message = ours["message"].replace("\n", "\n         | ")
            tally.failures.append(("spilled", name, why))
            print(f"  FAIL  {name}: {why}\n         | {message}", flush=True)
        elif word == "skipped" and plain["outcome"] == "passed":
            print(f"         skipped  {name}: {why}")
        elif word == "skipped":
            why_skipped[why] += 1
        setattr(tally, word, getattr(tally, word) + 1)
    for why, count in why_skipped.items():
        print(f"         skipped  {count} tests: {why}")
    return {name: {way: what["outcome"] for way, what in by_way.items()}
            for name, by_way in tests.items()}


def counted(runs):
    """Of each way: outcomes, seconds, and the sums of what the cache counted."""
    sums = {way: collections.Counter() for way in WAYS}
    for run in runs:
        for what in run.tests.values():
            sums[run.way][what["outcome"]] += 1
            sums[run.way].update({name: value for name, value in what.items()
                                  if not isinstance(value, str)})
    return sums


def check_spilled(sums, suite, tally):
    kept = {name: value for name, value in sums["spilled"].items()
            if name.startswith("tensors_kept") and value}
    if kept:
        tally.note(f"not all was spilled: {kept}")
    if not sums["spilled"]["tensors_spilled"] and not suite.words:
        tally.fail("spilled", "no tensor was spilled: nothing was tested")


def run_suite(suite, jobs):
    tally, runs = outcomes.Tally(), []
    try:
        runs = suite.execute(jobs)
    except KeyboardInterrupt:
        tally.fail("interrupted", "")
        return tally
    finally:
        for problem in suite.scratch.remove():
            tally.fail("left behind", problem)
    for run in runs:
        if run.problem:
            tally.fail(run.name, run.problem.replace("\n", "\n         | "))
    tests = compare(runs, tally)
    sums = counted(runs)
    if not tests:
        tally.fail("no test matches", " ".join(suite.words))
    check_spilled(sums, suite, tally)
    with open(os.path.join(suite.folder, "version"), encoding="utf-8") as file:
        version = file.read().strip()
    table = {"pytorch": version, "words": suite.words, "ways": sums, "tests": tests,
             "failed": [{"test": test, "why": why} for _, test, why in tally.failures]}
    with open(os.path.join(suite.folder, "results.json"), "w", encoding="utf-8") as file:
        json.dump(table, file, indent=1)
    for way, sum_ in sums.items():
        words = [f"{value:.0f} {name}" for name, value in sum_.items() if value]
        print(f"  {way:<8}{', '.join(words)}")
    return tally


def raise_interrupt(_signum, _frame):
    raise KeyboardInterrupt


def main():
    args = parse_arguments()
    signal.signal(signal.SIGTERM, raise_interrupt)
    tally = run_suite(Suite(args), args.jobs)
    tally.close()
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
