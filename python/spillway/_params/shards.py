# SPDX-License-Identifier: MIT
# spillway/_params/shards.py - a shard of fully_shard (a DTensor) with bytes on drives
"""The local shard of such a parameter is a tensor inside the DTensor. FSDP gets what it gathers
from that tensor (fsdp_pre_all_gather, its interface for tensor extensions), which fetches the
bytes; all other code uses the DTensor, whose class fetches them first."""
from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .._core.torch_compat import without_torch_function
from .offloaded_param import CLASSES, OnDrives, _run, gathered, makes_parameter, needs_no_bytes
from .residency import Place


class Shard(OnDrives):
    """The local shard of a parameter, with bytes on drives."""

    def fsdp_pre_all_gather(self, mesh: Any, outer_size: Any, outer_stride: Any, module: Any,
                            mp_policy: Any) -> Any:
        """Return (tensors to gather, no metadata); the bytes stay in memory as long as the
        tensors exist."""
        whole = self.detach()
        dtype = mp_policy.param_dtype
        return (whole if dtype is None else whole.to(dtype),), None

    def fsdp_post_all_gather(self, outputs: Any, metadata: Any, dtype: Any, *,
                             out: Any = None) -> Any:
        """Return the gathered tensor unchanged. FSDP requires this method if it finds the one
        above."""
        return None if out is not None else (outputs[0], ())


@functools.lru_cache(maxsize=None)
def _class() -> Any:
    from torch.distributed.tensor import DTensor

    class ShardedOnDrives(DTensor):  # type: ignore[misc]
        __slots__ = ()

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (),
                               kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            gives_shard = func is DTensor.to_local and not torch.is_grad_enabled()
            if needs_no_bytes(func) or gives_shard:
                with without_torch_function():
                    return func(*args, **kwargs)
            if makes_parameter(func):
                refuse_exchange(args[0])
            return _run(func, args, kwargs, gathered(args, kwargs))

    CLASSES.update((Shard, ShardedOnDrives))
    return ShardedOnDrives


def refuse_exchange(param: Any) -> None:
    """PyTorch exchanges shards in model.to() and model.half(), and FSDP goes on with memory that is
    not there.

    :raises RuntimeError: always
    """
    raise RuntimeError(
        f"parameter {param._spillway_place.name} is a shard on drives, and cannot be exchanged: "
        "call off.parameters_to_memory() first, and then move or convert the model")


def settle(model: torch.nn.Module) -> None:
    """Call this before the shards are adopted: afterwards only the shard and one view of FSDP,
    which FSDP recreates from time to time, share a shard's memory."""
    for module in model.modules():
        state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
        groups = getattr(state, "_fsdp_param_groups", None) or [
            getattr(state, "_fsdp_param_group", None)]
        for group in groups:
            for held in group.fsdp_params if group is not None else ():
                local = held.sharded_param._local_tensor
                if local.size() == held.padded_sharded_param_size:
                    held._sharded_param_data = local.view(-1)


def adopt(param: Any, place: Place) -> None:
    """From now on the bytes of a parameter's local shard may leave memory."""
    local: Tensor = param._local_tensor
    place.kinds = type(local), type(param)
    param.__class__, local.__class__ = _class(), Shard
    param._spillway_place = local._spillway_place = place  # type: ignore[attr-defined]


def part(param: Any, place: Place) -> None:
    """Undo adopt()."""
    local = param._local_tensor
    if type(local) is Shard:
        local.__dict__.pop("_spillway_place", None)
        local.__class__ = place.kinds[0]
    vars(param).pop("_spillway_place", None)
    param.__class__ = place.kinds[1]
