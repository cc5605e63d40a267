#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_examples.sh - each example in C compiles against an installed tree and runs, as a user would have it
# alone: make writes to the build folder
. "$(dirname "$0")/../lib.sh"

need pkg-config make
stage=$TEST_TMP/stage
examples=(objects vectors memory cache state)
drives=("$TEST_TMP/a" "$TEST_TMP/b")

run_example() {
    env LD_LIBRARY_PATH="$stage/lib" "$TEST_TMP/$1" "${@:2}"
}

begin "the README of the examples names all of them"
expect_equal "${#examples[@]}" "$(find "$ROOT/examples" -name '*.c' | wc -l)" "examples"
for name in "${examples[@]}"; do
    expect_true "$name.c is named" grep -qF "[$name.c]($name.c)" "$ROOT/examples/README.md"
done

begin "they compile by pkg-config, without a warning"
expect_exit 0 make -C "$ROOT" --no-print-directory BUILD="$SPW_BUILD" PREFIX="$stage" install
export PKG_CONFIG_PATH=$stage/lib/pkgconfig
read -r -a needed <<<"$(pkg-config --cflags --libs spillway)"
for name in "${examples[@]}"; do
    expect_exit 0 "${CC:-cc}" -Wall -Wextra -Wconversion -Wshadow -Werror ${SANITIZE:+"-fsanitize=$SANITIZE"} \
        "$ROOT/examples/$name.c" -o "$TEST_TMP/$name" "${needed[@]}"
done

begin "without a drive they print their usage; with a path that is not a drive, what is wrong with it"
truncate -s 256M "${drives[@]}"
for name in "${examples[@]}"; do
    expect_exit 2 run_example "$name"
    expect_output "usage: "
    expect_exit 1 run_example "$name" "${drives[@]}"
    expect_output "$TEST_TMP/a: is not a drive of a spillway store"
done

begin "they run on a store of two drives"
expect_exit 0 "$SPILLWAY" format "${drives[@]}"
expect_exit 0 run_example objects "${drives[@]}"
expect_output "stored 10485760 bytes, and read 1000 of them back"
expect_exit 0 run_example vectors "${drives[@]}"
expect_output "moved 3154020 bytes each way, of which 200 were copied"
expect_exit 0 run_example memory "${drives[@]}"
expect_output "refused: 0; copied: 0"
expect_exit 0 run_example cache "${drives[@]}"
expect_output "of 100663296 bytes saved "

begin "the state goes on where the run before has committed"
expect_exit 0 run_example state "${drives[@]}"
expect_output "began at step 0" "committed step 4"
expect_exit 0 run_example state "${drives[@]}"
expect_output "resumed at step 4" "committed step 8"

begin "a store without room is an error with a message, and what is committed stays"
truncate -s 64M "$TEST_TMP/small"
expect_exit 0 "$SPILLWAY" format --partitions 8 "$TEST_TMP/small"
expect_exit 1 run_example objects "$TEST_TMP/small"
expect_output "bytes"
expect_exit 0 run_example state "${drives[@]}"
expect_output "resumed at step 8"
