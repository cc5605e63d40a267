#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_containers.sh - what a container keeps from a store, and what is said then: system calls, memory, /proc, nodes
. "$(dirname "$0")/../lib.sh"

need python3 prlimit
one= two=
make_file one 64M
make_file two 64M
expect_exit 0 "$SPILLWAY" format "$one" "$two"
use_store() {
    expect_exit 0 "$@" "$SPILLWAY" bench --level=store --filename="$one:$two" --rw=write --bs=1M --size=16M --verbose
}
refuse() {
    python3 "$ROOT/tests/refuse.py" "$@"
}

[ "$(uname -m)" = x86_64 ] || skip "tests/refuse.py knows the system calls of x86-64"
for error in EPERM ENOSYS; do
    begin "a profile that answers io_uring with $error: libaio, and the log says why"
    use_store refuse $error io_uring_setup,io_uring_enter,io_uring_register
    expect_output "io_uring refused" "seccomp, as in many containers" "using libaio" "err= 0"
done

begin "one that lets no ring be entered, but made: libaio, too"
use_store refuse EPERM io_uring_register,io_uring_enter
expect_output "using libaio" "err= 0"

begin "neither io_uring nor libaio: an error that names both"
expect_exit 1 refuse EPERM io_uring_setup,io_setup "$SPILLWAY" bench --level=store --filename="$one:$two" --rw=write --bs=1M --size=16M
expect_output "io_uring" "libaio"

begin "little locked memory: memory is not registered, and that is said"
is_root || skip "needs root, to give up what is above limits"
use_store prlimit --memlock=65536 setpriv --bounding-set -ipc_lock
expect_output "memory cannot be registered" "ulimit -l" "err= 0"

begin "no /proc: format does not guess who uses a drive"
need unshare
expect_exit 1 unshare --mount --propagation private bash -c "mount -t tmpfs none /proc && exec '$SPILLWAY' format --force '$one' '$two'"
expect_output "cannot be read" "it is unknown whether"
