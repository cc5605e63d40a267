# SPDX-License-Identifier: MIT
# spillway/bench/report.py - what the runs of the matrix say: summaries, Markdown, charts
from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

MODES = ("keep", "recompute", "spillway")
COLOURS = {"keep": "#4c6a92", "recompute": "#b5651d", "spillway": "#1b7f4d"}
MIB = 1 << 20
Run = Dict[str, Any]
Cell = Tuple[str, str, int]  # model, mode, batch


def summarize(runs: List[Run]) -> Dict[Cell, Dict[str, Any]]:
    """The median of the rounds of each cell. The first step of a run warms up (keep and recompute are watched in it)."""
    cells: Dict[Cell, List[Run]] = {}
    for run in runs:
        cells.setdefault((run["model"], run["mode"], run["batch"]), []).append(run)
    return {cell: _summary(of_cell) for cell, of_cell in cells.items()}


def _summary(runs: List[Run]) -> Dict[str, Any]:
    seconds = [statistics.median(run["step_seconds"][1:]) for run in runs]
    middle = statistics.median(seconds)
    return {
        "rounds": len(runs),
        "activation_peak_bytes": int(statistics.median(run["activation_peak_bytes"] for run in runs)),
        "rss_peak_bytes": int(statistics.median(run["rss_peak_bytes"] for run in runs)),
        "step_seconds": middle,
        "step_seconds_spread": [min(seconds), max(seconds)],
        "step_cpu_seconds": statistics.median(statistics.median(run["step_cpu_seconds"][1:]) for run in runs),
        "tokens_per_second": runs[0]["tokens_per_step"] / middle,
        "stall_seconds": statistics.median(run.get("stall_seconds", 0.0) for run in runs),
        "bytes_spilled": int(statistics.median(run.get("bytes_spilled", 0) for run in runs)),
    }


def differing(runs: List[Run]) -> List[Tuple[str, int]]:
    """The (model, batch) whose losses are not the same to the last bit in all modes and rounds."""
    losses: Dict[Tuple[str, int], set] = {}
    for run in runs:
        losses.setdefault((run["model"], run["batch"]), set()).add(tuple(run["losses_hex"]))
    return sorted(key for key, seen in losses.items() if len(seen) > 1)


def _of(value: float, base: Optional[Dict[str, Any]], key: str) -> str:
    return f" ({value / base[key]:.2f})" if base and base[key] else ""


def _rows(model: str, cells: Dict[Cell, Dict[str, Any]]) -> Iterable[str]:
    yield "| batch | mode | activation peak MiB (of keep) | peak RSS MiB | s/step (of keep) | spread | CPU s/step | tokens/s |"
    yield "|---|---|---|---|---|---|---|---|"
    for batch in sorted({b for m, _, b in cells if m == model}):
        keep = cells.get((model, "keep", batch))
        for mode in MODES:
            cell = cells.get((model, mode, batch))
            if cell is None:
                continue
            peak, seconds = cell["activation_peak_bytes"], cell["step_seconds"]
            yield (
                f"| {batch} | {mode} | {peak / MIB:,.0f}{_of(peak, keep, 'activation_peak_bytes')} "
                f"| {cell['rss_peak_bytes'] / MIB:,.0f} | {seconds:.3f}{_of(seconds, keep, 'step_seconds')} "
                f"| {cell['step_seconds_spread'][0]:.3f}-{cell['step_seconds_spread'][1]:.3f} "
                f"| {cell['step_cpu_seconds']:.3f} | {cell['tokens_per_second']:,.0f} |"
            )


def _findings(model: str, cells: Dict[Cell, Dict[str, Any]]) -> Iterable[str]:
    for batch in sorted({b for m, _, b in cells if m == model}):
        keep, spill = cells.get((model, "keep", batch)), cells.get((model, "spillway", batch))
        twice, recompute = cells.get((model, "spillway", 2 * batch)), cells.get((model, "recompute", batch))
        if keep and spill:
            saved = keep["activation_peak_bytes"] - spill["activation_peak_bytes"]
            rss = keep["rss_peak_bytes"] - spill["rss_peak_bytes"]
            if saved > 0:
                yield f"- batch {batch}: peak RSS fell by {rss / saved:.2f} of what the activation peak fell by"
        if recompute and spill:
            yield f"- batch {batch}: step time of recompute's: {spill['step_seconds'] / recompute['step_seconds']:.2f}"
        if keep and twice:
            fits = twice["rss_peak_bytes"] <= keep["rss_peak_bytes"]
            yield (
                f"- batch {2 * batch} spilled against batch {batch} kept: peak RSS "
                f"{twice['rss_peak_bytes'] / MIB:,.0f} of {keep['rss_peak_bytes'] / MIB:,.0f} MiB "
                f"({'fits' if fits else 'does not fit'}), activation peak "
                f"{twice['activation_peak_bytes'] / MIB:,.0f} of {keep['activation_peak_bytes'] / MIB:,.0f} MiB, tokens/s "
                f"{twice['tokens_per_second'] / keep['tokens_per_second']:.2f}"
            )


def markdown(document: Dict[str, Any], charts: List[Path]) -> str:
    """The report of what was done; ``document`` as it is in the JSON file."""
    runs = document["runs"]
    cells = summarize(runs)
    lines = ["# spillway.bench", "", f"PyTorch {document['torch']}, {document['threads']} threads, {document['shape']}"]
    if not document["complete"]:
        lines.append(f"\n**Not complete: {len(runs)} of {document['planned']} runs were done.**")
    wrong = differing(runs)
    lines.append("")
    if wrong:
        where = ", ".join(f"{model} at batch {batch}" for model, batch in wrong)
        lines.append(f"**Losses DIFFER between modes: {where}. This is a fault.**")
    elif runs:
        lines.append("Losses are identical to the last bit in all modes and rounds.")
    hooks = document.get("hooks")
    if hooks:
        lines.append(
            f"Time in hooks, CPU, median: {hooks['save_us']:.1f} us per tensor saved and {hooks['use_us']:.1f} us per tensor used "
            f"({hooks['save_us_wall']:.1f} us on the clock per tensor saved)."
        )
    for model in dict.fromkeys(run["model"] for run in runs):
        lines += ["", f"## {model}", "", *_rows(model, cells), "", *_findings(model, cells)]
        lines += [f"\n![{model}]({chart.name})" for chart in charts if chart.stem == model and chart.suffix == ".svg"]
    return "\n".join(lines) + "\n"


def draw(runs: List[Run], folder: Path) -> List[Path]:
    """The recompute-offload-keep curve of each model: tokens per second over the memory of activations, a line per mode
    along the batch sizes.

    :raises ImportError: no matplotlib
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cells = summarize(runs)
    files = []
    for model in dict.fromkeys(run["model"] for run in runs):
        figure, axes = pyplot.subplots(figsize=(7, 4.5))
        for mode in MODES:
            points = sorted((b, cell) for (m, kind, b), cell in cells.items() if (m, kind) == (model, mode))
            if not points:
                continue
            across = [cell["activation_peak_bytes"] / MIB for _, cell in points]
            up = [cell["tokens_per_second"] for _, cell in points]
            axes.plot(across, up, "o-", color=COLOURS[mode], label=mode)
            for (batch, _), x, y in zip(points, across, up):
                axes.annotate(f"batch {batch}", (x, y), textcoords="offset points", xytext=(5, 5), fontsize=8)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("activation peak, MiB")
        axes.set_ylabel("tokens per second")
        axes.set_title(f"{model}: recompute, offload, keep")
        axes.grid(alpha=0.3)
        axes.legend()
        for kind in ("svg", "png"):
            path = folder / f"{model}.{kind}"
            figure.savefig(path, dpi=120, bbox_inches="tight")
            files.append(path)
        pyplot.close(figure)
    return files
