#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_soak.sh - make soak for seconds: it breaks drives and passes, finds what is put in on purpose, ends when asked to
# layer: all
# alone: it may use all of the machine
. "$(dirname "$0")/../lib.sh"
need python3 setpriv losetup
is_root || skip "needs root to make drives"
losetup -f >/dev/null 2>&1 || skip "no loop devices here"
export TMPDIR=$TEST_TMP

soak=$ROOT/tests/soak/soak

begin "help teaches"
expect_exit 0 "$soak" --help
expect_output "--minutes" "kill -9" "Ctrl-C"
expect_exit 2 "$soak" --minutes 0
expect_exit 2 "$soak" --minutes long

# What was mounted and attached is gone.
nothing_left() {
    ! grep -qF "$TEST_TMP" /proc/self/mounts || fail "a file system is left"
    ! losetup -l -n -O BACK-FILE | grep -qF "$TEST_TMP" || fail "a loop device is left"
}

begin "some seconds, with faults"
SPW_SEED=7 expect_exit 0 python3 "$soak" --build "$SPW_BUILD" --out "$TEST_TMP" --minutes 0.08 --no-training --no-chart
expect_output "faults " "objects " "puts" "passed"
expect_true "the report is JSON" python3 -c "
import json, sys
result = json.load(open(sys.argv[1]))
assert result['passed'] and result['faults'] and result['programs']['objects']['counts']['gets'] > 0, result" "$TEST_TMP/soak.json"
nothing_left

begin "a wrong byte is found"
SPW_SOAK_BREAK=bytes expect_exit 1 python3 "$soak" --build "$SPW_BUILD" --out "$TEST_TMP" --minutes 1 --no-training --no-chart
expect_output "VIOLATION" "wrong bytes"
nothing_left

begin "an error that names a sound drive is found"
SPW_SOAK_BREAK=blame expect_exit 1 python3 "$soak" --build "$SPW_BUILD" --out "$TEST_TMP" --minutes 1 --no-training --no-chart
expect_output "VIOLATION" "to which nothing was done"
nothing_left

begin "Ctrl-C ends it, with the report"
rm "$OUTPUT" # what the command before it printed would be taken for its own
python3 "$soak" --build "$SPW_BUILD" --out "$TEST_TMP" --minutes 10 --no-training --no-chart >"$OUTPUT" 2>&1 &
pid=$!
until grep -qs "soak of" "$OUTPUT"; do kill -0 $pid; done
kill -INT $pid
status=0
wait $pid || status=$?
# Before anything was made, or after.
[ $status = 0 ] || { [ $status = 2 ] && grep -q "ended before it began" "$OUTPUT"; } || fail "exit status $status: $(cat "$OUTPUT")"
nothing_left
