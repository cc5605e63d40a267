#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_rig.sh - the drive rig makes what it is asked for and restores everything
# layer: all
# shellcheck disable=SC2217 # sleep reads nothing: it has a drive open
. "$(dirname "$0")/../lib.sh"

is_root || skip "needs root to make loop devices"
rig=$ROOT/tests/rig.sh
name=test$$
export SPW_RIG_STATE=$TEST_TMP
on_exit "$rig" down --name $name

loops_of_rig() {
    { grep -lE "/spillway-rig-$name\." /sys/block/loop*/loop/backing_file 2>/dev/null || true; } | cut -d/ -f4
}

expect_nothing_left() {
    expect_equal "" "$(loops_of_rig)" "loop devices"
    expect_equal "" "$(find /dev/shm "$TEST_TMP" -maxdepth 1 -name "spillway-rig*$name*")" "files"
    expect_equal "" "$(find /sys/fs/cgroup/ -maxdepth 2 -name "spillway-rig-$name")" "cgroups"
}

begin "three drives of 4096 byte blocks over memory"
expect_exit 0 "$rig" up --name $name --drives 3 --size 16M --block 4096
mapfile -t drives < <(grep ^/dev "$OUTPUT")
expect_equal 3 ${#drives[@]} "drives"
for drive in "${drives[@]}"; do
    expect_equal 4096 "$(blockdev --getss "$drive")" "block size"
    expect_equal $((16 << 20)) "$(blockdev --getsize64 "$drive")" "size"
done
expect_exit 0 "$rig" status --name $name
expect_output "${drives[@]}"

begin "settings that were changed of a drive's queue are reset for the next rig"
for drive in "${drives[@]}"; do
    echo 2 >"/sys/block/${drive##*/}/queue/rq_affinity"
    echo 2 >"/sys/block/${drive##*/}/queue/nomerges"
done
expect_exit 0 "$rig" down --name $name
expect_exit 0 "$rig" up --name $name --drives 3 --size 16M
mapfile -t drives < <(grep ^/dev "$OUTPUT")
for drive in "${drives[@]}"; do
    expect_equal 1 "$(cat "/sys/block/${drive##*/}/queue/rq_affinity")" "rq_affinity"
    expect_equal 0 "$(cat "/sys/block/${drive##*/}/queue/nomerges")" "nomerges"
done

begin "a second rig of the same name is refused, and the first one stays"
expect_exit 1 "$rig" up --name $name
expect_output "is up" "down --name $name"
expect_equal 3 "$(loops_of_rig | wc -l)" "drives"

begin "down restores everything, and may be said twice"
expect_exit 0 "$rig" down --name $name
expect_nothing_left
expect_exit 0 "$rig" down --name $name
expect_exit 1 "$rig" status --name $name

begin "down waits for a process that is about to close a drive; for one that keeps it open the record stays"
expect_exit 0 "$rig" up --name $name --drives 2 --size 8M
mapfile -t drives < <(grep ^/dev "$OUTPUT")
sleep 1 <"${drives[1]}" &
expect_exit 0 "$rig" down --name $name
expect_nothing_left
expect_exit 0 "$rig" up --name $name --drives 2 --size 8M
mapfile -t drives < <(grep ^/dev "$OUTPUT")
sleep 60 <"${drives[1]}" &
holder=$!
on_exit kill_quietly $holder
expect_exit 1 "$rig" down --name $name
expect_output "${drives[1]} is still in use" "the record stays"
kill $holder
wait $holder 2>/dev/null || true
expect_exit 0 "$rig" down --name $name
expect_nothing_left

begin "drives over files on a disk"
mkdir "$TEST_TMP/disk"
expect_exit 0 "$rig" up --name $name --drives 1 --size 8M --on "$TEST_TMP/disk"
expect_exit 0 "$rig" down --name $name
expect_nothing_left

begin "down clears up after a crash in the middle of up"
# Killed as soon as it has printed its first drive, with what it has started: a losetup that survives would go on making one.
setsid "$rig" up --name $name --drives 8 --size 64M >"$TEST_TMP/drives" 2>/dev/null &
victim=$!
while kill -0 $victim 2>/dev/null && [ ! -s "$TEST_TMP/drives" ]; do :; done
kill -9 -- -$victim 2>/dev/null || true
wait $victim 2>/dev/null || true
while kill -0 -- -$victim 2>/dev/null; do :; done
expect_true "a drive was made" test -n "$(loops_of_rig)"
expect_exit 0 "$rig" down --name $name
expect_nothing_left

begin "throttled drives have the given speed each, and only for what is run inside"
if "$rig" up --name $name --drives 2 --size 32M --write 40,20 --read 30 >"$TEST_TMP/drives" 2>"$TEST_TMP/errors"; then
    mapfile -t drives <"$TEST_TMP/drives"
    expect_exit 0 "$rig" status --name $name
    expect_output "$(lsblk -dno MAJ:MIN "${drives[0]}" | tr -d ' ')" "$(lsblk -dno MAJ:MIN "${drives[1]}" | tr -d ' ')"
    expect_exit 0 "$rig" run --name $name grep -h spillway-rig-$name /proc/self/cgroup
    expect_exit 1 grep -h spillway-rig-$name /proc/self/cgroup
    # 16 MiB at 20 MB/s need 0.8 s. That a throttle slows down is its purpose: a lower bound of time does not assert speed.
    begun=$EPOCHREALTIME
    expect_exit 0 "$rig" run --name $name dd if=/dev/zero of="${drives[1]}" bs=64k count=256 oflag=direct
    expect_true "the write took at least 0.6 s" awk -v from="$begun" -v to="$EPOCHREALTIME" 'BEGIN { exit to - from < 0.6 }'
    expect_exit 0 "$rig" down --name $name
    expect_nothing_left
elif grep -q "cgroup controller\|CONFIG_BLK_DEV_THROTTLING" "$TEST_TMP/errors"; then
    skip "$(tail -n 1 "$TEST_TMP/errors")"
else
    fail "$(cat "$TEST_TMP/errors")"
fi

begin "paced drives have their speed, too, and are left as they were"
version2=/sys/fs/cgroup
[ -e $version2/cgroup.controllers ] || version2=$version2/unified
if [ -e $version2/io.cost.qos ]; then
    expect_exit 0 "$rig" up --name $name --drives 2 --size 32M --write 40,20 --read 30 --paced
    mapfile -t drives < <(grep ^/dev "$OUTPUT")
    paced="$(lsblk -dno MAJ:MIN "${drives[1]}" | tr -d ' ') enable"
    expect_exit 0 "$rig" status --name $name
    expect_output "wbps=40000000" "wbps=20000000"
    expect_exit 0 grep "$paced=1" $version2/io.cost.qos
    begun=$EPOCHREALTIME
    expect_exit 0 "$rig" run --name $name dd if=/dev/zero of="${drives[1]}" bs=64k count=256 oflag=direct
    expect_true "the write took at least 0.6 s" awk -v from="$begun" -v to="$EPOCHREALTIME" 'BEGIN { exit to - from < 0.6 }'
    expect_exit 0 "$rig" down --name $name
    expect_exit 1 grep "$paced=1" $version2/io.cost.qos
else
    expect_exit 1 "$rig" up --name $name --drives 1 --size 8M --write 40 --read 30 --paced
    expect_output "no io.cost"
fi
expect_nothing_left

begin "bad options are refused before anything is made"
expect_exit 1 "$rig" up --name $name --size 8M --write 40 --paced
expect_output "--paced needs"
expect_exit 1 "$rig" up --name $name --block 1024
expect_output "512 or 4096"
expect_exit 1 "$rig" up --name $name --size lots
expect_output "not a size"
expect_exit 1 "$rig" up --name $name --drives 3 --write 10,20
expect_output "2 numbers for 3 drives"
expect_exit 1 "$rig" up --name $name --size 900T
expect_output "do not fit"
expect_exit 1 "$rig" up --name $name --fast
expect_output "no such option"
expect_exit 1 "$rig" up --name ../x
expect_output "letters, digits"
expect_exit 1 "$rig" run --name $name true
expect_output "not up"
expect_nothing_left

begin "--help teaches"
expect_exit 0 "$rig" --help
expect_output "--write" "down" "Example"
