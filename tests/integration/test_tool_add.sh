#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_tool_add.sh - spillway add: on files and loop devices; what it refuses, and that this writes nothing
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../committed.sh"
need python3

# refused STATUS ARGS: and the drives $one and $two are as they were
refused() {
    local status=$1
    shift
    unchanged "$one" unchanged "$two" expect_exit "$status" "$SPILLWAY" add "$@"
}

begin "help teaches it, and wrong usage is told"
expect_exit 0 "$SPILLWAY" add --help
expect_output "usage: spillway add NEW --devices A,B,..." "NEW   " "The store must not be open"
expect_exit 0 "$SPILLWAY" help
expect_output "add "
expect_exit 2 "$SPILLWAY" add
expect_output "say which drive is added: NEW"
expect_exit 2 "$SPILLWAY" add one
expect_output "name the drives of the store"
expect_exit 2 "$SPILLWAY" add one two --devices three
expect_output "2 drives were named before --devices: add one after the other"

# kinds of drives: make KIND NAME SIZE
make_drive() {
    case $1 in
    file) make_file "$2" "$3" ;;
    loop4096) make_loop "$2" "$3" 4096 ;;
    esac
}

kinds="file"
if is_root; then
    kinds="file loop4096"
fi
for kind in $kinds; do
    for copies in 1 2; do
        begin "a drive is added, of another size, and what is committed stays ($kind, copies=$copies)"
        make_drive "$kind" one 32M
        make_drive "$kind" two 32M
        make_drive "$kind" new 26M
        expect_exit 0 "$SPILLWAY" format --devices "$one,$two"
        commit "$copies" 7 "100000 5000000" "$one" "$two"
        expect_output "written 1 1"
        export_to before "$one" "$two"
        expect_exit 0 "$SPILLWAY" add "$new" --devices "$two,$one"
        expect_output "$new: drive 3 of store" "now; its 3 drives have"
        unchanged "$one" unchanged "$two" unchanged "$new" expect_exit 0 "$SPILLWAY" check --scrub "$new" "$one" "$two"
        expect_output "step 7"
        expect_no_output "superblock"
        expect_exit 0 "$SPILLWAY" info "$new" "$one" "$two"
        expect_output "on 3 drives" "2/2"
        export_to after "$one" "$new" "$two"
        diff -r "$TEST_TMP/before" "$TEST_TMP/after" || fail "other bytes"

        begin "again it does nothing ($kind, copies=$copies)"
        unchanged "$one" unchanged "$two" unchanged "$new" expect_exit 0 "$SPILLWAY" add "$new" --devices "$one,$two" --json
        expect_output '"drive": 3' '"finished": true' '"drive_count": 3'

        begin "what is committed from now on is on all three ($kind, copies=$copies)"
        commit "$copies" 8 "100000 5000000" "$one" "$new" "$two"
        expect_output "written 1 1 1"
        expect_exit 0 "$SPILLWAY" check --scrub "$one" "$two" "$new"
        expect_output "step 8"
        if [ "$copies" = 2 ]; then
            export_to before "$one" "$two" "$new"
            for drives in "$one $two" "$one $new" "$new $two"; do
                # shellcheck disable=SC2086
                export_to after $drives
                diff -r "$TEST_TMP/before" "$TEST_TMP/after" || fail "other bytes with $drives alone"
            done
        else
            expect_exit 1 "$SPILLWAY" check "$one" "$two"
            expect_output "drive 3 of 3" "is missing"
        fi

        begin "the added drive can be replaced, and another one added ($kind, copies=$copies)"
        make_drive "$kind" next 32M
        expect_exit 0 "$SPILLWAY" replace "$new" "$next" --devices "$one,$two"
        expect_output "$next: drive 3 of store"
        expect_exit 3 "$SPILLWAY" add "$new" --devices "$one,$two,$next"
        expect_output "carries a spillway store" "--force"
        expect_exit 0 "$SPILLWAY" add "$new" --devices "$one,$two,$next" --force --erase
        expect_output "$new: drive 4 of store"
        export_to after "$one" "$two" "$next" "$new"
        [ "$copies" = 1 ] || diff -r "$TEST_TMP/before" "$TEST_TMP/after" || fail "other bytes"
        expect_exit 0 "$SPILLWAY" check --scrub "$one" "$two" "$next" "$new"
    done
done

# From here on with files.
make_file one 48M
make_file two 48M
make_file new 48M
expect_exit 0 "$SPILLWAY" format --devices "$one,$two"
commit 1 7 "100000 5000000" "$one" "$two"

begin "a store that is open is refused"
unchanged "$new" expect_exit 3 while_open "$one $two" "$SPILLWAY" add "$new" --devices "$one,$two"
expect_output "a process has a store on it open"

begin "a store of which a drive is missing, or that is another one, is refused"
unchanged "$new" refused 3 "$new" --devices "$one"
expect_output "drive 2 of 2" "is missing: name all drives" "spillway replace"
unchanged "$new" refused 3 "$new" --devices "$one,$TEST_TMP/gone"
expect_output "drive 2 of 2" "is missing"
unchanged "$new" refused 1 "$new" --devices "$new"
expect_output "name the drives of the store that it is added to"
make_file foreign 48M
expect_exit 0 "$SPILLWAY" format --devices "$foreign"
unchanged "$new" refused 3 "$new" --devices "$one,$two,$foreign"
expect_output "belongs to another store"
refused 3 "$new" --devices "$one,$one,$two"
expect_output "name each drive once"

begin "a drive of the store, by whatever name, is refused"
refused 3 "$two" --devices "$one,$two" --force --erase
expect_output "is drive 2 of this store"
ln -s "$two" "$TEST_TMP/link"
ln "$two" "$TEST_TMP/other"
for name in "$TEST_TMP/link" "$TEST_TMP/other"; do
    refused 3 "$name" --devices "$one,$two" --force --erase
    expect_output "is drive 2 of this store"
done
if is_root; then
    attach_loop over "$two"
    refused 3 "$over" --devices "$one,$two" --force --erase
    expect_output "$two" "loop"
    detach_loop "$over"
    attach_loop inside --offset 20M --sizelimit 20M "$two"
    refused 3 "$inside" --devices "$one,$two" --force --erase
    expect_output "$two" "loop"
    detach_loop "$inside"
fi

begin "a new drive that is in use, too small, or holds something, is refused"
refused 1 "$TEST_TMP/nowhere" --devices "$one,$two"
expect_output "nowhere"
make_file small 8M
unchanged "$small" refused 1 "$small" --devices "$one,$two"
expect_output "is too small"
head -c 1M /dev/urandom | dd of="$new" conv=notrunc status=none
unchanged "$new" refused 3 "$new" --devices "$one,$two" --force
expect_output "--erase"
truncate -s 0 "$new" && truncate -s 48M "$new"
printf _BHRfS_M | dd of="$new" bs=1 seek=65600 conv=notrunc status=none
unchanged "$new" refused 3 "$new" --devices "$one,$two" --erase
expect_output "btrfs file system" "--force"
unchanged "$foreign" refused 3 "$foreign" --devices "$one,$two" --erase
expect_output "carries a spillway store" "--force"
commit 1 3 "100000 5000000" "$foreign"
unchanged "$foreign" refused 3 "$foreign" --devices "$one,$two" --force
expect_output "holds commit 3"
make_file many 16M
make_file wide 48M
expect_exit 0 "$SPILLWAY" format --devices "$wide" --partitions 16 --chunk 1M
unchanged "$many" unchanged "$wide" expect_exit 1 "$SPILLWAY" add "$many" --devices "$wide"
expect_output "is too small for 16 partitions"
if is_root; then
    make_loop large 48M 4096
    expect_exit 0 "$SPILLWAY" add "$large" --devices "$one,$two"
    expect_output "drive 3 of store"
fi

begin "a store has at most 64 drives"
names=()
for i in $(seq 64); do
    truncate -s 16M "$TEST_TMP/many.$i"
    names+=("$TEST_TMP/many.$i")
done
expect_exit 0 "$SPILLWAY" format "${names[@]:0:63}"
list=$(IFS=,; echo "${names[*]:0:63}")
expect_exit 0 "$SPILLWAY" add "${names[63]}" --devices "$list"
expect_output "drive 64 of store"
expect_exit 1 "$SPILLWAY" add "$many" --devices "$list,${names[63]}"
expect_output "has 64 drives already"
