# SPDX-License-Identifier: MIT
# spillway/plan/__main__.py - `python -m spillway.plan`: its words, and its page
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Dict, List, Optional

from .._core.library import SpillwayError, bytes_text, size
from ..plan import (KINDS, Answer, Machine, Model, Optimizer, as_json, optimizer_of, plan,
                    transformer)
from ..store import probe

_FAILED, _USAGE = 1, 2
_TFLOPS = 156.0  # as `spillway plan` assumes: 312, of which half is reached

_DESCRIPTION = """\
Says whether a model trains on a machine: the bytes of everything, what has to lie on drives so
that the rest fits into memory, how long a step takes and what it waits for, and how long the drives
last. The model is a factory of PyTorch modules, built without memory and run once on inputs
without memory; or a transformer, described."""
_EXAMPLES = """\
examples:
  python -m spillway.plan model:build --input 4,1024:int64 --tflops 1.5 --drives /dev/nvme1n1
  python -m spillway.plan --model layers=40,hidden=5120,vocabulary=50304 --tflops 150 \\
      --memory 64GiB --drive-size 4TB --read 14GB --write 10GB --endurance 4800TB
  python -m spillway.plan model:build --input 8,512:int64 --tflops 1.5 --drive-size 1TB \\
      --on-drives optimizer,gradients --json

exit status: 0 it trains, 1 it does not fit or something failed, 2 wrong usage"""
_MODEL = {"layers": None, "hidden": None, "sequence": 2048, "micro-batch": 1,
          "vocabulary": 0, "element-bytes": 2}


def _bytes(text: str) -> int:
    try:
        return size("a size", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spillway.plan", description=_DESCRIPTION, epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("module", nargs="?", metavar="MODULE:FACTORY", help="a function that makes the module")
    add("--input", action="append", default=[], metavar="SHAPE[:TYPE]",
        help="of a micro-batch, for each argument of the module: 4,1024:int64")
    add("--model", metavar="NAME=N,...", help="instead of a module a transformer: layers, "
        "hidden; sequence (2048), micro-batch (1), vocabulary (0), element-bytes (2)")
    add("--micro-batches", type=int, default=1, metavar="N", help="passes in a step (1)")
    add("--optimizer", default="adamw", metavar="NAME", help="adamw (default), adam, momentum, sgd")
    add("--memory", type=_bytes, metavar="SIZE", help="for training (default: what this machine "
        "has free)")
    add("--tflops", type=_positive, default=_TFLOPS, metavar="N",
        help="what it computes in a second, as reached by training (156: half of an A100's 312)")
    add("--drives", nargs="+", default=[], metavar="DRIVE", help="whose sizes are taken")
    add("--drive-size", type=_bytes, default=0, metavar="SIZE", help="instead: of all together")
    add("--read", type=_bytes, default=_bytes("3GB"), metavar="RATE",
        help="of all drives, bytes per second (3GB)")
    add("--write", type=_bytes, default=_bytes("2GB"), metavar="RATE", help="the same (2GB)")
    add("--endurance", type=_bytes, default=0, metavar="SIZE",
        help="what all drives can be written, by their makers")
    add("--on-drives", metavar="KINDS", help=f"of {', '.join(KINDS)}: these, whatever fits "
        "(default: as few as have to)")
    add("--json", action="store_true", help="print JSON")
    return parser


def free_memory(root: Path = Path("/")) -> int:
    """What this machine has available, and this process' control group lets it use."""
    found = {}
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, value = line.split(":")
        found[name] = int(value.split()[0]) << 10
    available = found["MemAvailable"]
    try:
        limit = (root / "sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        limit = "max"
    return available if limit == "max" else min(available, int(limit))


def _described(text: str, micro_batches: int) -> Model:
    """:raises ValueError: a name or a number is wrong, or missing"""
    values: Dict[str, Optional[int]] = dict(_MODEL)
    for word in text.split(","):
        name, _, number = word.partition("=")
        if name not in values or not number.isdigit():
            raise ValueError(f"--model: {word!r} is none of {', '.join(values)}, with =N")
        values[name] = int(number)
    numbers = {name: value for name, value in values.items() if value is not None}
    missing = [name for name in values if name not in numbers]
    if missing:
        raise ValueError(f"--model: {missing[0]}= is missing")
    if not (numbers["layers"] and numbers["hidden"]):
        raise ValueError("--model: layers and hidden are above 0")
    return transformer(numbers["layers"], numbers["hidden"], numbers["sequence"],
                       numbers["micro-batch"], micro_batches, numbers["vocabulary"],
                       numbers["element-bytes"])


def _model(arguments: argparse.Namespace) -> Model:
    """:raises ValueError: it is described wrongly, or does not run"""
    if arguments.micro_batches < 1:
        raise ValueError("--micro-batches is at least 1")
    if bool(arguments.module) == bool(arguments.model):
        raise ValueError("a module, MODULE:FACTORY, or --model: one of them")
    if arguments.model:
        return _described(arguments.model, arguments.micro_batches)
    from ._module import model_of

    return model_of(arguments.module, arguments.input, arguments.micro_batches)


def _machine(arguments: argparse.Namespace) -> Machine:
    """:raises SpillwayError: a drive cannot be looked at"""
    drive_bytes = arguments.drive_size or sum(probe(path).size_bytes for path in arguments.drives)
    memory = free_memory() if arguments.memory is None else arguments.memory
    return Machine(memory, drive_bytes, max(arguments.read, 1), max(arguments.write, 1),
                   arguments.tflops * 1e12, arguments.endurance)


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:,.1f} minutes"


def _span(years: float) -> str:
    return f"{years:.1f} years" if years >= 1 else f"{years * 365.25:.0f} days"


def _verdict(machine: Machine, answer: Answer) -> List[str]:
    moved = ", ".join(row.kind for row in answer.rows if row.on_drives)
    with_moved = f"With {moved} on drives." if moved else "With nothing on drives."
    if answer.fits:
        return ["It trains" + (f", with {moved} on drives." if moved else
                               ", and needs no drives.")]
    if answer.missing_memory_bytes:
        missing = bytes_text(answer.missing_memory_bytes)
        return [f"It does not fit: {missing} of memory are missing.", with_moved]
    if not machine.drive_bytes:
        return ["It does not fit into memory, and no drives are named: --drives, or --drive-size.",
                f"With {moved} on drives it takes {bytes_text(answer.drive_bytes)} of them."]
    return [f"It does not fit: {bytes_text(answer.missing_drive_bytes)} of room on drives are "
            "missing.", with_moved]


def page(model: Model, optimizer: Optimizer, machine: Machine, answer: Answer) -> str:
    """One screen."""
    lines = [*_verdict(machine, answer), "",
             f"{model.name}: {model.parameters / 1e6:,.1f} million parameters of "
             f"{model.element_bytes} bytes, {optimizer.name}", "",
             f"{'':12}{'bytes':>12}  {'lies':9}{'in memory':>12}{'on drives':>12}"
             f"{'read':>12}{'written':>12}"]
    for row in answer.rows:
        lines.append(f"{row.kind:12}{bytes_text(row.bytes):>12}  "
                     f"{'on drives' if row.on_drives else 'in memory':9}"
                     + "".join(f"{bytes_text(count):>12}" for count in (
                         row.memory_bytes, row.drive_bytes, row.read_bytes, row.written_bytes)))
    lines += [f"{'together':12}{bytes_text(sum(row.bytes for row in answer.rows)):>12}  {'':9}"
              f"{bytes_text(answer.memory_bytes):>12}{bytes_text(answer.drive_bytes):>12}",
              f"{'there is':12}{'':12}  {'':9}{bytes_text(machine.memory_bytes):>12}"
              f"{bytes_text(machine.drive_bytes):>12}", "",
              f"A step: {_seconds(answer.step_seconds)}, bound by {answer.bound} (computes "
              f"{_seconds(answer.compute_seconds)}, drives {_seconds(answer.drive_seconds)})."]
    if answer.years is not None:
        lines.append(f"Training all the time the drives last {_span(answer.years)}.")
    return "\n".join(lines)


def main(words: List[str]) -> int:
    """Return: the exit status."""
    parser = _parser()
    arguments = parser.parse_args(words)
    kinds = None if arguments.on_drives is None else tuple(arguments.on_drives.split(","))
    try:
        model = _model(arguments)
        optimizer = optimizer_of(arguments.optimizer, model.element_bytes)
        machine = _machine(arguments)
        answer = plan(model, optimizer, machine, kinds)
    except ValueError as error:
        print(f"spillway: {error}\nTry 'python -m spillway.plan --help'.", file=sys.stderr)
        return _USAGE
    except SpillwayError as error:
        print(f"spillway: {error.strerror}", file=sys.stderr)
        return _FAILED
    print(json.dumps(as_json(model, machine, answer), indent=2) if arguments.json
          else page(model, optimizer, machine, answer))
    return 0 if answer.fits else _FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
