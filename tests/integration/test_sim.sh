#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_sim.sh - the library over simulated drives: seeds that must pass, and errors put in on purpose that must not
. "$(dirname "$0")/../lib.sh"

sim=$SPW_BUILD/tests/sim/sim

begin "every fault over 2000 seeds: no wrong byte, nothing lost, nothing left"
expect_exit 0 "$sim" --first 1001 --seeds 1000 --out "$TEST_TMP"
expect_output "1000 seeds from 1001"
expect_exit 0 "$sim" --seeds 1000 --jobs 2 --out "$TEST_TMP"
expect_output "1000 seeds from 1,"
first=$(grep -oE '[0-9]+ operations, [0-9]+ s' "$OUTPUT")

begin "every kind of fault was injected"
expect_equal 19 "$(grep -cE '^  [a-z]+ +[0-9]+  ' "$OUTPUT")" "kinds"
expect_equal "" "$(awk '/^  [a-z]+ +0  / { print $1 }' "$OUTPUT")" "never injected"

# Also behind other seeds in its process: where memory was left must not tell.
begin "a seed is the same run each time"
expect_exit 0 "$sim" --seeds 1000 --jobs 1 --out "$TEST_TMP"
expect_output "$first"

begin "without faults nothing fails"
expect_exit 0 "$sim" --seeds 100 --faults none --out "$TEST_TMP"
expect_equal "" "$(awk '/^  [a-z]+ +[1-9]/ { print $1 }' "$OUTPUT")" "injected all the same"

begin "one kind alone"
expect_exit 0 "$sim" --seeds 20 --faults torn,lost --out "$TEST_TMP"
expect_equal "lost torn" "$(awk '/^  [a-z]+ +[1-9]/ { print $1 }' "$OUTPUT" | paste -sd' ')" "injected"

mapfile -t mutations < <("$sim" --list | awk '$1 == "mutation" { print $2 }')
for mutation in "${mutations[@]}"; do
    begin "an error put in on purpose is found: $mutation"
    expect_exit 1 "$sim" --mutate "$mutation" --seeds 2000 --quiet
    expect_output "seed "
done

# A kind that no error put in on purpose brings to light would be injected for nothing.
declare -A shown_by=(
    [short]=short-is-whole [again]=again-is-error [stubborn]=again-is-error [full]=full-takes-all [hang]=late-is-lost [slow]=late-is-lost
    [eio]=lost-error [sticky]=lost-error [latent]=lost-error [large]=lost-error [removal]=lost-error [shrink]=lost-error
    [rot]=no-checksums [flip]=no-checksums [stale]=no-checksums [lost]=no-checksums [torn]=no-checksums [misdirected]=no-checksums [power]=no-checksums
)
mapfile -t kinds < <("$sim" --list | awk '$1 == "fault" { print $2 }')
for kind in "${kinds[@]}"; do
    begin "what $kind does is noticed: ${shown_by[$kind]}"
    expect_exit 1 "$sim" --faults "$kind" --mutate "${shown_by[$kind]}" --seeds 2000 --quiet
    expect_output "seed "
done

begin "a failing seed is cut down to few steps, which replay"
expect_exit 1 "$sim" --mutate wrong-drive --seed 2 --jobs 1 --out "$TEST_TMP"
expect_output "steps are enough"
expect_true "the steps are in a file" test -s "$TEST_TMP/sim-2.steps"
expect_true "they are few" test "$(wc -l <"$TEST_TMP/sim-2.steps")" -lt 60
expect_exit 1 "$sim" --mutate wrong-drive --steps "$TEST_TMP/sim-2.steps"
expect_exit 0 "$sim" --steps "$TEST_TMP/sim-2.steps"

begin "what cannot be run is refused"
expect_exit 2 "$sim" --faults nonsense
expect_exit 2 "$sim" --seed one
expect_exit 2 "$sim" --steps "$TEST_TMP/none"
