#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/vm/test_vfio_group.sh - a controller that shares its IOMMU group is bound for root at most, and never for another user
. "$(dirname "$0")/../lib.sh"

[ -n "${SPW_VM:-}" ] || skip "only in the virtual machine"
address=
for path in /sys/class/nvme/nvme*; do
    read -r serial <"$path/serial"
    [ "$serial" != shared ] || address=$(basename "$(readlink -f "$path/device")")
done
[ -n "$address" ] || skip "no controller that shares its IOMMU group"
neighbour=${address%.0}.1
group=$(basename "$(readlink "/sys/bus/pci/devices/$address/iommu_group")")
expect_equal "$group" "$(basename "$(readlink "/sys/bus/pci/devices/$neighbour/iommu_group")")" "the neighbour's IOMMU group"
until compgen -G "/sys/bus/pci/devices/$address/nvme/nvme*/nvme*n1" >/dev/null; do sleep 0.05; done
modprobe -a vfio-pci vfio_iommu_type1

driver_of() {
    [ ! -e "/sys/bus/pci/devices/$1/driver" ] || basename "$(readlink "/sys/bus/pci/devices/$1/driver")"
}

begin "a neighbour without a driver"
expect_equal "" "$(driver_of "$neighbour")" "the neighbour's driver"
for words in "" "--force" "--user nobody" "--force --user nobody" "--user nobody --dry-run"; do
    # shellcheck disable=SC2086 # words
    expect_exit 3 "$SPILLWAY" bind $words "$address"
    expect_output "$address: shares IOMMU group $group with $neighbour"
    expect_equal nvme "$(driver_of "$address")" driver
    expect_equal "(null)" "$(cat "/sys/bus/pci/devices/$address/driver_override")" override
done

begin "a neighbour that vfio-pci has goes with the group, and so does not go to another user"
echo vfio-pci >"/sys/bus/pci/devices/$neighbour/driver_override"
echo "$neighbour" >/sys/bus/pci/drivers_probe
expect_equal vfio-pci "$(driver_of "$neighbour")" "the neighbour's driver"
expect_exit 3 "$SPILLWAY" bind --force --user nobody "$address"
expect_output "shares IOMMU group $group with $neighbour, which come with the group"
expect_equal nvme "$(driver_of "$address")" driver
expect_exit 0 "$SPILLWAY" bind "$address"
expect_exit 3 "$SPILLWAY" bind --force --user nobody "$address"
expect_output "shares IOMMU group $group with $neighbour"
expect_equal root "$(stat -c %U "/dev/vfio/$group")" "owner of /dev/vfio/$group"
expect_exit 0 "$SPILLWAY" unbind "$address"
echo >"/sys/bus/pci/devices/$neighbour/driver_override"
echo "$neighbour" >"/sys/bus/pci/devices/$neighbour/driver/unbind"
