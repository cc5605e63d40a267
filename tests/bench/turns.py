#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/bench/turns.py - step times of keep, recompute and spillway, compared step by step; called by tests/bench/turns.sh
"""Steps of the examples in turn: one process per mode, all started before, of which one at a time computes one step. A shared
machine becomes faster and slower within minutes; what is compared here lies a step apart. Ratios are of steps of the same turn.

With --throttle 0.5 there are as many turns more of keep and spillway, with drives that are slowed down to half of what the turns before
moved; that needs root and block devices.

What recompute computes twice is a forward pass: its steps less the seconds of that are what computing everything once takes, the least that spilling
can be expected to take where it gains nothing by reusing memory.

Every step's losses and gradients are compared bit for bit; what checksums take is not in the times. Writes turns.json and turns.md;
of steps that held far more than was planned it says what the drives did meanwhile. Exit status: 0; 1 a run failed, or losses or
gradients differ; 130 interrupted; 143 ended by SIGTERM.
"""
import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from spillway.bench import blas  # noqa: E402
from spillway.bench.__main__ import needed_bandwidth  # noqa: E402
from spillway.bench.throttle import Throttle  # noqa: E402
from spillway.demo.ending import exits_on  # noqa: E402

MODES = ("keep", "recompute", "spillway")
SECONDS_TO_END = 60
RATIOS = ("of_keep", "of_recompute", "once_of_recompute", "recompute_of_keep")
UNTIMED = 2  # steps at the start: without a plan, then by the first plan


class Run:
    """One mode of one model."""

    def __init__(self, args, model, mode, folder, throttle):
        self.mode, self.result = mode, Path(folder, f"{model}-{mode}.json")
        self.seconds = []  # of its steps; once it has ended, as it measured them itself: without checksums
        command = [args.command, "run", "--"] if args.run else []
        command += [sys.executable, str(ROOT / "python/examples" / f"{model}.py"), "--turns", "--mode", mode, "--steps", str(args.steps)]
        command += ["--layers", str(args.layers), "--hidden", str(args.hidden), "--json", str(self.result)]
        command += ["--grad-memory", args.grad_memory, "--gradients"]
        command += ["--devices", args.devices] if mode == "spillway" else []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        preexec_fn=throttle.enter if throttle and mode == "spillway" else None)

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
        raise RuntimeError(f"mode {self.mode} ended in step {number}, exit status {self.process.wait()}")

    def end(self):
        """Return: what it measured by itself."""
        self.process.stdin.close()
        for line in self.process.stderr:
            sys.stderr.write(line)
        if self.process.wait(SECONDS_TO_END) != 0:
            raise RuntimeError(f"mode {self.mode} failed, exit status {self.process.returncode}")
        result = json.loads(self.result.read_text(encoding="utf-8"))
        self.seconds = result["step_seconds"]
        return result

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(SECONDS_TO_END)
        self.process.stderr.close()


def ratios_of(overs, unders):
    ratios = [a / b for a, b in list(zip(overs, unders))[UNTIMED:]]
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios), "turns": len(ratios)}


def ratio_of(runs, over, under):
    return ratios_of(runs[over].seconds, runs[under].seconds)


def once_of(recompute):
    """The steps of recompute without what they compute twice, of the same steps: a forward pass of theirs. It saves nothing, and less
    than all of it is computed again (not the embeddings, the head, the loss), so that who is faster than this has gained elsewhere."""
    seconds = recompute["step_seconds"]
    return ratios_of([step - forward for step, forward in zip(seconds, recompute["step_forward_seconds"])], seconds)


def turns(args, model, modes, throttle=None):
    """Return: the runs; what they measured."""
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for mode in modes:
                runs[mode] = Run(args, model, mode, folder, throttle)
            for number in range(1, args.steps + 1):
                shift = number % len(modes)
                for mode in modes[shift:] + modes[:shift]:
                    runs[mode].step(number)
                print(f"turns: {model} {number}/{args.steps}: "
                      + ", ".join(f"{mode} {run.seconds[-1]:.2f} s" for mode, run in runs.items()), file=sys.stderr, flush=True)
            return runs, {mode: run.end() for mode, run in runs.items()}
        finally:
            for run in runs.values():
                run.stop()


def peaks_of(steps):
    """Of the steps by a plan: the most that activations took, and what was planned, bytes."""
    planned = steps[UNTIMED:]
    return {
        "median": statistics.median(step["activation_peak_bytes"] for step in planned),
        "most": max(step["activation_peak_bytes"] for step in planned),
        "all": max(step["activation_peak_bytes"] for step in steps),
        "planned": statistics.median(step["plan_peak_bytes"] for step in planned),
    }


def measure_throttled(args, model, fast):
    write, read = (args.throttle * speed for speed in needed_bandwidth(fast))
    drives = args.devices.split(",")
    throttle = Throttle(drives, max(1, int(write / len(drives))), max(1, int(read / len(drives))))
    try:
        runs, results = turns(args, model, ("keep", "spillway"), throttle)
    finally:
        throttle.close()
    return {
        "seconds": {mode: run.seconds for mode, run in runs.items()},
        "of_keep": ratio_of(runs, "spillway", "keep"),
        "write_bytes_per_second": write,
        "read_bytes_per_second": read,
        "peak_bytes": peaks_of(results["spillway"]["steps"]),
        "results": results,
    }


def measure(args, model):
    runs, results = turns(args, model, MODES)
    throttled = measure_throttled(args, model, results["spillway"]) if args.throttle else None
    return found_of(model, runs, results, throttled)


def are_equal(results, key):
    """Whether all runs have the same of every step."""
    return len({json.dumps(result[key]) for result in results}) == 1


def is_identical(model):
    return model["losses_equal"] and model["gradients_equal"]


def found_of(model, runs, results, throttled):
    every = [*results.values(), *(throttled["results"].values() if throttled else [])]
    return {
        "model": model,
        "seconds": {mode: run.seconds for mode, run in runs.items()},
        "of_keep": ratio_of(runs, "spillway", "keep"),
        "of_recompute": ratio_of(runs, "spillway", "recompute"),
        "once_of_recompute": once_of(results["recompute"]),
        "recompute_of_keep": ratio_of(runs, "recompute", "keep"),
        "keep_peak_bytes": results["keep"]["activation_peak_bytes"],
        "recompute_peak_bytes": results["recompute"]["activation_peak_bytes"],
        "peak_bytes": peaks_of(results["spillway"]["steps"]),
        "losses_equal": are_equal(every, "losses_hex"),
        "gradients_equal": are_equal(every, "step_gradients_sha256"),
        "throttled": throttled,
        "results": results,
    }


def peak_row(name, peak, rss, keep, keep_rss):
    fell = (keep_rss - rss) / (keep - peak["all"])
    cells = [f"{peak[which] / 2**20:.0f}" for which in ("median", "most", "planned")]
    return " | ".join([f"| {name}", *cells, f"{peak['median'] / keep:.1%}", f"{rss / 2**20:.0f}", f"{fell:.2f} |"])


def peaks_table(models, args):
    yield from ("", f"Activations of the planned steps and RSS of all, MiB; gradients {args.grad_memory}; by how much RSS fell of what activations fell by:",
                "", "| | median | most | planned | of keep | RSS | fell |", "|---|---:|---:|---:|---:|---:|---:|")
    for model in models:
        name, keep, rss = model["model"], model["keep_peak_bytes"], model["results"]["keep"]["rss_peak_bytes"]
        recompute = model["recompute_peak_bytes"]
        yield f"| {name} keep | | {keep / 2**20:.0f} | | | {rss / 2**20:.0f} | |"
        yield f"| {name} recompute | | {recompute / 2**20:.0f} | | {recompute / keep:.1%} | {model['results']['recompute']['rss_peak_bytes'] / 2**20:.0f} | |"
        yield peak_row(f"{name} spillway", model["peak_bytes"], model["results"]["spillway"]["rss_peak_bytes"], keep, rss)
        if model["throttled"]:
            slow = model["throttled"]
            yield peak_row(f"{name} throttled", slow["peak_bytes"], slow["results"]["spillway"]["rss_peak_bytes"], keep, rss)


def throttled_table(models, args):
    yield from ("", f"Drives slowed down to {args.throttle:.0%} of what the turns above moved per second:", "",
                "| model | MB/s written, read | spillway of keep |", "|---|---|---|")
    for model in models:
        slow = model["throttled"]
        yield (f"| {model['model']} | {slow['write_bytes_per_second'] / 1e6:.0f}, {slow['read_bytes_per_second'] / 1e6:.0f} "
               "| {median:.3f} ({least:.3f}-{most:.3f}) |".format(**slow["of_keep"]))


def table_of(models, args, kernels=""):
    lines = [
        "# Step times in turns", "",
        f"{args.steps} steps of each mode in turn, {args.layers} layers, hidden {args.hidden}"
        + (", all under `spillway run`" if args.run else "") + f"; the first {UNTIMED} turns are left out. Medians, least and most."
        + (f" OpenBLAS's kernels for {kernels}." if kernels else ""), "",
        "| model | spillway of keep | spillway of recompute | recompute without what it computes twice | recompute of keep | losses, gradients |",
        "|---|---|---|---|---|---|",
    ]
    for model in models:
        cells = ["{median:.3f} ({least:.3f}-{most:.3f})".format(**model[name]) for name in RATIOS]
        lines.append(" | ".join([f"| {model['model']}", *cells, "identical |" if is_identical(model) else "**differ** |"]))
    lines += throttled_table(models, args) if args.throttle else []
    lines += peaks_table(models, args)
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", required=True, help="the store's drives, separated by commas")
    parser.add_argument("--models", default="gpt,bert,t5")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--grad-memory", default="freed", help="what becomes of gradients: see the examples")
    parser.add_argument("--throttle", type=float, metavar="SHARE", help="also with drives slowed down to this share of what was moved")
    parser.add_argument("--run", action="store_true", help="all modes under `spillway run`")
    parser.add_argument("--command", default=str(ROOT / "build/spillway"), help="the command spillway")
    parser.add_argument("--out", default=".", help="folder for turns.json and turns.md")
    args = parser.parse_args()
    unknown = [model for model in args.models.split(",") if not (ROOT / "python/examples" / f"{model}.py").exists()]
    if unknown:
        parser.error(f"--models: no example {', '.join(unknown)}")
    if args.steps <= UNTIMED:
        parser.error(f"--steps must be more than {UNTIMED}")
    if args.throttle is not None and args.throttle <= 0:
        parser.error("--throttle takes a share above 0")
    models, kernels = [], blas.choose()
    os.makedirs(args.out, exist_ok=True)
    try:
        for model in args.models.split(","):
            models.append(measure(args, model))
            Path(args.out, "turns.json").write_text(json.dumps(models, indent=1) + "\n", encoding="utf-8")
            Path(args.out, "turns.md").write_text(table_of(models, args, kernels), encoding="utf-8")
    except RuntimeError as error:
        sys.exit(f"turns: {error}")
    except KeyboardInterrupt:
        return 130
    finally:
        print(table_of(models, args, kernels))
    return 0 if all(is_identical(model) for model in models) else 1


if __name__ == "__main__":
    with exits_on(signal.SIGTERM):  # what was started ends with it
        sys.exit(main())
