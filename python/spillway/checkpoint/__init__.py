# SPDX-License-Identifier: MIT
# spillway/checkpoint/__init__.py - a committed step as files that others read, and back
"""The model that a store has committed, as safetensors or as a state_dict of PyTorch, by way of two
buffers: however large it is, no more of it is in memory.

>>> with spillway.Store(drives, read_only=True) as store:
...     spillway.checkpoint.export(store, "model.safetensors")

``python -m spillway.checkpoint export`` does that from a shell. docs/STATE.md has more.
"""
from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import functools
import logging
import os
from typing import TYPE_CHECKING, Any, ContextManager, Dict, List, Literal, Mapping, Optional, Union

import torch

from .._core.library import Size, SpillwayError, size
from .._export.all_ranks import AllRanks
from .._export.committed import Committed, Fields, fields_of, parameters_of, state_of
from .._export.output import Outputs, Progress, check_absent, check_room
from .._export.safetensors import SafetensorsReader, SafetensorsWriter
from .._export.torch_file import TorchWriter
from .._optim.checkpoint import Checkpoint, decoded
from .._optim.tile_step import MASTER, ON_DRIVES
from ..state import committed_extra
from ..store import Path, Store

if TYPE_CHECKING:
    from .._export.dcp import StoreReader, StoreWriter
    from ..optimizer import Optimizer

__all__ = ["Exported", "StoreReader", "StoreWriter", "export", "import_"]

Format = Literal["safetensors", "torch"]
# "parameters": as the model has them. "masters": float32 masters instead of the rounded
# parameters. "all": parameters, and what the optimizer keeps.
What = Literal["parameters", "masters", "all"]

_log = logging.getLogger("spillway")

_ZIP_MAGIC = b"PK\3\4"
# Of another rank's store, from which only is read, into the buffers of the first.
_OTHERS_ARENA_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Exported:
    """``bytes`` are those of all files."""

    step: int
    files: List[str]
    tensors: int
    bytes: int


def _nothing(_: int) -> None:
    pass


def export(store: Store, path: Path, format: Format = "safetensors", what: What = "parameters", *,
           shard_bytes: Size = "5GB", overwrite: bool = False,
           ranks: Literal["all", "one"] = "all", progress: Optional[Progress] = None) -> Exported:
    """Write the step that opening the store has restored to a file, which is there as a whole or
    not at all. Every byte that is read is verified.

    :param store: open, best with ``read_only=True``; no optimizer has used it. Two buffers of its
        arena are used, of up to 16 MiB and a quarter of it
    :param format: "safetensors"; of a model of more than ``shard_bytes`` several files, with an
        index PATH.index.json. Or "torch": one file that ``torch.load(weights_only=True)`` reads
    :param what: "parameters" by their names, each of the type that it has in the model. "masters":
        where there is a float32 master, that. "all": the optimizer's state as well: with "torch" a
        dict of "model", "optimizer" (as its state_dict()), "step" and "extra"; with "safetensors"
        besides tensors called optimizer.FIELD.NAME
    :param overwrite: also where there is such a file
    :param ranks: of a model that several ranks had sharded: "all": whole parameters, with what the
        others have in their partitions, which are opened for that; "one": the shards of this one
    :param progress: called with the number of bytes each time that some were written
    :raises SpillwayError: ENODATA nothing is committed; EALREADY an optimizer has taken it up: open
        the store again; EUCLEAN it is not of an optimizer; a drive failed, or has lost some of it
    :raises FileExistsError: the file is there
    :raises OSError: EBUSY another export writes it; ENOSPC and the like
    """
    path = os.fsdecode(path)
    if format not in ("safetensors", "torch"):
        raise ValueError(f'format must be "safetensors" or "torch", not {format!r}')
    if what not in ("parameters", "masters", "all"):
        raise ValueError(f'what must be "parameters", "masters" or "all", not {what!r}')
    if ranks not in ("all", "one"):
        raise ValueError(f'ranks must be "all" or "one", not {ranks!r}')
    step, checkpoint = _step_of(store)
    given = path, format, what, size("shard_bytes", shard_bytes), overwrite, progress or _nothing
    if ranks == "one" or all(rows is None for rows in checkpoint.rows or ()):
        _warn_of_shards(step, checkpoint)
        return _write([store], fields_of([store]), step, checkpoint, *given)
    opened = functools.partial(_opened, store, checkpoint.rank[0], step)
    all_ranks = AllRanks(opened, *checkpoint.rank)
    try:
        return _write(all_ranks.stores, all_ranks.fields, step, all_ranks.checkpoint, *given)
    finally:
        all_ranks.close()


def _opened(store: Store, rank: int, step: int, other: int) -> ContextManager[Store]:
    """Of this rank or another."""
    if other == rank:
        return contextlib.nullcontext(store)
    return Store(store.paths, partition=store.stats().partition - rank + other, commit=step,
                 read_only=True, arena_bytes=_OTHERS_ARENA_BYTES, hugetlb=False)


def _write(stores: List[Store], fields: Fields, step: int, checkpoint: Checkpoint, path: str,
           format: Format, what: What, shard_bytes: int, overwrite: bool,
           progress: Progress) -> Exported:
    tensors = parameters_of(fields, masters=what == "masters")
    writer: Union[SafetensorsWriter, TorchWriter]
    if format == "torch":
        value: Any = collections.OrderedDict((tensor.name, tensor) for tensor in tensors)
        if what == "all":
            value, tensors = _all_of(checkpoint, value, fields)
        writer = TorchWriter(path, value, tensors)
    else:
        if what == "all":
            tensors += [dataclasses.replace(tensor, name=f"optimizer.{field}.{name}")
                        for field, of_field in state_of(fields).items()
                        for name, tensor in of_field.items()]
        writer = SafetensorsWriter(path, tensors, shard_bytes,
                                   {"format": "pt", "step": str(step)})
    alone = [path] if path not in writer.paths else []  # one file is read rather than several
    check_absent([*alone, *writer.paths], overwrite)
    check_room(path, writer.len_bytes)
    with Outputs(path, progress, alone) as outputs:
        check_absent([*alone, *writer.paths], overwrite)  # another export may have ended meanwhile
        writer.write(stores, outputs)
    return Exported(step, writer.paths, len(tensors), sum(map(os.path.getsize, writer.paths)))


def _step_of(store: Store) -> Any:
    """(number of the commit, what went with it)"""
    committed = store.committed
    if committed is None:
        raise SpillwayError(errno.ENODATA, "nothing is committed in this partition of the store")
    return committed.number, decoded(committed_extra(store))


def _warn_of_shards(number: int, checkpoint: Checkpoint) -> None:
    rank, count = checkpoint.rank
    if count > 1 and (checkpoint.rows is None or any(rows is not None for rows in checkpoint.rows)):
        _log.warning("commit %d is that of rank %d of %d: if the model is sharded, these are its "
                     "shards alone", number, rank, count)


def _all_of(checkpoint: Checkpoint, model: Dict[str, Committed],
            fields: Dict[str, Dict[str, Committed]]) -> Any:
    """What is pickled, with tensors of the commit in it, and these in the order of records."""
    names = checkpoint.names
    state = state_of(fields)
    if names is None or sum(map(len, names)) != len(checkpoint.entries):
        raise SpillwayError(errno.EUCLEAN, "the commit does not name its parameters: an earlier "
                            "version made it. Commit once more")
    entries: Dict[int, Any] = {}
    groups: List[Dict[str, Any]] = []
    for options, of_group in zip(checkpoint.groups, names):
        first = sum(len(group["params"]) for group in groups)
        groups.append({**options, "params": list(range(first, first + len(of_group)))})
        for number, name in enumerate(of_group, first):
            entry = checkpoint.entries[number]
            if entry is None:
                continue
            entry = dict(entry)
            if name in state.get(MASTER, {}):
                entry[MASTER] = ON_DRIVES
            for field in [field for field, value in entry.items() if value is ON_DRIVES]:
                if name not in state.get(field, {}):
                    raise SpillwayError(errno.EUCLEAN, f"the commit has no {field} of {name}")
                entry[field] = state[field][name]
            entries[number] = entry
    kept = {id(value) for entry in entries.values() for value in entry.values()}
    used = [tensor for of_field in state.values() for tensor in of_field.values()
            if id(tensor) in kept]
    value = {"model": model, "optimizer": {"state": entries, "param_groups": groups},
             "step": checkpoint.step, "extra": checkpoint.extra}
    return value, [*model.values(), *used]


def import_(optimizer: "Optimizer", path: Path, what: Literal["parameters", "all"] = "parameters",
            ) -> List[str]:
    """Take parameters from a file into a model whose optimizer's state is in a store. The file is
    mapped, not read into memory. ``optimizer.commit()`` then makes all durable.

    :param optimizer: a spillway.torch.Optimizer, with the names of its parameters
    :param path: as written by export() or other software: safetensors (with PATH.index.json if
        there are several files), or what torch.save() made of a state_dict. With "all" what
        export() wrote by "torch" and "all"
    :param what: "parameters", and their masters; "all": also the optimizer's state
    :return: the names in the file that are not parameters of the optimizer
    :raises ValueError: the file is damaged, or something else; it lacks a parameter, or has one of
        another shape, or of a type that would lose bits: nothing is changed. Or, with "all", its
        state does not fit: parameters are those of the file by then
    :raises OSError: it cannot be read
    :raises SpillwayError: a drive failed
    """
    path = os.fsdecode(path)
    if what not in ("parameters", "all"):
        raise ValueError(f'what must be "parameters" or "all", not {what!r}')
    content = _content_of(path)
    is_all = isinstance(content.get("model"), Mapping) and "optimizer" in content
    if what == "all" and not is_all:
        raise ValueError(f"{path}: this has no state of an optimizer: export(..., \"torch\", "
                         "\"all\") writes one")
    unused = optimizer.load_parameters(content["model"] if is_all else content)
    if what == "all":
        optimizer.load_state_dict(content["optimizer"])
        optimizer.steps = int(content["step"])
    return unused


def _content_of(path: str) -> Any:
    """:raises ValueError: it is no such file"""
    try:
        with open(path, "rb") as file:
            is_zip = file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC
    except FileNotFoundError:
        if not os.path.lexists(path + ".index.json"):
            raise
        is_zip = False
    if not is_zip:
        return SafetensorsReader(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except TypeError as error:
        raise ValueError(f"{path}: PyTorch {torch.__version__} cannot map a file: use 2.1 or "
                         "later, or safetensors") from error
    except OSError:
        raise
    except Exception as error:  # of many kinds, where the file is damaged
        raise ValueError(f"{path}: PyTorch cannot read it: {error}") from error
    if not isinstance(content, Mapping):
        raise ValueError(f"{path}: it has a {type(content).__name__}, and no state_dict")
    return content


def __getattr__(name: str) -> Any:
    """The part for torch.distributed.checkpoint, which not every PyTorch has.

    :raises ImportError: this one has not
    """
    if name not in ("StoreReader", "StoreWriter"):
        raise AttributeError(f"module {__name__} has no attribute {name}")
    try:
        from .._export import dcp
    except ImportError as error:
        raise ImportError(f"{name} needs torch.distributed.checkpoint, of PyTorch 2.1 and later "
                          f"(this is {torch.__version__}): {error}") from error
    return getattr(dcp, name)
