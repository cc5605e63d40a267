#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/peers/run.sh - the tests that trl, accelerate and DeepSpeed have of their own offloading, on spillway
#
#   tests/peers/run.sh BUILD [WORD...]      called by `make test-peers-suites`; WORD: only tests whose names contain one
#
# They come with the source distributions of sources.txt, by the package manager, into BUILD/peers; the packages of pins.txt into
# BUILD/peers/venv. DEEPSPEED_TESTS= a checkout's folder tests/: DeepSpeed's unit tests, which no source distribution has.
set -euo pipefail

cd "$(dirname "$0")/../.."
build=$1
folder=$build/peers
mkdir -p "$folder"
status=0
python=$(tests/venv.sh --pins tests/peers/pins.txt "$folder") || status=$?
unreachable() {
    echo "  skip          peers: no package index can be reached"
    echo
    echo "0 passed, 0 failed, 1 skipped"
    exit
}
[ $status -ne 77 ] || unreachable
[ $status -eq 0 ]

# fetch NAME VERSION: its source distribution, unpacked as BUILD/peers/NAME-VERSION
fetch() {
    local target=$folder/$1-$2 package=$folder/package
    [ ! -d "$target" ] || return 0
    rm -rf "$package"
    mkdir -p "$package"
    echo "  PIP   the source of $1 $2 into $target"
    "$python" -m pip download --disable-pip-version-check -q --no-deps --no-build-isolation --no-binary :all: \
        -d "$package" "$1==$2" >"$folder/fetch.log" 2>&1 || {
        ! grep -q 'connection broken' "$folder/fetch.log" || unreachable
        cat "$folder/fetch.log" >&2
        return 1
    }
    tar -C "$package" -xf "$package/$1-$2.tar.gz"
    : >"$package/$1-$2/tests/__init__.py" # which none has, and trl's import from each other
    mv "$package/$1-$2" "$target"
    rm -rf "$package"
}

while IFS='=' read -r name _ version; do
    fetch "$name" "$version"
done < <(grep -v '^#' tests/peers/sources.txt)
# DeepSpeed compiles what it needs when it is first used: before a test waits for it.
compiled=$(cd "$folder/venv" && pwd)
PATH=$compiled/bin:$PATH DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$compiled/torch_extensions "$python" -c '
from deepspeed.ops.op_builder import AsyncIOBuilder
AsyncIOBuilder().load(verbose=False)' >"$folder/compile.log" 2>&1 || {
    cat "$folder/compile.log" >&2
    exit 1
}
late=$(PYTHON=$python tests/device/device.sh --build "$build" --late)
exec "$python" tests/peers/suites.py --build "$build" --late "$late" ${DEEPSPEED_TESTS:+--deepspeed-tests "$DEEPSPEED_TESTS"} "${@:2}"
