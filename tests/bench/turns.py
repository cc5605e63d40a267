#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/bench/turns.py - step times of keep, recompute and spillway, compared step by step; called
# by tests/bench/turns.sh
"""Steps of the examples in turn: one process per mode, all started before, of which one at a time
computes one step. A shared machine becomes faster and slower within minutes; what is compared here
lies a step apart. Ratios are of steps of the same turn.
 With --throttle 0.5 there are as many turns more of keep and spillway, with drives that are slowed
down to half of what the turns before moved; that needs root and block devices.
 What recompute computes twice is a forward pass: its steps less the seconds of that are what
computing everything once takes, the least that spilling can be expected to take where it gains
nothing by reusing memory.
 Every step's losses and gradients are compared bit for bit; what checksums take is not in the
times. Writes turns.json; of steps that held far more than was planned it says what the drives did
meanwhile. Exit status: 0; 1 a run failed, or losses or gradients differ; 130 interrupted; 143 ended
by SIGTERM.
"""
import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from rounds import rotated, shown  # noqa: E402
from spillway.bench import blas, results  # noqa: E402
from spillway.bench.__main__ import needed_bandwidth  # noqa: E402
from spillway.bench.throttle import Throttle  # noqa: E402
from spillway.demo.data import collect_text  # noqa: E402
from spillway.demo.ending import exits_on  # noqa: E402

MODES = ("keep", "recompute", "spillway")
SECONDS_TO_END = 60
RATIOS = {"of_keep": "spillway / keep", "of_recompute": "spillway / recompute",
          "recompute_of_keep": "recompute / keep",
          "once_of_recompute": "recompute without what it computes twice / recompute"}
MIB = 1 << 20
UNTIMED = 2  # steps at the start: without a plan, then by the first plan


class Run:
    """A process that trains one step whenever it is its turn.

    :param folder: for what it measures; its "text" is what all of them train on
    """

    def __init__(self, name, command, folder, throttle=None):
        self.name, self.result = name, Path(folder, f"{name}.json")
        self.seconds = []  # of its steps; at the end as it measured them itself: without checksums
        self.process = subprocess.Popen(
            [*command, "--text", str(Path(folder, "text")), "--turns", "--json",
             str(self.result)], stdin=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, preexec_fn=throttle.enter if throttle else None)

    def step(self, number):
        began = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # it has ended: what it said follows
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        for line in self.process.stderr:
            if f"step {number}/" in line:
                self.seconds.append(time.monotonic() - began)
                return
            sys.stderr.write(line)
        raise RuntimeError(f"{self.name} ended in step {number}, exit status "
                           f"{self.process.wait()}")

    def end(self):
        """Return: what it measured by itself."""
        self.process.stdin.close()
        for line in self.process.stderr:
            sys.stderr.write(line)
        if self.process.wait(SECONDS_TO_END) != 0:
            raise RuntimeError(f"{self.name} failed, exit status {self.process.returncode}")
        result = json.loads(self.result.read_text(encoding="utf-8"))
        self.seconds = result["step_seconds"]
        return result

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(SECONDS_TO_END)
        self.process.stderr.close()


def ratios_of(overs, unders):
    return [a / b for a, b in list(zip(overs, unders))[UNTIMED:]]


def ratio_of(runs, over, under):
    return ratios_of(runs[over].seconds, runs[under].seconds)


def once_of(recompute):
    """The steps of recompute without what they compute twice: those less a forward pass of
    theirs. It saves nothing, and recomputes less than all of it (not the embeddings, the head, the
    loss), so whatever is faster than this has gained elsewhere."""
    seconds = recompute["step_seconds"]
    forward = recompute["step_forward_seconds"]
    return ratios_of([whole - twice for whole, twice in zip(seconds, forward)], seconds)


def take_turns(title, steps, begin, in_a_row=1):
    """
    :param begin: of each run, by its name, what starts it in a folder
    :param in_a_row: steps of a turn; `steps` is a multiple of it
    :return: the runs; what they measured
    """
    runs, measured, names = {}, {}, list(begin)
    with tempfile.TemporaryDirectory() as folder:
        # One text for all, whatever is edited meanwhile: losses and gradients are compared.
        Path(folder, "text").write_bytes(collect_text(ROOT))
        try:
            for name in names:
                runs[name] = begin[name](folder)
            for number in range(in_a_row, steps + 1, in_a_row):
                for name in rotated(names, number // in_a_row):
                    for step in range(number - in_a_row, number):
                        runs[name].step(step + 1)
                    if number == steps:  # its closing work slows no other run's last step
                        measured[name] = runs[name].end()
                print(f"{title} {number}/{steps}: "
                      + ", ".join(f"{name} {run.seconds[-1]:.2f} s" for name, run in runs.items()),
                      file=sys.stderr, flush=True)
            return runs, {name: measured[name] for name in names}
        finally:
            for run in runs.values():
                run.stop()


def command_of(args, model, mode):
    return [*([args.command, "run", "--"] if args.run else []), sys.executable,
            str(ROOT / "python/examples" / f"{model}.py"), "--mode", mode,
            "--steps", str(args.steps), "--layers", str(args.layers),
            "--hidden", str(args.hidden), "--grad-memory", args.grad_memory, "--gradients",
            *(["--devices", args.devices] if mode == "spillway" else [])]


def turns(args, model, modes, throttle=None):
    def begin_of(mode):
        slowed = throttle if mode == "spillway" else None
        return lambda folder: Run(mode, command_of(args, model, mode), folder, slowed)

    return take_turns(f"turns: {model}", args.steps, {mode: begin_of(mode) for mode in modes})


def measure_throttled(args, model, fast):
    write, read = (args.throttle * speed for speed in needed_bandwidth(fast))
    drives = args.devices.split(",")
    throttle = Throttle(drives, max(1, int(write / len(drives))), max(1, int(read / len(drives))))
    try:
        runs, measured = turns(args, model, ("keep", "spillway"), throttle)
    finally:
        throttle.close()
    return {
        "seconds": {mode: run.seconds for mode, run in runs.items()},
        "of_keep": ratio_of(runs, "spillway", "keep"),
        "write_bytes_per_second": write,
        "read_bytes_per_second": read,
        "results": measured,
    }


def measure(args, model):
    runs, measured = turns(args, model, MODES)
    throttled = measure_throttled(args, model, measured["spillway"]) if args.throttle else None
    return found_of(model, runs, measured, throttled)


def are_equal(measured, key):
    """Whether all runs have the same of every step."""
    return len({json.dumps(result[key]) for result in measured}) == 1


def is_identical(model):
    return model["losses_equal"] and model["gradients_equal"]


def found_of(model, runs, measured, throttled):
    every = [*measured.values(), *(throttled["results"].values() if throttled else [])]
    return {
        "model": model,
        "seconds": {mode: run.seconds for mode, run in runs.items()},
        "of_keep": ratio_of(runs, "spillway", "keep"),
        "of_recompute": ratio_of(runs, "spillway", "recompute"),
        "once_of_recompute": once_of(measured["recompute"]),
        "recompute_of_keep": ratio_of(runs, "recompute", "keep"),
        "losses_equal": are_equal(every, "losses_hex"),
        "gradients_equal": are_equal(every, "step_gradients_sha256"),
        "throttled": throttled,
        "results": measured,
    }


def peak_rows(name, result, keep):
    """Of a run of spillway: the activations of the steps by a plan, and by how much RSS fell."""
    steps = result["steps"]
    planned = steps[UNTIMED:]
    peaks = [step["activation_peak_bytes"] / MIB for step in planned]
    fell = keep["activation_peak_bytes"] - max(step["activation_peak_bytes"] for step in steps)
    yield results.row(f"{name}: activation peak of the planned steps", peaks, "MiB")
    yield results.row(f"{name}: peak that was planned",
                      [step["plan_peak_bytes"] / MIB for step in planned], "MiB")
    yield results.row(f"{name}: activation peak / keep",
                      [peak * MIB / keep["activation_peak_bytes"] for peak in peaks], "ratio")
    yield results.row(f"{name}: peak RSS", result["rss_peak_bytes"] / MIB, "MiB")
    if fell > 0:
        yield results.row(f"{name}: peak RSS fell, of what activations fell by",
                          (keep["rss_peak_bytes"] - result["rss_peak_bytes"]) / fell, "ratio")


def rows_of(model):
    name, measured, slow = model["model"], model["results"], model["throttled"]
    yield results.row(f"{name}: losses or gradients that differ", 0 if is_identical(model) else 1,
                      at_most=0)
    for key, words in RATIOS.items():
        yield results.row(f"{name}: step time, {words}", model[key], "ratio")
    for mode in ("keep", "recompute"):
        yield results.row(f"{name} {mode}: activation peak",
                          measured[mode]["activation_peak_bytes"] / MIB, "MiB")
        yield results.row(f"{name} {mode}: peak RSS", measured[mode]["rss_peak_bytes"] / MIB, "MiB")
    yield from peak_rows(f"{name} spillway", measured["spillway"], measured["keep"])
    if slow:
        yield results.row(f"{name}, slow drives: step time, spillway / keep", slow["of_keep"],
                          "ratio")
        for way in ("write", "read"):
            yield results.row(f"{name}, slow drives: {way} bandwidth",
                              slow[f"{way}_bytes_per_second"] / 1e6, "MB/s")
        yield from peak_rows(f"{name}, slow drives, spillway", slow["results"]["spillway"],
                             measured["keep"])


def title_of(args, kernels):
    words = [f"{args.steps} steps of each mode in turn",
             f"{args.layers} layers, hidden {args.hidden}", f"gradients {args.grad_memory}"]
    words += ["under `spillway run`"] if args.run else []
    words += [f"slow drives: {args.throttle:.0%} of what was moved"] if args.throttle else []
    words += [f"OpenBLAS's kernels for {kernels}"] if kernels else []
    return "Step times in turns: " + "; ".join(words)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", required=True, help="the store's drives, separated by commas")
    parser.add_argument("--models", default="gpt,bert,t5")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--grad-memory", default="freed",
                        help="what becomes of gradients: see the examples")
    parser.add_argument("--throttle", type=float, metavar="SHARE",
                        help="also with drives slowed down to this share of what was moved")
    parser.add_argument("--run", action="store_true", help="all modes under `spillway run`")
    parser.add_argument("--command", default=str(ROOT / "build/spillway"),
                        help="the command spillway")
    parser.add_argument("--out", default=".", help="folder for turns.json")
    args = parser.parse_args()
    unknown = [model for model in args.models.split(",")
               if not (ROOT / "python/examples" / f"{model}.py").exists()]
    if unknown:
        parser.error(f"--models: no example {', '.join(unknown)}")
    if args.steps <= UNTIMED:
        parser.error(f"--steps must be more than {UNTIMED}")
    if args.throttle is not None and args.throttle <= 0:
        parser.error("--throttle takes a share above 0")
    models, rows, kernels = [], [], blas.choose()
    where = results.machine([f"drives: {args.devices}"])
    with shown("turns", rows):
        for model in args.models.split(","):
            models.append(measure(args, model))
            rows += rows_of(models[-1])
            results.write(Path(args.out, "turns.json"), title_of(args, kernels), rows, where,
                          models=models)
    return 0 if all(is_identical(model) for model in models) else 1


if __name__ == "__main__":
    with exits_on(signal.SIGTERM):  # what was started ends with it
        sys.exit(main())
