# SPDX-License-Identifier: MIT
# tests/python/records.py - records that a store commits with a mirror; its drives changed, killed
import ctypes
import os
import random
import shutil
import signal
import subprocess
import time

import spillway
from conftest import BUILD, SEED, make_drives
from spillway.state import State

COMMAND = BUILD / "spillway"
KILLS = int(os.environ.get("SPW_KILLS", "50"))
DRIVE_BYTES = 32 << 20
RECORDS = 6
RECORD_BYTES = 1 << 20


def content(step, number):
    return random.Random(step * 100 + number).randbytes(4096) * (RECORD_BYTES // 4096)


def commit(drives, step):
    with spillway.Store(drives, arena_bytes=16 << 20) as store:
        state = State(store, record_bytes_max=RECORD_BYTES, copies=2)
        for number in range(RECORDS):
            state.add(f"record {number}", RECORD_BYTES, b"")
        state.attach()
        for number in range(RECORDS):
            memory = state.take(number)
            ctypes.memmove(memory, content(step, number), RECORD_BYTES)
            state.give(number, True)
        state.commit(step, b"")
        state.close()


def verify(drives, step):
    """All bytes, and with each drive missing."""
    with spillway.Store(drives, arena_bytes=16 << 20, read_only=True) as store:
        state = State(store, record_bytes_max=RECORD_BYTES, copies=2)
        for number in range(RECORDS):
            state.add(f"record {number}", RECORD_BYTES, b"")
        assert state.attach() and spillway.committed(drives).number == step
        for number in range(RECORDS):
            assert ctypes.string_at(state.take(number), RECORD_BYTES) == content(step, number)
            state.give(number, False)
        state.close()


def opens(drives):
    """The words of a refusal; None: it opens."""
    try:
        with spillway.Store(drives, arena_bytes=16 << 20, read_only=True):
            return None
    except spillway.SpillwayError as error:
        return str(error)


def change(*words):
    return subprocess.run([COMMAND, *words], capture_output=True, text=True, check=False)


def killed(folder, draw_words):
    """Three drives with commit 7 and a new one, after a command was killed at a random moment, or
    has ended: each time from the same drives, until it was killed KILLS times. Afterwards the
    command is repeated to its end.

    :param draw_words: of drives, the new one and a random.Random: the command's words
    :return: generates drives, the new one, the words and, twice for each, whether it was repeated
        by force; None: it was not repeated yet
    """
    draw, drives = random.Random(SEED), make_drives(folder, 3, DRIVE_BYTES)
    spillway.format_store(drives)
    commit(drives, 7)
    kept = [path + ".kept" for path in drives]
    for path, copy in zip(drives, kept):
        shutil.copyfile(path, copy)
    new, = make_drives(folder, 1, DRIVE_BYTES, "new")
    seconds, count = 0.0, 0
    while count < KILLS:
        for path, copy in zip(drives, kept):
            shutil.copyfile(copy, path)
        with open(new, "wb") as file:
            file.truncate(DRIVE_BYTES)
        words = draw_words(drives, new, draw)
        start = time.monotonic()
        with subprocess.Popen([COMMAND, *words], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as process:
            if seconds == 0.0:  # how long it takes
                assert process.wait() == 0
                seconds = time.monotonic() - start
                continue
            try:
                process.wait(draw.uniform(0, 1.1 * seconds))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
            count += process.wait() == -signal.SIGKILL
        yield drives, new, words, None
        done = change(*words)
        is_forced = done.returncode == 3
        if is_forced:
            assert "--force" in done.stderr, done
            done = change(*words, "--force", "--erase")
        assert done.returncode == 0, done
        yield drives, new, words, is_forced


def assert_not_finished(refusal):
    """Of a store with a new drive that it has not got."""
    assert any(words in refusal for words in (
        "did not finish", "not a drive of a spillway store", "both superblock copies are damaged"))
