# SPDX-License-Identifier: MIT
# tests/bench/callgrind.py - whose instructions callgrind has counted: a folder's, or a library's
import re
from pathlib import Path

# And the compiler's headers of vector instructions, which nothing else has.
CHECKSUMS = ("xxhash.h", "checksum.c", "checksum_avx2.c", "checksum_avx512.c")
LAYERS = ("tools", "store", "engine", "drives", "alloc", "layout", "util")
# "fl=(3) store/write.c", and afterwards "fl=(3)"; what is called has names of the same numbers.
NAME = re.compile(r"c?(fl|fi|fe|ob)=\((\d+)\)(?: (.*))?")


def layer_of(obj, path):
    """Where code counts: by its source, if we compiled it, or by its library."""
    name = Path(path).name
    if "libxxhash" in obj or name in CHECKSUMS or name.endswith("intrin.h"):
        return "checksums"
    if not obj.endswith("/spillway"):
        return "libraries and the loader"
    folders = Path(path).parts[:-1]
    return next((layer for layer in LAYERS if layer in folders), "libraries and the loader")


def by_layer(out):
    """Instructions by layer, of a file that callgrind wrote."""
    names, counts = {}, {}
    obj = path = ""
    calls = False
    for line in out.read_text(encoding="utf-8", errors="replace").splitlines():
        found = NAME.fullmatch(line)
        if found:
            kind = "ob" if found[1] == "ob" else "file"
            if found[3] is not None:
                names[kind, found[2]] = found[3]
            if line[0] == "c":
                continue
            if kind == "ob":
                obj = names[kind, found[2]]
            else:
                path = names[kind, found[2]]
        elif line.startswith("calls="):
            calls = True  # the next line counts what was called, which counts for itself
        elif line[:1] in "0123456789+-*" and line:
            if not calls:
                layer = layer_of(obj, path)
                counts[layer] = counts.get(layer, 0) + int(line.split()[1])
            calls = False
    return counts
