# SPDX-License-Identifier: MIT
# spillway/_report/notebook.py - a notebook cell with the memory of the last step and the drives
"""Jupyter shows this for an Offload that is the last value of a cell. It uses the colours of the
notebook's theme, and styles only itself: all its rules are inside its own class."""
from __future__ import annotations

import html
import itertools

from .._core.library import bytes_text
from ..report import last_step_bytes
from .html import CHART, CHART_KEY, DARK, LIGHT, memory_chart, rules
from .run_record import Run

_NAME = ".spillway-run"
_RULES = (
    *CHART,
    ("p", "margin: 0 0 .5rem; padding: 0; font-size: .95rem;"),
    (".soft", "color: var(--soft);"),
    ("table", "border-collapse: collapse; width: 100%; margin: .5rem 0 0; border: 0; "
     "font-size: .9rem; color: inherit; font-variant-numeric: tabular-nums;"),
    ("tr", "background: none; border-top: 1px solid var(--line);"),
    ("td", "text-align: right; padding: .3rem 0 .3rem 1rem; border: 0; color: inherit; "
     "max-width: none; background: none;"),
    ("td:first-child", "text-align: left; padding-left: 0; overflow-wrap: anywhere;"),
)
# Use the notebook's theme if it has one (Jupyter, Visual Studio Code), else the browser's.
_STYLE = f"""{_NAME} {{ {LIGHT} max-width: 40rem; padding: .8rem 1rem; background: var(--card);
  color: var(--ink); border: 1px solid var(--line); border-radius: .5rem;
  font: 14px/1.5 system-ui, sans-serif; }}
@media (prefers-color-scheme: dark) {{ {_NAME} {{ {DARK} }} }}
[data-jp-theme-light="true"] {_NAME}, .vscode-light {_NAME} {{ {LIGHT} }}
[data-jp-theme-light="false"] {_NAME}, .vscode-dark {_NAME} {{ {DARK} }}
{rules(_RULES, f"{_NAME} ")}"""
_numbers = itertools.count(1)  # for unique ids, as several cells of a notebook may show a chart


def _drives(run: Run) -> str:
    rows = []
    for drive, earlier in zip(run.drives, run.before):
        errors = drive.write_errors + drive.read_errors + drive.checksum_errors + drive.timeouts
        state = ("no space" if drive.full else "retired" if drive.retired else
                 f"{errors} errors" if errors else "in service")
        cells = (drive.path, f"{bytes_text(drive.bytes_written - earlier.bytes_written)} written",
                 f"{bytes_text(drive.bytes_read - earlier.bytes_read)} read", state)
        rows.append("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table>{''.join(rows)}</table>" if rows else ""


def piece_of(run: Run) -> str:
    """The HTML of the cell. The first step of the run has ended."""
    stats = run.stats
    most, kept = last_step_bytes(run.profile)
    words = (f"step {stats.steps}: {bytes_text(most)} of activations in memory at most, "
             f"{bytes_text(kept)} if nothing were spilled; waited "
             f"{stats.step_stall_ns / 1e6:.1f} ms for drives")
    return (f'<style>{_STYLE}</style><div class="{_NAME[1:]}"><p><b>{html.escape(run.model)}</b> '
            f'<span class="soft">mode {run.mode}, {words}</span></p>{CHART_KEY}'
            f'{memory_chart(run.profile, 620, f"spillway-{next(_numbers)}")}{_drives(run)}</div>')
