#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/peers/suites.py - the peers' own tests of offloading, on spillway
"""Usage: tests/peers/suites.py --build FOLDER --late FOLDER [--deepspeed-tests FOLDER] [WORD...]

Called by run.sh, which has put the tests into FOLDER/peers. Each runs as the peer is, and with
spillway in place of what it tests (onspillway.py). A test has failed if it ends otherwise then, and
EXPECTED has no reason. One in which no byte went through a store has shown nothing: it is skipped,
with that reason. A peer of whose tests none did is a failure. With words, only the files, or else
the tests, whose names contain one.

The output is in FOLDER/peers/runs, what became of each test in FOLDER/peers/results.json.
"""
import argparse
import collections
import glob
import json
import os
import shutil
import signal
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path[:0] = [os.path.join(ROOT, "tests", name) for name in ("runner", "pytorch")]

import outcomes  # noqa: E402
import suite  # noqa: E402

WAYS = ("plain", "spilled")
PYTEST_OPTIONS = ("-p onspillway -p no:cacheprovider -p no:faulthandler -p no:warnings "
                  "--noconftest -c /dev/null --rootdir=. -q --tb=short --color=no").split()

# peer: (folder below FOLDER/peers or the root, files)
FILES = {
    "trl": ("trl-*", ["tests/test_activation_offloading.py"]),
    "accelerate": ("accelerate-*/tests", [
        "test_offload.py", "test_hooks.py", "test_big_modeling.py", "test_modeling_utils.py",
        "test_activation_checkpointing_offload.py", "test_grad_sync.py",
        "test_state_checkpointing.py"]),
    "deepspeed": ("tests/peers", ["ds_io.py"]),
}
# of a checkout's folder tests/
DEEPSPEED_UNIT = ["unit/ops/aio/test_*.py", "unit/v1/nvme/test_*.py",
                  "unit/runtime/zero/test_zero_tensor_fragment.py"]

# What may end otherwise on spillway, by the beginning of a test's name, and why.
EXPECTED = {
    "deepspeed unit/ops/aio/test_aio.py::TestAsyncFileOffset::test_offset_write":
    "what is swapped is an object, written whole: DeepSpeed's swappers do no more",
}


class Run(suite.Run):
    """One file of a peer's tests in one of the WAYS."""

    def __init__(self, peers, way, peer, folder, file):
        super().__init__(peers, way, file)
        self.peer, self.folder = peer, folder
        self.name = f"{peer} {file} {way}"
        base = os.path.join(peers.folder, "runs", way, f"{peer}-{os.path.basename(file)[:-3]}")
        self.log_path, self.results_path = base + ".log", base + ".jsonl"

    def is_named(self):
        """With words, its tests are all run if one is in its own name."""
        return any(word in f"{self.peer}/{self.file}" for word in self.suite.words)

    def command(self):
        words = [] if self.is_named() else self.suite.words
        selected = ["-k", " or ".join(words)] if words else []
        return [sys.executable, "-m", "pytest", *PYTEST_OPTIONS, *selected, self.file]

    def environment(self, place):
        env = super().environment(place)
        paths = [f"{ROOT}/tests/peers", f"{ROOT}/tests/pytorch", f"{ROOT}/tests/device",
                 self.suite.late, f"{ROOT}/python"]
        if self.peer == "deepspeed":
            paths.append(self.folder)
        if self.peer == "trl":
            env["TRANSFORMERS_TEST_DEVICE"] = "late"
            env["TRANSFORMERS_TEST_BACKEND"] = "late"
        binaries = os.path.dirname(sys.executable)
        env.update(PYTHONPATH=":".join(paths), SPW_PEER=self.peer, HF_HUB_OFFLINE="1",
                   SPW_PEER_BYTES=self.results_path + ".bytes", DS_ACCELERATOR="cpu",
                   PATH=f"{binaries}:{env['PATH']}",
                   TORCH_EXTENSIONS_DIR=os.path.join(sys.prefix, "torch_extensions"))
        return env


class Peers(suite.Suite):
    """What is to be run, and where."""

    def __init__(self, args):
        super().__init__(args)
        self.folder = os.path.join(self.build, "peers")
        self.late, self.deepspeed_tests = os.path.abspath(args.late), args.deepspeed_tests

    def runs(self):
        for peer, (folder, files) in FILES.items():
            root = ROOT if folder.startswith("tests/") else self.folder
            [folder] = glob.glob(os.path.join(root, folder))
            for file in files:
                yield from (Run(self, way, peer, folder, file) for way in WAYS)
        if self.deepspeed_tests:
            for pattern in DEEPSPEED_UNIT:
                for path in sorted(glob.glob(os.path.join(self.deepspeed_tests, pattern))):
                    file = os.path.relpath(path, self.deepspeed_tests)
                    yield from (Run(self, way, "deepspeed", self.deepspeed_tests, file)
                                for way in WAYS)

    def execute(self):
        shutil.rmtree(os.path.join(self.folder, "runs"), ignore_errors=True)
        done, runs = [], list(self.runs())
        for run in [run for run in runs if run.is_named()] or runs:
            self.test_folder = run.folder
            self.execute_one(run)
            done.append(run)
        return done


def first_line(message):
    return suite.error_in(message) or message.split("\n", maxsplit=1)[0]


def verdict(name, plain, ours):
    """("passed", "skipped" or "failed", why) of what a test did as it is, and on spillway."""
    outcome = ours["outcome"]
    if outcome == plain["outcome"]:
        if outcome != "passed":
            return "skipped", f"{outcome} without spillway, too: {first_line(plain['message'])}"
        if ours["bytes"]:
            return "passed", ""
        return "skipped", "passed, and no byte of it goes to a store"
    for beginning, reason in EXPECTED.items():
        if name.startswith(beginning):
            return "skipped", f"{outcome}: {reason}"
    return "failed", f"{plain['outcome']} without spillway, {outcome} on it"


def compare(runs, tally):
    """Into the tally. Return the table: of each test, what it did in each way, and the verdict."""
    tests = collections.defaultdict(dict)
    for run in runs:
        for name, what in run.tests.items():
            tests[f"{run.peer} {name}"][run.way] = what
    missing, table = {"outcome": "not run", "message": ""}, {}
    why_skipped = collections.Counter()
    for name, by_way in tests.items():
        plain, ours = (by_way.get(way, missing) for way in WAYS)
        word, why = verdict(name, plain, ours)
        if word == "failed":
            message = ours["message"].replace("\n", "\n         | ")
            tally.failures.append(("spilled", name, why))
            print(f"  FAIL  {name}: {why}\n         | {message}", flush=True)
        elif word == "skipped":
            why_skipped[name.split("::", maxsplit=1)[0], why] += 1
        setattr(tally, word, getattr(tally, word) + 1)
        table[name] = {"plain": plain["outcome"], "spilled": ours["outcome"],
                       "bytes": ours.get("bytes", 0), "verdict": word, "why": why}
    for (file, why), count in why_skipped.items():
        print(f"         skipped  {count} of {file}: {why}")
    return table


def check_bytes(table, peers, tally):
    """A peer whose tests pass without a byte in a store has tested nothing of ours."""
    sums = collections.Counter({peer: 0 for peer in FILES})
    for name, what in table.items():
        sums[name.split(" ", maxsplit=1)[0]] += what["bytes"]
    for peer, count in sums.items():
        print(f"  {peer}: {count:,} bytes through the store")
        if not count and not peers.words:
            tally.fail(peer, "no byte went to a store: nothing was tested")


def check_expected(table, peers, tally):
    """A reason that nothing needs any more is one that hides the next difference."""
    for beginning, reason in EXPECTED.items():
        tests = [what for name, what in table.items() if name.startswith(beginning)]
        if tests and not peers.words and not any(what["why"].endswith(reason) for what in tests):
            tally.fail(beginning, "is expected to end otherwise on spillway, and does not")


def run_all(peers):
    tally, runs = outcomes.Tally(), []
    try:
        runs = peers.execute()
    except KeyboardInterrupt:
        tally.fail("interrupted", "")
        return tally
    finally:
        for problem in peers.scratch.remove():
            tally.fail("left behind", problem)
    for run in runs:
        if run.problem:
            tally.fail(run.name, run.problem.replace("\n", "\n         | "))
    table = compare(runs, tally)
    if not table:
        tally.fail("no test matches", " ".join(peers.words))
    check_bytes(table, peers, tally)
    check_expected(table, peers, tally)
    if not peers.deepspeed_tests:
        tally.skip_program("DeepSpeed's unit tests", "no source distribution has them: "
                           "DEEPSPEED_TESTS= names the folder tests/ of a checkout")
    with open(os.path.join(peers.folder, "results.json"), "w", encoding="utf-8") as file:
        json.dump(table, file, indent=1)
    return tally


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD",
                        help="only tests whose names contain one of these")
    parser.add_argument("--build", default="build", help="the build folder (build)")
    parser.add_argument("--late", required=True, help="the folder of the late device's module")
    parser.add_argument("--deepspeed-tests", help="the folder tests/ of a checkout of DeepSpeed")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per test (300)")
    return parser.parse_args()


def main():
    signal.signal(signal.SIGTERM, suite.raise_interrupt)
    tally = run_all(Peers(parse_arguments()))
    tally.close()
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
