#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/demo-big.sh - trains a GPT several times larger than the memory it is given, kills it, goes on; called by `make demo-big`
#
# BIG_LIMIT=2G                  memory of the host that the training is given, by a cgroup; none: as much as there is, not as root
# BIG_DEVICE=cpu                what computes, such as cuda; late is the device that the tests simulate, in this memory
# BIG_DEVICE_LIMIT=             bytes of tensors on the device (a quarter of the training state)
# BIG_IN_MEMORY=                1: train the model with everything in the device's memory, too, and compare
# BIG_LAYERS BIG_HIDDEN BIG_VOCABULARY BIG_SEQUENCE BIG_BATCH BIG_STEPS   the model (22, 1536, 16000, 128, 2, 6; late: 12, 256, 1000)
# BIG_CHART=build/demo-big.svg  where the picture goes
# DEMO_DIR=/var/tmp             where four files as drives live meanwhile: a file system that takes O_DIRECT
# PYTHON=                       an interpreter that has PyTorch, 2.1 or later (make demo-big: build/venv has one)

set -Eeuo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${SPW_BUILD:-$root/build}
limit=${BIG_LIMIT:-2G}
device=${BIG_DEVICE:-cpu}
defaults=(22 1536 16000)
[ "$device" != late ] || defaults=(12 256 1000)
layers=${BIG_LAYERS:-${defaults[0]}}
hidden=${BIG_HIDDEN:-${defaults[1]}}
vocabulary=${BIG_VOCABULARY:-${defaults[2]}}
sequence=${BIG_SEQUENCE:-128}
batch=${BIG_BATCH:-2}
steps=${BIG_STEPS:-6}
work=
group=
peak=none
pid=

die() {
    echo "demo-big: $*" >&2
    exit 1
}

# Whatever was made goes, however the script ends.
clean_up() {
    local try
    trap '' INT TERM HUP
    disown -a # what is killed here is no news
    [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true
    if [ -n "$group" ] && [ -d "$group" ]; then
        for ((try = 0; try < 50; try++)); do
            xargs -r kill -KILL <"$group/cgroup.procs" 2>/dev/null || true
            rmdir "$group" 2>/dev/null && break
            sleep 0.1
        done
    fi
    [ -z "$work" ] || rm -rf "$work"
}

# A cgroup with the limit, of version 2 or 1; without swap where that can be said.
make_group() {
    local here name=spillway-demo.$$
    if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
        here=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
        group=/sys/fs/cgroup/$name
        echo +memory >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
        mkdir "$group" 2>/dev/null || die "no cgroup can be made under $here: run as root"
        echo "$limit" >"$group/memory.max" || die "memory cannot be limited to $limit"
        echo 0 >"$group/memory.swap.max" 2>/dev/null || true
        peak=memory.peak
    else
        here=/sys/fs/cgroup/memory$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
        group=$here/$name
        mkdir "$group" 2>/dev/null || die "no cgroup can be made under $here: run as root"
        echo "$limit" >"$group/memory.limit_in_bytes" || die "memory cannot be limited to $limit"
        echo "$limit" >"$group/memory.memsw.limit_in_bytes" 2>/dev/null || true
        peak=memory.max_usage_in_bytes
    fi
}

# Four files: parameters and state twice, and room for one step's activations.
make_drives() {
    local index bytes
    bytes=$(((parameters * 12 * 5 / 2 + 40 * 4 * batch * sequence * hidden * layers) / 4 + (256 << 20)))
    bytes=$((bytes >> 20 << 20))
    drives=
    for index in 0 1 2 3; do
        fallocate -l "$bytes" "$work/drive$index" || die "no room for four files of $((bytes >> 20)) MiB in $work; set DEMO_DIR"
        drives+=${drives:+,}$work/drive$index
    done
}

# A training inside of the limit, in the background; its number is in $pid.
train() {
    local file=$1 program=("$python")
    shift
    [ "$device" != late ] || program+=("$root/tests/device/on_late.py")
    program+=("$root/python/examples/big.py" --devices "$drives" --layers "$layers" --hidden "$hidden"
        --vocabulary "$vocabulary" --sequence "$sequence" --batch "$batch" --steps "$steps" --every 1
        --arena-bytes "${BIG_ARENA:-320MiB}" --device "$device" --json "$file" "$@")
    [ -z "$device_limit" ] || program+=(--device-limit "$device_limit")
    bash -c '[ -z "$1" ] || echo $$ >"$1/cgroup.procs"; shift; exec "$@"' - "$group" "${program[@]}" &
    pid=$!
}

steps_in() {
    local count=0
    [ ! -f "$1" ] || count=$(grep -c '"step"' "$1" || true)
    echo "$count"
}

[ $# -eq 0 ] || {
    echo "demo-big: $1 is not understood: it takes no arguments, but BIG_LIMIT= and the like (make help)" >&2
    exit 2
}
for number in "$layers" "$hidden" "$vocabulary" "$sequence" "$batch" "$steps"; do
    [[ $number =~ ^[1-9][0-9]*$ ]] || die "BIG_LAYERS and the others are positive numbers, not '$number'"
done
[ "$steps" -ge 3 ] || die "BIG_STEPS must be at least 3: it is killed in the middle of one"
[ -x "$build/spillway" ] || die "$build/spillway is not there; run make first"
python=$("$root/scripts/python-with.sh" torch demo)
export PYTHONPATH=$root/python${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
# What is freed goes back to the system, whatever its length.
export GLIBC_TUNABLES=glibc.malloc.mmap_threshold=65536:glibc.malloc.trim_threshold=131072
export SPILLWAY_LIBRARY=$build/libspillway.so

parameters=$((12 * hidden * hidden * layers + vocabulary * hidden))
device_limit=
if [ "$device" != cpu ]; then
    device_limit=${BIG_DEVICE_LIMIT:-$((4 * parameters))} # parameters, gradients, two of AdamW: 16 bytes each
    [[ $device_limit =~ ^[1-9][0-9]*$ ]] || die "BIG_DEVICE_LIMIT is a number of bytes, not '$device_limit'"
fi
if [ "$device" = late ]; then
    late=$(PYTHON=$python "$root/tests/device/device.sh" --build "$build" --late)
    export PYTHONPATH=$root/tests/device:$late:$PYTHONPATH
fi

trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
work=$(mktemp -d "${DEMO_DIR:-/var/tmp}/spillway-demo.XXXXXX")
[ "$limit" = none ] || make_group
make_drives

if [ -n "${BIG_IN_MEMORY:-}" ]; then
    echo "== everything in the memory of $device"
    group='' device_limit='' train "$work/in_memory" --in-memory
    wait "$pid" || die "the training failed; without BIG_IN_MEMORY= it is left out"
    pid=
fi
echo "== uninterrupted, in $limit of memory${device_limit:+, $((device_limit >> 20)) MiB of $device}"
"$build/spillway" format --devices "$drives"
train "$work/whole"
wait "$pid" || die "the training failed"
pid=
cat "${group:-/none}/$peak" >"$work/peak" 2>/dev/null || echo 0 >"$work/peak"

echo "== the same, killed by SIGKILL in the middle of step $((steps / 2 + 1))"
"$build/spillway" format --force --erase --devices "$drives" >/dev/null 2>&1 || die "the drives cannot be formatted again"
train "$work/killed"
while [ "$(steps_in "$work/killed")" -lt $((steps / 2)) ]; do
    kill -0 "$pid" 2>/dev/null || die "the training ended by itself"
    sleep 0.2
done
sleep "$("$python" -c 'import json, sys; print(max(json.loads(line).get("seconds", 0) for line in open(sys.argv[1])) / 2)' "$work/killed")"
kill -KILL "$pid"
wait "$pid" 2>/dev/null || true
pid=
echo "== killed; started again"
train "$work/resumed"
wait "$pid" || die "the training failed"
pid=

[ -z "$group" ] || limit=$(cat "$group/memory.max" "$group/memory.limit_in_bytes" 2>/dev/null || true)
"$python" -m spillway.demo.big "$work" --limit "${limit/none/0}" --device-limit "${device_limit:-0}" \
    --chart "${BIG_CHART:-$build/demo-big.svg}"
