# SPDX-License-Identifier: MIT
# tests/python/test_log.py - what the library logs arrives in Python's logging
# layer: test all
import io
import logging
import os
import resource
import signal
import threading

import pytest
import torch

import spillway.torch
from conftest import make_drives, run_python
from offloading import Layers, offload_all, offload_each
from spillway._core import library

LIBRARY = "spillway.library"

# What follows runs in a process of its own, which loses a right for good. It prints all that is
# logged, then what the store says of itself.
PREAMBLE = """
import ctypes, logging, resource, struct, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout,
                    format="%(name)s %(levelname)s %(message)s")
import spillway
libc = ctypes.CDLL(None, use_errno=True)

def no_io_uring():
    SECCOMP = 22
    code = b"".join(struct.pack("HBBI", *line) for line in (
        (0x20, 0, 0, 0),              # the number of the call
        (0x15, 0, 1, 425),            # io_uring_setup
        (0x06, 0, 0, 0x00050001),     # EPERM
        (0x06, 0, 0, 0x7fff0000)))    # or go on
    memory = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxQ", 4, ctypes.addressof(memory))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(SECCOMP, 2, program, 0, 0) == 0, ctypes.get_errno()

def no_memlock():
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))
    header = struct.pack("IiIIIIII", 0x20080522, 0, *6 * [0])[:8]
    data = ctypes.create_string_buffer(24)
    assert libc.capget(header, data) == 0
    words = list(struct.unpack("6I", data.raw))
    words[0] &= ~(1 << 14)  # CAP_IPC_LOCK, of what is in effect
    assert libc.capset(header, struct.pack("6I", *words)) == 0
"""


def logged(caplog, level):
    return [record.getMessage() for record in caplog.records
            if record.name == LIBRARY and record.levelno == level]


def with_words(lines, *words):
    """The one line that has all of them."""
    found = [line for line in lines if all(word in line for word in words)]
    assert len(found) == 1, (words, lines)
    return found[0]


def test_what_was_chosen_is_said_when_a_store_is_opened(formatted, caplog):
    with caplog.at_level(logging.INFO, "spillway"), spillway.Store(formatted) as store:
        assert store.description in logged(caplog, logging.INFO)
        with_words(logged(caplog, logging.INFO), "DMA memory: ")


@pytest.mark.parametrize("right, words", [
    ("no_io_uring", ("io_uring refused: ", "using libaio")),
    ("no_memlock", ("memory cannot be registered: ", "see ulimit -l")),
])
def test_a_fallback_is_said(formatted, right, words):
    done = run_python("-c", PREAMBLE + f"{right}()\nspillway.Store(sys.argv[1:]).close()",
                      *formatted)
    lines = [line for line in done.stdout.splitlines() if line.startswith(f"{LIBRARY} WARNING ")]
    assert done.returncode == 0, done.stderr
    with_words(lines, *words)


def step(off, model):
    with off:
        model(torch.randn(64, 256)).sum().backward()


def test_a_budget_that_cannot_be_met_is_said(store, caplog):
    model = Layers(width=256)
    with caplog.at_level(logging.WARNING, "spillway"):
        off = offload_each(store, model, mode="budget", budget_bytes=1)
        # No plan before writes have shown how fast drives are: on a busy machine many steps pass.
        while not any("cannot be met" in line for line in logged(caplog, logging.WARNING)):
            assert off.stats().steps < 1000
            step(off, model)
        for _ in range(6):
            step(off, model)
        stats, table = off.stats(), io.StringIO()
        off.report(table)
        off.close()
    lines = logged(caplog, logging.WARNING)
    # It begins, and its cause changes; it is not said in each step, and stays as a state.
    said = [line for line in lines if "budget of 1 bytes" in line]
    assert "the budget of 1 bytes is exceeded by " in said[0] and "measured first" in said[0]
    assert any("a budget of 1 bytes cannot be met: " in line for line in said)
    assert any("no plan was found that fits" in line for line in said) and len(lines) < 8
    assert stats.budget_bytes == 1 and stats.budget_over_bytes == stats.step_peak_bytes - 1
    assert stats.budget_over_bytes_max >= stats.budget_over_bytes
    assert stats.budget_steps_over == stats.steps - 1  # the last one has not ended
    assert "exceeded by" in table.getvalue() and "no plan was found" in table.getvalue()


def test_a_retired_drive_is_said(formatted, caplog):
    with spillway.Store(formatted) as store, caplog.at_level(logging.WARNING, "spillway"):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            with pytest.raises(spillway.SpillwayError):
                store.put(bytes(8 << 20))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for path in formatted:
        with_words(logged(caplog, logging.WARNING), path, "retired for new chunks")
    assert logged(caplog, logging.ERROR)


def test_short_staging_memory_is_said(store, caplog):
    model = Layers(width=256)
    with caplog.at_level(logging.WARNING, "spillway"):
        off = offload_all(store, model, staging_bytes=1)
        with off:
            model(torch.randn(64, 256)).sum().backward()
        off.close()
    with_words(logged(caplog, logging.WARNING), "the drives do not keep up", "(staging_bytes)")


# ---- The ring ------------------------------------------------------------------------------------


def write(text, level=2):
    library.fast.spw_log_ring_write(library.log.sink.context, level, text.encode())


def test_levels_are_kept(caplog):
    with caplog.at_level(logging.DEBUG, "spillway"):
        for level in range(4):
            write(f"of level {level}: 100 %s", level)
        library.log.drain()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (name, f"of level {level}: 100 %s")
        for level, name in enumerate(("DEBUG", "INFO", "WARNING", "ERROR"))]


def test_lines_that_are_lost_are_counted(caplog):
    with caplog.at_level(logging.WARNING, "spillway"):
        for number in range(300):
            write(f"line {number}")
        library.log.drain()
        write("after it")
        library.log.drain()
    lines = logged(caplog, logging.WARNING)
    assert lines[0] == "44 lines of the log were lost: they were not read in time"
    assert lines[1:] == [*(f"line {number}" for number in range(256)), "after it"]


def test_by_many_threads(caplog):
    """Each line comes once, whichever thread hands it on."""
    def one(thread):
        for number in range(200):
            write(f"{thread} {number}")
            library.log.drain()

    with caplog.at_level(logging.WARNING, "spillway"):
        threads = [threading.Thread(target=one, args=[thread]) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(logged(caplog, logging.WARNING)) == sorted(
        f"{thread} {number}" for thread in range(4) for number in range(200))


def test_a_handler_that_fails_ends_nothing(store):
    def refuse(_record):
        raise RuntimeError("this filter is broken")

    logger = logging.getLogger(LIBRARY)
    logger.addFilter(refuse)
    try:
        write("that is not heard")
        store.free(store.put(b"bytes"))
    finally:
        logger.removeFilter(refuse)
    assert not library.fast.spw_log_ring_read(library.log._ring, None)


def test_a_child_has_a_log_of_its_own(folder, caplog):
    """And none of its parent's lines, nor the lock that a thread of its parent may hold."""
    [drive] = make_drives(folder, 1, 64 << 20)
    with caplog.at_level(logging.INFO, "spillway"):
        write("before")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(60)
                caplog.clear()
                spillway.format_store([drive])
                with spillway.Store([drive]) as store:
                    status = 0 if (store.description in caplog.text
                                   and "before" not in caplog.text) else 2
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        library.log.drain()
    assert logged(caplog, logging.WARNING) == ["before"]


def test_what_is_logged_last_is_said_at_the_end(formatted):
    """By a process that does not close the store, and logs nothing else."""
    done = run_python("-c", PREAMBLE + """
store = spillway.Store(sys.argv[1:])
from spillway._core import library
library.fast.spw_log_ring_write(library.log.sink.context, 2, b"the last line")
""", *formatted)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{LIBRARY} WARNING the last line"
    assert not done.stderr
