#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/vm/test_vfio_rebind.sh - what was written by the kernel's driver is there behind vfio, and the other way round
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/store.sh"

read -ra drives <<<"$SPW_VM_DRIVES"
[ -b "${drives[0]}" ] || skip "no NVMe drives"
addresses=() pci=()
for place in 0 1 2; do
    addresses[place]=$(basename "$(readlink -f "/sys/class/nvme/$(basename "${drives[place]%n1}")/device")")
    pci[place]=pci:${addresses[place]}/1
done
[ -e "/sys/bus/pci/devices/${addresses[0]}/iommu_group" ] || skip "no IOMMU"

# unbind PLACE...: they are the kernel's again; their numbers may be others then.
unbind() {
    local place folder
    for place in "$@"; do
        folder=/sys/bus/pci/devices/${addresses[place]}/nvme
        expect_exit 0 "$SPILLWAY" unbind "${addresses[place]}"
        until compgen -G "$folder/nvme*/nvme*n1" >/dev/null; do sleep 0.05; done
        drives[place]=/dev/$(basename "$folder/"nvme*)n1
        until [ -b "${drives[place]}" ]; do sleep 0.05; done
    done
}

store_of() {
    "$SPILLWAY" info --json --devices "$1" | grep -o '"store_uuid": "[^"]*"'
}

# use_store A B: it is whole, and objects are put into it, read back and compared.
use_store() {
    expect_exit 0 "$SPILLWAY" check --devices "$1,$2"
    expect_exit 0 "$SPILLWAY" bench --level=store --filename="$1:$2" --rw=write --object-size=3m --size=48m
    expect_exit 0 "$SPILLWAY" bench --level=store --filename="$1:$2" --rw=randread --object-size=300k --size=24m
}

blocks() {
    expect_exit 0 "$SPILLWAY" bench --filename="$1" --rw="$2" --bs=768k --size=72m --iodepth=8 --verify=xxh3
}

on_exit "$SPILLWAY" unbind "${addresses[@]}"
clear_drives "${drives[@]:0:3}"

begin "formatted and written by the kernel's driver, used behind vfio"
expect_exit 0 "$SPILLWAY" format --devices "${drives[0]},${drives[1]}" --partitions 2
uuid=$(store_of "${drives[0]},${drives[1]}")
use_store "${drives[0]}" "${drives[1]}"
blocks "${drives[2]}" write
expect_exit 0 "$SPILLWAY" bind "${addresses[@]}"
expect_equal "$uuid" "$(store_of "${pci[0]},${pci[1]}")" "the store"
use_store "${pci[0]}" "${pci[1]}"
blocks "${pci[2]}" read

begin "some of it behind vfio, and some not"
unbind 1
expect_equal "$uuid" "$(store_of "${pci[0]},${drives[1]}")" "the store"
use_store "${drives[1]}" "${pci[0]}"
expect_exit 0 "$SPILLWAY" bind "${addresses[1]}"

begin "formatted and written behind vfio, used by the kernel's driver"
expect_exit 3 "$SPILLWAY" format --devices "${pci[0]},${pci[1]}"
expect_exit 0 "$SPILLWAY" format --force --devices "${pci[0]},${pci[1]}"
uuid=$(store_of "${pci[0]},${pci[1]}")
use_store "${pci[0]}" "${pci[1]}"
blocks "${pci[2]}" write
unbind 0 1 2
expect_equal "$uuid" "$(store_of "${drives[0]},${drives[1]}")" "the store"
use_store "${drives[0]}" "${drives[1]}"
blocks "${drives[2]}" read
