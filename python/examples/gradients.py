# SPDX-License-Identifier: MIT
# python/examples/gradients.py - the optimizer, and what becomes of gradients
"""Once activations are on drives, what is most in memory is parameters, gradients and the
optimizer's state. Of these only gradients need not be there all at once."""
from __future__ import annotations

import functools
import hashlib
import time
from typing import Any, Callable, List

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

POLICIES = {
    "freed": "after the step, as PyTorch from 2.0 on does",
    "kept": "set to zero in place, as before PyTorch 2.0: they are there in the forward pass too",
    "early": "the backward pass steps a parameter once its gradient is complete, and frees that",
}


def _when_complete(parameter: nn.Parameter, function: Callable[..., None]) -> Any:
    """Call function() whenever a backward pass has added to the parameter's gradient. What is
    returned must be held."""
    tensor: Any = parameter  # what of it is used here has no types, or more than one
    if hasattr(tensor, "register_post_accumulate_grad_hook"):  # from PyTorch 2.1 on
        return tensor.register_post_accumulate_grad_hook(function)
    node = tensor.expand_as(tensor).grad_fn.next_functions[0][0]
    node.register_hook(function)
    return node


class Stepper:
    """AdamW. The policies freed and early give the same bits.

    :param checksum: whether hexdigests are wanted
    :raises ValueError: the policy does not go with the model
    """

    def __init__(self, model: nn.Module, policy: str, checksum: bool) -> None:
        if policy == "early" and isinstance(model, DistributedDataParallel):
            raise ValueError("gradients cannot go early in data parallel training: they are "
                             "averaged after the backward pass")
        self._parameters = list(model.parameters())
        self._policy = policy
        self._checksum = checksum
        self._digest = hashlib.sha256()
        self.hexdigests: List[str] = []  # after each step, of all gradients so far
        self._digests: List[bytes] = [b""] * len(self._parameters)
        self._checksum_seconds = 0.0
        # this backward pass is the last of its step: gradients are complete after it
        self.last = True
        groups = [self._parameters]
        if policy == "early":
            groups = [[parameter] for parameter in self._parameters]
            self._hooks = [_when_complete(parameter, functools.partial(self._complete, index))
                           for index, parameter in enumerate(self._parameters)]
        self._optimizers = [AdamW(group, lr=3e-4) for group in groups]

    def _complete(self, index: int, *_: Any) -> None:
        if self.last:
            self._note(index)
            self._optimizers[index].step()
            self._parameters[index].grad = None

    def _note(self, index: int) -> None:
        gradient = self._parameters[index].grad
        if self._checksum and gradient is not None:
            began = time.perf_counter()
            self._digests[index] = hashlib.sha256(gradient.contiguous().numpy().data).digest()
            self._checksum_seconds += time.perf_counter() - began

    def note(self) -> None:
        """The backward passes of a step have ended."""
        if self._policy != "early":
            for index in range(len(self._parameters)):
                self._note(index)
        for digest in self._digests:
            self._digest.update(digest)
        if self._checksum:
            self.hexdigests.append(self._digest.hexdigest())

    def step(self) -> None:
        if self._policy != "early":
            self._optimizers[0].step()
            self._optimizers[0].zero_grad(set_to_none=self._policy == "freed")

    def checksum_seconds(self) -> float:
        """How long checksums took since the last call: no training does that."""
        seconds, self._checksum_seconds = self._checksum_seconds, 0.0
        return seconds
