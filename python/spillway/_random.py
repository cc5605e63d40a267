# SPDX-License-Identifier: MIT
# spillway/_random.py - the states of generators that everybody draws from
from __future__ import annotations

import random
import sys
from typing import Any, Callable, Iterable, List, NamedTuple

import torch


class _Generator(NamedTuple):
    """One, with its state at some time."""

    state: Any
    now: Callable[[], Any]
    set: Callable[[Any], None]
    is_same: Callable[[Any, Any], bool]

    def is_as_it_was(self) -> bool:
        return self.is_same(self.state, self.now())


def _numpy_is_same(one: Any, other: Any) -> bool:
    """(name of the bit generator, key, position, whether there is a second Gaussian, that)"""
    return bool(one[0] == other[0] and one[2:] == other[2:] and (one[1] == other[1]).all())


def _states(generators: Iterable[Any]) -> List[_Generator]:
    return [_Generator(now(), now, put, is_same) for now, put, is_same in generators]


def _of_python() -> List[_Generator]:
    """Python's and NumPy's."""
    found: List[Any] = [(random.getstate, random.setstate, lambda one, other: one == other)]
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None and numpy.get_state()[0] == "MT19937":
        found.append((numpy.get_state, numpy.set_state, _numpy_is_same))
    return _states(found)


def is_everybodys(generator: Any) -> bool:
    """Whether it is one that is put back here."""
    numpy: Any = sys.modules.get("numpy.random")
    return any(generator is each for each in (
        torch.default_generator, getattr(random, "_inst", None),
        None if numpy is None else numpy.mtrand._rand))


class Random:
    """The states of the generators that PyTorch draws from: the host's, and those of devices whose
    backend has them; and of those that belong to Python and NumPy."""

    __slots__ = ("_pytorch", "_python")

    def __init__(self, devices: Iterable[torch.device]) -> None:
        found: List[Any] = [(torch.get_rng_state, torch.set_rng_state, torch.equal)]
        for device in devices:
            backend: Any = getattr(torch, device.type, None)
            if hasattr(backend, "get_rng_state"):
                found.append((
                    lambda backend=backend, device=device: backend.get_rng_state(device),
                    lambda state, backend=backend, device=device:
                        backend.set_rng_state(state, device), torch.equal))
        self._pytorch = _states(found)
        self._python = _of_python()

    def drop_unused(self) -> None:
        """Of Python's and NumPy's those that nothing was drawn from since."""
        self._python = [each for each in self._python if not each.is_as_it_was()]

    def restore(self) -> None:
        drawn = (each for each in self._python if not each.is_as_it_was())
        for each in (*self._pytorch, *drawn):
            each.set(each.state)
