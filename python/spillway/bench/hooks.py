# SPDX-License-Identifier: MIT
# spillway/bench/hooks.py - the time that the hooks on saved tensors take
"""Measured from outside: the functions that autograd calls are timed, around chains of operations
that save one tensor each, and around the layers of a transformer, whose tensors are of several
lengths, and some of which are saved twice or kept. Nothing of it is in what a training runs. Last,
steps of short tensors that are kept, or spilled, or whose steps rest, beside steps with a pair of
hooks that do nothing, and without hooks. Prints one JSON object per program.

  python -m spillway.bench.hooks /dev/a,/dev/b      (or the drives one by one; they hold a store)
"""
from __future__ import annotations

import contextlib
import json
import signal
import statistics
import sys
import time
from typing import Any, Callable, Dict, List, Sequence

if __name__ == "__main__":
    from ..demo.ending import ends_at_once

    ends_at_once("spillway.bench.hooks")  # PyTorch takes seconds to load

import torch
from torch import nn

import spillway
import spillway.torch

from .._core import hooks_loader
from ..demo.ending import exits_on

# bytes; shorter tensors than the first are kept in memory
LENGTHS = (64 << 10, 256 << 10, 2 << 20, 8 << 20)
TENSORS = 500
BYTES_MAX = 1 << 30  # for all tensors of a chain
LAYERS, HIDDEN, SEQUENCE, BATCH = 4, 768, 512, 4
SHORT_BYTES = 4096
UNTIMED = 3  # first steps, not timed: two without a plan, one by the first plan
RESTING = 8  # by then, steps rest whose plan moves nothing


class _Chain(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self._count):
            x = x.sin()
        return x


class _Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(HIDDEN, HIDDEN // 64, 4 * HIDDEN, 0.0, "gelu",
                                           batch_first=True, norm_first=True)
        self._layers = nn.TransformerEncoder(layer, LAYERS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._layers(x)


def _timed(function: Any, cpu: List[int], wall: List[int]) -> Any:
    def timed(thing: Any) -> Any:
        began, cpu_began = time.perf_counter_ns(), time.thread_time_ns()
        result = function(thing)
        cpu.append(time.thread_time_ns() - cpu_began)
        wall.append(time.perf_counter_ns() - began)
        return result

    return timed


def _itself(thing: Any) -> Any:
    return thing


def _cost_of_clocks(model: nn.Module, x: torch.Tensor) -> float:
    """The cost of reading the clocks, in nanoseconds: measured around a hook that does nothing,
    in the same program, whose operations displace the clocks' data from the CPU caches."""
    costs: List[int] = []
    with torch.autograd.graph.saved_tensors_hooks(_timed(_itself, costs, []), _itself):
        model(x)
    return statistics.median(costs)


def _timed_step(off: Any, model: nn.Module, x: torch.Tensor, clocks: float) -> Dict[str, float]:
    saves: List[int] = []
    saves_wall: List[int] = []
    uses: List[int] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(
        _timed(off._session.pack, saves, saves_wall),
        _timed(hooks_loader.hooks.unpack, uses, []))
    with off, hooks:
        model(x).sum().backward()
    found = {"save_us_wall": statistics.median(saves_wall) / 1000}
    for way, times in (("save", saves), ("use", uses)):
        found[f"{way}_us"] = (statistics.median(times) - clocks) / 1000
        found[f"{way}_us_mean"] = (statistics.mean(times) - clocks) / 1000
    return found


def _medians(steps: List[Dict[str, float]]) -> Dict[str, float]:
    return {name: statistics.median(step[name] for step in steps) for name in steps[0]}


def hook_times(store: Any, rounds: int = 5, length_bytes: int = LENGTHS[0]) -> Dict[str, float]:
    """Microseconds per tensor for a chain of tensors of one length: medians over the rounds, of
    their medians and means. CPU time of the thread without reading the clocks; for saving, which
    does not wait, wall time too."""
    model = _Chain(max(1, min(TENSORS, BYTES_MAX // length_bytes)))
    x = torch.randn(length_bytes // 4, dtype=torch.float32, device="cpu", requires_grad=True)
    clocks = _cost_of_clocks(model, x)
    found = []
    for _ in range(rounds + 1):  # the first round warms up
        off = spillway.torch.offload(model, store, mode="spill")
        found.append(_timed_step(off, model, x, clocks))
        off.close()
    return _medians(found[1:])


def layer_times(store: Any, rounds: int = 5) -> Dict[str, float]:
    """The same for the layers of a transformer, offloaded with the default mode: steps that
    follow a plan are timed."""
    model = _Layers()
    x = torch.randn(BATCH, SEQUENCE, HIDDEN, dtype=torch.float32, device="cpu",
                    requires_grad=True)
    clocks = _cost_of_clocks(model, x)
    off = spillway.torch.offload(model, store)
    found = [_timed_step(off, model, x, clocks) for _ in range(UNTIMED + rounds)]
    off.close()
    return _medians(found[UNTIMED:])


def _step_ns(model: nn.Module, x: torch.Tensor, context: Any) -> int:
    began = time.thread_time_ns()
    with context:
        model(x).sum().backward()
    took = time.thread_time_ns() - began
    x.grad = None
    return took


def pair_times(store: Any, rounds: int = 40) -> Dict[str, float]:
    """CPU time to save and use a tensor, in microseconds: of a pair of hooks that do nothing, and
    how many times that it is for a tensor that is kept, and for one that is spilled. And what a
    step of these tensors takes when it rests, of one without hooks. Of whole steps, in turn, of
    each way the fastest quarter."""
    model = _Chain(TENSORS)
    x = torch.randn(SHORT_BYTES // 4, dtype=torch.float32, device="cpu", requires_grad=True)
    with contextlib.ExitStack() as stack:

        def offload(module: nn.Module, **options: Any) -> Any:
            sizes = spillway.torch.Sizes(min_bytes=SHORT_BYTES)
            off = spillway.torch.offload(module, store, sizes=sizes, **options)
            stack.callback(off.close)
            return off

        rests = offload(model, mode="budget", budget_bytes=BYTES_MAX)
        # Of a model that is not called, so that no step rests.
        keeps = offload(nn.Module(), mode="budget", budget_bytes=BYTES_MAX)
        spills = offload(nn.Module(), mode="spill")
        contexts: Dict[str, Callable[[], Any]] = {
            "none": contextlib.nullcontext,
            "pair": lambda: torch.autograd.graph.saved_tensors_hooks(_itself, _itself),
            "kept": lambda: keeps, "spilled": lambda: spills, "rests": lambda: rests,
        }
        took: Dict[str, List[int]] = {name: [] for name in contexts}
        for _ in range(RESTING + rounds):
            for name, context in contexts.items():
                took[name].append(_step_ns(model, x, context()))
    fastest = {name: statistics.mean(sorted(each[RESTING:])[:max(1, rounds // 4)])
               for name, each in took.items()}
    pair = fastest["pair"] - fastest["none"]
    return {"pair_us": pair / TENSORS / 1000,
            **{f"{way}_of_pair": (fastest[way] - fastest["none"]) / pair
               for way in ("kept", "spilled")},
            "rests_of_none": fastest["rests"] / fastest["none"]}


def main(drives: Sequence[str]) -> int:
    names = [name for drive in drives for name in drive.split(",")]
    if not names or names[0].startswith("-"):
        asked = names[:1] in (["-h"], ["--help"])
        print(__doc__, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    try:
        with spillway.Store(names) as store:
            for length in LENGTHS:
                row = {"name": f"{length >> 10:,} KiB", "length_bytes": length,
                       **hook_times(store, 5, length)}
                print(json.dumps(row), flush=True)
            row = {"name": f"{LAYERS} layers, hidden {HIDDEN}", **layer_times(store)}
            print(json.dumps(row), flush=True)
            row = {"name": f"{TENSORS} of {SHORT_BYTES >> 10} KiB", **pair_times(store)}
            print(json.dumps(row), flush=True)
    except OSError as error:  # SpillwayError is a subclass
        print(f"hooks: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    with exits_on(signal.SIGINT, signal.SIGTERM):
        sys.exit(main(sys.argv[1:]))
