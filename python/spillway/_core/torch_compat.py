# SPDX-License-Identifier: MIT
# spillway/_core/torch_compat.py - the few places where versions of PyTorch differ
"""Storages: how to get at one, hold it weakly, and make a tensor on one; hooks. Nothing else of
spillway depends on PyTorch's version."""
from __future__ import annotations

import contextlib
import itertools
import sys
from typing import Any, Callable, ContextManager, List, Optional, Tuple

import torch
from torch import nn, overrides
from torch.utils import _python_dispatch

_HAS_UNTYPED = hasattr(torch.Tensor, "untyped_storage")  # from 2.0 on


# storage_of(tensor): the untyped storage; its _cdata is its identity, data_ptr() and nbytes() its
# memory.
storage_of: Callable[[torch.Tensor], Any] = getattr(
    torch.Tensor, "untyped_storage" if _HAS_UNTYPED else "_storage")

# Whose methods are in C: where the end of an object calls one, no Ctrl-C comes in, and is lost.
free_weak_ref = torch.UntypedStorage._free_weak_ref  # type: ignore[attr-defined]
expired = torch.UntypedStorage._expired  # type: ignore[attr-defined]


def innermost_hooks() -> Optional[Tuple[Any, Any]]:
    """The hooks on saved tensors that a pop would pop; None: there are none, or PyTorch does not
    tell."""
    found = None if _top_hooks is None else _top_hooks(True)
    return None if found is None else (found[0], found[1])


_top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


class SavedTensorsHooks:
    """torch.autograd.graph.saved_tensors_hooks in two calls. Wherever Ctrl-C comes in, it is known
    whether they are pushed: one call of a list, in C, pushes and notes it."""

    __slots__ = ("_pairs", "_pushed", "_popped")

    def __init__(self, pack: Callable[[torch.Tensor], Any],
                 unpack: Callable[[Any], torch.Tensor]) -> None:
        self._pairs = [(pack, unpack)]
        self._pushed: List[None] = []
        self._popped: List[None] = []

    @property
    def pushed(self) -> bool:
        return len(self._pushed) > len(self._popped)

    def push(self) -> None:
        """:raises RuntimeError: PyTorch takes none here"""
        self._pushed.extend(
            itertools.starmap(torch._C._autograd._push_saved_tensors_default_hooks, self._pairs))

    def are_innermost(self) -> bool:
        """Whether a pop would pop these; False also where PyTorch does not tell."""
        return self.pushed and innermost_hooks() == self._pairs[0]

    def check_innermost(self) -> None:
        """Where PyTorch tells which hooks would be popped, from 2.6 or so on.

        :raises RuntimeError: others were pushed since
        """
        found = innermost_hooks()
        if found is not None and found != self._pairs[0]:
            raise RuntimeError("other hooks on saved tensors were entered inside of this context: "
                               "leave those before it is paused")

    def pop(self) -> None:
        """Once, if they are pushed."""
        if self.pushed:
            self._popped.extend(
                itertools.starmap(torch._C._autograd._pop_saved_tensors_default_hooks, [()]))


def register_forward_pre_hook(module: nn.Module, hook: Callable[..., None]) -> Any:
    """hook(module, args, kwargs) before forward. Before PyTorch 2.0 hooks do not see keyword
    arguments: kwargs is then not given."""
    if _HAS_UNTYPED:
        return module.register_forward_pre_hook(hook, with_kwargs=True)  # type: ignore[call-arg]
    return module.register_forward_pre_hook(hook)


def register_forward_hook_always(module: nn.Module, hook: Callable[..., None]) -> Any:
    """hook(module, args, result) right after forward, before the hooks of others; also if forward
    raises: with None. From PyTorch 2.0 on."""
    return module.register_forward_hook(  # type: ignore[call-arg]
        hook, prepend=True, always_call=True)


def is_before(version: str) -> bool:
    """Whether this PyTorch is older than a version like "2.1"."""
    def numbers(text: str) -> List[int]:
        return [int(part) for part in text.split(".")[:2]]

    return numbers(torch.__version__) < numbers(version)


# is_compiling(): whether torch.compile traces the caller.
is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_compiling", lambda: False)


def is_compiled(module: nn.Module) -> bool:
    """In place, or as torch.compile() wraps it."""
    return getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")


def has_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters.get("stats"))


def backward_number() -> int:
    """The number of the backward pass that runs in this thread (PyTorch 2.0); -1: none."""
    return int(torch._C._current_graph_task_id())


def _probe_for_backward() -> Callable[[], bool]:
    if hasattr(torch._C, "_current_graph_task_id"):  # from 2.0 on
        return lambda: torch._C._current_graph_task_id() != -1

    leaf = torch.ones(1, dtype=torch.float32, device="cpu", requires_grad=True)
    node = (leaf * 1).grad_fn

    def probe() -> bool:
        try:
            torch._C._will_engine_execute_node(node)
        except RuntimeError:  # it serves only the backward pass
            return False
        return True

    return probe


def unseen_by_modes() -> ContextManager[Any]:
    """What runs in this context is not seen by the modes that see all operations. PyTorch's own way
    imports its compiler, which takes seconds: so only where more than one mode may be there."""
    mode = _python_dispatch._get_current_dispatch_mode()
    if mode is None:
        return contextlib.nullcontext()
    if torch._C._len_torch_dispatch_stack() == 1:
        return _python_dispatch._pop_mode_temporarily()
    return _python_dispatch._disable_current_modes()


def watcher_now() -> Optional[str]:
    """The name of a foreign mode that sees all operations, or None."""
    mode: Any = _python_dispatch._get_current_dispatch_mode()
    modes = [*overrides._get_current_function_mode_stack(), *([] if mode is None else [mode])]
    return next((type(each).__name__ for each in modes
                 if type(each).__name__ != "DeviceContext" and not hasattr(each, "is_ours")), None)


def in_checkpoint() -> bool:
    """Whether a reentrant checkpoint is recomputing (PyTorch 2.1): tensors saved there do not
    belong to a graph of the gradients."""
    node = getattr(torch._C, "_current_autograd_node", lambda: None)()
    # Those of DeepSpeed and of Megatron have the same name.
    return type(node).__name__ == "CheckpointFunctionBackward"


# in_backward(): whether this thread is inside a backward pass. Autograd gives that a copy of the
# thread's hooks.
in_backward = _probe_for_backward()
