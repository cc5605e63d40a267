# SPDX-License-Identifier: MIT
# tests/python/conftest.py - the library under test, and stores on sparse files
"""The library is SPILLWAY_LIBRARY, else that of SPW_BUILD, else build/libspillway.so."""
import contextlib
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "python/examples"
BUILD = Path(os.environ.get("SPW_BUILD", ROOT / "build"))
# One thread, here and in what the tests start: small tensors gain nothing from two, and on busy
# cores the threads of one pool wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("SPILLWAY_LIBRARY", str(BUILD / "libspillway.so"))
os.environ["PYTHONPATH"] = str(ROOT / "python")  # of what the tests start
sys.path.insert(0, str(ROOT / "python"))

import spillway  # noqa: E402


# To clear a store's memory takes most of the time to open it: little where tests are many. In
# test_long all of it may become resident at any time.
ARENA_MIB = {"test_long": 8, "test_autograd": 16, "test_loops": 16, "test_pitfalls": 16}
LAYER = os.environ.get("SPW_TEST_LAYER", "all")
SEED = int(os.environ.get("SPW_SEED") or random.SystemRandom().randrange(1 << 31))


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


@pytest.fixture(autouse=True)
def computing_threads():
    """As many after a test as before: with more, the next one's sums have other bits than those of
    the programs that it starts."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 0
    yield
    if torch and torch.get_num_threads() != before:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def nothing_compiled():
    """As in a new process: in one that has compiled anything no step rests, and no operations are
    watched."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is not None:
        utils.counters.clear()


@pytest.fixture(autouse=True)
def seed():
    """Is in what pytest shows of a test that fails."""
    print(f"SPW_SEED={SEED}")


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


def make_store(folder, count=4, size_bytes=256 << 20, name="drive", **options):
    """Drives with an empty store that is not open.

    :param options: of format_store()
    """
    paths = make_drives(folder, count, size_bytes, name)
    spillway.format_store(paths, **options)
    return paths


@pytest.fixture
def drives(folder):
    return make_drives(folder)


@pytest.fixture
def formatted(drives):
    """Drives with an empty store that is not open."""
    spillway.format_store(drives)
    return drives


@pytest.fixture
def store(formatted, request):
    """An open store on four drives. It must be empty again when the test ends."""
    arena_bytes = ARENA_MIB.get(request.module.__name__, 64) << 20
    with spillway.Store(formatted, arena_bytes=arena_bytes) as opened:
        yield opened
        if not opened.closed:
            assert emptied(opened), f"the test left objects in the store: {opened.stats()}"


@pytest.fixture(scope="module")
def one_store():
    """The same for all tests of a file that has many: to make one takes longer than they do."""
    with tempfile.TemporaryDirectory(prefix="spillway-python.",
                                     dir=os.environ.get("TMPDIR", "/var/tmp")) as path:
        drives = make_drives(Path(path), 2, 64 << 20)
        spillway.format_store(drives)
        with spillway.Store(drives) as opened:
            yield opened


@pytest.fixture
def off(store):
    """An offload to which all goes that is saved. Nothing of it must be left when the test ends."""
    from offloading import left_in, offload_all

    context = offload_all(store)
    yield context
    gc.collect()
    assert left_in(context) == (0, 0, 0)


@pytest.fixture
def fake_state(monkeypatch):
    """Optimizers have their records in plain memory: fake_state.py."""
    import fake_state as fake
    import torch
    from spillway import optimizer
    from spillway._optim import records

    torch.manual_seed(SEED)
    monkeypatch.setattr(records, "State", fake.FakeState)
    monkeypatch.setattr(records, "committed_records", fake.committed_records)
    monkeypatch.setattr(optimizer, "committed_extra", fake.committed_extra)


def given_back(drives):
    """No process has the store on them open any more."""
    spillway.Store(drives).close()


def options_of(**named):
    """As on a command line; lists are separated by commas."""
    words = []
    for name, value in named.items():
        value = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        words += ["--" + name.replace("_", "-"), value]
    return words


def tiny(**named):
    """Options of an example: a model as small as can be, and these."""
    return options_of(**{"layers": 2, "hidden": 64, "heads": 2, "sequence": 64, "batch": 2,
                         "steps": 3, "threads": 1, "text": ROOT / "tensor", **named})


def run_python(*arguments, env=(), **options):
    """A Python that finds the package, to its end."""
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True,
                          env={**os.environ, **dict(env)}, **options)


@contextlib.contextmanager
def started(*arguments, env=(), **options):
    """The same while it runs, in a group of its own, its standard error to be read; it is killed
    where the context ends."""
    process = subprocess.Popen([sys.executable, *map(str, arguments)], stderr=subprocess.PIPE,
                               text=True, start_new_session=True,
                               env={**os.environ, **dict(env)}, **options)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def emptied(store):
    """No object is left. One that was freed during its I/O goes when that has ended."""
    deadline = time.monotonic() + 10
    while store.stats().objects or store.stats().used_bytes:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True
