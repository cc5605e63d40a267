# SPDX-License-Identifier: MIT
# spillway/integrations/_training.py - the offload context of a trainer that calls back
from __future__ import annotations

import logging
import sys
import threading
from typing import Any, Dict, Optional, Sequence, Union

import torch
from torch import nn

from ..cache import CacheStats
from ..store import Path, Store
from ..torch import Mode, Offload, offload

Devices = Union[None, Store, Path, Sequence[Path]]

_log = logging.getLogger("spillway")
_here = threading.local()


class Training:
    """Between begin() and end() the store is open; between enter() and leave() what autograd saves
    is spilled. Each may be called at any time: what it undoes may be undone already."""

    def __init__(self, devices: Devices, options: Dict[str, Any]) -> None:
        self._devices, self.options = devices, options
        self.off: Optional[Offload] = None  # of the training that began last
        self._open = self._entered = False

    def begin(self, model: nn.Module) -> None:
        """Trainers have no callback for an exception or Ctrl-C that ends a training: it is over
        when this thread begins the next."""
        before: Optional[Training] = getattr(_here, "training", None)
        if before is not None:
            before.end()
        self.off = offload(model, self._devices, **self.options)
        self._open, _here.training = True, self

    def enter(self) -> None:
        """A forward pass comes, and then its backward pass."""
        if self.off is not None and self._open:
            if not self._entered:
                self.off.__enter__()
                self._entered = True
            self.off.step()

    def leave(self) -> None:
        if self._entered and self.off is not None:
            self._entered = False
            self.off.__exit__(None, None, None)

    def end(self) -> None:
        self.leave()
        if self.off is not None and self._open:
            self._open, _here.training = False, None
            self.off.close()
            self._tell()

    def _tell(self) -> None:
        """One line at the end, of the first rank, unless the log says it."""
        assert self.off is not None
        distributed = torch.distributed
        first = not (distributed.is_available() and distributed.is_initialized()
                     and distributed.get_rank() > 0)
        if first and not _log.isEnabledFor(logging.INFO) and self.off.stats().steps > 0:
            print(f"spillway: {self.off.summary()}", file=sys.stderr)


class TrainingCallback:
    """What the callbacks of all trainers have; each names its parameters for its users."""

    def __init__(self, devices: Devices, *, mode: Mode = "fastest", **options: Any) -> None:
        self._training = Training(devices, {"mode": mode, **options})

    @property
    def off(self) -> Optional[Offload]:
        """The context of the training that began last: off.report(), off.stats(), and while it
        trains off.trace(). None: none has begun."""
        return self._training.off

    @property
    def stats(self) -> Optional[CacheStats]:
        """The counters of the training that began last."""
        return None if self.off is None else self.off.stats()
