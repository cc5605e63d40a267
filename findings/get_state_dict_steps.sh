#!/bin/bash
# SPDX-License-Identifier: MIT
# findings/get_state_dict_steps.sh - PyTorch's get_state_dict() of an optimizer without state counts as a step of it
#
# Seen with     torch 2.13.0 (CPU), Python 3.11; 2026-11-30
# Guess         torch.distributed.checkpoint.state_dict.get_state_dict() only reads: a checkpoint saved before the first step, to
#               try that saving works, does not change the training.
# What happens  Where optimizer.state is empty it makes one step with gradients of zero and a learning rate of 0, so that there is a
#               state to return. Parameters stay as they are, but AdamW's count of steps does not: its first update is then
#               corrected as a second one (1 - beta^2 in place of 1 - beta), and is another one. The losses of three steps:
#                   left alone:  0.554927408695221 0.13949334621429443 0.0813731700181961   step 3
#                   looked at:   0.554927408695221 0.19790449738502502 0.08214689791202545  step 4
#               An optimizer that keeps its state elsewhere, and whose `state` is empty for that reason, is stepped at each save.
# Exit          0: as described; 1: not any more; 77: cannot be tried here
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv" && "$folder/venv/bin/pip" install --disable-pip-version-check -q torch==2.13.0 numpy==2.4.6 || {
    echo "needs python3-venv and the package index"
    exit 77
}
"$folder/venv/bin/python" - <<'END'
import sys

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict


def train(looks):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    before = [param.detach().clone() for param in model.parameters()]
    if looks:
        get_state_dict(model, optimizer)
    assert all(torch.equal(was, param) for was, param in zip(before, model.parameters()))
    losses = []
    for _ in range(3):
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    step, = {int(state["step"]) for state in optimizer.state.values()}
    return losses, step


print("torch", torch.__version__)
alone, looked_at = train(False), train(True)
print("left alone:", *alone[0], "step", alone[1])
print("looked at: ", *looked_at[0], "step", looked_at[1])
if (alone[1], looked_at[1]) != (3, 4) or alone[0][0] != looked_at[0][0] or alone[0][1] == looked_at[0][1]:
    sys.exit("this has changed")
END
