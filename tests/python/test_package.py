# SPDX-License-Identifier: MIT
# tests/python/test_package.py - installed by pip, from its source distribution, without network
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

PRINT_PATH = "import spillway.torch; print(spillway._core.library.path)"


@pytest.fixture(scope="module")
def source():
    """A copy of the sources: pip builds inside of them."""
    for needed in ("pip", "setuptools", "wheel"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"no {needed}")
    with tempfile.TemporaryDirectory(prefix="spillway-python.") as folder:  # pytest's own stay
        copy = Path(folder) / "source"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(
            "build", "build-*", ".git", "__pycache__", "tests"))
        yield copy


@pytest.fixture(scope="module")
def installed(source):
    """The folder into which pip installed what a source distribution holds."""
    done = subprocess.run([sys.executable, "setup.py", "-q", "sdist", "-d", source.parent],
                          cwd=source, capture_output=True, text=True, env=clean())
    assert done.returncode == 0, done.stdout + done.stderr
    done = pip_install(source.parent / f"spillway-{spillway.__version__}.tar.gz",
                       source.parent / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    return source.parent / "site"


def clean(**environment):
    """What make hands on to the tests is not for another make."""
    left_out = {"SPILLWAY_LIBRARY", "SPW_BUILD", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONPATH"}
    given = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**given, "CFLAGS": "-O0", "LDFLAGS": "", **environment}


def pip_install(what, site, **environment):
    options = "--quiet --no-build-isolation --no-index --no-deps --no-compile".split()
    return subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", site,
                           what], capture_output=True, text=True, env=clean(**environment))


def run(site, **environment):
    return subprocess.run([sys.executable, "-c", PRINT_PATH], capture_output=True, text=True,
                          cwd=site.parent, env=clean(PYTHONPATH=str(site), **environment))


@pytest.fixture
def without_library(installed, folder):
    """The package as it is installed with a library that lies elsewhere."""
    shutil.copytree(installed, folder / "site", ignore=shutil.ignore_patterns("lib*.so*"))
    return folder / "site"


def test_what_is_installed(installed):
    assert (installed / "spillway/py.typed").exists()
    assert "stall_ns: int" in (installed / "spillway/_core/counted.pyi").read_text()
    assert {path.name for path in (ROOT / "python/spillway").rglob("*.py")} == {
        path.name for path in (installed / "spillway").rglob("*.py")}
    info = f"spillway-{spillway.__version__}.dist-info"
    assert {path.name for path in installed.iterdir()} == {"spillway", "bin", info}
    assert [path.name for path in (installed / "bin").iterdir()] == ["spillway"]


def test_the_library_is_named(installed):
    done = run(installed, SPILLWAY_LIBRARY=os.environ["SPILLWAY_LIBRARY"])
    assert done.stdout.strip() == os.environ["SPILLWAY_LIBRARY"], done.stderr


def test_the_library_and_what_it_needs_are_in_the_package(installed):
    """Nothing has to be installed or named."""
    done = run(installed, PATH="/nonexistent", PKG_CONFIG_PATH="/nonexistent")
    assert done.stdout.strip() == str(installed / "spillway/libspillway.so"), done.stderr
    program = PRINT_PATH + "; print(open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          cwd=installed, env=clean(PYTHONPATH=str(installed)))
    for name in ("liburing", "libaio", "libblkid", "libxxhash", "libjansson"):
        assert f"{installed}/spillway/{name}.so" in done.stdout, name


def test_the_hooks_are_of_every_python(installed):
    """By its limited API: one file, that names no version of Python."""
    assert [path.name for path in (installed / "spillway").glob("_*.so")] == ["_hooks.abi3.so"]
    tags = next(installed.glob("*.dist-info/WHEEL")).read_text()
    assert "Root-Is-Purelib: false" in tags and "Tag: cp311-abi3-" in tags, tags


def test_the_platform_is_what_the_libraries_ask_for(installed):
    tag = next(installed.glob("*.dist-info/WHEEL")).read_text().split("Tag: ")[1].strip()
    libraries = [installed / "spillway/spillway", *(installed / "spillway").glob("*.so*")]
    asked = subprocess.run(["objdump", "-T", *libraries], capture_output=True, text=True).stdout
    versions = {tuple(map(int, word.split("GLIBC_")[1].rstrip(")").split(".")))
                for word in asked.split() if "GLIBC_" in word and "PRIVATE" not in word}
    highest = ".".join(map(str, max(versions)[:2])).replace(".", "_")
    assert tag.startswith(f"cp311-abi3-manylinux_{highest}_"), tag


def test_the_command_is_there(installed, folder):
    """With what it needs, what it preloads, and the page of a run, which Python makes."""
    def command(*words):
        done = subprocess.run([installed / "bin/spillway", *words], capture_output=True, text=True,
                              cwd=folder, env=clean(PYTHONPATH=str(installed),
                                                    PATH="/usr/bin:/bin"))
        return done.returncode, done.stdout + done.stderr

    assert command("--version") == (0, f"spillway {spillway.__version__}\n")
    (folder / "drive").write_bytes(bytes(64 << 20))
    assert command("format", "drive")[0] == command("check", "drive")[0] == 0
    assert command("format", "drive", "--partitions", "none")[0] == 2
    code, maps = command("run", "--", "cat", "/proc/self/maps")
    assert code == 0 and str(installed / "spillway/libspillway_malloc.so") in maps
    (folder / "run.json").write_text("{}")
    assert command("report", "run.json") == (
        1, "spillway report: run.json: it is not a report of spillway in JSON\n")


def test_without_a_compiler_the_build_says_what_is_missing(source, folder):
    (folder / "bin").mkdir()
    for name in ("make", "objdump", "bash", "sh"):
        (folder / "bin" / name).symlink_to(shutil.which(name))
    done = pip_install(source, folder / "site", PATH=str(folder / "bin"))
    assert done.returncode != 0
    assert "its library is built from C, and gcc is not there" in done.stdout + done.stderr


def test_a_build_that_fails_is_no_package(source, folder):
    """It once installed a package without a library."""
    copy = shutil.copytree(source, folder / "source", ignore=shutil.ignore_patterns("build"))
    (copy / "util/error.c").write_text("#error planted\n")
    done = pip_install(copy, folder / "site")
    assert done.returncode != 0
    assert "planted" in done.stdout + done.stderr
    assert "the library was not built; what make says is above" in done.stdout + done.stderr


def test_the_folder_of_the_package_says_what_to_install(source, folder):
    done = pip_install(source / "python", folder / "site")
    assert done.returncode != 0
    assert "from the root of its sources" in done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="no pkg-config")
def test_the_library_is_found_by_pkg_config(without_library, folder):
    libdir = folder / "lib"
    libdir.mkdir()
    shutil.copy(os.environ["SPILLWAY_LIBRARY"], libdir / "libspillway.so")
    text = (ROOT / "spillway.pc.in").read_text()
    for name, value in (("PREFIX", "/usr"), ("LIBDIR", libdir), ("VERSION", spillway.__version__)):
        text = text.replace(f"@{name}@", str(value))
    (libdir / "spillway.pc").write_text(text)
    done = run(without_library, PKG_CONFIG_PATH=str(libdir))
    assert done.stdout.strip() == str(libdir / "libspillway.so"), done.stderr


def test_without_a_library_it_says_where_it_looked(without_library):
    done = run(without_library, PATH="/nonexistent", PKG_CONFIG_PATH="/nonexistent")
    if done.returncode == 0:
        pytest.skip("a library is installed in this system")
    assert "libspillway.so was not found; build it (make)" in done.stderr
    assert str(without_library / "spillway/libspillway.so") in done.stderr


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
