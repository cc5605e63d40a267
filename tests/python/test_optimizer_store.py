# SPDX-License-Identifier: MIT
# tests/python/test_optimizer_store.py - an optimizer over drives: the same bits, also after a crash
import errno
import os
import random
import signal
import subprocess
import time

import pytest
import torch
from torch import nn

import spillway
from spillway.state import committed_records
from conftest import EXAMPLES, SEED, make_drives, make_store, options_of, run_python, started
from pairs import Pair, assert_same, give_grads, needs_hooks, pair_of
from pairs import over as over_any

STEPS = 24
SHAPES = ((1000, 37), (1000,), (20011,), (5, 3))


def opened(drives, **options):
    return spillway.Store(drives, arena_bytes=8 << 20, **options)


def parameters(masters=False):
    generator = torch.Generator().manual_seed(SEED)
    values = [torch.randn(shape, generator=generator) for shape in SHAPES]
    return [nn.Parameter(value.bfloat16() if masters else value) for value in values]


def over(store, params, tile=1009, **options):
    return over_any(params, store=store, tile=tile, **options)


def pair_over(store, tile=1009, **options):
    return pair_of(parameters(), store=store, tile=tile, **options)


def committed(drives, **options):
    """What its only step makes of the parameters."""
    ours = parameters()
    with opened(drives) as store:
        optimizer = over(store, ours, **options)
        give_grads(ours)
        optimizer.step()
        optimizer.commit()
        return ours, optimizer.stats()


def wrapped(optimizer, copies):
    """As Lightning gives it to a program: its own class, but another step(); and other attributes,
    which are copies or ask for those of the optimizer."""
    own = {"step": lambda self, closure=None: optimizer.step(closure)}
    if not copies:
        own["__getattr__"] = lambda self, name: getattr(optimizer, name)
    cls = type("Wrapped", (type(optimizer),), own)
    wrapper = cls.__new__(cls)
    if copies:
        wrapper.__dict__.update(optimizer.__dict__)
    return wrapper


@pytest.mark.parametrize("copies", [True, False])
def test_a_wrapper_commits_the_steps_that_were_made(formatted, copies):
    for begin in (0, 3):
        params = parameters()
        with opened(formatted) as store:
            optimizer = wrapped(over(store, params), copies)
            resumed = optimizer.resume()
            assert (resumed.step if resumed else 0) == begin
            for step in range(begin, begin + 3):
                give_grads(params)
                optimizer.step()
                assert optimizer.commit() == step + 1


def test_what_was_resumed_once_is_not_there_again(formatted):
    """The message says what to do."""
    committed(formatted)
    with opened(formatted) as store:
        params = parameters()
        first = over(store, params)
        first.resume()
        give_grads(params)
        first.step()
        first.close()
        params = parameters()
        second = over(store, params)
        give_grads(params)
        for _ in range(2):
            with pytest.raises(spillway.SpillwayError, match="open the store again"):
                second.step()


@pytest.mark.parametrize("name, options", [
    ("AdamW", {"amsgrad": True}), ("SGD", {"lr": 0.1, "momentum": 0.9}), ("SGD", {"lr": 0.1})],
    ids=["AdamW", "momentum", "SGD"])
def test_bits_are_those_of_the_class(formatted, name, options):
    with opened(formatted) as store:
        pair = pair_over(store, cls=getattr(torch.optim, name), **options)
        for step in range(6):
            pair.give_grads()
            if step == 3:
                pair.ours[2].grad = pair.theirs[2].grad = None
            pair.step(zero=False)
        stats = pair.optimizer.stats()
        if name == "AdamW":
            assert stats.takes > 4 * stats.records / 2 and stats.bytes_read > 0
            assert stats.memory_bytes < stats.total_bytes / 10
        pair.same_state()


def test_memory_is_given_back(store):
    """The fixture asks whether the store is empty: what is not committed is forgotten."""
    optimizer = over(store, parameters())
    with pytest.raises(spillway.SpillwayError) as caught:
        over(store, parameters())
    assert caught.value.errno == errno.EBUSY
    optimizer.close()
    again = over(store, parameters())
    give_grads(again.param_groups[0]["params"])
    again.step()
    again.close()
    again.close()
    with pytest.raises(spillway.SpillwayError, match="is closed"):
        again.step()


def accumulate(pair, passes=1):
    """Backward passes that come to the same gradients."""
    for _ in range(passes):
        grads = [torch.randn(param.shape) for param in pair.ours]
        for params in pair.models:
            torch.autograd.backward([(param * grad).sum() for param, grad in zip(params, grads)])


@needs_hooks
def test_during_the_backward_pass_records_are_taken_in_the_order_that_was_said(formatted):
    """Each pass is said once, at the end of the step before."""
    with opened(formatted) as store:
        pair = pair_over(store, in_backward=True)
        for step in range(4):
            accumulate(pair)
            pair.step()
            stats = pair.optimizer.stats()
            assert stats.passes == step + 2
            assert stats.passes_departed <= 1


def test_errors_name_the_remedy(formatted):
    huge = [nn.Parameter(torch.zeros(()).expand(1 << 40))]
    with opened(formatted) as store:
        with pytest.raises(spillway.SpillwayError, match="too small by [0-9]+ bytes"):
            over(store, huge, tile=None)
        with pytest.raises(spillway.SpillwayError) as caught:
            over(store, parameters(), memory=1 << 30)
        assert caught.value.errno == errno.ENOBUFS
        over(store, parameters()).close()


@pytest.mark.parametrize("masters", [False, True, "compact"])
def test_resumed_after_the_store_was_closed(formatted, masters):
    ours, others = parameters(masters), [nn.Parameter(param * 0) for param in parameters(masters)]
    with opened(formatted) as store:
        optimizer = over(store, ours, masters=masters)
        assert optimizer.resume() is None
        for _ in range(3):
            give_grads(ours)
            optimizer.step()
        assert optimizer.commit(extra=b"anything") == 3
        at_commit = [param.detach().clone() for param in ours]
        give_grads(ours)
        optimizer.step()
    with opened(formatted) as store:
        again = over(store, others, masters=masters)
        with pytest.raises(spillway.SpillwayError, match="has commit 3 of this model"):
            again.step()
        assert again.resume() == (3, b"anything")
        assert_same(list(map(torch.Tensor.detach, others)), at_commit)
        give_grads(others)  # the generator is where it was
        again.step()
        assert_same(others, ours)


def test_resumed_with_another_memory(formatted):
    """Tiles are those of the commit, unless others are asked for."""
    others = parameters()
    ours, stats = committed(formatted, tile=None, memory=64 << 10)
    with opened(formatted) as store:
        again = over(store, others, tile=None, memory=256 << 10)
        assert again.resume().step == 1
        assert again.stats().records == stats.records
        assert again.stats().buffers > 4
        assert_same(ours, others)


def test_a_commit_of_another_model_stays_as_it_is(formatted):
    ours, _ = committed(formatted)
    for params, tile in ((ours[:2], 1009), (ours[::-1], 1009), (ours, 1010)):
        before = [param.detach().clone() for param in params]
        with opened(formatted) as store:
            other = over(store, params, tile=tile)
            with pytest.raises(spillway.SpillwayError, match=r"here it is of .*\[0:1009\]|"
                               "must be those of the commit") as caught:
                other.resume()
            assert caught.value.errno == errno.EUCLEAN
        assert_same(before, [param.detach() for param in params])
    with opened(formatted) as store:
        assert over(store, ours).resume().step == 1


def test_a_commit_that_is_not_wanted_is_given_up(formatted):
    ours, _ = committed(formatted)
    with pytest.raises(spillway.SpillwayError) as caught:
        opened(formatted, commit=5)
    assert caught.value.errno == errno.ENODATA
    with opened(formatted, commit=1) as store:
        assert over(store, ours).resume().step == 1
    with opened(formatted, commit=None) as store:
        optimizer = over(store, ours[:2])
        assert optimizer.resume() is None
        give_grads(ours)
        optimizer.step()


@needs_hooks
@pytest.mark.parametrize("passes", [1, 3])
def test_gradients_are_written_once_and_read_once(formatted, passes):
    """And each further backward pass reads and writes them once more. A norm of what one pass has
    computed reads nothing, one of a sum reads it."""
    with opened(formatted) as store:
        pair = pair_over(store, gradients=True)
        layout = pair.optimizer._tiled.records.layout
        state_bytes = sum(tile.len_bytes for tile in layout.tiles)
        gradient_bytes = sum(tile.len_bytes for tile in layout.gradients)
        for _ in range(4):
            before = pair.optimizer.stats()
            accumulate(pair, passes)
            pair.clip(0.1)
            pair.step()
            after = pair.optimizer.stats()
        written = state_bytes + passes * gradient_bytes
        read = written + gradient_bytes * (passes > 1)
        # Less what stays in memory as one pass over records ends and the next begins; for a norm a
        # tile of two parameters is read twice.
        saved = read - (after.bytes_read - before.bytes_read)
        assert -after.memory_bytes < saved <= 3 * after.memory_bytes
        assert abs(written - (after.bytes_written - before.bytes_written)) <= after.memory_bytes
        assert after.memory_bytes < state_bytes / 9


# ---- Crashes -------------------------------------------------------------------------------------


def train(drives, results, masters=False):
    """Until STEPS are made, from the last commit on. It commits every other step."""
    torch.manual_seed(SEED)
    params = parameters(masters)
    with opened(drives) as store:
        optimizer = over(store, params, masters=masters)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        resumed = optimizer.resume()
        if resumed is not None:
            scheduler.load_state_dict(resumed.extra["scheduler"])
        while optimizer.steps < STEPS:
            give_grads(params)
            optimizer.step()
            scheduler.step()
            if optimizer.steps % 2 == 0:
                optimizer.commit(extra={"scheduler": scheduler.state_dict()})
    torch.save([param.detach() for param in params], results)


def train_in_child(drives, results, masters, seconds):
    """Return: whether it came to its end, before a signal did."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)  # the parent's are not here, and would be waited for
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            train(drives, results, masters)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGALRM), f"the child ended by itself, with {status}"
    return status == 0


@pytest.mark.parametrize("masters", [[False], [True], ["compact"], [True, "compact"]],
                         ids=["float32", "masters", "compact", "by turns"])
def test_a_run_that_is_killed_at_any_moment_comes_to_the_same_bits(folder, masters):
    """Each time with the next kind of masters, which are converted as it is resumed."""
    source = random.Random(SEED)
    for name in ("first", "plain"):  # the first one imports things, too
        plain_drives = make_store(folder, 2, 64 << 20, name)
        begun = time.monotonic()
        assert train_in_child(plain_drives, folder / "plain", masters[0], 1000)
        seconds = time.monotonic() - begun
    drives = make_store(folder, 2, 64 << 20)
    kills, ended = 0, False
    while not ended or kills == 0:
        if ended:  # faster than the run that was timed: once more, from the start
            seconds /= 2
            spillway.format_store(drives, force=True, erase=True)
        ended = train_in_child(drives, folder / "killed", masters[kills % len(masters)],
                               seconds * (source.uniform(0.05, 0.8) if kills < 12 else 1000))
        kills += not ended
    print(f"killed {kills} times")
    assert_same(torch.load(folder / "killed"), torch.load(folder / "plain"))


@pytest.mark.rest
@pytest.mark.parametrize("more", [[], pytest.param(["--muon"], marks=pytest.mark.skipif(
    not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon"))], ids=["adamw", "muon"])
def test_the_example_goes_on_where_it_was_killed(folder, more):
    drives, plain_drives = make_drives(folder, 2, 64 << 20), make_drives(folder, 1, 64 << 20, "one")
    spillway.format_store(drives)
    spillway.format_store(plain_drives)

    def arguments(devices):
        return [EXAMPLES / "resume.py", *more,
                *options_of(devices=devices, steps=12, every=3, hidden=32)]

    plain = run_python(*arguments(plain_drives))
    assert plain.returncode == 0, plain.stderr
    with started(*arguments(drives), stdout=subprocess.PIPE) as process:
        first = [process.stdout.readline() for _ in range(8)]
        process.kill()
    again = run_python(*arguments(drives))
    assert again.returncode == 0, again.stderr
    head, *rest = again.stdout.splitlines()
    assert head in [f"resumed after step {step}" for step in (6, 9, 12)]
    expected = plain.stdout.splitlines()
    assert [line.strip() for line in first] == expected[:8]
    assert rest == expected[int(head.split()[-1]):]


# ---- With two copies -----------------------------------------------------------------------------


@pytest.mark.parametrize("lost", range(3))
def test_the_same_bits_without_a_drive(folder, lost):
    """One is lost between commit and resume, and comes back later, with the commit of then."""
    drives = make_drives(folder, 3)
    pulled = drives[lost] + ".pulled"
    spillway.format_store(drives)
    with opened(drives) as store:
        pair = pair_over(store, copies=2)
        pair.train(3)
        pair.optimizer.commit()
        assert store.stats().chunks_single == 0
    os.rename(drives[lost], pulled)
    # Its path leads nowhere, or it is not named.
    named = drives if lost == 0 else [path for path in drives if path != drives[lost]]
    for missing, step, steps in ((1, 3, 2), (0, 5, 1)):
        with opened(named) as store:
            assert store.stats().drives_missing == missing
            ours = [nn.Parameter(param * 0) for param in pair.ours]
            pair = Pair(ours, pair.theirs, over(store, ours, copies=2), pair.plain)
            assert pair.optimizer.resume().step == step
            pair.train(steps)
            pair.optimizer.commit()
        if missing:
            os.rename(pulled, drives[lost])
            named = drives


def test_a_lost_drive_without_a_mirror_is_refused(formatted):
    committed(formatted)
    with opened(formatted) as store:
        names = [name for name, _ in committed_records(store)]
    refusals = 0
    for missing in formatted:
        named = [drive for drive in formatted if drive != missing]
        with pytest.raises(spillway.SpillwayError, match=r"objects cannot be had.*; lost: |"
                           "is not known without|is missing") as caught:
            opened(named)
        assert caught.value.errno == errno.ENXIO
        lost = str(caught.value).partition("; lost: ")[2].partition(", and ")[0]
        refusals += bool(lost) and set(lost.split(", ")) <= set(names)
    assert refusals > 0  # where the description of the commit is, the records are known
    with opened(formatted) as store:
        with pytest.raises(ValueError, match="copies must be 1 or 2"):
            over(store, parameters(), copies=3)


def test_a_store_of_one_drive_has_no_mirror(folder):
    drives = make_store(folder, 1)
    with opened(drives) as store:
        params = parameters()
        give_grads(params)
        with pytest.raises(spillway.SpillwayError, match="one drive") as caught:
            over(store, params, copies=2).step()
        assert caught.value.errno == errno.EINVAL
