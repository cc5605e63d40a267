# SPDX-License-Identifier: MIT
# tests/python/test_hooks.py - the hooks in C and those in Python: which are taken, and that what they keep goes away
import gc
import os
import shutil
import subprocess
import sys
import threading
from ctypes import c_void_p, cast

import pytest
import torch

import spillway
import spillway.torch
from spillway import _torch_compat
from conftest import ROOT
from offloading import Nothing, Save, left_in, settle

WHICH = "import logging; logging.basicConfig(level='INFO'); import spillway.torch; print(spillway.torch._hooks is None)"
in_c = pytest.mark.skipif(spillway.torch._hooks is None, reason="the hooks in C are not built: no headers of this Python")


def which(library, **environment):
    return subprocess.run([sys.executable, "-c", WHICH], capture_output=True, text=True,
                          env={**os.environ, "SPILLWAY_LIBRARY": str(library), "PYTHONPATH": str(ROOT / "python"), **environment})


@in_c
def test_those_in_c_are_taken():
    done = which(os.environ["SPILLWAY_LIBRARY"], SPILLWAY_HOOKS="c")
    assert done.stdout == "False\n", done.stderr


def test_those_in_python_on_demand():
    done = which(os.environ["SPILLWAY_LIBRARY"], SPILLWAY_HOOKS="python")
    assert done.stdout == "True\n", done.stderr


def test_a_word_that_is_none():
    done = which(os.environ["SPILLWAY_LIBRARY"], SPILLWAY_HOOKS="fortran")
    assert done.returncode != 0 and "SPILLWAY_HOOKS=fortran" in done.stderr


def test_where_they_are_not_built_the_log_says_so(folder):
    """And whoever demands them is refused."""
    library = folder / "libspillway.so"
    shutil.copy(os.environ["SPILLWAY_LIBRARY"], library)
    done = which(library, SPILLWAY_HOOKS="")
    assert done.stdout == "True\n", done.stderr
    assert "those in Python, which take longer" in done.stderr
    refused = which(library, SPILLWAY_HOOKS="c")
    assert refused.returncode != 0 and "the hooks in C cannot be used" in refused.stderr


@in_c
def test_of_another_version_they_are_not_taken(folder):
    module = spillway.torch._hooks.__file__
    library = folder / "libspillway.so"
    shutil.copy(os.environ["SPILLWAY_LIBRARY"], library)
    with open(module, "rb") as file:
        text = file.read()
    version = spillway._library.VERSION.encode() + b"\0"
    assert version in text
    (folder / os.path.basename(module)).write_bytes(text.replace(version, b"9" * (len(version) - 1) + b"\0"))
    done = which(library, SPILLWAY_HOOKS="")
    assert done.stdout == "True\n", done.stderr
    assert "this package is version" in done.stderr


@in_c
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


def connect(detach):
    """Tell the hooks what they call, and this for detach()."""
    native, names = spillway._native, ("plain_with", "flagged", "on", "raise_modified", "NOTHING", "COUNTED")
    helpers = {name.lower(): getattr(spillway.torch, "_" + name) for name in names}
    things = native._things({**helpers, "plain": helpers.pop("plain_with")})
    addresses = tuple(cast(getattr(spillway._library.fast, name), c_void_p).value for name in native._FUNCTIONS)
    spillway.torch._hooks.connect(addresses, {**things, "detach": detach}, native._types())


@in_c
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

    connect(slow)
    try:
        with off:
            first = save(tensor)
            second.join()
            for handed in (use(first), *used):
                assert not handed.requires_grad and torch.equal(handed, tensor)
            assert len(used) == 1 and off.stats().tensors_deduplicated == 1
            del first, handed
            used.clear()
    finally:
        connect(torch.Tensor.detach)
    gc.collect()
    assert left_in(off) == (0, 0, 0)


@in_c
def test_memory_is_let_go_that_was_written_before_it_was_detached(store):
    off = spillway.torch.offload(Nothing(), store, min_bytes=1, mode="spill")
    tensor = torch.randn(50000, requires_grad=True) * 1
    storage = _torch_compat.WeakStorage(_torch_compat.storage_of(tensor))

    def slow(tensor):
        settle(off)
        return torch.Tensor.detach(tensor)

    connect(slow)
    try:
        with off:
            saved, expected = off._session.save(tensor), tensor.detach().clone()
            del tensor
            assert storage.expired()
            assert torch.equal(off._session.use(saved), expected)
            del saved
    finally:
        connect(torch.Tensor.detach)
    gc.collect()
    assert left_in(off) == (0, 0, 0)


def drop(tensors):
    while tensors:
        tensors.pop()


@in_c
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
