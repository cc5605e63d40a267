#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# tests/bench/scale.py - what a byte costs the CPU, whether that grows with drives, and what a box
# with more of both would do
"""Called by `make bench-scale`. What needs no drives runs anywhere: the store on drives that no
transfer touches (`spillway bench --null`), beside passes over the same amount of memory. The rest,
fio beside it, needs root for the drive rig. Each round runs every case once, in changing order; a
ratio compares runs of the same round. Writes BUILD/bench/scale.json."""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import callgrind
from rig import call
from rounds import Rows, results
from store import FIO_HUGE_PAGES, QUEUE_DEPTH, Bench, HugePages

GIB, MIB = 1 << 30, 1 << 20
DRIVES = (1, 2, 4, 8)
WORKERS = (2, 4)  # besides one
UNCHECKED_TIMES = 32
SHORT_TIMES = 3  # as many rounds of short runs, whose ratios a neighbour's memory traffic moves
DEPTH = 16  # objects at once
SHALLOW = 2  # chunks at once by which the program that sums is fastest on a drive in memory
READS_PER_SECOND = 189  # as store_bench does; no multiple of a throttle's ten bursts
OBJECT = "16m"
WAYS = ("put", "get")
RW = {"put": "write", "get": "read"}
SERVER_BYTES_PER_SECOND = 100e9
CORES = len(os.sched_getaffinity(0))


def summed(words):
    return "on" if words else "off"


class Scale(Bench):
    def __init__(self, build, rounds, gib):
        super().__init__(build, rounds)
        self.gib = gib
        self.shown = Rows()
        self.figure = self.shown.note

    # ---- Without drives ----

    def memory(self, threads):
        """Passes over memory, as a dict: SECONDS of CPU per GiB, bytes a second of all. Those of a
        quarter of what runs move cost as much a GiB."""
        each = max(1, DEPTH * 2 // max(2, threads)) * 16
        command = [self.build / "tests/bench/scale_bench", threads, f"{each}m",
                   max(1, self.gib // 4)]
        found = json.loads(call(*command))
        if threads == 1:
            for name, words in (("read", "read"), ("sum", "XXH3"), ("copy", "copied"),
                                ("copy_and_sum", "copied and XXH3 in one pass")):
                self.figure(f"memory: {words}, CPU time of a GiB",
                            found[f"{name}_seconds_per_gib"], "s", command)
            for mib in (1, 16):
                for who, words in (("its_maker", "the thread that wrote it"),
                                   ("another", "another thread")):
                    self.figure(f"memory: XXH3 of {mib} MiB just written, by {words}, CPU time of "
                                "a GiB", found[f"sum_of_{mib}_mib_by_{who}_seconds_per_gib"], "s",
                                command)
        return found

    def null(self, way, drives, checked, workers=1):
        """(CPU seconds of a GiB, GB/s) of the store on null drives. Without checksums of so much
        that how a run begins does not count: of 8 GiB that is half of the CPU time."""
        moved_gib = self.gib * (1 if checked else UNCHECKED_TIMES)
        command = [self.build / "spillway", "bench", "--quiet", "--level=store", "--null",
                   f"--drives={drives}", f"--rw={RW[way]}", f"--object-size={OBJECT}",
                   f"--iodepth={DEPTH}", f"--size={moved_gib}g", f"--workers={workers}",
                   "--output-format=json"]
        command += [] if checked else ["--no-checksums"]
        found = json.loads(call(*command))
        took = found["spillway"]
        moved = found["jobs"][0][RW[way]]
        gib = moved["io_bytes"] / GIB
        cpu = (took["process_user_seconds"] + took["process_system_seconds"]) / gib
        words = f"{drives} null drive{'s' if drives > 1 else ''}, {workers} worker" \
                f"{'s' if workers > 1 else ''}, checksums {summed(checked)}"
        self.figure(f"{words}: {way}, CPU time of a GiB", cpu, "s", command)
        self.figure(f"{words}: {way}", moved["bw_bytes"] / 1e9, "GB/s", command)
        return cpu, moved["bw_bytes"]

    def scaling(self):
        """What is compared runs within seconds: how fast memory is changes from minute to
        minute."""
        for number in range(self.rounds * SHORT_TIMES):
            for way in WAYS:
                one = self.memory(1)
                cpu = {}
                for drives in DRIVES[:: 1 if number % 2 else -1]:
                    for checked in (False, True):
                        cpu[drives, checked] = self.null(way, drives, checked)[0]
                self.compare(way, cpu, one)
                both = self.memory(min(2, CORES))
                by = {count: self.null(way, 4, True, count) for count in WORKERS}
                self.figure(f"{way}: two workers on two cores, checksums on, of two loops of XXH3 "
                            "alone", by[2][1] / both["sum_bytes_per_second"], "ratio",
                            at_least=0.95)
                self.growth(way, cpu, {count: found[0] for count, found in by.items()},
                            both["sum_seconds_per_gib"] / one["sum_seconds_per_gib"])

    def growth(self, way, by_drives, by_workers, shared):
        """
        :param shared: CPU time of XXH3 while another core does the same, of that of one alone: what
            memory's bandwidth leaves each
        """
        for drives in DRIVES[1:]:
            for checked, goal in ((False, {}), (True, {"at_most": 1.05})):
                self.figure(f"{way}: CPU time of a GiB, {drives} drives / one, checksums "
                            f"{summed(checked)}",
                            by_drives[drives, checked] / by_drives[1, checked], "ratio", **goal)
        for count, cpu in by_workers.items():
            words = f"{way}: CPU time of a GiB, {count} workers / one"
            grown = cpu / by_drives[4, True]
            self.figure(words, grown, "ratio", at_most=1.05)
            self.figure(f"{words}, of what two loops of XXH3 alone grow by", grown / shared,
                        "ratio", at_most=1.05)

    def compare(self, way, cpu, memory):
        """What was measured against the model: a fixed cost, and one pass for the checksum."""
        base = cpu[1, False]
        self.figure(f"{way}: CPU time of a GiB without checksums", base, "s", at_most=0.006)
        for drives in DRIVES:
            extra = cpu[drives, True] - cpu[drives, False]
            self.figure(f"{way}: what checksums add, in passes of reading, {drives} drives",
                        extra / memory["read_seconds_per_gib"], "passes", at_most=1.1)
            foretold = base + memory["sum_seconds_per_gib"]
            self.figure(f"{way}: CPU time with checksums of what the model foretells, {drives} "
                        "drives", cpu[drives, True] / foretold, "ratio")
        cores = cpu[8, True] * SERVER_BYTES_PER_SECOND / GIB
        self.figure(f"{way}: cores that 100 GB/s with checksums take by the model", cores)
        self.figure(f"{way}: cores that 100 GB/s without checksums take by the model",
                    cpu[8, False] * SERVER_BYTES_PER_SECOND / GIB)
        self.figure(f"{way}: what one I/O thread reaches by the model, the kernel's part left out",
                    GIB / cpu[8, False] / 1e9, "GB/s")

    def instructions(self, way, drives, *options):
        """In user space per chunk of 1 MiB, by layer: of a long run, less those of a short; and how
        they were counted. Not those of the status page: it is refreshed by the clock, which
        valgrind slows."""
        counts = []
        for size in (128, 640):
            command = [self.build / "spillway", "bench", "--quiet", "--level=store", "--null",
                       f"--drives={drives}", f"--rw={RW[way]}", f"--object-size={OBJECT}",
                       "--iodepth=4", f"--size={size}m", "--output-format=json", *options]
            with tempfile.TemporaryDirectory() as folder:
                call("valgrind", "-q", "--tool=callgrind", "--toggle-collect=spw_store__publish",
                     "--collect-atstart=yes", f"--callgrind-out-file={folder}/out", *command)
                counts.append(callgrind.by_layer(Path(folder) / "out"))
        few, many = counts
        return ({layer: (many[layer] - few.get(layer, 0)) / 512 for layer in many},
                ["valgrind", "--tool=callgrind", *command])

    def layers(self):
        if not shutil.which("valgrind"):
            print("bench-scale: valgrind is missing: instructions are not counted")
            return
        for way in WAYS:
            each, command = self.instructions(way, 4)
            # What fills a store for gets is put: their instructions are those of both.
            what = way if way == "put" else "put and get"
            for layer in sorted(each, key=each.get, reverse=True):
                if each[layer] >= 1:
                    self.figure(f"{what}, 4 null drives: instructions of a 1 MiB chunk in {layer}",
                                each[layer], "", command)
        # CPU time of less than a millisecond varies by more than drives could add to it.
        for way in WAYS:
            what = way if way == "put" else "put and get"
            one, eight = (self.instructions(way, drives, "--no-checksums") for drives in (1, 8))
            store, more = (sum(each[layer] for layer in ("store", "engine", "alloc"))
                           for each in (one[0], eight[0]))
            self.figure(f"{what}, checksums off: instructions of a chunk in store, engine and "
                        "alloc, 8 null drives / one", more / store, "ratio", eight[1],
                        at_most=1.05)

    def depth(self):
        """What a caller that gives batches of 64 reaches on each drive."""
        command = [self.build / "spillway", "bench", "--quiet", "--level=store", "--null=1g",
                   "--drives=4", "--rw=rw", "--object-size=1m", "--iodepth=64", "--size=512m",
                   "--output-format=json"]
        for _ in range(self.rounds):
            found = json.loads(call(*command))
            self.figure("batches of 64 objects from one caller: transfers in flight on the drive "
                        "with the fewest",
                        min(drive["in_flight_max"] for drive in found["spillway"]["drives"]), "",
                        command, at_least=16)

    # ---- Beside fio ----

    def of_what_cores_allow(self, words, rate, unchecked, sums):
        """A byte takes what it takes without checksums, and its sum, by all cores at once: they
        share memory's bandwidth, and two that only read have 0.6 of twice what one has."""
        self.figure(f"{words} / what {CORES} cores allow", rate * (1 / unchecked + 1 / sums),
                    "ratio", at_least=0.95)

    def ram(self):
        """Four drives in memory: the CPU is the limit, for fio as well."""
        case = f"four RAM drives, {OBJECT} objects"
        for _ in self.rounds_on(SHORT_TIMES, drives=4, size="600M"):
            sums = self.memory(CORES)["sum_bytes_per_second"]
            with HugePages(FIO_HUGE_PAGES):
                best = {way: self.best_of_memory(case, "mmaphuge", RW[way]) for way in WAYS}
            self.format()
            for checked, options in ((True, f"arena,workers={CORES}"), (False, "arena,unchecked")):
                ours = self.store(case, options, "putget", OBJECT, "2000m", options)
                for way in WAYS:
                    rate = ours[f"{way}_bytes_per_second"]
                    words = f"{case}, checksums {summed(checked)}: {way}"
                    self.figure(words, rate / 1e9, "GB/s")
                    if not checked:
                        self.figure(f"{words} / fio", rate / best[way], "ratio", at_least=0.97)
                        continue
                    self.figure(f"{words} / fio without checksums", rate / best[way], "ratio")
                    self.of_what_cores_allow(words, rate, best[way], sums)

    def files(self, folder):
        case = f"four file-backed drives, {OBJECT} objects"
        for number in self.rounds_on(SHORT_TIMES, drives=4, size="1G", on=folder):
            turn = 1 if number % 2 else -1
            alone = self.moved_alone(case, "1600m", QUEUE_DEPTH, turn)
            self.format()
            kinds = [("off", "arena,unchecked"), ("on", "arena")][::turn]
            runs = {name: self.store("files", name, "putget", OBJECT, "1600m", kind)
                    for name, kind in kinds}
            for way, goal in (("put", 0.97), ("get", 0.99)):
                rates = {name: runs[name][f"{way}_bytes_per_second"] for name in runs}
                self.figure(f"{case}: {way}, checksums on / off", rates["on"] / rates["off"],
                            "ratio", at_least=goal)
                self.figure(f"{case}, checksums on: {way} / the program that sums",
                            rates["on"] / alone[way], "ratio", at_least=goal)

    def one(self):
        case = f"one RAM drive, {OBJECT} objects"
        for number in self.rounds_on(SHORT_TIMES, drives=1, size="2400M"):
            with HugePages(FIO_HUGE_PAGES):
                best = [self.best_of_memory(case, "mmaphuge", rw) for rw in ("write", "read")]
            turn = 1 if number % 2 else -1
            alone = self.moved_alone(case, "2000m", SHALLOW, turn)
            self.format()
            ours = self.store("one", "arena", "putget", OBJECT, "2000m", "arena")
            for way, theirs, goal in zip(WAYS, best, (0.97, 1.0)):
                rate = ours[f"{way}_bytes_per_second"]
                self.figure(f"{case}, checksums on: {way} / fio without", rate / theirs, "ratio",
                            at_least=goal)
                self.figure(f"{case}, checksums on: {way} / the program that sums",
                            rate / alone[way], "ratio", at_least=goal)

    def moved_alone(self, case, total, depth, turn):
        """Bytes a second by way, of a program that sums and does nothing else beside moving: how
        far checksums slow down any program here. Its bytes go over a store's.

        :param depth: chunks of each drive at once
        """
        runs = {}
        for kind in ("plain", "sum")[::turn]:
            command = [self.build / "tests/bench/drive_sum_bench", total, kind, depth,
                       *self.rig.drives]
            runs[kind] = json.loads(self.rig.run(*command))
        for way in WAYS:
            rate = f"{way}_bytes_per_second"
            self.figure(f"{case}: {way}, a program that sums and moves, and does nothing else / "
                        "one that only moves", runs["sum"][rate] / runs["plain"][rate], "ratio",
                        command)
        return {way: runs["sum"][f"{way}_bytes_per_second"] for way in WAYS}

    def loads(self):
        """p99 of reads while writes saturate drives whose writes are throttled: ours urgent, fio's
        beside writes of the store's depth; one reader, one read at a time, on all drives in turn,
        READS_PER_SECOND of them: one after the other, few would come while writes are served.
        What reads pass through is not throttled: a throttle lets a burst of some MiB go at once
        and then nothing for a tenth of a second, and p99 would be that. Of memory in small pages
        it counts each MiB twice, as it is split in two: fio's writes would be half of ours."""
        for _ in self.rounds_on(drives=4, size="1G", write=500):
            with HugePages(FIO_HUGE_PAGES):
                theirs, written = self.fio_beside_writes()
            self.format()
            for checked, options in ((True, "arena"), (False, "arena,unchecked")):
                ours = self.store("loads", options, "urgent", "1m", "1g", options)
                words = "p99 of a 1 MiB load while stores saturate 4 drives at 500 MB/s, " \
                        f"checksums {summed(checked)}"
                self.figure(words, ours["busy_ns_p99"] / 1e6, "ms")
                self.figure(f"{words} / fio's reads beside fio's writes",
                            ours["busy_ns_p99"] / theirs, "ratio", at_most=1)
                self.figure(f"{words}: written meanwhile / by fio",
                            ours["busy_write_bytes_per_second"] / written, "ratio", at_least=0.97)

    def fio_beside_writes(self):
        """p99 of its reads in nanoseconds, and bytes per second of its writes."""
        command = ["fio", "--direct=1", "--ioengine=io_uring", "--bs=1m", "--time_based",
                   "--runtime=8", "--output-format=json", "--registerfiles=1", "--fixedbufs=1",
                   "--iomem=mmaphuge"]
        for index, drive in enumerate(self.rig.drives):
            command += [f"--name=w{index}", f"--filename={drive}", "--rw=write",
                        f"--iodepth={QUEUE_DEPTH}", "--size=400m"]
        command += ["--name=reads", f"--filename={':'.join(self.rig.drives)}", "--rw=randread",
                    "--iodepth=1", "--offset=500m", "--size=400m",
                    "--file_service_type=roundrobin", "--lat_percentiles=1",
                    f"--rate_iops={READS_PER_SECOND}"]
        jobs = json.loads(self.rig.run(*command))["jobs"]
        reads = next(job for job in jobs if job["jobname"] == "reads")["read"]
        return (reads["lat_ns"]["percentile"]["99.000000"],
                sum(job["write"]["bw_bytes"] for job in jobs))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=os.environ.get("BENCH_ROUNDS", "5"))
    parser.add_argument("--gib", type=int, default=8, help="that each run moves on null drives")
    parser.add_argument("--folder", default="/var/tmp", help="for file-backed drives")
    parser.add_argument("cases", nargs="*", help="scaling layers depth: anywhere; ram files one "
                                                 "loads: root (all)")
    options = parser.parse_args()
    bench = Scale(options.build, options.rounds, options.gib)
    anywhere = {"scaling": bench.scaling, "layers": bench.layers, "depth": bench.depth}
    rigged = {"ram": bench.ram, "files": lambda: bench.files(options.folder), "one": bench.one,
              "loads": bench.loads}
    unknown = set(options.cases) - {*anywhere, *rigged}
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    cases = {**anywhere, **rigged}
    if os.geteuid() != 0:
        if set(options.cases) & set(rigged):
            sys.exit("bench-scale: these cases need root for the drive rig: run it with sudo")
        cases = anywhere
        print("bench-scale: without root, what is beside fio is left out")
    where = results.machine([f"rounds: {options.rounds}; null drives, and loop devices over memory "
                             "or files where fio is beside"])
    for name in options.cases or cases:
        print(f"bench-scale: {name}", flush=True)
        cases[name]()
    out = Path(options.build) / "bench/scale.json"
    rows = bench.shown.all()
    results.write(out, "Scaling", rows, where)
    print(results.table(rows), end="")
    print(f"bench-scale: {out}")


if __name__ == "__main__":
    main()
