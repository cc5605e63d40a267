# SPDX-License-Identifier: MIT
# spillway/demo/big.py - report on the demonstration of a model larger than memory
"""Reads what python/examples/big.py has written of three runs: whole, killed, resumed. Exit code 1
when the losses are not identical."""
from __future__ import annotations

import argparse
import json
import signal
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


def _gib(count: float) -> str:
    return f"{count / GIB:.2f} GiB"


def parts_of(model: Dict[str, Any]) -> Dict[str, int]:
    """Bytes that a training with everything in memory needs, by purpose."""
    return {"parameters": model["parameter_bytes"], "gradients": model["parameter_bytes"],
            "state of AdamW": 2 * model["parameter_bytes"],
            "activations": model["activation_bytes"]}


def sizes(model: Dict[str, Any], limit: int, peak: int) -> List[str]:
    """Lines with the size of each part, and where it is stored."""
    where = ("on the drives; in memory while used", "in memory until their tile is stepped",
             "on the drives", "on the drives, as the plan says")
    parts = parts_of(model)
    lines = [f"{name:16s}{_gib(count):>12s}   {place}"
             for (name, count), place in zip(parts.items(), where)]
    total = sum(parts.values())
    lines.append(f"{'together':16s}{_gib(total):>12s}   {total / limit:.1f} times the limit")
    lines.append(f"{'limit':16s}{_gib(limit):>12s}   of the cgroup")
    if peak:
        lines.append(f"{'most used':16s}{_gib(peak):>12s}   {peak / limit:.0%} of it")
    return lines


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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m spillway.demo.big", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, required=True, help="of memory, in bytes")
    parser.add_argument("--chart", type=Path, help="file for the picture (SVG)")
    args = parser.parse_args()
    runs = [read(args.folder / name) for name in ("whole", "killed", "resumed")]
    if not all(steps_of(run) for run in runs):
        print("one of the runs has made no step", file=sys.stderr)
        return 1
    same = are_identical(*runs)
    resumed = next((line["resumed"] for line in runs[2] if "resumed" in line), 0)
    model = next(line for line in reversed(runs[0]) if "parameter_bytes" in line)
    peak = int((args.folder / "peak").read_text())
    print("\n" + "\n".join([*sizes(model, args.limit, peak), "", *table(*runs), "",
                            f"went on after step {resumed}, the last that was committed",
                            "losses: " + ("identical to the last bit" if same else
                                          "DIFFERENT - this is a fault"), bound(runs[0])]))
    if args.chart:
        args.chart.write_text(chart(model, args.limit, peak))
        print(f"picture: {args.chart}")
    return 0 if same else 1


if __name__ == "__main__":
    # on Ctrl-C end without a traceback: the output can be written again
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())
