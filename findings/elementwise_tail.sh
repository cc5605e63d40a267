#!/bin/bash
# SPDX-License-Identifier: MIT
# findings/elementwise_tail.sh - what PyTorch's sigmoid makes of a number depends on where in its tensor that is
#
# Seen with     PyTorch 2.13.0 on x86-64 with AVX2 and with AVX-512; 2026-11-30
# Guess         A function of single elements has the same bits for an element in a long tensor, in a short one, and alone; so a tensor may be
#               cut anywhere. For exp, tanh, log and erf it is so.
# What happens  The last elements of a tensor, fewer than a vector register has, are computed by other code, and for some functions that has
#               other bits. Of 16384 numbers, in one tensor and in tensors of three:
#                   exp, tanh, log, erf            none differs
#                   sigmoid, silu, softplus, pow   2 to 20 % differ
# Exit          0: as described; 1: not any more; 77: cannot be tried here
set -euo pipefail
command -v python3 >/dev/null || { echo "needs python3"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" || { echo "needs python3-venv"; exit 77; }
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy || { echo "needs the package index"; exit 77; }
"$folder/venv/bin/python" - <<'END'
import sys

import torch
from torch.nn import functional

if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
    print("needs a CPU with AVX2")
    sys.exit(77)
torch.set_num_threads(1)
numbers = torch.randn(16384, generator=torch.Generator().manual_seed(0)) * 3


def share_that_differs(function):
    alone = torch.cat([function(three) for three in numbers.split(3)])
    return (function(numbers) != alone).double().mean().item()


same = {"exp": torch.exp, "tanh": torch.tanh, "log": lambda x: x.abs().log(), "erf": torch.erf}
other = {"sigmoid": torch.sigmoid, "silu": functional.silu, "softplus": functional.softplus,
         "pow": lambda x: x.abs().pow(0.3)}
found = {name: share_that_differs(function) for name, function in {**same, **other}.items()}
for name, share in found.items():
    print(f"{name:10}{100 * share:6.2f} % differ")
sys.exit(0 if all(found[name] == 0 for name in same) and all(found[name] > 0.01 for name in other) else "this has changed")
END
