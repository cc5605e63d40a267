#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_zram.sh - drives that move wrong bytes from memory that is not aligned to a page: zram, and what lies on it
. "$(dirname "$0")/../lib.sh"

[ -e "$SPILLWAY" ] || skip "the command is not built"
is_root || skip "needs root to make zram devices"
need losetup python3
[ -e /sys/class/zram-control/hot_add ] || modprobe zram num_devices=0 2>/dev/null || true
[ -e /sys/class/zram-control/hot_add ] || skip "this kernel has no zram"
export PYTHONPATH=$ROOT/python SPILLWAY_LIBRARY=$SPW_BUILD/libspillway.so

number=$(cat /sys/class/zram-control/hot_add)
on_exit sh -c "echo $number >/sys/class/zram-control/hot_remove"
echo 96M >"/sys/block/zram$number/disksize"

cat >"$TEST_TMP/move.py" <<'END'
import logging
import mmap
import os
import sys

import spillway

logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
LEN = 3 << 20
memory = mmap.mmap(-1, LEN + 4096)
with spillway.Store(sys.argv[1:2], arena_bytes=16 << 20, backend=sys.argv[2]) as store:
    for offset in (0, 64, 512, 1024, 3584):
        view = memoryview(memory)[offset:offset + LEN]
        for _ in range(4):
            bytes_of_it = os.urandom(LEN)
            view[:] = bytes_of_it
            stored = store.put(view)
            view[:] = bytes(LEN)
            store.get_into(stored, view)
            assert view == bytes_of_it, f"other bytes at page + {offset}"
            store.free(stored)
print("all as they were")
END

for backend in io_uring libaio; do
    begin "a zram device, $backend"
    expect_exit 0 "$SPILLWAY" format --force --devices "/dev/zram$number"
    expect_exit 0 python3 "$TEST_TMP/move.py" "/dev/zram$number" $backend
    expect_output "all as they were"

    begin "a loop device over it is found out, $backend"
    loop=$(losetup -f --show --direct-io=on "/dev/zram$number")
    expect_exit 0 python3 "$TEST_TMP/move.py" "$loop" $backend
    expect_output "$loop: says that memory at multiples of" "whole pages are used" "all as they were"
    losetup -d "$loop"
done

begin "probe says what it needs"
expect_exit 0 "$SPILLWAY" probe --json "/dev/zram$number"
expect_output '"memory_align_bytes": 4096'
