#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_vfio_bind.sh - bind and unbind given what is not a controller: wrong usage, or a refusal; nothing is touched
. "$(dirname "$0")/../lib.sh"

begin "without an address the usage is wrong, and the words say what is missing"
for command in bind unbind; do
    expect_exit 2 "$SPILLWAY" "$command"
    expect_output "PCI address" "0000:3d:00.0" "spillway probe"
    expect_no_output "drives"
done

begin "what is not a PCI address is wrong usage"
for command in bind unbind; do
    for address in nonsense 3d 3d:00.8 0000:3d:20.0 0000:3d:00.0x /dev/nvme0 pci:0000:3d:00.0/0 \
        0000:3d:00.0000000000000000000000000000000000000000000000000000000000000000; do
        expect_exit 2 "$SPILLWAY" "$command" "$address"
        expect_output "0000:3d:00.0" "--help"
    done
    expect_exit 2 "$SPILLWAY" "$command" --json nonsense
done

begin "an unknown user is wrong usage, and is found before a controller is looked at"
nobody_at_all=no-such-user-$$
! getent passwd "$nobody_at_all" >/dev/null || skip "there is a user $nobody_at_all"
for option in --verbose --dry-run --json --force; do
    expect_exit 2 "$SPILLWAY" bind "$option" --user "$nobody_at_all" 0000:ff:1f.7
    expect_output "--user=$nobody_at_all: there is no such user" "--help"
    expect_no_output "no such PCI device"
done

begin "a device that is not there is a failure, and comes before anything is done to the others"
absent=0000:ff:1f.7
[ ! -e "/sys/bus/pci/devices/$absent" ] || skip "there is a device at $absent"
for command in bind unbind; do
    expect_exit 1 "$SPILLWAY" "$command" "$absent"
    expect_output "no such PCI device"
    expect_exit 1 "$SPILLWAY" "$command" --json "$absent"
    expect_output '"errno": 19'
    expect_exit 2 "$SPILLWAY" "$command" nonsense "$absent"
done
