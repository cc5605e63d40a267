# SPDX-License-Identifier: MIT
# tests/python/test_endings.py - what ends before its time: by Ctrl-C, by another thread, by the garbage collector, by exit, in a copy
# layer: test all
import contextlib
import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import spillway
import spillway.torch
from conftest import ROOT, emptied
from offloading import TAKE, Nothing, Save, hooks_call, left_in, settle
from spillway import _library
from spillway.bench import __main__ as bench
from spillway import cache as cache_module
from spillway import store as store_module
from spillway.cache import Cache


class Calls:
    """The library's blocking calls; ``then()`` comes in after one of them, once: there Python raises Ctrl-C that came meanwhile."""

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


# ---- Ctrl-C --------------------------------------------------------------------------------------------------------------


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


def test_an_interrupted_open_is_undone(drives, during):
    spillway.format_store(drives)
    during(store_module, "spw_store_open")
    with pytest.raises(KeyboardInterrupt):
        spillway.Store(drives)
    with spillway.Store(drives) as store:
        during(cache_module, "spw_cache_open")
        with pytest.raises(KeyboardInterrupt):
            Cache(store)
    with spillway.Store(drives):
        pass


def test_an_interrupted_close_closes(drives, during):
    spillway.format_store(drives)
    store = spillway.Store(drives)
    cache = Cache(store)
    during(cache_module, "spw_cache_close")
    with pytest.raises(KeyboardInterrupt):
        store.close()
    assert cache.closed
    with spillway.Store(drives):
        pass


# ---- Threads -------------------------------------------------------------------------------------------------------------


def test_closed_by_another_thread_during_a_put(drives, during):
    spillway.format_store(drives)
    store = spillway.Store(drives)
    order = []

    def close():
        thread = threading.Thread(target=store.close)
        thread.start()
        thread.join()
        order.append("closed")

    during(store_module, "spw_store_put", close)
    closing = during(store_module, "spw_store_close", lambda: order.append("given back"))
    store.put(bytearray(1 << 20))
    assert order == ["closed", "given back"] and store.closed and closing
    with spillway.Store(drives):
        pass


PROGRAM = """
import sys, torch, spillway.torch
class Nothing(torch.nn.Module):
    pass
drives = sys.argv[1:]
store = spillway.Store(drives)
off = spillway.torch.offload(Nothing(), store, min_bytes=1, mode="spill")
session = off._session
x = torch.randn(100000, requires_grad=True)
with off:
    y = x.exp()
"""


def run_program(drives, program):
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", PROGRAM + program, *drives], capture_output=True, text=True,
                          timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done


@pytest.mark.parametrize("name", ["spw_cache_step", "spw_cache_stage", "spw_cache_scope_enter",
                                  "spw_cache_scope_leave"])
def test_closed_by_another_thread_before_a_short_call(drives, name):
    """Just after the handle was asked for: what is closed then must not be called."""
    spillway.format_store(drives)
    done = run_program(drives, f"""
import spillway.torch as module
class Closing:
    def __getattr__(self, name):
        function = getattr(fast, name)
        return function if name != {name!r} else lambda *arguments: (store.close(), function(*arguments))[1]
fast, module.fast = module.fast, Closing()
model = torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.Tanh())
off = spillway.torch.offload(model, store, min_bytes=1, mode="spill")
try:
    with off:
        model(torch.randn(10, 1000)).sum().backward()
except (RuntimeError, spillway.SpillwayError) as error:
    print(error)
""")
    assert "is closed" in done.stdout
    with spillway.Store(drives):
        pass


def test_closed_by_another_thread_during_a_call(drives, during):
    """The handle was asked for; it is valid until the call returns."""
    spillway.format_store(drives)
    store = spillway.Store(drives)
    cache, order = Cache(store), []

    def call(handle):
        thread = threading.Thread(target=store.close)
        thread.start()
        thread.join()
        order.append("called")

    closing = during(cache_module, "spw_cache_close", lambda: order.append("closed"))
    cache.call(call)
    assert order == ["called", "closed"] and closing and store.closed
    with pytest.raises(spillway.SpillwayError, match="is closed"):
        cache.call(call)
    with spillway.Store(drives):
        pass


@pytest.mark.parametrize("moment", ["asked for", "lent"])
def test_closed_by_another_thread_during_a_use(drives, moment):
    """The bytes stay valid; the end of their use gives the drives back."""
    spillway.format_store(drives)
    store = spillway.Store(drives)
    off = spillway.torch.offload(Nothing(), store, min_bytes=1, mode="spill")
    x = torch.randn(100000, requires_grad=True)
    with off:
        y = x.exp()
        settle(off)
    take = TAKE(spillway._native.addresses()[1])

    def close():
        thread = threading.Thread(target=store.close)
        thread.start()
        thread.join()

    @TAKE
    def take_and_close(*arguments):
        if moment == "asked for":
            close()
        result = take(*arguments)
        if moment == "lent":
            close()
        return result

    with hooks_call(take=take_and_close):
        y.sum().backward()
    assert torch.equal(x.grad, x.detach().exp()) and store.closed
    with spillway.Store(drives):
        pass


# ---- Garbage and exit ----------------------------------------------------------------------------------------------------


class Trainer:
    """Keeps all that it needs, and refers to itself, as objects with callbacks do."""


@pytest.mark.parametrize("used", [False, True])
def test_a_cycle_with_all_in_it_gives_the_drives_back(drives, used):
    spillway.format_store(drives)
    trainer = Trainer()
    trainer.itself = trainer
    trainer.store = spillway.Store(drives)
    trainer.off = spillway.torch.offload(Nothing(), trainer.store, min_bytes=1, mode="spill")
    if used:
        with trainer.off:
            y = torch.randn(100000, requires_grad=True).exp()
            settle(trainer.off)
        y.sum().backward()  # what was lent comes back when somebody looks
        del y
    del trainer
    gc.collect()
    with spillway.Store(drives):
        pass


def pages_of(drives):
    uuid = spillway.check_store(drives).store_uuid
    return sorted(Path("/dev/shm").glob(f"spillway-{uuid}-*"))


@pytest.mark.parametrize("program", [
    "y.sum().backward()",
    "kept = y.grad_fn, off.__enter__()",
    "class Trainer: pass\ntrainer = Trainer(); trainer.all = trainer, store, off; del store, off, session",
    "import threading; threading.Thread(target=lambda: y.sum().backward()).start()",
], ids=["used", "inside", "cycle", "thread"])
def test_a_program_that_closes_nothing_ends_well(drives, program):
    spillway.format_store(drives)
    done = run_program(drives, program)
    assert done.stderr == ""
    assert pages_of(drives) == []
    with spillway.Store(drives):
        pass


def ends_well(process, lines, words, number, drives):
    """Asked to end by a signal once a line has these words, it closes its store."""
    try:
        assert any(words in line for line in lines)
        assert len(pages_of(drives)) == 1
        process.send_signal(number)
        errors = process.communicate(timeout=60)[1]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + number and "Traceback" not in errors, errors
    assert pages_of(drives) == []


@pytest.mark.rest
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_example_that_is_asked_to_end_closes_its_store(drives, number):
    spillway.format_store(drives)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "python/examples/gpt.py"), "--mode", "spillway", "--devices", ",".join(drives), "--layers", "2", "--hidden",
         "64", "--sequence", "64", "--threads", "1", "--steps", "100000", "--text", str(ROOT / "tensor")],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    ends_well(process, process.stderr, "step 3/", number, drives)


PROGRAMS = {name: ["-m", f"spillway.{name}"] for name in ("bench", "bench.hooks", "demo.train", "demo.data")}
PROGRAMS.update({name: [str(ROOT / f"python/examples/{name}.py")] for name in ("gpt", "bert", "t5", "ddp", "pipeline")})


@pytest.mark.rest
@pytest.mark.parametrize("name", PROGRAMS)
def test_interrupted_while_pytorch_is_loaded(folder, name):
    (folder / "torch.py").write_text("import signal, sys\nsignal.raise_signal(signal.SIGINT)\nsys.exit('it was not interrupted')\n")
    done = subprocess.run([sys.executable, *PROGRAMS[name]], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "python")])})
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


@pytest.mark.rest
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_time_in_hooks_closes_its_store_when_it_is_asked_to_end(drives, number):
    spillway.format_store(drives)
    process = subprocess.Popen([sys.executable, "-m", "spillway.bench.hooks", *drives], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    ends_well(process, process.stdout, '"name": "64 KiB"', number, drives)


@pytest.mark.rest
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_steps_in_turn_end_with_who_compares_them(drives, folder, number):
    spillway.format_store(drives)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tests/bench/turns.py"), "--devices", ",".join(drives), "--models", "gpt", "--steps", "100000", "--layers",
         "1", "--hidden", "64", "--out", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        # PyTorch 2.6 leaves files when what imports it is ended by a signal: where the drives are, and go.
        env={**os.environ, "TMPDIR": os.path.dirname(drives[0])})
    ends_well(process, process.stderr, "turns: gpt 1/", number, drives)


@pytest.mark.rest
def test_ranks_that_are_interrupted_close_their_stores(drives):
    """By Ctrl-C on the terminal: the signal goes to every process of the foreground."""
    spillway.format_store(drives, partitions=2)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "python/examples/ddp.py"), "--mode", "spillway", "--devices", ",".join(drives), "--layers", "2", "--hidden",
         "64", "--sequence", "64", "--threads", "1", "--steps", "100000", "--ranks", "2", "--text", str(ROOT / "tensor")],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
        # PyTorch 2.6 leaves files when ranks are interrupted: where the drives are, and go.
        env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "TMPDIR": os.path.dirname(drives[0])})
    try:
        for line in process.stderr:
            if "step 3/" in line:
                break
        assert len(pages_of(drives)) == 2
        os.killpg(process.pid, signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 130 and "Traceback" not in errors, errors
    assert pages_of(drives) == []


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
    all_of_them = [Handle(), Handle(RuntimeError("first")), Handle(), Handle(KeyboardInterrupt()), Handle()]
    with pytest.raises(RuntimeError, match="first"):
        _library.close_all(all_of_them)
    assert [each.closed for each in all_of_them] == [1] * 5


def test_a_dependent_that_cannot_be_closed(drives):
    spillway.format_store(drives)
    store = spillway.Store(drives)
    cache, bad = Cache(store), Handle(RuntimeError("it fails"))
    store._dependents.add(bad)
    with pytest.raises(RuntimeError, match="it fails"):
        store.close()
    assert cache.closed
    with spillway.Store(drives):
        pass


# ---- Copies --------------------------------------------------------------------------------------------------------------


def test_a_store_is_not_copied(store):
    for make in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            make(store)
    thing = store.put(b"still open")
    store.free(thing)


def test_a_cache_is_not_copied(store):
    """The copy would close it a second time."""
    cache = Cache(store)
    for make in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            make(cache)
    assert cache.stats().offers == 0
    cache.close()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(100, 100) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x


@pytest.mark.parametrize("make", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copied", "saved"])
def test_the_model_is_copied_inside_the_context(store, make):
    """To keep the best one, say. The copy is a plain model: it tells nothing, then or later."""
    model = Model()
    off = spillway.torch.offload(model, store, min_bytes=1, exclude=[model.layers[1]])
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
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), copied.parameters()))


def backward_in_child(loss):
    """Some builds of PyTorch refuse it, with spillway or without, once the parent has had one."""
    try:
        loss.backward()
    except RuntimeError as error:
        if "fork-based multiprocessing" not in str(error):
            raise


def test_a_child_of_fork_trains_as_without(store):
    """As a worker of a data loader that is made inside the context, and computes with a model of its own or with this one."""
    model = Model()
    off = spillway.torch.offload(model, store, min_bytes=1, mode="spill", scopes=[model.layers[0]])
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


# ---- Tensors that have no memory of their own ----------------------------------------------------------------------------


def test_nested_tensors_pass_by(store):
    if not hasattr(torch, "nested"):
        pytest.skip("this PyTorch has no nested tensors")
    off = spillway.torch.offload(Nothing(), store, min_bytes=1, mode="spill")
    parts = [torch.randn(3, 8), torch.randn(5, 8)]
    weight = torch.randn(4, 8, requires_grad=True)

    def run():
        nested = torch.nested.nested_tensor(parts).requires_grad_()
        out = torch.nested.to_padded_tensor(torch.nn.functional.linear(nested, weight), 0.0)
        return torch.autograd.grad(out.pow(2).sum(), weight)[0]

    expected = run()
    with off:
        assert torch.equal(run(), expected)
    assert left_in(off) == (0, 0, 0)


def test_batched_gradients_pass_by(store):
    """Their backward pass saves tensors of vmap, which have no storage."""
    off = spillway.torch.offload(Nothing(), store, min_bytes=1, mode="spill")

    def run():
        x = torch.arange(50.0, requires_grad=True)
        y = x.sin() * x
        rows = torch.autograd.grad(y, x, torch.eye(50), is_grads_batched=True, create_graph=True)[0]
        return torch.autograd.grad(rows.sum(), x)[0]

    expected = run()
    with off:
        assert torch.equal(run(), expected)


def test_parameters_that_do_not_exist_yet(store):
    off = spillway.torch.offload(model := nn.Sequential(nn.LazyLinear(100), nn.Tanh(), nn.LazyLinear(10)), store, min_bytes=1)
    with off:
        model(torch.randn(8, 50)).sum().backward()
    assert model[0].weight.grad is not None
    assert left_in(off) == (0, 0, 0)


def test_a_context_that_cannot_be_entered_is_not_entered(store, monkeypatch):
    off = spillway.torch.offload(Model(), store, min_bytes=1)
    monkeypatch.setattr(off, "_install", lambda: (_ for _ in ()).throw(ValueError("no such luck")))
    with pytest.raises(ValueError, match="no such luck"):
        with off:
            pass
    monkeypatch.undo()
    seen = []
    Save.apply(torch.ones(1, requires_grad=True), seen, torch.randn(1000)).sum().backward()
    assert off.stats().offers == 0
    with off:
        pass
