# SPDX-License-Identifier: MIT
# tests/vm/machines.py - which machines are booted, and what runs in each

import machines_vfio

# A case that has not ended by then hangs: four times what the longest takes on an idle machine.
CASE_SECONDS = 600


class Case:
    """A program in a machine. @prelude: bash lines before it; @env: for it; @argument: words after
    its name. @extra: what others cover for the greater part: run if it is named, or with --all."""

    def __init__(self, name, program, argument="", prelude="", extra=False, **env):
        self.name, self.program, self.argument, self.prelude = name, program, argument, prelude
        self.extra, self.env = extra, env


class Kind:
    """A machine: options of machine.Options, and cases, run one after the other. @seconds: about
    how long, for the order of machines."""

    def __init__(self, name, what, cases, seconds, **options):
        self.name, self.what, self.cases = name, what, cases
        self.seconds, self.options = seconds, options


CONFORMANCE = "tests/integration/test_engine_conformance.c"
NUMA = "tests/vm/test_numa.c"
NODES = "tests/vm/test_nvme_nodes.sh"
KILLS = "tests/vm/test_kills.sh"
BOUNDARY = "tests/vm/test_boundary.sh"
MAPPED = "tests/vm/test_mapped.sh"
REMOVAL = "tests/vm/test_removal.c"
REMOVAL_ENGINE = "tests/vm/test_removal_engine.c"
REMOVAL_STATE = "tests/vm/test_removal_state.c"


def conformance(*ways, **more):
    """The engine's conformance tests: a way is libaio or one of io_uring's ways to wait."""
    return [Case(f"conformance {way}", CONFORMANCE,
                 SPW_TEST_BACKEND="libaio" if way == "libaio" else "io_uring",
                 SPW_TEST_WAIT="interrupt" if way == "libaio" else way, **more) for way in ways]


# The drives by their character nodes.
BY_CHARACTER_NODE = "export SPW_TEST_DEVICES=${SPW_TEST_DEVICES//nvme/ng}"


def passthrough(*ways, **more):
    """The same tests past the block layer."""
    return [Case(f"passthrough {way}", CONFORMANCE, SPW_TEST_WAIT=way,
                 **{"SPW_TEST_BACKEND": "nvme", **more}) for way in ways]


def driven_here(places="0 1 2 3"):
    """Before a case: its process drives these drives by itself, once they are taken from the
    kernel."""
    return f". tests/vm/vfio.sh; vfio_take {places}"


def vfio_engine():
    """The same tests without a kernel on the way, on one kind of drives and on two; and a drive
    pulled."""
    return [Case("vfio", CONFORMANCE, prelude=driven_here(), SPW_TEST_BACKEND="vfio"),
            Case("vfio and io_uring mixed", CONFORMANCE, prelude=driven_here("0 2"),
                 SPW_TEST_BACKEND="vfio"),
            Case("drive 1 pulled from a vfio engine", REMOVAL_ENGINE, prelude=driven_here(),
                 SPW_VM_VICTIM="1", SPW_TEST_BACKEND="vfio")]


# All drives are made empty, and SPW_VM_BREAK lets the last one find each of its blocks damaged that
# is not written again: QEMU keeps their protection information behind them.
DAMAGE = r"""
for drive in $SPW_VM_DRIVES; do blkdiscard -zf $drive; done
tags=$(blockdev --getsize64 $drive)
tags_bytes=$((tags / $(blockdev --getss $drive) * 8))
damage() {
    bash -c 'exec 3<>/dev/virtio-ports/monitor
        echo "qemu-io -d ns3 \"write -P 17 $0 $1\"" >&3
        read -r answer <&3
        [ "$answer" = ok ]' "$@"
}
export SPW_VM_BREAK="$(declare -f damage); damage $tags $tags_bytes"
"""


def protected():
    """Drives with protection information, by both ways on which no kernel makes it."""
    cases = [Case("protected nodes", "tests/vm/test_protected.sh"),
             *passthrough("interrupt"),
             Case("vfio", CONFORMANCE, prelude=driven_here(), SPW_TEST_BACKEND="vfio")]
    for backend, prelude in (("nvme", ""), ("vfio", driven_here())):
        cases += [Case(f"{test.replace('_', ' ')}, {backend}", "tests/vm/test_protected.c",
                       f"test_{test}", DAMAGE + prelude, SPW_TEST_BACKEND=backend)
                  for test in ("what_a_drive_finds_damaged", "the_other_copy_serves")]
    return cases


def integration(*names, backend="io_uring", **more):
    return [Case(f"{name} {backend}", f"tests/integration/test_{name}.c", SPW_TEST_BACKEND=backend,
                 **more) for name in names]


def removal():
    """A drive pulled from each node, under each backend."""
    cases = []
    for victim, backend in ((3, "io_uring"), (2, "libaio")):
        for test in ("put", "get"):
            cases.append(Case(f"drive {victim} pulled during {test} {backend}", REMOVAL,
                              f"test_pulled_during_{test}", SPW_TEST_BACKEND=backend,
                              SPW_VM_VICTIM=str(victim)))
        for kind in ("a_state", "a_mirrored_state"):
            cases.append(Case(f"drive {victim} pulled from {kind.replace('_', ' ')} {backend}",
                              REMOVAL_STATE, f"test_pulled_from_{kind}", SPW_TEST_BACKEND=backend,
                              SPW_VM_VICTIM=str(victim)))
    for way in ("interrupt", "poll", "libaio"):
        cases.append(Case(f"drive 1 pulled from an engine {way}", REMOVAL_ENGINE, SPW_VM_VICTIM="1",
                          SPW_TEST_BACKEND="libaio" if way == "libaio" else "io_uring",
                          SPW_TEST_WAIT="interrupt" if way == "libaio" else way))
    for way in ("interrupt", "poll"):
        cases.append(Case(f"drive 1 pulled from a passthrough engine {way}", REMOVAL_ENGINE,
                          SPW_VM_VICTIM="1", SPW_TEST_BACKEND="nvme", SPW_TEST_WAIT=way))
    return cases


# ---- Bad drives: a prelude makes $device out of the last drive, $4 -------------------------------

FAULTY = "tests/vm/test_faulty.c"
SET_UP = """set -e
set -- $SPW_VM_DRIVES
sectors=$(blockdev --getsz $4)
mapped() {
    modprobe -a dm-mod dm-flakey dm-delay
    dmsetup create --noudevsync --noudevrules bad --table "$1"
    device=/dev/dm-$(dmsetup info -c --noheadings -o minor bad)
}
remap="dmsetup suspend --nolockfs bad && dmsetup load bad --table '%s' && \
    dmsetup resume --noudevsync bad"
"""
TAKE = """
export SPW_TEST_DEVICES="$1 $2 $3 $device" SPW_VM_BREAK
trap "$undo" EXIT
"""
NVMET = """modprobe nvmet-tcp; modprobe nvme-tcp
nvmet=/sys/kernel/config/nvmet
mkdir $nvmet/subsystems/spw $nvmet/subsystems/spw/namespaces/1 $nvmet/ports/1
echo 1 >$nvmet/subsystems/spw/attr_allow_any_host
echo spwtcp >$nvmet/subsystems/spw/attr_serial
echo $4 >$nvmet/subsystems/spw/namespaces/1/device_path
echo 1 >$nvmet/subsystems/spw/namespaces/1/enable
echo tcp >$nvmet/ports/1/addr_trtype; echo ipv4 >$nvmet/ports/1/addr_adrfam
echo 127.0.0.1 >$nvmet/ports/1/addr_traddr; echo 4420 >$nvmet/ports/1/addr_trsvcid
ln -s $nvmet/subsystems/spw $nvmet/ports/1/subsystems/spw
exec 5<>/dev/nvme-fabrics
printf 'transport=tcp,traddr=127.0.0.1,trsvcid=4420,nqn=spw,reconnect_delay=1' >&5
IFS=, read -r controller _ <&5
controller=nvme${controller#instance=}
until device=$(ls -d /dev/${controller}n[0-9] 2>/dev/null); do sleep 0.1; done
undo="echo 1 >/sys/class/nvme/$controller/delete_controller; rm -f $nvmet/ports/1/subsystems/spw; \
    rmdir $nvmet/ports/1 $nvmet/subsystems/spw/namespaces/1 $nvmet/subsystems/spw"
"""


# The network goes away, and comes back; the kernel tries every second.
CUT = """SPW_VM_BREAK="rm $nvmet/ports/1/subsystems/spw"
SPW_VM_MEND="ln -s $nvmet/subsystems/spw $nvmet/ports/1/subsystems/spw"
export SPW_VM_MEND
"""


def faulty(name, test, set_up, undo="dmsetup remove --noudevsync bad", backend="io_uring"):
    return Case(f"{name} {backend}", FAULTY, f"test_a_drive_that_{test}",
                SET_UP + f"undo={undo!r}\n" + set_up + TAKE, SPW_TEST_BACKEND=backend)


def flakey(options):
    return f"""mapped "0 $sectors linear $4 0"
SPW_VM_BREAK=$(printf "$remap" "0 $sectors flakey $4 0 {options}")
"""


BAD = [
    faulty("dm-flakey errors", "fails", flakey("0 1")),
    faulty("dm-flakey now and then", "fails", flakey("1 1")),
    faulty("dm-flakey other bytes", "fails", flakey("0 1 5 corrupt_bio_byte 32 r 1 0")),
    faulty("dm-delay", "is_slow", """mapped "0 $sectors linear $4 0"
SPW_VM_BREAK=$(printf "$remap" "0 $sectors delay $4 0 50")
"""),
    faulty("scsi_debug", "fails", """modprobe sd_mod; modprobe scsi_debug dev_size_mb=256 delay=0
hosts=/sys/bus/pseudo/drivers/scsi_debug/adapter0/host*
until device=$(ls -d $hosts/target*/*/block/* 2>/dev/null); do sleep 0.1; done
device=/dev/${device##*/}
until [ -b $device ]; do sleep 0.1; done
SPW_VM_BREAK="echo 2 >/sys/bus/pseudo/drivers/scsi_debug/opts"
""", undo="rmmod scsi_debug"),
    faulty("nvme-tcp", "is_well", NVMET),
    faulty("nvme-tcp", "fails",
           NVMET + 'SPW_VM_BREAK="echo 0 >$nvmet/subsystems/spw/namespaces/1/enable"\n'),
    *[Case(f"nvme-tcp, {test.replace('_', ' ')}", "tests/vm/test_far.c", f"test_{test}",
           SET_UP + NVMET + CUT + TAKE)
      for test in ("probe_names_the_way", "a_network_that_comes_back",
                   "near_copies_serve_without_a_network")],
]


def with_drive(number):
    """Before a case: three drives that are well, and this one."""
    return f'set -- $SPW_VM_DRIVES; export SPW_TEST_DEVICES="$1 $2 $3 ${number + 1}"'


def fails(iotype):
    """A rule of QEMU's blkdebug: every read, or write, of one sector fails."""
    return [{"event": "none", "iotype": iotype, "errno": 5, "sector": 16384, "once": False}]


BLKDEBUG = [Case(f"blkdebug {backend}", FAULTY, "test_a_drive_that_fails", with_drive(number),
                 SPW_TEST_BACKEND=backend) for number, backend in ((4, "io_uring"), (5, "libaio"))]

# ---- All -----------------------------------------------------------------------------------------

ALL = [
    Kind("nvme512", "4 drives of 512 byte blocks, 2 nodes, poll queues",
         [*conformance("interrupt", "poll", "sqpoll", "libaio"),
          *integration("store", "store_processes"),
          *integration("committed", "state", backend="nvme"),
          *integration("committed", "state", extra=True),
          *passthrough("interrupt", "poll"), Case("passthrough nodes", NODES),
          Case("kills", KILLS), Case("boundaries", BOUNDARY),
          Case("numa", NUMA),
          *removal()],
         seconds=325, poll_queues=2),
    Kind("nvme4096", "4 drives of 4096 byte blocks, poll queues",
         [*conformance("interrupt"), *conformance("poll", extra=True),
          *passthrough("interrupt", prelude=BY_CHARACTER_NODE, SPW_TEST_BACKEND="auto"),
          *integration("store"), *integration("store_space", extra=True),
          Case("mapped drive", MAPPED, "drive"),
          Case("mapped, of several drives", MAPPED, "pieces volume crypt raid5", extra=True)],
         seconds=150, block_bytes=4096, nodes=1, poll_queues=2),
    # Two machines, as what is mapped takes long.
    Kind("stacked", "4 drives of 512 byte blocks, below other devices",
         [Case("mapped", MAPPED, "pieces raid5"),
          Case("mapped dm", MAPPED, "stripes volume thin crypt paths", extra=True)],
         seconds=100),
    Kind("memory", "4 drives of 512 byte blocks, and drives of memory",
         [Case("mapped", MAPPED, "zram xfs"),
          Case("mapped memory and files", MAPPED, "raid0 brd ext4 btrfs", extra=True),
          Case("mapped null_blk", MAPPED, "null_blk blocks4k", extra=True)],
         seconds=130),
    Kind("vfio512", "4 drives of 512 byte blocks behind an IOMMU", vfio_engine(),
         seconds=85, iommu=True),
    Kind("vfio4096", "4 drives of 4096 byte blocks behind an IOMMU", vfio_engine()[:1],
         seconds=45, block_bytes=4096, nodes=1, iommu=True),
    Kind("protected", "4 drives with protection information of type 1, behind an IOMMU",
         protected(), seconds=90, nodes=1, iommu=True, protected=[0, 1, 2, 3],
         # QEMU keeps what protected a part of a file system's block that is deallocated.
         block_bytes=4096),
    Kind("placing", "4 drives with Flexible Data Placement",
         [Case("handles by passthrough", "tests/vm/test_placing.c", SPW_TEST_BACKEND="nvme"),
          # Under a kernel that has them: SPW_VM_SUITE.
          Case("handles by write streams", "tests/vm/test_placing.c", extra=True,
               SPW_TEST_BACKEND="io_uring")],
         seconds=25, nodes=1, placing=[0, 1, 2, 3]),
    Kind("bad", "dm-flakey, dm-delay, scsi_debug, NVMe over TCP; "
         "QEMU fails writes to a sector of drive 4, and reads of one of drive 5",
         BAD + BLKDEBUG, seconds=60, nodes=1, drives=6,
         errors={4: fails("write"), 5: fails("read")}),
]
ALL += machines_vfio.stores(Case, Kind)

# Programs of the host that boot machines by themselves: (name, program).
ON_HOST = [("power cuts", "tests/vm/power"), ("power cuts in commits", "tests/vm/power_commits")]
