# SPDX-License-Identifier: MIT
# tests/device/fixed.py - what a late device must show whatever the seed: memory, and what is left
"""Prints "ok NAME" or "FAILED NAME: words" for each case."""

import functools
import json
import logging
import sys
import tempfile
import time

import torch
from torch import nn

import spillway
import spillway.torch
from spillway import SpillwayError, _on_device

from machine import machine
from seeds import same
from troubles import Troubled

LAYERS, WIDTH, ROWS = 12, 128, 512
NEVER, HALF, AT_ONCE = (0, 0, False), (0.3, 0.25, False), (0, 1, True)  # how late


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def model_of():
    torch.manual_seed(1)
    return nn.Sequential(*(Layer() for _ in range(LAYERS))).to(machine.kind)


def peak_of(model, off, step, rows=ROWS):
    """Bytes above what was there before the step; the bits of the gradients."""
    batch = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(step)).to(machine.kind)
    before = machine.memory()[0]
    machine.begin_peak()
    if off is None:
        model(batch).pow(2).mean().backward()
    else:
        with off:
            model(batch).pow(2).mean().backward()
    peak = machine.peak() - before
    gradients = [parameter.grad.cpu() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = None
    return peak, gradients


def offload(model, store, **options):
    table = Troubled(machine.table())
    _on_device._table = lambda kind: table
    off = spillway.torch.offload(model, store, mode="spill", min_bytes=4096, **options)
    off.table = table
    return off


def memory_is_bounded(store, how_late):
    """However far the host is ahead."""
    machine.be_late(1, *how_late)
    model = model_of()
    plain = [peak_of(model, None, step) for step in range(4)]
    reserved = machine.reserved()
    machine.be_late(1, *how_late)
    off = offload(model, store)
    spilled = [peak_of(model, off, step) for step in range(4)]
    # Weight gradients are part of both peaks: what is saved is what differs.
    gradients = sum(parameter.nbytes for parameter in model.parameters())
    share = max(peak - gradients for peak, _ in spilled) / (plain[-1][0] - gradients)
    scope = ROWS * WIDTH * 4 * 12  # norm, up, gelu and down save so much
    assert all(same(a[1], b[1]) for a, b in zip(spilled, plain)), "gradients differ"
    assert share < 0.3, f"{share:.2f} of what is saved without spillway"
    assert machine.reserved() <= reserved + scope, "reserved memory has grown"
    assert off.stats().bytes_copied > 0 and (
        how_late is not NEVER or off.stats().copies_ordered > 0
    )
    off.close()


def settled(off):
    """The memory when it stays the same: PyTorch's threads drop a failed graph a little later, and
    what was given up is let go with the next call."""
    before, now, deadline = None, machine.memory(), time.monotonic() + 10
    while off.stats().entries or now != before:
        assert time.monotonic() < deadline, off.stats()
        before, now = now, machine.memory()
    return now


def steps_leave_nothing(store):
    """Neither 200 of them nor copies that fail."""
    machine.be_late(2, *HALF)
    model = nn.Sequential(Layer(), Layer()).to(machine.kind)
    off = offload(model, store)
    for step in range(200):
        if step % 10 == 9:
            off.table.until_failure = step % 7
        try:
            peak_of(model, off, step, 32)
        except RuntimeError as error:
            assert "by order" in str(error), error
            for parameter in model.parameters():
                parameter.grad = None
            del error
        off.table.until_failure = None
        if step == 20:
            before = settled(off)
    assert settled(off) == before, f"{machine.memory()}, was {before}"
    stats = off.stats()
    assert stats.entries == 0 and stats.device_staging_bytes == 0, stats
    assert store.stats().objects == 0
    off.close()


def captured_graphs_keep_all(store):
    machine.be_late(3, *HALF)
    model = model_of()
    off = offload(model, store)
    with off:
        batch = torch.randn(ROWS, WIDTH).to(machine.kind)
        outside = model(batch).pow(2).mean()
        copies = off.stats().copies
        off.table.table.captures = True
        model(batch).pow(2).mean().backward()
        assert off.stats().copies == copies
        try:
            outside.backward()
        except (RuntimeError, SpillwayError) as error:
            assert "while a graph is captured" in str(error), error
        else:
            raise AssertionError("a graph waits for events from outside")
        off.table.table.captures = False
    del outside
    off.close()


def a_model_that_moves_later(store):
    """offload() saw it on the host."""
    machine.be_late(4, *HALF)
    model = nn.Sequential(Layer(), Layer())
    off = offload(model, store)
    model.to(machine.kind)
    peak_of(model, off, 0)
    assert off.device_stats() is not None and off.stats().bytes_copied > 0
    off.close()


def real_graphs_keep_all(store):
    """Captured with what they save; replayed, they compute what the model computes."""
    model = nn.Sequential(Layer(), Layer()).to(machine.kind)
    off = offload(model, store)
    batch = torch.randn(ROWS, WIDTH).to(machine.kind)
    _, expected = peak_of(model, None, 0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), off:  # as PyTorch asks for before a capture
        model(batch).pow(2).mean().backward()
    torch.cuda.current_stream().wait_stream(side)
    for parameter in model.parameters():
        parameter.grad = None
    copies = off.stats().copies
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), off:
        model(batch).pow(2).mean().backward()
    assert off.stats().copies == copies, "a captured tensor was copied"
    batch.copy_(torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0)))
    graph.replay()
    assert same([parameter.grad.cpu() for parameter in model.parameters()], expected)
    off.close()


def copies_have_streams_of_their_own(store):
    """As the profiler saw them: none on a stream that computes, all from and to pinned memory."""
    model = model_of()
    off = offload(model, store)
    peak_of(model, off, 0)
    activity = torch.profiler.ProfilerActivity
    batch = torch.randn(ROWS, WIDTH).to(machine.kind)
    torch.accelerator.synchronize()
    with torch.profiler.profile(activities=[activity.CUDA]) as profile:
        with off:
            model(batch).pow(2).mean().backward()
        torch.accelerator.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        with open(file.name) as trace:
            events = [each for each in json.load(trace)["traceEvents"] if "args" in each]
    computing = {each["args"]["stream"] for each in events if each.get("cat") == "kernel"}
    copies = [each for each in events if each.get("cat") == "gpu_memcpy"]
    assert any("DtoH" in each["name"] for each in copies), "nothing was copied out"
    assert any("HtoD" in each["name"] for each in copies), "nothing was copied in"
    for each in copies:
        assert "Pageable" not in each["name"], each["name"]
        assert each["args"]["stream"] not in computing, "a copy on a stream that computes"
    off.close()


CASES = {
    "200 steps, some of whose copies fail, leave nothing": steps_leave_nothing,
    "a model that moves after offload()": a_model_that_moves_later,
}
if machine.kind == "late":
    CASES.update(
        {
            f"memory is bounded: {words}": functools.partial(memory_is_bounded, how_late=how_late)
            for words, how_late in {
                "the host is ahead by the whole step": NEVER,
                "the host is ahead by some of it": HALF,
                "the device keeps up": AT_ONCE,
            }.items()
        }
    )
    CASES["captured graphs keep all, and wait for nothing"] = captured_graphs_keep_all
else:
    CASES["memory is bounded"] = functools.partial(memory_is_bounded, how_late=AT_ONCE)
if machine.kind == "cuda":
    CASES["captured graphs keep all"] = real_graphs_keep_all
    CASES["copies have streams of their own"] = copies_have_streams_of_their_own


def main():
    logging.getLogger("spillway").setLevel(logging.CRITICAL)
    spillway.format_store(sys.argv[1:])
    failed = False
    with spillway.Store(sys.argv[1:], arena_bytes=64 << 20) as store:
        for name, case in CASES.items():
            try:
                case(store)
                print("ok", name, flush=True)
            except Exception as error:
                failed = True
                print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)
    print("done")
    return failed


if __name__ == "__main__":
    sys.exit(main())
