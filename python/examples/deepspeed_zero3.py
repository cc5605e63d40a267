#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# python/examples/deepspeed_zero3.py - DeepSpeed's ZeRO-Infinity, which swaps to files or to a store
"""Train a small GPT by DeepSpeed, with optimizer and parameters on drives.

  spillway format --devices /dev/a,/dev/b
  python3 python/examples/deepspeed_zero3.py --swap /tmp/swap --devices /dev/a,/dev/b

Without --devices DeepSpeed swaps to files below --swap, by its own means; without both, all stays
in memory. With --activations what the backward pass needs goes to the same drives. The losses are
the same. Started like this it is one process; `deepspeed` and `torchrun` start several. As it is,
without --devices, it is also a program that knows nothing of spillway:

  spillway run --deepspeed /dev/a,/dev/b -- \\
    python3 python/examples/deepspeed_zero3.py --swap /tmp/swap
"""
from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import Any, Dict, Optional

import torch
from torch import Tensor, nn

if "RANK" not in os.environ:  # one process
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=str(listener.getsockname()[1]))
if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed

from common import cuts_of, loss_of, say_activations, text_of
from gpt import Block
from spillway.demo.memory import rss_peak_bytes

HERE = Path(__file__).resolve().parents[2]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--swap", help="a folder for what is swapped; without, nothing is")
    option("--devices", help="of a store, separated by commas: swap to it, and not to files")
    option("--activations", action="store_true",
           help="with --swap and --devices: they go to the store, too")
    option("--torch-adam", action="store_true",
           help="PyTorch's AdamW: DeepSpeed's own is compiled for minutes when it is first used")
    option("--bf16", action="store_true", help="parameters of 16 bits (in memory, 32 for the step)")
    option("--pipeline", action="store_true", help="read and write while a subgroup is computed")
    option("--layers", type=int, default=4)
    option("--hidden", type=int, default=512,
           help="a multiple of 64; DeepSpeed swaps what has 1 MiB: from 512 on (512)")
    option("--sequence", type=int, default=128, help="tokens (128)")
    option("--batch", type=int, default=4)
    option("--steps", type=int, default=10)
    option("--text", type=Path, default=HERE, help="file or folder to train on")
    option("--output", default="", help="where a checkpoint goes at the end")
    option("--resume", default="", help="a folder that was an --output")
    option("--local_rank", type=int, help=argparse.SUPPRESS)  # of DeepSpeed's launcher
    args = parser.parse_args()
    if args.activations and not (args.swap and args.devices):
        parser.error("--activations needs --swap and --devices")
    return args


class GPT(nn.Module):
    """Every parameter is used by the forward of its own module: that is where DeepSpeed fetches
    it."""

    future: Tensor

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.token = nn.Embedding(256, args.hidden)
        self.position = nn.Embedding(args.sequence, args.hidden)
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.hidden)
        self.head = nn.Linear(args.hidden, 256, bias=False)
        self.register_buffer("future",
                             torch.full((args.sequence, args.sequence), -torch.inf).triu(1))
        self.register_buffer("places", torch.arange(args.sequence))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(self.places)
        for block in self.blocks:
            x = block(x, self.future.to(x.dtype))
        return loss_of(self.head(self.norm(x)).float(), targets)


def configuration(args: argparse.Namespace) -> Dict[str, Any]:
    """As one has it in a file, with nothing of spillway in it."""
    device: Dict[str, Any] = {"device": "cpu"}
    zero: Dict[str, Any] = {"stage": 3, "sub_group_size": 2 * args.hidden**2,
                            "stage3_param_persistence_threshold": 2 * args.hidden}
    if args.swap:
        device = {"device": "nvme", "nvme_path": args.swap}
        zero["offload_param"] = {**device, "buffer_count": 6, "buffer_size": 5 * args.hidden**2}
    zero["offload_optimizer"] = {**device, "buffer_count": 16 if args.pipeline else 5}
    if args.swap and args.pipeline:
        zero["offload_optimizer"].update(pipeline_read=True, pipeline_write=True)
    return {
        "train_micro_batch_size_per_gpu": args.batch,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": args.torch_adam}},
        "zero_force_ds_cpu_optimizer": not args.torch_adam,
        "zero_optimization": zero,
        "bf16": {"enabled": args.bf16},
        "steps_per_print": 1 << 30,
        "wall_clock_breakdown": False,
    }


def train(args: argparse.Namespace) -> Optional[Any]:
    swapping: Any = None
    if args.devices:
        import spillway.deepspeed

        swapping = spillway.deepspeed.install(args.devices.split(","))  # and that is all
    deepspeed.init_distributed()
    torch.manual_seed(20)
    args.heads, args.dropout = args.hidden // 64, 0.0
    config = configuration(args)
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = GPT(args)
    engine, *_ = deepspeed.initialize(model=model, config=config)
    off: Any = None
    if args.activations:
        import spillway.torch as st

        off = st.offload(model, swapping.store)  # open, since the engine swaps
    first = 0
    if args.resume:
        _, state = engine.load_checkpoint(args.resume)
        first = state["step"]
    tokens = text_of(args)
    seed = torch.Generator().manual_seed(20 + torch.distributed.get_rank())
    for step, rows in zip(range(args.steps), cuts_of(tokens, args.batch, args.sequence + 1, seed)):
        if step >= first:
            rows = rows.to(engine.device)
            with off or contextlib.nullcontext():
                loss = engine(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
                engine.backward(loss)
                engine.step()
            print(f"step {step + 1} loss {loss.item():.9f}", flush=True)
    if off is not None:
        say_activations(off.stats())
        off.close()
    if args.output:
        engine.save_checkpoint(args.output, client_state={"step": args.steps})
    return swapping


def main() -> int:
    args = options()
    try:
        swapping = train(args)
    except OSError as error:  # a SpillwayError is one
        print(f"deepspeed_zero3: {error}", file=sys.stderr)
        return 1
    if swapping is not None and swapping.store is not None:
        stats = swapping.store.stats()
        print(f"swapped to the store: {stats.bytes_put >> 20} MiB out, "
              f"{stats.bytes_got >> 20} MiB in")
    print(f"memory: {rss_peak_bytes() >> 20} MiB at most")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
