# SPDX-License-Identifier: MIT
# tests/python/test_heap.py - what has left for the drives leaves the process
import ctypes
import json
import os
import statistics
import subprocess
import sys

import pytest
import torch

import spillway.torch
from conftest import BUILD, run_python
from offloading import Layers, offload_all
from spillway._offload import heap

MIB = 1 << 20

# Each block saves two tensors of 4 MiB, and its backward pass leaves a gradient of 1 MiB, in
# between of which the heap would have holes.
TRAIN = """
import json, sys, torch
from torch import nn
import spillway.torch
from spillway._offload import heap
torch.manual_seed(1)
torch.set_num_threads(1)
model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(24)))
off, x = None, torch.randn(2048, 512)
if len(sys.argv) > 1:
    # Compute waits for the drives, however slow they are. Of a small arena about as much is
    # resident in each run.
    store = spillway.Store(sys.argv[1:], arena_bytes="16MiB")
    off = spillway.torch.offload(model, store, mode="budget", budget_bytes="48MiB")
before = heap.Resident().peak_bytes
for step in range(5):
    if off is None:
        model(x).pow(2).mean().backward()
    else:
        with off:
            model(x).pow(2).mean().backward()
    model.zero_grad()
told = {"rise": heap._status_bytes("VmHWM") - before}
if off is not None:
    off.report(json="/dev/stderr")
    told["activations"] = off.activation_peak_bytes
    told["kept"] = max(point[2] for point in off._session.cache.profile())
    told["peak"] = off.resident_peak_bytes
    off.close()
    store.close()
print(json.dumps(told))
"""


def rise(*arguments, **env):
    done = run_python("-c", TRAIN, *arguments, env=env.items() if env else ())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.skipif(heap.why_not() is not None, reason=f"{heap.why_not()}")
def test_memory_of_the_process_falls_with_that_of_activations(formatted):
    # glibc's holes differ from run to run: by 9 of 250 MiB, in plain training alone.
    plain = statistics.median(rise()[0]["rise"] for _ in range(3))
    ours, report = rise(*formatted)
    fall = ours["kept"] - ours["activations"]
    assert fall > 100 * MIB
    assert plain - ours["rise"] >= 0.7 * fall, (plain, ours)
    run = json.loads(report[report.index("{"):])["run"]  # after what is logged
    assert run["resident_bytes_max"] == ours["peak"] > 0
    assert run["resident_plain_bytes"] > ours["peak"] + fall // 2 and run["heap"] == ""


# Each run is a child: RSS, and what glibc knows of its heap, begin as its parent's.
GROW = """
import json, os, sys, torch
from torch import nn
import spillway.torch
from spillway._offload import heap

MODELS = {  # layers, their width, rows: what each saves twice is rows * width floats
    "few large": (8, 512, 2048), "many": (120, 128, 1024), "many small": (250, 128, 256),
    "nothing": (1, 1024, 8)}

def train(model, x, mode):
    heaps = heap.Mapped(64 << 10) if mode in ("plain", "observe") else None  # no holes there
    before, off, store = heap._status_bytes("VmRSS"), None, None
    if mode != "plain":
        if mode != "observe":
            store = spillway.Store(sys.argv[2:], arena_bytes=ARENA)
        options = {"budget_bytes": "8MiB"} if mode == "budget" else {}
        off = spillway.torch.offload(model, store, mode=mode, **options)
    for step in range(4):
        if off is None:
            model(x).pow(2).mean().backward()
        else:
            with off:
                model(x).pow(2).mean().backward()
        model.zero_grad()
    rise = heap._status_bytes("VmHWM") - before
    if off is not None:
        off.close()
    if store is not None:
        store.close()
    return rise

torch.manual_seed(1)
torch.set_num_threads(1)
torch.set_flush_denormal(True)  # of this thread: gradients vanish in 120 layers, and take 50 times
count, width, rows = MODELS[sys.argv[1]]
model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(count)))
x = torch.randn(rows, width)
for mode in "plain", "observe", "spill", "budget", "fastest":
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, str(train(model, x, mode)).encode())
        os._exit(0)
    os.close(write)
    print(mode, int(os.read(read, 99) or 0), os.wait()[1])
"""
ARENA = 32 * MIB
TABLES = 24 * MIB  # of store, cache and rings


@pytest.mark.skipif(heap.why_not() is not None, reason=f"{heap.why_not()}")
@pytest.mark.parametrize("model", ["few large", "many", "many small", "nothing"])
def test_memory_of_the_process_rises_by_no_more_than_the_store_has(formatted, model):
    done = run_python("-c", f"ARENA = {ARENA}\n{GROW}", model, *formatted,
                      env={"OPENBLAS_NUM_THREADS": "1"}.items())
    assert done.returncode == 0, done.stderr
    rises = {}
    for mode, rise, status in (line.split() for line in done.stdout.splitlines()):
        assert status == "0", done.stderr
        rises[mode] = int(rise)
    plain = rises.pop("plain")
    assert plain > 0 and len(rises) == 4
    for mode, rise in rises.items():
        # What is spilled uses the arena, as much as drives that others use as well make it.
        most = 8 * MIB if mode == "observe" else ARENA + (TABLES if model != "nothing" else 0)
        assert rise - plain <= most, (mode, plain // MIB, rise // MIB)


def is_mapped(length):
    """Whether glibc maps blocks of that length alone, once its heap has no hole for them: it marks
    that before the block."""
    libc = ctypes.CDLL("libc.so.6")
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    blocks, mapped = [], 0
    while not mapped and len(blocks) < 100:
        blocks.append(libc.malloc(length))
        mapped = ctypes.cast(blocks[-1] - 8, ctypes.POINTER(ctypes.c_size_t))[0] & 2
    for block in blocks:
        libc.free(block)
    return bool(mapped)


SCRIPT = """
import sys
sys.path[:0] = sys.argv[1:2]
from test_heap import is_mapped
from spillway._offload.heap import MAPPED_MAX, Mapped
one, other = Mapped(64 << 10), Mapped(1 << 30)
seen = [is_mapped(8 << 20), is_mapped(256 << 10)]
one.end(); one.end()
seen += [is_mapped(8 << 20), is_mapped(256 << 10)]
other.end()
seen += [is_mapped(8 << 20), is_mapped(MAPPED_MAX + 4096)]
print(one.why_not, seen)
"""


@pytest.mark.skipif(heap.why_not() is not None, reason=f"{heap.why_not()}")
def test_thresholds_are_set_while_one_needs_them():
    done = run_python("-c", SCRIPT, __file__.rpartition("/")[0])
    assert done.stdout.split("\n")[0] == "None [True, True, True, False, False, True]", done.stderr


@pytest.mark.parametrize("name, value, words", [
    ("MALLOC_TRIM_THRESHOLD_", "1000000", "MALLOC_TRIM_THRESHOLD_ is set"),
    ("GLIBC_TUNABLES", "glibc.malloc.mmap_max=9:glibc.malloc.check=0",
     "GLIBC_TUNABLES sets glibc.malloc.mmap_max"),
])
def test_what_a_user_has_set_stays(name, value, words):
    script = "from spillway._offload.heap import Mapped; print(Mapped(1).why_not)"
    done = run_python("-c", script, env=[(name, value)])
    assert done.stdout.strip() == words, done.stderr


# Of the file alone, for an interpreter with no memory but glibc's.
ASK = """
import runpy, sys
print(runpy.run_path(sys.argv[1])["why_not"]())
"""


@pytest.mark.parametrize("preloaded, words", [
    ("", "None"), (str(BUILD / "libspillway_malloc.so"), "another allocator is preloaded")])
def test_allocators_are_told_apart_by_what_serves_the_process(preloaded, words):
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run([sys.executable, "-c", ASK, heap.__file__], text=True,
                          capture_output=True, env={**env, "LD_PRELOAD": preloaded})
    assert done.stdout.strip() == words, done.stderr


def test_observing_sets_nothing_and_a_report_says_why_the_heap_stays(monkeypatch, store, capsys):
    monkeypatch.setattr(heap, "why_not", lambda: "for some reason")
    observing = spillway.torch.offload(Layers(), None, mode="observe")
    assert observing._session.heap is None
    observing.close()
    off = offload_all(store, Layers())
    with off:
        off._model(torch.randn(8, 100)).sum().backward()
    off.report(sys.stdout)
    told = capsys.readouterr().out
    assert "freed memory may stay in it" in told and "for some reason" in told
    assert "memory of the process (RSS), peak" in told
    off.close()
