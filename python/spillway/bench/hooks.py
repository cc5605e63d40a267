# SPDX-License-Identifier: MIT
# spillway/bench/hooks.py - the time that the hooks on saved tensors take: python -m spillway.bench.hooks DRIVE...
"""Measured from outside: the functions that autograd calls are timed, around a chain of operations that save one tensor
each. Nothing of it is in what a training runs. Prints one JSON object per length."""
from __future__ import annotations

import json
import signal
import statistics
import sys
import time
from typing import Any, Dict, List, Sequence

if __name__ == "__main__":
    from ..demo.ending import ends_at_once

    ends_at_once("spillway.bench.hooks")  # PyTorch takes seconds to load

import torch
from torch import nn

import spillway
import spillway.torch

from ..demo.ending import exits_on

LENGTHS = (64 << 10, 256 << 10, 2 << 20, 8 << 20)  # bytes; the first is the shortest that is not kept for being small
TENSORS = 500
BYTES_MAX = 1 << 30  # of all tensors of a chain


class _Chain(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self._count):
            x = x.sin()
        return x


def _timed(function: Any, cpu: List[int], wall: List[int]) -> Any:
    def timed(thing: Any) -> Any:
        began, cpu_began = time.perf_counter_ns(), time.thread_time_ns()
        result = function(thing)
        cpu.append(time.thread_time_ns() - cpu_began)
        wall.append(time.perf_counter_ns() - began)
        return result

    return timed


def _cost_of_clocks() -> float:
    """Of the two that are read, what lies between their readings: nanoseconds."""
    costs: List[int] = []
    timed = _timed(lambda _thing: None, costs, [])
    for _ in range(1000):
        timed(None)
    return statistics.median(costs)


def hook_times(store: Any, rounds: int = 5, length_bytes: int = LENGTHS[0]) -> Dict[str, float]:
    """Microseconds per tensor, the median of some rounds' medians: CPU time of the thread, that neither other programs nor
    slow drives lengthen, and for saving, which waits for nothing, the time on the clock too; ``both_us_mean`` is the mean of
    saving and using one. What reading the clocks takes is taken off."""
    model = _Chain(max(1, min(TENSORS, BYTES_MAX // length_bytes)))
    x = torch.randn(length_bytes // 4, requires_grad=True)
    clocks = _cost_of_clocks()
    of_rounds: Dict[str, List[float]] = {"save_us": [], "use_us": [], "save_us_wall": [], "both_us_mean": []}
    for _ in range(rounds + 1):  # the first warms up
        off = spillway.torch.offload(model, store, mode="spill")
        saves: List[int] = []
        saves_wall: List[int] = []
        uses: List[int] = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            _timed(off._session.pack, saves, saves_wall), _timed(lambda packed: packed.unpack(), uses, [])
        )
        with off, hooks:
            model(x).sum().backward()
        off.close()
        of_rounds["save_us"].append((statistics.median(saves) - clocks) / 1000)
        of_rounds["use_us"].append((statistics.median(uses) - clocks) / 1000)
        of_rounds["save_us_wall"].append(statistics.median(saves_wall) / 1000)
        of_rounds["both_us_mean"].append((statistics.mean(saves) + statistics.mean(uses) - 2 * clocks) / 1000)
    return {name: statistics.median(values[1:]) for name, values in of_rounds.items()}


def main(drives: Sequence[str]) -> int:
    with spillway.Store(drives) as store:
        for length in LENGTHS:
            print(json.dumps({"length_bytes": length, **hook_times(store, 5, length)}), flush=True)
    return 0


if __name__ == "__main__":
    with exits_on(signal.SIGINT, signal.SIGTERM):
        sys.exit(main(sys.argv[1:]))
