#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_format.sh - format, check, probe and wipe on loop devices: whose drives are refused, and how
# shellcheck disable=SC2154 # make_loop and make_file set the variable that they are given the name of; coproc sets holder_PID
. "$(dirname "$0")/../lib.sh"

is_root || skip "needs root to make loop devices"
need losetup mkfs.ext4 mkswap sfdisk python3 setpriv blkid unshare

# As every command reports: the exit status, the device, the cause, and not one byte written.
refuses() {
    local status=$1 disk=$2
    shift 2
    unchanged "$disk" expect_exit "$status" "$@"
    expect_output "$disk"
}

# The signature tools read through the page cache.
nothing_left() {
    drop_cached "$1"
    expect_equal "" "$(blkid -p -o value -s TYPE -s PTTYPE "$1" 2>&1 || true)" "what libblkid finds on $1"
}

# hold DEVICE: a process locks the first byte of partition 0, as one does that has the store open (docs/FORMAT.md), until let_go.
hold() {
    local word
    coproc holder {
        exec python3 -c '
import fcntl, sys
with open(sys.argv[1], "r+b", buffering=0) as drive:
    fcntl.lockf(drive, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 1 << 20)
    print("held", flush=True)
    sys.stdin.read()
' "$1"
    }
    read -r word <&"${holder[0]}"
    expect_equal held "$word"
}

let_go() {
    local pid=$holder_PID
    eval "exec ${holder[1]}>&-"
    wait "$pid"
}

for block in 512 4096; do
    begin "a store on drives with $block-byte blocks"
    make_loop a 32M $block
    make_loop b 48M $block
    expect_exit 0 "$SPILLWAY" format --devices "$a,$b" --partitions 3
    nothing_left "$a"
    nothing_left "$b"
    unchanged "$a" expect_exit 0 "$SPILLWAY" check --devices "$b,$a"
    refuses 3 "$a" "$SPILLWAY" format --devices "$a"
    expect_output "spillway store" "--force"

    begin "one damaged copy serves, unless something else was written over it; two do not ($block)"
    dd if=/dev/zero of="$a" bs=4096 count=1 conv=notrunc,fsync status=none
    unchanged "$a" expect_exit 0 "$SPILLWAY" check --devices "$a,$b"
    expect_output "$a"
    # As plain dm-crypt or a database would.
    dd if=/dev/urandom of="$a" bs=4096 count=1 conv=notrunc,fsync status=none
    refuses 1 "$a" "$SPILLWAY" check --devices "$a,$b"
    expect_output "unknown data at byte"
    refuses 3 "$a" "$SPILLWAY" wipe --devices "$a,$b" --yes
    refuses 3 "$a" "$SPILLWAY" format --devices "$a"
    refuses 1 "$a" "$SPILLWAY" bench --level=store --filename="$a:$b" --rw=write --bs=64k --size=1m
    dd if=/dev/urandom of="$a" bs=4096 count=1 seek=$((32 * 256 - 1)) conv=notrunc,fsync status=none
    refuses 1 "$a" "$SPILLWAY" check --devices "$a,$b"

    begin "format over an ext4 file system ($block)"
    mkfs.ext4 -q -F -L root "$a"
    refuses 3 "$b" "$SPILLWAY" format --devices "$b,$a"
    refuses 3 "$a" "$SPILLWAY" format --devices "$a"
    expect_output "ext4 file system \"root\"" "--force"
    unchanged "$a" expect_exit 0 "$SPILLWAY" probe "$a"
    expect_output "ext4"
    refuses 1 "$a" "$SPILLWAY" check --devices "$a,$b"
    expect_output "ext4"

    begin "a mounted drive is refused, forced or not ($block)"
    mkdir "$TEST_TMP/mount$block"
    mount -o ro "$a" "$TEST_TMP/mount$block"
    on_exit sh -c "umount '$TEST_TMP/mount$block' 2>/dev/null"
    refuses 3 "$a" "$SPILLWAY" format --devices "$a"
    expect_output "mounted on"
    refuses 3 "$a" "$SPILLWAY" format --devices "$a" --force
    expect_output "mounted on $TEST_TMP/mount$block" "unmount"
    refuses 3 "$a" "$SPILLWAY" wipe --devices "$a" --yes
    umount "$TEST_TMP/mount$block"
    expect_exit 0 "$SPILLWAY" format --devices "$a" --force
    nothing_left "$a"
    expect_exit 0 "$SPILLWAY" check --devices "$a"

    begin "a partition table, its backup at the end, and the kernel's partitions ($block)"
    make_loop table 64M $block
    printf 'label: gpt\n,16M\n,16M\n' | sfdisk -q --no-reread "$table" >/dev/null 2>&1
    partx -u "$table" 2>/dev/null || partx -a "$table" 2>/dev/null || true
    refuses 3 "$table" "$SPILLWAY" format --devices "$table"
    expect_output "gpt partition table"
    expect_exit 0 "$SPILLWAY" format --devices "$table" --force
    nothing_left "$table"
    expect_equal "" "$(ls -d "/sys/class/block/$(basename "$table")p"* 2>/dev/null || true)" "the kernel's partitions"
    expect_exit 0 "$SPILLWAY" check --devices "$table"
    # Only the backup table is left, as after a half-hearted dd.
    printf 'label: gpt\n,16M\n' | sfdisk -q --no-reread -w always "$table" >/dev/null 2>&1
    dd if=/dev/zero of="$table" bs=1M count=1 conv=notrunc,fsync status=none
    drop_cached "$table"
    refuses 3 "$table" "$SPILLWAY" format --devices "$table"

    begin "a mounted partition keeps its whole drive from being formatted ($block)"
    make_loop whole 64M $block
    printf 'label: dos\n,32M\n' | sfdisk -q --no-reread "$whole" >/dev/null 2>&1
    partx -u "$whole" 2>/dev/null || partx -a "$whole" 2>/dev/null || true
    part=${whole}p1
    if [ -b "$part" ]; then
        on_exit sh -c "partx -d '$whole' 2>/dev/null"
        mkfs.ext4 -q -F "$part"
        mkdir "$TEST_TMP/part$block"
        mount -o ro "$part" "$TEST_TMP/part$block"
        on_exit sh -c "umount '$TEST_TMP/part$block' 2>/dev/null"
        refuses 3 "$whole" "$SPILLWAY" format --devices "$whole" --force
        expect_output "its partition" "mounted on"
        umount "$TEST_TMP/part$block"
        partx -d "$whole"
    else
        skip "the kernel makes no partitions on loop devices here"
    fi

    begin "swap ($block)"
    make_loop swap 32M $block
    if mkswap -q "$swap" && swapon "$swap" 2>/dev/null; then
        on_exit sh -c "swapoff '$swap' 2>/dev/null"
        refuses 3 "$swap" "$SPILLWAY" format --devices "$swap" --force
        expect_output "swap" "swapoff"
        swapoff "$swap"
        refuses 3 "$swap" "$SPILLWAY" format --devices "$swap"
        expect_output "swap"
    else
        skip "no swap on loop devices here"
    fi

    begin "wipe frees the drives ($block)"
    make_loop w 32M $block
    refuses 3 "$w" "$SPILLWAY" wipe --devices "$w" --yes
    expect_output "holds no spillway store"
    expect_exit 0 "$SPILLWAY" format --devices "$w"
    expect_exit 0 "$SPILLWAY" wipe --devices "$w" --yes
    unchanged "$w" expect_exit 0 "$SPILLWAY" probe "$w"
    expect_exit 0 "$SPILLWAY" format --devices "$w"
done

begin "drives missing, swapped, truncated, named twice"
make_loop one 32M
make_loop two 32M
make_loop three 32M
expect_exit 0 "$SPILLWAY" format --devices "$one,$two"
expect_exit 0 "$SPILLWAY" format --devices "$three"
refuses 1 "$one" "$SPILLWAY" check --devices "$one"
expect_output "drive 2 of 2" "missing"
refuses 1 "$three" "$SPILLWAY" check --devices "$one,$three"
expect_output "another store"
ln -s "$one" "$TEST_TMP/alias"
unchanged "$one" expect_exit 3 "$SPILLWAY" format --devices "$one,$TEST_TMP/alias" --force
expect_output "same device"
backing=$(cat "/sys/class/block/$(basename "$two")/loop/backing_file")
truncate -s 24M "$backing"
losetup -c "$two"
refuses 1 "$two" "$SPILLWAY" check --devices "$one,$two"
expect_output "smaller than when it was formatted"

begin "the file behind a loop device is the device's"
unchanged "$one" expect_exit 3 "$SPILLWAY" format --devices "$(cat "/sys/class/block/$(basename "$one")/loop/backing_file")" --force
expect_output "$one"

begin "a loop device over a drive that is used, and a drive under one"
make_loop lower 24M
attach_loop upper "$lower"
refuses 3 "$lower" "$SPILLWAY" format --devices "$lower" --force
expect_output "shown by $upper"
mkfs.ext4 -q -F "$upper"
mkdir "$TEST_TMP/upper"
mount -o ro "$upper" "$TEST_TMP/upper"
on_exit sh -c "umount '$TEST_TMP/upper' 2>/dev/null"
refuses 3 "$lower" "$SPILLWAY" format --devices "$lower" --force
umount "$TEST_TMP/upper"
mount -o ro "$lower" "$TEST_TMP/upper"
refuses 3 "$upper" "$SPILLWAY" format --devices "$upper" --force
expect_output "what it shows" "mounted on $TEST_TMP/upper"
umount "$TEST_TMP/upper"
expect_exit 0 "$SPILLWAY" format --devices "$upper" --force
expect_exit 0 "$SPILLWAY" wipe --devices "$upper" --yes
detach_loop "$upper"
expect_exit 0 "$SPILLWAY" format --devices "$lower" --force

begin "two loop devices over one file"
backing=$(cat "/sys/class/block/$(basename "$lower")/loop/backing_file")
attach_loop twin "$backing"
for disk in "$lower" "$twin"; do
    refuses 3 "$disk" "$SPILLWAY" format --devices "$disk" --force
    expect_output "what it shows is shown by"
done
detach_loop "$twin"

begin "a store on a partition keeps its whole drive from being formatted, and the other way round"
make_loop parted 40M
printf 'label: dos\n,20M\n' | sfdisk -q --no-reread "$parted" >/dev/null 2>&1
partx -u "$parted" 2>/dev/null || partx -a "$parted" 2>/dev/null || true
part=${parted}p1
if [ -b "$part" ]; then
    on_exit sh -c "partx -d '$parted' 2>/dev/null"
    expect_exit 0 "$SPILLWAY" format --devices "$part"
    for pair in "$part $parted" "$parted $part"; do
        read -r held refused <<<"$pair"
        hold "$held"
        refuses 3 "$refused" "$SPILLWAY" format --devices "$refused" --force
        expect_output "a process has a store on $held open"
        expect_exit 0 "$SPILLWAY" probe "$refused"
        expect_output "a process has a store on $held open"
        let_go
    done
    expect_exit 0 "$SPILLWAY" format --devices "$parted" --force
else
    skip "the kernel makes no partitions on loop devices here"
fi

begin "a store in use by another process"
hold "$three"
refuses 3 "$three" "$SPILLWAY" format --devices "$three" --force
expect_output "open"
refuses 3 "$three" "$SPILLWAY" wipe --devices "$three" --yes
unchanged "$three" expect_exit 0 "$SPILLWAY" check --devices "$three"
unchanged "$three" expect_exit 0 "$SPILLWAY" probe "$three"
let_go
expect_exit 0 "$SPILLWAY" format --devices "$three" --force

begin "no permission"
as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
if "${as_nobody[@]}" test -x "$SPILLWAY"; then
    refuses 1 "$three" "${as_nobody[@]}" "$SPILLWAY" format --devices "$three" --force
    expect_output "no permission"
    refuses 1 "$three" "${as_nobody[@]}" "$SPILLWAY" check --devices "$three"
    refuses 1 "$three" "${as_nobody[@]}" "$SPILLWAY" wipe --devices "$three" --yes
else
    skip "an unprivileged user cannot reach $SPILLWAY"
fi

begin "root in a container whose device cgroup forbids the drive"
cgroup=/sys/fs/cgroup/devices/spillway-test-$$
in_cgroup() {
    bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$cgroup" "$@"
}
if mkdir "$cgroup" 2>/dev/null && [ -e "$cgroup/devices.deny" ]; then
    on_exit rmdir "$cgroup"
    echo "b $((16#$(stat -c %t "$three"))):$((16#$(stat -c %T "$three"))) rwm" >"$cgroup/devices.deny"
    refuses 1 "$three" in_cgroup "$SPILLWAY" format --devices "$three"
    expect_output "no permission to" "device cgroup" "--device (docker, podman)"
    expect_no_output "run as root"
    unchanged "$three" expect_exit 1 in_cgroup "$SPILLWAY" probe "$three"
    expect_output "device cgroup"
    expect_no_output "$three: $three" "run as root"
    refuses 1 "$three" in_cgroup "$SPILLWAY" bench --filename="$three" --rw=read --size=1m
    expect_output "device cgroup"
else
    skip "no device cgroup (version 1) can be made here"
fi

begin "sparse files that promise more than their file system has are formatted, and said"
truncate -s 15T "$TEST_TMP/large" 2>/dev/null || true
if [ -s "$TEST_TMP/large" ]; then
    make_file small 64M
    expect_exit 0 "$SPILLWAY" format --json "$TEST_TMP/large" "$small"
    expect_output "$TEST_TMP/large and 1 other: 15.0 TiB that the store will count on have no space yet" "left: once it is full, writes fail"
    "$SPILLWAY" format --force --json "$TEST_TMP/large" "$small" 2>"$OUTPUT" |
        python3 -c 'import json, sys; w = json.load(sys.stdin)["warnings"]; assert any("TiB that the store" in x for x in w), w' ||
        fail "the warning in JSON"
else
    skip "this file system has no files of that size"
fi
make_file small 64M
expect_exit 0 "$SPILLWAY" format --json "$small"
expect_output '"warnings": []'
expect_no_output "no space yet"

begin "a write-protected drive"
blockdev --setro "$three"
on_exit blockdev --setrw "$three"
unchanged "$three" expect_exit 0 "$SPILLWAY" probe "$three"
expect_output "read-only"
unchanged "$three" expect_exit 1 "$SPILLWAY" format --devices "$three" --force
expect_output "$three" "read-only"
unchanged "$three" expect_exit 0 "$SPILLWAY" check --devices "$three"
blockdev --setrw "$three"

# zoned KIND DEVICE COMMAND ARGS: sysfs says to the command alone that the drive is of that kind.
zoned() {
    echo "$1" >"$TEST_TMP/zoned"
    # shellcheck disable=SC2016 # for the inner shell
    unshare --mount sh -c 'mount --bind "$0" "$1" && shift && exec "$@"' "$TEST_TMP/zoned" \
        "/sys/block/$(basename "$2")/queue/zoned" "${@:3}"
}

begin "a zoned drive"
make_loop zones 32M
for kind in host-managed host-aware; do
    for command in "format --devices $zones" "format --force --devices $zones" "bench --filename=$zones --rw=write --size=1m"; do
        # shellcheck disable=SC2086 # words
        refuses 3 "$zones" zoned $kind "$zones" "$SPILLWAY" $command
        expect_output "zoned drive ($kind)" "conventional drive"
    done
    unchanged "$zones" expect_exit 0 zoned $kind "$zones" "$SPILLWAY" probe "$zones"
    expect_output "Not usable" "zoned drive ($kind)"
    unchanged "$zones" expect_exit 0 zoned $kind "$zones" "$SPILLWAY" bench --filename="$zones" --rw=read --size=1m
done
expect_exit 0 zoned host-managed "$zones" "$SPILLWAY" bench --filename="$zones" --rw=write --size=1m --allow-destructive
expect_exit 0 zoned none "$zones" "$SPILLWAY" format --erase --devices "$zones"

# on_terminal ANSWER COMMAND ARGS: run it on a terminal of its own, where the answer is typed when something is asked.
on_terminal() {
    # shellcheck disable=SC2016 # Python
    python3 -c '
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
said = b""
while True:
    try:
        piece = os.read(terminal, 4096)
    except OSError: # the other end is closed
        break
    said += piece
    if piece.endswith(b"[y/N] "):
        os.write(terminal, sys.argv[1].encode() + b"\n")
sys.stdout.buffer.write(said)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
' "$@"
}

begin "data of which nothing is known takes --erase, or a yes on a terminal"
for block in 512 4096; do
    make_loop diary 32M $block
    make_loop blank 32M $block
    printf 'Dear diary, ' | dd of="$diary" bs=1 seek=5000 conv=notrunc,fsync status=none
    for options in "" --force; do
        # shellcheck disable=SC2086 # words
        unchanged "$blank" refuses 3 "$diary" "$SPILLWAY" format $options --devices "$blank,$diary"
        expect_output "--erase" "from byte 5000 on 44 65 61 72 20 64 69 61 (\"Dear dia\")" "12 B of its first MiB and 0 B of its last"
    done
    unchanged "$diary" expect_exit 0 "$SPILLWAY" probe "$diary" "$blank"
    expect_output "unknown data" "Not usable" "use --erase if that may be lost"
    expect_equal 1 "$(grep -c 'not empty' "$OUTPUT")" "drives that are not usable"
    for answer in "" n no; do
        unchanged "$blank" refuses 3 "$diary" on_terminal "$answer" "$SPILLWAY" format --devices "$blank,$diary"
        expect_output "from byte 5000 on 44 65 61 72" "Erase it? [y/N]" "nothing was written"
    done
    expect_exit 0 on_terminal y "$SPILLWAY" format --devices "$blank,$diary"
    expect_exit 0 "$SPILLWAY" check --devices "$blank,$diary"
    expect_exit 0 "$SPILLWAY" wipe --yes --devices "$blank,$diary"
    # A dump that ends in the last MiB.
    head -c 1M /dev/zero | tr '\0' x | dd of="$blank" bs=1M seek=31 conv=notrunc,fsync status=none
    refuses 3 "$blank" "$SPILLWAY" format --devices "$blank"
    expect_output "0 B of its first MiB and 1 MiB of its last"
    refuses 3 "$blank" "$SPILLWAY" format --devices "$blank" --json
    expect_exit 0 "$SPILLWAY" format --erase --devices "$blank"
    # And what is known takes --force.
    refuses 3 "$blank" "$SPILLWAY" format --erase --devices "$blank"
    expect_output "--force"
    expect_exit 0 "$SPILLWAY" wipe --yes --devices "$blank"
    # Between the ends data is told of, and gives way.
    head -c 4M /dev/zero | tr '\0' x | dd of="$blank" bs=1M seek=8 conv=notrunc,fsync status=none
    expect_exit 0 "$SPILLWAY" format --devices "$blank"
    expect_output "there is data between its ends" "of 64 places looked at"
    expect_exit 0 on_terminal "" "$SPILLWAY" format --force --devices "$blank"
    expect_no_output "[y/N]"
done

begin "what is not a drive"
expect_exit 1 "$SPILLWAY" format --devices "$TEST_TMP"
expect_output "$TEST_TMP"
expect_exit 1 "$SPILLWAY" format --devices /dev/null
expect_output "/dev/null"
make_file small 1M
refuses 1 "$small" "$SPILLWAY" format --devices "$small"
expect_output "is too small: 1 MiB; a drive needs at least 16 MiB"
truncate -s $((16777216 - 512)) "$small"
for command in format probe; do
    "$SPILLWAY" $command "$small" >"$OUTPUT" 2>&1 || true
    expect_output "is too small: 16776704 bytes; a drive needs at least 16 MiB (16777216 bytes)"
done

begin "a file beyond what the process may write is refused with a message, and not by a signal"
make_file limited 32M
limit=$((24 << 10)) # ulimit counts in KiB
refuses 1 "$limited" bash -c "ulimit -f $limit; exec '$SPILLWAY' format --devices '$limited'"
expect_output "$limited: this process may write files up to byte $((limit << 10)) (ulimit -f)" "raise the limit"
expect_exit 0 bash -c "ulimit -f $((32 << 10)); exec '$SPILLWAY' format --devices '$limited'"
refuses 1 "$limited" bash -c "ulimit -f $limit; exec '$SPILLWAY' wipe --yes --devices '$limited'"
expect_output "(ulimit -f)"
expect_exit 0 bash -c "ulimit -f $limit; exec '$SPILLWAY' check --devices '$limited'"

begin "a damaged store of unknown extent is not wiped"
make_loop damaged 32M
expect_exit 0 "$SPILLWAY" format --devices "$damaged"
for place in 100 $(((32 << 20) - 4096 + 100)); do
    printf 'XY' | dd of="$damaged" bs=1 seek=$place conv=notrunc,fsync status=none
done
refuses 3 "$damaged" "$SPILLWAY" wipe --devices "$damaged" --yes
expect_output "damaged spillway store"

begin "a file that chattr protects"
make_file kept 32M
if command -v chattr >/dev/null && chattr +i "$kept" 2>/dev/null; then
    on_exit chattr -ia "$kept"
    for attribute in i a; do
        chattr -ia "$kept"
        chattr +$attribute "$kept"
        refuses 1 "$kept" "$SPILLWAY" format --devices "$kept" --force
        expect_output "run chattr -$attribute on it"
        expect_no_output "run as root"
        unchanged "$kept" expect_exit 0 "$SPILLWAY" probe "$kept"
        expect_output "Not usable" "run chattr -$attribute on it"
        refuses 1 "$kept" "$SPILLWAY" bench --filename="$kept" --rw=write --size=1m
        expect_output "run chattr -$attribute on it"
    done
    chattr -ia "$kept"
    expect_exit 0 "$SPILLWAY" format --devices "$kept"
else
    skip "files cannot be protected here"
fi

begin "a drive under a device mapper"
if command -v dmsetup >/dev/null && dmsetup version >/dev/null 2>&1; then
    name=spillway-test-$$
    make_loop under 32M
    dmsetup create "$name" --table "0 $(blockdev --getsz "$under") linear $under 0"
    on_exit sh -c "dmsetup remove '$name' 2>/dev/null"
    refuses 3 "$under" "$SPILLWAY" format --devices "$under" --force
    expect_output "held by"
    expect_exit 0 "$SPILLWAY" format --devices "/dev/mapper/$name"
    expect_exit 0 "$SPILLWAY" check --devices "/dev/mapper/$name"
    dmsetup remove "$name"
    expect_exit 0 "$SPILLWAY" check --devices "$under"
else
    skip "this kernel has no device mapper"
fi
