#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/vm/test_boundary.sh - a drive with boundaries, over which the block layer splits every transfer: one that is polled would never end
. "$(dirname "$0")/../lib.sh"

modprobe null_blk nr_devices=1 poll_queues=1 submit_queues=1 zoned=1 zone_size=1 zone_nr_conv=1000 gb=1 memory_backed=1 2>/dev/null ||
    skip "this kernel has no null_blk"
on_exit rmmod null_blk
drive=/dev/nullb0
expect_equal 2048 "$(cat /sys/block/nullb0/queue/chunk_sectors)" "sectors between boundaries"
expect_equal 1 "$(cat /sys/block/nullb0/queue/io_poll)" "polling"

begin "zones that take no write out of order"
expect_exit 0 "$SPILLWAY" probe $drive
expect_output "Not usable" "zoned drive (host-managed)"
expect_exit 3 "$SPILLWAY" format --force --devices $drive
expect_output "$drive" "zoned drive (host-managed)"

for way in --hipri ""; do
    begin "written and read back over boundaries ${way:---interrupts}"
    expect_exit 0 "$SPILLWAY" bench --filename=$drive --rw=write --bs=768k --iodepth=4 --size=24m --fixedbufs --verify=xxh3 --allow-destructive $way
    expect_output "write: IOPS=" "read: IOPS=" "io_uring: ${way:+poll}"
done
