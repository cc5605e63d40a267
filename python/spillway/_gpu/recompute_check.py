# SPDX-License-Identifier: MIT
# spillway/_gpu/recompute_check.py - whether a device recomputed what was discarded
"""The host does not read device memory during a step, and does not wait for it. So checksums of
discarded tensors stay on the device and are compared there with those of the recomputed ones. The
host reads the result when the backward pass ends, before its gradients can be used. It waits for
the last comparison then, while the device still has the backward pass of that scope to do. Where
gradients are used earlier, by hooks of parameters or by other ranks, it reads the result at once.
"""

from __future__ import annotations

import weakref
from typing import Any, ContextManager, Dict, List, Protocol, Tuple

import torch
from torch import Tensor, nn

from .._core.library import SpillwayError
from .._core.torch_compat import backward_number


class Computing(Protocol):
    """What a verdict needs of recompute.Recomputer."""

    @property
    def computing(self) -> ContextManager[Any]:
        """A lock: one thread recomputes at a time."""

    def gradients_leave_early(self) -> bool: ...

    def mismatched(self, module: nn.Module, why: str) -> SpillwayError: ...


class Verdict:
    """The comparison of one recomputed scope. Call expect() before using its tensors."""

    __slots__ = ("_verdicts", "_module", "checksums", "_found", "_is_settled", "_differs")

    def __init__(self, verdicts: "Verdicts", module: nn.Module) -> None:
        self._verdicts = verdicts
        self._module = module
        # Discarded and recomputed, for each tensor that is not compared yet.
        self.checksums: List[Tuple[List[Tensor], List[Tensor]]] = []
        self._found: List[Tuple[Tensor, Any]] = []  # whether they differ; event of the result
        self._is_settled = self._differs = False

    def expect(self) -> None:
        """Make the current backward pass, if any, fail at its end unless all bytes are the same.

        :raises SpillwayError: ESTALE a difference is known already
        """
        with self._verdicts.recomputer.computing:
            self._compare()
            if not self._is_settled:
                self._verdicts.settle_later(self)
            if self._differs:
                raise self._verdicts.recomputer.mismatched(self._module, "its bytes differ")

    def _compare(self) -> None:
        """On the device."""
        by_device: Dict[torch.device, Tuple[List[Tensor], List[Tensor]]] = {}
        for each in self.checksums:
            all_then, all_now = by_device.setdefault(each[0][0].device, ([], []))
            all_then += each[0]
            all_now += each[1]
        for device, (then, now) in by_device.items():
            differs = torch.ne(torch.cat(then), torch.cat(now)).any()
            self._found.append((differs, self._verdicts.event_on(device)))
        self.checksums = []

    def settle(self) -> None:
        """Wait for all results.

        :raises SpillwayError: ESTALE the bytes differ
        """
        while self._found:
            differs, event = self._found[-1]
            self._differs |= bool(self._verdicts.read(differs, event))
            self._found.pop()
        self._is_settled = True
        if self._differs:
            raise self._verdicts.recomputer.mismatched(self._module, "its bytes differ")


class _Pass:
    """The verdicts of a backward pass, which holds this until it has ended."""

    __slots__ = ("verdicts", "__weakref__")

    def __init__(self) -> None:
        self.verdicts: Dict[Verdict, None] = {}  # in the order of their scopes

    def end(self) -> None:
        """The last one first: the others have ended then."""
        for verdict in reversed(list(self.verdicts)):
            verdict.settle()


class Verdicts:
    """All verdicts of an Offload.

    :param table: as accelerator.Table
    """

    def __init__(self, recomputer: Computing, table: Any) -> None:
        self.recomputer = recomputer
        self._table = table
        self._passes: "weakref.WeakValueDictionary[int, _Pass]" = weakref.WeakValueDictionary()
        self._streams: Dict[torch.device, Any] = {}  # for reading results only

    def settle_later(self, verdict: Verdict) -> None:
        """At the end of this backward pass; or at once where that would be too late."""
        number = backward_number()
        found = self._passes.get(number)
        if number < 0 or (found is None and self.recomputer.gradients_leave_early()):
            verdict.settle()
            return
        if found is None:
            found = _Pass()
            torch.autograd.Variable._execution_engine.queue_callback(found.end)
            self._passes[number] = found
        found.verdicts[verdict] = None

    def event_on(self, device: torch.device) -> Any:
        return self._table.record(self._table.current_stream(device))

    def has_come(self, event: Any) -> bool:
        return bool(self._table.done(event))

    def read(self, result: Tensor, event: Any) -> int:
        """Wait for a result; the device goes on with its other work."""
        if not self.has_come(event):
            self._table.finish(event)
        stream = self._streams.get(result.device)
        if stream is None:
            stream = self._streams[result.device] = self._table.new_stream(result.device)
        with self._table.on(stream):
            return int(result)
