#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/vm/bench_nvme.py - the nvme backend beside fio's io_uring_cmd, in the virtual machine: `make
# bench-vm`
"""Interleaved rounds of the same work by both, on the same drives: bench_table.py."""
import os
import subprocess
import sys

sys.dont_write_bytecode = True
import bench_table  # noqa: E402

SPILLWAY = os.path.join(os.environ["SPW_BUILD"], "spillway")
DRIVES = ["/dev/ng" + os.path.basename(path)[4:] for path in os.environ["SPW_VM_DRIVES"].split()]
TIMED = [f"--runtime={bench_table.SECONDS}", "--time_based"]
FIO = ["fio", "--name=j", "--ioengine=io_uring_cmd", "--cmd_type=nvme", "--thread", "--fixedbufs=1",
       "--registerfiles=1", "--norandommap",
       "--group_reporting", "--output-format=json"]
OURS = [SPILLWAY, "bench", "--name=j", "--backend=nvme", "--norandommap", "--output-format=json"]


def small(depth, poll):
    """4 KiB random reads on one drive."""
    words = ["--rw=randread", "--bs=4k", f"--iodepth={depth}", *TIMED, f"--filename={DRIVES[0]}",
             "--size=64m"] + (["--hipri"] if poll else [])
    batch = [f"--iodepth_batch_submit={depth // 4}", f"--iodepth_batch_complete_min={depth // 4}"]
    name = f"4 KiB random read, depth {depth}, {'polled' if poll else 'interrupts'}"
    return name, "iops", {"io_uring_cmd": FIO + words
                          + batch}, OURS + words + ["--fixedbufs"] + batch


def objects(rw):
    """1 MiB objects over all drives, without checksums, which fio has not either; fio: a job for
    each drive, commands that fit one."""
    fio = FIO + [f"--rw={rw}", "--bs=256k", "--scramble_buffers=0", "--iodepth=16", *TIMED,
                 "--size=128m"]
    for index, drive in enumerate(DRIVES):
        fio += [f"--filename={drive}"] if index == 0 else [
            f"--name=j{index}", "--ioengine=io_uring_cmd", "--cmd_type=nvme", "--thread",
            "--scramble_buffers=0", "--fixedbufs=1",
            "--registerfiles=1", f"--rw={rw}", "--bs=256k", "--iodepth=16", *TIMED, "--size=128m",
            f"--filename={drive}"]
    ours = OURS + ["--scramble_buffers=0", "--level=store", "--no-checksums", f"--rw={rw}",
                   "--object-size=1m", "--iodepth=16", *TIMED,
                   "--size=128m", "--filename=" + ":".join(DRIVES)]
    return f"1 MiB objects over {len(DRIVES)} drives, {rw}", "bw", {f"io_uring_cmd, {len(DRIVES)} "
                                                                    "jobs": fio}, ours


def main():
    # The first write of a block makes room in QEMU's file. fio writes the same blocks again and
    # again, a store all of its drives.
    for drive in DRIVES:
        subprocess.run([SPILLWAY, "bench", "--backend=nvme", f"--filename={drive}", "--rw=write",
                        "--bs=256k", "--iodepth=8", "--allow-destructive"],
                       check=True, stdout=subprocess.DEVNULL)
    subprocess.run([SPILLWAY, "format", "--force", "--erase", "--devices", ",".join(DRIVES)],
                   check=True, stdout=subprocess.DEVNULL)
    table = bench_table.Table("nvme", "NVMe passthrough against fio, in a virtual machine",
                              "spillway nvme")
    for row in (small(32, False), small(64, False), small(32, True), small(64, True),
                objects("write"), objects("read")):
        table.measure(*row)
    table.write()


if __name__ == "__main__":
    main()
