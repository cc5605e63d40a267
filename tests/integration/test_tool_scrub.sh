#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_tool_scrub.sh - a state of two copies: check --scrub, and what is listed and lost without a drive
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../committed.sh"
need python3

# spoil DRIVE: other bytes where its data begins
spoil() {
    head -c 8M /dev/urandom | dd of="$1" bs=1M seek=1 conv=notrunc status=none
}

begin "help teaches it, and an empty store has nothing to scrub"
expect_exit 0 "$SPILLWAY" check --help
expect_output "--scrub" "reads and verifies every copy"
make_file one 64M
make_file two 64M
expect_exit 0 "$SPILLWAY" format --devices "$one,$two"
expect_exit 0 "$SPILLWAY" check --scrub --devices "$one,$two"
expect_output "nothing is committed"

begin "what is good stays as it is"
commit 2 7 "100000 5000000 4096" "$one" "$two"
unchanged "$one" unchanged "$two" expect_exit 0 "$SPILLWAY" check --scrub "$one" "$two"
expect_output "step 7" "in two copies, 0 lost"
expect_no_output "one copy alone"

begin "bad copies are written again from the good ones"
spoil "$two"
unchanged "$one" expect_exit 0 "$SPILLWAY" check --scrub "$one" "$two" --json
expect_output '"good": true' '"copies_repaired": 7' '"chunks_lost": 0'
unchanged "$one" unchanged "$two" expect_exit 0 "$SPILLWAY" check --scrub "$one" "$two" --json
expect_no_output '"copies_repaired": 7'

begin "who has the partition open keeps others out"
cat >"$TEST_TMP/hold.py" <<'END'
import subprocess, sys
import spillway
with spillway.Store(sys.argv[2:]):
    done = subprocess.run([sys.argv[1], "check", "--scrub", *sys.argv[2:]], capture_output=True, text=True)
    assert done.returncode == 3 and "is open in process" in done.stderr, done
END
PYTHONPATH="$ROOT/python" SPILLWAY_LIBRARY="$SPW_BUILD/libspillway.so" \
    expect_exit 0 python3 "$TEST_TMP/hold.py" "$SPILLWAY" "$one" "$two"

begin "a mirrored state is whole without a drive"
for drive in "$one" "$two"; do
    unchanged "$one" unchanged "$two" expect_exit 0 "$SPILLWAY" state list "$drive"
    expect_output "3 records"
    expect_no_output "lost"
    expect_exit 1 "$SPILLWAY" check "$drive"
    expect_output "is missing" "partition 0 holds commit 7, which may be whole without that"
    expect_exit 0 "$SPILLWAY" check --scrub "$drive" "$TEST_TMP/nowhere"
    expect_output "chunks have one copy alone"
    expect_exit 0 "$SPILLWAY" state export "$drive" --to "$TEST_TMP/out.$(basename "$drive")"
done
diff -r "$TEST_TMP/out.$(basename "$one")" "$TEST_TMP/out.$(basename "$two")" || fail "the drives have other bytes"

begin "what has one copy alone gets a second one"
commit 2 8 "100000 5000000 4096" "$one"
unchanged "$one" unchanged "$two" expect_exit 0 "$SPILLWAY" check --scrub "$one"
expect_output "chunks have one copy alone, as drives are missing"
expect_exit 0 "$SPILLWAY" check --scrub "$one" "$two"
expect_output "step 8" "chunks had one copy alone, and have two now"
unchanged "$one" unchanged "$two" expect_exit 0 "$SPILLWAY" check --scrub "$one" "$two" --json
expect_output '"chunks_with_one_copy": 0' '"step": 8'
for drive in "$one" "$two"; do
    rm -rf "$TEST_TMP/out"
    expect_exit 0 "$SPILLWAY" state export "$drive" --to "$TEST_TMP/out"
    expect_output "8"
done
commit 2 9 "100000 5000000 4096" "$two"
expect_exit 0 "$SPILLWAY" check --scrub "$one" "$two" --json
expect_output '"chunks_with_one_copy": 0' '"step": 9'

begin "what is lost without a mirror is named"
commit 1 10 "100000 5000000 4096" "$one" "$two"
lost=0
for drive in "$one" "$two"; do
    unchanged "$one" unchanged "$two" expect_exit 1 "$SPILLWAY" check "$drive"
    expect_output "is missing"
    if "$SPILLWAY" state list "$drive" >"$TEST_TMP/list" 2>&1; then
        grep -q "layer/.*lost: on a drive that is missing" "$TEST_TMP/list" || fail "no record is named"
        lost=$((lost + 1))
    else
        grep -q "is not known without it" "$TEST_TMP/list" || fail "no word of the description"
    fi
done
expect_equal 1 "$lost" "drives with the description"
spoil "$one"
spoil "$two"
expect_exit 1 "$SPILLWAY" check --scrub "$one" "$two"
expect_output "damaged"
