# SPDX-License-Identifier: MIT
# tests/bench/torch_rig.sh - four drives over files with a store, and an environment in which Python finds spillway; sourced with a name for the rig
# shellcheck shell=bash disable=SC2034
#
# BENCH_DIR=/var/tmp             where the drives' files live meanwhile
# PYTHON=                        an interpreter that has PyTorch
# $partitions=1, if set before:   as many programs as share the drives
# Sets $root, $build, $python and $drives.
set -Eeuo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${SPW_BUILD:-$root/build}
rig="$root/tests/rig.sh"
name=$1

python=$("$root/scripts/python-with.sh" torch demo)
trap '"$rig" down --name "$name"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
drives=$("$rig" up --name "$name" --on "${BENCH_DIR:-/var/tmp}" --size 2G | paste -s -d,)
"$build/spillway" format --partitions "${partitions:-1}" --devices "$drives"

export PYTHONPATH=$root/python${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
export SPILLWAY_LIBRARY=$build/libspillway.so
read -ra options <<<"${BENCH_OPTIONS:-}"
