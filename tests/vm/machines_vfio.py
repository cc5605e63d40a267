# SPDX-License-Identifier: MIT
# tests/vm/machines_vfio.py - stores on drives that a process drives itself
"""The drives are taken from the kernel before a case, and returned after it. For machines.py,
which has the classes."""

TAKE = """. tests/vm/vfio.sh
vfio_take {} || exit 1
"""


# throttle DRIVE BYTES BYTES_READ BYTES_WRITTEN: bytes a second; 0 is unlimited.
THROTTLE = r"""
throttle() {
    bash -c 'exec 3<>/dev/virtio-ports/monitor
        echo "block_set_io_throttle $0 $1 $2 $3 0 0 0" >&3
        read -r answer <&3
        [ "$answer" = ok ]' "$@"
}
"""
# A controller that takes commands and answers none: its blocks are given one byte per second.
SILENT = THROTTLE + r"""
trap 'throttle n3 0 0 0; vfio_give_back' EXIT
export SPW_VM_BREAK="$(declare -f throttle); throttle n3 1 0 0"
"""
# A drive whose writes are in flight for long.
SLOW = THROTTLE + r"""
trap 'throttle n2 0 0 0; vfio_give_back' EXIT
export SPW_VM_SLOW="$(declare -f throttle); throttle n2 0 0 4194304"
export SPW_VM_FAST="$(declare -f throttle); throttle n2 0 0 0"
"""


# A controller and a device that no driver of the kernel wants, in one IOMMU group, being functions
# of one device.
SHARED_GROUP = ["-device", "pcie-root-port,id=rpshared,bus=pcie.0,chassis=40,slot=40",
                "-blockdev", '{"driver": "null-co", "node-name": "shared", "size": 67108864, '
                '"read-zeroes": true}',
                "-device", "nvme,serial=shared,drive=shared,bus=rpshared,addr=0.0,multifunction=on",
                "-device", "pci-testdev,bus=rpshared,addr=0.1"]


def stores(Case, Kind):
    def case(name, program, argument="", drives="0 1 2 3", extra=False, **env):
        return Case(f"vfio {name}", program, argument, TAKE.format(drives), extra,
                    **{"SPW_TEST_BACKEND": "vfio", **env})

    def integration(*names, where="", **more):
        return [case(name + where, f"tests/integration/test_{name}.c", **more) for name in names]

    # The last case of a machine: QEMU does not let go of the blocks of a drive that was pulled out
    # of a process's hands.
    def removal(test, **more):
        return [case(f"drive 3 pulled during {test}", "tests/vm/test_removal.c",
                     f"test_pulled_during_{test}", SPW_VM_VICTIM="3", **more)]

    return [
        Kind("vfio-store", "4 drives behind an IOMMU, and stores on them",
             [*integration("store", "store_requests", "store_threads", "state"),
              *integration("store_space", "store_status", extra=True),
              *integration("store", where=" on a mix", drives="0 2"), *removal("put")],
             seconds=325, nodes=1, iommu=True),
        Kind("vfio-life",
             "4 drives behind an IOMMU that come, go, fall silent and lose their process",
             [Case("vfio killed in mid-I/O", "tests/vm/test_vfio_kills.c", "",
                   TAKE.format("0 1 2 3") + SLOW, SPW_TEST_BACKEND="vfio"),
              Case("bind and unbind", "tests/vm/test_vfio_bind.sh"),
              Case("from the block layer to vfio and back", "tests/vm/test_vfio_rebind.sh"),
              case("opened", "tests/vm/test_vfio_open.c"),
              Case("vfio a controller that stops answering", "tests/vm/test_faulty.c",
                   "test_a_drive_that_fails", TAKE.format("0 1 2 3") + SILENT,
                   SPW_TEST_BACKEND="vfio")],
             seconds=335, nodes=1, iommu=True),
        # What iommufd does not take without interrupt remapping, its group takes where the
        # administrator has allowed that.
        Kind("vfio-refused", "4 drives that iommufd refuses, and their IOMMU groups do not",
             [case("opened by their groups", "tests/vm/test_vfio_open.c", extra=True,
                   SPW_VM_WAY="group")],
             seconds=35, nodes=1, iommu=True,
             append="intremap=off vfio_iommu_type1.allow_unsafe_interrupts=1"),
        Kind("paths", "a drive with two controllers, and two block devices for it; "
             "SCSI drives with two paths",
             [Case("two paths", "tests/vm/test_paths.sh")],
             seconds=60, nodes=1, iommu=True, drives=2, drive_bytes=64 << 20, two_ports=[0],
             append="nvme_core.multipath=N"),
        Kind("paths-joined", "a drive with two controllers, and one block device for both; "
             "a controller that shares its IOMMU group",
             [Case("two paths joined", "tests/vm/test_paths.sh"),
              Case("shared IOMMU group", "tests/vm/test_vfio_group.sh")],
             seconds=35, nodes=1, iommu=True, drives=2, drive_bytes=64 << 20, two_ports=[0],
             append="nvme_core.multipath=Y", qemu=SHARED_GROUP),
        Kind("vfio-store4096", "stores on such drives with blocks of 4096 bytes",
             integration("store", extra=True) + removal("get", extra=True),
             seconds=70, nodes=1, iommu=True, block_bytes=4096),
    ]
