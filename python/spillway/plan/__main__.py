# SPDX-License-Identifier: MIT
# spillway/plan/__main__.py - `python -m spillway.plan`: its words, and its page
from __future__ import annotations

import argparse
import json
import sys
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from .._core.free_memory import free_memory
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
without memory; or a transformer, described. With --device it computes on a GPU: what lies in its
memory, in that of the host, or on drives is what makes the step shortest; without a model the
answer is for seven transformers, of 1.3 to 175 billion parameters."""
_EXAMPLES = """\
examples:
  python -m spillway.plan model:build --input 4,1024:int64 --tflops 1.5 --drives /dev/nvme1n1
  python -m spillway.plan --model layers=40,hidden=5120,vocabulary=50304 --tflops 150 \\
      --memory 64GiB --drive-size 4TB --read 14GB --write 10GB --endurance 4800TB
  python -m spillway.plan model:build --input 8,512:int64 --tflops 1.5 --drive-size 1TB \\
      --on-drives optimizer,gradients --json
  python -m spillway.plan --device 24GB --bus 25GB --tflops 80 --memory 64GiB --drive-size 2TB \\
      --read 6GB --write 5GB --host-bytes 48GiB

exit status: 0 it trains, 1 it does not fit or something failed, 2 wrong usage"""
_SEQUENCE = 2048
_MODEL = {"layers": None, "hidden": None, "sequence": _SEQUENCE, "micro-batch": 1,
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
    add("--device", type=_bytes, default=0, metavar="SIZE",
        help="memory of a GPU, for training; --memory is that of the host")
    add("--host-bytes", type=_bytes, metavar="SIZE", help="offload(host_bytes=): of --memory, for "
        "parameters on drives to stay in, and a GPU's activations (default: none stay)")
    add("--bus", type=_bytes, default=_bytes("25GB"), metavar="RATE",
        help="of the GPU, in each direction (25GB: PCIe 4.0 with 16 lanes)")
    add("--host-rate", type=_bytes, default=0, metavar="RATE", help="of optimizer state that the "
        "host steps, bytes per second (default: not counted)")
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
    zero = [name for name, number in numbers.items() if not number and name != "vocabulary"]
    if zero:
        raise ValueError(f"--model: {zero[0]} must be above 0")
    return transformer(numbers["layers"], numbers["hidden"], numbers["sequence"],
                       numbers["micro-batch"], micro_batches, numbers["vocabulary"],
                       numbers["element-bytes"])


def _model(arguments: argparse.Namespace) -> Model:
    """:raises ValueError: it is described wrongly, or does not run"""
    if bool(arguments.module) == bool(arguments.model):
        raise ValueError("a module, MODULE:FACTORY, or --model: one of them; or --device alone")
    if arguments.model:
        return _described(arguments.model, arguments.micro_batches)
    from ._module import model_of

    return model_of(arguments.module, arguments.input, arguments.micro_batches)


def _machine(arguments: argparse.Namespace) -> Machine:
    """
    :raises ValueError: a rate is 0
    :raises SpillwayError: a drive cannot be looked at
    """
    if not (arguments.read and arguments.write and arguments.bus):
        raise ValueError("--read, --write and --bus are above 0")
    drive_bytes = arguments.drive_size or sum(probe(path).size_bytes for path in arguments.drives)
    memory = free_memory() if arguments.memory is None else arguments.memory
    return Machine(memory, drive_bytes, arguments.read, arguments.write,
                   arguments.tflops * 1e12, arguments.endurance, arguments.device, arguments.bus,
                   arguments.host_rate)


def _kinds(arguments: argparse.Namespace) -> Optional[Tuple[str, ...]]:
    return None if arguments.on_drives is None else tuple(arguments.on_drives.split(","))


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:,.1f} minutes"


def _span(years: float) -> str:
    return f"{years:.1f} years" if years >= 1 else f"{years * 365.25:.0f} days"


def _verdict(machine: Machine, answer: Answer) -> List[str]:
    moved = ", ".join(row.kind for row in answer.rows if row.on_drives)
    with_moved = f"With {moved} on drives." if moved else "With nothing on drives."
    if answer.missing_device_bytes:
        return [f"It does not fit: {bytes_text(answer.missing_device_bytes)} of the GPU's memory "
                "are missing.", with_moved]
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


_LIES = {"memory": "in memory", "drives": "on drives", "device": "on GPU", "host": "in host"}


def _line(name: str, count: str, lies: str, counts: Iterable[int]) -> str:
    return (f"{name:12}{count:>12}  {lies:9}"
            + "".join(f"{bytes_text(each):>12}" for each in counts))


def _table(machine: Machine, answer: Answer) -> List[str]:
    device = bool(machine.device_bytes)
    titles = ("on GPU", "in host") if device else ("in memory",)
    lines = [f"{'':12}{'bytes':>12}  {'lies':9}" + "".join(
        f"{title:>12}" for title in (*titles, "on drives", "read", "written"))]
    for row in answer.rows:
        lines.append(_line(row.kind, bytes_text(row.bytes), _LIES[row.place], [
            *([row.device_bytes] if device else []), row.memory_bytes, row.drive_bytes,
            row.read_bytes, row.written_bytes]))
    return [*lines, _line("together", bytes_text(sum(row.bytes for row in answer.rows)), "", [
        *([answer.device_bytes] if device else []), answer.memory_bytes, answer.drive_bytes]),
            _line("there is", "", "", [*([machine.device_bytes] if device else []),
                                       machine.memory_bytes, machine.drive_bytes])]


def _times(machine: Machine, answer: Answer) -> str:
    times = [f"computes {_seconds(answer.compute_seconds)}",
             f"drives {_seconds(answer.drive_seconds)}"]
    if machine.device_bytes:
        times.append(f"bus {_seconds(answer.bus_seconds)}")
    if machine.host_rate:
        times.append(f"host {_seconds(answer.host_seconds)}")
    return ", ".join(times)


def _day_text(answer: Answer) -> str:
    """As makers state what a drive endures."""
    return f"{answer.written_bytes_per_day / 1e12:.3g} TB"


def page(model: Model, optimizer: Optimizer, machine: Machine, answer: Answer) -> str:
    """One screen."""
    lines = [*_verdict(machine, answer), "",
             f"{model.name}: {model.parameters / 1e6:,.1f} million parameters of "
             f"{model.element_bytes} bytes, {optimizer.name}", "", *_table(machine, answer), "",
             f"A step: {_seconds(answer.step_seconds)}, bound by {answer.bound} "
             f"({_times(machine, answer)})."]
    if answer.fits and model.tokens:
        lines.append(f"{model.tokens / answer.step_seconds:,.0f} tokens per second.")
    if answer.written_bytes_per_day:
        lines.append(f"Training all the time writes {_day_text(answer)} a day"
                     + ("." if answer.years is None else
                        f", and the drives last {_span(answer.years)}."))
    return "\n".join(lines)


# Layers and hidden (Zhang et al. 2022, "OPT: Open Pre-trained Transformer Language Models",
# table 1), with its vocabulary.
_SIZES = ((24, 2048), (32, 2560), (32, 4096), (40, 5120), (48, 7168), (64, 9216), (96, 12288))
_VOCABULARY = 50272


def _of_sizes(arguments: argparse.Namespace) -> List[Tuple[Model, Answer]]:
    machine, kinds = _machine(arguments), _kinds(arguments)
    answers = []
    for layers, hidden in _SIZES:
        model = transformer(layers, hidden, _SEQUENCE, 1, arguments.micro_batches, _VOCABULARY, 2)
        answers.append((model, plan(model, optimizer_of(arguments.optimizer, 2), machine, kinds,
                                    arguments.host_bytes)))
    return answers


def table(answers: Sequence[Tuple[Model, Answer]]) -> str:
    """One line for each model."""
    lines = [f"{answers[0][0].tokens:,} tokens in a step", "",
             f"{'model':>6} {'on GPU':>10}{'in host':>10}{'tokens/s':>10}  {'bound by':9}"
             f"{'written/day':>11}  on drives"]
    for model, answer in answers:
        name = f"{model.parameters / 1e9:.1f}B"
        if not answer.fits:
            lines.append(f"{name:>6} does not fit: {_missing(answer)}")
            continue
        moved = ", ".join(row.kind for row in answer.rows if row.on_drives) or "nothing"
        lines.append(f"{name:>6} {bytes_text(answer.device_bytes):>10}"
                     f"{bytes_text(answer.memory_bytes):>10}"
                     f"{model.tokens / answer.step_seconds:>10,.0f}  {answer.bound:9}"
                     f"{_day_text(answer):>11}  {moved}")
    return "\n".join(lines)


def _missing(answer: Answer) -> str:
    return ", ".join(f"{bytes_text(count)} {where}" for count, where in (
        (answer.missing_device_bytes, "of the GPU's memory"),
        (answer.missing_memory_bytes, "of host memory"),
        (answer.missing_drive_bytes, "of room on drives")) if count) + " are missing"


def main(words: List[str]) -> int:
    """Return: the exit status."""
    parser = _parser()
    arguments = parser.parse_args(words)
    try:
        if arguments.micro_batches < 1:
            raise ValueError("--micro-batches is at least 1")
        if arguments.device and not (arguments.module or arguments.model):
            answers = _of_sizes(arguments)
            machine = _machine(arguments)
            print(json.dumps([as_json(model, machine, answer) for model, answer in answers],
                             indent=2) if arguments.json else table(answers))
            return 0 if any(answer.fits for _, answer in answers) else _FAILED
        model = _model(arguments)
        optimizer = optimizer_of(arguments.optimizer, model.element_bytes)
        machine = _machine(arguments)
        answer = plan(model, optimizer, machine, _kinds(arguments), arguments.host_bytes)
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
