#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/bench/bench.sh - spillway against fio, side by side, on the drive rig or on real drives; see docs/BENCHMARKING.md
#
#   make bench
#   BENCH_DEVICES=/dev/nvme1n1,/dev/nvme2n1 make bench     # OVERWRITES the drives
#
# BENCH_ROUNDS (5), BENCH_SECONDS per run (as fits into ten minutes), BENCH_ONLY (regular expression on job and section),
# BENCH_SIZE of what is used of each drive (1G), BENCH_ALLOW_DESTRUCTIVE=1 for drives that carry something.
# BENCH_NO_HUGE_PAGES=1 where others may take them meanwhile.
# Writes bench.json to BUILD/bench, or to BENCH_OUT.
set -Eeuo pipefail

cd "$(dirname "$0")/../.."
build=${BUILD:-build}
size=${BENCH_SIZE:-1G}
out=${BENCH_OUT:-$build/bench}
huge=/sys/kernel/mm/hugepages/hugepages-2048kB
huge_wanted=256
huge_before=
rig=
throttled=
running=

say() {
    printf 'bench: %s\n' "$*" >&2
}

die() {
    say "$*"
    exit 1
}

clean_up() {
    local status=$?
    trap - EXIT
    trap '' INT TERM
    if [ -n "$running" ] && kill -TERM "$running" 2>/dev/null; then
        wait "$running" || true
    fi
    [ -z "$rig" ] || tests/rig.sh down --name bench || status=1
    [ -z "$throttled" ] || tests/rig.sh down --name bench-throttled || status=1
    [ -z "$huge_before" ] || echo "$huge_before" >$huge/nr_hugepages || status=1
    exit $status
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Reserved huge pages, for fio's mmaphuge and for spillway's arena alike; released at the end.
reserve_huge_pages() {
    [ -z "${BENCH_NO_HUGE_PAGES:-}" ] && [ -w $huge/nr_hugepages ] || return 0
    [ "$(cat $huge/free_hugepages)" -lt $huge_wanted ] || return 0
    huge_before=$(cat $huge/nr_hugepages)
    echo $((huge_before + huge_wanted)) >$huge/nr_hugepages || true
    if [ "$(cat $huge/free_hugepages)" -lt $huge_wanted ]; then
        say "memory is too fragmented for $huge_wanted huge pages: rows that need them are left out"
    fi
}

# A drive that carries anything may only be used when its owner says so; one in use, never.
check_device() {
    local device=$1 verdict
    [ -e "$device" ] || die "$device does not exist"
    [ -b "$device" ] || [ -f "$device" ] || die "$device is neither a block device nor a file"
    python3 -c 'import os, sys; os.close(os.open(sys.argv[1], os.O_RDWR | os.O_EXCL))' "$device" 2>/dev/null ||
        die "$device is mounted, held or not writable: it is not touched"
    verdict=$("$build/spillway" probe --json "$device" | python3 -c 'import json, sys
device = json.load(sys.stdin)["devices"][0]
known = device["holds"] != "unknown data" # that may well be of the last measurement
print("" if device["usable"] or not known else device["holds"] or device["reason"])') || die "$device cannot be examined: it is not touched"
    if [ -n "$verdict" ] && [ "${BENCH_ALLOW_DESTRUCTIVE:-0}" != 1 ]; then
        die "$device carries: $verdict. BENCH_ALLOW_DESTRUCTIVE=1 overwrites it"
    fi
}

command -v fio >/dev/null || die "fio is not installed (apt-get install fio)"
[ -x "$build/spillway" ] || die "$build/spillway is not built (make)"
mkdir -p "$out"

engine=yes
make --no-print-directory BUILD="$build" fio-engine || {
    engine=
    say "no fio engine: see above; its rows are left out"
}
make --no-print-directory BUILD="$build" fio-peak || say "no t/io_uring: the peak is left out"

if [ -n "${BENCH_DEVICES:-}" ]; then
    IFS=', ' read -r -a devices <<<"$BENCH_DEVICES"
    for device in "${devices[@]}"; do
        check_device "$device"
    done
    kind=real
else
    [ "$(id -u)" -eq 0 ] || die "the drive rig needs root; or give BENCH_DEVICES=, which may be files"
    rig=1
    say "making four drives of $size in memory"
    mapfile -t devices < <(tests/rig.sh up --name bench --drives 4 --size "$size" --on ram)
    [ ${#devices[@]} -eq 4 ] || die "the rig could not be made"
    throttled=$(tests/rig.sh up --name bench-throttled --drives 1 --size 256M --on ram --write 100 --read 100)
    kind=rig
fi
reserve_huge_pages

# In the background, so that a signal is dealt with at once.
"${PYTHON:-python3}" -B tests/bench/bench.py --build "$build" --out "$out" --kind "$kind" --size "$size" ${engine:+--engine} ${throttled:+--throttled "$throttled"} \
    --rounds "${BENCH_ROUNDS:-5}" ${BENCH_SECONDS:+--seconds "$BENCH_SECONDS"} ${BENCH_ONLY:+--only "$BENCH_ONLY"} ${BENCH_NO_HUGE_PAGES:+--no-huge-pages} \
    "${devices[@]}" &
running=$!
status=0
wait "$running" || status=$?
running=
exit $status
