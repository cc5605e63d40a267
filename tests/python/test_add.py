# SPDX-License-Identifier: MIT
# tests/python/test_add.py - spillway add: the same bits of training; killed at any moment
import pytest

import spillway
from conftest import make_drives
from records import assert_not_finished, change, commit, killed, opens, verify

SHAPES = ((300, 37), (1000,), (5, 3))


def add(new, drives, *options):
    return change("add", new, "--devices", ",".join(drives), *options)


@pytest.mark.parametrize("count, copies, masters", [(1, 1, False), (2, 1, "compact"), (2, 2, False),
                                                    (3, 2, "compact")])
def test_training_goes_on_with_the_same_bits(folder, count, copies, masters):
    """Two are added, each between a commit and a resume; the state spreads over all."""
    torch = pytest.importorskip("torch")
    pairs = pytest.importorskip("pairs")
    drives = make_drives(folder, count, 64 << 20)
    spillway.format_store(drives)
    dtype = torch.bfloat16 if masters else torch.float32
    params, _ = pairs.made(SHAPES, dtype)
    options = {"tile": 1009, "copies": copies, "masters": masters}
    plain = [torch.nn.Parameter(param.detach().clone()) for param in params]

    def train(ours, optimizer, steps):
        for _ in range(steps):
            pairs.give_grads(ours)
            optimizer.step()

    with spillway.Store(drives, arena_bytes=8 << 20) as store:
        optimizer = pairs.over(params, store=store, **options)
        torch.manual_seed(1)
        train(params, optimizer, 3)
        optimizer.commit()
    for number in range(2):
        new, = make_drives(folder, 1, (48 + 32 * number) << 20, f"new{number}")
        done = add(new, drives)
        assert done.returncode == 0, done
        assert f"drive {count + number + 1} of store" in done.stdout
        drives.append(new)
        params = [torch.nn.Parameter(param * 0) for param in params]
        with spillway.Store(drives[::-1], arena_bytes=8 << 20) as store:
            assert store.stats().drives_missing == 0
            optimizer = pairs.over(params, store=store, **options)
            assert optimizer.resume().step == 3 + 2 * number
            torch.manual_seed(2 + number)
            train(params, optimizer, 2)
            optimizer.commit()
            assert all(drive.bytes_written > 0 for drive in store.drive_stats())
    # The same without a store that grows.
    with spillway.Store(make_formatted(folder), arena_bytes=8 << 20) as store:
        optimizer = pairs.over(plain, store=store, **options)
        for seed, steps in ((1, 3), (2, 2), (3, 2)):
            torch.manual_seed(seed)
            train(plain, optimizer, steps)
        pairs.assert_same(params, plain)
        whole = optimizer.state_dict()["state"]
    for lost in (None, *(range(count + 2) if copies == 2 else ())):
        named = [path for index, path in enumerate(drives) if index != lost]
        ours = [torch.nn.Parameter(param * 0) for param in params]
        with spillway.Store(named, arena_bytes=8 << 20) as store:
            optimizer = pairs.over(ours, store=store, **options)
            assert optimizer.resume().step == 7
            pairs.assert_same(ours, plain)
            pairs.assert_same(optimizer.state_dict()["state"], whole)


def make_formatted(folder):
    drives = make_drives(folder, 2, 64 << 20, "plain")
    spillway.format_store(drives)
    return drives


def words_of(drives, new, _draw):
    return ["add", new, "--devices", ",".join(drives)]


def test_killed_at_any_moment(folder):
    """What is left is the store with the new drive or without it; and again, to the end."""
    outcomes, is_new = {True: 0, False: 0}, None
    for drives, new, _, is_forced in killed(folder, words_of):
        if is_forced is not None:
            assert not is_forced or is_new is not None
            verify([*drives, new], 7)
            commit([*drives, new], 8)
            for lost in range(4):
                verify([path for index, path in enumerate([*drives, new]) if index != lost], 8)
            continue
        verify(drives, 7)
        is_new = opens([*drives, new])
        outcomes[is_new is None] += 1
        if is_new is None:
            verify([*drives, new], 7)
        else:
            assert_not_finished(is_new)
    print(f"without {outcomes[False]}, with {outcomes[True]}")
