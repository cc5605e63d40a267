#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/bench/torch.sh - python -m spillway.bench on the drive rig: loop devices over files; called by `make bench-torch`
#
# BENCH_ROUNDS=1                 interleaved rounds
# BENCH_MINUTES=25               no run begins that would not end in this time
# BENCH_OUT=build/bench-torch    where report.md, results.json and the charts go
# BENCH_DIR=/var/tmp             where the drives' files live meanwhile
# BENCH_MATRIX="--twice ..."     what is run besides: each treatment of gradients, twice the batch, slow drives
# BENCH_OPTIONS=                 more options of spillway.bench, such as --models gpt, or --resume: then go on with what is in BENCH_OUT
# PYTHON=                        an interpreter that has PyTorch
set -Eeuo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${SPW_BUILD:-$root/build}
rig="$root/tests/rig.sh"
name=bench-torch

python=$("$root/scripts/python-with.sh" torch demo)
trap '"$rig" down --name "$name"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
drives=$("$rig" up --name "$name" --on "${BENCH_DIR:-/var/tmp}" --size 2G | paste -s -d,)
"$build/spillway" format --devices "$drives"

export PYTHONPATH=$root/python${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
export SPILLWAY_LIBRARY=$build/libspillway.so
read -ra matrix <<<"${BENCH_MATRIX---twice --grad-memory freed,kept,early --throttle 0.5}"
read -ra options <<<"${BENCH_OPTIONS:-}"
"$python" -m spillway.bench --batches 4 "${matrix[@]}" --rounds "${BENCH_ROUNDS:-1}" --minutes "${BENCH_MINUTES:-25}" --command "$build/spillway" \
    --devices "$drives" --out "${BENCH_OUT:-$build/bench-torch}" "${options[@]}"
