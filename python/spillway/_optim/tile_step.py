# SPDX-License-Identifier: MIT
# spillway/_optim/tile_step.py - one step of an optimizer class on the pieces of a tile
"""The arithmetic is the class's own, in its loops over single tensors. Here it is given runs: flat
tensors that are views of a record, and of parameters and gradients where these lie flat in the
same memory, the host's or a device's; else copies.

Invariants:
A1  pieces are in one run only if they are adjacent and what their parameters have beside fields is
    equal: then a step of the run is a step of each
A2  no entry is changed once it is made: a step makes another, so the pieces of a parameter in other
    tiles still find the one before
"""
from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import logging
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._core.tensors import name_of
from .._values.nested import flat, nested
from .inner import (Act, Options, Refused, changes_in, give, is_plain, make, on_host, one_of,
                    options_of, own_of, take_step)
from .tiles import Field, Piece, Tile

_log = logging.getLogger("spillway")

MASTER = "master"
HOST = torch.device("cpu")
# Below this many elements a call costs more than the copy that makes one run of several pieces.
_DIRECT_COUNT = 16384
# This many steps may change nothing before that is said: a warm-up may begin with a rate of 0.
_STEPS_UNCHANGED = 2


class _OnDrives:
    def __repr__(self) -> str:
        return "on drives"


# Stands in an entry for what is in the records.
ON_DRIVES = _OnDrives()
# What a parameter's state is beside the elements of its fields: name to number, or to ON_DRIVES.
# None: it has no state yet.
Entry = Optional[Dict[str, Any]]
# A class, and what all of its optimizers are made with.
OfGroup = Tuple[Type[Optimizer], Options]


def memory_at(address: int, len_bytes: int) -> Tensor:
    """Memory as a tensor of bytes, which does not own it."""
    memory = (ctypes.c_char * len_bytes).from_address(address)
    return torch.frombuffer(memory, dtype=torch.uint8)  # type: ignore[call-overload]


def views_of(tile: Tile, memory: Tensor) -> Dict[str, Tensor]:
    """The fields of a record, flat; of compact masters the bytes."""
    views = {}
    for field, offset in zip(tile.fields, tile.offsets):
        length = field.len_bytes(tile.count, len(tile.pieces))
        view = memory[offset:offset + length]
        views[field.name] = view if field.compact else view.view(field.dtype)
    return views


def local_of(tensor: Any) -> Any:
    """Of a DTensor the shard that is here, in the same memory; else the tensor."""
    if not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def gradient_type(param: Any) -> torch.dtype:
    """PyTorch 2.10 and later let gradients be of another type than their parameter."""
    return getattr(param, "grad_dtype", None) or param.dtype


def flat_of(tensor: Tensor, device: torch.device = HOST) -> Optional[Tensor]:
    """Its elements in order as a flat view; None if they do not lie so in the memory of a
    device."""
    tensor = local_of(tensor)
    if tensor.device != device or not tensor.is_contiguous():
        return None
    return tensor.detach().view(-1)


def piece_of(tensor: Tensor, piece: Piece) -> Tensor:
    """Elements of a tensor, flat: in its memory where they lie so there, else in a copy."""
    return local_of(tensor).detach().reshape(-1)[piece.start:piece.stop]


def read_piece(tensor: Tensor, piece: Piece, into: Tensor) -> None:
    """Copy elements of a tensor, wherever it is, to flat memory of any type."""
    into.copy_(piece_of(tensor, piece))


def write_piece(tensor: Tensor, piece: Piece, source: Tensor) -> None:
    """The other way."""
    tensor = local_of(tensor)
    if tensor.is_contiguous():
        tensor.detach().view(-1)[piece.start:piece.stop].copy_(source)
        return
    whole = tensor.detach().reshape(-1)  # a copy
    whole[piece.start:piece.stop].copy_(source)
    tensor.detach().copy_(whole.view(tensor.shape))


def part_of(view: Tensor, field: Field, piece: Piece) -> Tensor:
    """Of a record's field what is of a piece, flat."""
    return view if field.shape is not None else view[piece.offset:piece.end]


class Scratch:
    """Memory for copies, as long as the longest there has been."""

    def __init__(self, device: torch.device = HOST) -> None:
        self._device = device
        self._memory: Dict[Tuple[str, torch.dtype], Tensor] = {}

    def of(self, purpose: str, dtype: torch.dtype, count: int) -> Tensor:
        memory = self._memory.get((purpose, dtype))
        if memory is None or memory.numel() < count:
            memory = torch.empty(count, dtype=dtype, device=self._device)
            self._memory[purpose, dtype] = memory
        return memory[:count]


@dataclasses.dataclass
class _Run:
    """Adjacent pieces that are stepped as one; or the only one, in the ``shape`` of its parameter,
    which is stepped as a whole."""

    pieces: List[Piece]
    grads: List[Optional[Tensor]]  # of each, flat; None: of all
    entry: Entry
    flat: Optional[Tensor]  # the parameter, where its and the gradient's own memory are used
    shape: Optional[Tuple[int, ...]] = None
    param: Tensor = dataclasses.field(init=False)

    @property
    def direct(self) -> bool:
        return self.flat is not None

    @property
    def begin(self) -> int:
        return self.pieces[0].offset

    @property
    def end(self) -> int:
        return self.pieces[-1].end

    @property
    def count(self) -> int:
        return self.end - self.begin

    def of(self, view: Tensor, field: Optional[Field] = None) -> Tensor:
        """Its part of a field, in the shape that the class gets."""
        if field is not None and field.shape is not None:
            return view.view(field.shape)
        return self.shaped(view[self.begin:self.end])

    def shaped(self, flat: Tensor) -> Tensor:
        return flat if self.shape is None else flat.view(self.shape)


def are_equal(one: Entry, other: Entry) -> bool:
    """Values and types; in this order."""
    if one is other:
        return True
    if one is None or other is None or list(one) != list(other):
        return False
    for name, value in one.items():
        if isinstance(value, Tensor):
            if not isinstance(other[name], Tensor) or not torch.equal(value, other[name]):
                return False
        elif value != other[name] or type(value) is not type(other[name]):
            return False
    return True


class Unchanged:
    """Warns once of steps that change no parameter: of no model, a rate of 0, or gradients of 0, of
    which PyTorch says nothing. The first steps of an optimizer are looked at until one has changed
    an element: then nothing is compared any more.

    ``looking``: no step has changed anything so far, and nothing was said.
    """

    def __init__(self) -> None:
        self.looking = True
        self._steps = 0
        self._stepped = False
        self._nonzero = False

    @contextlib.contextmanager
    def look(self, params: Sequence[Tensor]) -> Iterator[None]:
        """Around a step of these, which have gradients."""
        if not self.looking:
            yield
            return
        nonzero = any(param.grad is not None and bool(param.grad.any()) for param in params)
        before = [param.clone() for param in params]
        yield
        self._stepped = True
        self._nonzero = self._nonzero or nonzero
        if not all(map(torch.equal, params, before)):
            self.looking = False

    def end_step(self, groups: Sequence[Dict[str, Any]], number: int) -> None:
        """:param number: of the step that ends"""
        if not self.looking:
            return
        self._steps += 1
        if self._steps == _STEPS_UNCHANGED:
            self.looking = False
            _log.warning("steps %d to %d changed no parameter: %s",
                         number - _STEPS_UNCHANGED + 1, number, self._why(groups))

    def _why(self, groups: Sequence[Dict[str, Any]]) -> str:
        params = [param for group in groups for param in group["params"]]
        of_it = f"none of the optimizer's {len(params)} parameters"
        if not self._stepped and not any(param.requires_grad for param in params):
            return (f"{of_it} requires a gradient. Give it those of the model that is trained, and "
                    "not copies; if they are frozen for now, this is as it should be")
        if not self._stepped:
            return (f"{of_it} has got a gradient. Are they those of the model that is trained? "
                    "Copies, and what was replaced since the optimizer was made, get none")
        rates = [group.get("lr") for group in groups]
        if all(rate is not None and float(rate) == 0 for rate in rates):
            return ("lr is 0 in all groups. Was it, or the scheduler that sets it, meant to be? If "
                    "this is a long warm-up it is as it should be")
        if not self._nonzero:
            return ("all gradients are 0. Does the loss depend on these parameters, and is it not "
                    "multiplied by 0?")
        words = ", ".join(str(rate) for rate in rates[:4])
        return (f"what the steps add is too small for the parameters' type: lr is {words}. Give a "
                "larger one, or parameters of more bits")


class Counted:
    """What classes make of the options of their groups as they step: many count their steps there.
    Each tile of a step begins with the same options, and makes the same of them."""

    def __init__(self) -> None:
        self._of_step: Dict[int, Options] = {}

    def note(self, tile: Tile, before: Options, after: Options) -> None:
        """The options of a tile's group, as a step of it has changed them.

        :raises Refused: otherwise than in another tile; or not to numbers
        """
        changes = changes_in(before, after)
        one_of([self._of_step.setdefault(tile.group, changes), changes])

    def end_step(self) -> Dict[int, Options]:
        """All tiles have been stepped. Return: what has changed, by group; none of those without a
        gradient."""
        of_step, self._of_step = self._of_step, {}
        return of_step


class TileStepper:
    """Steps of tiles.

    :param classes: of each group
    :param params: all parameters, as pieces number them
    :param device: whose memory the fields are in that step() is given
    :param unchanged: is told of every step
    :param counted: as well
    """

    def __init__(self, classes: Sequence[OfGroup], params: Sequence[Tensor],
                 device: torch.device = HOST, unchanged: Optional[Unchanged] = None,
                 counted: Optional[Counted] = None) -> None:
        self._unchanged = unchanged or Unchanged()
        self._counted = counted or Counted()
        self._classes = classes
        self._params = params
        self._device = device
        self._scratch = Scratch(device)
        # Of each class, used again where no parameter is new.
        self._kept: Dict[Type[Optimizer], Optimizer] = {}

    def step(self, tile: Tile, views: Dict[str, Tensor], group: Options, entries: Sequence[Entry],
             pieces: Sequence[Piece], gradient: Callable[[Piece], Optional[Tensor]],
             act: Act = take_step) -> Dict[int, Entry]:
        """One step of the pieces, whose parameters have gradients.

        :param views: the tile's fields; a master must have been filled in
        :param group: the options of the tile's group, as they are now
        :param entries: of all parameters, before this step
        :param gradient: of a piece, flat, of any type and anywhere
        :param act: what is to be done, where that is not a step: without gradients
        :return: entries after it, by number of the parameter
        """
        runs = self._runs(tile, entries, pieces, gradient)
        grads = self._scratch.of("grad", self._dtype(tile), sum(
            run.count for run in runs if not run.direct))
        params = self._scratch.of("param", tile.dtype, 0 if MASTER in views else len(grads))
        used = 0
        for run in runs:
            if run.direct:
                self._point(run)
            else:
                end = used + run.count
                self._gather(run, views, grads[used:end], params[used:end])
                used = end
        after = self._done(tile, views, group, runs, act)
        for run in runs:
            if not run.direct:
                self._scatter(run)
            run.param.grad = None
        return after

    def _dtype(self, tile: Tile) -> torch.dtype:
        """That a tile's arithmetic is in."""
        return next((field.dtype for field in tile.fields if field.name == MASTER), tile.dtype)

    def _runs(self, tile: Tile, entries: Sequence[Entry], pieces: Sequence[Piece],
              gradient: Callable[[Piece], Optional[Tensor]]) -> List[_Run]:
        has_master = any(field.name == MASTER for field in tile.fields)
        runs: List[_Run] = []
        for piece in pieces:
            entry = entries[piece.parameter]
            param = self._params[piece.parameter]
            grad = gradient(piece)
            flat = None
            if (not has_master and (piece.stop - piece.start >= _DIRECT_COUNT or tile.shape)
                    and (grad is None or (grad.device == self._device
                                          and grad.dtype == param.dtype))):
                flat = flat_of(param, self._device)
            last = runs[-1] if runs else None
            if (last is not None and flat is None and not last.direct and last.end == piece.offset
                    and are_equal(last.entry, entry)):
                last.pieces.append(piece)  # A1
                last.grads.append(grad)
            else:
                runs.append(_Run([piece], [grad], entry, flat, tile.shape))
        return runs

    def _point(self, run: _Run) -> None:
        piece, = run.pieces
        assert run.flat is not None
        run.param = run.shaped(run.flat[piece.start:piece.stop])
        grad, = run.grads
        run.param.grad = None if grad is None else run.shaped(grad)

    def _gather(self, run: _Run, views: Dict[str, Tensor], grad: Tensor, param: Tensor) -> None:
        for piece, found in zip(run.pieces, run.grads):
            at = slice(piece.offset - run.begin, piece.end - run.begin)
            if found is not None:
                grad[at].copy_(found)
            if MASTER not in views:
                read_piece(self._params[piece.parameter], piece, param[at])
        run.param = run.of(views[MASTER]) if MASTER in views else run.shaped(param)
        run.param.grad = None if run.grads[0] is None else run.shaped(grad)

    def _scatter(self, run: _Run) -> None:
        for piece in run.pieces:
            at = slice(piece.offset - run.begin, piece.end - run.begin)
            write_piece(self._params[piece.parameter], piece, run.param.view(-1)[at])

    def _done(self, tile: Tile, views: Dict[str, Tensor], group: Options, runs: List[_Run],
              act: Act) -> Dict[int, Entry]:
        params = [run.param for run in runs]
        optimizer_class, options = self._classes[tile.group]
        inner = self._kept.get(optimizer_class)
        if inner is None or any(run.entry is None for run in runs):
            # An optimizer may fill its state when it is constructed, as Adagrad does: right for new
            # parameters alone.
            inner = make(optimizer_class, params, group, options)
        else:
            inner.state.clear()
        give(inner, params, group)
        fields = {field.name: field for field in tile.fields}
        for run in runs:
            if run.entry is not None:
                inner.state[run.param] = nested({
                    name: run.of(views[name], fields[name]) if value is ON_DRIVES else
                    value.clone() if isinstance(value, Tensor) else value
                    for name, value in run.entry.items()
                })
        homes = [param.detach() for param in params]
        before = own_of(inner.param_groups[0])
        looking = self._unchanged.look(params) if act is take_step else contextlib.nullcontext()
        with looking, on_host():
            act(inner)
            for param, home in zip(params, homes):
                if param.data_ptr() != home.data_ptr():  # the class has set param.data
                    home.copy_(param)
        self._note(tile, before, inner)
        after: Dict[int, Entry] = {}
        for run in runs:
            entry = _taken_over(optimizer_class, fields, run, views,
                                flat(inner.state.get(run.param, {})))
            after.update({piece.parameter: entry for piece in run.pieces})
        inner.state.clear()  # its views are of memory that is released
        inner.param_groups = []
        self._kept[optimizer_class] = inner
        return after

    def _note(self, tile: Tile, before: Options, inner: Optimizer) -> None:
        """:raises RuntimeError: a step has changed its group otherwise than it did when it was
        tried"""
        try:
            self._counted.note(tile, before, options_of(inner.param_groups[0]))
        except Refused as refused:
            name = type(inner).__name__
            raise RuntimeError(
                f"{name} has not stepped as it did when it was tried: {refused}. Return to the "
                f"last commit, and use {name} itself, in memory") from None


def _taken_over(optimizer_class: Type[Optimizer], fields: Dict[str, Field], run: _Run,
                views: Dict[str, Tensor], state: Dict[str, Any]) -> Entry:
    """The state of a run as an entry; fields that the class has replaced go to the record.

    :raises RuntimeError: it has a field that the class did not have when it was probed
    """
    entry: Dict[str, Any] = {}
    for name, value in state.items():
        if name in fields and name != MASTER and isinstance(value, Tensor):
            view = run.of(views[name], fields[name])
            if (value.shape != view.shape or value.dtype != view.dtype
                    or not is_plain(value)):
                raise _not_as_tried(optimizer_class, run, f"{name} of {name_of(value.dtype)} "
                                    f"{tuple(value.shape)}, which was another")
            if value.data_ptr() != view.data_ptr():
                view.copy_(value)
            elif value.stride() != view.stride():
                view.copy_(value.clone())
            entry[name] = ON_DRIVES
        elif isinstance(value, Tensor) and value.dim() > 0:
            raise _not_as_tried(optimizer_class, run, f"{name}, which was not there")
        else:  # what is of no element is the host's
            entry[name] = value.to(HOST) if isinstance(value, Tensor) else value
    return entry


def _not_as_tried(optimizer_class: Type[Optimizer], run: _Run, words: str) -> RuntimeError:
    name = optimizer_class.__name__
    return RuntimeError(
        f"{name} has made for {run.count} elements {words} in the steps that it was tried with. So "
        "its state cannot be on drives: return to the last commit, and use "
        f"{name} itself, in memory")
