#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# tests/bench/store.py - the store against fio on the same drives: striping, slow drives, partitions
"""Called by `make bench-store`. Needs root: the drives are a rig of loop devices, throttled where
the software is to be seen and not the machine. Each round runs every case once; a ratio compares
runs of the same round. Writes BUILD/bench/store.json."""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python/spillway/bench"))

import results  # noqa: E402

RIG = ROOT / "tests" / "rig.sh"
FIO_HUGE_PAGES = 1100  # buffers of 2000 MiB, and some
NAME = f"store-bench-{os.getpid()}"
MIB = 1 << 20
# What of a run becomes a row: the end of its key, its name, its unit, and what a unit has of it.
SHOWN = [("put_bytes_per_second", "put", "MiB/s", MIB),
         ("get_bytes_per_second", "get", "MiB/s", MIB),
         ("bytes_per_second", "", "MiB/s", MIB), ("idle_ns_p99", "idle", "ms", 1e6),
         ("busy_ns_p99", "busy", "ms", 1e6), ("resident_bytes_per_object", "", "bytes", 1)]


def call(*command, check=True):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                            check=False)
    if check and result.returncode != 0:
        raise RuntimeError(f"{' '.join(str(word) for word in command)}: {result.stderr.strip()}")
    return result.stdout


class Rig:
    """Drives for as long as the `with` lasts."""

    def __init__(self, **options):
        self.words = [word for name, value in options.items() for word in (f"--{name}", str(value))]

    def __enter__(self):
        self.drives = call(RIG, "up", "--name", NAME, *self.words).split()
        return self

    def __exit__(self, *_):
        call(RIG, "down", "--name", NAME)

    def run(self, *command):
        return call(RIG, "run", "--name", NAME, *command)


class HugePages:
    """So many more huge pages for as long as the `with` lasts."""

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
        self.series, self.commands = {}, {}

    def note(self, case, what, value, command=""):
        self.series.setdefault(case, {}).setdefault(what, []).append(value)
        if command:
            self.commands.setdefault(case, {})[what] = " ".join(str(word) for word in command)

    def format(self, drives, partitions=1, chunk=None):
        words = ["--chunk", chunk] if chunk else []
        call(self.build / "spillway", "format", "--force", "--erase", "--partitions", partitions,
             *words,
             "--devices", ",".join(drives))

    def store(self, rig, case, what, mode, size, total, options, drives=None):
        command = [self.build / "tests/bench/store_bench", mode, size, total, options,
                   *(drives or rig.drives)]
        result = json.loads(rig.run(*command))
        for key, value in result.items():
            if key != "drives":
                self.note(case, f"{what}: {key}", value, command)
        self.note(case, f"{what}: shares", [drive["bytes_written"] for drive in result["drives"]])
        return result

    def fio(self, rig, case, what, rw, *options, drives=None, seconds=2):
        """The sum over the drives, one job each, all at once."""
        command = ["fio", "--direct=1", "--ioengine=io_uring", "--registerfiles=1", "--fixedbufs=1",
                   "--nonvectored=1",
                   "--time_based", f"--runtime={seconds}", f"--rw={rw}", "--output-format=json",
                   *options]
        for index, drive in enumerate(drives or rig.drives):
            command += [f"--name=d{index}", f"--filename={drive}"]
        jobs = json.loads(rig.run(*command))["jobs"]
        side = "write" if "write" in rw else "read"
        bandwidth = sum(job[side]["bw_bytes"] for job in jobs)
        self.note(case, f"{what}: bytes_per_second", bandwidth, command)
        self.note(case, f"{what}: iops", sum(job[side]["iops"] for job in jobs))
        return bandwidth

    def ratio(self, case, name, value):
        self.note(case, f"ratio {name}", value)

    # ---- The cases ----

    def throttled(self, case, write, read, total, options):
        drives = len(str(write).split(",")) if "," in str(write) else 4
        with Rig(drives=drives, size="1G", write=write, read=read) as rig:
            for _ in range(self.rounds):
                # Large requests are throttled in bursts: fio's best of two sizes.
                fio_write, fio_read = (
                    max(self.fio(rig, case, f"fio {rw} {bs}", rw, f"--bs={bs}", "--iodepth=16")
                        for bs in ("128k", "1m"))
                    for rw in ("write", "read"))
                self.format(rig.drives)
                for name in options:
                    ours = self.store(rig, case, name, "putget", "16m", total, name)
                    self.ratio(case, f"{name}: put / fio", ours["put_bytes_per_second"] / fio_write)
                    self.ratio(case, f"{name}: get / fio", ours["get_bytes_per_second"] / fio_read)

    def scaling(self):
        case = "1 to 8 drives at 250 MB/s, 16 MiB objects"
        with Rig(drives=8, size="512M", write=250, read=300) as rig:
            for _ in range(self.rounds):
                single = None
                for count in (1, 2, 4, 8):
                    self.format(rig.drives[:count])
                    ours = self.store(rig, case, f"{count} drives", "putget", "16m",
                                      f"{count * 384}m", "arena",
                                      rig.drives[:count])
                    pair = (ours["put_bytes_per_second"], ours["get_bytes_per_second"])
                    single = single or pair
                    self.ratio(case, f"put, {count} drives / {count} x one",
                               pair[0] / single[0] / count)
                    self.ratio(case, f"get, {count} drives / {count} x one",
                               pair[1] / single[1] / count)

    def memory_drive(self):
        """What limits is memory, so fio has as much of it: buffers that fit into a cache would save
        it half of the work."""
        with Rig(drives=1, size="2400M") as rig:
            for _ in range(self.rounds):
                best = {}
                for memory in ("mmaphuge", "malloc"):
                    with HugePages(FIO_HUGE_PAGES if memory == "mmaphuge" else 0):
                        for rw in ("write", "read"):
                            case = "one RAM drive, 2000 MiB of memory: fio"
                            best[memory, rw] = max(
                                self.fio(rig, case, f"fio {rw} {bs} {memory}", rw, f"--bs={bs}",
                                         f"--iodepth={depth}",
                                         f"--mem={memory}", seconds=1)
                                for bs, depth in (("1m", 2000), ("4m", 500)))
                            self.fio(rig, case, f"fio {rw} 4m {memory}, 16 buffers", rw, "--bs=4m",
                                     "--iodepth=16",
                                     f"--mem={memory}", seconds=1)
                for size in ("16m", "1m"):
                    case = f"one RAM drive, 2000 MiB as {size} objects"
                    for chunk in ("1m", "4m"):
                        self.format(rig.drives, chunk=chunk)
                        for options, memory in (("arena", "mmaphuge"),
                                                ("arena,unchecked", "mmaphuge"),
                                                ("malloc,unchecked", "malloc")):
                            ours = self.store(rig, case, f"{options}, chunk {chunk}", "putget",
                                              size, "2000m", options)
                            for word, rw in (("put", "write"), ("get", "read")):
                                self.ratio(case, f"{options}, chunk {chunk}: {word} / fio",
                                           ours[f"{word}_bytes_per_second"] / best[memory, rw])

    def partitions(self):
        case = "1, 2 and 4 partitions, one process each, 4 drives at 500 MB/s"
        with Rig(drives=4, size="1G", write=500, read=600) as rig:
            for _ in range(self.rounds):
                one = None
                for count in (1, 2, 4):
                    self.format(rig.drives, partitions=count)
                    found = [None] * count
                    start = int(time.time()) + 2

                    def work(index, count=count, found=found, start=start):
                        options = f"arena,partition={index},start={start}"
                        found[index] = self.store(rig, case, f"{count} processes", "share", "16m",
                                                  "128m", options)

                    threads = [threading.Thread(target=work, args=(index,))
                               for index in range(count)]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()
                    rates = [each["put_bytes_per_second"] for each in found]
                    one = one or sum(rates)
                    self.ratio(case, f"{count} processes: sum / one process", sum(rates) / one)
                    self.ratio(case, f"{count} processes: largest share / smallest",
                               max(rates) / min(rates))

    def urgent(self):
        case = "p99 of an urgent 1 MiB read while 1 GiB of writes is queued, 4 drives at 500 MB/s"
        with Rig(drives=4, size="1G", write=500, read=600) as rig:
            for _ in range(self.rounds):
                self.format(rig.drives)
                ours = self.store(rig, case, "urgent", "urgent", "1m", "1g", "arena")
                self.ratio(case, "busy / (2 x idle + one chunk)",
                           ours["busy_ns_p99"] / (2 * ours["idle_ns_p99"] + ours["chunk_ns"]))

    def small(self):
        case = "256 MiB of 4 KiB objects, one thread, one RAM drive"
        with Rig(drives=1, size="1G") as rig:
            for _ in range(self.rounds):
                engine = {}
                for rw in ("randwrite", "randread"):
                    command = [self.build / "spillway", "bench", f"--filename={rig.drives[0]}",
                               f"--rw={rw}", "--bs=4k",
                               "--iodepth=64", "--fixedbufs", "--time-based", "--runtime=1",
                               "--allow-destructive",
                               "--output-format=json"]
                    job = json.loads(rig.run(*command))["jobs"][0]
                    side = job["write" if rw == "randwrite" else "read"]
                    engine[rw] = side["iops"]
                    self.note(case, f"engine {rw}: iops", side["iops"], command)
                self.format(rig.drives)
                for name, options in (("one thread", "inline,window=512"),
                                      ("with the I/O thread", "window=512")):
                    ours = self.store(rig, case, name, "putget", "4k", "256m",
                                      f"arena,depth=64,{options}")
                    self.ratio(case, f"{name}: put / engine",
                               ours["put_iops"] / engine["randwrite"])
                    self.ratio(case, f"{name}: get / engine", ours["get_iops"] / engine["randread"])

    def metadata(self):
        case = "memory per live object of 16 MiB, 4 RAM drives"
        with Rig(drives=4, size="1G") as rig:
            for chunk in ("1m", None, "4m"):
                self.format(rig.drives, chunk=chunk)
                for _ in range(self.rounds):
                    self.store(rig, case, f"chunk {chunk or 'chosen'}", "memory", "16m", "3500m",
                               "malloc")

    def checksums(self, folder):
        case = "checksums on / off, 16 MiB objects, 4 file-backed drives"
        with Rig(drives=4, size="1G", on=folder) as rig:
            self.format(rig.drives)
            for number in range(self.rounds):
                # In turns first: a disk that many share may be faster after a rest.
                kinds = [("off", "arena,unchecked"), ("on", "arena")][:: 1 if number % 2 else -1]
                runs = {name: self.store(rig, case, name, "putget", "16m", "1600m", kind) for name,
                        kind in kinds}
                for word in ("put", "get"):
                    on, off = (runs[name][f"{word}_bytes_per_second"] for name in ("on", "off"))
                    self.ratio(case, word, on / off)

    def rows(self):
        for case, series in self.series.items():
            for what, values in series.items():
                command = self.commands.get(case, {}).get(what, "")
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
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("BENCH_ROUNDS", 5)))
    parser.add_argument("--folder", default="/var/tmp", help="for file-backed drives")
    parser.add_argument("cases", nargs="*", help="equal slow scaling memory partitions urgent "
                                                 "small metadata checksums (all)")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench-store: needs root for the drive rig: run it with sudo")
    bench = Bench(options.build, options.rounds)
    cases = {
        "equal": lambda: bench.throttled("4 drives at 500 MB/s, 16 MiB objects", 500, 600, "2g",
                                         ["arena"]),
        "slow": lambda: bench.throttled("3 drives at 500 and one at 125 MB/s, 16 MiB objects",
                                        "500,500,500,125",
                                        "600,600,600,150", "2g", ["arena", "arena,static"]),
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
