# SPDX-License-Identifier: MIT
# spillway/demo/report.py - compares the modes: a table, a chart, JSON
"""Reads MODE-ROUND.json files of a folder, prints the table, draws the chart. Exit code 1 when the losses are not
identical."""
from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

MODES = ("keep", "recompute", "spillway")
MIB, GIB = 1 << 20, 1 << 30

_SPILLWAY_KEYS = ("bytes_spilled", "bytes_read", "bytes_forwarded", "bytes_deduplicated", "stall_seconds")


def read_rounds(folder: Path) -> Dict[str, List[Dict[str, Any]]]:
    rounds: Dict[str, List[Dict[str, Any]]] = {}
    for mode in MODES:
        rounds[mode] = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{mode}-*.json"))]
        if not rounds[mode]:
            raise FileNotFoundError(f"{folder} has no result of mode {mode}")
    return rounds


def spread(values: List[float]) -> List[float]:
    return [min(values), max(values)]


def summarize(runs: List[Dict[str, Any]]) -> Dict[str, Any]:
    """The median of the rounds; the losses of the first, once all_losses_identical() has compared them."""
    steps = [statistics.median(run["step_seconds"][1:]) for run in runs]
    rss = [run["rss_peak_bytes"] for run in runs]
    peaks = [run["activation_peak_bytes"] for run in runs]
    seconds = statistics.median(steps)
    summary = {
        "activation_peak_bytes": int(statistics.median(peaks)),
        "activation_peak_bytes_spread": spread(peaks),
        "rss_peak_bytes": int(statistics.median(rss)),
        "rss_peak_bytes_spread": spread(rss),
        "step_seconds_median": seconds,
        "step_seconds_spread": spread(steps),
        "step_cpu_seconds_median": statistics.median(statistics.median(run["step_cpu_seconds"][1:]) for run in runs),
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


def table(modes: Dict[str, Dict[str, Any]]) -> str:
    rows: List[Tuple[str, Callable[[Dict[str, Any]], Optional[str]]]] = [
        ("activation peak", lambda m: _mib(m["activation_peak_bytes"])),
        ("peak RSS of the process", lambda m: _mib(m["rss_peak_bytes"])),
        ("step time, median", lambda m: f"{m['step_seconds_median']:.3f} s"),
        ("CPU time of a step", lambda m: f"{m['step_cpu_seconds_median']:.3f} s"),
        ("tokens per second", lambda m: f"{m['tokens_per_second']:,.0f}"),
        ("spilled", lambda m: _mib(m["bytes_spilled"])),
        ("read back", lambda m: _mib(m["bytes_read"])),
        ("forwarded", lambda m: _mib(m["bytes_forwarded"])),
        ("deduplicated", lambda m: _mib(m["bytes_deduplicated"])),
        ("stalled", lambda m: f"{m['stall_seconds']:.3f} s"),
    ]
    steps = len(modes["keep"]["losses"])
    for step in range(steps):
        rows.append((f"loss of step {step + 1}", lambda m, step=step: f"{m['losses'][step]:.6f}"))  # type: ignore[misc]
    lines = ["".ljust(26) + "".join(mode.rjust(16) for mode in MODES)]
    for name, cell in rows:
        cells = []
        for mode in MODES:
            try:
                cells.append(cell(modes[mode]) or "-")
            except KeyError:
                cells.append("-")
        lines.append(name.ljust(26) + "".join(text.rjust(16) for text in cells))
    return "\n".join(lines)


def findings(modes: Dict[str, Dict[str, Any]], identical: bool) -> List[str]:
    """What the table means, against keep."""
    keep, recompute, spill = (modes[mode] for mode in MODES)
    saved = keep["activation_peak_bytes"] - spill["activation_peak_bytes"]
    lines = [
        "losses of the three modes: " + ("identical to the last bit" if identical else "DIFFERENT - this is a fault"),
        f"activation peak: {spill['activation_peak_bytes'] / keep['activation_peak_bytes']:.1%} of keep's "
        f"(recompute {recompute['activation_peak_bytes'] / keep['activation_peak_bytes']:.1%})",
        f"step time: {spill['step_seconds_median'] / keep['step_seconds_median']:.3f} x keep's "
        f"(recompute {recompute['step_seconds_median'] / keep['step_seconds_median']:.3f})",
    ]
    if saved > 0:
        rss = keep["rss_peak_bytes"] - spill["rss_peak_bytes"]
        lines.append(f"peak RSS: {_mib(rss)} less, {rss / saved:.2f} of what the activation peak fell by")
    rounds = len(spill["rounds"])
    if rounds > 1:
        spreads = ", ".join("{} {:.3f}-{:.3f} s".format(mode, *modes[mode]["step_seconds_spread"]) for mode in MODES)
        lines.append(f"{rounds} interleaved rounds; step time of each: {spreads}")
    written = [drive["bytes_written"] for drive in spill["rounds"][0]["drives"]]
    if written and max(written):
        share = (max(written) - min(written)) / max(written)
        lines.append(f"written per drive: {', '.join(_mib(value) for value in written)} ({share:.1%} apart)")
    lines.append("I/O: " + spill["rounds"][0]["io"])
    return lines


def _nice_step(span: float) -> float:
    """1, 2 or 5 times a power of ten: two to five of them fit in the span."""
    raw = span / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    return next(unit * k for k in (1, 2, 5, 10) if unit * k >= raw)


def chart(modes: Dict[str, Dict[str, Any]], title: str) -> str:
    """The recompute-offload-keep curve as SVG: step time against activation peak, both from zero."""
    width, height, left, bottom, top, right = 720, 440, 70, 60, 50, 30
    peaks = {mode: modes[mode]["activation_peak_bytes"] / GIB for mode in MODES}
    times = {mode: modes[mode]["step_seconds_median"] for mode in MODES}
    x_max, y_max = max(peaks.values()) * 1.15, max(times.values()) * 1.15

    def x(value: float) -> float:
        return left + value / x_max * (width - left - right)

    def y(value: float) -> float:
        return height - bottom - value / y_max * (height - bottom - top)

    colours = {"keep": "#4c6a92", "recompute": "#b5651d", "spillway": "#1b7f4d"}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{width / 2}" y="26" text-anchor="middle" font-size="15">{title}</text>',
        f'<text x="{width / 2}" y="{height - 14}" text-anchor="middle">activation peak (GiB)</text>',
        f'<text x="20" y="{height / 2}" text-anchor="middle" transform="rotate(-90 20 {height / 2})">'
        "step time, median (s)</text>",
    ]
    for limit, to_pixel, vertical in ((x_max, x, True), (y_max, y, False)):
        tick, step = 0.0, _nice_step(limit)
        while tick <= limit:
            at = to_pixel(tick)
            if vertical:
                parts.append(f'<path d="M{at:.1f} {top}V{height - bottom}" stroke="#e4e4e4"/>')
                parts.append(f'<text x="{at:.1f}" y="{height - bottom + 18}" text-anchor="middle">{tick:g}</text>')
            else:
                parts.append(f'<path d="M{left} {at:.1f}H{width - right}" stroke="#e4e4e4"/>')
                parts.append(f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{tick:g}</text>')
            tick = round(tick + step, 10)
    for mode in MODES:
        low, high = modes[mode]["step_seconds_spread"]
        at_x, at_y, colour = x(peaks[mode]), y(times[mode]), colours[mode]
        anchor, shift = ("end", -10) if at_x > width * 0.75 else ("start", 10)
        parts.append(f'<path d="M{at_x:.1f} {y(low):.1f}V{y(high):.1f}" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="6" fill="{colour}"/>')
        parts.append(
            f'<text x="{at_x + shift:.1f}" y="{at_y - 10:.1f}" text-anchor="{anchor}" fill="{colour}">'
            f"{mode}: {peaks[mode]:.2f} GiB, {times[mode]:.2f} s</text>"
        )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


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
        args.json.write_text(json.dumps({"title": args.title, "losses_identical": identical, "modes": modes}, indent=1))
    return 0 if identical else 1


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what it writes can be written again: no traceback
    sys.exit(main())
