# SPDX-License-Identifier: MIT
# spillway/_recompute/generators.py - the states of shared random generators
from __future__ import annotations

import functools
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


def _numpy_state(numpy: Any) -> Any:
    """Its bit generator, which may be exchanged, and the state of that."""
    generator = getattr(numpy, "get_bit_generator", lambda: None)  # from 1.24 on
    return generator(), numpy.get_state(legacy=False)


def _put_numpy_state(numpy: Any, state: Any) -> None:
    if state[0] is not None and state[0] is not numpy.get_bit_generator():
        numpy.set_bit_generator(state[0])
    numpy.set_state(state[1])


def _numpy_is_same(one: Any, other: Any) -> bool:
    return one[0] is other[0] and _is_equal(one[1], other[1])


def _is_equal(one: Any, other: Any) -> bool:
    """Nested dicts with numbers and arrays."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            _is_equal(value, other[key]) for key, value in one.items())
    same = one == other
    return bool(same.all() if hasattr(same, "all") else same)


def _states(generators: Iterable[Any]) -> List[_Generator]:
    return [_Generator(now(), now, put, is_same) for now, put, is_same in generators]


def _of_python() -> List[_Generator]:
    """Python's and NumPy's."""
    found: List[Any] = [(random.getstate, random.setstate, lambda one, other: one == other)]
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        found.append((functools.partial(_numpy_state, numpy),
                      functools.partial(_put_numpy_state, numpy), _numpy_is_same))
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
