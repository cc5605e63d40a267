# SPDX-License-Identifier: MIT
# spillway/_offload/module_hook.py - a method as a module's hook
from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable

from .._core.torch_compat import is_compiling


class ModuleHook:
    """A method that is a module's hook. It does nothing in a copy of the module, in one that was
    saved and loaded, and in what torch.compile compiles as one piece, where there are no modules
    any more."""

    __slots__ = ("_method", "_first")

    def __init__(self, method: Callable[..., None], *first: Any) -> None:
        # Holding the hooks does not keep the object alive.
        self._method = weakref.WeakMethod(method)
        self._first = first

    def __call__(self, *arguments: Any) -> None:
        if not is_compiling():
            method = self._method()
            if method is not None:
                method(*self._first, *arguments)

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")
