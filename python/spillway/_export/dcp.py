# SPDX-License-Identifier: MIT
# spillway/_export/dcp.py - StoreWriter, StoreReader: torch.distributed.checkpoint on a store
"""Each rank has a partition, whose commit has what that rank wrote; the commit of rank 0 also
describes the whole checkpoint: docs/FORMAT.md, "The record of a distributed checkpoint".

Invariants:
D1  rank 0 commits last, after all others: a checkpoint exists if rank 0's partition has it. The
    other ranks keep the previous one until they are opened for the next
D2  what another program has committed in a partition is not discarded
"""
from __future__ import annotations

import errno
import gc
import io
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.distributed.checkpoint import StorageReader, StorageWriter
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata,
                                                   Metadata, MetadataIndex, TensorProperties,
                                                   TensorStorageMetadata)
from torch.distributed.checkpoint.planner import (LoadItemType, LoadPlan, LoadPlanner, ReadItem,
                                                  SavePlan, SavePlanner, WriteItem, WriteItemType)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from .._core import library
from .._core.library import SpillwayError
from .._core.tensors import buffer_of
from .._optim.ranks import Group, ranks_of, world
from .._optim.tiles import item_bytes
from .._values.pack import pack, unpack
from ..store import Path, Store, committed

_MAGIC = b"SPWDCP\0\1"
_ARENA_BYTES = 32 << 20

# Where an item is stored: its partition, its index in the objects of the commit (-1: it has no
# bytes), its length in bytes.
_Where = Tuple[int, int, int]
_PARTITIONS_MAX = 256  # SPW_PARTITIONS_MAX of spillway/format.h


def _restored(store: Store) -> Tuple[Dict[str, Any], List[Tuple[int, int]]]:
    """The description in a commit, and the commit's objects.

    :raises SpillwayError: EEXIST another program made it; EUCLEAN it is damaged
    """
    record, objects = store.restored()
    if record[:len(_MAGIC)] != _MAGIC:
        raise SpillwayError(
            errno.EEXIST, f"partition {store.stats().partition} of the store has something else "
            "committed, such as an optimizer's state: give checkpoints a store, or partitions, of "
            "their own. If it is not wanted any more: spillway state drop")
    try:
        return dict(unpack(record[len(_MAGIC):])), objects
    except (ValueError, TypeError) as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> SpillwayError:
    return SpillwayError(errno.EUCLEAN, f"the checkpoint in the store is damaged: {error}")


def _opened(drives: Sequence[Path], partition: int, **options: Any) -> Store:
    try:
        return Store(drives, partition=partition, arena_bytes=_ARENA_BYTES, **options)
    except SpillwayError as error:
        if error.errno != errno.EBUSY or error.__cause__ is None:  # not open in this process
            raise
    # If the save of another rank fails, this rank's writer is not told. It keeps the store open
    # until the garbage collector frees it.
    gc.collect()
    return Store(drives, partition=partition, arena_bytes=_ARENA_BYTES, **options)


# ---- The description of a checkpoint -------------------------------------------------------------


def _described(metadata: Metadata, where: Dict[MetadataIndex, _Where]) -> Dict[str, Any]:
    tensors, others = {}, []
    for name, stored in metadata.state_dict_metadata.items():
        if isinstance(stored, TensorStorageMetadata):
            tensors[name] = [stored.properties.dtype, stored.properties.requires_grad,
                             list(stored.size),
                             [[list(chunk.offsets), list(chunk.sizes)] for chunk in stored.chunks]]
        else:
            others.append(name)
    return {
        "tensors": tensors, "others": others, "planner": metadata.planner_data,
        "where": [[index.fqn, None if index.offset is None else list(index.offset), *place]
                  for index, place in where.items()],
    }


def _metadata_of(described: Any) -> Metadata:
    """:raises SpillwayError: EUCLEAN the description is damaged"""
    try:
        stored: Dict[str, Any] = {}
        for name, (dtype, requires_grad, shape, chunks) in described["tensors"].items():
            stored[str(name)] = TensorStorageMetadata(
                TensorProperties(dtype=dtype, requires_grad=bool(requires_grad)), torch.Size(shape),
                [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
                 for offsets, sizes in chunks])
        stored.update((str(name), BytesStorageMetadata()) for name in described["others"])
        where = {
            MetadataIndex(str(name), None if offset is None else torch.Size(offset)):
                (int(partition), int(place), int(length))
            for name, offset, partition, place, length in described["where"]
        }
        if not all(0 <= partition < _PARTITIONS_MAX for partition, _, _ in where.values()):
            raise ValueError("a partition that no store has")
        return Metadata(stored, planner_data=described["planner"], storage_data=where)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(error) from error


# ---- Writing -------------------------------------------------------------------------------------


class StoreWriter(StorageWriter):  # type: ignore[misc]
    """For ``torch.distributed.checkpoint.save``: a checkpoint as a commit of a store.

    >>> dcp.save(state, storage_writer=StoreWriter(drives, step=100))

    :param drives: of a store with a partition for each rank, not open anywhere. It is opened for
        each save, and has room for two checkpoints
    :param step: the number of the commit, above that of the one before; each save takes it, so
        make a writer for each
    :raises SpillwayError: from save(): EEXIST something else is committed there; EBUSY it is open;
        EINVAL the step is not above the last; ENOSPC; a drive failed: the checkpoint before is
        there still, on all ranks
    """

    def __init__(self, drives: Sequence[Path], step: int) -> None:
        super().__init__()
        self._drives = list(drives)
        self._step = library.number("step", step, 63)
        self._rank = 0
        self._store: Optional[Store] = None
        self._things: List[int] = []

    def reset(self, checkpoint_id: Any = None) -> None:
        """:raises ValueError: an id is given"""
        if checkpoint_id is not None:
            raise ValueError("a checkpoint in a store has a step, StoreWriter(drives, step): leave "
                             "checkpoint_id out")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Open the partition of this rank, at the commit that rank 0 has too, if any (D1)."""
        if not kwargs.get("use_collectives", True):
            raise ValueError("the ranks of a checkpoint in a store are saved together: leave "
                             "use_collectives out")
        self._rank = kwargs.get("rank", world()[0])
        self._close()
        last = committed(self._drives, 0)
        mine = committed(self._drives, self._rank)
        if mine is not None:
            with _opened(self._drives, self._rank, read_only=True) as store:
                _restored(store)  # D2
        newest = None if last is None or mine is None else last.number
        if mine is not None and newest not in (mine.number, mine.previous):
            newest = None
        # A commit may have been made while this waited for others to close the store.
        self._store = _opened(self._drives, self._rank, commit="newest" if mine is None else newest)
        if mine is None and self._store.committed is not None:
            self._close()
            raise SpillwayError(
                errno.EBUSY, f"another process has saved a checkpoint in partition {self._rank} of "
                "the store meanwhile, which stays: have torch.distributed initialised, so that "
                "ranks save one together, or give each process a store of its own")
        if newest is not None:  # the commit keeps their bytes until the next
            for thing, _ in self._store.restored()[1]:
                self._store.free(thing)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: List[SavePlan]) -> List[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        """Write the items of this rank. All ranks but rank 0 commit here."""
        self._things = []
        try:
            results = [self._write(item, planner.resolve_data(item)) for item in plan.items]
            if self._rank != 0:
                self._commit({"rank": self._rank}, keep_previous=True)
        except BaseException:
            self._close()
            raise
        future: Any = Future()
        future.set_result(results)
        return future

    def _write(self, item: WriteItem, value: Any) -> WriteResult:
        if item.type is WriteItemType.BYTE_IO:
            content = value.getbuffer()
        else:
            value = value.detach().cpu().contiguous()
            content = buffer_of(value)
        where: _Where = self._rank, -1, content.nbytes
        if content.nbytes:
            assert self._store is not None
            where = self._rank, len(self._things), content.nbytes
            self._things.append(self._store.put(content))
        return WriteResult(item.index, content.nbytes, where)

    def _commit(self, said: Dict[str, Any], keep_previous: bool) -> None:
        assert self._store is not None
        self._store.commit(self._things, self._step, _MAGIC + pack(said, "the checkpoint"),
                           keep_previous=keep_previous)
        self._close()

    def finish(self, metadata: Metadata, results: List[List[WriteResult]]) -> None:
        """Called on rank 0, after all others have committed."""
        where = {result.index: result.storage_data for of_rank in results for result in of_rank}
        try:
            self._commit({"rank": 0, "checkpoint": _described(metadata, where)},
                         keep_previous=False)
        finally:
            self._close()

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Whether this class handles an id: it never does, as the caller names it."""
        return False


# ---- Reading -------------------------------------------------------------------------------------


class StoreReader(StorageReader):  # type: ignore[misc]
    """For ``torch.distributed.checkpoint.load``: the checkpoint that a StoreWriter wrote last. With
    as many ranks or others, sharded as before or not: DCP's planner says which rank reads what.

    >>> dcp.load(state, storage_reader=StoreReader(drives))

    :param drives: of the store; its partitions must not be open anywhere
    :param process_group: which ranks load together: "all", a group, or None: this one by itself,
        as with ``no_dist=True``
    :raises SpillwayError: from load(): ENODATA there is none; EEXIST something else is committed
        there; EBUSY it is open; a drive failed, or has lost some of it
    """

    def __init__(self, drives: Sequence[Path], process_group: Group = "all") -> None:
        super().__init__()
        self._drives = list(drives)
        self._group = process_group
        self._step = 0
        self._where: Dict[MetadataIndex, _Where] = {}
        self._stored: Dict[str, Any] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        """:raises ValueError: an id is given"""
        if checkpoint_id is not None:
            raise ValueError("the last checkpoint of the store is read: leave checkpoint_id out")

    def read_metadata(self) -> Metadata:  # type: ignore[override]
        """Rank 0 reads the description for all."""
        ranks = ranks_of(self._group)
        if ranks is None:
            self._step, described = self._read_described()
        else:
            first = ranks.rank == 0
            self._step, described = ranks.run_on_all(
                lambda: self._read_described() if first else None,
                "the checkpoint cannot be read")[0]
        return _metadata_of(described)

    def _read_described(self) -> Tuple[int, Any]:
        with _opened(self._drives, 0, read_only=True) as store:
            last = store.committed
            if last is None:
                raise SpillwayError(errno.ENODATA, "the store has no checkpoint")
            said, _ = _restored(store)
            if "checkpoint" not in said:
                raise _damaged(ValueError("it is incomplete"))
            return last.number, said["checkpoint"]

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any,
                              **kwargs: Any) -> None:
        self._where = metadata.storage_data
        self._stored = metadata.state_dict_metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: List[LoadPlan]) -> List[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Any:
        """A partition is open in one process at a time, so ranks take turns: each begins with a
        different one, and all go on to the next together."""
        ranks = ranks_of(self._group)
        rank, count = (0, 1) if ranks is None else (ranks.rank, ranks.count)
        partitions = 1 + max((partition for partition, _, _ in self._where.values()), default=0)
        by_partition: Dict[int, List[ReadItem]] = {}
        for item in plan.items:
            partition, _, _ = self._place_of(item)
            by_partition.setdefault(partition, []).append(item)
        turns = max(partitions, count)
        for turn in range(turns):
            partition = (rank + turn) % turns
            items = by_partition.get(partition, [])
            if ranks is None:
                self._read(partition, items, planner)
            else:
                ranks.run_on_all(lambda: self._read(partition, items, planner),
                               "the checkpoint cannot be read")
        future: Any = Future()
        future.set_result(None)
        return future

    def _place_of(self, item: ReadItem) -> _Where:
        """:raises SpillwayError: EUCLEAN the checkpoint does not say"""
        where = self._where.get(item.storage_index)
        if where is None:
            raise _damaged(ValueError(f"it does not say where {item.storage_index.fqn} is"))
        return where

    def _shape_of(self, item: ReadItem) -> Sequence[int]:
        """The shape of the shard. Errors as in _place_of()."""
        for chunk in self._stored[item.storage_index.fqn].chunks:
            if item.storage_index.offset in (None, chunk.offsets):
                return tuple(chunk.sizes)
        raise _damaged(ValueError(f"{item.storage_index.fqn} has no such shard"))

    def _read(self, partition: int, items: Sequence[ReadItem], planner: LoadPlanner) -> None:
        if not items:
            return
        with _opened(self._drives, partition, commit=self._step, read_only=True) as store:
            _, objects = _restored(store)
            for item in items:
                _, place, length = self._place_of(item)
                thing, found = objects[place] if 0 <= place < len(objects) else (0, 0)
                if found != length:
                    raise _damaged(ValueError(f"{item.storage_index.fqn} has {found} bytes and "
                                              f"should have {length}"))
                if item.type is LoadItemType.BYTE_IO:
                    planner.load_bytes(item, io.BytesIO(store.get(thing, length)))
                else:
                    self._read_tensor(store, thing, length, item, planner)

    def _read_tensor(self, store: Store, thing: int, length: int, item: ReadItem,
                     planner: LoadPlanner) -> None:
        """Read the wanted rows of a tensor, and cut out the wanted part of each row."""
        shape = self._shape_of(item)
        dtype = self._stored[item.storage_index.fqn].properties.dtype
        row_bytes = item_bytes(dtype)
        for side in shape[1:]:
            row_bytes *= side
        begin, rows = (item.storage_offsets[0], item.lengths[0]) if shape else (0, 1)
        if (begin + rows) * row_bytes > length:
            raise _damaged(ValueError(f"{item.storage_index.fqn} has fewer bytes than its shape "
                                      "needs"))
        target: Tensor = planner.resolve_tensor(item).detach()
        wanted = (rows, *shape[1:]) if shape else ()
        direct = (target.device.type == "cpu" and target.is_contiguous()
                  and target.dtype is dtype and tuple(target.shape) == wanted)
        read = target if direct else torch.empty(wanted, dtype=dtype, device="cpu")
        if read.numel():
            store.get_into(thing, buffer_of(read), begin * row_bytes)
        if not direct:
            for dim, (offset, size) in enumerate(zip(item.storage_offsets, item.lengths)):
                if dim > 0:
                    read = read.narrow(dim, offset, size)
            target.copy_(read)
        planner.commit_tensor(item, target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Whether this class handles an id: it never does, as the caller names it."""
        return False
