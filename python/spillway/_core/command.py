# SPDX-License-Identifier: MIT
# spillway/_core/command.py - the command `spillway` of a wheel: runs the program in the package
from __future__ import annotations

import os
import sys
from typing import NoReturn

_PROGRAM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "spillway")


def main() -> NoReturn:
    """Becomes the program. What that needs of Python it finds in this one."""
    os.environ.setdefault("SPILLWAY_PYTHON", sys.executable)
    os.execv(_PROGRAM, ["spillway", *sys.argv[1:]])
