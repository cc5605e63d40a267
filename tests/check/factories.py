#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/check/factories.py - tensors are made on a device and of a type that are named
"""Usage: tests/check/factories.py FILE...

torch.set_default_device(), torch.set_default_dtype() and `with torch.device(...)` decide where a
tensor is made, and of which type, if the call does not say so. Then host memory is copied to an
address of another device. Prints every call of a function of PyTorch that makes a tensor without
device=, or without dtype= where that has a default, and torch.load() without map_location=; exit
status 1 if there is one. A comment `# any device: REASON` on the call's first line lets it pass.
"""
import ast
import sys

# The type of what these make does not depend on the default.
OF_NO_DEFAULT_TYPE = {"randint", "randperm", "tril_indices", "triu_indices"}
WITH_DEFAULT_TYPE = {
    "arange", "as_tensor", "asarray", "bartlett_window", "blackman_window", "empty",
    "empty_permuted", "empty_strided", "eye", "full", "hamming_window", "hann_window",
    "kaiser_window", "linspace", "logspace", "ones", "rand", "randn", "range", "scalar_tensor",
    "sparse_bsc_tensor", "sparse_bsr_tensor", "sparse_compressed_tensor", "sparse_coo_tensor",
    "sparse_csc_tensor", "sparse_csr_tensor", "tensor", "zeros"}
FACTORIES = OF_NO_DEFAULT_TYPE | WITH_DEFAULT_TYPE
# torch.Tensor(), torch.FloatTensor(), torch.cuda.FloatTensor() ...: of the default, or of a type
# that hides where they are.
LEGACY = {"Tensor", "FloatTensor", "DoubleTensor", "HalfTensor", "BFloat16Tensor", "ByteTensor",
          "CharTensor", "ShortTensor", "IntTensor", "LongTensor", "BoolTensor"}
PASS = "# any device: "


def name_of(function):
    """torch.NAME or None."""
    if (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)
            and function.value.id == "torch"):
        return function.attr
    return None


def missing_of(node):
    """What is wrong with a call, in words, or None."""
    name = name_of(node.func)
    given = {keyword.arg for keyword in node.keywords}
    if None in given:  # **options may have it
        return None
    if name in LEGACY:
        return f"torch.{name}() is of the default device and type: call torch.empty() or the like"
    wanted = []
    if name in FACTORIES:
        wanted = ["device"] + ["dtype"] * (name in WITH_DEFAULT_TYPE)
    elif name == "load":
        wanted = ["map_location"]
    missing = [word for word in wanted if word not in given]
    return f"torch.{name}() without {'= and '.join(missing)}=" if missing else None


def found_in(source):
    """(line, words) of each."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        words = None
        if isinstance(node, ast.Call):
            words = missing_of(node)
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            names = sorted({alias.name for alias in node.names} & FACTORIES)
            if names:
                words = f"call torch.{names[0]}(), so that it is looked at"
        if words is not None and PASS not in lines[node.lineno - 1]:
            yield node.lineno, words


def main():
    found = 0
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            source = file.read()
        for line, words in sorted(found_in(source)):
            print(f"{path}:{line}: {words}")
            found += 1
    if not sys.argv[1:]:
        print("no files")
    return 1 if found or not sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
