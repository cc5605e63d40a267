#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_probes.sh - the trace points of the source are in the shared library, and docs/TRACING.md has them all
. "$(dirname "$0")/../lib.sh"

begin "the probes are in the library"
sed -n 's/^[^#]*SPW_PROBE(\([a-z_]*\),.*/\1/p' "$ROOT"/{engine,store,state,tensor,tensor/control}/*.[ch] | sort -u >"$TEST_TMP/source"
expect_true "more than 5 probes" test "$(wc -l <"$TEST_TMP/source")" -gt 5
if echo '#include <sys/sdt.h>' | ${CC:-gcc} -E - >/dev/null 2>&1; then
    readelf -n "$SPW_BUILD/libspillway.so" | sed -n '/Provider: spillway/{n; s/.*Name: //p}' | sort -u >"$TEST_TMP/built"
    expect_equal "" "$(diff "$TEST_TMP/source" "$TEST_TMP/built")" "source, library"
else
    echo "  built without sys/sdt.h: scripts/deps.sh build installs it"
    expect_equal "" "$(readelf -n "$SPW_BUILD/libspillway.so" | grep 'Provider: spillway' || true)"
fi

begin "and in the documentation"
grep '^| `' "$ROOT/docs/TRACING.md" | cut -d'|' -f2 | grep -o '[a-z_]*' | sort -u >"$TEST_TMP/told"
expect_equal "" "$(diff "$TEST_TMP/source" "$TEST_TMP/told")" "source, documentation"
