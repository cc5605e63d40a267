#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/unit/test_headers.sh - each public header compiles alone, as C and as C++
. "$(dirname "$0")/../lib.sh"

cd "$ROOT/include" || exit 1
for header in spillway/*.h; do
    # Twice: the include guard holds.
    printf '#include <%s>\n#include <%s>\n' "$header" "$header" >"$TEST_TMP/alone.c"
    cp "$TEST_TMP/alone.c" "$TEST_TMP/alone.cc"

    begin "<$header> is strict C11 without any macro defined before it"
    expect_exit 0 "${CC:-gcc}" -std=c11 -Wall -Wextra -Wpedantic -Werror -I. -fsyntax-only "$TEST_TMP/alone.c"

    begin "<$header> is C++"
    if command -v "${CXX:-g++}" >/dev/null; then
        expect_exit 0 "${CXX:-g++}" -std=c++11 -Wall -Wextra -Wpedantic -Werror -I. -fsyntax-only "$TEST_TMP/alone.cc"
    else
        skip "no ${CXX:-g++}"
    fi
done
