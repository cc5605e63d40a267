#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/vm/test_mapped.sh - what a user types, on every kind of block device below a store, by both backends
#
#   test_mapped.sh [WORD...]    the substrates with these names; none: all
#
# io_uring refuses a transfer across a boundary of a mapped device with EAGAIN, each time it is repeated: it must be split.
. "$(dirname "$0")/../lib.sh"

read -r -a drives <<<"$SPW_VM_DRIVES"
modprobe dm-mod
MIB=2048 # sectors
export PYTHONPATH=$ROOT/python SPILLWAY_LIBRARY=$SPW_BUILD/libspillway.so
export LVM_SUPPRESS_FD_WARNINGS=1

# NAME | the kernel's module and its options | a command that it takes | what it is. make_NAME sets $device, end_NAME takes it apart.
mapfile -t substrates <<'END'
drive|dm-mod|blkdiscard|a drive as it is
pieces|dm-mod|dmsetup|dm-linear, two pieces of two drives that meet inside a MiB
stripes|dm-mod|dmsetup|dm-stripe, in stripes of 64 KiB
volume|dm-mod|lvcreate|LVM, a logical volume over two physical ones
thin|dm-thin-pool|dmsetup|dm-thin, whose blocks are allocated when they are written
crypt|dm-crypt|dmsetup|dm-crypt, an encrypted drive
paths|dm-multipath|dmsetup|dm-multipath, two paths that fail in turn
raid0|raid0|mdadm|md RAID 0, in chunks of 4 KiB
raid5|raid456|mdadm|md RAID 5, in chunks of 64 KiB
zram|zram num_devices=0|modprobe|zram, which moves wrong bytes of memory that is not page-aligned
brd|brd rd_nr=1 rd_size=65536|modprobe|brd, a RAM drive
null_blk|null_blk nr_devices=0|modprobe|null_blk, in memory
blocks4k|null_blk nr_devices=0|modprobe|null_blk, with logical blocks of 4096 bytes
ext4|ext4|mkfs.ext4|a file on ext4
xfs|xfs|mkfs.xfs|a file on xfs
btrfs|btrfs|mkfs.btrfs|a file on btrfs
END

# ---- The substrates ------------------------------------------------------------------------------------------------------------------

# map NAME TABLE: /dev/mapper/NAME, until unmap.
map() {
    dmsetup create --noudevsync --noudevrules "$1" --table "$2"
    device=/dev/dm-$(dmsetup info -c --noheadings -o minor "$1")
}

unmap() { dmsetup remove --noudevsync "$@"; }

make_drive() {
    device=${drives[0]}
    blkdiscard -z "$device"
}

end_drive() { :; }

make_pieces() {
    map pieces "0 $((24 * MIB + 1000)) linear ${drives[0]} 2048
$((24 * MIB + 1000)) $((40 * MIB)) linear ${drives[1]} 2048"
}

end_pieces() { unmap pieces; }

make_stripes() {
    map stripes "0 $((64 * MIB)) striped 2 128 ${drives[0]} 2048 ${drives[1]} 2048"
}

end_stripes() { unmap stripes; }

make_volume() {
    pvcreate -qff -y "${drives[0]}" "${drives[1]}" >/dev/null
    vgcreate -qy --physicalextentsize 4m spw "${drives[0]}" "${drives[1]}" >/dev/null
    lvcreate -qy -an -Zn --name both --extents 7 spw "${drives[0]}" >/dev/null
    lvextend -qy --extents +9 spw/both "${drives[1]}" >/dev/null
    lvchange -qay -K spw/both
    device=/dev/dm-$(dmsetup info -c --noheadings -o minor spw-both)
}

end_volume() {
    vgremove -qfy spw >/dev/null
    pvremove -qy "${drives[0]}" "${drives[1]}" >/dev/null
}

make_thin() {
    dd if=/dev/zero of="${drives[1]}" bs=1M count=1 oflag=direct status=none
    map pool "0 $((128 * MIB)) thin-pool ${drives[1]} ${drives[0]} 128 0"
    dmsetup message pool 0 "create_thin 0"
    map thin "0 $((64 * MIB)) thin $device 0"
}

end_thin() { unmap thin pool; }

make_crypt() {
    modprobe -a xts aesni-intel 2>/dev/null || true
    map secret "0 $((64 * MIB)) crypt aes-xts-plain64 $(printf '%064d' 7) 0 ${drives[0]} 2048"
}

end_crypt() { unmap secret; }

# Both paths lead to the same drive. One at a time fails, for as long as it is used.
make_paths() {
    local first second
    modprobe dm-round-robin
    map first "0 $((64 * MIB)) linear ${drives[0]} 2048"
    first=$device
    map second "0 $((64 * MIB)) linear ${drives[0]} 2048"
    second=$device
    map paths "0 $((64 * MIB)) multipath 3 queue_if_no_path queue_mode bio 0 2 1 round-robin 0 1 1 $first 1 round-robin 0 1 1 $second 1"
    (while dmsetup message paths 0 "fail_path $first" 2>/dev/null; do
        dmsetup message paths 0 "reinstate_path $first"
        dmsetup message paths 0 "fail_path $second"
        dmsetup message paths 0 "reinstate_path $second"
    done) &
    changer=$!
}

end_paths() {
    kill "$changer"
    wait "$changer" || true
    unmap paths first second
}

# make_array LEVEL CHUNK DRIVE...
make_array() {
    mdadm --create /dev/md/spw --run --quiet --assume-clean --level="$1" --chunk="$2" --raid-devices=$(($# - 2)) "${@:3}"
    device=$(readlink -f /dev/md/spw)
}

end_array() {
    mdadm --stop --quiet "$device"
    mdadm --zero-superblock "$@"
}

make_raid0() {
    make_array 0 4 "${drives[0]}" "${drives[1]}"
}

end_raid0() {
    end_array "${drives[0]}" "${drives[1]}"
}

make_raid5() {
    make_array 5 64 "${drives[@]:0:3}"
}

end_raid5() {
    end_array "${drives[@]:0:3}"
}

make_zram() {
    zram=$(cat /sys/class/zram-control/hot_add)
    device=/dev/zram$zram
    echo 64M >"/sys/block/zram$zram/disksize"
}

end_zram() { echo "$zram" >/sys/class/zram-control/hot_remove; }

make_brd() { device=/dev/ram0; }

end_brd() { modprobe -r brd; }

# make_null BLOCK_BYTES: its name is that of the folder, or of its index, which is 0, as modprobe makes none.
make_null() {
    local folder=/sys/kernel/config/nullb/nullb0
    mkdir $folder
    echo 64 >$folder/size
    echo "$1" >$folder/blocksize
    echo 1 >$folder/memory_backed
    echo 1 >$folder/discard
    echo 1 >$folder/power
    device=/dev/nullb0
}

make_null_blk() { make_null 512; }

end_null_blk() { rmdir /sys/kernel/config/nullb/nullb0; }

make_blocks4k() {
    make_null 4096
    expect_equal 4096 "$(blockdev --getss "$device")" "bytes of a logical block"
}

end_blocks4k() { end_null_blk; }

# make_file_on KIND: over two drives, as xfs is not made on less than 300 MB.
make_file_on() {
    map both "0 $((200 * MIB)) linear ${drives[0]} 2048
$((200 * MIB)) $((200 * MIB)) linear ${drives[1]} 2048"
    both=$device
    wipefs -qa "$both"
    "mkfs.$1" -q "$both" >/dev/null
    mkdir -p "$TEST_TMP/files"
    mount -t "$1" "$both" "$TEST_TMP/files"
    device=$TEST_TMP/files/drive
    truncate -s 64M "$device"
}

end_file_on() {
    umount "$TEST_TMP/files"
    wipefs -qa "$both"
    unmap both
}

# The first writes in place, the others elsewhere.
make_ext4() { make_file_on ext4; }
make_xfs() { make_file_on xfs; }
make_btrfs() { make_file_on btrfs; }
end_ext4() { end_file_on; }
end_xfs() { end_file_on; }
end_btrfs() { end_file_on; }

# ---- What is done on each ------------------------------------------------------------------------------------------------------------

# tuned: each backend is measured, and what is best is written to a file.
tuned() {
    expect_exit 0 "$SPILLWAY" tune "$device" --write --allow-destructive --runtime 1ms --output "$TEST_TMP/tune.json"
    expect_output "io_uring" "libaio" "* "
}

# blocks BACKEND: what is written across all boundaries is read back: in order, at random places, and by a job file.
blocks() {
    expect_exit 0 "$SPILLWAY" bench --filename="$device" --rw=write --backend="$1" --bs=768k --iodepth=8 --size=48m --fixedbufs \
        --verify=xxh3 --allow-destructive
    expect_output "engine     : $1" "verified     : 64 blocks"
    expect_exit 0 "$SPILLWAY" bench --filename="$device" --rw=randread --backend="$1" --bs=20k --iodepth=8 --size=50m --io-size=4m
    expect_output "err= 0" "issued rwts  : total=205,0"
    cat >"$TEST_TMP/job.fio" <<JOBS
[global]
filename=$device
ioengine=$1
iodepth=4
size=8m
offset=20m
[random]
rw=randwrite
bs=36k
verify=crc32c
[mixed]
stonewall
rw=randrw
bsrange=4k-128k
JOBS
    expect_exit 0 "$SPILLWAY" bench "$TEST_TMP/job.fio" --allow-destructive
    expect_output "random: (groupid=0" "verified     : 227 blocks" "mixed: (groupid=1" "$1"
}

# store BACKEND: a store is made, looked at, and moves objects and the tensors of a recorded step.
store() {
    expect_exit 3 "$SPILLWAY" format "$device"
    expect_output "$device" "--erase"
    expect_exit 0 "$SPILLWAY" format --force --erase "$device"
    expect_exit 0 "$SPILLWAY" probe --json "$device"
    expect_output "\"path\": \"$device\"" '"has_store": true'
    expect_exit 0 "$SPILLWAY" info "$device"
    expect_output "on 1 drive" "0 in use"
    expect_exit 0 "$SPILLWAY" check "$device"
    expect_exit 0 "$SPILLWAY" bench --level=store --filename="$device" --rw=rw --backend="$1" --iodepth=4 --object-size=2500k --size=30000k \
        --verbose
    expect_output "$1"
    expect_equal "" "$(grep -E 'retired|out of service|failed' "$OUTPUT" || true)" "complaints of $1"
    sed "s/\"backend\": \"[a-z_]*\"/\"backend\": \"$1\"/" "$TEST_TMP/tune.json" >"$TEST_TMP/tuned.json"
    SPILLWAY_TUNE=$TEST_TMP/tuned.json expect_exit 0 "$SPILLWAY" replay "$ROOT/tests/traces/gpt.jsonl.gz" --devices "$device" --scale 0.005 \
        --speed 20 --steps 1 --mode spill
    expect_output "written " "$1:"
}

# training BACKEND: a state is committed, exported, restored, and not given up by chance; meanwhile the store is one program's.
training() {
    rm -rf "$TEST_TMP/exported"
    expect_exit 0 python3 "$ROOT/tests/vm/mapped.py" train "$device" "$1" "$SPILLWAY"
    expect_output "all as it was"
    expect_exit 0 "$SPILLWAY" state list "$device" --records
    expect_output "layer/0" "zeros"
    expect_exit 0 "$SPILLWAY" check --scrub "$device"
    expect_output "step 7" "0 lost"
    expect_exit 0 "$SPILLWAY" state export "$device" --to "$TEST_TMP/exported"
    expect_exit 0 python3 "$ROOT/tests/vm/mapped.py" resume "$device" "$1" "$TEST_TMP/exported"
    expect_output "all as it was"
    expect_exit 3 "$SPILLWAY" format --force "$device"
    expect_output "partition 0 holds commit 8"
    expect_exit 3 "$SPILLWAY" wipe --yes "$device"
    expect_output "partition 0 holds commit 8"
    expect_exit 0 "$SPILLWAY" state drop --yes "$device"
}

# given_back: nothing of a store is left, and a new one needs no force.
given_back() {
    expect_exit 0 "$SPILLWAY" wipe --yes "$device"
    expect_exit 1 "$SPILLWAY" info "$device"
    expect_output "is not a drive of a spillway store"
    expect_exit 0 "$SPILLWAY" probe "$device"
    expect_output "nothing known"
    expect_exit 0 "$SPILLWAY" format --erase "$device"
    expect_exit 0 "$SPILLWAY" wipe --yes "$device"
}

# on NAME WHAT: all of it, by both backends.
on() {
    local backend
    begin "$2: tune"
    "make_$1"
    tuned
    for backend in io_uring libaio; do
        begin "$2, $backend"
        blocks $backend
        store $backend
        training $backend
        given_back
    done
    "end_$1"
}

chosen=" $* "
for line in "${substrates[@]}"; do
    IFS='|' read -r name module tool what <<<"$line"
    [ $# -eq 0 ] || [[ $chosen == *" $name "* ]] || continue
    # shellcheck disable=SC2086 # a module and its options
    if modprobe $module 2>/dev/null && command -v "$tool" >/dev/null; then
        on "$name" "$what"
    else
        begin "$what"
        skip "needs the module $module and the command $tool"
    fi
done
