# SPDX-License-Identifier: MIT
# spillway/integrations/lightning.py - the Trainer of Lightning
"""
>>> trainer = Trainer(callbacks=[SpillwayCallback(devices=["/dev/nvme1n1"])])
>>> trainer.fit(module, loader)

Strategy, precision and loops stay what they are.
"""
from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:  # the same classes by their other name
    from pytorch_lightning import Callback

from ._training import TrainingCallback

__all__ = ["SpillwayCallback"]


class SpillwayCallback(TrainingCallback, Callback):
    """Spills what each batch saves in ``training_step()``, from ``fit()`` on to its end, however
    that comes. Each batch is a step, also where gradients of several are accumulated.

    :param devices: the drives of a store, of which each rank opens its own partition; or an open
        store, which stays open; None: without drives, to recompute only (recompute="operations")
    :param mode: see spillway.torch.offload()
    :param options: what else spillway.torch.offload() takes, except the model; report="run.html" is
        the page of what it did
    :raises SpillwayError: in fit(), by what offload() raises: no store on the drives, in use
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._training.begin(pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any,
                             batch_idx: int) -> None:
        self._training.enter()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any,
                           batch_idx: int) -> None:
        self._training.leave()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._training.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._training.end()
