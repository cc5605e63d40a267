# SPDX-License-Identifier: MIT
# tests/python/test_library.py - the binding agrees with the headers; finding the library; errors
import ctypes
import os
import re
import shutil
import subprocess

import pytest

import spillway
from conftest import ROOT, run_python
from spillway._core import library as library_module

COMPILER = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_structs_have_the_layout_of_the_headers(folder):
    """Members may have been appended in the headers since: every struct says its size. None may
    have moved."""
    lines = []
    for name, struct in library_module.STRUCTS.items():
        lines.append(f'printf("{name} - %d\\n", sizeof(struct {name}) >= {ctypes.sizeof(struct)});')
        for field in struct._fields_:
            lines.append(
                f'printf("{name} {field[0]} %zu %zu\\n", offsetof(struct {name}, {field[0]}), '
                f"sizeof(((struct {name} *)0)->{field[0]}));")
    source = folder / "layout.c"
    source.write_text("#include <stddef.h>\n#include <stdio.h>\n#include <spillway/spillway.h>\n"
                      "int main(void)\n{\n" + "\n".join(lines) + "\nreturn 0;\n}\n")
    program = str(folder / "layout")
    subprocess.run([*COMPILER.split(), "-I", ROOT / "include", "-o", program, source], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    expected = []
    for name, struct in library_module.STRUCTS.items():
        expected.append(f"{name} - 1")
        for field in struct._fields_:
            member = getattr(struct, field[0])
            expected.append(f"{name} {field[0]} {member.offset} {member.size}")
    assert printed.splitlines() == expected


def test_constants_are_those_of_the_headers():
    error = (ROOT / "include/spillway/error.h").read_text()
    assert re.search(r'#define SPW_VERSION "(.*)"', error).group(1) == spillway.__version__
    assert 'attr = "spillway._core.library.VERSION"' in (ROOT / "pyproject.toml").read_text()
    assert library_module.version == spillway.__version__


PRINT_PATH = "import spillway; print(spillway._core.library.path)"


@pytest.mark.parametrize("library, words", [
    ("/nonexistent/lib.so", "SPILLWAY_LIBRARY=/nonexistent/lib.so cannot be loaded"),
    ("libc.so.6", "it is not the library of this package"),
], ids=["missing", "another"])
def test_a_named_library_that_cannot_be_taken_says_so(library, words):
    done = run_python("-c", PRINT_PATH, env={"SPILLWAY_LIBRARY": library})
    assert done.returncode != 0
    assert words in done.stderr


def test_the_library_beside_the_package_is_found(folder, monkeypatch):
    package = folder / "spillway"
    shutil.copytree(ROOT / "python/spillway", package)
    shutil.copy(os.environ["SPILLWAY_LIBRARY"], package / "libspillway.so")
    monkeypatch.delenv("SPILLWAY_LIBRARY")
    done = run_python("-c", PRINT_PATH, env={"PYTHONPATH": str(folder)}, cwd=folder)
    assert done.stdout.strip() == str(package / "libspillway.so"), done.stderr
