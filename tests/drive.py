# SPDX-License-Identifier: MIT
"""tests/drive.py - who has a block device, and what still arrives there, without asking spillway

  drive.py free DEVICE       exit status 0: one who asks for it exclusively gets it
  drive.py written DEVICE    wait until its first MiB is not all zeros
  drive.py settled DEVICE    wait until it is free or no byte of it is locked, whichever comes
                             first; exit status 1 if something is written to it after that
"""
import errno
import fcntl
import hashlib
import mmap
import os
import struct
import sys
import time

F_OFD_GETLK = 36
FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, pid
DEADLINE_S = 60
WRITTEN_MIB = 16  # where those that are killed write
LANDS_WITHIN_S = 1  # what a throttled drive takes meanwhile shows


def is_free(device):
    try:
        os.close(os.open(device, os.O_RDONLY | os.O_EXCL))
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False


def is_locked(device):
    with open(device, "rb") as node:
        lock = fcntl.fcntl(node, F_OFD_GETLK, struct.pack(FLOCK, fcntl.F_WRLCK, 0, 0, 0, 0))
        return struct.unpack(FLOCK, lock)[0] != fcntl.F_UNLCK


def content(device, mib):
    """A digest of its first MiB, from the drive itself."""
    digest = hashlib.sha256()
    with mmap.mmap(-1, 1 << 20) as page:
        fd = os.open(device, os.O_RDONLY | os.O_DIRECT)
        for number in range(mib):
            digest.update(page[:os.preadv(fd, [page], number << 20)])
        os.close(fd)
    return digest.digest()


def wait_until(condition, what):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(what)


def main():
    what, device = sys.argv[1:]
    if what == "free":
        return not is_free(device)
    if what == "written":
        nothing = hashlib.sha256(bytes(1 << 20)).digest()
        wait_until(lambda: content(device, 1) != nothing, "nothing was written")
        return 0
    wait_until(lambda: is_free(device) or not is_locked(device), "it never came free")
    before = content(device, WRITTEN_MIB)
    time.sleep(LANDS_WITHIN_S)
    settled = content(device, WRITTEN_MIB) == before
    return 0 if settled else "a write landed after the drive had come free"


sys.exit(main())
