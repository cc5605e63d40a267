# SPDX-License-Identifier: MIT
# tests/python/test_package.py - installed by pip without network; the library by pkg-config; types
# layer: all
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import typing
from pathlib import Path

import pytest

import spillway
import spillway.torch
from conftest import ROOT

PRINT_PATH = "import spillway.torch; print(spillway._library.path)"


@pytest.fixture(scope="module")
def installed():
    """The folder that pip installed the package into, from a copy: pip builds inside of the
    source."""
    for needed in ("pip", "setuptools", "wheel"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"no {needed}")
    with tempfile.TemporaryDirectory(prefix="spillway-python.") as folder:  # pytest's own stay
        yield install(Path(folder))


def install(folder):
    shutil.copytree(ROOT / "python", folder / "source/python",
                    ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    shutil.copytree(ROOT / "include", folder / "source/include")
    clean = {name: value for name, value in os.environ.items() if name != "SPW_BUILD"}
    options = "--quiet --no-build-isolation --no-index --no-deps --no-compile".split()
    done = subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target",
                           folder / "site", folder / "source/python"],
                          capture_output=True, text=True, env=clean)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def run(site, **environment):
    clean = {name: value for name, value in os.environ.items() if name != "SPILLWAY_LIBRARY"}
    return subprocess.run([sys.executable, "-c", PRINT_PATH], capture_output=True, text=True,
                          cwd=site.parent, env={**clean, "PYTHONPATH": str(site), **environment})


def test_what_is_installed(installed):
    assert (installed / "spillway/py.typed").exists()
    assert {path.name for path in (ROOT / "python/spillway").rglob("*.py")} == {
        path.name for path in (installed / "spillway").rglob("*.py")}
    info = f"spillway-{spillway.__version__}.dist-info"
    assert {path.name for path in installed.iterdir()} == {"spillway", info}


def test_the_library_is_named(installed):
    done = run(installed, SPILLWAY_LIBRARY=os.environ["SPILLWAY_LIBRARY"])
    assert done.stdout.strip() == os.environ["SPILLWAY_LIBRARY"], done.stderr


def test_a_library_that_is_built_is_taken_along(installed, folder):
    """From a source tree after make: nothing has to be named."""
    (folder / "source/build").mkdir(parents=True)
    shutil.copy(os.environ["SPILLWAY_LIBRARY"], folder / "source/build/libspillway.so")
    site = install(folder)
    done = run(site, PATH="/nonexistent", PKG_CONFIG_PATH="/nonexistent")
    assert done.stdout.strip() == str(site / "spillway/libspillway.so"), done.stderr


def test_the_hooks_are_of_every_python(installed):
    """By its limited API: one file, that names no version of Python."""
    assert [path.name for path in (installed / "spillway").glob("*.so")] == ["_hooks.abi3.so"]


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="no pkg-config")
def test_the_library_is_found_by_pkg_config(installed, folder):
    libdir = folder / "lib"
    libdir.mkdir()
    shutil.copy(os.environ["SPILLWAY_LIBRARY"], libdir / "libspillway.so")
    text = (ROOT / "spillway.pc.in").read_text()
    for name, value in (("PREFIX", "/usr"), ("LIBDIR", libdir), ("VERSION", spillway.__version__)):
        text = text.replace(f"@{name}@", str(value))
    (libdir / "spillway.pc").write_text(text)
    done = run(installed, PKG_CONFIG_PATH=str(libdir))
    assert done.stdout.strip() == str(libdir / "libspillway.so"), done.stderr


def test_without_a_library_it_says_where_it_looked(installed):
    done = run(installed, PATH="/nonexistent", PKG_CONFIG_PATH="/nonexistent")
    if done.returncode == 0:
        pytest.skip("a library is installed in this system")
    assert "libspillway.so was not found; build it (make)" in done.stderr
    assert str(installed / "spillway/libspillway.so") in done.stderr


def test_everything_public_has_types_and_a_text():
    public = [getattr(module, name) for module in (spillway, spillway.torch)
              for name in module.__all__ if name[0] != "_"]
    public = [thing for thing in public if typing.get_origin(thing) is None]  # and no type's name
    for thing in public:
        assert thing.__doc__, thing
        methods = [thing] if not isinstance(thing, type) else [
            member for name, member in vars(thing).items() if callable(member) and name[0] != "_"]
        for function in methods:
            assert function.__doc__, function
            assert "return" in typing.get_type_hints(function), function
