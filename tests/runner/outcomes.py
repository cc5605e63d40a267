# SPDX-License-Identifier: MIT
# tests/runner/outcomes.py - what came of a program: cases, hangs, leftovers, times, closing line
import contextlib
import glob
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time

OUTPUT_LINES_SHOWN = 150
LEFTOVERS_SHOWN = 5
SECONDS_TO_CLEAN_UP = 5
SECONDS_TO_FOLLOW = 2
LONGEST_SHOWN = 10


class Outcome:
    """The cases of one program."""

    def __init__(self):
        self.passed = 0
        self.failures = []  # (case, why)
        self.skips = []  # (case, why)
        self.current = None  # the case that had begun and not ended

    def cases(self):
        return self.passed + len(self.failures) + len(self.skips)

    def fail(self, case, why):
        self.failures.append((case, why))

    def skip(self, case, why):
        self.skips.append((case, why or "no reason printed"))

    def hung(self, seconds, stacks):
        self.failures = [failure for failure in self.failures if failure[0] != self.current]
        why = f"hung, killed after {seconds:.0f} s\n{stacks}".strip().replace("\n", "\n         | ")
        self.fail(self.current or "before the first case", why)

    def add_leftovers(self, processes, things):
        for process in processes:
            self.fail("left behind", f"process {process}")
        for thing in things[:LEFTOVERS_SHOWN]:
            self.fail("left behind", thing)
        if len(things) > LEFTOVERS_SHOWN:
            self.fail("left behind", f"and {len(things) - LEFTOVERS_SHOWN} things more")

    def check_status(self, status):
        """An exit status that the cases do not explain is a failure of its own."""
        if status is None or (status == 0 and not self.current):
            return
        if status != 0 and self.failures and not self.current:
            return
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        self.fail(self.current or "after the last case", f"the program ended: {how}")

    def check_any(self, status):
        """A program that names no case has tested nothing, whatever its exit status."""
        if status is not None and not self.cases():
            self.fail("no case", "the program tested nothing")


class Tally:
    """All outcomes so far."""

    def __init__(self):
        self.passed = 0
        self.failed = 0
        self.skipped = 0
        self.failures = []
        self.notes = []  # what is neither, and must not go unseen
        self.seconds = {}  # of each program

    def add(self, label, outcome, seconds, text, verbose):
        self.seconds[label] = round(seconds, 2)
        self.passed += outcome.passed
        self.failed += len(outcome.failures)
        self.skipped += len(outcome.skips)
        word = "FAIL" if outcome.failures else "ok" if outcome.passed else "skip"
        print(f"  {word:<5}{seconds:6.1f} s  {label}  ({outcome.passed})", flush=True)
        for case, why in outcome.skips:
            print(f"         skipped  {case}: {why}")
        if outcome.failures or verbose:
            lines = text.splitlines()
            if len(lines) > OUTPUT_LINES_SHOWN and not verbose:
                print(f"         | ... {len(lines) - OUTPUT_LINES_SHOWN} lines more in the log")
                lines = lines[-OUTPUT_LINES_SHOWN:]
            for line in lines:
                print("         | " + line)
        for case, why in outcome.failures:
            self.failures.append((label, case, why))
            print(f"         FAILED   {case}: {why}")
        sys.stdout.flush()

    def fail(self, what, why):
        self.failed += 1
        self.failures.append((what, "", why))
        print(f"  FAIL          {what}: {why}", flush=True)

    def note(self, what):
        self.notes.append(what)
        print(f"  NOTE          {what}", flush=True)

    def merge(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures
        self.notes += other.notes

    def skip_program(self, label, why):
        self.skipped += 1
        print(f"  skip          {label}: {why}", flush=True)

    def write_times(self, path):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.seconds, file, indent=1, sort_keys=True)

    def close(self):
        if len(self.seconds) > LONGEST_SHOWN:
            print("\nLongest:")
            for label in sorted(self.seconds, key=self.seconds.get, reverse=True)[:LONGEST_SHOWN]:
                print(f"  {self.seconds[label]:6.1f} s  {label}")
        if self.notes:
            print("\nNoted:")
            for what in self.notes:
                print(f"  {what.splitlines()[0]}")
        if self.failures:
            print("\nFailed:")
            for label, case, why in self.failures:
                print(f"  {label}  {case}: {why.splitlines()[0] if why else ''}")
        print(f"\n{self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)


def group_members(group):
    """Processes of a process group that are not dead: (pid, name)."""
    members = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            with open(path, encoding="utf-8", errors="replace") as stat:
                text = stat.read()
            name = text[text.index("(") + 1:text.rindex(")")]
            fields = text[text.rindex(")") + 2:].split()
            if int(fields[2]) == group and fields[0] not in "ZX":
                members.append((int(path.split("/")[2]), name))
    return members


def wait_for_followers(group, seconds):
    """Some, like Python's resource tracker, end a moment after the program."""
    deadline = time.monotonic() + seconds
    for pid, _ in group_members(group):
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                select.select([handle], [], [], max(0, deadline - time.monotonic()))
            finally:
                os.close(handle)


def end_group(process):
    """End a program and its process group. Return what else was in the group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_TO_CLEAN_UP)
    if process.poll() is not None:
        wait_for_followers(process.pid, SECONDS_TO_FOLLOW)
    left = [f"{pid} ({name})" for pid, name in group_members(process.pid) if pid != process.pid]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return left


def stacks_of_group(group):
    """Where the threads of a hung program are: the kernel's view, and gdb's."""
    text = []
    for pid, name in group_members(group):
        for task in sorted(glob.glob(f"/proc/{pid}/task/[0-9]*")):
            parts = []
            for file in ("comm", "wchan", "stack"):
                with contextlib.suppress(OSError):
                    with open(os.path.join(task, file), encoding="utf-8", errors="replace") as data:
                        parts.append(data.read().strip())
            where = " ".join(parts).replace("\n", " ")
            text.append(f"{name} {pid}/{os.path.basename(task)}: {where}")
        if shutil.which("gdb"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                gdb = ["gdb", "-batch", "-nx", "-p", str(pid), "-ex", "thread apply all bt"]
                done = subprocess.run(gdb, timeout=20, stdin=subprocess.DEVNULL,
                                      capture_output=True, text=True, check=False)
                text.append(done.stdout)
    return "\n".join(text)


class KernelLog:
    """What the kernel complains about while the tests run. Readable by root only."""

    COMPLAINT = re.compile(
        r"\b(BUG|WARNING|INFO: task|general protection|KASAN|UBSAN|Oops|Call Trace)\b.*")

    def __init__(self):
        lines = self.read()
        self.last = lines[-1] if lines else None

    @staticmethod
    def read():
        try:
            done = subprocess.run(["dmesg"], stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, errors="replace", check=False)
        except OSError:
            return []
        return done.stdout.splitlines() if done.returncode == 0 else []

    def complaints(self):
        lines = self.read()
        if self.last in lines:
            lines = lines[len(lines) - lines[::-1].index(self.last):]
        return [line for line in lines if self.COMPLAINT.search(line)]
