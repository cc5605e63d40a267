# SPDX-License-Identifier: MIT
# spillway/_gpu/recompute_check.py - whether a device recomputed what was discarded
"""The host does not read memory of a device, and does not wait for it. So sums of what is given up
stay on the device, are compared there with sums of what was computed again, and the host looks at
the result when the backward pass ends: before anybody has its gradients. It waits for the last
comparison then, and after that the device still has the backward pass of that scope to do. Where
gradients are used earlier, by hooks of parameters or by other ranks, it looks at once.
"""

from __future__ import annotations

import weakref
from typing import Any, ContextManager, Dict, List, Protocol, Tuple

import torch
from torch import Tensor, nn

from .._core.library import SpillwayError
from .._core.torch_compat import backward_number


class Computing(Protocol):
    """Who computes scopes again, and is told by verdicts: recompute.Again."""

    @property
    def computing(self) -> ContextManager[Any]:
        """For one thread at a time."""

    def gradients_leave_early(self) -> bool: ...

    def mismatched(self, module: nn.Module, why: str) -> SpillwayError: ...


class Verdict:
    """Of one scope that was computed again. Whoever uses what it gave calls expect()."""

    __slots__ = ("_verdicts", "_module", "sums", "_found", "_is_settled", "_differs")

    def __init__(self, verdicts: "Verdicts", module: nn.Module) -> None:
        self._verdicts = verdicts
        self._module = module
        # Then and now, of each tensor that is not compared yet.
        self.sums: List[Tuple[List[Tensor], List[Tensor]]] = []
        self._found: List[Tuple[Tensor, Any]] = []  # whether they differ, and when that is known
        self._is_settled = self._differs = False

    def expect(self) -> None:
        """The backward pass that this is called in, if any, ends well only if all is the same.

        :raises SpillwayError: ESTALE it is known already that it is not
        """
        with self._verdicts.again.computing:
            self._compare()
            if not self._is_settled:
                self._verdicts.settle_later(self)
            if self._differs:
                raise self._verdicts.again.mismatched(self._module, "its bytes differ")

    def _compare(self) -> None:
        """On the device."""
        by_device: Dict[torch.device, Tuple[List[Tensor], List[Tensor]]] = {}
        for each in self.sums:
            all_then, all_now = by_device.setdefault(each[0][0].device, ([], []))
            all_then += each[0]
            all_now += each[1]
        for device, (then, now) in by_device.items():
            differs = torch.ne(torch.cat(then), torch.cat(now)).any()
            self._found.append((differs, self._verdicts.event_on(device)))
        self.sums = []

    def settle(self) -> None:
        """Wait for what is known last, and say so.

        :raises SpillwayError: ESTALE it is not the same
        """
        while self._found:
            differs, event = self._found[-1]
            self._differs |= self._verdicts.read(differs, event)
            self._found.pop()
        self._is_settled = True
        if self._differs:
            raise self._verdicts.again.mismatched(self._module, "its bytes differ")


class _Pass:
    """A backward pass, which holds this until it has ended."""

    __slots__ = ("verdicts", "__weakref__")

    def __init__(self) -> None:
        self.verdicts: Dict[Verdict, None] = {}  # in the order of their scopes

    def end(self) -> None:
        """The last one first: others need not be waited for then."""
        for verdict in reversed(list(self.verdicts)):
            verdict.settle()


class Verdicts:
    """Those of one offload.

    :param table: as accelerator.Table
    """

    def __init__(self, again: Computing, table: Any) -> None:
        self.again = again
        self._table = table
        self._passes: "weakref.WeakValueDictionary[int, _Pass]" = weakref.WeakValueDictionary()
        self._streams: Dict[torch.device, Any] = {}  # to read by, that nothing else is given

    def settle_later(self, verdict: Verdict) -> None:
        """At the end of this backward pass; or at once, where nothing else is in time."""
        number = backward_number()
        found = self._passes.get(number)
        if number < 0 or (found is None and self.again.gradients_leave_early()):
            verdict.settle()
            return
        if found is None:
            found = _Pass()
            torch.autograd.Variable._execution_engine.queue_callback(found.end)
            self._passes[number] = found
        found.verdicts[verdict] = None

    def event_on(self, device: torch.device) -> Any:
        return self._table.record(self._table.current_stream(device))

    def read(self, differs: Tensor, event: Any) -> bool:
        """What the device has found, when it has come there: it goes on meanwhile."""
        if not self._table.done(event):
            self._table.finish(event)
        stream = self._streams.get(differs.device)
        if stream is None:
            stream = self._streams[differs.device] = self._table.new_stream(differs.device)
        with self._table.on(stream):
            return bool(differs)
