# SPDX-License-Identifier: MIT
# tests/device/parameters.py - cases of fixed.py: a model on a device with its parameters on drives
"""Each case trains the same model twice, plainly on the device and with parameters on drives, and
compares the bits of the losses, of every gradient in every step, and of the parameters."""

import contextlib
import errno
import functools
import gc
import linecache
import random
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import spillway
import spillway.torch
from spillway import SpillwayError
from spillway._gpu import accelerator
from spillway._params.on_device import DevicePlace, Window
from spillway._params.residency import Place

from machine import machine
from troubles import Troubled

NEVER, HALF, AT_ONCE = (0, 0, False), (0.3, 0.25, False), (0, 1, True)  # how late
COPIES = 0, 0, True  # what computes runs as late as it may, copies as early as they may
LATE = {"ahead": NEVER, "some way ahead": HALF, "ahead, and copies are early": COPIES,
        "behind": AT_ONCE}
WIDTH, VOCABULARY, LAYERS, STEPS = 144, 128, 5, 4
LITTLE = 8 * WIDTH * WIDTH * 4  # bytes of the two largest parameters
SCOPE = 4 * (3 + 1 + 4 + 4) * WIDTH * WIDTH  # bytes of a block's matrices


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.query, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = self.query(self.norm(x)).chunk(3, -1)
        x = x + self.dropout(self.out((q @ k.transpose(-1, -2)).softmax(-1) @ v))
        return x + self.dropout(self.down(F.gelu(self.up(x))))


class GPT(nn.Module):
    """With a head that is the embedding, and a block that is used twice."""

    def __init__(self, layers=LAYERS, dropout=0.0, recompute=None, twice=False):
        super().__init__()
        self.recompute, self.twice = recompute, twice
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens):
        x = self.token(tokens)
        for block in (*self.blocks, *self.blocks[:1 if self.twice else 0]):
            if self.recompute:
                x = checkpoint(block, x, use_reentrant=self.recompute == "reentrant")
            else:
                x = block(x)
        return self.head(x)


def made(**options):
    torch.manual_seed(1)
    model = GPT(**options).to(machine.kind)
    model.head.weight = model.token.weight  # a move to this device unties them
    return model


def loss_of(model, step, micro=0):
    generator = torch.Generator().manual_seed(1000 * step + micro)
    tokens = torch.randint(VOCABULARY, (2, 17), generator=generator).to(machine.kind)
    torch.manual_seed(step)  # for dropout
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def gradients_of(model):
    """Also those on drives, which can be copied to other memory alone."""
    return {name: torch.empty(param.shape, dtype=param.grad.dtype, device=machine.kind).copy_(
        param.grad).cpu() for name, param in model.named_parameters() if param.grad is not None}


def values_of(model):
    return {name: param.detach().cpu() for name, param in model.named_parameters()}


def assert_same(one, other, words=""):
    assert one.keys() == other.keys(), (words, one.keys() ^ other.keys())
    for name, value in one.items():
        assert torch.equal(value, other[name]), f"{words}: {name} differs"


@contextlib.contextmanager
def over(store, model, limit=None, mode="spill", **options):
    """offload(parameters=True), and the calls of the device that it makes."""
    table = Troubled(machine.table())
    before, accelerator.table_of = accelerator.table_of, lambda kind: table
    sizes = {} if limit is None else {"parameter_bytes": limit}
    try:
        off = spillway.torch.offload(
            model, store, mode=mode, parameters=True,
            sizes=spillway.torch.Sizes(min_bytes=4096, **sizes), **options)
        off.table = table
        try:
            yield off
        finally:
            off.parameters_to_memory()
            off.close()
    finally:
        accelerator.table_of = before


def places_of(model):
    return [param._spillway_place for param in model.parameters()
            if isinstance(getattr(param, "_spillway_place", None), DevicePlace)]


def steps_of(model, off=None, optimizer=None, micros=1, steps=STEPS, after=lambda model: None,
             gradients=True, before=lambda model: None):
    """Losses and all gradients of each step; the caller compares them.

    :param before: called between the forward and the backward pass
    """
    found = []
    for step in range(steps):
        losses = []
        for micro in range(micros):
            with contextlib.nullcontext() if off is None else off:
                loss = loss_of(model, step, micro)
                before(model)
                loss.backward()
            losses.append(loss.detach().cpu())
        found.append((losses, gradients_of(model) if gradients else {}))
        if optimizer is not None:
            optimizer.step()
        for param in model.parameters():
            param.grad = None
        after(model)
    return found


class Watched:
    """Gradients as they come, which in_backward frees: as steps_of() has them. Before an optimizer
    is made: its hooks come after these."""

    def __init__(self, model):
        self.came, self.steps = {}, []
        for name, param in model.named_parameters():
            param.register_post_accumulate_grad_hook(functools.partial(self._came, name))

    def _came(self, name, param):
        self.came[name] = param.grad.detach().clone()  # on the device: no one waits

    def __call__(self, model):
        self.steps.append({name: grad.cpu() for name, grad in self.came.items()})
        self.came = {}


def assert_same_steps(one, other, gradients=True):
    assert len(one) == len(other)
    for step, ((losses, grads), (other_losses, other_grads)) in enumerate(zip(one, other)):
        assert all(map(torch.equal, losses, other_losses)), f"step {step}: losses differ"
        assert bool(grads) == gradients, step
        assert_same(grads, other_grads, f"step {step}")


def gradients_are_the_same(store, how_late, limit=None, micros=1, mode="spill", after=None,
                           **options):
    """With an optimizer of PyTorch, which changes parameters on the device."""
    machine.be_late(1, *how_late)
    machine.memory()
    plain = made(**options)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    after = after or (lambda model: None)
    expected = steps_of(plain, None, optimizer, micros, after=after)
    values = values_of(plain)
    del plain, optimizer
    gc.collect()
    machine.be_late(1, *how_late)
    model = made(**options)
    with over(store, model, limit, mode) as off:
        assert len(places_of(model)) == 4 * LAYERS + 1
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
        got = steps_of(model, off, optimizer, micros, after=after)
        assert_same_steps(got, expected)
        assert_same(values_of(model), values, "parameters")
        stats = off.parameter_stats()
        assert stats.bytes_copied_in > STEPS * stats.total_bytes and stats.reads > 0, stats
        assert stats.device_bytes <= stats.device_limit_bytes, stats
    assert_same(values_of(model), values, "parameters that are back")


def evaluate(model):
    """Between steps: its result goes into the next step's parameters' bits by nothing."""
    with torch.no_grad():
        before = loss_of(model, 77).cpu()
        model.eval()
        assert torch.isfinite(before) and torch.isfinite(loss_of(model, 78).cpu())
        model.train()


def stepped_by_ours(store, how_late, steps, masters=False, name="AdamW", **options):
    """The optimizer's step is the host's, with state and parameters on drives."""
    dtype = torch.bfloat16 if masters else torch.float32
    machine.be_late(2, *how_late)
    plain = made(layers=3, dropout=0.1).to(dtype)
    plain.head.weight = plain.token.weight
    if masters:
        copies = {param: nn.Parameter(param.detach().float()) for param in plain.parameters()}
        theirs = torch.optim.AdamW(copies.values(), foreach=False)
        theirs = Rounded(theirs, copies)
    else:
        theirs = getattr(torch.optim, name)(plain.parameters(), foreach=False)
    expected = steps_of(plain, None, theirs, 2 if "in_backward" not in options else 1, steps=steps)
    values = values_of(plain)
    machine.be_late(2, *how_late)
    model = made(layers=3, dropout=0.1).to(dtype)
    model.head.weight = model.token.weight
    watched = Watched(model) if "in_backward" in options else lambda model: None
    with over(store, model, LITTLE) as off:
        assert places_of(model)
        optimizer = spillway.torch.Optimizer(
            getattr(torch.optim, name), model.named_parameters(), store, tile=20000,
            masters=masters, **options)
        with contextlib.closing(optimizer):
            in_backward = "in_backward" in options
            got = steps_of(model, off, optimizer, 1 if in_backward else 2, steps=steps,
                           after=watched, gradients=not in_backward)
            if in_backward:
                got = [(losses, grads) for (losses, _), grads in zip(got, watched.steps)]
            assert off.parameter_stats().bytes_copied_out == 0, "the step passes the device"
            if {"in_backward", "gradients"} & options.keys():
                assert_gradients_left(optimizer.gradient_stats())
            assert_same_steps(got, expected)
            assert_same(values_of(model), values, "parameters")
            if not masters and name == "AdamW":
                for ours, other in zip(optimizer.state_dict()["state"].values(),
                                       theirs.state_dict()["state"].values()):
                    for field in ("exp_avg", "exp_avg_sq"):
                        assert torch.equal(ours[field], other[field].cpu()), field


def assert_gradients_left(stats):
    assert stats.copies > 0 and stats.host_bytes == 0, stats
    assert stats.device_bytes_max <= stats.device_limit_bytes, stats
    assert stats.host_bytes_max <= stats.host_limit_bytes and not stats.host_bytes_over, stats


class Rounded:
    """An optimizer of float32 copies, to which parameters are rounded."""

    def __init__(self, optimizer, copies):
        self.optimizer, self.copies = optimizer, copies

    def step(self):
        for param, copy in self.copies.items():
            copy.grad = param.grad.float()
        self.optimizer.step()
        for param, copy in self.copies.items():
            param.data.copy_(copy.data)


def two_scopes_are_resident(store, how_late, micros):
    """By the device's own statistics, against a run that has all parameters there."""
    peaks, given = {}, {}
    for on_drives in (False, True):
        machine.be_late(3, *how_late)
        model = made()
        with contextlib.ExitStack() as held:
            off = held.enter_context(over(store, model, mode="observe")) if on_drives else None
            for step in range(4):
                gc.collect()
                machine.begin_peak()
                steps_of(model, off, None, micros, steps=1)
                peaks[on_drives, step] = machine.peak()
                given[on_drives, step] = machine.reserved()
            if on_drives:
                stats = off.parameter_stats()
                assert stats.device_bytes_over == 0 and stats.device_limit_bytes == 2 * SCOPE, stats
                assert stats.device_bytes_max <= 2 * SCOPE, stats
                total = stats.total_bytes
        del model
    for step in range(1, 4):
        assert peaks[True, step] <= peaks[False, step] - total + 2 * SCOPE, (step, peaks, total)
    assert given[True, 3] == given[True, 2], "reserved memory grows"


ROOM = 256  # of a matrix of the chain: 256 KiB, as much as PyTorch pins for it


def matrices(count=16):
    torch.manual_seed(1)
    return nn.Sequential(*(layer for _ in range(count)
                           for layer in (nn.Linear(ROOM, ROOM), nn.Tanh()))).to(machine.kind)


def loss_of_matrices(model, seed, rows=32):
    batch = torch.randn(rows, ROOM, generator=torch.Generator().manual_seed(seed))
    return model(batch.to(machine.kind)).pow(2).mean()


def host_memory_keeps_parameters(store, how_late, host_bytes, micros, stepped=None):
    """What fits is not read again, whatever the number of micro-batches; the rest once for each
    pass. PyTorch's pinned memory, by its own count, is no more than was given."""
    matrix, found, steps = 4 * ROOM * ROOM, [], 9
    for on_drives in False, True:
        machine.be_late(31, *how_late)
        model, losses, reads = matrices(), [], []
        machine.memory()
        machine.begin_pinned_peak()
        with contextlib.ExitStack() as held:
            off = optimizer = None
            if on_drives:
                off = held.enter_context(over(store, model, None, "observe",
                                              host_bytes=host_bytes))
            if stepped == "ours" and on_drives:
                optimizer = held.enter_context(contextlib.closing(spillway.torch.Optimizer(
                    torch.optim.SGD, model.named_parameters(), store, lr=0.1, momentum=0.9,
                    tile=50000)))
            elif stepped is not None:
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
            for step in range(steps):
                for micro in range(micros):
                    with contextlib.nullcontext() if off is None else off:
                        loss = loss_of_matrices(model, 10 * step + micro)
                        loss.backward()
                    losses.append(([loss.detach().cpu()], gradients_of(model)))
                if optimizer is not None:
                    optimizer.step()
                for param in model.parameters():
                    param.grad = None
                if on_drives:
                    reads.append(off.parameter_stats().bytes_read)
            if on_drives:
                stats = off.parameter_stats()
                assert stats.limit_bytes == min(host_bytes, stats.total_bytes), stats
                assert stats.memory_bytes_max <= stats.limit_bytes, stats
                assert stats.memory_bytes_over == stats.device_bytes_over == 0, stats
                assert stats.device_limit_bytes == 2 * matrix, stats
                assert machine.pinned_peak() <= host_bytes, (machine.pinned_peak(), host_bytes)
                passes = 2 * micros + (stepped is not None)
                promised = passes * (stats.total_bytes - stats.limit_bytes)
                of_steps = [after - before for before, after in zip(reads, reads[1:])][-4:]
                # Where a pass turns into the next, two scopes are prefetched.
                ahead = 4 * matrix if promised else 0
                assert sum(of_steps) <= 4 * (promised + ahead), (of_steps, promised)
                assert (reads[-1] > 0) == (promised > 0), (reads, promised)
        found.append((losses, values_of(model)))
    assert_same_steps(found[1][0], found[0][0])
    assert_same(found[1][1], found[0][1], "parameters")


def host_memory_is_shared(store, how_late):
    """Parameters have what they need of it, and copies of activations the rest."""
    machine.be_late(32, *how_late)
    model, given = matrices(), 8 << 20
    machine.memory()
    machine.begin_pinned_peak()
    with over(store, model, None, "fastest", host_bytes=given) as off:
        for step in range(5):
            with off:
                loss_of_matrices(model, step, 512).backward()
        stats, cache = off.parameter_stats(), off.stats()
        assert stats.limit_bytes == stats.total_bytes == 4 << 20 and stats.bytes_read == 0, stats
        assert cache.host_memory_bytes == given - stats.limit_bytes, cache
        assert 0 < cache.host_bytes_max <= cache.host_memory_bytes and cache.bytes_to_host, cache


# ---- Gradients -----------------------------------------------------------------------------------


def waits_of(function):
    """For streams that compute, and copies on them."""
    before = machine.host_waits() + machine.copies_waited()
    function()
    return machine.host_waits() + machine.copies_waited() - before


def two_scopes_of_gradients_are_resident(store, how_late, **options):
    """By the device's own statistics: of a step that has what a forward pass makes, and two scopes
    each of parameters and gradients. The host waits for no stream that computes: only for copies
    of gradients, and only where it has no room for more."""
    machine.be_late(22, *how_late)
    plain = made()
    gc.collect()
    before = machine.memory()[0]
    machine.begin_peak()
    loss = loss_of(plain, 0)
    forward = machine.peak() - before
    plain_waits = waits_of(loss.backward)
    del plain, loss
    gc.collect()
    machine.be_late(22, *how_late)
    model = made()
    with over(store, model, mode="observe") as off:
        with contextlib.closing(spillway.torch.Optimizer(
                torch.optim.AdamW, model.named_parameters(), store, tile=20000,
                **options)) as optimizer:
            base = None
            for step in range(4):
                gc.collect()
                base = machine.memory()[0] - off.parameter_stats().device_bytes
                machine.begin_peak()
                with off:
                    loss = loss_of(model, step)
                    waits = waits_of(loss.backward)
                assert waits == plain_waits, (step, waits, plain_waits)
                optimizer.step()
                peak = machine.peak() - base
                assert peak <= forward + 4 * SCOPE, (step, peak, forward, SCOPE)
                optimizer.zero_grad()
                del loss
            stats = optimizer.gradient_stats()
            assert_gradients_left(stats)
            assert stats.device_limit_bytes == SCOPE, stats
            assert stats.waits > 0 or how_late is not NEVER, stats


def clipped(model, step):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=False)


def halved(model, step):
    for param in model.parameters():
        param.grad.mul_(0.5)


def asked_for_norms(model, step):
    """Of some, which are not known in advance."""
    if step % 2:
        assert all(bool(torch.isfinite(torch.linalg.vector_norm(param.grad)))
                   for param in list(model.parameters())[::2])


def passes_of(model, step, micros, off, graph):
    losses = []
    for micro in range(micros):
        with contextlib.nullcontext() if off is None else off:
            loss = loss_of(model, step, micro)
            if graph == "used for others":
                torch.autograd.grad(loss, [model.blocks[0].up.weight, model.token.weight],
                                    retain_graph=True)
            if graph == "used twice":
                loss.backward(retain_graph=True)
            loss.backward()
        losses.append(loss.detach().cpu())
    return losses


def hooked(model, how):
    """Changes gradients as they come: a tensor's hook, and one after accumulation."""
    def halve(param):
        param.grad.mul_(0.5)

    if how:
        model.blocks[0].up.weight.register_hook(lambda grad: grad * 0.75)
        model.blocks[1].norm.weight.register_hook(lambda grad: grad + 0.5)
        for param in (model.blocks[1].up.weight, model.blocks[0].query.bias):
            param.register_post_accumulate_grad_hook(halve)


def gradients_leave(store, how_late, micros=1, between=lambda model, step: None, hooks=False,
                    graph=None, way="gradients", name="AdamW", limit=LITTLE, **options):
    """Every gradient of every step, in all the ways in which PyTorch makes and reads them."""
    found = []
    for on_drives in False, True:
        machine.be_late(23, *how_late)
        model = made(layers=3, dropout=0.1, **options)
        hooked(model, hooks)
        watched = Watched(model) if way == "in_backward" else None
        with contextlib.ExitStack() as held:
            off, make = None, functools.partial(getattr(torch.optim, name), foreach=False)
            params = model.parameters()
            if on_drives:
                off = held.enter_context(over(store, model, limit))
                params = model.named_parameters()
                make = functools.partial(
                    spillway.torch.Optimizer, getattr(torch.optim, name), store=store, tile=20000,
                    **{way: True})
            optimizer = make(params)
            if on_drives:
                held.enter_context(contextlib.closing(optimizer))
            steps = []
            for step in range(4):
                losses = passes_of(model, step, micros, off, graph)
                between(model, step)
                if way == "gradients":
                    steps.append((losses, gradients_of(model)))
                optimizer.step()
                optimizer.zero_grad()
                if watched is not None:
                    watched(model)
                    steps.append((losses, watched.steps[-1]))
            if on_drives:
                stats = optimizer.gradient_stats()
                assert stats.copies >= 4 * 26 and not stats.host_bytes, stats
                assert stats.device_bytes_max <= stats.device_limit_bytes, stats
                assert stats.host_bytes_over == 0, stats
            found.append((steps, values_of(model)))
    assert_same_steps(found[1][0], found[0][0])
    assert_same(found[1][1], found[0][1], "parameters")


class Stopped(Exception):
    """Of a hook."""


def passed(model, step, off):
    return passes_of(model, step, 2, off, None), gradients_of(model)


def a_backward_pass_ends_in_the_middle(store, how_late, kind):
    """At each of several gradients; the same passes again have the same numbers, and nothing of
    those before."""
    machine.be_late(24, *how_late)
    machine.memory()
    before = machine.memory()
    plain, model = made(layers=2), made(layers=2)
    theirs = torch.optim.AdamW(plain.parameters(), foreach=False)
    stop_at = [None]

    def stops(param):
        if stop_at[0] is not None:
            stop_at[0] -= 1
            if stop_at[0] < 0:
                stop_at[0] = None
                raise kind

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(stops)
    with over(store, model, LITTLE) as off:
        with contextlib.closing(spillway.torch.Optimizer(
                torch.optim.AdamW, model.named_parameters(), store, tile=20000,
                gradients=True)) as optimizer:
            for step in range(6):
                expected = passed(plain, step, None)
                stop_at[0] = 7 * step
                try:
                    passes_of(model, step, 2, off, None)
                except kind:
                    pass
                else:
                    raise AssertionError("the pass has come to its end")
                if off._active:
                    off.__exit__(None, None, None)
                optimizer.zero_grad()
                assert_same_steps([passed(model, step, off)], [expected])
                for each in theirs, optimizer:
                    each.step()
                    each.zero_grad()
            assert_same(values_of(model), values_of(plain), "parameters")
    del plain, model, off, optimizer, theirs, param, expected, each
    left = machine.memory()
    assert left == before, (left, before)


def copies_of_gradients_fail(store, how_late):
    """Or Ctrl-C comes around any call of the device: the same passes again have the same
    numbers."""
    dice = random.Random(1)
    machine.be_late(26, *how_late)
    plain, model = made(layers=2), made(layers=2)
    theirs = torch.optim.AdamW(plain.parameters(), foreach=False)
    raised = 0
    with over(store, model, LITTLE) as off:
        with contextlib.closing(spillway.torch.Optimizer(
                torch.optim.AdamW, model.named_parameters(), store, tile=20000,
                gradients=True)) as optimizer:
            for step in range(4):
                expected = passed(plain, step, None)
                for _ in range(5):
                    if dice.random() < 0.5:
                        off.table.until_interrupt = dice.randrange(250)
                    else:
                        off.table.until_failure = dice.randrange(100)
                    try:
                        passes_of(model, step, 2, off, None)
                    except (KeyboardInterrupt, RuntimeError):
                        raised += 1
                    off.table.until_interrupt = off.table.until_failure = None
                    if off._active:
                        off.__exit__(None, None, None)
                    optimizer.zero_grad()
                assert_same_steps([passed(model, step, off)], [expected])
                for each in theirs, optimizer:
                    each.step()
                    each.zero_grad()
            assert raised > 5, raised
            assert_same(values_of(model), values_of(plain), "parameters")
            assert_gradients_left(optimizer.gradient_stats())


def gradients_leave_without_parameters_on_drives(store, how_late, way):
    """A model that stays on the device."""
    machine.be_late(25, *how_late)
    plain, model = made(layers=3), made(layers=3)
    watched = Watched(model)
    table = Troubled(machine.table())
    before, accelerator.table_of = accelerator.table_of, lambda kind: table
    theirs = torch.optim.AdamW(plain.parameters(), foreach=False)
    try:
        with contextlib.closing(spillway.torch.Optimizer(
                torch.optim.AdamW, model.named_parameters(), store, tile=20000,
                **{way: True})) as optimizer:
            for step in range(4):
                expected = passes_of(plain, step, 1, None, None), gradients_of(plain)
                losses = passes_of(model, step, 1, None, None)
                optimizer.step()
                optimizer.zero_grad()
                watched(model)
                theirs.step()
                theirs.zero_grad()
                assert_same_steps([(losses, watched.steps[-1])], [expected])
                assert_same(values_of(model), values_of(plain), f"step {step}")
            assert optimizer.gradient_stats().copies > 0
    finally:
        accelerator.table_of = before


class Towers(nn.Module):
    """On two devices, whose parameters lie in the same tiles."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.devices = [torch.device(machine.kind, number) for number in range(2)]
        self.layers = nn.ModuleList(nn.Linear(96, 96).to(self.devices[number % 2])
                                    for number in range(6))

    def forward(self, x):
        found = []
        for number, device in enumerate(self.devices):
            y = x.to(device)
            for layer in self.layers[number::2]:
                y = layer(y).relu()
            found.append(y.pow(2).mean().cpu())
        return torch.stack(found)


def chain():
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(96, 96) for _ in range(6))).to(machine.kind)


def loss_of_rows(model, seed, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    return model(torch.randn(32, 96, generator=generator).to(device)).pow(2).mean()


@contextlib.contextmanager
def optimizers(store, model, on_drives, **options):
    """PyTorch's, or one with the state on drives, and the calls of the device that it makes."""
    if not on_drives:
        yield torch.optim.AdamW(model.parameters(), foreach=False), None
        return
    table = Troubled(machine.table())
    before, accelerator.table_of = accelerator.table_of, lambda kind: table
    try:
        with contextlib.closing(spillway.torch.Optimizer(
                torch.optim.AdamW, model.named_parameters(), store, **options)) as optimizer:
            yield optimizer, table
    finally:
        accelerator.table_of = before


def tiles_of_two_devices(store, how_late):
    """They are stepped by the threads of both, and each device computes on a stream of its own."""
    found = []
    for on_drives in False, True:
        machine.be_late(27, *how_late)
        model = Towers()
        watched = Watched(model)
        with optimizers(store, model, on_drives, tile=20000, in_backward=True) as (optimizer, _):
            steps = []
            with contextlib.ExitStack() as held:
                for device in model.devices:
                    stream = torch.Stream(device)
                    stream.wait_stream(torch.accelerator.current_stream(device))
                    held.enter_context(stream)
                for step in range(4):
                    loss = loss_of_rows(model, step)
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    watched(model)
                    steps.append(([loss.detach()], watched.steps[-1]))
                found.append((steps, values_of(model)))
    assert_same_steps(found[1][0], found[0][0])
    assert_same(found[1][1], found[0][1], "parameters")


def gradients_in_memory_of_another_stream(store, how_late):
    """Which gets more to do meanwhile."""
    found = []
    for on_drives in False, True:
        machine.be_late(28, *how_late)
        model = chain()
        with optimizers(store, model, on_drives, tile=20000, gradients=True) as (optimizer, _):
            usual = torch.accelerator.current_stream()
            side = torch.Stream(machine.kind)
            others, steps = [], []

            def allocate(param):
                with usual:
                    others.extend(torch.full_like(param, 7.0) for _ in range(2))

            for param in model.parameters():
                param.register_post_accumulate_grad_hook(allocate)
            for step in range(4):
                for param in model.parameters():
                    param.grad = torch.zeros_like(param)
                side.wait_stream(usual)
                with side:
                    loss = loss_of_rows(model, step, machine.kind)
                    loss.backward()
                usual.wait_stream(side)
                steps.append(([loss.detach().cpu()], gradients_of(model)))
                optimizer.step()
                optimizer.zero_grad()
                others.clear()
            found.append((steps, values_of(model)))
    assert_same_steps(found[1][0], found[0][0])
    assert_same(found[1][1], found[0][1], "parameters")


class Between(nn.Module):
    """The gradient of ``inner`` comes between those of one tile."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.scale, self.shift = nn.Parameter(torch.randn(96)), nn.Parameter(torch.randn(96))
        self.inner = nn.Parameter(torch.randn(96, 96))

    def forward(self, x):
        return (x + self.shift) @ self.inner * self.scale


def additions_are_written_to_make_room(store):
    """That of a gradient itself too, before it leaves."""
    found = []
    for on_drives in False, True:
        machine.be_late(29, *AT_ONCE)
        model = Between().to(machine.kind)
        with optimizers(store, model, on_drives, tile=192, gradients=True) as (optimizer, _):
            steps = []
            for step in range(4):
                losses = []
                for micro in range(3):
                    loss = loss_of_rows(model, 10 * step + micro, machine.kind)
                    loss.backward()
                    losses.append(loss.detach().cpu())
                    if on_drives:
                        optimizer._departures.host_bytes = 1
                steps.append((losses, gradients_of(model)))
                optimizer.step()
                optimizer.zero_grad()
            found.append((steps, values_of(model)))
    assert_same_steps(found[1][0], found[0][0])
    assert_same(found[1][1], found[0][1], "parameters")


def values_do_not_return(store):
    """To a device that has none of them, as the copy fails: no step goes on from there."""
    failed = ended = 0
    for until in range(20):
        machine.be_late(30, *AT_ONCE)
        came, stepped = {}, {}
        for on_drives in False, True:
            model = chain()
            watched = Watched(model)
            with optimizers(store, model, on_drives, tile=5000,
                            in_backward=True) as (optimizer, table):
                if on_drives:
                    table.until_failure = until
                try:
                    loss_of_rows(model, 1, machine.kind).backward()
                except RuntimeError:
                    failed += 1
                    table.until_failure = None
                    try:
                        optimizer.step()
                    except RuntimeError as error:
                        assert "not whole any more" in str(error), error
                        ended += 1
                        continue
                else:
                    optimizer.step()
                came[on_drives], stepped[on_drives] = watched.came, values_of(model)
        # What came last may have failed on its way.
        for name in list(came.get(True, ()))[:-1]:
            assert torch.equal(stepped[True][name], stepped[False][name]), (until, name)
    assert failed > ended > 0, (failed, ended)


# ---- What went wrong for others ------------------------------------------------------------------


def a_use_before_the_copy_out_has_ended(store, how_late):
    """A parameter that was changed on the device leaves it, and is used at once."""
    machine.be_late(4, *how_late)
    plain, model = made(), made()
    with over(store, model, LITTLE) as off:
        for _ in range(3):
            for ours, other in zip(model.parameters(), plain.parameters()):
                with torch.no_grad():
                    for param in (ours, other):
                        param.mul_(1.5)
                        param.add_(0.25)
            first = model.blocks[0].up.weight
            before = off.parameter_stats().bytes_copied_out
            with torch.no_grad():
                first.sub_(1)
                plain.blocks[0].up.weight.sub_(1)
                for block in model.blocks[1:]:  # it goes
                    block.up.weight.sum()
                    block.down.weight.sum()
            assert off.parameter_stats().bytes_copied_out > before
            assert torch.equal(first.detach().cpu(), plain.blocks[0].up.weight.detach().cpu())
            assert_same_steps(steps_of(model, off, steps=1), steps_of(plain, steps=1))
        assert_same(values_of(model), values_of(plain), "parameters")
        assert off.parameter_stats().bytes_copied_out > 0


def used_on_another_stream(store, how_late, backward):
    """The later use is of a stream that waits for the first: memory is released after both."""
    expected = steps_of(made(layers=3))
    for seed in range(2):
        machine.be_late(seed, *how_late)
        model = made(layers=3)
        table = machine.table()
        with over(store, model, LITTLE) as off:
            main, other = table.current_stream(device()), table.new_stream(device())
            got = []
            for step in range(STEPS):
                with off:
                    loss = loss_of(model, step)
                    weights = [model.blocks[0].up.weight, model.blocks[1].up.weight]
                    table.wait(other, table.record(main))
                    with table.on(other), torch.no_grad():
                        total = torch.zeros_like(weights[0])
                        for weight in weights * 2:
                            total.add_(weight)
                    if backward:
                        with table.on(other):
                            loss.backward()
                        table.wait(main, table.record(other))
                    else:
                        loss.backward()
                got.append(([loss.detach().cpu()], gradients_of(model)))
                table.wait(main, table.record(other))
                values = [weight.detach().cpu() for weight in weights * 2]
                assert torch.equal(total.cpu(), sum(values))
                for param in model.parameters():
                    param.grad = None
            assert_same_steps(got, expected)


def device():
    return torch.device(machine.kind, 0)


def the_step_returns_with_copies_in_flight(store, how_late):
    """And the model, the context or the store goes, or what was prefetched is stepped."""
    expected, values = steps_of(made()), values_of(made())
    for how in ("to memory", "model", "changed"):
        machine.be_late(5, *how_late)
        machine.memory()
        before = machine.memory()
        model = made()
        with over(store, model, 4 * LITTLE) as off:
            assert_same_steps(steps_of(model, off), expected)
            with off:
                loss = loss_of(model, 0)
            if how == "model":
                del model, loss
                gc.collect()
                continue
            if how == "changed":
                with torch.no_grad():
                    for param in model.parameters():
                        param.zero_()
                loss = loss_of(model, 0)
                assert torch.allclose(loss.cpu(), torch.tensor(VOCABULARY).float().log())
                continue
            off.parameters_to_memory()
            assert_same(values_of(model), values)
            model.zero_grad()
        del model, off
        loss = None
        left = machine.memory()
        assert left == before, (how, left, before)


def prefetched_and_not_used(store, how_late):
    """Its memory, released on the stream that computes, is used again after the copy into it."""
    machine.be_late(16, *how_late)
    model = made()
    with over(store, model) as off:
        assert_same_steps(steps_of(model, off), steps_of(made()))
        window, others, unused = off._parameters.window, [], 0
        # What the host has is prefetched at once, where no other copy is under way.
        machine.memory()
        held = off._parameters.hold([place.on_drives for place in places_of(model)
                                     if place.state == "out"][:1])
        off._parameters.begin_step()
        del held
        for place in places_of(model):
            if place.state == "in" and not place.users:
                unused += 1
                window.lend(place)  # as an optimizer does
                others.append(torch.full((place.length // 4,), 7.0, device=machine.kind))
        machine.memory()
        assert unused > 0, [(place.state, len(place.users)) for place in places_of(model)]
        assert all(bool((other == 7).all()) for other in others)
        assert_same(values_of(model), values_of(made()))


def to_memory_between_passes(store, how_late):
    """What the forward pass has saved is used by the backward pass."""
    expected = steps_of(made(layers=3), steps=1)
    machine.be_late(21, *how_late)
    model = made(layers=3)
    with over(store, model, LITTLE) as off:
        with off:
            loss = loss_of(model, 0)
        off.parameters_to_memory()
        loss.backward()
        assert_same_steps([([loss.detach().cpu()], gradients_of(model))], expected)


def a_graph_is_captured(store):
    machine.be_late(6, *HALF)
    model = made()
    with over(store, model, LITTLE) as off:
        table = off._parameters.window._table.table
        table.captures = True
        try:
            model.blocks[0].up.weight.sum()
        except RuntimeError as error:
            assert "cannot be used while a graph is captured" in str(error), error
        else:
            raise AssertionError("a graph has the address of memory that goes")
        finally:
            table.captures = False
        assert_same_steps(steps_of(model, off), steps_of(made()))


# ---- Uses and changes of every kind --------------------------------------------------------------


def changed_between_steps(store, how_late):
    """In all the ways there are, counted by PyTorch or not."""
    machine.be_late(7, *how_late)

    def change(model):
        with torch.no_grad():
            model.blocks[0].up.weight.data.mul_(0.5)
            model.blocks[1].up.weight.mul_(0.5)
            model.blocks[2].up.weight.detach().view(-1)[::2].add_(1)
            model.blocks[3].up.weight.data = model.blocks[3].up.weight.data * 0.5
            model.blocks[4].up.weight.data = model.blocks[4].up.weight.data.t().contiguous().t()
            nn.init.constant_(model.blocks[0].down.weight, 0.01)
            model.blocks[1].down.weight.copy_(torch.ones_like(model.blocks[1].down.weight))
            model.load_state_dict({"blocks.2.down.weight": torch.full_like(
                model.blocks[2].down.weight, 0.02)}, strict=False)
            model.state_dict()["blocks.3.down.weight"].mul_(0.5)

    plain, model = made(), made()
    expected = steps_of(plain, after=change)
    with over(store, model, LITTLE) as off:
        assert_same_steps(steps_of(model, off, after=change), expected)
        assert_same(values_of(model), values_of(plain), "parameters")


def changed_before_the_second_run(store, how_late):
    """Of a checkpoint, which uses what is there then."""
    machine.be_late(19, *how_late)

    def change(model):
        with torch.no_grad():
            model.blocks[1].up.weight.mul_(1.5)
        one, other = model.blocks[0].down, model.blocks[2].down
        one.weight, other.weight = other.weight, one.weight

    plain, model = made(recompute="not"), made(recompute="not")
    expected = steps_of(plain, before=change)
    with over(store, model, LITTLE) as off:
        assert_same_steps(steps_of(model, off, before=change), expected)
        assert_same(values_of(model), values_of(plain), "parameters")
        assert off.parameter_stats().device_bytes_over == 0, off.parameter_stats()


@contextlib.contextmanager
def conversions_swap():
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def swapped(store, how_late):
    """They get the contents of other tensors, which stay on drives; no others than their twins'."""
    machine.be_late(20, *how_late)
    plain, model = made(), made()

    def change(model):
        with conversions_swap():
            model.load_state_dict({name: param * 0.9 for name, param in
                                   model.state_dict().items()})
            model.to(machine.kind)

    expected = steps_of(plain, after=change)
    with over(store, model, LITTLE) as off:
        count = len(places_of(model))
        assert_same_steps(steps_of(model, off, after=change), expected)
        assert len(places_of(model)) == count
        assert_same(values_of(model), values_of(plain), "parameters")
        with conversions_swap():
            try:
                model.blocks.double()
            except RuntimeError as error:
                assert "parameters_to_memory() first" in str(error.__cause__), error.__cause__
            else:
                raise AssertionError("nothing was said")
        assert len(places_of(model)) == count
        del model.blocks  # of which some were converted


def changed_uncounted(store, how_late):
    """By what PyTorch does not count: fused steps, the data of views, and memory that others had
    before."""
    def alike(make, steps, change=lambda model: None, optimizer_of=lambda model: None):
        machine.be_late(17, *how_late)
        plain, model = make(), make()
        expected = steps_of(plain, None, optimizer_of(plain), steps=steps, after=change)
        with over(store, model, LITTLE) as off:
            got = steps_of(model, off, optimizer_of(model), steps=steps, after=change)
            assert_same_steps(got, expected)
            assert_same(values_of(model), values_of(plain), "parameters")

    alike(made, 3, optimizer_of=lambda model: torch.optim.AdamW(model.parameters(), fused=True))

    def change(model):
        model.state_dict()["blocks.0.up.weight"].data.mul_(0.5)
        model.blocks[1].up.weight.detach().data.add_(0.01)

    alike(made, 3, change)

    def with_others():
        model = made()
        model.others = [model.blocks[0].up.weight.data, model.blocks[1].up.weight.data]
        return model

    def change_others(model):
        for other in model.others:
            other.mul_(1.1)
        model.others = model.others[1:]

    alike(with_others, 3, change_others)


def exchanged(store, how_late):
    """With an average, by ``data``: the memory of before is kept by others only."""
    def trained(model, off=None):
        with torch.no_grad():
            average = {name: param.detach() * 0.9 for name, param in model.named_parameters()}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        found = []
        for step in range(3):
            found.append(one_step(model, off or contextlib.nullcontext(), optimizer, step, True))
            own = {name: param.data for name, param in model.named_parameters()}
            for data in average, own:
                for name, param in model.named_parameters():
                    param.data = data[name]
                with torch.no_grad():
                    found.append(([loss_of(model, 77).cpu()], {"": torch.ones(1)}))
            for name, param in model.named_parameters():
                average[name].mul_(0.9).add_(param.detach(), alpha=0.1)
        return found

    machine.be_late(18, *how_late)
    plain, model = made(), made()
    expected = trained(plain)
    with over(store, model, LITTLE) as off:
        assert_same_steps(trained(model, off), expected)
        assert len(places_of(model)) == 4 * LAYERS + 1
        assert_same(values_of(model), values_of(plain), "parameters")


def shares_memory_from_now_on(store, how_late):
    """With a vector of several, with another parameter, or with itself in another order: what is
    changed there is the parameter's."""
    def tied(model):
        model.blocks[1].up.weight.data = model.blocks[0].up.weight.data

    def of_a_vector(model):
        weights = [block.up.weight for block in model.blocks]
        model.vector = torch.cat([weight.detach().view(-1) for weight in weights])
        for weight, part in zip(weights, model.vector.split(weights[0].numel())):
            weight.data = part.view_as(weight)

    def transposed(model):
        model.blocks[0].out.weight.data = model.blocks[0].out.weight.data.t()

    def transposed_itself(model):
        with torch.no_grad():
            model.blocks[0].out.weight.t_()

    def change(model):
        with torch.no_grad():
            model.blocks[0].up.weight.mul_(0.9)
            getattr(model, "vector", torch.ones(1)).mul_(0.9)

    for begin in tied, of_a_vector, transposed, transposed_itself:
        machine.be_late(19, *how_late)
        plain, model = made(layers=3), made(layers=3)
        theirs = torch.optim.AdamW(plain.parameters(), foreach=False)
        with over(store, model, LITTLE) as off:
            with contextlib.closing(spillway.torch.Optimizer(
                    torch.optim.AdamW, model.named_parameters(), store, tile=20000)) as optimizer:
                assert_same_steps(steps_of(model, off, optimizer, steps=1),
                                  steps_of(plain, None, theirs, steps=1))
                begin(model)
                begin(plain)
                if begin is tied or begin is of_a_vector:  # who steps what is shared, and how often
                    optimizer = theirs = None
                assert_same_steps(steps_of(model, off, optimizer, after=change),
                                  steps_of(plain, None, theirs, after=change))
                assert_same(values_of(model), values_of(plain), begin.__name__)


def stepped_while_copied(store, how_late):
    """A twin that is being copied is not changed before the copy has ended, and one that was
    changed is not overwritten when those who had the device's memory let go of it."""
    machine.be_late(20, *how_late)
    model = made(layers=2)
    with over(store, model, LITTLE) as off:
        window = off._parameters.window
        window.expect([])  # nothing comes ahead
        for param in list(model.parameters()) * 2:
            param.sum()
        weight = next(param for param in model.parameters()
                      if getattr(param, "_spillway_place", None) and
                      param._spillway_place.state == "out")
        expected = weight.detach().cpu()
        for param in list(model.parameters()) * 2:
            param.sum()
        machine.memory()
        assert weight._spillway_place.state == "out"
        used = weight * 1
        with torch.no_grad():
            window.lend(weight._spillway_place).fill_(3)
        assert weight._spillway_place.state == "out", "a twin that is stepped needs no memory there"
        assert torch.equal(used.detach().cpu(), expected)
        window.refresh()
        assert bool((weight == 3).all())
        other = weight.data
        with torch.no_grad():
            window.lend(weight._spillway_place).fill_(5)
        assert weight._spillway_place.stale
        del other
        for param in list(model.parameters())[::-1] * 2:
            if param is not weight:
                param.sum()
        assert weight._spillway_place.state == "out"
        assert bool((weight == 5).all())


def a_state_dict_is_held(store, how_late, **options):
    """It has what the optimizer makes of the parameters, as without spillway."""
    machine.be_late(8, *how_late)
    plain, model = made(layers=3), made(layers=3)
    theirs = torch.optim.AdamW(plain.parameters(), foreach=False)
    with over(store, model, LITTLE) as off:
        optimizer = spillway.torch.Optimizer(torch.optim.AdamW, model.named_parameters(), store,
                                             tile=20000, **options)
        with contextlib.closing(optimizer):
            held = {name: value for name, value in model.state_dict().items()
                    if "blocks.0" in name}
            raw = [each.blocks[1].up.weight.data for each in (model, plain)]
            for step in range(4):
                for each in raw:  # which PyTorch does not count
                    each.add_(0.01)
                got = steps_of(model, off, optimizer, steps=1, gradients=not options)
                expected = steps_of(plain, None, theirs, steps=1)
                if not options:
                    assert_same_steps(got, expected)
                for name, value in held.items():
                    assert torch.equal(value.cpu(), plain.state_dict()[name].cpu()), (step, name)
                assert torch.equal(raw[0].cpu(), raw[1].cpu())
                off._parameters.settle()
            for each in raw:
                each.add_(0.01)
            del raw, each
            assert_same(values_of(model), values_of(plain), "parameters")


def moved_to_another_device(store):
    """Memory that its twin is not like is refused; a model that was moved to the host goes on."""
    machine.be_late(9, *HALF)
    model, values = made(), values_of(made())
    with over(store, model, LITTLE):
        for block, there in enumerate(({"device": device_index(0), "dtype": torch.float64},
                                       {"device": device_index(1)})):
            weight = model.blocks[block].up.weight
            try:
                weight.data = weight.detach().cpu().to(**there)
            except RuntimeError as error:
                assert "parameters_to_memory() first" in str(error), error
            else:
                assert machine.count == 1, there
    model = made()
    with over(store, model, LITTLE):
        model.to("cpu")
        model.head.weight = model.token.weight
        assert_same(values_of(model), values)
        assert all(param.device.type == "cpu" for param in model.parameters())


def device_index(number):
    return torch.device(machine.kind, min(number, machine.count - 1))


class Interrupt:
    """Raises at one line of what moves parameters, as Ctrl-C does; None: counts lines. Not where a
    `with` is left: a lock would stay locked, but a signal's handler runs when the call that leaves
    it has ended."""

    FILES = "_params/on_device.py", "_params/residency.py", "_params/parameters.py"

    def __init__(self, left=1 << 40):
        self.left = left

    def __call__(self, frame, event, _):
        code = frame.f_code
        if not code.co_filename.endswith(self.FILES) or code.co_name in ("__del__", "gone"):
            return None
        line = linecache.getline(code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not line.startswith("with "):
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def interrupts_lose_nothing(store, how_late, seed=1, tries=12):
    """Wherever they come: the next step has the same numbers."""
    dice = random.Random(seed)
    machine.be_late(seed, *how_late)
    machine.memory()
    before = machine.memory()
    model, expected, values = made(layers=2), steps_of(made(layers=2), steps=1), values_of(
        made(layers=2))
    with over(store, model, LITTLE) as off:
        def passes(interrupt=None):
            """What was changed on the device leaves it, too."""
            sys.settrace(interrupt)
            try:
                with torch.no_grad():
                    for block in model.blocks:
                        block.up.weight.add_(0)
                return steps_of(model, off, steps=1)
            finally:
                sys.settrace(None)
                for param in model.parameters():
                    param.grad = None

        lines = Interrupt()
        passes(lines)
        lines = (1 << 40) - lines.left
        came = 0
        for _ in range(tries):
            left = dice.randint(1, lines)
            try:
                passes(Interrupt(left))
            except (KeyboardInterrupt, RuntimeError, SystemError):
                came += 1
            if off._active:
                off.__exit__(None, None, None)
            assert_same_steps(passes(), expected)
        assert came > tries // 4, came
        # And in what asks the device: copies that fail, and Ctrl-C around each call.
        for _ in range(tries):
            if dice.random() < 0.5:
                off.table.until_interrupt = dice.randrange(60)
            else:
                off.table.until_failure = dice.randrange(20)
            with contextlib.suppress(KeyboardInterrupt, RuntimeError):
                passes()
            off.table.until_interrupt = off.table.until_failure = None
            if off._active:
                off.__exit__(None, None, None)
            assert_same_steps(passes(), expected)
        window = off._parameters.window
        assert not any(place.held for place in places_of(model))
        assert window.memory_bytes == sum(place.storage.nbytes() for place in places_of(model))
        gc.collect()
        assert window.memory_bytes <= window.limit_bytes
        assert_same(values_of(model), values)
    del model, off, window
    gc.collect()
    assert machine.memory() == before, (machine.memory(), before)


def drives_fail(store, how_late):
    """In each phase: a use raises, or a parameter stays where it is, and the next step has the same
    numbers."""
    dice = random.Random(1)
    machine.be_late(15, *how_late)
    model, expected = made(layers=2), steps_of(made(layers=2), steps=1)
    with over(store, model, LITTLE) as off:
        def passes():
            with torch.no_grad():
                for block in model.blocks:
                    block.up.weight.add_(0)
            return steps_of(model, off, steps=1)

        raised = 0
        for _ in range(12):
            with failing(dice.choice(("begin_read", "begin_write", "end")), dice.randrange(1, 40)):
                try:
                    passes()
                except SpillwayError:
                    raised += 1
            for param in model.parameters():
                param.grad = None
            if off._active:
                off.__exit__(None, None, None)
            assert_same_steps(passes(), expected)
        # Where a parameter cannot be prefetched its use tries again: not all failures raise.
        assert raised or off.parameter_stats().failures, off.parameter_stats()
        with failing("begin_read", 1, for_good=True):
            try:
                passes()
            except SpillwayError as error:
                assert "by order" in str(error), error
            else:
                raise AssertionError("a parameter that cannot be read was used")
        for param in model.parameters():
            param.grad = None
        if off._active:
            off.__exit__(None, None, None)
        assert_same_steps(passes(), expected)


@contextlib.contextmanager
def failing(name, calls, for_good=False):
    """The drives of all places fail in three calls after that many, or in all later ones."""
    method, left = getattr(Place, name), [calls]

    def fails(place, *args):
        left[0] -= 1
        if left[0] > 0 or (left[0] <= -3 and not for_good):
            return method(place, *args)
        if name != "end":
            raise SpillwayError(errno.EIO, "a drive failed by order")
        coming = place.state == "coming"
        error = method(place, *args)
        if coming and error is None:
            place.empty()
        return SpillwayError(errno.EIO, "a drive failed by order") if coming else error

    setattr(Place, name, fails)
    try:
        yield
    finally:
        setattr(Place, name, method)


# ---- Training as it is done ----------------------------------------------------------------------


def committed_killed_and_resumed(store, how_late, stays=False, **options):
    """Another process would find the same: the store is opened again, all else is new.

    :param stays: one gets memory on the device that cannot leave any more
    """
    steps, at = 6, 3
    with tempfile.TemporaryDirectory() as folder:
        drives = []
        for number in range(2):
            drives.append(f"{folder}/drive{number}")
            with open(drives[-1], "wb") as file:
                file.truncate(64 << 20)
        spillway.format_store(drives)
        machine.be_late(10, *how_late)
        plain = made(layers=3, dropout=0.1)
        theirs = torch.optim.AdamW(plain.parameters(), foreach=False)
        expected = steps_of(plain, None, theirs, steps=steps)
        got = []
        for begin, end, last in ((0, at, at + 1), (at, steps, steps)):
            with spillway.Store(drives, arena_bytes=32 << 20) as own:
                model = made(layers=3, dropout=0.1)
                if begin:
                    with torch.no_grad():
                        for param in model.parameters():
                            param.normal_()
                with over(own, model, LITTLE) as off:
                    optimizer = spillway.torch.Optimizer(
                        torch.optim.AdamW, model.named_parameters(), own, tile=20000, **options)
                    with contextlib.closing(optimizer):
                        resumed = optimizer.resume()
                        assert (resumed.step if resumed else 0) == begin
                        for step in range(begin, last):  # the step after a commit is lost
                            found = one_step(model, off, optimizer, step, not options)
                            if step < end:
                                got.append(found)
                            if stays and step == 0:
                                weight = model.blocks[0].up.weight
                                weight.data = torch.cat([weight.detach()] * 2)[:len(weight)]
                            if step + 1 == at:
                                optimizer.commit()
                            elif step == at and not begin:
                                with torch.no_grad():
                                    model.blocks[0].up.weight.zero_()
                    if last == steps:
                        assert_same(values_of(model), values_of(plain), "parameters")
        for (losses, grads), (other_losses, other_grads) in zip(got, expected):
            assert all(map(torch.equal, losses, other_losses))
            if not options:
                assert_same(grads, other_grads)


def one_step(model, off, optimizer, step, gradients):
    with off:
        loss = loss_of(model, step)
        loss.backward()
    found = [loss.detach().cpu()], gradients_of(model) if gradients else {}
    optimizer.step()
    for param in model.parameters():
        param.grad = None
    return found


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 4, bias=False)
        self.up = nn.Linear(4, base.out_features, bias=False)
        self.to(base.weight.device)
        nn.init.constant_(self.up.weight, 0.01)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def a_frozen_base(store, how_late):
    """Is read, and never written."""
    def adapted():
        model = made(layers=3)
        for param in model.parameters():
            param.requires_grad_(False)
        for block in model.blocks:
            block.up, block.down = Adapted(block.up), Adapted(block.down)
        return model

    machine.be_late(11, *how_late)
    torch.manual_seed(3)
    plain = adapted()
    theirs = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], foreach=False)
    expected = steps_of(plain, None, theirs, 2)
    machine.be_late(11, *how_late)
    torch.manual_seed(3)
    model = adapted()
    with over(store, model, LITTLE) as off:
        trained = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
        with contextlib.closing(spillway.torch.Optimizer(
                torch.optim.AdamW, trained, store, tile=20000)) as optimizer:
            off._parameters.settle()  # all are on the drives once
            written = off.parameter_stats().bytes_written
            assert_same_steps(steps_of(model, off, optimizer, 2), expected)
            stats = off.parameter_stats()
            assert stats.bytes_written == written and stats.bytes_copied_out == 0, stats
            assert_same(values_of(model), values_of(plain))


def a_matrix_is_stepped_whole(store, how_late):
    """Muon, whose step is of whole matrices."""
    if not hasattr(torch.optim, "Muon"):
        return
    machine.be_late(12, *how_late)

    def matrices(model):
        return [(name, param) for name, param in model.named_parameters()
                if param.ndim == 2 and "blocks" in name]

    plain, model = made(layers=2), made(layers=2)
    # The host's: a device's own matrix products may have other last bits.
    copies = [(param, nn.Parameter(param.detach().cpu())) for _, param in matrices(plain)]
    theirs = torch.optim.Muon([copy for _, copy in copies])
    with over(store, model, LITTLE) as off:
        with contextlib.closing(spillway.torch.Optimizer(
                torch.optim.Muon, matrices(model), store)) as optimizer:
            for step in range(3):
                expected = steps_of_step(plain, step)
                for param, copy in copies:
                    copy.grad = expected[1][name_of(plain, param)]
                theirs.step()
                with torch.no_grad():
                    for param, copy in copies:
                        param.copy_(copy)
                found = one_step(model, off, optimizer, step, True)
                assert_same_steps([found], [expected])
            assert_same(values_of(model), values_of(plain), "parameters")


def steps_of_step(model, step):
    loss = loss_of(model, step)
    loss.backward()
    found = [loss.detach().cpu()], gradients_of(model)
    for param in model.parameters():
        param.grad = None
    return found


def name_of(model, param):
    return next(name for name, each in model.named_parameters() if each is param)


def two_models_on_one_store(store, how_late):
    machine.be_late(13, *how_late)
    expected = steps_of(made(layers=2)), steps_of(made(layers=3))
    models = made(layers=2), made(layers=3)
    with over(store, models[0], LITTLE) as one, over(store, models[1], LITTLE) as other:
        for step in range(STEPS):
            for model, off, found in zip(models, (one, other), expected):
                with off:
                    loss = loss_of(model, step)
                    loss.backward()
                assert_same_steps([([loss.detach().cpu()], gradients_of(model))], [found[step]])
                for param in model.parameters():
                    param.grad = None


def made_there(store, how_late):
    """A model that neither the device nor the host ever has as a whole. The same as one that was
    moved, tied parameters and buffers too; training goes on as from there."""
    params, in_host = [], []

    def factory():
        model = GPT(layers=8, dropout=0.1)
        model.register_buffer("scale", torch.ones(3))
        params[:] = model.parameters()
        return model

    def adopt(window, *args):
        in_host.append(sum(param.untyped_storage().nbytes() for param in params if param.is_cpu))
        return adopts(window, *args)

    machine.be_late(33, *how_late)
    table, adopts = Troubled(machine.table()), Window.adopt
    before, accelerator.table_of = accelerator.table_of, lambda kind: table
    try:
        torch.manual_seed(1)
        plain = factory().to(machine.kind)
        plain.head.weight = plain.token.weight  # a move to this device unties them
        largest, total = LITTLE // 2, sum(param.nbytes for param in plain.parameters())
        pinned = 4 * table.pinned_bytes(largest)
        has = machine.memory()[0]
        machine.begin_peak()
        machine.begin_pinned_peak()
        Window.adopt = adopt
        torch.manual_seed(1)
        model = spillway.torch.materialize(factory, store, device=machine.kind,
                                           parameter_bytes=pinned)
        peak = machine.peak() - has
    finally:
        accelerator.table_of, Window.adopt = before, adopts
    short = sum(param.nbytes for param in model.parameters()) - sum(
        place.length for place in places_of(model))
    assert peak <= 3 * largest + 2 * short < total // 2, (peak, largest, total)
    assert len(in_host) == 4 * 8 + 1 and max(in_host) <= pinned + largest, max(in_host)
    assert machine.pinned_peak() <= pinned < total, (machine.pinned_peak(), pinned)
    assert places_of(model)[0].on_drives.owner.stats().memory_bytes_over == 0
    assert len(places_of(model)) == 4 * 8 + 1 and model.head.weight is model.token.weight
    assert model.scale.device == next(model.parameters()).device == plain.scale.device
    assert_same(values_of(model), values_of(plain), "as made")
    theirs = torch.optim.AdamW(plain.parameters(), foreach=False)
    torch.manual_seed(2)
    expected = steps_of(plain, None, theirs)
    with over(store, model, LITTLE) as off:
        with contextlib.closing(spillway.torch.Optimizer(
                torch.optim.AdamW, model.named_parameters(), store, tile=20000)) as optimizer:
            torch.manual_seed(2)
            assert_same_steps(steps_of(model, off, optimizer), expected)
    assert_same(values_of(model), values_of(plain), "parameters")


def refusals(store):
    """What cannot be is said before the first step, and changes nothing."""
    machine.be_late(14, *NEVER)
    model, values = made(), values_of(made())

    def refused(kind, words, **options):
        try:
            with over(store, model, **options):
                pass
        except kind as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"not refused: {words}")
        assert not places_of(model)

    refused(ValueError, f"too few by {1}", limit=LITTLE - 1)
    large = nn.Linear(640, 640).to(machine.kind)  # 1.6 MB, which PyTorch pins 2 MiB for
    try:
        with over(store, large, host_bytes="3MiB"):
            pass
    except ValueError as error:
        assert "too few by 1048576: the largest parameter, weight, has 2.0 MiB" in str(error), error
    else:
        raise AssertionError("host_bytes")
    if machine.count > 1:
        model.blocks[1].cpu().to(device_index(1))
        refused(ValueError, "are on several devices")
        model = made()
    model.blocks[1].norm.weight = nn.Parameter(torch.ones(WIDTH))
    refused(ValueError, "are on several devices")
    model = made()
    with over(store, model, LITTLE):
        try:
            spillway.torch.Optimizer(torch.optim.AdamW, model.parameters(), store, interleave=2)
        except ValueError as error:
            assert "leave it out, the host steps all tiles" in str(error), error
        else:
            raise AssertionError("interleave")
    assert_same(values_of(model), values)


# ---- By seeds ------------------------------------------------------------------------------------


class Case:
    """All that a seed says."""

    def __init__(self, seed):
        dice = random.Random(seed)
        self.seed = seed
        self.late = dice.choice((0, 0.1, 0.5)), dice.choice((0, 0.25, 1)), dice.random() < 0.5
        self.model = {"layers": dice.randint(2, 3), "dropout": dice.choice((0, 0.25)),
                      "recompute": dice.choice((None, None, "not", "reentrant"))}
        self.steps = dice.randint(3, 6)
        self.micros = dice.choice((1, 1, 2))
        self.limit = dice.choice((LITTLE, LITTLE * 3 // 2, None))
        self.mode = dice.choice(("spill", "fastest", "observe"))
        self.stepped = dice.choice(("never", "PyTorch's", "ours", "in_backward", "gradients"))
        self.after = dice.choice((lambda model: None, evaluate, changed))
        self.recompute = dice.choice(("never", "auto", "operations", "never"))
        if self.mode != "fastest":
            self.recompute = "never"
        self.micros = dice.choice((self.micros, self.micros, 4))
        self.hooks = dice.random() < 0.25
        self.between = dice.choice((lambda model, step: None, clipped, halved, asked_for_norms))
        if self.stepped == "in_backward":
            self.model["recompute"], self.micros = None, 1
            self.between = lambda model, step: None
        self.host_bytes = dice.choice((None, None, "2MiB", "3MiB", "64MiB"))

    def __str__(self):
        return ", ".join(f"{name} {value}" for name, value in vars(self).items())

    def run(self, optimizer_of, off, model):
        hooked(model, self.hooks)
        watched = Watched(model) if self.stepped == "in_backward" else None  # they are freed
        optimizer = optimizer_of(model)
        found = []
        try:
            for step in range(self.steps):
                losses = passes_of(model, step, self.micros, off, None)
                self.between(model, step)
                grads = gradients_of(model) if watched is None else {}
                if optimizer is not None:
                    optimizer.step()
                if watched is not None:
                    watched(model)
                    grads = watched.steps[-1]
                found.append((losses, grads))
                for param in model.parameters():
                    param.grad = None
                self.after(model)
            return found
        finally:
            if hasattr(optimizer, "close"):
                optimizer.close()

    def of_pytorch(self, model):
        return None if self.stepped == "never" else torch.optim.AdamW(
            model.parameters(), foreach=False)

    def of_ours(self, store, model):
        if self.stepped in ("never", "PyTorch's"):
            return self.of_pytorch(model)
        options = {} if self.stepped == "ours" else {self.stepped: True}
        return spillway.torch.Optimizer(torch.optim.AdamW, model.named_parameters(), store,
                                        tile=30000, **options)


def changed(model):
    with torch.no_grad():
        model.blocks[0].up.weight.data.mul_(0.75)
        model.blocks[1].down.weight.mul_(1.25)


def check(seed, store):
    """What is wrong with a seed, in words; or its counters."""
    case = Case(seed)
    machine.be_late(seed, *case.late)
    machine.memory()
    before = machine.memory()
    plain = made(**case.model)
    expected = case.run(case.of_pytorch, None, plain)
    values = values_of(plain)
    del plain
    machine.be_late(seed, *case.late)
    model = made(**case.model)
    try:
        with over(store, model, case.limit, case.mode, recompute=case.recompute,
                  host_bytes=case.host_bytes) as off:
            got = case.run(functools.partial(case.of_ours, store), off, model)
            assert_same_steps(got, expected)
            assert_same(values_of(model), values, "parameters")
            counted, stats = off.parameter_stats(), off.stats()
        assert_same(values_of(model), values, "parameters that are back")
    except AssertionError as error:
        return f"{error} ({case})"
    if counted.device_bytes_over:
        return f"more was on the device than was given: {counted} ({case})"
    if store.stats().objects:
        return f"{store.stats().objects} objects are left ({case})"
    del model, off, got, expected
    left = machine.memory()
    return stats if left == before else f"memory is {left}, was {before} ({case})"


def cases_of_gradients():
    part = functools.partial
    for what, options in {
        "": {}, " over 2 micro-batches": {"micros": 2}, " over 4 micro-batches": {"micros": 4},
        " with checkpoints": {"micros": 2, "recompute": "not"},
        " with reentrant checkpoints": {"micros": 2, "recompute": "reentrant"},
        " with blocks used twice": {"micros": 2, "twice": True},
        ", clipped": {"micros": 2, "between": clipped},
        ", halved": {"micros": 2, "between": halved},
        ", asked for norms": {"between": asked_for_norms},
        ", changed by hooks": {"micros": 2, "hooks": True},
        ", of a graph used twice": {"graph": "used twice"},
        ", of a graph used for others": {"micros": 2, "graph": "used for others"},
        " in the backward pass": {"way": "in_backward"},
        " in the backward pass, changed by hooks": {"way": "in_backward", "hooks": True},
        " in the backward pass, with checkpoints": {"way": "in_backward", "recompute": "not"},
        " in the backward pass, of a graph used for others": {
            "way": "in_backward", "graph": "used for others", "limit": None},
    }.items():
        yield f"gradients leave the device{what}", part(gradients_leave, how_late=HALF, **options)
    for words in "ahead", "behind":
        for way in "in_backward", "gradients":
            yield f"gradients of a model on the device, {way}: the host is {words}", part(
                gradients_leave_without_parameters_on_drives, how_late=LATE[words], way=way)
            yield f"gradients leave the device, {way}: the host is {words}", part(
                gradients_leave, how_late=LATE[words], way=way,
                micros=1 if way == "in_backward" else 2)
    yield "copies of gradients fail", part(copies_of_gradients_fail, how_late=HALF)
    for words in "ahead", "some way ahead":
        if machine.count > 1:
            yield f"tiles of two devices: the host is {words}", part(
                tiles_of_two_devices, how_late=LATE[words])
        yield f"gradients in memory of another stream: the host is {words}", part(
            gradients_in_memory_of_another_stream, how_late=LATE[words])
    yield "additions are written to make room", additions_are_written_to_make_room
    yield "values do not return", values_do_not_return
    for kind in Stopped, KeyboardInterrupt:
        yield f"a backward pass ends in the middle for a {kind.__name__}", part(
            a_backward_pass_ends_in_the_middle, how_late=HALF, kind=kind)


def cases_of_host_memory():
    part = functools.partial
    if machine.kind == "late":  # which counts its pinned memory
        for words, how_late in LATE.items():
            for kib in 2048, 3072, 8192:
                yield f"{kib} KiB of host memory keep parameters: the host is {words}", part(
                    host_memory_keeps_parameters, how_late=how_late, host_bytes=kib << 10, micros=4)
        for stepped in "PyTorch's", "ours":
            yield f"host memory keeps parameters, the step is {stepped}", part(
                host_memory_keeps_parameters, how_late=NEVER, host_bytes=3 << 20, micros=4,
                stepped=stepped)
        for words in "ahead", "behind":
            yield f"host memory keeps parameters and activations: the host is {words}", part(
                host_memory_is_shared, how_late=LATE[words])


def cases():
    part = functools.partial
    of_options = {
        "": {}, " with dropout and micro-batches": {"dropout": 0.2, "micros": 3},
        " in little memory": {"limit": LITTLE},
        " with checkpoints": {"recompute": "not", "dropout": 0.2},
        " with reentrant checkpoints": {"recompute": "reentrant"},
        " used twice": {"twice": True}, " evaluated between steps": {"after": evaluate},
        " and all activations kept": {"mode": "observe"},
    }
    for what, options in of_options.items():
        yield f"parameters on drives{what}", part(
            gradients_are_the_same, how_late=NEVER, **options)
    yield "parameters on drives in little memory, copies are early", part(
        gradients_are_the_same, how_late=COPIES, limit=LITTLE)
    for words, how_late in LATE.items():
        yield f"two scopes of parameters are on the device: the host is {words}", part(
            two_scopes_are_resident, how_late=how_late, micros=2)
        for way in "in_backward", "gradients":
            yield f"two scopes of gradients are on the device, {way}: the host is {words}", part(
                two_scopes_of_gradients_are_resident, how_late=how_late, **{way: True})
        for what, case in {
            "a use before the copy out has ended": a_use_before_the_copy_out_has_ended,
            "a later use is on another stream": part(used_on_another_stream, backward=False),
            "the backward pass is on another stream": part(used_on_another_stream, backward=True),
            "the step returns with copies in flight": the_step_returns_with_copies_in_flight,
            "prefetched and not used": prefetched_and_not_used,
            "to memory between the passes": to_memory_between_passes,
            "stepped while it is copied": stepped_while_copied,
            "interrupts lose nothing": interrupts_lose_nothing,
            "drives fail": drives_fail,
        }.items():
            if how_late is not AT_ONCE:
                yield f"parameters on drives, {what}: the host is {words}", part(
                    case, how_late=how_late)
    yield from cases_of_gradients()
    for what, options in {
        "": {"steps": 20}, " with masters": {"masters": True},
        " in the backward pass": {"in_backward": True, "steps": 20},
        " with gradients on drives": {"gradients": True},
    }.items():
        yield f"parameters on drives are stepped{what}", part(
            stepped_by_ours, how_late=HALF, **{"steps": STEPS, **options})
    for what, case in {
        "changed between steps": changed_between_steps,
        "changed before a checkpoint's second run": changed_before_the_second_run,
        "changed by what is not counted": changed_uncounted,
        "swapped": swapped,
        "exchanged with an average": exchanged,
        "sharing memory from now on": shares_memory_from_now_on,
        "a state_dict is held": a_state_dict_is_held,
        "a state_dict is held, steps in backward": part(a_state_dict_is_held, in_backward=True),
        "committed, killed and resumed": committed_killed_and_resumed,
        "committed, killed and resumed, steps in backward": part(
            committed_killed_and_resumed, in_backward=True),
        "committed, killed and resumed, one stays": part(committed_killed_and_resumed, stays=True),
        "a frozen base": a_frozen_base,
        "a matrix is stepped whole": a_matrix_is_stepped_whole,
        "two models on one store": two_models_on_one_store,
        "made there": made_there,
    }.items():
        yield f"parameters on drives, {what}", part(case, how_late=HALF)
    yield from cases_of_host_memory()
    yield "parameters on drives, a graph is captured", a_graph_is_captured
    yield "parameters on drives, moved to another device", moved_to_another_device
    yield "parameters on drives, what is refused", refusals


CASES = dict(cases())
