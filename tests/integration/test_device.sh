#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_device.sh - tensors of a device that is late on purpose: tests/device
# layer: all
# seconds: 1800 it compiles against PyTorch's headers and trains a hundred models: a quarter of an hour beside other programs
. "$(dirname "$0")/../lib.sh"

begin "wrong arguments"
expect_exit 2 "$ROOT/tests/device/device.sh" --seeds many
expect_output "needs a number"
expect_exit 2 "$ROOT/tests/device/device.sh" --nonsense
expect_output "no such option"
expect_exit 2 "$ROOT/tests/device/bench.sh" --out
expect_output "needs a value"

begin "a device that is late trains as the host does"
python=${PYTHON:-$SPW_BUILD/venv/bin/python3}
if "$python" -c 'import sys, torch; sys.exit(torch.__version__ < "2.13")' 2>/dev/null; then
    expect_exit 0 "$ROOT/tests/device/device.sh" --build "$SPW_BUILD" --seeds 24
    expect_output " 0 failed"
else
    skip "$python has no PyTorch of 2.13 or later: make test-device and test-ecosystem put one there"
fi

begin "the bench of an accelerator leaves what each run has measured"
if [ -e "$SPW_BUILD/device" ]; then
    export SPW_TEST_DEVICE=late
    PYTHON=$python expect_exit 0 "$ROOT/tests/device/bench.sh" --build "$SPW_BUILD" --out "$TMPDIR/bench" --layers 2 --hidden 64 \
        --sequence 32 --batch 2 --steps 1 --rounds 1 --arena-bytes 16777216 --ways keep,operations
    expect_exit 0 grep -q '"operations / keep: activations"' "$TMPDIR/bench/device.json"
    rm -r "$TMPDIR/bench"
else
    skip "the late device was not compiled"
fi
