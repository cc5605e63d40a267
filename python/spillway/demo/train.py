# SPDX-License-Identifier: MIT
# spillway/demo/train.py - trains the GPT in one mode, in its own process, and writes what it saw as JSON
"""The three modes run the same code on the same numbers; they differ in what becomes of the activations.

Activations are measured with the same yardstick in all modes: the tensor cache. In keep and recompute it only watches,
and only in the first step, which is not timed: the later steps are plain PyTorch.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, ContextManager, Dict, Iterator, List

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is open while PyTorch is loaded: no traceback

import torch

import spillway
import spillway.torch

from .data import batches, tokens_of
from .ending import exits_on
from .memory import rss_peak_bytes
from .model import GPT, Config, loss_of


@contextlib.contextmanager
def open_store(args: argparse.Namespace) -> Iterator[Any]:
    if args.mode != "spillway":
        yield None
        return
    with spillway.Store(args.devices.split(","), arena_bytes=args.arena_bytes) as store:
        yield store


def train(args: argparse.Namespace, store: Any) -> Dict[str, Any]:
    config = Config(args.layers, args.hidden, args.heads, args.sequence)
    torch.manual_seed(args.seed)
    model = GPT(config, recompute=args.mode == "recompute")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    source = batches(tokens_of(args.text.read_bytes(), 4 * args.sequence), args.batch, args.sequence, args.seed)
    watched_steps = args.steps if store is not None else args.watched_steps
    off = spillway.torch.offload(
        model,
        store,
        mode="observe" if store is None else "spill",
        staging_bytes=args.staging_bytes,
        prefetch_bytes=args.prefetch_bytes,
    )
    losses: List[float] = []
    seconds: List[float] = []
    cpu: List[float] = []
    for step in range(args.steps):
        tokens, targets = next(source)
        began, cpu_began = time.perf_counter(), time.process_time()
        with off if step < watched_steps else contextlib.nullcontext():
            loss = loss_of(model(tokens), targets)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        del loss
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - cpu_began)
        progress(args, f"step {step + 1}/{args.steps}  loss {losses[-1]:.4f}  {seconds[-1]:.2f} s")
    return {**result_of(args, off, store), "step_seconds": seconds, "step_cpu_seconds": cpu, **losses_of(losses)}


def losses_of(losses: List[float]) -> Dict[str, Any]:
    """In JSON's decimals, and as they are compared: to the last bit."""
    return {"losses": losses, "losses_hex": [loss.hex() for loss in losses]}


def result_of(args: argparse.Namespace, off: Any, store: Any) -> Dict[str, Any]:
    stats = off.stats()
    result: Dict[str, Any] = {
        "activation_peak_bytes": stats.activation_bytes_max,
        "rss_peak_bytes": rss_peak_bytes(),
        "tokens_per_step": args.batch * args.sequence,
    }
    if store is not None:
        result.update(
            bytes_spilled=stats.bytes_spilled,
            bytes_read=stats.bytes_read,
            bytes_forwarded=stats.bytes_forwarded,
            bytes_deduplicated=stats.bytes_deduplicated,
            stall_seconds=stats.stall_seconds,
            cache={name: getattr(stats, name) for name in stats.__dataclass_fields__},
            io=store.description,
            drives=[
                {"path": drive.path, "bytes_written": drive.bytes_written, "bytes_read": drive.bytes_read}
                for drive in store.drive_stats()
            ],
        )
    return result


def progress(args: argparse.Namespace, text: str) -> None:
    """One line that rewrites itself on a terminal, else a line per step."""
    end = "" if sys.stdout.isatty() else "\n"
    start = "\r\033[K" if sys.stdout.isatty() else ""
    print(f"{start}  {args.mode:9s}  {text}", end=end, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m spillway.demo.train", description=__doc__)
    parser.add_argument("--mode", choices=("keep", "recompute", "spillway"), required=True)
    parser.add_argument("--devices", default="", help="the store's drives, separated by commas (mode spillway)")
    parser.add_argument("--json", type=Path, required=True, help="file for the result")
    parser.add_argument("--text", type=Path, required=True, help="file to train on, as bytes")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
    parser.add_argument("--arena-bytes", type=int, help="DMA memory of the store; all of it is resident (as spillway.Store has it)")
    parser.add_argument("--staging-bytes", type=int, help="most bytes that wait to be written")
    parser.add_argument("--prefetch-bytes", type=int, help="most bytes read ahead")
    parser.add_argument("--watched-steps", type=int, default=1, help="in keep and recompute: steps measured")
    args = parser.parse_args()
    if args.mode == "spillway" and not args.devices:
        parser.error("--mode spillway needs --devices")
    if args.steps < 2 or args.layers < 1 or args.hidden % args.heads:
        parser.error("--steps must be at least 2, --layers at least 1, --hidden a multiple of --heads")
    return args


def ends_on_signals(mode: str) -> ContextManager[None]:
    """Ctrl-C and SIGTERM end a training without a traceback; without a store, where there is nothing to close, at once."""
    if mode == "spillway":
        return exits_on(signal.SIGINT, signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return contextlib.nullcontext()


def main() -> int:
    args = arguments()
    torch.set_num_threads(args.threads)
    try:
        with ends_on_signals(args.mode), open_store(args) as store:
            result = train(args, store)
    except (OSError, ValueError) as error:  # a SpillwayError is an OSError
        print(f"demo: {error}", file=sys.stderr)
        return 1
    result["threads"] = args.threads
    result["torch"] = torch.__version__
    args.json.write_text(json.dumps(result))
    if sys.stdout.isatty():
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
