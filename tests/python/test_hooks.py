# SPDX-License-Identifier: MIT
# tests/python/test_hooks.py - the hooks on saved tensors: which are taken, and that what is kept goes away
import gc
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import spillway
import spillway.torch
from conftest import ROOT
from offloading import Nothing, Save, hooks_call, left_in, settle
from spillway import _native, _tensors, _torch_compat


def imported(program="import spillway.torch", **environment):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "python"), **environment})


def test_it_may_be_imported_in_inference():
    done = imported("import torch\nwith torch.inference_mode():\n    import spillway.torch\nprint(spillway._tensors.COUNTED)")
    assert done.stdout.split() == [str(_tensors.COUNTED)], done.stderr


def test_where_they_are_not_built_it_says_how(folder):
    library = shutil.copy(os.environ["SPILLWAY_LIBRARY"], folder / "libspillway.so")
    done = imported(SPILLWAY_LIBRARY=str(library))
    assert done.returncode != 0 and f"nor as {folder}/_hooks.abi3.so" in done.stderr and "python3-dev" in done.stderr
    assert imported("import spillway", SPILLWAY_LIBRARY=str(library)).returncode == 0  # which needs none


def replace_in(path, old, new):
    text = path.read_bytes()
    assert old + b"\0" in text and len(old) == len(new)
    path.write_bytes(text.replace(old + b"\0", new + b"\0"))


def test_of_another_version_they_are_not_taken(folder):
    library = shutil.copy(os.environ["SPILLWAY_LIBRARY"], folder / "libspillway.so")
    version = spillway._library.VERSION.encode()
    replace_in(Path(shutil.copy(_native.hooks.__file__, folder)), version, b"9" * len(version))
    done = imported(SPILLWAY_LIBRARY=str(library))
    assert done.returncode != 0 and "this package is version" in done.stderr


def test_none_is_made_but_by_the_hooks():
    """One that nobody filled in would end the process."""
    for name in ("Saved", "Kept"):
        with pytest.raises(TypeError, match="cannot create"):
            getattr(_native.hooks, name)()


def test_a_tensor_is_given_other_memory_while_it_is_saved(store):
    """Making an object collects garbage, which may do anything: here when the strides are made."""
    off = spillway.torch.offload(Nothing(), store, min_bytes=1, mode="spill")
    tensor, other = torch.zeros(50000) * 1, torch.ones(50000)

    def stride(asked):
        strides = torch.Tensor.stride(asked)
        asked.set_(other)
        return strides

    with hooks_call(stride=stride), off:
        saved = off._session.save(tensor)
        assert torch.equal(_native.hooks.unpack(saved), other)
        assert not isinstance(saved, _native.hooks.Saved)
        del saved
    gc.collect()
    assert left_in(off) == (0, 0, 0)


# ---- What is kept goes away ----


def test_a_saved_tensor_refers_to_nothing_that_stays(store):
    """Neither the tensor nor its session is held by what was saved and let go."""
    off = spillway.torch.offload(Nothing(), store, min_bytes=1, mode="spill")
    tensor, seen = torch.randn(50000), []
    before = sys.getrefcount(tensor), sys.getrefcount(off._session)
    with off:
        for stored in (True, False):
            output = Save.apply(torch.ones(1, requires_grad=True), seen, tensor, tensor.view(500, 100), tensor.view(torch.int32))
            if stored:
                settle(off)
            output.sum().backward()
            del output
            seen.clear()
    gc.collect()
    assert left_in(off) == (0, 0, 0)
    assert (sys.getrefcount(tensor), sys.getrefcount(off._session)) == before


def test_another_thread_uses_what_is_being_saved(store):
    """What holds the memory is detached after the offer. Until then nobody may be handed the tensor, which has the graph."""
    off = spillway.torch.offload(Nothing(), store, min_bytes=1, mode="observe")
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
    off = spillway.torch.offload(Nothing(), store, min_bytes=1, mode="spill")
    tensor = torch.randn(50000, requires_grad=True) * 1
    storage = _torch_compat.WeakStorage(_torch_compat.storage_of(tensor))

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


def test_the_last_lease_ends_in_another_thread(drives):
    """It closes the cache and its store, which were to be closed before."""
    spillway.format_store(drives)
    seen = []
    with spillway.Store(drives) as store:
        off = spillway.torch.offload(Nothing(), store, min_bytes=1, mode="spill")
        with off:
            output = Save.apply(torch.ones(1, requires_grad=True), seen, *(torch.full((20000,), float(i)) for i in range(20)))
            settle(off)
            output.sum().backward()
        del output, off
    lent = list(seen.pop())
    assert all(bool((tensor == i).all()) for i, tensor in enumerate(lent))
    threads = [threading.Thread(target=drop, args=(lent[part::4],)) for part in range(4)]
    lent.clear()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with spillway.Store(drives):  # the drives were given back
        pass
