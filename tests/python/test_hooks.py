# SPDX-License-Identifier: MIT
# tests/python/test_hooks.py - which hooks are taken, and that what is kept goes away
import functools
import gc
import os
import shutil
import sys
import threading
from pathlib import Path

import pytest
import torch

import spillway
import spillway.torch
from conftest import given_back, run_python
from offloading import (WeakStorage, hooks_call, in_threads, left_in, offload_all, save, settle)
from spillway._core import hooks_loader, tensors as tensors_module, torch_compat


def test_it_may_be_imported_in_inference():
    done = run_python(
        "-c", "import torch\nwith torch.inference_mode():\n    import spillway.torch\n"
        "print(spillway._core.tensors.COUNTED)")
    assert done.stdout.split() == [str(tensors_module.COUNTED)], done.stderr


def test_where_they_are_not_built_it_says_how(folder):
    library = shutil.copy(os.environ["SPILLWAY_LIBRARY"], folder / "libspillway.so")
    done = run_python("-c", "import spillway.torch", env={"SPILLWAY_LIBRARY": library})
    assert done.returncode != 0
    assert f"nor as {folder}/_hooks.abi3.so" in done.stderr and "python3-dev" in done.stderr
    # which needs none
    assert run_python("-c", "import spillway", env={"SPILLWAY_LIBRARY": library}).returncode == 0


def replace_in(path, old, new):
    text = path.read_bytes()
    assert old + b"\0" in text and len(old) == len(new)
    path.write_bytes(text.replace(old + b"\0", new + b"\0"))


def test_of_another_version_they_are_not_taken(folder):
    library = shutil.copy(os.environ["SPILLWAY_LIBRARY"], folder / "libspillway.so")
    version = spillway._core.library.VERSION.encode()
    replace_in(Path(shutil.copy(hooks_loader.hooks.__file__, folder)), version, b"9" * len(version))
    done = run_python("-c", "import spillway.torch", env={"SPILLWAY_LIBRARY": library})
    assert done.returncode != 0 and "this package is version" in done.stderr


def test_none_is_made_but_by_the_hooks():
    """One that was never filled in would end the process."""
    for name in ("Saved", "Kept"):
        with pytest.raises(TypeError, match="cannot create"):
            getattr(hooks_loader.hooks, name)()


@pytest.mark.parametrize("when", ("stride", "is_neg"))
def test_a_tensor_is_given_other_memory_while_it_is_saved(store, when):
    """Making an object collects garbage, which may do anything: here when the strides are made, or
    where PyTorch shows them without an object, after the storage was looked at."""
    off = offload_all(store)
    tensor, other = torch.zeros(50000) * 1, torch.ones(50000)

    def asks(asked):
        answer = getattr(torch.Tensor, when)(asked)
        asked.set_(other)
        return answer

    things = {"exchange": None} if when == "stride" else {}
    with hooks_call(**{when: asks}, **things), off:
        saved = off._session.save(tensor)
        assert torch.equal(hooks_loader.hooks.unpack(saved), other)
        assert not isinstance(saved, hooks_loader.hooks.Saved)
        del saved
    gc.collect()
    assert left_in(off) == (0, 0, 0)


def layouts():
    whole = torch.arange(60000, dtype=torch.float32)
    part = torch.arange(60000, dtype=torch.float32)[1000:]
    return {
        "whole": whole * 1, "part": part, "transposed": (whole * 1).view(200, 300).t(),
        "odd": (whole * 1).as_strided((1, 100, 1, 200), (77, 300, 99, 1)),
        "expanded": (whole * 1).view(1, 60000).expand(3, 60000),
        "bool": whole > 9, "bfloat16": whole.to(torch.bfloat16)[8:],
        "conjugate": torch.complex(whole, whole + 1).conj(),
        "negative": torch.complex(whole, whole + 1).conj().imag,
        "scalar": torch.tensor(3.0), "empty": torch.empty(0, 7),
    }


@pytest.mark.parametrize("name", layouts())
@pytest.mark.parametrize("mode", ("spill", "observe"))
def test_it_is_the_same_whether_pytorch_makes_objects_or_not(store, mode, name):
    """PyTorch 2.10 shows memory and shape by a function of DLPack, else the methods do."""
    seen = []
    for things in ({}, {"exchange": None}):
        tensor = layouts()[name]
        off = offload_all(store, mode=mode)
        with hooks_call(**things), off:
            saved = off._session.save(tensor)
            settle(off)
            used = hooks_loader.hooks.unpack(saved)
            assert used.dtype == tensor.dtype and torch.equal(used, tensor)
            seen.append((used.shape, used.stride(), used.storage_offset(),
                         off.stats().bytes_offered, off.stats().tensors_spilled, type(saved)))
        del saved, used
        off.close()
    assert seen[0] == seen[1]
    if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        calls = []
        off = offload_all(store, mode=mode)
        with hooks_call(stride=calls.append), off:
            off._session.save(layouts()["whole"])
        off.close()
        assert not calls


# ---- What is kept goes away ----


def test_a_saved_tensor_refers_to_nothing_that_stays(store):
    """Neither the tensor nor its session is held by what was saved and let go."""
    off = offload_all(store)
    tensor, seen = torch.randn(50000), []
    before = sys.getrefcount(tensor), sys.getrefcount(off._session)
    with off:
        for stored in (True, False):
            output = save(seen, tensor, tensor.view(500, 100), tensor.view(torch.int32))
            if stored:
                settle(off)
            output.sum().backward()
            del output
            seen.clear()
    gc.collect()
    assert left_in(off) == (0, 0, 0)
    assert (sys.getrefcount(tensor), sys.getrefcount(off._session)) == before


def test_another_thread_uses_what_is_being_saved(store):
    """What holds the memory is detached after the offer. Until then no thread may be handed the
    tensor, which has the graph."""
    off = offload_all(store, mode="observe")
    save, use = off._session.save, off._session.use
    tensor = torch.randn(5000, requires_grad=True) * 1
    uses, used = threading.Event(), []

    def save_and_use():
        saved = save(tensor)
        uses.set()
        used.append(use(saved))

    second = threading.Thread(target=save_and_use)

    def slow(tensor):
        if not second.ident:
            second.start()
            assert uses.wait(60)
        return torch.Tensor.detach(tensor)

    with hooks_call(detach=slow), off:
        first = save(tensor)
        second.join()
        for handed in (use(first), *used):
            assert not handed.requires_grad and torch.equal(handed, tensor)
        assert len(used) == 1 and off.stats().tensors_deduplicated == 1
        del first, handed
        used.clear()
    gc.collect()
    assert left_in(off) == (0, 0, 0)


def test_memory_is_let_go_that_was_written_before_it_was_detached(store):
    off = offload_all(store)
    tensor = torch.randn(50000, requires_grad=True) * 1
    storage = WeakStorage(torch_compat.storage_of(tensor))

    def slow(tensor):
        settle(off)
        return torch.Tensor.detach(tensor)

    with hooks_call(detach=slow), off:
        saved, expected = off._session.save(tensor), tensor.detach().clone()
        del tensor
        assert storage.expired()
        assert torch.equal(off._session.use(saved), expected)
        del saved
    gc.collect()
    assert left_in(off) == (0, 0, 0)


def drop(tensors):
    while tensors:
        tensors.pop()


def test_the_last_lease_ends_in_another_thread(formatted):
    """It closes the cache and its store, which were to be closed before."""
    seen = []
    with spillway.Store(formatted) as store:
        off = offload_all(store)
        with off:
            output = save(seen, *(torch.full((20000,), float(i)) for i in range(20)))
            settle(off)
            output.sum().backward()
        del output, off
    lent = list(seen.pop())
    assert all(bool((tensor == i).all()) for i, tensor in enumerate(lent))
    parts = [lent[part::4] for part in range(4)]
    lent.clear()
    in_threads(*(functools.partial(drop, part) for part in parts))
    given_back(formatted)
