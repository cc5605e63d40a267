# SPDX-License-Identifier: MIT
# spillway/_recompute/foreign_hooks.py - hooks of other code on a module and its forward pass
"""A second run of a module calls its children, and with them every hook of others: one that
collects outputs collects twice. No hook tells whether it only looks, so a scope with any is left
out. What was put there after the forward pass is set aside while that pass is run again."""
from __future__ import annotations

import collections
import functools
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
from torch import nn
from torch.nn.modules import module as _of_all

from .._offload.module_hook import ModuleHook

_TABLES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_ALL = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_pre_hooks",
           "_global_backward_hooks")
# Attributes of an instance that override those of its class.
_PATCHES = ("forward", "__call__", "_call_impl", "_wrapped_call_impl", "_slow_forward")
_CALLS = ("__call__", "_call_impl", "_wrapped_call_impl")
# Where FSDP2 is: it gathers a module's parameters before the module runs and before its backward
# pass does, so that they are there whenever it is recomputed.
_FSDP = "torch.distributed.fsdp._fully_shard", "torch.distributed._composable.fsdp"


def is_gathering(hook: Any) -> bool:
    """Whether it is a hook by which FSDP2 gathers the parameters of a module."""
    return str(getattr(hook, "__module__", "")).startswith(_FSDP)


def _is_foreign(hook: Any) -> bool:
    return not (isinstance(hook, ModuleHook) or is_gathering(hook)
                or str(getattr(hook, "__module__", "")).startswith("spillway."))


def _foreign_in(table: Dict[Any, Any]) -> bool:
    return bool(table) and any(map(_is_foreign, table.values()))


def _patches_of(part: nn.Module) -> List[str]:
    things = vars(part)
    # What torch.compile or TorchScript has made has its own way to call what was compiled.
    if "_orig_mod" in things.get("_modules", ()) or isinstance(part, torch.jit.ScriptModule):
        return []
    return [name for name in _PATCHES if name in things]


def _is_called_by_others() -> bool:
    calls = (getattr(nn.Module, name, None) for name in _CALLS)
    return any(not str(getattr(each, "__module__", "torch.")).startswith("torch.")
               for each in calls)


def _on_part(part: nn.Module) -> Optional[str]:
    things = vars(part)
    if any(_foreign_in(things.get(table, {})) for table in _TABLES):
        return "hooks"
    return "a forward of its own, put in after it was made" if _patches_of(part) else None


def foreign_on(module: nn.Module, parts: Sequence[nn.Module]) -> Optional[str]:
    """What a second run would call that is not the module's own, in words; None: nothing.

    :param parts: of the module, with itself
    """
    if any(_foreign_in(getattr(_of_all, table, {})) for table in _OF_ALL):
        return "there are hooks for all modules"
    if _is_called_by_others():
        return "torch.nn.Module calls something of others"
    for part in parts:
        what = _on_part(part)
        if what is not None and part is module:
            return "it has hooks of its own" if what == "hooks" else f"it has {what}"
        if what is not None:
            name = next((name for name, each in module.named_modules() if each is part), "?")
            return f"its part {name} has {what}"
    return None


class Aside:
    """What others have put on a module since its forward pass, away for a while."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._undos: List[Callable[[], Any]] = []

    def take(self) -> None:
        for table in _OF_ALL:
            hooks = getattr(_of_all, table, {})
            if _foreign_in(hooks):
                self._take(vars(_of_all), table, _own_of(hooks))
        for part in list(self._module.modules()):
            things = vars(part)
            for table in _TABLES:
                if _foreign_in(things.get(table, {})):
                    self._take(things, table, _own_of(things[table]))
            for name in _patches_of(part):
                self._take(things, name)

    def _take(self, things: Dict[str, Any], name: str, *instead: Any) -> None:
        self._undos.append(functools.partial(things.__setitem__, name, things[name]))
        if instead:
            things[name], = instead
        else:
            del things[name]

    def put_back(self) -> None:
        while self._undos:
            self._undos[-1]()
            self._undos.pop()


def _own_of(hooks: Dict[Any, Any]) -> Dict[Any, Any]:
    return collections.OrderedDict(
        (key, hook) for key, hook in hooks.items() if not _is_foreign(hook))


def several_ranks() -> bool:
    distributed = torch.distributed
    return (distributed.is_available() and distributed.is_initialized()
            and distributed.get_world_size() > 1)


def gradients_leave_early(model: nn.Module) -> bool:
    """Whether gradients may be used before the backward pass ends: by other ranks, or by hooks, as
    of an optimizer that steps during the pass."""
    return several_ranks() or any(
        parameter._backward_hooks or parameter._post_accumulate_grad_hooks
        for parameter in model.parameters())
