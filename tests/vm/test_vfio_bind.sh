#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/vm/test_vfio_bind.sh - NVMe controllers taken from the kernel and returned: what is refused, what comes back, what probe says
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/store.sh"

read -r first second third _ <<<"$SPW_VM_DRIVES"
[ -b "$first" ] || skip "no NVMe drives"
[ -e "/sys/class/nvme/$(basename "${first%n1}")/device/iommu_group" ] || skip "no IOMMU"
address_of() {
    basename "$(readlink -f "/sys/class/nvme/$(basename "${1%n1}")/device")"
}
driver_of() {
    basename "$(readlink "/sys/bus/pci/devices/$1/driver")"
}
override_of() {
    cat "/sys/bus/pci/devices/$1/driver_override"
}
await_block_device() {
    until compgen -G "/sys/bus/pci/devices/$1/nvme/nvme*/nvme*n1" >/dev/null; do sleep 0.05; done
}
one=$(address_of "$first")
two=$(address_of "$second")
three=$(address_of "$third")
clear_drives "$first" "$second" "$third"

begin "without the module, probe says so"
rmmod vfio_pci 2>/dev/null || true
expect_exit 0 "$SPILLWAY" probe "$first"
expect_output "$one" "after bind" "modprobe vfio-pci"
expect_exit 0 "$SPILLWAY" bind --dry-run "$one"
[ ! -e /sys/bus/pci/drivers/vfio-pci ] || fail "a dry run has loaded vfio-pci"

begin "nothing is taken by a dry run"
expect_exit 0 "$SPILLWAY" bind --dry-run "$one" "$two"
expect_output "$one: nothing stands in the way" "$two: nothing"
expect_equal nvme "$(driver_of "$one")" driver
expect_equal "(null)" "$(override_of "$one")" override

begin "what is mounted is never taken, forced or not"
modprobe ext4
mkfs.ext4 -q "$first"
expect_exit 3 "$SPILLWAY" bind "$one"
expect_output "$first: carries ext4 file system" "--force"
mkdir "$TEST_TMP/mounted"
mount "$first" "$TEST_TMP/mounted"
expect_exit 3 "$SPILLWAY" bind --force "$one"
expect_output "$first: is mounted on"
expect_exit 3 "$SPILLWAY" bind --force --dry-run "$one" --json
expect_output '"errno": 16'
expect_exit 0 "$SPILLWAY" probe "$first"
expect_output "In the way of vfio" "is mounted on"
umount "$TEST_TMP/mounted"
expect_equal nvme "$(driver_of "$one")" driver
expect_true "the file system is whole" fsck.ext4 -fn "$first"

begin "what is swapped on, held or open is never taken"
mkswap "$second" >/dev/null
swapon "$second"
expect_exit 3 "$SPILLWAY" bind --force "$two"
expect_output "in use as swap"
swapoff "$second"
modprobe dm-mod
dmsetup create --noudevsync --noudevrules held --table "0 8 linear $second 0"
expect_exit 3 "$SPILLWAY" bind --force "$two"
expect_output "held by"
dmsetup remove --noudevsync held
expect_exit 0 "$SPILLWAY" format --force --devices "$second,$third"
hold_store "$second" "$third"
expect_exit 3 "$SPILLWAY" bind --force "$two"
expect_output "it is process $store_holder"
let_go
expect_equal nvme "$(driver_of "$two")" driver

begin "a controller with a store that is open on a partition is never taken, forced or not"
clear_drives "$third"
printf 'label: gpt\n,32M\n' | sfdisk -q "$third"
expect_exit 0 "$SPILLWAY" format --devices "${third}p1"
hold_store "${third}p1"
for force in "" --force "--force --dry-run"; do
    # shellcheck disable=SC2086 # words
    expect_exit 3 "$SPILLWAY" bind $force "$three"
    expect_output "it is process $store_holder"
    expect_equal nvme "$(driver_of "$three")" driver
    expect_equal "(null)" "$(override_of "$three")" override
done
expect_exit 0 "$SPILLWAY" probe "$third"
expect_output "In the way of vfio" "a process has a store on ${third}p1 open"
kill -0 "$store_holder" || fail "the store's process has ended"
let_go
expect_exit 0 "$SPILLWAY" check --devices "${third}p1"
expect_exit 0 "$SPILLWAY" format --force --devices "$second,$third"

begin "a store does not prevent it, a file system does unless --force is given; both are there afterwards"
sum=$(sum_of "$first")
expect_exit 0 "$SPILLWAY" bind "$two" "$three"
expect_exit 0 "$SPILLWAY" bind --force "$one" --verbose
expect_output "pci:$one/1" "although it carries ext4"
for address in "$one" "$two" "$three"; do
    expect_equal vfio-pci "$(driver_of "$address")" driver
done
[ ! -e "$first" ] || fail "$first is still there"
expect_exit 0 "$SPILLWAY" bind "$one"
expect_exit 0 "$SPILLWAY" probe --json "pci:$one/1"
expect_output '"ready": true' "\"address\": \"$one\"" "\"way\": \"${SPW_VM_WAY:-group}\""
expect_exit 0 "$SPILLWAY" unbind "$one" "$two" "$three"
expect_output "nvme again"
for address in "$one" "$two" "$three"; do
    expect_equal nvme "$(driver_of "$address")" driver
    expect_equal "(null)" "$(override_of "$address")" override
    await_block_device "$address"
done
expect_exit 0 "$SPILLWAY" unbind "$one"
# Their numbers may be others now.
first=/dev/$(basename "/sys/bus/pci/devices/$one/nvme/"nvme*)n1
second=/dev/$(basename "/sys/bus/pci/devices/$two/nvme/"nvme*)n1
third=/dev/$(basename "/sys/bus/pci/devices/$three/nvme/"nvme*)n1
expect_equal "$sum" "$(sum_of "$first")" "the file system's bytes"
expect_exit 0 "$SPILLWAY" check --devices "$second,$third"

begin "neither an NVMe controller nor an address"
expect_exit 1 "$SPILLWAY" bind 0000:00:00.0
expect_output "is not an NVMe controller"
expect_exit 1 "$SPILLWAY" bind 0000:7f:00.0
expect_output "no such PCI device"
# Nothing is touched if one of several is not valid.
expect_exit 2 "$SPILLWAY" bind --force "$one" nonsense
expect_exit 1 "$SPILLWAY" bind --force "$one" 0000:00:00.0
expect_equal nvme "$(driver_of "$one")" driver

begin "one that a process has open stays bound"
expect_exit 0 "$SPILLWAY" bind --force "$one" --user nobody
group=$(basename "$(readlink "/sys/bus/pci/devices/$one/iommu_group")")
expect_equal nobody "$(stat -c %U "/dev/vfio/$group")" "owner of /dev/vfio/$group"
exec 7<>"/dev/vfio/$group"
expect_exit 3 "$SPILLWAY" unbind "$one"
expect_output "process $$"
expect_exit 1 "$SPILLWAY" probe --json "pci:$one/1"
expect_output "process $$" '"ready": false'
exec 7>&-
if [ -n "${SPW_VM_WAY:-}" ]; then
    begin "a user who has its nodes drives it by iommufd once there is a right to /dev/iommu"
    node=/dev/vfio/devices/$(basename "/sys/bus/pci/devices/$one/vfio-dev/"vfio*)
    expect_equal nobody "$(stat -c %U "$node")" "owner of $node"
    # Where that user may look, too.
    install -m 755 "$SPILLWAY" /run/spillway-nobody
    on_exit rm /run/spillway-nobody
    as_nobody=(setpriv --reuid nobody --regid nogroup --clear-groups /run/spillway-nobody)
    expect_exit 0 "${as_nobody[@]}" probe --json "pci:$one/1"
    expect_output '"way": "group"' "this user may not open /dev/iommu" '"kind": "vfio"'
    expect_exit 0 "$SPILLWAY" bind "$one" --user nobody
    expect_output "nobody may not open /dev/iommu" "setfacl -m u:nobody:rw /dev/iommu"
    chmod 666 /dev/iommu
    expect_exit 0 "$SPILLWAY" bind "$one" --user nobody
    expect_true "nothing is said of /dev/iommu" bash -c "! grep -q /dev/iommu '$OUTPUT'"
    expect_exit 0 "${as_nobody[@]}" probe --json "pci:$one/1"
    expect_output '"way": "iommufd"' '"kind": "vfio"'
    chmod 660 /dev/iommu
fi
expect_exit 0 "$SPILLWAY" unbind "$one"
await_block_device "$one"
