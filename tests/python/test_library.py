# SPDX-License-Identifier: MIT
# tests/python/test_library.py - the binding agrees with the headers; finding the library; errors
import ctypes
import os
import re
import shutil
import subprocess
import sys

import pytest

import spillway
from conftest import ROOT
from spillway import _library

COMPILER = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_structs_have_the_layout_of_the_headers(folder):
    """Members may have been appended in the headers since: every struct says its size. None may have moved."""
    lines = []
    for name, struct in _library.STRUCTS.items():
        lines.append(f'printf("{name} - %d\\n", sizeof(struct {name}) >= {ctypes.sizeof(struct)});')
        for field in struct._fields_:
            lines.append(f'printf("{name} {field[0]} %zu %zu\\n", offsetof(struct {name}, {field[0]}), '
                         f"sizeof(((struct {name} *)0)->{field[0]}));")
    source = folder / "layout.c"
    source.write_text("#include <stddef.h>\n#include <stdio.h>\n#include <spillway/spillway.h>\n"
                      "int main(void)\n{\n" + "\n".join(lines) + "\nreturn 0;\n}\n")
    program = str(folder / "layout")
    subprocess.run([*COMPILER.split(), "-I", str(ROOT / "include"), "-o", program, str(source)], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    expected = []
    for name, struct in _library.STRUCTS.items():
        expected.append(f"{name} - 1")
        for field in struct._fields_:
            member = getattr(struct, field[0])
            expected.append(f"{name} {field[0]} {member.offset} {member.size}")
    assert printed.splitlines() == expected


def test_constants_are_those_of_the_headers():
    error = (ROOT / "include/spillway/error.h").read_text()
    assert re.search(r'#define SPW_VERSION "(.*)"', error).group(1) == spillway.__version__
    pyproject = (ROOT / "python/pyproject.toml").read_text()
    assert f'version = "{spillway.__version__}"' in pyproject
    assert _library.version == spillway.__version__


def import_with(**environment):
    return subprocess.run([sys.executable, "-c", "import spillway; print(spillway._library.path)"], capture_output=True,
                          text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python"), **environment})


def test_a_named_library_that_is_missing_says_so():
    done = import_with(SPILLWAY_LIBRARY="/nonexistent/libspillway.so")
    assert done.returncode != 0
    assert "ImportError: SPILLWAY_LIBRARY=/nonexistent/libspillway.so cannot be loaded" in done.stderr


def test_a_library_of_another_kind_is_refused():
    libc = "libc.so.6"
    done = import_with(SPILLWAY_LIBRARY=libc)
    assert done.returncode != 0
    assert "it is not the library of this package" in done.stderr


def test_the_library_beside_the_package_is_found(folder):
    package = folder / "spillway"
    shutil.copytree(ROOT / "python/spillway", package)
    shutil.copy(os.environ["SPILLWAY_LIBRARY"], package / "libspillway.so")
    environment = {name: value for name, value in os.environ.items() if name != "SPILLWAY_LIBRARY"}
    done = subprocess.run([sys.executable, "-c", "import spillway; print(spillway._library.path)"], capture_output=True,
                          text=True, env={**environment, "PYTHONPATH": str(folder)}, cwd=str(folder))
    assert done.stdout.strip() == str(package / "libspillway.so"), done.stderr
