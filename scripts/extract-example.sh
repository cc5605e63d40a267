#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/extract-example.sh - print the first example of a Markdown file or a manual page
#
#   scripts/extract-example.sh FILE.md LANGUAGE     the first ```LANGUAGE block
#   scripts/extract-example.sh FILE.3               the first .Bd -literal block
set -euo pipefail

case $#:${1:-} in
2:*.md) begin="\`\`\`$2" end='```' ;;
1:*.[1-9]) begin=".Bd -literal" end=".Ed" ;;
*) sed -n '5,6s/^# //p' "$0" >&2 && exit 2 ;;
esac
awk -v begin="$begin" -v end="$end" '
    !inside && index($0, begin) == 1 { inside = 1; next }
    inside && $0 == end { found = 1; exit }
    inside { if (end == ".Ed") gsub(/\\e/, "\\"); print }
    END { if (!found) { print FILENAME ": no example" > "/dev/stderr"; exit 1 } }' "$1"
