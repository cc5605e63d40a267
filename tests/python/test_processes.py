# SPDX-License-Identifier: MIT
# tests/python/test_processes.py - as many processes as a store has partitions, killed at random
# layer: all
import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest

import spillway
from conftest import SEED, make_drives

PROCESSES, DRIVES, KILLS = 64, 8, 40

# Arguments: drives, partition, file of the steps that are durable. Restored is what was reported,
# or the step that was under way; every byte of it is compared. Then steps without end.
WORKER = """
import os, random, sys
import spillway

drives, partition, path = sys.argv[1].split(","), int(sys.argv[2]), sys.argv[3]

def content(step, index):
    source = random.Random(f"{partition} {step} {index}")
    return source.randbytes(source.randrange(1, 300000))

def verify(store):
    if store.committed is None:
        return 0, []
    record, things = store.restored()
    step = int(record)
    assert step == store.committed.number and len(things) == 3
    for index, (thing, length) in enumerate(things):
        assert store.get(thing, length) == content(step, index), f"wrong bytes: {partition} {step}"
    return step, [thing for thing, _ in things]

with spillway.Store(drives, partition=partition, arena_bytes=4 << 20) as store, \\
        open(path, "ab", buffering=0) as durable:
    said = os.path.getsize(path)  # a byte for each step
    step, things = verify(store)
    assert said <= step <= said + 1, f"partition {partition}: {step} is there, {said} was said"
    durable.write(b"." * (step - said))
    print("ready", flush=True)
    while len(sys.argv) == 4:
        step += 1
        new = [store.put(content(step, index)) for index in range(3)]
        store.commit(new, step, str(step).encode())
        durable.write(b".")
        for thing in things:
            store.free(thing)
        things = new
"""


@contextlib.contextmanager
def crowd(folder, drives):
    """Starts a partition's process, which is killed where the context ends."""
    running = {}

    def start(partition, *more):
        running[partition] = subprocess.Popen(
            [sys.executable, "-c", WORKER, ",".join(drives), str(partition),
             str(folder / f"durable{partition}"), *more],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return running[partition]

    try:
        yield start, running
    finally:
        for process in running.values():
            process.kill()
        for process in running.values():
            process.communicate()


def is_at_work(process):
    if process.stdout.readline() != "ready\n":
        pytest.fail(process.communicate()[1])


def kill(process):
    """It worked until now, and ends by this."""
    process.kill()
    said = process.communicate()[1]
    assert process.returncode == -signal.SIGKILL, said


def test_nothing_committed_is_lost_and_no_byte_is_wrong(folder):
    random_ = random.Random(SEED)
    drives = make_drives(folder, DRIVES, 1 << 30)  # hollow
    spillway.format_store(drives, partitions=PROCESSES)
    with crowd(folder, drives) as (start, running):
        for partition in range(PROCESSES):
            start(partition)
        for process in running.values():
            is_at_work(process)
        for _ in range(KILLS):
            time.sleep(random_.random() / 10)  # the moment of the kill
            partition = random_.randrange(PROCESSES)
            kill(running[partition])
            is_at_work(start(partition))
        for process in running.values():
            kill(process)
        for partition in range(PROCESSES):
            last = start(partition, "verify only")
            is_at_work(last)
            assert last.wait() == 0
            assert os.path.getsize(folder / f"durable{partition}") > 0
