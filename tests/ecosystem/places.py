# SPDX-License-Identifier: MIT
# tests/ecosystem/places.py - folders and drives of a test, and how several ranks are started
import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import spillway
import spillway.torch

# Arguments of Python.
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@contextlib.contextmanager
def a_folder():
    """On a file system that takes O_DIRECT (a temporary one may be in memory)."""
    path = tempfile.mkdtemp(prefix="spillway-ecosystem.", dir=os.environ.get("TMPDIR", "/var/tmp"))
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path)


def make_drives(folder, partitions=1):
    """Two, with an empty store."""
    paths = [str(folder / name) for name in ("drive0", "drive1")]
    for path in paths:
        with open(path, "wb") as file:
            file.truncate(256 << 20)
    spillway.format_store(paths, partitions=partitions)
    return paths


def on_two_ranks(file, *arguments, folder):
    """A program under torchrun, as Popen; what it says of errors is in its output."""
    return subprocess.Popen(
        [sys.executable, *TORCHRUN, str(file), *map(str, arguments)], text=True, cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def wait_after_layers(model, off):
    """So small a model is done before a drive has written anything.

    :param off: a function that returns the context, or None while there is none
    """
    def wait(_layer, _args, _result):
        context = off()
        while context is not None and context.stats().staging_bytes:
            time.sleep(0.001)

    for layer in spillway.torch.layers_of(model):
        layer.register_forward_hook(wait)


def bits_of(model):
    """A digest of its parameters; of what is sharded, of this rank's part."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        mine = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        digest.update(mine.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
