# SPDX-License-Identifier: MIT
# spillway/_optim/unchanged.py - warns once of steps that change no parameter
"""PyTorch steps parameters of no model, a rate of 0 and gradients of 0 without a word. The first
steps are looked at until one has changed an element: then nothing is compared any more."""
from __future__ import annotations

import contextlib
import logging
from typing import Any, Dict, Iterator, Sequence

import torch
from torch import Tensor

_log = logging.getLogger("spillway")

# A warm-up may begin with a rate of 0.
_STEPS = 2


class Unchanged:
    """Of one optimizer. ``looking``: no step has changed anything so far, and nothing was said."""

    def __init__(self) -> None:
        self.looking = True
        self._steps = 0
        self._stepped = False
        self._nonzero = False

    @contextlib.contextmanager
    def look(self, params: Sequence[Tensor]) -> Iterator[None]:
        """Around a step of these, which have gradients."""
        if not self.looking:
            yield
            return
        nonzero = any(param.grad is not None and bool(param.grad.any()) for param in params)
        before = [param.clone() for param in params]
        yield
        self._stepped = True
        self._nonzero = self._nonzero or nonzero
        if not all(map(torch.equal, params, before)):
            self.looking = False

    def end_step(self, groups: Sequence[Dict[str, Any]], number: int) -> None:
        """:param number: of the step that ends"""
        if not self.looking:
            return
        self._steps += 1
        if self._steps == _STEPS:
            self.looking = False
            _log.warning("steps %d to %d changed no parameter: %s", number - _STEPS + 1, number,
                         self._why(groups))

    def _why(self, groups: Sequence[Dict[str, Any]]) -> str:
        params = [param for group in groups for param in group["params"]]
        of_it = f"none of the optimizer's {len(params)} parameters"
        if not self._stepped and not any(param.requires_grad for param in params):
            return (f"{of_it} requires a gradient. Give it those of the model that is trained, and "
                    "not copies; if they are frozen for now, this is as it should be")
        if not self._stepped:
            return (f"{of_it} has got a gradient. Are they those of the model that is trained? "
                    "Copies, and what was replaced since the optimizer was made, get none")
        rates = [group.get("lr") for group in groups]
        if all(rate is not None and float(rate) == 0 for rate in rates):
            return ("lr is 0 in all groups. Was it, or the scheduler that sets it, meant to be? If "
                    "this is a long warm-up it is as it should be")
        if not self._nonzero:
            return ("all gradients are 0. Does the loss depend on these parameters, and is it not "
                    "multiplied by 0?")
        words = ", ".join(str(rate) for rate in rates[:4])
        return (f"what the steps add is too small for the parameters' type: lr is {words}. Give a "
                "larger one, or parameters of more bits")
