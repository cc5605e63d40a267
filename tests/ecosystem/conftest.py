# SPDX-License-Identifier: MIT
# tests/ecosystem/conftest.py - stores on sparse files, for programs of other packages
"""What is imported is what pip has installed. Nothing is fetched: models are made of
configurations, data of numbers."""
import os
import signal
import sys
from pathlib import Path

import pytest

for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
    os.environ[name] = "1"
# Small tensors gain nothing from two threads, and the order of sums is the same each time.
os.environ["OMP_NUM_THREADS"] = "1"
# As where the environment is activated: DeepSpeed compiles with its ninja, and what another ninja
# has compiled it compiles again.
os.environ["PATH"] = f"{Path(sys.prefix, 'bin')}:{os.environ['PATH']}"
os.environ["TORCH_EXTENSIONS_DIR"] = str(Path(sys.prefix, "torch_extensions"))
os.environ["DS_ACCELERATOR"] = "cpu"

# A shell that starts tests in the background has them, and what they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

import spillway  # noqa: E402
from places import a_folder, make_drives  # noqa: E402


@pytest.fixture
def folder():
    with a_folder() as path:
        yield path


@pytest.fixture
def drives(folder):
    """Two drives with an empty store, which no process may have open when the test has ended."""
    paths = make_drives(folder)
    yield paths
    spillway.Store(paths).close()
