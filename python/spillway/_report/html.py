# SPDX-License-Identifier: MIT
# spillway/_report/html.py - a training run as one HTML file
"""A page for people who do not know spillway: the main figures first, then the details. It loads
nothing and runs no script: text, CSS and SVG."""
from __future__ import annotations

import html
import math
from typing import Iterable, List, Optional, Sequence, Tuple

from .._core.library import bytes_text
from ..cache import CacheStats
from ..report import (Row, budget_rows, bus_text, kept_rows, last_step_bytes, per_day_text,
                      percent_text, process_rows, years_text)
from ..wear import Wear
from .run_record import Profile, Run

LIGHT = """--paper: #fbfaf8; --card: #ffffff; --ink: #1d2430;
  --soft: #5b6472; --line: #dfe2e7; --ours: #0f766e; --ours-fill: #0f766e2e; --keep: #b45309;
  --bad: #b42318;"""
DARK = """--paper: #14171c; --card: #1c2027; --ink: #e6e9ee;
  --soft: #a2abb8; --line: #333a45; --ours: #2dd4bf; --ours-fill: #2dd4bf2e; --keep: #f0a35e;
  --bad: #ff8a7a;"""
CHART = (  # shared by the page and the notebook cell, which may style only itself
    ("svg", "display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif;"),
    ("svg text", "fill: var(--soft);"),
    (".grid", "stroke: var(--line);"),
    (".area", "fill: var(--ours-fill); stroke: var(--ours); stroke-width: 1.5;"),
    (".keep", "fill: none; stroke: var(--keep); stroke-width: 1.5; stroke-dasharray: 5 3;"),
    (".key", "display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; margin: 0 0 .5rem; "
     "font-size: .9rem;"),
    (".key i", "display: inline-block; width: 1.4rem; height: .7rem; margin-right: .4rem; "
     "background: var(--ours-fill); border: 1.5px solid var(--ours);"),
    (".key i.k", "height: 0; border: 0; border-top: 2px dashed var(--keep); "
     "vertical-align: .25rem;"),
)


def rules(rules: Iterable[Tuple[str, str]], inside: str = "") -> str:
    return "\n".join(f"{inside}{selector} {{ {words} }}" for selector, words in rules)


_STYLE = f"""
:root {{ color-scheme: light dark; {LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}
{rules(CHART)}
""" + """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 3rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
p { margin: .4rem 0; max-width: 44rem; }
h1, p { overflow-wrap: anywhere; }
.soft, figcaption, dt { color: var(--soft); font-size: .9rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(12.5rem, 1fr)); gap: .75rem;
  margin: 1.25rem 0 0; }
.tile, figure, .table { background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem; padding: .8rem 1rem; margin: 0; }
.tile b { display: block; font-size: 1.45rem; line-height: 1.25; font-weight: 600; }
.tile .bad { color: var(--bad); }
.tile span { display: block; color: var(--soft); font-size: .88rem; }
.wide { display: block; } .narrow { display: none; }
.table { padding: .3rem 1rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .4rem 0 .4rem 1rem; border-top: 1px solid var(--line);
  vertical-align: top; }
tr:first-child > * { border-top: 0; }
th:first-child, td:first-child { text-align: left; padding-left: 0; overflow-wrap: anywhere; }
td.figure { white-space: nowrap; }
thead th { color: var(--soft); font-weight: 500; font-size: .9rem; }
.bar { height: .5rem; margin-top: .3rem; background: var(--ours); border-radius: 2px;
  min-width: 1px; }
@media (max-width: 40rem) { .wide { display: none; } .narrow { display: block; }
  table.stack thead { display: none; }
  table.stack tr { display: block; padding: .5rem 0; border-top: 1px solid var(--line); }
  table.stack tr:first-child { border-top: 0; }
  table.stack td { display: flex; justify-content: space-between; gap: 1rem; border: 0;
    padding: .1rem 0; text-align: right; }
  table.stack td:first-child { display: block; text-align: left; font-weight: 600; }
  table.stack td[data-name]::before { content: attr(data-name); color: var(--soft); }
}
"""


# ---- The chart ---------------------------------------------------------------------------------


def _ticks(limit: float, count: int, base: float) -> List[float]:
    """Round numbers from 0 up to the limit; for bytes, powers of two times 1, 2 or 5."""
    if limit <= 0:
        return [0.0]
    raw = limit / count
    unit = base ** math.floor(math.log(raw, base))
    step = next(unit * k for k in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
                if unit * k >= raw)
    return [step * k for k in range(int(limit / step) + 1)]


def _time_text(seconds: float) -> str:
    return f"{seconds * 1000:g} ms" if 0 < seconds < 1 else f"{seconds:g} s"


def _steps_of(values: Iterable[Tuple[float, float]], end: float) -> str:
    """A line that holds each value until the next."""
    parts: List[str] = []
    for x, y in values:
        parts.append(f"H{x:.1f}V{y:.1f}" if parts else f"M{x:.1f} {y:.1f}")
    return "".join(parts) + f"H{end:.1f}"


def memory_chart(profile: Profile, width: int, kind: str) -> str:
    """A chart of the memory over a step; ``kind``: its CSS class, and a part of its ids."""
    height, left, right, top, bottom = 120 + width // 5, 76, 12, 10, 40
    length = profile[-1][0] + (profile[-1][0] - profile[-2][0] if len(profile) > 1 else 1e-3)
    most = max(max(point[1], point[2]) for point in profile) or 1

    def across(seconds: float) -> float:
        return left + seconds / length * (width - left - right)

    def up(count: float) -> float:
        return height - bottom - count / most * (height - top - bottom)

    parts = [f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" '
             f'aria-labelledby="title-{kind} words-{kind}">',
             f'<title id="title-{kind}">Memory of activations over the last step</title>',
             f'<desc id="words-{kind}">At most {bytes_text(max(p[1] for p in profile))} with '
             f'spillway; {bytes_text(max(p[2] for p in profile))} if nothing were spilled.</desc>']
    for tick in _ticks(most, 4, 1024):
        y = up(tick)
        parts.append(f'<path class="grid" d="M{left} {y:.1f}H{width - right}"/>'
                     f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">'
                     f'{bytes_text(tick) if tick else "0"}</text>')
    for tick in _ticks(length, max(3, width // 150), 10):
        parts.append(f'<text x="{across(tick):.1f}" y="{height - bottom + 18}" '
                     f'text-anchor="{"middle" if tick else "start"}">{_time_text(tick)}</text>')
    parts.append(f'<text x="{(left + width - right) / 2}" y="{height - 4}" text-anchor="middle">'
                 "time since the step began</text>")
    end = across(length)
    ours = _steps_of(((across(p[0]), up(p[1])) for p in profile), end)
    keep = _steps_of(((across(p[0]), up(p[2])) for p in profile), end)
    parts.append(f'<path class="area" d="{ours}V{up(0):.1f}H{left}Z"/>'
                 f'<path class="keep" d="{keep}"/></svg>')
    return "".join(parts)


CHART_KEY = ('<div class="key"><span><i></i>with spillway</span>'
             '<span><i class="k"></i>if nothing were spilled</span></div>')


def _memory(run: Run) -> str:
    head = "<h2>Memory over a step</h2>" + "".join(
        f"<p>{html.escape(name.strip())}: {html.escape(value)}</p>" for name, value in
        [*process_rows(run), *budget_rows(run.stats)])
    if not run.profile:
        return head + "<p>No step has ended yet: the next report has a chart here.</p>"
    return (f"{head}<figure>{CHART_KEY}{memory_chart(run.profile, 900, 'wide')}"
            f"{memory_chart(run.profile, 340, 'narrow')}<figcaption>What the forward pass saves "
            "for the backward pass, in the last step: it grows, leaves for the drives, and comes "
            "back just before it is needed.</figcaption></figure>")


# ---- Figures -----------------------------------------------------------------------------------


def _tile(title: str, figure: str, words: str, bad: bool = False) -> str:
    mark = ' class="bad"' if bad else ""
    return (f'<div class="tile"><span>{html.escape(title)}</span><b{mark}>{html.escape(figure)}</b>'
            f"<span>{html.escape(words)}</span></div>")


def _lasts_text(wear: Wear) -> str:
    return "unknown" if wear.left_bytes is None else years_text(wear).replace("lasts ", "")


def _least(wear: Sequence[Tuple[str, Wear]]) -> Optional[Wear]:
    """The wear of the drive that will fail first; None if not known."""
    known = [one for _, one in wear if one.years is not None or one.left_bytes == 0]
    return min(known, key=lambda one: one.years or 0) if known else None


def _tiles(run: Run) -> str:
    stats, least = run.stats, _least(run.wear)
    ours, highest = last_step_bytes(run.profile)
    step = (stats.step_compute_ns + stats.step_stall_ns + stats.step_hold_ns) / 1e9
    waited = (stats.step_stall_ns + stats.step_hold_ns) / 1e6
    memory = (f"{percent_text(ours, highest)} of the {bytes_text(highest)} without spilling"
              if highest else "no step has ended yet")
    per_day = sum(one.bytes_per_day for _, one in run.wear)
    lasts = "unknown" if least is None else _lasts_text(least)
    short = least is not None and (least.years is None or least.years < 1)
    why = ("at this rate" if least is not None else
           "their endurance is not known: see Wear") if per_day else "nothing is written"
    return '<div class="tiles">' + "".join([
        _tile("Activations in the last step, at most", bytes_text(ours), memory),
        _tile("Time of the last step", f"{step:.3g} s",
              f"of which {waited:.1f} ms waited for drives"),
        _tile("Written per day", per_day_text(per_day).replace(" a day", ""),
              f"to {len(run.drives)} drive{'s' if len(run.drives) != 1 else ''}, at the rate of "
              "this run"),
        _tile("The drives last", lasts if run.wear else "no drives", why, short),
    ]) + "</div>"


# ---- Tables ------------------------------------------------------------------------------------


def _rows(rows: Iterable[Row]) -> str:
    return '<div class="table"><table>' + "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>"
        for name, value in rows) + "</table></div>"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with column heads; on a phone each row is a block of its own."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr><td>{html.escape(row[0])}</td>" + "".join(
            f'<td data-name="{html.escape(name)}">{html.escape(value)}</td>'
            for name, value in zip(names[1:], row[1:])) + "</tr>" for row in rows)
    return (f'<div class="table"><table class="stack"><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>")


_REASONS = (
    ("plans_shape", "another shape of step"), ("plans_timeline", "a timeline that had changed"),
    ("plans_bandwidth", "drives that were faster or slower"), ("plans_stall", "a step that waited"),
    ("plans_memory", "a peak above the budget"))


def _plan_rows(stats: CacheStats) -> Iterable[Row]:
    yield "tensors that spill", f"{stats.plan_tensors_spilled} of {stats.plan_tensors}"
    yield "written in a step", bytes_text(stats.plan_bytes_written)
    if stats.plan_bytes_written_max:
        yield "  may be written, by the cap on wear", bytes_text(stats.plan_bytes_written_max)
    yield "most memory, predicted", bytes_text(stats.plan_peak_bytes)
    yield "most memory, measured in the last step", bytes_text(stats.step_peak_bytes)
    yield "waiting for drives, predicted", f"{stats.plan_stall_ns / 1e6:.1f} ms a step"
    yield "drives counted on", (f"{stats.write_bytes_per_second / 1e9:.2f} GB/s written, "
                                f"{stats.read_bytes_per_second / 1e9:.2f} GB/s read")
    if stats.bus_out_bytes_per_second:
        yield "bus counted on", bus_text(stats)
    yield "of which the plan uses at most", f"{stats.plan_caution_percent} %"


def _plan(run: Run) -> str:
    stats = run.stats
    words = {
        "fastest": "the lowest peak of memory for which no wait for drives is predicted.",
        "budget": "the fewest bytes written such that activations fit the budget.",
        "spill": "a fixed rule: all but small tensors and the last layer. There is no plan.",
        "observe": "nothing is written: everything stays in memory, and is counted.",
    }[run.mode]
    parts = [f"<h2>The plan, and why</h2><p>Mode <b>{html.escape(run.mode)}</b>: {words}</p>"]
    made = [f"{getattr(stats, name)} for {why}" for name, why in _REASONS if getattr(stats, name)]
    if stats.plans:
        parts.append(f"<p>{stats.plans} plan{'s were' if stats.plans > 1 else ' was'} made"
                     + (", after the first: " + ", ".join(made) if made else
                        ", from the first step, which is measured") + ".</p>")
    if stats.wear_bytes_per_day:
        parts.append(f"<p>No more than {per_day_text(stats.wear_bytes_per_day)} may be written: "
                     + ("because of that more was kept in memory.</p>"
                        if stats.plans_limited or stats.tensors_kept_wear
                        else "no more was asked for.</p>"))
    if stats.plan_tensors:
        parts.append(_rows(_plan_rows(stats)))
    return "".join(parts)


def _tensors(stats: CacheStats) -> str:
    rows = [("written to drives", stats.bytes_spilled, stats.tensors_spilled),
            ("handed over before it was written", stats.bytes_forwarded, stats.tensors_forwarded),
            ("the same bytes as another", stats.bytes_deduplicated, stats.tensors_deduplicated)]
    rows += [(f"kept: {words}", count, tensors) for words, count, tensors in kept_rows(stats)]
    most = max(row[1] for row in rows) or 1
    body = "".join(
        f"<tr><td>{html.escape(name)}<div class=\"bar\" style=\"width:{100 * count / most:.1f}%\">"
        f"</div></td><td class=\"figure\">{bytes_text(count)}</td><td>{tensors}</td></tr>"
        for name, count, tensors in rows if tensors)
    return ("<h2>Where tensors went</h2><p>Of all that was saved since the run began.</p>"
            '<div class="table"><table><thead><tr><th></th><th>bytes</th><th>tensors</th></tr>'
            f"</thead><tbody>{body}</tbody></table></div>")


def _latency_text(latency_ns: int) -> str:
    return f"{latency_ns / 1e6:.2f} ms" if latency_ns else "-"


def _drives(run: Run) -> str:
    if not run.drives:
        return ""
    rows = []
    for drive, earlier in zip(run.drives, run.before):
        errors = (drive.write_errors + drive.read_errors + drive.checksum_errors + drive.timeouts)
        state = "no space" if drive.full else "retired" if drive.retired else "in service"
        rows.append((drive.path, bytes_text(drive.bytes_written - earlier.bytes_written),
                     bytes_text(drive.bytes_read - earlier.bytes_read),
                     _latency_text(drive.write_latency_ns_p99),
                     _latency_text(drive.read_latency_ns_p99), str(errors), state))
    return (f"<h2>Drives</h2><p>{html.escape(run.backend)}</p>"
            + _table(("drive", "written", "read", "write, 99 %", "read, 99 %", "errors", "state"),
                     rows)
            + '<p class="soft">99 % of the transfers of the last half second were shorter.</p>')


def _wear(run: Run) -> str:
    if not run.wear:
        return ""
    based = {"health": "its health page", "rating": "its rating and health page",
             "rating alone": "its rating, as if new", "unknown": "nothing"}
    rows = [(path, per_day_text(one.bytes_per_day), _lasts_text(one),
             "-" if one.percentage_used is None else f"{one.percentage_used} %", based[one.basis])
            for path, one in run.wear]
    reasons = dict.fromkeys(one.reason for _, one in run.wear if one.reason)
    notes = "".join(f'<p class="soft">{html.escape(reason)}</p>' for reason in reasons)
    if any(one.left_bytes is None for _, one in run.wear):
        notes += ('<p class="soft">offload(endurance_bytes=) names what a drive may be written, '
                  "by its maker.</p>")
    return ("<h2>Wear</h2><p>All that spills is written, and a drive may be written only so much. "
            "This is at the rate of this run, as if it went on day and night.</p>"
            + _table(("drive", "written per day", "lasts", "used so far", "known by"), rows)
            + notes)


def _hints(run: Run) -> str:
    return "".join(f"<p>{html.escape(hint)}</p>" for hint in run.hints)


def page_of(run: Run) -> str:
    """The whole file."""
    stats = run.stats
    return "".join([
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>spillway: {html.escape(run.model)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Training {html.escape(run.model)} with spillway</h1>",
        f'<p class="soft">{html.escape(run.when)}: {stats.steps} steps in {run.seconds:.4g} s. '
        "What a training step saves for its backward pass is written to drives and read back in "
        "time, so that memory holds less.</p>",
        _tiles(run), _hints(run), _memory(run), _plan(run), _tensors(stats), _drives(run),
        _wear(run),
        "</body></html>\n"])
