#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/device/day.sh - the tests and the bench of an accelerator within the minutes for which one is lent; called by `make gpu-day`
set -Eeuo pipefail

usage() {
    cat <<'END'
tests/device/day.sh - two minutes of correctness, then what every way to save activations costs, in at most eight minutes

  tests/device/day.sh [--build FOLDER] [options of tests/device/bench.sh]

The bench's JSON is written after each run: what was measured stays when the machine is taken away. SPW_TEST_DEVICE=late
runs it on the device that the tests simulate. Exit status 1 if bits differ or a run failed.
END
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=${here%/tests/device}/build
if [ "${1-}" = --help ]; then
    usage
    exit
fi
if [ "${1-}" = --build ]; then
    [ $# -ge 2 ] || {
        echo "tests/device/day.sh: --build needs a value" >&2
        exit 2
    }
    build=$2
    shift 2
fi
DAY_SECONDS=480
# The step of the README's table, and the ways that decide whether spillway pays first.
shape=(--layers 12 --hidden 4096 --steps 8)
ways=keep,recompute,operations,fastest,budget,transformers,torchtune,spill,save_on_cpu
status=0
kind=(--gpu)
[ "${SPW_TEST_DEVICE:-gpu}" = gpu ] || kind=()
"$here/device.sh" --build "$build" "${kind[@]}" --jobs 1 --minutes 2 --seeds 10000 --unsanitized || status=$?
minutes=$(awk -v left=$((DAY_SECONDS - SECONDS)) 'BEGIN { print left / 60 }')
"$here/bench.sh" --build "$build" "${shape[@]}" --ways "$ways" --minutes "$minutes" "$@" || status=$?
exit "$status"
