#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/python/versions.sh - the Python tests with the PyTorch, the Python and the compiler of other Debian releases; see --help
set -Eeuo pipefail

usage() {
    cat <<'END'
tests/python/versions.sh - build everything and run the Python tests in other releases of Debian (needs root)

  tests/python/versions.sh [OPTIONS] [SUITE...] [-- ARGUMENTS of tests/run]     (trixie sid)

For each suite: a root folder, made by debootstrap, with that release's PyTorch, Python, compiler and libraries; a copy of this tree,
built there with its tests, every warning an error; tests/run --kind python, or with the arguments given. The last lines say what
passed with which versions. Exit status 1 if anything failed.

Options
  --work FOLDER     where the root folders are kept from one run to the next (build/torch-versions); some 3 GB each
  --fresh           make the root folders anew: also to take what a suite has by now
  --mirror URL      the archive (the one that this machine's apt has Debian from)
  --jobs N          of make (2)
  --shell COMMAND   run this there instead of the tests: the copy is the present folder, BUILD its build folder

Whatever is mounted is mounted for this run's processes alone: it goes with the last of them, however they end. Ctrl-C ends a run; what
it has installed so far is taken up by the next one.
END
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${here%/tests/python}
# shellcheck source=tests/releases.sh
. "$root/tests/releases.sh"
work=
fresh=
mirror=
jobs=2
command=
suites=()
arguments=()

die() {
    echo "tests/python/versions.sh: $*" >&2
    exit 1
}

parse() {
    while [ $# -gt 0 ]; do
        case $1 in
        --work | --mirror | --jobs | --shell)
            [ $# -ge 2 ] || die "$1 needs a value"
            case $1 in
            --work) work=$2 ;;
            --mirror) mirror=$2 ;;
            --jobs) jobs=$2 ;;
            --shell) command=$2 ;;
            esac
            shift
            ;;
        --fresh) fresh=1 ;;
        --help)
            usage
            exit
            ;;
        --)
            shift
            arguments=("$@")
            break
            ;;
        -*) echo "tests/python/versions.sh: no such option: $1 (see --help)" >&2; exit 2 ;;
        *) suites+=("$1") ;;
        esac
        shift
    done
    [ ${#suites[@]} -gt 0 ] || suites=(trixie sid)
    [ ${#arguments[@]} -gt 0 ] || arguments=(--kind python)
    [[ $jobs =~ ^[1-9][0-9]*$ ]] || die "--jobs $jobs: not a number"
    for suite in "${suites[@]}"; do
        [[ $suite =~ ^[a-z0-9-]+$ ]] || die "$suite: a suite is named like trixie"
    done
}

# By the project's own list of packages, and PyTorch's headers for what torch.compile makes.
install_packages() {
    enter /src/scripts/deps.sh build test || die "$suite: packages are missing"
    enter apt-get install -q -y --no-install-recommends libtorch-dev >"$folder.log" 2>&1 </dev/null || {
        tail -n 5 "$folder.log" >&2
        die "$suite: apt-get could not install libtorch-dev"
    }
    enter apt-get clean
}

versions() {
    enter python3 -c 'import platform, torch; print(f"PyTorch {torch.__version__}, Python {platform.python_version()}", end=", ")'
    enter sh -c 'printf "gcc %s, liburing %s" "$(gcc -dumpfullversion)" "$(dpkg-query -W -f "\${Version}" liburing-dev)"'
}

run_suite() {
    local log status=0 with
    suite=$1 folder=$work/$1
    exec 8>"$folder.lock"
    flock -n 8 || die "$folder is in use by another run"
    make_root
    mount_all
    copy_tree
    install_packages
    with=$(versions)
    say SUITE "$suite: $with"
    enter make -C /src --no-print-directory BUILD=/build "-j$jobs" build-tests || die "$suite: the build failed"
    if [ -n "$command" ]; then
        enter bash -c "cd /src && $command" || status=$?
        outcome="exit status $status"
    else
        log=$folder.log
        enter /src/tests/run --build /build "${arguments[@]}" 2>&1 | tee -i "$log" || status=1
        outcome=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1)
    fi
    echo "$suite: $with: ${outcome:-no result}" >>"$results"
    return $status
}

# Each in a mount namespace of its own, as a process of its own.
run_inside() {
    "${end_with_me[@]}" unshare --mount --propagation private "${BASH_SOURCE[0]}" --inside "$@"
}

main() {
    local suite results status=0
    parse "$@"
    need_releases
    find_mirror
    work=${work:-$root/build/torch-versions}
    mkdir -p "$work"
    work=$(realpath -- "$work")
    results=$(mktemp "$work/results.XXXXXX")
    # shellcheck disable=SC2064 # this file, also when the name is gone
    trap "rm -f '$results'" EXIT
    for suite in "${suites[@]}"; do
        run_inside "$suite" "$work" "$mirror" "$jobs" "$fresh" "$command" "$results" "${arguments[@]}" || status=1
        grep -q "^$suite:" "$results" || echo "$suite: not run" >>"$results"
    done
    echo
    cat "$results"
    return $status
}

# What runs is told, too, and a program that then ended well would let this go on.
trap 'exit 130' INT
if [ "${1-}" = --inside ]; then
    work=$3 mirror=$4 jobs=$5 fresh=$6 command=$7 results=$8
    arguments=("${@:9}")
    run_suite "$2"
else
    main "$@"
fi
