# SPDX-License-Identifier: MIT
# spillway/_core/torch_compat.py - the few places where versions of PyTorch differ
"""Storages: how to get at one, hold it weakly, and make a tensor on one; hooks. Nothing else of
spillway depends on PyTorch's version."""
from __future__ import annotations

import contextlib
import itertools
import sys
from typing import Any, Callable, ContextManager, Iterator, List, Optional, Tuple

import torch
from torch import nn, overrides
from torch.utils import _python_dispatch

_HAS_UNTYPED = hasattr(torch.Tensor, "untyped_storage")  # from 2.0 on


# storage_of(tensor): the untyped storage; its _cdata is its identity, data_ptr() and nbytes() its
# memory.
storage_of: Callable[[torch.Tensor], Any] = getattr(
    torch.Tensor, "untyped_storage" if _HAS_UNTYPED else "_storage")

# storage_uses(_cdata): how many hold a storage, plus a constant; None: before PyTorch 2.1.
storage_uses: Any = getattr(torch._C, "_storage_Use_Count", None)

# A context in which classes of tensors are not asked what a function does with them.
without_torch_function: Callable[[], ContextManager[Any]] = getattr(
    torch._C, "DisableTorchFunctionSubclass",
    getattr(torch._C, "DisableTorchFunction", contextlib.nullcontext))

# Whose methods are in C: where the end of an object calls one, no Ctrl-C comes in, and is lost.
free_weak_ref = torch.UntypedStorage._free_weak_ref  # type: ignore[attr-defined]
expired = torch.UntypedStorage._expired  # type: ignore[attr-defined]


def innermost_hooks() -> Optional[Tuple[Any, Any]]:
    """The hooks on saved tensors that a pop would pop; None: there are none, or PyTorch does not
    tell."""
    found = None if innermost_function is None else innermost_function(True)
    return None if found is None else (found[0], found[1])


# Which is in C; None: this PyTorch has none.
innermost_function: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


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


def are_mutations_allowed() -> bool:
    """Whether saved tensors may be modified in place: PyTorch's own hooks then save those that are,
    as long as no others are within."""
    return bool(getattr(torch.autograd.graph, "_allow_mutation_on_saved_tensors_enabled", False))


def register_forward_pre_hook(module: nn.Module, hook: Callable[..., None]) -> Any:
    """Call hook(module, args, kwargs) before forward; before PyTorch 2.0, whose hooks do not see
    keyword arguments, hook(module, args)."""
    if _HAS_UNTYPED:
        return module.register_forward_pre_hook(hook, with_kwargs=True)  # type: ignore[call-arg]
    return module.register_forward_pre_hook(hook)


def register_forward_hook_always(module: nn.Module, hook: Callable[..., None]) -> Any:
    """Call hook(module, args, result) right after forward, before the hooks of others; with None
    for the result if forward raises. From PyTorch 2.0 on."""
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
    in_place = getattr(module, "_compiled_call_impl", None) is not None
    return in_place or "_orig_mod" in module._modules


def has_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters.get("stats"))


def autocast_now(kind: str) -> ContextManager[Any]:
    """The current autocast state of a device type."""
    if hasattr(torch, "get_autocast_dtype"):  # from 2.4 on
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    elif kind == "cpu":
        enabled, dtype = torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()
    else:
        enabled, dtype = torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype()
    return torch.autocast(kind, dtype=dtype, enabled=enabled,
                          cache_enabled=torch.is_autocast_cache_enabled())


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


@contextlib.contextmanager
def outside_of_vmap() -> Iterator[None]:
    """What runs in this context is not vectorized, and may draw random numbers. For backward passes
    of several gradients at once: is_grads_batched, torch.func.vmap() of torch.autograd.grad()."""
    functorch = getattr(torch._C, "_functorch", None)
    level = torch._C._vmapmode_increment_nesting() - 1  # type: ignore[attr-defined]
    torch._C._vmapmode_decrement_nesting()  # type: ignore[attr-defined]
    with contextlib.ExitStack() as stack:
        for _ in range(level):
            torch._C._vmapmode_decrement_nesting()  # type: ignore[attr-defined]
            stack.callback(torch._C._vmapmode_increment_nesting)  # type: ignore[attr-defined]
        if functorch is not None and functorch.peek_interpreter_stack() is not None:
            from torch._functorch import pyfunctorch  # has been imported by then

            stack.enter_context(pyfunctorch.temporarily_clear_interpreter_stack())
        yield


def watcher_now() -> Optional[str]:
    """The name of a foreign mode that sees all operations, or None."""
    mode: Any = _python_dispatch._get_current_dispatch_mode()
    modes = [*overrides._get_current_function_mode_stack(), *([] if mode is None else [mode])]
    return next((type(each).__name__ for each in modes
                 if type(each).__name__ != "DeviceContext" and not hasattr(each, "is_ours")), None)


class OwnMode(_python_dispatch.TorchDispatchMode):
    """A dispatch mode that ends wherever it is in the stack (PyTorch 2.1)."""

    is_ours = True  # for torch_compat.watcher_now()
    # PyTorch: else torch.cond() and others of its kind raise.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.is_pushed = False

    @staticmethod
    def is_plain(types: Any) -> bool:
        """Whether an operation is on no tensors but plain ones."""
        return all(each in (torch.Tensor, nn.Parameter) for each in types)

    @staticmethod
    def of_subclass(func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """What comes of another operation. A tensor with others inside handles it first, and its
        own calls are seen. FakeTensor, as of torch.export(), finds no rule if a mode declines."""
        if all(hasattr(each, "__tensor_flatten__") or OwnMode.is_plain([each]) for each in types):
            return NotImplemented
        return func(*args, **(kwargs or {}))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch: else the first call imports the compiler, which takes seconds. Where anything
        is compiled no step is watched."""
        return False

    def push(self) -> None:
        _python_dispatch._push_mode(self)
        self.is_pushed = True

    def pop(self) -> bool:
        """From anywhere in the stack: others may have entered modes since that they have not
        left. Return: whether it was there; else it is in the stack of another thread, if any."""
        above: List[Any] = []
        found = False
        while not found and _python_dispatch._get_current_dispatch_mode() is not None:
            mode = _python_dispatch._pop_mode()
            found = mode is self
            if not found:
                above.append(mode)
        for mode in reversed(above):
            _python_dispatch._push_mode(mode)
        self.is_pushed = self.is_pushed and not found
        return found


def in_checkpoint() -> bool:
    """Whether a reentrant checkpoint is recomputing (PyTorch 2.1): tensors saved there do not
    belong to a graph of the gradients."""
    node = getattr(torch._C, "_current_autograd_node", lambda: None)()
    # Those of DeepSpeed and of Megatron have the same name.
    return type(node).__name__ == "CheckpointFunctionBackward"


# in_backward(): whether this thread is inside a backward pass. Autograd gives that a copy of the
# thread's hooks.
in_backward = _probe_for_backward()
