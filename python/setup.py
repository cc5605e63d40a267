# SPDX-License-Identifier: MIT
# python/setup.py - takes the C library along if the source tree has built it, and builds the hooks in C if it can
import os
import shutil
import sysconfig
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("SPW_BUILD", HERE.parent / "build"))
LIBRARY = BUILD / "libspillway.so"
HEADERS = HERE.parent / "include"


class BuildWithLibrary(build_py):
    def run(self) -> None:
        super().run()
        if LIBRARY.exists():
            shutil.copy(LIBRARY, Path(self.build_lib) / "spillway" / LIBRARY.name)


class MaybeBinary(Distribution):
    """What has the library or the hooks in it is of this kind of machine only."""

    def has_ext_modules(self) -> bool:
        return LIBRARY.exists() or bool(self.ext_modules)


def hooks() -> "list[Extension]":
    """The hooks in C; without a compiler, Python's headers or ours those in Python do the same."""
    if not (HEADERS / "spillway/cache.h").exists() or not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return []
    sources = sorted(str(path.relative_to(HERE)) for path in (HERE / "hooks").glob("*.c"))
    return [Extension("spillway._hooks", sources, include_dirs=[str(HEADERS)], extra_compile_args=["-std=gnu17", "-O2"],
                      depends=["hooks/hooks.h"], optional=True)]


setup(cmdclass={"build_py": BuildWithLibrary}, distclass=MaybeBinary, ext_modules=hooks())
