#!/bin/bash
# SPDX-License-Identifier: MIT
# findings/low_bit_state.sh - optimizers of 8 bits keep state of 32 bits, of small parameters and of those that do not divide
#
# Seen with     bitsandbytes 0.50.2, torchao 0.18.0, PyTorch 2.13.0 on a CPU; 2026-11-28
# Guess         What AdamW8bit does to a parameter of a thousand elements it does to one of a million, so the small one will do to test with.
# What happens  Both keep 32-bit state below 4096 elements; torchao also where 256, its block, does not divide the number of elements. There
#               they are AdamW to the last bits, or nearly; from 4096 on they are something else. Bytes of state per element, of both moments:
#                   elements        1000   4095   4096   4100   8192
#                   bitsandbytes    8.00   8.00   2.03   2.03   2.03
#                   torchao         8.00   8.00   2.53   8.00   2.28
# Exit          0: as described; 1: not any more; 77: cannot be tried here
set -euo pipefail
command -v python3 >/dev/null || { echo "needs python3"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || { echo "needs python3-venv"; exit 77; }
"$folder/venv/bin/pip" install -q torch==2.13.0 torchao==0.18.0 bitsandbytes==0.50.2 numpy || { echo "needs the package index"; exit 77; }
TORCHDYNAMO_DISABLE=1 "$folder/venv/bin/python" - <<'END'
import sys

import bitsandbytes
import torch
import torchao.optim


def plain_bytes(value):
    """Of a plain tensor, or of the plain ones inside of a subclass."""
    if hasattr(value, "__tensor_flatten__") and type(value) is not torch.Tensor:
        return sum(plain_bytes(getattr(value, name)) for name in value.__tensor_flatten__()[0])
    return value.numel() * value.element_size()


def bytes_per_element(optimizer_class, count):
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, count))
    optimizer = optimizer_class([parameter], lr=torch.tensor(1e-3) if optimizer_class is torchao.optim.AdamW8bit else 1e-3)
    parameter.grad = torch.linspace(1, 2, count)
    optimizer.step()
    # Maps of 256 values each come with the moments: they are the same for any length.
    state = {name: value for name, value in optimizer.state[parameter].items()
             if isinstance(value, torch.Tensor) and value.numel() > 1 and "qmap" not in name}
    return sum(plain_bytes(value) for value in state.values()) / count


COUNTS = 1000, 4095, 4096, 4100, 8192
found = {}
print("elements     ", *(f"{count:6}" for count in COUNTS))
for name, optimizer_class in (("bitsandbytes", bitsandbytes.optim.AdamW8bit), ("torchao", torchao.optim.AdamW8bit)):
    found[name] = [bytes_per_element(optimizer_class, count) for count in COUNTS]
    print(f"{name:13}", *(f"{value:6.2f}" for value in found[name]))
small = {name: [value >= 8 for value in values] for name, values in found.items()}
sys.exit(0 if small == {"bitsandbytes": [True, True, False, False, False], "torchao": [True, True, False, True, False]}
         else "this has changed")
END
