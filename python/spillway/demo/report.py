# SPDX-License-Identifier: MIT
# spillway/demo/report.py - compare the modes in a table, a chart and JSON
"""Reads MODE-ROUND.json files of a folder, prints the table, draws the chart. Exit code 1 when the
losses are not identical."""
from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from .chart import Point, draw

MODES = ("keep", "recompute", "spillway")
MIB, GIB = 1 << 20, 1 << 30

_SPILLWAY_KEYS = ("bytes_spilled", "bytes_read", "bytes_forwarded", "bytes_deduplicated",
                  "stall_seconds")


def read_rounds(folder: Path) -> Dict[str, List[Dict[str, Any]]]:
    rounds: Dict[str, List[Dict[str, Any]]] = {}
    for mode in MODES:
        paths = sorted(folder.glob(f"{mode}-*.json"))
        rounds[mode] = [json.loads(path.read_text()) for path in paths]
        if not rounds[mode]:
            raise FileNotFoundError(f"{folder} has no result of mode {mode}")
    return rounds


def summarize(runs: List[Dict[str, Any]]) -> Dict[str, Any]:
    """A summary of the rounds: medians, and the losses of the first round, since
    all_losses_identical() compares the others."""
    steps = [statistics.median(run["step_seconds"][1:]) for run in runs]
    rss = [run["rss_peak_bytes"] for run in runs]
    peaks = [run["activation_peak_bytes"] for run in runs]
    seconds = statistics.median(steps)
    summary = {
        "activation_peak_bytes": int(statistics.median(peaks)),
        "activation_peak_bytes_spread": [min(peaks), max(peaks)],
        "rss_peak_bytes": int(statistics.median(rss)),
        "rss_peak_bytes_spread": [min(rss), max(rss)],
        "step_seconds_median": seconds,
        "step_seconds_spread": [min(steps), max(steps)],
        "step_cpu_seconds_median": statistics.median(
            statistics.median(run["step_cpu_seconds"][1:]) for run in runs),
        "tokens_per_second": runs[0]["tokens_per_step"] / seconds,
        "losses": runs[0]["losses"],
        "losses_hex": runs[0]["losses_hex"],
        "rounds": runs,
    }
    for key in _SPILLWAY_KEYS:
        if key in runs[0]:
            value = statistics.median(run[key] for run in runs)
            summary[key] = value if key.endswith("seconds") else int(value)
    return summary


def all_losses_identical(rounds: Dict[str, List[Dict[str, Any]]]) -> bool:
    """Compared as hexadecimal floats: to the last bit."""
    return len({tuple(run["losses_hex"]) for runs in rounds.values() for run in runs}) == 1


def _mib(value: float) -> str:
    return f"{value / MIB:,.0f} MiB"


# The rows of the table: title, key in a summary, conversion to text.
_ROWS: Tuple[Tuple[str, str, Callable[[float], str]], ...] = (
    ("activation peak", "activation_peak_bytes", _mib),
    ("peak RSS of the process", "rss_peak_bytes", _mib),
    ("step time, median", "step_seconds_median", "{:.3f} s".format),
    ("CPU time of a step", "step_cpu_seconds_median", "{:.3f} s".format),
    ("tokens per second", "tokens_per_second", "{:,.0f}".format),
    ("spilled", "bytes_spilled", _mib),
    ("read back", "bytes_read", _mib),
    ("forwarded", "bytes_forwarded", _mib),
    ("deduplicated", "bytes_deduplicated", _mib),
    ("stalled", "stall_seconds", "{:.3f} s".format),
)


def table(modes: Dict[str, Dict[str, Any]]) -> str:
    columns = [modes[mode] for mode in MODES]
    rows = [("", list(MODES))]
    rows += [(name, [text(column[key]) if key in column else "-" for column in columns])
             for name, key, text in _ROWS]
    rows += [(f"loss of step {step}", [f"{loss:.6f}" for loss in losses])
             for step, losses in enumerate(zip(*(column["losses"] for column in columns)), 1)]
    return "\n".join(name.ljust(26) + "".join(cell.rjust(16) for cell in cells)
                     for name, cells in rows)


def findings(modes: Dict[str, Dict[str, Any]], identical: bool) -> List[str]:
    """Sentences that compare the modes with keep."""
    keep, spill = modes["keep"], modes["spillway"]
    saved = keep["activation_peak_bytes"] - spill["activation_peak_bytes"]
    peaks, times = ([modes[mode][key] / keep[key] for mode in MODES]
                    for key in ("activation_peak_bytes", "step_seconds_median"))
    lines = [
        "losses of the three modes: " +
        ("identical to the last bit" if identical else "DIFFERENT - this is a fault"),
        f"activation peak: {peaks[2]:.1%} of keep's (recompute {peaks[1]:.1%})",
        f"step time: {times[2]:.3f} x keep's (recompute {times[1]:.3f})",
    ]
    if saved > 0:
        rss = keep["rss_peak_bytes"] - spill["rss_peak_bytes"]
        share = f"{rss / saved:.2f} of what the activation peak fell by"
        lines.append(f"peak RSS: {_mib(rss)} less, {share}")
    rounds = len(spill["rounds"])
    if rounds > 1:
        spreads = ", ".join("{} {:.3f}-{:.3f} s".format(mode, *modes[mode]["step_seconds_spread"])
                            for mode in MODES)
        lines.append(f"{rounds} interleaved rounds; step time of each: {spreads}")
    written = [drive["bytes_written"] for drive in spill["rounds"][0]["drives"]]
    if written and max(written):
        share = (max(written) - min(written)) / max(written)
        lines.append(
            f"written per drive: {', '.join(_mib(value) for value in written)} ({share:.1%} apart)")
    lines.append("I/O: " + spill["rounds"][0]["io"])
    return lines


def chart(modes: Dict[str, Dict[str, Any]], title: str) -> str:
    """A chart of step time over activation peak."""
    curves = {}
    for mode in MODES:
        peak = modes[mode]["activation_peak_bytes"] / GIB
        seconds = modes[mode]["step_seconds_median"]
        words = f"{mode}: {peak:.2f} GiB, {seconds:.2f} s"
        low, high = modes[mode]["step_seconds_spread"]
        curves[mode] = [Point(peak, seconds, low, high, words)]
    return draw(title, "activation peak (GiB)", "step time, median (s)", curves)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m spillway.demo.report", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--title", default="decoder-only GPT")
    parser.add_argument("--chart", type=Path, help="file for the chart (SVG)")
    parser.add_argument("--json", type=Path, help="file for everything")
    args = parser.parse_args()
    rounds = read_rounds(args.folder)
    identical = all_losses_identical(rounds)
    modes = {mode: summarize(rounds[mode]) for mode in MODES}
    print(f"\n{args.title}\n")
    print(table(modes) + "\n")
    print("\n".join(findings(modes, identical)))
    if args.chart:
        args.chart.write_text(chart(modes, args.title))
        print(f"chart: {args.chart}")
    if args.json:
        document = {"title": args.title, "losses_identical": identical, "modes": modes}
        args.json.write_text(json.dumps(document, indent=1))
    return 0 if identical else 1


if __name__ == "__main__":
    # on Ctrl-C end without a traceback: the output can be written again
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main())
