# SPDX-License-Identifier: MIT
# tests/ecosystem/conftest.py - stores on sparse files, for programs of other packages
"""What is imported is what pip has installed. Nothing is fetched: models are made of
configurations, data of numbers."""
import os
import shutil
import tempfile
from pathlib import Path

import pytest

for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
    os.environ[name] = "1"
# Small tensors gain nothing from two threads, and the order of sums is the same each time.
os.environ["OMP_NUM_THREADS"] = "1"

import spillway  # noqa: E402


@pytest.fixture
def folder():
    """A folder on a file system that takes O_DIRECT (a temporary one may be in memory)."""
    path = tempfile.mkdtemp(prefix="spillway-ecosystem.", dir=os.environ.get("TMPDIR", "/var/tmp"))
    yield Path(path)
    shutil.rmtree(path)


@pytest.fixture
def drives(folder):
    """Two drives with an empty store, which nobody may have open when the test has ended."""
    paths = [str(folder / name) for name in ("drive0", "drive1")]
    for path in paths:
        with open(path, "wb") as file:
            file.truncate(256 << 20)
    spillway.format_store(paths)
    yield paths
    spillway.Store(paths).close()
