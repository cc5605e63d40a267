# SPDX-License-Identifier: MIT
# spillway/_grads/backward.py - in_backward=True: step tiles and free gradients in the backward pass
"""Invariants:
B1  a tile is stepped once between two calls of step(), with the gradients that its parameters have
    from one backward pass
B2  a gradient is freed when all tiles that its parameter lies in have been stepped; that of a
    device leaves it before, and the tiles wait until it is in the host (departures.py)
B3  a tile is stepped once nothing reads its parameters any more; step() itself runs after all reads
B4  step() ends no step whose program has dropped or changed a gradient that was used already
"""
from __future__ import annotations

import logging
import threading
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple

import torch
from torch import Tensor

from .._core.library import SpillwayError
from .._optim.inner import Options
from .._optim.tile_step import Entry, are_equal, gradient_type, local_of, piece_of
from .._optim.tiled import InMemory, Tiled, check_gradient
from .._optim.tiles import Piece, Tile
from .ddp_buckets import Reduced, check_reduced
from .departures import Departure, Departures
from .freed_placeholder import Freed
from .param_readers import Readers

_log = logging.getLogger("spillway")

SCALED = ("in_backward=True steps parameters during the backward pass, with gradients that a "
          "GradScaler has not unscaled yet: make the optimizer without it, or train in bfloat16")
_CHANGED = ("the options of group {} have changed since the backward pass, in which "
            "in_backward=True has stepped parameters with those before: change them before it. "
            "With those before, step() finishes this step")
_TAKEN = ("the gradient of {0} was {1} since the backward pass, in which in_backward=True has "
          "stepped {0} with it: skipping or changing an update comes too late then. Leave "
          "in_backward out, and go back to the last commit. {2}")
_BACK = "To keep the update, call step() once more: it ends the step"
_AGAIN = ("a second backward pass before step(): with in_backward=True the first has stepped "
          "parameters already. Call step() after each, or leave it out to accumulate gradients. If "
          "an error ended the first, go back to the last commit")


class Departed(InMemory):
    """Gradients as ``grad`` of their parameters, and those that have left a device: then ``grad``
    is a Freed, by which it is known that nothing has replaced or dropped the gradient since. The
    values of parameters that stay on the device come with them.

    :param values: where the values of parameters are, and to be put while a tile is stepped
    """

    def __init__(self, params: Sequence[Tensor], departures: Departures, values: Any) -> None:
        super().__init__(params)
        self.departures = departures
        self._values = values
        # By the number of the parameter; values of parameters with the version that was copied.
        self._gradients_in_host: Dict[int, Tuple[Departure, Freed]] = {}
        self._values_in_host: Dict[int, Tuple[Departure, int]] = {}

    def send(self, number: int) -> None:
        """A gradient that is complete leaves its device, if it is on one; no one waits."""
        param = self._params[number]
        if param.grad is not None and self.departures.takes(param.grad):
            departure = self.departures.begin(param.grad)
            if departure is not None:
                left = departure, Freed(param)
                self._gradients_in_host[number] = left
                param.grad = left[1]
                self._send_value(number, param)

    def length_of(self, number: int) -> int:
        """Bytes in the host's memory of what send() sends."""
        param = self._params[number]
        grad = param.grad
        length = 0 if grad is None else grad.numel() * grad.element_size()
        return length + (param.numel() * param.element_size() if self._sends_value(number) else 0)

    def _sends_value(self, number: int) -> bool:
        return self._values.stays_on_device(number) and self._params[number].is_contiguous()

    def _send_value(self, number: int, param: Any) -> None:
        if not self._sends_value(number):
            return
        value = self.departures.begin(param.detach(), is_kept=True)
        if value is not None:
            self._values_in_host[number] = value, param._version

    def use_values(self, numbers: Iterable[int]) -> None:
        """A tile is stepped with the values that have come, unless they were changed since."""
        for number in numbers:
            value, version = self._values_in_host.get(number, (None, 0))
            if value is not None and self._params[number]._version == version:
                self._values.host_values[number] = value.land()

    def return_values(self, numbers: Iterable[int]) -> None:
        """They are what the tile was stepped to: the device gets them."""
        for number in numbers:
            if number in self._values.host_values:
                value, param = self._values_in_host[number][0], self._params[number]
                self.departures.copy_back(value, param.detach())
                self._values_in_host[number] = value, param._version

    def end_use(self) -> None:
        self._values.host_values.clear()

    def of(self, number: int) -> Optional[Departure]:
        """The gradient of a parameter that has left its device."""
        departure, mark = self._gradients_in_host.get(number, (None, None))
        return departure if mark is not None and self._params[number].grad is mark else None

    def has(self, number: int) -> bool:
        """Whether a parameter has a gradient that was not freed."""
        grad = self._params[number].grad
        return grad is not None and (not isinstance(grad, Freed) or self.of(number) is not None)

    def has_landed(self, number: int) -> bool:
        departure, value = self.of(number), self._values_in_host.get(number)
        return ((departure is None or departure.has_landed())
                and (value is None or value[0].has_landed()))

    def is_sent(self, tile: Tile) -> bool:
        """Whether a gradient of a tile is in the host's memory, or on its way there."""
        return any(self.of(piece.parameter) is not None for piece in tile.pieces)

    def drop(self, number: int) -> None:
        self._gradients_in_host.pop(number, None)
        self._values_in_host.pop(number, None)

    def end_step(self) -> None:
        self._gradients_in_host.clear()
        self._values_in_host.clear()
        self.departures.reap()

    def _piece(self, piece: Piece) -> Tensor:
        departure = self.of(piece.parameter)
        if departure is None:
            return super()._piece(piece)
        return piece_of(departure.land(), piece)


class DuringBackward:
    """Of an optimizer: which gradients are complete, and which tiles have been stepped.

    :param gradients: which the tiles are stepped with
    :param whole: returns the optimizer's state, or raises what is wrong with it
    :param groups: returns the current options of the parameter groups
    :param names: returns those of the parameters
    :param reduced: the source of the gradients; None: autograd
    """

    def __init__(self, params: Sequence[Tensor], gradients: Departed, whole: Callable[[], Tiled],
                 groups: Callable[[], List[Options]], names: Callable[[], Sequence[str]],
                 reduced: Optional[Reduced]) -> None:
        self._params = params
        self._gradients = gradients
        self._whole = whole
        self._groups = groups
        self._names = names
        self._reduced = reduced
        self._lock = threading.Lock()  # autograd has a thread per device
        self._here: Set[int] = set()  # parameters whose gradients are complete
        self._stepped: Set[str] = set()  # tiles
        self._changed: Set[int] = set()  # parameters of which a tile was stepped
        self._freed: Set[int] = set()  # parameters whose gradients were freed
        # What ``grad`` has to be at step(), by parameter, and its version: Freed, or the gradient
        # of a parameter of which some tiles were stepped.
        self._used: Dict[int, Tuple[Tensor, int]] = {}
        self._had: Set[int] = set()  # parameters that the last step has changed
        self._zeros: Set[int] = set()  # and whose gradients were not dropped, but became zeros
        self._waiting: List[Tile] = []  # complete tiles whose parameters are still read
        self._after: Dict[int, Entry] = {}
        self._options: Dict[int, Options] = {}  # options by group that tiles were stepped with
        self._order: Dict[str, Tile] = {}  # tiles in the order in which they were stepped
        self._finished: Set[str] = set()  # tiles that finish() has completed
        self._next_order: Optional[List[Tile]] = None
        self._postponed = False  # a drive failed: step() does the rest
        self._tiles_of: Optional[List[List[Tile]]] = None
        self._handles: List[Any] = []
        self._readers = Readers(params, self._changed.__contains__)
        self._hooked: Set[int] = set()
        self._hook_all()
        if reduced is not None:
            reduced.follow({id(param): number for number, param in enumerate(params)},
                           self._arrived, self._mark)

    def _hook_all(self) -> None:
        """Hook all parameters that require a gradient. Others may require one in a later step."""
        for number, param in enumerate(self._params):
            if param.requires_grad and number not in self._hooked:
                self._hooked.add(number)
                if self._reduced is None:
                    self._handles.append(self._hook(number, param))

    def _hook(self, number: int, param: Any) -> Any:
        # Autograd holds the hook where the garbage collector does not look, so a strong reference
        # in it would keep this object alive for good.
        found = weakref.ref(self)

        def arrived(_: Tensor) -> None:
            here = found()
            if here is not None:
                here._arrived(number)
                here._mark()

        return param.register_post_accumulate_grad_hook(arrived)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._readers.remove()
        if self._reduced is not None:
            self._reduced.unfollow()

    @property
    def under_way(self) -> bool:
        """Whether gradients have arrived since the last step()."""
        return bool(self._here or self._stepped)

    def zero_gradients(self, are_kept: bool) -> None:
        """The gradients of the last step became zeros, or were dropped."""
        with self._lock:
            self._zeros = set(self._had) if are_kept else set()

    def _begin(self) -> Tiled:
        tiled = self._whole()
        if self._tiles_of is None:
            self._tiles_of = [[] for _ in self._params]
            for tile in tiled.records.layout.tiles:
                for piece in tile.pieces:
                    self._tiles_of[piece.parameter].append(tile)
        if not self._here:
            check_reduced("in_backward", self._params, self._reduced)
            tiled.records.begin_pass(self._next_order or tiled.records.layout.tiles[::-1])
        return tiled

    def _arrived(self, number: int) -> None:
        """A gradient is complete. Called by a thread of autograd."""
        with self._lock, torch.no_grad():
            if number in self._here:
                raise RuntimeError(_AGAIN)
            check_gradient(self._params[number])
            tiled = self._begin()
            self._here.add(number)
            grad = self._params[number].grad
            if grad is not None and number in self._zeros:
                grad.add_(0.0)  # as it would be to zeros: -0.0 becomes 0.0
            assert self._tiles_of is not None
            self._waiting += filter(self._is_complete, self._tiles_of[number])
            self._send(number, tiled)
            self._step_waiting(tiled)

    def _send(self, number: int, tiled: Tiled) -> None:
        """A gradient leaves its device. A reducer's buffer is not left to a copy: the reducer
        writes into it again; nor is what a hook may use. If the host has no room, the tile that has
        waited longest is stepped first, which waits for its copies; else copies back to the device
        are waited for."""
        if (self._reduced is not None or self._params[number].grad is None
                or self._readers.waits_for_hook(number)):
            return
        departures = self._gradients.departures
        while departures.lacks(self._gradients.length_of(number)):
            tile = next((tile for tile in self._waiting if self._gradients.is_sent(tile)
                         and not self._is_read(tile)), None)
            if tile is None or self._postponed:
                if departures.wait_for_return():
                    continue
                break
            self._waiting.remove(tile)
            self._step_or_postpone(tiled, tile)
        try:
            self._gradients.send(number)
        finally:
            if number in self._used:  # one of its tiles was among those, and has used what was sent
                self._note_used(number)

    def _is_read(self, tile: Tile) -> bool:
        """Whether something still reads the parameters of a tile (B3)."""
        return any(self._readers.has(piece.parameter) for piece in tile.pieces)

    def _is_complete(self, tile: Tile) -> bool:
        return all(piece.parameter in self._here or piece.parameter not in self._hooked
                   for piece in tile.pieces)

    def _step_waiting(self, tiled: Tiled) -> None:
        """Step the tiles whose parameters nothing reads any more (B3)."""
        waiting, self._waiting = self._waiting, []
        for tile in waiting:
            if self._postponed or self._is_read(tile) or not all(
                    self._gradients.has_landed(piece.parameter) for piece in tile.pieces):
                self._waiting.append(tile)
            else:
                self._step_or_postpone(tiled, tile)

    def _step_or_postpone(self, tiled: Tiled, tile: Tile) -> None:
        pieces = [piece for piece in tile.pieces if piece.parameter in self._hooked]
        numbers = {piece.parameter for piece in pieces}
        try:
            self._gradients.use_values(numbers)
            self._step_tile(tiled, tile, pieces)
            self._return_values(tiled, numbers)
            self._free(tile)
        except SpillwayError as error:
            _log.warning("%s is left to step(), and its gradients stay: %s", tile.name, error)
            self._postponed = True
            self._waiting.append(tile)
        finally:
            self._gradients.end_use()

    def _return_values(self, tiled: Tiled, numbers: Set[int]) -> None:
        try:
            self._gradients.return_values(numbers)
        except BaseException as error:  # the device has values of before the tile's step
            tiled.end_use("a step", error)
            raise

    def _step_tile(self, tiled: Tiled, tile: Tile, pieces: Sequence[Piece],
                   also_done: Optional[Set[str]] = None) -> None:
        """Step a tile, for these of its parameters.
        :param also_done: a set to which the tile's name is added"""
        pieces = [piece for piece in pieces if self._gradients.has(piece.parameter)]
        options = self._groups()[tile.group]
        try:
            if pieces:
                self._after.update(tiled.step_tile(tile, options, pieces))
                self._options[tile.group] = _copied(options)
                self._order.setdefault(tile.name, tile)
                self._changed.update(piece.parameter for piece in pieces)
            self._stepped.add(tile.name)
            if also_done is not None:
                also_done.add(tile.name)
        except SpillwayError:
            raise
        except BaseException as error:  # the tile may be stepped, and not noted as such
            tiled.end_use("a step", error)
            raise

    def _free(self, tile: Tile) -> None:
        """Free the gradients whose parameters have been stepped in all their tiles (B2)."""
        assert self._tiles_of is not None
        for number in {piece.parameter for piece in tile.pieces} & self._changed:
            if all(other.name in self._stepped for other in self._tiles_of[number]):
                self._params[number].grad = None
                self._gradients.drop(number)
                self._freed.add(number)
                self._used.pop(number, None)
            else:
                self._note_used(number)

    def _note_used(self, number: int) -> None:
        grad = self._params[number].grad
        if grad is not None:
            self._used[number] = grad, grad._version

    def _mark(self) -> None:
        """Put placeholders for freed gradients: until step() their use raises an error."""
        with self._lock:
            for number in self._freed:
                self._params[number].grad = Freed(self._params[number])
                self._note_used(number)
            self._freed.clear()

    def _unmark(self) -> None:
        for number in self._here:
            if isinstance(self._params[number].grad, Freed) and not self._gradients.has(number):
                self._params[number].grad = None

    def _check_used(self) -> None:
        """What was dropped or replaced is put back, so that the next call ends the step (B4).

        :raises RuntimeError: it is not what was used in the backward pass
        """
        words = None
        for number, (used, version) in self._used.items():
            grad = self._params[number].grad
            if used._version == version and (grad is used or _has_bits_of(grad, used)):
                continue
            how = "dropped" if grad is None else "replaced" if grad is not used else "changed"
            self._params[number].grad = used
            words = words or _TAKEN.format(self._names()[number], how,
                                           "" if how == "changed" else _BACK)
        if words is not None:
            raise RuntimeError(words.rstrip())
        self._used.clear()  # a call that goes on after an error finds no placeholders

    def finish(self) -> None:
        """Do the rest of the step: tiles with a parameter that got no gradient, or that was read
        until the end.

        :raises SpillwayError: a drive failed; the same call again finishes the step
        :raises RuntimeError: options have changed since tiles were stepped with them, or gradients
        """
        with self._lock:
            tiled = self._begin()
            for group, options in enumerate(self._groups()):
                if not are_equal(self._options.get(group, options), options):
                    raise RuntimeError(_CHANGED.format(group))
            self._check_used()
            self._unmark()
            for number in self._zeros - self._here:
                if self._params[number].grad is None and number not in self._changed:
                    param = self._params[number]
                    param.grad = torch.zeros_like(param, dtype=gradient_type(param))
            for param in self._params:
                check_gradient(param)
            for tile in tiled.records.layout.tiles[::-1]:
                # A stepped tile may have parameters that require a gradient only since then.
                if tile.name in self._finished:
                    continue
                pieces = [piece for piece in tile.pieces if tile.name not in self._stepped
                          or piece.parameter not in self._hooked]
                self._step_tile(tiled, tile, pieces, self._finished)
            for number in self._changed:
                self._params[number].grad = None
            self._had, self._zeros = set(self._changed), set()
            self._gradients.end_step()
            tiled.end_pass(self._after)
            self._next_order = [*self._order.values(),
                                *(tile for tile in tiled.records.layout.tiles
                                  if tile.name not in self._order)]
            of_step: Any
            for of_step in (self._here, self._stepped, self._changed, self._freed, self._after,
                            self._options, self._finished, self._order):
                of_step.clear()
            self._waiting = []
            self._postponed = False
            self._hook_all()
            self._readers.begin_step()
            # This prefetches the first records during the next forward pass.
            tiled.records.begin_pass(self._next_order)


def _has_bits_of(grad: Optional[Tensor], used: Tensor) -> bool:
    """A reducer copies gradients into new buckets."""
    if grad is None or isinstance(grad, Freed) or isinstance(used, Freed):
        return False
    one, other = local_of(grad), local_of(used)
    return (one.shape == other.shape and one.dtype == other.dtype
            and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8)))


def _copied(options: Options) -> Options:
    """Copy the options: a learning rate may be a tensor, which its owner changes in place."""
    return {name: value.clone() if isinstance(value, Tensor) else value
            for name, value in options.items()}
