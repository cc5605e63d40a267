# SPDX-License-Identifier: MIT
# spillway/_recompute/operations.py - single operations that are recomputed in the backward pass
"""A tensor that a cheap operation made of other saved tensors (a norm, an activation function, a
product) is discarded when it is saved and computed once more when it is used. No module is run
again, and no mode sees the step: which places of the step can be recomputed is learnt in one step
(watch.py), where each is tried and compared bit for bit.

From then on a save is known by its place, the number of saves before it. A few rows of it are
computed first and compared: if they differ, the step is another one, and keeps what it saves. A
device compares them meanwhile (comparisons.py), and in the first steps the whole result: an
operation whose bytes differ from one time to the next is left out. When a result is recomputed its
bytes are compared by checksum, as those of recomputed scopes are."""
from __future__ import annotations

import collections
import contextlib
import errno
import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Set, Tuple

import torch
from torch import Tensor, nn

from .._core.hooks_loader import Stop, hooks
from .._core.library import SpillwayError, bytes_text
from .._core.tensors import WeakStorage
from .._core.torch_compat import (has_compiled, in_backward, is_compiled, storage_of,
                                  watcher_now)
from .._offload.trial_saves import Held
from .._params.offloaded_param import held
from .comparisons import ROWS, Comparisons, compared, limit_of
from .expressions import Leaf, Rows, computed
from .foreign_hooks import gradients_leave_early
from .watch import Kind, Recipe, Watch, kind_of

if TYPE_CHECKING:
    from .._gpu.recompute_check import Verdict, Verdicts
    from .._offload.session import Session
    from .scopes import Recomputer

_log = logging.getLogger("spillway")

SLACK = 0.02  # of a step: the most that its operations may take, as the planner allows scopes
# For a byte, of both checksums. Measured: XXH3 reads 8 to 12 GB/s of memory.
_CHECKED_NS = 2 / 8.0
_WHOLE_STEPS = 2  # in which devices compare all of a result before it is discarded
_WATCHES_MAX = 8  # steps that are watched; between two that find nothing in common, twice as many


def _settings() -> Tuple[int, bool]:
    """What the last bits of a result may depend on: threads, and whether oneDNN is used."""
    return torch.get_num_threads(), torch._C._get_mkldnn_enabled()


def _can_compare(session: "Session", tensor: Tensor) -> bool:
    """Else it is kept on its device."""
    device = session.device
    return tensor.is_cpu or (
        device is not None and device.has(tensor) and not device.capturing())


@contextlib.contextmanager
def _set(settings: Tuple[int, bool]) -> Iterator[None]:
    before = _settings()
    if before == settings:
        yield
        return
    try:
        torch.set_num_threads(settings[0])
        torch._C._set_mkldnn_enabled(settings[1])
        yield
    finally:
        torch.set_num_threads(before[0])
        torch._C._set_mkldnn_enabled(before[1])


class OperationFrame(hooks.Frame):  # type: ignore[misc]
    """A result that was discarded, and what it is computed from."""

    __slots__ = ("operations", "session", "recipe", "packed", "views", "settings", "held",
                 "_verdict", "__weakref__")

    def __init__(self, operations: "Operations", session: "Session", recipe: Recipe,
                 packed: Dict[int, Any]) -> None:
        self.operations = operations
        self.session = session
        self.recipe = recipe
        self.packed = packed
        self.views: List[Tuple[Any, Any, int]] = []  # of each save
        self.settings = _settings()
        self.held: Optional[Tensor] = None  # the result, until it is known to be recomputed
        self._verdict: Optional["Verdict"] = None

    def verdict(self) -> "Verdict":
        """For the current recomputation."""
        if self._verdict is None:
            self._verdict = self.operations.verdict_on(self.recipe, self.session)
        return self._verdict

    def compute(self) -> None:
        """Called when the first of its saves is used.

        :raises SpillwayError: ESTALE the bytes differ; or a drive failed
        """
        with self.operations.computing:
            if not self.begin():
                return
            self._verdict = None
            try:
                result = self._result()
                with contextlib.suppress(Stop):
                    for size, stride, offset in self.views:
                        self.capture(result.as_strided(size, stride, offset))
            except SpillwayError as error:
                if error.errno != errno.ESTALE:
                    raise
                raise self.operations.mismatched(self.recipe, str(error)) from error
            except ValueError as error:  # it has become one of another kind
                raise self.operations.mismatched(self.recipe, str(error)) from error
            except RuntimeError as error:  # modified in place: so it may be in the next step
                self.recipe.refused = str(error)
                raise
            self.packed, self.held = {}, None

    def _result(self) -> Tensor:
        self.operations.settle()
        if self.held is not None:
            return self.held
        saved = {place: hooks.unpack(packed) for place, packed in self.packed.items()}
        with _set(self.settings):
            return computed(self.recipe.call, lambda leaf: leaf.of(saved[leaf.place]))


class _Spot:
    """What becomes of a save: at a place where something is recomputed or recomputed from."""

    __slots__ = ("kind", "recipe", "is_leaf", "drops")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.recipe: Optional[Recipe] = None
        self.is_leaf = False
        self.drops: List[int] = []  # leaves that nothing later is computed from


class Operations:
    """Which operations are recomputed, of an Offload.

    :param min_bytes: smaller tensors are kept
    :param recomputer: of scopes that are recomputed, too
    """

    def __init__(self, model: nn.Module, min_bytes: int,
                 recomputer: Optional["Recomputer"]) -> None:
        self._model = weakref.ref(model)
        self._min_bytes = min_bytes
        # Several threads may run backward passes; an operation may need a scope first, or a scope
        # an operation.
        self.computing = threading.RLock() if recomputer is None else recomputer.computing
        self._has_scopes = recomputer is not None
        self.recipes: List[Recipe] = []  # in force
        self._watch: Optional[Watch] = None
        self._watches = 0
        self._wait = 0       # steps until the next watch
        self._found: List[Recipe] = []  # by a watch, before it is known how long a step takes
        self._kinds: List[Kind] = []
        self._by_place: Dict[int, Recipe] = {}
        self._spots: Dict[int, _Spot] = {}
        self._began_ns = 0
        self._steps = 0
        self._verdicts: Optional["Verdicts"] = None
        self._comparisons: Optional[Comparisons] = None  # of devices
        self._held_max = 0
        self._whole_steps = 0  # left
        self._unfit: Set[Any] = set()  # kinds of recipes whose bytes differ from time to time
        self._clear()

    # ---- Steps -----------------------------------------------------------------------------------

    def _clear(self) -> None:
        """Of the running step."""
        self._place = 0
        self._lost = False
        self._packed: Dict[int, Any] = {}
        self._held: Dict[int, Held] = {}
        self._frames: Dict[int, OperationFrame] = {}
        self._storages: Dict[int, int] = {}
        # What was discarded, by its storage: a scope may be recomputed from it.
        self._gone: Dict[int, Tuple[WeakStorage, "weakref.ref[OperationFrame]", torch.dtype]] = {}

    def step_begins(self) -> None:
        now_ns = time.monotonic_ns()
        step_ns, self._began_ns = now_ns - self._began_ns, now_ns
        self.settle()
        self._whole_steps = max(0, self._whole_steps - 1)
        watch, lost = self._watch, self._lost
        self._clear()
        self._watch = None
        if watch is not None:
            self._by_place, self._kinds = watch.ended(), watch.kinds
            self._found = list(dict.fromkeys(self._by_place.values()))
        elif self._found:
            self._choose(step_ns)
        elif lost or self._steps == 1:  # in the first one scopes are tried
            self._watch_if_due()
        self._steps += 1

    def is_idle(self) -> bool:
        """Nothing is recomputed, and nothing is to be tried in the next step."""
        return not (self.recipes or self._found or self._lost or self._watch is not None)

    def _watch_if_due(self) -> None:
        if self._wait > 0:
            self._wait -= 1
        elif self._watches < _WATCHES_MAX and self._can_watch():
            self._wait = (1 << self._watches) - 1
            self._watches += 1
            self._spots, self.recipes = {}, []
            self._watch = Watch(self._min_bytes)

    def _can_watch(self) -> bool:
        model = self._model()
        compiled = model is None or has_compiled() or any(map(is_compiled, model.modules()))
        if compiled:
            _log.info("no single operations are recomputed: with torch.compile that is the "
                      "compiler's choice")
            self._watches = _WATCHES_MAX
        return not compiled

    def watch_begins(self) -> None:
        """The model is called."""
        if self._watch is not None and watcher_now() is None:
            self._watch.push()

    def watch_ends(self) -> None:
        if self._watch is not None:
            self._watch.pop()

    def _choose(self, step_ns: int) -> None:
        """Those that free the most for their time, within the slack. Each was timed once, beside
        whatever else ran: of those that are alike the shortest time counts."""
        costs: Dict[Any, int] = {}
        for each in self._found:
            alike = each.kind, each.length
            costs[alike] = min(each.cost_ns, costs.get(alike, each.cost_ns))
        left_ns, chosen = SLACK * step_ns, []
        for recipe in sorted(self._found,
                             key=lambda each: costs[each.kind, each.length] / each.length):
            cost_ns = costs[recipe.kind, recipe.length]
            cost_ns = cost_ns and cost_ns + _CHECKED_NS * recipe.length
            if (recipe.refused is None and cost_ns <= left_ns
                    and recipe.kind not in self._unfit):
                left_ns -= cost_ns
                chosen.append(recipe)
        self._found = []
        self._put_in_force(chosen)

    def _put_in_force(self, chosen: List[Recipe]) -> None:
        self.recipes, self._spots = chosen, {}
        self._held_max, self._whole_steps = limit_of(chosen), _WHOLE_STEPS
        members: Set[Recipe] = set(chosen)
        last_of: Dict[int, int] = {}
        for place, recipe in self._by_place.items():
            if recipe in members:
                self._spot(place).recipe = recipe
        for recipe in chosen:
            for leaf in recipe.leaves:
                self._spot(leaf).is_leaf = True
                last_of[leaf] = max(last_of.get(leaf, 0), recipe.first)
        for leaf, last in last_of.items():
            self._spot(last).drops.append(leaf)
        if chosen:
            _log.info("%s", self.words())

    def _spot(self, place: int) -> _Spot:
        return self._spots.setdefault(place, _Spot(self._kinds[place]))

    def words(self) -> str:
        """What is recomputed in a step; "": nothing."""
        if not self.recipes:
            return ""
        counts = collections.Counter(recipe.call.name for recipe in self.recipes)
        each = ", ".join(f"{count} x {name}" for name, count in sorted(counts.items()))
        length = sum(recipe.length for recipe in self.recipes)
        return f"recomputed one by one: {bytes_text(length)} a step, results of {each}"

    # ---- Saves -----------------------------------------------------------------------------------

    def pack(self, session: "Session", tensor: Tensor) -> Any:
        """What autograd keeps."""
        if in_backward():
            return session.save(tensor)
        place = self._place
        self._place += 1
        if self._watch is not None:
            self._watch.saved(tensor)
            return session.save(tensor)
        spot = self._spots.get(place)
        if spot is None or self._lost:
            return session.save(tensor)
        if type(tensor) not in (Tensor, nn.Parameter) or kind_of(tensor) != spot.kind or (
                tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg()):
            return self._lose(session, tensor)
        packed = None
        if spot.recipe is not None:
            packed = self._discard(session, place, spot.recipe, tensor)
        if packed is None:
            packed = session.save(tensor)
        if spot.is_leaf and not self._lost:
            self._packed[place], self._held[place] = packed, held(tensor)
        for leaf in spot.drops:
            self._packed.pop(leaf, None)
            self._held.pop(leaf, None)
        return packed

    def _lose(self, session: "Session", tensor: Tensor) -> Any:
        """The step is not like the one that was watched: from here on all is saved."""
        self._clear()
        self._lost = True
        return session.save(tensor)

    def _discard(self, session: "Session", place: int, recipe: Recipe, tensor: Tensor) -> Any:
        """None: it is to be saved."""
        if recipe.refused is not None or not _can_compare(session, tensor):
            return None
        identity = storage_of(tensor)._cdata
        frame = self._frames.get(recipe.first)
        if place == recipe.first:
            frame = self._frame_of(session, recipe, tensor)
        elif self._storages.get(recipe.first) != identity or tensor._version != 0:
            frame = None
            self._lost = True
        if frame is None:
            return None
        frame.views.append((tensor.shape, tensor.stride(), tensor.storage_offset()))
        packed = session.discard(frame, tensor)
        if place == recipe.first and self._has_scopes:
            self._gone[identity] = WeakStorage(tensor), weakref.ref(frame), tensor.dtype
        if frame.held is not None:
            self._settle(self._held_max)
        if place < recipe.last:
            self._frames[recipe.first], self._storages[recipe.first] = frame, identity
        else:
            self._frames.pop(recipe.first, None)
        return packed

    def input(self, session: "Session", tensor: Tensor) -> Any:
        """What a scope that has run keeps of an input; None: no result that was discarded."""
        if not self._gone or type(tensor) is not Tensor or tensor._version != 0 or (
                tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg()):
            return None
        found = self._gone.get(storage_of(tensor)._cdata)
        frame = None if found is None else found[1]()
        if found is None or frame is None or tensor.dtype is not found[2]:
            return None  # what is made again has the result's own type
        frame.views.append((tensor.shape, tensor.stride(), tensor.storage_offset()))
        return session.discard_input(frame, tensor)

    def _frame_of(self, session: "Session", recipe: Recipe,
                  tensor: Tensor) -> Optional[OperationFrame]:
        answer = None
        try:
            packed = {leaf: self._packed[leaf] for leaf in recipe.leaves}
            if watcher_now() is not None:
                raise ValueError("a mode sees all operations")
            if tensor._version != 0 or any(
                    self._held[leaf].is_modified() for leaf in recipe.leaves):
                raise ValueError("it was modified in place")
            if not tensor.is_cpu:
                answer = self._compared(session, recipe, tensor)
            elif not Rows(recipe.call, self._value).are_in(tensor):
                raise ValueError("it is the result of another operation")
        except (KeyError, ValueError, RuntimeError):
            self._lost = True
            return None
        frame = OperationFrame(self, session, recipe, packed)
        if answer is not None:
            self._comparisons_of(session).add(frame, tensor, answer)
        return frame

    def _value(self, leaf: Leaf) -> Tensor:
        return leaf.of(self._held[leaf.place].unpack())

    def forget(self) -> None:
        """The forward pass has ended: nothing later is computed from what it saved."""
        self._packed.clear()
        self._held.clear()
        self._frames.clear()
        self._gone.clear()
        self.settle()

    # ---- Of devices ------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let go of what devices have compared by now."""
        self._settle(None)

    def _settle(self, most_bytes: Optional[int]) -> None:
        if self._comparisons is not None:
            with self.computing:
                self._comparisons.settle(most_bytes)

    def _compared(self, session: "Session", recipe: Recipe, tensor: Tensor) -> Tensor:
        """On the device."""
        if self._whole_steps == 0:
            return compared(recipe, self._value, tensor, whole=False)
        session.recompute_begin()  # later steps are without it
        try:
            return compared(recipe, self._value, tensor, whole=True)
        finally:
            session.recompute_end()

    def _comparisons_of(self, session: "Session") -> Comparisons:
        if self._comparisons is None:
            self._comparisons = Comparisons(self._verdicts_of(session), self._answered)
        return self._comparisons

    def _answered(self, recipe: Recipe, answer: int) -> None:
        """What was held is used in place of what would be recomputed."""
        if answer & ROWS:
            self._lost = True  # from the host's view the step goes on: the rest of it is saved
        else:
            self._leave_out(recipe, "computed twice, its bytes differ")

    def _leave_out(self, recipe: Recipe, why: str) -> None:
        """All of its kind."""
        recipe.refused = why
        if recipe.kind in self._unfit:
            return
        self._unfit.add(recipe.kind)
        for each in self._by_place.values():
            if each.kind == recipe.kind:
                each.refused = why
        _log.info("no result of %s of type %s is recomputed any more: %s",
                  " of ".join(recipe.call.names), recipe.dtype, why)

    # ---- Recomputed ------------------------------------------------------------------------------

    def gradients_leave_early(self) -> bool:
        model = self._model()
        return model is None or gradients_leave_early(model)

    def verdict_on(self, recipe: Recipe, session: "Session") -> "Verdict":
        """For a recomputation on a device."""
        from .._gpu.recompute_check import Verdict

        return Verdict(self._verdicts_of(session), recipe)

    def _verdicts_of(self, session: "Session") -> "Verdicts":
        from .._gpu.recompute_check import Verdicts

        if self._verdicts is None:
            assert session.device is not None
            self._verdicts = Verdicts(self, session.device.table)
        return self._verdicts

    def mismatched(self, recipe: Any, why: str) -> SpillwayError:
        self._leave_out(recipe, why)
        name = recipe.call.name
        _log.info("the result of %s that is saved as number %d is not recomputed: %s", name,
                  recipe.first + 1, why)
        return SpillwayError(
            errno.ESTALE,
            f"the result of {name} that was saved as number {recipe.first + 1} of the step was "
            f"recomputed in the backward pass and differs ({why}): its gradients would be wrong. "
            "Something that it depends on has changed in between. It will not be recomputed any "
            "more: zero all gradients and go on with the next step, or call offload() with "
            'recompute="never"')
