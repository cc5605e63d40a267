# SPDX-License-Identifier: MIT
# spillway/report.py - the counters of a training run as a table for people
from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING, Iterable, List, Mapping, Optional, Sequence, TextIO, Tuple

from ._core.library import bytes_text
from .cache import CacheStats
from .store import DriveStats, Store, StoreStats
from .wear import Wear, wear_of

if TYPE_CHECKING:
    from ._report.run_record import Profile, Run
    from ._params.stats import ParameterStats

Row = Tuple[str, str]

NOT_WRITTEN = ("only plain dense tensors go to drives, and those inside of DTensors and jagged "
               "tensors, unless they share a larger storage")


def per_day_text(count: float) -> str:
    for length, unit in ((1e12, "TB"), (1e9, "GB")):
        if count >= length:
            return f"{count / length:.1f} {unit} a day"
    return f"{count / 1e6:.1f} MB a day"


def years_text(wear: Wear) -> str:
    """How long the drive lasts, in words."""
    if wear.left_bytes is None:
        return "for how long is unknown"
    if wear.left_bytes <= 0:
        return "it is used up"
    if wear.years is None:
        return "nothing is written"
    days = wear.years * 365.25
    if days < 730:
        return f"lasts {days:.1f} days" if days >= 2 else f"lasts {days * 24:.1f} hours"
    return f"lasts {wear.years:.1f} years" if wear.years < 1000 else "lasts over 1000 years"


def _both(stats: CacheStats, name: str) -> str:
    count = getattr(stats, "tensors_" + name)
    return f"{bytes_text(getattr(stats, 'bytes_' + name))} in {count} tensors"


_KEPT = (
    ("small", "too small"),
    ("planned", "by the plan"),
    ("last_scope", "needed first (the last layer, and what follows)"),
    ("backward", "saved in the backward pass"),
    ("observed", "only watching"),
    ("hint", "excluded, or of a kind that is not written"),
    ("changed", "changed in a way that PyTorch does not count"),
    ("backpressure", "drives too slow"),
    ("no_space", "store full"),
    ("error", "drives or copies failed"),
    ("entries", "no entry free"),
    ("no_staging", "no staging or host memory free"),
    ("wear", "the cap on wear was used up"),
)


def kept_rows(stats: CacheStats) -> Iterable[Tuple[str, int, int]]:
    """Why tensors were kept in memory, with their bytes and how many."""
    for name, words in _KEPT:
        if getattr(stats, "tensors_kept_" + name):
            yield (words, getattr(stats, "bytes_kept_" + name),
                   getattr(stats, "tensors_kept_" + name))


# By enum spw_budget_cause.
_BUDGET = (
    "it is met",
    "no plan was in force: steps of a new shape are measured first",
    "no plan was found that fits: raise it, or recompute more",
    "the step was not the one that was planned for",
    "the drives were slower than planned: what was above it waited to be written",
    "tensors were saved earlier, or in use longer, than planned",
)


def budget_rows(stats: CacheStats) -> Iterable[Row]:
    """Whether the budget was met by the last step that ended, and by those before."""
    if not stats.budget_bytes:
        return
    cause = min(stats.budget_cause, len(_BUDGET) - 1)
    over = f", exceeded by {bytes_text(stats.budget_over_bytes)}" if cause else ""
    yield "budget", f"{bytes_text(stats.budget_bytes)}{over}: {_BUDGET[cause]}"
    if stats.budget_steps_over:
        most = bytes_text(stats.budget_over_bytes_max)
        yield "  exceeded so far", f"by {stats.budget_steps_over} steps, by {most} at most"


def last_step_bytes(profile: Profile) -> Tuple[int, int]:
    """Most bytes of activations in the last step: in memory, and if nothing were spilled; 0, 0: no
    step has ended."""
    return (max((point[1] for point in profile), default=0),
            max((point[2] for point in profile), default=0))


def percent_text(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole > 0 else "0 %"


def _cache_rows(run: Run) -> Iterable[Row]:
    stats, (ours, plain) = run.stats, last_step_bytes(run.profile)
    yield "steps", str(stats.steps)
    if plain:
        yield ("activations in the last step, peak",
               f"{bytes_text(ours)}, {percent_text(ours, plain)} of the {bytes_text(plain)} "
               "without spilling")
    yield "activations since the start, peak", bytes_text(stats.activation_bytes_max)
    yield from process_rows(run)
    yield from budget_rows(stats)
    yield "offered", bytes_text(stats.bytes_offered)
    yield "  written to drives", _both(stats, "spilled")
    yield "  handed over before it was written", _both(stats, "forwarded")
    yield "  the same bytes as another", _both(stats, "deduplicated")
    for words, count, tensors in kept_rows(stats):
        yield f"  kept: {words}", f"{bytes_text(count)} in {tensors} tensors"
    if stats.tensors_given_up:
        yield "  discarded, to be recomputed", _both(stats, "given_up")
        yield "  restored", f"{_both(stats, 'restored')}, by {stats.scopes_again} recomputations"
    yield "read back", bytes_text(stats.bytes_read)
    yield "  in time", f"{stats.prefetch_hits} tensors"
    late = stats.prefetch_late + stats.misses
    yield "  waited for", f"{late} tensors, {stats.stall_seconds * 1000:.1f} ms"
    if stats.plan_tensors:
        yield "plan", f"{stats.plan_tensors_spilled} of {stats.plan_tensors} tensors spill"
        peak, kept = bytes_text(stats.plan_peak_bytes), bytes_text(stats.plan_keep_all_bytes)
        yield "  peak predicted", f"{peak} of {kept}"
        yield "  written in a step", bytes_text(stats.plan_bytes_written)
        if stats.plan_tensors_host:
            yield "  in host memory", (f"{bytes_text(stats.plan_bytes_host)} in "
                                       f"{stats.plan_tensors_host} tensors")
        if stats.plan_scopes_again:
            seconds = f"{stats.plan_again_ns / 1e9:.3g} s"
            yield "  recomputed in a step", f"{stats.plan_scopes_again} scopes in {seconds}"
    if stats.wear_bytes_per_day:
        limited = "has kept more in memory" if stats.plans_limited else "has changed no plan"
        yield "cap on wear", f"{per_day_text(stats.wear_bytes_per_day)}: it {limited}"
    for name in ("writes_failed", "reads_failed", "prefetches_failed", "restores_refused"):
        if getattr(stats, name):
            yield name.replace("_", " "), str(getattr(stats, name))


def bus_text(stats: CacheStats) -> str:
    return (f"{stats.bus_out_bytes_per_second / 1e9:.2f} GB/s out, "
            f"{stats.bus_in_bytes_per_second / 1e9:.2f} GB/s in")


def _device_rows(stats: CacheStats) -> Iterable[Row]:
    yield "on devices, peak", bytes_text(stats.device_bytes_max)
    yield "  copied to host memory", f"{bytes_text(stats.bytes_copied)} in {stats.copies} copies"
    yield "  staging memory, peak", bytes_text(stats.device_staging_bytes_max)
    if stats.host_memory_bytes:
        used, given = bytes_text(stats.host_bytes_max), bytes_text(stats.host_memory_bytes)
        yield "  host memory, peak", f"{used} of {given}"
        yield "  stayed there, not written", _both(stats, "to_host")
        yield "  came back from there", f"{stats.host_hits} times"
    if stats.bus_out_bytes_per_second or stats.bus_in_bytes_per_second:
        yield "  bus", bus_text(stats)
        yield "  waited for copies", f"{stats.device_stall_ns / 1e6:.1f} ms"
    if stats.copies_failed:
        yield "  copies failed", str(stats.copies_failed)


def _drive_rows(now: Sequence[DriveStats], before: Sequence[DriveStats]) -> Iterable[Row]:
    for drive, earlier in zip(now, before):
        written = bytes_text(drive.bytes_written - earlier.bytes_written)
        read = bytes_text(drive.bytes_read - earlier.bytes_read)
        state = ", no space below it" if drive.full else ", retired" if drive.retired else ""
        yield drive.path, f"{written} written, {read} read{state}"


def wear_rows(drives: Sequence[Tuple[str, Wear]]) -> Iterable[Row]:
    """A row for each drive, and one for each reason why something is not known."""
    for path, wear in drives:
        used = "" if wear.percentage_used is None else f", {wear.percentage_used} % used so far"
        yield f"wear of {path}", f"{per_day_text(wear.bytes_per_day)}, {years_text(wear)}{used}"
    for reason in dict.fromkeys(wear.reason for _, wear in drives if wear.reason):
        yield "  not all is known", reason + (
            "" if all(wear.left_bytes is not None for _, wear in drives)
            else "; offload(endurance_bytes=) names a rating")


def wear_since(now: Sequence[DriveStats], before: Sequence[DriveStats], seconds: float,
               endurance_bytes: float) -> List[Tuple[str, Wear]]:
    """Of each drive, at the rate since ``before``, ``seconds`` ago."""
    return [(drive.path, wear_of(drive.path, drive.bytes_written - earlier.bytes_written,
                                 max(seconds, 1e-3), endurance_bytes))
            for drive, earlier in zip(now, before)]


def process_rows(run: Run) -> Iterable[Row]:
    """The memory of the process, as a user sees it."""
    resident, plain = run.resident_bytes_max, run.resident_plain_bytes
    if resident:
        beside = f"; about {bytes_text(plain)} without spilling" if plain > resident else ""
        yield "memory of the process (RSS), peak", bytes_text(resident) + beside
    if run.heap:
        yield "  freed memory may stay in it", run.heap


def table_of(run: Run, on_device: bool) -> str:
    """One line per counter that says something, and two per drive."""
    rows: List[Row] = list(_cache_rows(run))
    if on_device:
        rows.extend(_device_rows(run.stats))
    rows.extend(_drive_rows(run.drives, run.before))
    rows.extend(wear_rows(run.wear))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {value}" for name, value in rows)


def summary_of(run: Run) -> str:
    """One line. Memory of the process without spilling is computed, so "about"."""
    stats, (ours, kept) = run.stats, last_step_bytes(run.profile)
    parts = [f"activations {bytes_text(kept)} -> {bytes_text(ours)}" if kept else
             f"activations at most {bytes_text(stats.activation_bytes_max)}"]
    if run.resident_plain_bytes > run.resident_bytes_max:
        parts.append(f"process about {bytes_text(run.resident_plain_bytes)} -> "
                     f"{bytes_text(run.resident_bytes_max)}")
    if stats.bytes_to_host:
        parts.append(f"{bytes_text(stats.bytes_to_host)} kept in host memory")
    return ", ".join([*parts, f"{bytes_text(stats.bytes_spilled)} written",
                      f"waited {stats.stall_seconds:.1f} of {run.seconds:.1f} s",
                      f"{stats.steps} steps"])


def moves_nothing(total_bytes: int, limit_bytes: int) -> str:
    """In words, of parameters on drives that all have room in memory."""
    if total_bytes == 0:
        return "parameters=True moves nothing: no parameter of the model can be on drives"
    return (f"parameters=True moves nothing: the {bytes_text(limit_bytes)} of memory given hold "
            f"all {bytes_text(total_bytes)} of parameters; give less with Sizes(parameter_bytes=) "
            "or host_bytes= (the default is three of the largest scope, on a GPU two), or smaller "
            "scopes=")


def parameters_line(stats: ParameterStats) -> str:
    """What parameters on drives came to."""
    limit_bytes = stats.device_limit_bytes or stats.limit_bytes  # what they have to leave
    return (f"{stats.parameters} parameters of {bytes_text(stats.total_bytes)} on drives: "
            f"{bytes_text(stats.memory_bytes_max)} in memory at most "
            f"({bytes_text(stats.limit_bytes)} given), {bytes_text(stats.bytes_read)} read, "
            f"{bytes_text(stats.bytes_written)} written, waited {stats.wait_ns / 1e9:.3f} s in "
            f"{stats.waits} of {stats.uses} uses" +
            ("\nhint: " + moves_nothing(stats.total_bytes, limit_bytes)
             if stats.total_bytes <= limit_bytes else ""))


def hints_of(stats: CacheStats, entries: int, store: Optional[Store],
             before: Optional[StoreStats],
             others: Mapping[str, Tuple[int, int]]) -> Iterable[str]:
    """What could be better, in words.

    :param entries: how often the context was entered
    :param others: what stays in memory whatever the plan: how many were saved, and their bytes
    :param before: the store's counters when those of ``stats`` began
    """
    if entries == 0:
        yield ("hint: nothing ran inside the context: put the forward pass inside of `with off:`, "
               "or decorate the function of a step with `@off`")
    elif stats.offers == 0:
        yield ("hint: autograd saved nothing inside the context: is it the forward pass of the "
               "model that offload() was given, and not under torch.no_grad()?")
    for kind, (tensors, count) in others.items():
        yield (f"hint: {bytes_text(count)} in {tensors} saved tensors of {kind} stayed in memory: "
               + NOT_WRITTEN)
    if store is None or before is None or store.closed:
        return
    now = store.stats()
    chunks = (now.bytes_written - before.bytes_written) // store.chunk_bytes
    copied = now.copies_unaligned_address - before.copies_unaligned_address
    if 2 * copied > chunks > 0:
        yield (f"hint: {copied} chunks were copied before they were written, because PyTorch's "
               "memory does not begin where drives need it; without copies, by\n"
               f"  {aligned_command()}")


def aligned_command() -> str:
    """This program, with memory that drives take as it is."""
    if "ipykernel" in sys.modules:  # whose own command the user never typed
        return "spillway run -- jupyter lab"
    return "spillway run -- " + shlex.join(sys.orig_argv)


class Progress:
    """A line per training step: on a terminal one that rewrites itself."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._rewrites = file.isatty()
        self._told = 0, 0, 0.0  # steps, bytes spilled and seconds stalled
        self._since = time.perf_counter()

    def tell(self, stats: CacheStats) -> None:
        """Print a line if a step has ended since the last call. Errors of the file are ignored:
        training goes on."""
        steps, spilled, stalled = self._told
        if stats.steps == steps:
            return
        now = time.perf_counter()
        line = (f"step {stats.steps}  {now - self._since:.2f} s  "
                f"activations {bytes_text(stats.activation_bytes_max)} at most  "
                f"{bytes_text(stats.bytes_spilled - spilled)} to drives  "
                f"waited {(stats.stall_seconds - stalled) * 1000:.0f} ms")
        self._told = stats.steps, stats.bytes_spilled, stats.stall_seconds
        self._since = now
        self._write(f"\r\033[K{line}" if self._rewrites else line + "\n")

    def end(self) -> None:
        if self._rewrites and self._told[0]:
            self._write("\n")

    def _write(self, text: str) -> None:
        try:
            self._file.write(text)
            self._file.flush()
        except (OSError, ValueError):
            pass
