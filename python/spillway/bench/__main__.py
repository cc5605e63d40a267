# SPDX-License-Identifier: MIT
# spillway/bench/__main__.py - run the matrix of models, modes and batch sizes
"""Train GPT, BERT and T5 with their activations kept, recomputed and spilled, at several batch
sizes; draw the recompute-offload-keep curves. Every run is a process of its own; rounds are
interleaved. Losses and all gradients are compared to the last bit. Ctrl-C ends with a report of
what was done.

  python -m spillway.bench --quick                    minutes, tiny models, on four files
  python -m spillway.bench --devices /dev/a,/dev/b    on a store made by `spillway format`
"""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, TextIO, Tuple

if __name__ == "__main__":
    from ..demo.ending import ends_at_once

    ends_at_once("spillway.bench")  # PyTorch takes seconds to load

import torch

import spillway

from .._core import library
from ..bench import blas, results
from ..demo.data import text_in
from ..demo.ending import exits_on, later
from .report import (GRADIENTS, MALLOCS, MODES, THROTTLED, Kind, differing, draw_curves, kind_of,
                     rows_of)
from .throttle import Throttle

MODELS = ("gpt", "bert", "t5")
QUICK = {"layers": 2, "hidden": 128, "sequence": 128, "batches": [2, 4], "steps": 3, "rounds": 1}
ENDS_SECONDS = 10
RESULTS, TEXT = "torch.json", "text"  # files in the folder --out
SHORT = 3  # steps of a run whose memory matters, not its time
FULL = {"layers": 12, "hidden": 768, "sequence": 512, "batches": [4, 8], "steps": 6, "rounds": 3}
# For --malloc tuned, as in make demo: blocks of 1 MiB and more are mapped on huge pages, and
# unmapped when they are freed.
TUNABLES = ("glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1048576:"
            "glibc.malloc.trim_threshold=2097152")


def _list_of(kind: Any, choices: Tuple[str, ...] = ()) -> Any:
    def parse(text: str) -> List[Any]:
        try:
            items = [kind(part) for part in text.split(",")]
        except ValueError:
            words = f"a list separated by commas is needed, not {text!r}"
            raise argparse.ArgumentTypeError(words) from None
        if choices and not set(items) <= set(choices):
            raise argparse.ArgumentTypeError(f"choose from {', '.join(choices)}")
        if kind is int and min(items) < 1:
            raise argparse.ArgumentTypeError("must be at least 1")
        return items

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m spillway.bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    gradients = "; ".join(f"{name}: {words}" for name, words in GRADIENTS.items())
    mallocs = "; ".join(f"{name}: {words}" for name, words in MALLOCS.items())
    option("--quick", action="store_true",
           help="tiny models, one round: to see that it works, not to measure")
    option("--models", type=_list_of(str, MODELS), default=list(MODELS), metavar="M,M",
           help="of gpt, bert, t5 (all)")
    option("--modes", type=_list_of(str, MODES), default=list(MODES), metavar="M,M",
           help="of keep, recompute, spillway (all)")
    option("--batches", type=_list_of(int), metavar="N,N", help="batch sizes (4,8)")
    option("--twice", action="store_true", help="also spill at twice each batch size, three steps: "
           "does it fit where half was kept?")
    option("--grad-memory", type=_list_of(str, tuple(GRADIENTS)), default=["freed"], metavar="P,P",
           help=f"what becomes of gradients, each for all modes: {gradients} (freed). What is not "
           "the first runs three steps, for its memory")
    option("--malloc", type=_list_of(str, tuple(MALLOCS)), default=["tuned"], metavar="M,M",
           help=f"where all modes have large blocks of memory from: {mallocs} (tuned)")
    option("--command", metavar="PATH", help="the command spillway, for --malloc run (beside the "
           "library, or where PATH leads)")
    option("--throttle", type=float, metavar="SHARE", help="also spill with drives slowed down to "
           "this share of the bandwidth that the run before needed: its bytes over the times of "
           "its passes. As root, block devices in --devices")
    option("--minutes", type=float, help="begin no run that would not end in this time")
    option("--resume", action="store_true", help="go on with what is in --out: runs that are there "
           "are not run again. What was run is saved after each run")
    for name, words in (("layers", "12"), ("hidden", "768"), ("sequence", "512"),
                        ("steps", "per run, 6"), ("rounds", "3")):
        option(f"--{name}", type=int, help=f"({words})")
    option("--threads", type=int, default=len(os.sched_getaffinity(0)),
           help="of PyTorch (all CPUs)")
    option("--devices", default="", metavar="D,D",
           help="drives of a store; default: four files, made and removed")
    option("--drive-bytes", type=int, default=4 << 30,
           help="length of each of these files (4 GiB, sparse)")
    option("--work", default="/var/tmp", metavar="FOLDER",
           help="where they are made: a file system that takes O_DIRECT")
    option("--cache", help="how the tensor cache decides: see spillway.torch.offload's mode")
    option("--arena-bytes", type=int,
           help="DMA memory of the store, all of it resident (as spillway.Store has it)")
    option("--text", type=Path, metavar="PATH",
           help="file or folder to train on (the repository); what is there when it begins")
    option("--no-hooks", action="store_true", help="leave out the time in hooks")
    option("--examples", type=Path, default=Path(__file__).resolve().parents[2] / "examples",
           help="folder of the models")
    option("--out", type=Path, default=Path("spillway-bench"), metavar="FOLDER",
           help="for torch.json, report.md, charts")
    return parser


def arguments(argv: Optional[List[str]]) -> argparse.Namespace:
    parser = _parser()
    args = parser.parse_args(argv)
    for name, value in (QUICK if args.quick else FULL).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if min(args.layers, args.hidden, args.sequence, args.rounds) < 1 or args.steps < 2:
        parser.error("--layers, --hidden, --sequence and --rounds must be at least 1, --steps at "
                     "least 2")
    if args.drive_bytes < 16 << 20:
        parser.error("--drive-bytes must be at least 16 MiB")
    if args.minutes is not None and not args.minutes > 0:
        parser.error("--minutes must be above 0")
    can_throttle = args.devices and "spillway" in args.modes
    if args.throttle is not None and not (args.throttle > 0 and can_throttle):
        parser.error("--throttle takes a share above 0, and needs --devices and mode spillway")
    if "run" in args.malloc:
        args.command = args.command or command_path()
        if not args.command:
            parser.error("--malloc run needs the command spillway: name it by --command")
    missing = [model for model in args.models if not (args.examples / f"{model}.py").exists()]
    if missing:
        parser.error(f"{args.examples} has no {missing[0]}.py: name the repository's "
                     "python/examples in --examples")
    return args


def command_path() -> Optional[str]:
    beside = Path(library.path).with_name("spillway")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("spillway")


@contextlib.contextmanager
def drives_of(args: argparse.Namespace) -> Iterator[List[str]]:
    """The given drives, which must carry a store; or four files, which are removed afterwards."""
    if args.devices:
        drives = args.devices.split(",")
        spillway.check_store(drives)
        yield drives
        return
    folder = tempfile.mkdtemp(prefix="spillway-bench.", dir=args.work)
    try:
        drives = [os.path.join(folder, f"drive{index}") for index in range(4)]
        for path in drives:
            with open(path, "wb") as file:
                file.truncate(args.drive_bytes)
        spillway.format_store(drives)
        yield drives
    finally:
        shutil.rmtree(folder)


class Screen:
    """Progress: one line that is rewritten on a terminal; elsewhere a line per run."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._terminal = file, file.isatty()

    def passing(self, text: str) -> None:
        if self._terminal:
            self._file.write(f"\r\033[K{text[: shutil.get_terminal_size().columns - 1]}")
            self._file.flush()

    def line(self, text: str) -> None:
        self._file.write(("\r\033[K" if self._terminal else "") + text + "\n")
        self._file.flush()


@contextlib.contextmanager
def text_of(args: argparse.Namespace) -> Iterator[Path]:
    """Copy the text, so that edits between runs change nothing; resumed runs keep their copy."""
    source = args.text or args.examples.resolve().parents[1]
    if args.resume and (args.out / TEXT).exists():
        source = args.out / TEXT
    with tempfile.NamedTemporaryFile(prefix="spillway-bench-text.") as file:
        file.write(text_in(source))
        file.flush()
        yield Path(file.name)


@dataclasses.dataclass(frozen=True)
class Cell:
    """A run of the matrix. Its mode is one of the examples' modes, or THROTTLED, which is
    spillway on throttled drives."""

    model: str
    mode: str
    batch: int
    grad_memory: str
    malloc: str
    round: int
    steps: int

    def kind(self) -> Kind:
        """The kind of the run, without its round; kind_of() returns the same for its result."""
        return self.model, self.mode, self.batch, self.grad_memory, self.malloc

    def is_done(self, runs: List[Dict[str, Any]]) -> bool:
        return any(kind_of(run) == self.kind() and run["round"] == self.round
                   and len(run["step_seconds"]) >= self.steps for run in runs)


def cells_of(args: argparse.Namespace) -> List[Cell]:
    """The runs, round by round, so that compared runs are interleaved. A throttled run comes
    after the run that measures the bandwidth it needs. Runs that are not timed (other treatments
    of gradients, twice the batch) use only the first malloc."""
    first, *others = args.grad_memory
    modes = list(args.modes) + ([THROTTLED] if args.throttle else [])
    twice = [2 * batch for batch in args.batches if args.twice and 2 * batch not in args.batches]
    cells = []
    for number in range(args.rounds):
        for batch in args.batches:
            cells += [Cell(model, mode, batch, first, malloc, number, args.steps)
                      for model in args.models for malloc in args.malloc for mode in modes]
            cells += [Cell(model, mode, batch, policy, args.malloc[0], number, SHORT)
                      for model in args.models for policy in others for mode in args.modes]
        cells += [Cell(model, "spillway", batch, first, args.malloc[0], number, SHORT)
                  for batch in twice for model in args.models]
    return cells


def python_under(malloc: str, args: argparse.Namespace) -> List[str]:
    return [*([args.command, "run", "--"] if malloc == "run" else []), sys.executable]


def command_of(args: argparse.Namespace, cell: Cell, drives: List[str], result: Path) -> List[str]:
    mode = "spillway" if cell.mode == THROTTLED else cell.mode
    options: Dict[str, Any] = {name: getattr(args, name) for name in (
        "layers", "hidden", "sequence", "threads", "text")}
    options.update({"mode": mode, "batch": cell.batch, "json": result, "steps": cell.steps,
                    "grad-memory": cell.grad_memory})
    if mode == "spillway":
        options.update({"devices": ",".join(drives), "arena-bytes": args.arena_bytes,
                        "cache": args.cache})
    words = [word for name, value in options.items() if value
             for word in (f"--{name}", str(value))]
    return [*python_under(cell.malloc, args), str(args.examples / f"{cell.model}.py"), *words,
            "--gradients"]


def needed_bandwidth(run: Dict[str, Any]) -> Tuple[float, float]:
    """The bandwidth of a run's timed steps: bytes written per second of forward pass, bytes read
    per second of backward pass."""
    steps = run["steps"][1:]
    write = sum(step["bytes_spilled"] for step in steps) / sum(run["step_forward_seconds"][1:])
    return write, sum(step["bytes_read"] for step in steps) / sum(run["step_backward_seconds"][1:])


def environment_of(malloc: str) -> Dict[str, str]:
    paths = [str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)),
           "PYTHONUNBUFFERED": "1"}
    if malloc == "tuned":
        env.setdefault("GLIBC_TUNABLES", TUNABLES)
    return env


def end(process: "subprocess.Popen[str]") -> None:
    """End a process by SIGTERM if it still runs: SIGKILL would leave its store's status page
    behind."""
    with process:  # the exit of this context closes the pipe, and waits
        process.terminate()
        try:
            process.wait(ENDS_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def run_one(  # type: ignore[return]
    command: List[str], malloc: str, screen: Screen, title: str,
    throttle: Optional[Throttle] = None
) -> str:
    """Run a program. Return: what it printed.

    :raises RuntimeError: the run failed
    """
    with tempfile.TemporaryFile("w+") as output, contextlib.ExitStack() as stack:
        with later(signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=output, text=True,
                                       env=environment_of(malloc),
                                       preexec_fn=throttle.enter if throttle else None)
            stack.callback(end, process)
        said: List[str] = []
        assert process.stderr is not None
        for line in process.stderr:
            said = (said + [line.rstrip()])[-20:]
            screen.passing(f"{title}{line.rstrip()}")
        if process.wait() != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n" + "\n".join(said))
        output.seek(0)
        return output.read()


def run_cell(  # type: ignore[return]
    args: argparse.Namespace, cell: Cell, drives: List[str], runs: List[Dict[str, Any]],
    screen: Screen, title: str
) -> Dict[str, Any]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        throttle, speeds = None, {}
        if cell.mode == THROTTLED:
            kind = dataclasses.replace(cell, mode="spillway").kind()
            like = [run for run in runs if kind_of(run) == kind]
            write, read = (args.throttle * each for each in needed_bandwidth(like[-1]))
            if min(write, read) < 1:
                raise RuntimeError(f"{cell.model} at batch {cell.batch} moved nothing to the "
                                   "drives and back: leave out --throttle")
            speeds = {"throttled_write_bytes_per_second": write,
                      "throttled_read_bytes_per_second": read}
            throttle = Throttle(drives, max(1, int(write / len(drives))),
                                max(1, int(read / len(drives))))
            stack.callback(throttle.close)
        result = Path(folder) / "result.json"
        run_one(command_of(args, cell, drives, result), cell.malloc, screen, title, throttle)
        run = json.loads(result.read_text())
        run.update(model=cell.model, mode=cell.mode, batch=cell.batch, malloc=cell.malloc,
                   grad_memory=cell.grad_memory, round=cell.round, **speeds)
        return run


def time_hooks(args: argparse.Namespace, drives: List[str], screen: Screen) -> List[Dict[str, Any]]:
    """Measure the hooks in a process with the allocator settings of the runs."""
    screen.passing("time in hooks")
    command = [*python_under(args.malloc[0], args), "-m", "spillway.bench.hooks", *drives]
    printed = run_one(command, args.malloc[0], screen, "time in hooks ")
    return [json.loads(line) for line in printed.splitlines()]


def run_matrix(args: argparse.Namespace, drives: List[str], document: Dict[str, Any],
               screen: Screen) -> None:
    runs = document["runs"]
    cells = cells_of(args)
    left = [cell for cell in cells if not cell.is_done(runs)]
    document["planned"] = len(runs) + len(left)
    document["complete"] = False
    began = time.monotonic()
    if not args.no_hooks and "hooks" not in document:
        document["hooks"] = time_hooks(args, drives, screen)
    lasted: Dict[Kind, float] = {}
    for index, cell in enumerate(left, 1):
        now = time.monotonic()
        expected = lasted.get(cell.kind(), max(lasted.values(), default=0.0))
        if args.minutes and now - began + expected > 60 * args.minutes:
            screen.line(f"{len(left) - index + 1} runs are left out: they would not end within "
                        f"{args.minutes:g} minutes")
            return
        words = f", {cell.malloc}" if len(args.malloc) > 1 else ""
        words += f", gradients {cell.grad_memory}" if len(args.grad_memory) > 1 else ""
        title = f"[{index}/{len(left)}] {cell.model} batch {cell.batch} {cell.mode}{words}: "
        runs.append(run_cell(args, cell, drives, runs, screen, title))
        lasted[cell.kind()] = seconds = time.monotonic() - now
        save(args, document)
        screen.line(f"{title}loss {runs[-1]['losses'][-1]:.4f}, "
                    f"{runs[-1]['step_seconds'][-1]:.2f} s/step, {seconds:.0f} s")
    document["complete"] = True
    save(args, document)


def save(args: argparse.Namespace, document: Dict[str, Any]) -> None:
    """Save the results so far, so that the bench can be resumed."""
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / TEXT).write_bytes(args.text.read_bytes())
    title = f"PyTorch {document['torch']}, {document['threads']} threads, {document['shape']}"
    results.write(args.out / RESULTS, title, rows_of(document), args.machine, **document)


def write(args: argparse.Namespace, document: Dict[str, Any], screen: Screen) -> None:
    draw_curves(document["runs"], args.out)
    written = json.loads((args.out / RESULTS).read_text())
    (args.out / "report.md").write_text(results.section(written, Path(RESULTS).stem))
    screen.line(f"report: {args.out / 'report.md'}")


def document_of(args: argparse.Namespace) -> Dict[str, Any]:
    """The results of earlier runs, if they are to be resumed.

    :raises RuntimeError: they were made with other settings
    """
    shape = f"{args.layers} layers, hidden {args.hidden}, sequence {args.sequence}"
    fresh = {"torch": torch.__version__, "threads": args.threads, "shape": shape,
             "blas": blas.choose()}
    path = args.out / RESULTS
    if not args.resume or not path.exists():
        return {**fresh, "rounds": args.rounds, "complete": False, "planned": 0, "runs": []}
    document = json.loads(path.read_text())
    for name in ("title", "machine", "rows"):  # computed from the runs, so made again
        del document[name]
    for name, value in fresh.items():
        if document.get(name) != value:
            raise RuntimeError(f"{path} cannot be resumed: its {name} is {document.get(name)}, "
                               f"not {value}")
    document["rounds"] = max(args.rounds, document["rounds"])
    return document


def main(argv: Optional[List[str]] = None) -> int:
    """Return: the exit status: 0; 1 a run failed, or losses or gradients differ; 130
    interrupted."""
    args = arguments(argv)
    screen = Screen(sys.stderr)
    document: Dict[str, Any] = {"runs": []}
    torch.set_num_threads(args.threads)
    args.machine = results.machine([f"drives: {args.devices or 'four files'}"])
    status = 0
    with contextlib.ExitStack() as stack:
        try:
            document = document_of(args)
            drives = stack.enter_context(drives_of(args))
            args.text = stack.enter_context(text_of(args))
            run_matrix(args, drives, document, screen)
        except KeyboardInterrupt:
            screen.line("interrupted")
            status = 130
        except (spillway.SpillwayError, RuntimeError, OSError) as error:
            screen.line(f"spillway.bench: {error}")
            status = 1
        if document["runs"]:
            write(args, document, screen)
    if differing(document["runs"]):
        screen.line("losses or gradients differ between modes: this is a fault")
        status = status or 1
    return status


def program() -> int:
    """Call main(), and handle Ctrl-C where main() does not: before the runs, and during the
    report."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with exits_on(signal.SIGTERM):
            return main()
    except KeyboardInterrupt:
        print("spillway.bench: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(program())
