# SPDX-License-Identifier: MIT
# spillway/_params/shards.py - a shard of fully_shard (a DTensor) with bytes on drives
"""What is here of such a parameter is a tensor inside of it, which is an OnDrives then. FSDP asks
that for what it gathers (fsdp_pre_all_gather, its way to extend tensors); all other code asks
the DTensor, whose class fetches the bytes first."""
from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .offloaded_param import CLASSES, OnDrives, _run, _Untouched, gathered, needs_no_bytes
from .residency import Place


class Shard(OnDrives):
    """What is here of a parameter."""

    def fsdp_pre_all_gather(self, mesh: Any, outer_size: Any, outer_stride: Any, module: Any,
                            mp_policy: Any) -> Any:
        """(what is gathered, nothing): as long as that is there, so are the bytes."""
        whole = self.detach()
        dtype = mp_policy.param_dtype
        return (whole if dtype is None else whole.to(dtype),), None

    def fsdp_post_all_gather(self, outputs: Any, metadata: Any, dtype: Any, *,
                             out: Any = None) -> Any:
        """What was gathered is the whole, as without this; FSDP wants both or none."""
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
                with _Untouched():
                    return func(*args, **kwargs)
            return _run(func, args, kwargs, gathered(args, kwargs))

    CLASSES.update((Shard, ShardedOnDrives))
    return ShardedOnDrives


def settle(model: torch.nn.Module) -> None:
    """Before they are adopted: from now on the holders of a shard's memory are the shard and one
    view that FSDP has of it, which it recreates now and then."""
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
    """From now on the bytes of what is here of a parameter may leave memory."""
    local: Tensor = param._local_tensor
    place.kinds = type(local), type(param)
    param.__class__, local.__class__ = _class(), Shard
    param._spillway_place = local._spillway_place = place  # type: ignore[attr-defined]


def part(param: Any, place: Place) -> None:
    """As it was before."""
    local = param._local_tensor
    if type(local) is Shard:
        local.__dict__.pop("_spillway_place", None)
        local.__class__ = place.kinds[0]
    vars(param).pop("_spillway_place", None)
    param.__class__ = place.kinds[1]
