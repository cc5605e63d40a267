# SPDX-License-Identifier: MIT
# spillway/demo/data.py - text to train on: the files of a source tree, as bytes
from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Iterator

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is open yet: no traceback

import torch
from torch import Tensor

_SUFFIXES = {".c", ".h", ".py", ".sh", ".md"}
_SKIP = {"build", "node_modules", "__pycache__"}


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders
                            if name not in _SKIP and not name.startswith((".", "build-")))
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix in _SUFFIXES and not path.is_symlink():
                yield path


def collect_text(root: Path) -> bytes:
    """All sources and documents below a folder, one after the other."""
    return b"".join(path.read_bytes() for path in _files(root))


def text_in(path: Path) -> bytes:
    """The text of a file, or of all files below a folder."""
    return collect_text(path) if path.is_dir() else path.read_bytes()


def tokens_of(text: bytes, at_least: int) -> Tensor:
    """One token per byte.

    :raises ValueError: there are fewer than ``at_least`` bytes
    """
    if len(text) < at_least:
        raise ValueError(f"the text has {len(text)} bytes, {at_least} are needed")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).to(torch.int64)


if __name__ == "__main__":
    # Write one text for all modes, so that edits between their runs do not matter.
    sys.stdout.buffer.write(collect_text(Path(sys.argv[1])))
