# SPDX-License-Identifier: MIT
# spillway/_report/files.py - write reports as files; `spillway report`: a page from a JSON report
from __future__ import annotations

import itertools
import os
import sys
from typing import List, Optional

from ..store import Path
from .html import page_of
from .run_record import Run, json_of, run_of

# Environment variable set by `spillway run --report`: the path to which each Offload writes its
# report when it is closed.
_VARIABLE = "SPILLWAY_REPORT"
# Variables with the rank of a process, set by torchrun and other launchers.
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "SLURM_PROCID")

_numbers = itertools.count(1)  # numbers of the reports of this process


def asked(partition: int, path: Optional[Path]) -> List[str]:
    """The files for the report of a new Offload; each rank gets its own file, and each further
    Offload in a process its own of those that `spillway run --report` asks for.

    :param partition: its partition of the store, which distinguishes processes that are not ranks
    :param path: one that the program asks for
    """
    paths = []
    if path is not None:
        stem, ending = os.path.splitext(os.fspath(path))
        paths.append(_own(stem, partition) + ending)
    if os.environ.get(_VARIABLE):
        stem, ending = os.path.splitext(os.environ[_VARIABLE])
        number = next(_numbers)
        paths.append(_own(stem, partition) + (f".{number}" if number > 1 else "") + ending)
    return paths


def check_folder(path: Optional[Path]) -> None:
    """:raises OSError: a file cannot be there, as there is no folder"""
    if path is not None:
        os.stat(os.path.dirname(os.fspath(path)) or ".")


def _own(stem: str, partition: int) -> str:
    rank = next((os.environ[name] for name in _RANKS if os.environ.get(name, "").isdigit()), "")
    if rank:
        return f"{stem}.rank{rank}"
    return f"{stem}.partition{partition}" if partition else stem


def save(run: Run, path: Path) -> None:
    """Write a report: as JSON if the name ends in .json, else as a page.

    :raises OSError: it cannot be written
    """
    write(json_of(run) if os.fspath(path).endswith(".json") else page_of(run), path)


def write(text: str, path: Path) -> None:
    """:raises OSError: it cannot be written"""
    # The name of a drive may not be valid UTF-8.
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def main(arguments: List[str]) -> int:
    """`spillway report RUN.json PAGE.html`. Return: the exit status."""
    source, page = arguments
    try:
        with open(source, encoding="utf-8") as file:
            run = run_of(file.read())
        write(page_of(run), page)
    except OSError as error:
        print(f"spillway report: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"spillway report: {source}: {error}", file=sys.stderr)
        return 1
    print(page)
    return 0
