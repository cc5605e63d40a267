# SPDX-License-Identifier: MIT
# spillway/_params/materialize.py - materialize(), parameters_on(): move a model's parameters to
# drives
from __future__ import annotations

import errno
import logging
import threading
from typing import Any, Callable, Dict, Optional, Sequence, Set

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from .._core.library import Size, SpillwayError, bytes_text, size
from .._core.torch_compat import is_before, is_compiled, storage_uses
from .._gpu.host_memory import allowed
from ..plan import parameters_least, parameters_most, parameters_on_device
from ..report import moves_nothing
from ..store import Store
from .offloaded_param import OLDEST
from .conversion import why_not
from .parameters import LEAST_BYTES, Parameters, owner_of, place_in

_log = logging.getLogger("spillway")


def _check_version(what: str) -> None:
    if is_before(OLDEST) or storage_uses is None:
        raise RuntimeError(f"{what} needs PyTorch {OLDEST} or later, and this is "
                           f"{torch.__version__}: leave it out, the numbers are the same")


def _check_store(what: str, store: Any) -> None:
    if not isinstance(store, Store):
        raise TypeError(f"{what} needs an open store (spillway.Store), not "
                        f"{type(store).__name__}: optimizer and parameters share it")


def materialize(factory: Callable[[], nn.Module], store: Store, *,
                parameter_bytes: Optional[Size] = None, device: Any = None) -> nn.Module:
    """Make a model whose parameters do not fit into memory: the function runs as without spillway,
    with the same random numbers, while parameters that it has made go to the drives.

    >>> model = st.materialize(lambda: GPT(config), store)
    >>> off = st.offload(model, store, parameters=True)

    Buffers, and parameters of less than 64 KiB, stay in memory.

    :param factory: returns the model
    :param store: open, with checksums
    :param parameter_bytes: most bytes of parameters in memory; default: four of the largest, and on
        the device two
    :param device: where the model goes when it is made, one parameter at a time, as by ``.to()``,
        such as "cuda"; it is made in host memory, by the random numbers of that. Default: nowhere
    :raises RuntimeError: PyTorch is older than 2.1; or spillway does not know the device, or
        it pins no more memory
    :raises SpillwayError: a drive failed
    """
    _check_version("materialize()")
    _check_store("materialize()", store)
    if not callable(factory) or isinstance(factory, nn.Module):
        raise TypeError("materialize() takes a function that makes the model, like "
                        f"lambda: Model(config), not {type(factory).__name__}")
    to = torch.device("cpu" if device is None else device)
    table = None if to.type == "cpu" else _table_of(to)
    given = 0 if parameter_bytes is None else size("parameter_bytes", parameter_bytes)
    owner = Parameters(store, given)
    thread = threading.get_ident()

    def registered(module: nn.Module, name: str, param: Any) -> None:
        if param is not None and threading.get_ident() == thread:
            if owner.adopt(param, f"{type(module).__name__}.{name}"):
                owner.make_room()

    handle = torch.nn.modules.module.register_module_parameter_registration_hook(registered)
    try:
        model = factory()
    except BaseException:
        owner.close()
        raise
    finally:
        handle.remove()
    if not isinstance(model, nn.Module):
        owner.close()
        raise TypeError(f"the function must return a torch.nn.Module, not {type(model).__name__}")
    for param in _of_torchscript(model):
        place = place_in(param)
        if place is not None:
            owner.release(param, place)
    _name(model)
    if table is not None:
        try:
            _to_device(model, owner, given, table, to)
        except BaseException:
            owner.close()
            raise
    return model


def _of_torchscript(model: nn.Module) -> Set[Any]:
    """Parameters that stay in memory, since what runs TorchScript asks no class for their bytes."""
    return {param for module in model.modules() if isinstance(module, torch.jit.ScriptModule)
            for param in module.parameters(recurse=False)}


def _table_of(device: torch.device) -> Any:
    """:raises RuntimeError: spillway does not know it"""
    from .._gpu import accelerator

    return accelerator.table_of(device.type)


def _to_device(model: nn.Module, owner: Parameters, given: int, table: Any,
               device: torch.device) -> None:
    """Move a model in host memory, one parameter after the other: neither the device nor the host
    ever has more of them than is allowed, and one.

    :param owner: of those that are on drives
    :param given: bytes of them in host memory; 0: four of the largest
    """
    from .on_device import Window

    if device.index is None:
        device = torch.empty(0, dtype=torch.uint8, device=device).device
    largest = max((place.length for place in owner.places), default=0)
    owner.set_limit(max(given or 4 * table.pinned_bytes(largest),
                        parameters_least(table.pinned_bytes(largest))))
    owner.room_of = table.pinned_bytes
    owner.window = window = Window(owner, table, device, parameters_least(largest))
    moved: Dict[Any, Any] = {}
    names = {param: name for name, param in model.named_parameters()}
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            module.to(device)
            continue
        for name, param in module._parameters.items():
            if param is None:
                continue
            if param not in moved:
                place = place_in(param)
                if place is not None:
                    owner.release(param, place)
                moved[param] = _moved(param, device)
                if place is not None:
                    window.adopt(moved[param], names[param])
            module._parameters[name] = moved[param]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)
    _name(model)


def _moved(param: Any, device: torch.device) -> Any:
    """The parameter itself, with memory on the device; or another one, where PyTorch does not let a
    tensor have that."""
    with torch.no_grad():
        there = param.detach().to(device)
        if not torch._has_compatible_shallow_copy_type(param, there):
            param.data = param.detach().new_empty(0)  # what was in the host goes at once
            return nn.Parameter(there, param.requires_grad)
        param.data = there
    return param


def _name(model: nn.Module) -> None:
    """Name and number the places as the model does its parameters."""
    for number, (name, param) in enumerate(model.named_parameters()):
        place = place_in(param)
        if place is not None:
            place.name, place.number = name, number


def _check_model(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if is_compiled(module):
            raise ValueError(
                f"{name or type(module).__name__} is compiled: what torch.compile makes of a model "
                "uses parameters without a word. Leave out parameters=True, or compile()")
    for name, param in model.named_parameters():
        if is_lazy(param) or param.device.type == "meta":
            raise ValueError(f"parameter {name} has no values yet: make the model by "
                             "spillway.torch.materialize(), or run it once")
    if len(_devices_of(model)) > 1:
        words = " and ".join(f"{name} on {device}" for device, name in _devices_of(model).items())
        raise ValueError(f"the model's parameters are on several devices ({words}): "
                         "parameters=True needs all in host memory, or all on one device. Leave it "
                         "out; the optimizer's state can be on drives all the same")


def _devices_of(model: nn.Module) -> Dict[torch.device, str]:
    """Of the model's parameters, with the name of the first on each."""
    found: Dict[torch.device, str] = {}
    for name, param in model.named_parameters():
        found.setdefault(param.device, name)
    return found


def _check_device(model: nn.Module, device: torch.device) -> None:
    """:raises ValueError: that cannot be of a model on a device, yet"""
    for name, param in model.named_parameters():
        if hasattr(param, "_local_tensor"):
            raise ValueError(
                f"parameter {name} is a shard on {device}: with parameters=True shards must be in "
                "host memory. Leave it out; the optimizer's state can be on drives all the same")
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise ValueError(f"DistributedDataParallel on {device} uses parameters without a word: "
                             "leave parameters=True out, or train in one process")


def _length(param: Any) -> int:
    """Length in bytes of a parameter, or of this rank's shard of it."""
    local = getattr(param, "_local_tensor", param)
    return int(local.numel() * local.element_size())


def _check_room(model: nn.Module, store: Store) -> None:
    """Check that the store has room for the parameters that are to be written.

    :raises SpillwayError: ENOSPC it has not; the message says how many bytes are missing
    """
    coming = sum(_length(param) for param in model.parameters()
                 if place_in(param) is None)
    stats = store.stats()
    missing = coming - (stats.capacity_bytes - stats.used_bytes)
    if missing > 0:
        raise SpillwayError(
            errno.ENOSPC, f"the store is too small by {missing} bytes: the model's parameters take "
            f"{coming} bytes, and {stats.used_bytes} of {stats.capacity_bytes} are in use. Give it "
            "more drives")


def _limit_of(model: nn.Module, scopes: Sequence[nn.Module], parameter_bytes: Optional[Size],
              lengths: Dict[Any, int], most: Callable[[int, int], int]) -> int:
    """How many bytes of parameters may be in memory.

    :param lengths: of those that go to drives
    :param most: of the bytes of the largest scope and of the largest parameter, if not given
    :raises ValueError: fewer were given than needed; the message says how many are missing
    """
    if not lengths:
        return 0
    if parameter_bytes is None:
        scope = max((sum(lengths.get(param, 0) for param in module.parameters())
                     for module in scopes), default=0)
        return most(scope, max(lengths.values()))
    given = size("parameter_bytes", parameter_bytes)
    _check_least(model, "parameter_bytes", given, lengths)
    return given


def _check_least(model: nn.Module, name: str, given: int, lengths: Dict[Any, int]) -> None:
    """
    :raises ValueError: fewer bytes were given than needed; the message says how many are missing
    """
    largest = max(lengths, key=lambda param: lengths[param])
    least = parameters_least(lengths[largest])
    if given < least:
        names = {param: name for name, param in model.named_parameters()}
        raise ValueError(
            f"{name} is {given}, too few by {least - given}: the largest parameter, "
            f"{names[largest]}, has {bytes_text(lengths[largest])}, and while one is used the next "
            "has to come")


def _kept_in_host(model: nn.Module, owner: Optional[Parameters], host_bytes: int,
                  lengths: Dict[Any, int]) -> int:
    """Of host_bytes, how much parameters get: all that they have use for, since a byte of them
    that stays saves more than one of an activation (docs/STATE.md, Parameters).

    :param owner: of those that are in memory already
    :param lengths: of those that go to drives, in host memory
    :raises ValueError: fewer were given than needed; the message says how many are missing
    """
    if not lengths:
        return 0
    _check_least(model, "host_bytes", host_bytes, lengths)
    wanted = min(host_bytes, sum(lengths.values()))
    here = 0 if owner is None else owner.memory_bytes
    if wanted > here:
        wanted = here + allowed(wanted - here, host_bytes, "of it are used by parameters", owner)
    return max(wanted, parameters_least(max(lengths.values())))


def parameters_on(model: nn.Module, store: Any, scopes: Sequence[nn.Module],
                  parameter_bytes: Optional[Size], host_bytes: int = 0) -> Parameters:
    """Move the parameters of a model to a store, unless they are there already.

    :param scopes: the default of the bytes in memory depends on the largest of these modules
    :param host_bytes: of host memory, which keeps as many parameters as it can; 0: not given
    :raises RuntimeError: PyTorch is older than 2.1; or a device's host pins no more memory
    :raises TypeError, ValueError: the model, the store or the limit does not allow it
    :raises SpillwayError: ENOSPC the store is too small
    """
    _check_version("parameters=True")
    _check_store("parameters=True", store)
    _check_model(model)
    device = next(iter(_devices_of(model)), torch.device("cpu"))
    if device.type != "cpu":
        _check_device(model, device)
    elif host_bytes and parameter_bytes is not None:
        raise ValueError("parameter_bytes and host_bytes are the same memory for a model in host "
                         "memory: give one of them")
    owner = owner_of(model)
    if owner is not None and owner.store is not store:
        raise ValueError("the model's parameters are in another store, where materialize() has put "
                         "them: give offload() that one")
    _check_room(model, store)
    if device.type != "cpu":
        return _on_device(model, store, scopes, parameter_bytes, device, owner, host_bytes)
    fresh = owner is None
    if owner is None:
        owner = Parameters(store, sum(map(_length, model.parameters())) + 1)
    if any(hasattr(param, "_local_tensor") for param in model.parameters()):
        from . import shards

        shards.settle(model)
    staying = _of_torchscript(model)
    for name, param in model.named_parameters():
        if param not in staying:
            owner.adopt(param, name)
    _name(model)
    try:
        lengths = {param: _length(param) for param in model.parameters()
                   if place_in(param) is not None}
        limit = (_kept_in_host(model, owner, host_bytes, lengths) if host_bytes else
                 _limit_of(model, scopes, parameter_bytes, lengths, parameters_most))
    except BaseException:
        if fresh:
            owner.to_memory()
        raise
    owner.expect([place for place in map(place_in, model.parameters()) if place is not None])
    owner.near_bytes = _limit_of(model, scopes, None, lengths, parameters_on_device)
    owner.set_limit(limit)
    owner.forget_peak()
    if owner.total_bytes <= limit:
        _log.warning("%s", moves_nothing(owner.total_bytes, limit))
    return owner


def _on_device(model: nn.Module, store: Store, scopes: Sequence[nn.Module],
               parameter_bytes: Optional[Size], device: torch.device,
               owner: Optional[Parameters], host_bytes: int) -> Parameters:
    """parameters_on() of a model on a device. As many bytes are in memory of the device as in that
    of the host, if they are given, unless host_bytes are."""
    from .._gpu import accelerator  # only if there are such models
    from .on_device import Window

    staying = _of_torchscript(model)
    lengths = {param: _length(param) for param in model.parameters() if param not in staying
               and (place_in(param) is not None
                    or why_not(param, LEAST_BYTES, device.type) is None)}
    limit = _limit_of(model, scopes, parameter_bytes, lengths, parameters_on_device)
    table = accelerator.table_of(device.type)
    in_host = {param: table.pinned_bytes(length) for param, length in lengths.items()}
    if host_bytes:
        host_limit = _kept_in_host(model, owner, host_bytes, in_host)
    elif parameter_bytes is None:
        host_limit = _limit_of(model, scopes, None, in_host, parameters_most)
    else:
        host_limit = max(limit, parameters_least(max(in_host.values(), default=0)))
    fresh = owner is None
    if owner is None:
        owner = Parameters(store, host_limit)
        owner.room_of = table.pinned_bytes
        owner.window = Window(owner, table, device, limit)
    assert owner.window is not None
    try:
        for name, param in model.named_parameters():
            if param not in staying:
                owner.window.adopt(param, name, LEAST_BYTES)
        _name(model)
        owner.expect([place for place in map(place_in, model.parameters()) if place is not None])
        owner.window.expect(model.parameters())
        owner.near_bytes = _limit_of(model, scopes, None, lengths, parameters_on_device)
        owner.set_limit(host_limit)
        owner.window.set_limit(limit)
    except BaseException:
        if fresh:
            owner.to_memory()
        raise
    if owner.total_bytes <= limit:
        _log.warning("%s", moves_nothing(owner.total_bytes, limit))
    return owner
