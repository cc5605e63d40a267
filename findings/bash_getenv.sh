#!/bin/bash
# SPDX-License-Identifier: MIT
# findings/bash_getenv.sh - in bash, a library's setenv() before main() hides the inherited environment from getenv()
#
# Seen with     bash 5.2.15 (Debian 12), glibc 2.36; 2026-11-28
# Guess         getenv() in a library that is loaded into any program reads what the process was given.
# What happens  bash exports getenv() and setenv() of its own. They work on its tables of variables, which are filled in main(). The first
#               setenv() of a library's constructor makes an empty table, and from then on getenv() finds nothing but what was set so:
#                   before setenv: GIVEN=inherited    after setenv: GIVEN=(null), in environ: inherited
#               In dash the second line is the same as the first. Whoever needs a variable in a constructor reads environ.
# Exit          0: as described; 1: not any more; 77: cannot be tried here
set -euo pipefail
command -v gcc >/dev/null && command -v dash >/dev/null || { echo "needs gcc and dash"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/constructor.c" <<'END'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void show(const char *when)
{
    const char *plain = "(null)";
    for (char **entry = environ; entry && *entry; entry++)
        if (strncmp(*entry, "GIVEN=", 6) == 0)
            plain = *entry + 6;
    const char *found = getenv("GIVEN");
    printf("%s setenv: GIVEN=%s, in environ: %s\n", when, found ? found : "(null)", plain);
    fflush(stdout);
}
__attribute__((constructor)) static void begin(void)
{
    show("before");
    setenv("OTHER", "1", 1);
    show("after");
}
END
gcc -D_GNU_SOURCE -w -shared -fPIC "$folder/constructor.c" -o "$folder/constructor.so"
bash --version | head -n 1
GIVEN=inherited LD_PRELOAD=$folder/constructor.so bash -c : | tee "$folder/bash"
echo dash
GIVEN=inherited LD_PRELOAD=$folder/constructor.so dash -c : | tee "$folder/dash"
grep -qx 'before setenv: GIVEN=inherited, in environ: inherited' "$folder/bash" &&
    grep -qx 'after setenv: GIVEN=(null), in environ: inherited' "$folder/bash" &&
    grep -qx 'after setenv: GIVEN=inherited, in environ: inherited' "$folder/dash" || { echo "this has changed"; exit 1; }
