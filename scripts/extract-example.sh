#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/extract-example.sh - print the C example of a Markdown file
#
# The example is the first ```c block.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: scripts/extract-example.sh FILE.md" >&2; exit 2; }
awk '
    /^```c$/ { inside = 1; next }
    inside && /^```$/ { found = 1; exit }
    inside { print }
    END { if (!found) { print FILENAME ": no C example" > "/dev/stderr"; exit 1 } }' "$1"
