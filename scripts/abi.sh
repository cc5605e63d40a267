#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/abi.sh - the library's binary interface against that of the last release that is tagged; called by `make abi`
#
#   scripts/abi.sh BUILD [TAG]      builds both below BUILD/abi; TAG: not the last one
#
# What may differ: functions that are new, and members at the end of structs that begin with their size. Anything else needs a version
# whose first number is higher than the tag's, or, before 1.0, its second one. Exit status 1: it differs, and the version does not say so.
set -Eeuo pipefail

[ $# -ge 1 ] || { echo "usage: scripts/abi.sh BUILD [TAG]" >&2; exit 2; }
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p "$1"
work=$(realpath "$1")/abi
tag=${2:-$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null || true)}
if [ -z "$tag" ]; then
    echo "make abi: no release is tagged yet (v1.2.3), so there is nothing to compare with"
    exit 0
fi

version_of() {
    sed -n 's/^#define SPW_VERSION "\(.*\)"/\1/p' "$1/include/spillway/error.h"
}
# The part of a version that an incompatible change raises: 1, or 0.1
compatible_part() {
    case $1 in
    0.*) cut -d. -f1,2 <<<"$1" ;;
    *) cut -d. -f1 <<<"$1" ;;
    esac
}
build() {
    (
        unset MAKEFLAGS MFLAGS MAKELEVEL BUILD LDFLAGS
        make -C "$1" --no-print-directory -j"$(nproc)" BUILD="$work/build-$2" CFLAGS='-O0 -g' "$work/build-$2/libspillway.so"
    ) >"$work/$2.log" 2>&1 || {
        tail -n 20 "$work/$2.log" >&2
        echo "make abi: the library of $2 was not built" >&2
        exit 1
    }
}
# Structs that begin with their size may grow: who was compiled before says how much of them there is.
allow_growth() {
    awk '/^struct spw_[a-z_]+ \{/ { name = $2; next }
        name && /^\tsize_t size;/ { print "[suppress_type]\n  type_kind = struct\n  name = " name "\n  has_size_change = yes\n  has_data_member_inserted_at = end\n" }
        { name = "" }' "$1"/include/spillway/*.h
}

rm -rf "$work/tree"
mkdir -p "$work/tree"
git archive "$tag" | tar -C "$work/tree" -x
build "$work/tree" tag
build . now
allow_growth "$work/tree" >"$work/growth"
status=0
abidiff --no-added-syms --suppressions "$work/growth" --headers-dir1 "$work/tree/include" --headers-dir2 include \
    "$work/build-tag/libspillway.so" "$work/build-now/libspillway.so" >"$work/report" || status=$?
before=$(version_of "$work/tree") now=$(version_of .)
if [ $status -eq 0 ]; then
    echo "make abi: programs that were linked with $tag ($before) work with this library ($now)"
elif [ $((status & 3)) -ne 0 ]; then
    cat "$work/report"
    echo "make abi: abidiff failed" >&2
    exit 1
elif [ "$(compatible_part "$before")" != "$(compatible_part "$now")" ]; then
    cat "$work/report"
    echo "make abi: incompatible with $tag ($before), as the version $now says"
else
    cat "$work/report"
    echo "make abi: incompatible with $tag ($before), but the version $now does not say so" >&2
    exit 1
fi
