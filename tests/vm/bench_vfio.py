#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/vm/bench_vfio.py - drives driven from user space beside fio through the kernel, in the
# virtual machine: `make bench-vfio`
"""Interleaved rounds of the same work by all on drives of one model: bench_table.py.
 Drives 0 to 3 and 8 stay with the kernel, for fio; drives 4 to 7 and 9 are behind vfio. Drives 8
and 9 have no medium: the emulator reads no file for them, and what is left is the way to the drive
and the emulated drive itself, the same for both.
"""
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import bench_table  # noqa: E402

SPILLWAY = os.path.join(os.environ["SPW_BUILD"], "spillway")
NAMES = os.environ["SPW_TEST_DEVICES"].split()
BLOCK, VFIO = NAMES[:4], NAMES[4:8]
NO_MEDIUM = NAMES[8:]
CHARACTER = [re.sub("nvme", "ng", path) for path in BLOCK]
COMMON = ["--norandommap", "--output-format=json", f"--runtime={bench_table.SECONDS}",
          "--time_based", "--size=64m"]
FIXED = ["--thread", "--fixedbufs=1", "--registerfiles=1", "--scramble_buffers=0", *COMMON]
OURS = [SPILLWAY, "bench", "--name=j", "--fixedbufs", "--allow-destructive", "--scramble_buffers=0",
        *COMMON]


def block(path, *words):
    return ["fio", "--name=j", "--ioengine=io_uring", "--direct=1", *FIXED, f"--filename={path}",
            *words]


def small(depth, theirs=BLOCK[0], ours=VFIO[0]):
    words = ["--rw=randread", "--bs=4k", f"--iodepth={depth}"]
    batch = [f"--iodepth_batch_submit={max(depth // 4, 1)}",
             f"--iodepth_batch_complete_min={max(depth // 4, 1)}"]
    fio = {"io_uring polled": block(theirs, "--hipri", *words, *batch)}
    name = f"4 KiB random read, depth {depth}"
    return name, "iops", fio, OURS + [f"--filename={ours}", *words, *batch]


def large(rw):
    words = [f"--rw={rw}", "--iodepth=8"]
    # A polled request that the kernel splits never ends on Linux 6.1: polled, fio takes two of
    # 504 KiB for each of 1 MiB.
    polled = ["--hipri", f"--rw={rw}", "--iodepth=16", "--bs=504k"]
    fio = {"io_uring": block(BLOCK[0], *words, "--bs=1m"),
           "io_uring polled": block(BLOCK[0], *polled)}
    return f"1 MiB {rw}, depth 8", "bw", fio, OURS + [f"--filename={VFIO[0]}", *words, "--bs=1m"]


def four():
    words = ["--rw=randread", "--bs=4k", "--iodepth=32", "--iodepth_batch_submit=8",
             "--iodepth_batch_complete_min=8"]
    fio = ["fio", "--group_reporting"]
    for index, path in enumerate(CHARACTER):
        fio += [f"--name=j{index}", "--ioengine=io_uring_cmd", "--cmd_type=nvme", "--hipri", *FIXED,
                f"--filename={path}", *words]
    ours = OURS + [f"--filename={':'.join(VFIO)}", "--rw=randread", "--bs=4k", "--iodepth=128",
                   "--iodepth_batch_submit=32",
                   "--iodepth_batch_complete_min=32"]
    name = "4 KiB random read, four drives, one thread"
    return name, "iops", {"io_uring_cmd polled, four jobs": fio}, ours


def main():
    title = "Drives driven from user space against fio, in a virtual machine"
    table = bench_table.Table("vfio", title, "spillway vfio")
    for depth in (32, 1):
        name, *rest = small(depth, *NO_MEDIUM)
        table.measure(name + ", drive without a medium", *rest)
    # Of blocks that were never written QEMU knows that they are zero: no reading of its file takes
    # part.
    name, *rest = small(32)
    table.measure(name + ", of blocks never written", *rest)
    for path in BLOCK + VFIO:
        subprocess.run([SPILLWAY, "bench", f"--filename={path}", "--rw=write", "--bs=256k",
                        "--iodepth=8", "--size=64m", "--allow-destructive"],
                       check=True, stdout=subprocess.DEVNULL)
    for row in (small(32), small(1), large("read"), large("write"), four()):
        table.measure(*row)
    table.write()


if __name__ == "__main__":
    main()
