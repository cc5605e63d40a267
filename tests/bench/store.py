#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# tests/bench/store.py - the store against fio on the same drives: striping, slow drives, partitions
"""Called by `make bench-store`. Needs root: the drives are a rig of loop devices, throttled where
the software is to be seen and not the machine. Each round runs every case once; a ratio compares
runs of the same round. Writes BUILD/bench/store.json."""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rig import Rig, call
from rounds import fio, results

FIO_HUGE_PAGES = 1100  # buffers of 2000 MiB, and some
QUEUE_DEPTH = 24  # of each drive: the default of a store, which fio beside it has, too
MIB = 1 << 20
# What of a run becomes a row: the end of its key, its name, its unit, and what a unit has of it.
SHOWN = [("put_bytes_per_second", "put", "MiB/s", MIB),
         ("get_bytes_per_second", "get", "MiB/s", MIB),
         ("bytes_per_second", "", "MiB/s", MIB), ("idle_ns_p99", "idle", "ms", 1e6),
         ("busy_ns_p99", "busy", "ms", 1e6), ("resident_bytes_per_object", "", "bytes", 1)]


class HugePages:
    """More huge pages for as long as the `with` lasts."""

    PATH = Path("/proc/sys/vm/nr_hugepages")

    def __init__(self, count):
        self.count, self.before = count, 0

    def __enter__(self):
        self.before = int(self.PATH.read_text(encoding="ascii"))
        self.PATH.write_text(str(self.before + self.count), encoding="ascii")
        if int(self.PATH.read_text(encoding="ascii")) < self.before + self.count:
            self.__exit__()
            raise RuntimeError(f"the kernel has no {self.count} huge pages to give: memory is "
                               "scattered")

    def __exit__(self, *_):
        self.PATH.write_text(str(self.before), encoding="ascii")


class Bench:
    def __init__(self, build, rounds):
        self.build, self.rounds = Path(build), rounds
        self.values, self.commands = {}, {}  # by case and what it is
        self.rig = None

    def note(self, case, what, value, command=()):
        self.values.setdefault((case, what), []).append(value)
        self.commands[case, what] = " ".join(str(word) for word in command)

    def rounds_on(self, times=1, **options):
        """The numbers of the rounds, @times as many as usual, on drives of their own."""
        with Rig(**options) as self.rig:
            yield from range(self.rounds * times)

    def format(self, drives=None, partitions=1, chunk=None):
        words = ["--chunk", chunk] if chunk else []
        call(self.build / "spillway", "format", "--force", "--erase", "--partitions", partitions,
             *words, "--devices", ",".join(drives or self.rig.drives))

    def store(self, case, what, mode, size, total, options, drives=None):
        command = [self.build / "tests/bench/store_bench", mode, size, total, options,
                   *(drives or self.rig.drives)]
        result = json.loads(self.rig.run(*command))
        for key, value in result.items():
            self.note(case, f"{what}: {key}", value, command)
        return result

    def fio(self, case, what, rw, *options, seconds=2):
        """The sum over the drives, one job each, all at once."""
        jobs, command = fio(self.rig, "--registerfiles=1", "--fixedbufs=1", "--nonvectored=1",
                            f"--rw={rw}", *options, seconds=seconds)
        bandwidth = sum(job[rw]["bw_bytes"] for job in jobs)
        self.note(case, f"{what}: bytes_per_second", bandwidth, command)
        return bandwidth

    def ratio(self, case, name, value):
        self.note(case, f"ratio {name}", value)

    def ratios(self, case, name, ours, put, get, key="bytes_per_second"):
        """Of what was put and got, to these."""
        for word, other in (("put", put), ("get", get)):
            self.ratio(case, name.format(word), ours[f"{word}_{key}"] / other)

    # ---- The cases ----

    def throttled(self, case, write, read, options):
        for _ in self.rounds_on(drives=4, size="1G", write=write, read=read):
            # Large requests are throttled in bursts: fio's best of two sizes.
            depth = f"--iodepth={QUEUE_DEPTH}"
            best = [max(self.fio(case, f"fio {rw} {bs}", rw, f"--bs={bs}", depth)
                        for bs in ("128k", "1m")) for rw in ("write", "read")]
            self.format()
            for name in options:
                ours = self.store(case, name, "putget", "16m", "2g", name)
                self.ratios(case, f"{name}: {{}} / fio", ours, *best)

    def scaling(self):
        case = "1 to 8 drives at 250 MB/s, 16 MiB objects"
        for _ in self.rounds_on(drives=8, size="512M", write=250, read=300):
            for count in (1, 2, 4, 8):
                drives = self.rig.drives[:count]
                self.format(drives)
                ours = self.store(case, f"{count} drives", "putget", "16m", f"{count * 384}m",
                                  "arena", drives)
                one = ours if count == 1 else one
                self.ratios(case, f"{{}}, {count} drives / {count} x one", ours,
                            one["put_bytes_per_second"] * count,
                            one["get_bytes_per_second"] * count)

    def memory_drive(self):
        for _ in self.rounds_on(drives=1, size="2400M"):
            best = {}
            for memory in ("mmaphuge", "malloc"):
                with HugePages(FIO_HUGE_PAGES if memory == "mmaphuge" else 0):
                    best[memory] = [self.best_of_memory("one RAM drive", memory, rw)
                                    for rw in ("write", "read")]
            for size in ("16m", "1m"):
                case = f"one RAM drive, 2000 MiB as {size} objects"
                for chunk in ("1m", "4m"):
                    self.format(chunk=chunk)
                    for options, memory in (("arena", "mmaphuge"), ("arena,unchecked", "mmaphuge"),
                                            ("malloc,unchecked", "malloc")):
                        what = f"{options}, chunk {chunk}"
                        ours = self.store(case, what, "putget", size, "2000m", options)
                        self.ratios(case, f"{what}: {{}} / fio", ours, *best[memory])

    def best_of_memory(self, drives, memory, rw):
        """What limits is memory, so fio has as much of it as the store beside it: buffers that fit
        into a cache would save it half of the work, and 128 MiB of them are 8 % faster to read
        into than 2000."""
        case, mem = f"{drives}, 2000 MiB of memory: fio", f"--mem={memory}"
        jobs = len(self.rig.drives)  # one for each
        best = max(self.fio(case, f"fio {rw} {bs} {memory}", rw, f"--bs={bs}",
                            f"--iodepth={buffers // jobs}", mem, seconds=1)
                   for bs, buffers in (("1m", 2000), ("4m", 500)))
        self.fio(case, f"fio {rw} 4m {memory}, 16 buffers", rw, "--bs=4m",
                 f"--iodepth={16 // jobs}", mem, seconds=1)
        return best

    def partitions(self):
        case = "1, 2 and 4 partitions, one process each, 4 drives at 500 MB/s"
        for _ in self.rounds_on(drives=4, size="1G", write=500, read=600):
            for count in (1, 2, 4):
                self.format(partitions=count)
                start = int(time.time()) + 2
                with ThreadPoolExecutor(count) as pool:
                    found = pool.map(lambda index: self.store(
                        case, f"{count} processes", "share", "16m", "128m",
                        f"arena,partition={index},start={start}"), range(count))
                    rates = [each["put_bytes_per_second"] for each in found]
                one = rates[0] if count == 1 else one
                self.ratio(case, f"{count} processes: sum / one process", sum(rates) / one)
                self.ratio(case, f"{count} processes: largest share / smallest",
                           max(rates) / min(rates))

    def urgent(self):
        case = "p99 of an urgent 1 MiB read while 1 GiB of writes is queued, 4 drives at 500 MB/s"
        for _ in self.rounds_on(drives=4, size="1G", write=500, read=600):
            self.format()
            ours = self.store(case, "urgent", "urgent", "1m", "1g", "arena")
            self.ratio(case, "busy / (2 x idle + one chunk)",
                       ours["busy_ns_p99"] / (2 * ours["idle_ns_p99"] + ours["chunk_ns"]))

    def small(self):
        case = "256 MiB of 4 KiB objects, one thread, one RAM drive"
        for _ in self.rounds_on(drives=1, size="1G"):
            engine = []
            for way in ("write", "read"):
                job = self.rig.run(self.build / "spillway", "bench",
                                   f"--filename={self.rig.drives[0]}", f"--rw=rand{way}",
                                   "--bs=4k", "--iodepth=64", "--fixedbufs", "--time-based",
                                   "--runtime=1", "--allow-destructive", "--output-format=json")
                engine.append(json.loads(job)["jobs"][0][way]["iops"])
            self.format()
            for name, options in (("one thread", "inline,window=512"),
                                  ("with the I/O thread", "window=512")):
                ours = self.store(case, name, "putget", "4k", "256m", f"arena,depth=64,{options}")
                self.ratios(case, f"{name}: {{}} / engine", ours, *engine, key="iops")

    def metadata(self):
        case = "memory per live object of 16 MiB, 4 RAM drives"
        for _ in self.rounds_on(drives=4, size="1G"):
            for chunk in ("1m", None, "4m"):
                self.format(chunk=chunk)
                self.store(case, f"chunk {chunk or 'chosen'}", "memory", "16m", "3500m", "malloc")

    def checksums(self, folder):
        case = "checksums on / off, 16 MiB objects, 4 file-backed drives"
        for number in self.rounds_on(drives=4, size="1G", on=folder):
            if number == 0:
                self.format()
            # In turns first: a disk that many share may be faster after a rest.
            kinds = [("off", "arena,unchecked"), ("on", "arena")][:: 1 if number % 2 else -1]
            runs = {name: self.store(case, name, "putget", "16m", "1600m", kind)
                    for name, kind in kinds}
            self.ratios(case, "{}", runs["on"], runs["off"]["put_bytes_per_second"],
                        runs["off"]["get_bytes_per_second"])

    def rows(self):
        for (case, what), values in self.values.items():
            command = self.commands[case, what]
            if what.startswith("ratio "):
                yield results.row(f"{case}: {what[6:]}", values, "ratio", command=command)
                continue
            runner, _, key = what.rpartition(": ")
            for end, name, unit, scale in SHOWN:
                if key == end:
                    words = f"{case}: {runner} {name}".rstrip()
                    yield results.row(words, [value / scale for value in values], unit,
                                      command=command)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=os.environ.get("BENCH_ROUNDS", "5"))
    parser.add_argument("--folder", default="/var/tmp", help="for file-backed drives")
    parser.add_argument("cases", nargs="*", help="equal slow scaling memory partitions urgent "
                                                 "small metadata checksums (all)")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench-store: needs root for the drive rig: run it with sudo")
    bench = Bench(options.build, options.rounds)
    cases = {
        "equal": lambda: bench.throttled("4 drives at 500 MB/s, 16 MiB objects", 500, 600,
                                         ["arena"]),
        "slow": lambda: bench.throttled("3 drives at 500 and one at 125 MB/s, 16 MiB objects",
                                        "500,500,500,125", "600,600,600,150",
                                        ["arena"]),
        "scaling": bench.scaling,
        "memory": bench.memory_drive,
        "partitions": bench.partitions,
        "urgent": bench.urgent,
        "small": bench.small,
        "metadata": bench.metadata,
        "checksums": lambda: bench.checksums(options.folder),
    }
    where = results.machine()
    unknown = set(options.cases) - set(cases)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    for name in options.cases or cases:
        print(f"bench-store: {name}", flush=True)
        cases[name]()
    out = Path(options.build) / "bench/store.json"
    rows = list(bench.rows())
    words = (f"rounds: {options.rounds}; loop devices over memory, throttled where a speed is "
             "named, or over files")
    results.write(out, "The store", rows, where | {"drives": [words]})
    print(results.table(row for row in rows if row["unit"] == "ratio"), end="")
    print(f"bench-store: {out}")


if __name__ == "__main__":
    main()
