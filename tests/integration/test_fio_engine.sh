#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_fio_engine.sh - fio's verify jobs through the fio engine: one drive, a stripe, a store; 512 and 4096
# layer: all
# alone: make writes to the build folder
. "$(dirname "$0")/../lib.sh"

need fio make python3
is_root || skip "loop devices need root"
status=0
reason=$("$ROOT/tools/fio_engine/fetch.sh" "$SPW_BUILD/fio-src" 2>&1) || status=$?
[ $status -ne 77 ] || skip "${reason##*$'\n'}"
make -C "$ROOT" --no-print-directory BUILD="$SPW_BUILD" fio-engine >"$OUTPUT" 2>&1 || {
    tail -n 20 "$OUTPUT"
    exit 1
}
[[ $SPW_BUILD == /* ]] || SPW_BUILD=$ROOT/$SPW_BUILD
engine=--ioengine=external:$SPW_BUILD/libspillway_fio.so
cd "$TEST_TMP" || exit # fio leaves its verify state files where it runs
drive0='' drive1='' drive2='' drive3='' plain='' # make_loop sets them

# run_fio ARGS: one job through the engine. The engine's options must follow it.
run_fio() {
    timeout 50 fio --name=job "$engine" --direct=1 --verify_fatal=1 "$@"
}

# verify_jobs WHERE...: what must hold on every address space, whatever lies below.
verify_jobs() {
    expect_exit 0 run_fio "$@" --rw=write --bs=256k --iodepth=8 --size=24m --verify=crc32c
    expect_exit 0 run_fio "$@" --rw=randwrite --bsrange=4k-192k --blockalign=4k --iodepth=16 --size=24m --verify=crc32c
    expect_exit 0 run_fio "$@" --rw=randwrite --bs=64k --iodepth=16 --size=24m --verify=crc32c --verify_backlog=32 \
        --verify_backlog_batch=8
    expect_exit 0 run_fio "$@" --rw=randwrite --bs=64k --iodepth=8 --size=6m --offset_increment=6m --numjobs=4 --verify=crc32c
    expect_exit 0 run_fio "$@" --rw=randwrite --bs=64k --iodepth=8 --size=6m --offset_increment=6m --numjobs=4 --thread=1 \
        --verify=crc32c --verify_async=2
    expect_exit 0 run_fio "$@" --rw=randrw --bs=16k --iodepth=16 --iodepth_batch_submit=8 --iodepth_batch_complete_min=4 \
        --size=12m --verify=crc32c --fsync=64
    expect_exit 0 run_fio "$@" --rw=write --bs=64k --iodepth=8 --size=12m --verify=crc32c --iodepth_batch_complete_min=0
}

# first_words DEVICE STEP COUNT: the little-endian 64-bit number at the begin of each step.
first_words() {
    drop_cached "$1"
    python3 - "$@" <<'END'
import sys
device, step, count = open(sys.argv[1], "rb"), int(sys.argv[2]), int(sys.argv[3])
for i in range(count):
    device.seek(i * step)
    print(int.from_bytes(device.read(8), "little"))
END
}

make_drives() {
    make_loop drive0 64M "$1"
    make_loop drive1 64M "$1"
    make_loop drive2 64M "$1"
    make_loop drive3 64M "$1"
    four=$drive0:$drive1:$drive2:$drive3
}

for block in 512 4096; do
    make_drives "$block"

    begin "verify jobs on one drive, blocks of $block"
    verify_jobs --filename="$drive0"

    begin "verify jobs on a stripe of four drives, blocks of $block"
    verify_jobs --filename=volume --spillway_devices="$four" --spillway_chunk=64k

    begin "verify jobs on libaio, blocks of $block"
    expect_exit 0 run_fio --spillway_backend=libaio --filename="$drive0" --rw=randwrite --bs=64k --iodepth=16 --size=24m \
        --verify=crc32c --verify_backlog=16
    expect_output "libaio"

    begin "trim gives zeroes, and only where it was asked for, blocks of $block"
    expect_exit 0 run_fio --filename=volume --spillway_devices="$four" --spillway_chunk=64k --rw=write --bs=64k --iodepth=4 \
        --size=8m --verify=pattern --verify_pattern=0xa5 --do_verify=0
    expect_exit 0 run_fio --filename=volume --spillway_devices="$four" --spillway_chunk=64k --rw=trim --bs=256k --iodepth=4 \
        --offset=4m --size=4m
    for drive in "$drive0" "$drive1" "$drive2" "$drive3"; do
        drop_cached "$drive"
        expect_equal "$(head -c 1M /dev/zero | tr '\0' '\245' | sha256sum)" "$(head -c 1M "$drive" | sha256sum)" "before the trim"
        expect_equal "$(head -c 1M /dev/zero | sha256sum)" "$(head -c 2M "$drive" | tail -c 1M | sha256sum)" "after the trim"
    done
    expect_exit 0 run_fio --filename="$drive0" --rw=trimwrite --bs=64k --iodepth=4 --size=8m

    begin "what is trimmed is written, as often as by fio's own engine, blocks of $block"
    for job in "--rw=trimwrite --bs=64k --size=4m" \
        "--rw=randtrimwrite --bssplit=$block/10:4k/60:128k/30 --size=4m --norandommap" \
        "--rw=randtrimwrite --bssplit=$block/10:4k/60:128k/30 --size=4m --norandommap --iodepth_batch_submit=4"; do
        for by in --ioengine=libaio "$engine"; do
            # shellcheck disable=SC2086 # words
            expect_exit 0 timeout 50 fio --name=job "$by" --filename="$drive0" --direct=1 --iodepth=8 --randseed=7 $job
            sed -n 's/^ *issued rwts: //p' "$OUTPUT" >"$TEST_TMP/issued.${by:11:4}"
        done
        expect_true "trims are issued: $(cat "$TEST_TMP/issued.liba")" grep -qvE 'total=0,0,|,0,0 short' "$TEST_TMP/issued.liba"
        expect_equal "$(cat "$TEST_TMP/issued.liba")" "$(cat "$TEST_TMP/issued.exte")" "I/Os of $job"
    done
done

begin "a stripe puts chunk n on drive n modulo four"
# Blocks of three chunks, each filled with its own offset.
expect_exit 0 run_fio --filename=volume --spillway_devices="$four" --spillway_chunk=128k --rw=write --bs=384k --iodepth=4 \
    --size=12m --verify=pattern --verify_pattern=%o --do_verify=0
number=0
for drive in "$drive0" "$drive1" "$drive2" "$drive3"; do
    # shellcheck disable=SC2017 # rounding down is meant
    expect_equal "$(for ((i = 0; i < 24; i++)); do echo $(((i * 4 + number) / 3 * 393216)); done)" \
        "$(first_words "$drive" 131072 24)" "the chunks of drive $number"
    number=$((number + 1))
done

begin "a request that starts and ends within a chunk and crosses several"
expect_exit 0 run_fio --filename=volume --spillway_devices="$four" --spillway_chunk=64k --rw=randwrite --bs=300k --blockalign=4k \
    --iodepth=4 --size=12m --verify=crc32c

begin "a changed byte is found"
expect_exit 0 run_fio --filename=volume --spillway_devices="$four" --rw=write --bs=64k --iodepth=4 --size=8m --verify=crc32c
change_byte "$drive2" 5000
drop_cached "$drive2"
expect_exit 1 run_fio --filename=volume --spillway_devices="$four" --rw=read --bs=64k --iodepth=4 --size=8m --verify=crc32c
expect_output "verify"

begin "several files of one job are several drives"
expect_exit 0 run_fio --filename="$drive0:$drive1" --rw=randwrite --bs=64k --iodepth=8 --size=16m --verify=crc32c

begin "a read past what a drive can do ends in an error that names it"
expect_exit 1 run_fio --filename="$drive0" --rw=read --bs=6k --size=60k
expect_output "$drive0"

begin "memory of fio's own kinds is refused with a message"
for kind in mmap shm malloc; do
    expect_exit 1 run_fio --filename="$drive0" --rw=read --bs=64k --size=1m --mem=$kind
    expect_output "leave out mem= and iomem="
done

begin "a device that is missing, held, or cut wrongly is refused"
expect_exit 1 run_fio --filename="$TEST_TMP/nothing" --rw=read --bs=4k --size=1m
expect_output "$TEST_TMP/nothing"
expect_exit 1 run_fio --filename=volume --spillway_devices="$four" --spillway_chunk=6000 --rw=read --bs=4k --size=1m
expect_output "spillway_chunk"
expect_exit 1 run_fio --filename=a:b --spillway_devices="$four" --rw=read --bs=4k --size=1m
expect_output "several files"
ln -s "$drive0" "$TEST_TMP/alias"
unchanged "$drive0" expect_exit 1 run_fio --filename=volume --spillway_devices="$drive0:$drive1:$TEST_TMP/alias" --rw=write --bs=4k --size=1m
expect_output "$drive0 and $TEST_TMP/alias are the same device"
mkfs.ext4 -q "$drive3"
mkdir mounted
mount -o ro "$drive3" mounted # read-only: what is mounted for writing, the kernel itself changes now and then
on_exit umount "$TEST_TMP/mounted"
unchanged "$drive3" expect_exit 1 run_fio --filename=volume --spillway_devices="$four" --rw=write --bs=64k --size=1m
expect_output "$drive3"

begin "no job writes to what a store has open, and what jobs write no other process gets"
make_drives 512
expect_exit 0 "$SPILLWAY" format --devices "$drive0,$drive1"
start_writer "$drive0" "$SPILLWAY" bench --level=store --filename="$drive0:$drive1" --rw=write --size=32m --time-based --runtime=600
expect_exit 1 run_fio --filename="$drive0" --rw=write --bs=64k --size=1m
expect_output "$drive0: is in use by another program" "process $writer (spillway)"
expect_exit 1 run_fio --filename=volume --spillway_devices="$four" --rw=randtrim --bs=64k --size=1m --allow_mounted_write=1
expect_exit 0 run_fio --filename="$drive0" --rw=read --bs=64k --size=1m
kill -INT "$writer"
wait "$writer" || true
expect_exit 0 "$SPILLWAY" check --devices "$drive0,$drive1"
start_writer "$drive2" fio --name=job "$engine" --direct=1 --filename="$drive2" --rw=randwrite --bs=4k --iodepth=4 --numjobs=2 --size=32m \
    --time_based --runtime=600
expect_exit 1 mkfs.ext4 -q -F "$drive2"
expect_exit 3 "$SPILLWAY" format --devices "$drive2" --force
expect_exit 3 "$SPILLWAY" bench --filename="$drive2" --rw=write --bs=64k --size=1m --allow-destructive
kill -INT "$writer"
wait "$writer" || true
expect_exit 0 mkfs.ext4 -q -F "$drive2"

begin "a store: verify jobs, each job in a partition of its own"
make_drives 512
expect_exit 0 "$SPILLWAY" format --devices "${four//:/,}" --partitions 4
store=(--filename=store --spillway_devices="$four" --spillway_level=store)
expect_exit 0 run_fio "${store[@]}" --rw=write --bs=256k --iodepth=8 --size=16m --verify=crc32c
expect_exit 0 run_fio "${store[@]}" --rw=randwrite --bs=64k --iodepth=16 --size=16m --verify=crc32c --verify_backlog=32
expect_exit 0 run_fio "${store[@]}" --rw=randwrite --bs=48k --iodepth=8 --size=12m --verify=crc32c --spillway_stripe=pull
expect_exit 0 run_fio "${store[@]}" --rw=randwrite --bs=64k --iodepth=8 --size=6m --numjobs=4 --verify=crc32c
expect_exit 0 run_fio "${store[@]}" --rw=randwrite --bs=64k --iodepth=8 --size=6m --numjobs=4 --thread=1 --verify=crc32c
expect_exit 0 run_fio "${store[@]}" --rw=randrw --bs=64k --iodepth=8 --size=16m --io_size=64m --norandommap=1 --fsync=32

begin "a store: blocks are overwritten many times over in a partition that they nearly fill"
expect_exit 0 run_fio "${store[@]}" --rw=randwrite --bs=256k --iodepth=8 --io_size=200m --norandommap=1

begin "a store: reading lays objects out first; a trimmed block cannot be read"
expect_exit 0 run_fio "${store[@]}" --rw=randread --bs=64k --iodepth=8 --size=8m
expect_exit 0 run_fio "${store[@]}" --rw=randtrim --bs=64k --iodepth=8 --size=8m
expect_exit 1 run_fio "${store[@]}" --rw=randtrim --bs=64k --size=1m --verify=crc32c --experimental_verify=1
expect_output "holds no object"
printf 'fio version 2 iolog\nstore add\nstore open\nstore write 65536 65536\nstore read 65536 65536\nstore close\n' >replay.log
expect_exit 0 run_fio "${store[@]}" --rw=readwrite --bs=64k --read_iolog=replay.log

begin "a store: what it cannot do is refused"
expect_exit 1 run_fio "${store[@]}" --rw=write --bsrange=4k-64k --size=8m
expect_output "one fixed bs"
expect_exit 1 run_fio "${store[@]}" --rw=read --bs=64k --size=8m --verify=crc32c
expect_output "verify in the job that writes"
expect_exit 1 run_fio "${store[@]}" --rw=write --bs=64k --size=1m --numjobs=5 --time_based --runtime=2
expect_output "partition"
make_loop plain 64M 512
expect_exit 1 run_fio --filename=store --spillway_devices="$plain" --spillway_level=store --rw=write --bs=64k --size=1m
expect_output "$plain"

begin "every job file is one that fio, with this engine, accepts"
for file in "$ROOT"/fio-jobs/*.fio; do
    FILENAME=$drive0 expect_exit 0 fio --parse-only "$engine" "$file"
done

begin "it is installed where it was built, and fio takes it from there; make uninstall takes it back"
stage=$TEST_TMP/stage
make_in_stage=(make -C "$ROOT" --no-print-directory BUILD="$SPW_BUILD" DESTDIR="$stage" PREFIX=/usr)
expect_exit 0 "${make_in_stage[@]}" install
installed=$stage/usr/lib/fio/libspillway_fio.so
expect_exit 0 fio --name=job --ioengine="external:$installed" --filename="$drive0" --rw=write --bs=64k --size=1m
expect_output "job: spillway volume"
expect_exit 0 "${make_in_stage[@]}" uninstall
expect_true "the fio engine's folder is gone" test ! -d "$stage/usr/lib/fio"
