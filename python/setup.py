# SPDX-License-Identifier: MIT
# python/setup.py - takes the C library along if the source tree has built it, and builds the hooks in C if it can
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import torch_headers  # noqa: E402

BUILD = Path(os.environ.get("SPW_BUILD", HERE.parent / "build"))
LIBRARY = BUILD / "libspillway.so"
HEADERS = HERE.parent / "include"
# As the Makefile builds them.
HARDEN = ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
LINK = ["-Wl,-z,relro", "-Wl,-z,now"]


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
    return [Extension("spillway._hooks", sources, include_dirs=[str(HEADERS)], extra_compile_args=["-std=gnu17", "-O2", *HARDEN],
                      extra_link_args=LINK, depends=["hooks/hooks.h", "hooks/reader.h"], optional=True)]


def reader() -> "list[Extension]":
    """What reads tensors for them, of this PyTorch only: pip shows it to us with --no-build-isolation. Without it they ask tensors."""
    torch = torch_headers.found()
    if torch is None or not hooks():
        return []
    return [Extension("spillway._reader", ["hooks/reader.cpp"], include_dirs=[str(HEADERS), *torch.include()], language="c++",
                      define_macros=[("SPW_TORCH", f'"{torch.version}"')], extra_compile_args=["-O2", "-fvisibility=hidden", *HARDEN],
                      library_dirs=[torch.libraries()], libraries=["c10", "torch_cpu", "torch_python"],
                      extra_link_args=["-Wl,--as-needed", *LINK], depends=["hooks/reader.h"], optional=True)]


setup(cmdclass={"build_py": BuildWithLibrary}, distclass=MaybeBinary, ext_modules=hooks() + reader())
