#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/bench/turns.sh - tests/bench/turns.py on the drive rig: loop devices over files; called by `make bench-turns`
#
# BENCH_OUT=build/bench          where turns.json goes
# BENCH_OPTIONS="--steps 7"      more options of turns.py, such as --models gpt, --run or --throttle 0.5
# BENCH_DIR, PYTHON: see torch_rig.sh
. "$(dirname "${BASH_SOURCE[0]}")/torch_rig.sh" bench-turns

"$python" "$root/tests/bench/turns.py" --command "$build/spillway" --devices "$drives" --out "${BENCH_OUT:-$build/bench}" "${options[@]}"
