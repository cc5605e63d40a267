#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_tool_bench.sh - bench and tune: jobs do what they say, reports have fio's keys, nothing foreign is written
. "$(dirname "$0")/../lib.sh"
need python3
one= two= first= second= disk= hollow=

# bench STATUS ARGS: run it with JSON to a file; messages are in $OUTPUT.
bench() {
    local status=$1
    shift
    rm -f "$TEST_TMP/report.json"
    expect_exit "$status" "$SPILLWAY" bench --output-format=json --output="$TEST_TMP/report.json" "$@"
}

# report EXPRESSION: true of the report, as d, whose jobs are j and whose first job's halves are r and w.
report() {
    python3 -c "
import json, sys
d = json.load(open(sys.argv[1]))
j = d['jobs']
r, w = j[0]['read'], j[0]['write']
assert $1, json.dumps([r, w, d['spillway']])" "$TEST_TMP/report.json" || fail "report: $1"
}

# interruptible PID: wait until the program catches interrupts: bit 1 of the caught signals is set, and they are its own, not those of the
# shell that is about to become it.
interruptible() {
    local caught
    for _ in $(seq 200); do
        caught=$(sed -n 's/^SigCgt:\t//p' "/proc/$1/status")
        [ $((0x${caught:-0} & 2)) -ne 0 ] && [ "$(readlink "/proc/$1/exe")" = "$(realpath "$SPILLWAY")" ] && return
        sleep 0.05
    done
    fail "the program does not catch interrupts"
}

# interrupted PID: interrupt it; it ends with the status of that.
interrupted() {
    local status=0
    kill -INT "$1"
    wait "$1" || status=$?
    expect_equal 130 $status "exit status"
}

make_file one 64M
make_file two 64M

begin "wrong usage exits with 2 and names the option"
expect_exit 2 "$SPILLWAY" bench
expect_output "no filename given"
expect_exit 2 "$SPILLWAY" bench --filename="$one" --iodpeth=4
expect_output "did you mean 'iodepth'?"
expect_exit 2 "$SPILLWAY" bench --filename="$one" --bs=4KiB
expect_output ambiguous
expect_exit 2 "$SPILLWAY" bench --filename="$one" --output-format=xml
expect_output "normal, json and terse"
expect_exit 2 "$SPILLWAY" bench --filename="$one" --latency_target=1
expect_output "'latency_target' is not supported"
printf '[global]\nfilename=%s\n\n[a]\nbs=4k\nlatency_target=1\n' "$one" >"$TEST_TMP/bad.fio"
unchanged "$one" expect_exit 2 "$SPILLWAY" bench "$TEST_TMP/bad.fio"
expect_output "bad.fio:6: option 'latency_target' is not supported: the depth is fixed"
printf '[a]\nname=a\nbs=4x\nlatency_target=1\nfilename=%s\n' "$one" >"$TEST_TMP/bad.fio"
unchanged "$one" expect_exit 2 "$SPILLWAY" bench "$TEST_TMP/bad.fio"
expect_output "bad.fio:3: bs: '4x' is not a size" "bad.fio:4: option 'latency_target' is not supported"
expect_exit 1 "$SPILLWAY" bench "$TEST_TMP/missing.fio"
expect_output missing.fio

begin "a report that cannot be written is refused before anything is measured"
for args in --output --output=; do
    unchanged "$one" expect_exit 2 "$SPILLWAY" bench --filename="$one" --rw=write $args
    expect_output "--output needs the name of a file"
done
for output in "$TEST_TMP" "$TEST_TMP/missing/report"; do
    unchanged "$one" expect_exit 1 "$SPILLWAY" bench --filename="$one" --rw=write --output="$output"
    expect_output "cannot write $output"
    expect_exit 1 "$SPILLWAY" bench --filename="$one" --rw=read --output-format=json --output="$output"
done
echo earlier >"$TEST_TMP/earlier"
unchanged "$TEST_TMP/earlier" expect_exit 1 "$SPILLWAY" bench --filename="$TEST_TMP/missing" --rw=read --output="$TEST_TMP/earlier"
expect_exit 1 "$SPILLWAY" bench --filename="$TEST_TMP/missing" --rw=read --output="$TEST_TMP/new"
expect_true "nothing is left" test ! -e "$TEST_TMP/new"

begin "what is not there or does not fit is refused before anything is written"
expect_exit 1 "$SPILLWAY" bench --filename="$TEST_TMP/missing" --rw=write
expect_output "$TEST_TMP/missing"
expect_true "a file was made" test ! -e "$TEST_TMP/missing"
unchanged "$one" expect_exit 1 "$SPILLWAY" bench --filename="$one" --rw=write --size=65m
expect_output "$one" "larger file"
unchanged "$one" expect_exit 1 "$SPILLWAY" bench --name=good --filename="$one" --rw=write --name=bad --filename="$one" --size=1g
expect_output "job bad"
unchanged "$one" expect_exit 1 "$SPILLWAY" bench --filename="$one" --rw=write --bs=1000
expect_output "multiple of"
unchanged "$one" expect_exit 1 "$SPILLWAY" bench --filename="$TEST_TMP" --rw=write

begin "a drive that a job names twice is refused, by whatever names"
ln -s "$one" "$TEST_TMP/alias"
ln "$one" "$TEST_TMP/another"
for alias in "$one" "$TEST_TMP/alias" "$TEST_TMP/another"; do
    for args in --rw=write "--rw=read --level=store" "--name=good --filename=$two --rw=write --name=job"; do
        # shellcheck disable=SC2086 # words
        unchanged "$two" unchanged "$one" expect_exit 2 "$SPILLWAY" bench $args --filename="$one:$two:$alias" --size=1m
        expect_output "$one and $alias are the same device" "usage:"
    done
    unchanged "$one" expect_exit 2 "$SPILLWAY" tune "$one" "$alias" --write --runtime 5ms --output "$TEST_TMP/twice.json"
    expect_output "$one and $alias are the same device" "usage:"
done
expect_true "settings were written" test ! -e "$TEST_TMP/twice.json"
bench 0 --name=one --filename="$one" --rw=read --size=1m --name=other --filename="$TEST_TMP/alias" --rw=read --size=1m

begin "every transfer is made, once"
for backend in io_uring libaio; do
    bench 0 --filename="$one:$two" --rw=write --bs=1m --iodepth=4 --backend=$backend
    report "w['io_bytes'] == 128 << 20 and w['total_ios'] == 128 and r['total_ios'] == 0 and j[0]['error'] == 0"
    report "'$backend' in j[0]['spillway']['backend'] and j[0]['spillway']['kernel_requests'] >= 128"
    bench 0 --filename="$one" --rw=randread --bs=4k --iodepth=32 --size=8m --backend=$backend
    report "r['total_ios'] == 2048 and r['clat_ns']['N'] == 2048 and sum(j[0]['iodepth_level'].values()) > 99.9"
done
bench 0 --filename="$one" --rw=randrw --rwmixread=70 --bs=4k --iodepth=8 --size=16m
report "r['total_ios'] + w['total_ios'] == 4096 and 0.6 < r['total_ios'] / 4096 < 0.8"
bench 0 --filename="$one" --rw=read --bs=64k --size=25% --offset=32m
report "r['io_bytes'] == 16 << 20"

begin "a store that another process has is refused for safety, and so is one that comes to it with a trace"
make_file first 64M
expect_exit 0 "$SPILLWAY" format --devices "$first"
"$SPILLWAY" bench --level=store --filename="$first" --rw=write --object-size=1m --size=16m --time_based --runtime=60 \
    >"$TEST_TMP/holder" 2>&1 &
holder=$!
interruptible $holder
until "$SPILLWAY" info "$first" --json | grep -q '"partitions_in_use": 1'; do
    kill -0 $holder || break
done
expect_exit 3 "$SPILLWAY" bench --level=store --filename="$first" --rw=write --object-size=1m --size=16m
expect_output "$first" "open"
expect_exit 3 "$SPILLWAY" replay "$ROOT/tests/traces/gpt.jsonl.gz" --devices "$first"
expect_exit 3 "$SPILLWAY" bench --filename="$first" --rw=write --size=1m --allow-destructive
expect_exit 3 "$SPILLWAY" tune "$first" --write --runtime 5ms --allow-destructive --output "$TEST_TMP/none.json"
expect_exit 3 "$SPILLWAY" format --force --erase "$first"
expect_exit 3 "$SPILLWAY" wipe --yes "$first"
interrupted $holder
rm "$first"

begin "jobs, groups and sections"
cat >"$TEST_TMP/jobs.fio" <<JOBS
[global]
filename=\${ONE}
bs=64k
size=4m
iodepth=2
[spill]
rw=write
[reload]
stonewall
rw=read
numjobs=3
JOBS
export ONE=$one
bench 0 "$TEST_TMP/jobs.fio"
report "[(x['jobname'], x['groupid']) for x in j] == [('spill', 0)] + [('reload', 1)] * 3"
report "j[0]['write']['io_bytes'] == 4 << 20 and all(x['read']['io_bytes'] == 4 << 20 for x in j[1:])"
bench 0 --group-reporting "$TEST_TMP/jobs.fio"
report "len(j) == 2 and j[1]['read']['io_bytes'] == 12 << 20"
sed 's/^rw=read$/rw=read\nname=back/' "$TEST_TMP/jobs.fio" >"$TEST_TMP/named.fio"
bench 0 --group-reporting --section=reload "$TEST_TMP/named.fio"
report "[x['jobname'] for x in j] == ['back']"
bench 0 --section=reload "$TEST_TMP/jobs.fio"
report "len(j) == 3"
expect_exit 2 "$SPILLWAY" bench --section=none "$TEST_TMP/jobs.fio"
bench 0 --bs=64k --size=1m --name=a --filename="$one" --name=b --filename="$two" --rw=write
report "[x['jobname'] for x in j] == ['a', 'b'] and r['total_ios'] == 16 and j[1]['write']['total_ios'] == 16"

begin "time, ramp and rate"
bench 0 --filename="$one" --rw=randread --bs=4k --iodepth=4 --size=1m --time-based --runtime=400ms
report "400 <= j[0]['job_runtime'] and r['io_bytes'] > 1 << 20"
bench 0 --filename="$one" --rw=read --bs=64k --iodepth=4 --rate=4m --time-based --runtime=500ms
report "1 << 20 <= r['io_bytes'] <= (4 << 20) * (j[0]['job_runtime'] / 1000 + 0.1)"
bench 0 --filename="$one" --rw=randrw --rwmixread=75 --bs=16k --iodepth=4 --rate=4m --time-based --runtime=1200ms --ramp-time=1400ms
report "1200 <= j[0]['job_runtime'] < 2600 and j[0]['elapsed'] >= 3 and r['clat_ns']['N'] == r['total_ios'] and r['bw_max'] < 1 << 14"
report "0 < w['io_bytes'] < r['io_bytes'] <= (4 << 20) * (j[0]['job_runtime'] / 1000 + 0.1)"
bench 0 --filename="$one" --rw=write --bs=1m --size=8m --verify=xxh3 --ramp-time=60
report "w['io_bytes'] == r['io_bytes'] == 8 << 20"

begin "a NUMA node that is there, and one that is not; a remark"
if python3 -c 'import ctypes, sys; sys.exit(ctypes.CDLL("libnuma.so.1").numa_available() < 0)'; then
    bench 0 --filename="$one" --rw=read --bs=64k --size=1m --numa=0 --description="a remark"
    report "r['total_ios'] == 16 and j[0]['desc'] == 'a remark'"
fi
bench 1 --filename="$one" --rw=read --numa=1023
expect_output "numa=1023: this machine has no such node"

begin "verify writes, reads back, and finds what is wrong"
for options in "--rw=write --bs=1m" "--rw=randwrite --bs=4k --size=16m" "--rw=write --bsrange=4k-64k --size=16m" \
    "--rw=randwrite --bsrange=4k-64k --size=16m" "--rw=randwrite --bs=64k --time-based --runtime=300ms"; do
    # shellcheck disable=SC2086
    bench 0 --filename="$one:$two" --iodepth=8 --verify=xxh3 $options
    report "j[0]['spillway']['blocks_verified'] > 0 and r['total_ios'] > 0"
done
bench 0 --filename="$one" --rw=write --bs=64k --iodepth=8 --verify=xxh3
bench 0 --filename="$one" --rw=randread --bs=64k --iodepth=8 --verify=xxh3
report "j[0]['spillway']['blocks_verified'] == 1024"
change_byte "$one" $((20 * 65536 + 777))
bench 1 --filename="$one" --rw=read --bs=64k --iodepth=8 --verify=xxh3
expect_output "$one" "byte $((20 * 65536))" checksum
dd if="$one" of="$one" bs=64k skip=5 seek=9 count=1 conv=notrunc status=none
sync "$one"
bench 1 --filename="$one" --rw=read --bs=64k --iodepth=1 --verify=xxh3
expect_output "holds the block that was written to byte $((5 * 65536))"
bench 1 --filename="$two" --rw=read --bs=4k --size=4k --verify=xxh3 --randseed=5
expect_output "$two"

begin "verify=crc32c, and reading back while writing goes on"
for options in "--rw=write --bs=1m" "--rw=randwrite --bsrange=4k-64k --blockalign=4k" "--rw=randwrite --bs=64k --verify-backlog=16" \
    "--rw=randwrite --bs=64k --verify-backlog=64 --verify-backlog-batch=16" \
    "--rw=write --bs=64k --verify-backlog=1 --verify-fatal=1 --verify-state-save=0"; do
    # shellcheck disable=SC2086
    bench 0 --filename="$one:$two" --iodepth=8 --verify=crc32c $options
    report "r['io_bytes'] == w['io_bytes'] and j[0]['spillway']['blocks_verified'] * int(j[0]['job options'].get('bs', 4096)) == r['io_bytes']"
done
bench 0 --filename="$one" --rw=randwrite --bs=64k --size=4m --iodepth=8 --verify=crc32c --verify-backlog=16 --time-based --runtime=400ms
report "r['io_bytes'] == w['io_bytes'] > 4 << 20"
bench 0 --filename="$one" --rw=write --bs=64k --size=8m --iodepth=4 --verify=crc32c --numjobs=4 --offset-increment=8m --group-reporting
report "j[0]['spillway']['blocks_verified'] == 512"
change_byte "$one" $((20 * 65536 + 777))
bench 1 --filename="$one" --rw=read --bs=64k --size=32m --iodepth=8 --verify=crc32c
expect_output "$one" "byte $((20 * 65536))" checksum
bench 1 --filename="$one" --rw=read --bs=64k --size=1m --verify=xxh3
expect_output "another verify="
# Another process writes to the same blocks until that is noticed.
printf '[global]\nfilename=%s\nsize=1m\nbs=64k\ntime_based\nruntime=20\n\n[checked]\nrw=write\nverify=crc32c\nverify_backlog=8\n
[intruder]\nrw=randwrite\niodepth=4\nruntime=2\n' "$one" >"$TEST_TMP/intruder.fio"
bench 1 "$TEST_TMP/intruder.fio"
expect_output "verify: byte"
bench 2 --filename="$one" --rw=write --verify=crc32c --numjobs=2 --size=8m
expect_output "offset_increment"
bench 2 --filename="$one" --rw=write --verify-backlog=2
expect_output "verify_backlog without verify"
bench 2 --filename="$one" --rw=write --verify=crc32c --verify-state-save=1
expect_output "verify_state_save=1 is not supported"
# Every job file that fio runs; this one at an eighth of its size.
sed 's/128m/16m/; s/64m/8m/' "$ROOT/fio-jobs/verify.fio" >"$TEST_TMP/verify.fio"
FILENAME=$one bench 0 "$TEST_TMP/verify.fio"
report "len(j) == 7 and all(x['spillway']['blocks_verified'] > 0 for x in j)"

begin "an interrupt ends the run with its summary and exit status 130"
"$SPILLWAY" bench --filename="$one" --rw=read --bs=64k --time-based --runtime=60 --output-format=json >"$TEST_TMP/report.json" 2>"$OUTPUT" &
interruptible $!
interrupted $!
report "d['spillway']['interrupted'] is True and len(j) == 1"

begin "the report for people"
expect_exit 0 "$SPILLWAY" bench --filename="$one" --rw=randrw --bs=4k --iodepth=4 --size=8m --description="a remark"
expect_output "Description  : [a remark]" "read: IOPS=" "write: IOPS=" "clat percentiles" "99.99th=" "Run status group 0" "READ: bw=" "cpu          : usr="

begin "terse lines: a job each, of fields at fio's places"
expect_exit 0 "$SPILLWAY" bench --output-format=terse --filename="$one" --bs=64k --size=1m --name=put --rw=write --name=get --stonewall --rw=read --description=remark
cp "$OUTPUT" "$TEST_TMP/terse"
expect_equal "3 put 0 0 0 1024 121,3 get 1 0 1024 0 122" \
    "$(awk -F';' '{ print $1, $3, $4, $5, $6, $47, NF }' "$TEST_TMP/terse" | paste -sd,)" "version, name, group, error, KiB, fields"

begin "a store: every pattern, shares of the drives, and no room"
make_file first 96M
make_file second 96M
expect_exit 0 "$SPILLWAY" format --devices "$first,$second"
for rw in write read randread rw randrw; do
    bench 0 --level=store --filename="$first:$second" --rw=$rw --object-size=1000003 --size=64m --iodepth=4
    report "r['io_bytes'] + w['io_bytes'] >= 60 << 20 and len(d['spillway']['drives']) == 2"
    report "('$rw' in ('write', 'rw')) == (w['total_ios'] == 67) and ('read' in '$rw' or '$rw' == 'rw') == (r['total_ios'] == 67)"
done
# The drives' shares are all that was put, in whole blocks; one that is late for a while may have none of it.
report "0 < w['io_bytes'] <= sum(x['bytes_written'] for x in d['spillway']['drives']) <= w['io_bytes'] + 4096 * w['total_ios']"
bench 0 --level=store --filename="$first:$second" --rw=rw --object-size=1m --size=64m --stripe=pull
bench 2 --level=store --filename="$first:$second" --rw=rw --object-size=1m --size=64m --stripe=static
expect_output "spillway_level=volume"
for rw in write rw randrw; do
    bench 0 --level=store --filename="$first:$second" --rw=$rw --object-size=64k --size=1m --iodepth=4 --rate=4m --time-based --runtime=500ms \
        --ramp-time=500ms
    report "all(x <= (4 << 20) * (j[0]['job_runtime'] / 1000 + 0.1) for x in (r['io_bytes'], w['io_bytes'])) and w['io_bytes'] >= 1 << 18"
done
bench 1 --level=store --filename="$first:$second" --rw=write --size=32m --numa=1023
expect_output "numa=1023"
bench 1 --level=store --filename="$first:$second" --rw=write --object-size=1m --size=1g
expect_output "a partition of this store has"
bench 1 --level=store --filename="$first:$second" --rw=rw --object-size=1m --size=16m --numjobs=2
expect_output "--partitions"
bench 1 --level=store --filename="$first" --rw=write
expect_output missing

begin "null drives are made for the run, and no transfer touches them"
for rw in write read randread rw randrw; do
    bench 0 --null --drives=3 --level=store --rw=$rw --object-size=1m --size=64m --iodepth=4
    report "r['io_bytes'] + w['io_bytes'] >= 60 << 20 and len(d['spillway']['drives']) == 3"
    report "'null' in j[0]['spillway']['backend'] and all(x['bytes_written'] + x['bytes_read'] > 0 for x in d['spillway']['drives'])"
    bench 0 --null --drives=2 --rw=$rw --bs=64k --size=8m --iodepth=4
    report "r['io_bytes'] + w['io_bytes'] == 8 << 20 and 'null' in j[0]['spillway']['backend']"
done
bench 0 --null --level=store --rw=rw --object-size=64k --size=8m --numjobs=2
report "len(j) == 2 and all(x['error'] == 0 and x['read']['io_bytes'] == 8 << 20 for x in j)"
# Two drives of 64 MiB/s take 16 MiB in an eighth of a second.
bench 0 --null=64m --drives=2 --level=store --rw=write --object-size=1m --size=16m --iodepth=4
report "j[0]['job_runtime'] >= 120"
report "all(x['bytes_written'] > 0 for x in d['spillway']['drives'])"
printf '[global]\nnull\ndrives=2\nlevel=store\nobject_size=1m\nsize=8m\n[a]\nrw=write\n[b]\nstonewall\nrw=read\n' >"$TEST_TMP/null.fio"
bench 0 "$TEST_TMP/null.fio"
report "len(j) == 2 and j[1]['read']['io_bytes'] == 8 << 20"
expect_exit 2 "$SPILLWAY" bench --null --filename="$one"
expect_output "leave filename out"
expect_exit 2 "$SPILLWAY" bench --filename="$one" --drives=2
expect_output "drives=2 without null"
expect_exit 2 "$SPILLWAY" bench --null=fast
expect_output "not a number"
TMPDIR=/proc expect_exit 1 "$SPILLWAY" bench --null --level=store --rw=write --size=16m
expect_output "in /proc (another folder: TMPDIR)"

begin "a device that carries something is not written"
unchanged "$first" bench 3 --filename="$first" --rw=write --bs=1m
expect_output "$first" "spillway store" "--allow-destructive"
unchanged "$first" bench 3 --filename="$first" --rw=randrw --bs=1m
bench 0 --filename="$first" --rw=read --bs=1m
# While it is written, no store may be made or opened on it.
"$SPILLWAY" bench --filename="$first" --rw=write --bs=64k --offset=8m --size=8m --time-based --runtime=60 --allow-destructive >/dev/null 2>&1 &
writer=$!
interruptible $writer
expect_exit 3 "$SPILLWAY" bench --level=store --filename="$first:$second" --rw=write --object-size=1m --size=8m
expect_output "$first" "has locked partition 0"
expect_exit 3 "$SPILLWAY" format --force --devices "$first,$second"
expect_exit 3 "$SPILLWAY" bench --filename="$first" --rw=write --bs=64k --size=1m --allow-destructive
expect_output "$first"
interrupted $writer
expect_exit 0 "$SPILLWAY" check "$first" "$second"
expect_exit 3 "$SPILLWAY" bench --filename="$first" --rw=write --output-format=json
python3 -c "import json, sys; assert json.load(open(sys.argv[1]))['errno'] == 17" <(grep -v '^spillway' "$OUTPUT") || fail "JSON of the refusal"
bench 0 --filename="$first" --rw=write --bs=1m --allow-destructive
expect_exit 1 "$SPILLWAY" check "$first" "$second"

begin "why a job failed is said once, however many transfers were in flight"
if is_root; then
    mkdir "$TEST_TMP/small" # below the drive there is no space: each write fails
    mount -t tmpfs -o size=64k none "$TEST_TMP/small"
    truncate -s 64M "$TEST_TMP/small/drive"
    attach_loop full "$TEST_TMP/small/drive"
    # shellcheck disable=SC2154
    "$SPILLWAY" bench --filename="$full" --rw=write --bs=1m --iodepth=16 --allow-destructive \
        >"$TEST_TMP/report" 2>"$OUTPUT" && fail "it cannot write"
    expect_equal 1 "$(grep -c ' failed: ' "$OUTPUT")" "lines that say what failed"
    expect_output "spillway bench: bench: $full: write of 1048576 bytes at byte" "No space left on device"
    grep -q 'jobs=1): err=28 (No space left on device)$' "$TEST_TMP/report" || fail "the report: $(cat "$TEST_TMP/report")"
    detach_loop "$full"
    umount "$TEST_TMP/small"
else
    skip "loop devices need root"
fi

begin "reads of what was never written: bench says so, tune measures nothing, or writes first"
make_file hollow 64M
bench 0 --filename="$hollow" --rw=read --bs=1m
expect_output "64 MiB of the 64 MiB that job bench is to read were never written" "--rw=write"
report "j[0]['spillway']['unwritten_bytes'] == 64 << 20"
unchanged "$hollow" expect_exit 1 "$SPILLWAY" tune "$hollow" --runtime 5ms --output "$TEST_TMP/hollow.json"
expect_output "$hollow: 64 MiB of its 64 MiB were never written" "--write"
expect_no_output BANDWIDTH
expect_true "no settings" test ! -e "$TEST_TMP/hollow.json"
dd if=/dev/urandom of="$hollow" bs=1M count=32 conv=notrunc,fsync status=none
bench 0 --filename="$hollow" --rw=read --bs=1m
expect_output "32 MiB of the 64 MiB"
bench 0 --filename="$hollow" --rw=read --bs=1m --size=32m
expect_no_output "never written"
report "j[0]['spillway']['unwritten_bytes'] == 0"
printf '[global]\nfilename=%s\nbs=1m\n[fill]\nrw=write\n[again]\nstonewall\nrw=read\n' "$hollow" >"$TEST_TMP/fill.fio"
bench 0 "$TEST_TMP/fill.fio"
expect_no_output "never written"
make_file hollow 64M
expect_exit 0 "$SPILLWAY" tune "$hollow" --runtime 5ms --write --output "$TEST_TMP/hollow.json"
expect_output "not all was ever written: the first 64 MiB of each drive were written" BANDWIDTH
# Not by what it takes: in many pieces, the file system's own blocks are counted with it.
expect_equal $((64 << 20)) "$(python3 -c 'import os, sys; print(os.lseek(os.open(sys.argv[1], os.O_RDONLY), 0, os.SEEK_HOLE))' "$hollow")" \
    "bytes before the first hole"

begin "the same of a file under a loop device"
if is_root; then
    make_loop hollow 64M 512
    unchanged "$hollow" expect_exit 1 "$SPILLWAY" tune "$hollow" --runtime 5ms --output "$TEST_TMP/none.json"
    expect_output "$hollow: 64 MiB of its 64 MiB were never written"
    expect_exit 0 "$SPILLWAY" tune "$hollow" --runtime 5ms --write --output "$TEST_TMP/none.json"
    expect_exit 0 "$SPILLWAY" tune "$hollow" --runtime 5ms --output "$TEST_TMP/none.json"
    expect_no_output "never written"
else
    skip "needs root"
fi

begin "tune: a table, a file, and its use"
export XDG_CONFIG_HOME=$TEST_TMP/config
expect_exit 2 "$SPILLWAY" tune "$two" --output=
expect_exit 1 "$SPILLWAY" tune "$two" --output "$one/settings.json"
expect_output "$one"
expect_no_output BANDWIDTH
dd if=/dev/urandom of="$two" bs=1M count=64 conv=notrunc,fsync status=none
"$SPILLWAY" tune "$two" --runtime 60 --json --output "$TEST_TMP/interrupted.json" >"$TEST_TMP/report.json" 2>"$OUTPUT" &
interruptible $!
interrupted $!
python3 -c "import json, sys; assert json.load(open(sys.argv[1]))['runs'] == []" "$TEST_TMP/report.json" || fail "what was measured until then"
expect_true "no settings" test ! -e "$TEST_TMP/interrupted.json"
expect_exit 0 "$SPILLWAY" tune "$two" --runtime 5ms --write
expect_output BANDWIDTH "* " "config/spillway/tune.json" "16 MiB"
python3 - "$XDG_CONFIG_HOME/spillway/tune.json" <<'PY' || fail "the settings file"
import json, sys
d = json.load(open(sys.argv[1]))
assert d["format"] == 1 and set(d["best"]) == {"read", "write"}, d
assert {(x["rw"], x["block_bytes"], x["iodepth"], x["backend"]) for x in d["runs"]} >= {
    (rw, block, depth, backend) for rw in ("read", "write") for block in (262144, 1 << 20, 4 << 20, 16 << 20)
    for depth in (1, 4, 16) for backend in ("io_uring", "libaio")}
PY
bench 0 --filename="$two" --rw=write --tuned --size=32m
report "w['io_bytes'] == 32 << 20"
python3 - "$XDG_CONFIG_HOME/spillway/tune.json" "$TEST_TMP/report.json" <<'PY' || fail "the tuned settings were not used"
import json, sys
best = json.load(open(sys.argv[1]))["best"]["write"]
options = json.load(open(sys.argv[2]))["jobs"][0]["job options"]
assert (options["bs"], options["iodepth"]) == (str(best["block_bytes"]), str(best["iodepth"]))
PY
# Stores are opened with it, too, on this drive and on no other.
SPILLWAY_TUNE=$XDG_CONFIG_HOME/spillway/tune.json expect_exit 0 "$SPILLWAY" format --erase --devices "$two"
SPILLWAY_TUNE=$XDG_CONFIG_HOME/spillway/tune.json expect_exit 0 "$SPILLWAY" bench --filename="$two" --level=store --rw=write --object-size=1m \
    --size=8m --verbose
expect_output "as 'spillway tune' measured: depth"
expect_exit 0 "$SPILLWAY" format --erase --devices "$one"
SPILLWAY_TUNE=$XDG_CONFIG_HOME/spillway/tune.json expect_exit 0 "$SPILLWAY" bench --filename="$one" --level=store --rw=write --object-size=1m \
    --size=8m --verbose
expect_output "not among the drives"
expect_exit 0 "$SPILLWAY" wipe --yes --devices "$one" --devices "$two"
dd if=/dev/urandom of="$two" bs=1M count=64 conv=notrunc,fsync status=none
expect_exit 0 "$SPILLWAY" tune "$two" --runtime 5ms --json --output "$TEST_TMP/read.json"
expect_exit 2 "$SPILLWAY" bench --filename="$two" --rw=write --tuned="$TEST_TMP/read.json"
expect_output "no settings for rw=write"
echo '{"format": 1, "best": {"read": {"block_bytes": -1}}}' >"$TEST_TMP/read.json"
expect_exit 2 "$SPILLWAY" bench --filename="$two" --tuned="$TEST_TMP/read.json"
expect_output incomplete
echo '{' >"$TEST_TMP/read.json"
expect_exit 2 "$SPILLWAY" bench --filename="$two" --tuned="$TEST_TMP/read.json"
expect_output read.json
# In many containers io_uring is refused: what can be had is measured.
cat >"$TEST_TMP/without_io_uring" <<'PY'
import ctypes, os, struct, sys
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]  # io_uring_setup: EPERM
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
filter = struct.pack("HP", len(steps), ctypes.addressof(program))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filter, 0, 0):
    sys.exit(f"no system calls can be refused here: {os.strerror(ctypes.get_errno())}")
os.execv(sys.argv[1], sys.argv[1:])
PY
expect_exit 0 python3 "$TEST_TMP/without_io_uring" "$SPILLWAY" tune "$two" --runtime 5ms --output "$TEST_TMP/refused.json"
expect_output "not measured: io_uring refused" libaio
python3 - "$TEST_TMP/refused.json" <<'PY' || fail "the settings without io_uring"
import json, sys
d = json.load(open(sys.argv[1]))
assert {x["backend"] for x in d["runs"]} == {"libaio"} and d["best"]["read"]["backend"] == "libaio", d
PY
expect_exit 2 "$SPILLWAY" tune
expect_exit 2 "$SPILLWAY" tune "$two" --runtime 5y
expect_output "not a time"
expect_exit 1 "$SPILLWAY" tune "$TEST_TMP/missing"
expect_output "$TEST_TMP/missing"

begin "drives with 4096-byte blocks, and drives in use"
is_root || skip "needs root"
need mkfs.ext4
make_loop disk 64M 4096
bench 1 --filename="$disk" --rw=write --bs=2k
expect_output "multiple of the 4096-byte blocks"
bench 0 --filename="$disk" --rw=randwrite --bs=4k --iodepth=16 --size=16m --verify=xxh3
report "j[0]['spillway']['blocks_verified'] == 4096"
mkfs.ext4 -q -F "$disk"
unchanged "$disk" bench 3 --filename="$disk" --rw=write
expect_output ext4
unchanged "$disk" expect_exit 3 "$SPILLWAY" tune "$disk" --write --runtime 5ms --output "$TEST_TMP/no.json"
expect_true "a settings file was written" test ! -e "$TEST_TMP/no.json"
mkdir "$TEST_TMP/mounted"
mount -o ro "$disk" "$TEST_TMP/mounted"
on_exit umount "$TEST_TMP/mounted"
unchanged "$disk" bench 3 --filename="$disk" --rw=write --allow-destructive
expect_output mounted
bench 0 --filename="$disk" --rw=read --bs=64k
