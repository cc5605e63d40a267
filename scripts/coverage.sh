#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/coverage.sh - lines and branches covered, per layer, and their floors; called by `make coverage` after the tests ran
#
#   scripts/coverage.sh BUILD_FOLDER LAYER...
#
# A layer below its floor is a failure. What cannot be reached by any input is marked in the source with the reason beside it:
# `LCOV_EXCL_BR_LINE` for the branches of a line, `LCOV_EXCL_LINE` for the line. The untaken branch of SPW_ASSERT is left out by itself:
# it is the program's end. What only an NVMe drive's character device brings to life is not counted: `make test-vm` runs it.
set -euo pipefail

cd "$(dirname "$0")/.."
build=$1
shift
# LAYER:LINES:BRANCHES in percent
floors="alloc:100:100 layout:100:100 store:90:0 engine:90:0 tensor:90:0 util:90:0"
needs_nvme=(--exclude=engine/nvme_probe.c --exclude=engine/backend_nvme.c)
filters=("${@/#/--filter=}")
filters=("${filters[@]/%//}")
# Branches that the compiler adds and that lines without code have are not counted.
gcovr --root . --object-directory "$build" --exclude-throw-branches --exclude-unreachable-branches \
    --exclude-branches-by-pattern '.*SPW_ASSERT.*' --csv "${needs_nvme[@]}" "${filters[@]}" >"$build/coverage.csv"
awk -F, -v layers="$*" -v floors="$floors" '
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
        count = split(floors, floor, " ")
        for (i = 1; i <= count; i++) {
            split(floor[i], part, ":")
            lines_floor[part[1]] = part[2]
            branches_floor[part[1]] = part[3]
        }
        count = split(layers, name, " ")
        for (i = 1; i <= count; i++) {
            l = name[i]
            low = percent(lines_hit[l], lines[l]) < lines_floor[l] || percent(branches_hit[l], branches[l]) < branches_floor[l]
            printf "  %-34s %5.1f %% of %5d lines  %5.1f %% of %5d branches%s\n", l, percent(lines_hit[l], lines[l]), lines[l],
                percent(branches_hit[l], branches[l]), branches[l],
                low ? sprintf("  BELOW its floor of %d %% lines, %d %% branches", lines_floor[l], branches_floor[l]) : ""
            below += low
        }
        exit below > 0
    }' "$build/coverage.csv"
