# SPDX-License-Identifier: MIT
# spillway/torch.py - spills what autograd saves for the backward pass
"""PyTorch: training with less memory and the same numbers.

>>> import spillway.torch as st
>>> with st.offload(model, drives) as off:
...     for batch in batches:
...         with off:
...             loss = model(batch).mean()
...             loss.backward()
...         optimizer.step()

The model is not changed. Inside the context the tensors that autograd saves are offered to the
tensor cache (in C: it decides what is written, kept, prefetched or recomputed); every tensor
comes back bit for bit.

Not offloaded: parameters, buffers, the arguments of the model's forward (and views of them), and
tensors without elements. Other tensors that are not plain and dense, in host memory or on an
accelerator, stay in memory and are counted; of DTensors and jagged tensors the elements spill.

In-place modification. PyTorch raises in the backward pass if any code has modified a saved tensor
since it was saved, also a backward function that was given it. So does spillway, wherever the bytes
are. Changes that PyTorch does not count (through .data, through NumPy) are not seen here either.

Steps that rest. Where the plan moves nothing, most steps run without hooks: docs/GUIDE.md, *Steps
without hooks*.

Errors. A failure in the backward pass (a drive fails, the store was closed) raises SpillwayError;
PyTorch 1.13 turns it into a RuntimeError with the same text. Wrong bytes never reach autograd.
"""
from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import sys
import threading
import time
import weakref
from typing import (TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Literal, Optional, Sequence,
                    Set, TextIO, Tuple, Union)

import torch
from torch import Tensor, nn

from ._core import library, hooks_loader
from ._core.library import Size, SpillwayError, fast
from ._core.scopes import (Exclude, Scopes, excluded_of, identities, layers_of, parts_of,
                           scopes_of, tensors_in)
from ._core.torch_compat import (SavedTensorsHooks, are_mutations_allowed, has_compiled,
                                 in_backward, in_checkpoint, innermost_hooks, is_compiled,
                                 register_forward_hook_always, register_forward_pre_hook)
from ._offload.arguments import (Sizes, cache_of, check_arguments, opened_store, parameters_of,
                                 rank_of_environment, with_former)
from ._offload import checkpoint_inputs
from ._offload.explain import ScopePlan
from ._offload.frozen import FrozenCopies
from ._offload.heap import Mapped, Resident, step_begins
from ._offload.module_hook import ModuleHook
from ._offload.reports import Reports
from ._offload.resting import CallHook, Resting
from ._offload.session import Session
from ._params.park import Parked, What, park
from ._params.residency import by_storage
from ._params.stats import ParameterStats
from ._recompute.scopes import Recomputer, Recompute, may_recompute
from ._report.files import asked, check_folder
from ._report.step_trace import StepTrace
from .cache import STAGE_BACKWARD, STAGE_FORWARD, Cache, Mode
from .report import Progress
from .store import Path, Store, choice
from .wear import Cap

if TYPE_CHECKING:
    from ._params.materialize import materialize
    from ._params.parameters import Parameters
    from ._recompute.operations import Operations
    from ._optim.ranks import newest_of_all
    from .optimizer import Optimizer

__all__ = ["Mode", "Offload", "Optimizer", "ParameterStats", "Phase", "Recompute", "ScopePlan",
           "Sizes", "Stage", "layers_of", "materialize", "newest_of_all", "offload", "park",
           "parts_of", "rank_of_environment"]

_log = logging.getLogger("spillway")

Phase = Literal["forward", "backward"]
Stage = Tuple[int, Phase]  # of a micro-batch

_PHASES: Dict[Phase, int] = {"forward": STAGE_FORWARD, "backward": STAGE_BACKWARD}

_active = threading.local()

# Imported at the first use: other users need not wait for torch.optim.
_LATER = {"Optimizer": "optimizer", "newest_of_all": "_optim.ranks",
          "materialize": "_params.materialize"}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f".{_LATER[name]}", __package__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Offload(Reports, contextlib.ContextDecorator):
    """A context in which what autograd saves is spilled. Made by offload(); entered once per step,
    or once around a loop. As a decorator of a function it is entered in each call of that.

    Around such contexts it is the lifetime: the outer `with` of the module's example offloads
    nothing itself, and leaving it calls close(). It becomes that when the first context inside of
    it is entered before anything was saved. Without contexts inside nothing is closed, and the
    Offload can be entered again.

    Backward may run inside or after the context. A step begins with the first forward pass after
    a backward pass: where gradients are accumulated over several of each, every pair is a step of
    its own, and nothing need be said. Of a model that is never called itself (a normalizing flow's
    log_prob, a Gaussian process), it begins with the first tensor saved after a backward pass.
    """

    def __init__(self, model: nn.Module, cache: Cache, scopes: List[nn.Module],
                 exclude: Exclude = None, own_store: Optional[Store] = None,
                 progress: Union[bool, TextIO] = False, endurance_bytes: int = 0,
                 recompute: Recompute = "never", parameters: Optional[Parameters] = None,
                 report: Optional[Path] = None) -> None:
        self._model = model
        self._name = type(model).__name__  # reports have it when the model is gone
        self._parameters = parameters
        self._scopes = scopes
        self._exclude = exclude
        self._excluded_hooks = ModuleHook(self._excluded_enter), ModuleHook(self._excluded_leave)
        self._excluded_modules: Set[nn.Module] = set()  # that have them
        self._own_store = own_store
        # Others may have used the store.
        store = cache.store
        self._drives_before = [] if store is None else store.drive_stats()
        self._store_before = None if store is None else store.stats()
        self._since = time.monotonic()
        self._endurance_bytes = endurance_bytes
        self._session = Session(cache)
        self._session.device_of = _device_of
        self._resident = Resident()
        if cache.mode != "observe":
            self._session.heap = Mapped(cache.min_bytes)
        self._session.places = None if parameters is None else by_storage
        names = {module: name for name, module in model.named_modules()}
        self._recomputer: Optional[Recomputer] = None
        self._operations: Optional[Operations] = None
        may = may_recompute(self._session, recompute)
        if may and recompute != "operations":
            self._recomputer = Recomputer(
                self._session, model, {module: names.get(module) or type(module).__name__
                                       for module in scopes}, recompute)
        if may and not callable(recompute):
            from ._recompute.operations import Operations  # which looks for PyTorch's operations
            self._operations = self._session.operations = Operations(
                model, cache.min_bytes, self._recomputer)
        self._frozen = FrozenCopies(cache.min_bytes)
        self._report_paths = asked(
            0 if self._store_before is None else self._store_before.partition, report)
        cache.last_use = weakref.WeakMethod(self._summarize)
        self._progress: Optional[Progress] = None
        if progress:
            self._progress = Progress(sys.stderr if progress is True else progress)
        self._hooks: Optional[SavedTensorsHooks] = None
        self._module_hooks = self._make_hooks()  # the same ones each time: compiled code asks
        self._resting = Resting(cache.leases)
        self._resting_hook: Optional[CallHook] = None
        self._pauses = 0
        self._handles: List[Any] = []
        self._active = False
        self._is_lifetime = False  # entered around contexts of itself: leaving that closes
        self._in_backward = False  # entered there: by a function that a checkpoint runs again
        # scopes entered and not left: whether the cache was told of it
        self._entered: List[bool] = []
        self._explicit_steps = False
        self._explicit_stages = False
        self._layers_ran = False  # one of them, once at least
        self._compiled_words = self._host_words = ""  # why spilling, or host_bytes, gains little
        self._called = False  # by itself, once at least: that tells where passes begin
        self._begun = False
        self._trace_path: Optional[Path] = None
        self._micro_batch = 0
        self._session.on_first_save = weakref.WeakMethod(self._first_save)
        self._session.begins = True
        self._entries = self._entries_begun = 0  # of the context: in all, when the step began
        # Something was saved in a backward pass of the step, to be differentiated again; and what
        # follows it was taken for a penalty on gradients.
        self._differentiable = self._penalty = False
        _note_made(model, cache.mode)

    def __del__(self) -> None:
        self._leave_report()  # if it was not closed

    def __call__(self, function: Any) -> Any:
        """As a decorator: each call of the function runs in the context.

        :raises TypeError: not a function: give the model to offload()
        """
        if not callable(function) or isinstance(function, nn.Module):
            raise TypeError(
                f"an Offload decorates functions, not {type(function).__name__}: run the forward "
                "pass of the model that offload() was given inside of `with off:`")
        return super().__call__(function)

    # ---- The context -----------------------------------------------------------------------------

    def _turn_to_lifetime(self) -> None:
        """Where the first context is entered again inside, before anything was saved in it."""
        here = self._is_here()
        if (self._active and here and self._entries == 1 and not self._called
                and not self.stats().offers):
            self._is_lifetime = True
            self._leave(False)

    def __enter__(self) -> "Offload":
        hook = self._resting_hook
        rests = hook is not None and self._resting.now
        if not rests:
            self._turn_to_lifetime()
        if self._active:
            raise RuntimeError(
                "this offload context is active already; leave it before entering it again (where "
                "an interrupt left it half way, by __exit__(None, None, None))")
        if getattr(_active, "offload", None) is not None:
            raise RuntimeError(
                "an offload context is active in this thread already: autograd serves only the "
                "innermost one: leave the first before entering the next")
        self._session.cache.handle  # a closed store is reported now, not in backward
        try:
            # From here on leaving it undoes what has been done, whatever comes in between.
            self._active, _active.offload = True, self
            self._entries += 1
            if hook is not None and rests:  # all that is not needed is left out
                self._in_backward = self._resting.listen(hook, hook.key, self._model, 0)
                return self
            self._in_backward = in_backward()
            self._see()
            # Compiled in place, it does not call its hooks.
            if getattr(self._model, "_compiled_call_impl", None) is not None:
                self._begin_step_if_due()
        except BaseException:
            if self._active:
                self.__exit__(None, None, None)
            raise
        return self

    def _see(self) -> None:
        """From now on what is saved is known, and where the model is."""
        checkpoint_inputs.install(_innermost)
        self._resting.light = False
        self._hooks = SavedTensorsHooks(self._session.pack, hooks_loader.hooks.unpack)
        if not self._pauses:
            self._push_hooks()
        self._refresh_excluded()
        for register, module, hook in self._module_hooks:
            self._handles.append(register(module, hook))

    def __exit__(self, *exc_info: Any) -> None:
        if self._is_lifetime and not self._active:
            self._is_lifetime = False
            self.close()
            return
        checked: List[bool]
        interrupted, checked, resting, hook = None, [], self._resting, self._resting_hook
        # A Ctrl-C meanwhile is raised afterwards: in a notebook, training goes on after it.
        while not checked or self._active:
            try:
                if (resting.light and hook is not None
                        and self._is_here()
                        and resting.mute(hook.key, self._model)):
                    checked.append(False)
                    self._active, _active.offload = False, None
                    continue
                if not checked:
                    checked.append(self._check_leaving())
                self._leave(checked[0])
            except KeyboardInterrupt as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted
        if resting.now:
            if resting.is_due():
                self._rested()
            return
        self._session.drain()
        self._look_for_layers()
        self._look_for_a_device()
        self._write_trace()
        # Else the step may go on: its end is reported when it is known.
        if self._session.unpacked and not self._explicit_steps:
            self._tell_progress()

    def _push_hooks(self) -> None:
        assert self._hooks is not None
        if are_mutations_allowed():
            _log.warning("saved tensors may be modified in place here "
                         "(allow_mutation_on_saved_tensors): everything is kept in memory")
            return
        try:
            self._hooks.push()
        except RuntimeError as error:
            # disable_saved_tensors_hooks(), or a transform that cannot have them. Training goes on
            # as without spillway.
            _log.warning(
                "PyTorch takes no hooks for saved tensors here: everything is kept in memory (%s)",
                error)

    def _check_leaving(self) -> bool:
        """Whether it is left within a backward pass."""
        if not self._is_here():
            raise RuntimeError(
                "this offload context is not active in this thread: PyTorch has hooks per thread, "
                "so leave it in the thread that entered it, and once")
        within = in_backward()
        if within and not self._in_backward:
            # Popped from the copy, the hooks would go and their place on the thread's own stack
            # stay.
            raise RuntimeError(
                "the offload context cannot be left inside of a backward pass, by a hook: leave it "
                "after backward() returns")
        return within

    def _leave(self, within_backward: bool) -> None:
        """If it is interrupted it is called again."""
        self._end_resting()
        if self._hooks is not None:
            self._leave_all()
            self._remove_handles()
            self._excluded_modules.clear()
            if within_backward == self._in_backward:
                self._hooks.pop()
            self._hooks = None
        self._active, _active.offload = False, None

    def _remove_handles(self) -> None:
        """Of hooks on modules."""
        while self._handles:
            self._handles[-1].remove()  # a second time it does nothing
            self._handles.pop()

    def close(self) -> None:
        """Close the cache. Tensors saved before can no longer be used for a backward pass. It still
        reports what it did, and does not keep the model for that."""
        if self._active:
            raise RuntimeError("leave the offload context before closing it")
        self._write_trace()
        self._tell_progress()
        if self._progress is not None:
            self._progress.end()
        self._session.tracer = None
        self._session.close()
        if self._own_store is not None:
            self._own_store.close()
        self._let_go()

    def _let_go(self) -> None:
        """Keeping this for its report must not keep the model, nor what is excluded of it."""
        self._model, self._recomputer, self._exclude = nn.Module(), None, None
        self._operations = self._session.operations = None
        self._scopes, self._module_hooks = [], []

    @property
    def closed(self) -> bool:
        """By close(), or with its store: it still reports what it did."""
        return self._session.cache.closed

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """For what PyTorch refuses where there are hooks on saved tensors: torch.func.grad, vjp,
        jacrev, hessian and vmap. What is saved inside stays in memory, as without spillway, and is
        not counted. Outside of the context it does nothing.

        :raises RuntimeError: other hooks on saved tensors were entered inside of the context
        """
        hooks = self._hooks if self._is_here() else None
        if hooks is not None and not hooks.pushed:  # paused already, or PyTorch took none
            hooks = None
        if hooks is not None:
            hooks.check_innermost()
            hooks.pop()
        self._pauses += 1
        self._resting.look_closer()
        try:
            yield
        finally:
            self._pauses -= 1
            if hooks is not None and hooks is self._hooks:
                hooks.push()

    def step(self) -> None:
        """A training step begins. Needed where a forward pass follows a backward pass in one step
        while tensors of another pass are still to be used, as in a pipeline; from the first call
        on it must be called in every step."""
        if self._resting.now:
            self._wake()
        self._explicit_steps, self._session.begins = True, False
        self._begin_step()

    def stage(self, micro_batch: int, phase: Phase, next: Optional[Stage] = None) -> None:
        """The schedule of a pipeline goes on to the forward or backward pass of a micro-batch: call
        it before each.

        From the first call on every pass must be named, and every step by step(): nothing is
        guessed any more.

        :param micro_batch: counted from 0 in each step; several model chunks per rank give each
            pair of micro-batch and chunk a number of its own
        :param phase: "forward" or "backward"
        :param next: the (micro_batch, phase) that comes after it, if that is known:
            prefetching continues into it
        :raises ValueError: no such phase, or a micro-batch below 0
        """
        here = _stage_of(micro_batch, phase)
        then = None if next is None else _stage_of(*next)
        if self._session.cache.forgotten:
            return
        if self._resting.now:
            self._wake()
        self._explicit_steps = self._explicit_stages = True
        self._session.begins = False
        if not self._begun:
            self._begin_step()
        if then is None:
            self._session.cache.call(fast.spw_cache_stage, *here)
        else:
            self._session.cache.call(fast.spw_cache_stage_next, *here, *then)
        self._session.border()
        if self._session.tracer is not None:
            self._session.tracer.mark(f"{phase} {micro_batch}")
        self._session.drain()

    def _begin_step_if_due(self) -> None:
        """Called with the first forward pass after a backward pass."""
        due = self._session.unpacked or self._penalty or not self._begun
        if due and not self._explicit_steps:
            self._begin_step()

    def _begin_step(self) -> None:
        # A child of fork(), a worker of a data loader perhaps: it keeps what it saves.
        if self._session.cache.forgotten:
            return
        self._next_trace()
        self._tell_progress()
        step_begins()
        session = self._session
        if self._recomputer is not None:
            self._recomputer.step_begins()
        if self._operations is not None:
            self._operations.step_begins()
        self._frozen.step_begins()
        self._set_packer()
        self._resting.answered(session.cache.call(fast.spw_cache_step_rest, self._may_rest()))
        session.border()
        if self._parameters is not None:
            self._parameters.begin_step()
        session.steps += 1
        if session.steps == 2:
            _offloads_made.pop(self._model, None)
        self._begun, self._entries_begun = True, self._entries
        self._micro_batch = 0
        session.unpacked = self._differentiable = self._penalty = False
        session.prune()
        if self._resting.now:
            self._rest()

    def _set_packer(self) -> None:
        """As long as there is nothing else to do, saving stays in C."""
        operations = self._operations
        self._session.operations = self._frozen.packer(
            None if operations is None or operations.is_idle() else operations)

    # ---- Steps that rest -------------------------------------------------------------------------

    def _may_rest(self) -> bool:
        """Whether a step that begins need not be seen, if its plan moves nothing. It is known only
        of a model that is called once in a step; and not while something is done in every step."""
        session, operations = self._session, self._operations
        return (self._micro_batch == 1 and self._resting.may()
                and not (self._explicit_steps or self._differentiable or self._penalty
                         or session.discards_all)
                and self._progress is None and self._parameters is None and session.tracer is None
                and (operations is None or operations.is_idle())
                and self._hooks is not None and self._hooks.are_innermost()
                and self._pauses == 0 and not in_backward() and not has_compiled()
                and self._model not in self._scopes)

    def _rest(self) -> None:
        """The step that has begun with a call of the model does, and the next may. From now on only
        such calls are known."""
        assert self._hooks is not None
        self._hooks.pop()
        self._remove_handles()
        self._excluded_modules.clear()
        self._session.excluding = 0
        if self._resting_hook is None:
            self._resting_hook = CallHook(self._resting, self._model, self._resting_enter)
        self._resting.listen(self._resting_hook, self._resting_hook.key, self._model, 1)

    def _resting_enter(self, module: nn.Module, args: Any, kwargs: Any = None) -> None:
        """The model is called in a context that rests, and C does not know the call."""
        resting, session = self._resting, self._session
        if (session.cache.forgotten or not self._is_here()
                or not resting.now or self._pauses or in_backward()):
            return  # hooks that another thread pushed would stay there
        if not torch.is_grad_enabled():  # an evaluation: not a step
            resting.calls += 1
            return
        if innermost_hooks() != resting.beneath:
            return  # pushed above those of others, ours would be popped in their stead
        if self._trace_path is not None or not resting.is_like(module, args, kwargs):
            self._wake()
            self._model_enter(module, args, kwargs)
            return
        resting.goes_on(session.cache.call(fast.spw_cache_step_rest, True))
        if resting.is_look():
            self._resident.look()

    def _rested(self) -> None:
        """The context is left."""
        resting = self._resting
        if not self._session.cache.closed:
            resting.drain(self._session)
        if (resting.last or not resting.calls) and not self._in_backward:
            self._wake()

    def _wake(self) -> None:
        """The next step is seen: it begins with the next call of the model."""
        self._resting.now, self._session.unpacked = False, True
        self._end_resting()
        self._remove_handles()
        if self._active:
            self._see()

    def _end_resting(self) -> None:
        """In this context: twice does nothing more."""
        self._resting.light = False
        if self._resting_hook is not None:
            self._resting.mute(self._resting_hook.key, self._model)

    def _refresh_excluded(self) -> None:
        """The model may have been changed since."""
        model = self._model
        things = excluded_of(model, self._exclude)
        tensors = (thing for thing in things if isinstance(thing, Tensor))
        self._session.excluded = identities(
            itertools.chain(model.parameters(), model.buffers(), tensors))
        for module in things:
            if isinstance(module, nn.Module) and module not in self._excluded_modules:
                self._excluded_modules.add(module)
                self._handles.append(module.register_forward_pre_hook(self._excluded_hooks[0]))
                self._handles.append(module.register_forward_hook(self._excluded_hooks[1]))

    def _next_trace(self) -> None:
        session = self._session
        if session.tracer is None and self._trace_path is None:
            return
        self._write_trace()
        session.tracer = None
        if self._trace_path is not None:
            session.tracer = StepTrace(self._trace_path, self.stats())
            self._trace_path = None
        session.watch()

    # ---- Where the model is ----------------------------------------------------------------------

    def _make_hooks(self) -> List[Tuple[Callable[..., Any], nn.Module, ModuleHook]]:
        before, after = nn.Module.register_forward_pre_hook, nn.Module.register_forward_hook
        hooks: List[Tuple[Callable[..., Any], nn.Module, ModuleHook]] = [
            (register_forward_pre_hook, self._model, ModuleHook(self._model_enter)),
            (after if self._operations is None else register_forward_hook_always, self._model,
             ModuleHook(self._model_leave))]
        names = {id(module): name for name, module in self._model.named_modules()}
        for key, module in enumerate(self._scopes, 1):
            name = names.get(id(module)) or type(module).__name__
            if self._recomputer is None or not self._recomputer.may(module):
                hooks += [(before, module, ModuleHook(self._scope_enter, key, name)),
                          (after, module, ModuleHook(self._scope_leave))]
            else:
                hooks += [(register_forward_pre_hook, module,
                           ModuleHook(self._scope_enter, key, name)),
                          (register_forward_hook_always, module, ModuleHook(self._scope_leave))]
        return hooks

    def _is_here(self) -> bool:
        """Whether this thread is in the context: any thread that calls a module calls its hooks."""
        return getattr(_active, "offload", None) is self

    def _excluded_enter(self, _module: nn.Module, _args: Any) -> None:
        if self._is_here():
            self._session.excluding += 1

    def _excluded_leave(self, _module: nn.Module, _args: Any, _result: Any) -> None:
        if self._is_here():
            self._session.excluding = max(0, self._session.excluding - 1)

    def _model_enter(self, _module: nn.Module, args: Any, kwargs: Any = None) -> None:
        if (not torch.is_grad_enabled() or self._session.cache.forgotten
                or not self._is_here()):
            return
        self._leave_all()  # of a forward pass that raised
        self._refresh_excluded()
        self._session.excluded |= identities(tensors_in((args, kwargs)))
        self._called, self._session.begins = True, False
        self._resting.called(self._model, args, kwargs)
        self._begin_pass()
        if self._operations is not None:
            self._operations.watch_begins()
        if self._frozen.watch_begins(self._model, self._resting.trained):
            # Else an exception that the caller handles would leave the mode behind.
            self._handles.append(register_forward_hook_always(
                self._model, ModuleHook(self._watch_leave)))
        self._set_packer()

    def _first_save(self) -> None:
        """After a backward pass, of a model that has not been called itself."""
        session = self._session
        if not self._active or session.cache.forgotten:
            return
        if in_backward():
            self._differentiable = self._differentiable or not (self._entered or in_checkpoint())
        elif self._differentiable and self._entries == self._entries_begun:
            # What follows a backward pass that had a graph of its own, in the same context, is a
            # penalty on its gradients: the step goes on, unless a layer runs.
            self._differentiable = session.unpacked = False
            self._penalty = True
        else:
            self._refresh_excluded()
            self._begin_pass()

    def _begin_pass(self) -> None:
        self._begin_step_if_due()
        if not self._explicit_stages and not self._resting.now:
            self._session.cache.call(fast.spw_cache_stage, self._micro_batch, STAGE_FORWARD)
            self._micro_batch += 1

    def _model_leave(self, _module: nn.Module, _args: Any, _result: Any) -> None:
        if not self._is_here():
            return
        self._leave_recomputing()
        self._session.drain()
        self._resident.look()

    def _watch_leave(self, _module: nn.Module, _args: Any, _result: Any) -> None:
        if self._is_here() and self._frozen.watch_ends():
            self._set_packer()

    def _leave_recomputing(self) -> None:
        if self._frozen.watch_ends():
            self._set_packer()
        if self._recomputer is not None:
            self._recomputer.forget()
        if self._operations is not None:
            self._operations.watch_ends()
            self._operations.forget()

    def _scope_enter(self, key: int, name: str, module: nn.Module, args: Any,
                     kwargs: Any = None) -> None:
        session = self._session
        if not self._is_here():
            return
        self._layers_ran = True
        # A checkpoint that recomputes stops once it has what it needs (PyTorch 2.1): the exit hook
        # does not run then.
        reported = torch.is_grad_enabled() and not session.cache.forgotten and not in_backward()
        if self._recomputer is not None and not self._recomputer.is_scope(module):
            reported = False
        self._entered.append(reported)
        due = session.unpacked or self._penalty or not self._begun
        if reported and due and not self._called and not self._explicit_steps:
            self._refresh_excluded()
            # Of a model whose parts alone are called, as by model.training_step().
            self._begin_pass()
        if reported:
            session.cache.call(fast.spw_cache_scope_enter, key)
            session.border()
            if session.tracer is not None:
                session.tracer.begin(name)
            session.drain()
            if self._recomputer is not None and self._hooks is not None and self._hooks.pushed:
                self._recomputer.enter(module, (args, kwargs or {}))

    def _look_for_layers(self) -> None:
        """Say once, where a step has passed, that none was seen because of torch.compile."""
        cache = self._session.cache
        if (self._layers_ran or self._compiled_words or not self._scopes or cache.closed
                or not has_compiled() or any(map(is_compiled, self._scopes))
                or not self.stats().offers):
            return
        model = type(getattr(self._model, "_orig_mod", self._model)).__name__
        self._compiled_words = (
            f"torch.compile is in use, and none of the {len(self._scopes)} layers of {model} ran "
            "by itself: a model that is compiled as one piece takes back all that it saved when "
            "its backward pass begins, so that spilling frees little memory and wears the drives. "
            "Compile each layer, torch.compile(layer), instead of the whole model")
        if cache.mode != "observe":
            _log.warning("%s", self._compiled_words)

    def _look_for_a_device(self) -> None:
        """Say once, if host_bytes is given, that something was saved and nothing of a device. The
        model may move to one later."""
        cache = self._session.cache
        if not cache.host_bytes or self._session.device is not None:
            self._host_words = ""
        elif not self._host_words and not cache.closed and self.stats().offers:
            self._host_words = (
                "host_bytes has no use: it keeps copies of tensors of a GPU, and the model saved "
                "none that spillway can copy")
            _log.warning("%s%s", self._host_words, "" if cache.store is not None else
                         ". Without drives all stays in memory, or is recomputed")

    def _scope_leave(self, module: nn.Module, _args: Any, result: Any) -> None:
        if not self._is_here():
            return
        if self._entered and self._entered.pop() and not self._session.cache.forgotten:
            if self._recomputer is not None:
                self._recomputer.leave(module, result)
            self._session.cache.call(fast.spw_cache_scope_leave)
            if self._session.tracer is not None:
                self._session.tracer.end()
            self._session.drain()

    def _leave_all(self) -> None:
        self._session.excluding = 0
        if self._recomputer is not None:
            self._recomputer.abandon()
        self._leave_recomputing()
        while self._entered:
            if self._entered.pop() and not self._session.cache.closed:
                with contextlib.suppress(SpillwayError):  # closed by another thread since
                    self._session.cache.call(fast.spw_cache_scope_leave)
                if self._session.tracer is not None:
                    self._session.tracer.end()

    # ---- What it holds ---------------------------------------------------------------------------

    def parameters_to_memory(self) -> None:
        """Bring all parameters back into memory, for good.

        :raises SpillwayError: one cannot be read
        """
        if self._parameters is not None:
            self._parameters.to_memory()
            self._parameters, self._session.places = None, None

    def park(self, *others: What) -> Parked:
        """park() the model, and others such as its optimizer, on the store of this Offload.

        :raises RuntimeError: the context is active
        :raises ValueError: there are no drives
        """
        if self._active:
            raise RuntimeError("leave the offload context before park()")
        store = self._session.cache.store
        if store is None:
            raise ValueError("park() needs drives, and this Offload has none")
        return park(store, self._model, *others)

    def reset_peak(self) -> None:
        """Reset activation_peak_bytes."""
        self._session.cache.reset_peak()


# Of a model, how many offloads in a row were made and have not come to their second step.
_offloads_made: "weakref.WeakKeyDictionary[nn.Module, int]" = weakref.WeakKeyDictionary()
_MADE_MAX = 3


def _note_made(model: nn.Module, mode: str) -> None:
    """Warn once that an Offload created in each step never gets a plan."""
    if mode in ("spill", "observe"):
        return
    _offloads_made[model] = _offloads_made.get(model, 0) + 1
    if _offloads_made[model] == _MADE_MAX + 1:
        _log.warning(
            "offload() was called %d times for one %s, and none of them saw a second step: the "
            "first is measured, and later ones follow its plan. Make it once, before the loop, "
            "and enter that `with off:` in each step", _MADE_MAX + 1, type(model).__name__)


def _innermost() -> Optional[Session]:
    """Whose hooks save what is saved now in this thread; None: other hooks, or none."""
    off: Optional[Offload] = getattr(_active, "offload", None)
    hooks = None if off is None else off._hooks
    return off._session if off is not None and hooks and hooks.are_innermost() else None


def _device_of(device: torch.device, cache: Cache) -> Any:
    from ._gpu.device_tensors import device_tensors  # only if there are such tensors

    return device_tensors(device, cache)


def _stage_of(micro_batch: int, phase: Phase) -> Tuple[int, int]:
    return library.number("micro_batch", micro_batch, 32), choice("phase", phase, _PHASES)


def _listed(exclude: Exclude) -> Exclude:
    """An iterator gives its things once."""
    if exclude is None or callable(exclude) or isinstance(exclude, Tensor):
        return exclude
    return list(exclude)


def offload(
    model: nn.Module,
    store: Union[None, Store, Path, Sequence[Path]],
    *,
    mode: Mode = "fastest",
    budget_bytes: Optional[Size] = None,
    sizes: Sizes = Sizes(),
    scopes: Scopes = None,
    exclude: Exclude = None,
    rank: Optional[int] = None,
    record: Optional[Path] = None,
    progress: Union[bool, TextIO] = False,
    wear: Optional[Cap] = None,
    endurance_bytes: Size = 0,
    recompute: Recompute = "never",
    parameters: bool = False,
    host_bytes: Optional[Size] = None,
    report: Optional[Path] = None,
    **former: Size,
) -> Offload:
    """A context manager that spills what autograd saves onto a store. See the module's text for
    use. Numbers of bytes may be words, as on the command line: "64KiB", "1.5G", "4GB".

    :param model: used to know parameters, buffers and layers; not changed
    :param store: an open store; or the drives of one, opened on the partition of this rank and
        closed by close(); None in mode "observe", or recompute or host_bytes where it plans
    :param mode: "fastest": after a first step that is only measured, plan the lowest peak without
        waiting for drives; "budget": plan the fewest bytes written such that activations fit
        budget_bytes; "spill": by a fixed rule, all but what the backward pass needs first;
        "observe": keep everything and count what plain training holds
    :param budget_bytes: with mode "budget": most bytes of activations in memory
    :param sizes: other sizes, none of which need be given: see Sizes
    :param exclude: what is never written: modules (all that is saved while one runs its forward)
        and tensors, or a function of (name, module)
    :param rank: the partition for this process, of a store with as many as there are ranks on the
        machine; default: LOCAL_RANK and the like from the environment, else any that is free
    :param progress: True (standard error), or a text file: a line per step
    :param record: a file for a trace of the cache, for ``spillway plan``; complete after close()
    :param wear: the most that is written: bytes per day ("2TB/day", or a number), or how long the
        drives must last ("5 years", from now on). Beyond it tensors are kept in memory; the log
        says so once. State and parameters on this store are written in any case, and count too
    :param endurance_bytes: that each drive may be written in its life, by its maker ("600TB");
        default: by its health page, which it takes root to read. report() says how long they last
    :param recompute: "operations": recompute single cheap operations, such as norms and activation
        functions, in the backward pass; "auto": and scopes, where that costs less than keeping or
        spilling their tensors; a function of (name, module): only scopes for which it is true.
        Modes "fastest" and "budget", PyTorch 2.1 or later. docs/GUIDE.md, *Recomputing*
    :param scopes: modules after which the cache decides: a list, or a function of (name, module);
        default: the children of the outermost ModuleLists and Sequentials; see parts_of()
    :param parameters: are on the drives, too, and in memory while they are used or about to be; the
        store must be open, and the optimizer made afterwards. docs/STATE.md, *Parameters*
    :param host_bytes: of host memory, for parameters=True and a GPU's copies: docs/GUIDE.md
    :param report: a file that close() writes: a page for a browser; figures, if it ends in .json
    :param former: deprecated: the sizes of Sizes as keywords
    :raises SpillwayError: the store is closed; no memory; it is too small for the parameters
    """
    sizes = with_former(sizes, former)
    check_arguments(model, mode, budget_bytes, sizes, store, recompute, host_bytes)
    endurance_bytes = library.size("endurance_bytes", endurance_bytes)
    check_folder(report)
    exclude = _listed(exclude)
    excluded_of(model, exclude)  # what is wrong with it is reported now
    scope_modules = scopes_of(model, scopes, recompute != "never")
    opened, own = opened_store(store, rank)
    cache = cache_of(
        opened, own, sizes, mode=mode, memory_bytes=budget_bytes, record=record, wear=wear,
        record_model=type(model).__name__, endurance_bytes=endurance_bytes, host_bytes=host_bytes)
    return Offload(model, cache, scope_modules, exclude, own, progress, endurance_bytes, recompute,
                   parameters_of(model, opened, own, cache, parameters, sizes.parameter_bytes),
                   report)
