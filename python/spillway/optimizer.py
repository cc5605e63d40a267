# SPDX-License-Identifier: MIT
# spillway/optimizer.py - an optimizer of PyTorch whose state is on drives
"""An optimizer whose state does not have to fit into memory, and whose every state survives.

>>> optimizer = st.Optimizer(torch.optim.AdamW, model.parameters(), store, lr=1e-3)
>>> resumed = optimizer.resume()            # None: nothing is committed
>>> for step in range(resumed.step if resumed else 0, steps):
...     loss(model, step).backward()
...     optimizer.step()
...     optimizer.zero_grad()
...     if step % 100 == 99:
...         optimizer.commit()

The numbers are those of the class itself, bit for bit, with ``foreach=False``. docs/STATE.md says
how much memory it takes and how many bytes a step moves.
"""
from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import itertools
import logging
import math
import operator
import secrets
from typing import (AbstractSet, Any, Callable, Dict, Iterable, Iterator, List, Literal, Mapping,
                    NamedTuple, Optional, Sequence, Tuple, Type, Union)

import torch
from torch import Tensor

from ._core import library
from ._core.library import SpillwayError
from ._core.tensors import name_of, normal_mode, pairs_in_same_memory
from ._export.all_ranks import AllRanks, check_same, shapes_of
from ._grads.backward import SCALED, Departed, DuringBackward
from ._grads.ddp_buckets import Reducing, check_reduced, reduced_of
from ._grads.departures import Departures, GradientStats
from ._grads.gradients import Gradients
from ._optim.checkpoint import (Checkpoint, decoded, encoded, loaded_entries, loaded_groups,
                                is_same_run, loaded_parameters, random_state, set_random_state)
from ._optim.elementwise import counted_alone, is_same_on
from ._optim.inner import (ABSENT, EVAL, TRAIN, Act, Options, changes_without_gradients, made_alike,
                           made_options, make, on_host, options_of, stand_in, take_step, turns)
from ._optim.interleaved import Interleaved
from ._optim.layout import Memory, check_room, lay_out, least_bytes
from ._optim.masters import check_rounding
from ._optim.ranks import (FIRST, CommonCommits, Group, Ranks, peeked, ranks_of, rows_of, say_each,
                           world)
from ._optim.records import Records, StateOnDrives, committed_limits, refuse_state
from ._optim.tile_step import (MASTER, Counted, OfGroup, TileStepper, Unchanged, gradient_type,
                               local_of)
from ._optim.tiled import Tiled, check_gradient
from ._optim.tiles import Field, Kept, Laid, Tile, Wholes, fields_for, item_bytes
from ._optim.whole import is_elementwise, probe_whole
from ._params.on_device import Values, is_on_device
from ._params.parameters import Parameters, described, place_in
from ._params.residency import Place
from ._values.nested import names_of
from .state import StateStats, committed_extra
from .store import Store

__all__ = ["Optimizer", "Resumed"]

_log = logging.getLogger("spillway")

_REDUCED = (torch.float16, torch.bfloat16)
_WHOLE = (torch.float32, torch.float64)
# Options that choose other arithmetic than loops over single tensors.
_OTHER_ARITHMETIC = ("foreach", "fused", "capturable", "differentiable")


def _takes_names() -> bool:
    """Whether this PyTorch's optimizers take (name, parameter)."""
    try:
        named: Any = [("name", stand_in(1))]
        return "param_names" in torch.optim.SGD(named, lr=1.0).param_groups[0]
    except (TypeError, AttributeError):
        return False


_TAKES_NAMES = _takes_names()


class Resumed(NamedTuple):
    """``step``: how many steps the optimizer had made at the commit; ``extra``: what was given with
    it."""

    step: int
    extra: Any


class _Have(NamedTuple):
    """A commit of a store. ``rank``: which made it, of how many. ``run``: as of Checkpoint."""

    step: int
    number: int
    rank: Tuple[int, int]
    run: Optional[str]


@dataclasses.dataclass
class _Now:
    """What changes while an optimizer is used. What wraps one for a program, as Lightning and its
    Fabric do, calls methods of the class with attributes of its own or copied ones: this is the
    same object there."""

    steps: int = 0  # made
    begun: bool = False  # the records are declared, and groups are what they are
    resumed: bool = False
    committed: bool = False  # by this optimizer
    run: Optional[str] = None  # of its commits


def _check_same(all_have: Sequence[Optional[_Have]]) -> None:
    """:raises SpillwayError: EUCLEAN ranks that made the commit have opened another"""
    first = all_have[0]
    made_by = len(all_have) if first is None else first.rank[1]
    if any((have and have[:2]) != (first and first[:2] if rank < made_by else None)
           for rank, have in enumerate(all_have)):
        raise SpillwayError(
            errno.EUCLEAN, "the processes have opened commits of different steps: "
            f"{say_each([have and have.step for have in all_have])}. Open all stores with "
            "commit=spillway.torch.newest_of_all()")
    if first is not None and not all(have is None or is_same_run(have.run, first.run)
                                     for have in all_have):
        raise _other_drives("the processes have opened commits that they have not made together")


def _other_drives(words: str) -> SpillwayError:
    return SpillwayError(errno.EUCLEAN, f"{words}: has one of them other drives, with another "
                         "training? Nothing is changed")


def _say_fields(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {name_of(dtype)} {shape}"
                     for name, (dtype, shape) in sorted(fields.items())) or "nothing"


class Optimizer(torch.optim.Optimizer):
    """A ``torch.optim.Optimizer`` whose state is in a store.

    :param optimizer_class: whose arithmetic it is: SGD, Adam, AdamW, Muon, Adafactor, or any other
        that steps each element, or else each parameter, by itself, which is tried
    :param params: as torch.optim has it: tensors, (name, tensor) pairs as of
        ``model.named_parameters()``, or groups of them. Names are compared where a commit is
        resumed. A group may have an ``optimizer_class`` of its own, such as AdamW beside Muon: then
        it has that one's options and defaults, and none of ``options``
    :param store: open; its objects and commits are the optimizer's from now on
    :param memory: of the store's arena, for records: bytes, a size like "64MiB", or "2%" of the
        state. Default: 2 % and at least four tiles, at most three eighths of the arena
    :param tile: elements of the longest tile; default: those of the store's commit, else as many
        as fit four times into the memory, up to 32 MiB
    :param masters: float16 and bfloat16 parameters are stepped as float32 masters, which are on
        drives too; a parameter is its master, rounded. "compact": of bfloat16 parameters the
        records have only what the parameter lacks of its master, 2.125 bytes instead of 4; the
        numbers are the same. A parameter that something else changes is its own master from then
        on, which the log says once; with True such a change is lost. float16 has 4 bytes
    :param commit_every: commit at the end of each n-th step
    :param commit_extra: called by commit() for what goes with it, where it is given nothing
    :param in_backward: step parameters during the backward pass, as soon as all gradients of a tile
        are ready and nothing reads its parameters any more, and free the gradients. step() ends it.
        The same numbers, less memory; but no gradients after the backward pass: no clipping, no
        accumulation over several, no GradScaler, and no update that is skipped by dropping its
        gradient. step() refuses what it finds of that. Where DistributedDataParallel reduces the
        gradients, give the model that it has made. PyTorch 2.1 or later
    :param gradients: are on drives, too: written in the backward pass, as soon as all of a tile are
        there, and freed. They can be accumulated over several passes, clipped and unscaled by a
        GradScaler as usual; a commit does not have them. Where DistributedDataParallel reduces
        them, give the model that it has made. PyTorch 2.1 or later
    :param process_group: whose processes, each with a partition of its own, make commit() and
        resume() together: all have the same step durable, or go back to the one before. "all": all
        processes, where torch.distributed has been initialised with several: a wrong None
        loses state after a crash; a wrong "all" is reported at start-up. Or a group. None: this
        process commits for itself. Parameters may be sharded (DTensor): the local shards are
        stepped
    :param copies: 2: every record on two drives, so that one may die at any time: training goes on
        and commits, and resume() finds all without it. Takes twice the room and the writes
    :param interleave: where parameters and gradients are on a device, that steps a part of the
        tiles, each while the host steps those that follow. "measured": of k tiles one, so that it
        is done when the host has done the others, by what both have taken; none where it saves
        nothing. Or k, at least 2. A device may come to other bits than the host, which the log says
        when it begins; with a given k they are the same ones in each run
    :param options: the class's own: lr, betas and so on
    :raises TypeError: the class cannot have its state on drives (says why), or a parameter cannot
    :raises ValueError: an option; the memory is less than four tiles, with gradients six; or one of
        several processes has opened its store without commit=spillway.torch.newest_of_all()
    :raises SpillwayError: ENOSPC the store is too small (says by how much); EBUSY another optimizer
        is in it; ENOBUFS its arena is
    """

    @normal_mode()
    def __init__(
        self,
        optimizer_class: Type[torch.optim.Optimizer],
        params: Iterable[Any],
        store: Store,
        *,
        memory: Memory = None,
        tile: Optional[int] = None,
        masters: Union[bool, Literal["compact"]] = False,
        commit_every: Optional[int] = None,
        commit_extra: Optional[Callable[[], Any]] = None,
        in_backward: Reducing = False,
        gradients: Reducing = False,
        process_group: Group = "all",
        copies: Literal[1, 2] = 1,
        interleave: Union[None, Literal["measured"], int] = None,
        **options: Any,
    ) -> None:
        _check_class("optimizer_class", optimizer_class)
        _check_given(store, commit_extra, masters, copies)
        tile = _count("tile", tile, 40, "element")
        commit_every = _count("commit_every", commit_every, 63, "step")
        _check_ways(in_backward, gradients, interleave, masters)
        _check_options(options, "options")
        ranks = _ranks_with(store, process_group)
        groups: Any = params if isinstance(params, Tensor) else list(params)
        self.optimizer_class = optimizer_class
        self.commit_every = commit_every
        self.commit_extra = commit_extra
        self._now = _Now()
        self._options = options
        self._store = store
        self._memory = memory
        self._tile = tile
        self._masters = masters
        self._copies = copies
        self._interleave = interleave
        self._names: List[List[str]] = []
        self._classes: List[OfGroup] = []  # of each group
        self._counts: List[Options] = []  # what each group's class counts in it, and from where
        self._probed: Dict[Any, Any] = {}
        self._tiled: Optional[Tiled] = None
        self._kinds: List[Tile] = []  # a tile of each group and type: all of these have its fields
        self._interleaved: Optional[Interleaved] = None
        self._in_backward = in_backward is not False
        self._on_drives = gradients is not False
        self._reduced = (reduced_of("in_backward", in_backward, masters is not False)
                         or reduced_of("gradients", gradients, masters is not False))
        self._during: Optional[DuringBackward] = None
        self._gradients: Optional[Gradients] = None
        self._departures: Optional[Departures] = None
        self._opened: List[Tensor] = []  # the parameters that the records are of
        self._values = Values(())  # and where their values are
        self._ranks = ranks
        self._commits = None if ranks is None else CommonCommits(ranks, self._release_kept)
        self._own: Optional[Checkpoint] = None  # what the store has, and is to be resumed
        self._others: Optional[AllRanks] = None  # the same of all ranks that made it
        self._shared: List[Tuple[int, int]] = []  # parameters that have elements in common
        self._objects: Dict[int, str] = {}  # parameters on drives, and the names of their records
        self._described: Dict[int, bytes] = {}  # and what a commit says of them
        self._owners: Dict[int, Parameters] = {}  # and by whom they were taken there
        self._stand_ins: Dict[int, Any] = {}
        given = [group for group in groups if isinstance(group, dict)
                 and "optimizer_class" not in group] if isinstance(groups, list) else []
        first = given[0] if given else {}
        super().__init__(groups, made_alike(optimizer_class, first, options).defaults)
        self._open()

    def __repr__(self) -> str:
        names = " and ".join(dict.fromkeys(cls.__name__ for cls, _ in self._classes))
        words = f"Optimizer of {names}, {self.steps} steps"
        if self._tiled is not None:
            layout = self._tiled.records.layout
            words += (f", {library.bytes_text(layout.state_bytes)} of state on drives by way of "
                      f"{library.bytes_text(layout.memory_bytes)} of memory")
        return super().__repr__().replace("Optimizer", words, 1)

    @property
    def steps(self) -> int:
        """Made."""
        return self._now.steps

    @steps.setter
    def steps(self, count: int) -> None:
        self._now.steps = count

    # ---- Parameters and records ------------------------------------------------------------------

    @normal_mode()
    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """As torch.optim has it, before the first step.

        :raises RuntimeError: the optimizer has begun: its records are what they are
        """
        if self._now.begun:
            raise RuntimeError(
                "parameters cannot be added after the first step, nor after resume(), commit() or "
                "state_dict(): records on drives are declared once. Make the optimizer with all of "
                "them, the later ones with requires_grad=False: what has no gradient costs nothing")
        _check_options(param_group, "the group")
        group, names = _without_names(param_group)
        own = None
        if isinstance(group, dict) and "optimizer_class" in group:
            group = {**group}
            own = group.pop("optimizer_class")
            _check_class("the group's optimizer_class", own)
        given = group.keys() if isinstance(group, dict) else ()
        others = [name for name in self.defaults if name not in given] if own is not None else []
        number = len(self.param_groups)
        super().add_param_group(group)
        added = self.param_groups[-1]
        try:
            for name in others:  # defaults of the other class
                added.pop(name, None)
            self._classes.append((self.optimizer_class, self._options) if own is None
                                 else (own, {}))
            if own is not None:
                for name, value in made_alike(own, options_of(added), {}).defaults.items():
                    added.setdefault(name, value)
            self._take_over_made(number, added)
            self._counts.append(self._counted_in(number, added))
            for param in added["params"]:
                self._check_parameter(param)
            self._names.append(added.get("param_names") or names
                               or [f"group{number}.param{i}" for i in range(len(added["params"]))])
            if self._tiled is not None:
                self._open()
        except BaseException:
            self.param_groups.pop()
            del self._names[number:], self._classes[number:], self._counts[number:]
            raise

    def _take_over_made(self, number: int, group: Options) -> None:
        """A group's options are those that the class's own would have, which some change."""
        optimizer_class, options = self._classes[number]
        made = made_options(optimizer_class, options_of(group), options)
        group.update({name: value for name, value in made.items()
                      if name not in _OTHER_ARITHMETIC})

    def _counted_in(self, number: int, group: Options) -> Options:
        """What the class changes in a group as it steps, and what that is at the beginning."""
        try:
            changes = counted_alone(self._classes[number][0], group, self._classes[number][1])
        except Exception:  # the class's own, which refuses it where it is tried
            return {}
        return {name: group.get(name, ABSENT) for each in changes for name in each}

    def _options_at_first(self, number: int) -> Options:
        """The options of a group, with which its class is tried: before it has counted steps."""
        group = options_of(self.param_groups[number])
        for name, value in self._counts[number].items():
            group[name] = value
        return {name: value for name, value in group.items() if value is not ABSENT}

    def _check_parameter(self, param: Tensor) -> None:
        name = name_of(param.dtype)
        if param.layout is not torch.strided or param.device.type == "meta":
            raise TypeError("a parameter is sparse or has no memory: its optimizer cannot have its "
                            "state on drives")
        if param.dtype not in _WHOLE + _REDUCED:
            raise TypeError(f"a parameter is {name}: only float32 and float64 can be stepped, and "
                            "with masters=True float16 and bfloat16")

    def _fields_of(self, number: int, dtype: torch.dtype) -> Kept:
        """What is in the records of a group's parameters of a type.

        :raises TypeError: its class can step neither elements nor parameters by themselves
        """
        optimizer_class, options = self._classes[number]
        group = self._options_at_first(number)
        stepped = self._stepped_in(dtype)
        of_element = torch.float32 if dtype in _REDUCED else dtype
        key: Any = optimizer_class, of_element, _pattern(group)
        if key not in self._probed:
            shapes = [tuple(local_of(param).shape) for param in self._params()
                      if self._stepped_in(param.dtype) == stepped]
            self._probed[key] = is_elementwise(optimizer_class, group, options, of_element, shapes)
        fields = self._probed[key]
        if fields is None:
            return self._wholes_of(number, dtype, group)
        if of_element != stepped:
            raise TypeError(
                f"a parameter is {name_of(dtype)}: what arithmetic in it comes to depends on where "
                "a run is cut. Give masters=True, which steps float32 masters")
        elements: Tuple[Field, ...] = fields
        return elements if stepped == dtype else (*elements, self._master_of(dtype))

    def _master_of(self, dtype: torch.dtype) -> Field:
        return Field(MASTER, torch.float32,
                     compact=self._masters == "compact" and dtype is torch.bfloat16)

    def _wholes_of(self, number: int, dtype: torch.dtype, group: Options) -> Wholes:
        """The same of a class that steps whole parameters."""
        optimizer_class, options = self._classes[number]
        stepped = self._stepped_in(dtype)
        key = number, dtype, _pattern(group)
        if key not in self._probed:
            params = [param for param in self.param_groups[number]["params"]
                      if param.dtype == dtype]
            self._check_whole(optimizer_class.__name__, number, params)
            found = probe_whole(optimizer_class, group, options, stepped,
                                [tuple(local_of(param).shape) for param in params])
            if found.steps_all and self._in_backward:
                raise ValueError(f"{optimizer_class.__name__} steps parameters without a gradient, "
                                 "too, which in_backward cannot tell from those whose gradient "
                                 "has not come yet: leave in_backward out")
            if stepped != dtype:
                found = Wholes({shape: (*fields, self._master_of(dtype))
                                for shape, fields in found.by_shape.items()}, found.steps_all)
            self._probed[key] = found
        wholes: Wholes = self._probed[key]
        return wholes

    def _check_whole(self, name: str, number: int, params: Sequence[Any]) -> None:
        """:raises TypeError: a parameter is not whole here, or not in the order of its elements
        :raises ValueError: a device is to step a part of the tiles"""
        names = dict(zip(map(id, self.param_groups[number]["params"]), self._names[number]))
        for param in params:
            if not all(place.is_replicate() for place in getattr(param, "placements", ())):
                raise TypeError(
                    f"{names[id(param)]} is sharded over processes, and {name} needs the whole "
                    "parameter, which a shard is not. Keep it whole on each: use "
                    "DistributedDataParallel, or fully_shard(ignored_params=...) and reduce its "
                    f"gradient yourself; or give it to {name} itself, in memory")
            if not local_of(param).is_contiguous():
                raise TypeError(
                    f"{names[id(param)]} is not contiguous, so that {name} may come to other bits "
                    "on what a record has of it: give it contiguous memory (param.data = "
                    "param.data.contiguous())")
        if self._interleave is not None:
            raise ValueError(f"interleave has a device step runs of elements, and {name} steps "
                             "whole parameters: leave it out")

    def _params(self) -> List[Tensor]:
        return list(itertools.chain.from_iterable(group["params"] for group in self.param_groups))

    def _laid(self) -> List[List[Laid]]:
        counter = itertools.count()
        return [[Laid(next(counter), name, tuple(local_of(param).shape), param.dtype,
                      gradient_type(param) if self._on_drives else None,
                      place_in(param) is not None)
                 for name, param in zip(names, group["params"])]
                for names, group in zip(self._names, self.param_groups)]

    def _open(self) -> None:
        """The records of the groups as they are now, in place of those before."""
        laid, params = self._laid(), self._params()
        self._probed.clear()  # with other parameters
        self._objects = self._named_objects()
        if self._in_backward or self._on_drives:
            check_reduced("gradients" if self._on_drives else "in_backward", params, self._reduced)
        check_room(self._store, least_bytes(laid, self._fields_of, MASTER), self._copies)
        layout = lay_out(laid, self._fields_of, MASTER, self._tile, self._memory,
                         self._store.arena_bytes, committed_limits(self._store),
                         self._interleave is not None)
        check_room(self._store, layout.needed_bytes, self._copies)
        if self._masters == "compact":
            check_rounding([param for param in params if not is_on_device(param)])
        if self._interleave is not None and any(map(is_on_device, params)):
            raise ValueError("interleave has a device step parameters in its memory, and these are "
                             "on drives (offload(parameters=True)): leave it out, the host steps "
                             "all tiles")
        addresses = self._addresses(params)
        shared = _shared_in(addresses, params)
        self._check_apart(shared, params)
        self._close()
        self._opened, self._opened_as, self._shared = params, _kinds_of(params), shared
        self._opened_at: List[int] = addresses
        self._values = Values(params)
        self._unchanged = Unchanged()
        classes = list(self._classes)
        self._counted = Counted()
        stepper = TileStepper(classes, self._values, unchanged=self._unchanged,
                              counted=self._counted)
        self._described = {number: described(params[number]) for number in self._objects}
        self._owners = {number: self._place(number).owner for number in self._objects}
        self._stand_ins = {}
        objects = [(name, self._place(number).length, self._described[number])
                   for number, name in self._objects.items()]
        every = self._interleave if isinstance(self._interleave, int) else 0
        records = Records(self._store, layout, self._copies, objects, every)
        self._kinds = list({(tile.group, tile.dtype, tile.shape): tile
                            for tile in layout.tiles}.values())
        departures = self._departures = _departures_of(params, layout.tiles)
        departed = Departed(params, departures, self._values) if self._in_backward else None
        if self._on_drives:
            self._gradients = Gradients(
                params, records, functools.partial(self._whole, to_check=False), self._reduced,
                departures)
        if self._interleave is not None:
            self._interleaved = Interleaved(
                self._store, records, params, lambda device: TileStepper(
                    classes, params, device, self._unchanged, self._counted),
                functools.partial(_compare, classes, self.param_groups))
        self._tiled = Tiled(records, stepper, params, departed or self._gradients,
                            self._objects.keys(), self._interleaved, self._values)
        if departed is not None:
            self._during = DuringBackward(params, departed, self._whole_in_backward,
                                          self._group_options, self._all_names, self._reduced)

    def _named_objects(self) -> Dict[int, str]:
        """:raises ValueError: parameters are on the drives of another store"""
        named: Dict[int, str] = {}
        laid = itertools.chain.from_iterable(
            ((group, item) for item in items) for group, items in enumerate(self._laid()))
        for group, item in laid:
            if not item.on_drives:
                continue
            owner = self._place(item.number).owner
            if owner.store is not self._store:
                raise ValueError(f"parameter {item.name} is on the drives of another store: a "
                                 "commit has state and parameters together. Give both the same one")
            owner.copies = self._copies
            named[item.number] = f"parameter/group{group}/{item.name}"
        return named

    def _check_apart(self, shared: Sequence[Tuple[int, int]], params: Sequence[Tensor]) -> None:
        """:raises ValueError: two have the same memory, and both are to be stepped"""
        for one, other in shared:
            if params[one].requires_grad and params[other].requires_grad:
                names = self._all_names()
                raise ValueError(
                    f"{names[one]} and {names[other]} have the same memory: PyTorch steps one "
                    "after the other, and what the second begins from depends on where tiles are "
                    "cut. Make them one parameter (module.weight = other.weight, without .data), "
                    "or freeze one (requires_grad=False)")

    def _place(self, number: int) -> Place:
        """Of a parameter that is on drives."""
        place = place_in(self._params()[number])
        if place is None:
            raise RuntimeError(f"{self._objects.get(number)} was on drives when the optimizer was "
                               "made, and is not any more: go back to the last commit")
        return place

    def _place_to_commit(self, number: int) -> Place:
        """The same, or that of what stands in for a parameter whose memory cannot leave any more:
        that it was given is a part of a larger one, for example."""
        param, owner = self._params()[number], self._owners[number]
        if place_in(param) is None and not owner.closed:
            self._stand_ins[number] = owner.stand_in(param, self._objects[number],
                                                     self._stand_ins.get(number))
            param = self._stand_ins[number]
        return place_in(param) or self._place(number)

    def _remove_hooks(self) -> None:
        for hooked in (self._during, self._gradients):
            if hooked is not None:
                hooked.remove()

    def _whole_in_backward(self) -> Tiled:
        under_way = self._during is not None and self._during.under_way
        tiled = self._whole(to_finish=True, to_check=not under_way)
        self._check_fields()
        return tiled

    def _check_parameters(self) -> None:
        """:raises RuntimeError: they are others than those that the records are of"""
        params = self._params()
        if len(params) != len(self._opened) or any(map(operator.is_not, params, self._opened)):
            raise RuntimeError(
                "param_groups have other parameters than when the optimizer was made, whose state "
                "has no records: use add_param_group() before the first step, or make a new "
                "optimizer")
        for name, before, now in zip(itertools.chain.from_iterable(self._names), self._opened_as,
                                     _kinds_of(params)):
            if before != now:
                raise RuntimeError(
                    f"{name} has another type or shape than when the optimizer was created: "
                    f"{name_of(now[0])} {now[1]}, and was {name_of(before[0])} {before[1]}: create "
                    "it again, after the last change of the model")

    def _addresses(self, params: Sequence[Tensor]) -> List[int]:
        """Of all parameters; 0: on drives, or not trained now, and perhaps parked."""
        return [local_of(param).data_ptr()
                if param.requires_grad and number not in self._objects else 0
                for number, param in enumerate(params)]

    def _whole(self, to_finish: bool = False, to_resume: bool = False,
               to_check: bool = True, empty: bool = False) -> Tiled:
        """The state, declared and of use.

        :param empty: its records are to replace those of the commit
        :raises RuntimeError: as _check_parameters()
        :raises SpillwayError: EEXIST the store has a commit that was not resumed; and as
            Records.attach()
        """
        if not self._now.begun and not self._named_objects().items() <= self._objects.items():
            raise RuntimeError("parameters have gone to drives since the optimizer was made: make "
                               "it after offload(parameters=True)")
        if to_check:
            self._check_parameters()
            addresses = self._addresses(self._opened) if to_finish else self._opened_at
            if addresses != self._opened_at:  # they have other memory, or others are trained
                self._opened_at, self._shared = addresses, _shared_in(addresses, self._opened)
        self._check_apart(self._shared, self._opened)  # one may not be frozen any more
        assert self._tiled is not None
        self._tiled.check_whole(to_finish)
        if not to_finish and self._during is not None and self._during.under_way:
            raise RuntimeError("a backward pass has stepped parameters, and no step() has ended "
                               "it: call that first")
        self._tiled.records.attach(empty)
        self._now.begun = True
        if self._tiled.records.resumable and not to_resume:
            raise SpillwayError(
                errno.EEXIST,
                f"the store has commit {self._tiled.records.state.attached} of this model, which "
                "the next would replace: call resume() first, to go on from it; or open the store "
                "without it, if it is not wanted any more")
        return self._tiled

    # ---- As torch.optim has it -------------------------------------------------------------------

    @property
    def state(self) -> StateOnDrives:  # type: ignore[override]
        """Whether there is any, and of which parameters; the state itself is on drives."""
        return self._state

    @state.setter
    def state(self, value: Any) -> None:
        if hasattr(self, "_state"):  # not by the constructor
            refuse_state()
        self._state: StateOnDrives = StateOnDrives(self._names_of_state)

    def _names_of_state(self, param: Optional[Tensor]) -> Optional[List[str]]:
        """As state_dict() has them."""
        tiled = self._tiled
        for number, entry in enumerate([] if tiled is None else tiled.entries):
            if entry is not None and param is None:
                return list(names_of(entry))
            if entry is not None and param is self._opened[number]:
                assert tiled is not None
                masters = tiled.field_shapes()[number].keys() & {MASTER}
                return [*names_of(entry), *(masters - entry.keys())]
        return None

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """One step of all parameters that have gradients.

        :param closure: computes the gradients, and returns the loss, which is returned
        :raises SpillwayError: a drive failed. Nothing is lost: the same call, with the same
            gradients, finishes the step
        :raises TypeError: a gradient is sparse
        :raises ValueError: an option was changed such that the class keeps something else
        :raises RuntimeError: with in_backward=True: a gradient was dropped, replaced or changed, or
            an option changed, after the backward pass has used it
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with normal_mode():
            tiled = self._whole(to_finish=True)
            if self._during is not None:
                self._check_fields()
                self._during.finish()
            else:
                self._check_step()
                tiled.step(self._group_options())
            self._values.refresh()
            self._count()
            self.steps += 1
            self._unchanged.end_step(self.param_groups, self.steps)
        if self.commit_every is not None and self.steps % self.commit_every == 0:
            self._commit_after_step()
        return loss

    def _count(self) -> None:
        """Groups have what their classes have counted in this step; they count where nothing has a
        gradient as well."""
        self._take_over({number for number, counts in enumerate(self._counts) if counts}, take_step)

    def _take_over(self, numbers: AbstractSet[int], act: Act) -> None:
        """What was done with tiles has changed these groups, of which some have no tile."""
        changes = self._counted.end_step()
        for number, group in enumerate(self.param_groups):
            optimizer_class, options = self._classes[number]
            if number not in changes and number in numbers:
                changes[number] = changes_without_gradients(optimizer_class, options_of(group),
                                                            options, act)
            group.update(changes.get(number, {}))

    def train(self) -> None:
        """As the class has it, if it has: a schedule-free one trains other values than those that
        are to be evaluated and saved. What turns them reads all of the state, and writes it; a
        second call does nothing.

        :raises SpillwayError: a drive failed: the last commit is what there is
        """
        self._turn(TRAIN)

    def eval(self) -> None:
        """The other way."""
        self._turn(EVAL)

    @normal_mode()
    def _turn(self, act: Act) -> None:
        assert self._tiled is not None
        numbers = {number for number, (optimizer_class, _) in enumerate(self._classes)
                   if turns(optimizer_class)}
        if numbers:
            self._tiled.check_whole()
        numbers = {number for number in numbers if changes_without_gradients(
            self._classes[number][0], options_of(self.param_groups[number]),
            self._classes[number][1], act)}
        if not numbers:
            return
        if any(entry is not None for entry in self._tiled.entries):
            self._whole().turn(self._group_options(), act, numbers)
            self._values.refresh()
        self._take_over(numbers, act)

    def zero_grad(self, *given: Any, **options: Any) -> None:
        """As torch.optim has it. With in_backward=True gradients are freed by then: unless they are
        to be None, what has none in the next step is stepped with zeros."""
        super().zero_grad(*given, **options)
        if self._during is not None:
            self._during.zero_gradients(not (given[0] if given else
                                             options.get("set_to_none", True)))

    def _commit_after_step(self) -> None:
        try:
            self.commit()
        except SpillwayError as error:
            raise SpillwayError(error.errno, f"step {self.steps} is made, and must not be made "
                                f"again, but its commit failed: {error.strerror}") from error

    def _all_names(self) -> List[str]:
        """Of the parameters, as they are numbered."""
        return list(itertools.chain.from_iterable(self._names))

    def _group_options(self) -> List[Options]:
        return [options_of(group) for group in self.param_groups]

    def _check_step(self) -> None:
        """Before anything is changed."""
        if self._gradients is not None:
            self._gradients.check_all()
        for group in self.param_groups:
            for param in group["params"]:
                check_gradient(param)
        self._check_fields()
        self._check_all_have_gradients()

    def _check_all_have_gradients(self) -> None:
        """:raises RuntimeError: the class would step a parameter that has none"""
        for number, dtype in dict.fromkeys((tile.group, tile.dtype) for tile in self._kinds):
            kept = self._fields_of(number, dtype)
            if not isinstance(kept, Wholes) or not kept.steps_all:
                continue
            for name, param in zip(self._names[number], self.param_groups[number]["params"]):
                if param.dtype == dtype and param.grad is None:
                    raise RuntimeError(
                        f"{name} has no gradient, and {self._classes[number][0].__name__} steps "
                        "such parameters as well: give it zeros (torch.zeros_like), or leave it "
                        "out of the optimizer")

    def _check_fields(self) -> None:
        """The options are such that the class keeps what the records have."""
        for tile in self._kinds:
            wanted = fields_for(self._fields_of(tile.group, tile.dtype), tile.shape or ())
            if not set(wanted) <= set(tile.fields):
                names = sorted(field.name for field in set(wanted) - set(tile.fields))
                raise ValueError(
                    f"the options of group {tile.group} are such now that "
                    f"{self._classes[tile.group][0].__name__} keeps {', '.join(names)}, for "
                    "which there is no room in the records: make the optimizer with these options")

    @normal_mode()
    def state_dict(self) -> Dict[str, Any]:
        """As the class's own, which takes it; but of sharded parameters what is here, as plain
        tensors. All of the state is in memory then: what survives a crash without that is
        commit().

        :raises SpillwayError: a drive failed
        """
        whole = iter(self._whole().gathered())
        for number, group in enumerate(self.param_groups):
            for param in group["params"]:
                state = next(whole) or self._state_from_beginning(number, param)
                if state:
                    dict.__setitem__(self.state, param, state)
        try:
            return super().state_dict()
        finally:
            dict.clear(self.state)

    def _state_from_beginning(self, number: int, param: Tensor) -> Dict[str, Any]:
        """What the class's own has of a parameter that never had a gradient: Adagrad's all."""
        shape, dtype = local_of(param).shape, self._stepped_in(param.dtype)
        alike = torch.empty(shape, dtype=dtype, device="cpu")
        optimizer_class, options = self._classes[number]
        made = make(optimizer_class, [alike], options_of(self.param_groups[number]), options)
        return made.state.get(alike, {})

    @normal_mode()
    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Take over the state of an optimizer of the same class, on drives or not.

        :raises ValueError: it is of other groups or shapes, or has what the records have no room
            for; nothing is changed
        :raises SpillwayError: a drive failed
        """
        tiled = self._whole()
        for pre_hook in list(getattr(self, "_optimizer_load_state_dict_pre_hooks", {}).values()):
            state_dict = pre_hook(self, dict(state_dict)) or state_dict
        groups = loaded_groups(self.param_groups, state_dict)
        entries = loaded_entries(self._params(), tiled.field_shapes(), state_dict)
        groups, entries = self._brought_up_to_date(groups, entries)
        before = list(self.param_groups)
        self.param_groups[:] = groups
        try:
            self._check_fields()
        except BaseException:
            self.param_groups[:] = before
            raise
        tiled.fill(entries)
        for post_hook in list(getattr(self, "_optimizer_load_state_dict_post_hooks", {}).values()):
            post_hook(self)

    def load_parameters(self, values: Mapping[str, Tensor]) -> List[str]:
        """Parameters, and their masters, are these from now on; what the class keeps stays.

        :param values: by name; of sharded parameters what is here
        :return: names that no parameter has
        :raises ValueError: one is missing, or of another shape, or of a type that neither the
            parameter nor its master can hold without loss; nothing is changed
        :raises SpillwayError: a drive failed
        """
        tiled = self._whole()
        names = self._all_names()
        found = loaded_parameters(names, self._params(), tiled.field_shapes(), values)
        with normal_mode():
            tiled.load_parameters(found)
            self._values.refresh()
        known = set(names)
        return [name for name in values if name not in known]

    def _brought_up_to_date(
        self, groups: List[Options], entries: List[Optional[Options]]
    ) -> Tuple[List[Options], List[Optional[Options]]]:
        """As the class makes of what an older PyTorch has saved."""
        state = {param: entry for param, entry in zip(self._params(), entries) if entry is not None}
        new_groups: List[Options] = []
        new_entries: List[Optional[Options]] = []
        for (optimizer_class, options), before, group in zip(self._classes, self.param_groups,
                                                             groups):
            inner = made_alike(optimizer_class, options_of(before), options)
            of_group = {param: state[param] for param in group["params"] if param in state}
            with on_host():
                inner.__setstate__({"state": of_group, "param_groups": [group]})
            new_groups += inner.param_groups
            new_entries += [inner.state.get(param) for param in group["params"]]
        return new_groups, new_entries

    def __getstate__(self) -> Dict[str, Any]:
        raise TypeError("an optimizer with its state on drives cannot be copied or pickled: "
                        "commit() and resume(), or state_dict() and load_state_dict()")

    # ---- Durable ---------------------------------------------------------------------------------

    def commit(self, step: Optional[int] = None, extra: Any = None, *,
               keep_previous: bool = False) -> int:
        """Make all durable as it is now: state, parameters, options, PyTorch's random states, and
        what is given. A crash later goes back to here, a crash meanwhile to the commit before.

        :param step: the number of the commit, above that of the one before; default: steps made
        :param extra: what else training needs to go on: numbers, strings, bytes, tensors, and lists
            and dicts of them, as state_dict() of schedulers, scalers and data loaders gives
        :param keep_previous: the commit before stays, too, until commit_release(): for one of
            several processes that commit the same step each for itself, with process_group=None
        :return: its number
        :raises TypeError: something in ``extra`` is of another type; nothing is changed
        :raises SpillwayError: EINVAL the number; a drive failed: the commit before is durable
            still. Of several processes all get it where one fails: the words say which, and why
        """
        _check_flag("keep_previous", keep_previous)
        if self._commits is None:
            if world()[1] == 1:  # else each is for itself
                self._now.run = self._now.run or secrets.token_hex(8)
            return self._commit(step, extra, keep_previous)
        if keep_previous:
            raise ValueError("processes that commit together keep the commit before by themselves: "
                             "leave keep_previous out, or give the optimizer process_group=None")
        if self._now.run is None and not self._commits.ranks.in_doubt:
            self._now.run = self._commits.ranks.gather(secrets.token_hex(8))[0]
        return self._commits.commit(lambda: self._commit(step, extra, True))

    def _commit(self, step: Optional[int], extra: Any, keep_previous: bool) -> int:
        """Of this process."""
        if extra is None and self.commit_extra is not None:
            extra = self.commit_extra()
        tiled = self._whole()
        if isinstance(step, bool):
            raise TypeError("step must be a number, not a bool")
        number = self.steps if step is None else library.number("step", step, 63)
        content = encoded(Checkpoint(self._class_name, self.steps, self._rank,
                                     self._group_options(), tiled.entries, random_state(), extra,
                                     self._names, self._rows(), self._now.run))
        with normal_mode():
            changed = tiled.save_parameters()
            self._settle(tiled)
        if changed:
            _log.warning("commit %d: %s%s changed after the last step, and the commit has the "
                         "parameters as they are now, without the masters that they had. If "
                         "averaged weights are swapped in, swap them out and commit again",
                         number, changed[0], f" and {len(changed) - 1} more parts were"
                         if len(changed) > 1 else " was")
        state = tiled.records.state
        if (self._ranks is not None and number > FIRST and not self._now.committed
                and state.attached is None):  # R2
            state.commit(FIRST, content)
            self._now.committed = True
        state.commit(number, content, keep_previous)
        self._now.committed = True
        return number

    def _settle(self, tiled: Tiled) -> None:
        """Parameters on drives: they are there as they are now, and the commit names them."""
        params = self._params()
        for number, name in self._objects.items():
            if described(params[number]) != self._described[number]:
                raise RuntimeError(f"{name} has another type or shape than when the optimizer was "
                                   "created: create it again, after the last change of the model")
        places = {name: self._place_to_commit(number) for number, name in self._objects.items()}
        for owner in {place.owner for place in places.values()}:
            owner.settle()
        for name, place in places.items():
            tiled.records.set_object(name, place.object)

    def commit_release(self) -> None:
        """The commit before the last, if it was kept, is not needed any more. Processes that commit
        together see to this by themselves.

        :raises SpillwayError: EBUSY a later commit failed while it took the place of the last: what
            is kept is all that is sure until another succeeds; a drive failed: it is kept still
        """
        if self._commits is None:
            self._release_kept()

    def _release_kept(self) -> None:
        self._whole().records.state.commit_release()

    @normal_mode()
    def resume(self, *, random: bool = True) -> Optional[Resumed]:
        """Once, before the first step: go on from what is committed in the store. Parameters,
        state, options and random states are as they were; the model's buffers are not the
        optimizer's: give them in ``extra``. The commit may be of more processes, or of fewer, in
        the partitions of this store: of sharded parameters each reads what it needs from all, and
        a process that was not there has ``extra`` of another, and random states as they are.

        :param random: also of PyTorch's random states
        :return: None: nothing is committed, and nothing is changed
        :raises SpillwayError: EUCLEAN the commit is of another model, another class or another
            process; or several processes have opened different ones; ENODATA a partition lacks it;
            nothing is changed. EBADMSG and others: some of it cannot be read: open the store again
        """
        _check_flag("random", random)
        found: List[Checkpoint] = []
        try:
            if self._ranks is None:
                self._find(found, [self._look()])
                return self._restore(found, random)
            all_have = self._ranks.run_on_all(self._look, "nothing is resumed")
            _check_same(all_have)
            self._ranks.run_on_all(lambda: self._find(found, all_have), "nothing is resumed")
            return self._restore_together(self._ranks, found, random)
        finally:
            self._close_others()

    def _restore_together(self, ranks: Ranks, found: List[Checkpoint],
                          random: bool) -> Optional[Resumed]:
        resumed: List[Optional[Resumed]] = []
        try:
            ranks.run_on_all(lambda: resumed.append(self._restore(found, random)),
                           "parameters and state are not whole on all ranks")
        except BaseException as error:
            assert self._tiled is not None
            self._tiled.end_use("resume()", error)
            raise
        return resumed[0]

    def _look(self) -> Optional[_Have]:
        """What the store has, if anything. Changes nothing."""
        if self.steps or self._now.resumed:
            raise RuntimeError("resume() comes once, before the first step: this optimizer has "
                               f"made {self.steps}")
        assert self._tiled is not None
        self._own = None
        state = self._tiled.records.state
        info = self._store.committed
        if info is None or (self._now.begun and not self._tiled.records.resumable):
            return None
        self._own = decoded(state.extra() if self._now.begun else committed_extra(self._store))
        rank = self._own.rank
        return _Have(self._own.step, info.number, self._rank if rank == world() else rank,
                     self._own.run)

    def _find(self, found: List[Checkpoint], all_have: Sequence[Optional[_Have]]) -> None:
        """What is to be resumed, if anything is."""
        have = all_have[0]
        if have is None:
            self._whole(to_resume=True)
            return
        number, count = have.number, have.rank[1]
        rank = self._rank[0] if self._own is None else self._own.rank[0]

        def of_rank(other: int, arena_bytes: int = 1 << 20) -> Store:
            return peeked(self._store.paths, self._store.stats().partition - rank + other, number,
                          arena_bytes)

        if count != self._rank[1]:
            check_same(of_rank, *self._rank, count)
        if self._own is not None and self._fits(self._own, count):
            self._whole(to_resume=True)
            self._check_resumable(self._own, count)
            found.append(self._own)
            return
        if self._own is not None:
            self._check_resumable(self._own, count)
        assert self._tiled is not None
        # The buffers, and of the store's own: bounce buffers, a quarter, and tails.
        arena_bytes = 4 * self._buffer_bytes + len(self._store.paths) * (
            8 * self._store.chunk_bytes + (1 << 20))
        self._others = AllRanks(
            lambda other: of_rank(other, arena_bytes) if other == rank % count else of_rank(other),
            rank % count, count)
        checkpoint = self._others.checkpoint
        if not is_same_run(checkpoint.run, have.run):
            raise _other_drives("the commit is not that of the other processes")
        self._check_resumable(checkpoint, count)
        self._check_shapes(checkpoint, self._tiled, shapes_of(self._others.fields))
        self._whole(to_resume=True, empty=True)
        found.append(checkpoint)

    def _fits(self, own: Checkpoint, count: int) -> bool:
        """Whether the records of the commit are to be those that there are now, by rank and rows.

        :param count: of ranks that made it
        """
        rows = self._rows()
        if own.rows is not None and len(own.rows) != len(rows):  # another model
            return True
        if count != self._rank[1] and any(of_one is not None for of_one in rows):
            return False
        if self._ranks is None and world()[1] > 1:  # each for itself
            return True
        return own.rows is None or own.rows == rows

    def _check_shapes(self, checkpoint: Checkpoint, tiled: Tiled,
                      there: Mapping[str, Mapping[str, Any]]) -> None:
        """:raises SpillwayError: EUCLEAN the commit has something else for a parameter"""
        reason = self._difference(checkpoint, tiled, there)
        if reason is None:
            return
        if checkpoint.rows is None and checkpoint.rank[1] > 1:
            reason += (". An earlier version made it, which did not note which rows a rank has: "
                       f"resume on {checkpoint.rank[1]} ranks, and commit")
        raise SpillwayError(errno.EUCLEAN, "the commit cannot be resumed here: "
                            f"{reason}. It is unchanged")

    def _difference(self, checkpoint: Checkpoint, tiled: Tiled,
                    there: Mapping[str, Mapping[str, Any]]) -> Optional[str]:
        if checkpoint.names != self._names:
            return "its parameters have other names, or are in other groups"
        params, names = self._params(), self._all_names()
        for name, rows in zip(names, self._rows()):
            if rows == "other":
                return (f"{name} is sharded otherwise than by its first dimension: resume on the "
                        "ranks of the commit")
        for tile in tiled.records.layout.tiles:
            for piece in tile.pieces:
                name, param = names[piece.parameter], params[piece.parameter]
                wanted = {field.name: (param.dtype if field.name == MASTER else field.dtype,
                                       tuple(param.shape if field.shape is None else field.shape))
                          for field in tile.fields}
                found = dict(there.get(name, {}))
                if MASTER in wanted and MASTER in found:
                    found.pop("parameter", None)
                elif MASTER not in wanted:
                    wanted["parameter"] = param.dtype, tuple(param.shape)
                if wanted != found:
                    return (f"of {name} it has {_say_fields(found)}, and here it has "
                            f"{_say_fields(wanted)}")
        return None

    def _close_others(self) -> None:
        if self._others is not None:
            self._others.close()
            self._others = None

    def _restore(self, found: List[Checkpoint], random: bool) -> Optional[Resumed]:
        if not found:
            return None
        checkpoint, = found
        tiled = self._whole(to_resume=True)
        if self._others is not None:
            with contextlib.closing(self._others.reading(self._wanted(tiled),
                                                         self._buffer_bytes)) as reading:
                tiled.refill(checkpoint.entries, reading)
        else:
            for number, name in self._objects.items():
                self._values[number]  # what is on a device is there no more
                place = self._place_to_commit(number)
                place.owner.take_up(place, tiled.records.object(name))
                if number in self._stand_ins:  # the parameter itself stays in memory
                    with torch.no_grad():
                        local_of(self._params()[number]).copy_(self._stand_ins[number])
            tiled.restore(checkpoint.entries)
        self._values.refresh()
        for group, options in zip(self.param_groups, checkpoint.groups):
            group.update(options)
        self.steps = checkpoint.step
        if random and self._own is not None:
            set_random_state(self._own.random)
        elif random:
            _log.info("the commit has no rank %d: random states are as they were", self._rank[0])
        tiled.records.resumable, self._now.resumed = False, True
        return Resumed(checkpoint.step, checkpoint.extra)

    @property
    def _buffer_bytes(self) -> int:
        """Of each of two, through which comes what other ranks have: a quarter of a tile."""
        assert self._tiled is not None
        return max(4096, self._tiled.records.layout.record_bytes_max // 4)

    def _wanted(self, tiled: Tiled) -> Iterator[Tuple[str, str, int, int]]:
        """What refill() takes, of whole parameters."""
        names, all_rows = list(itertools.chain.from_iterable(self._names)), self._rows()
        params = self._params()
        for field, piece in tiled.order_of_refill():
            rows = all_rows[piece.parameter]
            before = 0 if rows is None else rows[0] * math.prod(params[piece.parameter].shape[1:])
            yield field, names[piece.parameter], before + piece.start, before + piece.stop

    @property
    def _rank(self) -> Tuple[int, int]:
        """Which rank this is, of how many."""
        return world() if self._ranks is None else (self._ranks.rank, self._ranks.count)

    def _rows(self) -> List[Any]:
        return [rows_of(param) for param in self._params()]

    @property
    def _class_name(self) -> str:
        """Of all groups, if they have not the same."""
        names = [f"{cls.__module__}.{cls.__qualname__}" for cls, _ in self._classes]
        return names[0] if len(set(names)) == 1 else ", ".join(names)

    def _check_resumable(self, checkpoint: Checkpoint, count: int) -> None:
        """
        :param count: of ranks that made it
        """
        reason = None
        if checkpoint.optimizer != self._class_name:
            reason = f"it is of {checkpoint.optimizer}, and this is {self._class_name}"
        elif len(checkpoint.groups) != len(self.param_groups):
            reason = (f"it has {len(checkpoint.groups)} groups of parameters, and this "
                      f"{len(self.param_groups)}")
        elif len(checkpoint.entries) != len(self._params()):
            reason = (f"it has {len(checkpoint.entries)} parameters, and this "
                      f"{len(self._params())}")
        elif world()[1] > 1 and checkpoint.rank not in (world(), (self._rank[0] % count, count)):
            reason = ("it is of rank {} of {}, and this is rank {} of {}: give each process the "
                      "partition that it had".format(*checkpoint.rank, *world()))
        if reason is not None:
            raise SpillwayError(errno.EUCLEAN, "the store has a commit of another optimizer: "
                                f"{reason}. It is unchanged")

    def stats(self) -> StateStats:
        """Counters of records, since the optimizer was made."""
        assert self._tiled is not None
        return self._tiled.records.state.stats()

    def gradient_stats(self) -> GradientStats:
        """Counters of gradients that in_backward= or gradients= moves from a device to the host."""
        assert self._departures is not None
        return self._departures.stats()

    def close(self) -> None:
        """Give the memory of records back; also when the store closes. What was changed since the
        last commit is gone."""
        self._close()

    def _close(self) -> None:
        self._remove_hooks()
        if self._departures is not None:
            self._departures.close()
        if self._interleaved is not None:
            self._interleaved.close()
        if self._tiled is not None:
            self._tiled.records.close()

    def _stepped_in(self, dtype: torch.dtype) -> torch.dtype:
        """The type that the arithmetic of a parameter is in."""
        return torch.float32 if dtype in _REDUCED and self._masters else dtype

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """A GradScaler asks for it before it does anything.

        :raises RuntimeError: it comes too late
        """
        if self._in_backward:
            raise RuntimeError(SCALED)
        return False


def _departures_of(params: Sequence[Tensor], tiles: Sequence[Tile]) -> Departures:
    """How gradients leave a device: of parameters on drives at most a scope is there besides the
    one that is computed. The host has room for two, or for two tiles with the gradients that
    come next."""
    largest = max((local_of(param).numel() * param.element_size() for param in params
                   if param.device.type != "cpu"), default=0)
    tile = max((tile.count * item_bytes(tile.dtype) for tile in tiles), default=0)
    scope = max((param._spillway_place.owner.limit_bytes // 2  # type: ignore[attr-defined]
                 for param in params if is_on_device(param)), default=tile)
    device_bytes = max(scope, largest)
    return Departures(device_bytes, 2 * max(device_bytes, tile + largest))


def _shared_in(addresses: Sequence[int], params: Sequence[Tensor]) -> List[Tuple[int, int]]:
    """Parameters that have elements in common, of those that have an address."""
    return list(pairs_in_same_memory([local_of(param) if address else None
                                      for address, param in zip(addresses, params)]))


def _kinds_of(params: Sequence[Tensor]) -> List[Tuple[torch.dtype, Tuple[int, ...]]]:
    """The type and shape of each."""
    return [(param.dtype, tuple(param.shape)) for param in params]


def _compare(classes: Sequence[OfGroup], groups: Sequence[Options], device: torch.device) -> None:
    """Say whether the numbers depend on which tiles a device steps."""
    types: Dict[str, Dict[str, bool]] = {}
    for (optimizer_class, options), group in zip(classes, groups):
        of_class = types.setdefault(optimizer_class.__name__, {})
        for dtype in {torch.float32 if param.dtype in _REDUCED else param.dtype
                      for param in group["params"]}:
            is_same = is_same_on(device, optimizer_class, options_of(group), options, dtype)
            of_class[name_of(dtype)] = of_class.get(name_of(dtype), True) and is_same
    for name, of_class in types.items():
        different = sorted(dtype for dtype, is_same in of_class.items() if not is_same)
        if different:
            _log.info("%s in %s comes to other bits on %s than on the host: numbers depend on "
                      "which tiles are stepped there", name, ", ".join(different), device.type)
        else:
            _log.info("%s comes to the same bits on %s as on the host, as far as was tried", name,
                      device.type)


def _check_class(name: str, value: Any) -> None:
    """:raises TypeError: it is not a class of optimizers"""
    if (not (isinstance(value, type) and issubclass(value, torch.optim.Optimizer))
            or issubclass(value, Optimizer)):
        raise TypeError(f"{name} must be a class like torch.optim.AdamW, not {value!r}")


def _ranks_with(store: Store, process_group: Group) -> Optional[Ranks]:
    """:raises ValueError: not a group; or they have opened commits that may differ"""
    ranks = ranks_of(process_group)
    if ranks is not None and not store.commit_chosen:
        raise ValueError(
            "several processes have to resume the same commit, and opening the newest of one "
            "discards the one before: open the store with "
            "commit=spillway.torch.newest_of_all(). Where each process is to commit for "
            "itself, give process_group=None")
    return ranks


def _check_given(store: Any, commit_extra: Any, masters: Any, copies: Any) -> None:
    """:raises TypeError, ValueError: one is something else"""
    if not hasattr(store, "arena_bytes"):
        raise TypeError(f"store must be an open spillway.Store, not {store!r}")
    if commit_extra is not None and not callable(commit_extra):
        raise TypeError("commit_extra must be a function that returns what goes with a commit, not "
                        f"{commit_extra!r}")
    if type(masters) is not bool and not (type(masters) is str and masters == "compact"):
        raise TypeError(f'masters must be True, False or "compact", not {masters!r}')
    if copies not in (1, 2) or type(copies) is not int:
        raise ValueError(f"copies must be 1 or 2, not {copies!r}")


def _check_flag(name: str, value: Any) -> None:
    """Any word would count as True.

    :raises TypeError: it is not a bool
    """
    if type(value) is not bool:
        raise TypeError(f"{name} must be True or False, not {value!r}")


def _count(name: str, value: Any, bits: int, of: str) -> Optional[int]:
    """A number of something, at least 1; None where none is given.

    :raises TypeError: it is not a whole number
    :raises ValueError: it is too small or too large
    """
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a number of {of}s, not {value!r}")
    count = library.number(name, value, bits)
    if count == 0:
        raise ValueError(f"{name} must be at least 1 {of}")
    return count


def _check_ways(in_backward: Reducing, gradients: Reducing, interleave: Any,
                masters: Union[bool, str]) -> None:
    """:raises ValueError: two of them do not go together, or interleave is neither "measured" nor a
    number of tiles"""
    if in_backward and gradients:
        raise ValueError("in_backward steps parameters at once and frees their gradients, "
                         "which gradients would keep on drives: leave one of them out")
    if interleave is None:
        return
    if in_backward or gradients:
        raise ValueError("interleave is for gradients that are on the device when step() is "
                         "called, where in_backward and gradients have none: leave it out")
    if masters == "compact":
        raise ValueError('masters="compact" has the host put masters together for each step, and '
                         "with interleave a device steps some: give masters=True, or leave "
                         "interleave out")
    if interleave == "measured":
        return
    if not isinstance(interleave, int) or isinstance(interleave, bool) or interleave < 2:
        raise ValueError('interleave must be "measured", or of how many tiles one is stepped on '
                         f"the device, at least 2, not {interleave!r}")


def _check_options(options: Dict[str, Any], where: str) -> None:
    """:raises ValueError: other arithmetic than that of loops is wanted"""
    for name in _OTHER_ARITHMETIC if isinstance(options, dict) else ():
        if options.get(name):
            raise ValueError(f"{where}: {name}={options[name]!r} is other arithmetic than that of "
                             "loops over single tensors, which is what runs on records: leave it "
                             "out")


def _without_names(group: Dict[str, Any]) -> Tuple[Dict[str, Any], Optional[List[str]]]:
    """A group, and the names of its parameters if they have any, for a PyTorch that takes none."""
    if not isinstance(group, dict) or isinstance(group["params"], (Tensor, set)):
        return group, None
    params: Sequence[Any] = list(group["params"])
    group["params"] = params
    if _TAKES_NAMES or not params or not all(isinstance(param, tuple) for param in params):
        return group, None
    group["params"] = [param for _, param in params]
    return group, [name for name, _ in params]


def _pattern(value: Any) -> Any:
    """Of options, what may decide which fields a class keeps: not how large a number is."""
    if isinstance(value, dict):
        return tuple((name, _pattern(value[name])) for name in sorted(value))
    if isinstance(value, (tuple, list)):
        return tuple(map(_pattern, value))
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        return type(value).__name__, bool(value)
    return type(value).__name__
