#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/coverage.sh - lines and branches covered, per layer, and their floors; called by `make coverage` after the tests ran
#
#   scripts/coverage.sh BUILD_FOLDER LAYER...
#
# The report is printed and stays in BUILD_FOLDER/coverage.txt; coverage-lines.txt names the lines that were missed. A layer below its
# floor is a failure. What cannot be reached by any input is marked in the source with the reason beside it: `LCOV_EXCL_BR_LINE` for the branches of a
# line, `LCOV_EXCL_LINE` for the line. The untaken branch of SPW_ASSERT and SPW_MUST is left out by itself: it is the program's end.
#
# What only an NVMe drive brings to life is shown apart, and has no floor: `make test-vm` runs it in a virtual machine.
set -euo pipefail

cd "$(dirname "$0")/.."
build=$1
shift
# LAYER:LINES:BRANCHES in percent: so far below what is reached that no run falls below by chance.
floors="alloc:100:100 layout:100:100 engine:90:75 drives:90:75 store:90:75 state:95:80 plan:95:85 trace:95:85 tensor:95:85 util:95:85"
needs_nvme="engine/nvme/probe.c engine/nvme/backend_nvme.c"
filters=("${@/#/--filter=}")
filters=("${filters[@]/%//}")
# Branches that the compiler adds and that lines without code have are not counted. A line with an impossible count, if
# there is one (Makefile, on plan/), is named and left out.
gcovr --root . --object-directory "$build" --gcov-ignore-parse-errors --exclude-throw-branches --exclude-unreachable-branches \
    --exclude-branches-by-pattern '.*SPW_(ASSERT|MUST).*' --csv "$build/coverage.csv" \
    --txt "$build/coverage-lines.txt" "${filters[@]}"
awk -F, -v layers="$*" -v floors="$floors" -v needs_nvme="$needs_nvme" '
    function percent(hit, all) { return all ? 100 * hit / all : 100 }
    function show(indent, name, group, words) {
        printf "%s%-*s %5.1f %% of %5d lines  %5.1f %% of %5d branches%s\n", indent, 38 - length(indent), name,
            percent(lines_hit[group], lines[group]), lines[group], percent(branches_hit[group], branches[group]), branches[group], words
    }
    function add(group, from) {
        lines[group] += lines[from]
        lines_hit[group] += lines_hit[from]
        branches[group] += branches[from]
        branches_hit[group] += branches_hit[from]
    }
    BEGIN {
        count = split(needs_nvme, name, " ")
        for (i = 1; i <= count; i++)
            of_machine[name[i]] = 1
        count = split(floors, floor, " ")
        for (i = 1; i <= count; i++) {
            split(floor[i], part, ":")
            lines_floor[part[1]] = part[2]
            branches_floor[part[1]] = part[3]
        }
    }
    NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
    {
        lines[$1] = $column["line_total"]
        lines_hit[$1] = $column["line_covered"]
        branches[$1] = $column["branch_total"]
        branches_hit[$1] = $column["branch_covered"]
        layer = $1
        sub(/\/.*/, "", layer)
        add($1 in of_machine ? "machine" : layer, $1)
        show("    ", $1, $1, $1 in of_machine ? "  (needs NVMe drives)" : "")
    }
    END {
        count = split(layers, name, " ")
        for (i = 1; i <= count; i++) {
            l = name[i]
            low = percent(lines_hit[l], lines[l]) < lines_floor[l] || percent(branches_hit[l], branches[l]) < branches_floor[l]
            show("  ", l, l, low ? sprintf("  BELOW its floor of %d %% lines, %d %% branches", lines_floor[l], branches_floor[l]) : "")
            below += low
        }
        show("  ", "of engine, with NVMe drives", "machine", "  (make test-vm)")
        exit below > 0
    }' "$build/coverage.csv" | tee "$build/coverage.txt"
