#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/check/rooms.py - which part of the Python package may import which
"""Usage: tests/check/rooms.py [FOLDER]

A part is a module or a folder of FOLDER (python/spillway); a room is a private folder. Prints each
import between parts that the table does not allow, each part that it does not know, each two files
of a room that need each other, and each room that is too full. Exit status 1 if there is one.

Imports inside functions count. Imports for types alone (if TYPE_CHECKING) do not.
"""
import ast
import os
import sys

FILES_MAX = 12  # of a room

# Part: which others it may import. Each names only parts above itself, so there are no circles.
RULES = {
    "_core": (),
    "_values": ("_core",),
    "wear": ("_core",),
    "store": ("_core",),
    "state": ("_core", "store"),
    "cache": ("_core", "store", "wear"),
    "__init__": ("_core", "cache", "store", "wear"),
    "report": ("_core", "cache", "store", "wear"),
    "plan": ("_core", "store"),
    "_report": ("_core", "cache", "report", "store", "wear"),
    "_gpu": ("_core", "_report", "cache", "store"),
    "_optim": ("_core", "_gpu", "_values", "state", "store"),
    "_grads": ("_core", "_gpu", "_optim"),
    "_params": ("_core", "_gpu", "_optim", "plan", "report", "store"),
    "_offload": ("_core", "_params", "_report", "cache", "report", "store"),
    "_recompute": ("_core", "_gpu", "_offload", "_params"),
    "_export": ("_core", "_optim", "_values", "state", "store"),
    "_swap": ("_core", "store"),
    "optimizer": ("_core", "_export", "_grads", "_optim", "_params", "_values", "state", "store"),
    "torch": ("_core", "_gpu", "_offload", "_optim", "_params", "_recompute", "_report", "cache",
              "optimizer", "report", "store", "wear"),
    "checkpoint": ("_core", "_export", "_optim", "state", "store"),
    "schedules": ("torch",),
    "deepspeed": ("_swap", "store", "torch"),
    "integrations": ("__init__", "_offload", "cache", "store", "torch"),
    "_startup": ("deepspeed",),
    "demo": (),
    "bench": ("_core", "demo", "torch"),
}


def for_types(tree):
    """All nodes below `if TYPE_CHECKING:`."""
    return {node for branch in ast.walk(tree)
            if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
            for statement in branch.body for node in ast.walk(statement)}


def imported(tree, module):
    """(line, path below the package) of each import of the package by one of its modules."""
    skipped = for_types(tree)
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            paths = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ["spillway", *module[:len(module) - node.level]] if node.level else []
            base += node.module.split(".") if node.module else []
            paths = [base] if node.module and len(base) > 1 else \
                [[*base, alias.name] for alias in node.names]
        else:
            continue
        for path in paths:
            if path[0] == "spillway" and len(path) > 1:
                yield node.lineno, path[1:]


def modules_of(package):
    for folder, _, names in sorted(os.walk(package)):
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                yield path, os.path.relpath(path, package)[:-len(".py")].split(os.sep)


def circles(needs):
    """Each pair of files of a room that need each other, by way of others or not."""
    def reached(start):
        found, todo = set(), [start]
        while todo:
            for other in needs.get(todo.pop(), ()):
                if other not in found:
                    found.add(other)
                    todo.append(other)
        return found
    all_reached = {file: reached(file) for file in needs}
    for one, others in sorted(all_reached.items()):
        for other in sorted(others):
            if one <= other and one in all_reached.get(other, ()):
                yield f"{one} and {other} need each other"


def violations(package):
    needs, sizes = {}, {}
    for path, module in modules_of(package):
        part = module[0]
        if part not in RULES:
            yield f"{path}: tests/check/rooms.py has no part {part}: put it into a room"
            continue
        if part.startswith("_") and len(module) > 1 and module[-1] != "__init__":
            sizes[part] = sizes.get(part, 0) + 1
        with open(path, encoding="utf-8") as source:
            tree = ast.parse(source.read(), path)
        for line, target in imported(tree, module):
            if target[0] in RULES and target[0] not in (part, *RULES[part]):
                yield f"{path}:{line}: {part} may not import {target[0]}"
            elif target[0] == part and part.startswith("_") and len(target) > 1:
                needs.setdefault("/".join(module), set()).add("/".join(target[:2]))
    yield from circles(needs)
    yield from (f"{room}: {count} files, at most {FILES_MAX}: split the room"
                for room, count in sizes.items() if count > FILES_MAX)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(here))
    package = sys.argv[1] if len(sys.argv) > 1 else os.path.join(root, "python", "spillway")
    parts = list(RULES)
    for place, part in enumerate(parts):
        assert set(RULES[part]) <= set(parts[:place]), part
    found = list(violations(package))
    for violation in found:
        print(violation)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
