#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_exports.sh - the shared library exports exactly what the public headers declare
. "$(dirname "$0")/../lib.sh"

library=$SPW_BUILD/libspillway.so

# The names in front of the parenthesis in every declaration that begins with SPW_EXPORT.
declared() {
    cat "$ROOT"/include/spillway/*.h | tr '\n' ' ' | sed 's|/\*|\n/*|g; s|\*/|*/\n|g' | grep -v '^/\*' | tr '\n' ' ' |
        tr ';' '\n' | sed -n 's/.*SPW_EXPORT [^(]*[ *]\(spw_[a-z0-9_]*\)(.*/\1/p' | sort
}

begin "the headers declare functions, each once"
declared >"$TEST_TMP/declared"
expect_true "more than 40 declarations" test "$(wc -l <"$TEST_TMP/declared")" -gt 40
expect_equal "$(grep -c '^SPW_EXPORT' <(cat "$ROOT"/include/spillway/*.h))" "$(wc -l <"$TEST_TMP/declared")" "declarations found"
expect_equal "" "$(uniq -d "$TEST_TMP/declared")" "declared twice"

begin "the library exports every one of them and nothing else"
nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort >"$TEST_TMP/exported"
expect_equal "" "$(comm -23 "$TEST_TMP/declared" "$TEST_TMP/exported")" "declared, not exported"
expect_equal "" "$(comm -13 "$TEST_TMP/declared" "$TEST_TMP/exported")" "exported, not declared"

begin "the archive defines no name that a program could have, too"
nm -g --defined-only "$SPW_BUILD/libspillway.a" 2>"$OUTPUT" | awk 'NF == 3 { print $3 }' >"$TEST_TMP/defined"
expect_true "more than 200 names" test "$(wc -l <"$TEST_TMP/defined")" -gt 200
# A name with a dot, as of the trace points, is none of C's.
expect_equal "" "$(grep -v -e '^spw_' -e '\.' "$TEST_TMP/defined" || true)" "without our prefix"

begin "every public struct states its layout, and can grow or is a value that never does"
cat "$ROOT"/include/spillway/*.h | sed -n 's/^struct \(spw_[a-z_]*\) {$/\1/p; s/^} \(spw_[a-z_]*\);$/\1/p' | sort >"$TEST_TMP/structs"
expect_true "more than 30 structs" test "$(wc -l <"$TEST_TMP/structs")" -gt 30
cat "$ROOT"/include/spillway/*.h | sed -n 's/^SPW_ABI(\(struct \)\?\(spw_[a-z_]*\),.*/\2/p' | sort >"$TEST_TMP/listed"
expect_equal "" "$(diff "$TEST_TMP/structs" "$TEST_TMP/listed")" "without SPW_ABI()"
# Handles, callbacks, names, points of a curve, a histogram; what only the library allocates.
values="spw_object spw_tensor spw_log spw_notify spw_status_name spw_plan_point spw_memory_point spw_latencies spw_trace"
cat "$ROOT"/include/spillway/*.h | awk '
    /^struct spw_[a-z_]* \{$/ { name = $2 } /^typedef struct \{$/ { name = "" }
    name && (/^\tsize_t size;/ || /^\t.*[ _]reserved(\[[0-9]+\])?;/) { print name; name = "" }' | sort >"$TEST_TMP/growing"
expect_equal "$(tr ' ' '\n' <<<"$values" | sort)" "$(comm -23 "$TEST_TMP/structs" "$TEST_TMP/growing")" "neither size nor reserved"

begin "every symbol carries the version of its release"
expect_equal "" "$(nm -D --defined-only --with-symbol-versions "$library" | awk '$2 != "A" && $3 !~ /@@SPILLWAY_[0-9.]+$/')"

begin "the soname is the first number of the version"
version=$(sed -n 's/^#define SPW_VERSION "\(.*\)"/\1/p' "$ROOT/include/spillway/error.h")
expect_equal "libspillway.so.${version%%.*}" "$(readelf -d "$library" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')"

begin "the library does not print, exit, or install signal handlers"
# abort and stderr belong to broken invariants (SPW_ASSERT); the sanitizers' runtimes use more.
if nm -D "$library" | grep -q -e __asan_ -e __tsan_; then
    skip "built with a sanitizer"
else
    nm -D --undefined-only "$library" | awk '{ sub(/@.*/, "", $2); print $2 }' >"$TEST_TMP/used"
    unwanted=$(grep -xE 'printf|puts|putchar|perror|exit|_exit|signal|sigaction|system|popen' "$TEST_TMP/used" || true)
    expect_equal "" "$unwanted" "used"
fi
