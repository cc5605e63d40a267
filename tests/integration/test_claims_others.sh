#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_claims_others.sh - what else wants drives is refused while a store has them open
# layer: all
. "$(dirname "$0")/../lib.sh"

[ -e "$SPILLWAY" ] || skip "the command is not built"
is_root || skip "needs root to make loop devices"
need python3
. "$ROOT/tests/ranks.sh"

make_loop a 400M # mkfs.xfs takes no less
make_loop b 400M
expect_exit 0 "$SPILLWAY" format --devices "$a,$b"
head -c 32 /dev/zero >"$TEST_TMP/key"

# Each a case of its own, so that a skip says which.
for tool in "mkfs.xfs -q -f" "mkfs.btrfs -q -f" "mkfs.vfat" "mkfs.ntfs -Q -F" "pvcreate -ff -y" \
    "mdadm --create /dev/md/spillway-test --run --level=1 --raid-devices=2 missing" \
    "cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file $TEST_TMP/key" "make-bcache -B"; do
    read -ra words <<<"$tool"
    begin "with a store open and writing, ${words[0]} is refused"
    command -v "${words[0]}" >/dev/null || { skip "needs ${words[0]}" && continue; }
    start_rank first "$a,$b" 0
    refused_by_kernel "$busy|unable to open|cannot open|can't open" "${words[@]}" "$b"
    end_rank first
    expect_exit 0 "$SPILLWAY" check --devices "$a,$b"
    expect_output usable
done
