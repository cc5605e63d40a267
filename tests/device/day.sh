#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/device/day.sh - the tests and the bench of an accelerator within the minutes for which one is lent; called by `make gpu-day`
set -Eeuo pipefail

usage() {
    cat <<'END'
tests/device/day.sh - in at most eight minutes: two of correctness, what every way to save activations costs, and a GPT whose
training state is four times what its tensors may take of the device, killed and resumed, beside one in its memory

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
BIG_SECONDS=100 # an estimate: four runs of 4 steps of a model of 200 million parameters, whose state moves at 1 GB/s
# The step of the README's table, and the ways that decide whether spillway pays first.
shape=(--layers 12 --hidden 4096 --steps 8)
ways=keep,recompute,operations,fastest,budget,transformers,torchtune,spill,save_on_cpu
status=0
kind=(--gpu)
[ "${SPW_TEST_DEVICE:-gpu}" = gpu ] || kind=()
"$here/device.sh" --build "$build" "${kind[@]}" --jobs 1 --minutes 2 --seeds 10000 --unsanitized || status=$?
minutes=$(awk -v left=$((DAY_SECONDS - BIG_SECONDS - SECONDS)) 'BEGIN { print left / 60 }')
"$here/bench.sh" --build "$build" "${shape[@]}" --ways "$ways" --minutes "$minutes" "$@" || status=$?
# with what is left of the minutes
big() {
    local device=late
    if [ "${#kind[@]}" -gt 0 ]; then
        device=$("${PYTHON:-python3}" -c 'import torch; print(torch.accelerator.current_accelerator().type)') || return
        export BIG_LAYERS=16 BIG_HIDDEN=1024 BIG_VOCABULARY=4000
    fi
    BIG_DEVICE=$device BIG_LIMIT=none BIG_IN_MEMORY=1 BIG_STEPS=4 SPW_BUILD=$(realpath "$build") \
        timeout --foreground --signal=INT "$((DAY_SECONDS > SECONDS ? DAY_SECONDS - SECONDS : 1))" "$here/../../scripts/demo-big.sh"
}

big || status=$?
exit "$status"
