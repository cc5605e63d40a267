#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_fio_order.sh - jobs transfer the same blocks in fio's order, as the kernel sees them
# layer: all
. "$(dirname "$0")/../lib.sh"
need fio python3 strace
one='' two=''
make_file one 8M
make_file two 4M
dd if=/dev/urandom of="$one" bs=1M count=8 conv=notrunc,fsync status=none
dd if=/dev/urandom of="$two" bs=1M count=4 conv=notrunc,fsync status=none
strace -o "$TEST_TMP/trace" true || skip "no process may be traced here"

# order COMMAND: file, direction, offset and length of each transfer, one a line
order() {
    expect_exit 0 strace -f -y -s 1 -e abbrev=none -e trace=io_submit -o "$TEST_TMP/trace" "$@"
    python3 -c '
import os, re, sys
for line in open(sys.argv[1]):
    for call in line.split("aio_lio_opcode=IOCB_CMD_")[1:]:
        if not call.startswith("POLL"):
            field = lambda what: re.search(what, call)[1]
            print(os.path.basename(field("aio_fildes=[0-9]+<([^>]*)>")), call.split(",")[0], field("aio_offset=([0-9]+)"),
                  field("aio_nbytes=([0-9]+)"))' "$TEST_TMP/trace"
}

# same ARGS: spillway bench and fio transfer the same, in the same order
same() {
    order fio --output=/dev/null "$@" >"$TEST_TMP/fio"
    order "$SPILLWAY" bench --output=/dev/null "$@" >"$TEST_TMP/ours"
    expect_true "$* transfers something" test -s "$TEST_TMP/fio"
    expect_equal "$(<"$TEST_TMP/fio")" "$(<"$TEST_TMP/ours")" "the order of $*"
}

job() {
    same --name=job --ioengine=libaio --direct=1 "$@"
}

begin "sequential jobs, sizes, parts of files and strides"
job --filename="$one" --rw=read:-8k --bs=4k --size=64k --offset=1m
job --filename="$one" --rw=write --bs=4k,16k --size=256k --number_ios=9
job --filename="$one" --rw=read --bs=64k --size=1m --loops=2 --io_size=1536k
job --filename="$one" --rw=read --bs=16k --size=64k --zonemode=strided --zonesize=24k --zonerange=32k
job --filename="$one:$two" --rw=write --bs=64k --size=3m --io_size=5m
job --filename="$one:$two" --rw=read --bs=4k --size=1m --iodepth=4

begin "a range of sizes counts, whether a size is given before it or after it"
job --filename="$one" --rw=read --bsrange=8k-8k --bs=4k --size=64k
job --filename="$one" --rw=read --bs=4k --bsrange=8k-8k --size=64k
job --filename="$one" --rw=write --bsrange=,16k-16k --bs=4k --size=64k

begin "a job has the files of [global], too"
printf '[global]\nfilename=%s\nrw=read\nbs=4k\nsize=64k\nioengine=libaio\ndirect=1\n[a]\nfilename=%s\n' "$one" "$two" >"$TEST_TMP/files.fio"
same "$TEST_TMP/files.fio"
job --filename="$two" --filename="$one" --rw=write --bs=4k --size=64k
expect_exit 2 "$SPILLWAY" bench --name=job --filename="$one" --filename="$one" --rw=read --size=64k
expect_output "are the same device; name each drive once"
expect_exit 2 "$SPILLWAY" bench --filename="$(printf '%09999d' 0)" --name=job --filename="$one"
expect_output "filename: longer than"

begin "a backlog is read back in fio's batches"
for batch in 1 3 8 16 24 64; do
    job --filename="$one" --rw=write --bs=4k --size=256k --verify=crc32c --verify_state_save=0 --verify_backlog=16 --verify_backlog_batch=$batch
done
for backlog in 1 7 100; do
    job --filename="$one" --rw=write --bs=4k --size=256k --verify=crc32c --verify_state_save=0 --verify_backlog=$backlog --loops=2
done
