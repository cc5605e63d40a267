#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/device/device.sh - tensors of a device that is late on purpose; see --help
set -Eeuo pipefail

usage() {
    cat <<'END'
tests/device/device.sh - trains on a device by seeds, with spillway and without: bits, memory, what is left

  tests/device/device.sh [--build FOLDER] [--seeds N] [--first N] [--jobs N] [--fixed]    a device that is late
  tests/device/device.sh --gpu [--minutes N] [the same]                                   the accelerator here

The late device (late.cpp) runs nothing before it must. It is compiled for a PyTorch of 2.13 or later with its
headers: that of PYTHON=, or the one of tests/ecosystem/pins.txt, by pip. --gpu takes the PyTorch of PYTHON=, else of
python3. Two files of 256 MiB in TMPDIR are the drives of each job.

  --seeds N    how many (500)           --first N    from which on (1)
  --jobs N     at once (2)              --fixed      only the cases that have no seed
  --unsanitized  with --gpu: without compute-sanitizer
  --minutes N  begin no seed after these       --host-time  only what the host takes to save and use, into BUILD/bench
  --late       only compile the late device, and print the folder of its module
  --promise    only a plan's promise and what its steps take, each step with its time; not with --gpu
The exit status is 1 if one failed; it is shown with its seed.
END
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${here%/tests/device}
build=$root/build
seeds=500
first=1
jobs=2
fixed=
gpu=
unsanitized=
host_time=
only_promise=
only_late=
minutes=
under=()
SANITIZED_SEEDS=10 # it is slow
SANITIZED_MINUTES=1
PROMISE_RATE=3630000    # bytes per second: the drives of promise.py
PROMISE_HOST=4000000000 # and its host memory, instead of these

die() {
    echo "tests/device/device.sh: $1" >&2
    exit "${2:-1}"
}

number() {
    [[ $2 =~ ^[0-9]+$ ]] || die "$1 needs a number, not $2" 2
}

while [ $# -gt 0 ]; do
    case $1 in
    --build | --seeds | --first | --jobs | --minutes)
        [ $# -ge 2 ] || die "$1 needs a value" 2
        [ "$1" = --build ] || number "$1" "$2"
        declare "${1#--}=$2"
        shift
        ;;
    --fixed) fixed=1 ;;
    --gpu) gpu=1 ;;
    --unsanitized) unsanitized=1 ;;
    --host-time) host_time=1 ;;
    --promise) only_promise=1 ;;
    --late) only_late=1 ;;
    --help)
        usage
        exit
        ;;
    *) die "no such option: $1 (see --help)" 2 ;;
    esac
    shift
done

# make_late: the interpreter with a PyTorch that late.cpp compiles against, and the module
make_late() {
    python=${PYTHON:-$("$root/tests/venv.sh" "$build" torch numpy)}
    version=$("$python" -c 'import torch; print(torch.__version__)') || die "$python has no PyTorch"
    module=$build/device/$version
    mkdir -p "$module"
    if [ -e "$module/late_device.so" ] && [ ! "$here/late.cpp" -nt "$module/late_device.so" ]; then
        return
    fi
    echo "  CXX   late_device.so for PyTorch $version" >&2
    mapfile -t includes < <("$python" -c '
import sysconfig, torch.utils.cpp_extension as extension
print("\n".join("-I" + path for path in [*extension.include_paths(), sysconfig.get_path("include")]))')
    libraries=$("$python" -c 'import os, torch; print(os.path.join(os.path.dirname(torch.__file__), "lib"))')
    g++ -std=c++20 -O1 -fPIC -shared -w -DTORCH_EXTENSION_NAME=late_device "${includes[@]}" \
        -o "$module/late_device.so.new" "$here/late.cpp" -L"$libraries" -lc10 -ltorch_cpu -ltorch_python
    mv "$module/late_device.so.new" "$module/late_device.so"
}

if [ -n "$gpu" ]; then
    python=${PYTHON:-python3}
    module=
    export SPW_TEST_DEVICE=gpu
    "$python" -c 'import sys, torch; sys.exit(torch.accelerator.current_accelerator() is None)' 2>/dev/null ||
        die "$python has no PyTorch that sees an accelerator: PYTHON= names an interpreter that has"
else
    make_late
fi
if [ -n "$only_late" ]; then
    echo "$module"
    exit
fi

work=$(mktemp -d "${TMPDIR:-/var/tmp}/spillway-device.XXXXXX")
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
export PYTHONPATH=$here${module:+:$module}:$root/python SPILLWAY_LIBRARY=$build/libspillway.so

# run NAME PROGRAM ARGUMENTS: on two drives of its own
run() {
    local name=$1 program=$2
    shift 2
    mkdir "$work/$name"
    truncate -s 256M "$work/$name/drive0" "$work/$name/drive1"
    "${under[@]}" "$python" "$here/$program" "$@" "$work/$name/drive0" "$work/$name/drive1" >"$work/$name.log" 2>&1
}

# promise NAME [ARGUMENTS]: a plan and its execution, with drives of a rate
promise() {
    local module=$build/simulated.so name=$1 rc=0
    shift
    if [ ! -e "$module" ] || [ "$here/simulated.c" -nt "$module" ]; then
        "$here/simulated.sh" "$module" || return
    fi
    mkdir "$work/$name"
    truncate -s 256M "$work/$name/drive0"
    LD_PRELOAD=$module SPW_SIMULATED_RATE=$PROMISE_RATE SPW_SIMULATED_DRIVES=$work/ \
        "$python" "$here/promise.py" "$@" "$work/$name/drive0" >"$work/$name.log" 2>&1 || rc=$?
    sed 's/^/  /' "$work/$name.log"
    return "$rc"
}

# sanitized: some seeds again under CUDA's checker, which sees reads and writes that change no result
sanitized() {
    local sanitizer=
    for sanitizer in "$(command -v compute-sanitizer || true)" /usr/local/cuda*/bin/compute-sanitizer /usr/local/cuda*/compute-sanitizer/compute-sanitizer; do
        [ ! -x "$sanitizer" ] || break
    done
    if [ ! -x "$sanitizer" ]; then
        echo "  skipped: no compute-sanitizer is here, which comes with CUDA's toolkit"
        skipped=1
        return
    fi
    under=("$sanitizer" --tool memcheck --error-exitcode 1)
    if run sanitized seeds.py --count "$SANITIZED_SEEDS" --minutes "$SANITIZED_MINUTES"; then
        echo "  ok clean under $sanitizer"
        passed=$((passed + 1))
    else
        sed 's/^/  /' "$work/sanitized.log"
        echo "  FAILED under $sanitizer"
        failed=$((failed + 1))
    fi
}

# big: the demonstration of a model larger than a device's memory, with the bits of one in its memory
big() {
    local rc=0
    BIG_DEVICE=late BIG_LIMIT=none BIG_IN_MEMORY=1 BIG_STEPS=4 BIG_ARENA=64MiB BIG_CHART=$work/big.svg DEMO_DIR=$work \
        PYTHON=$python SPW_BUILD=$(realpath "$build") "$root/scripts/demo-big.sh" >"$work/big.log" 2>&1 || rc=$?
    if [ "$rc" -eq 0 ] && [ "$(grep -c 'losses:* identical to the last bit' "$work/big.log")" -eq 2 ]; then
        echo "  ok   a model larger than the device's memory, killed and resumed, and one in its memory"
        return
    fi
    sed 's/^/  /' "$work/big.log"
    echo "  FAILED a model larger than the device's memory (status $rc)"
    return 1
}

if [ -n "$host_time" ]; then
    mkdir -p "$build/bench"
    run host_time host_time.py --out "$build/bench" || rc=$?
    cat "$work/host_time.log"
    exit "${rc-0}"
fi
if [ -n "$only_promise" ]; then
    rc=0
    promise drives || rc=1
    promise host --host-bytes "$PROMISE_HOST" || rc=1
    exit "$rc"
fi
passed=0
failed=0
skipped=0
pids=()
parts=$jobs
[ -z "$gpu" ] || parts=1
for ((part = 0; part < parts; part++)); do
    run "fixed$part" fixed.py "$part" "$parts" &
    pids+=($!)
done
for ((part = 0; part < parts; part++)); do
    wait "${pids[part]}" || true
    log=$work/fixed$part.log
    if grep -q '^done$' "$log"; then
        sed -i '/^begin /d' "$log"
    else
        failed=$((failed + 1))
    fi
    sed 's/^/  /' "$log"
    passed=$((passed + $(grep -c '^ok ' "$log" || true)))
    failed=$((failed + $(grep -c '^FAILED ' "$log" || true)))
done
pids=()
if [ -z "$gpu" ]; then
    promise drives && passed=$((passed + 1)) || failed=$((failed + 1))
    promise host --host-bytes "$PROMISE_HOST" && passed=$((passed + 1)) || failed=$((failed + 1))
    big && passed=$((passed + 1)) || failed=$((failed + 1))
fi
if [ -z "$fixed" ]; then
    share=$(((seeds + jobs - 1) / jobs))
    for ((job = 0; job * share < seeds; job++)); do
        count=$((seeds - job * share < share ? seeds - job * share : share))
        run "job$job" seeds.py --first $((first + job * share)) --count $count ${minutes:+--minutes $minutes} &
        pids+=($!)
    done
    for ((job = 0; job < ${#pids[@]}; job++)); do
        wait "${pids[job]}" || true
        sed 's/^/  /' "$work/job$job.log"
        read -r ok bad < <(awk '/ seeds passed, / {print $1, $4}' "$work/job$job.log") || { ok=0; bad=1; }
        passed=$((passed + ok))
        failed=$((failed + bad))
    done
fi
[ -z "$gpu" ] || [ -n "$fixed$unsanitized" ] || sanitized
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
