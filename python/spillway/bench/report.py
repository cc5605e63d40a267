# SPDX-License-Identifier: MIT
# spillway/bench/report.py - make rows and charts of the runs of the matrix
from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Set, Tuple

from ..demo.chart import Point, draw
from .results import Row, row

MODES = ("keep", "recompute", "spillway")
THROTTLED = "throttled"  # mode spillway on drives slowed down
# How gradients are kept: the examples' option --grad-memory. Only runs with equal values are
# compared.
GRADIENTS = {
    "freed": "freed after the step",
    "kept": "kept and zeroed in place",
    "early": "let go in the backward pass",
}
# Where large blocks of memory come from. Only runs with equal values are compared, except in rows
# that say so.
MALLOCS = {
    "tuned": "glibc's malloc, told to take large blocks from the system on huge pages and to give "
             "them back, as `make demo` does",
    "libc": "the C library's malloc as it is",
    "run": "under `spillway run`",
}
MIB = 1 << 20
Run = Dict[str, Any]
Kind = Tuple[str, str, int, str, str]  # model, mode, batch, one of GRADIENTS, one of MALLOCS
Kinds = Dict[Kind, List[Run]]
Figure = Callable[[Run], float]


def kind_of(run: Run) -> Kind:
    return run["model"], run["mode"], run["batch"], run["grad_memory"], run["malloc"]


def kinds_of(runs: Iterable[Run]) -> Kinds:
    kinds: Kinds = {}
    for run in runs:
        kinds.setdefault(kind_of(run), []).append(run)
    return kinds


def _added(run: Run) -> bool:
    """Whether gradients were added to zeros: this turns negative zeros positive, so the bits
    differ from those of gradients that were not."""
    return bool(run["grad_memory"] == "kept")


def differing(runs: List[Run]) -> List[Tuple[str, int]]:
    """The (model, batch) whose losses or gradients are not the same to the last bit in all modes
    and rounds, in any step that several runs have."""
    losses: Dict[Any, Set[str]] = {}
    gradients: Dict[Any, Set[str]] = {}
    for run in runs:
        bits = zip(run["losses_hex"], run["step_gradients_sha256"])
        for step, (loss, gradient) in enumerate(bits):
            losses.setdefault((run["model"], run["batch"], step), set()).add(loss)
            gradients.setdefault((run["model"], run["batch"], step, _added(run)),
                                 set()).add(gradient)
    return sorted({key[:2] for seen in (losses, gradients) for key, bits in seen.items()
                   if len(bits) > 1})


def alone(runs: List[Run]) -> List[Tuple[str, int]]:
    """The (model, batch) with a single run, whose losses and gradients were compared with
    nothing."""
    seen = [(run["model"], run["batch"], _added(run)) for run in runs]
    return sorted({each[:2] for each in seen if seen.count(each) == 1})


# ---- Figures of one run. Its first step warms up, and spillway has no plan in it yet. ------------


def step_seconds(run: Run) -> float:
    return statistics.median(run["step_seconds"][1:])


def tokens_per_second(run: Run) -> float:
    return float(run["tokens_per_step"] / step_seconds(run))


def activation_peak(run: Run) -> float:
    return float(run["activation_peak_bytes"] / MIB)


def rss_peak(run: Run) -> float:
    return float(run["rss_peak_bytes"] / MIB)


def rss_of_forward(run: Run) -> float:
    return float(run["rss_phase_peak_bytes"]["forward"] / MIB)


def _timed(key: str, unit: float = 1) -> Figure:
    """A function that returns the median of the timed steps of a run."""
    return lambda run: statistics.median(step[key] for step in run["steps"][1:]) / unit


def _most(key: str) -> Figure:
    return lambda run: max((step[key] for step in run["steps"][1:]), default=0)


# ---- Rows ----------------------------------------------------------------------------------------


def _values(runs: List[Run], figure: Figure) -> List[float]:
    return [figure(run) for run in runs]


def _ratios(runs: List[Run], others: List[Run], figure: Figure) -> List[float]:
    """Ratios round by round, as rounds may differ more than modes do; of the medians, if no
    round has both."""
    ours, theirs = ({run["round"]: figure(run) for run in each} for each in (runs, others))
    both = [ours[number] / theirs[number] for number in ours if number in theirs]
    return both or [statistics.median(ours.values()) / statistics.median(theirs.values())]


def _fell(keep: List[Run], runs: List[Run], figure: Figure) -> float:
    """The decrease of memory as a fraction of the decrease of activations; NaN if they did not
    decrease."""
    middle = {each: [statistics.median(_values(of, each)) for of in (keep, runs)]
              for each in (figure, activation_peak)}
    (before, after), (most, least) = middle[figure], middle[activation_peak]
    return (before - after) / (most - least) if most > least else math.nan


def _own(name: str, mode: str, runs: List[Run]) -> Iterator[Row]:
    yield row(f"{name}: activation peak", _values(runs, activation_peak), "MiB")
    yield row(f"{name}: peak RSS", _values(runs, rss_peak), "MiB")
    yield row(f"{name}: step time", _values(runs, step_seconds), "s")
    if mode in ("spillway", THROTTLED) and all(_most("plan_peak_bytes")(run) > 0 for run in runs):
        ratios = [_most("activation_peak_bytes")(run) / _most("plan_peak_bytes")(run)
                  for run in runs]
        yield row(f"{name}: peak of the timed steps / planned", ratios, "ratio")
        yield row(f"{name}: waited per step", _values(runs, _timed("stall_seconds")), "s")
        yield row(f"{name}: written per step", _values(runs, _timed("bytes_spilled", MIB)), "MiB")
    if mode == THROTTLED:
        for way in ("write", "read"):
            speeds = [run[f"throttled_{way}_bytes_per_second"] / 1e6 for run in runs]
            yield row(f"{name}: {way} bandwidth of all drives", speeds, "MB/s")


def _against(name: str, kind: Kind, runs: List[Run], kinds: Kinds) -> Iterator[Row]:
    """The rows that compare runs of equal settings."""
    model, mode, batch, *how = kind
    for other in ("keep", "recompute"):
        like = kinds.get((model, other, batch, *how))  # type: ignore[arg-type]
        if like and other != mode and (mode, other) != ("keep", "recompute"):
            yield row(f"{name}: step time / {other}", _ratios(runs, like, step_seconds), "ratio")
            yield row(f"{name}: activation peak / {other}", _ratios(runs, like, activation_peak),
                      "ratio")
            fell = _fell(like, runs, rss_peak)
            if (mode, other) == ("spillway", "keep") and not math.isnan(fell):
                yield row(f"{name}: peak RSS fell, of what activations fell by", fell, "ratio")
                yield row(f"{name}: RSS of forward passes fell, of what activations fell by",
                          _fell(like, runs, rss_of_forward), "ratio")
    half = kinds.get((model, "keep", batch // 2, *how))  # type: ignore[arg-type]
    if half and mode == "spillway":
        yield row(f"{name}: peak RSS / keep at batch {batch // 2}", _ratios(runs, half, rss_peak),
                  "ratio", at_most=1)
        yield row(f"{name}: tokens per second / keep at batch {batch // 2}",
                  _ratios(runs, half, tokens_per_second), "ratio")


def _against_libc(name: str, kind: Kind, runs: List[Run], kinds: Kinds) -> Iterator[Row]:
    """The rows that compare the recommended settings with the defaults."""
    model, mode, batch, policy, malloc = kind
    for other in ("keep", "recompute") if (mode, malloc) == ("spillway", "run") else ():
        plain = kinds.get((model, other, batch, policy, "libc"))
        if plain:
            yield row(f"{name}: step time / {other} with libc", _ratios(runs, plain, step_seconds),
                      "ratio")
            yield row(f"{name}: peak RSS / {other} with libc", _ratios(runs, plain, rss_peak),
                      "ratio")


def hook_rows(programs: List[Dict[str, Any]]) -> Iterator[Row]:
    for hooks in programs:
        for key, words in (("save_us", "saving, median"), ("save_us_mean", "saving, mean"),
                           ("use_us", "using, median"), ("use_us_mean", "using, mean"),
                           ("pair_us", "both, by a pair that does nothing")):
            if key in hooks:
                yield row(f"CPU time in hooks, tensors of {hooks['name']}: {words}", hooks[key],
                          "us")
        for way in ("kept", "spilled"):
            if f"{way}_of_pair" in hooks:
                yield row(f"CPU time in hooks, tensors of {hooks['name']}: {way} / a pair that "
                          "does nothing", hooks[f"{way}_of_pair"], "ratio")
        if "rests_of_none" in hooks:
            yield row(f"CPU time of a step, tensors of {hooks['name']}: one that rests / without "
                      "hooks", hooks["rests_of_none"], "ratio")


def rows_of(document: Dict[str, Any]) -> List[Row]:
    """The rows of a report; ``document`` is the content of the JSON file."""
    runs = document["runs"]
    kinds, compared = kinds_of(runs), "losses or gradients"
    rows = [row(f"models and batches whose {compared} differ between modes", len(differing(runs)),
                at_most=0),
            row(f"models and batches whose {compared} were compared with nothing",
                len(alone(runs))),
            row("runs that were planned and not done", document["planned"] - len(runs), at_most=0)]
    for kind, of_kind in kinds.items():
        model, mode, batch, policy, malloc = kind
        name = f"{model} batch {batch}, {malloc}, gradients {policy}, {mode}"
        for each in (_own(name, mode, of_kind), _against(name, kind, of_kind, kinds),
                     _against_libc(name, kind, of_kind, kinds)):
            rows += each
    return rows + list(hook_rows(document.get("hooks", [])))


def draw_curves(runs: List[Run], folder: Path) -> None:
    """Write MODEL.svg: tokens per second over the memory of activations, a point per batch size."""
    kinds = kinds_of(runs)
    for model in dict.fromkeys(run["model"] for run in runs):
        # Activations do not depend on how gradients are kept.
        _, _, _, *first = next(kind for kind in kinds if kind[0] == model)
        curves: Dict[str, List[Point]] = {}
        for (name, mode, batch, *how), of_kind in sorted(kinds.items()):
            if (name, how) == (model, first):
                peaks = _values(of_kind, activation_peak)
                speeds = _values(of_kind, tokens_per_second)
                curves.setdefault(mode, []).append(
                    Point(statistics.median(peaks), statistics.median(speeds), min(speeds),
                          max(speeds), f"{mode}, batch {batch}"))
        text = draw(f"{model}: recompute, offload, keep", "activation peak (MiB)",
                    "tokens per second", curves)
        (folder / f"{model}.svg").write_text(text)
