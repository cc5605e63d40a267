#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_abi.sh - make abi finds what breaks programs that were linked before, and only that
# layer: all
. "$(dirname "$0")/../lib.sh"

need git abidiff make
tree=$TEST_TMP/tree
"$ROOT/scripts/copy-tree.sh" "$tree"
cd "$tree" || exit 1
abi() {
    scripts/abi.sh "$TEST_TMP/build" "$@"
}
# change FILE EXPRESSION: of sed; until the next one.
change() {
    git checkout -q .
    sed -i "$2" "$1"
    ! git diff --quiet || fail "nothing was changed in $1"
}

begin "without a tag there is nothing to compare with, and that is said"
git init -q .
git add -A
git -c user.name=test -c user.email=test@example.invalid commit -q -m all
expect_exit 0 abi
expect_output "no release is tagged yet"

begin "what has not changed is compatible"
version=$(sed -n 's/^#define SPW_VERSION "\(.*\)"/\1/p' include/spillway/error.h)
git tag "v$version"
expect_exit 0 abi
expect_output "programs that were linked with v$version"

begin "so is a struct that has grown at its end, and begins with its size"
change include/spillway/nvme.h '/^SPW_ABI(struct spw_nvme_info,/d; s/^\tuint32_t protection_type;.*/&\n\tuint64_t seeded;/'
expect_exit 0 abi

begin "a member that has moved is not"
change include/spillway/nvme.h '/^SPW_ABI(struct spw_nvme_info,/d; s/^\tuint32_t namespace_id;.*/\tuint64_t seeded;\n&/'
expect_exit 1 abi
expect_output "incompatible with v$version" "the version $version does not say so"

begin "nor is a function that is gone"
change spillway.map '/spw_version;/d'
expect_exit 1 abi
expect_output spw_version "does not say so"

begin "but with a version that says so"
sed -i 's/^#define SPW_VERSION ".*"/#define SPW_VERSION "77.0.0"/' include/spillway/error.h
expect_exit 0 abi
expect_output "as the version 77.0.0 says"
