# SPDX-License-Identifier: MIT
# spillway/_recompute/recompute.py - scopes that are recomputed in the backward pass
"""Which scopes may be computed again, and how. What is given up for that the plan says, in C, which
also compares every byte that comes back with what was given up.

A scope may be computed again if it was tried: in the first step it runs a second time, and must
save and give the same, bit for bit, and change nothing. What is no plain case is refused, with
words, and kept or spilled as before.
"""
from __future__ import annotations

import contextlib
import errno
import logging
import sys
import threading
import weakref
from typing import (TYPE_CHECKING, Any, Callable, ContextManager, Dict, Iterable, List, Literal,
                    Optional, Sequence, Set, Tuple, Union)

import torch
from torch import Tensor, nn, overrides
from torch.utils import _python_dispatch

from .._core.hooks_loader import Stop, hooks
from .._core.library import SpillwayError
from .._core.scopes import tensors_in
from .._core.tensors import counted_by, nothing_on
from .._core.torch_compat import SavedTensorsHooks, is_before, is_compiled
from .._offload.session import Session
from .._offload.trial_copies import Copies
from .._params.offloaded_param import OnDrives
from .effects import Elsewhere, Reached, Snapshot, snapshot_of
from .foreign_hooks import Aside, foreign_on, is_gathering
from .generators import Random
from .watched import Unseen

if TYPE_CHECKING:  # imported only for a model that has tensors on a device
    from .._gpu.recompute_check import Verdict, Verdicts

_log = logging.getLogger("spillway")

Recompute = Union[Literal["auto", "never"], Callable[[str, nn.Module], bool]]

OLDEST = "2.1"  # before, no hook may end a forward pass

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size,
          torch.layout, torch.memory_format)
_INSIDE = "there are scopes inside of it"
_ARGUMENTS = "its arguments hold"


class _Held:
    """A tensor that a scope is computed again from, as the hooks hold it."""

    __slots__ = ("packed", "requires_grad")

    def __init__(self, tensor: Tensor, session: Session) -> None:
        self.packed = session.input(tensor)
        self.requires_grad = tensor.requires_grad

    def tensor(self) -> Tensor:
        held: Tensor = hooks.unpack(self.packed)
        return held.detach().requires_grad_(self.requires_grad)


def _mapped(thing: Any, kind: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of nested tuples, lists and dicts with each thing of a kind changed."""
    if isinstance(thing, kind):
        return change(thing)
    if type(thing) in (tuple, list):
        return type(thing)(_mapped(item, kind, change) for item in thing)
    if type(thing) is dict:
        return {key: _mapped(item, kind, change) for key, item in thing.items()}
    return thing


def _odd_in(thing: Any) -> Optional[str]:
    """What in a scope's arguments is more than tensors and plain values, which may change."""
    if type(thing) in (tuple, list):
        return next(filter(None, map(_odd_in, thing)), None)
    if type(thing) is dict:
        return next(filter(None, map(_odd_in, thing.values())), None)
    if type(thing) in (Tensor, nn.Parameter, OnDrives) or isinstance(thing, _PLAIN):
        return None
    return type(thing).__name__


def _autocast(kind: str) -> ContextManager[Any]:
    """As it is now, for a kind of devices."""
    if hasattr(torch, "get_autocast_dtype"):  # from 2.4 on
        enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    elif kind == "cpu":
        enabled, dtype = torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()
    else:
        enabled, dtype = torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype()
    return torch.autocast(kind, dtype=dtype, enabled=enabled,
                          cache_enabled=torch.is_autocast_cache_enabled())


def _is_captured(session: Session, devices: Iterable[torch.device]) -> bool:
    """Whether a graph is captured now: it keeps what is saved, and nobody may look at it."""
    if session.device is not None:
        return session.device.capturing()
    return any(getattr(getattr(torch, device.type, None), "is_current_stream_capturing", bool)()
               for device in devices)


def _undo(undos: List[Callable[[], Any]]) -> None:
    """Call each, the last one first, whatever the others raise: the first error is raised
    afterwards. What a Ctrl-C interrupts is called once more."""
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


def _bytes_of(tensor: Tensor) -> Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain if plain.dtype is torch.bool else plain.view(torch.uint8)


def _are_same(these: Sequence[Optional[Tensor]], those: Sequence[Optional[Tensor]]) -> bool:
    """To the last bit. None is the same as nothing."""
    return len(these) == len(those) and all(
        one is not None and other is not None and one.dtype is other.dtype and
        one.shape == other.shape and torch.equal(_bytes_of(one), _bytes_of(other))
        for one, other in zip(these, those))


class Frame(hooks.Frame):  # type: ignore[misc]
    """One run of a scope. Those of its tensors that were given up hold it."""

    __slots__ = ("again", "module", "arguments", "devices", "random", "autocasts", "modes",
                 "changes", "_verdict")

    def __init__(self, again: "Again", module: nn.Module, arguments: Any,
                 devices: Set[torch.device]) -> None:
        self.again = again
        self.module = module
        self.arguments = arguments
        self.devices = devices
        self.random = Random(devices)
        self.autocasts = [_autocast(kind) for kind in {"cpu", *(each.type for each in devices)}]
        self.modes = modes_of(module)
        self.changes: Optional[str] = None  # what it has changed when it ran again, in words
        self._verdict: Optional["Verdict"] = None  # on what of devices is computed again

    def verdict(self) -> "Verdict":
        """Of this time that it is computed again."""
        if self._verdict is None:
            self._verdict = self.again.verdict_on(self.module)
        return self._verdict

    def hold(self) -> None:
        """The forward pass has ended: the tensors among the arguments may leave memory."""
        self.random.drop_unused()
        session = self.again.session
        self.arguments = _mapped(self.arguments, Tensor, lambda tensor: _Held(tensor, session))

    def _run(self, arguments: Any) -> Any:
        args, kwargs = arguments
        self.random.restore()
        with torch.enable_grad(), contextlib.ExitStack() as stack:
            for autocast in self.autocasts:
                stack.enter_context(autocast)
            return self.module.forward(*args, **kwargs)

    def _looked(self) -> Snapshot:
        """What is there before the module runs again."""
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
            _log.warning("%s ran a second time to be computed again, and what %s cannot be put "
                         "back", self.again.names[self.module], lost)

    def _cannot_see(self, error: Exception) -> None:
        """The step goes on: it is right. But this recomputation is the last one."""
        self.changes = f"what it changes could not be seen ({str(error) or type(error).__name__})"
        _log.warning("%s ran a second time to be computed again, and %s: if it changes anything, "
                     "that is changed twice", self.again.names[self.module], self.changes)

    def run(self, arguments: Any, pack: Callable[[Tensor], Any]) -> Any:
        """Run it as the first time. Whatever comes in between, nothing of that is left."""
        session = self.again.session
        saved, alone = SavedTensorsHooks(pack, _as_it_is), self.again.alone(forbids=True)
        random, excluding, frame = Random(self.devices), session.excluding, session.frame
        before, aside = self._looked(), Aside(self.module, self.modes)

        def restore() -> None:
            random.restore()
            session.excluding, session.frame = excluding, frame

        def put_back() -> None:
            aside.put_back()
            self._put_back(before)

        undos = [restore, put_back, saved.pop, alone.pop]
        try:
            aside.take()
            session.frame = None
            saved.push()
            alone.push()
            return self._run(arguments)
        finally:
            _undo(undos)

    def compute(self) -> None:
        """Give back what was given up; called when it is first used.

        :raises SpillwayError: ESTALE it is not the same; or a drive failed
        """
        with self.again.computing:
            if self.begin():
                self._compute()

    def _compute(self) -> None:
        session = self.again.session
        self._verdict = None
        session.again_begin()
        try:
            arguments = _mapped(self.arguments, _Held, _Held.tensor)
            with contextlib.suppress(Stop):
                self.run(arguments, self.capture)
            if self.begin():
                raise ValueError("it saves fewer tensors")
        except SpillwayError as error:
            if error.errno != errno.ESTALE:
                raise
            raise self.again.mismatched(self.module, str(error)) from error
        except Exception as error:
            why = str(error) or type(error).__name__
            raise self.again.mismatched(self.module, why) from error
        finally:
            _undo([session.again_end])
        if self.changes is not None:
            self.again.refuse(self.module, f"when it was computed again, {self.changes}")


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


class _Alone(_python_dispatch.TorchDispatchMode):
    """Sees whatever waits for other ranks: what is computed again on one of them may be kept on the
    others, which would never come.

    :param forbids: raise there; else note it in ``waits``
    :param watches: False: there is nobody to wait for
    """

    def __init__(self, forbids: bool, watches: bool) -> None:
        super().__init__()
        self.waits: Optional[str] = None
        self._forbids, self._watches = forbids, watches

    def push(self) -> None:
        if self._watches:
            self.__enter__()

    def pop(self) -> None:
        """Once, if it is pushed."""
        if _python_dispatch._get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types:
            return NotImplemented  # a subclass first does what it does, and that is seen
        if "c10d" in getattr(func, "namespace", ""):
            self.waits = f"it waits for other ranks ({func})"
            if self._forbids:
                raise RuntimeError(self.waits)
        return func(*args, **(kwargs or {}))


class _Trial:
    """The first run of a scope that may be computed again, watched."""

    def __init__(self, module: nn.Module, arguments: Any, alone: _Alone,
                 elsewhere: Elsewhere) -> None:
        self.reached = Reached(module, arguments, elsewhere)
        self.saved = Copies(arguments)
        self.alone = alone
        alone.push()

    def changed(self) -> Optional[str]:
        """What the run has done that a second one must not, in words; None: nothing."""
        return self.alone.waits or self.reached.changed()


class Again:
    """Of an Offload: the scopes that may be computed again, those that were refused, and why.

    :param scopes: all modules that are scopes, by their names
    """

    def __init__(self, session: Session, model: nn.Module, scopes: Dict[nn.Module, str],
                 recompute: Recompute) -> None:
        self.session = session
        self._model = model
        self.names = scopes
        self._vouched = callable(recompute)
        self.refused: Dict[nn.Module, str] = {}
        # that have passed their trial, and in which modes of their parts: training or not
        self._trusted: Dict[nn.Module, Tuple[bool, ...]] = {}
        self._trial: Optional[_Trial] = None
        self.computing = threading.RLock()  # several threads may run backward passes
        # Of scopes tried in this step: what counts the changes of their inputs, and how many.
        self._counters: List[Tuple[nn.Module, Tensor, int]] = []
        self._verdicts: Optional["Verdicts"] = None  # from the first one on
        self._elsewhere: Elsewhere = {}  # of the trials of this step
        self._waits = False
        self._begun: Set[nn.Module] = set()  # that kept something from a first run on
        for module, name in scopes.items():
            if callable(recompute) and not recompute(name, module):
                self.refused[module] = "not asked for"
            elif any(part in scopes for part in module.modules() if part is not module):
                self.refused[module] = _INSIDE
        self._ran: Set[nn.Module] = set()  # of the scopes, in this step
        # Scopes around others, with those.
        self._around = {module: [part for part in module.modules()
                                 if part in scopes and part is not module]
                        for module, why in self.refused.items() if why is _INSIDE}
        self._instead: Dict[nn.Module, nn.Module] = {}  # of a scope, the one around it that is one

    def alone(self, forbids: bool) -> _Alone:
        return _Alone(forbids, _several_ranks() and not self._vouched)

    def gradients_leave_early(self) -> bool:
        """Somebody may use them before the backward pass has ended: other ranks, or hooks, such as
        those of an optimizer that steps meanwhile."""
        return _several_ranks() or any(
            parameter._backward_hooks or parameter._post_accumulate_grad_hooks
            for parameter in self._model.parameters())

    def verdict_on(self, module: nn.Module) -> "Verdict":
        """For one more run of a scope, of a device."""
        from .._gpu.recompute_check import Verdict, Verdicts

        if self._verdicts is None:
            assert self.session.device is not None
            self._verdicts = Verdicts(self, self.session.device.table)
        return Verdict(self._verdicts, module)

    def may(self, module: nn.Module) -> bool:
        """Whether it may be computed again, now or later."""
        return module not in self.refused or module in self._around

    def is_scope(self, module: nn.Module) -> bool:
        """Not while the one around it may be computed again in its place."""
        around = self._instead.get(module)
        return around is None or around in self.refused

    def _turn_to_outer(self) -> None:
        """Where no scope inside of another can be computed again, by what it is given or as it is
        never called itself, that other one is tried."""
        for module, inside in list(self._around.items()):
            if module in self._ran and all(
                    part not in self._ran or self.refused.get(part, "").startswith(_ARGUMENTS)
                    for part in inside):
                del self._around[module], self.refused[module]
                self._instead.update((part, module) for part in inside)
        self._ran.clear()

    def refuse(self, module: nn.Module, why: str) -> None:
        """It is kept or spilled from now on."""
        self.refused[module] = why
        self._trusted.pop(module, None)
        _log.info("%s is not computed again: %s", self.names[module], why)

    def mismatched(self, module: nn.Module, why: str) -> SpillwayError:
        self.refuse(module, f"it did not give the same a second time ({why})")
        return SpillwayError(
            errno.ESTALE,
            f"{self.names[module]} was computed again in the backward pass and is not the same as "
            f"in the forward pass ({why}): its gradients would be wrong. Something that it depends "
            "on has changed in between, or is random in a way that PyTorch's generator does not "
            "know. It is not computed again from now on: zero all gradients and go on with the "
            'next step, or call offload() with recompute="never"')

    # ---- A scope runs ----------------------------------------------------------------------------

    def enter(self, module: nn.Module, arguments: Any) -> None:
        """Training goes on, whatever is odd about the module."""
        self._ran.add(module)
        try:
            if self.session.frame is not None:  # left by an error; or it runs inside of another
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
            self._trial = _Trial(module, arguments, self.alone(forbids=False), self._elsewhere)
            session.trial = self._trial.saved
        frame = Frame(self, module, arguments, devices)
        session.frame = frame if self._trial is None else _Tried(frame)

    def _is_watched(self) -> bool:
        """Whether others see each operation, and would see those of a second run."""
        watcher = _watcher()
        if watcher is not None and not self._waits:
            self._waits = True
            _log.info("nothing more is given up to be computed again while a %s sees all that "
                      "PyTorch computes", watcher)
        return watcher is not None

    def forget(self) -> None:
        """No trial follows soon: what code reaches is not held longer than that."""
        self._elsewhere.clear()

    def abandon(self) -> None:
        """Whatever runs is no longer watched, and gives nothing up any more."""
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
            # Without tensors that were given up it computes nothing again, and ends here.
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
            return f"{_ARGUMENTS} a {odd}, which may change"
        for tensor in [*module.parameters(), *module.buffers(), *tensors_in(arguments)]:
            if type(tensor) not in (Tensor, nn.Parameter, OnDrives):
                return f"it works with {type(tensor).__name__}s"
        return None

    # ---- Trials ----------------------------------------------------------------------------------

    def _passes(self, frame: Frame, trial: _Trial, result: Any) -> bool:
        """Whether it is the same a second time. Else it is refused."""
        module = frame.module
        if sys.exc_info()[0] is not None:
            return False  # it raises: another time
        if trial.changed() and module not in self._begun and trial.reached.has_begun():
            self._begun.add(module)  # a cache of its own is full now: it is tried the next time
            return False
        why = (self._kept_elsewhere(frame) or trial.changed()
               or self._differs(frame, trial, result))
        if why is not None:
            self.refuse(module, why)
            return False
        self._trusted[module] = modes_of(module)
        self._counters += [
            (module, counted_by(tensor.detach(), nothing_on(tensor.device)), tensor._version)
            for tensor in tensors_in(frame.arguments)]
        return True

    def _kept_elsewhere(self, frame: Frame) -> Optional[str]:
        """Where tensors are on a device that is not served."""
        device = self.session.device
        for tensor in [*tensors_in(frame.arguments), *frame.module.parameters()]:
            if not tensor.is_cpu and (device is None or not device.has(tensor)):
                return f"its tensors on {tensor.device.type} are kept there"
        return None

    def _differs(self, frame: Frame, trial: _Trial, result: Any) -> Optional[str]:
        if not trial.saved.tensors:
            return "it saves nothing: it is computed again already, or has no gradient"
        session = self.session
        saved = Copies(frame.arguments)

        def pack(tensor: Tensor) -> Tensor:
            saved.add(tensor)
            return tensor.detach()

        arguments = _mapped(
            frame.arguments, Tensor,
            lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad))
        session.again_begin()
        try:
            second = frame.run(arguments, pack)
        except Exception as error:  # of code that runs once alone
            return f"a second run raises {type(error).__name__}: {error}"
        finally:
            _undo([session.again_end])
        if not _are_same(trial.saved.tensors, saved.tensors):
            return "a second run saves other tensors"
        if not _are_same(list(tensors_in(result)), list(tensors_in(second))):
            return "a second run has another result"
        return frame.changes or trial.changed()

    def step_begins(self) -> None:
        """Inputs that were changed after their scope has ended cannot be computed from."""
        self.forget()
        self._turn_to_outer()
        counters, self._counters = self._counters, []
        for module, counter, version in counters:
            if counter._version != version and module not in self.refused:
                self.refuse(module, "its input is changed in place after it has run")


class _Tried:
    """The frame of a scope that is tried: as long as it runs, nothing of it is given up."""

    __slots__ = ("frame",)

    def __init__(self, frame: Frame) -> None:
        self.frame = frame


def modes_of(module: nn.Module) -> Tuple[bool, ...]:
    """What runs the same in evaluation may count in training, as batch norm does."""
    return tuple(part.training for part in module.modules())


def _several_ranks() -> bool:
    distributed = torch.distributed
    return (distributed.is_available() and distributed.is_initialized()
            and distributed.get_world_size() > 1)


def _watcher() -> Optional[str]:
    """A mode of others that is told of all operations, by its name; None: there is none."""
    mode: Any = _python_dispatch._get_current_dispatch_mode()
    modes = [*overrides._get_current_function_mode_stack(), *([] if mode is None else [mode])]
    return next((type(each).__name__ for each in modes if type(each).__name__ != "DeviceContext"),
                None)


def again_of(session: Session, model: nn.Module, scopes: Dict[nn.Module, str],
             recompute: Recompute) -> Optional[Again]:
    """None: nothing is ever computed again."""
    if recompute == "never" or session.cache.mode not in ("fastest", "budget"):
        return None
    if is_before(OLDEST):
        _log.info("nothing is computed again: that takes PyTorch %s or later, and this is %s",
                  OLDEST, torch.__version__)
        return None
    return Again(session, model, scopes, recompute)
