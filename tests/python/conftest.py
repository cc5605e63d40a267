# SPDX-License-Identifier: MIT
# tests/python/conftest.py - the library under test, and stores on sparse files
"""The library is SPILLWAY_LIBRARY, else that of SPW_BUILD, else build/libspillway.so."""
import gc
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SPW_BUILD", ROOT / "build"))
# One thread, here and in what the tests start: small tensors gain nothing from two, and on busy
# cores the threads of one pool wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("SPILLWAY_LIBRARY", str(BUILD / "libspillway.so"))
sys.path.insert(0, str(ROOT / "python"))

import spillway  # noqa: E402


MANY_SMALL_TESTS = ("test_autograd", "test_changed", "test_loops", "test_pitfalls",
                    "test_tensors")
LAYER = os.environ.get("SPW_TEST_LAYER", "all")


def pytest_configure(config):
    config.addinivalue_line("markers", "rest: `make test` does not run it, `make test-all` does")


def pytest_collection_modifyitems(items):
    """Of a file that both layers run, each runs its own part."""
    mixed = {item.path for item in items if item.get_closest_marker("rest")}
    if LAYER == "test":
        items[:] = [item for item in items if not item.get_closest_marker("rest")]
    elif LAYER == "rest":
        items[:] = [item for item in items
                    if item.path not in mixed or item.get_closest_marker("rest")]


def pytest_collection_finish():
    """Tests that collect garbage need not look at PyTorch each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def folder():
    """A folder on a file system that takes O_DIRECT (a temporary one may be in memory)."""
    path = tempfile.mkdtemp(prefix="spillway-python.", dir=os.environ.get("TMPDIR", "/var/tmp"))
    yield Path(path)
    shutil.rmtree(path)


def make_drives(folder, count=4, size_bytes=256 << 20, name="drive"):
    paths = []
    for index in range(count):
        path = folder / f"{name}{index}"
        with open(path, "wb") as file:
            file.truncate(size_bytes)
        paths.append(str(path))
    return paths


@pytest.fixture
def drives(folder):
    return make_drives(folder)


@pytest.fixture
def store(drives, request):
    """An open store on four drives. It must be empty again when the test ends."""
    # To clear its memory takes most of the time to open one: little where tests are many.
    options = {}
    if request.module.__name__ in MANY_SMALL_TESTS:
        options["arena_bytes"] = 16 << 20
    spillway.format_store(drives)
    with spillway.Store(drives, **options) as opened:
        yield opened
        if not opened.closed:
            assert emptied(opened), f"the test left objects in the store: {opened.stats()}"


def emptied(store):
    """No object is left. One that was freed during its I/O goes when that has ended."""
    deadline = time.monotonic() + 10
    while store.stats().objects or store.stats().used_bytes:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True
