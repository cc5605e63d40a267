#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/bench/state.py - an optimizer whose state is on drives, and parameters that are, against the
# same in memory and against what the drives give
"""Called by `make bench-state`. Needs root: the drives are a rig of loop devices. Each round makes
new ones, asks fio how fast they read and write at once, and then has AdamW step in memory and over
the store in turn, a step each: the same parameters, the same gradients, and at the end the same
bits. What a step over the store can take at least is the longer of two: its bytes at fio's
bandwidth, and the step in memory. Commits are compared with torch.save() and fsync() to a file
system over the same drives. The rows of parameters are in parameters.py. Writes
BUILD/bench/state.json."""

import argparse
import concurrent.futures
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python"))

import parameters  # noqa: E402
from rig import Rig, call  # noqa: E402
from rounds import Rows, fio  # noqa: E402
from shapes import AtLeast, busy_seconds, elements_of, shapes_of, size_of_drives  # noqa: E402
from spillway.bench import blas, results  # noqa: E402
from spillway.demo.ending import exits_on  # noqa: E402

STEPS_UNTIMED = 2  # the first has nothing to read, the second no order that was seen
STEPS_TIMED = 4
GOAL = 1.1
# name, drives, which masters
CASES = {
    "throttled": (dict(drives=4, write=500, read=600), None),
    "file-backed": (dict(drives=4, on="/var/tmp"), None),
    "one of four at a quarter": (dict(drives=4, write="500,500,125,500",
                                      read="600,600,150,600"), None),
    "masters, throttled": (dict(drives=4, write=500, read=600), "whole"),
    "compact masters, throttled": (dict(drives=4, write=500, read=600), "compact"),
}
MASTERS = {None: False, "whole": True, "compact": "compact"}
# Matrices by Muon, whole, and vectors by AdamW: a quarter of the parameters, which take longer.
MUON = {"Muon and AdamW, throttled": dict(drives=4, write=500, read=600)}
# Larger ones, a record each, would fit into the memory that four records take at least.
MUON_HIDDEN = 512


# ---- In a process of its own, at the drives' speed -----------------------------------------------

def both_classes(params):
    """Groups of spillway's optimizer, and PyTorch's two."""
    import torch

    matrices = [param for param in params if param.dim() == 2]
    vectors = [param for param in params if param.dim() != 2]
    groups = [{"params": matrices, "optimizer_class": torch.optim.Muon}, {"params": vectors}]
    return groups, lambda: (torch.optim.Muon(matrices, lr=1e-3),
                            torch.optim.AdamW(vectors, lr=1e-3, foreach=False))


def steps_in_turn(args):
    import torch

    import spillway
    import spillway.torch

    dtype = torch.bfloat16 if args.masters else torch.float32
    generator = torch.Generator().manual_seed(1)
    stored = [torch.nn.Parameter((torch.rand(shape, generator=generator) - 0.5).to(dtype))
              for shape in shapes_of(args.elements, args.hidden)]
    gradients = [(torch.rand(param.shape, generator=generator) - 0.5).to(dtype) for param in stored]
    kept = [torch.nn.Parameter(param.detach().float()) for param in stored]
    groups = stored
    if args.muon:
        groups, _ = both_classes(stored)
        in_memory = both_classes(kept)[1]()
    else:
        in_memory = [torch.optim.AdamW(kept, lr=1e-3, foreach=False)]
    elements = sum(param.numel() for param in stored)
    with spillway.Store(args.devices.split(","), arena_bytes=args.arena) as store:
        optimizer = spillway.torch.Optimizer(torch.optim.AdamW, groups, store, lr=1e-3,
                                             masters=MASTERS[args.masters], memory=args.memory)
        times, busy = {"memory": [], "store": []}, []
        rounded = [param.detach().clone() for param in stored]
        for param, gradient in zip(kept, gradients):
            param.grad = gradient.to(param.dtype)

        def step_all():
            for one in in_memory:
                one.step()

        def step_in_memory():
            # Of masters: the gradient as they are, and what they come to as the model has it. No
            # memory is allocated for it: fresh pages would make the reference slow.
            for param, gradient in zip(kept, gradients):
                param.grad.copy_(gradient)
            step_all()
            for param, copy in zip(kept, rounded):
                copy.copy_(param.detach())

        for step in range(STEPS_UNTIMED + STEPS_TIMED):
            for param, gradient in zip(stored, gradients):
                param.grad = gradient
            before = optimizer.stats()
            for name, one in (("memory", step_in_memory if args.masters else step_all),
                              ("store", optimizer.step)):
                begun, busy_begun = time.perf_counter(), busy_seconds()
                one()
                times[name].append(time.perf_counter() - begun)
            busy.append(busy_seconds() - busy_begun)
            after = optimizer.stats()
        same = all(torch.equal(a.detach(), b.detach().to(dtype)) for a, b in zip(stored, kept))
        print(json.dumps({
            "elements": elements, "same": same, "memory_bytes": after.memory_bytes,
            "total_bytes": after.total_bytes, "wait_ns": after.wait_ns - before.wait_ns,
            "takes": after.takes - before.takes, "hits": after.hits - before.hits,
            "bytes_read": after.bytes_read - before.bytes_read,
            "bytes_written": after.bytes_written - before.bytes_written,
            "busy": statistics.median(busy[STEPS_UNTIMED:]),
            **{name: found[STEPS_UNTIMED:] for name, found in times.items()}}))


def train_in_turn(args):
    """Whole steps of the example's GPT: AdamW in memory, and over the store in backward."""
    import torch

    import spillway
    import spillway.torch

    sys.path.insert(0, str(ROOT / "python/examples"))
    import gpt

    shape = argparse.Namespace(mode="keep", hidden=768, heads=12, layers=args.layers, sequence=512,
                               dropout=0.0)
    models = []
    for _ in range(2):
        torch.manual_seed(1)
        models.append(gpt.GPT(shape))
    alive = [0]

    def watch(param):
        gradients = sum(p.grad.numel() for p in models[1].parameters()
                        if type(p.grad) is torch.Tensor)
        alive[0] = max(alive[0], gradients * param.element_size())

    for param in models[1].parameters():
        param.register_post_accumulate_grad_hook(watch)
    with spillway.Store(args.devices.split(","), arena_bytes=args.arena) as store:
        optimizers = [torch.optim.AdamW(models[0].parameters(), lr=1e-3, foreach=False),
                      spillway.torch.Optimizer(torch.optim.AdamW, models[1].parameters(), store,
                                               lr=1e-3, in_backward=True, memory=args.memory)]
        times, busy, losses = [[], []], [[], []], [[], []]
        for step in range(STEPS_UNTIMED + 2 * STEPS_TIMED):
            torch.manual_seed(step)
            tokens = torch.randint(0, 256, (4, 513))
            for which in (0, 1) if step % 2 else (1, 0):
                begun, busy_begun = time.perf_counter(), busy_seconds()
                out = models[which](tokens[:, :-1])
                loss = torch.nn.functional.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten())
                loss.backward()
                optimizers[which].step()
                optimizers[which].zero_grad()
                times[which].append(time.perf_counter() - begun)
                busy[which].append(busy_seconds() - busy_begun)
                losses[which].append(loss.item())
    block = sum(p.numel() * p.element_size() for p in models[1].blocks[0].parameters())
    print(json.dumps({"same": losses[0] == losses[1], "memory": times[0][STEPS_UNTIMED:],
                      "store": times[1][STEPS_UNTIMED:],
                      "busy": [statistics.median(found[STEPS_UNTIMED:]) for found in busy],
                      "gradients": alive[0], "block": block,
                      "elements": sum(p.numel() for p in models[1].parameters())}))


def gradients_in_turn(args):
    """Masters and gradients of float32, both on drives: bytes from one step to the next."""
    import torch

    import spillway
    import spillway.torch

    def params():
        made = [torch.nn.Parameter(torch.full(shape, 0.5, dtype=torch.bfloat16))
                for shape in shapes_of(args.elements)]
        for param in made if hasattr(torch.Tensor, "grad_dtype") else ():
            param.grad_dtype = torch.float32
        return made

    def backward(of):
        torch.autograd.backward([param.float().sum() * (number % 7 - 3.0)
                                 for number, param in enumerate(of)])

    stored, kept = params(), params()
    masters = [torch.nn.Parameter(param.detach().float()) for param in kept]
    in_memory = torch.optim.AdamW(masters, lr=1e-3, foreach=False)
    with spillway.Store(args.devices.split(","), arena_bytes=args.arena) as store:
        optimizer = spillway.torch.Optimizer(torch.optim.AdamW, stored, store, lr=1e-3,
                                             masters=True, gradients=True, memory=args.memory)
        for _ in range(STEPS_UNTIMED + 1):
            before = optimizer.stats()
            backward(stored)
            norm = torch.nn.utils.clip_grad_norm_(stored, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            after = optimizer.stats()
            backward(kept)
            same = torch.equal(norm, torch.nn.utils.clip_grad_norm_(kept, 1.0))
            for master, param in zip(masters, kept):
                master.grad, param.grad = param.grad.float(), None
            in_memory.step()
            for master, param in zip(masters, kept):
                param.detach().copy_(master)
        same = same and all(map(torch.equal, stored, kept))
    print(json.dumps({
        "same": same, "elements": sum(param.numel() for param in stored),
        "gradient": str(getattr(stored[0], "grad_dtype", stored[0].dtype)).partition(".")[2],
        "read": after.bytes_read - before.bytes_read,
        "written": after.bytes_written - before.bytes_written}))


def commit_in_turn(args):
    """The pause of a commit, and torch.save() of the same state into a folder."""
    import torch

    import spillway
    import spillway.torch

    dtype = torch.bfloat16 if args.masters else torch.float32
    stored = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype))
              for shape in shapes_of(args.elements)]
    for param in stored:
        param.grad = torch.full_like(param, 0.5)
    with spillway.Store(args.devices.split(","), arena_bytes=args.arena) as store:
        optimizer = spillway.torch.Optimizer(torch.optim.AdamW, stored, store, lr=1e-3,
                                             masters=MASTERS[args.masters], memory=args.memory)
        optimizer.step()
        optimizer.commit()
        optimizer.step()
        begun = time.perf_counter()
        optimizer.commit()
        pause = time.perf_counter() - begun
        stats = optimizer.stats()
        optimizer.close()
    print(json.dumps({"commit": pause, "state_bytes": stats.total_bytes,
                      "written": stats.commit_bytes_written,
                      "parameters": sum(p.numel() * p.element_size() for p in stored)}))


def save(args):
    """The same state by torch.save() and fsync(): a part on each drive, all at once."""
    import torch

    folders = args.folders.split(",")
    part = [torch.ones(args.elements // len(folders)) for _ in range(3)]

    def save_part(folder):
        path = Path(folder, "state.pt")
        with open(path, "wb") as file:
            torch.save(part, file)
            file.flush()
            os.fsync(file.fileno())
        return path.stat().st_size

    begun = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(len(folders)) as pool:
        written = sum(pool.map(save_part, folders))
    print(json.dumps({"save": time.perf_counter() - begun, "bytes": written}))


# ---- Rounds --------------------------------------------------------------------------------------

class Bench:
    def __init__(self, args):
        self.args = args
        self.build = Path(args.build).resolve()
        self.found = Rows()
        self.left_out = []  # in words
        self.environment = {"PYTHONPATH": str(ROOT / "python"), "PYTHONDONTWRITEBYTECODE": "1",
                            "SPILLWAY_LIBRARY": str(self.build / "libspillway.so")}
        os.environ.update(self.environment)

    def note(self, row, value):
        """:param row: case, what, unit and goal"""
        case, what, unit, goal = row
        goals = {"at_least": goal.value} if isinstance(goal, AtLeast) else {"at_most": goal}
        self.found.note(f"{case}: {what}", value, unit, ["make bench-state"], **goals)

    def bandwidth(self, rig, *pattern):
        """Bytes per second that all drives move at once, by the best of two sizes."""
        best = 0
        for size in ("128k", "1m"):
            jobs, _ = fio(rig, *pattern, f"--bs={size}", "--iodepth=16", seconds=4)
            best = max(best, sum(job["read"]["bw_bytes"] + job["write"]["bw_bytes"]
                                 for job in jobs))
        return best

    def worker(self, rig, what, masters, elements, *more):
        command = [sys.executable, __file__, "--worker", what, "--devices", ",".join(rig.drives),
                   "--elements", str(elements), *(["--masters", masters] if masters else []), *more]
        if self.args.memory is not None:
            command += ["--memory", str(self.args.memory)]
        return json.loads(rig.run(*command).strip().splitlines()[-1])

    def format(self, rig):
        call(self.build / "spillway", "format", "--force", "--erase", "--devices",
             ",".join(rig.drives))

    def muon(self):
        for name, options in MUON.items():
            self.steps(name, options, None, self.args.elements // 4, "--muon", "--hidden",
                       str(MUON_HIDDEN))

    def steps(self, name, options, masters, elements=None, *more):
        elements = self.args.elements if elements is None else elements
        size = size_of_drives(elements_of(elements) * (14 if masters else 12))
        for _ in range(self.args.rounds):
            with Rig(size=size, **options) as rig:
                bandwidth = self.bandwidth(rig, "--rw=rw", "--rwmixread=50")
                self.format(rig)
                one = self.worker(rig, "steps", masters, elements, *more)
            if not one["same"]:
                raise SystemExit(f"state: {name}: the bits differ from those in memory")
            moved = one["bytes_read"] + one["bytes_written"]
            in_memory, over = statistics.median(one["memory"]), statistics.median(one["store"])
            least = max(moved / bandwidth, in_memory)
            self.note((name, "step / what it takes at least", "", GOAL), over / least)
            self.note((name, "the same by CPU time alone, all cores busy", "", None),
                      one["busy"] / os.cpu_count() / least)
            self.note((name, "step in memory", "s", None), in_memory)
            self.note((name, "step / step in memory", "", None), over / in_memory)
            self.note((name, "its bytes at fio's bandwidth / step in memory", "", None),
                      moved / bandwidth / in_memory)
            self.note((name, "bytes per parameter", "bytes", None), moved / one["elements"])
            self.note((name, "memory of the state / state", "", None),
                      one["memory_bytes"] / one["total_bytes"])
            self.note((name, "waited for drives / step", "", None), one["wait_ns"] / 1e9 / over)
            print(f"state: {name}: {over / least:.3f} of the least, {over:.2f} s", file=sys.stderr)

    def training(self):
        name = (f"GPT of {self.args.layers} layers, hidden 768, 4 x 512 tokens, in backward, "
                "file-backed")
        for _ in range(self.args.rounds):
            with Rig(size="1G", drives=4, on="/var/tmp") as rig:
                self.format(rig)
                one = self.worker(rig, "train", None, 0, "--layers", str(self.args.layers))
            if not one["same"]:
                raise SystemExit(f"state: {name}: the losses differ from those in memory")
            ratio = statistics.median(over / kept for over, kept in zip(one["store"],
                                                                        one["memory"]))
            in_memory, cores = statistics.median(one["memory"]), os.cpu_count()
            self.note((name, "training step / in memory", "", 1.02), ratio)
            # With all cores busy a step takes as much longer as its CPU time is more.
            self.note((name, "the same by CPU time alone, all cores busy", "", None),
                      1 + (one["busy"][1] - one["busy"][0]) / (cores * in_memory))
            self.note((name, f"cores busy in memory, of {cores}", "", None),
                      one["busy"][0] / in_memory)
            self.note((name, "gradients at once / a layer's", "", 2),
                      one["gradients"] / one["block"])
            print(f"state: {name}: {ratio:.3f} of the {in_memory:.2f} s in memory", file=sys.stderr)

    def gradients(self):
        elements = elements_of(self.args.elements // 4)
        with Rig(size=size_of_drives(elements * 14), drives=4, on="/var/tmp") as rig:
            self.format(rig)
            one = self.worker(rig, "gradients", None, elements)
        name = f"masters, and gradients of {one['gradient']} on drives, clipped"
        if not one["same"]:
            raise SystemExit(f"state: {name}: the bits differ from those in memory")
        self.note((name, "bytes per parameter", "bytes", 32),
                  (one["read"] + one["written"]) / one["elements"])
        self.note((name, "of these read", "bytes", None), one["read"] / one["elements"])

    def commits(self):
        elements = elements_of(self.args.commit_elements)
        name = f"commit of {elements * 12 / (1 << 30):.1f} GiB, masters, file-backed"
        for _ in range(self.args.rounds):
            with Rig(size=size_of_drives(elements * 14), drives=4, on="/var/tmp") as rig:
                with filesystems(rig.drives) as folders:
                    saved = self.worker(rig, "save", "whole", elements,
                                        "--folders", ",".join(folders))
                self.format(rig)
                one = self.worker(rig, "commit", "whole", elements)
            self.note((name, "pause / torch.save and fsync", "", 0.01),
                      one["commit"] / saved["save"])
            self.note((name, "pause", "s", None), one["commit"])
            self.note((name, "torch.save and fsync", "s", None), saved["save"])
            self.note((name, "written by the commit / state", "", None),
                      one["written"] / one["state_bytes"])
            print(f"state: {name}: {one['commit']:.2f} s, torch.save {saved['save']:.2f} s",
                  file=sys.stderr)

    def write(self):
        rows = self.found.all()
        path = self.build / "bench/state.json"
        if self.args.case:
            rows = results.updated(path, rows)
        results.write(path, "Optimizer state and parameters on drives", rows,
                      results.machine(["loop devices, see the rows", *self.left_out]),
                      elements=self.args.elements)
        print(results.table(rows))


@contextlib.contextmanager
def filesystems(drives):
    """ext4 on each drive, mounted for as long as the `with` lasts: their folders."""
    with contextlib.ExitStack() as mounted:
        folders = []
        for drive in drives:
            call("mkfs.ext4", "-q", "-F", drive)
            folders.append(mounted.enter_context(tempfile.TemporaryDirectory()))
            call("mount", drive, folders[-1])
            mounted.callback(call, "umount", folders[-1])
        yield folders


OTHERS = {"muon": Bench.muon, "training": Bench.training, "gradients": Bench.gradients,
          "commit": Bench.commits}
WORKERS = {"steps": steps_in_turn, "train": train_in_turn, "gradients": gradients_in_turn,
           "commit": commit_in_turn, "save": save, **parameters.WORKERS}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", help="the build folder (build)")
    parser.add_argument("--rounds", type=int, default=os.environ.get("BENCH_ROUNDS", "5"))
    parser.add_argument("--elements", type=int, default=200_000_000, help="parameters")
    parser.add_argument("--commit-elements", type=int, default=360_000_000,
                        help="parameters whose commit is measured")
    parser.add_argument("--memory", type=int, help="of the records, in bytes (the default)")
    parser.add_argument("--arena", type=int, default=512 << 20, help=argparse.SUPPRESS)
    parser.add_argument("--case", action="append", choices=[*CASES, *OTHERS, *parameters.CASES],
                        help="only these, what is known of others stays: "
                        + ", ".join((*CASES, *OTHERS, *parameters.CASES)),
                        metavar="CASE")
    parser.add_argument("--layers", type=int, default=6, help="of the GPT that is trained (6)")
    parser.add_argument("--parameter-layers", type=int, default=12,
                        help="of the GPT whose parameters are on drives (12)")
    parser.add_argument("--quick", action="store_true",
                        help="a round of small ones: does it run? Its figures are worth nothing")
    for hidden in ("--worker", "--devices", "--folders"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--masters", choices=[kind for kind in MASTERS if kind],
                        help=argparse.SUPPRESS)
    parser.add_argument("--muon", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--hidden", type=int, default=2048, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.layers, args.parameter_layers = 1, 2, 4
        args.elements = args.commit_elements = 40_000_000
    return args


def main():
    args = parse_arguments()
    if args.worker:
        WORKERS[args.worker](args)
        return 0
    if os.geteuid() != 0:
        sys.exit("state: needs root, for loop devices, file systems and throttles")
    blas.choose()
    bench = Bench(args)
    for name, (options, masters) in CASES.items():
        if not args.case or name in args.case:
            bench.steps(name, options, masters)
    for name, rounds in (*OTHERS.items(), *parameters.CASES.items()):
        if not args.case or name in args.case:
            rounds(bench)
    bench.write()
    return 0


if __name__ == "__main__":
    try:
        with exits_on(signal.SIGINT, signal.SIGTERM):
            sys.exit(main())
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        sys.exit(f"state: {error}")
