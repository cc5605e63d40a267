# SPDX-License-Identifier: MIT
# python/setup.py - takes the C library along if the source tree has built it: the package then has it beside itself
import os
import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

BUILD = Path(os.environ.get("SPW_BUILD", Path(__file__).resolve().parent.parent / "build"))
LIBRARY = BUILD / "libspillway.so"


class BuildWithLibrary(build_py):
    def run(self) -> None:
        super().run()
        if LIBRARY.exists():
            shutil.copy(LIBRARY, Path(self.build_lib) / "spillway" / LIBRARY.name)


class MaybeBinary(Distribution):
    """What has the library in it is of this kind of machine only."""

    def has_ext_modules(self) -> bool:
        return LIBRARY.exists()


setup(cmdclass={"build_py": BuildWithLibrary}, distclass=MaybeBinary)
