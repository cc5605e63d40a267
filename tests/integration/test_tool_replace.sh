#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_tool_replace.sh - spillway replace: on files and loop devices; what it refuses, and that this writes nothing
. "$(dirname "$0")/../lib.sh"
. "$(dirname "$0")/../committed.sh"
need python3

# refused STATUS ARGS: and the drives $one, $two and $three are as they were
refused() {
    local status=$1
    shift
    unchanged "$one" unchanged "$two" unchanged "$three" expect_exit "$status" "$SPILLWAY" replace "$@"
}

begin "help teaches it, and wrong usage is told"
expect_exit 0 "$SPILLWAY" replace --help
expect_output "usage: spillway replace OLD NEW --devices A,B,..." "OLD NEW   " "The store must not be open"
expect_exit 0 "$SPILLWAY" help
expect_output "replace "
expect_exit 2 "$SPILLWAY" replace
expect_output "say which drive is replaced, and by which: OLD NEW"
expect_exit 2 "$SPILLWAY" replace one --devices two
expect_output "1 drives were named before --devices"
expect_exit 2 "$SPILLWAY" replace one two
expect_output "name the other drives"
expect_exit 2 "$SPILLWAY" replace one "" --devices two
expect_output "an empty name"
expect_exit 2 "$SPILLWAY" replace one two --=x --devices three
expect_output "unknown option"
expect_exit 2 "$SPILLWAY" replce
expect_output "did you mean 'replace'?"

# kinds of drives: make KIND NAME SIZE
make_drive() {
    case $1 in
    file) make_file "$2" "$3" ;;
    loop) make_loop "$2" "$3" 512 ;;
    loop4096) make_loop "$2" "$3" 4096 ;;
    esac
}

kinds="file"
if is_root; then
    kinds="file loop loop4096"
fi
for kind in $kinds; do
    begin "a drive that can be read is replaced, in any order of the others ($kind)"
    make_drive "$kind" one 32M
    make_drive "$kind" two 32M
    make_drive "$kind" three 24M
    make_drive "$kind" new 26M
    expect_exit 0 "$SPILLWAY" format --devices "$one,$two,$three"
    commit 2 7 "100000 5000000" "$one" "$two" "$three"
    export_to before "$one" "$two" "$three"
    unchanged "$two" expect_exit 0 "$SPILLWAY" replace "$two" "$new" --devices "$three,$one"
    expect_output "$new: drive 2 of store" "of committed data copied to it"
    unchanged "$one" unchanged "$new" unchanged "$three" expect_exit 0 "$SPILLWAY" check --scrub "$new" "$one" "$three"
    expect_output "step 7" "in two copies, 0 lost"
    expect_no_output "one copy alone" "superblock"
    expect_exit 0 "$SPILLWAY" info "$new" "$one" "$three"
    expect_output "2/2"
    for missing in "$one" "$three" "$new"; do
        rest=()
        for drive in "$one" "$new" "$three"; do
            [ "$drive" = "$missing" ] || rest+=("$drive")
        done
        export_to after "${rest[@]}"
        diff -r "$TEST_TMP/before" "$TEST_TMP/after" || fail "other bytes without $missing"
    done

    begin "the replaced drive is refused by the store, and is free after a wipe ($kind)"
    for command in check info "state list"; do
        # shellcheck disable=SC2086
        unchanged "$two" expect_exit 1 "$SPILLWAY" $command --devices "$one,$two,$three"
        expect_output "$two: was drive 2 of store" "until it was replaced by another"
    done
    expect_exit 1 "$SPILLWAY" check "$one" "$two" "$three" "$new"
    expect_output "until it was replaced by another"
    expect_exit 0 "$SPILLWAY" wipe "$two" --yes --erase
    expect_exit 1 "$SPILLWAY" check "$one" "$two" "$three"
    expect_output "is not a drive of a spillway store"

    begin "again it does nothing ($kind)"
    unchanged "$one" unchanged "$new" expect_exit 0 "$SPILLWAY" replace 2 "$new" --devices "$one,$three"
    expect_output "$new: drive 2 of store" "already"

    begin "again with the replaced drive in the list it does nothing, too ($kind)"
    uuid=$("$SPILLWAY" info "$one" "$new" "$three" --json | python3 -c '
import json, sys
print([drive["drive_uuid"] for drive in json.load(sys.stdin)["drives"] if drive["index"] == 1][0])')
    expect_exit 0 "$SPILLWAY" replace "$new" "$two" --devices "$one,$three"
    for old in 2 "$uuid"; do
        unchanged "$one" unchanged "$new" unchanged "$two" expect_exit 0 "$SPILLWAY" replace "$old" "$two" --devices "$one,$new,$three"
        expect_output "$two: drive 2 of store" "already"
    done
    expect_exit 3 "$SPILLWAY" replace 1 "$two" --devices "$one,$new,$three"
    expect_output "$new: was drive 2 of store" "until it was replaced by another"
    expect_exit 0 "$SPILLWAY" wipe "$new" --yes --erase
    expect_exit 0 "$SPILLWAY" replace "$two" "$new" --devices "$one,$three"
    expect_exit 0 "$SPILLWAY" wipe "$two" --yes --erase

    begin "it goes back to the drive that was wiped, which has another's name in the list, with JSON ($kind)"
    uuid=$("$SPILLWAY" info "$one" "$new" "$three" --json | python3 -c '
import json, sys
print([drive["drive_uuid"] for drive in json.load(sys.stdin)["drives"] if drive["index"] == 1][0])')
    expect_exit 0 "$SPILLWAY" replace "$uuid" "$two" --devices "$one,$new,$three" --json
    expect_output '"drive": 2' '"old_was_read": true' '"chunks_with_one_copy": 0'
    export_to after "$one" "$two" "$three"
    diff -r "$TEST_TMP/before" "$TEST_TMP/after" || fail "other bytes"
done

# From here on with files.
make_file one 48M
make_file two 48M
make_file three 48M
make_file new 48M
expect_exit 0 "$SPILLWAY" format --devices "$one,$two,$three"
commit 2 7 "100000 5000000 5000000 5000000 5000000 5000000" "$one" "$two" "$three"

begin "a store that is open is refused"
unchanged "$new" expect_exit 3 while_open "$one $two $three" "$SPILLWAY" replace "$two" "$new" --devices "$one,$three"
expect_output "a process has a store on it open"
unchanged "$new" expect_exit 3 while_open "$one $two $three" "$SPILLWAY" replace 2 "$new" --devices "$one,$three"
expect_output "a process has a store on it open"

begin "a new drive that is in use, or holds something, is refused"
unchanged "$new" refused 3 "$two" "$one" --devices "$one,$three"
expect_output "is drive 1 of this store"
refused 3 "$two" "$two" --devices "$one,$three"
expect_output "is drive 2 of this store"
refused 1 "$two" "$TEST_TMP/nowhere" --devices "$one,$three"
expect_output "nowhere"
make_file small 8M
unchanged "$small" refused 1 "$two" "$small" --devices "$one,$three"
expect_output "is too small"
make_file tight 16M
unchanged "$tight" refused 1 2 "$tight" --devices "$one,$three"
expect_output "is too small: in partition 0 committed data of drive 2 reaches to"
head -c 1M /dev/urandom | dd of="$new" conv=notrunc status=none
unchanged "$new" refused 3 "$two" "$new" --devices "$one,$three"
expect_output "--erase"
truncate -s 0 "$new" && truncate -s 48M "$new"
make_file foreign 48M
make_file foreign2 48M
expect_exit 0 "$SPILLWAY" format --devices "$foreign,$foreign2"
unchanged "$foreign" refused 3 "$two" "$foreign" --devices "$one,$three"
expect_output "carries a spillway store" "--force"
commit 2 3 "100000 5000000" "$foreign" "$foreign2"
unchanged "$foreign" refused 3 "$two" "$foreign" --devices "$one,$three" --force
expect_output "holds commit 3"
if is_root; then
    attach_loop over "$new"
    unchanged "$new" refused 3 "$two" "$new" --devices "$one,$three"
    expect_output "loop"
    detach_loop "$over"
fi

if is_root; then
    begin "a new drive that lies inside a drive of the store is refused, also if that is named by its number alone"
    attach_loop inside --offset 20M --sizelimit 20M "$two"
    for old in 2 "$two"; do
        unchanged "$inside" refused 3 "$old" "$inside" --devices "$one,$three" --force --erase
    done
    unchanged "$inside" refused 3 2 "$inside" --devices "$one,$three"
    expect_output "$inside: shows blocks of $two, which is drive 2 of this store"
    detach_loop "$inside"
    make_file other 48M
    attach_loop inside --offset 20M "$other"
    rm "$other"
    unchanged "$inside" refused 3 2 "$inside" --devices "$one,$three"
    expect_output "cannot be opened by its name"
    detach_loop "$inside"
fi

begin "a drive of the store is not told if something else has been made of it, or it has shrunk"
cp "$two" "$TEST_TMP/kept"
head -c 4096 /dev/zero | dd of="$two" conv=notrunc status=none
for old in 2 "$two"; do
    cp "$two" "$TEST_TMP/zeroed"
    printf _BHRfS_M | dd of="$two" bs=1 seek=65600 conv=notrunc status=none
    refused 3 "$old" "$two" --devices "$one,$three"
    expect_output "btrfs file system" "--force"
    cp "$TEST_TMP/zeroed" "$two"
done
cp "$TEST_TMP/kept" "$two"
truncate -s 40M "$two"
refused 1 2 "$two" --devices "$one,$three"
expect_output "is smaller than when it was formatted"
cp "$TEST_TMP/kept" "$two"

begin "a drive that is not of the store, or not clear, is refused"
refused 1 4 "$new" --devices "$one,$three"
expect_output "there is no drive 4"
refused 1 1 "$new" --devices "$one,$three"
expect_output "drive 2 is missing, and drive 1 is"
refused 3 "$foreign" "$new" --devices "$one,$three"
expect_output "is not a drive of the store"
refused 3 "$two" "$new" --devices "$one,$foreign"
expect_output "belongs to another store"
refused 1 "$TEST_TMP/gone" "$new" --devices "$one,$two,$three"
expect_output "none is missing"
refused 1 "$TEST_TMP/gone" "$new" --devices "$one"
expect_output "2 drives are missing: say which it was"
refused 3 3 "$new" --devices "$one"
expect_output "of partition 0" "cannot be"
refused 1 "$two" "$new" --devices "$two"
expect_output "name all other drives of its store"
refused 3 "$two" "$new" --devices "$one,$one,$three"
expect_output "name each drive once"

begin "a dead drive is replaced by what comes to its path"
mv "$two" "$TEST_TMP/dead"
make_file other 48M
cp "$other" "$two"
export_to before "$one" "$three"
expect_exit 0 "$SPILLWAY" replace "$two" "$two" --devices "$one,$two,$three"
expect_output "drive 2 of store"
export_to after "$two" "$one"
diff -r "$TEST_TMP/before" "$TEST_TMP/after" || fail "other bytes"
expect_exit 1 "$SPILLWAY" check "$one" "$TEST_TMP/dead" "$three"
expect_output "until it was replaced"

begin "what went on without the dead drive gets second copies on the new one"
expect_exit 0 "$SPILLWAY" format --devices "$one,$two,$three" --force --erase
commit 2 7 "100000 5000000" "$one" "$two" "$three"
rm "$two"
commit 2 8 "100000 5000000" "$one" "$three"
make_file new 48M
expect_exit 0 "$SPILLWAY" replace "$two" "$new" --devices "$one,$three"
expect_exit 0 "$SPILLWAY" check --scrub "$one" "$new" "$three"
expect_output "step 8" "in two copies, 0 lost"
expect_no_output "one copy alone"

begin "with two drives, what has one copy gets a second one"
make_file a 48M
make_file b 48M
make_file c 48M
expect_exit 0 "$SPILLWAY" format --devices "$a,$b"
commit 2 1 "100000 5000000" "$a" "$b"
mv "$b" "$TEST_TMP/dead"
commit 2 2 "100000 5000000" "$a"
expect_exit 0 "$SPILLWAY" replace "$b" "$c" --devices "$a"
expect_output "chunks had one copy alone, and have two now"
export_to alone "$c"
export_to both "$a" "$c"
diff -r "$TEST_TMP/alone" "$TEST_TMP/both" || fail "other bytes"
mv "$TEST_TMP/dead" "$b"
expect_exit 1 "$SPILLWAY" check "$a" "$b"
expect_output "until it was replaced"

begin "without a mirror a dead drive is refused, and one that can be read is copied"
make_file d 48M
expect_exit 0 "$SPILLWAY" format --devices "$a,$b" --force --erase
commit 1 5 "100000 5000000" "$a" "$b"
export_to before "$a" "$b"
for drive in "$a" "$b"; do
    other=$a$b
    other=${other/$drive/}
    unchanged "$other" unchanged "$d" expect_exit 3 "$SPILLWAY" replace "$TEST_TMP/gone" "$d" --devices "$other"
    expect_output "format a new store"
done
expect_exit 0 "$SPILLWAY" replace "$b" "$d" --devices "$a"
export_to after "$a" "$d"
diff -r "$TEST_TMP/before" "$TEST_TMP/after" || fail "other bytes"
