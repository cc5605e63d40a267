# SPDX-License-Identifier: MIT
# python/examples/ranks.py - examples with several processes: their start, stores, one result
from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from typing import Any, Callable, Dict

import torch
import torch.distributed as dist
import torch.multiprocessing

from common import arguments, ends_on_signals, write_result

Run = Callable[[argparse.Namespace, int, int], Dict[str, Any]]


def _one(rank: int, world: int, meeting: str, name: str, run: Run,
         args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    try:
        mine = run(args, rank, world)
    except (OSError, ValueError) as error:  # a SpillwayError is an OSError
        print(f"{name}: rank {rank}: {error}", file=sys.stderr)
        os._exit(1)  # the others wait for this one: their launcher ends them
    results = [None] * world
    dist.all_gather_object(results, mine)
    if rank == 0:
        write_result(args, name, {"ranks": results})
    dist.destroy_process_group()


def main(name: str, description: str, run: Run, ranks: int) -> int:
    """run(args, rank, world) in every process, started here or by torchrun. Drives are shared: each
    rank has a partition of its own (spillway format --partitions)."""
    args = arguments(description, ranks=ranks)
    if "RANK" in os.environ:
        with ends_on_signals(args.mode):
            _one(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", name, run, args)
        return 0
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    processes: Any = torch.multiprocessing  # which says no types
    with tempfile.TemporaryDirectory() as folder:
        try:
            # in every rank: what is open is closed
            signal.signal(signal.SIGINT, signal.default_int_handler)
            given = args.ranks, f"file://{folder}/meeting", name, run, args
            processes.start_processes(_one, given, args.ranks, start_method="fork")
        except (processes.ProcessExitedException, processes.ProcessRaisedException) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print(f"{name}: interrupted", file=sys.stderr)
            return 130
    return 0
