# SPDX-License-Identifier: MIT
# spillway/_core/hooks_loader.py - finds the hooks, a C module, and hands them what they call
"""The module that python/hooks builds, in the package, or beside the library in a source tree.
One build serves every Python from 3.11 on and every PyTorch."""
from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import warnings
from ctypes import c_void_p, cast
from typing import Any, Dict, List, Tuple

import torch

from . import library, tensors
from .torch_compat import expired, free_weak_ref, innermost_function, storage_of

_NAME = "spillway._hooks"
_FILE = "_hooks.abi3.so"
_FUNCTIONS = (
    "offer_hint take return release drain restore hold_back offer_device copied ordered copy_retry "
    "copy_last wait_write ahead drain_device step_rest keep kept_again kept_used kept_gone").split()
_ATTRIBUTES = "is_cpu is_leaf requires_grad dtype _version shape _base device".split()
_METHODS = "detach stride storage_offset is_neg is_conj as_strided view numel".split()
_INT, _UNSIGNED, _FLOAT, _BFLOAT, _COMPLEX = 0, 1, 2, 4, 5  # of DLPack
_CODES = {
    **dict.fromkeys((torch.float32, torch.float16, torch.float64), _FLOAT), torch.bfloat16: _BFLOAT,
    torch.uint8: _UNSIGNED,
    **dict.fromkeys((torch.int8, torch.int16, torch.int32, torch.int64), _INT),
    **dict.fromkeys((torch.complex64, torch.complex128), _COMPLEX)
}


class Stop(Exception):
    """Ends the recomputation of a scope once all discarded tensors are there."""


def _found() -> Any:
    """:raises ImportError: it was not built, or is of another version"""
    path = os.path.join(os.path.dirname(library.path), _FILE)
    if importlib.util.find_spec(_NAME) is not None:
        module = importlib.import_module(_NAME)
    elif os.path.exists(path):
        spec = importlib.util.spec_from_file_location(_NAME, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        raise ImportError(
            f"the hooks on saved tensors were not found, neither in the package nor as {path}: "
            "install Python's headers (python3-dev) and build them (make, or pip install .)")
    if module.VERSION != library.VERSION:
        raise ImportError(f"{module.__file__} is version {module.VERSION}, this package is version "
                          f"{library.VERSION}: rebuild it")
    return module


def types() -> List[Tuple[torch.dtype, int, int, int, bool, bool]]:
    """(type, bytes of an element, DLPack's code and bits, whether it is complex, whether to view
    it as what it is)"""
    every = [thing for thing in vars(torch).values() if isinstance(thing, torch.dtype)]
    rows = []
    for dtype in sorted(set(every), key=lambda dtype: (list(_CODES) + [dtype]).index(dtype)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of types that are new to PyTorch
                sample = torch.empty(1, dtype=dtype, device="cpu")
        except (RuntimeError, TypeError, NotImplementedError):
            continue  # quantized: such tensors pass by
        size = sample.element_size()
        if not sample.is_quantized and size <= 16:
            code, is_viewed = _CODES.get(dtype, _INT), dtype not in _CODES
            rows.append((dtype, size, code, 8 * size, dtype.is_complex, is_viewed))
    return rows


def bytes_of_elements(tensor: torch.Tensor) -> int:
    """As Tensor.nbytes of PyTorch 2.1."""
    return tensor.numel() * tensor.element_size()


def things() -> Dict[str, Any]:
    """What of PyTorch and of this package is called."""
    storage = type(storage_of(torch.empty(1, dtype=torch.float32, device="cpu")))
    found = {name.lstrip("_"): inspect.getattr_static(torch.Tensor, name) for name in _ATTRIBUTES}
    found.update({name: getattr(torch.Tensor, name) for name in _METHODS})
    found.update(
        tensor_type=torch.Tensor,
        parameter_type=torch.nn.Parameter,
        address=torch.Tensor.data_ptr,
        storage=storage_of,
        cdata=inspect.getattr_static(storage, "_cdata"),
        length=inspect.getattr_static(torch.Tensor, "nbytes", property(bytes_of_elements)),
        data_ptr=storage.data_ptr,
        nbytes=storage.nbytes,
        weak_ref=storage._weak_ref,
        free_weak_ref=free_weak_ref,
        expired=expired,
        from_dlpack=torch._C._from_dlpack,  # type: ignore[attr-defined]
        exchange=getattr(torch.Tensor, "__dlpack_c_exchange_api__", None),  # PyTorch 2.10
        nothing=tensors.NOTHING,
        counted=tensors.COUNTED,
        error_of=library.error_of,
        uint8=torch.uint8,
        stop=Stop,
        grad_enabled=torch.is_grad_enabled,
        any_autocast=getattr(torch._C, "_is_any_autocast_enabled", None),  # PyTorch 2.4
        backward_number=getattr(torch._C, "_current_graph_task_id", None),  # PyTorch 2.0
        innermost=innermost_function)
    names = "plain", "flagged", "on", "raise_modified", "nothing_on", "bytes_of"
    return {**found, **{name: getattr(tensors, name) for name in names}}


def addresses() -> Tuple[Any, ...]:
    """Of the library's functions that are called."""
    functions = (getattr(library.fast, "spw_cache_" + name) for name in _FUNCTIONS)
    return tuple(cast(function, c_void_p).value for function in functions)


hooks = _found()
hooks.connect(addresses(), things(), types())
