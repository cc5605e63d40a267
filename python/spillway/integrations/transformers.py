# SPDX-License-Identifier: MIT
# spillway/integrations/transformers.py - the Trainer of transformers, and those of trl
"""
>>> trainer = Trainer(model, args, train_dataset=data,
...                   callbacks=[SpillwayCallback(devices=["/dev/nvme1n1"])])
>>> trainer.train()

or, for a trainer that exists already, ``enable(trainer, devices=["/dev/nvme1n1"])``, or a model of
which others make the trainer, or train it without one: ``enable(model, devices=...)``.
"""
from __future__ import annotations

import functools
from typing import Any, Union

import torch
from torch import nn
from transformers import Trainer, TrainerCallback

from ..torch import Mode
from ._training import Devices, TrainingCallback

__all__ = ["SpillwayCallback", "enable"]


class SpillwayCallback(TrainingCallback, TrainerCallback):
    """Spills what a training step saves, and nothing of evaluation.

    The store is open from the beginning of ``train()`` to its end. An exception or Ctrl-C that
    ends it leaves the store open until the next ``train()`` in this thread or ``end()``;
    ``enable()`` ends with it in any case.

    :param devices: the drives of a store, of which each rank opens its own partition; or an open
        store, which stays open; None: without drives, to recompute only (recompute="operations")
    :param mode: see spillway.torch.offload()
    :param options: what else spillway.torch.offload() takes, except the model; report="run.html" is
        the page of what it did
    :raises SpillwayError: in train(), by what offload() raises: no store on the drives, in use
    :raises ValueError: in train(): trl's own activation_offloading is on, or torch_compile with
        parameters=True
    """

    def end(self) -> None:
        """Close the store, after an exception. A second time it does nothing."""
        self._training.end()

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if getattr(args, "activation_offloading", False):  # of trl's and axolotl's trainers
            raise ValueError("activation_offloading would take every activation first, and "
                             "spillway get none: remove one of the two")
        if getattr(args, "torch_compile", False) and self._training.options.get("parameters"):
            raise ValueError("torch_compile uses parameters without a word, and parameters=True "
                             "has them on drives: leave one of the two out")
        self._training.begin(given["model"])

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._training.enter()

    def on_substep_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._training.enter()  # the next micro-batch

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._training.leave()

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._training.end()

    def in_forward(self, model: nn.Module) -> None:
        """Spill what forward passes of a model save, from any caller, until ``end()``. Tensors
        saved after the forward, as by a separate loss, stay in memory."""
        forward = model.forward

        @functools.wraps(forward)
        def spilling(*args: Any, **given: Any) -> Any:
            if not torch.is_grad_enabled():
                return forward(*args, **given)
            self._training.enter()
            try:
                return forward(*args, **given)
            finally:
                self._training.leave()

        self._training.begin(model)
        model.forward = spilling


def enable(trainer: Union[Trainer, nn.Module], devices: Devices, *, mode: Mode = "fastest",
           **options: Any) -> SpillwayCallback:
    """Let a trainer that exists spill; the store is closed when ``train()`` returns or raises. Or a
    model, in each forward pass that is trained; then ``end()`` closes the store.

    :returns: the callback; its parameters are those
    :raises SpillwayError: of a model, at once: no store on the drives, in use
    """
    callback = SpillwayCallback(devices, mode=mode, **options)
    if isinstance(trainer, nn.Module):
        callback.in_forward(trainer)
        return callback
    trainer.add_callback(callback)
    train = trainer.train

    @functools.wraps(train)
    def train_and_end(*args: Any, **given: Any) -> Any:
        try:
            return train(*args, **given)
        finally:
            callback.end()

    trainer.train = train_and_end
    return callback
