# SPDX-License-Identifier: MIT
# tests/python/test_endings.py - Ctrl-C, another thread, the garbage collector, exit, a copy
# layer: test all
import contextlib
import copy
import gc
import os
import pickle
import signal
import subprocess
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import spillway
import spillway.torch
from conftest import EXAMPLES, ROOT, emptied, given_back, options_of, run_python, started, tiny
from offloading import (TAKE, Layers, equal, gradients_of, hooks_call, in_threads, left_in,
                        offload_all, offload_each, save, settle)
from spillway._core import handle as handle_module
from spillway.bench import __main__ as bench
from spillway import cache as cache_module
from spillway import store as store_module
from spillway.cache import Cache
from spillway.integrations._training import Training


class Calls:
    """The library's blocking calls; ``then()`` comes in after one of them, once: there Python
    raises Ctrl-C that came meanwhile."""

    def __init__(self, blocking, name, then):
        self._blocking, self._name, self._then = blocking, name, then

    def __getattr__(self, name):
        function = getattr(self._blocking, name)
        if name != self._name or self._then is None:
            return function
        then, self._then = self._then, None

        def call(*arguments):
            result = function(*arguments)
            then()
            return result

        return call


def interrupt():
    raise KeyboardInterrupt


@pytest.fixture
def during(monkeypatch):
    def install(module, name, then=interrupt):
        calls = Calls(module.blocking, name, then)
        monkeypatch.setattr(module, "blocking", calls)
        return calls

    return install


# ---- Ctrl-C --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["spw_store_put", "spw_request_wait_any"])
def test_an_interrupted_put_leaves_nothing(store, during, name):
    during(store_module, name)
    with pytest.raises(KeyboardInterrupt):
        store.put(bytearray(8 << 20))
    assert store.stats().requests == 0 and emptied(store)
    thing = store.put(b"again")
    assert store.get(thing, 5) == b"again"
    store.free(thing)


@pytest.mark.parametrize("name", ["spw_store_get", "spw_request_wait_any"])
def test_an_interrupted_get_writes_to_the_buffer_no_more(store, during, name):
    thing = store.put(bytearray(8 << 20))
    during(store_module, name)
    with pytest.raises(KeyboardInterrupt):
        store.get(thing, 8 << 20)
    assert store.stats().requests == 0
    assert store.get(thing, 8 << 20) == bytes(8 << 20)
    store.free(thing)


def test_an_interrupted_open_is_undone(formatted, during):
    during(store_module, "spw_store_open")
    with pytest.raises(KeyboardInterrupt):
        spillway.Store(formatted)
    with spillway.Store(formatted) as store:
        during(cache_module, "spw_cache_open")
        with pytest.raises(KeyboardInterrupt):
            Cache(store)
    given_back(formatted)


def test_an_interrupted_close_closes(formatted, during):
    store = spillway.Store(formatted)
    cache = Cache(store)
    during(cache_module, "spw_cache_close")
    with pytest.raises(KeyboardInterrupt):
        store.close()
    assert cache.closed
    given_back(formatted)


# ---- Threads -------------------------------------------------------------------------------------


def test_closed_by_another_thread_during_a_put(formatted, during):
    store = spillway.Store(formatted)
    order = []

    def close():
        in_threads(store.close)
        order.append("closed")

    during(store_module, "spw_store_put", close)
    closing = during(store_module, "spw_store_close", lambda: order.append("released"))
    store.put(bytearray(1 << 20))
    assert order == ["closed", "released"] and store.closed and closing
    given_back(formatted)


PROGRAM = """
import sys, torch, spillway.torch
class Nothing(torch.nn.Module):
    pass
drives = sys.argv[1:]
store = spillway.Store(drives)
off = spillway.torch.offload(
    Nothing(), store, sizes=spillway.torch.Sizes(min_bytes=1), mode="spill")
session = off._session
x = torch.randn(100000, requires_grad=True)
with off:
    y = x.exp()
"""


def run_program(drives, program):
    done = run_python("-X", "faulthandler", "-c", PROGRAM + program, *drives, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done


@pytest.mark.parametrize("name", ["spw_cache_step_rest", "spw_cache_stage", "spw_cache_scope_enter",
                                  "spw_cache_scope_leave"])
def test_closed_by_another_thread_before_a_short_call(formatted, name):
    """Just after the handle was asked for: what is closed then must not be called."""
    done = run_program(formatted, f"""
import spillway.torch as module
class Closing:
    def __getattr__(self, name):
        function = getattr(fast, name)
        if name != {name!r}:
            return function
        return lambda *arguments: (store.close(), function(*arguments))[1]
fast, module.fast = module.fast, Closing()
model = torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.Tanh())
off = spillway.torch.offload(model, store, sizes=spillway.torch.Sizes(min_bytes=1), mode="spill")
try:
    with off:
        model(torch.randn(10, 1000)).sum().backward()
except (RuntimeError, spillway.SpillwayError) as error:
    print(error)
""")
    assert "is closed" in done.stdout
    given_back(formatted)


def test_closed_by_another_thread_during_a_call(formatted, during):
    """The handle was asked for; it is valid until the call returns."""
    store = spillway.Store(formatted)
    cache, order = Cache(store), []

    def call(handle):
        in_threads(store.close)
        order.append("called")

    closing = during(cache_module, "spw_cache_close", lambda: order.append("closed"))
    cache.call(call)
    assert order == ["called", "closed"] and closing and store.closed
    with pytest.raises(spillway.SpillwayError, match="is closed"):
        cache.call(call)
    given_back(formatted)


@pytest.mark.parametrize("moment", ["asked for", "lent"])
def test_closed_by_another_thread_during_a_use(formatted, moment):
    """The bytes stay valid; the end of their use gives the drives back."""
    store = spillway.Store(formatted)
    off = offload_all(store)
    x = torch.randn(100000, requires_grad=True)
    with off:
        y = x.exp()
        settle(off)
    take = TAKE(spillway._core.hooks_loader.addresses()[1])

    @TAKE
    def take_and_close(*arguments):
        if moment == "asked for":
            in_threads(store.close)
        result = take(*arguments)
        if moment == "lent":
            in_threads(store.close)
        return result

    with hooks_call(take=take_and_close):
        y.sum().backward()
    assert torch.equal(x.grad, x.detach().exp()) and store.closed
    given_back(formatted)


# ---- Garbage and exit ----------------------------------------------------------------------------


class Trainer:
    """Keeps all that it needs, and refers to itself, as objects with callbacks do."""


@pytest.mark.parametrize("used", [False, True])
def test_a_cycle_with_all_in_it_gives_the_drives_back(formatted, used):
    trainer = Trainer()
    trainer.itself = trainer
    trainer.store = spillway.Store(formatted)
    trainer.off = offload_all(trainer.store)
    if used:
        with trainer.off:
            y = torch.randn(100000, requires_grad=True).exp()
            settle(trainer.off)
        y.sum().backward()  # what was lent comes back at the next look
        del y
    del trainer
    gc.collect()
    given_back(formatted)


def pages_of(drives):
    uuid = spillway.check_store(drives).store_uuid
    return sorted(Path("/dev/shm").glob(f"spillway-{uuid}-*"))


@pytest.mark.parametrize("program", [
    "y.sum().backward()",
    "kept = y.grad_fn, off.__enter__()",
    "class Trainer: pass\ntrainer = Trainer(); trainer.all = trainer, store, off\n"
    "del store, off, session",
    "import threading; threading.Thread(target=lambda: y.sum().backward()).start()",
], ids=["used", "inside", "cycle", "thread"])
def test_a_program_that_closes_nothing_ends_well(formatted, program):
    done = run_program(formatted, program)
    assert done.stderr == ""
    assert pages_of(formatted) == []
    given_back(formatted)


def ends_well(process, lines, words, number, drives, stores=1):
    """Asked to end by a signal once a line has these words, it closes its stores."""
    assert any(words in line for line in lines)
    assert len(pages_of(drives)) == stores
    (os.kill if stores == 1 else os.killpg)(process.pid, number)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + number and "Traceback" not in errors, errors
    assert pages_of(drives) == []


# PyTorch 2.6 leaves files when what imports it is ended by a signal: where the drives are, and go.
LONG = {
    "an example": ("step 3/", lambda drives, folder: (
        EXAMPLES / "gpt.py", *tiny(mode="spillway", devices=drives, steps=100000))),
    "the time in hooks": ('"name": "64 KiB"', lambda drives, folder: (
        "-m", "spillway.bench.hooks", *drives)),
    "steps in turn": ("turns: gpt 1/", lambda drives, folder: (
        ROOT / "tests/bench/turns.py", *options_of(devices=drives, models="gpt", steps=100000,
                                                   layers=1, hidden=64, out=folder))),
}


@pytest.mark.rest
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", LONG)
def test_a_program_that_is_asked_to_end_closes_its_store(formatted, folder, name, number):
    words, arguments = LONG[name]
    with started(*arguments(formatted, folder), stdout=subprocess.PIPE,
                 env={"TMPDIR": os.path.dirname(formatted[0])}) as process:
        lines = process.stdout if name == "the time in hooks" else process.stderr
        ends_well(process, lines, words, number, formatted)


@pytest.mark.rest
def test_ranks_that_are_interrupted_close_their_stores(drives):
    """By Ctrl-C on the terminal: the signal goes to every process of the foreground."""
    spillway.format_store(drives, partitions=2)
    options = tiny(mode="spillway", devices=drives, steps=100000, ranks=2)
    with started(EXAMPLES / "ddp.py", *options,
                 env={"TMPDIR": os.path.dirname(drives[0])}) as process:
        ends_well(process, process.stderr, "step 3/", signal.SIGINT, drives, stores=2)


PROGRAMS = {name: ["-m", f"spillway.{name}"] for name in ("bench", "bench.hooks", "demo.data")}
PROGRAMS.update({name: [EXAMPLES / f"{name}.py"]
                 for name in ("gpt", "bert", "t5", "ddp", "pipeline")})


@pytest.mark.rest
@pytest.mark.parametrize("name", PROGRAMS)
def test_interrupted_while_pytorch_is_loaded(folder, name):
    (folder / "torch.py").write_text("import signal, sys\nsignal.raise_signal(signal.SIGINT)\n"
                                     "sys.exit('it was not interrupted')\n")
    done = run_python(*PROGRAMS[name], timeout=120,
                      env={"PYTHONPATH": f"{folder}:{os.environ['PYTHONPATH']}"})
    assert done.stdout == ""
    if name.startswith("bench"):
        assert (done.returncode, done.stderr) == (130, f"spillway.{name}: interrupted\n")
    else:
        assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_the_bench_is_interrupted_while_it_reports(monkeypatch, capsys):
    monkeypatch.setattr(bench, "main", interrupt)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert bench.program() == 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert capsys.readouterr().err == "spillway.bench: interrupted\n"


class Handle:
    """As a Store or a Cache."""

    def __init__(self, failure=None):
        self.failure, self.closed = failure, 0

    def close(self):
        self.closed += 1
        if self.failure is not None:
            raise self.failure


def test_one_that_cannot_be_closed_keeps_no_other_open():
    """As at the end of the program, or when the store closes what depends on it."""
    all_of_them = [Handle(), Handle(RuntimeError("first")), Handle(),
                   Handle(KeyboardInterrupt()), Handle()]
    with pytest.raises(RuntimeError, match="first"):
        handle_module.close_all(all_of_them)
    assert [each.closed for each in all_of_them] == [1] * 5


def test_a_dependent_that_cannot_be_closed(formatted):
    store = spillway.Store(formatted)
    cache, bad = Cache(store), Handle(RuntimeError("it fails"))
    store._dependents.add(bad)
    with pytest.raises(RuntimeError, match="it fails"):
        store.close()
    assert cache.closed
    given_back(formatted)


# ---- Copies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_store_and_a_cache_are_not_copied(store, make):
    """The copy would close it a second time."""
    with contextlib.closing(Cache(store)) as cache:
        for thing in (store, cache):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                make(thing)
        gc.collect()
        assert cache.stats().offers == store.stats().objects == 0


@pytest.mark.parametrize("make", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
                         ids=["copied", "saved"])
def test_the_model_is_copied_inside_the_context(store, make):
    """To keep the best one, say. The copy is a plain model: it tells nothing, then or later."""
    model = Layers()
    off = offload_each(store, model, exclude=[model.layers[1]])
    x = torch.randn(10, 100)
    with off:
        model(x).sum().backward()
        steps = off.stats().steps
        copied = make(model)
        copied(x).sum().backward()
        model(x).sum().backward()
        assert off.stats().steps == steps + 1
    off.close()
    for parameter in [*model.parameters(), *copied.parameters()]:
        parameter.grad = None
    copied(x).sum().backward()
    model(x).sum().backward()
    assert equal(gradients_of(model), gradients_of(copied))


@pytest.mark.parametrize("options", [
    {"mode": "spill"}, {"mode": "fastest", "recompute": "auto"}], ids=["spill", "recompute"])
def test_what_a_training_leaves_for_its_report_does_not_hold_the_model(formatted, options, capsys):
    model = Layers()
    training = Training(formatted, {
        "sizes": spillway.torch.Sizes(min_bytes=1), "exclude": [model.layers[1]], **options})
    training.begin(model)
    for _ in range(3):
        training.enter()
        model(torch.randn(10, 100)).sum().backward()
        training.leave()
    training.end()
    found = weakref.ref(model)
    del model, options
    gc.collect()
    assert found() is None
    training.off.report()
    assert "Offload of Layers" in repr(training.off) and training.off.stats().steps == 3
    assert capsys.readouterr().out
    training.off.close()  # again: nothing


def backward_in_child(loss):
    """Some builds of PyTorch refuse it, with spillway or without, once the parent has had one."""
    try:
        loss.backward()
    except RuntimeError as error:
        if "fork-based multiprocessing" not in str(error):
            raise


def test_a_child_of_fork_trains_as_without(store):
    """As a worker of a data loader that is made inside the context, and computes with a model of
    its own or with this one."""
    model = Layers()
    off = offload_all(store, model, scopes=[model.layers[0]])
    x = torch.randn(200, 100)
    with off:
        model(x).sum().backward()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                torch.set_num_threads(1)
                off.step()
                off.stage(0, "forward")
                y = torch.ones(1000, requires_grad=True).exp()
                backward_in_child(y.sum())
                backward_in_child(model(x).sum())
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert left_in(off) == (0, 0, 0)


def test_parameters_that_do_not_exist_yet(store):
    model = nn.Sequential(nn.LazyLinear(100), nn.Tanh(), nn.LazyLinear(10), nn.LazyBatchNorm1d())
    off = offload_all(store, model)
    with off:
        model(torch.randn(8, 50)).sum().backward()
    assert model[0].weight.grad is not None
    assert left_in(off) == (0, 0, 0)


def test_a_context_that_cannot_be_entered_is_not_entered(store, monkeypatch):
    off = offload_all(store, Layers())

    def fails(*_):
        raise ValueError("no such luck")

    monkeypatch.setattr(off, "_module_hooks", [(fails, off._model, None)])
    with pytest.raises(ValueError, match="no such luck"):
        with off:
            pass
    monkeypatch.undo()
    seen = []
    save(seen, torch.randn(1000)).sum().backward()
    assert off.stats().offers == 0
    with off:
        pass
