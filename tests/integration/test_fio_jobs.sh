#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_fio_jobs.sh - jobs as fio means them: the same bytes and transfers, all options known, foreign sections said
# layer: all
. "$(dirname "$0")/../lib.sh"
need fio python3
one=''
make_file one 32M
dd if=/dev/urandom of="$one" bs=1M count=32 conv=notrunc,fsync status=none

# counts FILE: of each job the transfers and bytes of reads and writes
counts() {
    python3 -c "
import json, sys
text = open(sys.argv[1]).read()
print([(j['jobname'], *(j[way][what] for way in ('read', 'write') for what in ('total_ios', 'io_bytes')))
       for j in json.loads(text[text.index('{'):])['jobs']])" "$1"
}

# same ARGS: spillway bench and fio move the same.
same() {
    expect_exit 0 fio --filename="$one" --direct=1 --ioengine=libaio --output-format=json --output="$TEST_TMP/fio.json" --name=job "$@"
    expect_exit 0 "$SPILLWAY" bench --filename="$one" --output-format=json --output="$TEST_TMP/ours.json" --name=job "$@"
    expect_equal "$(counts "$TEST_TMP/fio.json")" "$(counts "$TEST_TMP/ours.json")" "what $* moves"
}

begin "bytes and transfers are fio's"
same --rw=read:512k --bs=1m
same --rw=read:12k --bs=4k --size=1m --offset=1m
same --rw=read:-8k --bs=4k --size=1m
same --rw=read:-8k --bs=4k --size=1m --offset=3m
same --rw=randwrite --bs=4k --size=1m --loops=3
same --rw=randwrite --bs=4k --size=1m --io_size=5m
same --rw=randread --bs=4k --size=4m --io_size=1m --loops=2
same --rw=read --bs=64k --size=50% --io_size=25%
same --rw=write --bs=64k,4k --number_ios=7 --iodepth=4
same --rw=randread --bs=4k --norandommap=1 --size=4m
same --rw=randread --bs=4k --random_distribution=zipf:1.2 --size=4m
same --rw=randread --bs=4k --random_distribution=zoned:50/5:30/15:20/ --size=4m
same --rw=write --bs=4k --size=1m --thinktime=10 --thinktime_blocks=64
same --rw=randwrite --bs=4k --size=4k --loops=20 --iodepth=4 --serialize_overlap=1
same --rw=randread --bs=4k --size=64k --rate_iops=1000 --rate_process=poisson
same --rw=read --bs=4k --zonemode=strided --zonesize=64k --zoneskip=192k --size=4m
same --rw=write --bs=4k --zonemode=strided --zonesize=128k --zonerange=64k --zoneskip=8m --size=1m
same --rw=randrw --rwmixwrite=0 --bs=4k --size=1m
same --rw=write --bs=4k --size=2m --numjobs=2 --offset_increment=2m --startdelay=100ms

# within PERCENT ARGS: the same, but for what chance decides: all bytes, and transfers within so much.
within() {
    local percent=$1
    shift
    expect_exit 0 fio --filename="$one" --direct=1 --ioengine=libaio --output-format=json --output="$TEST_TMP/fio.json" --name=job "$@"
    expect_exit 0 "$SPILLWAY" bench --filename="$one" --output-format=json --output="$TEST_TMP/ours.json" --name=job "$@"
    python3 -c "
import sys
fio, ours = eval(sys.argv[1])[0], eval(sys.argv[2])[0]
assert fio[2] + fio[4] == ours[2] + ours[4], (fio, ours)
assert all(abs(f - o) <= int(sys.argv[3]) / 100 * f for f, o in zip(fio[1:], ours[1:])), (fio, ours)" \
        "$(counts "$TEST_TMP/fio.json")" "$(counts "$TEST_TMP/ours.json")" "$percent" || fail "what $* moves"
}

begin "sizes that are drawn fill the range as fio's do"
within 12 --rw=randwrite --bsrange=4k-64k
within 12 --rw=randread --bsrange=4k-64k
within 12 --rw=randwrite --bssplit=4k/10:8k/50:16k/40
within 12 --rw=write --bssplit=4k/10:8k/50:16k/40
within 12 --rw=randrw --rwmixwrite=30 --bs=4k

begin "what is written can be compressed and deduplicated as far as the job says"
expect_exit 0 "$SPILLWAY" bench --filename="$one" --rw=write --bs=4k --size=8m --buffer_compress_percentage=50 --name=half
expect_true "a half is zeros" python3 -c "
import sys, zlib
data = open(sys.argv[1], 'rb').read(8 << 20)
assert 0.45 < len(zlib.compress(data, 1)) / len(data) < 0.6" "$one"
for mode in repeat working_set; do
    expect_exit 0 "$SPILLWAY" bench --filename="$one" --rw=write --bs=4k --size=8m --dedupe_percentage=60 --dedupe_mode=$mode --name=twice
    expect_true "blocks of $mode" python3 -c "
import sys
data = open(sys.argv[1], 'rb').read(8 << 20)
unique = len({data[at:at + 4096] for at in range(0, len(data), 4096)})
assert 700 < unique < 1000, unique" "$one"
done

begin "files in a folder have fio's names"
mkdir "$TEST_TMP/folder"
args=(--directory="$TEST_TMP/folder" --nrfiles=3 --numjobs=2 --size=3m --rw=randread --bs=4k --direct=1)
expect_exit 1 "$SPILLWAY" bench --name=job "${args[@]}"
expect_output "$TEST_TMP/folder/job.0.0"
expect_exit 0 fio --output-format=json --output="$TEST_TMP/fio.json" --ioengine=libaio --name=job "${args[@]}"
expect_exit 0 "$SPILLWAY" bench --output-format=json --output="$TEST_TMP/ours.json" --name=job "${args[@]}"
expect_equal "$(counts "$TEST_TMP/fio.json")" "$(counts "$TEST_TMP/ours.json")" "what it moves"
rm -r "$TEST_TMP/folder"

begin "what could never begin, or would end half way, is refused before anything moves"
for names in "a a" "a b"; do
    read -r job other <<<"$names"
    expect_exit 1 "$SPILLWAY" bench --null --size=64k --rw=read --name="$job" --wait-for="$other" --name=b --wait-for=a
    expect_output "job $job: wait_for=$other names no job before it"
done
expect_exit 1 "$SPILLWAY" bench --null --size=64k --rw=write --allow-destructive --zonemode=strided --zonesize=64k --zoneskip=1000
expect_output "zoneskip=1000 is not a multiple of the 512-byte blocks"
expect_exit 1 "$SPILLWAY" bench --null --size=64k --rw=read --zonemode=strided --zonesize=64k --zoneskip=8388608t
expect_output "no zone is so large"

begin "jobs that wait, share a flow, or end others"
cat >"$TEST_TMP/turns.fio" <<'JOBS'
[global]
direct=1
filename=${ONE}
bs=4k
[first]
rw=write
size=4m
[second]
wait_for=first
rw=read
size=4m
[ends]
exitall
rw=read
size=64k
stonewall
startdelay=200ms
[ended]
rw=randread
time_based
runtime=60
[one]
stonewall
rw=randread
flow=1
time_based
runtime=1
[three]
rw=randread
flow=3
time_based
runtime=1
JOBS
export ONE=$one
expect_exit 0 "$SPILLWAY" bench --output-format=json --output="$TEST_TMP/ours.json" "$TEST_TMP/turns.fio"
python3 -c "
import json, sys
jobs = {job['jobname']: job for job in json.load(open(sys.argv[1]))['jobs']}
assert jobs['second']['read']['total_ios'] == 1024 and jobs['ended']['job_runtime'] < 30000, jobs
one, three = jobs['one']['read']['total_ios'], jobs['three']['read']['total_ios']
assert one > 0 and 2.7 < three / one < 3.3, (one, three)" "$TEST_TMP/ours.json" || fail "turns"

begin "a job ends when its rate is steady"
expect_exit 0 "$SPILLWAY" bench --filename="$one" --rw=randread --rate_iops=200 --time_based --runtime=60 --ss=iops:50% --ss_dur=2s --name=steady
expect_output "steadystate  : attained=yes"
expect_exit 0 "$SPILLWAY" bench --filename="$one" --rw=randread --rate_iops=200 --time_based --runtime=2 --ss=iops:0.0001 --ss_dur=5s --name=never
expect_output "steadystate  : attained=no"

begin "what is measured in another way is said in every report"
printf '[a]\nfilename=%s\nioengine=psync\ndirect=0\nrw=read\nsize=1m\nwrite_bw_log=x\n' "$one" >"$TEST_TMP/said.fio"
expect_exit 0 "$SPILLWAY" bench "$TEST_TMP/said.fio"
expect_output "differs      : buffered: measured past the page cache" "differs      : ioengine: one transfer at a time" "no log is written"
expect_exit 0 "$SPILLWAY" bench --output-format=json --output="$TEST_TMP/ours.json" "$TEST_TMP/said.fio"
expect_true "in JSON" python3 -c "import json, sys; assert len(json.load(open(sys.argv[1]))['jobs'][0]['spillway']['differs']) == 3" "$TEST_TMP/ours.json"

begin "a random job that fio ends early transfers all, and says so; where fio does not, nothing is said"
for job in "rw=randwrite bs=4k,8k" "rw=randread bs=8k,4k" "rw=randrw bs=4k,8k" "rw=randwrite bs=4k percentage_random=50"; do
    # shellcheck disable=SC2046,SC2086 # words
    expect_exit 0 "$SPILLWAY" bench --filename="$one" --size=1m --direct=1 $(printf -- '--%s ' $job)
    expect_output "differs      : random offsets: all of size is transferred"
done
for job in "rw=randwrite bs=8k,4k" "rw=randread bs=4k,8k" "rw=write bs=4k,8k" "rw=randwrite bs=4k,8k norandommap" "rw=randrw bs=4k"; do
    # shellcheck disable=SC2046,SC2086 # words
    expect_exit 0 "$SPILLWAY" bench --filename="$one" --size=1m --direct=1 $(printf -- '--%s ' $job)
    expect_no_output "random offsets"
done

begin "a size that is not a multiple of the blocks is rounded down, and says so"
for job in "rw=read size=6k" "rw=write bs=12k size=100k" "rw=rw bs=4k,12k size=64k" "rw=read bs=12k filesize=100k"; do
    # shellcheck disable=SC2046,SC2086 # words
    expect_exit 0 "$SPILLWAY" bench --filename="$one" --direct=1 $(printf -- '--%s ' $job)
    expect_output "differs      : size: rounded down to whole blocks"
done
for job in "rw=randread size=6k" "rw=read bs=12k size=36k" "rw=read bs=4k,12k size=64k" "rw=read bs=12k"; do
    # shellcheck disable=SC2046,SC2086 # words
    expect_exit 0 "$SPILLWAY" bench --filename="$one" --direct=1 $(printf -- '--%s ' $job)
    expect_no_output "size: rounded"
done

begin "a section of another engine is left out, said, and fails the run at its end"
printf '[global]\nfilename=%s\ndirect=1\nsize=1m\n[a]\nrw=read\n[burn]\nioengine=cpuio\ncpuload=50\n' "$one" >"$TEST_TMP/left.fio"
expect_exit 1 "$SPILLWAY" bench --output-format=json --output="$TEST_TMP/ours.json" "$TEST_TMP/left.fio"
expect_output "section [burn] is left out: ioengine=cpuio"
expect_true "in JSON" python3 -c "
import json, sys
d = json.load(open(sys.argv[1]))
assert d['spillway']['left_out'] == [{'section': 'burn', 'ioengine': 'cpuio'}] and d['jobs'][0]['read']['total_ios'] == 256" "$TEST_TMP/ours.json"
expect_exit 0 "$SPILLWAY" bench --section=a "$TEST_TMP/left.fio"
expect_exit 2 "$SPILLWAY" bench --section=burn "$TEST_TMP/left.fio"
expect_exit 2 "$SPILLWAY" bench --name=a --filename="$one" --ioengine=cpuio
expect_output "not one of spillway's"

begin "no job file makes a drive writable that carries something"
make_file carries 96M
# shellcheck disable=SC2154 # make_file sets it
expect_exit 0 "$SPILLWAY" format "$carries"
printf '[a]\nfilename=%s\nrw=randwrite\nbs=4k\nallow_mounted_write=1\nfill_device=1\noverwrite=1\ndirect=1\n' "$carries" >"$TEST_TMP/bad.fio"
unchanged "$carries" expect_exit 3 "$SPILLWAY" bench "$TEST_TMP/bad.fio"
expect_output "$carries" "--allow-destructive"
printf '[a]\ninclude %s\ndirectory=%s\n' "$TEST_TMP/more.inc" "$TEST_TMP" >"$TEST_TMP/bad.fio"
printf 'filename=%s\nrw=write\nbs=64k\n' "$(basename "$carries")" >"$TEST_TMP/more.inc"
unchanged "$carries" expect_exit 3 "$SPILLWAY" bench "$TEST_TMP/bad.fio"

begin "every option that fio has is supported, without effect, or refused with a message"
"$SPILLWAY" bench --fio-options >"$TEST_TMP/options"
fio --cmdhelp | sed -n 's/^ *\([a-z][a-z_-]*\) *:.*/\1/p' >"$TEST_TMP/fios"
expect_true "fio names its options" test "$(wc -l <"$TEST_TMP/fios")" -gt 200
while read -r name; do
    grep -qE "[\`=]${name}[\`=[]" "$TEST_TMP/options" || fail "fio's option $name is not known"
done <"$TEST_TMP/fios"
for engine in io_uring libaio sync null posixaio; do
    for name in $(fio --enghelp=$engine | sed -n 's/^\([a-z][a-z_]*\) *:.*/\1/p'); do
        grep -qE "[\`=]${name}[\`=[]" "$TEST_TMP/options" || fail "the option $name of fio's engine $engine is not known"
    done
done

begin "docs/FIO.md is what the command prints"
expect_true "the page: make fio-page" diff <(sed '1,/^<!-- spillway bench --fio-options -->$/d' "$ROOT/docs/FIO.md") "$TEST_TMP/options"
