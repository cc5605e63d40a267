# SPDX-License-Identifier: MIT
# tests/ecosystem/test_deepspeed.py - ZeRO-Infinity on a store, by its own files, and in memory
"""DeepSpeed compiles its optimizer and its asynchronous I/O when they are first used: once for an
environment. Each training is a process of its own."""
import ctypes
import errno
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import deepspeed  # noqa: F401
import pytest
import torch

import spillway
from places import Forked, fork_ranks, make_drives, wait_after_layers

EXAMPLE = Path(__file__).resolve().parents[2] / "python/examples/deepspeed_zero3.py"
COMMAND = Path(sys.prefix, "bin/spillway")
SMALL = ["--layers", "1", "--sequence", "32", "--batch", "2", "--text", str(EXAMPLE.parent)]
# Of which each part shows in what is resident.
LARGER = ["--layers", "4", "--hidden", "640", "--sequence", "512", "--batch", "4"]
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
MIB = 1 << 20


def example(arguments, prepare=lambda: None):
    """The example, in a process that is its own."""
    sys.argv[:] = [str(EXAMPLE), *arguments]
    sys.path.insert(0, str(EXAMPLE.parent))
    prepare()
    runpy.run_path(str(EXAMPLE), run_name="__main__")


def arguments_of(more, steps=4):
    return [*SMALL, "--steps", str(steps), *map(str, more)]


def start(folder, *more, before=(), steps=4, prepare=lambda: None):
    """The example; before: a command that starts it; prepare: what its process does first, without
    one."""
    arguments = arguments_of(more, steps)
    if not before:
        return Forked(folder, lambda: example(arguments, prepare))
    return subprocess.Popen(
        [*map(str, before), sys.executable, str(EXAMPLE), *arguments], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder)


def run(*arguments, **options):
    process = start(*arguments, **options)
    out, errors = process.communicate()
    assert process.returncode == 0, out + errors
    return out


def fails(*arguments, **options):
    process = start(*arguments, **options)
    out, errors = process.communicate()
    assert process.returncode == 1, out + errors
    return errors


def begun(*arguments):
    """One that is in its third step."""
    process = start(*arguments, steps=1000)
    lines = iter(process.stdout.readline, "")
    assert any("step 2 " in line for line in lines), process.communicate()
    return process


def losses_of(out):
    """Of one process, or of several in any order."""
    return sorted(re.findall(r"step \d+ loss \S+", out))


def files_in(folder):
    return [path for path in Path(folder).rglob("*") if path.is_file()]


def swapped(out):
    found = re.search(r"swapped to the store: (\d+) MiB out, (\d+) MiB in", out)
    assert found, out
    return [int(number) for number in found.groups()]


@pytest.fixture
def swap(folder):
    """Where DeepSpeed is told to swap to: with a store, nothing gets there."""
    (folder / "swap").mkdir()
    return folder / "swap"


@pytest.fixture
def named(drives):
    return ",".join(drives)


@pytest.mark.parametrize("kind", [[], ["--bf16", "--pipeline"], ["--torch-adam"]],
                         ids=["float", "bf16, pipelined", "PyTorch's AdamW"])
def test_the_same_losses(folder, swap, named, kind):
    memory = losses_of(run(folder, *kind))
    assert len(memory) == 4 and len(set(memory)) == 4
    own = losses_of(run(folder, *kind, "--swap", swap))
    assert own == memory and files_in(swap)
    shutil.rmtree(swap)
    out = run(folder, *kind, "--swap", swap, "--devices", named)
    assert losses_of(out) == memory and not files_in(swap)
    assert min(swapped(out)) > 100


def test_a_program_that_is_not_edited(folder, swap, named, drives):
    """And that changes its folder: the drives are named from where it was started."""
    drives = [os.path.relpath(path, folder) for path in drives]
    before = [COMMAND, "run", "--deepspeed", ",".join(drives), "--"]
    out = run(folder, "--swap", swap, before=before)
    assert losses_of(out) == losses_of(run(folder, "--swap", folder / "own"))
    assert not files_in(swap) and files_in(folder / "own")


def shows_its_memory():
    """What is freed is not resident, and what is spilled has gone when the next layer begins,
    however slow the drives are."""
    import spillway.torch

    libc = ctypes.CDLL(None)
    assert libc.mallopt(M_MMAP_THRESHOLD, 64 << 10) and libc.mallopt(M_TRIM_THRESHOLD, 128 << 10)
    offload = spillway.torch.offload

    def waiting(model, store):
        off = offload(model, store)
        wait_after_layers(model, lambda: off)
        return off

    spillway.torch.offload = waiting


def test_less_memory(folder, swap):
    """With optimizer and parameters on the store, and with activations there too: each by a good
    part of what it takes."""
    drives = make_drives(folder, size_bytes=1024 * MIB)
    store = ["--swap", swap, "--devices", ",".join(drives)]
    outs = [run(folder, *LARGER, *kind, steps=2, prepare=shows_its_memory)
            for kind in ([], store, [*store, "--activations"])]
    assert losses_of(outs[0]) == losses_of(outs[1]) == losses_of(outs[2])
    memory, swapping, both = (int(re.search(r"memory: (\d+) MiB", out)[1]) for out in outs)
    assert swapping < memory - 60 and both < swapping - 100, (memory, swapping, both)


def test_checkpoints_are_the_same_files(folder, swap, named):
    """Saved on a store, or by DeepSpeed alone: both go on from either."""
    store = ["--swap", swap, "--devices", named]
    own = ["--swap", folder / "own"]
    run(folder, *store, "--output", folder / "of store")
    run(folder, *own, "--output", folder / "of files")
    saved = [{path.relative_to(folder / name): path.read_bytes()
              for path in files_in(folder / name) if "offloaded_tensors" in str(path)}
             for name in ("of store", "of files")]
    assert saved[0] == saved[1] and len(saved[0]) > 3
    resumed = [losses_of(run(folder, *how, "--resume", folder / name, steps=6))
               for how in (store, own) for name in ("of store", "of files")]
    assert len(resumed[0]) == 2 and all(one == resumed[0] for one in resumed)


def run_ranks(folder, *more):
    """Forked: they end without the interpreter's own end, at which threads of PyTorch's gloo that
    still have a tensor abort the process now and then."""
    ranks = fork_ranks(folder, lambda: example(arguments_of(more)))
    said = [rank.communicate() for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), said
    return "".join(out for out, _ in said)


def test_two_ranks(folder, swap, drives, named):
    """Each on a partition of its own."""
    spillway.wipe_store(drives)
    spillway.format_store(drives, partitions=2)
    plain = losses_of(run_ranks(folder))
    out = run_ranks(folder, "--swap", swap, "--devices", named, "--output", folder / "out")
    assert losses_of(out) == plain and len(plain) == 8
    assert len(re.findall("swapped to the store", out)) == 2
    assert {path.parent.name for path in files_in(folder / "out")} >= {"rank00", "rank01"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ends(folder, swap, drives, named, number):
    """The drives are free, and the next training is unaffected."""
    process = begun(folder, "--swap", swap, "--devices", named)
    process.send_signal(number)
    process.communicate()
    assert process.returncode != 0
    spillway.Store(drives).close()
    out = run(folder, "--swap", swap, "--devices", named, steps=2)
    assert losses_of(out) == losses_of(run(folder, steps=2))


def test_without_a_store(folder, swap):
    (folder / "drive").write_bytes(bytes(MIB))
    for errors in (fails(folder, "--swap", swap, "--devices", folder / "drive"),
                   fails(folder, before=[COMMAND, "run", "--deepspeed", folder / "drive", "--"])):
        assert "is not a drive of a spillway store" in errors
        assert "Traceback" not in errors


def test_a_full_store(folder, swap):
    """Too small for what is swapped: an error that says so, before any step is wrong."""
    path = folder / "small"
    with open(path, "wb") as file:
        file.truncate(32 * MIB)
    spillway.format_store([path])
    errors = fails(folder, "--swap", swap, "--devices", path)
    assert "tensor.swp" in errors and "Traceback" not in errors
    assert re.search("no space|full|has not|bytes left", errors), errors


def test_a_drive_that_is_gone(folder, swap, drives, named):
    """No step is computed with other bytes than were swapped out."""
    process = begun(folder, "--swap", swap, "--devices", named)
    for path in drives:
        os.truncate(path, 1 * MIB)
    out, errors = process.communicate()
    for path in drives:  # for the next
        os.truncate(path, 256 * MIB)
    spillway.format_store(drives, force=True)
    assert process.returncode == 1 and "deepspeed_zero3: " in errors, errors
    assert any(path in errors for path in drives) and "Traceback" not in errors
    late = [line for line in losses_of(out) if re.match("step [3-6] ", line)]
    assert set(late) <= set(losses_of(run(folder, steps=6)))


# ---- The handle, beside DeepSpeed's own ----------------------------------------------------------


@pytest.fixture(scope="module")
def module():
    from deepspeed.ops.op_builder import AsyncIOBuilder

    return AsyncIOBuilder().load()


@pytest.fixture(params=["own", "a file", "an object"])
def handle(request, module, folder, drives):
    """DeepSpeed's own, and ours, for a file and for what is in a swap folder."""
    if request.param == "own":
        yield module.aio_handle(1 << 20, 8, False, True, 2)
        return
    import spillway.deepspeed
    from deepspeed.ops.op_builder import AsyncIOBuilder

    load = AsyncIOBuilder.load
    swapping = spillway.deepspeed.install(drives)
    if request.param == "an object":
        swapping._space.add(str(folder))
    yield AsyncIOBuilder().load().aio_handle(
        block_size=1 << 20, queue_depth=8, single_submit=False, overlap_events=True,
        intra_op_parallelism=2)
    swapping.close()
    assert AsyncIOBuilder.load is load


def test_each_way_to_write_and_to_read(handle, folder):
    example = torch.empty(0, dtype=torch.uint8)
    source, into = (handle.new_cpu_locked_tensor(MIB, example) for _ in range(2))
    assert handle.is_pinned(source) and handle.is_pinned(source.narrow(0, 10, 10))
    writes = [lambda name: handle.write(source, name, False),
              lambda name: handle.pwrite(source, name, True, False),
              lambda name: handle.sync_pwrite(source, name),
              lambda name: handle.async_pwrite(source, name) or handle.wait()]
    reads = [lambda name: handle.read(into, name, False),
             lambda name: handle.pread(into, name, True, False),
             lambda name: handle.sync_pread(into, name),
             lambda name: handle.async_pread(into, name) or handle.wait()]
    for number, (write, read) in enumerate(zip(writes, reads)):
        source.random_(0, 255)
        into.zero_()
        name = str(folder / f"file{number}")
        assert write(name) == read(name) == (1 if number else 0)
        assert torch.equal(source, into)
    assert handle.free_cpu_locked_tensor(source) and handle.free_cpu_locked_tensor(into)
    assert not handle.free_cpu_locked_tensor(torch.zeros(8))
    assert handle.get_alignment() == 1024 and handle.get_queue_depth() == 8
    assert handle.get_block_size() == 1 << 20 and handle.get_intra_op_parallelism() == 2
    assert handle.get_overlap_events() and not handle.get_single_submit()


def test_many_at_once_and_a_descriptor(handle, folder):
    source = handle.new_cpu_locked_tensor(MIB, torch.empty(0, dtype=torch.uint8))
    source.random_(0, 255)
    others = [torch.zeros(MIB, dtype=torch.uint8) for _ in range(3)]
    for number in range(3):
        assert handle.async_pwrite(source, str(folder / str(number)), 0) == 0
    with tempfile.TemporaryFile(dir=folder) as file:
        assert handle.async_pwrite(source, file.fileno(), 0) == 0
        assert handle.wait() == 4
        assert file.read() == bytes(source.numpy())
    for number, other in enumerate(others):
        assert handle.async_pread(other, str(folder / str(number)), 0) == 0
    assert handle.wait() == 3
    assert all(torch.equal(source, other) for other in others)


# ---- install() -----------------------------------------------------------------------------------


def test_wrong_arguments(folder, drives):
    from spillway.deepspeed import install

    (folder / "drive").write_bytes(bytes(MIB))
    with pytest.raises(spillway.SpillwayError, match="is not a drive of a spillway store"):
        install(str(folder / "drive"))
    with pytest.raises(TypeError, match="pages"):
        install(drives, pages=3)
    with spillway.Store(drives) as store:
        with pytest.raises(TypeError, match="is open"):
            install(store, partition=1)


def test_another_version_of_deepspeed(drives, monkeypatch):
    from deepspeed.ops.op_builder import AsyncIOBuilder
    from deepspeed.runtime.engine import DeepSpeedEngine

    import spillway.deepspeed

    load = AsyncIOBuilder.load
    monkeypatch.delattr(DeepSpeedEngine, "load_checkpoint")
    with pytest.raises(RuntimeError, match="has no DeepSpeedEngine.load_checkpoint"):
        spillway.deepspeed.install(drives)
    assert AsyncIOBuilder.load is load


def test_installed_again_and_undone(drives):
    from deepspeed.ops.op_builder import AsyncIOBuilder
    from deepspeed.runtime.engine import DeepSpeedEngine

    import spillway.deepspeed

    before = AsyncIOBuilder.load, DeepSpeedEngine.save_checkpoint
    first = spillway.deepspeed.install(drives)
    second = spillway.deepspeed.install(drives)
    assert AsyncIOBuilder.load is not before[0] and second.store is None
    first.close()
    assert AsyncIOBuilder.load is not before[0]
    second.close()
    second.close()
    assert (AsyncIOBuilder.load, DeepSpeedEngine.save_checkpoint) == before


def test_a_checkpoint_that_lacks_what_is_swapped(drives, monkeypatch):
    """Where DeepSpeed copies in a way that is not known."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    import spillway.deepspeed

    class Engine:
        class optimizer:
            class optimizer_swapper:
                swap_folder = "/nowhere/swap"

    monkeypatch.setattr(DeepSpeedEngine, "save_checkpoint", lambda engine, folder: True)
    swapping = spillway.deepspeed.install(drives)
    DeepSpeedEngine.save_checkpoint(Engine(), "out")  # it was made before, and has files
    swapping._space.add(Engine.optimizer.optimizer_swapper.swap_folder)
    with pytest.raises(RuntimeError, match="is not in this checkpoint"):
        DeepSpeedEngine.save_checkpoint(Engine(), "out")
    swapping.close()


def test_the_folder_goes_with_what_it_had(swap, drives):
    import spillway.deepspeed

    swapping = spillway.deepspeed.install(drives)
    swapping._space.add(str(swap))
    swapping.close()
    assert not swap.exists()


def test_gpudirect_storage_is_refused(drives):
    from deepspeed.runtime.swap_tensor.optimizer_utils import OptimizerSwapper

    import spillway.deepspeed

    class Swapper(OptimizerSwapper):
        use_gds = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OptimizerSwapper, "__init__", lambda swapper: None)
        swapping = spillway.deepspeed.install(drives)
        with pytest.raises(ValueError, match="use_gds"):
            Swapper()
        swapping.close()


def test_nothing_stays_of_a_read_that_is_not_there(drives):
    import spillway.deepspeed
    from deepspeed.ops.op_builder import AsyncIOBuilder

    swapping = spillway.deepspeed.install(drives)
    swapping._space.add("/nowhere/swap")
    handle = AsyncIOBuilder().load().aio_handle()
    with pytest.raises(spillway.SpillwayError) as caught:
        handle.async_pread(torch.zeros(8), "/nowhere/swap/a", 0)
    assert caught.value.errno == errno.ENOENT
    swapping.close()
