# SPDX-License-Identifier: MIT
# spillway/bench/report.py - what the runs of the matrix say: summaries, Markdown, charts
from __future__ import annotations

import itertools
import statistics
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Tuple

from .standstill import notes

MODES = ("keep", "recompute", "spillway")
THROTTLED = "throttled"  # mode spillway on drives slowed down
SHOWN = MODES + (THROTTLED,)
COLOURS = {"keep": "#4c6a92", "recompute": "#b5651d", "spillway": "#1b7f4d", THROTTLED: "#8a8a3c"}
# What becomes of gradients: the examples' option --grad-memory. It changes where the peak of memory lies, in every mode: only runs
# of the same are compared.
GRADIENTS = {
    "freed": "freed after the step",
    "kept": "kept and zeroed in place",
    "early": "let go in the backward pass",
}
# Where large blocks of memory come from, in every mode: only runs of the same are compared, but for one line that says so.
MALLOCS = {
    "tuned": "glibc's malloc, told to take large blocks from the system on huge pages and to give them back, as `make demo` does",
    "libc": "the C library's malloc as it is",
    "run": "under `spillway run`",
}
MIB = 1 << 20
Run = Dict[str, Any]
Kind = Tuple[str, str, int, str, str]  # model, mode, batch, what becomes of gradients, where large blocks come from


def kind_of(run: Run) -> Kind:
    return run["model"], run["mode"], run["batch"], run["grad_memory"], run["malloc"]


def summarize(runs: List[Run]) -> Dict[Kind, Dict[str, Any]]:
    """The median of the rounds of each kind of run. The first step of a run warms up (keep and recompute are watched in it, and
    with spillway no plan is there before it)."""
    cells: Dict[Kind, List[Run]] = {}
    for run in runs:
        cells.setdefault(kind_of(run), []).append(run)
    return {kind: _summary(of_kind) for kind, of_kind in cells.items()}


def _summary(runs: List[Run]) -> Dict[str, Any]:
    seconds = [statistics.median(run["step_seconds"][1:]) for run in runs]
    middle = statistics.median(seconds)
    return {
        "rounds": len(runs),
        "activation_peak_bytes": int(statistics.median(run["activation_peak_bytes"] for run in runs)),
        "rss_peak_bytes": int(statistics.median(run["rss_peak_bytes"] for run in runs)),
        "step_seconds": middle,
        "step_seconds_spread": [min(seconds), max(seconds)],
        "step_seconds_of_rounds": dict(zip((run["round"] for run in runs), seconds)),
        "step_cpu_seconds": statistics.median(statistics.median(run["step_cpu_seconds"][1:]) for run in runs),
        "step_page_faults": statistics.median(statistics.median(run["step_page_faults"][1:]) for run in runs),
        "tokens_per_second": runs[0]["tokens_per_step"] / middle,
        "stall_seconds": statistics.median(run.get("stall_seconds", 0.0) for run in runs),
        "bytes_spilled": int(statistics.median(run.get("bytes_spilled", 0) for run in runs)),
        "rss_phase_peak_bytes": _medians([run.get("rss_phase_peak_bytes", {}) for run in runs]),
        # Of the timed steps; before them there is no plan.
        "timed": _medians([_timed(run) for run in runs]),
        "notes": [f"round {run['round'] + 1}, {note}" for run in runs for note in notes(run)],
        "throttled": _medians([{name: run[name] for name in run if name.startswith("throttled_")} for run in runs]),
    }


def _medians(of_runs: List[Dict[str, float]]) -> Dict[str, float]:
    return {name: statistics.median(each[name] for each in of_runs) for name in of_runs[0] if all(name in e for e in of_runs)}


def _timed(run: Run) -> Dict[str, float]:
    steps = run.get("steps", [])[1:]
    if not steps:
        return {}
    planned = max(steps, key=lambda step: step["plan_peak_bytes"])
    return {
        "activation_peak_bytes": max(step["activation_peak_bytes"] for step in steps),
        "plan_peak_bytes": planned["plan_peak_bytes"],
        **{name: statistics.median(step[name] for step in steps) for name in ("stall_seconds", "bytes_spilled", "bytes_read")},
    }


def _added(run: Run) -> bool:
    """Whether gradients were added to zeros: they have no negative zero then, and so other bits than those that were not."""
    return run["grad_memory"] == "kept"


def differing(runs: List[Run]) -> List[Tuple[str, int]]:
    """The (model, batch) whose losses or gradients are not the same to the last bit in all modes and rounds, in any step that
    several runs have."""
    losses: Dict[Tuple[str, int, int], set] = {}
    gradients: Dict[Tuple[str, int, int, bool], set] = {}
    for run in runs:
        for step, (loss, gradient) in enumerate(zip(run["losses_hex"], run["step_gradients_sha256"])):
            losses.setdefault((run["model"], run["batch"], step), set()).add(loss)
            gradients.setdefault((run["model"], run["batch"], step, _added(run)), set()).add(gradient)
    return sorted({key[:2] for seen in (losses, gradients) for key, bits in seen.items() if len(bits) > 1})  # type: ignore[attr-defined]


def alone(runs: List[Run]) -> List[Tuple[str, int]]:
    """The (model, batch) of one run only, whose losses and gradients were compared with nothing."""
    seen = [(run["model"], run["batch"], _added(run)) for run in runs]
    return sorted({each[:2] for each in seen if seen.count(each) == 1})


def _named(cells: Iterable[Tuple[str, int]]) -> str:
    return ", ".join(f"{model} at batch {batch}" for model, batch in cells)


def _of(value: float, base: Optional[Dict[str, Any]], key: str) -> str:
    return f" ({value / base[key]:.2f})" if base and base[key] else ""


def _step_ratio(cell: Dict[str, Any], base: Dict[str, Any]) -> float:
    """The median of what it is in each round: rounds may differ by more than modes do."""
    ours, theirs = cell["step_seconds_of_rounds"], base["step_seconds_of_rounds"]
    both = [ours[number] / theirs[number] for number in ours if number in theirs]
    return statistics.median(both) if both else cell["step_seconds"] / base["step_seconds"]


def _policies(model: str, cells: Dict[Kind, Dict[str, Any]]) -> List[str]:
    """What became of gradients in the runs of a model: first what most of them have."""
    return list(dict.fromkeys(policy for m, _, _, policy, _ in cells if m == model))


def _mallocs(model: str, cells: Dict[Kind, Dict[str, Any]]) -> List[str]:
    """Where the runs of a model had large blocks from, the first first."""
    return list(dict.fromkeys(malloc for m, _, _, _, malloc in cells if m == model))


def _batches(model: str, cells: Dict[Kind, Dict[str, Any]]) -> List[int]:
    return sorted({batch for m, _, batch, _, _ in cells if m == model})


def _rows(model: str, cells: Dict[Kind, Dict[str, Any]]) -> Iterable[str]:
    yield ("| batch | malloc | gradients | mode | activation peak MiB (of keep) | peak RSS MiB | s/step (of keep) | spread | CPU s/step "
           "| page faults/step | tokens/s |")
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for batch, malloc, policy, mode in itertools.product(
        _batches(model, cells), _mallocs(model, cells), _policies(model, cells), SHOWN
    ):
        cell, keep = (cells.get((model, each, batch, policy, malloc)) for each in (mode, "keep"))
        if cell is None:
            continue
        peak, seconds = cell["activation_peak_bytes"], cell["step_seconds"]
        yield (
            f"| {batch} | {malloc} | {policy} | {mode} | {peak / MIB:,.0f}{_of(peak, keep, 'activation_peak_bytes')} "
            f"| {cell['rss_peak_bytes'] / MIB:,.0f} | {seconds:.3f}{f' ({_step_ratio(cell, keep):.3f})' if keep else ''} "
            f"| {cell['step_seconds_spread'][0]:.3f}-{cell['step_seconds_spread'][1]:.3f} "
            f"| {cell['step_cpu_seconds']:.3f} | {cell['step_page_faults']:,.0f} | {cell['tokens_per_second']:,.0f} |"
        )


def _where(keep: Dict[str, Any], spill: Dict[str, Any], saved: int) -> str:
    """In which phase of the step the peaks of RSS lie: without activations it is another."""
    of_keep, of_spill = keep["rss_phase_peak_bytes"], spill["rss_phase_peak_bytes"]
    if "forward" not in of_keep or "forward" not in of_spill:
        return ""
    phases = "; ".join(
        f"{phase} {of_keep[phase] / MIB:,.0f} and {of_spill[phase] / MIB:,.0f}" for phase in ("forward", "backward", "optimizer")
    )
    share = (of_keep["forward"] - of_spill["forward"]) / saved
    return f", that of the forward passes by {share:.2f} (MiB, kept and spilled: {phases})"


def _planned(title: str, cell: Dict[str, Any], keep: Optional[Dict[str, Any]]) -> Iterable[str]:
    timed = cell["timed"]
    if timed and timed["plan_peak_bytes"]:
        shares = [each["activation_peak_bytes"] / keep["activation_peak_bytes"] for each in (timed, cell)] if keep else []
        yield (
            f"- {title}: the plan predicted a peak of {timed['plan_peak_bytes'] / MIB:,.0f} MiB, measured in the timed steps "
            f"{timed['activation_peak_bytes'] / MIB:,.0f} MiB; waited {timed['stall_seconds']:.3f} s per step; wrote "
            f"{timed['bytes_spilled'] / MIB:,.0f} MiB per step"
            + (f"; of keep's peak that is {shares[0]:.3f}, and {shares[1]:.3f} with the first step, which has no plan" if shares else "")
        )


def _resident(title: str, keep: Dict[str, Any], spill: Dict[str, Any]) -> Iterable[str]:
    saved = keep["activation_peak_bytes"] - spill["activation_peak_bytes"]
    rss = keep["rss_peak_bytes"] - spill["rss_peak_bytes"]
    if saved > 0:
        yield f"- {title}: peak RSS fell by {rss / saved:.2f} of what the activation peak fell by{_where(keep, spill, saved)}"


def _against_twice(title: str, batch: int, keep: Dict[str, Any], twice: Dict[str, Any]) -> str:
    fits = twice["rss_peak_bytes"] <= keep["rss_peak_bytes"]
    return (
        f"- {title}, batch {2 * batch} spilled against batch {batch} kept: peak RSS "
        f"{twice['rss_peak_bytes'] / MIB:,.0f} of {keep['rss_peak_bytes'] / MIB:,.0f} MiB "
        f"({'fits' if fits else 'does not fit'}), activation peak "
        f"{twice['activation_peak_bytes'] / MIB:,.0f} of {keep['activation_peak_bytes'] / MIB:,.0f} MiB, tokens/s "
        f"{twice['tokens_per_second'] / keep['tokens_per_second']:.2f}"
    )


def _throttled(title: str, throttled: Dict[str, Any], keep: Optional[Dict[str, Any]]) -> Iterable[str]:
    speeds = throttled["throttled"]
    yield (
        f"- {title} on drives throttled to {speeds['throttled_write_bytes_per_second'] / 1e6:,.0f} MB/s of writing and "
        f"{speeds['throttled_read_bytes_per_second'] / 1e6:,.0f} of reading in all"
        + (f": step time of keep's: {_step_ratio(throttled, keep):.3f}" if keep else "")
    )
    yield from _planned(f"{title}, throttled", throttled, keep)


def _of_malloc(model: str, batch: int, malloc: str, title: str, cells: Dict[Kind, Dict[str, Any]]) -> Iterable[str]:
    """What is compared with its like."""
    first, *others = _policies(model, cells)
    keep, recompute, spill, throttled = (cells.get((model, mode, batch, first, malloc)) for mode in SHOWN)
    twice = cells.get((model, "spillway", 2 * batch, first, malloc))
    for policy in [first, *others]:
        pair = [cells.get((model, mode, batch, policy, malloc)) for mode in ("keep", "spillway")]
        if all(pair):
            yield from _resident(f"{title}, gradients {GRADIENTS[policy]}", *pair)
    if keep and spill:
        yield from _planned(f"{title}, spilled", spill, keep)
    if recompute and spill:
        yield f"- {title}: step time of recompute's: {_step_ratio(spill, recompute):.3f}"
    if throttled:
        yield from _throttled(title, throttled, keep)
    if keep and twice:
        yield _against_twice(title, batch, keep, twice)


def _of_command(model: str, batch: int, cells: Dict[Kind, Dict[str, Any]]) -> Iterable[str]:
    """What is recommended against what is there before anything is done: not like with like, and so it says."""
    policy = _policies(model, cells)[0]
    spill = cells.get((model, "spillway", batch, policy, "run"))
    for malloc, mode, words in (("libc", "keep", "kept"), ("libc", "recompute", "recomputed")):
        plain = cells.get((model, mode, batch, policy, malloc))
        if spill and plain:
            yield (
                f"- batch {batch}, spilled under `spillway run` against {words} with {MALLOCS[malloc]} (not like with like): step time "
                f"{_step_ratio(spill, plain):.3f}, peak RSS {spill['rss_peak_bytes'] / MIB:,.0f} of "
                f"{plain['rss_peak_bytes'] / MIB:,.0f} MiB"
            )


def _findings(model: str, cells: Dict[Kind, Dict[str, Any]]) -> Iterable[str]:
    mallocs = _mallocs(model, cells)
    for batch in _batches(model, cells):
        for malloc in mallocs:
            title = f"batch {batch}" + (f", {malloc}" if len(mallocs) > 1 else "")
            yield from _of_malloc(model, batch, malloc, title, cells)
        yield from _of_command(model, batch, cells)
    for (m, mode, batch, policy, malloc), cell in cells.items():
        if m == model:
            yield from (f"- batch {batch}, {malloc}, gradients {policy}, {mode}: {note}" for note in cell["notes"])


def _hooks(programs: List[Dict[str, Any]]) -> Iterable[str]:
    if not programs:
        return
    yield "\nTime in hooks, CPU time of the thread, us per tensor:\n"
    yield "| tensors of | saving, median | mean | on the clock | using, median | mean |"
    yield "|---|---|---|---|---|---|"
    for hooks in programs:
        times = (f"{hooks[name]:.1f}" for name in ("save_us", "save_us_mean", "save_us_wall", "use_us", "use_us_mean"))
        yield " | ".join([f"| {hooks['name']}", *times]) + " |"


def markdown(document: Dict[str, Any], charts: List[Path]) -> str:
    """The report of what was done; ``document`` as it is in the JSON file."""
    runs = document["runs"]
    cells = summarize(runs)
    kernels = f", OpenBLAS's kernels for {document['blas']}" if document.get("blas") else ""
    lines = ["# spillway.bench", "", f"PyTorch {document['torch']}{kernels}, {document['threads']} threads, {document['shape']}, {document['rounds']} rounds"]
    if not document["complete"]:
        lines.append(f"\n**Not complete: {len(runs)} of {document['planned']} runs were done.**")
    wrong, single = differing(runs), alone(runs)
    lines.append("")
    if wrong:
        lines.append(f"**Losses or gradients DIFFER between modes: {_named(wrong)}. This is a fault.**")
    elif len(runs) > len(single):
        lines.append("Losses and all gradients of every step are identical to the last bit in all modes and rounds.")
    if single:
        lines.append(f"One run only, with nothing to compare its losses and gradients with: {_named(single)}.")
    used = list(dict.fromkeys(run["malloc"] for run in runs))
    lines.append("\nLarge blocks of memory come from: " + "; ".join(f"*{name}*: {MALLOCS[name]}" for name in used) + ".")
    lines += _hooks(document.get("hooks", []))
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
        # Activations are the same whatever becomes of gradients.
        first = _policies(model, cells)[0], _mallocs(model, cells)[0]
        for mode in SHOWN:
            points = sorted((b, cell) for (m, kind, b, *how), cell in cells.items() if (m, kind, *how) == (model, mode, *first))
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
