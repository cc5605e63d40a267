# SPDX-License-Identifier: MIT
# tests/pytorch/hooked.py - a plugin for pytest: every test runs with hooks on saved tensors
"""Loaded by suite.py, by -p. In its environment:

  SPW_SUITE_WAY      plain: no hooks; copies: hooks that only copy; spilled: spillway's
  SPW_SUITE_RESULTS  a file that grows by lines of JSON: {"begun": test}, then {"test": ...,
                     "outcome": ...}. Tests that it names already are left out: so a run goes on
                     after the test that ended the last one
  SPW_SUITE_TIMEOUT  seconds for one test; then the process ends, and shows its stacks
  SPW_TEST_DEVICES   drives for "spilled"

PyTorch's tests read options from the command line, so there are none here."""
import contextlib
import ctypes
import faulthandler
import json
import os

import pytest
import torch

RESULTS = os.environ["SPW_SUITE_RESULTS"]
TIMEOUT_S = float(os.environ["SPW_SUITE_TIMEOUT"])
MESSAGE_LINES = 12
MEMORY_MAX_BYTES = 4 << 30
STDERR = os.dup(2)  # pytest takes the other one for what the tests print


def copies():
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach().clone(),
                                                    lambda copy: copy)


class Spilled:
    """Everything that is saved is written before the test goes on, so that each use reads it from
    the drives. One cache for each test, on one store."""

    KEPT = ("tensors_kept_backpressure", "tensors_kept_no_space", "tensors_kept_error",
            "tensors_kept_entries", "tensors_kept_last_scope", "tensors_kept_backward")

    def __init__(self):
        import spillway
        import spillway.torch
        from spillway._core import counted, library

        drives = os.environ["SPW_TEST_DEVICES"].split()
        spillway.format_store(drives)
        self.offload, self.Sizes = spillway.torch.offload, spillway.torch.Sizes
        self.store = spillway.Store(drives)
        self.counters, self.read_counters = counted.CacheStruct, library.fast.spw_cache_stats
        self.counts = {}  # of the last test

    def staging_bytes(self, cache, counters):
        cache.call(self.read_counters, ctypes.byref(counters), ctypes.sizeof(counters))
        return counters.staging_bytes

    def settled(self, min_bytes=0):
        """An Offload of which each save waits until it is written."""
        off = self.offload(torch.nn.Module(), self.store, mode="spill",
                           sizes=self.Sizes(min_bytes=min_bytes))
        session = off._session
        save = session.pack
        # as a struct: a dataclass of it for each save would take as long as the write
        counters = self.counters()

        def save_and_settle(tensor):
            saved = save(tensor)
            if session.cache.forgotten:  # a child of fork(), which keeps what it saves
                return saved
            while self.staging_bytes(session.cache, counters):
                session.drain()
            session.drain()  # a write that ended between the two would still have its memory
            return saved

        session.pack = save_and_settle
        return off

    def end(self, off):
        stats = off.stats()
        names = "offers", "tensors_spilled", "tensors_deduplicated", *self.KEPT
        self.counts = {name: getattr(stats, name) for name in names}
        del off._session.pack
        off.close()

    @contextlib.contextmanager
    def hooks(self):
        off = self.settled()
        try:
            with off:
                # told once, it is not guessed again: what a backward pass saves is spilled, too
                off.stage(0, "backward")
                off.stage(0, "forward")
                yield
        finally:
            self.end(off)


def note(**what):
    with open(RESULTS, "a", encoding="utf-8") as file:
        file.write(json.dumps(what) + "\n")


def noted():
    """The tests that a run before this one began."""
    if not os.path.exists(RESULTS):
        return set()
    with open(RESULTS, encoding="utf-8") as file:
        return {what["begun"] for what in map(json.loads, file) if "begun" in what}


class Plugin:
    def __init__(self, way):
        self.spilled = Spilled() if way == "spilled" else None
        self.hooks = {"plain": contextlib.nullcontext, "copies": copies,
                      "spilled": getattr(self.spilled, "hooks", None)}[way]
        self.reports = []

    @staticmethod
    def watch():
        faulthandler.dump_traceback_later(TIMEOUT_S, exit=True, file=STDERR)

    def pytest_collection_modifyitems(self, items):
        done = noted()
        items[:] = [item for item in items if item.nodeid not in done]

    def pytest_runtest_logstart(self, nodeid):
        self.watch()
        self.reports = []
        note(begun=nodeid)

    @pytest.hookimpl(hookwrapper=True, trylast=True)
    def pytest_runtest_call(self):
        with self.hooks():
            yield

    def pytest_runtest_logreport(self, report):
        self.reports.append(report)

    def pytest_runtest_logfinish(self, nodeid):
        outcome, message = outcome_of(self.reports)
        counts = self.spilled.counts if self.spilled else {}
        note(test=nodeid, outcome=outcome, message=message,
             seconds=sum(report.duration for report in self.reports), **counts)
        self.watch()  # of what is between tests, and at the end

    def pytest_sessionfinish(self, exitstatus):
        note(ended=int(exitstatus))


def outcome_of(reports):
    """(outcome, its message)"""
    for report in reports:
        if report.failed:
            return "failed" if report.when == "call" else "error", cause(report.longreprtext)
    for report in reports:
        if hasattr(report, "wasxfail"):
            return ("xfailed" if report.skipped else "xpassed"), report.wasxfail
        if report.skipped:
            return "skipped", report.longrepr[2] if isinstance(report.longrepr, tuple) else str(
                report.longrepr)
    return "passed", ""


def cause(text):
    """Of a failure's text: where it was raised, and the first lines of the error's own text, which
    may be matrices."""
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith("E ")), 0)
    return "\n".join(lines[max(0, first - 2):first + MESSAGE_LINES])


def pytest_configure(config):
    from torch.testing._internal import common_device_type

    faulthandler.enable(STDERR)
    Plugin.watch()
    # Which tests run must not hang on how much memory happens to be free.
    common_device_type._has_sufficient_memory = lambda _device, size: size <= MEMORY_MAX_BYTES
    config.pluginmanager.register(Plugin(os.environ["SPW_SUITE_WAY"]))
