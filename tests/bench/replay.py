#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# tests/bench/replay.py - recorded training steps on drives from 8 down to 0.25 GB/s: our plans, SSDTrain's rule, the fixed rule
"""Called by `make bench-replay`. Replays each trace of tests/traces on a simulated drive (spillway replay --bandwidth: simulated time, the
same numbers on any machine) in modes fastest, positional and spill, and on a drive whose bandwidth halves for a while; and, with root, in mode
fastest on throttled loop drives, which takes some three minutes and wants a machine that does nothing else. Writes BUILD/bench/replay.json,
replay.md and, with matplotlib, replay.svg. Exit status 1 if a target is missed.

Compute is sped up until spilling everything would take SPILL_ALL bytes per second for half of the step, as the traces are of a CPU."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RIG = ROOT / "tests" / "rig.sh"
SPILL_ALL = 4e9
BANDWIDTHS = [8, 6, 4, 3, 2, 1.5, 1, 0.75, 0.5, 0.25]
RIG_BANDWIDTHS = [4, 2, 1]
RIG_SLOWER = 5  # a throttle lets bursts through: steps of seconds
RIG_STEPS = 12
MODES = ["fastest", "positional", "spill"]
STEPS = 8
DIP = (8, 14, 22)  # first and last replay at half the bandwidth, and replays
OVER_IDEAL_MAX, STALL_MAX, AMPLE_MAX = 1.02, 0.02, 1.25
EQUAL_STALL = 0.005  # of the ideal step
MIB = 1 << 20


def gb(rate):
    return f"{rate * 1000:g}MB"


class Bench:
    def __init__(self, build, scale, rig_scale):
        self.spillway, self.scale, self.rig_scale = Path(build) / "spillway", scale, rig_scale
        self.rows, self.commands = [], {}

    def replay(self, name, *options, under=()):
        trace = (ROOT / "tests/traces" / f"{name}.jsonl.gz").relative_to(ROOT)
        command = ["spillway", "replay", str(trace), *map(str, options), "--json"]
        done = subprocess.run([*under, str(self.spillway), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return json.loads(done.stdout), " ".join(command)

    def speed_of(self, name):
        result, _ = self.replay(name, "--mode", "keep", "--steps", 1, "--scale", 0.001, "--speed", 1000)
        return round(SPILL_ALL * 1000 * result["ideal_seconds"] / (2 * result["saved_bytes"]), 1)

    def row(self, kind, name, bandwidth, mode, result, command):
        row = {"kind": kind, "trace": name, "gigabytes_per_second": bandwidth, "mode": mode, "command": command,
               "over_ideal_max": result["over_ideal_max"], "stall_over_ideal": result["stall_seconds"] / result["ideal_seconds"]}
        for key in ("ideal_seconds", "step_seconds", "stall_seconds", "activation_peak_bytes", "keep_all_bytes", "saved_bytes",
                    "lower_bound_bytes", "bytes_written", "bytes_read", "bytes_forwarded", "speed", "steps"):
            row[key] = result[key]
        self.rows.append(row)
        return row

    def simulated(self, names):
        for name in names:
            speed = self.speed_of(name)
            for bandwidth in BANDWIDTHS:
                for mode in MODES:
                    result, command = self.replay(name, "--bandwidth", gb(bandwidth), "--mode", mode, "--speed", speed, "--steps", STEPS,
                                                  "--scale", self.scale)
                    self.row("simulated", name, bandwidth, mode, result, command)
            for bandwidth in (4, 2, 1):
                result, command = self.replay(name, "--bandwidth", gb(bandwidth), "--dip", f"{DIP[0]}-{DIP[1]}", "--steps", DIP[2],
                                              "--speed", speed, "--scale", self.scale)
                self.row("dip", name, bandwidth, "fastest", result, command)

    def on_rig(self, names):
        label = f"replay-bench-{os.getpid()}"
        for bandwidth in RIG_BANDWIDTHS:
            limit = max(1, round(bandwidth * 1000 * self.rig_scale / RIG_SLOWER / 4))
            made = subprocess.run([RIG, "up", "--name", label, "--size", "512M", "--write", str(limit), "--read", str(limit)],
                                  capture_output=True, text=True, check=True)
            try:
                drives = ",".join(made.stdout.split())
                subprocess.run([self.spillway, "format", "--force", "--erase", "--devices", drives], check=True, capture_output=True)
                for name in names:
                    speed = round(self.speed_of(name) / RIG_SLOWER, 2)
                    result, command = self.replay(name, "--devices", drives, "--speed", speed, "--steps", RIG_STEPS, "--scale", self.rig_scale,
                                                  under=(RIG, "run", "--name", label))
                    row = self.row("rig", name, bandwidth, "fastest", result, f"tests/rig.sh run {command}  # 4 drives of {limit} MB/s")
                    print(f"  rig     {name} at {bandwidth:g} GB/s: step {row['over_ideal_max']:.3f}, peak "
                          f"{row['activation_peak_bytes'] / MIB:.1f} MiB", flush=True)
            finally:
                subprocess.run([RIG, "down", "--name", label], capture_output=True, check=False)

    # ---- What must hold ----

    def of(self, kind, **wanted):
        return [row for row in self.rows if row["kind"] == kind and all(row[key] == value for key, value in wanted.items())]

    def targets(self):
        """(what, holds, in words)"""
        for kind, words in (("simulated", "fastest: step over ideal, from the second step after the first plan"),
                            ("rig", "fastest, on throttled drives: step over ideal")):
            rows = self.of(kind, mode="fastest")
            if rows:
                worst = max(rows, key=lambda row: row["over_ideal_max"])
                yield (words, worst["over_ideal_max"] <= OVER_IDEAL_MAX,
                       f"at most {worst['over_ideal_max']:.4f} ({worst['trace']}, {worst['gigabytes_per_second']:g} GB/s); target {OVER_IDEAL_MAX}")
        fastest = self.of("simulated", mode="fastest")
        if fastest:
            yield from self.target_peaks(fastest)
            yield from self.target_positional(fastest)
        for row in self.of("dip"):
            stalls = [step["stall_seconds"] / row["ideal_seconds"] > STALL_MAX for step in row["steps"]]
            down, back = stalls[DIP[0] - 1:DIP[1]], stalls[DIP[1]:]
            late = any(down[2:]) or any(back[2:])
            yield (f"{row['trace']}: {row['gigabytes_per_second']:g} GB/s halve, then return: steps that stall above 2 %", not late,
                   f"{sum(down)} after the fall, {sum(back)} after the return; target at most the first 2 of each")

    @staticmethod
    def target_peaks(fastest):
        for name in dict.fromkeys(row["trace"] for row in fastest):
            rows = [row for row in fastest if row["trace"] == name]
            peaks = [row["activation_peak_bytes"] for row in rows]
            rises = [rows[i] for i in range(1, len(rows)) if peaks[i] < peaks[i - 1]]
            yield (f"fastest: {name}: the peak falls as bandwidth rises", not rises,
                   f"from {peaks[-1] / MIB:.1f} to {peaks[0] / MIB:.1f} MiB; not at "
                   + (", ".join(f"{row['gigabytes_per_second']:g} GB/s" for row in rises) or "none"))
            share = peaks[0] / rows[0]["lower_bound_bytes"]
            yield f"fastest: {name}: peak at {BANDWIDTHS[0]} GB/s over the lower bound", share <= AMPLE_MAX, f"{share:.2f}; target {AMPLE_MAX}"

    def target_positional(self, fastest):
        higher, lower, equal = [], 0, 0
        for row in fastest:
            other = self.of("simulated", mode="positional", trace=row["trace"], gigabytes_per_second=row["gigabytes_per_second"])[0]
            if row["stall_over_ideal"] > other["stall_over_ideal"] + EQUAL_STALL:
                higher.append((row, other))
                continue
            equal += 1
            lower += row["activation_peak_bytes"] < other["activation_peak_bytes"]
            if row["activation_peak_bytes"] > other["activation_peak_bytes"]:
                higher.append((row, other))
        words = ", ".join(f"{row['trace']} at {row['gigabytes_per_second']:g} GB/s "
                          f"(+{(row['activation_peak_bytes'] / other['activation_peak_bytes'] - 1) * 100:.1f} %)" for row, other in higher)
        yield "positional: never a lower peak at an equal or lower stall", not higher, words or "none"
        yield "positional: a higher peak in at least half of the cases", 2 * lower >= len(fastest), f"{lower} of {len(fastest)}"

    # ---- The report ----

    def markdown(self, targets):
        lines = ["# Replay", "", "Made by `make bench-replay` (tests/bench/replay.py): steps recorded from PyTorch (tests/traces), compute sped up",
                 f"until spilling everything takes {SPILL_ALL / 1e9:g} GB/s for half of the step. Step: worst of replays 3 to {STEPS}, over the",
                 "same step without I/O. Peaks and bytes in MiB.", "", "| target | holds | measured |", "|---|---|---|"]
        lines += [f"| {what} | {'yes' if holds else '**no**'} | {words} |" for what, holds, words in targets]
        if self.of("simulated"):
            lines += ["", "## Simulated drive", "", "| trace | GB/s | step | | | peak | | | written | | |", "|---|---|---|---|---|---|---|---|---|---|---|",
                      "| | |" + " fastest | positional | spill |" * 3]
            for name, bandwidth in dict.fromkeys((row["trace"], row["gigabytes_per_second"]) for row in self.of("simulated")):
                three = [self.of("simulated", trace=name, gigabytes_per_second=bandwidth, mode=mode)[0] for mode in MODES]
                lines.append(f"| {name} | {bandwidth:g} | " + " | ".join(
                    [f"{row['over_ideal_max']:.3f}" for row in three] + [f"{row['activation_peak_bytes'] / MIB:.1f}" for row in three]
                    + [f"{row['bytes_written'] / MIB:.0f}" for row in three]) + " |")
        if self.of("rig"):
            lines += ["", "## Throttled loop drives", "", f"Four drives of a quarter of the bandwidth each, steps {RIG_SLOWER} times as long, tensors of "
                      f"{self.rig_scale:g} times their size, mode fastest; step: worst of replays 3 to {RIG_STEPS}.", "",
                      "| trace | GB/s | step | peak | written |", "|---|---|---|---|---|"]
            lines += [f"| {row['trace']} | {row['gigabytes_per_second']:g} | {row['over_ideal_max']:.3f} | {row['activation_peak_bytes'] / MIB:.1f} | "
                      f"{row['bytes_written'] / MIB:.0f} |" for row in self.of("rig")]
        if self.of("simulated"):
            lines += ["", "## Lower bounds", "", "| trace | all kept | lower bound | step without I/O | speed |", "|---|---|---|---|---|"]
            for name in dict.fromkeys(row["trace"] for row in self.of("simulated")):
                row = self.of("simulated", trace=name)[0]
                lines.append(f"| {name} | {row['keep_all_bytes'] / MIB:.1f} MiB | {row['lower_bound_bytes'] / MIB:.1f} MiB | "
                             f"{row['ideal_seconds']:.3f} s | {row['speed']:g} |")
        lines += ["", "## Commands", "", "```", *dict.fromkeys(row["command"] for row in self.rows), "```", ""]
        return "\n".join(lines)

    def chart(self, path):
        try:
            import matplotlib
        except ImportError:
            print("  no matplotlib: no chart")
            return
        matplotlib.use("Agg")
        from matplotlib import pyplot
        names = list(dict.fromkeys(row["trace"] for row in self.of("simulated")))
        if not names:
            return
        figure, axes = pyplot.subplots(1, len(names), figsize=(5 * len(names), 4), sharey=True)
        for axis, name in zip(axes if len(names) > 1 else [axes], names):
            for mode in MODES:
                rows = self.of("simulated", trace=name, mode=mode)
                x = [row["gigabytes_per_second"] for row in rows]
                y = [row["activation_peak_bytes"] / row["keep_all_bytes"] * 100 for row in rows]
                axis.plot(x, y, marker="o", label=mode)
                stalled = [row for row in rows if row["over_ideal_max"] > OVER_IDEAL_MAX]
                axis.plot([row["gigabytes_per_second"] for row in stalled],
                          [row["activation_peak_bytes"] / row["keep_all_bytes"] * 100 for row in stalled], "x", color="red",
                          markersize=11, label=f"{mode}: step more than 2 % longer" if stalled else None)
            row = self.of("simulated", trace=name)[0]
            axis.axhline(row["lower_bound_bytes"] / row["keep_all_bytes"] * 100, color="grey", linestyle="--", label="lower bound")
            axis.set(title=name, xscale="log", xlabel="bandwidth of the drives, GB/s")
            axis.set_xticks([0.25, 0.5, 1, 2, 4, 8], ["0.25", "0.5", "1", "2", "4", "8"])
            axis.legend(fontsize=7)
        figure.axes[0].set_ylabel("peak of activations, % of keeping all")
        figure.tight_layout()
        figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build")
    parser.add_argument("--traces", nargs="*", default=["gpt", "bert", "t5"])
    parser.add_argument("--scale", type=float, default=0.02, help="of tensors on the simulated drive: changes nothing but memory")
    parser.add_argument("--rig-scale", type=float, default=0.5, help="of tensors on throttled drives")
    parser.add_argument("--no-rig", action="store_true", help="only the simulated drive")
    parser.add_argument("--only-rig", action="store_true", help="only the throttled drives")
    args = parser.parse_args()
    bench = Bench(args.build, args.scale, args.rig_scale)
    if not args.only_rig:
        bench.simulated(args.traces)
    if not args.no_rig and os.geteuid() == 0:
        bench.on_rig(args.traces)
    targets = list(bench.targets())
    folder = Path(args.build) / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "replay.json").write_text(json.dumps({"targets": targets, "rows": bench.rows}, indent=1))
    (folder / "replay.md").write_text(bench.markdown(targets))
    bench.chart(folder / "replay.svg")
    for what, holds, words in targets:
        print(f"  {'ok    ' if holds else 'MISSED'}  {what}: {words}")
    print(f"  {folder}/replay.md, replay.json, replay.svg")
    return 0 if all(holds for _, holds, _ in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
