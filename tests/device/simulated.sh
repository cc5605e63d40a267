#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/device/simulated.sh - compile simulated.c: tests/device/simulated.sh FILE.so
set -Eeuo pipefail

# libaio is what it stands before, also where it is loaded by a library that is loaded later.
"${CC:-cc}" -std=gnu17 -O2 -Wall -Wextra -fPIC -shared -U_FORTIFY_SOURCE -D_GNU_SOURCE -o "$1.new" \
    "$(dirname "${BASH_SOURCE[0]}")/simulated.c" -Wl,--no-as-needed,--disable-new-dtags,-rpath,"\$ORIGIN" -laio
mv "$1.new" "$1"
