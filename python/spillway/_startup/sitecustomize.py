# SPDX-License-Identifier: MIT
# spillway/_startup/sitecustomize.py - let DeepSpeed swap to a store in an unmodified program
"""Python imports this when it starts, because `spillway run --deepspeed` puts its folder first
on PYTHONPATH. After the program has imported DeepSpeed, this calls spillway.deepspeed.install()."""
from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from typing import Any, Optional

_HERE = os.path.dirname(os.path.abspath(__file__))
# Set by `spillway run --deepspeed`: names of drives, one a line.
_VARIABLE = "SPILLWAY_DEEPSPEED"


class _Follower:
    """An import finder that finds DeepSpeed by the other finders, and installs spillway after
    its import."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        if name != "deepspeed":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def run_and_install(module: Any) -> None:
                run(module)
                _install()

            loader.exec_module = run_and_install
        return spec


def _install() -> None:
    try:
        from spillway.deepspeed import install
    except ImportError as error:
        raise ImportError(
            f"spillway run --deepspeed: {sys.executable} has no package spillway that works "
            f"({error}): install it there (pip install; docs/INSTALL.md)") from error
    install(os.environ[_VARIABLE].split("\n"))


def _import_the_next() -> None:
    """Import the sitecustomize that this one hides, such as the system's."""
    mine = sys.modules.pop("sitecustomize")
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", mine)


_import_the_next()
if os.environ.get(_VARIABLE):
    sys.meta_path.insert(0, _Follower())
