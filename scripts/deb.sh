#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/deb.sh - Debian's packages of what is in this folder, and what lintian says of them; called by `make deb`
#
#   scripts/deb.sh BUILD      they go to BUILD/deb
#
# The engine of fio is built if the source of the installed fio can be had. Exit status 1: not built, or lintian found an error.
set -Eeuo pipefail

[ $# -eq 1 ] || { echo "usage: scripts/deb.sh BUILD" >&2; exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p "$1"
build=$(realpath "$1")
version=$(sed -n 's/^#define SPW_VERSION "\(.*\)"/\1/p' include/spillway/error.h)
packaged=$(dpkg-parsechangelog -S Version)
[ "${packaged%%[-~+]*}" = "$version" ] || {
    echo "scripts/deb.sh: debian/changelog is of version $packaged, the library of $version: add an entry (dch -v $version)" >&2
    exit 1
}
profile=()
status=0
tools/fio_engine/fetch.sh "$build/fio-src" || status=$?
if [ $status -eq 0 ]; then
    export SPW_FIO_SOURCE=$build/fio-src
elif [ $status -eq 77 ]; then
    echo "scripts/deb.sh: without the source of fio, as said above, there is no package spillway-fio" >&2
    profile=(-Ppkg.spillway.nofio)
else
    exit $status
fi
rm -rf "$build/deb"
tree=$build/deb/spillway-$packaged
scripts/copy-tree.sh "$tree"
# What make hands down is for this tree.
unset MAKEFLAGS MFLAGS MAKELEVEL BUILD SPW_BUILD CFLAGS LDFLAGS
(cd "$tree" && dpkg-buildpackage -us -uc -b "${profile[@]}") >"$build/deb/build.log" 2>&1 || {
    tail -n 30 "$build/deb/build.log" >&2
    echo "scripts/deb.sh: not built; all that was said is in $build/deb/build.log" >&2
    exit 1
}
rm -rf "$tree"
lintian --fail-on error "$build"/deb/*.changes
# What debuggers want lies apart: apt-get install build/deb/*.deb is what users want.
mkdir "$build/deb/debug"
mv "$build"/deb/*-dbgsym_*.deb "$build/deb/debug/"
ls -l "$build"/deb/*.deb
