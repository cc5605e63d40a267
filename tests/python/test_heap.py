# SPDX-License-Identifier: MIT
# tests/python/test_heap.py - what has left for the drives leaves the process
import ctypes
import json
import sys

import pytest
import torch

import spillway.torch
from conftest import run_python
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
    off = spillway.torch.offload(model, sys.argv[1:], mode="spill")
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
print(json.dumps(told))
"""


def rise(*arguments, **env):
    done = run_python("-c", TRAIN, *arguments, env=env.items() if env else ())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.skipif(heap.why_not() is not None, reason=f"{heap.why_not()}")
def test_memory_of_the_process_falls_with_that_of_activations(formatted):
    plain, _ = rise()
    ours, report = rise(*formatted)
    fall = ours["kept"] - ours["activations"]
    assert fall > 100 * MIB
    assert plain["rise"] - ours["rise"] >= 0.7 * fall, (plain, ours)
    run = json.loads(report)["run"]
    assert run["resident_bytes_max"] == ours["peak"] > 0
    assert run["resident_plain_bytes"] > ours["peak"] + fall // 2 and run["heap"] == ""


def is_mapped(length):
    """Whether glibc has mapped a block of that length alone: it marks that before the block."""
    libc = ctypes.CDLL("libc.so.6")
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    block = libc.malloc(length)
    mapped = ctypes.cast(block - 8, ctypes.POINTER(ctypes.c_size_t))[0] & 2
    libc.free(block)
    return bool(mapped)


SCRIPT = """
import sys
sys.path[:0] = sys.argv[1:2]
from test_heap import is_mapped
from spillway._offload.heap import MAPPED_MAX, Mapped
one, other = Mapped(), Mapped()
seen = [is_mapped(8 << 20)]
one.end(); one.end()
seen.append(is_mapped(8 << 20))
other.end()
seen += [is_mapped(8 << 20), is_mapped(MAPPED_MAX + 4096)]
print(one.why_not, seen)
"""


@pytest.mark.skipif(heap.why_not() is not None, reason=f"{heap.why_not()}")
def test_thresholds_are_set_while_one_needs_them():
    done = run_python("-c", SCRIPT, __file__.rpartition("/")[0])
    assert done.stdout.split("\n")[0] == "None [True, True, False, True]", done.stderr


@pytest.mark.parametrize("name, value, words", [
    ("MALLOC_TRIM_THRESHOLD_", "1000000", "MALLOC_TRIM_THRESHOLD_ is set"),
    ("GLIBC_TUNABLES", "glibc.malloc.mmap_max=9:glibc.malloc.check=0",
     "GLIBC_TUNABLES sets glibc.malloc.mmap_max"),
])
def test_what_a_user_has_set_stays(name, value, words):
    script = "from spillway._offload.heap import Mapped; print(Mapped().why_not)"
    done = run_python("-c", script, env=[(name, value)])
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
