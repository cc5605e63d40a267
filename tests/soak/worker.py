# SPDX-License-Identifier: MIT
# tests/soak/worker.py - what the long-lived programs of the soak share: orders and reports
"""Orders are lines of the standard input: `open PARTITION DRIVE,DRIVE` and `close`; its end is the
end. Reports are lines of JSON on the standard output."""
import errno
import json
import re
import select
import sys
import time

import spillway

EMPTY_PATIENCE_S = 20


def say(**report):
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


class Counts:
    """What happened since the start."""

    def __init__(self):
        self.numbers = {}
        self.errors = {}  # by kind, with the words of the first of each
        self.blamed = set()  # drives that errors have named since the store was opened

    def add(self, name, number=1):
        self.numbers[name] = self.numbers.get(name, 0) + number

    def fault(self, what, words):
        """An error that a bad drive may cause: it has to name the drive."""
        kind = self.errors.setdefault(what, {"count": 0, "words": words})
        kind["count"] += 1

    def violation(self, what, words):
        say(event="violation", what=what, words=words)

    def error(self, operation, error, drives):
        """An exception that the library raised. Words that name no drive are a violation, unless
        there is no space."""
        number = getattr(error, "errno", None)
        words = str(error)
        name = errno.errorcode.get(number, type(error).__name__)
        named = {drive for drive in drives if re.search(re.escape(drive) + r"(?![0-9])", words)}
        if number not in (errno.ENOSPC, errno.ENOBUFS) and not named:
            self.violation("an error that names no drive", f"{operation}: {name}: {words}")
        self.blamed |= named
        self.fault(f"{operation} {name}", words)

    def report(self, event, store):
        say(event=event, counts=self.numbers, errors=self.errors, blamed=sorted(self.blamed),
            objects=store.stats().objects, used_bytes=used_bytes(store))


def next_order(wait):
    """A line; "" at the end of the input; None: there is none yet."""
    if not wait and not select.select([sys.stdin], [], [], 0)[0]:
        return None
    return sys.stdin.readline()


def used_bytes(store):
    """On all drives; the store as a whole counts what is free on a retired one as used."""
    return sum(drive.used_bytes for drive in store.drive_stats())


def wait_until_empty(store, counts):
    """Every object was freed: its space has to come back, when the I/O on it has ended."""
    deadline = time.monotonic() + EMPTY_PATIENCE_S
    while (store.stats().objects or used_bytes(store)) and time.monotonic() < deadline:
        time.sleep(0.005)
    if store.stats().objects or used_bytes(store):
        counts.violation("space that does not come back",
                         f"{store.stats().objects} objects, {used_bytes(store)} bytes")


def serve(do_round, **store_options):
    """Carry out orders; while a store is open, one round after the other:
    do_round(store, drives, counts)."""
    counts, store, drives = Counts(), None, []
    say(event="ready")
    while True:
        order = next_order(wait=store is None)
        if order == "":
            break
        if order is None:
            do_round(store, drives, counts)
            wait_until_empty(store, counts)
            counts.add("rounds")
            counts.report("round", store)
            continue
        words = order.split()
        if words[0] == "open":
            drives = words[2].split(",")
            counts.blamed = set()
            store = spillway.Store(drives, partition=int(words[1]), **store_options)
            say(event="opened")
        else:
            counts.add("opens")
            counts.add("chunks_moved", store.stats().chunks_moved)
            counts.add("drives_retired", store.stats().drives_retired)
            counts.report("closing", store)
            store.close()
            store = None
            say(event="closed")
    if store is not None:
        store.close()
