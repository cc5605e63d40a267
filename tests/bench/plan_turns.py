#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/bench/plan_turns.py - training by one plan of what is kept, spilled and recomputed, against
# the pure ways, step by step; called by tests/bench/plan_turns.sh
"""Steps of the examples in turn, as tests/bench/turns.py has them: kept, recomputed by whole
layers, and for each case spilled alone and by the plan, within a budget that is a part of what
keeping takes, on drives that are slowed down to f times what it takes to spill all that a step
saves in half of it; for the lowest peak without a budget; and by a plan without drives.

Of each plan: was the step as it said, by the cache's own clock, and the peak, in tensors; and was
the step faster than the better pure way whose peak fits, by at least half of what `spillway plan`
says of the same step (the trace of the run, drives of that bandwidth)? Losses and gradients are
compared bit for bit.

Writes plan-turns.json. Exit status: 0; 1 a run failed, or losses or gradients differ; 130
interrupted; 143 ended by SIGTERM.
"""
import argparse
import contextlib
import json
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import turns
from rounds import shown
from spillway._recompute.scopes import OLDEST
from spillway._core.torch_compat import is_before
from spillway.bench import blas, results
from spillway.bench.throttle import Throttle
from spillway.demo.ending import exits_on
from turns import Run, command_of, take_turns

# Of a turn; the last is timed. The first follows a pause, as no step of a training does, and what
# it measures is planned with while the second runs, for the third.
IN_A_ROW = 4
UNTIMED = IN_A_ROW  # steps at the start: two without a plan, then until plans have settled
KEEP_STEPS = 4  # that say what a step saves, and how fast


class Case(NamedTuple):
    f: float  # 0: without drives
    part: float  # of what keeping takes; 0: the lowest peak

    def __str__(self):
        drives = f"f = {self.f:g}" if self.f else "no drives"
        return f"{drives}, " + (f"{100 * self.part:g} % of keep" if self.part else "lowest peak")


CASES = (Case(0.5, 0.25), Case(0.2, 0.5), Case(0.5, 0), Case(0, 0.5))
PARTITIONS = sum(2 for case in CASES if case.f)


# ---- Running -------------------------------------------------------------------------------------


class Setting:
    """Of a model: what is the same for all runs, found by a first one."""

    def __init__(self, args, model):
        self.args, self.model = args, model
        found = take_turns(
            f"plan: {model} kept", KEEP_STEPS,
            {"keep": lambda folder: Run("keep", [*self.command("keep"), "--steps",
                                                 str(KEEP_STEPS)], folder)})[1]["keep"]
        steps = [sum(step) for step in zip(found["step_forward_seconds"],
                                           found["step_backward_seconds"])]
        self.keep_bytes = found["activation_peak_bytes"]
        self.need = self.keep_bytes / (statistics.median(steps[1:]) / 2)  # bytes per second

    def command(self, mode, *words):
        return [*command_of(self.args, self.model, mode), "--dropout", "0.1", *words]

    def budget(self, case):
        return int(case.part * self.keep_bytes)

    def planned(self, case, *words):
        budget = ["--cache", "budget", "--budget-bytes", str(self.budget(case))]
        return self.command("spillway", *(budget if case.part else []), *words)


def starts_of(setting, throttles):
    """What starts each run, by its name; the traces of those by a plan, by their cases."""
    args, starts, traces = setting.args, {}, {}

    def add(name, command, throttle=None):
        starts[name] = lambda folder: Run(name, command, folder, throttle)

    for mode in ("keep", "recompute"):
        add(mode, setting.command(mode))
    for number, case in enumerate(CASES):
        words = [] if case.f else ["--devices", ""]
        traces[case] = Path(args.work, f"{setting.model}-{number}.jsonl")
        add(f"planned, {case}", setting.planned(
            case, *words, "--partition", str(2 * number), "--recompute", "auto", "--record",
            str(traces[case])), throttles.get(case))
        if case.f:
            add(f"spilled, {case}", setting.planned(
                case, *words, "--partition", str(2 * number + 1)), throttles[case])
    return starts, traces


@contextlib.contextmanager
def throttled(setting):
    """A group for each case, in which its runs get their part of what would be needed."""
    with contextlib.ExitStack() as stack:
        throttles = {}
        drives = setting.args.devices.split(",")
        for case in CASES:
            if case.f:
                each = max(1, int(case.f * setting.need / len(drives)))
                throttles[case] = Throttle(drives, each, each)
                stack.callback(throttles[case].close)
        yield throttles


# ---- What the planner says of the same step ------------------------------------------------------


class Replay:
    """A recorded step, as `spillway plan` plans it."""

    def __init__(self, setting, case, trace):
        self._words = [setting.args.command, "plan", "--trace", str(trace), "--step",
                       # one that waits for the next turn follows each
                       str(2 * setting.args.steps - 1), "--explain", "--json", *(
                           ["--budget", str(setting.budget(case))] if case.part else []), *(
                           ["--bandwidth", str(int(case.f * setting.need))] if case.f
                           else ["--no-drives"])]
        lines = trace.read_text(encoding="utf-8").splitlines()
        self.tensor_bytes = max(json.loads(line).get("bytes", 0) for line in lines)
        self.planned = self._plan()
        self.spilled = self._plan("--no-recompute") if case.f else None

    def _plan(self, *words):
        done = subprocess.run([*self._words, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"spillway plan: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def of_better(self, recompute):
        """The planned step, of the better pure way's.

        :param recompute: how long steps that recompute are, of those that keep; None: their peak
            does not fit
        """
        others = [] if recompute is None else [recompute * self.planned["compute_seconds"]]
        if self.spilled is not None and self.spilled["feasible"]:
            others.append(self.spilled["step_seconds"])
        return self.planned["step_seconds"] / min(others) if others else None


# ---- Rows ----------------------------------------------------------------------------------------


def timed(values):
    return list(values)[UNTIMED:][IN_A_ROW - 1::IN_A_ROW]


def ratios(runs, over, under):
    return [a / b for a, b in zip(timed(runs[over].seconds), timed(runs[under].seconds))]


def peaks_of(result):
    steps = result["steps"]
    return [step["activation_peak_bytes"] for step in (timed(steps) or steps)]


class Rows:
    """Of one case of a model."""

    def __init__(self, setting, case, runs, measured, replay):
        self._case, self._runs, self._measured, self._replay = case, runs, measured, replay
        self._name = f"{setting.model}, {case}"
        self._keep_bytes = measured["keep"]["activation_peak_bytes"]
        self._budget = setting.budget(case)
        self._planned, self._spilled = f"planned, {case}", f"spilled, {case}"

    def _row(self, words, values, unit="ratio", **goal):
        return results.row(f"{self._name}: {words}", values, unit, **goal)

    def _fits(self, name):
        peak = statistics.median(peaks_of(self._measured[name]))
        return peak <= self._budget + self._replay.tensor_bytes

    def _against_pure(self):
        """Of each step, the better of the ways that fit."""
        fit = [name for name in ("recompute", self._spilled)
               if name in self._runs and self._fits(name)]
        of_keep = statistics.median(ratios(self._runs, "recompute", "keep"))
        said = self._replay.of_better(of_keep if "recompute" in fit else None)
        if not fit or said is None:
            return
        better = min(fit, key=lambda name: statistics.median(timed(self._runs[name].seconds)))
        yield self._row("time, of the better pure way's, as the planner says", said)
        # Without drives there is nothing but recomputing to be better than.
        yield self._row(f"time, of the better pure way's ({better.split(',')[0]})",
                        ratios(self._runs, self._planned, better),
                        at_most=(1 + said) / 2 if self._case.f else 1)

    def _against_spilled(self):
        """What recomputing is worth by default."""
        yield self._row("time, of spilling's alone", ratios(
            self._runs, self._planned, self._spilled), at_most=1.02)
        yield self._row("peak, of spilling's alone", [
            peak / spilled for peak, spilled in zip(peaks_of(self._measured[self._planned]),
                                                    peaks_of(self._measured[self._spilled]))],
                        at_most=1)

    def _as_planned(self):
        all_steps = timed(self._measured[self._planned]["steps"])
        steps = [step for step in all_steps if step["plan_seconds"] > 0]
        yield self._row("steps that had no plan", len(all_steps) - len(steps), "", at_most=0)
        if not steps:
            return
        above = [max(0, step["activation_peak_bytes"] - step["plan_peak_bytes"])
                 / self._replay.tensor_bytes for step in steps]
        yield self._row("step, of what its plan says", [
            step["seconds"] / step["plan_seconds"] for step in steps], at_most=1.05)
        yield self._row("peak above the plan's, in tensors", above, "", at_most=1)
        yield self._row("scopes recomputed by the plan", [
            step["plan_scopes_again"] for step in steps], "")

    def all(self):
        yield from self._against_pure() if self._case.part else self._against_spilled()
        yield from self._as_planned()
        for name in (self._planned, self._spilled):
            if name not in self._runs:
                continue
            word = name.split(",")[0]
            yield self._row(f"{word}: time, of keep's", ratios(self._runs, name, "keep"))
            yield self._row(f"{word}: peak, of keep's", [
                peak / self._keep_bytes for peak in peaks_of(self._measured[name])])
            if self._case.f:
                yield self._row(f"{word}: written in a step", [
                    step["bytes_spilled"] / turns.MIB
                    for step in timed(self._measured[name]["steps"])], "MiB")


def is_identical(measured):
    return all(turns.are_equal(measured.values(), key)
               for key in ("losses_hex", "step_gradients_sha256"))


def rows_of(setting, runs, measured, replays):
    name = setting.model
    yield results.row(f"{name}: losses or gradients that differ",
                      0 if is_identical(measured) else 1, at_most=0)
    yield results.row(f"{name}, keep: activation peak",
                      measured["keep"]["activation_peak_bytes"] / turns.MIB, "MiB")
    yield results.row(f"{name}, recompute by whole layers: time, of keep's",
                      ratios(runs, "recompute", "keep"), "ratio")
    yield results.row(f"{name}, recompute by whole layers: peak, of keep's",
                      measured["recompute"]["activation_peak_bytes"]
                      / measured["keep"]["activation_peak_bytes"], "ratio")
    for case in CASES:
        yield from Rows(setting, case, runs, measured, replays[case]).all()


def measure(args, model):
    """Return: rows; what all runs measured."""
    setting = Setting(args, model)
    with throttled(setting) as throttles:
        starts, traces = starts_of(setting, throttles)
        runs, measured = take_turns(f"plan: {model}", args.steps, starts, IN_A_ROW)
    replays = {case: Replay(setting, case, trace) for case, trace in traces.items()}
    return list(rows_of(setting, runs, measured, replays)), {
        "model": model, "keep_bytes": setting.keep_bytes,
        "need_bytes_per_second": setting.need, "results": measured,
        "replays": {str(case): [replay.planned, replay.spilled]
                    for case, replay in replays.items()}}


# ---- All of it -----------------------------------------------------------------------------------


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--devices", required=True,
           help=f"block devices with a store of {PARTITIONS} partitions, separated by commas")
    option("--work", required=True, help="a folder for traces")
    option("--models", default="gpt,bert,t5")
    option("--steps", type=int, default=24)
    option("--layers", type=int, default=6)
    option("--hidden", type=int, default=512)
    option("--command", default=str(turns.ROOT / "build/spillway"), help="the command spillway")
    option("--out", default=".", help="folder for plan-turns.json")
    args = parser.parse_args()
    if args.steps <= UNTIMED or args.steps % IN_A_ROW:
        parser.error(f"--steps must be more than {UNTIMED} and a multiple of {IN_A_ROW}")
    args.run, args.grad_memory = True, "freed"
    return args


def main():
    args = arguments()
    if is_before(OLDEST):
        sys.exit(f"plan: recomputing takes PyTorch {OLDEST} or later, and {sys.executable} has an "
                 "older one: name another interpreter by PYTHON=")
    kernels = blas.choose()
    title = (f"Training by one plan: {args.steps} steps of each way, {IN_A_ROW} in turn, of which "
             f"the last counts, but not the first {UNTIMED}; {args.layers} layers, "
             f"hidden {args.hidden}, dropout, under `spillway run`"
             + (f"; OpenBLAS's kernels for {kernels}" if kernels else ""))
    where = results.machine([f"drives: {args.devices}, throttled"])
    models, rows = [], []
    with shown("plan", rows):
        for model in args.models.split(","):
            new, found = measure(args, model)
            rows += new
            models.append(found)
            results.write(Path(args.out, "plan-turns.json"), title, rows, where, models=models)
    return 0 if all(is_identical(model["results"]) for model in models) else 1


if __name__ == "__main__":
    with exits_on(signal.SIGTERM):  # what was started ends with it
        sys.exit(main())
