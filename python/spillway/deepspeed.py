# SPDX-License-Identifier: MIT
# spillway/deepspeed.py - ZeRO-Infinity's swapping on a store
"""Let DeepSpeed swap optimizer and parameters to a store instead of to files:

>>> spillway.deepspeed.install(devices=["/dev/nvme1n1", "/dev/nvme2n1"])
>>> engine, *_ = deepspeed.initialize(model=model, config=config)

before the first engine; nothing else changes, neither the program nor its configuration: what
``"device": "nvme"`` swaps goes to the drives, and ``"nvme_path"`` names a folder that stays empty.
For a program that is not to be edited: ``spillway run --deepspeed DEVICES -- PROGRAM``.

DeepSpeed's swappers ask AsyncIOBuilder().load() for a handle that reads and writes files. Here it
is one whose files, in the folders of the swappers, are objects. All other files stay files.
Checkpoints stay what they are: save_checkpoint() exports, load_checkpoint() imports the same files
as without spillway, and either reads what the other wrote.
"""
from __future__ import annotations

import contextlib
import functools
import inspect
import os
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

from deepspeed import __version__ as _version
from deepspeed.ops.op_builder import AsyncIOBuilder
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.swap_tensor.optimizer_utils import OptimizerSwapper
from deepspeed.runtime.swap_tensor.partitioned_param_swapper import AsyncPartitionedParameterSwapper

from ._swap.aio import AioHandle
from ._swap.files import Space
from .store import Path, Store, check_store
from .torch import rank_of_environment

__all__ = ["Swapping", "install"]

Devices = Union[Store, Path, Sequence[Path]]


class _Op:
    """As the module that AsyncIOBuilder().load() returns. What is not asynchronous I/O by a handle
    is DeepSpeed's own."""

    def __init__(self, space: Space, load_own: Callable[[], Any]) -> None:
        self._load_own = load_own
        self.aio_handle = functools.partial(
            AioHandle, space, lambda *given: load_own().aio_handle(*given))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._load_own(), name)


class Swapping:
    """DeepSpeed swaps to a store, until close(). Made by install()."""

    def __init__(self, open_store: Callable[[], Store], is_own: bool) -> None:
        self._space = Space(open_store)
        self._is_own = is_own
        self._replaced: List[Tuple[Any, str, Any]] = []

    @property
    def store(self) -> Optional[Store]:
        """The store, once DeepSpeed has swapped: its stats() count what went to the drives."""
        return self._space.opened

    def close(self) -> None:
        """DeepSpeed has its own again, for engines that are made from now on; those that swap to
        the store cannot go on, nor be saved: their swap folders are gone. Closing twice does
        nothing."""
        global _installed
        while self._replaced:
            owner, name, before = self._replaced.pop()
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        if _installed is self:
            _installed = None
        self._space.forget_all()
        for folder in self._space.folders:
            with contextlib.suppress(OSError):
                os.rmdir(folder)  # a copy of it would be one of nothing
        if self._is_own and self.store is not None:
            self.store.close()

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """:raises RuntimeError: there is no such function"""
        function = getattr(owner, name, None)
        if not callable(function):
            raise RuntimeError(f"DeepSpeed {_version} has no {owner.__name__}.{name}(): it is not "
                               "a version that is known here")
        self._replaced.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, functools.wraps(function)(make(function)))

    def _install(self) -> None:
        space = self._space

        def loads(load: Any) -> Any:
            def replacement(builder: Any, *args: Any, **given: Any) -> Any:
                own = functools.partial(load, builder, *args, **given)
                # The one for GPUDirect Storage inherits from it.
                return _Op(space, own) if builder.name == AsyncIOBuilder.NAME else own()
            return replacement

        def swaps(function: Any, empties: bool) -> Any:
            def replacement(swapper: Any, *args: Any, **given: Any) -> None:
                function(swapper, *args, **given)
                if getattr(swapper, "use_gds", False):
                    raise ValueError('"use_gds": true swaps by GPUDirect Storage, past spillway: '
                                     'leave it out of "aio"')
                space.add(swapper.swap_folder, empties)
            return replacement

        def copies(function: Any) -> Any:
            def replacement(engine: Any, *args: Any, **given: Any) -> Any:
                with space.copied_as_files():
                    result = function(engine, *args, **given)
                _check_copied(engine, space, function.__name__, result)
                return result
            return replacement

        self._replace(AsyncIOBuilder, "load", loads)
        self._replace(OptimizerSwapper, "__init__", lambda f: swaps(f, False))
        self._replace(AsyncPartitionedParameterSwapper, "_configure_aio", lambda f: swaps(f, True))
        self._replace(DeepSpeedEngine, "save_checkpoint", copies)
        self._replace(DeepSpeedEngine, "load_checkpoint", copies)


def _check_copied(engine: Any, space: Space, function: str, result: Any) -> None:
    """A checkpoint without what is swapped would be found out when it is needed."""
    swapper = getattr(engine.optimizer, "optimizer_swapper", None)
    folder = getattr(swapper, "swap_folder", None)
    nothing = isinstance(result, tuple) and result[0] is None  # there is no such checkpoint
    if folder in space.folders and folder not in space.copied and not nothing:
        raise RuntimeError(f"DeepSpeed {_version} has not copied its swap folder in {function}(): "
                           "the optimizer's state is not in this checkpoint")


_installed: Optional[Swapping] = None


def install(devices: Devices, *, partition: Optional[int] = None, **options: Any) -> Swapping:
    """Let engines that are made from now on swap to a store, which is opened when the first does.
    Installing again ends the one before.

    :param devices: the drives of a store; or an open store, which stays open, as where
        ``spillway.torch.offload()`` spills activations to the same drives
    :param partition: for this process; default: LOCAL_RANK and the like, else any that is free
    :param options: what else spillway.Store takes
    :return: its close() undoes it; its ``store`` counts
    :raises SpillwayError: EMEDIUMTYPE a drive holds no store; and others, in words
    :raises TypeError: Store has no such option
    :raises RuntimeError: this version of DeepSpeed works otherwise
    """
    global _installed
    if isinstance(devices, Store):
        if options or partition is not None:
            raise TypeError("the store is open: partition and options are of those that are not")
        opened: Store = devices
        swapping = Swapping(lambda: opened, is_own=False)
    else:
        paths = [devices] if isinstance(devices, (str, os.PathLike)) else list(devices)
        if partition is None:
            partition = rank_of_environment()
        inspect.signature(Store).bind(paths, partition=partition, **options)
        if not any(os.fspath(path).startswith("pci:") for path in paths):
            check_store(paths)
        swapping = Swapping(lambda: Store(paths, partition=partition, **options), is_own=True)
    if _installed is not None:
        _installed.close()
    try:
        swapping._install()
    except BaseException:
        swapping.close()
        raise
    _installed = swapping
    return swapping
