#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/device/kit.sh - one archive for a machine with a GPU and PyTorch: the library with what it needs, package, tests, bench
#
#   tests/device/kit.sh BUILD        leaves BUILD/spillway-gpu.tar.gz; called by `make gpu-kit`
#
# There: tar xf spillway-gpu.tar.gz && cd spillway-gpu && make test-gpu bench-gpu. Needs no network, no root and no
# compiler; PYTHON= names the interpreter.
set -Eeuo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=$1
kit=$(mktemp -d "${TMPDIR:-/tmp}/spillway-kit.XXXXXX")
trap 'rm -rf "$kit"' EXIT
top=$kit/spillway-gpu
mkdir -p "$top/build" "$top/python" "$top/tests"

# What the library needs lies beside it; libc is everywhere.
needed() {
    objdump -p "$1" | awk '$1 == "NEEDED" && $2 !~ /^(libc|libm|libpthread|ld-linux.*)\.so/ { print $2 }'
}
cp "$build/libspillway.so" "$top/build/"
ln -s libspillway.so "$top/build/libspillway.so.0"
for name in $(needed "$build/libspillway.so"); do
    path=$(ldd "$build/libspillway.so" | awk -v name="$name" '$1 == name { print $3 }')
    [ -n "$path" ] || {
        echo "tests/device/kit.sh: $name is not to be found" >&2
        exit 1
    }
    for more in $(needed "$path"); do # the path to look in is the library's alone
        needed "$build/libspillway.so" | grep -qxF "$more" || {
            echo "tests/device/kit.sh: $name needs $more, which the library does not" >&2
            exit 1
        }
    done
    cp -L "$path" "$top/build/$name"
done
objdump -p "$build/libspillway.so" | grep -qE 'R(UN)?PATH +\$ORIGIN' || {
    echo "tests/device/kit.sh: $build/libspillway.so does not look beside itself: make gpu-kit builds one that does" >&2
    exit 1
}

cp "$build/spillway" "$top/build/"
cp -r python/spillway "$top/python/"
cp "$build/_hooks.abi3.so" "$top/python/spillway/"
cp -r tests/device "$top/tests/"
cp LICENSE "$top/"
find "$top" -name '__pycache__' -prune -exec rm -rf {} +
cat >"$top/Makefile" <<'END'
BUILD := build
all:
include tests/device/gpu.mk
END
tar -C "$kit" -czf "$build/spillway-gpu.tar.gz.new" spillway-gpu
mv "$build/spillway-gpu.tar.gz.new" "$build/spillway-gpu.tar.gz"
echo "  KIT   $build/spillway-gpu.tar.gz ($(du -h "$build/spillway-gpu.tar.gz" | cut -f1))"
