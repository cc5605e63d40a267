#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/vm/test_paths.sh - a drive that has two paths is one drive: what is done by the one is seen by the other, and neither is bound alone
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/store.sh"

[ -n "${SPW_VM:-}" ] || skip "only in the virtual machine"

# ---- Two block devices of one drive: $1 and $2 ----

one_drive() {
    local a=$1 b=$2 one two
    # Partitions: of NVMe drives with a p.
    one=$a${3:-}1 two=$b${3:-}2
    clear_drives "$a"
    forget_cached "$b"

    begin "$a, $b: named by two paths"
    unchanged "$a" expect_exit 3 "$SPILLWAY" format --force --devices "$a,$b"
    expect_output "$a and $b are two paths to the same drive"

    begin "$a, $b: mounted by the other path"
    mkfs.ext4 -q "$a"
    mkdir -p "$TEST_TMP/mounted"
    mount "$a" "$TEST_TMP/mounted"
    expect_exit 3 "$SPILLWAY" format --force --devices "$b"
    expect_output "$b: $(basename "$a"), another path to the same drive, is mounted on $TEST_TMP/mounted"
    expect_exit 0 "$SPILLWAY" probe "$b"
    expect_output "another path to the same drive, is mounted on"
    umount "$TEST_TMP/mounted"
    expect_true "the file system is whole" fsck.ext4 -fn "$a"

    begin "$a, $b: swapped on, held or shown by the other path"
    mkswap "$a" >/dev/null
    swapon "$a"
    expect_exit 3 "$SPILLWAY" format --force --devices "$b"
    expect_output "another path to the same drive, is in use as swap"
    swapoff "$a"
    dmsetup create --noudevsync --noudevrules held --table "0 8 linear $a 0"
    expect_exit 3 "$SPILLWAY" format --force --devices "$b"
    expect_output "another path to the same drive, is held by"
    dmsetup remove --noudevsync held
    losetup /dev/loop7 "$a"
    expect_exit 3 "$SPILLWAY" format --force --devices "$b"
    expect_output "is shown by /dev/loop7"
    losetup -d /dev/loop7

    begin "$a, $b: a store that is open by the other path"
    expect_exit 0 "$SPILLWAY" format --force --devices "$a"
    forget_cached "$b"
    expect_exit 0 "$SPILLWAY" check --devices "$b"
    hold_store "$a"
    expect_exit 3 "$SPILLWAY" format --force --devices "$b"
    expect_output "a process has a store on $a open, which has the same blocks"
    expect_exit 3 "$SPILLWAY" wipe --yes --devices "$b"
    expect_exit 3 "$SPILLWAY" bench --level=store --filename="$b" --rw=write --object-size=1m --size=1m
    expect_output "is open in process $store_holder"
    let_go
    expect_exit 0 "$SPILLWAY" bench --level=store --filename="$b" --rw=write --object-size=1m --size=1m

    begin "$a, $b: partitions of the other path's drive"
    expect_exit 0 "$SPILLWAY" wipe --yes --devices "$a"
    printf 'label: gpt\n,20M\n,20M\n' | sfdisk -q "$a"
    forget_cached "$b"
    blockdev --rereadpt "$b"
    expect_true "a partition by the other path" test -b "$two"
    mkfs.ext4 -q "$one"
    mount "$one" "$TEST_TMP/mounted"
    expect_exit 3 "$SPILLWAY" format --force --devices "$b"
    expect_output "$(basename "$one"), another path to the same drive, is mounted on"
    expect_exit 3 "$SPILLWAY" format --force --devices "$b${3:-}1"
    expect_output "$(basename "$one"), another path to the same drive, is mounted on"
    # The other partition has other blocks.
    expect_exit 0 "$SPILLWAY" format --erase --devices "$two"
    hold_store "$two"
    expect_exit 3 "$SPILLWAY" format --force --devices "$a${3:-}2"
    expect_output "a process has a store on $two open"
    umount "$TEST_TMP/mounted"
    expect_exit 3 "$SPILLWAY" format --force --devices "$a"
    expect_output "a process has a store on $two open"
    expect_exit 3 "$SPILLWAY" format --force --devices "$one,$b"
    expect_output "two paths to the same drive"
    let_go
    rmdir "$TEST_TMP/mounted"
    sfdisk -q --delete "$a"
    forget_cached "$b"
    blockdev --rereadpt "$b"
}

# What a path has cached does not know of what the other one writes.
forget_cached() {
    blockdev --flushbufs "$1"
}

# ---- Two controllers of one drive ----

driver_of() {
    basename "$(readlink "/sys/bus/pci/devices/$1/driver")"
}

# give_back ADDRESS: to the kernel's driver; its namespace is there again.
give_back() {
    echo "$1" >/sys/bus/pci/drivers/nvme/bind
    until compgen -G "/sys/bus/pci/devices/$1/nvme/nvme*/nvme*n1" >/dev/null; do sleep 0.05; done
}

refuse_to_bind() {
    local address=$1 other=$2 force
    for force in "" --force; do
        expect_exit 3 "$SPILLWAY" bind $force "$address"
        expect_output "is reached by controller" "($other)" "echo $other > /sys/bus/pci/drivers/nvme/unbind"
        expect_equal nvme "$(driver_of "$address")" "driver of $address"
        expect_equal "(null)" "$(cat "/sys/bus/pci/devices/$address/driver_override")" "override of $address"
    done
}

addresses=()
for path in /sys/class/nvme/nvme*; do
    read -r serial <"$path/serial"
    [ "$serial" != spw0 ] || addresses+=("$(basename "$(readlink -f "$path/device")")")
done
[ ${#addresses[@]} -eq 2 ] || skip "no drive with two controllers"
for address in "${addresses[@]}"; do
    until compgen -G "/sys/bus/pci/devices/$address/nvme/nvme*/nvme*n1" >/dev/null; do sleep 0.05; done
done
modprobe -a ext4 dm-mod loop

if [ "$(cat /sys/module/nvme_core/parameters/multipath)" = N ]; then
    devices=()
    for address in "${addresses[@]}"; do
        devices+=("/dev/$(basename "/sys/bus/pci/devices/$address/nvme/"nvme*/nvme*n1)")
    done
    one_drive "${devices[0]}" "${devices[1]}" p
    begin "another drive is another drive"
    read -ra drives <<<"$SPW_VM_DRIVES"
    clear_drives "${devices[0]}" "${drives[1]}"
    expect_exit 0 "$SPILLWAY" format --devices "${devices[0]},${drives[1]}"

    modprobe sd_mod
    modprobe scsi_debug dev_size_mb=64 delay=0 add_host=2 max_luns=1 vpd_use_hostno=0
    on_exit rmmod scsi_debug
    until [ "$(compgen -G "/sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*/block/sd?" | wc -l)" -eq 2 ]; do sleep 0.1; done
    devices=()
    for path in /sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*/block/sd?; do
        devices+=("/dev/${path##*/}")
        until [ -b "/dev/${path##*/}" ]; do sleep 0.05; done
    done
    one_drive "${devices[@]}"
fi

begin "a controller whose namespace has another path is not bound"
refuse_to_bind "${addresses[0]}" "${addresses[1]}"
refuse_to_bind "${addresses[1]}" "${addresses[0]}"
expect_exit 0 "$SPILLWAY" probe
expect_output "In the way of vfio" "is reached by controller"

begin "with its last path it is, and not used while there is another one again"
node=pci:${addresses[0]}/1
echo "${addresses[1]}" >/sys/bus/pci/drivers/nvme/unbind
on_exit give_back "${addresses[1]}"
expect_exit 0 "$SPILLWAY" bind --force "${addresses[0]}"
expect_exit 0 "$SPILLWAY" format --force --devices "$node"
expect_exit 0 "$SPILLWAY" bench --level=store --filename="$node" --rw=write --object-size=1m --size=16m
give_back "${addresses[1]}"
expect_exit 3 "$SPILLWAY" bench --level=store --filename="$node" --rw=write --object-size=1m --size=1m
expect_output "the kernel reaches it by another controller"
expect_exit 3 "$SPILLWAY" format --force --devices "$node"
expect_output "the kernel reaches it by another controller"
expect_exit 0 "$SPILLWAY" probe "$node"
expect_output "the kernel reaches it by another controller"
expect_exit 0 "$SPILLWAY" check --devices "$node"
echo "${addresses[1]}" >/sys/bus/pci/drivers/nvme/unbind
expect_exit 0 "$SPILLWAY" bench --level=store --filename="$node" --rw=write --object-size=1m --size=1m
expect_exit 0 "$SPILLWAY" unbind "${addresses[0]}"
