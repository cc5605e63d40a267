# SPDX-License-Identifier: MIT
# spillway/_params/park.py - give a trainer's memory back for a while, its bytes on drives
"""Reinforcement learning generates between steps, and another program, or another part of this one,
needs the memory meanwhile. What is parked has its bytes in objects of a store; the storages are
emptied, and filled again by unpark(). The tensors stay the same objects.

Invariants:
K1  no storage is emptied before the bytes of all of them are on the drives
K2  an object is freed only when its bytes are in memory again
K3  nothing uses an empty storage: only those are emptied of which all tensors are known. Python
    finds these of a class that refuses; a graph that saved them finds another version of them; one
    that adds to a gradient, which asks neither, finds a hook of the parameter
"""
from __future__ import annotations

import ctypes
import functools
import logging
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .._core.library import bytes_text
from .._core.scopes import tensors_in
from .._core.tensors import buffer_of, normal_mode
from .._core.torch_compat import (register_forward_pre_hook, storage_of,
                                  without_torch_function)
from ..store import Store
from .offloaded_param import CLASSES, OLDEST, needs_no_bytes
from .residency import extra_uses

_log = logging.getLogger("spillway")

What = Union[nn.Module, torch.optim.Optimizer, Tensor, Iterable[Tensor]]

_LEAST_BYTES = 4096      # a page: less than one cannot be returned
_PIECE_BYTES = 64 << 20  # of a device's memory, is in host memory at a time

_libc = ctypes.CDLL(None)
_set_versions: Any = getattr(torch._C._autograd, "_unsafe_set_version_counter", None)

_ADVICE = "it is parked, so its bytes are on the drives: call unpark() first"


class _Guard:
    """Of a tensor whose bytes are on the drives. It has its shape, and no more."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if needs_no_bytes(func):
            with without_torch_function():
                return func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", func)
        raise RuntimeError(f"{name}() was called with a tensor that has no memory: {_ADVICE}")

    def __repr__(self, **_: Any) -> str:
        return f"<parked: {tuple(self.shape)}, {self.dtype}>"  # type: ignore[attr-defined]

    def __deepcopy__(self, _: Any) -> Any:
        raise RuntimeError(f"this tensor cannot be copied: {_ADVICE}")

    def __reduce_ex__(self, _: Any) -> Any:
        raise RuntimeError(f"this tensor cannot be saved: {_ADVICE}")


class _ParkedTensor(_Guard, Tensor):
    pass


class _ParkedParameter(_Guard, nn.Parameter):
    pass


_GUARDS: Dict[Any, Any] = {Tensor: _ParkedTensor, nn.Parameter: _ParkedParameter}


@functools.lru_cache(maxsize=None)
def _guard_around(cls: Any) -> Any:
    """Of a class whose tensors consist of others, such as DTensor: its operations reach these below
    where those would refuse."""
    return type(f"_Parked{cls.__name__}", (_Guard, cls), {})


def _can_guard(tensor: Any) -> bool:
    before: Any = type(tensor)
    try:
        tensor.__class__ = _guard_around(before)
        tensor.__class__ = before
    except TypeError:  # its memory is laid out otherwise
        return False
    return True


def _refuse(*_: Any) -> None:
    raise RuntimeError(f"the module was called: {_ADVICE}")


def _refuse_step(*_: Any) -> None:
    raise RuntimeError(f"step() was called: {_ADVICE}")


def _refuse_gradient(_: Tensor) -> None:
    raise RuntimeError(f"a backward pass would add to a gradient: {_ADVICE}")


@functools.lru_cache(maxsize=None)
def _uses_of_one() -> int:
    """What counts for a tensor that Python alone holds."""
    tensor: Any = torch.empty(0, dtype=torch.uint8, device="cpu")
    return int(tensor._use_count())


def _held_elsewhere(tensor: Tensor, owned: bool) -> bool:
    """Whether anything but Python, and a parameter that it is the gradient of if @owned, has it: it
    may be the gradient of an unknown one. What requires gradients is held by each graph."""
    if tensor.requires_grad or not hasattr(tensor, "_use_count"):
        return False
    return int(tensor._use_count()) > _uses_of_one() + owned


def _set_version(tensor: Tensor, version: int) -> None:
    try:
        _set_versions((tensor,), (version,))
    except TypeError:  # before PyTorch 2.7
        _set_versions(tensor, version)


class _Memory:
    """A storage, and all tensors that have it."""

    def __init__(self, storage: Any, device: torch.device) -> None:
        self.storage, self.device = storage, device
        self.length = int(storage.nbytes())
        self.tensors: Dict[int, Tensor] = {}  # by identity
        self.owners: Dict[int, Tensor] = {}  # by identity of those that are their gradients
        self.wholes: Dict[int, Tensor] = {}  # tensors that consist of those, by identity
        self._objects: List[Tuple[int, int]] = []  # with their lengths, in order
        self._emptied = False
        self._guarded: List[Tuple[Tensor, Any, int]] = []  # with their classes and versions

    def refused(self) -> str:
        """Why it stays where it is; "": it can be parked."""
        if self.device.type == "cpu" and self.storage.is_shared():
            return "is shared between processes"
        if not self.storage.resizable():
            return "belongs to NumPy, to a file or to another library"
        if not all(map(_can_guard, self.wholes.values())):
            return "belongs to tensors of a class that cannot refuse to be used"
        bases = {id(tensor._base) for tensor in self.tensors.values()}  # their views have them
        if (extra_uses(self.storage, len(self.tensors))
                or any(_held_elsewhere(tensor, key in self.owners)
                       for key, tensor in self.tensors.items() if key not in bases)):
            return "has views, or a graph needs it"
        return ""

    def write(self, store: Store) -> None:
        memory = self._bytes()
        for begin in range(0, self.length, self._piece_bytes):
            piece = memory[begin:begin + self._piece_bytes].cpu()
            self._objects.append((store.put(buffer_of(piece)), len(piece)))

    def empty(self) -> None:
        for tensor in (*self.wholes.values(), *self.tensors.values()):
            if isinstance(tensor, _Guard):  # it has memories that are guarded already
                continue
            before: Any = type(tensor)
            version = tensor._version
            self._guarded.append((tensor, before, version))
            _set_version(tensor, version + 1)
            tensor.__class__ = _GUARDS.get(before) or _guard_around(before)
        self._emptied = True
        self.storage.resize_(0)

    def fill(self, store: Store) -> None:
        """
        :raises RuntimeError: there is no memory; nothing has changed
        :raises SpillwayError: the drives cannot be read; nothing has changed
        """
        if not self._emptied:
            return
        if self.storage.nbytes() == 0:
            self.storage.resize_(self.length)
        try:
            self._read(store)
        except BaseException:
            self.storage.resize_(0)
            raise
        self._emptied = False

    def _read(self, store: Store) -> None:
        memory, begin = self._bytes(), 0
        for thing, length in self._objects:
            piece = memory[begin:begin + length]
            if self.device.type == "cpu":
                store.get_into(thing, buffer_of(piece))
            else:
                host = torch.empty(length, dtype=torch.uint8, device="cpu")
                store.get_into(thing, buffer_of(host))
                piece.copy_(host)
            begin += length

    def end(self, store: Store) -> None:
        while self._guarded:
            tensor, before, version = self._guarded[-1]
            tensor.__class__ = before
            _set_version(tensor, version)
            self._guarded.pop()
        while self._objects:
            store.free(self._objects[-1][0])
            self._objects.pop()

    @property
    def _piece_bytes(self) -> int:
        return self.length if self.device.type == "cpu" else _PIECE_BYTES

    def _bytes(self) -> Tensor:
        empty = torch.empty(0, dtype=torch.uint8, device=self.device)
        return empty.set_(self.storage, 0, (self.length,), (1,))


class Parked:
    """What park() has put onto drives. As a context manager it ends with unpark(); so does closing
    the store, or dropping the last reference to this."""

    def __init__(self, store: Store, memories: List[_Memory], modules: List[nn.Module],
                 optimizers: List[torch.optim.Optimizer]) -> None:
        self._store, self._memories = store, memories
        self._handles: List[Any] = []
        self.closed = False
        store.add_dependent(self)
        devices = list(dict.fromkeys(memory.device for memory in memories))
        with normal_mode():
            _wait_for(devices)
            try:
                for memory in memories:
                    memory.write(store)
                for module in modules:
                    self._handles.append(register_forward_pre_hook(module, _refuse))
                for optimizer in optimizers:  # which counts a step before it uses a parameter
                    self._handles.append(optimizer.register_step_pre_hook(_refuse_step))
                for memory in memories:
                    for owner in memory.owners.values():
                        if owner.requires_grad:
                            self._handles.append(owner.register_hook(_refuse_gradient))
                for memory in memories:  # K1
                    memory.empty()
            except BaseException:
                self.unpark()
                raise
        _give_back(devices)

    @property
    def bytes(self) -> int:
        """Of memory that is returned, until unpark()."""
        return sum(memory.length for memory in self._memories)

    def unpark(self) -> None:
        """Bring everything back, with the same bytes. Calling it again does nothing; after an error
        it goes on where that was.

        :raises RuntimeError: there is not enough memory; what is left stays parked
        :raises SpillwayError: the drives cannot be read, or return other bytes than were written
        """
        with normal_mode():
            for memory in self._memories:
                memory.fill(self._store)
            while self._memories:  # K2
                self._memories[-1].end(self._store)
                self._memories.pop()
        while self._handles:
            self._handles.pop().remove()
        if not self.closed:
            self.closed = True
            self._store.drop_dependent(self)

    def _before_close(self) -> None:
        """By the store, while it can still be read."""
        self.unpark()

    def close(self) -> None:
        """Called by the store before it closes. Nothing is to be done here."""

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self.unpark()

    def __reduce_ex__(self, _: Any) -> Any:
        raise TypeError("what park() returned cannot be copied or pickled")

    def __enter__(self) -> "Parked":
        return self

    def __exit__(self, *_: Any) -> None:
        self.unpark()


def _wait_for(devices: Iterable[torch.device]) -> None:
    """For all that any stream of theirs still does."""
    for device in devices:
        if device.type != "cpu":
            from .._gpu import accelerator

            accelerator.synchronize(device)


def _give_back(devices: Iterable[torch.device]) -> None:
    """To the system what PyTorch and the C library keep for the next use."""
    for device in devices:
        if device.type != "cpu":
            from .._gpu import accelerator

            accelerator.empty_cache(device)
        elif hasattr(_libc, "malloc_trim"):  # of glibc
            _libc.malloc_trim(0)


def _parts_of(tensor: Tensor, depth: int = 4) -> Iterator[Tensor]:
    """The plain tensors that have the memory of one."""
    if type(tensor) in _GUARDS:
        yield tensor
        if tensor._base is not None and type(tensor._base) in _GUARDS:
            yield tensor._base
    elif depth and hasattr(type(tensor), "__tensor_flatten__") and type(tensor) not in CLASSES:
        with without_torch_function():
            inner = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        for part in inner:
            if isinstance(part, Tensor):
                yield from _parts_of(part, depth - 1)


def _flat_shards_of(module: nn.Module) -> Iterator[Tensor]:
    """What fully_shard gathers parameters from: it has the memory of the shards."""
    if not hasattr(module, "_get_fsdp_state"):
        return
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # before PyTorch 2.12 one at most
    if groups is None:
        groups = [getattr(state, "_fsdp_param_group", None)]
    for group in groups:
        for param in getattr(group, "fsdp_params", ()):
            flat = getattr(param, "_sharded_param_data", None)
            if isinstance(flat, Tensor):
                yield flat


def _tensors_of(what: Any) -> Iterator[Tuple[Tensor, Optional[Tensor]]]:
    """With what each is the gradient of, if that is known."""
    if isinstance(what, nn.Module):
        for tensor in (*what.parameters(), *what.buffers()):
            yield tensor, None
            if tensor.is_leaf and tensor.grad is not None:
                yield tensor.grad, tensor
        yield from ((tensor, None) for each in what.modules() for tensor in _flat_shards_of(each))
    elif isinstance(what, torch.optim.Optimizer):
        for state in what.state.values():
            yield from ((each, None) for each in tensors_in(state))
    elif isinstance(what, Tensor):
        yield what, None
    else:
        for each in what:
            if not isinstance(each, Tensor):
                raise TypeError("park() takes modules, optimizers, tensors and lists of tensors, "
                                f"not {type(each).__name__}")
            yield each, None


def _memories_of(what: Iterable[What]) -> List[_Memory]:
    """Those that can be parked. The log names what stays."""
    found: Dict[int, _Memory] = {}
    for whole, tensor, owner in ((whole, part, owner) for each in what
                                 for whole, owner in _tensors_of(each)
                                 for part in _parts_of(whole)):
        if (is_lazy(tensor) or tensor.layout is not torch.strided or tensor.is_nested
                or tensor.device.type == "meta" or tensor.is_inference()):
            continue
        storage = storage_of(tensor)
        if storage.nbytes() >= _LEAST_BYTES:
            memory = found.setdefault(storage._cdata, _Memory(storage, tensor.device))
            memory.tensors[id(tensor)] = tensor
            if type(whole) not in _GUARDS:
                memory.wholes[id(whole)] = whole
            if owner is not None:
                memory.owners[id(tensor)] = owner
        del storage  # one use of it less
    memories: List[_Memory] = []
    stay: Dict[str, int] = {}
    for memory in found.values():
        why = memory.refused()
        if why:
            stay[why] = stay.get(why, 0) + memory.length
        else:
            memories.append(memory)
    for why, length in stay.items():
        _log.warning("park(): %s stay in memory, which %s", bytes_text(length), why)
    return memories


def park(store: Store, *what: What) -> Parked:
    """Give memory back between two steps, as while a model generates in another program.

    Of modules: parameters, buffers and gradients; of optimizers: their state; and tensors. Their
    bytes are written to the store, to be verified when they are read, and their memory is returned
    to the device and the system. unpark(), or leaving the result as a context, brings them
    back. Meanwhile nothing can be done with them: it raises RuntimeError. They are lost when the
    process ends, as they are in memory.

    Of what fully_shard has sharded each process parks its own shards, after it has ended its steps.

    Tensors smaller than 4 KiB stay in memory, and so do those whose memory is shared with another
    tensor, a graph, another process or another library: a warning says how much. Parameters that
    are on drives already have a window of their own, and stay as they are.

    :param store: open, with checksums, and with room for it all
    :raises SpillwayError: ENOSPC, or EIO; nothing is parked then
    :raises ValueError: the store has no checksums
    :raises RuntimeError: PyTorch is older than 2.1
    """
    if _set_versions is None:
        raise RuntimeError(f"park() takes PyTorch {OLDEST} or later")
    if not store.checksums:
        raise ValueError("the store was opened with checksums=False: what is parked must be "
                         "verified when it comes back")
    return Parked(store, _memories_of(what),
                  [each for each in what if isinstance(each, nn.Module)],
                  [each for each in what if isinstance(each, torch.optim.Optimizer)])
