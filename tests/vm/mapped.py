# SPDX-License-Identifier: MIT
# tests/vm/mapped.py - a program that trains on one drive, and what other programs may do meanwhile
"""mapped.py train DEVICE BACKEND SPILLWAY    objects and a commit; the store is open to one alone
mapped.py resume DEVICE BACKEND FOLDER     the commit has the same bytes, here and as exported
"""
import contextlib
import ctypes
import json
import logging
import mmap
import os
import random
import re
import signal
import socket
import subprocess
import sys

import spillway
from spillway.state import State

logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
OBJECT_BYTES = (5 << 19) + 12
RECORDS = (100000, 5000000, 4096)  # the last is never changed: zeros
STEP = 7


def contents(number):
    return random.Random(number).randbytes(RECORDS[number]) if number < 2 else bytes(RECORDS[2])


def open_store(device, backend):
    store = spillway.Store([device], arena_bytes=48 << 20, backend=backend)
    assert backend + ":" in store.description, store.description
    return store


def open_state(store):
    state = State(store, record_bytes_max=5 << 20)
    for number, length in enumerate(RECORDS):
        state.add(f"layer/{number}", length, f"shape {number}".encode())
    return state


def move_objects(store):
    """From memory aligned in every way, in and out."""
    memory = mmap.mmap(-1, OBJECT_BYTES + 4096)
    things = []
    for offset in (0, 64, 512, 1024, 3584):
        data = os.urandom(OBJECT_BYTES)
        memory[offset:offset + OBJECT_BYTES] = data
        things.append((offset, store.put(memoryview(memory)[offset:offset + OBJECT_BYTES]), data))
    for offset, thing, data in things:
        view = memoryview(memory)[offset:offset + OBJECT_BYTES]
        view[:] = bytes(OBJECT_BYTES)
        store.get_into(thing, view)
        assert view == data, f"other bytes at page + {offset}"
        assert store.get(thing, 4097, 1048000) == data[1048000:1052097], f"a part of {offset}"
        store.free(thing)


def commit(state):
    assert not state.attach(), "something is committed"
    for number in range(2):
        ctypes.memmove(state.take(number), contents(number), RECORDS[number])
        state.give(number, True)
    state.commit(STEP, b"extra")


def expect(status, words, *command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    assert done.returncode == status and all(word in done.stdout for word in words), \
        (command, done)
    return done.stdout


def scraped(spillway_command):
    """What `spillway export` serves over HTTP."""
    with subprocess.Popen([spillway_command, "export", "--listen", "127.0.0.1:0"],
                          stderr=subprocess.PIPE, text=True) as server:
        try:
            port = next(filter(None, (re.search(r":([0-9]+)/metrics", line)
                                      for line in server.stderr)))[1]
            with socket.create_connection(("127.0.0.1", int(port))) as peer:
                peer.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                return b"".join(iter(lambda: peer.recv(1 << 16), b"")).decode()
        finally:
            server.send_signal(signal.SIGINT)


def while_open(device, spillway_command):
    """What others see of the store, and what is refused to them: it is in use."""
    own = f"process {os.getpid()}"
    expect(0, [own], spillway_command, "info", device)
    seen = json.loads(expect(0, [], spillway_command, "top", "--once", "--json", "--endurance",
                             "600"))
    drive, = next(part for part in seen["partitions"] if part["pid"] == os.getpid())["drives"]
    assert drive["bytes_written"] > sum(RECORDS[:2]), drive
    assert drive["wear"]["bytes_per_day"] > 0 and drive["wear"]["years"] > 0, drive
    counted = re.compile(rf'spillway_drive_written_bytes_total{{.*drive="{device}".*}} [1-9]')
    assert counted.search(scraped(spillway_command)), "no bytes are counted over HTTP"
    expect(1, ["is in service"], spillway_command, "revive", device)
    write = ["bench", "--filename=" + device, "--rw=write", "--size=1m", "--object-size=1m"]
    for command in (["format", "--force", "--erase", device], ["wipe", "--yes", "--erase", device],
                    ["check", "--scrub", device], [*write, "--level=store"]):
        expect(3, [device, own], spillway_command, *command)
    expect(3, [device], spillway_command, *write[:-1], "--allow-destructive")


def train(device, backend, spillway_command):
    with open_store(device, backend) as store:
        with contextlib.closing(open_state(store)) as state:
            commit(state)
            move_objects(store)
            while_open(device, spillway_command)


def resume(device, backend, folder):
    with open(os.path.join(folder, "index.json"), encoding="utf-8") as file:
        index = json.load(file)
    assert index["step"] == STEP, index
    with open_store(device, backend) as store:
        with contextlib.closing(open_state(store)) as state:
            assert state.attach() and state.attached == STEP and state.extra() == b"extra"
            for number, record in enumerate(index["records"]):
                wanted = contents(number)
                with open(os.path.join(folder, record["file"]), "rb") as file:
                    assert file.read() == wanted, f"record {number} as exported"
                address = state.take(number)
                assert ctypes.string_at(address, len(wanted)) == wanted, f"record {number}"
                state.give(number, False)
            state.commit(STEP + 1, b"")


if __name__ == "__main__":
    {"train": train, "resume": resume}[sys.argv[1]](*sys.argv[2:])
    print("all as it was")
