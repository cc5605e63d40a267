#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# tests/bench/replay.py - recorded training steps on drives from 8 down to 0.25 GB/s: our plans,
# SSDTrain's rule, the fixed rule
"""Called by `make bench-replay`. Replays each trace of tests/traces on a simulated drive (spillway
replay --bandwidth: simulated time, the same numbers on any machine) in modes fastest, positional
and spill, and on a drive whose bandwidth halves for a while; and, with root, in mode fastest on
throttled loop drives, which takes some three minutes and wants a machine that does nothing else.
Writes BUILD/bench/replay.json. Exit status 1 if a goal is missed.
 Compute is sped up until spilling everything would take SPILL_ALL bytes per second for half of the
step, as the traces are of a CPU."""

import argparse
import json
import os
import sys
from pathlib import Path

from rig import Rig, call
from rounds import results

ROOT = Path(__file__).resolve().parent.parent.parent

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
        self.rows = []

    def replay(self, name, *options, by=call):
        words = [f"tests/traces/{name}.jsonl.gz", *map(str, options), "--json"]
        done = by(self.spillway, "replay", ROOT / words[0], *words[1:])
        return json.loads(done), " ".join(["spillway", "replay", *words])

    def speed_of(self, name):
        result, _ = self.replay(name, "--mode", "keep", "--steps", 1, "--scale", 0.001, "--speed",
                                1000)
        return round(SPILL_ALL * 1000 * result["ideal_seconds"] / (2 * result["saved_bytes"]), 1)

    def row(self, kind, name, bandwidth, mode, result, command):
        row = result | {"kind": kind, "trace": name, "gigabytes_per_second": bandwidth,
                        "mode": mode, "command": command,
                        "stall_over_ideal": result["stall_seconds"] / result["ideal_seconds"]}
        self.rows.append(row)
        return row

    def simulated(self, names):
        for name in names:
            speed = self.speed_of(name)
            for bandwidth in BANDWIDTHS:
                for mode in MODES:
                    result, command = self.replay(
                        name, "--bandwidth", gb(bandwidth), "--mode", mode, "--speed", speed,
                        "--steps", STEPS, "--scale", self.scale)
                    self.row("simulated", name, bandwidth, mode, result, command)
            for bandwidth in (4, 2, 1):
                result, command = self.replay(name, "--bandwidth", gb(bandwidth), "--dip",
                                              f"{DIP[0]}-{DIP[1]}", "--steps", DIP[2],
                                              "--speed", speed, "--scale", self.scale)
                self.row("dip", name, bandwidth, "fastest", result, command)

    def on_rig(self, names):
        for bandwidth in RIG_BANDWIDTHS:
            limit = max(1, round(bandwidth * 1000 * self.rig_scale / RIG_SLOWER / 4))
            with Rig(size="512M", write=limit, read=limit) as rig:
                drives = ",".join(rig.drives)
                call(self.spillway, "format", "--force", "--erase", "--devices", drives)
                for name in names:
                    speed = round(self.speed_of(name) / RIG_SLOWER, 2)
                    result, command = self.replay(name, "--devices", drives, "--speed", speed,
                                                  "--steps", RIG_STEPS, "--scale", self.rig_scale,
                                                  by=rig.run)
                    row = self.row("rig", name, bandwidth, "fastest", result,
                                   f"tests/rig.sh run {command}  # 4 drives of {limit} MB/s")
                    print(f"  rig     {name} at {bandwidth:g} GB/s: step "
                          f"{row['over_ideal_max']:.3f}, peak "
                          f"{row['activation_peak_bytes'] / MIB:.1f} MiB", flush=True)

    # ---- What must hold ----

    def of(self, kind, **wanted):
        return [row for row in self.rows
                if row["kind"] == kind and all(row[key] == value for key, value in wanted.items())]

    def goals(self):
        fastest = self.of("simulated", mode="fastest")
        for kind, words in (("simulated", "simulated drive"), ("rig", "throttled drives")):
            rows = self.of(kind, mode="fastest")
            if rows:
                yield results.row(f"{words}, fastest: longest step over the step without I/O",
                                  max(row["over_ideal_max"] for row in rows),
                                  at_most=OVER_IDEAL_MAX)
        if fastest:
            yield from self.goals_of_peaks(fastest)
            yield from self.goals_of_positional(fastest)
        for row in self.of("dip"):
            stalls = [step["stall_seconds"] / row["ideal_seconds"] > STALL_MAX
                      for step in row["steps"]]
            late = sum(stalls[DIP[0] + 1:DIP[1]]) + sum(stalls[DIP[1] + 2:])
            yield results.row(f"{title(row)} halve, then return: steps that stall by more than 2 "
                              "%, but for the "
                              "first two after each change", late, "steps", at_most=0,
                              command=row["command"])

    @staticmethod
    def goals_of_peaks(fastest):
        for name in dict.fromkeys(row["trace"] for row in fastest):
            rows = [row for row in fastest if row["trace"] == name]
            peaks = [row["activation_peak_bytes"] for row in rows]
            rises = sum(after < before for before, after in zip(peaks, peaks[1:]))
            yield results.row(f"{name}, fastest: bandwidths at which the peak is lower than at "
                              "the next higher",
                              rises, at_most=0)
            yield results.row(f"{name}, fastest: peak at {BANDWIDTHS[0]} GB/s over the lower bound",
                              peaks[0] / rows[0]["lower_bound_bytes"], "ratio", at_most=AMPLE_MAX)

    def goals_of_positional(self, fastest):
        """SSDTrain's rule has no lower peak at an equal or lower stall, and a higher one in half of
        the cases."""
        worse, better = 0, 0
        for row in fastest:
            other = self.of("simulated", mode="positional", trace=row["trace"],
                            gigabytes_per_second=row["gigabytes_per_second"])[0]
            stalls = row["stall_over_ideal"] > other["stall_over_ideal"] + EQUAL_STALL
            worse += stalls or row["activation_peak_bytes"] > other["activation_peak_bytes"]
            better += not stalls and row["activation_peak_bytes"] < other["activation_peak_bytes"]
        yield results.row("simulated drive: cases in which positional is better than fastest",
                          worse, at_most=0)
        yield results.row("simulated drive: share of cases in which fastest is better than "
                          "positional",
                          better / len(fastest), at_least=0.5)

    # ---- What was seen ----

    def figures(self):
        for row in self.of("simulated", mode="fastest"):
            case = {"trace": row["trace"], "gigabytes_per_second": row["gigabytes_per_second"]}
            peak = row["activation_peak_bytes"]
            yield results.row(f"{title(row)}, fastest: peak, of all kept",
                              peak / row["keep_all_bytes"], "ratio",
                              command=row["command"])
            for other in self.of("simulated", mode="positional", **case):
                yield results.row(f"{title(row)}, positional: peak, of fastest's",
                                  other["activation_peak_bytes"] / peak, "ratio",
                                  command=other["command"])
            for other in self.of("simulated", mode="spill", **case):
                yield results.row(f"{title(row)}, spill: longest step, of the step without I/O",
                                  other["over_ideal_max"], "ratio", command=other["command"])
        for row in self.of("rig"):
            yield results.row(f"{title(row)}, throttled drives, fastest: longest step, of the "
                              "step without I/O",
                              row["over_ideal_max"], "ratio", command=row["command"])
            yield results.row(f"{title(row)}, throttled drives, fastest: peak, of all kept",
                              row["activation_peak_bytes"] / row["keep_all_bytes"], "ratio",
                              command=row["command"])


def title(row):
    return f"{row['trace']} at {row['gigabytes_per_second']:g} GB/s"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build")
    parser.add_argument("--traces", nargs="*", default=["gpt", "bert", "t5"])
    parser.add_argument("--scale", type=float, default=0.02,
                        help="of tensors on the simulated drive: changes nothing but memory")
    parser.add_argument("--rig-scale", type=float, default=0.5,
                        help="of tensors on throttled drives")
    parser.add_argument("--no-rig", action="store_true", help="only the simulated drive")
    parser.add_argument("--only-rig", action="store_true", help="only the throttled drives")
    args = parser.parse_args()
    bench, where = Bench(args.build, args.scale, args.rig_scale), results.machine()
    if not args.only_rig:
        bench.simulated(args.traces)
    if not args.no_rig and os.geteuid() == 0:
        bench.on_rig(args.traces)
    goals, path = list(bench.goals()), Path(args.build) / "bench/replay.json"
    results.write(path, "Recorded steps, replayed", goals + list(bench.figures()), where,
                  replays=bench.rows)
    print(results.table(goals), end="")
    print(f"bench-replay: {path}")
    return 0 if all(goal["met"] for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
