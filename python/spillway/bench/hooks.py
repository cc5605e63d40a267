# SPDX-License-Identifier: MIT
# spillway/bench/hooks.py - the time that the hooks on saved tensors take
"""Measured from outside: the functions that autograd calls are timed, around a chain of operations that save one tensor
each. Nothing of it is in what a training runs."""
from __future__ import annotations

import statistics
import time
from typing import Any, Dict, List

import torch
from torch import nn

import spillway.torch

TENSORS = 500
# Of 4 bytes: the shortest tensor that is not kept for being small. With longer ones grows what is no work of the hooks: giving
# memory back to the system, which happens when they let a tensor go.
ELEMENTS = 16 << 10


class _Chain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(TENSORS):
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


def hook_times(store: Any, rounds: int = 5) -> Dict[str, float]:
    """Microseconds per tensor, the median of some rounds' medians: CPU time of the thread, that neither other programs nor
    slow drives lengthen, and for saving, which waits for nothing, the time on the clock too."""
    model = _Chain()
    x = torch.randn(ELEMENTS, requires_grad=True)
    of_rounds: Dict[str, List[float]] = {"save_us": [], "use_us": [], "save_us_wall": []}
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
        for name, times in (("save_us", saves), ("use_us", uses), ("save_us_wall", saves_wall)):
            of_rounds[name].append(statistics.median(times) / 1000)
    return {name: statistics.median(values[1:]) for name, values in of_rounds.items()}
