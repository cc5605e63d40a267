# SPDX-License-Identifier: MIT
# tests/python/test_replace.py - spillway replace: the same bits of training; killed at any moment
import os

import pytest

import spillway
from conftest import make_drives
from records import assert_not_finished, change, killed, opens, verify


def replace(old, new, drives, *options):
    return change("replace", old, new, "--devices", ",".join(drives), *options)


# ---- Training --------------------------------------------------------------------------------


def replaced(drives, new, old, named):
    """The drives that the store has now. The old one is there, or away, or named by its number."""
    others = [path for path in drives if path != drives[old]]
    if named == "gone":
        os.rename(drives[old], drives[old] + ".pulled")
    done = replace(str(old + 1) if named == "number" else drives[old], new, others)
    assert done.returncode == 0, done
    assert f"drive {old + 1} of store" in done.stdout
    if named == "gone":
        os.rename(drives[old] + ".pulled", drives[old])
    with pytest.raises(spillway.SpillwayError, match="until it was replaced by another"):
        spillway.Store([drives[old], *others])
    return [*others, new]


def made(folder, new_bytes):
    """The drives of an empty store, and one that is to replace one of them."""
    drives = make_drives(folder, 3, 64 << 20)
    spillway.format_store(drives)
    return drives, *make_drives(folder, 1, new_bytes, "new")


WAYS = [(0, "path"), (1, "gone"), (2, "number")]
SHAPES = ((300, 37), (1000,), (5, 3))


@pytest.mark.parametrize("old, named", WAYS)
def test_training_goes_on_with_the_same_bits(folder, old, named):
    """It is replaced between a commit and a resume; then each of the drives may be lost."""
    torch = pytest.importorskip("torch")
    pairs = pytest.importorskip("pairs")
    drives, new = made(folder, 80 << 20)

    def resumed(store):
        ours = [torch.nn.Parameter(param * 0) for param in pair.ours]
        optimizer = pairs.over(ours, store=store, tile=1009, copies=2)
        return optimizer.resume().step, pairs.Pair(ours, pair.theirs, optimizer, pair.plain)

    with spillway.Store(drives, arena_bytes=8 << 20) as store:
        pair = pairs.pair_of(*pairs.made(SHAPES), store=store, tile=1009, copies=2)
        pair.train(3)
        pair.optimizer.commit()
    now = replaced(drives, new, old, named)
    with spillway.Store(now, arena_bytes=8 << 20) as store:
        assert store.stats().drives_missing == 0
        step, pair = resumed(store)
        assert step == 3
        pair.same()
        pair.same_state()
        pair.train(2)
        pair.optimizer.commit()
        assert store.stats().chunks_single == 0
    for lost in range(3):
        with spillway.Store(now[:lost] + now[lost + 1:], arena_bytes=8 << 20) as store:
            step, other = resumed(store)
            assert step == 5
            other.same()
            other.same_state()


@pytest.mark.parametrize("old, named", WAYS)
def test_compact_masters_have_the_same_bits(folder, old, named):
    torch = pytest.importorskip("torch")
    pairs = pytest.importorskip("pairs")
    drives, new = made(folder, 64 << 20)
    params, _ = pairs.made(SHAPES, torch.bfloat16)
    with spillway.Store(drives, arena_bytes=8 << 20) as store:
        optimizer = pairs.over(params, store=store, tile=1009, copies=2, masters="compact")
        for _ in range(3):
            pairs.give_grads(params)
            optimizer.step()
        optimizer.commit()
        masters = optimizer.state_dict()["state"]
    now = replaced(drives, new, old, named)
    for lost in (None, *range(3)):
        named_now = [path for index, path in enumerate(now) if index != lost]
        ours = [torch.nn.Parameter(param * 0) for param in params]
        with spillway.Store(named_now, arena_bytes=8 << 20) as store:
            optimizer = pairs.over(ours, store=store, tile=1009, copies=2, masters="compact")
            assert optimizer.resume().step == 3
            pairs.assert_same(ours, params)
            pairs.assert_same(optimizer.state_dict()["state"], masters)


# ---- Killed ----------------------------------------------------------------------------------


def words_of(drives, new, draw):
    old = draw.choice(drives)
    named = old if draw.random() < 0.5 else str(drives.index(old) + 1)
    return ["replace", named, new, "--devices", ",".join(path for path in drives if path != old)]


def test_killed_at_any_moment(folder):
    """What is left is the store with either drive; and again, to the end."""
    outcomes, is_new = {True: 0, False: 0}, None
    for drives, new, words, is_forced in killed(folder, words_of):
        others = words[-1].split(",")
        old, = set(drives) - set(others)
        if is_forced is not None:
            assert not is_forced or is_new is not None
            verify([*others, new], 7)
            verify([new, others[0]], 7)
            verify([new, others[1]], 7)
            assert "until it was replaced by another" in opens([*others, old])
            continue
        verify(others, 7)
        is_new, is_old = opens([*others, new]), opens([*others, old])
        outcomes[is_new is None] += 1
        if is_new is None:
            assert "until it was replaced by another" in is_old
            verify([*others, new], 7)
        else:
            assert is_old is None
            assert_not_finished(is_new)
            verify(drives, 7)
    print(f"old {outcomes[False]}, new {outcomes[True]}")
