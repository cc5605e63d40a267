#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/zoo/run.sh - run.py by the interpreter of an environment that has the packages of pins.txt
#
#   tests/zoo/run.sh BUILD [OPTION | WORD]...      called by `make test-zoo`; see run.py --help
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
status=0
# Of its own: tests/ecosystem needs older versions of some.
python=$("$here/../venv.sh" --pins "$here/pins.txt" "$1/zoo") || status=$?
if [ $status -eq 77 ]; then
    echo "  skip          zoo: no package index can be reached"
    echo
    echo "0 passed, 0 failed, 1 skipped"
    exit
fi
[ $status -eq 0 ]
exec "$python" "$here/run.py" --build "$@"
