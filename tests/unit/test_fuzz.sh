#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/unit/test_fuzz.sh - each fuzz target's corpus, and some thousands of mutations of it, as a regression test: no fuzzer is needed
. "$(dirname "$0")/../lib.sh"

export TMPDIR=$TEST_TMP SPW_SEED=${SPW_SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
for source in tests/fuzz/fuzz_*.c; do
    target=$(basename "$source" .c)
    begin "$target, SPW_SEED=$SPW_SEED"
    expect_exit 0 "$SPW_BUILD/tests/fuzz/$target" "tests/fuzz/corpus/${target#fuzz_}" 3000
    if [ -e "$TEST_TMP/fuzz-input" ]; then
        echo "  the input:"
        od -A d -c -j 8 -N "$(od -An -tu8 -N 8 "$TEST_TMP/fuzz-input")" "$TEST_TMP/fuzz-input" | head -n 40
        rm -f "$TEST_TMP/fuzz-input"
    fi
done
