#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/copy-tree.sh - the sources, without what was built, into a folder that is empty or not there
#
#   scripts/copy-tree.sh FOLDER      the files that git knows or would take, else all but what was built
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: scripts/copy-tree.sh FOLDER" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "$1"
if git -C "$root" rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git -C "$root" ls-files -z --cached --others --exclude-standard |
        (cd "$root" && while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done) |
        tar -C "$root" --null --no-recursion -T - -c -f -
else
    tar -C "$root" --exclude=./build --exclude='./build-*' --exclude=./.git -c -f - .
fi | tar -C "$1" --no-same-owner -x -f -
