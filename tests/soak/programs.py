# SPDX-License-Identifier: MIT
# tests/soak/programs.py - the programs of the soak as it sees them: orders, reports, what they use
import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SILENCE_S = 90  # a deadline of the library is 30 s; a request may meet two
DIE_WITH_US = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def usage(pid):
    """(resident bytes, descriptors) of a process, or None if it is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
            return memory_of(status), len(os.listdir(f"/proc/{pid}/fd"))
    except (OSError, KeyError):
        return None


def memory_of(status):
    """Bytes, by the lines of /proc/PID/status. Huge pages are none of the resident ones, and
    whether a store gets any may change."""
    lines = dict(line.split(":", 1) for line in status if ":" in line)
    return sum(int(lines[name].split()[0]) << 10 for name in ("VmRSS", "HugetlbPages"))


class Program:
    """A worker. A thread of ours reads its reports."""

    def __init__(self, name, command, env, partition):
        self.name = name
        self.command = command
        self.env = env
        self.partition = partition
        self.counts, self.errors = {}, {}
        self.blamed = []  # drives that errors have named in the store that is open, or was last
        self.before = {}, {}  # of those of this name that were killed
        self.violations = []
        self.state = "off"  # ready, opened, closed
        self.heard = time.monotonic()
        self.latest = {}
        self.process = None
        self.last_words = ""
        self.changed = threading.Condition()

    def start(self):
        self.state = "off"
        self.heard = time.monotonic()
        self.process = subprocess.Popen(DIE_WITH_US + self.command, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        env=self.env, text=True, errors="replace",
                                        start_new_session=True)
        self.reader = threading.Thread(target=self.read, args=(self.process,), daemon=True)
        self.reader.start()

    def read(self, process):
        for line in process.stdout:
            with self.changed:
                try:
                    report = json.loads(line)
                except ValueError:
                    self.last_words = (self.last_words + line)[-4000:]
                    continue
                self.take(report)
                self.changed.notify_all()
        with self.changed:
            self.state = "ended"
            self.changed.notify_all()

    def take(self, report):
        self.heard = time.monotonic()
        event = report["event"]
        if event in ("ready", "opened", "closed"):
            self.state = event
        elif event == "violation":
            self.violations.append(f"{self.name}: {report['what']}: {report['words']}")
        else:
            self.latest = report
            self.counts, self.errors = report["counts"], report["errors"]
            self.blamed = report["blamed"]

    def totals(self):
        """(counts, errors) of all that had this name."""
        with self.changed:
            counts, errors = dict(self.before[0]), dict(self.before[1])
            for name, number in self.counts.items():
                counts[name] = counts.get(name, 0) + number
            for name, error in self.errors.items():
                count = error["count"] + errors.get(name, {}).get("count", 0)
                errors[name] = dict(error, count=count)
            return counts, errors

    def order(self, words):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(words + "\n")
            self.process.stdin.flush()

    def wait_for(self, state):
        """Return what is wrong, or None."""
        with self.changed:
            while self.state != state:
                if self.state == "ended":
                    return self.ended_by_itself()
                if time.monotonic() > self.heard + SILENCE_S:
                    return (f"{self.name}: hangs: nothing heard for {SILENCE_S} s, "
                            f"waiting for \"{state}\"")
                self.changed.wait(1)
        return None

    def problem(self):
        """What is wrong with it while it works, or None."""
        with self.changed:
            if self.state == "ended":
                return self.ended_by_itself()
            if time.monotonic() > self.heard + SILENCE_S:
                return f"{self.name}: hangs: nothing heard for {SILENCE_S} s"
        return None

    def ended_by_itself(self):
        return (f"{self.name}: ended by itself with {self.process.wait()}: "
                f"{self.last_words.strip()}")

    def kill(self):
        """As the kernel does it when memory is short."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join()
        self.before = self.totals()
        self.counts, self.errors, self.blamed = {}, {}, []
        self.process.stdin.close()
        self.process.stdout.close()

    def end(self):
        """Return what is wrong, or None."""
        if self.process is None or self.process.returncode is not None:
            return None
        self.process.stdin.close()
        try:
            status = self.process.wait(SILENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return f"{self.name}: does not end"
        finally:
            self.reader.join()
            self.process.stdout.close()
        return f"{self.name}: exit status {status}: {self.last_words.strip()}" if status else None


class Replays(threading.Thread):
    """Replays recorded steps, one after the other, on drives of its own."""

    def __init__(self, spillway, traces, drives):
        super().__init__()
        self.spillway, self.traces, self.drives = spillway, traces, drives
        self.lock = threading.Lock()  # held in a renewal, so that no fault comes between
        self.broken = set()  # paths of drives that something was done to since
        self.counts = {"replays": 0}
        self.errors = {}
        self.violations = []
        self.ending = threading.Event()
        self.process = None

    def run(self):
        number = 0
        while not self.ending.is_set():
            try:
                self.replay(self.traces[number % len(self.traces)])
            except (OSError, RuntimeError, ValueError) as error:
                self.violations.append(f"replay: {error}")
                return
            number += 1

    def renew(self):
        for drive in self.drives:
            drive.renew()
        done = subprocess.run([self.spillway, "format", "--devices", self.joined],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"format after a renewal: {done.stderr}")

    @property
    def joined(self):
        return ",".join(drive.path for drive in self.drives)

    def replay(self, trace):
        with self.lock:
            if self.ending.is_set():
                return
            self.renew()
            self.broken = set()
            self.process = subprocess.Popen(
                DIE_WITH_US + [self.spillway, "replay", trace, "--devices", self.joined,
                               "--scale", "0.2", "--speed", "40", "--steps", "4", "--json"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True, start_new_session=True)
        try:
            _, words = self.process.communicate(timeout=2 * SILENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            self.violations.append(f"replay of {os.path.basename(trace)}: hangs")
            return
        status = self.process.returncode
        if self.ending.is_set():
            return
        with self.lock:
            if status == 0:
                self.counts["replays"] += 1
            elif status < 0 or not any(path in words for path in self.broken):
                self.violations.append(f"replay of {os.path.basename(trace)}: "
                                       f"exit status {status}: {words.strip()}")
            else:
                error = self.errors.setdefault("replay", {"count": 0, "words": words.strip()[:400]})
                error["count"] += 1

    def end(self):
        """What is being replayed, which takes a few seconds, ends by itself: killed, it would leave
        its status page."""
        self.ending.set()
        self.join()
