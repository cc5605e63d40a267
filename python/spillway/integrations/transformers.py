# SPDX-License-Identifier: MIT
# spillway/integrations/transformers.py - the Trainer of transformers, and those of trl
"""
>>> trainer = Trainer(model, args, train_dataset=data,
...                   callbacks=[SpillwayCallback(devices=["/dev/nvme1n1"])])
>>> trainer.train()

or, for a trainer that exists already, ``enable(trainer, devices=["/dev/nvme1n1"])``.
"""
from __future__ import annotations

import functools
from typing import Any

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
        store, which stays open
    :param mode: see spillway.torch.offload()
    :param options: what else spillway.torch.offload() takes, except the model
    :raises SpillwayError: in train(), by what offload() raises: no store on the drives, in use
    """

    def end(self) -> None:
        """Close the store, after an exception. A second time it does nothing."""
        self._training.end()

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._training.begin(given["model"])

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._training.enter()

    def on_substep_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._training.enter()  # the next micro-batch

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._training.leave()

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self._training.end()


def enable(trainer: Trainer, devices: Devices, *, mode: Mode = "fastest",
           **options: Any) -> SpillwayCallback:
    """Let a trainer that exists spill; the store is closed when ``train()`` returns or raises.

    :returns: the callback that it was given; its parameters are those
    """
    callback = SpillwayCallback(devices, mode=mode, **options)
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
