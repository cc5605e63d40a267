# SPDX-License-Identifier: MIT
# spillway/_params/unasked.py - functions of PyTorch to which a parameter on drives is another thing
"""swap_tensors(). After torch.__future__.set_swap_module_params_on_conversion(True), and for some
tensors without that, PyTorch gives a parameter other contents in model.to(), model.half() and
load_state_dict() by exchanging those of two tensors. It refuses tensors that have weak references,
such as parameters on drives. So these are ordinary parameters while it does that, one by one.

Transforms of torch.func wrap their arguments: what is in a wrapper would be used without its bytes.
So a view of the parameter is wrapped, and its bytes stay for as long.

Modules of PyTorch that have a fast path in evaluation, whose last bits are others, do not take it
with arguments that have a class of their own, and ask has_torch_function() for that.

Jagged tensors have a class that is asked first, and calls a function without asking that of a
parameter after them.

Functions of TorchScript are called without asking the classes of their arguments, unlike methods of
its modules. Its modules ask no class for the bytes of their own parameters. So what it makes a
module of has ordinary parameters from then on, before tracing runs it."""
from __future__ import annotations

import functools
import logging
import sys
import types
from typing import Any, Callable, List, Tuple

import torch

from .._core.library import bytes_text
from .offloaded_param import CLASSES, OnDrives, _run, as_parameter, call_with, gathered

_log = logging.getLogger("spillway")

# Where the functions are that wrap an argument, by their modules.
_WRAPS = (("torch._functorch.eager_transforms", "_wrap_for_grad"),
          ("torch._functorch.vmap", "_add_batch_dim"))


def install() -> None:
    """Once in a process; PyTorch 2.3 or later has swap_tensors()."""
    _replace(torch.utils, "swap_tensors", _of_ordinary)
    _replace(torch.overrides, "has_torch_function", _of_others)
    _replace(torch.jit.ScriptFunction, "__call__", _of_parameters)
    _replace(torch.jit._recursive, "create_script_module", _of_memory)
    jagged = sys.modules.get("torch.nested._internal.nested_tensor")
    _replace(getattr(jagged, "NestedTensor", None), "__torch_function__", _of_class)
    for module, name in _WRAPS:
        _replace(sys.modules.get(module), name, _of_view)


def _replace(module: Any, name: str, by: Callable[[Any], Any]) -> None:
    function = getattr(module, name, None)
    if function is not None and not hasattr(function, "is_ours"):
        of_class = isinstance(function, types.MethodType)
        function = function.__func__ if of_class else function
        replacement = functools.update_wrapper(by(function), function)
        replacement.is_ours = True  # type: ignore[attr-defined]
        setattr(module, name, classmethod(replacement) if of_class else replacement)


def _is_on_drives(tensor: Any) -> bool:
    return (type(tensor) in CLASSES and tensor._spillway_place is not None
            and (type(tensor) is OnDrives or hasattr(tensor, "_local_tensor")))


def _of_ordinary(swap: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def swap_tensors(t1: Any, t2: Any) -> None:
        found: List[Tuple[Any, Any, str]] = [
            (tensor, tensor._spillway_place.owner, tensor._spillway_place.on_drives.name)
            for tensor in (t1, t2) if _is_on_drives(tensor)]
        for tensor, owner, _ in found:
            if hasattr(tensor, "_local_tensor"):
                from .shards import refuse_exchange

                refuse_exchange(tensor)
            owner.check_alike(tensor, t2 if tensor is t1 else t1)
        for tensor, owner, _ in found:
            owner.release(tensor, tensor._spillway_place)
        try:
            swap(t1, t2)
        finally:
            for tensor, owner, name in found:
                as_parameter(tensor)
                if not owner.closed and not owner.adopt(tensor, name):
                    _log.info("%s stays in memory from now on", name)

    return swap_tensors


def _of_others(has: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def has_torch_function(relevant_args: Any) -> bool:
        return has(tuple(each for each in relevant_args if type(each) is not OnDrives))

    # TorchScript knows the function as an operator of its own, and would compile this one.
    torch.jit._builtins._register_builtin(has_torch_function, "aten::has_torch_function")
    return has_torch_function


def _of_parameters(call: Callable[..., Any]) -> Callable[..., Any]:
    def of_torchscript(*args: Any, **kwargs: Any) -> Any:  # the method itself has no hash
        return call(*args, **kwargs)

    def called(*args: Any, **kwargs: Any) -> Any:
        return call_with(of_torchscript, args, kwargs)

    return called


def _of_memory(create: Callable[..., Any]) -> Callable[..., Any]:
    def create_script_module(nn_module: Any, *args: Any, **kwargs: Any) -> Any:
        found = [param for param in nn_module.parameters() if _is_on_drives(param)]
        if found:
            _log.warning("%d parameters, %s in all, stay in memory from now on: TorchScript uses "
                         "them", len(found), bytes_text(sum(param.nbytes for param in found)))
        for param in found:
            place = param._spillway_place
            place.owner.release(param, place)
        return create(nn_module, *args, **kwargs)

    return create_script_module


def _of_class(ask: Callable[..., Any]) -> Callable[..., Any]:
    def __torch_function__(cls: Any, func: Any, types: Any, args: Any = (),
                           kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        params = gathered(args, kwargs)
        if not params:
            return ask(cls, func, types, args, kwargs)
        return _run(func, args, kwargs, params,
                    lambda *args, **kwargs: ask(cls, func, types, args, kwargs))

    return __torch_function__


def _of_view(wrap: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(tensor: Any, *args: Any) -> Any:
        if _is_on_drives(tensor):
            from torch._functorch import pyfunctorch  # has been imported by then

            with pyfunctorch.temporarily_clear_interpreter_stack():
                tensor = tensor.view_as(tensor)
        return wrap(tensor, *args)

    return wrapped
