#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/vm/test_nvme_nodes.sh - a namespace has two nodes: what holds by one name holds by the other
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/store.sh"

read -r first second _ <<<"$SPW_VM_DRIVES"
[ -b "$first" ] || skip "no NVMe drives"
ng_first=/dev/ng${first#/dev/nvme}
ng_second=/dev/ng${second#/dev/nvme}
clear_drives "$first" "$second"

begin "a mounted file system is seen by the character node"
modprobe ext4
mkfs.ext4 -q "$first"
expect_exit 3 "$SPILLWAY" format --devices "$ng_first"
expect_output "carries an ext4 file system"
mkdir "$TEST_TMP/mounted"
mount "$first" "$TEST_TMP/mounted"
expect_exit 3 "$SPILLWAY" format --force --devices "$ng_first"
expect_output "mounted"
expect_exit 0 "$SPILLWAY" probe "$ng_first"
expect_output "is mounted on"
umount "$TEST_TMP/mounted"
rmdir "$TEST_TMP/mounted"

begin "the kernel's partitions go with their table, by either name"
for name in "$ng_first" "$first"; do
    printf 'label: gpt\n,16M\n' | sfdisk -q "$first"
    expect_true "a partition" test -b "${first}p1"
    expect_exit 0 "$SPILLWAY" format --force --devices "$name"
    expect_equal "" "$(ls -d "/sys/class/block/$(basename "$first")p"* 2>/dev/null || true)" "the kernel's partitions"
done

begin "one namespace named twice is one drive too many"
expect_exit 3 "$SPILLWAY" format --force --devices "$first,$ng_first"
expect_output "same device"
expect_exit 2 "$SPILLWAY" bench --filename="$first:$ng_first" --rw=read --size=1m
expect_output "$first and $ng_first are the same device"
expect_exit 2 "$SPILLWAY" tune "$ng_first" "$first" --output "$TEST_TMP/twice.json"
expect_output "$ng_first and $first are the same device"

begin "a store made by one name is opened by the other"
expect_exit 0 "$SPILLWAY" format --force --devices "$ng_first,$ng_second"
expect_exit 0 "$SPILLWAY" check --devices "$first,$second"
expect_exit 0 "$SPILLWAY" bench --level=store --filename="$ng_first:$ng_second" --rw=write --object-size=3m --size=48m
expect_exit 0 "$SPILLWAY" bench --level=store --filename="$first:$ng_second" --backend=nvme --rw=write --object-size=1m --size=16m

begin "an open store locks both nodes"
hold_store "$ng_first" "$ng_second"
expect_exit 3 "$SPILLWAY" format --force --devices "$first"
expect_output "it is process $store_holder"
expect_exit 3 "$SPILLWAY" bench --level=store --filename="$first:$second" --rw=write --object-size=1m --size=1m
let_go

begin "blocks written past the block layer are read through it, and the other way round"
expect_exit 0 "$SPILLWAY" wipe --yes --devices "$ng_first,$ng_second"
expect_same_both_ways "$first" 72m 8

begin "a namespace that is written past the block layer is held there, too"
"$SPILLWAY" bench --filename="$ng_first" --rw=write --bs=64k --size=8m --time-based --runtime=60 >/dev/null 2>&1 &
bench=$!
# Once it has opened its drives, it catches interrupts.
until [ $((0x$(sed -n 's/^SigCgt:\t//p' /proc/$bench/status) & 2)) -ne 0 ] && [ "$(cat /proc/$bench/comm)" = spillway ]; do
    sleep 0.1
done
expect_exit 1 mkfs.ext4 -q "$first"
expect_output "in use"
expect_exit 3 "$SPILLWAY" format --force --devices "$first"
kill -INT $bench
wait $bench || expect_equal 130 $? "exit status of the bench"

begin "a controller that is reset under load loses nothing"
controller=$(basename "$(readlink -f "/sys/class/block/$(basename "$first")/device")")
reset=/sys/class/nvme/${controller%%n[0-9]*}/reset_controller
for backend in nvme io_uring; do
    "$SPILLWAY" bench --filename="$first" --backend=$backend --rw=randwrite --bs=64k --size=32m --iodepth=16 --verify=xxh3 --verify-backlog=64 \
        --time-based --runtime=6 >"$TEST_TMP/reset" 2>&1 &
    bench=$!
    resets=0
    while sleep 0.5 && kill -0 $bench 2>/dev/null; do
        echo 1 >"$reset"
        resets=$((resets + 1))
    done
    status=0
    wait $bench || status=$?
    expect_equal 0 $status "exit status of the bench by $backend after $resets resets"
    [ $status -eq 0 ] || cat "$TEST_TMP/reset"
    expect_true "no reset in time" test $resets -gt 0
done

begin "what a drive says of itself"
expect_exit 0 "$SPILLWAY" probe "$first" "$ng_second"
expect_output "FIRMWARE"
expect_exit 0 "$SPILLWAY" probe --json "$ng_first"
expect_output '"percentage_used": 0'
expect_output '"kind": "nvme-char"'

begin "a controller that no IOMMU confines is not taken from the kernel"
if [ -n "$(ls /sys/class/iommu)" ]; then
    skip "this machine has an IOMMU"
else
    address=$(basename "$(readlink -f "/sys/class/nvme/${controller%%n[0-9]*}/device")")
    expect_exit 3 "$SPILLWAY" bind --force "$address"
    expect_output "$address" "IOMMU"
fi
