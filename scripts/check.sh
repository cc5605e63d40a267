#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/check.sh - everything about the sources that can be checked without running them; one line per check
#
#   scripts/check.sh [CHECK...]     all, or the named ones (the words at the beginning of the lines)
#
# CHECK_CFLAGS holds the compiler flags of the build. Exit status 1 if any check fails.
set -uo pipefail

cd "$(dirname "$0")/.." || exit 1
jobs=$(nproc)
report=$(mktemp)
trap 'rm -f "$report"' EXIT
read -r -a cflags <<<"${CHECK_CFLAGS:--std=gnu17 -D_GNU_SOURCE -Iinclude -I.}"
failed=0

# All files of the repository, also where there is no git.
all_files() {
    {
        git ls-files -co --exclude-standard 2>/dev/null ||
            find . -path ./.git -prune -o -path './build*' -prune -o -name __pycache__ -prune -o -type f -printf '%P\n'
    } | while read -r file; do [ ! -f "$file" ] || echo "$file"; done | sort
}
# The inputs of the fuzz targets are any bytes.
mapfile -t files < <(all_files | grep -v '^tests/fuzz/corpus/')

# select_files REGEX...: the files whose path matches one.
select_files() {
    printf '%s\n' "${files[@]}" | grep -E "$(IFS='|' && echo "$*")"
}
mapfile -t c_files < <(select_files '\.([ch]|cpp)$')
# What compiles everywhere: the fio engine needs fio's sources, the hooks Python's headers (and PyTorch's).
mapfile -t c_sources < <(select_files '\.c$' | grep -v -e '^tools/fio_engine/' -e '^python/hooks/')
mapfile -t shell_files < <(select_files '\.sh$' '^\.ci/run$' '^tests/vm/init$')
# Python is named so, or names its interpreter in its first line.
python_programs() { awk 'FNR == 1 && /^#!.*python/ { print FILENAME } { nextfile }' "${files[@]}"; }
mapfile -t python_files < <({ select_files '\.py$' && python_programs; } | sort -u)

# ---- The checks: print what is wrong, return 0 if nothing is ---------------------------------------------------------------------------

check_format() { # C is laid out by clang-format
    clang-format --dry-run -Werror "${c_files[@]}"
}

check_columns() { # no line of C or Python above 100 columns, comments too
    local file found=0
    for file in "${c_files[@]}" "${python_files[@]}"; do
        expand "$file" | awk -v file="$file" 'length > 100 { print file ":" FNR ": " length " columns"; found = 1 } END { exit found }' || found=1
    done
    return $found
}

check_mutants() { # each seeded bug has its place in the sources
    python3 tests/mutants/run.py --stale
}

check_includes() { # layers include only what lies under them
    python3 tests/check/includes.py
}

check_rooms() { # parts of the Python package import only what lies under them
    python3 tests/check/rooms.py
}

check_circles() { # no two files of a folder need each other, by the symbols of what was built
    python3 tests/check/circles.py "${SPW_BUILD:-build}" util alloc layout engine engine/nvme \
        engine/vfio status drives drives/vfio store state plan trace tensor tensor/control simstore tools tools/ui \
        tools/bench tools/replay tools/plan tools/completion tools/grant tools/metrics \
        python/hooks
}

check_prefixes() { # what other files may call bears its layer's name, by the symbols of what was built
    python3 tests/check/prefixes.py "${SPW_BUILD:-build}" spillway.map
}

check_counters() { # what is generated from the tables of counters is of this build
    SPILLWAY_LIBRARY=$(realpath "${SPW_BUILD:-build}")/libspillway.so python3 scripts/counters.py --check
}

check_functions() { # no function above 70 lines
    python3 tests/check/functions.py "${c_files[@]}" "${python_files[@]}"
}

check_asserts() { # what is asserted only looks
    python3 tests/check/asserts.py "${c_files[@]}"
}

check_factories() { # Python's tensors are made on a device and of a type that are named
    local package
    mapfile -t package < <(printf '%s\n' "${python_files[@]}" | grep '^python/spillway/')
    python3 tests/check/factories.py "${package[@]}"
}

check_words() { # pages are in plain English, and in the field's terms
    python3 tests/check/words.py
}

check_checks() { # the checkers find what is planted for them
    bash tests/check/test_checkers.sh
}

check_headers() { # public headers compile alone, as C and as C++
    bash tests/unit/test_headers.sh
}

check_kerneldoc() { # each function of a public header says what it takes, returns and does
    python3 tests/check/kerneldoc.py include/spillway/*.h
}

check_marks() { # nothing is left for later
    ! grep -nE '\b(T[O]DO|F[I]XME|X[X]X|H[A]CK)\b' "${files[@]}" /dev/null
}

check_paths() { # no path of anyone's machine
    ! grep -nE '(^|[^A-Za-z0-9_.])/(home|root|work|Users)/[A-Za-z]' "${files[@]}" /dev/null
}

check_licence() { # an SPDX line and a line `path - subject` at the top of every source
    local file name found=0
    for file in "${c_files[@]}" "${shell_files[@]}" "${python_files[@]}"; do
        name=${file#include/} name=${name#python/}
        head -n 2 "$file" | grep -q 'SPDX-License-Identifier: MIT' || { echo "$file: no SPDX line at the top" && found=1; }
        head -n 4 "$file" | grep -qF "$name - " || { echo "$file: no line '$name - subject' at the top" && found=1; }
    done
    return $found
}

check_blanks() { # no blanks at line ends, and a newline at the end of each file
    local file found=0
    ! grep -nIE '[[:blank:]]+$' "${files[@]}" /dev/null || found=1
    for file in "${files[@]}"; do
        [ ! -s "$file" ] || [ -z "$(tail -c 1 "$file" | tr -d '\0')" ] || grep -qvI . "$file" || { echo "$file: no newline at the end" && found=1; }
    done
    return $found
}

check_shell() { # shell scripts parse, and shellcheck finds nothing
    local file found=0
    for file in "${shell_files[@]}"; do
        bash -n "$file" || found=1
    done
    # SC1007: `name= other=` empties both, and is meant to. SC2154: make_loop and make_file of tests/lib.sh set the variable named.
    shellcheck -x -S warning -e SC1007,SC2154 "${shell_files[@]}" || found=1
    return $found
}

check_types() { # Python's types hold, and refuse what they shall (tests/check/refused.py)
    # With what is built of the types, as it is installed.
    local tree status=0
    tree=$(mktemp -d)
    cp --parents -r python/spillway python/examples tests/check "$tree"
    cp "${SPW_BUILD:-build}/counted.pyi" "$tree/python/spillway/_core/"
    (cd "$tree" && mypy --config-file tests/check/mypy.ini --cache-dir /dev/null python/spillway python/examples \
        tests/check/refused.py) || status=1
    rm -rf "$tree"
    return $status
}

check_clang() { # clang has no warning either
    printf '%s\n' "${c_sources[@]}" | xargs -P "$jobs" -n 8 clang "${cflags[@]}" -fsyntax-only
}

check_cppcheck() { # static analysis
    cppcheck -q -j "$jobs" --std=c11 --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
        --suppressions-list=tests/check/cppcheck.txt -D_GNU_SOURCE -D__x86_64__ -Iinclude -I. "${c_sources[@]}"
}

check_tidy() { # static analysis: bugprone, clang-analyzer
    local sources
    # util/error.c defines what analyzer.h replaces.
    mapfile -t sources < <(printf '%s\n' "${c_sources[@]}" | grep -v -e '^tests/' -e '^util/error.c$')
    printf '%s\0' "${sources[@]}" |
        xargs -0 -P "$jobs" -I{} clang-tidy --quiet {} -- "${cflags[@]}" -include tests/check/analyzer.h 2>/dev/null
}

# ---- Run -----------------------------------------------------------------------------------------------------------------------------

run_check() {
    local name=$1 what begun=$EPOCHREALTIME word=ok seconds
    what=$(sed -n "s/^check_$name() { # //p" "$0")
    "check_$name" >"$report" 2>&1 || word=failed
    seconds=$(awk -v from="$begun" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f", to - from }')
    [ "$name" = functions ] && what="$what: $(head -n 1 "$report")"
    printf '  %-7s %-10s %5s s  %s\n' "$word" "$name" "$seconds" "$what"
    if [ "$word" = failed ]; then
        failed=$((failed + 1))
        head -n 60 "$report" | sed 's/^/          | /'
    fi
}

names=("$@")
[ $# -gt 0 ] || mapfile -t names < <(sed -n 's/^check_\([a-z]*\)() { # .*/\1/p' "$0")
for name in "${names[@]}"; do
    declare -F "check_$name" >/dev/null || { echo "scripts/check.sh: no check '$name'" >&2 && exit 2; }
    run_check "$name"
done
[ $failed -eq 0 ] && echo "make check: all ${#names[@]} checks passed" || echo "make check: $failed of ${#names[@]} checks failed"
exit $((failed > 0))
