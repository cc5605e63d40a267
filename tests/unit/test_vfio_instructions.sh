#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/unit/test_vfio_instructions.sh - how many instructions a transfer of 4 KiB costs in our code under vfio, without what a controller does
#
# Counted by callgrind in all of engine/, as the difference of a long and a short run, so that opening does not count. The
# number depends on the compiler and its options, not on the machine or on what else runs there.
. "$(dirname "$0")/../lib.sh"

LIMIT=255
FEW=1000 MANY=11000

command -v valgrind >/dev/null || skip "valgrind is missing: scripts/deps.sh test installs it"
grep -Eq -- '-O[23]' "$SPW_BUILD/flags" && ! grep -Eq -- 'sanitize|coverage|profile' "$SPW_BUILD/flags" ||
    skip "counted in a build with -O2 and nothing put in"

count() {
    SPW_VFIO_COST_IOS=$1 valgrind -q --tool=callgrind --callgrind-out-file="$TEST_TMP/$1" \
        "$SPW_BUILD/tests/unit/test_vfio_cost" >"$OUTPUT" 2>&1 || { cat "$OUTPUT"; return 1; }
    callgrind_annotate --threshold=100 --auto=no "$TEST_TMP/$1" |
        awk '$0 ~ /(^| )[^ ]*engine\/[a-z_\/]*\.[ch]:/ { gsub(",", "", $1); sum += $1 } END { print sum + 0 }'
}

begin "4 KiB at depth 32 costs at most $LIMIT instructions"
few=$(count $FEW)
many=$(count $MANY)
each=$(((many - few) / (MANY - FEW)))
echo "  $each instructions"
[ "$each" -gt 10 ] || fail "nothing was counted: $few and $many instructions"
[ "$each" -le $LIMIT ] || fail "$each instructions"
