# SPDX-License-Identifier: MIT
# tests/python/test_hooks.py - the hooks in C and those in Python, and what reads tensors: what is taken, and that what is kept goes away
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

sys.path.insert(0, str(ROOT / "python"))
import torch_headers  # noqa: E402

WHICH = """import logging; logging.basicConfig(level='INFO'); import spillway.torch
in_use = 'python' if spillway.torch._hooks is None else 'direct' if spillway.torch._hooks.reads() else 'c'
assert in_use == spillway._native.in_use
print(in_use)"""
reader = spillway._native.reader
reads = pytest.mark.skipif(reader is None, reason="what reads tensors is not built: no headers of this PyTorch")
in_c = pytest.mark.skipif(spillway.torch._hooks is None, reason="the hooks in C are not built: no headers of this Python")


def which(library, **environment):
    return subprocess.run([sys.executable, "-c", WHICH], capture_output=True, text=True,
                          env={**os.environ, "SPILLWAY_LIBRARY": str(library), "PYTHONPATH": str(ROOT / "python"), **environment})


def built_without(folder, *names):
    """A library beside which there is what is built here but for this."""
    for path in [spillway._library.path, spillway.torch._hooks.__file__, *([] if reader is None else [reader.__file__])]:
        if not os.path.basename(path).startswith(names):
            shutil.copy(path, folder)
    return folder / os.path.basename(spillway._library.path)


@pytest.mark.parametrize("name", ["direct", "c", "python"])
def test_what_is_demanded_is_taken(name):
    if name != "python" and spillway.torch._hooks is None or name == "direct" and reader is None:
        pytest.skip("not built: no headers of this Python or this PyTorch")
    done = which(os.environ["SPILLWAY_LIBRARY"], SPILLWAY_HOOKS=name)
    assert done.stdout == name + "\n", done.stderr


@in_c
def test_where_there_are_headers_tensors_are_read():
    """They fit every PyTorch that is tested: else this is where it shows."""
    if torch_headers.found() is None:
        pytest.skip("no headers of this PyTorch (libtorch-dev)")
    assert reader is not None
    assert which(os.environ["SPILLWAY_LIBRARY"], SPILLWAY_HOOKS="").stdout == "direct\n"


def test_it_may_be_imported_in_inference():
    program = "import torch\nwith torch.inference_mode():\n    import spillway.torch\nprint(spillway._native.in_use, spillway.torch._COUNTED)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    assert done.stdout.split() == [spillway._native.in_use, str(spillway.torch._COUNTED)], done.stderr


def test_a_word_that_is_none():
    done = which(os.environ["SPILLWAY_LIBRARY"], SPILLWAY_HOOKS="fortran")
    assert done.returncode != 0 and "SPILLWAY_HOOKS=fortran" in done.stderr


def test_where_they_are_not_built_the_log_says_so(folder):
    """And whoever demands them is refused."""
    library = folder / "libspillway.so"
    shutil.copy(os.environ["SPILLWAY_LIBRARY"], library)
    done = which(library, SPILLWAY_HOOKS="")
    assert done.stdout == "python\n", done.stderr
    assert "those in Python, which take longer" in done.stderr
    refused = which(library, SPILLWAY_HOOKS="c")
    assert refused.returncode != 0 and "the hooks in C cannot be used" in refused.stderr


@in_c
def test_where_tensors_cannot_be_read_the_log_says_so(folder):
    library = built_without(folder, "_reader")
    done = which(library, SPILLWAY_HOOKS="")
    assert done.stdout == "c\n", done.stderr
    assert "attribute by attribute, which takes longer" in done.stderr
    refused = which(library, SPILLWAY_HOOKS="direct")
    assert refused.returncode != 0 and "tensors cannot be read" in refused.stderr


def replace_in(path, old, new):
    text = path.read_bytes()
    assert old + b"\0" in text and len(old) == len(new)
    path.write_bytes(text.replace(old + b"\0", new + b"\0"))


@in_c
def test_of_another_version_they_are_not_taken(folder):
    library = built_without(folder)
    version = spillway._library.VERSION.encode()
    replace_in(folder / os.path.basename(spillway.torch._hooks.__file__), version, b"9" * len(version))
    done = which(library, SPILLWAY_HOOKS="")
    assert done.stdout == "python\n", done.stderr
    assert "this package is version" in done.stderr


@reads
@pytest.mark.parametrize("of", ["spillway", "torch"])
def test_what_reads_tensors_is_of_this_version_and_of_this_pytorch(folder, of):
    library = built_without(folder)
    version = (spillway._library.VERSION if of == "spillway" else torch.__version__).encode()
    replace_in(folder / os.path.basename(reader.__file__), version, b"9" * len(version))
    done = which(library, SPILLWAY_HOOKS="")
    assert done.stdout == "c\n", done.stderr
    assert ("this package is version" if of == "spillway" else f"this is {torch.__version__}") in done.stderr


# ---- What reads tensors ----


class Misreads:
    """Reads as the reader, one thing otherwise."""

    def __init__(self, wrong):
        self.wrong = wrong

    def look(self, tensor):
        seen = reader.look(tensor)
        if seen is None:
            return reader.look(torch.zeros(1)) if self.wrong == "takes all" else None
        if isinstance(self.wrong, int):
            value = seen[self.wrong]
            other = value + (1,) if isinstance(value, tuple) else not value if isinstance(value, bool) else value + 1
            seen = (*seen[:self.wrong], other, *seen[self.wrong + 1:])
        return (*seen[:7], 3, *seen[8:]) if self.wrong == "one type" else seen

    def detached(self, tensor):
        if self.wrong == "counts alone":
            return tensor.data
        return tensor.view(-1) if self.wrong == "keeps the graph" else reader.detached(tensor)

    def lent(self, tensor, counter):
        if self.wrong == "copies":
            tensor = tensor.clone()
        lent = reader.lent(tensor, tensor if self.wrong == "counts with its memory" else counter)
        return lent.contiguous() if self.wrong == "strides of its own" else lent


@reads
@pytest.mark.parametrize("wrong", [*(number for number in range(12) if number != 7), "takes all", "one type", "counts alone",
                                   "keeps the graph", "copies", "counts with its memory", "strides of its own"])
def test_what_misreads_tensors_is_not_taken(wrong):
    spillway._native._check_reading(Misreads(None))
    with pytest.raises(ImportError):
        spillway._native._check_reading(Misreads(wrong))


@reads
def test_what_is_asked_for_only_when_it_is_shared_is_not_read():
    """Asking for the address takes a copy on write."""
    if not hasattr(torch, "_lazy_clone"):
        pytest.skip("this PyTorch has no copy on write: 2.2 has")
    tensor = torch.ones(4)
    clone = torch._lazy_clone(tensor)
    assert reader.look(tensor) is None and reader.look(clone) is None
    clone.add_(1)
    assert reader.look(clone) is not None


class Garbage:
    """Goes when garbage is collected, and does something then."""

    def __init__(self, last_act):
        self.itself, self.last_act = self, last_act

    def __del__(self):
        self.last_act()


@reads
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="garbage is collected between two instructions of Python only")
def test_a_tensor_is_given_other_memory_while_it_is_saved(store):
    """Making an object collects garbage, which may do anything."""
    off = spillway.torch.offload(Nothing(), store, min_bytes=1, mode="spill")
    tensor, other, acts = torch.zeros(50000) * 1, torch.ones(50000), []
    save = off._session.save
    with off:
        gc.collect()
        Garbage(lambda: acts.append(tensor.set_(other)))
        thresholds = gc.get_threshold()
        gc.set_threshold(1)
        try:
            saved = save(tensor)
        finally:
            gc.set_threshold(*thresholds)
        assert acts and torch.equal(spillway.torch._hooks.unpack(saved), other)
        assert not isinstance(saved, spillway.torch._hooks.Saved)
        del saved
        acts.clear()
    gc.collect()
    assert left_in(off) == (0, 0, 0)


# ---- What is kept goes away ----


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
    """Tell the hooks what they call, and this for detach(), which they do not call if they can read tensors."""
    native, names = spillway._native, ("plain_with", "flagged", "on", "raise_modified", "NOTHING", "COUNTED")
    helpers = {name.lower(): getattr(spillway.torch, "_" + name) for name in names}
    things = native._things({**helpers, "plain": helpers.pop("plain_with")})
    addresses = tuple(cast(getattr(spillway._library.fast, name), c_void_p).value for name in native._FUNCTIONS)
    spillway.torch._hooks.connect(addresses, {**things, "detach": detach}, native._types())
    plainly = detach is torch.Tensor.detach
    spillway.torch._hooks.read_with(reader.calls if plainly and reader is not None else None)


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
