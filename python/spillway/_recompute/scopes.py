# SPDX-License-Identifier: MIT
# spillway/_recompute/scopes.py - scopes that are recomputed in the backward pass
"""Which scopes may be recomputed, and how. The plan decides which tensors are discarded for that,
in C, where each recomputed byte is also compared with the discarded one.

A scope may be recomputed once it has passed a trial: in the first step it runs a second time, must
save and return the same tensors, bit for bit, and must change nothing. Any other scope is refused
with a reason, and its tensors are kept or spilled as before.
"""
from __future__ import annotations

import contextlib
import errno
import logging
import sys
import threading
from typing import (TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Literal,
                    Optional, Sequence, Set, Tuple, Union)

import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch

from .._core.hooks_loader import Stop, hooks
from .._core.library import SpillwayError
from .._core.scopes import tensors_in
from .._core.tensors import counted_by, normal_mode, nothing_on
from .._core.torch_compat import (SavedTensorsHooks, autocast_now, is_before, is_compiled,
                                  outside_of_vmap, watcher_now)
from .._offload.session import Session
from .._offload.trial_saves import FirstRun, SecondRun, is_same
from .._params.offloaded_param import OnDrives, Saved
from .._params.residency import by_storage, place_of
from .effects import Beyond, Reached, Snapshot, snapshot_of
from .foreign_hooks import (Aside, foreign_on, gradients_leave_early, is_gathering,
                            several_ranks)
from .generators import Random
from .module_state import ModuleState
from .watched import Unseen

if TYPE_CHECKING:  # imported only for a model that has tensors on a device
    from .._gpu.recompute_check import Verdict, Verdicts

_log = logging.getLogger("spillway")

Recompute = Union[Literal["auto", "operations", "never"], Callable[[str, nn.Module], bool]]

OLDEST = "2.1"  # before, hooks could not end a forward pass early

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size,
          torch.layout, torch.memory_format)
_INSIDE = "there are scopes inside of it"
_ARGUMENTS = "its arguments hold"


class _Held:
    """An input of a recomputation, as the hooks hold it."""

    __slots__ = ("packed", "requires_grad", "_told")

    def __init__(self, tensor: Tensor, session: Session) -> None:
        self.packed = None
        if session.operations is not None:  # its result may have gone, and is made again then
            self.packed = session.operations.input(session, tensor)
        if self.packed is None:
            self.packed = session.input(tensor)
        self.requires_grad = tensor.requires_grad
        # The graph holds a leaf until its gradient is there, so it is not offered. The cache hears
        # by its input that a scope can be recomputed: of this one by an element, which costs
        # nothing to keep.
        self._told = session.input(_element()) if _is_trained(tensor) else None

    def tensor(self) -> Tensor:
        held: Tensor = hooks.unpack(self.packed)
        return held.detach().requires_grad_(self.requires_grad)


def _is_trained(tensor: Tensor) -> bool:
    return tensor.requires_grad and tensor.is_leaf


def _element() -> Tensor:
    with normal_mode():
        return torch.empty(1, dtype=torch.uint8, device="cpu")


def _mapped(thing: Any, kind: Any, change: Callable[[Any], Any],
            changed: Optional[Dict[int, Any]] = None) -> Any:
    """A copy of nested tuples, lists and dicts with each thing of a kind changed. One that is there
    several times is changed once: attention computes otherwise with a tensor and another one of the
    same elements than with itself.

    :param changed: what has been, by identity
    """
    changed = {} if changed is None else changed
    if isinstance(thing, kind):
        if id(thing) not in changed:
            changed[id(thing)] = change(thing)
        return changed[id(thing)]
    if type(thing) in (tuple, list):
        return type(thing)(_mapped(item, kind, change, changed) for item in thing)
    if type(thing) is dict:
        return {key: _mapped(item, kind, change, changed) for key, item in thing.items()}
    return thing


def _odd_in(thing: Any) -> Optional[str]:
    """The type of an argument that is neither a tensor nor a plain value: it may change."""
    if type(thing) in (tuple, list):
        return next(filter(None, map(_odd_in, thing)), None)
    if type(thing) is dict:
        return next(filter(None, map(_odd_in, thing.values())), None)
    if type(thing) in (Tensor, nn.Parameter, OnDrives) or isinstance(thing, _PLAIN):
        return None
    return type(thing).__name__


def _is_captured(session: Session, devices: Iterable[torch.device]) -> bool:
    """Whether a graph is being captured: it keeps saved tensors, and they cannot be read."""
    if session.device is not None:
        return session.device.capturing()
    return any(getattr(getattr(torch, device.type, None), "is_current_stream_capturing", bool)()
               for device in devices)


def _undo(undos: List[Callable[[], Any]]) -> None:
    """Call each, the last one first, even if others raise: the first error is raised afterwards. A
    call that Ctrl-C interrupts is repeated."""
    raised: Optional[BaseException] = None
    while undos:
        try:
            undos[-1]()
        except KeyboardInterrupt as error:
            raised = raised or error
            continue
        except BaseException as error:
            raised = raised or error
        undos.pop()
    if raised is not None:
        raise raised


def _are_same(these: Sequence[Tensor], those: Sequence[Tensor]) -> bool:
    """Bit for bit."""
    return len(these) == len(those) and all(map(is_same, these, those))


class Frame(hooks.Frame):  # type: ignore[misc]
    """One run of a scope. Its discarded tensors hold a reference to it."""

    __slots__ = ("recomputer", "module", "arguments", "devices", "random", "autocasts", "state",
                 "changes", "_verdict")

    def __init__(self, recomputer: "Recomputer", module: nn.Module, arguments: Any,
                 devices: Set[torch.device]) -> None:
        self.recomputer = recomputer
        self.module = module
        self.arguments = arguments
        self.devices = devices
        self.random = Random(devices)
        self.autocasts = [autocast_now(kind) for kind in {"cpu", *(each.type for each in devices)}]
        self.state = ModuleState(module)
        self.changes: Optional[str] = None  # what its second run changed
        self._verdict: Optional["Verdict"] = None  # on recomputed tensors of devices

    def verdict(self) -> "Verdict":
        """For the current recomputation."""
        if self._verdict is None:
            self._verdict = self.recomputer.verdict_on(self.module)
        return self._verdict

    def hold(self) -> None:
        """The forward pass has ended: tensors in the arguments may leave memory."""
        self.random.drop_unused()
        session = self.recomputer.session
        self.arguments = _mapped(self.arguments, Tensor, lambda tensor: _Held(tensor, session))

    def _run(self, arguments: Any) -> Any:
        args, kwargs = arguments
        self.random.restore()
        with torch.enable_grad(), contextlib.ExitStack() as stack:
            for autocast in self.autocasts:
                stack.enter_context(autocast)
            return self.module.forward(*args, **kwargs)

    def _looked(self) -> Snapshot:
        """The state before the second run."""
        try:
            return snapshot_of(self.module)
        except Exception as error:
            self._cannot_see(error)
            return Snapshot([])

    def _put_back(self, before: Snapshot) -> None:
        try:
            self.changes = before.put_back() or self.changes
            lost = before.changed()
        except Exception as error:
            self._cannot_see(error)
            return
        if lost is not None:
            _log.warning("%s was recomputed, and what %s cannot be restored",
                         self.recomputer.names[self.module], lost)

    def _cannot_see(self, error: Exception) -> None:
        """The step is right and goes on, but this recomputation is the last one."""
        self.changes = f"what it changes could not be seen ({str(error) or type(error).__name__})"
        _log.warning("%s was recomputed, and %s: anything that it changes was changed twice",
                     self.recomputer.names[self.module], self.changes)

    def run(self, arguments: Any, pack: Callable[[Tensor], Any]) -> Any:
        """Run it under the same conditions as the first time, and restore the present ones."""
        session = self.recomputer.session
        saved = SavedTensorsHooks(_without_parameters(pack), _used)
        alone = self.recomputer.alone(forbids=True)
        random, excluding, frame = Random(self.devices), session.excluding, session.frame
        before, aside = self._looked(), Aside(self.module)

        def restore() -> None:
            random.restore()
            session.excluding, session.frame = excluding, frame

        def put_back() -> None:
            aside.put_back()
            self.state.put_back()
            self._put_back(before)

        undos = [restore, put_back, saved.pop, alone.pop]
        try:
            self.state.take()
            aside.take()
            session.frame = None
            saved.push()
            alone.push()
            return self._run(arguments)
        finally:
            _undo(undos)

    def compute(self) -> None:
        """Recompute the discarded tensors; called when the first of them is used.

        :raises SpillwayError: with ESTALE if the recomputed bytes differ; with another number if a
            drive failed
        """
        with self.recomputer.computing:
            if self.begin():
                self._compute()

    def _compute(self) -> None:
        session = self.recomputer.session
        self._verdict = None
        session.recompute_begin()
        try:
            with contextlib.suppress(Stop), outside_of_vmap():
                self.run(_mapped(self.arguments, _Held, _Held.tensor), self.capture)
            if self.begin():
                raise ValueError("it saves fewer tensors")
        except SpillwayError as error:
            if error.errno != errno.ESTALE:
                raise
            raise self.recomputer.mismatched(self.module, str(error)) from error
        except Exception as error:
            why = str(error) or type(error).__name__
            raise self.recomputer.mismatched(self.module, why) from error
        finally:
            _undo([session.recompute_end])
        if self.changes is not None:
            self.recomputer.refuse(self.module, f"when it was recomputed, {self.changes}")


def _without_parameters(pack: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """The graph of a second run holds no memory of parameters on drives, as little as that of the
    first one."""
    def packed(tensor: Tensor) -> Any:
        found, place = pack(tensor), place_of(tensor)
        return found if place is None else Saved(place, tensor)

    return packed if by_storage else pack


def _used(packed: Any) -> Any:
    return packed.unpack() if isinstance(packed, Saved) else packed


class _Alone(_python_dispatch.TorchDispatchMode):
    """Detects collectives: a scope that one rank recomputes may be kept on the others, which would
    never join.

    :param forbids: raise at a collective; else note it in ``waits``
    :param watches: False: there are no other ranks
    """

    def __init__(self, forbids: bool, watches: bool) -> None:
        super().__init__()
        self.waits: Optional[str] = None
        self._forbids, self._watches = forbids, watches

    def push(self) -> None:
        if self._watches:
            self.__enter__()

    def pop(self) -> None:
        """Once, if it was pushed."""
        if _python_dispatch._get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types:
            return NotImplemented  # a subclass handles it first; its own calls come here
        if "c10d" in getattr(func, "namespace", ""):
            self.waits = f"it waits for other ranks ({func})"
            if self._forbids:
                raise RuntimeError(self.waits)
        return func(*args, **(kwargs or {}))


class _Trial:
    """The first run of a scope, watched: it decides whether the scope may be recomputed."""

    def __init__(self, module: nn.Module, arguments: Any, alone: _Alone,
                 beyond: Beyond) -> None:
        self.reached = Reached(module, arguments, beyond)
        self.saved = FirstRun(arguments)
        self.alone = alone
        alone.push()

    def changed(self) -> Optional[str]:
        """What the run has done that a recomputation must not do; None: nothing."""
        return self.alone.waits or self.reached.changed()


class Recomputer:
    """Recomputation for an Offload: which scopes may be recomputed, which were refused, and why.

    :param scopes: all modules that are scopes, by their names
    """

    def __init__(self, session: Session, model: nn.Module, scopes: Dict[nn.Module, str],
                 recompute: Recompute) -> None:
        self.session = session
        self._model = model
        self.names = scopes
        self._vouched = callable(recompute)
        self.refused: Dict[nn.Module, str] = {}
        # Scopes that passed their trial, and the training mode of each of their modules then.
        self._trusted: Dict[nn.Module, Tuple[bool, ...]] = {}
        self._trial: Optional[_Trial] = None
        self.computing = threading.RLock()  # several threads may run backward passes
        self._verdicts: Optional["Verdicts"] = None  # created at the first use
        self._beyond = Beyond()  # shared by the trials of this step
        self._waits = False
        self._begun: Set[nn.Module] = set()  # scopes with a cache that a first run filled
        for module, name in scopes.items():
            if callable(recompute) and not recompute(name, module):
                self.refused[module] = "not asked for"
            elif any(part in scopes for part in module.modules() if part is not module):
                self.refused[module] = _INSIDE
        self._ran: Set[nn.Module] = set()  # scopes, in this step
        # Outer scopes, with the scopes inside.
        self._around = {module: [part for part in module.modules()
                                 if part in scopes and part is not module]
                        for module, why in self.refused.items() if why is _INSIDE}
        self._instead: Dict[nn.Module, nn.Module] = {}  # scope: the outer one that is tried instead

    def alone(self, forbids: bool) -> _Alone:
        return _Alone(forbids, several_ranks() and not self._vouched)

    def gradients_leave_early(self) -> bool:
        """Whether gradients may be used before the backward pass ends: by other ranks, or by hooks,
        as of an optimizer that steps during the pass."""
        return gradients_leave_early(self._model)

    def verdict_on(self, module: nn.Module) -> "Verdict":
        """For a recomputation on a device."""
        from .._gpu.recompute_check import Verdict, Verdicts

        if self._verdicts is None:
            assert self.session.device is not None
            self._verdicts = Verdicts(self, self.session.device.table)
        return Verdict(self._verdicts, module)

    def may(self, module: nn.Module) -> bool:
        """Whether it may be recomputed, now or later."""
        return module not in self.refused or module in self._around

    def is_scope(self, module: nn.Module) -> bool:
        """False while an outer scope may be recomputed instead."""
        around = self._instead.get(module)
        return around is None or around in self.refused

    def _turn_to_outer(self) -> None:
        """Try an outer scope where none inside can be recomputed, because of its arguments or
        because it is never called itself."""
        for module, inside in list(self._around.items()):
            if module in self._ran and all(
                    part not in self._ran or self.refused.get(part, "").startswith(_ARGUMENTS)
                    for part in inside):
                del self._around[module], self.refused[module]
                self._instead.update((part, module) for part in inside)
        self._ran.clear()

    def refuse(self, module: nn.Module, why: str) -> None:
        """Never recompute it; its tensors are kept or spilled."""
        self.refused[module] = why
        self._trusted.pop(module, None)
        _log.info("%s is not recomputed: %s", self.names[module], why)

    def mismatched(self, module: nn.Module, why: str) -> SpillwayError:
        self.refuse(module, f"it did not give the same a second time ({why})")
        return SpillwayError(
            errno.ESTALE,
            f"{self.names[module]} was recomputed in the backward pass and differs from the "
            f"forward pass ({why}): its gradients would be wrong. Something that it depends on has "
            "changed in between, or draws random numbers without PyTorch's generator. It will not "
            "be recomputed any more: zero all gradients and go on with the next step, or call "
            'offload() with recompute="never"')

    # ---- A scope runs ----------------------------------------------------------------------------

    def enter(self, module: nn.Module, arguments: Any) -> None:
        """Never raises: a module that cannot be handled is refused, and training goes on."""
        self._ran.add(module)
        try:
            if self.session.frame is not None:  # left by an error, or an inner scope
                self.abandon()
            if module not in self.refused:
                self._enter(module, arguments)
        except Unseen as error:
            self.refuse(module, str(error))
        except Exception as error:
            self.abandon()
            self.refuse(module, f"{type(error).__name__}: {error}")

    def _enter(self, module: nn.Module, arguments: Any) -> None:
        session = self.session
        devices = {tensor.device for tensor in tensors_in(arguments) if not tensor.is_cpu}
        if devices and _is_captured(session, devices):
            return
        if self._is_watched():
            return
        parts = list(module.modules())
        why = foreign_on(module, parts)
        is_tried = self._trusted.get(module) == modes_of(module)
        if why is None and not is_tried:
            why = self._obstacle(module, arguments)
        if why is not None:
            self.refuse(module, why)
            return
        if not is_tried:
            self._trial = _Trial(module, arguments, self.alone(forbids=False), self._beyond)
            session.trial = self._trial.saved
        frame = Frame(self, module, arguments, devices)
        session.frame = frame if self._trial is None else _Tried(frame)

    def _is_watched(self) -> bool:
        """Whether another mode sees each operation: it would see those of a second run, too."""
        watcher = watcher_now()
        if watcher is not None and not self._waits:
            self._waits = True
            _log.info("nothing more is discarded for recomputation while a %s sees all operations "
                      "of PyTorch", watcher)
        return watcher is not None

    def forget(self) -> None:
        """No trial follows soon: do not hold what module code reaches any longer."""
        self._beyond.clear()

    def abandon(self) -> None:
        """The running scope is no longer watched, and discards nothing any more."""
        if self._trial is not None:
            self._trial.alone.pop()
        self.session.frame = self.session.trial = self._trial = None

    def leave(self, module: nn.Module, result: Any) -> None:
        trial, frame = self._trial, self.session.frame
        self.abandon()
        if isinstance(frame, _Tried):
            frame = frame.frame
        if frame is None or frame.module is not module:
            return
        try:
            # A frame that no discarded tensor holds ends here.
            if trial is None or self._passes(frame, trial, result):
                frame.hold()
        except Exception as error:
            self.refuse(module, f"{type(error).__name__}: {error}")

    def _obstacle(self, module: nn.Module, arguments: Any) -> Optional[str]:
        """Why it is not even tried."""
        if is_compiled(module):
            return "it is compiled"
        if any(is_gathering(hook) for part in module.modules() if part is not module
               for hook in part._forward_pre_hooks.values()):
            return "FSDP gathers parts of it one by one"
        odd = _odd_in(arguments)
        if odd is not None:
            return f"{_ARGUMENTS} a {odd}, which may change" + (
                "; transformers makes none with model.config.use_cache = False"
                if odd.endswith("Cache") else "")
        for tensor in [*module.parameters(), *module.buffers(), *tensors_in(arguments)]:
            if type(tensor) not in (Tensor, nn.Parameter, OnDrives):
                return f"it works with {type(tensor).__name__}s"
        return None

    # ---- Trials ----------------------------------------------------------------------------------

    def _passes(self, frame: Frame, trial: _Trial, result: Any) -> bool:
        """Whether a second run is the same. If not, the scope is refused."""
        module = frame.module
        if sys.exc_info()[0] is not None:
            return False  # it raised: try it in a later step
        changed = trial.changed()
        if changed and module not in self._begun and trial.reached.has_begun():
            self._begun.add(module)  # its own cache is filled now: try it again next time
            return False
        why = self._kept_elsewhere(frame) or changed or self._differs(frame, trial, result)
        if why is not None:
            self.refuse(module, why)
            return False
        nodes = {tensor.grad_fn for tensor in tensors_in(result)} - {None}
        if not nodes:
            self.refuse(module, "its result has no tensors with gradients, or hides them")
            return False
        self._trusted[module] = modes_of(module)
        self._look_when_used(frame, nodes)
        return True

    def _look_when_used(self, frame: Frame, nodes: Set[Any]) -> None:
        """Refuse a scope if what it computes from was changed in place by the time that the
        backward pass comes to it. PyTorch allows that where it has not saved it; and whatever it
        has, an optimizer changes afterwards.

        :param nodes: of the graph, that made its result
        """
        module, before = frame.module, _versions_of(frame)
        handles: List[Any] = []

        def look(_: Any) -> None:
            with self.computing:
                while handles:
                    handles.pop().remove()
                changed = next((what for what, counter, version in before
                                if counter._version != version), None)
                before.clear()
                if changed is not None and module not in self.refused:
                    self.refuse(module, f"{changed} is changed in place after it has run")

        handles += [node.register_prehook(look) for node in nodes]

    def _kept_elsewhere(self, frame: Frame) -> Optional[str]:
        """Whether tensors are on a device whose tensors are not offloaded."""
        device = self.session.device
        for tensor in [*tensors_in(frame.arguments), *frame.module.parameters()]:
            if not tensor.is_cpu and (device is None or not device.has(tensor)):
                return f"its tensors on {tensor.device.type} are kept there"
        return None

    def _differs(self, frame: Frame, trial: _Trial, result: Any) -> Optional[str]:
        if not trial.saved.held:
            return ("it saves nothing: it is an addition or the like, is recomputed already "
                    "(checkpoint), or has no gradient")
        session = self.session
        saved = SecondRun(trial.saved, frame.arguments)

        def pack(tensor: Tensor) -> Tensor:
            saved.add(tensor)
            return tensor.detach()

        arguments = _mapped(
            frame.arguments, Tensor,
            lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad))
        session.recompute_begin()
        try:
            second = frame.run(arguments, pack)
        except Exception as error:  # of code that runs only once
            return f"a second run raises {type(error).__name__}: {error}"
        finally:
            _undo([session.recompute_end])
        why = saved.differs()
        if why is not None:
            return why
        if not _are_same(list(tensors_in(result)), list(tensors_in(second))):
            return "a second run has another result"
        return frame.changes or trial.changed()

    def step_begins(self) -> None:
        self.forget()
        self._turn_to_outer()


def _versions_of(frame: Frame) -> List[Tuple[str, Tensor, int]]:
    """What a scope computes from: in words, what counts its changes, and how many there were."""
    given = [(counted_by(tensor.detach(), nothing_on(tensor.device)), tensor._version)
             for tensor in tensors_in(frame.arguments)]
    own = [*frame.module.named_parameters(), *frame.module.named_buffers()]
    return [*(("its input", *each) for each in given),
            *((f"its {name}", tensor, tensor._version) for name, tensor in own
              if not tensor.is_inference())]


class _Tried:
    """The frame of a scope on trial: nothing of it is discarded while it runs."""

    __slots__ = ("frame",)

    def __init__(self, frame: Frame) -> None:
        self.frame = frame


def modes_of(module: nn.Module) -> Tuple[bool, ...]:
    """A module without effects in evaluation may have some in training, as batch norm does."""
    return tuple(part.training for part in module.modules())


def may_recompute(session: Session, recompute: Recompute) -> bool:
    if recompute == "never" or session.cache.mode not in ("fastest", "budget"):
        return False
    if is_before(OLDEST):
        _log.info("nothing is recomputed: that needs PyTorch %s or later, and this is %s",
                  OLDEST, torch.__version__)
        return False
    return True
