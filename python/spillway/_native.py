# SPDX-License-Identifier: MIT
# spillway/_native.py - finds the hooks that are written in C, and tells them what of PyTorch they call
"""The module that python/hooks builds, if it was built for this Python and fits this PyTorch: in the package, or beside the
library in a source tree. Without it the hooks of torch.py do the same in Python. SPILLWAY_HOOKS=python does without it,
SPILLWAY_HOOKS=c refuses to."""
from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import inspect
import logging
import os
import warnings
from ctypes import c_void_p, cast
from typing import Any, Dict, List, Optional, Tuple

import torch

from . import _library
from ._torch_compat import _expired, _free_weak_ref, storage_of

_log = logging.getLogger("spillway")

_FUNCTIONS = ("spw_cache_offer_hint", "spw_cache_take", "spw_cache_return", "spw_cache_release", "spw_cache_drain")
_ATTRIBUTES = {"is_cpu": "is_cpu", "is_leaf": "is_leaf", "requires_grad": "requires_grad",
               "dtype": "dtype", "version": "_version", "shape": "shape", "data": "data", "base": "_base"}
_METHODS = ("detach", "stride", "storage_offset", "is_neg", "is_conj", "as_strided", "view", "numel")
_INT, _UNSIGNED, _FLOAT, _BFLOAT, _COMPLEX = 0, 1, 2, 4, 5  # of DLPack
_CODES = {
    torch.float32: _FLOAT, torch.bfloat16: _BFLOAT, torch.float16: _FLOAT, torch.float64: _FLOAT, torch.uint8: _UNSIGNED,
    torch.int8: _INT, torch.int16: _INT, torch.int32: _INT, torch.int64: _INT, torch.complex64: _COMPLEX,
    torch.complex128: _COMPLEX,
}


def _found() -> Any:
    """
    :raises ImportError: it was not built
    """
    try:
        return importlib.import_module("spillway._hooks")
    except ImportError as missing:
        folder = os.path.dirname(_library.path)
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = os.path.join(folder, "_hooks" + suffix)
            if folder and os.path.exists(path):
                spec = importlib.util.spec_from_file_location("spillway._hooks", path)
                assert spec is not None and spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return module
        raise missing


def _types() -> List[Tuple[torch.dtype, int, int, int, bool, bool]]:
    """(type, bytes of an element, DLPack's code and bits, whether it is complex, whether to view it as what it is)"""
    every = [thing for thing in vars(torch).values() if isinstance(thing, torch.dtype)]
    rows = []
    for dtype in sorted(set(every), key=lambda dtype: (list(_CODES) + [dtype]).index(dtype)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of types that are new to PyTorch
                sample = torch.empty(1, dtype=dtype)
        except (RuntimeError, TypeError, NotImplementedError):
            continue  # quantized: such tensors pass by
        if sample.is_quantized or sample.element_size() > 16:
            continue
        size = sample.element_size()
        if dtype in _CODES:
            rows.append((dtype, size, _CODES[dtype], 8 * size, dtype.is_complex, False))
        else:
            rows.append((dtype, size, _INT, 8 * size, dtype.is_complex, True))
    return rows


def _things(helpers: Dict[str, Any]) -> Dict[str, Any]:
    storage = type(storage_of(torch.empty(1)))
    things: Dict[str, Any] = {name: inspect.getattr_static(torch.Tensor, theirs) for name, theirs in _ATTRIBUTES.items()}
    things.update({name: getattr(torch.Tensor, name) for name in _METHODS})
    things.update(
        tensor_type=torch.Tensor,
        parameter_type=torch.nn.Parameter,
        address=torch.Tensor.data_ptr,
        storage=storage_of,
        cdata=inspect.getattr_static(storage, "_cdata"),
        data_ptr=storage.data_ptr,
        nbytes=storage.nbytes,
        weak_ref=storage._weak_ref,
        free_weak_ref=_free_weak_ref,
        expired=_expired,
        from_dlpack=torch._C._from_dlpack,  # type: ignore[attr-defined]
        **helpers,
    )
    return things


def _connected(module: Any, helpers: Dict[str, Any]) -> Any:
    if module.VERSION != _library.VERSION:
        raise ImportError(f"{module.__file__} is version {module.VERSION}, this package is version {_library.VERSION}")
    addresses = tuple(cast(getattr(_library.fast, name), c_void_p).value for name in _FUNCTIONS)
    module.connect(addresses, _things(helpers), _types())
    return module


def load(helpers: Dict[str, Any]) -> Optional[Any]:
    """The module, ready for use; None: do without it.

    :raises ImportError: it is demanded, and cannot be had
    """
    wanted = os.environ.get("SPILLWAY_HOOKS", "")
    if wanted not in ("", "c", "python"):
        raise ImportError(f"SPILLWAY_HOOKS={wanted}: there are c and python")
    if wanted == "python":
        return None
    try:
        return _connected(_found(), helpers)
    except (ImportError, AttributeError, TypeError, ValueError, KeyError) as error:
        if wanted == "c":
            raise ImportError(f"the hooks in C cannot be used: {error}") from error
        _log.info("the hooks on saved tensors are those in Python, which take longer: %s", error)
        return None
