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
from typing import Dict, List, Optional, Tuple

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
    ``activation_bytes``: saved by the forward pass of one micro-batch; ``flops``: of a step."""

    name: str
    parameters: int
    element_bytes: int
    largest_scope_bytes: int
    largest_parameter_bytes: int
    activation_bytes: int
    largest_activation_bytes: int
    micro_batches: int
    flops: float


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """What it keeps for each parameter, with a master if parameters are of 16 bits."""

    name: str
    bytes_per_parameter: int


@dataclasses.dataclass(frozen=True)
class Machine:
    """``endurance_bytes``: that all drives together can be written; 0: not known."""

    memory_bytes: int
    drive_bytes: int
    read_rate: float
    write_rate: float
    flops: float
    endurance_bytes: float = 0.0


@dataclasses.dataclass(frozen=True)
class Row:
    """One kind of bytes: how many there are, where they lie, and what a step moves."""

    kind: str
    bytes: int
    on_drives: bool
    memory_bytes: int
    drive_bytes: int
    read_bytes: int
    written_bytes: int


@dataclasses.dataclass(frozen=True)
class Answer:
    """``missing_memory_bytes`` and ``missing_drive_bytes``: 0 where it fits. ``bound``: what a step
    waits for. ``years`` that the drives last, training all the time; None: not known."""

    rows: List[Row]
    memory_bytes: int
    drive_bytes: int
    missing_memory_bytes: int
    missing_drive_bytes: int
    compute_seconds: float
    drive_seconds: float
    bound: str
    years: Optional[float]

    @property
    def fits(self) -> bool:
        return not (self.missing_memory_bytes or self.missing_drive_bytes)

    @property
    def step_seconds(self) -> float:
        """Drives work while the step computes."""
        return max(self.compute_seconds, self.drive_seconds)


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
                 max(activation, logits), micro_batches, flops)


def _rows(model: Model, optimizer: Optimizer, on_drives: Tuple[str, ...]) -> List[Row]:
    """Where each kind lies, and what a step moves of it (docs/STATE.md, Bytes)."""
    parameter_bytes = model.parameters * model.element_bytes
    state_bytes = model.parameters * optimizer.bytes_per_parameter
    passes = model.micro_batches

    def row(kind: str, count: int, memory: int, room: int, read: int, written: int) -> Row:
        if kind not in on_drives:
            return Row(kind, count, False, count, 0, 0, 0)
        return Row(kind, count, True, min(memory, count), room, read, written)

    return [
        # Read for the forward and for the backward pass, written by the step; twice, for commits.
        row("parameters", parameter_bytes,
            parameters_most(model.largest_scope_bytes, model.largest_parameter_bytes),
            2 * parameter_bytes, 2 * passes * parameter_bytes, parameter_bytes),
        # Added to by each pass after the first; read once more by the step.
        row("gradients", parameter_bytes, _TILES_BYTES, parameter_bytes,
            passes * parameter_bytes, passes * parameter_bytes),
        # All of it once each way; twice, for commits.
        row("optimizer", state_bytes, _TILES_BYTES, 2 * state_bytes, state_bytes, state_bytes),
        row("activations", model.activation_bytes,
            _ACTIVATION_SCOPES * model.largest_activation_bytes, model.activation_bytes,
            passes * model.activation_bytes, passes * model.activation_bytes),
    ]


def _answer(model: Model, optimizer: Optimizer, machine: Machine,
            on_drives: Tuple[str, ...]) -> Answer:
    rows = _rows(model, optimizer, on_drives)
    memory = sum(row.memory_bytes for row in rows)
    drives = sum(row.drive_bytes for row in rows)
    written = sum(row.written_bytes for row in rows)
    # One drive does not do both at once at full speed, so their times add up.
    drive_seconds = (sum(row.read_bytes for row in rows) / machine.read_rate
                     + written / machine.write_rate)
    compute_seconds = model.flops / machine.flops
    slow = drive_seconds > compute_seconds
    seconds = max(drive_seconds, compute_seconds)
    years = None
    if machine.endurance_bytes and written:
        years = machine.endurance_bytes / (written / seconds * _DAY_SECONDS) / _YEAR_DAYS
    return Answer(rows, memory, drives, max(0, memory - machine.memory_bytes),
                  max(0, drives - machine.drive_bytes), compute_seconds, drive_seconds,
                  "drives" if slow else "compute", years)


def plan(model: Model, optimizer: Optimizer, machine: Machine,
         on_drives: Optional[Tuple[str, ...]] = None) -> Answer:
    """Where everything lies.

    :param on_drives: of KINDS; None: as few of them, in that order, as let the rest fit into memory
    :raises ValueError: something is none of KINDS
    """
    if on_drives is not None:
        unknown = [kind for kind in on_drives if kind not in KINDS]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is none of {', '.join(KINDS)}")
        return _answer(model, optimizer, machine, on_drives)
    for count in range(len(KINDS) + 1):
        answer = _answer(model, optimizer, machine, KINDS[:count])
        if not answer.missing_memory_bytes:
            break
    return answer


def as_json(model: Model, machine: Machine, answer: Answer) -> Dict[str, object]:
    return {"model": dataclasses.asdict(model), "machine": dataclasses.asdict(machine),
            **dataclasses.asdict(answer), "fits": answer.fits,
            "step_seconds": answer.step_seconds}
