#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/vm/test_kills.sh - a process is killed with writes that its drive has not taken: the drive stays claimed until they have landed,
# whether they went through the block layer or past it
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/store.sh"

read -r drive _ <<<"$SPW_VM_DRIVES"
[ -b "$drive" ] || skip "no NVMe drives"
character=/dev/ng${drive#/dev/nvme}

# throttle BYTES_PER_SECOND: what the drive takes of writes; 0: all.
throttle() {
    local answer
    exec 3<>/dev/virtio-ports/monitor
    echo "block_set_io_throttle n0 0 0 $1 0 0 0" >&3
    read -r answer <&3
    exec 3>&-
    expect_equal ok "$answer" "QEMU's answer"
}

on_exit throttle 0
for backend in nvme io_uring libaio; do
    begin "kill -9 of a bench by $backend"
    clear_drives "$drive"
    throttle 2000000
    "$SPILLWAY" bench --filename="$character" --backend=$backend --rw=write --bs=64k --size=16m --iodepth=128 --time-based --runtime=600 \
        >/dev/null 2>&1 &
    writer=$!
    expect_true "it writes" python3 "$ROOT/tests/drive.py" written "$drive"
    kill -9 $writer
    wait $writer 2>/dev/null || true
    expect_true "nothing lands after that" python3 "$ROOT/tests/drive.py" settled "$drive"
    throttle 0

    begin "kill -9 of a process with a store open by $backend"
    clear_drives "$drive"
    expect_exit 0 "$SPILLWAY" format --devices "$character"
    throttle 2000000
    "$SPILLWAY" bench --level=store --filename="$character" --backend=$backend --rw=write --object-size=1m --size=14m --iodepth=8 \
        --time-based --runtime=600 >/dev/null 2>&1 &
    writer=$!
    # Behind the superblock and zeros, where the partition begins.
    until ! dd if="$drive" bs=4096 skip=256 count=1 iflag=direct status=none | cmp -sn 4096 - /dev/zero; do
        kill -0 $writer || break
    done
    kill -9 $writer
    wait $writer 2>/dev/null || true
    expect_true "nothing lands after that" python3 "$ROOT/tests/drive.py" settled "$drive"
    throttle 0
    expect_exit 0 "$SPILLWAY" check --devices "$drive"
    expect_exit 0 "$SPILLWAY" bench --level=store --filename="$character" --backend=$backend --rw=write --object-size=1m --size=14m
done
