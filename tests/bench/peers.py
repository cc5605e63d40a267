#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/bench/peers.py - one model trained in every way that moves its tensors to drives, and in
# those that do without; called by `make bench-peers`
"""A small GPT is trained on the CPU by every way that peers_rows.py names, on the same four drives:
loop devices over files. A step of plain PyTorch comes first: the drives write and read three times
as fast as it would need to move all that it saves within half its time, then half as fast as that
need. Each run is a process of its own; rounds are interleaved, and figures are medians. Then, once
for each way that has drives: what does it do when they are full, when one of them dies, and when it
is killed? Losses are compared to the last bit with those of plain PyTorch. A way that cannot go
here says why, and has no figures.

Needs root: loop devices, file systems, the kernel's throttle. Where the kernel can pace drives
(io.cost of cgroup v2) it does; its throttle lets transfers through in bursts of a tenth of a
second, which no drive does: memory leaves late by them. Writes BUILD/bench/peers.json,
peers.md, peers.svg and peers-dark.svg after each round. Ctrl-C ends it: what the complete rounds
found stays, and no drive, no mount, no other file.
Exit status: 0; 1 spillway's losses differ, or it failed; 130 interrupted; 143 ended by SIGTERM."""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from peers_drives import (ENDS_SECONDS, MIB, MemoryGroup, dies, file_system, fill,  # noqa: E402
                          left_in)
from peers_page import draw, rows_of, table_of  # noqa: E402
from peers_rows import ROWS  # noqa: E402
from rig import Rig, call, can_pace  # noqa: E402
from rounds import rotated  # noqa: E402
from spillway.bench import blas, results  # noqa: E402
from spillway.bench.__main__ import TUNABLES  # noqa: E402
from spillway.demo.data import collect_text  # noqa: E402
from spillway.demo.ending import exits_on, later  # noqa: E402

SHAPE = {"hidden": 512, "heads": 8, "sequence": 256}
UNTIMED = 5  # steps at the start: spillway measures one, plans, and corrects its plan
TROUBLE_STEPS = UNTIMED + 2
DRIVES = 4
FAST, SLOW = 3, 0.5  # drives' speed, of the need of a step
UNEQUAL_ROUNDS = 3
WHERE = {"runs": "", "slow": ", slow drives", "unequal": ", one drive at a quarter"}
STATE = re.compile("state|parameters")
FOLDERS = re.compile(r"(/[^/\s:]+){2,}/")  # /dev/loop0 stays
ROOM_BYTES = 4 * MIB  # of a file system that is full; the smallest store has four drives of 16 MiB
SECONDS_MIN = 60  # that a run in trouble is waited for, or five times what it took without
SECONDS_MAX = 900
SPILLWAYS = ("spillway", "spillway-operations", "spillway-budget", "spillway-state",
             "spillway-parameters", "spillway-all", "deepspeed-spillway")


class Run:
    """One process, and how it ended."""

    def __init__(self, bench, rig, name, place, steps, pause=""):
        self.name, self.seconds = name, 0.0
        self.result, self.timed_out = None, False
        words = {"way": name, "drives": ",".join(rig.drives), "text": bench.text, "pause": pause,
                 "untimed": UNTIMED, "steps": steps, "threads": len(os.sched_getaffinity(0)),
                 "layers": bench.args.layers, "batch": bench.args.batch,
                 "budget": bench.budget_bytes, **SHAPE, **place}
        self.command = [bench.args.python, str(ROOT / "tests/bench/peers_run.py"),
                        *(word for key, value in words.items() if value != ""
                          for word in (f"--{key}", str(value)))]
        self.start = ["bash", str(ROOT / "tests/rig.sh"), "run", "--name", rig.name, *self.command]
        self.environment = bench.environment

    def go(self, patience, at_pause=None):
        """``at_pause`` is called with the process once it pauses."""
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            memory = stack.enter_context(MemoryGroup())
            errors = stack.enter_context(tempfile.TemporaryFile("w+"))
            with later(signal.SIGINT, signal.SIGTERM):
                # In a session of its own: Ctrl-C is for the bench, which ends it.
                process = subprocess.Popen(
                    self.start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                    text=True, env=self.environment, start_new_session=True,
                    preexec_fn=memory.enter)
                stack.callback(self.end, process)
            timer = threading.Timer(patience, self.give_up, (process,))
            stack.callback(timer.cancel)
            timer.start()
            lines = [""]
            for line in process.stdout:
                lines.append(line)
                if line == "paused\n" and at_pause is not None:
                    at_pause(process)
                    with contextlib.suppress(BrokenPipeError):
                        os.write(process.stdin.fileno(), b"\n")
            self.status = process.wait()
            self.seconds = time.monotonic() - began
            errors.seek(0)
            self.said = errors.read().strip().splitlines()
            if self.status == 0:
                self.result = json.loads(lines[-1])
                self.result["cached_bytes"] = memory.peak_bytes()
        return self

    def give_up(self, process):
        self.timed_out = True
        process.kill()

    @staticmethod
    def end(process):
        with process:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(ENDS_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()

    def why(self):
        """The last error that it said, without what stands before it, and where its files lie."""
        errors = [line for line in self.said if "Error" in line.split(":")[0]]
        said = (errors or self.said or ["not a word"])[-1].strip()
        return FOLDERS.sub("", said)[:300]


def verdict_of(run, expected):
    """What became of a run in trouble: in words, how good that is, and what it said itself."""
    if run.timed_out:
        return {"words": "hangs", "grade": "bad", "said": f"no end after {run.seconds:.0f} s"}
    if run.status < 0:
        name = signal.Signals(-run.status).name
        return {"words": "crashes", "grade": "bad", "said": f"{name}: {run.why()}"}
    if run.status > 0:
        return {"words": "stops with an error", "grade": "fair", "said": run.why()}
    if run.result["losses"][:len(expected)] == expected:
        return {"words": "trains on", "grade": "good", "said": "the same losses"}
    return {"words": "other losses", "grade": "bad", "said": "no error, and other losses"}


class Bench:
    def __init__(self, args, text, speed=None):
        """``speed``: MB/s of each drive; None: by the need of a step."""
        self.args, self.text, self.speed = args, text, speed
        self.need, self.budget_bytes = None, ""
        self.paced = can_pace()
        self.load = results.machine()["load"]  # before any of it
        self.build = Path(args.build).resolve()
        self.folder = Path(args.out or self.build / "bench")
        self.environment = {
            **os.environ, "PYTHONPATH": str(ROOT / "python"), "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1", "GLIBC_TUNABLES": TUNABLES, "HF_HUB_OFFLINE": "1",
            "SPILLWAY_LIBRARY": str(self.build / "libspillway.so"),
            "TORCH_EXTENSIONS_DIR": str(self.build / "venv/torch_extensions"),
            "PATH": f"{Path(args.python).parent}:{os.environ['PATH']}"}
        self.found = {name: {"title": row.title, "moves": row.moves, "how": row.how,
                             "why_not": self.why_not(name), "runs": [], "unequal": [], "slow": [],
                             "troubles": {}, "seconds": 0.0}
                      for name, row in ROWS.items() if name in args.rows}

    def why_not(self, name):
        """Why it cannot go here, in words; None: it can."""
        row = ROWS[name]
        if row.needs == "accelerator":
            return "needs an accelerator: `make bench-gpu` compares it on one"
        if not row.module:
            return None
        done = subprocess.run(
            [self.args.python, "-c", f"import {row.module}"], capture_output=True, text=True,
            check=False, env={**self.environment, "DS_ACCELERATOR": "cpu"})
        if done.returncode == 0:
            return None
        said = (done.stderr.strip().splitlines() or ["not a word"])[-1]
        log = self.build / "bench-peers" / f"{row.module.split('.')[0]}.log"
        if log.exists():
            said = f"pip install: {log.read_text(encoding='utf-8').strip().splitlines()[-1]}"
        return f"{row.module.split('.')[0]} cannot be loaded: {said[:200]}"

    def names(self, with_drives=False):
        return [name for name, found in self.found.items()
                if found["why_not"] is None and (ROWS[name].has_drives or not with_drives)]

    @contextlib.contextmanager
    def place(self, rig, name):
        """The options by which a run finds its drives."""
        if ROWS[name].needs == "store":
            call(self.build / "spillway", "format", "--force", "--erase", "--devices",
                 ",".join(rig.drives))
            with tempfile.TemporaryDirectory(prefix="spillway-peers.") as folder:
                yield {"devices": ",".join(rig.drives), "folder": Path(folder)}
        elif ROWS[name].needs == "folder":
            with file_system(rig.drives) as folder:
                yield {"folder": folder}
        else:
            yield {}

    def measure(self, rig, name, kind):
        found = self.found[name]
        with self.place(rig, name) as place:
            run = Run(self, rig, name, place, self.args.steps).go(SECONDS_MAX)
        if run.result is None:
            found["why_not"] = f"failed here: {run.why()}"
            found["said"] = run.said[-20:]
            say(f"{name}: {found['why_not']}")
            if name == "plain":  # with which all is compared
                raise RuntimeError(f"plain PyTorch {found['why_not']}")
            return
        if "state" in ROWS[name].moves:
            run.result["activation_bytes"] = None  # memory above the model does not measure them
        found[kind].append(run.result)
        found.setdefault("command", " ".join(run.command))
        found["seconds"] = max(found["seconds"], run.seconds)
        say(f"{name}{WHERE[kind]}: {run.result['seconds']:.2f} s a step, {run.seconds:.0f} s")

    def names_of(self, kind):
        """On slow drives those that have drives and whose activations are measured."""
        names = self.names(with_drives=kind != "runs")
        return [name for name in names
                if kind != "slow" or not STATE.search(ROWS[name].moves)]

    def rounds(self, rigs, after_each):
        for number in range(self.args.rounds):
            for kind, rig in rigs.items():
                if kind == "unequal" and number >= UNEQUAL_ROUNDS:
                    continue
                for name in rotated(self.names_of(kind), number):
                    self.measure(rig, name, kind)
            after_each(number + 1)

    def ask_for_the_need(self):
        """What the drives of a step have to move in a second, and what recomputation holds: one run
        of each, which does not count."""
        with Rig("-need", drives=1, size="16M", sparse=True, on=self.args.on) as rig:
            first = {name: Run(self, rig, name, {}, self.args.steps).go(SECONDS_MAX)
                     for name in ("plain", "recompute")}
        for name, run in first.items():
            if run.result is None:
                raise RuntimeError(f"{name} failed here: {run.why()}")
            if run.result["activation_bytes"] is None:
                raise RuntimeError("this kernel does not say how much memory was resident at most")
        plain = first["plain"].result
        self.budget_bytes = max(MIB, int(first["recompute"].result["activation_bytes"]))
        self.need = max(MIB, plain["activation_bytes"]) / (plain["seconds"] / 2)
        say(f"a step needs {self.need / 1e6:.0f} MB/s of {DRIVES} drives")

    # ---- Troubles --------------------------------------------------------------------------------

    def trouble(self, rig, name, place, pause="", at_pause=None):
        patience = max(SECONDS_MIN, 5 * self.found[name]["seconds"])
        run = Run(self, rig, name, place, TROUBLE_STEPS - UNTIMED, pause).go(patience, at_pause)
        return verdict_of(run, self.found[name]["expected"])

    def full(self, rig, small, name):
        if ROWS[name].needs == "store":
            with self.place(small, name) as place:
                return self.trouble(small, name, place)
        with self.place(rig, name) as place:
            fill(place["folder"], ROOM_BYTES)
            return self.trouble(rig, name, place)

    def dying(self, rig, name, pause):
        with self.place(rig, name) as place, dies(rig.drives[2]) as take:
            return self.trouble(rig, name, place, pause, lambda _process: take())

    def killed(self, rig, name):
        """Leftovers are looked for after the next run has ended: they are those that stay until
        someone removes them."""
        with self.place(rig, name) as place:
            self.trouble(rig, name, place, f"{UNTIMED}:between", lambda process: process.kill())
            before = left_in(place["folder"])
            again = self.trouble(rig, name, place)
            after = left_in(place["folder"])
        files, size = min(before, after)
        left = f"leaves {files} files, {size / MIB:.0f} MiB" if files else "leaves nothing"
        grade = again["grade"] if again["grade"] != "good" or not files else "fair"
        return {"words": left if again["grade"] == "good" else f"then {again['words']}",
                "grade": grade, "said": f"{left}; the next run: {again['said']}"}

    def troubles(self):
        options = {"drives": DRIVES, "on": self.args.on}
        with Rig("-trouble", size=self.args.size, sparse=True, **options) as rig, \
                Rig("-small", size="16M", **options) as small:
            for name in self.names(with_drives=True):
                self.found[name]["expected"] = self.found[name]["runs"][0]["losses"][:TROUBLE_STEPS]
                for what, seen in (
                        ("full", lambda n: self.full(rig, small, n)),
                        ("dies_before", lambda n: self.dying(rig, n, f"{UNTIMED}:before")),
                        ("dies_between", lambda n: self.dying(rig, n, f"{UNTIMED}:between")),
                        ("killed", lambda n: self.killed(rig, n))):
                    verdict = self.found[name]["troubles"][what] = seen(name)
                    say(f"{name}, {what}: {verdict['words']}: {verdict['said']}")

    def speed_of(self, share):
        """MB/s of each drive for a share of the need."""
        each = max(1, round(share * self.need / DRIVES / 1e6))
        return {"write": each, "read": each}

    def rig(self, kind, speed):
        limits = {way: mb if kind != "unequal" else f"{mb},{mb},{max(1, mb // 4)},{mb}"
                  for way, mb in speed.items()}
        paced = {"paced": True} if self.paced else {}
        return Rig(f"-{kind}", drives=DRIVES, on=self.args.on, size=self.args.size, **limits,
                   **paced)

    def go(self, after_each=lambda _rounds: None):
        """The rounds, then the troubles. ``after_each``: called with how many rounds are complete.
        Where drives get a given speed, one of them has a quarter of it in runs of their own; where
        they get it by the need, there are runs on slow drives."""
        if self.speed is None:
            self.ask_for_the_need()
            self.speed = self.speed_of(FAST)
            speeds = {"runs": self.speed, "slow": self.speed_of(SLOW)}
        else:
            speeds = {"runs": self.speed, "unequal": self.speed}
        with contextlib.ExitStack() as stack:
            self.rounds({kind: stack.enter_context(self.rig(kind, speed))
                         for kind, speed in speeds.items()}, after_each)
        if not self.args.no_troubles:
            self.troubles()

    def drives_in_words(self):
        slow = self.speed_of(SLOW)["write"]
        return (f"four loop devices over files, {'paced' if self.paced else 'throttled in bursts'} "
                f"at {self.speed['write']} MB/s each, {FAST} times the need of a step, and at "
                f"{slow}, half of it")

    # ---- Results ---------------------------------------------------------------------------------

    def write(self, rounds):
        """Return: whether all goals are met."""
        where = {**results.machine([self.drives_in_words()]), "load": self.load}
        for name, found in self.found.items():
            like = self.found.get(ROWS[name].like, {"runs": []})
            like = like if like["runs"] else self.found["plain"]
            found["like"] = like["title"]
            found["same"] = bool(like["runs"]) and all(
                run["losses"] == like["runs"][0]["losses"]
                for run in found["runs"] + found["slow"])
        document = {
            "title": "Against other ways to train with less memory: a GPT of "
                     f"{self.args.layers} layers, hidden {SHAPE['hidden']}, {self.args.batch} x "
                     f"{SHAPE['sequence']} tokens",
            "machine": where, "rounds": rounds, "ways": self.found}
        rows = rows_of(document, SPILLWAYS)
        folder = self.folder
        results.write(folder / "peers.json", document.pop("title"), rows, document.pop("machine"),
                      matrix=table_of(document["ways"]), **document)
        for name, dark in (("peers.svg", False), ("peers-dark.svg", True)):
            (folder / name).write_text(draw(document["ways"], where, dark), encoding="utf-8")
        written = json.loads((folder / "peers.json").read_text(encoding="utf-8"))
        (folder / "peers.md").write_text(results.section(written, "peers"), encoding="utf-8")
        return all(row["met"] is not False for row in rows)


def say(words):
    print(f"peers: {words}", file=sys.stderr, flush=True)


def names_of(text):
    names = text.split(",")
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no row {unknown[0]!r}: choose from {', '.join(ROWS)}")
    return names if "plain" in names else ["plain", *names]


def at_least_one(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return int(text)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    option = parser.add_argument
    option("--build", default="build", help="the build folder (build)")
    option("--python", default=sys.executable,
           help="the interpreter that has PyTorch and the peers (this one)")
    option("--rounds", type=at_least_one, default=os.environ.get("BENCH_ROUNDS", "5"),
           help="(5, or BENCH_ROUNDS)")
    option("--steps", type=at_least_one, default=3,
           help=f"that are timed in a run, after {UNTIMED} others (3)")
    rows = "".join(f"\n  {name:19} {row.title}: {row.moves}" for name, row in ROWS.items())
    option("--rows", type=names_of, default=list(ROWS), metavar="R,R",
           help="only these, and plain (all):" + rows)
    option("--no-troubles", action="store_true", help="leave out full, dying drives and kills")
    option("--layers", type=at_least_one, default=6, help="of the model (6)")
    option("--batch", type=at_least_one, default=16,
           help="sequences in a step (16): it saves about 1 GiB, so that the memory each way\n"
                "takes for itself, of spillway about 100 MiB, does not decide")
    option("--size", default="1G", help="of each drive (1G)")
    option("--out", metavar="FOLDER", help="where what was found goes (BUILD/bench)")
    option("--on", default=os.environ.get("BENCH_DIR", "/var/tmp"), metavar="FOLDER",
           help="where the drives' files live meanwhile: not in memory (/var/tmp, or BENCH_DIR)")
    return parser.parse_args()


def main():
    args = arguments()
    if os.geteuid() != 0:
        sys.exit("peers: needs root, for loop devices, file systems and throttles")
    blas.choose()
    try:
        with tempfile.NamedTemporaryFile(prefix="spillway-peers-text.") as text:
            text.write(collect_text(ROOT))
            text.flush()
            bench = Bench(args, text.name)
            bench.go(bench.write)
            met = bench.write(args.rounds)
            print((bench.folder / "peers.md").read_text(encoding="utf-8"), end="")
            return 0 if met else 1
    except (OSError, RuntimeError) as error:
        sys.exit(f"peers: {error}")


if __name__ == "__main__":
    with exits_on(signal.SIGINT, signal.SIGTERM):
        sys.exit(main())
