# SPDX-License-Identifier: MIT
# tests/vm/vfio.sh - sourced by what runs in the virtual machine: gives the drives of SPW_VM_DRIVES to vfio-pci, without spillway bind
# shellcheck shell=bash
#
#   . tests/vm/vfio.sh; vfio_take 0 1 2 3      these drives, by their place in SPW_VM_DRIVES; SPW_TEST_DEVICES then names them so
#
# All drives are made empty before, those that are not taken too: tests search them for what they have written.
# The kernel's driver gets them back when the shell ends, for what runs next in the same machine.

vfio_taken=()

vfio_address() {
    basename "$(readlink -f "/sys/class/nvme/$(basename "${1%n1}")/device")"
}

# Where SPW_VM_WAY says that it is iommufd that is tested, nothing else will do.
vfio_check_way() {
    [ "${SPW_VM_WAY:-}" = iommufd ] || return 0
    "${SPW_BUILD:-build}/spillway" probe --json "pci:$1/1" | grep -q "\"way\": \"$SPW_VM_WAY\"" && return
    echo "vfio_take: $1 is not reached by $SPW_VM_WAY"
    return 1
}

vfio_take() {
    local drives devices place address
    modprobe -a vfio-pci vfio_iommu_type1 || return
    read -ra drives <<<"$SPW_VM_DRIVES"
    read -ra devices <<<"$SPW_VM_DRIVES"
    trap vfio_give_back EXIT
    for place in "${!drives[@]}"; do
        blkdiscard -z "${drives[place]}" || return
    done
    for place in "$@"; do
        address=$(vfio_address "${drives[place]}")
        echo vfio-pci >"/sys/bus/pci/devices/$address/driver_override" || return
        echo "$address" >"/sys/bus/pci/devices/$address/driver/unbind" || return
        vfio_taken+=("$address")
        echo "$address" >/sys/bus/pci/drivers_probe || return
        [ "$(basename "$(readlink "/sys/bus/pci/devices/$address/driver")")" = vfio-pci ] || return
        vfio_check_way "$address" || return
        devices[place]=pci:$address/1
    done
    export SPW_TEST_DEVICES="${devices[*]}"
}

vfio_give_back() {
    local address folder
    for address in "${vfio_taken[@]}"; do
        folder=/sys/bus/pci/devices/$address
        # A drive that was pulled out has none.
        [ -d "$folder" ] || continue
        echo >"$folder/driver_override"
        [ ! -e "$folder/driver" ] || echo "$address" >"$folder/driver/unbind"
        echo "$address" >/sys/bus/pci/drivers_probe
        until compgen -G "$folder/nvme/nvme*/nvme*n1" >/dev/null; do sleep 0.05; done
    done
    vfio_taken=()
}
