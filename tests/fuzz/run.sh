#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/fuzz/run.sh - every fuzz target for some seconds, from its corpus; called by `make fuzz`
#
#   BUILD=FOLDER tests/fuzz/run.sh SECONDS [TARGET]
#
# What libFuzzer finds stays in BUILD/fuzz-corpus/TARGET, so that the next run goes on from there; an input that ends a target lies in
# BUILD/fuzz-findings. How often each target has run, over all runs, is kept in BUILD/fuzz-executions and shown.
set -euo pipefail

cd "$(dirname "$0")/../.."
seconds=$1
wanted=${2:-}
status=0
mkdir -p "$BUILD/fuzz-findings"
touch "$BUILD/fuzz-executions"
# Who allocated is told from few frames, and what was freed is kept for longer than any input takes, but not for long.
export ASAN_OPTIONS=${ASAN_OPTIONS:-malloc_context_size=4:quarantine_size_mb=16}

for source in tests/fuzz/fuzz_*.c; do
    target=$(basename "$source" .c)
    [ -z "$wanted" ] || [ "$target" = "$wanted" ] || [ "$target" = "fuzz_$wanted" ] || continue
    mkdir -p "$BUILD/fuzz-corpus/$target"
    log=$BUILD/fuzz-findings/$target.log
    # Longer inputs than a target reads make it slow and find nothing.
    case $target in
    fuzz_superblock | fuzz_options) length=4200 ;;
    fuzz_cache | fuzz_plan | fuzz_model) length=2048 ;;
    *) length=16384 ;;
    esac
    "$BUILD/tests/fuzz/$target" -max_total_time="$seconds" -timeout=10 -reload=0 -print_funcs=0 -rss_limit_mb=2048 -max_len="$length" -print_final_stats=1 \
        -artifact_prefix="$BUILD/fuzz-findings/$target-" "$BUILD/fuzz-corpus/$target" "tests/fuzz/corpus/${target#fuzz_}" \
        >"$log" 2>&1 || status=1
    done=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    echo "$target ${done:-0}" >>"$BUILD/fuzz-executions"
    if ! grep -q '^stat::number_of_executed_units' "$log" || grep -q '^artifact_prefix' "$log"; then
        status=1
        tail -n 40 "$log"
    fi
    all=$(awk -v target="$target" '$1 == target { sum += $2 } END { print sum + 0 }' "$BUILD/fuzz-executions")
    printf '  %-16s %10d executions in %s s (%d/s), %12d in all runs\n' "$target" "${done:-0}" "$seconds" $((${done:-0} / seconds)) "$all"
done
exit $status
