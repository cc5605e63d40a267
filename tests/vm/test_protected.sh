#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/vm/test_protected.sh - drives that keep protection information: past the block layer and through it, and damage that only the drive sees
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/store.sh"

read -r first second _ <<<"$SPW_VM_DRIVES"
[ "$(cat "/sys/block/${first#/dev/}/integrity/format" 2>/dev/null)" = T10-DIF-TYPE1-CRC ] || skip "no NVMe drives with protection information"
ng_first=/dev/ng${first#/dev/nvme}
ng_second=/dev/ng${second#/dev/nvme}
clear_drives "$first" "$second"

begin "probe says that blocks are protected"
expect_exit 0 "$SPILLWAY" probe "$first"
expect_output "PI"
expect_exit 0 "$SPILLWAY" probe --json "$ng_first"
expect_output '"metadata_bytes": 8' '"protection_type": 1'

begin "blocks written past the block layer are read through it, and the other way round"
expect_same_both_ways "$first" 24m 4

begin "a store on such drives, past the block layer"
expect_exit 0 "$SPILLWAY" format --force --erase --devices "$ng_first,$ng_second"
expect_exit 0 "$SPILLWAY" bench --level=store --filename="$ng_first:$ng_second" --rw=write --object-size=3m --size=24m
expect_output "nvme"
expect_exit 0 "$SPILLWAY" check --devices "$ng_first,$ng_second"
expect_exit 0 "$SPILLWAY" wipe --yes --devices "$ng_first,$ng_second"

begin "what the drive finds damaged is an error that says what was found, and where"
expect_exit 0 "$SPILLWAY" bench --filename="$first" --backend=nvme --rw=write --bs=64k --size=8m --verify=xxh3
exec {monitor}<>/dev/virtio-ports/monitor
# A block's tags, which lie behind all blocks.
tags=$(($(blockdev --getsize64 "$first") + 2097152 / $(blockdev --getss "$first") * 8))
echo "qemu-io -d ns0 \"write -P 17 $tags 8\"" >&"$monitor"
read -r answer <&"$monitor"
expect_equal ok "$answer" "answer of QEMU"
for backend in nvme io_uring; do
    expect_exit 1 "$SPILLWAY" bench --filename="$first" --backend=$backend --rw=read --bs=64k --size=8m --verify=xxh3
    expect_output "$first" "at byte 2097152 failed" "does not match its protection information"
done
blkdiscard -zf "$first"
