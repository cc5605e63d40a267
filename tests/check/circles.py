#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/check/circles.py - the files of a folder call one another without circles
"""Usage: tests/check/circles.py BUILD FOLDER...

Reads the symbols of the objects below BUILD/FOLDER: a file that uses what another one defines
depends on it. Prints each set of files of one folder (folders below it are other folders) that
depend on one another in a circle, with the symbols that close it. Exit status 1 if there is one,
or if a folder has no objects.
"""
import os
import subprocess
import sys


def symbols(path):
    """(defined, used) of an object: global names only."""
    defined, used = set(), set()
    listed = subprocess.run(["nm", "-g", path], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        kind, name = line.split()[-2:]
        (used if kind in "Uw" else defined).add(name)
    return defined, used


def depends(objects):
    """file -> {file it uses: symbols}."""
    defined_by, used_by = {}, {}
    for path in objects:
        defined, used_by[path] = symbols(path)
        defined_by.update(dict.fromkeys(defined, path))
    graph = {path: {} for path in objects}
    for path, used in used_by.items():
        for name in sorted(used):
            other = defined_by.get(name)
            if other and other != path:
                graph[path].setdefault(other, []).append(name)
    return graph


def reachable(graph, start):
    seen, to_see = set(), [start]
    while to_see:
        for other in graph[to_see.pop()]:
            if other not in seen:
                seen.add(other)
                to_see.append(other)
    return seen


def circles(graph):
    """Sets of files each of which reaches all of the others."""
    reach = {path: reachable(graph, path) for path in graph}
    found, done = [], set()
    for path in sorted(graph):
        circle = {other for other in reach[path] if path in reach[other]}
        if circle and path not in done:
            found.append(sorted(circle))
            done |= circle
    return found


def main():
    build, folders = sys.argv[1], sys.argv[2:]
    bad = 0
    for folder in folders:
        place = os.path.join(build, folder)
        sources = [name[:-2] for name in sorted(os.listdir(folder)) if name.endswith(".c")]
        objects = [os.path.join(place, name + ".o") for name in sources]
        objects = [path for path in objects if os.path.exists(path)]
        if not objects:
            print(f"{folder}: no objects in {place}; build first")
            bad = 1
        graph = depends(objects)
        for circle in circles(graph):
            bad = 1
            print(f"{folder}: a circle of {len(circle)} files")
            for path in circle:
                for other, names in graph[path].items():
                    if other in circle:
                        user, used = (os.path.basename(one)[:-2] for one in (path, other))
                        print(f"  {user} -> {used}: {', '.join(names[:6])}"
                              f"{' ...' if len(names) > 6 else ''}")
    return bad


sys.exit(main())
