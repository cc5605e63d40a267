#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/deps.sh - the packages that each purpose needs (Debian 12 names), and their installation
#
#   scripts/deps.sh PURPOSE...     install what is missing (root), or print the apt line and fail
#   scripts/deps.sh --check PURPOSE...     only say what is missing
#   scripts/deps.sh --list PURPOSE...
#
# Each entry is package[=probe]. A package counts as there when dpkg says so, or else when its probe, if it has one, succeeds: c:COMMAND,
# h:HEADER below /usr/include or /usr/local/include, p:PYTHON_MODULE, y:HEADER of a Python from 3.11 on. So other distributions and pip
# installations work too.
set -euo pipefail

# others: what else may want a drive, and shells that complete. Tests try each that is there.
declare -A packages=(
    [build]="gcc=c:gcc libc6-dev=h:stdio.h make=c:make liburing-dev=h:liburing.h libaio-dev=h:libaio.h libblkid-dev=h:blkid/blkid.h
        libnuma-dev=h:numa.h libxxhash-dev=h:xxhash.h libjansson-dev=h:jansson.h zlib1g-dev=h:zlib.h
        systemtap-sdt-dev=h:sys/sdt.h"
    [test]="g++=c:g++ pkg-config=c:pkg-config libcmocka-dev=h:cmocka.h python3=c:python3 python3-torch=p:torch,pytest
        libopenblas0-pthread=p:torch python3-pytest=p:torch,pytest python3-pip=p:pip python3-setuptools=p:setuptools
        python3-wheel=p:wheel python3-dev=y:Python.h e2fsprogs=c:mkfs.ext4 fdisk=c:sfdisk util-linux=c:losetup
        mount=c:mount dmsetup=c:dmsetup procps=c:pgrep valgrind=c:valgrind python3-matplotlib=p:matplotlib"
    [others]="e2fsprogs=c:mkfs.ext4 fdisk=c:sfdisk lvm2=c:pvcreate mdadm=c:mdadm cryptsetup-bin=c:cryptsetup
        bcache-tools=c:make-bcache xfsprogs=c:mkfs.xfs btrfs-progs=c:mkfs.btrfs dosfstools=c:mkfs.vfat ntfs-3g=c:mkfs.ntfs fio=c:fio strace=c:strace
        zsh=c:zsh fish=c:fish libjemalloc2 libtcmalloc-minimal4 libmimalloc2.0"
    [demo]="python3=c:python3 python3-torch=p:torch python3-dev=y:Python.h libopenblas0-pthread=p:torch util-linux=c:losetup mount=c:losetup"
    [bench]="fio=c:fio python3=c:python3 dpkg-dev=c:dpkg-source mount=c:losetup"
    # For file systems over all drives, and what builds the operators of others.
    [peers]="btrfs-progs=c:mkfs.btrfs e2fsprogs=c:mkfs.ext4 mount=c:mount g++=c:g++ cmake=c:cmake ninja-build=c:ninja
        python3-dev=y:Python.h"
    [wheel]="python3=c:python3 python3-pip=p:pip,setuptools,wheel
        python3-setuptools=p:pip,setuptools,wheel python3-wheel=p:pip,setuptools,wheel python3-dev=y:Python.h
        binutils=c:objdump"
    [deb]="build-essential debhelper dh-python dpkg-dev=c:dpkg-buildpackage lintian=c:lintian fakeroot=c:fakeroot python3=c:python3
        python3-dev fio=c:fio"
    [abi]="abigail-tools=c:abidiff git=c:git"
    [check]="clang=c:clang clang-format=c:clang-format clang-tidy=c:clang-tidy cppcheck=c:cppcheck shellcheck=c:shellcheck
        mypy=c:mypy g++=c:g++ python3=c:python3 libcmocka-dev=h:cmocka.h"
    [coverage]="gcovr=c:gcovr"
    [valgrind]="valgrind=c:valgrind"
    [fuzz]="clang=c:clang libclang-rt-14-dev=h:../lib/llvm-14/lib/clang/14.0.6/lib/linux/libclang_rt.fuzzer-x86_64.a"
    [releases]="debootstrap=c:debootstrap mount=c:mount util-linux=c:unshare"
    [venv]="python3=c:python3 python3-venv=p:ensurepip python3-pip=p:pip"
    [pytorch-suite]="python3-torch libopenblas0-pthread python3-pytest python3-scipy python3-pip util-linux=c:setpriv
        python3-dev=y:Python.h"
    [vm]="qemu-system-x86=c:qemu-system-x86_64 busybox-static=c:busybox kmod=c:modprobe cpio=c:cpio mount=c:mount dmsetup=c:dmsetup"
)
purposes="build test others demo bench peers wheel deb abi check coverage valgrind fuzz releases venv pytorch-suite vm"

die() {
    echo "scripts/deps.sh: $*" >&2
    exit 1
}

# Modules a,b in one interpreter; asked only when dpkg does not know the package: starting Python takes longer than all else here.
has_python_modules() {
    local python
    for python in "${PYTHON:-python3}" /usr/bin/python3; do
        "$python" -c "
import importlib.util, sys
sys.exit(not all(map(importlib.util.find_spec, '$1'.split(','))))" 2>/dev/null && return 0
    done
    return 1
}

# For the hooks on saved tensors, which one Python's headers are enough for.
has_python_header() {
    local python
    for python in "${PYTHON:-python3}" /usr/bin/python3; do
        "$python" -c "
import os, sys, sysconfig
sys.exit(sys.version_info < (3, 11) or not os.path.exists(sysconfig.get_paths()['include'] + '/$1'))" 2>/dev/null && return 0
    done
    return 1
}

probe() {
    case $1 in
    c:*) command -v "${1#c:}" >/dev/null || [ -x "/sbin/${1#c:}" ] || [ -x "/usr/sbin/${1#c:}" ] ;;
    h:*) [ -e "/usr/include/${1#h:}" ] || [ -e "/usr/local/include/${1#h:}" ] ;;
    p:*) has_python_modules "${1#p:}" ;;
    y:*) has_python_header "${1#y:}" ;;
    *) return 1 ;;
    esac
}

# missing_of ENTRIES: those that are not there.
missing_of() {
    local entry installed
    # dpkg-query fails when it does not know one of them; what it knows, it prints.
    installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${@%%=*}" 2>/dev/null | sed -n 's/^installed //p' || true)
    for entry in "$@"; do
        case $'\n'$installed$'\n' in
        *$'\n'"${entry%%=*}"$'\n'*) ;;
        *) probe "${entry#*=}" || echo "${entry%%=*}" ;;
        esac
    done
}

entries_of() {
    local purpose words
    for purpose in "$@"; do
        [ -n "${packages[$purpose]-}" ] || die "no such purpose: $purpose (there are: $purposes)"
        read -r -d '' -a words <<<"${packages[$purpose]}" || true
        printf '%s\n' "${words[@]}"
    done | awk '{ name = $0; sub(/=.*/, "", name) } !seen[name]++'
}

# apt-get needs lists; a fresh machine or image may have none, and old ones may name packages that are gone.
install_packages() {
    local log status=0
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    if ! ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1; then
        echo "  APT   package lists"
        apt-get update -q >"$log" 2>&1 </dev/null || status=$?
    fi
    echo "  APT   $*"
    if [ $status -eq 0 ] && ! apt_install "$@" >>"$log" 2>&1; then
        apt-get update -q >>"$log" 2>&1 </dev/null && apt_install "$@" >>"$log" 2>&1 || status=$?
    fi
    [ $status -eq 0 ] || tail -n 20 "$log" >&2
    rm -f "$log"
    return $status
}

apt_install() {
    apt-get install -q -y --no-install-recommends -o Dpkg::Use-Pty=0 "$@" </dev/null
}

main() {
    local entries missing install=1
    [ $# -gt 0 ] || die "say for what: $purposes"
    if [ "$1" = --list ]; then
        shift
        entries_of "${@:-build}" | sed 's/=.*//'
        return
    fi
    if [ "$1" = --check ]; then
        shift
        install=
    fi
    entries=$(entries_of "$@") || exit 1
    mapfile -t entries <<<"$entries"
    mapfile -t missing < <(missing_of "${entries[@]}")
    [ ${#missing[@]} -gt 0 ] || return 0
    if ! command -v apt-get >/dev/null; then
        die "missing (by their Debian 12 names): ${missing[*]}"
    fi
    if [ -z "$install" ] || [ "$(id -u)" -ne 0 ]; then
        echo "scripts/deps.sh: packages for '$*' are missing. Install them and try again:" >&2
        echo "  sudo apt-get install --no-install-recommends ${missing[*]}" >&2
        exit 1
    fi
    install_packages "${missing[@]}" || die "apt-get could not install: ${missing[*]}"
}

main "$@"
