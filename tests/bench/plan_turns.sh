#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/bench/plan_turns.sh - tests/bench/plan_turns.py and ranks.py on the drive rig: loop devices over files; called by `make bench-plan-training`
#
# BENCH_OUT=build/bench          where plan-turns.json and ranks.json go
# BENCH_OPTIONS="--steps 12"     more options of plan_turns.py, such as --models gpt
# BENCH_DIR, PYTHON: see torch_rig.sh
# shellcheck disable=SC2034
partitions=6 # PARTITIONS of plan_turns.py
. "$(dirname "${BASH_SOURCE[0]}")/torch_rig.sh" bench-plan

work=$(mktemp -d "${BENCH_DIR:-/var/tmp}/spillway-plan.XXXXXX")
trap 'rm -rf "$work"; "$rig" down --name "$name"' EXIT
"$python" "$root/tests/bench/plan_turns.py" --command "$build/spillway" --devices "$drives" --work "$work" --out "${BENCH_OUT:-$build/bench}" \
    "${options[@]}"
"$python" "$root/tests/bench/ranks.py" --devices "$drives" --out "${BENCH_OUT:-$build/bench}"
