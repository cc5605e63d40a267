#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/venv.sh - prints the interpreter of BUILD/venv, which has the packages named, at the versions of a file of pins
#
#   tests/venv.sh [--pins FILE] BUILD NAME...      some of the file (tests/ecosystem/pins.txt)
#   tests/venv.sh [--pins FILE] BUILD              all of it
#   tests/venv.sh --newest BUILD                   all of the file, but what is held back, at the newest versions that the index has
#
# What is there already is not asked for again, so that this works offline from then on, but for --newest. PYTHON= (else python3) makes
# the environment.
# Exit status 77, and why, if no package index can be reached. What waits for a compilation that was killed goes on.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pins=$here/ecosystem/pins.txt
newest=
if [ "$1" = --newest ]; then
    newest=yes
    shift
fi
if [ "$1" = --pins ]; then
    pins=$2
    shift 2
fi
venv=$1/venv
names=("${@:2}")
python=$venv/bin/python3
# These ask for PyTorch where they are built: after the others, in the environment itself.
last=deepspeed
# With the newest of the others its last release cannot be imported.
held=torchtune

# missing: whichever of the names the environment has not, or not at their versions.
missing() {
    "$python" - "$pins" "${names[@]}" <<'PYTHON'
import importlib.metadata, sys

pins = dict(line.split("==") for line in open(sys.argv[1]).read().split("\n") if "==" in line)
for name in sys.argv[2:] or pins:
    try:
        have = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        have = None
    # Of a build for one kind of processor: 2.13.0+cpu
    if have is None or have.split("+")[0] != pins[name]:
        print(f"{name}=={pins[name]}")
PYTHON
}

# install [OPTION] NAME...
install() {
    local versions=(-c "$pins")
    [ -z "$newest" ] || versions=(--upgrade)
    if ! DS_BUILD_OPS=0 "$python" -m pip install --disable-pip-version-check --retries 2 "${versions[@]}" "$@" >"$log" 2>&1; then
        # By pip's own words for each try; a version that the index has not is another failure.
        if grep -q 'connection broken' "$log"; then
            echo "no package index can be reached" >&2
            exit 77
        fi
        tail -n 20 "$log" >&2
        echo "tests/venv.sh: pip could not install $*" >&2
        exit 1
    fi
}

# unlock: a process that compiles an extension for PyTorch holds its file `lock` open; if none does, PyTorch would wait for ever.
unlock() {
    local lock
    for lock in "$(realpath "$venv")"/torch_extensions/*/lock; do
        [ -e "$lock" ] || continue
        [ -z "$(find /proc/[0-9]*/fd -lname "$lock" -print -quit 2>/dev/null)" ] || continue
        echo "  RM    $lock, of a compilation that was killed" >&2
        rm -f "$lock"
    done
}

"$python" -c '' 2>/dev/null || "${PYTHON:-python3}" -m venv "$venv"
unlock
if [ -n "$newest" ]; then
    wanted=$(sed -n 's/==.*//p' "$pins" | grep -vx "$held")
else
    wanted=$(missing)
fi
if [ -n "$wanted" ]; then
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    mapfile -t first < <(grep -Ev "^$last(==|$)" <<<"$wanted")
    mapfile -t second < <(grep -E "^$last(==|$)" <<<"$wanted")
    echo "  PIP   ${first[*]} ${second[*]} into $venv" >&2
    [ ${#first[@]} -eq 0 ] || install "${first[@]}"
    [ ${#second[@]} -eq 0 ] || install --no-build-isolation "${second[@]}"
fi
echo "$python"
