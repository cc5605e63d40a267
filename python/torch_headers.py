# SPDX-License-Identifier: MIT
# torch_headers.py - where the headers of this interpreter's PyTorch are, for setup.py and python.mk
"""Found without importing PyTorch, which takes seconds. Its own packages bring the headers; for Debian's they are libtorch-dev and
pybind11-dev."""
import importlib.util
import re
import sysconfig
from pathlib import Path
from typing import NamedTuple, Optional


class Torch(NamedTuple):
    folder: Path
    version: str

    def include(self) -> "list[str]":
        return [str(self.folder / "include"), str(self.folder / "include/torch/csrc/api/include")]

    def libraries(self) -> str:
        return str(self.folder / "lib")


def found() -> Optional[Torch]:
    """None: there is no PyTorch, or its headers are not there."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    if not (folder / "include/torch/csrc/autograd/python_variable.h").exists():
        return None
    version = re.search(r"^__version__ = ['\"](.*)['\"]$", (folder / "version.py").read_text(), re.MULTILINE)
    return Torch(folder, version[1]) if version else None


def tell() -> None:
    """For make: what modules of this interpreter end in, PyTorch's folder, its version."""
    torch = found()
    if torch is not None and Path(sysconfig.get_paths()["include"], "Python.h").exists():
        print(sysconfig.get_config_var("EXT_SUFFIX"), torch.folder, torch.version, sep="=")
