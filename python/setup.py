# SPDX-License-Identifier: MIT
# python/setup.py - builds the hooks, and takes the C library along if the source tree has built it
import os
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
LIBRARY = Path(os.environ.get("SPW_BUILD", HERE.parent / "build")) / "libspillway.so"
# As the Makefile builds them.
HARDEN = "-fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2".split()
HOOKS = Extension(
    "spillway._hooks",
    sorted(str(path.relative_to(HERE)) for path in (HERE / "hooks").glob("*.c")),
    include_dirs=[str(HERE.parent / "include")],
    extra_compile_args="-std=gnu17 -O2 -fvisibility=hidden".split() + HARDEN,
    extra_link_args=["-Wl,-z,relro", "-Wl,-z,now"],
    depends=["hooks/hooks.h"],
    py_limited_api=True,
)


class BuildWithLibrary(build_py):
    def run(self) -> None:
        super().run()
        if LIBRARY.exists():
            shutil.copy(LIBRARY, Path(self.build_lib) / "spillway" / LIBRARY.name)


setup(
    cmdclass={"build_py": BuildWithLibrary},
    ext_modules=[HOOKS],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
