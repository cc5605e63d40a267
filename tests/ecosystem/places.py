# SPDX-License-Identifier: MIT
# tests/ecosystem/places.py - folders and drives of a test, and how its processes are started
import contextlib
import hashlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path

import spillway
import spillway.torch
from spillway._core.handle import close_all, handles


@contextlib.contextmanager
def a_folder():
    """On a file system that takes O_DIRECT (a temporary one may be in memory)."""
    path = tempfile.mkdtemp(prefix="spillway-ecosystem.", dir=os.environ.get("TMPDIR", "/var/tmp"))
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path)


def make_drives(folder, partitions=1, size_bytes=256 << 20):
    """Two, with an empty store."""
    paths = [str(folder / name) for name in ("drive0", "drive1")]
    for path in paths:
        with open(path, "wb") as file:
            file.truncate(size_bytes)
    spillway.format_store(paths, partitions=partitions)
    return paths


class Forked:
    """A function in a child of this process, which has imported what takes long: as Popen.

    :param folder: where it works
    :param function: of nothing; what it prints is the output
    :param environment: what is added to it
    """

    def __init__(self, folder, function, environment=()):
        out, into = os.pipe()
        self._errors = tempfile.TemporaryFile("w+", dir=folder, encoding="utf-8")
        self.returncode = None
        self.pid = os.fork()
        if not self.pid:
            os.chdir(folder)
            os.environ.update(environment)
            self._become(function, into)
        os.close(into)
        self.stdout = os.fdopen(out, encoding="utf-8")

    def _become(self, function, into):
        status = 1
        try:
            os.dup2(into, 1)
            os.dup2(self._errors.fileno(), 2)
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
            sys.stderr = open(2, "w", encoding="utf-8", closefd=False)
            try:
                status = function() or 0
            except SystemExit as end:
                status = end.code
            close_all(handles)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def send_signal(self, number):
        os.kill(self.pid, number)

    def communicate(self):
        out = self.stdout.read()
        self.stdout.close()
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._errors.seek(0)
        errors = self._errors.read()
        self._errors.close()
        return out, errors

    def kill(self):
        """If it still runs."""
        if self.returncode is None:
            self.send_signal(signal.SIGKILL)
            self.communicate()


def fork_ranks(folder, function, count=2):
    """As torchrun starts them, but forked."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    common = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_PORT": str(port),
              "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "none"}
    return [Forked(folder, function, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(count)]


def wait_after_layers(model, off):
    """So small a model is done before a drive has written anything.

    From its second step on: in the first, what the backward pass needs next is not known yet, so
    that what step_peak_bytes says of a later one is what may be compared.

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
