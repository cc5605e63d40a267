# SPDX-License-Identifier: MIT
# tests/python/test_swapping.py - the handle that DeepSpeed swaps by, on a store, without it
"""tests/ecosystem/test_deepspeed.py has the same under DeepSpeed itself."""
import contextlib
import errno
import gc
import os
import shutil
import signal

import pytest
import torch

import spillway
from conftest import make_store
from spillway._swap.aio import AioHandle
from spillway._swap.files import Space

MIB = 1 << 20


class Files:
    """Stands for a handle of DeepSpeed's own."""

    def __init__(self, *given):
        self.given, self.pending, self.written = given, 0, {}

    def pwrite(self, buffer, filename, validate, is_async, file_offset=0):
        self.written[filename] = buffer.clone()
        self.pending += is_async
        return 0 if is_async else 1

    def async_pwrite(self, buffer, fd, file_offset=0):
        return self.pwrite(buffer, fd, False, True)

    def wait(self):
        pending, self.pending = self.pending, 0
        return pending


@pytest.fixture
def space(store, folder):
    (folder / "swap").mkdir()
    found = Space(lambda: store)
    found.add(str(folder / "swap"))
    yield found
    found.forget_all()


@pytest.fixture
def handle(space):
    return AioHandle(space, Files)


@pytest.fixture
def at(folder):
    return lambda name: os.path.join(str(folder / "swap"), name)


def filled(handle, value, numel=MIB // 4):
    return handle.new_cpu_locked_tensor(numel, torch.zeros(1)).fill_(value)


def write(handle, path, value, numel=MIB // 4):
    assert handle.async_pwrite(filled(handle, value, numel), path, 0) == 0
    assert handle.wait() == 1


def read(handle, path, numel=MIB // 4, offset=0):
    into = torch.full((numel,), -1.0)
    assert handle.async_pread(into, path, offset) == 0
    assert handle.wait() == 1
    return into


def error_of(number, call, *arguments):
    with pytest.raises(spillway.SpillwayError) as caught:
        call(*arguments)
    assert caught.value.errno == number, caught.value
    return str(caught.value)


def test_what_is_written_comes_back(handle, at, store):
    for number in range(5):
        assert handle.async_pwrite(filled(handle, number), at(f"{number}.swp"), 0) == 0
    assert handle.wait() == 5 and store.stats().objects == 5
    into = [torch.empty(MIB // 4) for _ in range(5)]
    for number, buffer in enumerate(into):
        assert handle.async_pread(buffer, at(f"{number}.swp"), 0) == 0
    assert handle.wait() == 5
    assert all(bool((buffer == number).all()) for number, buffer in enumerate(into))
    assert not os.listdir(os.path.dirname(at("")))


def test_overwriting_frees_what_was_there(handle, at, store):
    for value in range(4):
        write(handle, at("a"), value)
    assert store.stats().objects == 1 and store.stats().frees == 3
    assert bool((read(handle, at("a")) == 3).all())


def test_two_writes_of_a_name_before_a_wait(handle, at, store):
    for value in (1, 2):
        handle.async_pwrite(filled(handle, value), at("a"), 0)
    assert handle.wait() == 2 and store.stats().objects == 1
    assert bool((read(handle, at("a")) == 2).all())


def test_a_read_sees_a_write_that_another_handle_has_begun(space, handle, at):
    other = AioHandle(space, Files)
    write(handle, at("a"), 1)
    handle.async_pwrite(filled(handle, 2), at("a"), 0)
    assert bool((read(other, at("a")) == 2).all())
    assert handle.wait() == 1


def test_parts_and_lengths(handle, at):
    handle.sync_pwrite(torch.arange(1000, dtype=torch.float32), at("a"))
    assert torch.equal(read(handle, at("a"), 10, 400), torch.arange(100.0, 110.0))
    assert "beyond" in error_of(errno.ERANGE, handle.async_pread, torch.empty(1001), at("a"), 0)
    assert handle.wait() == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.uint8])
def test_types(handle, at, dtype):
    content = torch.arange(256).to(dtype)
    locked = handle.new_cpu_locked_tensor(256, content)
    assert locked.dtype is dtype and locked.shape == (256,)
    locked.copy_(content)
    assert handle.write(locked, at("a"), True) == 0
    assert handle.read(locked.zero_(), at("a"), True) == 0
    assert torch.equal(locked, content)


def test_memory_with_gaps_and_on_no_cpu(handle, at):
    content = torch.arange(64.0).view(8, 8).t()
    assert handle.sync_pwrite(content, at("a")) == 1
    into = torch.zeros(8, 8).t()
    assert handle.sync_pread(into, at("a")) == 1
    assert torch.equal(into, content)


def test_locked_memory(space, handle, store):
    registered = store.stats().registered_bytes
    tensor = handle.new_cpu_locked_tensor(MIB, torch.zeros(1))
    assert handle.is_pinned(tensor) and handle.is_pinned(tensor.narrow(0, 1000, 17))
    assert not handle.is_pinned(torch.zeros(5))
    assert store.stats().registered_bytes > registered or store.stats().registrations_refused
    assert handle.free_cpu_locked_tensor(tensor) and not handle.free_cpu_locked_tensor(tensor)
    assert not handle.is_pinned(tensor)
    assert store.stats().registered_bytes == registered
    assert float(tensor.fill_(3).sum()) == 3 * MIB  # a tensor that has it keeps it
    assert handle.new_cpu_locked_tensor(0, torch.zeros(1)).numel() == 0


def test_more_memory_than_can_be_registered(handle, caplog):
    tensors = [handle.new_cpu_locked_tensor(4096, torch.zeros(1)) for _ in range(66)]
    assert all(map(handle.is_pinned, tensors))
    assert "as any other to the drives" in caplog.text


def test_what_a_handle_leaves_is_given_back(space, handle, at, store):
    registered = store.stats().registered_bytes
    other = AioHandle(space, Files)
    write(handle, at("kept"), 1)
    write(other, at("gone"), 2)
    write(other, at("taken over"), 3)
    write(handle, at("taken over"), 4)
    other.async_pwrite(torch.zeros(MIB), at("under way"), 0)
    del other
    gc.collect()
    write(handle, at("b"), 5)
    assert store.stats().objects == 3
    assert bool((read(handle, at("taken over")) == 4).all())
    error_of(errno.ENOENT, handle.async_pread, torch.empty(1), at("gone"), 0)
    del handle
    assert store.stats().registered_bytes >= registered


def test_names_that_are_not_there(space, handle, at, folder):
    assert at("a") in error_of(errno.ENOENT, handle.async_pread, torch.empty(1), at("a"), 0)
    assert handle.wait() == 0
    write(handle, at("a"), 1)
    space.add(str(folder / "swap"), empty=True)
    error_of(errno.ENOENT, handle.async_pread, torch.empty(1), at("a"), 0)


def test_a_swapped_tensor_is_written_whole(handle, at):
    with pytest.raises(ValueError, match="from its beginning on"):
        handle.async_pwrite(torch.zeros(8), at("a"), 8)


def test_other_files_are_those_of_deepspeed(space, at, folder):
    handle = AioHandle(space, Files, 4096, 7, True, False, 2)
    name = str(folder / "checkpoint")
    write(handle, at("a"), 1)
    handle.async_pwrite(filled(handle, 2), at("b"), 0)
    assert handle.async_pwrite(torch.ones(8), name, 0) == 0
    assert handle.async_pwrite(torch.ones(8), 5, 0) == 0
    assert handle.async_pwrite(buffer=torch.ones(8), fd=6, file_offset=0) == 0
    assert handle.wait() == 4 and handle.wait() == 0
    assert handle._own.given == (4096, 7, True, False, 2)
    assert set(handle._own.written) == {name, 5, 6}
    assert (handle.get_block_size(), handle.get_queue_depth(), handle.get_single_submit(),
            handle.get_overlap_events(), handle.get_intra_op_parallelism(),
            handle.get_alignment()) == (4096, 7, True, False, 2, 1024)


def test_more_than_the_store_has_requests_for(handle, at):
    buffer = torch.zeros(128)
    for number in range(4200):  # 4096 at once
        assert handle.async_pwrite(buffer, at(str(number)), 0) == 0
    assert handle.wait() == 4200


# ---- When something goes wrong -------------------------------------------------------------------


@pytest.fixture
def full(folder):
    """A space on one small drive, of which 8 MiB are left."""
    drives = make_store(folder, 1, 48 * MIB, "small")
    with spillway.Store(drives) as store:
        rest = store.stats().capacity_bytes - 8 * MIB
        thing = store.put(bytearray(rest))
        space = Space(lambda: store)
        (folder / "swap").mkdir()
        space.add(str(folder / "swap"))
        yield AioHandle(space, Files), store
        store.free(thing)


def test_a_full_store(full, at):
    handle, store = full
    write(handle, at("a"), 1, MIB)
    words = error_of(errno.ENOSPC, handle.async_pwrite, torch.zeros(3 * MIB), at("b"), 0)
    assert at("b") in words
    assert "lost" in error_of(errno.ENOSPC, handle.async_pread, torch.zeros(1), at("b"), 0)
    assert handle.wait() == 0
    assert bool((read(handle, at("a"), MIB) == 1).all())


def test_overwriting_needs_no_room(full, at):
    """Files that are overwritten need none either."""
    handle, store = full
    for value in (1, 2, 3):
        write(handle, at("a"), value, 3 * MIB // 2)  # 6 MiB of 8
    assert bool((read(handle, at("a"), 3 * MIB // 2) == 3).all())
    for value in (4, 5):  # of one batch
        handle.async_pwrite(filled(handle, value, MIB // 2), at("b"), 0)
    assert handle.wait() == 2


class Failing:
    """A store of which the next requests end with an error."""

    def __init__(self, monkeypatch, count=1):
        import spillway._swap.files as swapping

        end_of = swapping.end_of

        def fails(request):
            nonlocal count
            result, interruption = end_of(request)
            count -= 1
            return (-errno.EIO, None) if count >= 0 else (result, interruption)

        monkeypatch.setattr(swapping, "end_of", fails)


def test_a_write_that_failed_is_not_read_as_what_was_there(handle, at, store, monkeypatch):
    write(handle, at("a"), 1)
    Failing(monkeypatch)
    handle.async_pwrite(filled(handle, 2), at("a"), 0)
    handle.async_pwrite(filled(handle, 3), at("b"), 0)
    assert at("a") in error_of(errno.EIO, handle.wait)
    assert "go on from a checkpoint" in error_of(errno.EIO, handle.async_pread, torch.empty(1),
                                                 at("a"), 0)
    assert bool((read(handle, at("b")) == 3).all())  # all others have ended well
    assert store.stats().objects == 1
    write(handle, at("a"), 4)
    assert bool((read(handle, at("a")) == 4).all())


def test_a_read_that_failed(handle, at, monkeypatch):
    write(handle, at("a"), 1)
    Failing(monkeypatch)
    handle.async_pread(torch.empty(8), at("a"), 0)
    assert at("a") in error_of(errno.EIO, handle.wait)
    assert bool((read(handle, at("a"), 8) == 1).all())


def test_other_bytes_on_the_drive(folder, at):
    drives = make_store(folder, 1, 48 * MIB, "small")
    (folder / "swap").mkdir()
    with spillway.Store(drives) as store:
        space = Space(lambda: store)
        space.add(str(folder / "swap"))
        handle = AioHandle(space, Files)
        write(handle, at("a"), 7)
        with open(drives[0], "r+b", buffering=0) as drive:
            content = drive.read()
            drive.seek(content.index(b"\0\0\xe0\x40" * 1024) + 128)
            drive.write(b"x")
        into = torch.empty(MIB // 4)
        handle.async_pread(into, at("a"), 0)
        assert "small0" in error_of(errno.EBADMSG, handle.wait)


def test_interrupted(handle, at, monkeypatch):
    """What was under way has ended when Ctrl-C is raised."""
    import spillway._swap.files as swapping

    end_of = swapping.end_of

    def interrupted(request):
        os.kill(os.getpid(), signal.SIGINT)
        return end_of(request)

    monkeypatch.setattr(swapping, "end_of", interrupted)
    for name in "ab":
        handle.async_pwrite(filled(handle, ord(name)), at(name), 0)
    with pytest.raises(KeyboardInterrupt):
        handle.wait()
    monkeypatch.undo()
    assert handle.wait() == 0
    assert all(bool((read(handle, at(name)) == ord(name)).all()) for name in "ab")


def test_after_the_store_is_closed(handle, at, store):
    write(handle, at("a"), 1)
    handle.async_pwrite(filled(handle, 2), at("a"), 0)
    store.close()
    with contextlib.suppress(spillway.SpillwayError):
        handle.wait()
    error_of(errno.EBADF, handle.async_pwrite, torch.zeros(8), at("b"), 0)


# ---- Copies --------------------------------------------------------------------------------------


def test_the_folder_is_copied_as_files(space, handle, at, folder):
    swap = str(folder / "swap")
    for name, value in (("a", 1), ("b_gradient", 2)):
        write(handle, at(name), value, 5 * MIB)  # of more than one piece
    with space.copied_as_files():
        shutil.copytree(swap, folder / "out", ignore=lambda _, names: [
            name for name in names if "gradient" in name], dirs_exist_ok=False)
        assert space.copied == {swap}
        shutil.copytree(folder / "out", folder / "as before")
    assert os.listdir(folder / "out") == os.listdir(folder / "as before") == ["a"]
    content = torch.frombuffer(bytearray((folder / "out/a").read_bytes()), dtype=torch.float32)
    assert bool((content == 1).all()) and content.numel() == 5 * MIB
    write(handle, at("a"), 3)
    with space.copied_as_files():
        shutil.copytree(folder / "out", swap, dirs_exist_ok=True)
        with pytest.raises(FileExistsError):
            shutil.copytree(swap, folder / "out")
    assert bool((read(handle, at("a"), 5 * MIB) == 1).all())
    assert bool((read(handle, at("b_gradient")) == 2).all())
    assert not os.listdir(swap)


def test_what_is_lost_is_not_copied(space, handle, at, folder, monkeypatch):
    Failing(monkeypatch)
    handle.async_pwrite(filled(handle, 2), at("a"), 0)
    with space.copied_as_files():
        error_of(errno.EIO, shutil.copytree, str(folder / "swap"), folder / "out")
