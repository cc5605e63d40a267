#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/lib.sh - what bash tests share: cases, expectations, drives, cleaning up
#
#   . "$(dirname "$0")/../lib.sh"
#   begin "format refuses a device that carries a file system"
#   make_loop disk 64M 512
#   mkfs.ext4 -q "$disk"
#   unchanged "$disk" expect_exit 2 "$SPILLWAY" format --devices "$disk"
#   expect_output "ext4"
#
# A case ends at the next begin or at the end of the script. A failed expectation is reported and fails the case, and the script goes on;
# a command that fails outside an expectation fails the case and ends the script. What make_* and on_exit set up is undone in any case.

set -Eeuo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SPW_BUILD=${SPW_BUILD:-$ROOT/build}
# shellcheck disable=SC2034 # used by the scripts
SPILLWAY=$SPW_BUILD/spillway
TEST_TMP=$(mktemp -d "${TMPDIR:-/var/tmp}/spillway-script.XXXXXX")
OUTPUT=$TEST_TMP/output # what the last expect_exit printed, both streams

test_case=
test_case_failed=
test_failures=0
test_cleanup=()

# begin NAME: a case starts; the one before has ended.
begin() {
    end_case
    test_case=$1
    test_case_failed=
    echo "begin - $1"
}

end_case() {
    [ -n "$test_case" ] || return 0
    if [ -n "$test_case_failed" ]; then
        test_failures=$((test_failures + 1))
        echo "not ok - $test_case"
    else
        echo "ok - $test_case"
    fi
    test_case=
}

# fail WORDS: the case has failed; the script goes on.
fail() {
    test_case_failed=1
    echo "  line ${BASH_LINENO[${#BASH_LINENO[@]} - 2]}: $*"
}

# skip REASON: the current case is skipped, or, before the first begin, the whole script (and the script ends).
skip() {
    if [ -z "$test_case" ]; then
        echo "skip - $(basename "$0"): $1"
        exit 77
    fi
    echo "skip - $test_case: $1"
    test_case=
}

# on_exit COMMAND ARGS: done at the end, last one first.
on_exit() {
    test_cleanup+=("$(printf '%q ' "$@")")
}

clean_up() {
    local status=$? i
    trap - EXIT ERR
    set +e
    trap '' INT TERM
    if [ $status -ne 0 ] && [ $status -ne 77 ]; then
        test_case=${test_case:-the script}
        test_case_failed=1
    fi
    for ((i = ${#test_cleanup[@]} - 1; i >= 0; i--)); do
        eval "${test_cleanup[i]}"
    done
    rm -rf "$TEST_TMP"
    end_case
    if [ $status -eq 77 ]; then
        exit 77
    fi
    exit $((test_failures > 0))
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'echo "  line $LINENO: failed with $?: $BASH_COMMAND" >&2' ERR

# ---- Expectations --------------------------------------------------------------------------------------------------------------------

# expect_exit STATUS COMMAND ARGS: run it; its output is kept in $OUTPUT and shown if the status is another.
expect_exit() {
    local want=$1 got=0
    shift
    "$@" >"$OUTPUT" 2>&1 </dev/null || got=$?
    if [ "$got" -ne "$want" ]; then
        fail "exit status $got, not $want: $*"
        sed 's/^/    | /' "$OUTPUT"
    fi
}

# expect_output TEXT...: each is part of what the last expect_exit printed.
expect_output() {
    local text
    for text in "$@"; do
        if ! grep -qF -- "$text" "$OUTPUT"; then
            fail "the output does not say \"$text\":"
            sed 's/^/    | /' "$OUTPUT"
        fi
    done
}

# expect_no_output TEXT...: none is.
expect_no_output() {
    local text
    for text in "$@"; do
        if grep -qF -- "$text" "$OUTPUT"; then
            fail "the output says \"$text\":"
            sed 's/^/    | /' "$OUTPUT"
        fi
    done
}

# expect_equal WANT GOT [WHAT]
expect_equal() {
    if [ "$1" != "$2" ]; then
        fail "${3:-value}: \"$2\", not \"$1\""
    fi
}

# expect_true WHAT COMMAND ARGS: the command succeeds.
expect_true() {
    local what=$1
    shift
    "$@" >"$OUTPUT" 2>&1 </dev/null || {
        fail "$what: $*"
        sed 's/^/    | /' "$OUTPUT"
    }
}

# sum_of PATH: of all bytes of a file or device.
sum_of() {
    cksum <"$1"
}

# unchanged PATH COMMAND ARGS: run the command; not one byte of the file or device may change.
unchanged() {
    local path=$1 before after
    shift
    before=$(sum_of "$path")
    "$@"
    drop_cached "$path"
    after=$(sum_of "$path")
    [ "$before" = "$after" ] || fail "$path has changed: $*"
}

# change_byte PATH OFFSET: on the drive, too. Whatever was there: a byte that is written may be the same by chance.
change_byte() {
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    # shellcheck disable=SC2059
    printf "\\$(printf %o $((255 - byte)))" | dd of="$1" bs=1 seek="$2" conv=notrunc,fsync status=none
}

# Writes by O_DIRECT go past what the kernel cached of a block device.
drop_cached() {
    [ ! -b "$1" ] || blockdev --flushbufs "$1"
}

# ---- Drives --------------------------------------------------------------------------------------------------------------------------

is_root() {
    [ "$(id -u)" -eq 0 ]
}

# need COMMAND...: skip the case or script if one is missing.
need() {
    local command
    for command in "$@"; do
        command -v "$command" >/dev/null || skip "needs $command"
    done
}

# make_file VARIABLE SIZE: an empty sparse file; its path is put into the variable.
make_file() {
    local -n made_file=$1
    made_file=$(mktemp "$TEST_TMP/drive.XXXXXX")
    truncate -s "$2" "$made_file"
}

# attach_loop VARIABLE [OPTIONS] FILE: a loop device over it, until detach_loop, or the end. Each is detached once: a device that is free again
# may be another test's by then.
declare -A loops_attached=()
attach_loop() {
    local -n attached=$1
    shift
    attached=$(losetup -f --show "$@")
    loops_attached[$attached]=1
    on_exit detach_loop "$attached"
}

detach_loop() {
    [ -n "${loops_attached[$1]:-}" ] || return 0
    unset "loops_attached[$1]"
    losetup -d "$1"
}

# make_loop VARIABLE SIZE [BLOCK_BYTES]: a loop device over an empty file. Needs root.
make_loop() {
    local backing
    make_file backing "$2"
    attach_loop "$1" --direct-io=on -b "${3:-512}" "$backing"
}

# start_writer DEVICE COMMAND ARGS: in the background, as $writer, until it has written to the block device. Its output: $TEST_TMP/writer.log.
start_writer() {
    local device=$1 before
    before=$(sectors_written "$device")
    shift
    "$@" >"$TEST_TMP/writer.log" 2>&1 </dev/null &
    writer=$!
    on_exit kill_quietly $writer
    until [ "$(sectors_written "$device")" -ne "$before" ]; do
        kill -0 $writer 2>/dev/null || { fail "it has ended: $(cat "$TEST_TMP/writer.log")" && return 0; }
    done
}

sectors_written() {
    awk '{ print $7 }' "/sys/class/block/$(basename "$1")/stat"
}

kill_quietly() {
    kill -9 "$1" 2>/dev/null
}
