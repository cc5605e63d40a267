#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/device/kit.sh - one archive for a machine with a GPU and PyTorch: the library with what it needs, package, tests, bench
#
#   tests/device/kit.sh BUILD        leaves BUILD/spillway-gpu.tar.gz; called by `make gpu-kit`
#
# There: tar xf spillway-gpu.tar.gz && cd spillway-gpu && make gpu-day. Needs no network, no root and no
# compiler; PYTHON= names the interpreter.
set -Eeuo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=$1
kit=$(mktemp -d "${TMPDIR:-/tmp}/spillway-kit.XXXXXX")
trap 'rm -rf "$kit"' EXIT
top=$kit/spillway-gpu
mkdir -p "$top/build" "$top/python/examples" "$top/tests" "$top/scripts"

tests/device/simulated.sh "$build/simulated.so"
scripts/bundle.sh "$top/build" "$build/libspillway.so" "$build/spillway" "$build/simulated.so" >/dev/null
ln -s libspillway.so "$top/build/libspillway.so.0"
cp -r python/spillway "$top/python/"
cp "$build/_hooks.abi3.so" "$top/python/spillway/"
cp -r tests/device "$top/tests/"
cp scripts/demo-big.sh scripts/python-with.sh "$top/scripts/"
cp python/examples/big.py "$top/python/examples/"
cp LICENSE "$top/"
find "$top" -name '__pycache__' -prune -exec rm -rf {} +
touch "$top/build/simulated.so" # is newer than its source
cat >"$top/Makefile" <<'END'
BUILD := build
all:
include tests/device/gpu.mk
END
tar -C "$kit" -czf "$build/spillway-gpu.tar.gz.new" spillway-gpu
mv "$build/spillway-gpu.tar.gz.new" "$build/spillway-gpu.tar.gz"
echo "  KIT   $build/spillway-gpu.tar.gz ($(du -h "$build/spillway-gpu.tar.gz" | cut -f1))"
