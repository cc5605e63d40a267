# SPDX-License-Identifier: MIT
# spillway/_offload/reports.py - what an Offload tells of itself: counters, reports, plan, trace
from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any, List, Optional, TextIO, Tuple

from torch import nn

from .._core.counted import CacheStats, DeviceStats
from .._core.library import SpillwayError, bytes_text, to_dataclass
from .._params.stats import ParameterStats
from .._report.files import save, write
from .._report.html import page_of
from .._report.notebook import piece_of
from .._report.run_record import Profile, Run, json_of
from ..report import (Progress, hints_of, last_step_bytes, parameters_line, summary_of, table_of,
                      wear_since)
from ..store import Path
from .explain import ScopePlan, scope_plans, text_of
from .frozen import FrozenCopies
from .heap import Resident
from .resting import Resting
from .session import Session

if TYPE_CHECKING:
    from .._params.parameters import Parameters

_log = logging.getLogger("spillway")


class Reports:
    """What these read is set by Offload."""

    _model: nn.Module
    _name: str  # reports have it when the model is gone
    _parameters: Optional[Parameters]
    _scopes: List[nn.Module]
    _recomputer: Any
    _operations: Any
    _frozen: FrozenCopies
    _session: Session
    _resident: Resident
    _progress: Optional[Progress]
    # Others may have used the store.
    _drives_before: List[Any]
    _store_before: Any
    _since: float
    _endurance_bytes: int
    _entries: int  # of the context
    _host_words: str  # that host_bytes has no use
    _compiled_words: str  # why spilling what is compiled as one piece gains little
    _trace_path: Optional[Path]
    _resting: Resting
    _report_paths: List[str]
    # What a report says, from the moment when it is closed on.
    _last: Optional[Tuple[Run, str]] = None

    def __repr__(self) -> str:
        cache = self._session.cache
        words = (f"<spillway.torch.Offload of {self._name}, mode {cache.mode!r}, "
                 f"{len(self._scopes)} scopes")
        if cache.closed:
            return words + ": closed>"
        stats = self.stats()
        return (f"{words}: {stats.steps} steps, {bytes_text(stats.bytes_spilled)} written, "
                f"{bytes_text(stats.activation_bytes_max)} of activations in memory at most>")

    def _repr_html_(self) -> Optional[str]:
        """What Jupyter shows: the memory over the last step, and the drives. None, before a step
        has ended and when it is closed: then it shows what repr() says."""
        cache = self._session.cache
        if cache.closed or cache.forgotten:
            return None
        run = self._run()
        return piece_of(run) if run.profile else None

    def stats(self) -> CacheStats:
        """Counters since offload() was called; once it is closed, up to then."""
        if self._last is not None:
            return self._last[0].stats
        self._session.drain()
        return self._session.cache.stats()

    def device_stats(self) -> Optional[DeviceStats]:
        """The counters of tensors on CUDA devices; None: the model has none there."""
        return None if self._session.device is None else to_dataclass(DeviceStats, self.stats())

    def parameter_stats(self) -> Optional[ParameterStats]:
        """Counters of parameters on drives; None: they are in memory."""
        return None if self._parameters is None else self._parameters.stats()

    def _tell_progress(self) -> None:
        if self._progress is not None and not self._session.cache.closed:
            self._progress.tell(self.stats())

    @property
    def activation_peak_bytes(self) -> int:
        """The most bytes of memory that held activations at once: saved tensors, staging and
        prefetched memory. On a GPU only its own memory counts."""
        return self.stats().activation_bytes_max

    def report(self, file: Optional[TextIO] = None, *, html: Optional[Path] = None,
               json: Optional[Path] = None) -> None:
        """Print a table of what the cache and the drives did since offload() was called, how much
        that wears the drives, and hints, to standard output or a file. Once it is closed: what they
        did up to then.

        :param html: a file to write instead: a page for a browser, with the memory over the last
            step, the plan and its reasons, drives and wear. It needs nothing from elsewhere
        :param json: the same as figures, for programs and for ``spillway report``
        :raises OSError: it cannot be written
        """
        if html is not None or json is not None:
            run = self._run()
            for path, text_of in ((html, page_of), (json, json_of)):
                if path is not None:
                    write(text_of(run), path)
            return
        text = self._text(self._run()) if self._last is None else self._last[1]
        print(text, file=file or sys.stdout)

    def _text(self, run: Run) -> str:
        parts = [table_of(run, self._session.device is not None)]
        if self._parameters is not None:
            parts.append(parameters_line(self._parameters.stats()))
        return "\n".join([*parts, *run.hints])

    def summary(self) -> str:
        """One line: activations and memory of the process, without spilling and with it, and what
        that cost. Activations are those of the last step."""
        return summary_of(self._run())

    def explain(self, file: Optional[TextIO] = None) -> List[ScopePlan]:
        """Print what the plan in force does with each scope, why, and what the next best would
        have cost, to standard output or a file; and why scopes are not recomputed. Takes some
        milliseconds for each scope.

        :return: the same as figures; empty: no plan is in force
        """
        reasons, planned = self._session.cache.explain()
        keys = dict(enumerate(self._scopes, 1))
        modules = {module: name for name, module in self._model.named_modules()}
        names = {key: modules.get(module) or type(module).__name__ for key, module in keys.items()}
        refused = {} if self._recomputer is None else self._recomputer.refused
        plans = scope_plans(reasons, planned, names, {
            key: refused[module] for key, module in keys.items() if module in refused})
        operations = "" if self._operations is None else self._operations.words()
        print(text_of(plans, planned), *filter(None, [operations]), sep="\n",
              file=file or sys.stdout)
        return plans

    def _run(self) -> Run:
        if self._last is not None:
            return self._last[0]
        cache, seconds = self._session.cache, time.monotonic() - self._since
        stats, store, profile = self.stats(), cache.store, cache.profile()
        drives = [] if store is None or store.closed else store.drive_stats()
        return Run(
            self._name, cache.mode, time.strftime("%Y-%m-%d %H:%M"), seconds, stats,
            profile, drives, self._drives_before,
            wear_since(drives, self._drives_before, seconds, self._endurance_bytes),
            "" if store is None or store.closed else store.description,
            self._hints(stats, profile), *self._process(stats, profile))

    def _process(self, stats: CacheStats, profile: Profile) -> Tuple[int, int, str]:
        """As a Run has it: the most memory of the process, what that would be if nothing were
        spilled, and why freed memory stays in it."""
        resident, heap = self._resident.peak_bytes, self._session.heap
        _, kept = last_step_bytes(profile)
        spared = max(0, kept - stats.step_peak_bytes) if kept else 0
        return (resident, resident + spared if resident else 0,
                heap.why_not or "" if heap is not None else "")

    @property
    def resident_peak_bytes(self) -> int:
        """The most memory of this process that was resident (RSS) since offload() was called;
        0: the system does not tell."""
        return self._resident.peak_bytes

    def _hints(self, stats: CacheStats, profile: Profile) -> List[str]:
        hints = list(hints_of(stats, self._entries, self._session.cache.store, self._store_before,
                              self._session.others))
        frozen = self._frozen.words(last_step_bytes(profile)[1])
        more = self._compiled_words, self._host_words, frozen
        return hints + [f"hint: {words}" for words in more if words]

    def _summarize(self) -> None:
        """Before it closes: later reports show what it did up to then. Errors must not keep it from
        closing."""
        if self._last is not None:  # its store closes, and has said so
            return
        try:
            run = self._run()
            last = run, self._text(run)
        except (SpillwayError, OSError, ValueError) as error:
            _log.warning("what this run did cannot be told: %s", error)
            return
        self._leave_report()
        self._last = last
        if self._entries:
            _log.info("%s, mode %r: %s", self._name, run.mode, summary_of(run))

    def _leave_report(self) -> None:
        """At its end, where it was asked for. Errors must not end the training."""
        paths, self._report_paths = self._report_paths, []
        for path in [] if self._session.cache.closed else paths:
            try:
                save(self._run(), path)
                _log.info("the report of this run is in %s", path)
            except (OSError, ValueError) as error:
                _log.warning("the report of this run is not written: %s", error)

    def trace(self, path: Path) -> None:
        """Record the next whole step, for Perfetto (ui.perfetto.dev) or chrome://tracing.

        The file shows layers, stages, each tensor saved and used, how long its use waited, and how
        much memory held activations, waited to be written and was prefetched. It is complete when
        the step after begins, or at close(). Recording costs some microseconds per tensor.

        :raises OSError: the file cannot be made
        """
        with open(path, "w", encoding="ascii"):  # fails now, not after the step
            pass
        self._trace_path = path
        self._resting.look_closer()

    def _write_trace(self) -> None:
        """A trace that cannot be written must not end the training."""
        if self._session.tracer is not None and not self._session.cache.forgotten:
            try:
                self._session.tracer.write()
            except OSError as error:
                _log.warning("the trace is not written: %s", error)
