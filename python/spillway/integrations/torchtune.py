# SPDX-License-Identifier: MIT
# spillway/integrations/torchtune.py - the switch for activation offloading of torchtune's recipes
"""
>>> install(devices=["/dev/nvme1n1"])

before a recipe sets its model up: with ``enable_activation_offloading=True`` in its configuration,
what it would copy to host memory is spilled to the drives.
"""
from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Optional

from torch import nn
from torchtune import training

from ..torch import Mode, Offload, offload
from ._training import Devices

__all__ = ["Switch", "install"]


class Switch:
    """What the recipes' setting turns on, until ``end()``."""

    def __init__(self, devices: Devices, options: Any) -> None:
        self._devices, self._options = devices, options
        self.off: Optional[Offload] = None  # of the recipe that was set up last
        self._before = training.get_act_offloading_ctx_manager
        training.get_act_offloading_ctx_manager = self._context

    def _context(self, model: nn.Module, enable_activation_offloading: bool) -> ContextManager[Any]:
        if not enable_activation_offloading:
            return contextlib.nullcontext()
        if self.off is not None:
            self.off.close()  # of a recipe before, however it ended
        self.off = offload(model, self._devices, **self._options)
        return self.off

    def end(self) -> None:
        """Close the store, and let torchtune offload by itself again. A second time it does
        nothing."""
        training.get_act_offloading_ctx_manager = self._before
        if self.off is not None:
            self.off.close()


def install(devices: Devices, *, mode: Mode = "fastest", **options: Any) -> Switch:
    """Let ``enable_activation_offloading=True`` spill to drives, in all recipes of this process.

    :param devices: the drives of a store, of which each rank opens its own partition; or an open
        store, which stays open
    :param mode: see spillway.torch.offload()
    :param options: what else spillway.torch.offload() takes, except the model
    :raises SpillwayError: when a recipe sets its model up, by what offload() raises: no store on
        the drives, in use
    """
    return Switch(devices, {"mode": mode, **options})
