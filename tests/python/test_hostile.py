# SPDX-License-Identifier: MIT
# tests/python/test_hostile.py - any values in any call: an exception of a kind that is promised
"""Calls drawn by chance, with values that no caller should give; the same ones each time, or others
with SPW_SEED."""
import array
import ctypes
import dataclasses
import inspect
import math
import os
import random

import pytest
import torch

import spillway
import spillway.torch
from offloading import offload_each
from spillway.cache import Cache
from conftest import emptied, make_store

REFUSALS = (spillway.SpillwayError, ValueError, TypeError, OverflowError, MemoryError, BufferError,
            ctypes.ArgumentError, UnicodeError)
CALLS = 1000
# Only what cannot succeed: asking for gigabytes of memory is allowed.
NUMBERS = (0, 1, -1, 2, 7, 511, 512, 4095, 4096, 65536, 1 << 20, -(1 << 31), 1 << 50, 1 << 62,
           (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 200, -(1 << 63))
OTHERS = (None, True, "", "a", "\0", "\udcff", b"", b"x\0y", 1.5, math.nan, math.inf, (), [], {},
          [None], object(), int, "/", "/dev/null", "/proc/self/mem", "x" * 5000,
          ["/dev/null", "/dev/null"])
BUFFERS = (b"", b"a", bytearray(4097), memoryview(bytearray(100))[::2], memoryview(b"abc"),
           array.array("d", [1.0] * 50), (ctypes.c_char * 700)(),
           memoryview(bytearray(64)).cast("Q"))


@pytest.fixture
def dice():
    seed = int(os.environ.get("SPW_SEED") or 20)
    print(f"SPW_SEED={seed}")  # pytest shows it when the test fails
    return random.Random(seed)


def any_value(dice):
    return dice.choice(dice.choice((NUMBERS, OTHERS, BUFFERS)))


def options(dice, names):
    chosen = dice.sample(names, dice.randrange(min(3, len(names)) + 1))
    return {name: any_value(dice) for name in chosen}


def refused(call, *arguments, **named):
    """Return what it returns, or None when it refuses. Any other exception is a failure."""
    try:
        return call(*arguments, **named)
    except REFUSALS as refusal:
        is_ours = isinstance(refusal, spillway.SpillwayError)
        assert not is_ours or str(refusal), "a refusal without words"
        return None


def test_calls_of_a_store(store, dice):
    things = [store.put(b"kept" * 1000)]
    for _ in range(CALLS):
        what = dice.randrange(5)
        thing = dice.choice((*things[1:], any_value(dice)))
        if what == 0:
            put = refused(store.put, any_value(dice))
            if put is not None:
                things.append(put)
        elif what == 1:
            refused(store.get, thing, any_value(dice), any_value(dice))
        elif what == 2:
            refused(store.get_into, thing, dice.choice(BUFFERS), any_value(dice))
        elif what == 3 and thing != things[0]:
            refused(store.free, thing)
            things = [known for known in things if known == things[0] or known != thing]
        else:
            assert store.stats().objects <= len(things) + 1
        assert len(things) < 2000
    assert store.get(things[0], 4000) == b"kept" * 1000
    for thing in things:
        refused(store.free, thing)
    assert emptied(store)


def test_opening_and_formatting(folder, dice):
    drives = make_store(folder, 2, 32 << 20)
    names = ["partition", "queue_depth", "backend", "stripe", "checksums", "hugetlb", "workers"]
    for _ in range(60):
        paths = dice.choice((drives, drives[:1], drives + drives, [any_value(dice)]))
        arena_bytes = dice.choice((4 << 20, 0, 1, -1, 1 << 62, 1 << 64, "x"))
        opened = refused(spillway.Store, paths, arena_bytes=arena_bytes, **options(dice, names))
        if opened is not None:
            thing = opened.put(b"abc")
            assert opened.get(thing, 3) == b"abc"
            opened.close()
        # Only names that no drive can have.
        refused(spillway.probe, any_value(dice))
        refused(spillway.check_store, [any_value(dice)])
        refused(spillway.format_store, drives, **options(dice, ["partitions", "chunk_bytes"]),
                force=True)
        spillway.format_store(drives, force=True)


def test_options_of_a_cache(store, dice):
    names = ["min_bytes", "staging_bytes", "prefetch_bytes", "memory_bytes"]
    for _ in range(200):
        mode = dice.choice(("spill", "observe", "fastest", "budget", any_value(dice)))
        cache = refused(Cache, dice.choice((store, None)), mode=mode, **options(dice, names))
        if cache is not None:
            cache.close()
    thing = store.put(b"well")
    assert store.get(thing, 4) == b"well"
    store.free(thing)


def numbers_of(function):
    """The parameters that are numbers. Sizes may be given as keywords of offload(), too."""
    parameters = inspect.signature(function).parameters
    names = [field.name for field in dataclasses.fields(spillway.torch.Sizes)]
    return (names if "sizes" in parameters else []) + [
        name for name, parameter in parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
        and parameter.annotation in ("int", "Size", "Optional[int]", "Optional[Size]")]


def test_every_number_is_checked(folder):
    """ctypes leaves off what does not fit: 2^64 more would be the same number. Each is refused by
    its name."""
    drives = make_store(folder, 2, 32 << 20)
    tried = []
    with spillway.Store(drives) as store:
        thing = store.put(b"kept" * 1000)
        off = offload_each(store, torch.nn.Linear(2, 2))
        given = {"thing": thing, "length": 4, "offset": 0, "micro_batch": 0}
        calls = [
            (spillway.format_store, (drives,), {}),
            (spillway.committed, (drives,), {}),
            (spillway.Store, (drives,), {}),
            (spillway.Cache, (store,), {}),
            (spillway.torch.offload, (torch.nn.Linear(2, 2), store), {"mode": "budget"}),
            (store.get, (), {"thing": thing, "length": 4}),
            (store.get_into, (), {"thing": thing, "buffer": bytearray(4)}),
            (store.free, (), {}),
            (store.commit, ([],), {}),
            (store.pressure, (), {}),
            (off.stage, (), {"micro_batch": 0, "phase": "forward"}),
        ]
        for function, arguments, named in calls:
            for name in numbers_of(function):
                for wrong in (given.get(name, 1) + (1 << 64), (1 << 64) + 1, -1, -(1 << 64)):
                    if name != "budget_bytes" and "mode" in named:
                        named = {**named, "budget_bytes": 1 << 20}
                    with pytest.raises(ValueError, match=f"{name} must"):
                        function(*arguments, **{**named, name: wrong})
                tried.append((function, name))
        with pytest.raises(ValueError, match="micro_batch must"):
            off.stage(0, "forward", next=(1 << 32, "backward"))
        off.close()
        assert store.get(thing, 4000) == b"kept" * 1000
        store.free(thing)
        assert emptied(store)
    owners = spillway, spillway.Store, spillway.Cache, spillway.torch.Offload
    public = [thing for owner in owners for name, thing in vars(owner).items()
              if name[0] != "_" and inspect.isfunction(thing)]
    assert not {(f.__name__, n) for f in public for n in numbers_of(f)} - {
        (f.__name__, n) for f, n in tried}
