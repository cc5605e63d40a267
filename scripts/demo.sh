#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/demo.sh - trains one GPT in three modes and compares them; called by `make demo` when everything is built
#
# DEMO_DEVICES="/dev/a /dev/b"   real drives instead of four files; everything on them is lost, so it asks first
# DEMO_YES=1                     agrees to that without being asked
# DEMO_LAYERS DEMO_HIDDEN DEMO_SEQUENCE DEMO_STEPS   the model (12, 512, 512, 6); hidden is a multiple of 64
# DEMO_ROUNDS=3                  run the modes three times, interleaved; the table shows medians
# DEMO_JSON=FILE                 everything that was measured
# DEMO_CHART=build/demo.svg      where the chart goes
# DEMO_DIR=/var/tmp              where the four files live meanwhile: a file system that takes O_DIRECT
# PYTHON=                        an interpreter that has PyTorch

set -Eeuo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${SPW_BUILD:-$root/build}
layers=${DEMO_LAYERS:-12}
hidden=${DEMO_HIDDEN:-512}
steps=${DEMO_STEPS:-6}
rounds=${DEMO_ROUNDS:-1}
sequence=${DEMO_SEQUENCE:-512}
batch=4
work=
loops=()
drives=()
formatted=

die() {
    echo "demo: $*" >&2
    exit 1
}

# Whatever was made goes, however the script ends.
clean_up() {
    local loop try
    trap '' INT TERM HUP
    if [ -n "$formatted" ] && [ -n "${DEMO_DEVICES:-}" ]; then
        "$build/spillway" wipe --yes --devices "$(joined)" >/dev/null 2>&1 ||
            echo "demo: could not wipe ${drives[*]}" >&2
    fi
    for loop in "${loops[@]}"; do
        losetup -d "$loop" || echo "demo: could not remove $loop" >&2
    done
    # A killed process holds its drives until the kernel has ended its I/O; then they go.
    for ((try = 0; ${#loops[@]} > 0 && try < 100; try++)); do
        losetup -l -n -O BACK-FILE | grep -qF "$work/" || break
        sleep 0.1
    done
    [ -z "$work" ] || rm -rf "$work"
}

joined() {
    local IFS=,
    echo "${drives[*]}"
}

# Room for one step's activations on four drives, with as much again to spare.
drive_bytes() {
    local heads=$((hidden / 64))
    local layer=$((batch * sequence * 4 * (3 * heads * sequence + 24 * hidden)))
    echo $(((layers * layer / 2 / 1048576 + 64) * 1048576))
}

make_drives() {
    local index bytes file loop
    bytes=$(drive_bytes)
    for index in 0 1 2 3; do
        file=$work/drive$index
        fallocate -l "$bytes" "$file" || die "no room for four files of $((bytes >> 20)) MiB in $work; set DEMO_DIR"
        if [ "$(id -u)" = 0 ] && loop=$(losetup -f --show --direct-io=on "$file" 2>/dev/null); then
            loops+=("$loop")
            drives+=("$loop")
        else
            drives+=("$file")
        fi
    done
}

# Nothing is overwritten that nobody has agreed to lose, data of nobody knows whom included; `spillway format` still refuses
# what carries a file system or is in use.
use_devices() {
    local answer
    read -ra drives <<<"$DEMO_DEVICES"
    "$build/spillway" probe "${drives[@]}" || die "nothing was written"
    if [ "${DEMO_YES:-}" != 1 ]; then
        [ -t 0 ] || die "DEMO_DEVICES would be overwritten and there is no terminal to ask on; set DEMO_YES=1 to agree"
        read -rp "Everything on ${drives[*]} will be lost. Type yes to go on: " answer
        [ "$answer" = yes ] || die "nothing was written"
    fi
}

# spillway reads two of the largest tensors ahead (the attention weights), and has as much memory again for copies.
train() {
    local mode=$1 round=$2
    local ahead=$((2 * batch * (hidden / 64) * sequence * sequence * 4))
    [ "$ahead" -ge $((32 << 20)) ] || ahead=$((32 << 20))
    "$python" "$root/python/examples/gpt.py" --mode "$mode" --devices "$(joined)" --json "$work/$mode-$round.json" \
        --text "$work/text" --layers "$layers" --hidden "$hidden" --sequence "$sequence" --cache spill \
        --batch $batch --steps "$steps" --prefetch-bytes $ahead --arena-bytes $((2 * ahead))
}

for number in "$layers" "$hidden" "$sequence" "$steps" "$rounds"; do
    [[ $number =~ ^[1-9][0-9]*$ ]] ||
        die "DEMO_LAYERS, DEMO_HIDDEN, DEMO_SEQUENCE, DEMO_STEPS and DEMO_ROUNDS are positive numbers, not '$number'"
done
[ $((hidden % 64)) = 0 ] || die "DEMO_HIDDEN must be a multiple of 64, not $hidden"
[ "$steps" -ge 2 ] || die "DEMO_STEPS must be at least 2: the first step is not timed"
[ -x "$build/spillway" ] || die "$build/spillway is not there; run make first"

python=$("$root/scripts/python-with.sh" torch demo)
export PYTHONPATH=$root/python${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
# All three modes: blocks from 1 MiB on come from the system on huge pages and go back when freed. By default glibc keeps what
# was freed, how much depends on chance, and small pages cost every mode more time than huge ones.
export GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1048576:glibc.malloc.trim_threshold=2097152
export SPILLWAY_LIBRARY=$build/libspillway.so

trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
work=$(mktemp -d "${DEMO_DIR:-/var/tmp}/spillway-demo.XXXXXX")

"$python" -m spillway.demo.data "$root" >"$work/text"

if [ -n "${DEMO_DEVICES:-}" ]; then
    use_devices
else
    make_drives
fi
"$build/spillway" format ${DEMO_DEVICES:+--erase} --devices "$(joined)"
formatted=1

for ((round = 1; round <= rounds; round++)); do
    [ "$rounds" = 1 ] || echo "round $round of $rounds"
    for mode in keep recompute spillway; do
        train $mode "$round"
    done
done

title="GPT, $layers layers, hidden $hidden, sequence $sequence, batch $batch, fp32, $steps steps"
report=(--chart "${DEMO_CHART:-$build/demo.svg}" --title "$title")
[ -z "${DEMO_JSON:-}" ] || report+=(--json "$DEMO_JSON")
"$python" -m spillway.demo.report "$work" "${report[@]}"
