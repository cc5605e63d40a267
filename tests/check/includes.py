#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/check/includes.py - who may include whom: the layers stay one-way
"""Usage: tests/check/includes.py [FOLDER]

Reads every C file of the layers below FOLDER (the repository) and prints each include that crosses
the layers against the rules below. Exit status 1 if there is one.
"""
import os
import re
import sys

ERROR = ("spillway/error.h",)
COUNTERS = ("spillway/counters.h", *ERROR)
BLOCKS = ("spillway/engine.h", "spillway/format.h", *ERROR)
PUBLIC = ("spillway/",)

# Folder: what its files may include besides its own and the system's. A name ending in / allows the
# files of that folder, not those of folders in it. So no two folders need each other.
RULES = {
    "util": COUNTERS,
    "alloc": ("util/", *ERROR),
    "layout": ("util/", *ERROR),
    "engine": ("util/", "spillway/engine.h", *ERROR),
    "engine/nvme": ("util/", "engine/", "spillway/engine.h", "spillway/nvme.h", *ERROR),
    "engine/vfio": ("util/", "engine/", "engine/nvme/", "spillway/engine.h", "spillway/nvme.h",
                    "spillway/vfio.h", *ERROR),
    "status": ("util/", "spillway/status.h", *ERROR),
    "drives": ("util/", "layout/", "engine/", "engine/vfio/", "status/", "spillway/status.h",
               "spillway/nvme.h", "spillway/wear.h", *BLOCKS),
    "drives/vfio": ("util/", "engine/vfio/", "drives/", "spillway/vfio.h", *BLOCKS),
    "store": ("util/", "alloc/", "layout/", "engine/", "status/", "drives/", "spillway/store.h",
              "spillway/status.h", *BLOCKS),
    "state": ("util/", "spillway/store.h", "spillway/state.h", *ERROR),
    "plan": ("util/", "spillway/plan.h", *ERROR),
    "trace": ("util/", "spillway/trace.h", *ERROR),
    "tensor/control": ("util/", "plan/", "spillway/plan.h", "spillway/cache.h", *ERROR),
    "tensor": ("util/", "tensor/control/control.h", "spillway/store.h", "spillway/plan.h",
               "spillway/trace.h", "spillway/cache.h", "spillway/wear.h", *ERROR),
    "simstore": ("util/", "tensor/ports.h", *PUBLIC),
    "tools": ("util/", "tools/ui/", "tools/bench/", "tools/completion/", "tools/grant/",
              "tools/metrics/", "tools/plan/", "tools/replay/", *PUBLIC),
    "tools/ui": ("util/", *PUBLIC),
    "tools/bench": ("util/", "tools/ui/", *PUBLIC),
    "tools/completion": ("util/", "tools/ui/"),
    "tools/grant": ("util/", *ERROR),
    "tools/replay": ("util/", "simstore/", "tensor/ports.h", "tools/ui/", *PUBLIC),
    "tools/plan": ("util/", "tools/ui/", "tools/replay/", *PUBLIC),
    "tools/metrics": ("util/", "tools/ui/", *PUBLIC),
    "tools/fio_engine": ("util/", *PUBLIC),
    "malloc": (),
}
# The only files that know all that is below their layer.
FILES = {"engine/open.c": ("engine/nvme/", "engine/vfio/", "spillway/nvme.h")}
# The public headers among themselves, from the bottom up.
HEADERS = {
    "error.h": (),
    "counters.h": ERROR,
    "engine.h": ERROR,
    "nvme.h": ERROR,
    "vfio.h": ERROR,
    "format.h": ("spillway/engine.h", *ERROR),
    "wear.h": ERROR,
    "store.h": ("spillway/counters.h", *BLOCKS),
    "status.h": ("spillway/store.h", "spillway/format.h", *ERROR),
    "state.h": ("spillway/store.h", *COUNTERS),
    "plan.h": ERROR,
    "trace.h": ERROR,
    "cache.h": ("spillway/store.h", "spillway/plan.h", "spillway/trace.h", *COUNTERS),
    "spillway.h": PUBLIC,
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def allowed(name, rules):
    return any(name == rule or name == rule + os.path.basename(name) for rule in rules)


def belongs_to_us(quote, name):
    """A system header is none of our business. Ours come quoted from the root, or as spillway/."""
    return quote == '"' or name.startswith("spillway/")


def rules_of(path):
    """The rules for a file, and its own folder."""
    folder = os.path.dirname(path)
    if folder == "include/spillway":
        return HEADERS.get(os.path.basename(path), ()), "-"
    return (*RULES.get(folder, ()), *FILES.get(path, ())), folder


def violations(root):
    for folder in (*(name for name in RULES if "/" not in name), "include"):
        for place, _, names in sorted(os.walk(os.path.join(root, folder))):
            for name in sorted(names):
                if name.endswith((".c", ".h")):
                    yield from violations_of(root, os.path.relpath(os.path.join(place, name), root))


def violations_of(root, path):
    rules, own = rules_of(path)
    with open(os.path.join(root, path), encoding="utf-8") as source:
        for number, line in enumerate(source, 1):
            match = INCLUDE.match(line)
            if not match or not belongs_to_us(*match.groups()):
                continue
            name = match.group(2)
            neighbour = os.path.join(root, os.path.dirname(path), name)
            beside = os.path.exists(neighbour) and "/" not in name
            if beside and own != "-" or allowed(name, (*rules, own + "/")):
                continue
            yield f"{path}:{number}: {own if own != '-' else path} may not include {name}"


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(here))
    found = list(violations(root))
    for violation in found:
        print(violation)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
