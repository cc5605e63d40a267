#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/vm/bench_vfio.py - drives driven from user space beside fio through the kernel, in the virtual machine: `make bench-vfio`
"""Interleaved rounds of the same work by all on drives of one model; the table holds medians, the ratio that of each round.

Drives 0 to 3 and 8 stay with the kernel, for fio; drives 4 to 7 and 9 are behind vfio. Drives 8 and 9 have no medium: the emulator reads no
file for them, and what is left is the way to the drive and the emulated drive itself, the same for both. An emulated drive measures
the emulator as much as the tools: only ratios mean anything. BENCH_ROUNDS (5), BENCH_SECONDS per run (2), BENCH_ONLY: a word that the
row's name must contain.
"""
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
SECONDS = os.environ.get("BENCH_SECONDS", "2")
SPILLWAY = os.path.join(os.environ["SPW_BUILD"], "spillway")
NAMES = os.environ["SPW_TEST_DEVICES"].split()
BLOCK, VFIO = NAMES[:4], NAMES[4:8]
NO_MEDIUM = NAMES[8:]
CHARACTER = [re.sub("nvme", "ng", path) for path in BLOCK]
NO_MEDIUM_WORDS = ", drive without a medium"
NEVER_WRITTEN_WORDS = ", of blocks never written"
COMMON = ["--norandommap", "--output-format=json", f"--runtime={SECONDS}", "--time_based", "--size=64m"]
FIXED = ["--thread", "--fixedbufs=1", "--registerfiles=1", "--scramble_buffers=0", *COMMON]
OURS = [SPILLWAY, "bench", "--name=j", "--fixedbufs", "--allow-destructive", "--scramble_buffers=0", *COMMON]


def run(command):
    """Bytes and operations per second of all jobs."""
    with tempfile.NamedTemporaryFile(mode="w+", encoding="utf-8") as out:
        done = subprocess.run(command + [f"--output={out.name}"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        report = out.read()
    sides = [job[side] for job in json.loads(report[report.index("{"):])["jobs"] for side in ("read", "write")]
    return {"iops": sum(side["iops"] for side in sides), "bw": sum(side["bw_bytes"] for side in sides)}


def block(path, *words):
    return ["fio", "--name=j", "--ioengine=io_uring", "--direct=1", *FIXED, f"--filename={path}", *words]


def small(depth, theirs=BLOCK[0], ours=VFIO[0]):
    words = ["--rw=randread", "--bs=4k", f"--iodepth={depth}"]
    batch = [f"--iodepth_batch_submit={max(depth // 4, 1)}", f"--iodepth_batch_complete_min={max(depth // 4, 1)}"]
    return f"4 KiB random read, depth {depth}", "iops", {"fio io_uring polled": block(theirs, "--hipri", *words, *batch)}, \
        OURS + [f"--filename={ours}", *words, *batch]


def large(rw):
    # A polled request that the kernel splits never ends on Linux 6.1: polled, fio takes two of 504 KiB for each of 1 MiB.
    words = [f"--rw={rw}", "--iodepth=8"]
    return f"1 MiB {rw}, depth 8", "bw", {"fio io_uring": block(BLOCK[0], *words, "--bs=1m"),
                                          "fio io_uring polled": block(BLOCK[0], "--hipri", f"--rw={rw}", "--iodepth=16", "--bs=504k")}, \
        OURS + [f"--filename={VFIO[0]}", *words, "--bs=1m"]


def four():
    words = ["--rw=randread", "--bs=4k", "--iodepth=32", "--iodepth_batch_submit=8", "--iodepth_batch_complete_min=8"]
    fio = ["fio", "--group_reporting"]
    for index, path in enumerate(CHARACTER):
        fio += [f"--name=j{index}", "--ioengine=io_uring_cmd", "--cmd_type=nvme", "--hipri", *FIXED, f"--filename={path}", *words]
    ours = OURS + [f"--filename={':'.join(VFIO)}", "--rw=randread", "--bs=4k", "--iodepth=128", "--iodepth_batch_submit=32",
                   "--iodepth_batch_complete_min=32"]
    return "4 KiB random read, four drives, one thread", "iops", {"fio io_uring_cmd polled, four jobs": fio}, ours


def measure(name, unit, theirs, ours):
    rounds = []
    for number in range(ROUNDS):
        commands = list(theirs.items()) + [("ours", ours)]
        if number % 2:
            commands.reverse()
        rounds.append({who: run(command)[unit] for who, command in commands})
    medians = {who: statistics.median(values[who] for values in rounds) for who in [*theirs, "ours"]}
    best = max(theirs, key=medians.get)
    ratios = sorted(values["ours"] / values[best] for values in rounds)
    shown = [f"{medians[who] / 1e3:.1f} k IOPS" if unit == "iops" else f"{medians[who] / 2**20:.0f} MiB/s" for who in (best, "ours")]
    print(f"| {name} | {best} | {shown[0]} | {shown[1]} | {statistics.median(ratios):.2f} | {ratios[0]:.2f} {ratios[-1]:.2f} |", flush=True)


def main():
    only = os.environ.get("BENCH_ONLY", "")
    print("| work | fio, best of | fio | spillway vfio | ratio | least and most |\n|---|---|---|---|---|---|", flush=True)
    for depth in (32, 1):
        name, *rest = small(depth, *NO_MEDIUM)
        if only in name + NO_MEDIUM_WORDS:
            measure(name + NO_MEDIUM_WORDS, *rest)
    # Of blocks that were never written QEMU knows that they are zero: no reading of its file takes part.
    name, *rest = small(32)
    if only in name + NEVER_WRITTEN_WORDS:
        measure(name + NEVER_WRITTEN_WORDS, *rest)
    for path in BLOCK + VFIO:
        subprocess.run([SPILLWAY, "bench", f"--filename={path}", "--rw=write", "--bs=256k", "--iodepth=8", "--size=64m", "--allow-destructive"],
                       check=True, stdout=subprocess.DEVNULL)
    for row in (small(32), small(1), large("read"), large("write"), four()):
        if only in row[0]:
            measure(*row)


if __name__ == "__main__":
    main()
