# SPDX-License-Identifier: MIT
# spillway/demo/big.py - report on the demonstration of a model larger than memory
"""Reads what python/examples/big.py has written of three runs: whole, killed, resumed; and of one
with everything in memory, if there is one. Exit code 1 when the losses of the three are not
identical, or a device had more bytes of tensors than the limit."""
from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
from pathlib import Path
from typing import Any, Dict, List

from .chart import Bar, draw_bars

GIB = 1 << 30

Run = List[Dict[str, Any]]


def read(path: Path) -> Run:
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps_of(run: Run) -> Dict[int, Dict[str, Any]]:
    return {line["step"]: line for line in run if "step" in line}


def field_of(run: Run, name: str) -> int:
    return next((int(line[name]) for line in run if name in line), 0)


def _gib(count: float) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / (1 << 20):.1f} MiB"


def parts_of(model: Dict[str, Any]) -> Dict[str, int]:
    """Bytes that a training with everything in memory needs, by purpose."""
    return {"parameters": model["parameter_bytes"], "gradients": model["parameter_bytes"],
            "state of AdamW": 2 * model["parameter_bytes"],
            "activations": model["activation_bytes"]}


def _within(name: str, total: int, limit: int, peak: int, whose: str) -> List[str]:
    """Lines of a limit of memory, 0 where there is none, and what was used of it, 0 if unknown."""
    if not limit:
        return []
    lines = [f"{'together':16s}{_gib(total):>12s}   {total / limit:.1f} times the {name}"] \
        if total > limit else []
    lines.append(f"{name:16s}{_gib(limit):>12s}   {whose}")
    if peak:
        lines.append(f"{'most used':16s}{_gib(peak):>12s}   {peak / limit:.0%} of it")
    return lines


def sizes(model: Dict[str, Any]) -> List[str]:
    """Lines with the size of each part, and where it is stored."""
    where = ("on the drives; in memory while used", "in memory until their tile is stepped",
             "on the drives", "on the drives, as the plan says")
    return [f"{name:16s}{_gib(count):>12s}   {place}"
            for (name, count), place in zip(parts_of(model).items(), where)]


def table(whole: Run, killed: Run, resumed: Run) -> List[str]:
    lines = [f"{'step':>4s}  {'uninterrupted':>26s}  {'killed, resumed':>26s}"]
    first, second, third = map(steps_of, (whole, killed, resumed))
    for number, line in first.items():
        other = third.get(number) or second.get(number)
        lines.append(f"{number:4d}" + "".join(
            "  " + (f"loss {found['loss']:.6f} {found['seconds']:9.2f} s"
                    if found else "-").rjust(26)
            for found in (line, other)))
    return lines


def bound(run: Run) -> str:
    """Where the time of a step goes. The last step counts, since it knows the order of use."""
    line = list(steps_of(run).values())[-1]
    waits = {"parameters": line["parameter_wait_seconds"], "state": line["state_wait_seconds"],
             "activations": line["activation_wait_seconds"]}
    computes = line["seconds"] - sum(waits.values())
    words = ", ".join(f"{name} {seconds:.2f}" for name, seconds in waits.items())
    what = "the processor" if computes > line["seconds"] / 2 else "the drives"
    return (f"a step of {line['seconds']:.2f} s waits for drives {sum(waits.values()):.2f} s "
            f"({words}): bound by {what}")


def are_identical(whole: Run, killed: Run, resumed: Run) -> bool:
    """Whether all steps of all runs have losses identical to the last bit."""
    expected = {number: line["loss_hex"] for number, line in steps_of(whole).items()}
    found = [(number, line["loss_hex"]) for run in (killed, resumed)
             for number, line in steps_of(run).items()]
    return all(expected.get(number) == loss for number, loss in found) and \
        {number for number, _ in found} == set(expected)


def chart(model: Dict[str, Any], limit: int, peak: int) -> str:
    def named(parts: Dict[str, int]) -> Dict[str, float]:
        return {f"{name} {count / GIB:.2f}": count / GIB for name, count in parts.items()}

    return draw_bars("A GPT trained in less memory than it needs", "GiB",
                     [Bar("in memory", named(parts_of(model))),
                      Bar("spillway", named({"most used": peak}))],
                     limit / GIB, f"limit {limit / GIB:.2f}")


def beside(whole: Run, in_memory: Run) -> List[str]:
    """What the same training takes with everything in memory, of the device if there is one."""
    ours, theirs = steps_of(whole), steps_of(in_memory)
    differs = next((number for number, line in ours.items()
                    if line["loss_hex"] != theirs[number]["loss_hex"]), 0)
    seconds, other = (statistics.median(line["seconds"] for line in run.values())
                      for run in (ours, theirs))
    peak = field_of(in_memory, "device_peak_bytes")
    return [f"in memory: {_gib(peak) + ' of the device, ' if peak else ''}a step of {other:.2f} s; "
            f"with spillway {seconds:.2f} s, {seconds / other:.2f} of it",
            "           losses " + (f"differ from step {differs} on, by how the device rounds "
                                    "(STATE.md, Bits)" if differs else "identical to the last bit")]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m spillway.demo.big", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, default=0, help="of memory of the host, in bytes")
    parser.add_argument("--device-limit", type=int, default=0, help="of tensors on the device")
    parser.add_argument("--chart", type=Path, help="file for the picture (SVG)")
    args = parser.parse_args()
    runs = [read(args.folder / name) for name in ("whole", "killed", "resumed")]
    if not all(steps_of(run) for run in runs):
        print("one of the runs has made no step", file=sys.stderr)
        return 1
    same = are_identical(*runs)
    resumed = field_of(runs[2], "resumed")
    model = next(line for line in reversed(runs[0]) if "parameter_bytes" in line)
    total = sum(parts_of(model).values())
    peak = int((args.folder / "peak").read_text())
    on_device = max(field_of(run, "device_peak_bytes") for run in runs)
    lines = [*sizes(model), *_within("limit", total, args.limit, peak, "of the cgroup"),
             *_within("device's limit", total, args.device_limit, on_device, "of its tensors")]
    if (args.folder / "in_memory").exists():
        lines += ["", *beside(runs[0], read(args.folder / "in_memory"))]
    print("\n" + "\n".join([*lines, "", *table(*runs), "",
                            f"went on after step {resumed}, the last that was committed",
                            "losses: " + ("identical to the last bit" if same else
                                          "DIFFERENT - this is a fault"), bound(runs[0])]))
    if args.device_limit and on_device > args.device_limit:
        print("more on the device than its limit - this is a fault")
        same = False
    if args.chart and (args.device_limit or args.limit):
        shown = (args.device_limit, on_device) if args.device_limit else (args.limit, peak)
        args.chart.write_text(chart(model, *shown))
        print(f"picture: {args.chart}")
    return 0 if same else 1


if __name__ == "__main__":
    # on Ctrl-C end without a traceback: the output can be written again
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())
