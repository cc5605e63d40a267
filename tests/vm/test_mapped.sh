#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/vm/test_mapped.sh - devices of several pieces: what goes over a boundary is refused with EAGAIN by io_uring, each time it comes the same way
. "$(dirname "$0")/../lib.sh"

read -r -a drives <<<"$SPW_VM_DRIVES"
modprobe dm-mod
MIB=2048 # sectors

# map NAME TABLE: /dev/mapper/NAME, until unmap.
map() {
    dmsetup create --noudevsync --noudevrules "$1" --table "$2"
    device=/dev/dm-$(dmsetup info -c --noheadings -o minor "$1")
}

unmap() {
    dmsetup remove --noudevsync "$@"
}

# moved DEVICE: what is written over all of its boundaries is read back, by both backends, as blocks and as objects of a store; no drive is
# retired, and nothing fails.
moved() {
    local backend options=(--bs=768k --iodepth=8 --size=48m --fixedbufs --verify=xxh3 --allow-destructive)
    for backend in io_uring libaio; do
        expect_exit 0 "$SPILLWAY" bench --filename="$1" --rw=write --backend=$backend "${options[@]}"
        expect_output "$backend"
        expect_exit 0 "$SPILLWAY" format --force --erase "$1"
        expect_exit 0 "$SPILLWAY" bench --level=store --filename="$1" --rw=rw --backend=$backend --iodepth=4 --object-size=2500k --size=30000k \
            --verbose
        expect_equal "" "$(grep -E 'retired|out of service|failed' "$OUTPUT" || true)" "complaints of $backend"
    done
}

begin "two pieces of two drives, that meet inside of a MiB"
map pieces "0 $((24 * MIB + 1000)) linear ${drives[0]} 2048
$((24 * MIB + 1000)) $((40 * MIB)) linear ${drives[1]} 2048"
moved "$device"
unmap pieces

begin "stripes of 64 KiB"
map stripes "0 $((64 * MIB)) striped 2 128 ${drives[0]} 2048 ${drives[1]} 2048"
moved "$device"
unmap stripes

# LVM complains of descriptors that are not its own.
export LVM_SUPPRESS_FD_WARNINGS=1
begin "a logical volume over two physical ones"
pvcreate -qff -y "${drives[0]}" "${drives[1]}" >/dev/null
vgcreate -qy --physicalextentsize 4m spw "${drives[0]}" "${drives[1]}" >/dev/null
lvcreate -qy -an -Zn --name both --extents 7 spw "${drives[0]}" >/dev/null
lvextend -qy --extents +8 spw/both "${drives[1]}" >/dev/null
lvchange -qay -K spw/both
device=/dev/dm-$(dmsetup info -c --noheadings -o minor spw-both)
moved "$device"
vgremove -qfy spw >/dev/null
pvremove -qy "${drives[0]}" "${drives[1]}" >/dev/null

begin "a thin volume, whose blocks come as they are written"
if modprobe dm-thin-pool 2>/dev/null; then
    dd if=/dev/zero of="${drives[1]}" bs=1M count=1 oflag=direct status=none
    map pool "0 $((128 * MIB)) thin-pool ${drives[1]} ${drives[0]} 128 0"
    pool=$device
    dmsetup message pool 0 "create_thin 0"
    map thin "0 $((64 * MIB)) thin $pool 0"
    moved "$device"
    unmap thin pool
else
    skip "this kernel has no thin volumes"
fi

begin "an array of 4 KiB chunks"
if modprobe raid0 2>/dev/null; then
    mdadm --create /dev/md/spw --run --quiet --level=0 --chunk=4 --raid-devices=2 --size=64M "${drives[0]}" "${drives[1]}" 2>/dev/null ||
        mdadm --create /dev/md/spw --run --quiet --level=0 --chunk=4 --raid-devices=2 "${drives[0]}" "${drives[1]}"
    device=$(readlink -f /dev/md/spw)
    moved "$device"
    mdadm --stop --quiet "$device"
    mdadm --zero-superblock "${drives[0]}" "${drives[1]}"
else
    skip "this kernel has no RAID 0"
fi

begin "an array that keeps parity, in chunks of 64 KiB"
if modprobe raid456 2>/dev/null; then
    mdadm --create /dev/md/spw --run --quiet --assume-clean --level=5 --chunk=64 --raid-devices=3 --size=65536 "${drives[@]:0:3}"
    device=$(readlink -f /dev/md/spw)
    moved "$device"
    mdadm --stop --quiet "$device"
    mdadm --zero-superblock "${drives[@]:0:3}"
else
    skip "this kernel has no RAID 5"
fi

begin "an encrypted drive"
if modprobe dm-crypt 2>/dev/null; then
    modprobe -a xts aesni-intel 2>/dev/null || true
    map secret "0 $((64 * MIB)) crypt aes-xts-plain64 $(printf '%064d' 7) 0 ${drives[0]} 2048"
    moved "$device"
    unmap secret
else
    skip "this kernel does not encrypt"
fi

begin "drives of memory"
if modprobe brd rd_nr=1 rd_size=$((64 << 10)) 2>/dev/null && modprobe null_blk nr_devices=1 gb=1 memory_backed=1 2>/dev/null; then
    moved /dev/ram0
    moved /dev/nullb0
    modprobe -r brd null_blk
else
    skip "this kernel has no such drives"
fi

# The first is aligned to blocks of the file system; the others write elsewhere what is overwritten.
for kind in ext4 xfs btrfs; do
    begin "a file of $kind"
    if modprobe $kind 2>/dev/null && command -v mkfs.$kind >/dev/null; then
        # xfs is not made on less than 300 MB.
        map both "0 $((200 * MIB)) linear ${drives[0]} 2048
$((200 * MIB)) $((200 * MIB)) linear ${drives[1]} 2048"
        wipefs -qa "$device"
        mkfs.$kind -q "$device" >/dev/null
        mkdir -p "$TEST_TMP/files"
        mount -t $kind "$device" "$TEST_TMP/files"
        truncate -s 64M "$TEST_TMP/files/drive"
        moved "$TEST_TMP/files/drive"
        umount "$TEST_TMP/files"
        wipefs -qa "$device"
        unmap both
    else
        skip "no $kind here"
    fi
done

# The table has two paths to the same drive; one fails while a store is in use, and comes back.
begin "a path that fails"
if modprobe dm-multipath 2>/dev/null && modprobe dm-round-robin 2>/dev/null; then
    map first "0 $((64 * MIB)) linear ${drives[0]} 2048"
    first=$device
    map second "0 $((64 * MIB)) linear ${drives[0]} 2048"
    second=$device
    map paths "0 $((64 * MIB)) multipath 3 queue_if_no_path queue_mode bio 0 2 1 round-robin 0 1 1 $first 1 round-robin 0 1 1 $second 1"
    moved "$device"
    (while dmsetup message paths 0 "fail_path $first" 2>/dev/null; do
        dmsetup message paths 0 "reinstate_path $first"
        dmsetup message paths 0 "fail_path $second"
        dmsetup message paths 0 "reinstate_path $second"
    done) &
    changer=$!
    moved "$device"
    kill $changer
    wait $changer || true
    unmap paths first second
else
    skip "this kernel has no multipath"
fi
