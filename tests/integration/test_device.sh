#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_device.sh - tensors of a device that is late on purpose: tests/device
# layer: all
. "$(dirname "$0")/../lib.sh"

python=${PYTHON:-$SPW_BUILD/device/venv/bin/python3}
if ! "$python" -c 'import sys, torch; sys.exit(torch.__version__ < "2.13")' 2>/dev/null; then
    skip "$python has no PyTorch of 2.13 or later: make test-device puts one there"
fi

begin "a device that is late trains as the host does"
expect_exit 0 "$ROOT/tests/device/device.sh" --build "$SPW_BUILD" --seeds 24
expect_output " 0 failed"

begin "wrong arguments of device.sh"
expect_exit 2 "$ROOT/tests/device/device.sh" --seeds many
expect_output "needs a number"
expect_exit 2 "$ROOT/tests/device/device.sh" --nonsense
expect_output "no such option"
