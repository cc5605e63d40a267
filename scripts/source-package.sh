#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/source-package.sh - downloads a source package of Debian, by way of the package manager
#
#   scripts/source-package.sh PACKAGE VERSION DIRECTORY [--tar-only]
#
# The files of the package go into DIRECTORY, which must exist; --tar-only: upstream's archive alone. apt is asked through a sources
# list of its own (the machine's entries with deb-src for deb, in a temporary directory): the machine's configuration and package lists
# are not touched.
#
# Exit: 0; 77 the package manager does not have it, with what it said.
set -euo pipefail

[ $# -ge 3 ] || { sed -n '3,5s/^# //p' "$0" >&2; exit 1; }
package=$1 version=$2 directory=$(realpath -- "$3")
shift 3

# The machine's package sources, binary entries turned into source entries. apt reads both forms from one directory.
write_sources() {
    local to=$1 file
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -f "$file" ] || continue
        sed -n -E 's/^[[:space:]]*deb([[:space:]])/deb-src\1/p' "$file" >"$to/$(basename "$file" .list).list"
    done
    for file in /etc/apt/sources.list.d/*.sources; do
        [ -f "$file" ] || continue
        sed -E 's/^Types:.*/Types: deb-src/' "$file" >"$to/$(basename "$file")"
    done
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/sources" "$scratch/lists/partial" "$scratch/cache/archives/partial" "$scratch/package"
chmod 755 "$scratch" "$scratch/package"
if [ "$(id -u)" = 0 ] && id _apt >/dev/null 2>&1; then
    chown _apt "$scratch/lists/partial" "$scratch/package"
fi
write_sources "$scratch/sources"
apt=(apt-get -q -q -o "Dir::Etc::sourcelist=/dev/null" -o "Dir::Etc::sourceparts=$scratch/sources"
    -o "Dir::State::lists=$scratch/lists" -o "Dir::Cache=$scratch/cache" -o "Debug::NoLocking=true")
# An entry that offers no sources makes update fail as a whole; what counts is whether the package can be had afterwards.
"${apt[@]}" update >"$scratch/update.log" 2>&1 || true
(cd "$scratch/package" && "${apt[@]}" source --download-only "$@" "$package=$version" >"$scratch/source.log" 2>&1) || {
    tail -n 5 "$scratch/update.log" "$scratch/source.log" >&2
    exit 77
}
mv "$scratch/package"/* "$directory"
