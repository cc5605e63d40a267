#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_tool_command.sh - probe, format, info, check, wipe: output, JSON, exit codes, refusals that write nothing
. "$(dirname "$0")/../lib.sh"
need python3
one= two= foreign= small= disk= first= second= third=

# json EXPRESSION: true of the document that the last expect_exit printed on standard output, as d.
json() {
    python3 -c "
import json, sys
text = open(sys.argv[1]).read()
start = text.index('{')
d, end = json.JSONDecoder().raw_decode(text[start:])
assert $1, d" "$OUTPUT" || fail "JSON: $1"
}

begin "help teaches, everywhere"
expect_exit 0 "$SPILLWAY" --help
expect_output probe format info check wipe bench tune "Exit codes"
expect_exit 2 "$SPILLWAY"
expect_exit 0 "$SPILLWAY" --version
version=$(sed -n 's/^#define SPW_VERSION "\(.*\)"/\1/p' "$ROOT/include/spillway/error.h")
expect_output "spillway $version"
for asked in -V version; do
    expect_exit 0 "$SPILLWAY" "$asked"
    expect_output "spillway $version"
done
for command in probe format info check wipe bench tune; do
    expect_exit 0 "$SPILLWAY" "$command" --help
    expect_output "Examples:" "usage: spillway $command" "--help"
    help=$(sum_of "$OUTPUT")
    expect_exit 0 "$SPILLWAY" help "$command"
    expect_equal "$help" "$(sum_of "$OUTPUT")" "help $command"
done

begin "wrong usage exits with 2 and a hint"
expect_exit 2 "$SPILLWAY" formta
expect_output "did you mean 'format'?"
expect_exit 2 "$SPILLWAY" --verion
expect_output "did you mean '--version'?"
expect_exit 2 "$SPILLWAY" help quicksilver
# Commands that take drives away are proposed only for something close to their names.
for typed in nope pipe find form for bound wip; do
    expect_exit 2 "$SPILLWAY" "$typed"
    if [ "$typed" = wip ]; then
        expect_output "did you mean 'wipe'?"
    else
        expect_output "there is no command '$typed'"
        expect_no_output "did you mean 'format'" "did you mean 'wipe'" "did you mean 'bind'"
    fi
done
expect_exit 2 "$SPILLWAY" unbnd
expect_output "did you mean 'unbind'?"
expect_exit 2 "$SPILLWAY" format --device x
expect_output "did you mean --devices?"
expect_exit 2 "$SPILLWAY" format
expect_output "no drives given"
expect_exit 2 "$SPILLWAY" format --devices
expect_output "needs a value"
expect_exit 2 "$SPILLWAY" format --devices x --chunk 4x
expect_output "not a size"
expect_exit 2 "$SPILLWAY" format --devices x --partitions many
expect_output "not a whole number"
expect_exit 2 "$SPILLWAY" format --devices x --chunk 99999999999999999999g
expect_output "too large"
expect_exit 2 "$SPILLWAY" format --devices x --partitions 4294967296
expect_output "too large"
expect_exit 2 "$SPILLWAY" format --devices x --chunk 0
expect_output "a power of two from 64 KiB"
expect_exit 2 "$SPILLWAY" format --devices x --partitions 0
expect_output "1 to 256"
# As a variable of the shell that is not set leaves them.
for args in "--devices=x," "--devices=,x" "--devices=" "x,"; do
    expect_exit 2 "$SPILLWAY" format "$args"
    expect_output "an empty name"
done
expect_exit 2 "$SPILLWAY" wipe --yes x ""
expect_output "an empty name"
expect_exit 2 "$SPILLWAY" replay x --svg ""
expect_output "an empty text"
expect_exit 2 "$SPILLWAY" format --devices x --force=yes
expect_output "takes no value"
expect_exit 2 "$SPILLWAY" info -d x
expect_output "begin with two dashes"

begin "the manual and the help name the same options"
commands=$("$SPILLWAY" --help | sed -n 's/^  \([a-z][a-z]*\) .*/\1/p' | grep -v '^spillway$\|^help$\|^state$\|^completion$')
mapfile -t commands <<<"$commands"
for command in "${commands[@]}" "state list" "state export" "state drop"; do
    manual=$ROOT/docs/spillway-$command.1
    [ -e "$manual" ] || manual=$ROOT/docs/spillway.1
    read -ra words <<<"$command"
    "$SPILLWAY" "${words[@]}" --help >"$TEST_TMP/help"
    sed -n 's/^  --\([a-z-]*\).*/\1/p' "$TEST_TMP/help" | grep -vx help >"$TEST_TMP/options"
    while read -r option; do
        grep -qE "Fl -$option( |$)" "$manual" || fail "$(basename "$manual") has no --$option of $command"
    done <"$TEST_TMP/options"
    while read -r option; do
        grep -qx -- "$option" "$TEST_TMP/options" || fail "the usage of $command has --$option, its options do not"
    done < <(sed -n 's/^usage: //p' "$TEST_TMP/help" | grep -oE -- '--[a-z][a-z-]*' | cut -c3-)
    cat "$TEST_TMP/options" >>"$TEST_TMP/all"
done
for manual in "$ROOT"/docs/spillway*.1; do
    while read -r option; do
        grep -qx -- "$option" "$TEST_TMP/all" || fail "$(basename "$manual") has --$option, which no command has"
    done < <(grep -oE 'Fl -[a-z][a-z-]*' "$manual" | sed 's/Fl -//')
done

begin "the help is in plain English, and in the field's terms"
for command in "" "${commands[@]}" state "state list" "state export" "state drop" completion; do
    read -ra words <<<"$command"
    "$SPILLWAY" "${words[@]}" --help >"$TEST_TMP/help"
    expect_true "the help of '$command'" test -s "$TEST_TMP/help"
    expect_exit 0 python3 "$ROOT/tests/check/words.py" --files "$TEST_TMP/help"
done
echo "Made anew." >>"$TEST_TMP/help"
expect_exit 1 python3 "$ROOT/tests/check/words.py" --files "$TEST_TMP/help"

begin "a store's life on files, for people"
make_file one 64M
make_file two 64M
expect_exit 0 "$SPILLWAY" probe "$one" "$two"
expect_output "$one" "64 MiB" "nothing known" yes
expect_exit 0 "$SPILLWAY" format --devices "$one,$two" --partitions 2 --chunk 128k
expect_output "2 drives" "128 KiB" "2 of"
expect_exit 0 "$SPILLWAY" probe "$one" "$two"
expect_output "a store" "ready for use" "spillway info"
expect_no_output "Not usable" "--force"
expect_exit 0 "$SPILLWAY" info --devices "$two" --devices "$one"
expect_output "$one" "$two" "2/2"
expect_exit 0 "$SPILLWAY" check "$one" "$two"
expect_output "usable"
expect_exit 3 "$SPILLWAY" wipe --devices "$one,$two"
expect_output "--yes"
expect_exit 0 "$SPILLWAY" check "$one" "$two"
expect_exit 0 "$SPILLWAY" wipe --devices "$one,$two" --yes
expect_exit 1 "$SPILLWAY" check "$one" "$two"

begin "a name does nothing to a terminal"
named=$TEST_TMP/$'esc\033[2J'
truncate -s 64M "$named"
expect_exit 0 "$SPILLWAY" format --devices "$named"
dd if=/dev/zero of="$named" bs=4096 count=1 conv=notrunc status=none
for command in probe info check; do
    expect_exit 0 "$SPILLWAY" "$command" "$named"
    expect_no_output $'\033'
done
expect_output "esc?[2J: one of its two superblock copies is damaged"
expect_exit 0 "$SPILLWAY" probe "$named"
expect_output "esc?[2J"

begin "help fits 80 columns, but for examples, which are to be copied"
for command in probe format info check wipe grant revoke bind unbind bench tune top revive state plan replay run completion; do
    expect_exit 0 "$SPILLWAY" "$command" --help
    expect_equal "" "$(sed '/^Examples:/,$d' "$OUTPUT" | grep -E '.{81}' || true)" "longer lines of $command"
done
expect_exit 0 "$SPILLWAY" --help
expect_equal "" "$(grep -E '.{81}' "$OUTPUT" || true)" "longer lines"

begin "what goes wrong first says what to do"
expect_exit 1 "$SPILLWAY" format "$TEST_TMP/nope"
expect_output "$TEST_TMP/nope cannot be opened: there is no such file or device" "spillway probe lists drives"
expect_exit 1 "$SPILLWAY" probe "$TEST_TMP/nope"
expect_equal 1 "$(grep -c 'there is no such file' "$OUTPUT")" "times that it is said"
expect_exit 2 "$SPILLWAY" format --partitions 1000 "$one"
expect_output "--partitions=1000: 1 to 256"
expect_exit 2 "$SPILLWAY" format --chunk 1T "$one"
expect_output "1 TiB is not a chunk size: a power of two from 64 KiB to 64 MiB"
expect_exit 2 "$SPILLWAY" run nosuchprogram
expect_output "two dashes come before the program: -- nosuchprogram"
expect_exit 1 "$SPILLWAY" bench --level=store --filename="$TEST_TMP/nope" --rw=write --size=1m
expect_no_output "IO depths" "bench: bench: bench"
if [ -w /dev/full ]; then
    "$SPILLWAY" probe --json "$one" 2>"$OUTPUT" >/dev/full && fail "a full disk looks like success"
    expect_equal 1 "$(wc -l <"$OUTPUT")" "lines that say so"
fi

begin "a comma in a name"
odd=$TEST_TMP/'a,b\c,.img' plain=$TEST_TMP/plain.img
truncate -s 64M "$odd" "$plain"
listed=$TEST_TMP/'a\,b\c\,.img'
expect_exit 0 "$SPILLWAY" format --devices "$plain,$listed"
expect_exit 0 "$SPILLWAY" check --devices "$listed,$plain"
expect_exit 0 "$SPILLWAY" info --devices="$listed" "$plain"
expect_output "$odd"
expect_exit 0 "$SPILLWAY" wipe --yes "$listed" "$plain"
expect_exit 1 "$SPILLWAY" check --devices "$odd"
expect_output "$TEST_TMP/a cannot be opened" "b\\c cannot be opened"
expect_exit 2 "$SPILLWAY" info --devices "$listed,"
expect_output "an empty name"

begin "a store's life on files, as JSON"
expect_exit 0 "$SPILLWAY" probe "$one" --json
json "d['devices'][0]['usable'] is True and d['devices'][0]['geometry']['size_bytes'] == 64 << 20"
expect_exit 0 "$SPILLWAY" format --devices "$one,$two" --json
json "d['drive_count'] == 2 and d['partitions'] == 1 and len(d['store_uuid']) == 36"
expect_exit 0 "$SPILLWAY" info --devices "$one,$two" --json
json "[x['index'] for x in d['drives']] == [0, 1] and d['store']['partitions_in_use'] == 0"
json "all(x['copies_good'] == 2 and x['geometry']['kind'] == 'file' for x in d['drives'])"
expect_exit 0 "$SPILLWAY" check "$one" "$two" --json
json "d['usable'] is True and d['drives_with_a_damaged_copy'] == 0"
expect_exit 3 "$SPILLWAY" wipe --devices "$one" --json
json "'--yes' in d['error'] and d['errno'] > 0"

begin "check names every drive that has a fault"
make_file first 64M
make_file second 64M
make_file third 64M
expect_exit 0 "$SPILLWAY" format --devices "$first,$second,$third"
for disk in "$first" "$third"; do
    dd if=/dev/zero of="$disk" bs=4096 count=1 conv=notrunc status=none
    dd if=/dev/zero of="$disk" bs=4096 count=1 seek=$((64 * 256 - 1)) conv=notrunc status=none
done
expect_exit 1 "$SPILLWAY" check "$first" "$second" "$third"
expect_output "$first: is not a drive of a spillway store" "$third: is not a drive of a spillway store"
expect_no_output "$second:"
expect_equal 1 "$(grep -c "$first: is not a drive" "$OUTPUT")" "times that the first fault is told"
expect_exit 1 "$SPILLWAY" check "$first" "$second" "$third" --json
json "d['usable'] is False and '$first' in d['error'] and d['errno'] == d['drives'][0]['errno'] > 0"
json "[x['error'] is None for x in d['drives']] == [False, True, False] and d['drives'][1]['errno'] == 0"

begin "a library that LD_PRELOAD could not name is refused"
mkdir "$TEST_TMP/a b"
touch "$TEST_TMP/a b/lib.so"
expect_exit 1 "$SPILLWAY" run --library "$TEST_TMP/a b/lib.so" -- true
expect_output "$TEST_TMP/a b/lib.so" "LD_PRELOAD"

begin "failures name device, cause and remedy, and write nothing"
unchanged "$one" expect_exit 3 "$SPILLWAY" format --devices "$one,$two"
expect_output "$one" "--force"
unchanged "$one" expect_exit 3 "$SPILLWAY" format --devices "$one,$two" --json
json "d['errno'] == 17 and d['error']"
unchanged "$one" expect_exit 3 "$SPILLWAY" format --devices "$one,$one" --force
unchanged "$one" expect_exit 1 "$SPILLWAY" info --devices "$one"
unchanged "$one" expect_exit 1 "$SPILLWAY" format --devices "$one,$TEST_TMP/missing" --force
expect_output "$TEST_TMP/missing"
unchanged "$one" expect_exit 2 "$SPILLWAY" format --devices "$one,$two" --force --chunk 100k
expect_exit 1 "$SPILLWAY" probe "$TEST_TMP/missing"
expect_output "$TEST_TMP/missing"
make_file foreign 64M
unchanged "$foreign" expect_exit 3 "$SPILLWAY" wipe --devices "$foreign" --yes
expect_output "$foreign"
make_file small 1M
unchanged "$small" expect_exit 1 "$SPILLWAY" format --devices "$small"
expect_output "$small"

begin "a full disk is a failure"
[ -e /dev/full ] || skip "needs /dev/full"
status=0
"$SPILLWAY" --help >/dev/full 2>"$TEST_TMP/full" || status=$?
expect_equal 1 $status "exit status"
status=0
"$SPILLWAY" probe "$one" --json >/dev/full 2>"$TEST_TMP/full" || status=$?
expect_equal 1 $status "exit status"

begin "what carries a file system or is mounted is refused"
is_root || skip "needs root"
need mkfs.ext4
make_loop disk 64M 512
mkfs.ext4 -q "$disk"
expect_exit 0 "$SPILLWAY" probe "$disk"
expect_output ext4 "Not usable" "$disk"
unchanged "$disk" expect_exit 3 "$SPILLWAY" format --devices "$disk"
expect_output ext4 "--force"
mkdir "$TEST_TMP/mounted"
mount -o ro "$disk" "$TEST_TMP/mounted"
on_exit umount "$TEST_TMP/mounted"
unchanged "$disk" expect_exit 3 "$SPILLWAY" format --devices "$disk" --force
expect_output mounted
