# SPDX-License-Identifier: MIT
# tests/python/test_first_hour.py - what one stumbles over at first says so: in notebooks, too
# layer: test all
import io
import logging
import shlex
import sys

import pytest
import torch

import spillway.torch
from conftest import make_store, run_python
from offloading import Layers, gradients_of, offload_all, settle
from spillway.report import aligned_command

# As the cells of a notebook: in one process, with the names of __main__.
AGAIN = """
import sys, spillway, spillway.torch, torch
drives = sys.argv[1:]
spillway.format_store(drives)
{first}
try:
    {again}
except spillway.SpillwayError as error:
    print(error)
"""


@pytest.mark.parametrize("first, again, name", [
    ("store = spillway.Store(drives)", "store = spillway.Store(drives)", "store"),
    ("store = spillway.Store(drives)", "spillway.format_store(drives, force=True)", "store"),
    ("store = spillway.Store(drives)", "spillway.wipe_store(drives)", "store"),
    ("off = spillway.torch.offload(torch.nn.Linear(1, 1), drives)",
     "off = spillway.torch.offload(torch.nn.Linear(1, 1), drives)", "off"),
    ("things = [spillway.Store(drives)]", "spillway.Store(drives)", "that object"),
])
def test_a_cell_that_runs_again_is_told_what_to_close(drives, first, again, name):
    done = run_python("-c", AGAIN.format(first=first, again=again), *drives)
    assert done.returncode == 0, done.stderr
    assert "this process has the store open itself, since <string>:5." in done.stdout
    assert f"Use {name} again, or {name}.close() first" in done.stdout
    assert "in process" not in done.stdout


def test_another_partition_of_the_same_process_is_its_own_matter(folder):
    drives = make_store(folder, 2, 64 << 20, partitions=2)
    with spillway.Store(drives, partition=0), spillway.Store(drives, partition=1) as second:
        assert second.stats().partition == 1
        with pytest.raises(spillway.SpillwayError, match="open itself, since .*test_first_hour"):
            spillway.Store(drives, partition=1)


def test_things_say_what_they_are(formatted):
    model = Layers()
    with spillway.Store(formatted) as store:
        off = spillway.torch.offload(model, store)
        optimizer = spillway.torch.Optimizer(torch.optim.AdamW, model.parameters(), store, lr=0.5)
        with off:
            model(torch.randn(256, 100)).sum().backward()
        optimizer.step()
        said = repr(store)
        assert all(path in said for path in formatted) and "partition 0, " in said
        assert repr(off).startswith(
            "<spillway.torch.Offload of Layers, mode 'fastest', 8 scopes: 1 steps, ")
        assert repr(optimizer).startswith("Optimizer of AdamW, 1 steps, 315.6 KiB of state on ")
        assert "lr: 0.5" in repr(optimizer)
        off.close()
        assert repr(off).endswith(": closed>")
    assert repr(store).endswith(": closed>")


def test_as_a_decorator_it_is_entered_in_each_call(store):
    torch.manual_seed(1)
    model, inputs = Layers(), torch.randn(256, 100)
    model(inputs).sum().backward()
    expected = gradients_of(model)
    off = offload_all(store, model)

    @off
    def step(scale):
        """Of training."""
        model.zero_grad(set_to_none=True)
        (model(inputs).sum() * scale).backward()
        return scale

    assert [step(scale=1), step(1)] == [1, 1]
    assert step.__doc__ == "Of training."
    assert all(map(torch.equal, gradients_of(model), expected))
    assert off.stats().steps == 2 and off.stats().offers > 0
    with off, pytest.raises(RuntimeError, match="active already"):
        step(1)
    for wrong in (model, 3):
        with pytest.raises(TypeError, match="inside of `with off:`"):
            off(wrong)


def reported(off):
    text = io.StringIO()
    off.report(text)
    return [line for line in text.getvalue().splitlines() if line.startswith(("hint", "  spill"))]


def test_the_report_says_what_was_forgotten(store):
    model = Layers(width=16)
    off = spillway.torch.offload(model, store)
    model(torch.randn(8, 16)).sum().backward()
    [hint] = reported(off)
    assert "nothing ran inside the context: put the forward pass inside of `with off:`" in hint
    with off, torch.no_grad():
        model(torch.randn(8, 16))
    [hint] = reported(off)
    assert "autograd saved nothing inside the context" in hint
    with off:
        model(torch.randn(8, 16)).sum().backward()
    assert reported(off) == []


def test_the_report_says_how_to_do_without_copies(store, monkeypatch):
    model = Layers(width=512)
    off = offload_all(store, model)
    with off:
        loss = model(torch.randn(512, 512)).sum()
        settle(off)  # what is wanted back before its write has begun is not written
        loss.backward()
    [hint, command] = reported(off)
    assert "chunks were copied before they were written" in hint
    assert command == f"  spillway run -- {shlex.join(sys.orig_argv)}"
    monkeypatch.setitem(sys.modules, "ipykernel", object())
    assert aligned_command() == "spillway run -- jupyter lab"


def test_made_anew_in_each_step_it_is_told(store, caplog):
    """And who makes it once is not, however often a model is trained."""
    once, anew = Layers(), Layers()
    with caplog.at_level(logging.WARNING, "spillway"):
        for _ in range(6):
            off = spillway.torch.offload(once, store)
            for _ in range(2):
                with off:
                    once(torch.randn(8, 100)).sum().backward()
        assert not caplog.records
        for _ in range(9):
            with spillway.torch.offload(anew, store):
                anew(torch.randn(8, 100)).sum().backward()
    [record] = [record for record in caplog.records if record.name == "spillway"]
    assert "offload() was called 4 times for one Layers" in record.getMessage()
    assert "Make it once, before the loop" in record.getMessage()
