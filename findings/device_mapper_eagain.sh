#!/bin/bash
# SPDX-License-Identifier: MIT
# findings/device_mapper_eagain.sh - io_uring ends a transfer over a boundary of a device-mapper device with EAGAIN, each time
#
# Seen with     Linux 6.1.0-56 (Debian 12), fio 3.33; 2026-11-28. In a virtual machine, by tests/vm/run. Also with Linux 6.12
# Guess         io_uring tries without waiting first, and has a worker do what would have to wait: EAGAIN does not reach the caller, or, if it
#               does, the same request goes well when it is sent again.
# What happens  A request that tries without waiting is refused with EAGAIN where it is more than its drive takes at once (max_sectors_kb,
#               max_segments: it would have to be split). On a plain drive io_uring notices and sends it by a worker. On a linear device of two
#               drives the request is cut at their boundary; if one part is short and under way when the other is refused, the whole ends
#               in the interrupt of the first, where io_uring cannot send it again: the caller gets EAGAIN, and gets it each time, as nothing
#               changes. libaio, io_uring that is told to use a worker (force_async), and io_uring beside the boundary are right:
#                   across, io_uring: err=11 err=11 err=11
#                   across, io_uring forced: err= 0    across, libaio: err= 0    beside, io_uring: err= 0
# Exit          0: as described; 1: not any more; 77: cannot be tried here
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
command -v qemu-system-x86_64 >/dev/null && command -v fio >/dev/null && command -v dmsetup >/dev/null ||
    { echo "needs QEMU (scripts/deps.sh vm), fio and dmsetup"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/inside.sh" <<'END'
modprobe dm-mod
drives=($SPW_VM_DRIVES)
# 24 MiB of each drive: of the MiB at 24512 KiB, 64 KiB are on the first, and 960 on the second, which takes 512 at once.
printf '0 49152 linear %s 2048\n49152 49152 linear %s 2048\n' "${drives[0]}" "${drives[1]}" | dmsetup create joined
dmsetup mknodes
ended() {
    fio --name=one --filename=/dev/mapper/joined --size=1m --bs=1m --rw=write --direct=1 --iodepth=1 "$@" 2>&1 |
        grep -aoE 'jobs=1\): err= ?[0-9]+' | grep -aoE 'err=.*'
}
echo "Linux $(uname -r)"
across="--offset=24512k"
echo "across, io_uring: $(ended $across --ioengine=io_uring) $(ended $across --ioengine=io_uring) $(ended $across --ioengine=io_uring)"
echo "across, io_uring forced: $(ended $across --ioengine=io_uring --force_async=1)    across, libaio: $(ended $across --ioengine=libaio)   " \
    "beside, io_uring: $(ended --offset=8m --ioengine=io_uring)"
END
"$root/tests/vm/run" --drives 2 --numa 1 -- bash "$folder/inside.sh" | tee "$folder/output"
grep -qx 'across, io_uring: err=11 err=11 err=11' "$folder/output" &&
    grep -qx 'across, io_uring forced: err= 0    across, libaio: err= 0    beside, io_uring: err= 0' "$folder/output" ||
    { echo "this has changed"; exit 1; }
