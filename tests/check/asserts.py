#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/check/asserts.py - what is asserted only looks
"""Usage: tests/check/asserts.py FILE...

Prints each SPW_ASSERT() in C that changes something, or calls a function that may: an assert is
read as a statement of what is true, which could be left out. A call is taken for a look if its name
asks (is_, has_, holds_), says what it finds (_state, _in_flight), or is a load of an atomic.
What a call is wanted for, and that it succeeds, is SPW_MUST()'s. Exit status 1 if there is one.
"""
import re
import sys

from functions import without_text

LOOKS = re.compile(r"^[A-Z_]+$|(^|_)(is|are|has|holds|may|can|fits)_|"
                   r"_(is|has|holds|state|in_flight|alone|at_owner)$|^atomic_load|"
                   r"^(PyErr_Occurred|sizeof|offsetof|strcmp|strlen|memcmp|pattern)$")
CHANGES = re.compile(r"\+\+|--|(?<![=!<>])=(?!=)")
# In a cast a type stands in front of the parenthesis, as in (uint64_t)(at - bytes).
CALL = re.compile(r"(?<!\()\b([a-zA-Z_]\w*)\s*\(")


def argument(text, start):
    """What lies between the parenthesis at @start and the one that closes it."""
    depth = 0
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return text[start + 1:at]
    return text[start + 1:]


def main():
    wrong, found = [], 0
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            text = without_text(file.read())
        for match in re.finditer(r"\bSPW_ASSERT\s*\(", text):
            found += 1
            asserted = argument(text, match.end() - 1)
            place = f"{path}:{text.count(chr(10), 0, match.start()) + 1}"
            if CHANGES.search(asserted):
                wrong.append(f"{place}: changes something in an assert")
            wrong += [f"{place}: an assert calls {name}(), which may do something: SPW_MUST(), or "
                      f"a name that asks" for name in CALL.findall(asserted)
                      if not LOOKS.search(name)]
    if found == 0:
        wrong.append("no assert found")
    print("\n".join(wrong), end="\n" if wrong else "")
    sys.exit(1 if wrong else 0)


main()
