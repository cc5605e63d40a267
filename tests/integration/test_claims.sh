#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_claims.sh - a drive in use here is refused to all others: while a store, a bench or a rank has it, in between,
# and after a kill; and it is free as soon as they are done
. "$(dirname "$0")/../lib.sh"

[ -e "$SPILLWAY" ] || skip "the command is not built"
is_root || skip "needs root to make loop devices"
need losetup mkfs.ext4 mkswap sfdisk partx blkdiscard wipefs python3 unshare

. "$ROOT/tests/ranks.sh"

make_loop a 64M
make_loop b 64M
expect_exit 0 "$SPILLWAY" format --devices "$a,$b" --partitions 3

begin "with a store open and writing, every other claim of its drives is refused, and nothing is damaged"
start_rank first "$a,$b" 0
refused_by_kernel "$busy" mkfs.ext4 -q -F "$b"
refused_by_kernel "$busy" mkswap -f "$b"
refused_by_kernel "$busy" mount -t ext4 "$b" "$TEST_TMP"
refused_by_kernel "$busy" blkdiscard "$b"
refused_by_kernel "$busy" blkdiscard -z "$b"
refused_by_kernel "$busy" wipefs -a "$b"
refused_by_kernel "$busy" bash -c "echo 'label: gpt' | sfdisk '$b'"
refused_by_kernel "$busy" python3 -c "import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
sys.exit(0 if libc.swapon(sys.argv[1].encode(), 0) == 0 else os.strerror(ctypes.get_errno()))" "$b"
refused_by_kernel "$busy" "$SPILLWAY" format --devices "$b" --force
refused_by_kernel "$busy" "$SPILLWAY" wipe --devices "$a,$b" --yes
refused_by_kernel "$busy|store" "$SPILLWAY" bench --filename="$b" --rw=write --bs=64k --size=1m --allow-destructive
end_rank first
expect_exit 0 "$SPILLWAY" check --devices "$a,$b"
expect_output usable

begin "ranks share one claim, which ends with the last of them"
expect_free "$a"
start_rank first "$a,$b" 0
start_rank second "$a,$b" 1
end_rank first
expect_claimed "$a"
expect_claimed "$b"
start_rank third "$a,$b" 0
kill_rank second
expect_claimed "$a"
start_rank fourth "$a,$b" 2
end_rank third
end_rank fourth
expect_free "$a"
expect_free "$b"

begin "ranks that open at the same time all get in"
for round in 1 2 3; do
    pids=()
    for partition in 0 1 2; do
        python3 "$TEST_TMP/rank.py" "$a,$b" "$partition" </dev/null >"$TEST_TMP/rush$partition" 2>&1 &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || fail "round $round: $(cat "$TEST_TMP"/rush?)"
    done
done
expect_free "$a"

begin "who lets go of a drive or a partition is waited for"
held_s=1.5 # after a store has said that it waits: far longer than a rank takes to open, or to close
mkfifo "$TEST_TMP/said"
# waits_for KEEPER WORDS: KEEPER, in Python, takes $b.
waits_for() {
    local said line='' store keeper_pid
    coproc keeper { python3 -c "$1" "$b"; }
    keeper_pid=$keeper_PID
    read -ru "${keeper[0]}" _
    "$SPILLWAY" bench --level=store --filename="$a:$b" --rw=write --object-size=1m --size=8m >"$TEST_TMP/said" 2>&1 &
    store=$!
    exec {said}<"$TEST_TMP/said"
    until [[ $line == *"$2"* ]]; do
        read -ru "$said" line || { fail "was not waited for: $line" && break; }
    done
    sleep "$held_s"
    eval "exec ${keeper[1]}>&-"
    wait "$keeper_pid"
    cat <&"$said" >"$OUTPUT"
    expect_true "the store is opened" wait "$store"
    exec {said}<&-
}
waits_for 'import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_EXCL)
print("held", flush=True)
os.read(0, 1)' "(python3); waiting up to 5 s"
# All partitions: where the first begins, the superblock says at 0x070. The command is F_OFD_SETLK.
waits_for 'import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR)
begin, = struct.unpack("<Q", os.pread(fd, 8, 0x70))
fcntl.fcntl(fd, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, begin, 0, 0))
print("held", flush=True)
os.read(0, 1)' "partition 0: is locked"

begin "children that a rank has forked keep neither its claim nor its partition"
rank_options=fork
start_rank first "$a,$b" 0
rank_options=
child=$(sed -n 's/^forked //p' <<<"$said")
kill_rank first
expect_true "the child lives" kill -0 "$child"
start_rank second "$a,$b" 0
end_rank second
expect_true "the child lives" kill -0 "$child"
expect_free "$a"
hang_up first

begin "a rank that cannot reach the others is refused, in words"
start_rank first "$a,$b" 0
start_rank second "$a,$b" 1 unshare -n
expect_refused second "network namespace"
end_rank first

begin "a bench holds the drive that it writes"
make_loop c 64M
mkfs.ext4 -q -F "$c"
start_writer "$c" "$SPILLWAY" bench --filename="$c" --rw=write --bs=4k --offset=60m --size=1m --time-based --runtime=600 --allow-destructive
refused_by_kernel "$busy" mount -t ext4 "$c" "$TEST_TMP"
refused_by_kernel "$busy" mkfs.ext4 -q -F "$c"
refused_by_kernel "$busy" "$SPILLWAY" bench --filename="$c" --rw=write --bs=4k --size=1m --allow-destructive
kill -INT "$writer"
wait "$writer" || true
expect_free "$c"

begin "tune holds the drives that it writes from its first measurement to its last"
start_writer "$c" "$SPILLWAY" tune "$c" --write --runtime 5ms --allow-destructive --output "$TEST_TMP/tune.json"
until python3 "$ROOT/tests/drive.py" free "$c"; do :; done
before=$(sectors_written "$c")
wait "$writer" || true
expect_equal "$before" "$(sectors_written "$c")" "sectors written once the drive was free"

begin "who holds a drive exclusively is seen by probe and format"
wipefs -q "$c" >/dev/null
dd if=/dev/zero of="$c" bs=1M count=1 conv=notrunc status=none
mkfifo "$TEST_TMP/held" "$TEST_TMP/release"
python3 -c 'import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_EXCL)
print("held", flush=True)
os.read(0, 1)' "$c" <"$TEST_TMP/release" >"$TEST_TMP/held" &
holder=$!
on_exit kill_quietly "$holder"
exec {release}>"$TEST_TMP/release"
read -r _ <"$TEST_TMP/held"
expect_exit 0 "$SPILLWAY" probe "$c"
expect_output "in use by another program"
expect_exit 3 "$SPILLWAY" format --devices "$c" --force
expect_output "process $holder (python3)"
exec {release}>&-
wait "$holder"

begin "a virtual machine and a store do not share a drive, or a file"
make_file image 64M
expect_exit 0 "$SPILLWAY" format --devices "$image"
dd if=/dev/zero of="$c" bs=1M count=64 conv=fsync status=none
expect_exit 0 "$SPILLWAY" format --devices "$c"
for drive in "$c" "$image"; do
    # As QEMU locks a drive that its machine writes to, and looks for others who do.
    coproc machine_locks { python3 -c 'import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR)
def lock(command, kind, byte):
    return struct.unpack("hhqqi4x", fcntl.fcntl(fd, command, struct.pack("hhqqi4x", kind, 0, byte, 1, 0)))[0]
for byte in (100, 101, 201):
    lock(37, fcntl.F_RDLCK, byte)
print("running", flush=True)
os.read(0, 1)' "$drive"; }
    read -ru "${machine_locks[0]}" _
    start_rank first "$drive" 0
    expect_refused first "a virtual machine has it open"
    expect_exit 3 "$SPILLWAY" format --devices "$drive" --force
    machine_pid=$machine_locks_PID
    eval "exec ${machine_locks[1]}>&-"
    wait "$machine_pid"
    start_rank first "$drive" 0
    expect_equal 0 "$(python3 -c 'import fcntl, os, struct, sys
print(struct.unpack("hhqqi4x", fcntl.fcntl(os.open(sys.argv[1], os.O_RDWR), 36, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 201, 1, 0)))[0])' "$drive")" \
        "lock on byte 201"
    if command -v qemu-system-x86_64 >/dev/null; then
        expect_exit 1 timeout 20 qemu-system-x86_64 -nodefaults -nographic -S -drive file="$drive",if=none,id=d,format=raw \
            -device virtio-blk-pci,drive=d
        expect_output "write\" lock"
    fi
    end_rank first
done

# ---- After a kill, with writes that the drive has not taken ---------------------------------------------------------------------------

begin "after kill -9 a drive comes free only when the last write of the dead process has landed"
export SPW_RIG_STATE=$TEST_TMP
if slow=$("$ROOT/tests/rig.sh" up --name claims --drives 1 --size 96M --on "$TEST_TMP" --write 4 2>"$OUTPUT"); then
    on_exit "$ROOT/tests/rig.sh" down --name claims
    expect_exit 0 "$SPILLWAY" format --devices "$slow" --force --partitions 2
    # What is in flight when it is killed takes the drive about a second.
    for backend in io_uring libaio; do
        start_writer "$slow" "$ROOT/tests/rig.sh" run --name claims "$SPILLWAY" bench --filename="$slow" --rw=randwrite --bs=64k \
            --size=16m --iodepth=64 --ioengine=$backend --time-based --runtime=600 --allow-destructive
        kill -9 "$writer"
        wait "$writer" 2>/dev/null || true
        expect_true "nothing lands after that ($backend)" python3 "$ROOT/tests/drive.py" settled "$slow"
    done
    dd if=/dev/zero of="$slow" bs=1M count=96 conv=fsync status=none
    expect_exit 0 "$SPILLWAY" format --devices "$slow" --partitions 2
    start_writer "$slow" "$ROOT/tests/rig.sh" run --name claims "$SPILLWAY" bench --level=store --filename="$slow" --rw=write \
        --object-size=1m --size=14m --iodepth=4 --time-based --runtime=600
    kill -9 "$writer"
    wait "$writer" 2>/dev/null || true
    expect_true "nothing lands after that (store)" python3 "$ROOT/tests/drive.py" settled "$slow"
    start_rank again "$slow" 0
    end_rank again
else
    skip "drives cannot be throttled here: $(tail -n 1 "$OUTPUT")"
fi

# ---- Files, and loop devices over them -------------------------------------------------------------------------------------------------

begin "a file and a loop device over it are one drive, whichever comes first and whatever the file is called"
make_file image 64M
expect_exit 0 "$SPILLWAY" format --devices "$image" --partitions 2
start_rank first "$image" 0
attach_loop loop --direct-io=on "$image"
for name in "$image" "$TEST_TMP/renamed" "$TEST_TMP/linked" ""; do
    case $name in
    "$TEST_TMP/renamed") mv "$image" "$name" ;;
    "$TEST_TMP/linked") ln "$TEST_TMP/renamed" "$name" && rm "$TEST_TMP/renamed" ;;
    "") rm "$TEST_TMP/linked" ;;
    esac
    expect_exit 3 "$SPILLWAY" format --devices "$loop" --force
    expect_output "store on the file open"
    expect_exit 3 "$SPILLWAY" wipe --devices "$loop" --yes
    expect_exit 3 "$SPILLWAY" bench --filename="$loop" --rw=write --bs=4k --size=1m --allow-destructive
    start_rank second "$loop" 1
    expect_refused second "store on the file open"
done
end_rank first
detach_loop "$loop"
make_file image 64M
expect_exit 0 "$SPILLWAY" format --devices "$image" --partitions 2
attach_loop loop --direct-io=on "$image"
start_rank first "$loop" 0
expect_exit 3 "$SPILLWAY" format --devices "$image" --force
expect_output "shown by $loop"
start_rank second "$image" 1
expect_refused second "shown by $loop"
attach_loop twin "$image"
expect_exit 3 "$SPILLWAY" wipe --devices "$twin" --yes
expect_exit 3 "$SPILLWAY" bench --filename="$twin" --rw=write --bs=4k --size=1m --allow-destructive
detach_loop "$twin"
end_rank first
detach_loop "$loop"

begin "a mounted file that has another name by now is found by its number"
make_file image 64M
attach_loop loop "$image"
mkfs.ext4 -q -F "$loop"
mkdir "$TEST_TMP/mnt"
mount "$loop" "$TEST_TMP/mnt"
on_exit sh -c "umount '$TEST_TMP/mnt' 2>/dev/null"
ln "$image" "$TEST_TMP/other"
rm "$image"
expect_exit 3 "$SPILLWAY" format --devices "$TEST_TMP/other" --force
expect_output "shown by $loop"
expect_true "the file system is whole" touch "$TEST_TMP/mnt/file"
umount "$TEST_TMP/mnt"
detach_loop "$loop"

begin "a partition of a drive that is mounted as a whole is in use"
make_loop whole 64M
printf 'label: dos\n16M,32M\n' | sfdisk -q --no-reread "$whole" >/dev/null 2>&1
partx -u "$whole" 2>/dev/null || partx -a "$whole" 2>/dev/null || true
part=${whole}p1
if [ -b "$part" ]; then
    on_exit sh -c "partx -d '$whole' 2>/dev/null"
    mkfs.ext4 -q -F "$whole"
    mount -o ro "$whole" "$TEST_TMP/mnt"
    expect_exit 3 "$SPILLWAY" format --devices "$part" --force
    expect_output "its whole drive" "mounted on $TEST_TMP/mnt"
    expect_exit 0 "$SPILLWAY" probe "$part"
    expect_output "mounted on"
    umount "$TEST_TMP/mnt"
else
    skip "the kernel makes no partitions on loop devices here"
fi

begin "tools that are told not to ask, or never do, are not stopped: what they destroyed is refused, in words"
forced() {
    expect_exit 0 "$SPILLWAY" format --devices "$a,$b" --partitions 3 --force --erase
    start_rank first "$a,$b" 0
    "$@" >"$OUTPUT" 2>&1 || fail "$* was stopped: $(tail -n 1 "$OUTPUT")"
    kill_rank first
    expect_exit "$destroyed" "$SPILLWAY" check --devices "$a,$b"
}
destroyed=0
forced wipefs -q -a -f "$b" # libblkid knows no store: it finds nothing to erase
destroyed=1
forced bash -c "echo 'label: gpt' | sfdisk -q --force '$b'"
forced bash -c "echo 'label: gpt' | sfdisk -q --no-reread '$b'"
for tool in sgdisk parted; do
    if ! command -v $tool >/dev/null; then
        echo "$tool is not installed"
    elif [ $tool = sgdisk ]; then
        forced sgdisk -o "$b"
    else
        forced parted -s "$b" mklabel gpt
    fi
done
forced blkdiscard -f -z "$b"
