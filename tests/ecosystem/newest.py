#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/ecosystem/newest.py - a page of what `make test-newest` tested, and what failed
"""Usage: tests/ecosystem/newest.py OUTPUT

OUTPUT is what tests/run printed. Run by the interpreter of the environment, of which it names the
versions beside those of pins.txt.
"""
import importlib.metadata
import platform
import re
import sys
import time
from pathlib import Path

PINS = Path(__file__).with_name("pins.txt")


def versions():
    for line in PINS.read_text(encoding="utf-8").splitlines():
        name, pinned, version = line.partition("==")
        if pinned:
            try:
                newest = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                newest = "left out (tests/venv.sh)"
            yield name, version, newest


def failures_of(output):
    """The lines of the runner's list."""
    found = re.search(r"^Failed:\n((?:  .+\n)+)", output, re.MULTILINE)
    return [line.strip() for line in found.group(1).splitlines()] if found else []


def main(path):
    output = Path(path).read_text(encoding="utf-8")
    counts = re.findall(r"^\d+ passed, \d+ failed, \d+ skipped$", output, re.MULTILINE)
    print(f"# With the newest packages, {time.strftime('%Y-%m-%d')}\n")
    print(f"Python {platform.python_version()}: {counts[-1] if counts else 'the run broke off'}.\n")
    print("| package | pinned | newest |\n|---|---|---|")
    for name, pinned, newest in versions():
        print(f"| {name} | {pinned} | {newest if newest.split('+')[0] != pinned else 'the same'} |")
    failed = failures_of(output)
    if failed:
        print("\nFailed:\n")
        print("\n".join(f"- `{line}`" for line in failed))


if __name__ == "__main__":
    main(sys.argv[1])
