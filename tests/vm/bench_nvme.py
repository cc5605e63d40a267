#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/vm/bench_nvme.py - the nvme backend beside fio's io_uring_cmd, in the virtual machine: `make bench-vm`
"""Interleaved rounds of the same work by both, on the same drives; the table holds medians, the ratio that of each round.

A processor that is emulated costs differently from a real one: only ratios mean anything, and of them the large ones.
BENCH_ROUNDS (5), BENCH_SECONDS per run (2), BENCH_ONLY: a word that the row's name must contain.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
SECONDS = os.environ.get("BENCH_SECONDS", "2")
SPILLWAY = os.path.join(os.environ["SPW_BUILD"], "spillway")
DRIVES = ["/dev/ng" + os.path.basename(path)[4:] for path in os.environ["SPW_VM_DRIVES"].split()]
FIO = ["fio", "--name=j", "--ioengine=io_uring_cmd", "--cmd_type=nvme", "--thread", "--fixedbufs=1", "--registerfiles=1", "--norandommap",
       "--group_reporting", "--output-format=json"]
OURS = [SPILLWAY, "bench", "--name=j", "--backend=nvme", "--norandommap", "--output-format=json"]


def run(command):
    """Bytes or operations per second of all jobs, and CPU seconds of the process."""
    with tempfile.NamedTemporaryFile(mode="w+", encoding="utf-8") as out:
        before = os.times()
        done = subprocess.run(command + [f"--output={out.name}"], capture_output=True, text=True, check=False)
        after = os.times()
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        report = out.read()
    jobs = json.loads(report[report.index("{"):])["jobs"]
    sides = [job[side] for job in jobs for side in ("read", "write")]
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    total = sum(side["total_ios"] for side in sides)
    return {"iops": sum(side["iops"] for side in sides), "bw": sum(side["bw_bytes"] for side in sides),
            "cpu": cpu / max(sum(side["io_bytes"] for side in sides), 1), "cpu_io": cpu / max(total, 1)}


def small(depth, poll):
    """4 KiB random reads on one drive."""
    words = ["--rw=randread", "--bs=4k", f"--iodepth={depth}", f"--runtime={SECONDS}", "--time_based", f"--filename={DRIVES[0]}",
             "--size=64m"] + (["--hipri"] if poll else [])
    batch = [f"--iodepth_batch_submit={depth // 4}", f"--iodepth_batch_complete_min={depth // 4}"]
    name = f"4 KiB random read, depth {depth}, {'polled' if poll else 'interrupts'}"
    return name, "iops", FIO + words + batch, OURS + words + ["--fixedbufs"] + batch


def objects(rw):
    """1 MiB objects over all drives, without checksums, which fio has not either; fio: a job for each drive, commands that fit one."""
    fio = FIO + [f"--rw={rw}", "--bs=256k", "--scramble_buffers=0", "--iodepth=16", f"--runtime={SECONDS}", "--time_based", "--size=128m"]
    for index, drive in enumerate(DRIVES):
        fio += [f"--filename={drive}"] if index == 0 else [f"--name=j{index}", "--ioengine=io_uring_cmd", "--cmd_type=nvme", "--thread",
                "--scramble_buffers=0", "--fixedbufs=1", "--registerfiles=1", f"--rw={rw}", "--bs=256k", "--iodepth=16", f"--runtime={SECONDS}", "--time_based",
                "--size=128m", f"--filename={drive}"]
    ours = OURS + ["--scramble_buffers=0", "--level=store", "--no-checksums", f"--rw={rw}", "--object-size=1m", "--iodepth=16", f"--runtime={SECONDS}", "--time_based",
                   "--size=128m", "--filename=" + ":".join(DRIVES)]
    return f"1 MiB objects over {len(DRIVES)} drives, {rw}", "bw", fio, ours


def main():
    subprocess.run([SPILLWAY, "format", "--force", "--devices", ",".join(DRIVES)], check=True, stdout=subprocess.DEVNULL)
    rows = [small(32, False), small(64, False), small(32, True), small(64, True), objects("write"), objects("read")]
    only = os.environ.get("BENCH_ONLY", "")
    print("| work | fio io_uring_cmd | spillway nvme | ratio | CPU ratio |\n|---|---|---|---|---|", flush=True)
    for name, unit, fio, ours in rows:
        if only not in name:
            continue
        rounds = []
        for number in range(ROUNDS):
            pair = [run(fio), run(ours)] if number % 2 == 0 else [run(ours), run(fio)][::-1]
            rounds.append(pair)
        values = [statistics.median(pair[side][unit] for pair in rounds) for side in (0, 1)]
        ratio = statistics.median(pair[1][unit] / pair[0][unit] for pair in rounds)
        cpu = statistics.median(pair[1]["cpu"] / pair[0]["cpu"] for pair in rounds)
        shown = [f"{value / 1e3:.1f} k IOPS" if unit == "iops" else f"{value / 2**20:.0f} MiB/s" for value in values]
        print(f"| {name} | {shown[0]} | {shown[1]} | {ratio:.2f} | {cpu:.2f} |", flush=True)


if __name__ == "__main__":
    main()
