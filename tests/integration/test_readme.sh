#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_readme.sh - the C example in README.md compiles against the library and runs
. "$(dirname "$0")/../lib.sh"

[ -f "$ROOT/README.md" ] || skip "there is no README.md yet"

begin "README.md has a C example"
"$ROOT/scripts/extract-example.sh" "$ROOT/README.md" >"$TEST_TMP/example.c"
expect_true "an example of more than a few lines" test "$(wc -l <"$TEST_TMP/example.c")" -gt 10

begin "the example compiles without a warning"
expect_exit 0 "${CC:-gcc}" -std=gnu17 -Wall -Wextra -Werror -I"$ROOT/include" "$TEST_TMP/example.c" \
    -o "$TEST_TMP/example" -L"$SPW_BUILD" -lspillway -Wl,-rpath,"$SPW_BUILD"

begin "the example stores bytes on four drives and reads them back"
drives=
for number in 1 2 3 4; do
    truncate -s 64M "$TEST_TMP/drive$number"
    drives=$drives,$TEST_TMP/drive$number
done
expect_exit 0 "$SPILLWAY" format --devices "${drives#,}"
expect_exit 0 "$TEST_TMP/example" "$TEST_TMP"/drive[1-4]
expect_output identical

begin "the example says what is wrong when the drives carry no store"
expect_exit 0 "$SPILLWAY" wipe --yes --devices "${drives#,}"
expect_exit 1 "$TEST_TMP/example" "$TEST_TMP"/drive[1-4]
expect_output drive1
