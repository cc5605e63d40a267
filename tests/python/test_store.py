# SPDX-License-Identifier: MIT
# tests/python/test_store.py - put, get and free from Python; errors as exceptions; lifetime
import array
import contextlib
import errno
import os
import random
import subprocess
import time

import pytest

import spillway
import spillway.store as store_module
from conftest import make_drives, make_store


def error_of(number, call, *arguments, **options):
    with pytest.raises(spillway.SpillwayError) as caught:
        call(*arguments, **options)
    assert caught.value.errno == number, caught.value
    assert len(caught.value.strerror) > 10, "the error says nothing"
    return caught.value.strerror


@pytest.mark.parametrize("length", [1, 511, 512, 513, 4095, 1000003, 8 << 20])
def test_bytes_come_back(store, length):
    content = random.Random(length).randbytes(length)
    thing = store.put(content)
    assert store.get(thing, length) == content
    if length > 100:
        assert store.get(thing, 50, offset=49) == content[49:99]
    store.free(thing)


@pytest.mark.parametrize("kind", [bytearray, memoryview, lambda b: array.array("B", b)])
def test_any_buffer(store, kind):
    content = bytes(range(256)) * 300
    thing = store.put(kind(content))
    into = bytearray(len(content) + 7)
    store.get_into(thing, memoryview(into)[7:])  # an odd address
    assert into[7:] == content
    store.free(thing)


def test_buffers_that_are_refused(store):
    thing = store.put(b"abc")
    with pytest.raises(BufferError):  # cannot be written
        store.get_into(thing, b"abc")
    store.free(thing)
    with pytest.raises(BufferError):  # has gaps
        store.put(memoryview(bytes(100))[::2])


def test_wrong_requests(store):
    thing = store.put(b"x" * 1000)
    error_of(errno.ERANGE, store.get, thing, 1001)
    error_of(errno.ERANGE, store.get, thing, 1, offset=1000)
    store.free(thing)
    error_of(errno.ENOENT, store.get, thing, 1)
    error_of(errno.ENOENT, store.free, thing)
    error_of(errno.EINVAL, store.put, b"")


def test_a_full_store_says_so_and_nothing_changes(store):
    kept = store.put(b"k" * 5000)
    used = store.stats().used_bytes
    big = bytearray(32 << 20)
    things = []
    with pytest.raises(spillway.SpillwayError) as caught:
        while len(things) < 64:
            things.append(store.put(big))
    assert caught.value.errno == errno.ENOSPC
    assert len(things) > 20
    for thing in things:
        store.free(thing)
    assert store.stats().used_bytes == used
    assert store.get(kept, 5000) == b"k" * 5000
    store.free(kept)


def test_pressure(store):
    idle = store.pressure("1GiB")
    assert idle.put_bytes == idle.in_flight == sum(idle.get_bytes.values()) == 0
    assert idle.put_seconds is None and idle.get_seconds["urgent"] is None
    assert store.pressure().put_seconds == 0 and idle.depth == 4 * (24 + 6)
    content = bytes(8 << 20)
    while not (busy := store.pressure("1GiB")).put_bytes_per_second:
        store.free(store.put(content))
    # At its bandwidth: twice as much takes twice as long.
    assert busy.put_seconds == pytest.approx((1 << 30) / busy.put_bytes_per_second)
    assert set(busy.get_seconds) == set(busy.get_bytes) == {"urgent", "prefetch", "background"}
    with pytest.raises(ValueError, match="length"):
        store.pressure(-1)


def test_stats(store):
    thing = store.put(bytes(4 << 20))
    stats = store.stats()
    assert (stats.drives, stats.objects, stats.puts, stats.bytes_put) == (4, 1, 1, 4 << 20)
    drives = store.drive_stats()
    assert len(drives) == 4
    assert sum(drive.bytes_written for drive in drives) == stats.bytes_written == 4 << 20
    assert store.description and store.chunk_bytes
    store.free(thing)


def test_drives_that_are_refused(formatted, folder):
    error_of(errno.ENXIO, spillway.Store, formatted[:3])
    error_of(errno.ENOTUNIQ, spillway.Store, formatted + formatted[:1])
    error_of(errno.ENOENT, spillway.Store, [formatted[0] + "-none"])
    error_of(errno.EMEDIUMTYPE, spillway.Store, make_drives(folder, 1, name="empty"))
    error_of(errno.ENOSPC, spillway.format_store, make_drives(folder, 1, 1 << 20, "little"))
    with spillway.Store(formatted):
        error_of(errno.EBUSY, spillway.Store, formatted)


@pytest.mark.parametrize("paths, options, error, words", [
    ("x", {}, TypeError, "a sequence of paths"),
    (["x", ""], {}, ValueError, "the name of a drive is empty"),
    (["x"], {"backend": "sync"}, ValueError, "backend must be one of \"auto\""),
    (["x"], {"stripe": "static"}, ValueError, "use \"pull\""),
    # -1 would be any partition, and 2^32 the first one.
    (["x"], {"partition": -1}, ValueError, "partition must"),
    (["x"], {"partition": 0xFFFFFFFF}, ValueError, "partition must"),
    (["x"], {"partition": 1 << 32}, ValueError, "partition must"),
    (["x"], {"queue_depth": 1 << 32}, ValueError, "queue_depth must"),
    (["x"], {"workers": -1}, ValueError, "workers must"),
    (["x"], {"arena_bytes": 1 << 64}, ValueError, "arena_bytes must"),
    (["x"], {"arena_bytes": -1}, ValueError, "arena_bytes must"),
])
def test_arguments_that_are_refused(paths, options, error, words):
    with pytest.raises(error, match=words):
        spillway.Store(paths, **options)


def test_settings_that_the_environment_names(formatted, folder, monkeypatch):
    settings = folder / "tune.json"
    monkeypatch.setenv("SPILLWAY_TUNE", str(settings))
    error_of(errno.ENOENT, spillway.Store, formatted)
    settings.write_text('{"format": 1}')
    assert "holds no settings" in error_of(errno.EINVAL, spillway.Store, formatted)
    best = '{"block_bytes": 4096, "iodepth": 3, "wait": "interrupt", "backend": "libaio"}'
    known = ", ".join(
        f'{{"path": "{drive}", "model": "", "serial": "", "size_bytes": {os.path.getsize(drive)}}}'
        for drive in formatted)
    settings.write_text(f'{{"format": 1, "best": {{"read": {best}}}, "drives": [{known}]}}')
    with spillway.Store(formatted) as store:
        assert store.description.startswith("libaio")
    settings.write_text(f'{{"format": 1, "best": {{"read": {best}}}, "drives": []}}')
    with spillway.Store(formatted) as store:
        assert not store.description.startswith("libaio")
    monkeypatch.setenv("SPILLWAY_TUNE", "")
    spillway.Store(formatted).close()


def test_memory_of_a_store(formatted, monkeypatch):
    """Resident: no more by default than training in host memory needs."""
    for given, gpu, expected in ((None, "/nonexistent", 64), (None, "/dev/null", 256),
                                 (48 << 20, "/dev/null", 48)):
        monkeypatch.setattr(store_module, "_GPU", gpu)
        with spillway.Store(formatted, arena_bytes=given) as store:
            assert store.arena_bytes == expected << 20
    monkeypatch.setattr(store_module, "_GPU", "/nonexistent")
    assert store_module._needs_arena([b"/dev/null", b"pci:0000:3d:00.0/1"])
    assert not store_module._needs_arena([b"/dev/null"])


def test_closed_store(formatted):
    store = spillway.Store(formatted)
    store.close()
    store.close()
    assert store.closed
    assert "open it again" in error_of(errno.EBADF, store.put, b"x")
    with spillway.Store(formatted) as again:  # the drives were released
        assert again.stats().objects == 0


def test_partitions(drives):
    assert spillway.format_store(drives, partitions=2).partitions == 2
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(spillway.Store(drives, partition=None)) for _ in range(2)]
        assert {store.stats().partition for store in stores} == {0, 1}
        error_of(errno.EBUSY, spillway.Store, drives, partition=None)


def test_check_probe_wipe(drives):
    info = spillway.format_store(drives)
    assert (info.drives, info.partitions, len(info.store_uuid)) == (4, 1, 36)
    assert spillway.check_store(drives).store_uuid == info.store_uuid
    probed = spillway.probe(drives[0])
    assert probed.has_store and probed.kind == "file" and probed.size_bytes == 256 << 20
    spillway.wipe_store(drives)
    assert not spillway.probe(drives[0]).has_store
    error_of(errno.EMEDIUMTYPE, spillway.wipe_store, drives)


def test_probe_of_what_is_not_there():
    probed = spillway.probe("/dev/does-not-exist")
    assert not probed.usable and probed.reason


def test_data_of_which_nothing_is_known_takes_erase(folder):
    drives = make_drives(folder, 2, 32 << 20)
    with open(drives[1], "r+b") as drive:
        drive.seek(70000)
        drive.write(b"something")
    for force in (False, True):
        error = error_of(errno.EEXIST, spillway.format_store, drives, force=force)
        assert "from byte 70000 on 73 6f 6d 65" in str(error)
    found = spillway.probe(drives[1])
    assert (found.holds, found.usable, found.has_store) == ("unknown data", False, False)
    assert "--erase" in found.reason
    spillway.format_store(drives, erase=True)
    error_of(errno.EEXIST, spillway.format_store, drives, erase=True)  # by now a store


def test_workers(formatted):
    content = random.Random(3).randbytes(8 << 20)
    for workers in (1, 3):
        with spillway.Store(formatted, workers=workers) as store:
            thing = store.put(content)
            assert store.get(thing, len(content)) == content
            assert store.stats().workers == workers
            assert workers > 1 or store.stats().bytes_helped == 0
            assert f"{workers} workers" in store.description or workers == 1
    assert "up to 64" in error_of(errno.EINVAL, spillway.Store, formatted, workers=65)


def test_libaio_gives_the_same(formatted):
    content = os.urandom(3000001)
    with spillway.Store(formatted, backend="libaio") as store:
        thing = store.put(content)
        assert store.get(thing, len(content)) == content
        store.free(thing)
        assert "libaio" in store.description


def test_a_forked_child_leaves_the_store_alone(store):
    thing = store.put(b"parent" * 1000)
    child = os.fork()
    if child == 0:
        os._exit(0 if store.closed else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert store.get(thing, 6000) == b"parent" * 1000
    store.free(thing)


@pytest.fixture
def little(folder):
    """A file system of 40 MiB, in memory."""
    mounted = folder / "little"
    mounted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "spillway", mounted], check=True)
    yield mounted
    subprocess.run(["umount", mounted], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="to mount needs root")
def test_a_full_file_system_under_sparse_drives(little):
    """Refused, by the names of the drives; and taken again when there is room."""
    drives = make_store(little, 2, 64 << 20)
    with spillway.Store(drives) as store:
        kept = store.put(bytes(1 << 20))
        with open(little / "others", "wb") as file, pytest.raises(OSError):
            while True:
                file.write(bytes(1 << 20))
                file.flush()
        with pytest.raises(spillway.SpillwayError) as refused:
            for _ in range(100):
                store.put(bytes(4 << 20))
        assert refused.value.errno == errno.ENOSPC
        words = str(refused.value)
        assert f"{drives[0]} is out of service: the file system under it is full" in words
        assert f"{drives[1]} is out of service" in words and "make room there" in words
        assert all(drive.writes_no_space > 0 for drive in store.drive_stats())
        os.unlink(little / "others")
        deadline = time.monotonic() + 30
        while True:
            try:
                again = store.put(b"again" * 300000)
                break
            except spillway.SpillwayError as error:
                assert error.errno == errno.ENOSPC and time.monotonic() < deadline
                time.sleep(0.05)
        assert bytes(store.get(again, 1500000)) == b"again" * 300000
        assert bytes(store.get(kept, 1 << 20)) == bytes(1 << 20)
        assert not all(drive.full for drive in store.drive_stats())


def test_errors_name_arguments_of_python(formatted):
    """The library's own words name options of the command."""
    with pytest.raises(spillway.SpillwayError, match="force=True") as caught:
        spillway.format_store(formatted)
    assert "--" not in str(caught.value)
    with pytest.raises(spillway.SpillwayError, match="smaller chunk_bytes=|fewer partitions="):
        spillway.format_store(formatted, force=True, partitions=256, chunk_bytes="4MiB")


def test_a_partition_that_is_open_is_read(folder):
    """What it has committed; the partition is locked as before, and its lock is not given up with
    the reader's end."""
    drives = make_store(folder, 2, 64 << 20, partitions=3)
    content = random.Random(5).randbytes(3 << 20)
    shared = {"read_only": True, "shared": True, "arena_bytes": 1 << 20}
    with spillway.Store(drives, partition=1) as store:
        store.commit([store.put(content)], 5, b"record")
        with spillway.Store(drives, partition=1, commit=5, **shared) as reader, \
                spillway.Store(drives, partition=1, **shared) as other:
            record, ((thing, length),) = reader.restored()
            assert record == b"record" and reader.get(thing, length) == content
            assert "read only" in error_of(errno.EROFS, reader.put, b"-")
            store.commit([store.put(bytes(length))], 6, b"later")
            assert other.committed.number == 5
        assert spillway.committed(drives, 1).number == 6
        child = os.fork()
        if child == 0:
            try:
                spillway.Store(drives, partition=1)
            except OSError as error:
                os._exit(error.errno)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.EBUSY
    assert "partition 3 does not exist" in error_of(errno.EINVAL, spillway.Store, drives,
                                                    partition=3, **shared)
    for options in ({"partition": None, "read_only": True}, {"partition": 0}):
        assert "shared is for" in error_of(errno.EINVAL, spillway.Store, drives, shared=True,
                                           **options)
