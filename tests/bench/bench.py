#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# tests/bench/bench.py - run the matrix in interleaved rounds and keep what every run said
"""Called by bench.sh, which makes the drives. Every round runs every case with every runner once,
each round in another order, so that what changes on the machine meanwhile hits all runners alike; a
ratio compares two runs of the same round. CPU time is that of the process and its children as wait4
counts it, io_uring's kernel threads included (fio's own figures leave those out), less the main
thread's: in every tool that one only starts, watches and reports (fio spends a tenth of a second on
calibrating its clock). What remains for setting up is measured with a run of a millisecond, and
taken off too."""

import argparse
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import jobs
import rounds
import summary

BUDGET_SECONDS = 540
LIMIT_SECONDS = 590
COUNT_SECONDS = 25  # to count instructions
HUGE_BYTES = 192 << 20  # the largest job has 16 MiB times 8 in flight
START_SECONDS = 0.35  # to start and end a tool, beside the time it measures
SECONDS_RANGE = (0.4, 5.0)
PREFILL_OPTIONS = ("--rw=write", "--bs=1m", "--iodepth=16", "--direct=1", "--ioengine=libaio")
OUR_WAYS = {  # whose instructions are counted: what peak_bench is told
    "spillway engine": [],
    "spillway engine, memory not registered": ["memory=own"],
    "spillway engine, libaio": ["backend=libaio"],
}
PERCENTILES = ("50.000000", "99.000000", "99.900000")


@dataclass
class Outcome:
    """What one process did."""

    status: int
    cpu_seconds: float
    output: str
    errors: str


@dataclass
class Series:
    """All runs of one case by one runner."""

    case: jobs.Case
    runner: jobs.Runner
    command: list
    idle_cpu_seconds: float = 0.0
    rounds: list = field(default_factory=list)
    failures: list = field(default_factory=list)  # the words of every run that failed

    @property
    def hopeless(self):
        return len(self.failures) >= 2 and not any(self.rounds)


def main_thread_seconds(pid):
    """CPU time of the main thread of a process that has ended and has not been waited for. 0 where
    the kernel does not tell."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def run(argv, timeout):
    """Run a command to its end, or kill it after @timeout seconds. In a session of its own: fio
    puts its jobs into one each, and the kernel shares the CPU out by session (sched_autogroup), so
    that beside other work the same transfers would be slower in others."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   start_new_session=True)
        timer = threading.Timer(timeout, process.kill)
        timer.start()
        try:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        except BaseException:
            process.terminate()  # fio then ends its jobs; what does not is killed in time
            raise
        finally:
            main_thread = main_thread_seconds(process.pid)
            _, status, usage = os.wait4(process.pid, 0)
            timer.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        cpu = max(0.0, usage.ru_utime + usage.ru_stime - main_thread)
        return Outcome(process.returncode, cpu,
                       out.read().decode(errors="replace"), err.read().decode(errors="replace"))


def words_of(outcome):
    """The line of its output that says what went wrong."""
    lines = [line.strip() for line in (outcome.errors + "\n" + outcome.output).splitlines()
             if line.strip()]
    complaints = [line for line in lines
                  if re.match(r"spillway|fio: (?!multiple writers)|verify: |error", line)]
    return (complaints or lines[-1:] or [f"exit status {outcome.status}"])[0]


def parse_json(text):
    """fio may print words before and after the JSON object."""
    begin = text.find("{")
    if begin < 0:
        raise ValueError("no JSON in the output")
    return json.JSONDecoder().raw_decode(text[begin:])[0]


def measured(outcome):
    """The figures of fio's JSON, all jobs and both directions together. spillway bench writes the
    same keys."""
    data = parse_json(outcome.output)
    result = {"bytes": 0, "ios": 0, "bandwidth": 0.0, "iops": 0.0, "errors": 0, "latency_ns": {}}
    for job in data["jobs"]:
        result["errors"] += int(job.get("error", 0) != 0)
        for direction in ("read", "write"):
            part = job.get(direction, {})
            if not part.get("total_ios"):
                continue
            result["bytes"] += part["io_bytes"]
            result["ios"] += part["total_ios"]
            result["bandwidth"] += part["bw_bytes"]
            result["iops"] += part["iops"]
            percentiles = part.get("clat_ns", {}).get("percentile", {})
            for key in PERCENTILES:
                if key in percentiles:
                    result["latency_ns"][key] = max(result["latency_ns"].get(key, 0),
                                                    percentiles[key])
    if result["ios"] == 0:
        raise ValueError("no transfers in the output")
    return result


def figures_of(ios, seconds, block_bytes=4096, errors=0):
    return {"iops": ios / seconds, "bandwidth": ios * block_bytes / seconds, "ios": ios,
            "bytes": ios * block_bytes, "errors": errors, "latency_ns": {}}


def measured_peak(outcome):
    """t/io_uring prints a line per second: the mean of the lines, as for the others, not the
    maximum."""
    samples = [float(number) * {"": 1, "K": 1e3, "M": 1e6}[unit] for number, unit in
               re.findall(r"^IOPS=([0-9.]+)([KM]?)", outcome.output, re.MULTILINE)]
    if not samples:
        raise ValueError("no IOPS in the output")
    return figures_of(sum(samples), len(samples))


def measured_loop(outcome):
    """peak_bench prints one line of JSON."""
    data = parse_json(outcome.output)
    return figures_of(data["ios"], data["seconds"], data["block_bytes"], data["failed"])


READERS = {"json": measured, "t/io_uring": measured_peak, "peak_bench": measured_loop}


class Progress:
    """Where we are and how long it still takes, on one line of a terminal, or a line per case."""

    def __init__(self, total):
        self.total, self.done, self.start = total, 0, time.monotonic()
        self.live = sys.stderr.isatty()

    def step(self, words):
        self.done += 1
        spent = time.monotonic() - self.start
        left = spent / self.done * (self.total - self.done)
        share, time_left = 100 * self.done // self.total, f"{int(left) // 60}:{int(left) % 60:02d}"
        line = f"bench: {share:3d} %  {time_left} left  {words}"
        if self.live:
            print(f"\r{line[:110]:110}", end="" if self.done < self.total else "\n",
                  file=sys.stderr, flush=True)
        elif self.done % 25 == 0 or self.done == self.total:
            print(line, file=sys.stderr, flush=True)


class Bench:
    def __init__(self, options):
        self.options = options
        self.build = options.build
        self.programs = {"fio": "fio", "spillway": f"{options.build}/spillway"}
        self.seconds = options.seconds
        self.hugepages = not options.no_huge_pages and summary.free_huge_bytes() >= HUGE_BYTES
        _, cases, peaks = jobs.load()
        self.left_out = []
        cases = [c for c in cases if not options.only or re.search(options.only, c.title)]
        self.series = [s for case in cases for s in self.usable(case)]
        wanted = [p for p in peaks
                  if not options.only or re.search(options.only, f"peak: {p.name}")]
        self.peaks = [p for p in wanted if self.has_drives_of(p)]
        self.peak_series = []

    def has_drives_of(self, peak):
        if peak.drives > len(self.options.devices):
            self.left_out.append(f"peak: {peak.name}: needs {peak.drives} drives")
            return False
        if peak.throttled and not self.options.throttled:
            self.left_out.append(f"peak: {peak.name}: needs a throttled drive of the rig")
            return False
        return True

    def usable(self, case):
        if case.drives > len(self.options.devices):
            self.left_out.append(f"{case.title}: needs {case.drives} drives")
            return
        for runner in case.runners:
            reason = self.reason_against(runner)
            if reason:
                words = f"{runner.name}: {reason}"
                if words not in self.left_out:
                    self.left_out.append(words)
                continue
            yield Series(case, runner, [])

    def reason_against(self, runner):
        if runner.needs == "poll" and not all(summary.polls(device)
                                              for device in self.options.devices):
            return "the drives do not poll"
        if runner.needs == "hugepages" and not self.hugepages:
            return "too few huge pages are free"
        if any("libspillway_fio" in option
               for option in runner.options) and not self.options.engine:
            return "the fio engine is not built"
        return None

    def timed(self):
        return [s for s in self.series if not s.case.complete]

    def plan(self):
        """How long each run may take, so that all of it ends within the budget."""
        rounds = self.options.rounds
        timed, whole = len(self.timed()), len(self.series) - len(self.timed())
        fixed = timed * START_SECONDS * (rounds + 1) + whole * 1.5
        fixed += self.peak_seconds() + COUNT_SECONDS
        self.seconds_chosen = self.seconds is None
        if self.seconds_chosen:
            self.seconds = (BUDGET_SECONDS - fixed) / max(1, timed * rounds)
            self.seconds = min(max(self.seconds, SECONDS_RANGE[0]), SECONDS_RANGE[1])
        total = fixed + timed * rounds * self.seconds
        print(f"bench: {len(self.series)} pairs of job and runner, {rounds} rounds of "
              f"{self.seconds:.2f} s: about "
              f"{math.ceil(total / 60)} min", file=sys.stderr)
        for words in self.left_out:
            print(f"bench: left out: {words}", file=sys.stderr)

    def command(self, series, seconds):
        return jobs.command_line(series.case, series.runner, self.options.devices, self.build,
                                 seconds, self.programs,
                                 self.hugepages)

    def with_size(self, command):
        """On real drives the jobs stay within the part that was written before."""
        if self.options.kind == "rig" or any(word.startswith("--size=") for word in command):
            return command
        return [*command, f"--size={self.options.size}"]

    def prefill(self):
        """Blocks that were never written are read without touching the drive, and the first write
        of memory is slow."""
        if self.options.kind == "rig":
            return  # the rig has written every byte
        for device in self.options.devices:
            print(f"bench: writing {self.options.size} of {device} once", file=sys.stderr)
            outcome = run(["fio", "--name=prefill", f"--filename={jobs.escape(device)}",
                           *PREFILL_OPTIONS,
                           f"--size={self.options.size}"], 3600)
            if outcome.status != 0:
                raise SystemExit(f"bench: cannot write {device}: {words_of(outcome)}")

    def on_devices(self, series, *words):
        devices = ",".join(self.options.devices[: series.case.drives])
        return run([self.programs["spillway"], *words, "--devices", devices], 600)

    def format(self, series):
        outcome = self.on_devices(series, "format", "--force", "--erase")
        if outcome.status != 0:
            series.failures.append(f"spillway format: {words_of(outcome)}")
        return outcome.status == 0

    def remove_store(self):
        """So that the store of the last run, or what other runs left of it, does not look like
        foreign data."""
        formatted = [s for s in self.series if s.runner.format]
        if not formatted or self.options.kind == "rig":
            return
        series = max(formatted, key=lambda s: s.case.drives)
        if self.format(series):
            outcome = self.on_devices(series, "wipe", "--yes")
            if outcome.status != 0:
                print(f"bench: the store is still on the drives: {words_of(outcome)}",
                      file=sys.stderr)

    @staticmethod
    def result_of(series, seconds, reader):
        """What its command measured; None: it failed, and the series says how."""
        if series.hopeless:
            return None
        outcome = run(series.command, 60 + 10 * (seconds or 1))
        try:
            result = reader(outcome) if outcome.status == 0 else {"errors": 1}
            if result["errors"]:
                raise ValueError(words_of(outcome))
        except (ValueError, KeyError) as error:
            series.failures.append(str(error))
            return None
        result["cpu_seconds"] = max(0.0, outcome.cpu_seconds - series.idle_cpu_seconds)
        return result

    def run_once(self, series, seconds):
        if series.hopeless or (series.runner.format and not self.format(series)):
            return None
        series.command = self.with_size(self.command(series, seconds))
        return self.result_of(series, seconds, measured)

    def measure_idle(self, series):
        """What starting and ending costs: the same command for a millisecond."""
        command = self.with_size(self.command(series, 0.001))
        if series.runner.format and not self.format(series):
            return
        outcome = run(command, 60)
        if outcome.status == 0:
            series.idle_cpu_seconds = outcome.cpu_seconds
        else:
            series.failures.append(words_of(outcome))

    def is_late(self, round_seconds):
        """Whether one more round like the last one would take longer than the ten minutes that were
        promised."""
        end = time.monotonic() - self.begun + round_seconds + self.peak_seconds() + COUNT_SECONDS
        return self.seconds_chosen and end > LIMIT_SECONDS

    def peak_seconds(self):
        # A throttled drive lets what was queued when the time was up end at its own speed.
        return sum(len(p.runner) * (p.seconds_min + (4 if p.throttled else 1))
                   for p in self.peaks) * self.options.rounds

    def measure(self):
        self.begun = time.monotonic()
        progress = Progress(len(self.timed()) * (self.options.rounds + 1)
                            + len(self.series) - len(self.timed()))
        for series in self.timed():
            self.measure_idle(series)
            progress.step(f"starting costs: {series.runner.name}")
        round_seconds = 0.0
        for number in range(self.options.rounds):
            if number > 0 and self.is_late(round_seconds):
                self.left_out.append(f"rounds {number + 1} to {self.options.rounds}: no time left")
                break
            begun = time.monotonic()
            for title in dict.fromkeys(s.case.title for s in self.series):
                group = [s for s in self.series if s.case.title == title
                         and not (s.case.complete and number)]
                for series in rounds.rotated(group, number):
                    seconds = None if series.case.complete else self.seconds
                    series.rounds.append(self.run_once(series, seconds))
                    progress.step(f"round {number + 1}: {title}: {series.runner.name}")
            round_seconds = time.monotonic() - begun

    def peak_command(self, words, peak, seconds):
        drives = peak.drives
        devices = [jobs.escape(device) for device in ([self.options.throttled] if peak.throttled
                                                      else self.options.devices[:drives])]
        if peak.throttled:  # who is in the rig's cgroup gets the drive at its speed
            words = ["tests/rig.sh", "run", "--name", "bench-throttled", *words]
        names = {f"device{number}": device for number, device in enumerate(devices, 1)}
        number, unit = re.fullmatch(r"(\d+)(\w*)", self.options.size).groups()
        names |= {"size": self.options.size, "size_of_all": f"{int(number) * drives}{unit}"}
        return [word.format(build=self.build, device=devices[0], devices=":".join(devices),
                            seconds=seconds, **names) for word in words]

    def measure_peaks(self):
        for peak in self.peaks:
            seconds = math.ceil(max(peak.seconds_min, self.seconds))
            group = []
            for entry in peak.runner:
                command = self.peak_command(entry["command"], peak, seconds)
                if "/" in command[0] and not Path(command[0]).exists() or (
                        "libspillway_fio" in " ".join(command) and not self.options.engine):
                    self.left_out.append(f"peak: {entry['name']}: not built")
                    continue
                runner = jobs.Runner(entry["name"], entry["reads"], peer=entry.get("peer", False))
                case = jobs.Case("peak", peak.name, (), peak.drives, peak.metric, (), (), False)
                group.append(Series(case, runner, command))
            for number in range(self.options.rounds):
                for series in group:
                    print(f"bench: peak, round {number + 1}: {series.runner.name}", file=sys.stderr)
                    series.rounds.append(self.result_of(series, seconds,
                                                        READERS[series.runner.tool]))
            self.peak_series += group

    def count(self, argv):
        """Instructions in user space of a command under callgrind, system calls, and what it
        said."""
        with tempfile.TemporaryDirectory() as folder:
            outcome = run(["valgrind", "--tool=callgrind", "--collect-systime=yes",
                           f"--callgrind-out-file={folder}/out", *argv], 120)
            found = re.search(r"^==\d+== Collected : (\d+) (\d+)", outcome.errors, re.MULTILINE)
            if outcome.status != 0 or not found:
                raise ValueError(words_of(outcome))
            return int(found.group(1)), int(found.group(2)), outcome

    def count_instructions(self):
        """Per I/O, of the engine's loop and of t/io_uring. The first by the difference of two runs;
        the second, which cannot be told how many to do, by its system calls, each of which submits
        a whole batch. What starting costs is in its figure: a thousandth."""
        peak, engine = f"{self.build}/fio-plain/t/io_uring", f"{self.build}/tests/bench/peak_bench"
        reason = next((f"{what} is missing" for what in (peak, engine) if not Path(what).exists()),
                      None)
        if not shutil.which("valgrind"):
            reason = "valgrind is not installed"
        if reason or (self.options.only and not re.search(self.options.only, "instructions")):
            self.left_out += [f"instructions per I/O: {reason}"] if reason else []
            return []
        batch, device = 16, self.options.devices[0]
        theirs = [peak, "-d64", f"-s{batch}", f"-c{batch}", "-b4096", "-p0", "-B1", "-F1", "-n1",
                  "-r3", device]
        valgrind = "valgrind --tool=callgrind --collect-systime=yes "
        print("bench: counting instructions", file=sys.stderr)
        try:
            instructions, calls, _ = self.count(theirs)
            rows = [{"runner": "fio t/io_uring", "per_io": instructions / (calls * batch),
                     "command": valgrind + shlex.join(theirs)}]
            for name, words in OUR_WAYS.items():
                ours = [[engine, device, f"ios={ios}", "depth=64", f"batch={batch}", "bs=4096",
                         *words] for ios in (50000, 150000)]
                runs = [self.count(command) for command in ours]
                done = [parse_json(outcome.output)["ios"] for _, _, outcome in runs]
                rows.append({"runner": name,
                             "per_io": (runs[1][0] - runs[0][0]) / (done[1] - done[0]),
                             "command": valgrind + shlex.join(ours[0]) + "; the same with "
                             + ours[1][2]})
        except (ValueError, KeyError) as error:
            self.left_out.append(f"instructions per I/O: {error}")
            return []
        return rows


def arguments():
    parser = argparse.ArgumentParser(description="Run the comparison; called by bench.sh.")
    parser.add_argument("--build", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--kind", choices=("rig", "real"), required=True)
    parser.add_argument("--size", required=True)
    parser.add_argument("--engine", action="store_true", help="the fio engine is built")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--throttled", help="a drive of the rig bench-throttled, of a speed that "
                                            "every tool reaches")
    parser.add_argument("--no-huge-pages", action="store_true", help="for fio's buffers")
    parser.add_argument("--only", help="regular expression on 'job: section'")
    parser.add_argument("devices", nargs="+")
    options = parser.parse_args()
    if options.rounds < 1 or (options.seconds is not None and options.seconds <= 0):
        parser.error("rounds and seconds are positive")
    return options


def keep_cpus_awake():
    """While the file it returns is open, idle CPUs wait awake (PM QoS: no latency is allowed);
    None: without the right to ask for it. Else at depth 1 the time to wake a CPU is measured, in a
    virtual machine 30 us, and the tool that does less work between two transfers lets it fall
    asleep more often: it looks slower than it is."""
    try:
        request = open("/dev/cpu_dma_latency", "wb", buffering=0)
        request.write(bytes(4))
        return request
    except OSError:
        return None


def main():
    options = arguments()
    bench = Bench(options)
    if not bench.series and not bench.peaks:
        raise SystemExit("bench: nothing to run: BENCH_ONLY matches no job")
    awake = keep_cpus_awake()
    machine = summary.machine(options.devices, options.kind, bench.programs)
    machine["cpus_kept_awake"] = awake is not None
    if not awake:
        bench.left_out.append("keeping idle CPUs awake: /dev/cpu_dma_latency cannot be written; "
                              "small depths measure how they wake")
    bench.plan()
    bench.prefill()
    begun = time.monotonic()
    try:
        bench.measure()
        bench.measure_peaks()
        instructions = bench.count_instructions()
    finally:
        bench.remove_store()
        if awake:
            awake.close()
    data = {
        "duration_seconds": round(time.monotonic() - begun, 1),
        "rounds": options.rounds,
        "seconds": bench.seconds,
        "machine": machine,
        "left_out": bench.left_out,
        "instructions": instructions,
        "series": [summary.summarize(s) for s in bench.series + bench.peak_series],
    }
    summary.write(data, options.out / "bench.json")
    print(f"bench: {options.out / 'bench.json'} written", file=sys.stderr)
    failed = [s for s in bench.series if s.failures and s.case.complete]
    for series in failed:
        print(f"bench: FAILED: {series.case.title}: {series.runner.name}: {series.failures[0]}",
              file=sys.stderr)
    return 1 if failed else 0


def interrupted(number, _frame):
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupted)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("bench: interrupted")
