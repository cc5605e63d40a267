#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/check/functions.py - the length of every function in C and Python
"""Usage: tests/check/functions.py FILE...

Prints how many functions there are, their median and longest length, and every one above 70 lines;
exit status 1 if there is one. A function counts from the first line of its signature to its closing
brace, or to its last statement in Python.
"""
import ast
import re
import statistics
import sys

LINES_MAX = 70


def blank(match):
    """Keep the lines, drop what is in them."""
    return re.sub(r"[^\n]", " ", match.group(0))


def without_text(source):
    """C without comments, strings, characters and preprocessor lines: its braces are in pairs."""
    comments = r"/\*.*?\*/|//[^\n]*"
    quoted = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    source = re.sub(f"{comments}|{quoted}", blank, source, flags=re.DOTALL)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, source, flags=re.MULTILINE)


def name_of(signature):
    """The name before a function's first parenthesis, or None for anything else in braces."""
    head = signature.split("=")[0]
    head = re.sub(r"__attribute__\s*\(\(.*?\)\)", " ", head, flags=re.DOTALL)
    match = re.match(r"[\s\w*]*?(\w+)\s*\(", head)
    if not match or "=" in signature or not signature.rstrip().endswith(")"):
        return None
    return match.group(1)


def functions_of_c(source):
    """(name, first line, last line) of each function: an outermost block with a function's head."""
    text = without_text(source)
    depth = 0
    start = 0  # of the piece at the outermost level that is being read
    opened = None
    for at, char in enumerate(text):
        if char == "{":
            if depth == 0:
                opened = name_of(text[start:at])
                if re.match(r'\s*extern\s*$', text[start:at]):
                    start = at + 1
                    continue
            depth += 1
        elif char == "}" and depth > 0:
            depth -= 1
            if depth == 0:
                if opened:
                    first = start + len(text[start:at]) - len(text[start:at].lstrip())
                    yield opened, text.count("\n", 0, first) + 1, text.count("\n", 0, at) + 1
                start = at + 1
        elif char in ";}" and depth == 0:
            start = at + 1


def functions_of_python(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno


def main():
    lengths = []
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            source = file.read()
        find = functions_of_c if path.endswith((".c", ".h", ".cpp")) else functions_of_python
        lengths += [(last - first + 1, path, first, name) for name, first, last in find(source)]
    if not lengths:
        print("no function found")
        return 1
    lengths.sort(reverse=True)
    longest = lengths[0]
    median = statistics.median(entry[0] for entry in lengths)
    print(f"{len(lengths)} functions, median {median:.0f} lines, "
          f"longest {longest[0]} ({longest[3]}, {longest[1]})")
    too_long = [entry for entry in lengths if entry[0] > LINES_MAX]
    for length, path, line, name in too_long:
        print(f"{path}:{line}: {name} has {length} lines, more than {LINES_MAX}")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
