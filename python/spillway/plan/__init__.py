# SPDX-License-Identifier: MIT
# spillway/plan/__init__.py - does this model train on this machine?
"""Bytes of everything, where each lies, how long a step takes and what bounds it, and how long the
drives last. ``python -m spillway.plan`` asks for a module of PyTorch, which is built without memory
(on the meta device), or for the description of a transformer.

Pure arithmetic; PyTorch is needed for modules alone. What each formula is taken from stands beside
it. Lengths are bytes, rates bytes or operations per second, times seconds.
"""
from __future__ import annotations

import dataclasses
import itertools
from typing import Dict, Iterator, List, Optional, Tuple

from .._core.free_memory import share_of

# What can be on drives, in the order in which it goes there until the rest fits: what a step moves
# least of for the memory that it frees comes first.
KINDS = ("optimizer", "activations", "gradients", "parameters")
# What the optimizer's records, and gradients beside them, pass through at least (docs/STATE.md,
# Memory).
_TILES_BYTES = 4 * (32 << 20)
# Of activations one scope's are used while the next come.
_ACTIVATION_SCOPES = 2
_DAY_SECONDS = 86400.0
_YEAR_DAYS = 365.25


@dataclasses.dataclass(frozen=True)
class Model:
    """``element_bytes`` of a parameter and its gradient; ``largest_scope_bytes``: parameters of the
    largest scope; ``largest_parameter_bytes``: of the largest by itself, in a scope or in none;
    ``activation_bytes``: saved by the forward pass of one micro-batch; ``flops``: of a step, and
    ``tokens``, 0: not known."""

    name: str
    parameters: int
    element_bytes: int
    largest_scope_bytes: int
    largest_parameter_bytes: int
    activation_bytes: int
    largest_activation_bytes: int
    micro_batches: int
    flops: float
    tokens: int = 0


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """What it keeps for each parameter, with a master if parameters are of 16 bits."""

    name: str
    bytes_per_parameter: int


@dataclasses.dataclass(frozen=True)
class Machine:
    """``endurance_bytes``: that all drives together can be written; 0: not known. With
    ``device_bytes`` it computes on a device with as much memory: ``bus_rate`` is that of its bus in
    each direction, and ``host_rate`` that of bytes of the optimizer's state that the host steps; 0:
    that is not counted."""

    memory_bytes: int
    drive_bytes: int
    read_rate: float
    write_rate: float
    flops: float
    endurance_bytes: float = 0.0
    device_bytes: int = 0
    bus_rate: float = 1.0
    host_rate: float = 0.0


@dataclasses.dataclass(frozen=True)
class Row:
    """One kind of bytes: how many there are, where they lie, "memory" or "drives", or of a machine
    with a device "device", "host" or "drives"; and what a step moves, from drives and to them, in
    to the device and out of it."""

    kind: str
    bytes: int
    place: str
    memory_bytes: int
    drive_bytes: int
    read_bytes: int
    written_bytes: int
    device_bytes: int = 0
    bus_in_bytes: int = 0
    bus_out_bytes: int = 0

    @property
    def on_drives(self) -> bool:
        return self.place == "drives"


@dataclasses.dataclass(frozen=True)
class Answer:
    """``missing_memory_bytes``, ``missing_drive_bytes`` and ``missing_device_bytes``: 0 where it
    fits. ``bound``: what a step waits for: "compute", "drives", "bus" or "host". ``years`` that the
    drives last, training all the time; None: not known."""

    rows: List[Row]
    memory_bytes: int
    drive_bytes: int
    missing_memory_bytes: int
    missing_drive_bytes: int
    compute_seconds: float
    drive_seconds: float
    bound: str
    years: Optional[float]
    missing_device_bytes: int = 0
    bus_seconds: float = 0.0
    host_seconds: float = 0.0

    @property
    def fits(self) -> bool:
        return not (self.missing_memory_bytes or self.missing_drive_bytes
                    or self.missing_device_bytes)

    @property
    def step_seconds(self) -> float:
        """All work at the same time."""
        return max(self.compute_seconds, self.drive_seconds, self.bus_seconds, self.host_seconds)

    @property
    def device_bytes(self) -> int:
        return sum(row.device_bytes for row in self.rows)

    @property
    def written_bytes_per_day(self) -> float:
        """Training all the time."""
        written = sum(row.written_bytes for row in self.rows)
        return written / self.step_seconds * _DAY_SECONDS


def optimizer_of(name: str, element_bytes: int) -> Optimizer:
    """AdamW keeps two numbers of float32, SGD with momentum one; parameters of 16 bits have a
    master (docs/STATE.md, Bytes).

    :raises ValueError: it is none of these
    """
    fields = {"adamw": 2, "adam": 2, "sgd": 0, "momentum": 1}
    if name.lower() not in fields:
        raise ValueError(f"the optimizer must be one of {', '.join(fields)}, not {name!r}")
    return Optimizer(name, 4 * (fields[name.lower()] + (element_bytes == 2)))


def parameters_least(largest_bytes: int) -> int:
    """Bytes that parameters on drives have in memory at least: while one is used the next
    comes, and both may be as large as the largest."""
    return 2 * largest_bytes


def parameters_most(scope_bytes: int, largest_bytes: int) -> int:
    """Bytes that they have unless others are given: of the largest scope and the largest parameter.
    One scope is used, one comes, one goes."""
    return max(3 * scope_bytes, parameters_least(largest_bytes))


def parameters_on_device(scope_bytes: int, largest_bytes: int) -> int:
    """The same of a device's memory: one scope is used, one comes. What goes makes room in the
    order of the device's work."""
    return max(2 * scope_bytes, parameters_least(largest_bytes))


def transformer(layers: int, hidden: int, sequence: int, micro_batch: int,
                micro_batches: int, vocabulary: int, element_bytes: int) -> Model:
    """A GPT with an MLP of four times the width, and attention that saves no matrix of scores.

    Parameters: 12 h^2 + 13 h for each layer, and the embedding (Narayanan et al. 2021, "Efficient
    Large-Scale Language Model Training on GPU Clusters", equation 2). Activations: 34 s b h bytes
    for each layer with 2 bytes of an element (Korthikanti et al. 2022, "Reducing Activation
    Recomputation in Large Transformer Models", equation 1, without the core of attention), and the
    logits in 4 bytes. Operations: 6 for each parameter and token, and 12 l h s for attention
    (Chowdhery et al. 2022, "PaLM", appendix B).
    """
    tokens = sequence * micro_batch
    of_layer = 12 * hidden * hidden + 13 * hidden
    embedding = hidden * (vocabulary + sequence)
    parameters = layers * of_layer + embedding + 2 * hidden
    activation = 34 * tokens * hidden * element_bytes // 2
    logits = 4 * tokens * vocabulary
    flops = micro_batches * tokens * (6.0 * parameters + 12.0 * layers * hidden * sequence)
    return Model(f"transformer of {layers} layers, hidden {hidden}", parameters, element_bytes,
                 element_bytes * of_layer,
                 element_bytes * hidden * max(4 * hidden, vocabulary, sequence),
                 layers * activation + logits,
                 max(activation, logits), micro_batches, flops, micro_batches * tokens)


def _parameter_reads(passes: int) -> int:
    """How often a step reads parameters on drives. After several passes it reads them once more to
    step them; after one they are stepped in the backward pass (in_backward=True)."""
    return 2 * passes + (passes > 1)


def _parameter_bytes(model: Model) -> int:
    return model.parameters * model.element_bytes


def _least(model: Model) -> int:
    return min(parameters_least(model.largest_parameter_bytes), _parameter_bytes(model))


def _stay(model: Model, machine: Machine, host_bytes: int) -> int:
    """Bytes of parameters on drives that stay in host memory with offload(host_bytes=), which
    takes no more than its share of what is free.

    :raises ValueError: they are too few, as offload() would say
    """
    least = _least(model)
    if host_bytes < least:
        raise ValueError(f"host_bytes is {host_bytes}, too few by {least - host_bytes}: two of the "
                         "largest parameter are in memory")
    return max(least, min(host_bytes, share_of(machine.memory_bytes), _parameter_bytes(model)))


def _drive_rows(model: Model, optimizer: Optimizer, stay_bytes: int = 0) -> List[Row]:
    """All on drives, and what a step moves (docs/STATE.md, Bytes).

    :param stay_bytes: of the parameters in memory from step to step; 0: as many as are used
    """
    parameter_bytes = _parameter_bytes(model)
    away_bytes = parameter_bytes - stay_bytes
    state_bytes = model.parameters * optimizer.bytes_per_parameter
    passes = model.micro_batches

    def row(kind: str, count: int, memory: int, room: int, read: int, written: int) -> Row:
        return Row(kind, count, "drives", min(memory, count), room, read, written)

    return [
        # What is away is read for each forward and backward pass. Passes alternate in direction, so
        # as many leave memory at either end, and are written once after each step. Twice, for
        # commits.
        row("parameters", parameter_bytes, stay_bytes or parameters_most(
            model.largest_scope_bytes, model.largest_parameter_bytes), 2 * parameter_bytes,
            _parameter_reads(passes) * away_bytes, min(parameter_bytes, 2 * away_bytes)),
        # Added to by each pass after the first; read once more by the step.
        row("gradients", parameter_bytes, _TILES_BYTES, parameter_bytes,
            passes * parameter_bytes, passes * parameter_bytes),
        # All of it once each way; twice, for commits.
        row("optimizer", state_bytes, _TILES_BYTES, 2 * state_bytes, state_bytes, state_bytes),
        row("activations", model.activation_bytes,
            _ACTIVATION_SCOPES * model.largest_activation_bytes, model.activation_bytes,
            passes * model.activation_bytes, passes * model.activation_bytes),
    ]


def _rows(model: Model, optimizer: Optimizer, machine: Machine, on_drives: Tuple[str, ...],
          host_bytes: Optional[int]) -> List[Row]:
    stay = 0
    if host_bytes is not None and "parameters" in on_drives:
        stay = _stay(model, machine, host_bytes)
    return [row if row.kind in on_drives else Row(row.kind, row.bytes, "memory", row.bytes, 0, 0, 0)
            for row in _drive_rows(model, optimizer, stay)]


def _stay_of(model: Model, machine: Machine, places: Dict[str, str],
             host_bytes: Optional[int]) -> Optional[int]:
    """_stay() of a placing. Copies of activations have the rest of host_bytes; None: that, or
    host_bytes itself, is too little."""
    if host_bytes is None:
        return 0
    stay = 0
    if places["parameters"] == "drives":
        if host_bytes < _least(model):
            return None
        stay = _stay(model, machine, host_bytes)
    if places["activations"] == "host" and stay + model.activation_bytes > host_bytes:
        return None
    return stay


def _placings(passes: int, on_drives: Optional[Tuple[str, ...]]) -> Iterator[Dict[str, str]]:
    """Where each kind may lie, together. The optimizer steps on the device what is all there, else
    in the host. Gradients are in the host where a step of one pass uses them as they come
    (in_backward=True), and activations as copies (docs/GUIDE.md, On a GPU)."""
    choices = {"parameters": ("device", "drives"), "gradients": ("device", "host", "drives"),
               "optimizer": ("device", "drives"), "activations": ("device", "host", "drives")}
    if on_drives is not None:
        choices = {kind: ("drives",) if kind in on_drives else places[:-1]
                   for kind, places in choices.items()}
    for together in itertools.product(*choices.values()):
        places = dict(zip(choices, together))
        at_once = places["parameters"] == places["gradients"] == "device"
        if ((places["optimizer"] == "drives" or at_once)
                and (places["gradients"] != "host" or passes == 1)):
            yield places


def _preference(answer: Answer) -> Tuple[int, int, float, int, int]:
    """Which of two placings is better: the lesser one. Drives can be added."""
    return (answer.missing_device_bytes + answer.missing_memory_bytes, answer.missing_drive_bytes,
            answer.step_seconds, sum(row.written_bytes for row in answer.rows),
            answer.memory_bytes)


def _device_rows(model: Model, optimizer: Optimizer, places: Dict[str, str],
                 stay_bytes: int) -> List[Row]:
    """As _rows(), of a machine with a device."""
    passes, in_host = model.micro_batches, places["optimizer"] == "drives"
    # What lies elsewhere has on the device, at least two scopes, and passes in and out per byte.
    # Where the host steps, gradients go to it once, and new parameters come back.
    windows = {
        "parameters": parameters_on_device(model.largest_scope_bytes,
                                           model.largest_parameter_bytes),
        "gradients": 2 * model.largest_scope_bytes, "optimizer": 0,
        "activations": _ACTIVATION_SCOPES * model.largest_activation_bytes}
    away = {"parameters": (2 * passes, 0), "gradients": (0, passes), "optimizer": (0, 0),
            "activations": (passes, passes)}
    here = {"parameters": (int(in_host), 0), "gradients": (0, int(in_host))}
    rows = []
    for row in _drive_rows(model, optimizer, stay_bytes):
        place = places[row.kind]
        device, (comes, goes) = min(windows[row.kind], row.bytes), away[row.kind]
        if place == "device":
            row = Row(row.kind, row.bytes, place, 0, 0, 0, 0)
            device, (comes, goes) = row.bytes, here.get(row.kind, (0, 0))
        elif place == "host":  # copies of activations stay, gradients go
            memory = row.bytes if row.kind == "activations" else row.memory_bytes
            row = Row(row.kind, row.bytes, place, memory, 0, 0, 0)
        rows.append(dataclasses.replace(row, device_bytes=device, bus_in_bytes=comes * row.bytes,
                                        bus_out_bytes=goes * row.bytes))
    return rows


def _answer(model: Model, machine: Machine, rows: List[Row]) -> Answer:
    memory = sum(row.memory_bytes for row in rows)
    drives = sum(row.drive_bytes for row in rows)
    written = sum(row.written_bytes for row in rows)
    # One drive does not do both at once at full speed, so their times add up.
    drive_seconds = (sum(row.read_bytes for row in rows) / machine.read_rate
                     + written / machine.write_rate)
    seconds = {"compute": model.flops / machine.flops, "drives": drive_seconds, "bus": 0.0,
               "host": 0.0}
    missing_device = 0
    if machine.device_bytes:
        # Both directions at once, each at full speed.
        seconds["bus"] = max(sum(row.bus_in_bytes for row in rows),
                             sum(row.bus_out_bytes for row in rows)) / machine.bus_rate
        if machine.host_rate:
            seconds["host"] = sum(row.bytes for row in rows if row.kind == "optimizer"
                                  and row.on_drives) / machine.host_rate
        missing_device = max(0, sum(row.device_bytes for row in rows) - machine.device_bytes)
    bound = max(seconds, key=lambda name: seconds[name])
    years = None
    if machine.endurance_bytes and written:
        years = machine.endurance_bytes / (written / seconds[bound] * _DAY_SECONDS) / _YEAR_DAYS
    return Answer(rows, memory, drives, max(0, memory - machine.memory_bytes),
                  max(0, drives - machine.drive_bytes), seconds["compute"], drive_seconds, bound,
                  years, missing_device, seconds["bus"], seconds["host"])


def _of_device(model: Model, optimizer: Optimizer, machine: Machine,
               on_drives: Optional[Tuple[str, ...]], host_bytes: Optional[int]) -> Answer:
    """As plan(), of a machine with a device."""
    placings = list(_placings(model.micro_batches, on_drives))
    if not placings:
        raise ValueError("with parameters or gradients on drives the host steps: the optimizer is "
                         "on drives, too")
    if host_bytes is not None and on_drives is not None and "parameters" in on_drives:
        _stay(model, machine, host_bytes)
    answers = []
    for places in placings:
        stay = _stay_of(model, machine, places, host_bytes)
        if stay is not None:
            answers.append(_answer(model, machine, _device_rows(model, optimizer, places, stay)))
    return min(answers, key=_preference)


def plan(model: Model, optimizer: Optimizer, machine: Machine,
         on_drives: Optional[Tuple[str, ...]] = None, host_bytes: Optional[int] = None) -> Answer:
    """Where everything lies.

    :param on_drives: of KINDS; None: as few of them, in that order, as let the rest fit into
        memory; on a machine with a device, those with which a step is shortest
    :param host_bytes: as offload() is given: memory of the host in which parameters on drives stay
        first, and on a machine with a device copies of activations; None: parameters have what
        offload() gives them by default, and copies as much as they take
    :raises ValueError: something is none of KINDS; or host_bytes are fewer than parameters need
    """
    unknown = [kind for kind in on_drives or () if kind not in KINDS]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(KINDS)}")
    if machine.device_bytes:
        return _of_device(model, optimizer, machine, on_drives, host_bytes)
    if on_drives is not None:
        return _answer(model, machine, _rows(model, optimizer, machine, on_drives, host_bytes))
    for count in range(len(KINDS) + 1):
        answer = _answer(model, machine, _rows(model, optimizer, machine, KINDS[:count],
                                               host_bytes))
        if not answer.missing_memory_bytes:
            break
    return answer


def as_json(model: Model, machine: Machine, answer: Answer) -> Dict[str, object]:
    return {"model": dataclasses.asdict(model), "machine": dataclasses.asdict(machine),
            **dataclasses.asdict(answer),
            "rows": [{**dataclasses.asdict(row), "on_drives": row.on_drives}
                     for row in answer.rows],
            "fits": answer.fits, "step_seconds": answer.step_seconds,
            "device_bytes": answer.device_bytes,
            "written_bytes_per_day": answer.written_bytes_per_day}
