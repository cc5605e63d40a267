# SPDX-License-Identifier: MIT
# tests/python/test_compile.py - torch.compile: gradients are those without hooks
"""By a compiler (inductor) where there is one, and without (aot_eager), which traces in the same
way."""
import atexit
import contextlib
import os
import shutil
import tempfile

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

if hasattr(torch, "compile"):
    # What is compiled is kept there, and what PyTorch names as it is imported. Its name is short:
    # the workers of a data loader make sockets below it, and these have 107 characters at most.
    tempfile.tempdir = os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(
        prefix="t.", dir=os.environ.get("TMPDIR"))
    atexit.register(shutil.rmtree, tempfile.tempdir)
    # In this process, not in others that are still there when the test ends.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

from offloading import (assert_same_run, equal, gradients_of, left_in, offload_all,  # noqa: E402
                        settle, trained)
from spillway._core import hooks_loader  # noqa: E402


def why_not():
    if not hasattr(torch, "compile"):
        return "this PyTorch has no torch.compile: 2.0 has"
    if not hasattr(torch.compiler, "is_compiling"):
        return "hooks are run while this PyTorch traces (113263)"
    try:
        torch.compile(lambda x: x, backend="eager")
    except RuntimeError as error:  # this Python is too new for it
        return str(error)
    return None


WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))


def compiles():
    """Inductor needs a compiler and PyTorch's headers, which a distribution may have in a package
    of their own."""
    if WHY_NOT is not None or shutil.which(os.environ.get("CXX", "g++")) is None:
        return False
    from torch.utils.cpp_extension import include_paths

    return any(os.path.exists(os.path.join(path, "ATen/NumericUtils.h"))
               for path in [*include_paths(), "/usr/include"])


COMPILER = pytest.mark.skipif(not compiles(),
                              reason="no C++ compiler, or no headers of PyTorch (libtorch-dev)")
BACKENDS = ["aot_eager", pytest.param("inductor", marks=COMPILER)]


@pytest.fixture(autouse=True)
def afresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)).tanh())


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def whole(model, backend):
    return torch.compile(model, backend=backend)


def in_place(model, backend):
    model.compile(backend=backend)
    return model


def per_block(model, backend):
    for index, block in enumerate(model.blocks):
        model.blocks[index] = torch.compile(block, backend=backend)
    return model


def layers_in_place(model, backend):
    for block in model.blocks:
        block.compile(backend=backend)
    return model


WAYS = [whole, in_place, per_block, layers_in_place]


def train(compiled, backend, store=None, mode="spill", steps=4, after=lambda: None):
    torch.manual_seed(1)
    return trained(compiled(Model(), backend), lambda: torch.randn(128, 64),
                   store and (lambda model: offload_all(store, model, mode=mode)), steps=steps,
                   each=after)


@pytest.mark.parametrize("compiled", WAYS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["spill", "fastest"])
def test_the_same_gradients(store, backend, compiled, mode):
    expected = train(compiled, backend)
    torch._dynamo.reset()
    got = train(compiled, backend, store, mode)
    assert_same_run(got, expected)
    off = got.off
    assert off.stats().offers > 0 and off.stats().steps == 4
    assert left_in(off) == (0, 0, 0)
    off.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_compiled_code_saves_goes_to_drives_and_comes_back(store, backend):
    """113263, 116221: hooks are called when it runs, for real tensors, and each time."""
    off = offload_all(store)
    torch.manual_seed(2)
    model = torch.compile(Model(), backend=backend)
    for _ in range(3):
        x = torch.randn(128, 64)
        model.zero_grad()
        with off:
            loss = model(x).pow(2).mean()
            settle(off)
        loss.backward()
        got = [gradient.clone() for gradient in gradients_of(model)]
        model.zero_grad()
        model(x).pow(2).mean().backward()
        assert equal(got, gradients_of(model))
    del loss
    stats = off.stats()
    assert stats.bytes_spilled > 0 and stats.bytes_read > 0
    assert left_in(off) == (0, 0, 0)


@pytest.mark.parametrize("compiled", WAYS)
def test_entering_again_compiles_nothing_again(store, compiled):
    from torch._dynamo.testing import CompileCounterWithBackend

    counter, counts = CompileCounterWithBackend("aot_eager"), []
    off = train(compiled, counter, store, steps=5,
                after=lambda: counts.append(counter.frame_count)).off
    assert counts[0] > 0 and counts == counts[:1] * 5
    assert left_in(off) == (0, 0, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_before_the_context(store, backend):
    """And used outside of it in between."""
    torch.manual_seed(3)
    model = torch.compile(Model(), backend=backend)
    x = torch.randn(128, 64)

    def gradients():
        model.zero_grad()
        model(x).pow(2).mean().backward()
        return [gradient.clone() for gradient in gradients_of(model)]

    expected = gradients()
    off = offload_all(store, model)
    for _ in range(2):
        with off:
            assert equal(gradients(), expected)
        offers = off.stats().offers
        assert offers > 0
        assert equal(gradients(), expected)
        assert off.stats().offers == offers
    assert left_in(off) == (0, 0, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_backward_twice(store, backend):
    """Compiled code may write to what it was handed, unless it is told that it is needed again."""
    from torch._functorch import config

    def run(off=None):
        torch.manual_seed(4)
        model = torch.compile(Model(), backend=backend)
        x = torch.randn(128, 64)
        with off or contextlib.nullcontext():
            loss = model(x).pow(2).mean()
            if off is not None:
                settle(off)
        loss.backward(retain_graph=True)
        loss.backward()
        return gradients_of(model)

    donated = getattr(config, "donated_buffer", None)
    try:
        if donated is not None:
            config.donated_buffer = False
        expected = run()
        torch._dynamo.reset()
        off = offload_all(store)
        assert equal(run(off), expected)
    finally:
        if donated is not None:
            config.donated_buffer = donated
    assert left_in(off) == (0, 0, 0)


def as_function(model, backend):
    """Of which neither the model nor its layers know."""
    compiled = torch.compile(lambda x: model(x), backend=backend)
    model.forward_all = compiled
    return model


def reentrant(model, _backend):
    def run(x):
        for block in model.blocks:
            x = checkpoint(block, x.requires_grad_(), use_reentrant=True)
        return x

    model.forward_all = run
    return model


@pytest.mark.parametrize("compiled, said", [
    (whole, 1), (in_place, 1), (as_function, 1), (per_block, 0), (layers_in_place, 0),
    (reentrant, 0), (lambda model, _: model, 0)],
    ids=["whole", "in place", "function", "per block", "layers in place", "reentrant", "not"])
def test_a_model_in_one_piece_is_named_once(store, caplog, capsys, compiled, said):
    torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(1))  # of something else
    model = compiled(Model(), "aot_eager")
    off = offload_all(store, model)
    for _ in range(3):
        with off:
            getattr(model, "forward_all", model)(torch.randn(128, 64)).sum().backward()
    lines = [record.getMessage() for record in caplog.records if record.name == "spillway"]
    assert len(lines) == said and all("none of the 3 layers of Model ran" in each for each in lines)
    off.report()
    assert capsys.readouterr().out.count("hint: torch.compile") == said
    off.close()


def used_before(model, store, x):
    """(how many saved tensors had been used when the gradient of the first block's output was
    there, how many in all)"""
    off = offload_all(store, model)
    seen, uses = [], []

    def unpack(packed):
        uses.append(None)
        return hooks_loader.hooks.unpack(packed)

    hooks = torch.autograd.graph.saved_tensors_hooks(off._session.pack, unpack)
    with off, hooks:
        between = model.blocks[0](x)
        between.register_hook(lambda _gradient: seen.append(len(uses)))
        model.blocks[2](model.blocks[1](between)).pow(2).mean().backward()
    return seen[0], len(uses)


def test_per_block_one_block_is_used_at_a_time(store):
    """148222: what is compiled as one unpacks all that it saved before it computes."""
    torch.manual_seed(5)
    seen, uses = used_before(per_block(Model(), "aot_eager"), store, torch.randn(128, 64))
    assert 0 < seen < uses
