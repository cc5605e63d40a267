#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/device/bench.sh - tests/device/bench.py on drives named, or on files; called by `make bench-gpu`
set -Eeuo pipefail

usage() {
    cat <<'END'
tests/device/bench.sh - what saving activations costs on the accelerator here: time, memory, every bit of the losses

  tests/device/bench.sh [--build FOLDER] [--out FOLDER] [--devices D,D] [options of bench.py]

PYTHON= names an interpreter whose PyTorch sees the accelerator (python3). Everything on the devices is lost; --force
formats devices that carry something. Without --devices, or with --devices simulated:RATE, drives are simulated:
memory of the host, no faster than RATE both ways together (simulated:6GB/s), of which half of what is free is used.
END
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${here%/tests/device}
build=$root/build
out=
devices=()
options=()
while [ $# -gt 0 ]; do
    case $1 in
    --build | --out | --devices)
        [ $# -ge 2 ] || {
            echo "tests/device/bench.sh: $1 needs a value" >&2
            exit 2
        }
        case $1 in
        --devices) IFS=, read -r -a devices <<<"$2" ;;
        *) declare "${1#--}=$2" ;;
        esac
        shift
        ;;
    --help)
        usage
        exit
        ;;
    *) options+=("$1") ;;
    esac
    shift
done
out=${out:-$build/bench}
python=${PYTHON:-python3}
export SPW_TEST_DEVICE=${SPW_TEST_DEVICE:-gpu}
export PYTHONPATH=$here:$root/python${PYTHONPATH:+:$PYTHONPATH} SPILLWAY_LIBRARY=$build/libspillway.so

"$python" -c 'import torch' 2>/dev/null || {
    echo "tests/device/bench.sh: $python has no PyTorch: PYTHON= names an interpreter that has" >&2
    exit 1
}
if [ "$SPW_TEST_DEVICE" = late ]; then # compiled by device.sh
    PYTHONPATH=$build/device/$("$python" -c 'import torch; print(torch.__version__)'):$PYTHONPATH
fi
mkdir -p "$out"
case ${devices[0]:-simulated:6GB/s} in
simulated:*)
    rate=${devices[0]:-simulated:6GB/s}
    rate=${rate#simulated:}
    module=$build/simulated.so
    if [ ! -e "$module" ] || [ "$here/simulated.c" -nt "$module" ]; then
        "$here/simulated.sh" "$module"
    fi
    bytes=$("$python" -c 'import sys; from spillway._core.library import size; print(size("simulated", sys.argv[1]))' "${rate%/s}" 2>/dev/null) || {
        echo "tests/device/bench.sh: simulated:$rate is not a rate, such as simulated:6GB/s" >&2
        exit 2
    }
    echo "  drives are simulated: memory, $rate (--devices names real ones)" >&2
    export LD_PRELOAD=$module${LD_PRELOAD:+:$LD_PRELOAD} SPW_SIMULATED_RATE=$bytes SPW_SIMULATED_DRIVES=/proc/
    devices=(--simulated "$rate")
    ;;
esac
exec "$python" "$here/bench.py" --out "$out" "${options[@]}" "${devices[@]}"
