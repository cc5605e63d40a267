#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/coverage.sh - lines and branches covered, per layer; called by `make coverage` after the tests ran
#
#   scripts/coverage.sh BUILD_FOLDER LAYER...
set -euo pipefail

cd "$(dirname "$0")/.."
build=$1
shift
filters=("${@/#/--filter=}")
filters=("${filters[@]/%//}")
# Branches that the compiler adds and that lines without code have are not counted.
gcovr --root . --object-directory "$build" --exclude-throw-branches --exclude-unreachable-branches --csv \
    "${filters[@]}" >"$build/coverage.csv"
awk -F, -v layers="$*" '
    NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
    {
        layer = $1
        sub(/\/.*/, "", layer)
        lines[layer] += $column["line_total"]
        lines_hit[layer] += $column["line_covered"]
        branches[layer] += $column["branch_total"]
        branches_hit[layer] += $column["branch_covered"]
        printf "    %-32s %5.1f %% of %5d lines  %5.1f %% of %5d branches\n", $1, percent($column["line_covered"], $column["line_total"]),
            $column["line_total"], percent($column["branch_covered"], $column["branch_total"]), $column["branch_total"]
    }
    function percent(hit, all) { return all ? 100 * hit / all : 100 }
    END {
        count = split(layers, name, " ")
        for (i = 1; i <= count; i++) {
            l = name[i]
            printf "  %-34s %5.1f %% of %5d lines  %5.1f %% of %5d branches\n", l, percent(lines_hit[l], lines[l]), lines[l],
                percent(branches_hit[l], branches[l]), branches[l]
        }
    }' "$build/coverage.csv"
