# SPDX-License-Identifier: MIT
# python/examples/ranks.py - what the examples with several processes share: starting them, their stores, one result
from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from typing import Any, Callable, Dict, Iterator

import torch
import torch.distributed as dist
import torch.multiprocessing

import spillway
from common import arguments, write_result
from spillway.demo.train import ends_on_signals

Run = Callable[[argparse.Namespace, int, int], Dict[str, Any]]


@contextlib.contextmanager
def store_of(args: argparse.Namespace, rank: int) -> Iterator[Any]:
    """The drives are shared: each rank has a partition of its own (spillway format --partitions)."""
    if args.mode != "spillway":
        yield None
        return
    with spillway.Store(args.devices.split(","), partition=rank, arena_bytes=args.arena_bytes) as store:
        yield store


def _one(rank: int, world: int, meeting: str, name: str, run: Run, args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    try:
        mine = run(args, rank, world)
    except (OSError, ValueError) as error:  # a SpillwayError is an OSError
        print(f"{name}: rank {rank}: {error}", file=sys.stderr)
        os._exit(1)  # the others wait for this one: whoever started them ends them
    results = [None] * world
    dist.all_gather_object(results, mine)
    if rank == 0:
        write_result(args, name, {"ranks": results})
    dist.destroy_process_group()


def main(name: str, description: str, run: Run, ranks: int) -> int:
    """run(args, rank, world) in every process, started here or by torchrun."""
    args = arguments(description, ranks=ranks)
    if "RANK" in os.environ:
        with ends_on_signals(args.mode):
            _one(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", name, run, args)
        return 0
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # in every rank: what is open is closed
            torch.multiprocessing.start_processes(
                _one, (args.ranks, f"file://{folder}/meeting", name, run, args), args.ranks, start_method="fork"
            )
        except (torch.multiprocessing.ProcessExitedException, torch.multiprocessing.ProcessRaisedException) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print(f"{name}: interrupted", file=sys.stderr)
            return 130
    return 0
