# SPDX-License-Identifier: MIT
# spillway/schedules.py - the schedule of a pipeline: plain 1F1B, DeepSpeed, Megatron
"""Pipelines run forward and backward passes of several micro-batches in turns. The cache
prefetches for the next backward pass while another pass computes if a scheduler calls
``off.step()`` at the start of a step and ``off.stage()`` before each pass. This module does so for
existing schedulers; the training itself still runs ``with off:``.

>>> spillway.schedules.attach_deepspeed(engine, off)
>>> func = get_forward_backward_func()
>>> forward_backward = spillway.schedules.wrap_megatron(func, off, rank, size)

Neither package is imported: the adapters use what their schedules do from outside.
"""
from __future__ import annotations

import itertools
import logging
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple

import torch
from torch import Tensor

from .torch import Offload, Phase, Stage

_log = logging.getLogger("spillway")

__all__ = ["announce", "attach_deepspeed", "one_f_one_b", "wrap_megatron"]

_PHASES: Dict[str, Phase] = {"ForwardPass": "forward", "BackwardPass": "backward"}


def one_f_one_b(stage: int, stages: int, micro_batches: int) -> List[Stage]:
    """The passes of one stage of a pipeline in the order of 1F1B: as many forward passes as there
    are stages after this one, then forward and backward in turns, then the backward passes that are
    left.

    :raises ValueError: no such stage, or no micro-batch
    """
    if not 0 <= stage < stages or micro_batches < 1:
        raise ValueError(
            f"stage {stage} of {stages} with {micro_batches} micro-batches cannot be scheduled")
    warm_up = min(stages - 1 - stage, micro_batches)
    order: List[Stage] = [(index, "forward") for index in range(warm_up)]
    for index in range(micro_batches - warm_up):
        order += [(warm_up + index, "forward"), (index, "backward")]
    return order + [(index, "backward") for index in range(micro_batches - warm_up, micro_batches)]


def announce(off: Offload, order: Iterable[Stage]) -> Iterator[Stage]:
    """Begin a step and go through the passes of a schedule; each is told, with the one after it,
    before it is given out.

    >>> order = spillway.schedules.one_f_one_b(0, 2, 8)
    >>> for micro_batch, phase in spillway.schedules.announce(off, order):
    ...     run(micro_batch, phase)
    """
    off.step()
    for here, then in _with_next(list(order)):
        off.stage(*here, next=then)
        yield here


def _with_next(order: List[Stage]) -> Iterator[Tuple[Stage, Optional[Stage]]]:
    return zip(order, [*order[1:], None])


# ---- DeepSpeed -----------------------------------------------------------------------------------


class _Announced:
    """A schedule of DeepSpeed that tells each pass just before it hands out its instruction."""

    def __init__(self, schedule: Any, off: Offload) -> None:
        self._schedule, self._off = schedule, off

    def __getattr__(self, name: str) -> Any:
        return getattr(self._schedule, name)

    def __iter__(self) -> Iterator[Any]:
        steps = [list(commands) for commands in self._schedule]
        try:
            passes = self._passes(steps)
        except (AttributeError, KeyError) as error:  # no reason not to train
            _log.warning(
                "this schedule is of a kind that is not known here, its passes are not told: %r",
                error)
            return iter(steps)
        if not any(phase == "backward" for _, phase in passes):
            return iter(steps)  # evaluation
        announced = announce(self._off, passes)
        return (self._commands(commands, announced) for commands in steps)

    @staticmethod
    def _passes(steps: List[List[Any]]) -> List[Stage]:
        """Instructions name buffers. A buffer holds the micro-batch of its last forward pass."""
        passes: List[Stage] = []
        in_buffer: Dict[int, int] = {}
        count = itertools.count()
        for command in itertools.chain.from_iterable(steps):
            phase = _PHASES.get(type(command).__name__)
            if phase == "forward":
                in_buffer[command.kwargs["buffer_id"]] = next(count)
            if phase:
                passes.append((in_buffer[command.kwargs["buffer_id"]], phase))
        return passes

    @staticmethod
    def _commands(commands: List[Any], announced: Iterator[Stage]) -> Iterator[Any]:
        for command in commands:
            if type(command).__name__ in _PHASES:
                next(announced)
            yield command


def attach_deepspeed(engine: Any, off: Offload) -> Callable[[], None]:
    """Let a ``deepspeed.runtime.pipe.engine.PipelineEngine`` tell its passes; every schedule that
    it executes from now on begins a step. Returns the function that ends it.

    :raises TypeError: the engine has no _exec_schedule(): it is not a PipelineEngine, or of an
        unknown version
    """
    execute: Any = getattr(engine, "_exec_schedule", None)
    if not callable(execute):
        raise TypeError(
            f"{type(engine).__name__} has no _exec_schedule(): it is not a PipelineEngine that is "
            "known here")

    def execute_announced(pipe_schedule: Any) -> Any:
        return execute(_Announced(pipe_schedule, off))

    def detach() -> None:
        if vars(engine).get("_exec_schedule") is execute_announced:
            del engine._exec_schedule

    engine._exec_schedule = execute_announced
    return detach


# ---- Megatron ------------------------------------------------------------------------------------


def _outputs_of(result: Any) -> Iterable[Tensor]:
    output = result[0] if isinstance(result, tuple) else result
    for tensor in output if isinstance(output, (tuple, list)) else [output]:
        if isinstance(tensor, Tensor) and tensor.requires_grad:
            yield tensor


def _watched(forward_step_func: Callable[..., Any], off: Offload,
             order: List[Stage]) -> Callable[..., Any]:
    """For one call of a forward-backward function. Forward passes are seen by their calls of
    this, backward passes by the first gradient of an output."""
    after = dict(_with_next(order))
    count = itertools.count()
    begun: Set[Stage] = set()

    def begin(here: Stage) -> None:
        if here not in begun:
            begun.add(here)
            off.stage(*here, next=after.get(here))

    def forward_step(*args: Any, **kwargs: Any) -> Any:
        number = next(count)
        if torch.is_grad_enabled():
            begin((number, "forward"))
        result = forward_step_func(*args, **kwargs)
        for output in _outputs_of(result):
            output.register_hook(lambda _gradient: begin((number, "backward")))
        return result

    return forward_step


def wrap_megatron(forward_backward_func: Callable[..., Any], off: Offload, pipeline_rank: int = 0,
                  pipeline_size: int = 1) -> Callable[..., Any]:
    """What ``megatron.core.pipeline_parallel.get_forward_backward_func()`` returned, telling its
    passes; same arguments, same result. Each call with ``forward_only=False`` begins a step.

    :param pipeline_rank: with ``pipeline_size``, the place in the pipeline: then it is known which
        pass comes next. Not for interleaved schedules (several model chunks per rank): they tell
        each pass when it begins.
    """

    def forward_backward(*, forward_step_func: Callable[..., Any], num_microbatches: int,
                         **kwargs: Any) -> Any:
        if not kwargs.get("forward_only", False):
            model = kwargs.get("model")
            interleaved = isinstance(model, (list, tuple)) and len(model) > 1
            # Without a pipeline a backward pass follows each forward pass: 1F1B of one stage.
            order = [] if interleaved else one_f_one_b(pipeline_rank, pipeline_size,
                                                       num_microbatches)
            off.step()
            forward_step_func = _watched(forward_step_func, off, order)
        return forward_backward_func(forward_step_func=forward_step_func,
                                     num_microbatches=num_microbatches, **kwargs)

    return forward_backward
