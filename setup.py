# SPDX-License-Identifier: MIT
# setup.py - a wheel of the Python package, with the library, the hooks and the command
"""pip and `make wheel` come here. All that is built, and what it needs, lies in the package, so the
wheel works where nothing else is installed."""
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
BUILD = HERE / "build/wheel"
BUILT = [BUILD / name for name in ("libspillway.so", "_hooks.abi3.so", "spillway",
                                   "libspillway_malloc.so")]
STUB = BUILD / "counted.pyi"


def make() -> None:
    """Build all; SystemExit says what is missing, and what to do."""
    compiler = os.environ.get("CC", "gcc").split()[0]
    missing = [name for name in ("make", compiler, "objdump") if not shutil.which(name)]
    if missing:
        raise SystemExit(f"spillway: its library is built from C, and {', '.join(missing)} is not "
                         f"there: install a compiler (docs/INSTALL.md), or take a wheel")
    include = sysconfig.get_paths()["include"]
    if not Path(include, "Python.h").exists():
        raise SystemExit(f"spillway: {include}/Python.h is not there: install the headers of this "
                         "Python (python3-dev on Debian and Ubuntu, python3-devel on Fedora)")
    if subprocess.run(["scripts/deps.sh", "--check", "build"], cwd=HERE, check=False).returncode:
        raise SystemExit("spillway: what the library needs to be built is missing; it is named "
                         "above, and for other systems in docs/INSTALL.md")
    search = "LDFLAGS=-Wl,--disable-new-dtags,-rpath,\\$$ORIGIN"
    done = subprocess.run(["make", f"-j{os.cpu_count()}", f"BUILD={BUILD}", search,
                           f"PYTHON={sys.executable}", *map(str, [*BUILT, STUB])],
                          cwd=HERE, check=False)
    if done.returncode:
        raise SystemExit("spillway: the library was not built; what make says is above")


class BuildWithLibrary(build_py):
    def run(self) -> None:
        make()
        shutil.rmtree(self.build_lib, ignore_errors=True)  # what is no more part of it
        super().run()
        package = Path(self.build_lib).resolve() / "spillway"
        done = subprocess.run(["scripts/bundle.sh", package, *BUILT], cwd=HERE,
                              stdout=subprocess.PIPE, text=True, check=True)
        shutil.copy(STUB, package / "_core")
        # What the libraries ask of the machine says for which ones the wheel is.
        wheel = self.distribution.get_command_obj("bdist_wheel", create=False)
        if wheel and done.stdout:
            wheel.plat_name, wheel.plat_name_supplied = done.stdout.strip(), True


class WithLibrary(Distribution):
    def has_ext_modules(self) -> bool:
        return True


(HERE / "build").mkdir(exist_ok=True)
setup(
    distclass=WithLibrary,
    cmdclass={"build_py": BuildWithLibrary},
    options={
        "bdist_wheel": {"py_limited_api": "cp311"},  # of every Python from 3.11 on
        "build": {"build_base": "build/setuptools"},  # build/ is make's
        "egg_info": {"egg_base": "build"},
    },
)
