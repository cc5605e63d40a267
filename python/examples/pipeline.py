#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# python/examples/pipeline.py - a GPT cut into stages, one process each, scheduled 1F1B
"""Train one GPT on several processes, each with some of its layers; they share the drives.

  spillway format --partitions 2 --devices /dev/a,/dev/b
  python3 python/examples/pipeline.py --ranks 2 --micro-batches 8 --mode spillway \\
      --devices /dev/a,/dev/b
"""
import argparse
import signal
import sys
import time
from typing import Any, Dict, List, Optional

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is open yet: no traceback

import torch
import torch.distributed as dist
from torch import Tensor, nn

import spillway.schedules
from common import loss_of, losses_of, offload_of, open_store, result_of, text_of
from gpt import GPT, batches
from gradients import Stepper
from ranks import main


class Part(nn.Module):
    """The layers of one stage; the first has the embeddings, the last the head."""

    def __init__(self, whole: GPT, stage: int, stages: int) -> None:
        super().__init__()
        share = -(-len(whole.blocks) // stages)
        self.blocks = nn.ModuleList(list(whole.blocks)[stage * share : (stage + 1) * share])
        first, last = stage == 0, stage == stages - 1
        self.token: Optional[nn.Embedding] = whole.token if first else None
        self.position: Optional[nn.Embedding] = whole.position if first else None
        self.norm: Optional[nn.LayerNorm] = whole.norm if last else None
        self.head: Optional[nn.Linear] = whole.head if last else None
        self.register_buffer("future", whole.future)

    def forward(self, x: Tensor) -> Tensor:
        if self.token is not None and self.position is not None:
            x = self.token(x) + self.position.weight
        for block in self.blocks:
            x = block(x, self.future)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


class Stage:
    """Runs passes of micro-batches, and exchanges activations and gradients with its neighbours."""

    def __init__(self, args: argparse.Namespace, rank: int, world: int) -> None:
        torch.manual_seed(args.seed)
        self.model = Part(GPT(args), rank, world)
        self.before = rank - 1 if rank > 0 else None
        self.after = rank + 1 if rank < world - 1 else None
        self.shape = (args.batch, args.sequence, args.hidden)
        self.micro_batches = args.micro_batches
        self.graphs: Dict[int, Any] = {}  # of micro-batches that wait for their backward pass
        self.sent: List[Any] = []

    def send(self, tensor: Tensor, to: int) -> None:
        self.sent.append((dist.isend(tensor, to), tensor))  # which must live until it has gone

    def receive(self, source: int) -> Tensor:
        tensor = torch.empty(self.shape)
        dist.recv(tensor, source)
        return tensor

    def forward(self, number: int, inputs: Tensor, targets: Tensor) -> float:
        x = inputs if self.before is None else self.receive(self.before).requires_grad_()
        y = self.model(x)
        if self.after is None:
            y = loss_of(y, targets) / self.micro_batches
        else:
            self.send(y.detach(), self.after)
        self.graphs[number] = x, y
        return y.item() if self.after is None else 0.0

    def backward(self, number: int) -> None:
        x, y = self.graphs.pop(number)
        y.backward(None if self.after is None else self.receive(self.after))
        if self.before is not None:
            self.send(x.grad, self.before)

    def wait_sent(self) -> None:
        for request, _ in self.sent:
            request.wait()
        self.sent.clear()


def run(args: argparse.Namespace, rank: int, world: int) -> Dict[str, Any]:
    stage = Stage(args, rank, world)
    stepper = Stepper(stage.model, args.grad_memory, checksum=True)
    source = batches(args, text_of(args), torch.Generator().manual_seed(args.seed))
    losses, seconds = [], []
    with open_store(args, rank) as store:
        off = offload_of(args, stage.model, store)
        order = spillway.schedules.one_f_one_b(rank, world, args.micro_batches)
        for _ in range(args.steps):
            parts = [next(source) for _ in range(args.micro_batches)]
            began, total = time.perf_counter(), 0.0
            with off:
                for number, phase in spillway.schedules.announce(off, order):
                    if phase == "forward":
                        (inputs,), targets = parts[number]
                        total += stage.forward(number, inputs, targets)
                    else:
                        stepper.last = number == args.micro_batches - 1
                        stage.backward(number)
            stage.wait_sent()
            stepper.note()
            stepper.step()
            losses.append(total)
            seconds.append(time.perf_counter() - began)
        result = {**result_of(args, off, store), "step_seconds": seconds, **losses_of(losses)}
        off.close()
    return {**result, "gradients_sha256": stepper.hexdigests[-1]}


if __name__ == "__main__":
    sys.exit(main("pipeline", __doc__, run, ranks=2))
