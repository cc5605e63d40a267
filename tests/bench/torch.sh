#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/bench/torch.sh - python -m spillway.bench on the drive rig: loop devices over files; called by `make bench-torch`
#
# BENCH_ROUNDS=1                 interleaved rounds
# BENCH_MINUTES=25               no run begins that would not end in this time
# BENCH_OUT=build/bench          where torch.json, report.md and the charts go
# BENCH_MATRIX="--twice ..."     what else is run: each treatment of gradients, twice the batch, slow drives
# BENCH_OPTIONS=                 more options of spillway.bench, such as --models gpt, or --resume: then go on with what is in BENCH_OUT
# BENCH_DIR, PYTHON: see torch_rig.sh
. "$(dirname "${BASH_SOURCE[0]}")/torch_rig.sh" bench-torch

read -ra matrix <<<"${BENCH_MATRIX---twice --grad-memory freed,kept,early --throttle 0.5}"
"$python" -m spillway.bench --batches 4 "${matrix[@]}" --rounds "${BENCH_ROUNDS:-1}" --minutes "${BENCH_MINUTES:-25}" --command "$build/spillway" \
    --devices "$drives" --out "${BENCH_OUT:-$build/bench}" "${options[@]}"
