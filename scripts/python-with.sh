#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/python-with.sh - prints the first Python interpreter that has a module: PYTHON, python3, /usr/bin/python3
#
#   scripts/python-with.sh MODULE PURPOSE      what scripts/deps.sh installs for PURPOSE has the module
set -euo pipefail

for candidate in "${PYTHON:-}" python3 /usr/bin/python3; do
    if [ -n "$candidate" ] && "$candidate" -c "import $1" 2>/dev/null; then
        echo "$candidate"
        exit 0
    fi
done
echo "no Python interpreter with $1 was found; run: scripts/deps.sh $2, or name one in PYTHON=" >&2
exit 1
