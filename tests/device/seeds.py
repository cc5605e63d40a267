# SPDX-License-Identifier: MIT
# tests/device/seeds.py - training on the late device, by seeds: with spillway as without it
"""Each seed makes a model, a way to be late, a store and a trouble. The model trains without
spillway and with it: losses and gradients have the same bits, the host waits for a stream that
computes only where Case.waits_max() says why, and afterwards all memory is back.

    python seeds.py --first 1 --count 500 DRIVE...
"""

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import glob
import logging
import math
import random
import sys
import threading
import time
import traceback

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import spillway
import spillway.torch
from spillway._gpu import accelerator
from spillway._core.library import fast

import parameters
from machine import machine
from troubles import Troubled

PARAMETERS_EVERY = 4  # one seed of that many is of a model with parameters on drives
SECONDS_MAX = 120  # of one seed, which takes half a second: then it hangs
WATCH_SECONDS = 10
TROUBLES = ("interrupt", "copies fail", "exception")


class Watchdog(threading.Thread):
    """Shows the stacks and ends the program when a seed hangs. On a busy machine threads wait for
    processors: that time does not count."""

    def __init__(self):
        super().__init__(daemon=True)
        self.waited_ns = {}  # by thread, also of those that have ended
        self.began = self._now()
        self.start()

    def seed_begins(self):
        self.began = self._now()
        self._put_off()

    def run(self):
        while True:
            time.sleep(WATCH_SECONDS)
            self._put_off()

    def _put_off(self):
        """By a thread of C, which the interpreter's lock does not hold back."""
        left = SECONDS_MAX - (self._now() - self.began)
        faulthandler.dump_traceback_later(max(left, 0.1), exit=True)

    def _now(self):
        for path in glob.glob("/proc/self/task/*/schedstat"):
            with contextlib.suppress(OSError), open(path) as file:  # the thread has ended since
                self.waited_ns[path] = int(file.read().split()[1])
        return time.monotonic() - sum(list(self.waited_ns.values())) / 1e9


class Trouble(Exception):
    """Of the model."""


def device_of(number):
    """Where there is one device only, it stands for two."""
    return torch.device(machine.kind, min(number, machine.count - 1))


class Layer(nn.Module):
    """What layers do to the tensors that they save: views, the same one twice, changes in place."""

    def __init__(self, width, kind, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.norm, self.up, self.down = (nn.LayerNorm(width), nn.Linear(width, 2 * width),
                                         nn.Linear(2 * width, width))
        self.kind = kind

    def forward(self, x):
        if self.kind == "checkpoint":
            return checkpoint(self.body, x, use_reentrant=False)
        return self.body(x)

    def body(self, x):
        y = self.up(self.norm(x))
        if self.kind == "in place":
            y = torch.relu_(y)
        elif self.kind == "views":
            left, right = y.chunk(2, -1)
            y = torch.cat([left * right.sigmoid(), (right * left).transpose(0, 1).transpose(0, 1)],
                          -1)
        elif self.kind == "twice":
            y = y * y + (y[None] * y[None].exp()).squeeze(0)
        else:
            y = nn.functional.gelu(y)
        return x + self.dropout(self.down(y))


class Model(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.layers = nn.ModuleList(Layer(case.width, kind, case.dropout) for kind in case.kinds)
        self.split = case.split
        self.fails_at = None

    def place(self, device):
        for i, layer in enumerate(self.layers):
            layer.to(device_of(1 if i >= self.split else device))
        return self

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            if i == self.fails_at:
                self.fails_at = None
                raise Trouble
            if i == self.split:
                x = x.cpu().to(device_of(1))
            x = layer(x)
        return x


class Case:
    """All that a seed says."""

    def __init__(self, seed):
        dice = random.Random(seed)
        self.seed = seed
        self.width = dice.choice((16, 32, 64))
        self.rows = dice.choice((8, 64))
        self.kinds = [dice.choice(("gelu", "checkpoint", "in place", "views", "twice"))
                      for _ in range(dice.randint(2, 6))]
        self.split = dice.randint(1, len(self.kinds)) if dice.random() < 0.3 else len(self.kinds)
        self.batches = dice.choice((1, 1, 2))  # accumulated in a step
        self.late = dice.choice((0, 0.1, 0.5)), dice.choice((0, 0.25, 1)), dice.random() < 0.5
        self.notifies = dice.random() < 0.1
        self.small = dice.random() < 0.4  # a store with little staging memory
        self.mode = dice.choice(("spill", "spill", "fastest", "budget"))
        self.trouble = dice.choice(TROUBLES) if dice.random() < 0.5 else None
        self.trouble_step = dice.randrange(6)
        self.trouble_at = dice.randint(0, 60)
        self.unused = dice.random() < 0.3  # a forward pass without a backward pass comes first
        self.tasks_take = dice.choice(((0, 0), (1000, 0.01), (100_000, 1)))  # by the device's clock
        self.dropout = dice.choice((0, 0, 0.25))
        self.recompute = dice.choice(("never", "auto", "some", "operations"))
        # Operations are recomputed from the fourth step on.
        self.steps = 6 if self.recompute in ("auto", "operations") else 3
        self.discards_all = dice.random() < 0.8  # all that may be, whatever a plan says
        if self.recompute != "never":
            self.mode = dice.choice(("fastest", "budget"))
        # Of host memory: 32 tensors have room in 2 MiB, all in 64.
        self.host_bytes = dice.choice((0, 0, 2 << 20, 4 << 20, 64 << 20))
        self.alone = self.host_bytes > 0 and self.mode != "spill" and dice.random() < 0.5

    def waits_max(self, stats):
        """Of the host, in mode "fastest" once for each tensor that found no staging memory: until
        the device has come to it. And for what was recomputed: for each device, when a backward
        pass ends; and for each result of an operation, before its memory is released."""
        waits = stats.staging_waits if self.mode == "fastest" else 0
        if self.recompute != "never":
            waits += self.steps * self.batches * machine.count
        if self.recompute in ("auto", "operations"):
            waits += stats.tensors_given_up
        return waits

    def __str__(self):
        return ", ".join(f"{name} {value}" for name, value in vars(self).items())

    def be_late(self):
        machine.be_late(self.seed, *self.late)
        machine.tasks_take(*self.tasks_take)


def batch_of(case, step, number):
    generator = torch.Generator().manual_seed(case.seed * 1000 + step * 10 + number)
    return torch.randn(case.rows, case.width, generator=generator)


def train(case, off_of, skip):
    """(bits of every loss and gradient; steps that did not come to their end; the context)"""
    torch.manual_seed(case.seed)
    model = Model(case).place(0)
    off = off_of(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, foreach=False)
    seen, failed = [], []
    for step in range(case.steps):
        if step in skip:
            continue
        torch.manual_seed(case.seed * 10 + step)
        try:
            losses = one_step(case, model, off, step)
        except (Trouble, KeyboardInterrupt, RuntimeError) as error:
            if off is None or not is_expected(case, step, error):
                raise
            traceback.clear_frames(error.__traceback__)
            del error
            failed.append(step)
            optimizer.zero_grad()
            continue
        finally:
            end_trouble(off)
        seen += [loss.item() for loss in losses]
        seen += [parameter.grad.cpu() for parameter in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    return seen, failed, off


def one_step(case, model, off, step):
    make_trouble(case, model, off, step)
    if off is not None:
        off.__enter__()
    try:
        if off is not None and case.batches > 1:
            off.step()
        if case.unused:
            model(batch_of(case, step, 9).to(device_of(0)))
        losses = []
        for number in range(case.batches):
            loss = model(batch_of(case, step, number).to(device_of(0))).pow(2).mean()
            losses.append(loss.detach())
            loss.backward()
        return losses
    finally:
        if off is not None:
            off.__exit__(None, None, None)


def make_trouble(case, model, off, step):
    if off is None or step != case.trouble_step:
        return
    if case.trouble == "interrupt":
        off.table.until_interrupt = case.trouble_at
    elif case.trouble == "copies fail":
        off.table.until_failure = case.trouble_at
    elif case.trouble == "exception":
        model.fails_at = case.trouble_at % len(case.kinds)


def end_trouble(off):
    if off is not None:
        off.table.until_interrupt = off.table.until_failure = None


def is_expected(case, step, error):
    if step != case.trouble_step:
        return False
    return {
        "interrupt": isinstance(error, KeyboardInterrupt),
        "copies fail": "by order" in str(error),
        "exception": isinstance(error, Trouble),
        None: False,
    }[case.trouble]


def offload(case, model, store):
    table = Troubled(machine.table(case.notifies))
    accelerator.table_of = lambda kind: table
    options = {"budget_bytes": 20 * case.rows * case.width} if case.mode == "budget" else {}
    recompute = (lambda name, module: int(name[-1]) % 2) if case.recompute == "some" else None
    if case.host_bytes:
        options["host_bytes"] = case.host_bytes
    off = spillway.torch.offload(model, None if case.alone else store,
                                 sizes=spillway.torch.Sizes(min_bytes=64), mode=case.mode,
                                 recompute=recompute or case.recompute, **options)
    off._session.discards_all = case.discards_all
    off.table = table
    return off


def same(got, expected):
    return len(got) == len(expected) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(got, expected))


def memory_left(before):
    """The memory once it is as before, or after two seconds. Autograd releases a failed backward
    pass on a thread of its own, after it has raised; there is no event for it."""
    for _ in range(100):
        left = machine.memory()
        if left == before:
            break
        time.sleep(0.02)
    return left


def is_there(thing):
    return isinstance(thing, torch.Tensor) and thing.device.type == machine.kind


def check(case, stores):
    """What is wrong with a seed, in words; or None."""
    store = stores[case.small]
    before = machine.memory()
    case.be_late()
    waits = machine.host_waits()
    got, failed, off = train(case, lambda model: offload(case, model, store), ())
    waits, stats = machine.host_waits() - waits, off.stats()
    off.close()
    del off
    if waits > case.waits_max(stats):
        return f"the host waited {waits} times for a stream that computes"
    left = memory_left(before)
    if left != before:
        seen = [each for each in gc.get_objects() if is_there(each)]
        words = f"device memory and pins are {left}, were {before}; Python has {len(seen)} tensors"
        del seen
        train(case, lambda model: None, failed)
        return f"{words}; after plain training it is {machine.memory()}"
    if store.stats().objects:
        return f"{store.stats().objects} objects are left"
    case.be_late()
    expected, _, _ = train(case, lambda model: None, failed)
    if not same(got, expected):
        return "losses or gradients differ"
    return stats


def opened(drives):
    """One store with enough staging memory, one with little."""
    stores = []
    for drive, arena_bytes in zip(drives, (64 << 20, 1 << 20)):
        spillway.format_store([drive])
        stores.append(spillway.Store([drive], arena_bytes=arena_bytes))
    taken, memory = [], ctypes.c_void_p()
    while (fast.spw_store_alloc(ctypes.c_void_p(stores[1].handle), ctypes.c_size_t(64 << 10),
                                ctypes.byref(memory)) == 0):
        taken.append(memory.value)
    for address in taken[:4]:
        fast.spw_store_release(ctypes.c_void_p(stores[1].handle), ctypes.c_void_p(address))
    return stores


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=200, help="how many")
    parser.add_argument("--minutes", type=float, help="begin no seed after these")
    parser.add_argument("--verbose", action="store_true", help="a line per seed")
    parser.add_argument("drives", nargs=2, metavar="DRIVE",
                        help="a file or a device, which is formatted")
    options = parser.parse_args()
    logging.getLogger("spillway").setLevel(logging.CRITICAL)  # troubles are meant
    stores = opened(options.drives)
    passed, failures, totals = 0, 0, {}
    began, minutes = time.monotonic(), options.minutes or math.inf
    watchdog = Watchdog()
    for seed in range(options.first, options.first + options.count):
        if time.monotonic() - began > 60 * minutes:
            break
        case = Case(seed)
        watchdog.seed_begins()
        try:
            if seed % PARAMETERS_EVERY:
                result = check(case, stores)
            else:
                result = parameters.check(seed, stores[0])
        except BaseException:
            result = traceback.format_exc()
        if seed == options.first:
            gc.collect()
            gc.freeze()  # PyTorch's own objects: to go through them takes longer than a seed
        if options.verbose:
            print(seed, time.monotonic(), flush=True)
        if isinstance(result, str):
            failures += 1
            print(f"FAILED seed {seed}: {result} ({case})", flush=True)
            if failures == 5:
                break
            continue
        passed += 1
        for name in ("bytes_copied", "copies_ordered", "staging_waits", "tensors_ahead",
                     "copies_failed", "bytes_forwarded", "bytes_read", "bytes_deduplicated",
                     "bytes_to_host", "host_hits", "tensors_kept_no_staging", "scopes_again",
                     "tensors_given_up", "tensors_restored"):
            totals[name] = totals.get(name, 0) + getattr(result, name)
    print(", ".join(f"{name} {value}" for name, value in totals.items()))
    print(f"{passed} seeds passed, {failures} failed")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
