#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/bench/turns.sh - tests/bench/turns.py on the drive rig: loop devices over files; called by `make bench-turns`
#
# BENCH_OUT=build/bench-turns    where turns.md and turns.json go
# BENCH_DIR=/var/tmp             where the drives' files live meanwhile
# BENCH_OPTIONS="--steps 7"      more options of turns.py, such as --models gpt or --run
# PYTHON=                        an interpreter that has PyTorch
set -Eeuo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${SPW_BUILD:-$root/build}
rig="$root/tests/rig.sh"
name=bench-turns

python=$("$root/scripts/python-with.sh" torch demo)
trap '"$rig" down --name "$name"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
drives=$("$rig" up --name "$name" --on "${BENCH_DIR:-/var/tmp}" --size 2G | paste -s -d,)
"$build/spillway" format --devices "$drives"

export PYTHONPATH=$root/python${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
export SPILLWAY_LIBRARY=$build/libspillway.so
read -ra options <<<"${BENCH_OPTIONS:-}"
"$python" "$root/tests/bench/turns.py" --command "$build/spillway" --devices "$drives" --out "${BENCH_OUT:-$build/bench-turns}" "${options[@]}"
