#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/packages/debian.sh - Debian's packages, built, installed, used and purged in clean roots of its releases; see --help
set -Eeuo pipefail

usage() {
    cat <<'END_OF_USAGE'
tests/packages/debian.sh - build the packages in a root of each release, and try them in a clean one (needs root)

  tests/packages/debian.sh [--work FOLDER] [--mirror URL] [--fresh] [SUITE...]     (bookworm trixie)

For each suite: a root folder, made by debootstrap. Over it, what is needed to build; there `make deb` and
`make wheel` are run. Over it again, and each time from scratch, the packages are installed as a user would, used, and
purged, and the wheel is used in a virtual environment. Exit status 1 if anything failed.

  --work FOLDER   where the root folders are kept from one run to the next (build/packages); 3 GB each
  --fresh         make new ones
  --mirror URL    the archive (the one that this machine's apt has Debian from)

Whatever is mounted is mounted for this run's processes alone: it goes with the last of them.
END_OF_USAGE
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=tests/releases.sh
. "$root/tests/releases.sh"
work=
fresh=
mirror=
suites=()

die() {
    echo "tests/packages/debian.sh: $*" >&2
    exit 1
}

parse() {
    while [ $# -gt 0 ]; do
        case $1 in
        --work | --mirror)
            [ $# -ge 2 ] || die "$1 needs a value"
            printf -v "${1#--}" %s "$2"
            shift
            ;;
        --fresh) fresh=1 ;;
        --help)
            usage
            exit
            ;;
        -*) echo "tests/packages/debian.sh: no such option: $1 (see --help)" >&2; exit 2 ;;
        *) suites+=("$1") ;;
        esac
        shift
    done
    [ ${#suites[@]} -gt 0 ] || suites=(bookworm trixie)
    for suite in "${suites[@]}"; do
        [[ $suite =~ ^[a-z0-9-]+$ ]] || die "$suite: a suite is named like trixie"
    done
}

# layer NAME: from here on the root folder is one over the base; what is written stays in FOLDER-NAME.
layer() {
    local over=$base-$1
    mkdir -p "$over/upper" "$over/work" "$over/root"
    mount -t overlay overlay -o "lowerdir=$base,upperdir=$over/upper,workdir=$over/work" "$over/root"
    folder=$over/root
    mount_all
}

build() {
    [ -z "$fresh" ] || rm -rf --one-file-system "$base-build"
    layer build
    copy_tree
    enter /src/scripts/deps.sh build deb wheel || die "$suite: packages are missing"
    say MAKE "$suite: make deb"
    enter make -C /src --no-print-directory BUILD=/build deb >"$base.log" 2>&1 || {
        tail -n 40 "$base.log" >&2
        die "$suite: make deb failed"
    }
    grep -E '^[EWI]: ' "$base.log" || echo "        lintian has nothing to say"
    say MAKE "$suite: make wheel"
    enter make -C /src --no-print-directory BUILD=/build wheel >"$base.log" 2>&1 || {
        tail -n 40 "$base.log" >&2
        die "$suite: make wheel failed"
    }
    packages=("$folder"/build/deb/*.deb "$folder"/build/dist/*.whl)
}

# As a stranger: the packages alone, in a root that has never seen the sources.
try() {
    rm -rf --one-file-system "$base-user"
    layer user
    mkdir "$folder/debs"
    cp "${packages[@]}" "$folder/debs/"
    cp "$root/tests/packages/use.sh" "$root/tests/lib.sh" "$root/scripts/extract-example.sh" "$folder/debs/"
    say TRY "$suite: install, use, purge"
    enter bash /debs/use.sh
}

run_suite() {
    base=$work/$suite folder=$work/$suite
    exec 8>"$base.lock"
    flock -n 8 || die "$base is in use by another run"
    make_root
    build
    try
    rm -rf --one-file-system "$base-user/upper"
}

run_inside() {
    "${end_with_me[@]}" unshare --mount --propagation private "${BASH_SOURCE[0]}" --inside "$@"
}

main() {
    local status=0
    parse "$@"
    need_releases
    find_mirror
    work=${work:-$root/build/packages}
    mkdir -p "$work"
    work=$(realpath -- "$work")
    for suite in "${suites[@]}"; do
        run_inside "$suite" "$work" "$mirror" "$fresh" || status=1
    done
    return $status
}

trap 'exit 130' INT
if [ "${1-}" = --inside ]; then
    suite=$2 work=$3 mirror=$4 fresh=$5
    run_suite
else
    main "$@"
fi
