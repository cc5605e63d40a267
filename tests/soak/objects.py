#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/soak/objects.py - threads that put, get and free objects for long, and compare every byte
import errno
import os
import random
import sys
import threading

import spillway
from worker import serve

THREADS = 3
OPERATIONS = 60
LIVE_MAX = 12
LENGTH_MAX = 3 << 20
BREAK = os.environ.get("SPW_SOAK_BREAK")  # on purpose, to see that it is found: "bytes", "blame"
NOISE = random.Random(os.getpid()).randbytes(16 << 20)  # an object is a cut of it


class Client:
    """One thread's objects in one round."""

    def __init__(self, store, drives, counts, lock, seed):
        self.store, self.drives, self.counts, self.lock = store, drives, counts, lock
        self.random = random.Random(seed)
        self.objects = []  # (id, where in NOISE, length)
        self.buffer = bytearray(LENGTH_MAX)
        self.failure = None

    def count(self, name, number=1):
        with self.lock:
            self.counts.add(name, number)

    def error(self, operation, error):
        with self.lock:
            self.counts.error(operation, error, self.drives)

    def put(self):
        length = self.random.choice((self.random.randint(1, 4096), self.random.randint(1, 262144),
                                     self.random.randint(1, LENGTH_MAX)))
        at = self.random.randrange(len(NOISE) - length)
        try:
            self.objects.append((self.store.put(memoryview(NOISE)[at:at + length]), at, length))
        except spillway.SpillwayError as error:
            self.error("put", error)
            return
        self.count("puts")
        self.count("bytes_put", length)

    def get(self):
        thing, at, length = self.random.choice(self.objects)
        offset = self.random.choice((0, self.random.randrange(length)))
        rest = length - offset
        piece = memoryview(self.buffer)[:self.random.choice((rest, self.random.randint(1, rest)))]
        try:
            self.store.get_into(thing, piece, offset)
        except spillway.SpillwayError as error:
            self.error("get", error)
            return
        self.count("gets")
        if BREAK == "blame":
            self.error("get", OSError(errno.EIO, f"{self.drives[0]}: made up"))
        if BREAK == "bytes":
            piece[-1] ^= 1
        if bytes(piece) != NOISE[at + offset:at + offset + len(piece)]:
            with self.lock:
                self.counts.add("wrong_bytes")
                self.counts.violation("wrong bytes", f"an object of {length} bytes, "
                                      f"{len(piece)} from {offset} on")

    def free(self):
        self.store.free(self.objects.pop(self.random.randrange(len(self.objects)))[0])
        self.count("frees")

    def run(self):
        try:
            for _ in range(OPERATIONS):
                choice = self.random.random()
                if not self.objects or (choice < 0.4 and len(self.objects) < LIVE_MAX):
                    self.put()
                elif choice < 0.8:
                    self.get()
                else:
                    self.free()
            while self.objects:
                self.free()
        except BaseException as failure:  # for the thread that waits
            self.failure = failure


def do_round(store, drives, counts):
    lock = threading.Lock()
    clients = [Client(store, drives, counts, lock, random.getrandbits(64)) for _ in range(THREADS)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        if client.failure is not None:
            raise client.failure


if __name__ == "__main__":
    random.seed(int(sys.argv[1]))
    serve(do_round, arena_bytes=32 << 20)
