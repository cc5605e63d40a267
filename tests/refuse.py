# SPDX-License-Identifier: MIT
# tests/refuse.py - run a program to which the kernel refuses calls, as a container's seccomp does
"""Usage: python3 tests/refuse.py ERROR CALL,... COMMAND...   (EPERM io_uring_setup, and so on)"""
import ctypes
import errno
import os
import struct
import sys

CALLS = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
         "io_setup": 206}  # x86-64
SET_NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7fff0000, 0x00050000


def main(error, calls, *command):
    numbers = [CALLS[name] for name in calls.split(",")]
    steps = [(LOAD, 0, 0, 0)]  # the number of the call
    for at, number in enumerate(numbers):
        steps.append((EQUAL, len(numbers) - at, 0, number))
    steps += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE | getattr(errno, error))]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(SET_SECCOMP, FILTER, program, 0, 0):
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    os.execvp(command[0], command)


main(*sys.argv[1:]) if len(sys.argv) > 3 else sys.exit(__doc__)
