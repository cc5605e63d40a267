#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/check/prefixes.py - what other files may call bears its layer's name
"""Usage: tests/check/prefixes.py BUILD MAP

Reads the symbols of the objects below BUILD. A global symbol of a layer is one that MAP exports, or
is named by its layer, two underscores and what it does, such as spw_store__wake(). Prints each that
is neither. Exit status 1 if there is one, or if a layer has no objects.
"""
import glob
import os
import re
import subprocess
import sys

# A folder without one is below all layers (util), or is linked by nothing (tools, malloc).
PREFIXES = {
    "alloc": "spw_alloc__",
    "layout": "spw_layout__",
    "engine": "spw_engine__",
    "engine/nvme": "spw_nvme__",
    "engine/vfio": "spw_vfio__",
    "status": "spw_status__",
    "drives": "spw_drives__",
    "drives/vfio": "spw_drives__vfio_",
    "store": "spw_store__",
    "state": "spw_state__",
    "plan": "spw_plan__",
    "trace": "spw_trace__",
    "tensor": "spw_cache__",
    "tensor/control": "spw_control__",
}


def defined(path):
    """The global symbols that an object defines."""
    command = ["nm", "-g", "--defined-only", path]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split()[-1] for line in listed.splitlines()]


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    build, exports = sys.argv[1:]
    with open(exports, encoding="utf-8") as file:
        exported = set(re.findall(r"^\s+(spw_\w+);", file.read(), re.MULTILINE))
    wrong = []
    for folder, prefix in PREFIXES.items():
        # An object may be left of a source that has been deleted since.
        objects = [path for path in sorted(glob.glob(f"{build}/{folder}/*.o"))
                   if os.path.exists(os.path.relpath(path, build)[:-1] + "c")]
        if not objects:
            wrong.append(f"{folder}: no objects: build first")
        for path in objects:
            wrong += [f"{os.path.relpath(path, build)[:-1]}c: {name} is neither exported nor "
                      f"{prefix}..." for name in defined(path)
                      if name not in exported and not name.startswith((prefix, "__"))]
    print("\n".join(wrong), end="\n" if wrong else "")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
