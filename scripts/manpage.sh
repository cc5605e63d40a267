#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/manpage.sh - print the manual page, section 3, of a public header: its contract and declarations as they stand
#
#   scripts/manpage.sh include/spillway/store.h >spillway-store.3
#   scripts/manpage.sh --functions include/spillway/store.h     the functions on that page
set -euo pipefail

only=
[ "${1-}" != --functions ] || { only=1 && shift; }
[ $# -eq 1 ] || { echo "usage: scripts/manpage.sh [--functions] HEADER" >&2; exit 2; }
version=$(sed -n 's/^#define SPW_VERSION "\(.*\)"/\1/p' "$(dirname "$1")/error.h")
functions=$(sed -n 's/^SPW_EXPORT [^(]*\(spw_[a-z0-9_]*\)(.*/\1/p' "$1")
[ -z "$only" ] || { echo "$functions"; exit; }
functions=$(paste -s -d, <<<"$functions" | sed 's/,/, /g')
awk -v name="$(basename "$1" .h)" -v version="$version" -v functions="$functions" '
    function plain(text) { # of no meaning to roff
        gsub(/\\/, "\\e", text)
        gsub(/-/, "\\-", text)
        sub(/^[.\x27]/, "\\\\\\&&", text)
        return text
    }
    # As it stands, from here on; or filled again.
    function literal(on) {
        if (on != is_literal) print (on ? ".PP\n.nf" : ".fi")
        is_literal = on
    }
    !begun && /^ \* spillway\// {
        begun = top = 1
        sub(/^ \* [^ ]* - /, "")
        printf ".TH SPILLWAY\\-%s 3 \"\" \"spillway %s\" \"Library functions\"\n", toupper(name), version
        printf ".SH NAME\n%s \\- %s\n", plain("spillway-" name ", " functions), plain($0)
        printf ".SH SYNOPSIS\n.B #include <spillway/%s.h>\n.PP\n", name
        print "cc program.c $(pkg\\-config \\-\\-cflags \\-\\-libs spillway)"
        next
    }
    !begun { next }
    top && /^ \*\/$/ { top = 0; print ".SH DECLARATIONS"; next }
    top && /^ \* Contract$/ { print ".SH CONTRACT"; contract = 1; next }
    top && /^ \*   [A-Z]/ { # a word, then what it says
        sub(/^ \* +/, "")
        print ".TP\n.B " $1
        sub(/^[A-Za-z]+ +/, "")
    }
    top { sub(/^ \* */, "") }
    top && $0 != "" && !described++ && !contract { print ".SH DESCRIPTION" }
    top { print ($0 == "" ? ".PP" : plain($0)); next }
    # What is said of a function comes after its declaration.
    /^\/\*\*$/ { doc = ""; in_doc = 1; next }
    in_doc && /^ \*\/$/ { in_doc = 0; next }
    in_doc && doc == "" { sub(/^ \* ([^ ]* - )?/, ""); doc = ".RS\n" plain($0) ".\n"; next }
    in_doc && /^ \* @[a-z_]+:/ {
        sub(/^ \* @/, "")
        word = $1
        sub(/:$/, "", word)
        sub(/^[a-z_]+: */, "")
        doc = doc ".TP\n.I " word "\n" plain($0) "\n"
        next
    }
    in_doc { sub(/^ \* */, ""); doc = doc ($0 == "" ? ".PP" : plain($0)) "\n"; next }
    /^#(if|endif|define SPILLWAY_|include|define SPW_EXPORT)/ || /^extern "C"/ || /^}$/ { next }
    doc != "" && $0 == "" { literal(0); printf "%s.RE\n", doc; doc = "" }
    { sub(/^SPW_EXPORT /, ""); gsub(/\t/, "    "); if ($0 != "" || !blank) { literal(1); print plain($0) } blank = $0 == "" }
    END { literal(0); if (doc != "") printf "%s.RE\n", doc; print ".SH SEE ALSO\n.BR spillway (3)" }
' "$1"
