#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/bench/peers.sh - tests/bench/peers.py with the packages that it compares; called by `make bench-peers`
#
#   tests/bench/peers.sh BUILD [OPTIONS of peers.py]
#
# What pip cannot install is left out: why is the last line of BUILD/bench-peers/NAME.log, and in the row.
set -euo pipefail

cd "$(dirname "$0")/../.."
build=$1
python=$(tests/venv.sh "$build")
logs=$build/bench-peers
mkdir -p "$logs"
while read -r requirement options; do
    name=${requirement%%==*}
    case $requirement in \#*) continue ;; esac
    [ "$("$python" -c "import importlib.metadata as m; print(m.version('$name'))" 2>/dev/null)" != "${requirement#*==}" ] || continue
    echo "  PIP   $requirement into $build/venv" >&2
    # shellcheck disable=SC2086 # several options
    if LIBRARY_PATH=/usr/lib/$(gcc -print-multiarch) "$python" -m pip install --disable-pip-version-check --retries 2 -c tests/ecosystem/pins.txt $options "$requirement" \
        >"$logs/$name.log" 2>&1; then
        rm -f "$logs/$name.log"
    else
        echo "  skip  $name: $(tail -n 1 "$logs/$name.log")" >&2
    fi
done <tests/bench/peers.txt
exec "$python" -B tests/bench/peers.py --build "$build" "${@:2}"
