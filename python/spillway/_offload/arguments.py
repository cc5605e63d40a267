# SPDX-License-Identifier: MIT
# spillway/_offload/arguments.py - what offload() is given: sizes, drives, rank
from __future__ import annotations

import dataclasses
import os
import warnings
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

import torch
from torch import nn

from .._core import library
from .._core.library import Size
from .._core.scopes import layers_of
from ..cache import HOST_BYTES_MIN, Cache, Mode, checked_host_bytes, checked_mode
from ..store import Store, choice

if TYPE_CHECKING:
    from .._params.parameters import Parameters


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of an offload(), in bytes or as on the command line: "64KiB", "1.5G", "4GB". The
    defaults fit nearly all models.

    :param min_bytes: smaller tensors are kept (default 64 KiB)
    :param staging_bytes: most that wait to be written; beyond it tensors are kept (default 1 GiB)
    :param prefetch_bytes: most prefetched; 0, the default: as much as the largest scope spilled
    :param parameter_bytes: with parameters=True: most bytes of parameters in memory; default: three
        of the largest scope. Of a model on a GPU in its memory, default two, and in the host's
        unless host_bytes is given
    """

    min_bytes: Optional[Size] = None
    staging_bytes: Optional[Size] = None
    prefetch_bytes: Optional[Size] = None
    parameter_bytes: Optional[Size] = None


def with_former(sizes: Sizes, former: Dict[str, Size]) -> Sizes:
    """The sizes, with those that were keywords of offload() itself before there was Sizes."""
    known = {field.name for field in dataclasses.fields(Sizes)}
    for name in former:
        if name not in known:
            raise TypeError(f"offload() got an unexpected keyword argument {name!r}")
    if not former:
        return sizes
    if not isinstance(sizes, Sizes) or any(getattr(sizes, name) is not None for name in former):
        raise TypeError(f"sizes= already has {' and '.join(former)}: give each once")
    warnings.warn("offload({0}) is deprecated: offload(sizes=spillway.torch.Sizes({0}))".format(
        ", ".join(f"{name}=..." for name in former)), DeprecationWarning, stacklevel=3)
    return dataclasses.replace(sizes, **former)


def rank_of_environment() -> Optional[int]:
    """The number of this process on its machine, as torchrun, Open MPI, MVAPICH and Slurm give
    it; None: there is none."""
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK",
                 "SLURM_LOCALID", "RANK"):
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return None


def opened_store(store: Any, rank: Optional[int]) -> Tuple[Optional[Store], Optional[Store]]:
    """(the store, the same if it was opened here)"""
    if rank is not None:
        rank = library.number("rank", rank, 31)
    if store is None:
        return None, None
    if isinstance(store, Store):
        if rank is not None and store.stats().partition != rank:
            raise ValueError(
                f"the store is open on partition {store.stats().partition}, but rank is {rank}: "
                f"open it with Store(drives, partition={rank}), or give offload() the drives and "
                "it does")
        return store, None
    drives = [os.fspath(store)] if isinstance(store, (str, os.PathLike)) else list(store)
    opened = Store(drives, partition=rank_of_environment() if rank is None else rank)
    return opened, opened


def check_arguments(model: nn.Module, mode: Mode, budget_bytes: Optional[Size], sizes: Sizes,
                    store: Any, recompute: Any, host_bytes: Optional[Size]) -> None:
    """What can be checked before drives are opened."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            "ScriptModules do not support saved-tensor hooks; pass an nn.Module")
    if not isinstance(sizes, Sizes):
        raise TypeError(f"sizes must be spillway.torch.Sizes(...), not {type(sizes).__name__}")
    checked_mode(mode)
    if not callable(recompute):
        choice("recompute", recompute, {"auto": 0, "operations": 1, "never": 2})
    if host_bytes is not None:
        checked_host_bytes(host_bytes)
    if (recompute == "never" and store is None and host_bytes is None
            and mode in ("fastest", "budget")):
        raise ValueError(
            'a store is needed: give drives, or without any recompute="auto", host_bytes= for a '
            'model on a GPU, or mode="observe"')
    if (mode == "budget") != (budget_bytes is not None):
        raise ValueError('mode "budget" and budget_bytes belong together: give both or neither')
    if budget_bytes is not None:
        library.size("budget_bytes", budget_bytes)  # of the others the cache says so


def cache_of(store: Optional[Store], own: Optional[Store], sizes: Sizes, **options: Any) -> Cache:
    try:
        return Cache(store, min_bytes=sizes.min_bytes, staging_bytes=sizes.staging_bytes,
                     prefetch_bytes=sizes.prefetch_bytes, **options)
    except BaseException:
        if own is not None:
            own.close()
        raise


def parameters_of(model: nn.Module, store: Optional[Store], own: Optional[Store], cache: Cache,
                   parameters: bool, parameter_bytes: Optional[Size]) -> Optional[Parameters]:
    """None: they stay in memory. If they cannot go to drives, what was opened is closed."""
    try:
        if not parameters:
            if parameter_bytes is not None:
                raise ValueError("parameter_bytes must come with parameters=True, or not at all")
            return None
        from .._params.materialize import parameters_on

        found = parameters_on(model, None if own is not None else store, layers_of(model),
                              parameter_bytes, cache.host_bytes)
        if cache.host_bytes:  # the rest is for copies of a device's activations
            rest = cache.host_bytes - found.limit_bytes if found.window is not None else 0
            cache.host_bytes = rest if rest >= HOST_BYTES_MIN else 0
        return found
    except BaseException:
        cache.close()
        if own is not None:
            own.close()
        raise
