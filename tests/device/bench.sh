#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/device/bench.sh - tests/device/bench.py on drives named, or on files; called by `make bench-gpu`
set -Eeuo pipefail

usage() {
    cat <<'END'
tests/device/bench.sh - what saving activations costs on the accelerator here: time, memory, every bit of the losses

  tests/device/bench.sh [--build FOLDER] [--out FOLDER] [--devices D,D] [options of bench.py]

PYTHON= names an interpreter whose PyTorch sees the accelerator (python3). Without --devices four files of 16 GiB
(sparse) in TMPDIR are the drives, which need a file system that takes O_DIRECT; they are removed afterwards. With
it everything on the devices is lost; --force formats devices that carry something.
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
mkdir -p "$out"
if [ ${#devices[@]} -eq 0 ]; then
    work=$(mktemp -d "${TMPDIR:-/var/tmp}/spillway-bench.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    devices=("$work"/drive{0,1,2,3})
    truncate -s 16G "${devices[@]}"
fi
"$python" "$here/bench.py" --out "$out" "${options[@]}" "${devices[@]}"
