#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_ci.sh - .ci/run: its parts' output and closing lines, what fails it, and that nothing is left when it is interrupted
# layer: all
. "$(dirname "$0")/../lib.sh"

# A tree whose parts say what they are, and whose checks last until the tests have ended.
tree=$TEST_TMP/tree
mkdir -p "$tree"/{.ci,scripts,tests}
cp "$ROOT/.ci/run" "$tree/.ci/"
printf '#!/bin/bash\n' | tee "$tree/scripts/deps.sh" >"$tree/tests/venv.sh"
chmod +x "$tree"/{scripts/deps,tests/venv}.sh

# make_parts COVERAGE TEST ECOSYSTEM CHECK: their recipes.
make_parts() {
    printf '%s:\n\t@%s\n' all true coverage "$1" test-uncovered "$2" test-ecosystem "$3" check "$4" >"$tree/Makefile"
}
good=(
    "echo coverage begins; echo 3 passed, 0 failed, 1 skipped; echo coverage ends"
    "echo test begins; echo 20 passed, 0 failed, 0 skipped"
    "echo ecosystem begins; echo 100 passed, 0 failed, 10 skipped"
    "echo check begins; sleep 1; echo check ends"
)
run() {
    "$tree/.ci/run"
}

begin "the output of each part is whole, and the closing lines are summed up"
make_parts "${good[@]}"
expect_exit 0 run
expect_equal "coverage begins coverage ends test begins ecosystem begins check begins check ends" \
    "$(grep -E 'begins|ends' "$OUTPUT" | paste -sd' ')" "order"
expect_equal "123 passed, 0 failed, 11 skipped" "$(tail -n 1 "$OUTPUT")" "closing line"
expect_equal 1 "$(grep -c passed "$OUTPUT")" "closing lines"

begin "each part that fails fails the whole, and is named at the end"
for part in 0 1 2 3; do
    parts=("${good[@]}")
    parts[part]="printf '%s\n' Failed: '  part $part' '' '0 passed, 1 failed, 0 skipped'; exit 1"
    [ $part != 3 ] || parts[part]="exit 1"
    make_parts "${parts[@]}"
    expect_exit 1 run
    sed '1,/Failed in all parts:/d' "$OUTPUT" >"$TEST_TMP/named"
    name="part $part"
    [ $part != 3 ] || name="make check"
    expect_true "$name is named" grep -q "^  $name$" "$TEST_TMP/named"
    expect_true "it is counted" grep -qE "passed, [12] failed" "$TEST_TMP/named"
done

begin "floors of coverage that are not met fail the whole, though all tests pass"
make_parts "echo 3 passed, 0 failed, 0 skipped; exit 1" "${good[@]:1}"
expect_exit 1 run
expect_output "  make coverage"
expect_equal "123 passed, 1 failed, 10 skipped" "$(tail -n 1 "$OUTPUT")" "closing line"

begin "a part that ends without a closing line is a failure"
make_parts "${good[0]}" "echo killed; exit 1" "${good[@]:2}"
expect_exit 1 run
expect_equal "103 passed, 1 failed, 11 skipped" "$(tail -n 1 "$OUTPUT")" "closing line"

begin "interrupted, it ends its parts, and what they have started, and leaves nothing"
for signal in INT TERM; do
    make_parts "echo waits; sleep 98765 & wait" "${good[@]:1:2}" "sleep 98764 & wait"
    TMPDIR=$TEST_TMP env --default-signal=INT "$tree/.ci/run" >"$TEST_TMP/interrupted" 2>&1 &
    pid=$!
    until grep -q waits "$TEST_TMP/interrupted"; do sleep 0.05; done
    kill -$signal $pid
    wait $pid && status=0 || status=$?
    expect_equal "$([ $signal = INT ] && echo 130 || echo 143)" "$status" "exit status"
    expect_equal "0 passed, 5 failed, 0 skipped" "$(tail -n 1 "$TEST_TMP/interrupted")" "closing line"
    expect_equal "" "$(pgrep -f "^sleep 9876[45]$" -a || true)" "processes"
    expect_equal "" "$(find "$TEST_TMP" -name 'tmp.*')" "folders"
done
