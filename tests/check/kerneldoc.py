#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/check/kerneldoc.py - every function of a public header has a kernel-doc comment
"""Usage: tests/check/kerneldoc.py HEADER...

Prints each exported function without a comment of its own, in the form of the kernel's

    /**
     * spw_store_free - delete an object
     * @object: as spw_store_put() gave it
     *
     * What it does, does not do, and which threads may call it.
     *
     * Return: 0; -ENOENT there is no such object.
     */

and each comment that names another function, describes a parameter that the function does not have,
lacks one that it has, or says nothing of what a function returns. Exit status 1 if there is one.
"""
import re
import sys

FUNCTION = re.compile(r"(/\*(?:(?!\*/).)*\*/\n)?SPW_EXPORT ((?:[^;{]|\n)*?)\b(spw_\w+)\(([^;]*)\)"
                      r"[^;)]*;", re.S)
PARAMETER = re.compile(r"^ \* @(\w+):", re.M)


def names_of(parameters):
    """The names of a function's parameters, in order."""
    parameters = re.sub(r"\s+", " ", parameters)
    # A function pointer is called as it is declared: (*name)(...).
    parameters = re.sub(r"\(\*(\w+)\)\([^)]*\)", r"\1", parameters)
    return [re.search(r"(\w+)(?:\[\w*\])?$", each.strip())[1]
            for each in parameters.split(",") if each.strip() not in ("void", "...", "")]


def faults(comment, returns, name, parameters):
    """What is wrong with the comment of one function."""
    if not comment or not comment.startswith("/**\n"):
        yield "no kernel-doc comment"
        return
    if not re.match(rf"/\*\*\n \* {name} - \w", comment):
        yield f"its comment does not begin with '{name} - '"
    described = PARAMETER.findall(comment)
    if described != parameters:
        yield f"describes ({', '.join(described)}), but takes ({', '.join(parameters)})"
    if returns.strip() != "void" and not re.search(r"^ \* Return: \w", comment, re.M):
        yield "does not say what it returns"


def main():
    found, wrong = 0, []
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        exported = text.count("\nSPW_EXPORT ")
        for match in FUNCTION.finditer(text):
            comment, returns, name, parameters = match.groups()
            exported -= 1
            found += 1
            line = text.count("\n", 0, match.start(3)) + 1
            wrong += [f"{path}:{line}: {name}: {fault}"
                      for fault in faults(comment, returns, name, names_of(parameters))]
        if exported != 0:
            wrong.append(f"{path}: {exported} declarations that this check cannot read")
    if found == 0:
        wrong.append("no function found")
    print("\n".join(wrong), end="\n" if wrong else "")
    sys.exit(1 if wrong else 0)


main()
