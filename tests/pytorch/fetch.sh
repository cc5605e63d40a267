#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/pytorch/fetch.sh - the tests of the installed PyTorch, by way of the package manager
#
# usage: fetch.sh DIRECTORY
#
# Takes the version of the installed package python3-torch, and unpacks the tests of its source into DIRECTORY/test; what they import and
# Debian has no package of goes into DIRECTORY/modules. A directory that is there already and of the right version is kept.
#
# Exit: 0; 77 they cannot be had here, with the reason.
set -euo pipefail

die() {
    echo "PyTorch's tests: $*" >&2
    exit 77
}

[ $# = 1 ] || die "usage: fetch.sh DIRECTORY"
target=$1
root=$(dirname -- "${BASH_SOURCE[0]}")/../..
version=$(dpkg-query -W -f '${source:Version}' python3-torch 2>/dev/null) || die "python3-torch is not installed (apt-get install python3-torch)"
if [ -f "$target/version" ] && [ "$(cat "$target/version")" = "$version" ]; then
    exit 0
fi

rm -rf "$target"
mkdir -p "$target/package"
# Debian's changes are not in the tests.
"$root/scripts/source-package.sh" pytorch "$version" "$target/package" --tar-only ||
    die "the package manager does not offer the source of PyTorch $version"
tar -C "$target" -x --strip-components=1 --wildcards --no-wildcards-match-slash --anchored -f "$target"/package/*.orig.tar.* '*/test'
/usr/bin/python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps \
    --target "$target/modules" expecttest==0.1.3 || die "pip cannot install expecttest"
rm -rf "$target/package"
echo "$version" >"$target/version"
