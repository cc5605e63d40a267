#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/bench/plan.sh - what `make bench-plan-replays` runs: planning many tensors, and what one plan of what is kept, spilled and recomputed is worth
# Usage: tests/bench/plan.sh BUILD
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$1
traces=("$build"/bench/traces/{gpt,bert,t5}.jsonl)
tests/traces/halves.py "$build/bench/traces"
"$build/tests/bench/plan_bench"
"$build/tests/bench/scopes_bench" "${traces[@]}"
"$build/tests/bench/host_bench"
tests/bench/plan_replays.py "$build/spillway" "${traces[@]}"
