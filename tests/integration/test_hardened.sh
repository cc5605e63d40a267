#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_hardened.sh - what is built takes no change of its tables when it runs, and the builder's LDFLAGS reach every link
. "$(dirname "$0")/../lib.sh"

need make readelf nm
[[ $SPW_BUILD == /* ]] || SPW_BUILD=$ROOT/$SPW_BUILD

# calls FILE REGEX: it has such a symbol from elsewhere.
calls() {
    nm -D --undefined-only "$1" >"$TEST_TMP/symbols"
    grep -qE "$2" "$TEST_TMP/symbols"
}

# headed FILE REGEX: its headers for the loader say so.
headed() {
    readelf -dlW "$1" >"$TEST_TMP/headers"
    grep -qE "$2" "$TEST_TMP/headers"
}

begin "the loader's tables are filled in at once and then read-only, and the stack is guarded"
for file in "$SPW_BUILD"/libspillway.so "$SPW_BUILD"/spillway "$SPW_BUILD"/libspillway_malloc.so "$SPW_BUILD"/libspillway_fio.so \
    "$SPW_BUILD"/_hooks.abi3.so; do
    [ -e "$file" ] || continue
    headed "$file" 'FLAGS.*\bNOW\b' || fail "$file is linked lazily"
    headed "$file" GNU_RELRO || fail "$file has no RELRO"
done
for file in "$SPW_BUILD"/libspillway.so "$SPW_BUILD"/spillway "$SPW_BUILD"/libspillway_malloc.so "$SPW_BUILD"/_hooks.abi3.so; do
    [ ! -e "$file" ] || calls "$file" '__stack_chk_fail' || fail "$file has no guard on its stack"
done

begin "libc's calls are checked in what the optimizer has seen"
if [ -n "${SANITIZE:-}" ] || [[ " ${CFLAGS:--O2} " != *" -O"[1-9s]* ]]; then
    skip "built without the optimizer, or for a sanitizer"
else
    for file in "$SPW_BUILD"/libspillway.so "$SPW_BUILD"/spillway; do
        calls "$file" '__[a-z]+printf_chk' || fail "$file calls libc unchecked"
    done
fi

begin "LDFLAGS are in every command that links"
# What would be done for a build from nothing, in a folder that does not exist.
make -C "$ROOT" --no-print-directory -n V=1 BUILD="$TEST_TMP/none" LDFLAGS=-Wl,--marked-by-test build-tests fio-engine \
    "$TEST_TMP/none/tests/bench/peak_bench" >"$TEST_TMP/commands" 2>"$OUTPUT" || fail "make -n: $(tail -n 3 "$OUTPUT")"
sed -z 's/\\\n/ /g' "$TEST_TMP/commands" | grep -E '(^| )-o ' | grep -vE ' (-c|-E) ' >"$TEST_TMP/links"
for name in libspillway.so spillway libspillway_malloc.so libspillway_fio.so tests/unit/test_alloc tests/sim/sim tests/fuzz/fuzz_model \
    tests/bench/peak_bench; do
    grep -qE -- "-o $TEST_TMP/none/${name}[. ]" "$TEST_TMP/links" || fail "no command links $name"
done
expect_equal "" "$(grep -v -e -Wl,--marked-by-test "$TEST_TMP/links" || true)" "commands without them"
