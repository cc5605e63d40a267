#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_readme.sh - the examples of the README and of spillway(3) run, and what the documents name exists
. "$(dirname "$0")/../lib.sh"

begin "spillway(3) has a C example"
"$ROOT/scripts/extract-example.sh" "$ROOT/docs/spillway.3" >"$TEST_TMP/example.c"
expect_true "an example of more than a few lines" test "$(wc -l <"$TEST_TMP/example.c")" -gt 10

begin "the C example compiles without a warning"
expect_exit 0 "${CC:-gcc}" -std=gnu17 -Wall -Wextra -Werror -I"$ROOT/include" "$TEST_TMP/example.c" \
    -o "$TEST_TMP/example" -L"$SPW_BUILD" -lspillway -Wl,-rpath,"$SPW_BUILD"

begin "the C example stores bytes on four drives and reads them back"
drives=
for number in 1 2 3 4; do
    truncate -s 64M "$TEST_TMP/drive$number"
    drives=$drives,$TEST_TMP/drive$number
done
expect_exit 0 "$SPILLWAY" format --devices "${drives#,}"
expect_exit 0 "$TEST_TMP/example" "$TEST_TMP"/drive[1-4]
expect_output identical

begin "the C example says what is wrong when the drives carry no store"
expect_exit 0 "$SPILLWAY" wipe --yes --devices "${drives#,}"
expect_exit 1 "$TEST_TMP/example" "$TEST_TMP"/drive[1-4]
expect_output drive1

begin "every document and file that a document links to exists"
for document in "$ROOT"/*.md "$ROOT"/docs/*.md "$ROOT"/docs/generated/*.md; do
    while read -r target; do
        [[ -z $target || $target == http* || -e $(dirname "$document")/$target ]] ||
            fail "$(basename "$document") links to $target"
    done < <({ grep -oE '\]\([^)]+\)' "$document" || true; } | sed -E 's/^\]\(//; s/[)#].*//')
done

begin "every target of make that a document names exists"
"${MAKE:-make}" -s -C "$ROOT" help | sed -n 's/^  \([a-z-]*\) .*/\1/p' >"$TEST_TMP/targets"
while read -r target; do
    grep -qxF -- "$target" "$TEST_TMP/targets" || fail "make $target"
done < <(cat "$ROOT"/*.md "$ROOT"/docs/*.md | grep -oE '(^|[`(] ?|    )make [a-z][a-z-]+' | sed 's/.*make //' | sort -u)

begin "the README's Python example trains"
[ -z "${SANITIZE:-}" ] || skip "a sanitizer's runtime is not in Python"
python=$("$ROOT/scripts/python-with.sh" torch demo 2>/dev/null) || skip "no Python with PyTorch"
{
    echo 'import torch
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [torch.randn(512, 256) for _ in range(3)]'
    "$ROOT/scripts/extract-example.sh" "$ROOT/README.md" python | sed "s,/dev/nvme\([0-9]\)n1,$TEST_TMP/drive\1,g"
} >"$TEST_TMP/example.py"
expect_exit 0 env PYTHONPATH="$ROOT/python" PYTHONDONTWRITEBYTECODE=1 SPILLWAY_LIBRARY="$SPW_BUILD/libspillway.so" \
    "$python" "$TEST_TMP/example.py"
expect_output "written"
