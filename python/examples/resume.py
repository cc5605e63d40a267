# SPDX-License-Identifier: MIT
# python/examples/resume.py - a training that goes on where it was killed, with the same numbers
"""    spillway format --devices /dev/nvme1n1,/dev/nvme2n1
    python3 python/examples/resume.py --devices /dev/nvme1n1,/dev/nvme2n1 --steps 1000

Kill it at any moment, in any way, and run it again: the losses are those of one that was not.
"""
from __future__ import annotations

import argparse

import torch
from torch import nn

import spillway
import spillway.torch as st


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", required=True, help="of a store, separated by commas")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10, help="steps from commit to commit")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--muon", action="store_true",
                        help="the inner matrix is stepped by Muon (PyTorch 2.9), the rest by AdamW")
    return parser.parse_args()


def main() -> None:
    chosen = options()
    torch.manual_seed(0)
    width = chosen.hidden
    model = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU(),
                          nn.Linear(width, 1))
    with spillway.Store(chosen.devices.split(",")) as store:
        groups = list(model.named_parameters())
        if chosen.muon:
            inner = {"params": [groups.pop(2)], "optimizer_class": torch.optim.Muon, "lr": 0.02}
            groups = [inner, {"params": groups}]
        optimizer = st.Optimizer(torch.optim.AdamW, groups, store, lr=1e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, chosen.steps)
        resumed = optimizer.resume()
        if resumed is not None:
            scheduler.load_state_dict(resumed.extra["scheduler"])
            print(f"resumed after step {resumed.step}", flush=True)
        while optimizer.steps < chosen.steps:
            x = torch.randn(32, 64)  # the generator is part of a commit
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            print(f"step {optimizer.steps} loss {loss.item():.6f} {loss.item().hex()}", flush=True)
            if optimizer.steps % chosen.every == 0:
                optimizer.commit(extra={"scheduler": scheduler.state_dict()})


if __name__ == "__main__":
    main()
