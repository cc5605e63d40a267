# SPDX-License-Identifier: MIT
# tests/device/fixed.py - what a late device must show whatever the seed: memory, and what is left
"""fixed.py PART PARTS DRIVE...: each PARTS-th case, from PART on. Prints "begin NAME", and then
"ok NAME" or "FAILED NAME: words"; after CASE_SECONDS what each thread does, and ends."""

import contextlib
import errno
import faulthandler
import functools
import json
import logging
import os
import sys
import tempfile
import time

import torch
from torch import nn

import spillway
import spillway.torch
from spillway import SpillwayError, plan
from spillway._gpu import accelerator
from spillway._recompute import operations

from machine import machine
from seeds import device_of, same
from troubles import Troubled
import parameters
import single
import updates

LAYERS, WIDTH, ROWS = 12, 128, 512
CASE_SECONDS = 300  # the longest takes 22 s on an idle core
NEVER, HALF, AT_ONCE = (0, 0, False), (0.3, 0.25, False), (0, 1, True)  # how late


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH),
                                         nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Dropping(Layer):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.25)


def model_of(layer=Layer):
    torch.manual_seed(1)
    return nn.Sequential(*(layer() for _ in range(LAYERS))).to(machine.kind)


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


def offload(model, store, mode="spill", **options):
    table = Troubled(machine.table())
    accelerator.table_of = lambda kind: table
    off = spillway.torch.offload(
        model, store, mode=mode, sizes=spillway.torch.Sizes(min_bytes=4096), **options)
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
    assert off.stats().bytes_copied > 0 and (how_late is not NEVER
                                             or off.stats().copies_ordered > 0)
    off.close()


def the_peak_is_the_plans(store, how_late, mode):
    """Within a scope, and a budget is kept, however far the host is ahead."""
    machine.be_late(9, *how_late)
    machine.tasks_take(100_000_000, 1)  # slower than any host: only this time shapes the plans
    model, scope = model_of(), ROWS * WIDTH * 4 * 12
    budget = LAYERS * scope // 2
    off = offload(model, store, mode, **({"budget_bytes": budget} if mode == "budget" else {}))
    peaks, plans = [], []
    for step in range(9):
        peak_of(model, off, step)
        stats = off.stats()
        peaks.append(stats.step_peak_bytes)  # of the step before
        plans.append(stats.plan_peak_bytes)  # of this one
    # No plan is made before the device's times are known: from the first one on it holds.
    first = next(step for step, peak in enumerate(plans) if peak > 0)
    assert first <= 5 and min(plans[first:]) > 0, plans
    for step in range(first, 8):
        assert peaks[step + 1] <= plans[step] + scope, (step, peaks, plans)
        if mode == "budget":
            assert peaks[step + 1] <= budget + scope and plans[step] <= budget, (peaks, plans)
    off.close()
    machine.tasks_take(0, 0)


def host_memory_holds_the_peak(store, how_late, drives):
    """As much as has room there is not written, and is back in time."""
    machine.be_late(9, *how_late)
    machine.tasks_take(100_000_000, 1)
    scope, steps = ROWS * WIDTH * 4 * 12, range(9)
    expected = [peak_of(model_of(), None, step)[1] for step in steps]
    for scopes in (8,) if drives else (16, 8):  # of the 10 that a step saves
        machine.be_late(9, *how_late)
        before, model = machine.memory(), model_of()
        off = offload(model, store if drives else None, "fastest", host_bytes=scopes * scope)
        got, peaks, plans = [], [], []
        for step in steps:
            got.append(peak_of(model, off, step)[1])
            peaks.append(off.stats().step_peak_bytes)  # of the step before
            plans.append(off.stats().plan_peak_bytes)
        machine.memory()  # when all has run
        stats = off.stats()
        assert all(map(same, got, expected)), "gradients differ"
        assert stats.host_bytes == 0 and stats.host_bytes_max <= stats.host_memory_bytes
        assert stats.steps_planned > 0 and stats.host_hits > 0
        written = 1.1 * max(0, 10 - scopes) * scope if drives else 0
        assert stats.plan_bytes_written <= written, stats.plan_bytes_written / scope
        assert plans[-1] <= (2 if drives or scopes == 16 else 3.5) * scope, plans[-1] / scope
        assert peaks[-1] <= plans[-2] + scope, f"{peaks[-1] / scope}, not {plans[-2] / scope}"
        assert drives or stats.bytes_spilled == 0
        off.close()
        del off, model
        assert machine.memory() == before, "memory is left, or pinned"
    machine.tasks_take(0, 0)


def recomputing(model, store, **options):
    """Gives up all that it may, from the second step on."""
    options = {"mode": "budget", "budget_bytes": 1 << 40, "recompute": "auto", **options}
    off = offload(model, store, **options)
    off._session.discards_all = True
    return off


def what_is_recomputed_is_the_same(store, how_late, drives):
    """And the memory is less by what was discarded."""
    machine.be_late(11, *how_late)
    model = model_of(Dropping)
    plain = [peak_of(model, None, step) for step in range(4)]
    machine.be_late(11, *how_late)
    model = model_of(Dropping)
    off = recomputing(model, store if drives else None)
    got = [peak_of(model, off, step) for step in range(4)]
    stats = off.stats()
    assert all(same(a[1], b[1]) for a, b in zip(got, plain)), "gradients differ"
    assert stats.scopes_again == 3 * LAYERS and off._recomputer.refused == {}, stats
    assert stats.bytes_given_up == stats.bytes_restored > 0, stats
    gradients = sum(parameter.nbytes for parameter in model.parameters())
    share = max(peak - gradients for peak, _ in got[1:]) / (plain[-1][0] - gradients)
    assert share < 0.35, f"{share:.2f} of what is saved without spillway"
    off.close()


def a_leaf_is_the_input_of_a_scope(store):
    """A batch that requires a gradient stays where it is, and its layer is recomputed from it."""
    def train(off_of):
        machine.be_late(16, *NEVER)
        model, seen = model_of(Dropping), []
        off = off_of(model)
        for step in range(6):
            batch = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step))
            batch = batch.to(machine.kind).requires_grad_()
            with off or contextlib.nullcontext():
                model(batch).pow(2).mean().backward()
            seen += [batch.grad.cpu(), *(each.grad.cpu() for each in model.parameters())]
            model.zero_grad()
        return seen, off

    plain, _ = train(lambda model: None)
    machine.tasks_take(100_000_000, 1)
    seen, off = train(lambda model: offload(
        model, None, "budget", budget_bytes=1 << 20, recompute=lambda name, module: True))
    assert same(seen, plain), "gradients differ"
    stats = off.stats()
    assert stats.plan_scopes_again == LAYERS and stats.scopes_again >= LAYERS, stats
    assert off._recomputer.refused == {}, off._recomputer.refused
    settled(off)
    off.close()
    machine.tasks_take(0, 0)


class Outside(nn.Module):
    """A layer whose parts take what its norms made, as transformers' are."""

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.act = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU()
            self.out = nn.Sequential(nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.25))

        def forward(self, x):
            return self.out(self.act(self.up(x)))

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.first, self.second = self.Part(), self.Part()

    def forward(self, x):
        x = x + self.first(self.norms[0](x))
        return x + self.second(self.norms[1](x))


def scopes_begin_with_what_operations_make_again(store, how_late):
    """A norm's result is discarded by itself, and is made again before the part that takes it."""
    steps = 6
    machine.be_late(17, *how_late)
    model = model_of(Outside)
    plain = [peak_of(model, None, step) for step in range(steps)]
    machine.be_late(17, *how_late)
    model, slack = model_of(Outside), operations.SLACK
    operations.SLACK = 1e9  # all that can be
    try:
        off = recomputing(model, None)
        got = [peak_of(model, off, step) for step in range(steps)]
    finally:
        operations.SLACK = slack
    names = {recipe.call.name for recipe in off._operations.recipes}
    assert all(same(a[1], b[1]) for a, b in zip(got, plain)), "gradients differ"
    assert "native_layer_norm" in names or "layer_norm" in names, names
    stats = off.stats()
    assert stats.restores_refused == 0 and stats.bytes_given_up == stats.bytes_restored > 0, stats
    off.close()


def other_bytes_end_the_backward_pass(store, early):
    """When it ends; or before a hook of a parameter sees a gradient."""
    machine.be_late(12, *NEVER)
    model, seen = model_of(Dropping), []
    off = recomputing(model, store)
    for step in range(2):
        peak_of(model, off, step)
    if early:
        model[3].up.weight.register_post_accumulate_grad_hook(seen.append)
    with off:
        loss = model(torch.randn(ROWS, WIDTH).to(machine.kind)).pow(2).mean()
        model[3].norm.weight.data.add_(1)  # which PyTorch does not count
        for _ in range(2):
            try:
                loss.backward(retain_graph=True)
            except SpillwayError as error:
                assert error.errno == errno.ESTALE and "3 was recomputed" in str(error), error
            else:
                raise AssertionError("gradients are wrong")
    assert not seen, "a hook has seen a gradient"
    assert list(off._recomputer.refused) == [model[3]]
    del loss
    model.zero_grad()
    peak_of(model, off, 3)
    settled(off)
    off.close()


def the_recomputing_peak_is_the_plans(store, drives):
    """Of a budget that is met by that alone."""
    machine.be_late(13, *NEVER)
    machine.tasks_take(100_000_000, 1)  # slower than any host: only this time shapes the plans
    model, scope = model_of(), ROWS * WIDTH * 4 * 12
    budget = LAYERS * scope // 2
    off = offload(model, store if drives else None, "budget", budget_bytes=budget,
                  recompute=lambda name, module: True)  # without single operations
    peaks, plans, again = [], [], []
    for step in range(10):
        peak_of(model, off, step)
        stats = off.stats()
        peaks.append(stats.step_peak_bytes)  # of the step before
        plans.append(stats.plan_peak_bytes)  # of this one
        again.append(stats.scopes_again)
    first = next(step for step, peak in enumerate(plans) if peak > 0)
    assert first <= 5 and min(plans[first:]) > 0, plans
    for step in range(first, 9):
        assert peaks[step + 1] <= plans[step] + scope, (step, peaks, plans)
        assert peaks[step + 1] <= budget + scope and plans[step] <= budget, (peaks, plans)
    assert drives or again[-1] > again[-2] > 0, again
    off.close()
    machine.tasks_take(0, 0)


def recomputing_is_no_part_of_the_step(store):
    """By the device's clock: plans are of a step without it."""
    machine.be_late(14, *NEVER)
    machine.tasks_take(100_000_000, 0)  # slower than any host
    model = model_of()
    off = offload(model, None, "budget", budget_bytes=1 << 40, recompute="auto")
    took = [clock_of(lambda: peak_of(model, off, step)) for step in range(4)]
    before = off.stats()
    off._session.discards_all = True
    longer = [clock_of(lambda: peak_of(model, off, step)) for step in range(4)]
    stats = off.stats()
    # To give tensors up takes some operators of the step itself.
    assert longer[-2] > took[-2] + before.step_forward_ns, (took, longer)
    assert longer[-2] - stats.step_compute_ns > 0.8 * before.step_forward_ns, (longer, stats)
    off.close()
    machine.tasks_take(0, 0)


def settled(off):
    """The memory when it stays the same: PyTorch's threads drop a failed graph a little later, and
    discarded tensors are released with the next call."""
    before, now, deadline = None, machine.memory(), time.monotonic() + 60
    while off.stats().entries or now != before:
        assert time.monotonic() < deadline, off.stats()
        before, now = now, machine.memory()
    return now


def descriptors():
    return len(os.listdir("/proc/self/fd"))


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
            before, files = settled(off), descriptors()
    assert settled(off) == before, f"{machine.memory()}, was {before}"
    assert descriptors() == files, f"{descriptors()} descriptors, were {files}"
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


def clock_of(step):
    """What a step takes by the device's own clock."""
    before = machine.clock_ns()
    step()
    return machine.clock_ns() - before


def stalls_are_the_devices(store, byte_ns):
    """By whatever a step takes longer on the device it has stalled, to the nanosecond."""
    machine.be_late(5, *NEVER)
    machine.tasks_take(100_000, byte_ns)
    model = model_of()
    plain = [clock_of(lambda: peak_of(model, None, step)) for step in range(3)]
    off = offload(model, store)
    longer = [clock_of(lambda: peak_of(model, off, step)) - plain[step] for step in range(3)]
    stats = off.stats()
    assert sum(longer) == stats.device_stall_ns == stats.stall_ns, (longer, stats)
    assert (stats.stall_ns > 0) == (byte_ns > 0), stats.stall_ns
    for rate in (stats.bus_out_bytes_per_second, stats.bus_in_bytes_per_second):
        assert rate == 0 if byte_ns == 0 else abs(rate * byte_ns / 1e9 - 1) < 1e-3, rate
    off.close()
    machine.tasks_take(0, 0)


def the_times_are_the_devices(store, mode, byte_ns, **options):
    """Of a host that is ahead by the whole step: and so are the plans."""
    machine.be_late(10, *NEVER)
    machine.tasks_take(100_000_000, byte_ns)  # slower than any host
    model = model_of()
    plain = clock_of(lambda: peak_of(model, None, 0))
    off = offload(model, store, mode, **options)
    took = [clock_of(lambda: peak_of(model, off, step)) for step in range(8)]
    stats = off.stats()
    # A step ends when the next one begins, some operators later.
    assert abs((stats.step_compute_ns + stats.step_stall_ns) / took[-2] - 1) < 0.05, (took, stats)
    assert abs(stats.step_forward_ns + stats.step_backward_ns - stats.step_compute_ns) < 1e6, stats
    assert stats.step_forward_ns > stats.step_compute_ns / 10, stats
    assert (stats.step_stall_ns > stats.step_compute_ns / 100) == (byte_ns > 0), stats
    assert abs(stats.step_compute_ns / plain - 1) < 0.05, (plain, stats)
    assert byte_ns > 0 or stats.plan_peak_bytes < 0.3 * stats.plan_keep_all_bytes, stats
    off.close()
    machine.tasks_take(0, 0)


def the_host_waits_for_drives(store):
    """And the device, which has work, does not."""
    machine.be_late(6, *NEVER)
    machine.tasks_take(100_000, 0)
    model = model_of()
    off = offload(model, store)
    with off:
        loss = model(torch.randn(ROWS, WIDTH).to(machine.kind)).pow(2).mean()
        written(off)
        loss.backward()
    machine.memory()
    stats = off.stats()
    assert stats.bytes_read > 0 and stats.host_wait_ns > 0, stats
    assert stats.stall_ns == 0, stats
    off.close()
    machine.tasks_take(0, 0)


def written(off):
    """All that was copied is on the drives."""
    machine.memory()
    until(off, lambda stats: stats.tensors_spilled and not stats.staging_bytes)


def staging_memory_comes_back_while_the_host_waits(store):
    """For a drive: a thread sees copies in end, so that there is room for the next reads."""
    machine.be_late(17, *NEVER)
    table = machine.table(notifies=True)
    accelerator.table_of = lambda kind: table
    off = spillway.torch.offload(nn.Module(), store, mode="spill",
                                 sizes=spillway.torch.Sizes(min_bytes=4096))
    length = 2 << 20
    with off:
        saved = [off._session.pack(torch.ones(length // 4, device=machine.kind)) for _ in range(8)]
        written(off)
        used = [saved.pop().unpack() for _ in range(8)]
        until(off, lambda stats: stats.device_staging_bytes <= 4 * length)
    del used
    settled(off)
    off.close()


def a_late_device_holds_nothing_of_another_back(store):
    machine.be_late(15, *NEVER)
    off = offload(nn.Module(), store)
    ends, mark = [], off.table.table.mark
    off.table.table.mark = lambda stream: ends.append(mark(stream)) or ends[-1]
    with off:
        saved = [off._session.pack(torch.ones(4096, device=device_of(i))) for i in range(2)]
        assert off.stats().copies == 0
        off.table.finish(ends[-1])  # of the copy from the second
        assert off.stats().copies == 1
    del saved
    settled(off)
    off.close()


def a_step_is_recorded(store):
    """With a row for each way of the bus, and what waited."""
    machine.be_late(7, *NEVER)
    model = model_of()
    off = offload(model, store)
    if machine.kind == "late":
        machine.tasks_take(100_000, 1)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        peak_of(model, off, 0)
        off.trace(file.name)
        peak_of(model, off, 1)
        off.stats()
        peak_of(model, off, 2)
        with open(file.name) as trace:
            events = json.load(trace)["traceEvents"]
    rows = {each["args"]["name"] for each in events if each["name"] == "thread_name"}
    assert {f"{machine.kind}:0 copy out", f"{machine.kind}:0 copy in"} <= rows, rows
    counters = [each["args"] for each in events if each["ph"] == "C"]
    assert any(each["device_staging_bytes"] > 0 for each in counters)
    copies = [each for each in events if each["name"] == "copy out"]
    assert all(each["ts"] >= 0 and each["dur"] > 0 for each in copies), copies
    if machine.kind == "late":
        assert {each["dur"] * 1000 == each["args"]["bytes"] for each in copies} == {True}
        assert any(each["name"].startswith("wait for a copy") for each in events)
        machine.tasks_take(0, 0)
    off.close()


def used_on_another_stream(store):
    """What was saved on one stream: out of its own memory, or copied back ahead of its use."""
    device = torch.device(machine.kind, 0)
    for seed in range(8):
        machine.be_late(seed, 0.1 * (seed % 3), 0.25, False)
        off = offload(nn.Module(), store)
        session, other = off._session, off.table.new_stream(device)
        expected = torch.randn(2048, generator=torch.Generator().manual_seed(seed))
        with off:
            saved = session.pack(expected.to(device).mul_(2))
            if seed % 2:
                after = session.pack(torch.zeros(2048, device=device))
                written(off)
                after.unpack()  # what follows is prefetched
                del after
                until(off, lambda stats: stats.bytes_read == 2 * expected.nbytes)
            with other:
                used = saved.unpack()
                result = torch.empty_like(used)
                torch.add(used, 1, out=result)
                if seed % 4 == 0:  # nothing else waits for what computed it
                    assert torch.equal(result.cpu(), expected * 2 + 1), f"seed {seed}"
                del used, saved
            # Its memory is released once the copy has ended, and may be reused at once.
            until(off, lambda stats: stats.entries == 0)
            for _ in range(4):
                torch.empty(2048, device=device).fill_(7).cpu()
            with other:
                assert torch.equal(result.cpu(), expected * 2 + 1), f"seed {seed}"
        assert off.stats().tensors_ahead == seed % 2
        off.close()


def until(off, state):
    deadline = time.monotonic() + 30
    while not state(off.stats()):
        assert time.monotonic() < deadline, off.stats()


def memory_is_back_after_each_step(store):
    machine.be_late(8, *HALF)
    model = nn.Sequential(Layer(), Layer()).to(machine.kind)
    off = offload(model, store)
    peak_of(model, off, 0)
    before = settled(off)
    for step in range(20):
        peak_of(model, off, step)
        assert settled(off) == before, f"step {step}: {machine.memory()}, was {before}"
    off.close()


def planned_for_this_device(store, width=128, host_bytes=None):
    """What `python -m spillway.plan --device` says of a step with parameters on drives."""
    layers, passes, steps = 8, 2, 3
    bytes_each = 4 * width * width
    said = {row.kind: row for row in plan.plan(
        plan.Model("linear", layers * bytes_each // 4, 4, *[bytes_each] * 2, 1, 1, passes, 1.0),
        plan.optimizer_of("adamw", 4),
        plan.Machine(1 << 30, 1 << 40, 1e9, 1e9, 1e9, device_bytes=1 << 30),
        ("parameters", "optimizer"), host_bytes).rows}["parameters"]
    machine.be_late(8, *HALF)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    model = model.to(machine.kind)
    batch = torch.ones(16, width).to(machine.kind)
    seen = []
    with parameters.over(store, model, host_bytes=host_bytes) as off:
        optimizer = spillway.torch.Optimizer(torch.optim.AdamW, model.named_parameters(), store)
        for _ in range(steps):
            for _ in range(passes):
                with off:
                    model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            stats = off.parameter_stats()
            seen.append((stats.bytes_copied_in, stats.bytes_read, stats.device_bytes_max))
        off.parameters_to_memory()
        optimizer.close()
    passed, read = ((seen[-1][i] - seen[-2][i]) for i in range(2))
    # What is used last in one direction is there already when the other begins.
    assert 0.6 * said.bus_in_bytes < passed <= said.bus_in_bytes, (passed, said)
    # Some are prefetched, and make room for others again: in each pass the next two, at most.
    early_bytes = 2 * passes * 2 * bytes_each if host_bytes else said.memory_bytes
    assert read <= said.read_bytes + early_bytes, (read, said)
    assert (read > 0) == (said.read_bytes > 0), (read, said)
    assert stats.memory_bytes_max <= said.memory_bytes, (stats, said)
    assert seen[-1][2] <= said.device_bytes, (seen, said)


def parked_between_steps(store):
    """As for generating: the device is empty meanwhile, and training goes on as without."""
    def run(parks):
        model = model_of()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        off = offload(model, store) if parks else None
        for step in range(4):
            peak_of(model, off, step)
            optimizer.step()
            if parks:
                held = machine.memory()[0]
                with off.park(optimizer) as parked:
                    assert parked.bytes > 0.9 * held  # the rest is below 4 KiB
                    assert machine.memory()[0] <= held - parked.bytes
        if parks:
            off.close()
        return [param.detach().cpu() for param in model.parameters()]

    machine.be_late(8, *HALF)
    assert all(map(torch.equal, run(True), run(False)))


def nothing_on_the_default_stream(store):
    """Of a model that computes on another one."""
    model = model_of()
    off = offload(model, store)
    stream, activity = torch.cuda.Stream(), torch.profiler.ProfilerActivity
    batch = torch.randn(ROWS, WIDTH).to(machine.kind)
    with torch.cuda.stream(stream), off:
        model(batch).pow(2).mean().backward()
    torch.accelerator.synchronize()
    with torch.profiler.profile(activities=[activity.CUDA]) as profile:
        torch.ones(1, device=machine.kind)  # is there, and says which one it is
        torch.accelerator.synchronize()
        with torch.cuda.stream(stream), off:
            model(batch).pow(2).mean().backward()
        torch.accelerator.synchronize()
    events = device_events(profile)
    first = min(events, key=lambda each: each["ts"])["args"]["stream"]
    there = [each["name"] for each in events if each["args"]["stream"] == first]
    assert len(there) == 1, there
    off.close()


def device_events(profile):
    """What the profiler saw on streams."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        with open(file.name) as trace:
            events = json.load(trace)["traceEvents"]
    return [each for each in events if "stream" in each.get("args", {}) and "dur" in each]


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
    events = device_events(profile)
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
    "a recorded step shows the bus": a_step_is_recorded,
    "memory is back after each step": memory_is_back_after_each_step,
    "a step is as planned for this device": planned_for_this_device,
    **{f"a step is as planned for this device and {mib} MiB of host memory": functools.partial(
        planned_for_this_device, width=512, host_bytes=mib << 20) for mib in (5, 8)},
    "the model and its optimizer are parked between steps": parked_between_steps,
    "other bytes than before end the backward pass": functools.partial(
        other_bytes_end_the_backward_pass, early=False
    ),
    "other bytes than before are seen by no hook": functools.partial(
        other_bytes_end_the_backward_pass, early=True
    ),
    **single.CASES,
    **updates.CASES,
    **parameters.CASES,
}
if machine.kind == "late":
    CASES.update({f"memory is bounded: {words}":
                  functools.partial(memory_is_bounded, how_late=how_late)
                  for words, how_late in {"the host is ahead by the whole step": NEVER,
                                          "the host is ahead by some of it": HALF,
                                          "the device keeps up": AT_ONCE}.items()})
    CASES.update(
        {
            f"the peak is the plan's, {mode}: {words}": functools.partial(
                the_peak_is_the_plans, how_late=how_late, mode=mode
            )
            for mode in ("fastest", "budget")
            for words, how_late in {
                "the host is ahead by the whole step": NEVER,
                "the device keeps up": AT_ONCE,
            }.items()
        }
    )
    for words, how_late in {"ahead": NEVER, "ahead by some": HALF, "behind": AT_ONCE}.items():
        for drives in (False, True):
            where = "drives" if drives else "no drives"
            CASES[f"what is recomputed is the same: the host is {words}, {where}"] = (
                functools.partial(
                    what_is_recomputed_is_the_same, how_late=how_late, drives=drives
                )
            )
    for words, how_late in {"ahead": NEVER, "behind": AT_ONCE}.items():
        for drives in (False, True):
            where = "and drives" if drives else "alone"
            CASES[f"host memory {where}: the host is {words}"] = functools.partial(
                host_memory_holds_the_peak, how_late=how_late, drives=drives)
    CASES["the peak is the plan's that recomputes"] = functools.partial(
        the_recomputing_peak_is_the_plans, drives=False
    )
    CASES["the peak is the plan's that recomputes, with drives"] = functools.partial(
        the_recomputing_peak_is_the_plans, drives=True
    )
    for words, how_late in {"ahead": NEVER, "behind": AT_ONCE}.items():
        CASES[f"scopes begin with what operations make again: the host is {words}"] = (
            functools.partial(scopes_begin_with_what_operations_make_again, how_late=how_late))
    CASES["a leaf is the input of a scope"] = a_leaf_is_the_input_of_a_scope
    CASES["recomputing is not counted as the step's"] = recomputing_is_no_part_of_the_step
    CASES["captured graphs keep all, and wait for nothing"] = captured_graphs_keep_all
    CASES["used on another stream than it was saved on"] = used_on_another_stream
    CASES["a late device holds nothing of another back"] = (
        a_late_device_holds_nothing_of_another_back
    )
    CASES["a step stalls by what the bus takes"] = functools.partial(
        stalls_are_the_devices, byte_ns=1)
    CASES["a step that the bus keeps up with does not stall"] = functools.partial(
        stalls_are_the_devices, byte_ns=0
    )
    CASES["a host that waits for drives is not stalled"] = the_host_waits_for_drives
    CASES["staging memory comes back while the host waits for drives"] = (
        staging_memory_comes_back_while_the_host_waits
    )
    CASES["the times of a step are the device's"] = functools.partial(
        the_times_are_the_devices, mode="fastest", byte_ns=0)
    CASES["the times of a step that stalls are the device's"] = functools.partial(
        the_times_are_the_devices, mode="budget", byte_ns=5000, budget_bytes=1 << 20
    )
else:
    CASES["memory is bounded"] = functools.partial(memory_is_bounded, how_late=AT_ONCE)
if machine.kind == "cuda":
    CASES["captured graphs keep all"] = real_graphs_keep_all
    CASES["copies have streams of their own"] = copies_have_streams_of_their_own
    CASES["nothing is on the default stream"] = nothing_on_the_default_stream


def main():
    logging.getLogger("spillway").setLevel(logging.CRITICAL)
    part, parts, drives = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    spillway.format_store(drives)
    failed = False
    with spillway.Store(drives, arena_bytes=64 << 20) as store:
        for name, case in list(CASES.items())[part::parts]:
            print("begin", name, flush=True)
            faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
            try:
                case(store)
                print("ok", name, flush=True)
            except Exception as error:
                failed = True
                print(f"FAILED {name}: {type(error).__name__}: {error}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    print("done")
    return failed


if __name__ == "__main__":
    sys.exit(main())
