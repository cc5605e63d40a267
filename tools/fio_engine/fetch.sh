#!/bin/bash
# SPDX-License-Identifier: MIT
# tools/fio_engine/fetch.sh - the exact source of the installed fio, by way of the package manager
#
# usage: fetch.sh DIRECTORY
#
# fio installs no headers, and an external engine must be compiled against the structures of the very fio that loads it. So this
# takes the version of the installed package, has that source package downloaded (scripts/source-package.sh), unpacks it into
# DIRECTORY and configures it. A tree that is there already and of the right version is kept.
#
# SPW_FIO_SOURCE=DIR: use this unpacked source instead of asking the package manager; it is copied.
# Exit: 0; 77 fio or its source cannot be had here, with the reason; 1 anything else.
set -euo pipefail

die() {
	local code=$1
	shift
	printf 'fio source: %s\n' "$*" >&2
	exit "$code"
}

[ $# = 1 ] || die 1 "usage: fetch.sh DIRECTORY"
target=$1
here=$(dirname -- "${BASH_SOURCE[0]}")
command -v fio >/dev/null || die 77 "fio is not installed (apt-get install fio)"
fio_version=$(fio --version)

if [ -f "$target/.spillway-version" ] && [ "$(cat "$target/.spillway-version")" = "$fio_version" ]; then
	exit 0
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ -n "${SPW_FIO_SOURCE:-}" ]; then
	[ -f "$SPW_FIO_SOURCE/ioengines.h" ] || die 1 "SPW_FIO_SOURCE=$SPW_FIO_SOURCE holds no fio source"
	cp -a "$SPW_FIO_SOURCE" "$scratch/tree"
else
	{ command -v apt-get && command -v dpkg-source; } >/dev/null ||
		die 77 "needs apt-get and dpkg-source (apt-get install dpkg-dev), or SPW_FIO_SOURCE=DIR with the source of $fio_version"
	package_version=$(dpkg-query -W -f '${source:Version}' fio 2>/dev/null) ||
		die 77 "$(command -v fio) is not from a package; set SPW_FIO_SOURCE=DIR to the source of $fio_version"
	mkdir "$scratch/package"
	"$here/../../scripts/source-package.sh" fio "$package_version" "$scratch/package" ||
		die 77 "the package manager does not offer the source of fio $package_version; unpack it yourself and set SPW_FIO_SOURCE"
	dpkg-source --no-check -x "$scratch"/package/*.dsc "$scratch/tree" >"$scratch/unpack.log" 2>&1 || {
		cat "$scratch/unpack.log" >&2
		die 1 "cannot unpack the source package of fio $package_version"
	}
fi

source_version=$(cd "$scratch/tree" && sh ./FIO-VERSION-GEN 2>/dev/null && sed -n 's/^FIO_VERSION = //p' FIO-VERSION-FILE)
[ "$source_version" = "$fio_version" ] ||
	die 1 "the source is $source_version but the installed fio says $fio_version: an engine built from it would not load"
(cd "$scratch/tree" && ./configure >configure.log 2>&1) || {
	tail -n 5 "$scratch/tree/configure.log" >&2
	die 1 "fio's configure failed"
}
printf '%s\n' "$fio_version" >"$scratch/tree/.spillway-version"
rm -rf "$target"
mkdir -p "$(dirname "$target")"
mv "$scratch/tree" "$target"
