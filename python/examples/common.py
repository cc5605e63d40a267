# SPDX-License-Identifier: MIT
# python/examples/common.py - what the examples share: options, attention, training loop, JSON
"""Nothing in the models knows of spillway, and of the loop one line does, `with watched:`. The rest
of it that is not plain PyTorch measures."""
from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import spillway
import spillway.torch as st
from gradients import POLICIES, Stepper
from spillway.cache import CacheStats
from spillway.demo.data import text_in, tokens_of
from spillway.demo.ending import exits_on
from spillway.demo.memory import RssPeaks, rss_peak_bytes

MODES = ("keep", "recompute", "spillway")
IGNORED = -100  # a target that does not count
Batches = Iterator[Tuple[Tuple[Tensor, ...], Tensor]]


class Attention(nn.Module):
    """Of x to x, or to the memory of an encoder; mask is added to the scores, or None."""

    def __init__(self, hidden: int, heads: int, bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden, hidden, bias)
        self.key_value = nn.Linear(hidden, 2 * hidden, bias)
        self.out = nn.Linear(hidden, hidden, bias)

    def forward(self, x: Tensor, memory: Tensor, mask: Any) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(x), *self.key_value(memory).chunk(2, -1))
        )
        weights = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if mask is not None:
            weights = weights + mask  # one name for all: what comes before is gone
        weights = weights.softmax(-1)
        mixed: Tensor = self.out((weights @ v).transpose(1, 2).flatten(2))
        return mixed


class FeedForward(nn.Module):
    """What becomes of each token by itself."""

    def __init__(self, hidden: int, activation: Callable[[Tensor], Tensor],
                 bias: bool = True) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, 4 * hidden, bias)
        self.down = nn.Linear(4 * hidden, hidden, bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(self.activation(self.up(x)))
        return result


def run_block(block: nn.Module, recompute: bool, *inputs: Any) -> Tensor:
    """The block, or in mode recompute a checkpoint: only its inputs are kept, and the backward pass
    recomputes it."""
    result: Tensor = (
        checkpoint(block, *inputs, use_reentrant=True) if recompute else block(*inputs))
    return result


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def cuts_of(text: Tensor, batch: int, length: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Endless random pieces of the text; the same for the same seed."""
    while True:
        starts = torch.randint(len(text) - length, (batch,), generator=generator).tolist()
        yield torch.stack([text[start : start + length] for start in starts])


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def arguments(description: str, argv: Any = None, ranks: int = 0) -> argparse.Namespace:
    """ranks: how many processes an example for several starts by default; 0: it runs in this
    one."""
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--mode", choices=MODES, default="keep", help="what becomes of activations (keep)")
    option("--layers", type=positive, default=12)
    option("--hidden", type=positive, default=768)
    option("--heads", type=positive, help="(one for 64 of hidden)")
    option("--sequence", type=positive, default=512, help="tokens (512)")
    option("--batch", type=positive, default=4, help="sequences in a micro-batch (4)")
    option("--micro-batches", type=positive, default=1, help="per step; their gradients add up (1)")
    option("--steps", type=positive, default=6)
    option("--dropout", type=float, default=0.0)
    option("--seed", type=int, default=20)
    option("--threads", type=positive,
           default=os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
    option("--text", type=Path, default=Path(__file__).resolve().parents[2],
           help="file or folder to train on")
    option("--devices", default="",
           help="mode spillway: the store's drives, separated by commas (spillway format)")
    option("--cache", default=None,
           help="how the tensor cache decides: see spillway.torch.offload's mode")
    option("--budget-bytes", type=positive, help="with --cache budget: memory for activations")
    option("--recompute", choices=("never", "operations", "auto"), default="never",
           help="mode spillway: recompute single operations, or also scopes where that costs less; "
           "then it needs no --devices (never)")
    option("--partition", type=int, default=0,
           help="mode spillway: of a store that several programs share (0)")
    option("--arena-bytes", type=positive,
           help="DMA memory of the store; all of it is resident (as spillway.Store has it)")
    option("--prefetch-bytes", type=positive, help="most bytes prefetched")
    option("--record", metavar="FILE",
           help="record a trace of the tensor cache, for `spillway plan`")
    option("--json", nargs="?", const="-", metavar="FILE",
           help="what was measured, as JSON (standard output)")
    option("--gradients", action="store_true",
           help="a checksum of every step's gradients, in the JSON")
    policies = "; ".join(f"{name}: {words}" for name, words in POLICIES.items())
    option("--grad-memory", choices=list(POLICIES), default="freed",
           help=f"what becomes of gradients; {policies}")
    option("--turns", action="store_true",
           help="begin each step when a line comes on standard input: to run several side by side")
    if ranks:
        option("--ranks", type=positive, default=ranks,
               help=f"processes to start, if torchrun has not ({ranks})")
    args = parser.parse_args(argv)
    args.heads = args.heads or max(1, args.hidden // 64)
    if args.mode == "spillway" and not args.devices and args.recompute == "never":
        parser.error("--mode spillway needs --devices")
    if args.hidden % args.heads:
        parser.error("--hidden must be a multiple of --heads")
    if args.json not in (None, "-"):
        try:
            open(args.json, "a", encoding="ascii").close()  # now, not when all steps are done
        except OSError as error:
            parser.error(f"--json: {error}")
    return args


def trainer_options(description: Optional[str]) -> argparse.ArgumentParser:
    """Of the examples under the trainers of others."""
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--devices", help="of a store, separated by commas; without, nothing is spilled")
    option("--layers", type=positive, default=8)
    option("--hidden", type=positive, default=256, help="a multiple of 64 (256)")
    option("--sequence", type=positive, default=512, help="tokens (512)")
    option("--batch", type=positive, default=4)
    option("--steps", type=positive, default=20)
    option("--text", type=Path, default=Path(__file__).resolve().parents[2],
           help="file or folder to train on")
    return parser


def run(name: str, train: Callable[[], None]) -> int:
    """The exit code of one of them; if drives end it, a line says why."""
    try:
        train()
    except spillway.SpillwayError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    return 0


def gpt_options(description: Optional[str]) -> argparse.Namespace:
    """Of those that train the GPT of gpt.py."""
    args = trainer_options(description).parse_args()
    args.heads, args.dropout, args.mode = args.hidden // 64, 0.0, "keep"
    return args


def say_activations(stats: CacheStats) -> None:
    print(f"activations: {stats.activation_bytes_max >> 20} MiB in memory at most, "
          f"{stats.bytes_spilled >> 20} MiB written")


def text_of(args: argparse.Namespace) -> Tensor:
    return tokens_of(text_in(args.text), 4 * args.sequence)


def offload_of(args: argparse.Namespace, model: nn.Module, store: Any) -> Any:
    """In modes keep and recompute the cache only watches: it is the yardstick for activations in
    all modes."""
    mode: st.Mode = "observe"
    if args.mode == "spillway":
        mode = args.cache or "fastest"
    return st.offload(model, store, mode=mode, budget_bytes=args.budget_bytes,
                      sizes=st.Sizes(prefetch_bytes=args.prefetch_bytes), record=args.record,
                      recompute=args.recompute)


@contextlib.contextmanager
def open_store(args: argparse.Namespace,
               partition: Optional[int] = None) -> Iterator[Optional[spillway.Store]]:
    """None where nothing is spilled."""
    partition = args.partition if partition is None else partition
    if args.mode != "spillway" or not args.devices:
        yield None
        return
    drives = args.devices.split(",")
    with spillway.Store(drives, partition=partition, arena_bytes=args.arena_bytes) as store:
        yield store


def losses_of(losses: List[float]) -> Dict[str, Any]:
    """In JSON's decimals, and as they are compared: to the last bit."""
    return {"losses": losses, "losses_hex": [loss.hex() for loss in losses]}


def result_of(args: argparse.Namespace, off: Any, store: Any) -> Dict[str, Any]:
    stats = off.stats()
    result: Dict[str, Any] = {
        "activation_peak_bytes": stats.activation_bytes_max,
        "rss_peak_bytes": rss_peak_bytes(),
        "tokens_per_step": args.batch * args.micro_batches * args.sequence,
    }
    if args.mode == "spillway":
        names = "bytes_spilled", "bytes_read", "bytes_forwarded", "bytes_deduplicated"
        result.update({name: getattr(stats, name) for name in (*names, "stall_seconds")})
        result["cache"] = {name: getattr(stats, name) for name in stats.__dataclass_fields__}
    if store is not None:
        result.update(
            io=store.description,
            drives=[{name: getattr(drive, name) for name in ("path", "bytes_written", "bytes_read")}
                    for drive in store.drive_stats()],
        )
    return result


class Meter:
    """What each step took, phase by phase, and its peaks of memory."""

    def __init__(self, off: Any, stepper: Stepper) -> None:
        self._off, self._stepper = off, stepper
        self._rss = RssPeaks()
        self._steps: Dict[str, List[float]] = {}
        self._of_cache: List[Dict[str, Any]] = []
        self._before = off.stats()

    def begin(self) -> None:
        self._phases = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0}
        self._since = time.perf_counter()
        self._cpu = time.process_time()
        self._faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        self._stepper.checksum_seconds()

    def end(self, phase: str) -> None:
        """The phase ends; what checksums took in it does not count."""
        checksums = self._stepper.checksum_seconds()
        self._phases[phase] += time.perf_counter() - self._since - checksums
        self._cpu += checksums
        self._rss.end(phase)
        self._since = time.perf_counter()

    def skip(self) -> None:
        """Leave out the time since the phase ended."""
        self._cpu += self._stepper.checksum_seconds()
        self._since = time.perf_counter()

    def end_step(self, watched: bool) -> float:
        """The seconds of the step."""
        total = sum(self._phases.values())
        found = {f"step_{name}_seconds": seconds for name, seconds in self._phases.items()}
        found.update(step_seconds=total, step_cpu_seconds=time.process_time() - self._cpu,
                     step_page_faults=resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                     - self._faults)
        for name, value in found.items():
            self._steps.setdefault(name, []).append(value)
        if watched:
            stats, before = self._off.stats(), self._before
            self._of_cache.append({
                "activation_peak_bytes": stats.activation_bytes_max,
                "plan_peak_bytes": stats.plan_peak_bytes,
                "plan_seconds": stats.plan_wall_ns / 1e9,
                "plan_scopes_again": stats.plan_scopes_again,
                "stall_seconds": stats.stall_seconds - before.stall_seconds,
                **{name: getattr(stats, name) - getattr(before, name)
                   for name in ("bytes_spilled", "bytes_read", "bytes_forwarded")},
            })
            self._before = stats
            self._off.reset_peak()
        return total

    def ended(self) -> None:
        """The step has ended for the cache, too, and the next one has not begun: what it took by
        the clock of its plans, to which checksums are compute."""
        stats = self._off.stats()
        self._of_cache[-1]["seconds"] = (stats.step_compute_ns + stats.step_stall_ns
                                         + stats.step_hold_ns + stats.step_again_ns) / 1e9

    def result(self) -> Dict[str, Any]:
        return {
            **self._steps,
            "steps": self._of_cache,
            "activation_peak_bytes": max(step["activation_peak_bytes"] for step in self._of_cache),
            "rss_peak_bytes": self._rss.most,
            "rss_phase_peak_bytes": self._rss.phases(),
        }


def train(args: argparse.Namespace, model: nn.Module, batches: Batches,
          store: Any) -> Dict[str, Any]:
    stepper = Stepper(model, args.grad_memory, args.gradients)
    off = offload_of(args, model, store)
    # Plain training is watched in its first step, which is not timed, or as long as it is recorded.
    watched_steps = args.steps if args.mode == "spillway" or args.record else 1
    meter, losses = Meter(off, stepper), []
    for step in range(args.steps):
        parts = [next(batches) for _ in range(args.micro_batches)]
        watched = off if step < watched_steps else contextlib.nullcontext()
        total = 0.0
        if args.turns:
            sys.stdin.readline()
        meter.begin()
        with watched:
            if step < watched_steps:
                off.step()
            for number, (inputs, targets) in enumerate(parts, 1):
                stepper.last = number == len(parts)
                loss = loss_of(model(*inputs), targets) / args.micro_batches
                meter.end("forward")
                loss.backward()
                total += loss.item()
                meter.end("backward")
        stepper.note()
        meter.skip()
        stepper.step()
        del loss
        meter.end("optimizer")
        seconds = meter.end_step(step < watched_steps)
        if args.turns and step < watched_steps:
            off.step()  # while it waits for its turn it does not train
            meter.ended()
        losses.append(total)
        print(f"  {args.mode:9s}  step {step + 1}/{args.steps}  loss {total:.4f}  {seconds:.2f} s",
              file=sys.stderr)
    result = {**result_of(args, off, store), **meter.result(), **losses_of(losses)}
    if args.gradients:
        result["gradients_sha256"] = stepper.hexdigests[-1]
        result["step_gradients_sha256"] = stepper.hexdigests
    off.close()
    return result


def write_result(args: argparse.Namespace, name: str, result: Dict[str, Any]) -> None:
    options = {key: value if isinstance(value, (int, float, str, type(None))) else str(value)
               for key, value in vars(args).items()}
    result.update(model=name, mode=args.mode, options=options, threads=args.threads,
                  torch=torch.__version__)
    if args.json == "-":
        print(json.dumps(result))
    elif args.json:
        Path(args.json).write_text(json.dumps(result))


def ends_on_signals(mode: str) -> ContextManager[None]:
    """Ctrl-C and SIGTERM end a training without a traceback; without a store, where there is
    nothing to close, at once."""
    if mode == "spillway":
        return exits_on(signal.SIGINT, signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return contextlib.nullcontext()


def main(name: str, description: str, model_of: Callable[..., nn.Module],
         batches_of: Callable[..., Batches], argv: Any = None) -> int:
    """Train and tell. model_of(args); batches_of(args, text, generator) gives (inputs, targets)."""
    args = arguments(description, argv)
    torch.set_num_threads(args.threads)
    try:
        with ends_on_signals(args.mode):
            text = text_of(args)
            torch.manual_seed(args.seed)
            model = model_of(args)
            batches = batches_of(args, text, torch.Generator().manual_seed(args.seed))
            with open_store(args) as store:
                result = train(args, model, batches, store)
    except (OSError, ValueError) as error:  # a SpillwayError is an OSError
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    write_result(args, name, result)
    return 0
