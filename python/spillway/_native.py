# SPDX-License-Identifier: MIT
# spillway/_native.py - finds the hooks that are written in C, and tells them what of PyTorch they call
"""The modules that python/hooks builds, in the package, or beside the library in a source tree: the hooks, if they were built for
this Python and fit this PyTorch, without which those of torch.py do the same in Python; and for the hooks the reader of tensors, if
it was built for this very PyTorch, without which they ask a tensor attribute by attribute. SPILLWAY_HOOKS=python does without both,
SPILLWAY_HOOKS=c refuses to do without the first and does without the second, SPILLWAY_HOOKS=direct refuses to do without either."""
from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import inspect
import logging
import os
import warnings
from ctypes import c_void_p, cast
from typing import Any, Dict, Iterable, List, Optional, Tuple

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


# The reader of tensors in use, or None.
reader: Optional[Any] = None
# What does the hooks' work: SPILLWAY_HOOKS's words.
in_use = "python"


def _found(name: str) -> Any:
    """
    :raises ImportError: it was not built
    """
    try:
        return importlib.import_module("spillway." + name)
    except ImportError as missing:
        folder = os.path.dirname(_library.path)
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = os.path.join(folder, name + suffix)
            if folder and os.path.exists(path):
                spec = importlib.util.spec_from_file_location("spillway." + name, path)
                assert spec is not None and spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
                return module
        raise missing


def _types() -> List[Tuple[torch.dtype, int, int, int, bool, bool, int]]:
    """(type, bytes of an element, DLPack's code and bits, whether it is complex, whether to view it as what it is, PyTorch's number
    of it or -1)"""
    every = [thing for thing in vars(torch).values() if isinstance(thing, torch.dtype)]
    rows = []
    for dtype in sorted(set(every), key=lambda dtype: (list(_CODES) + [dtype]).index(dtype)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of types that are new to PyTorch
                sample = torch.empty(1, dtype=dtype, device="cpu")
        except (RuntimeError, TypeError, NotImplementedError):
            continue  # quantized: such tensors pass by
        if sample.is_quantized or sample.element_size() > 16:
            continue
        size = sample.element_size()
        seen = None if reader is None else reader.look(sample)
        number = -1 if seen is None else seen[_NUMBER]
        rows.append((dtype, size, _CODES.get(dtype, _INT), 8 * size, dtype.is_complex, dtype not in _CODES, number))
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


def _of_this_version(module: Any) -> Any:
    if module.VERSION != _library.VERSION:
        raise ImportError(f"{module.__file__} is version {module.VERSION}, this package is version {_library.VERSION}")
    return module


# ---- The reader of tensors ----

_NUMBER = 7  # its place in what look() returns


def _asked(tensor: torch.Tensor, number: int) -> Tuple[Any, ...]:
    """What look() is to return."""
    storage = storage_of(tensor)
    return (tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor._version, storage._cdata, storage.data_ptr(),
            storage.nbytes(), number, tensor.is_leaf and tensor.requires_grad, tensor._base is not None, tensor.is_conj(),
            tensor.is_neg())


def _plain_samples() -> Iterable[torch.Tensor]:
    for dtype in _CODES:
        yield torch.zeros(2, 3, 4, dtype=dtype, device="cpu").add_(1)[1:].permute(2, 0, 1)
    leaf = torch.zeros(4, 5, device="cpu", requires_grad=True)
    product = leaf * 2
    one = torch.zeros(1, dtype=torch.complex64, device="cpu")
    yield from (leaf, leaf[1:], product, product.t(), product.detach(), product[2], leaf.detach()[:0], product.sum(), product[:1].expand(9, 5))
    yield from (one.conj(), torch._neg_view(one), torch.nn.Parameter(one))


def _other_samples() -> Iterable[torch.Tensor]:
    """What is not plain."""
    yield torch.zeros(2, device="meta")
    yield torch.zeros(2, device="cpu").to_sparse()
    with torch.inference_mode():
        yield torch.zeros(2, device="cpu")


def _check_reading(module: Any) -> None:
    """
    :raises ImportError: it does not read what PyTorch says
    """
    for sample in _plain_samples():
        seen, number = module.look(sample), module.look(torch.empty(1, dtype=sample.dtype, device="cpu"))[_NUMBER]
        if seen != _asked(sample, number):
            raise ImportError(f"it reads {seen}, PyTorch says {_asked(sample, number)}")
    numbers = [module.look(torch.empty(1, dtype=dtype, device="cpu"))[_NUMBER] for dtype in _CODES]
    if len(set(numbers)) < len(_CODES):
        raise ImportError(f"it tells types apart by the numbers {numbers}")
    for sample in _other_samples():
        if module.look(sample) is not None:
            raise ImportError(f"it takes a tensor of {sample.layout}, {sample.device} for a plain one")
    product = torch.zeros(4, device="cpu", requires_grad=True) * 2
    held = module.detached(product)
    product.add_(1)
    if (held.requires_grad, held.grad_fn, held._base, held._version, held.tolist()) != (False, None, None, 1, [1.0] * 4):
        raise ImportError("what it detaches is not as PyTorch's")
    memory = torch.zeros(3, 4, device="cpu", dtype=torch.int16).t()
    lent = module.lent(memory, product)
    memory[1, 2] = 7
    memory.add_(1)
    if (lent.tolist(), lent.stride(), lent.dtype, lent._version) != (memory.tolist(), memory.stride(), memory.dtype, 1):
        raise ImportError("what it makes of memory is another tensor")


def _take_reader(wanted: str) -> None:
    """
    :raises ImportError: it is demanded, and cannot be had
    """
    global reader

    try:
        module = _of_this_version(_found("_reader"))
        if module.TORCH != torch.__version__:
            raise ImportError(f"{module.__file__} was built for PyTorch {module.TORCH}, this is {torch.__version__}")
        with torch.inference_mode(False), torch.enable_grad():
            module.learn(torch.zeros(1, device="cpu", requires_grad=True))
            _check_reading(module)
        reader = module
    except (ImportError, AttributeError, TypeError, RuntimeError) as error:  # in modes that tensors are made otherwise in, whatever PyTorch says
        if wanted == "direct":
            raise ImportError(f"tensors cannot be read: {error}") from error
        _log.info("the hooks on saved tensors ask a tensor attribute by attribute, which takes longer than reading it: %s", error)


# ---- The hooks ----


def _connected(module: Any, helpers: Dict[str, Any]) -> Any:
    addresses = tuple(cast(getattr(_library.fast, name), c_void_p).value for name in _FUNCTIONS)
    module.connect(addresses, _things(helpers), _types())
    module.read_with(None if reader is None else reader.calls)
    return module


def load(helpers: Dict[str, Any]) -> Optional[Any]:
    """The hooks, ready for use; None: do without them.

    :raises ImportError: they are demanded, and cannot be had
    """
    global in_use

    wanted = os.environ.get("SPILLWAY_HOOKS", "")
    if wanted not in ("", "direct", "c", "python"):
        raise ImportError(f"SPILLWAY_HOOKS={wanted}: there are direct, c and python")
    if wanted == "python":
        return None
    try:
        module = _of_this_version(_found("_hooks"))
        if wanted != "c":
            _take_reader(wanted)
        module = _connected(module, helpers)
        in_use = "c" if reader is None else "direct"
        return module
    except (ImportError, AttributeError, TypeError, ValueError, KeyError) as error:
        if wanted:
            raise ImportError(f"the hooks in C cannot be used: {error}") from error
        _log.info("the hooks on saved tensors are those in Python, which take longer: %s", error)
        return None
