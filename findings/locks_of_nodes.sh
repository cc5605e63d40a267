#!/bin/bash
# SPDX-License-Identifier: MIT
# findings/locks_of_nodes.sh - a lock on a block device is one on its node: by another node of the same device it does not exist
#
# Seen with     Linux 6.1 and 6.18, ext4 and tmpfs for the nodes; 2026-11-28
# Guess         A lock on /dev/sdb excludes whoever has the same device open, by whatever path.
# What happens  Locks belong to the inode of the node, not to the device. A second node of the same numbers (mknod, a container's own /dev)
#               has locks of its own; O_EXCL, which the block layer keeps, excludes by both:
#                   same node: locked    other node: not locked    other node, O_EXCL: busy
# Exit          0: as described; 1: not any more; 77: cannot be tried here
set -euo pipefail
[ "$(id -u)" = 0 ] && command -v losetup >/dev/null && command -v python3 >/dev/null || { echo "needs root, losetup and python3"; exit 77; }
folder=$(mktemp -d)
truncate -s 16M "$folder/image"
device=$(losetup -f --show "$folder/image")
trap 'losetup -d "$device"; rm -rf "$folder"' EXIT
mknod "$folder/node" b $((16#$(stat -c %t "$device"))) $((16#$(stat -c %T "$device")))
python3 - "$device" "$folder/node" <<'END'
import errno
import fcntl
import os
import platform
import struct
import sys

F_OFD_SETLK = 37
LOCK = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def locked(path):
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(fd, F_OFD_SETLK, LOCK)
    except OSError as error:
        assert error.errno in (errno.EAGAIN, errno.EACCES), error
        return "locked"
    finally:
        os.close(fd)
    return "not locked"


def exclusive(path):
    try:
        os.close(os.open(path, os.O_RDWR | os.O_EXCL))
    except OSError as error:
        assert error.errno == errno.EBUSY, error
        return "busy"
    return "free"


device, node = sys.argv[1:]
holder = os.open(device, os.O_RDWR | os.O_EXCL)
fcntl.fcntl(holder, F_OFD_SETLK, LOCK)
seen = (locked(device), locked(node), exclusive(node))
print(f"Linux {platform.release()}; same node: {seen[0]}    other node: {seen[1]}    other node, O_EXCL: {seen[2]}")
sys.exit(0 if seen == ("locked", "not locked", "busy") else "this has changed")
END
