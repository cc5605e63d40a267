# SPDX-License-Identifier: MIT
# spillway/_grads/param_readers.py - pending readers of a parameter whose gradient is ready
"""An operation that saved the parameter itself for the backward pass contributes to its gradient,
so it has read the parameter when the gradient is ready. Three kinds of readers may come later. An
operation that saved another tensor with the same memory, like ``weight.detach()``, is found by
counting the users of the memory. A module whose recomputation reads the parameter a second time is
found by counting its calls: it was called twice in the forward pass. A backward hook of a module
runs after the gradients of its parameters are there, and may read or change them: these count as
read until step().

Parameters that are views of one tensor count changes as one: a step of the first is to autograd a
change of the others, which operations have saved. So these count as read until step().
"""
from __future__ import annotations

import collections
import logging
import warnings
import weakref
from typing import Any, Callable, List, Sequence, Set

import torch
from torch import Tensor

from .._core.torch_compat import is_compiled, is_compiling, storage_of, storage_uses
from .._optim.tile_step import local_of

_log = logging.getLogger("spillway")


def can_count() -> bool:
    return storage_uses is not None


def _identity_of(param: Tensor) -> int:
    """Of its storage."""
    return int(storage_of(local_of(param))._cdata)


def _uses_of(param: Tensor) -> int:
    """The number of tensors on this memory, plus a constant."""
    return int(storage_uses(_identity_of(param)))


class Readers:
    """Pending readers of parameters, step by step.

    :param changed: whether a parameter has been stepped in this step
    """

    def __init__(self, params: Sequence[Tensor], changed: Callable[[int], bool]) -> None:
        self._params = params
        self._numbers = {id(param): number for number, param in enumerate(params)}
        self._changed = changed
        self._has_warned = self._has_said = False
        self._calls: List[int] = []
        self._for_hooks: Set[int] = set()  # parameters of modules with a backward hook
        # A tensor that shares memory with a parameter when the optimizer is made does so for good.
        # One that does so later may have been left in a variable by a step, and the next step
        # replaces it.
        self._uses = [_uses_of(param) for param in params]
        count = collections.Counter(map(_identity_of, params))
        self._has_others = [count[_identity_of(param)] > 1 for param in params]
        if any(self._has_others):
            _log.warning(
                "%d parameters are parts of memory that others are in, too: these are stepped by "
                "step(), not in the backward pass, and their gradients stay until then",
                sum(self._has_others))
        self.begin_step()
        self._handle = _watch(self)

    def remove(self) -> None:
        self._handle.remove()

    def begin_step(self) -> None:
        self._calls = [0] * len(self._params)
        self._for_hooks.clear()
        self._uses = [min(before, _uses_of(param))
                      for before, param in zip(self._uses, self._params)]

    def has(self, number: int) -> bool:
        """Whether a parameter whose gradient is ready may still be read."""
        if self._has_others[number] or self.waits_for_hook(number):
            return True
        return self._calls[number] > 1 or _uses_of(self._params[number]) > self._uses[number]

    def called(self, module: torch.nn.Module) -> None:
        """:raises RuntimeError: a module is recomputed with a parameter that has been stepped
        """
        in_backward = torch._C._current_graph_task_id() != -1
        # Checkpoints of the reentrant kind compute the forward pass without gradients.
        counts = not in_backward and (torch.is_grad_enabled() or module.training)
        if in_backward or counts:
            self._wait_for_hooks_of(module)
        if not (in_backward or counts) and self._has_warned:
            return
        for name, param in module._parameters.items():
            number = self._numbers.get(id(param))
            if number is None:
                continue
            if counts:
                self._calls[number] += 1
            if (in_backward or not self._has_warned) and self._changed(number):
                self._read_after_its_step(f"{type(module).__name__}.{name}", in_backward)

    def waits_for_hook(self, number: int) -> bool:
        """Whether a backward hook may use a parameter, or its gradient."""
        return number in self._for_hooks

    def _wait_for_hooks_of(self, module: torch.nn.Module) -> None:
        # The parts of what is compiled are not called.
        for part in module.modules() if is_compiled(module) else (module,):
            if _has_backward_hook(part):
                self._wait_for_hook_of(part)

    def _wait_for_hook_of(self, module: torch.nn.Module) -> None:
        waiting = {self._numbers[id(param)] for param in module.parameters()
                   if id(param) in self._numbers}
        if waiting and not self._has_said:
            self._has_said = True
            _log.warning(
                "%s has a backward hook, which may read or change its parameters: these are "
                "stepped by step(), not in the backward pass, and their gradients stay until then. "
                "Parameters of other modules that such a hook uses may be stepped already",
                type(module).__name__)
        self._for_hooks |= waiting

    def _read_after_its_step(self, name: str, in_backward: bool) -> None:
        """A module reads a parameter between its step, during the backward pass, and step()."""
        if in_backward:
            raise RuntimeError(
                f"{name} is read again in the backward pass, after in_backward=True has stepped "
                "it: the parameters that a recomputed module reads must contribute to its "
                "gradient. Leave in_backward out, and go back to the last commit: this step is "
                "half done")
        self._has_warned = True
        warnings.warn(
            f"{name} is read between the backward pass and step(), and in_backward=True has "
            "stepped it already: what this forward pass gives is not that of the parameters of "
            "before. Evaluate or generate after step()", RuntimeWarning, stacklevel=2)


def _has_backward_hook(module: torch.nn.Module) -> bool:
    return bool(module._backward_hooks or torch.nn.modules.module._global_backward_hooks)


def _watch(readers: Readers) -> Any:
    """The handle of a hook on all modules, which does not keep the optimizer alive. When that is
    gone the next module that is called removes the hook: garbage may be collected while
    torch.compile compiles something, which looks up the hooks there were when it began."""
    found = weakref.ref(readers)

    def called(module: torch.nn.Module, _: Any) -> None:
        if is_compiling():
            return
        here = found()
        if here is None:
            handle.remove()
        else:
            here.called(module)

    handle = torch.nn.modules.module.register_module_forward_pre_hook(called)
    return handle
