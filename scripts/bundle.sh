#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/bundle.sh - copy programs and libraries into a folder, and beside them what they need, for machines that have none of that
#
#   scripts/bundle.sh FOLDER FILE...
#
# Each FILE that needs others must look for them in its own folder (LDFLAGS='-Wl,--disable-new-dtags,-rpath,$ORIGIN' of the
# build). libc is everywhere and is left out. Prints the name of a platform that has all the rest, as wheels are named:
# manylinux_2_34_x86_64, or nothing where there is no such name. Where dpkg knows whose the libraries are, their licences go
# into FOLDER/licences.
set -Eeuo pipefail

[ $# -ge 2 ] || { echo "usage: scripts/bundle.sh FOLDER FILE..." >&2; exit 2; }
folder=$1
shift
die() {
    echo "scripts/bundle.sh: $*" >&2
    exit 1
}

needed() {
    objdump -p "$1" | awk '$1 == "NEEDED" && $2 !~ /^(libc|libm|libdl|librt|libpthread|ld-linux.*)\.so/ { print $2 }'
}

copy_licence() {
    local package
    command -v dpkg-query >/dev/null || return 0
    # A merged /usr: dpkg may know the file by either name.
    package=$({ dpkg-query -S "$1" || dpkg-query -S "${1#/usr}"; } 2>/dev/null | sed -n '1s/[:,].*//p') || return 0
    [ -z "$package" ] || [ ! -e "/usr/share/doc/$package/copyright" ] ||
        install -D -m 644 "/usr/share/doc/$package/copyright" "$folder/licences/$package"
}

# The highest version of glibc that any of the files asks for: 2.34
glibc_of() {
    objdump -T "$@" 2>/dev/null | grep -o 'GLIBC_[0-9][0-9.]*' | sed 's/GLIBC_//' | sort -V | tail -n 1
}

declare -A seen=()
files=() wanted=() resolved=()
mkdir -p "$folder"
for file in "$@"; do
    cp -L "$file" "$folder/"
    files+=("$folder/${file##*/}")
    mapfile -t own < <(needed "$file")
    [ ${#own[@]} -gt 0 ] || continue
    objdump -p "$file" | grep -E 'RPATH +\$ORIGIN' >/dev/null ||
        die "$file does not look in its own folder for what it needs: it was linked without -rpath"
    wanted+=("${own[@]}")
    mapfile -t -O ${#resolved[@]} resolved < <(ldd "$file")
done
while [ ${#wanted[@]} -gt 0 ]; do
    name=${wanted[0]} wanted=("${wanted[@]:1}")
    [ -z "${seen[$name]-}" ] || continue
    seen[$name]=1
    path=$(printf '%s\n' "${resolved[@]}" | awk -v name="$name" '$1 == name { print $3; exit }')
    [ -e "$path" ] || die "$name is needed, and not to be found"
    cp -L "$path" "$folder/$name"
    copy_licence "$(realpath "$path")"
    files+=("$folder/$name")
    mapfile -t -O ${#wanted[@]} wanted < <(needed "$path")
done
glibc=$(glibc_of "${files[@]}")
[ -z "$glibc" ] || echo "manylinux_${glibc/./_}_$(uname -m)"
