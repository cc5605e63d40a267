#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_ecosystem.sh - make test-ecosystem where packages cannot be had
# layer: all
. "$(dirname "$0")/../lib.sh"

python3 -c 'import ensurepip' 2>/dev/null || python3 -c 'import pip' 2>/dev/null || {
    begin "a virtual environment is made"
    skip "no ensurepip"
    exit
}
# offline VARIABLE=VALUE: with nothing that this machine's pip is told of packages.
offline() {
    env PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS= PIP_EXTRA_INDEX_URL= "$@" \
        "$ROOT/tests/ecosystem/run.sh" "$TEST_TMP/build"
}

begin "no package index: skipped, with the reason"
expect_exit 0 offline PIP_INDEX_URL=http://127.0.0.1:9/simple
expect_output "skip          ecosystem: no package index can be reached" "0 passed, 0 failed, 1 skipped"

begin "the reason is whole where what writes it is slow"
mkdir "$TEST_TMP/slow"
printf '#!/bin/sh\ntext=$(cat)\nsleep 1\necho "$text" | /usr/bin/tee "$@"\n' >"$TEST_TMP/slow/tee"
chmod +x "$TEST_TMP/slow/tee"
expect_exit 0 offline PIP_INDEX_URL=http://127.0.0.1:9/simple PATH="$TEST_TMP/slow:$PATH"
expect_output "skip          ecosystem: no package index can be reached"

begin "what a killed compilation of an extension left is removed, what one holds is not"
mkdir -p "$TEST_TMP"/build/venv/torch_extensions/{killed,compiled}
touch "$TEST_TMP"/build/venv/torch_extensions/{killed,compiled}/lock
exec 9<"$TEST_TMP/build/venv/torch_extensions/compiled/lock"
expect_exit 0 offline PIP_INDEX_URL=http://127.0.0.1:9/simple
expect_output "killed/lock, of a compilation that was killed"
exec 9<&-
expect_equal compiled/lock "$(cd "$TEST_TMP/build/venv/torch_extensions" && ls ./*/lock | cut -c3-)" "the locks that are left"

begin "an index that has not what is pinned: a failure"
expect_exit 1 offline PIP_NO_INDEX=1
expect_output "pip could not install torch=="
