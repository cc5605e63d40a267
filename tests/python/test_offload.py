# SPDX-License-Identifier: MIT
# tests/python/test_offload.py - modes, what is excluded, stages, report and trace, partitions
import contextlib
import io
import json
import logging

import pytest
import torch
from torch import nn

import spillway
import spillway.torch
from offloading import (Layers, Nothing, equal, gradients_of, left_in, offload_all, offload_each,
                        settle, with_sizes)


def gradients(store=None, exclude=None, **options):
    """(gradients after three steps, the offload); without either it is plain training."""
    torch.manual_seed(1)
    model, off = Layers(), contextlib.nullcontext()
    if exclude is not None:
        options["exclude"] = exclude(model)
    if store is not None or options:
        off = spillway.torch.offload(model, store, **with_sizes(**{"min_bytes": 1, **options}))
    for _ in range(3):
        step(model, off)
    return gradients_of(model), off


def step(model, off):
    with off:
        model(torch.randn(256, 100)).pow(2).sum().backward()


@pytest.fixture(scope="module")
def plain():
    return gradients()[0]


# ---- Modes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {"mode": "spill"},
    {"mode": "fastest"},
    {"mode": "budget", "budget_bytes": 1 << 20},
    {"mode": "budget", "budget_bytes": 1 << 30},
    {"mode": "budget", "budget_bytes": 1},
], ids=str)
def test_every_mode_gives_the_same_gradients(store, plain, options):
    got, off = gradients(store, **options)
    assert equal(got, plain)
    assert off.stats().steps == 3
    assert left_in(off) == (0, 0, 0)


@pytest.mark.parametrize("options, error, words", [
    ({"mode": "budget"}, ValueError, "belong together"),
    ({"mode": "fastest", "budget_bytes": 1}, ValueError, "belong together"),
    ({"mode": "budget", "budget_bytes": -1}, ValueError, "budget_bytes must not be negative"),
    ({"mode": "fast"}, ValueError, "^mode must be one of \"fastest\", \"budget\", \"spill\", "
     "\"observe\", not 'fast'$"),
    ({"mode": "positional"}, ValueError, "use \"fastest\""),
    ({"mode": ["spill"]}, ValueError, "mode must be one of"),
    ({"mode": "budget", "budget_bytes": "4 gigs"}, ValueError, "budget_bytes must be bytes, or a "
     "size like \"4k\", .* not '4 gigs'"),
    ({"min_bytes": "5%"}, ValueError, "min_bytes must be bytes, or a size like"),
    ({"staging_bytes": "16E"}, ValueError, "staging_bytes must be bytes, or a size like"),
    ({"model": lambda x: x}, TypeError, "torch.nn.Module"),
    ({"store": None}, ValueError, "a store is needed"),
    ({"recompute": "always"}, ValueError, "^recompute must be one of \"auto\", "
     "\"operations\", \"never\", not"),
    ({"store": None, "mode": "budget", "budget_bytes": 1}, ValueError, "needed: give drives"),
    ({"exclude": ["layers.1"]}, TypeError, "modules and tensors, not str"),
    ({"rank": 1}, ValueError, "open on partition 0, but rank is 1"),
])
def test_wrong_use(store, options, error, words):
    with pytest.raises(error, match=words):
        spillway.torch.offload(**{
            "model": Layers(), "store": store, "rank": 0, **with_sizes(**options)})


def test_sizes_are_checked(store):
    with pytest.raises(TypeError, match=r"sizes must be spillway.torch.Sizes\(...\), not dict"):
        spillway.torch.offload(Layers(), store, sizes={"min_bytes": 1})


def test_an_older_pytorch_computes_nothing_again(store, monkeypatch, caplog):
    """It says so once, and does all else."""
    monkeypatch.setattr("torch.__version__", "2.0.1")
    caplog.set_level("INFO", "spillway")
    off = spillway.torch.offload(Layers(), store, recompute="auto")
    assert caplog.text.count("nothing is recomputed: that needs PyTorch 2.1") == 1
    x = torch.ones(8, 100, requires_grad=True)
    for _ in range(2):
        with off:
            off._model(x).sum().backward()
    assert off.stats().scopes_again == 0 and off.stats().steps == 2


@pytest.mark.parametrize("words, count", [
    ("100k", 100 << 10), ("0.1MiB", 104857), ("100kB", 100000), ("102400", 102400),
])
def test_sizes_in_words(store, words, count):
    """As on the command line. A layer saves two tensors of 100 KiB."""
    def kept(min_bytes):
        return gradients(store, mode="spill", min_bytes=min_bytes)[1].stats().bytes_kept_small

    assert kept(words) == kept(count)
    assert kept(words) == (0 if count <= 256 * 100 * 4 else kept("1G"))


# ---- What is excluded ----------------------------------------------------------------------------


@pytest.mark.parametrize("exclude", [
    lambda model: [model.layers[1]],
    lambda model: model.layers[1],
    lambda model: lambda name, module: name == "layers.1",
], ids=["list", "module", "function"])
def test_an_excluded_module_is_kept(store, plain, exclude):
    got, off = gradients(store, exclude, mode="spill")
    stats = off.stats()
    assert equal(got, plain)
    # the inputs of its two modules, three steps
    assert stats.bytes_kept_hint == 3 * 2 * 256 * 100 * 4
    assert left_in(off) == (0, 0, 0)


def test_an_excluded_tensor_is_not_offered(store):
    kept, other = (torch.randn(1000, requires_grad=True) for _ in range(2))
    kept_base, other_base = kept.exp(), other.exp()
    off = offload_each(store, Nothing(), exclude=[kept_base])
    with off:
        (kept_base.view(10, 100).sin().sum() + other_base.sin().sum()).backward()
    assert off.stats().offers == 1


def test_an_exception_in_an_excluded_module_excludes_no_more(store, plain):
    torch.manual_seed(1)
    model = Layers()
    off = offload_all(store, model, exclude=model.layers[1])
    fault = model.layers[1][0].register_forward_hook(lambda *_: 1 / 0)
    with off, pytest.raises(ZeroDivisionError):
        model(torch.randn(256, 100))
    fault.remove()
    before = off.stats().tensors_kept_hint
    with off:
        model(torch.randn(256, 100)).sum().backward()
    assert off.stats().tensors_kept_hint - before == 2


# ---- A schedule's stages -------------------------------------------------------------------------


def test_stages_of_1f1b(store):
    """The schedule of the first of two pipeline stages, with four micro-batches."""
    order = [(0, "forward"), (1, "forward"), (0, "backward"), (2, "forward"), (1, "backward"),
             (3, "forward"), (2, "backward"), (3, "backward")]

    def run(mode=None):
        torch.manual_seed(1)
        model, off = Layers(), contextlib.nullcontext()
        if mode:
            off = offload_all(store, model, mode=mode)
        for _ in range(3):
            losses = {}
            if mode:
                off.step()
            for here, then in zip(order, [*order[1:], None]):
                if mode:
                    off.stage(*here, next=then)
                with off:
                    if here[1] == "forward":
                        losses[here[0]] = model(torch.randn(256, 100)).pow(2).sum()
                    else:
                        losses.pop(here[0]).backward()
        return gradients_of(model), off

    expected, _ = run()
    for mode in ("spill", "fastest"):
        got, off = run(mode)
        assert equal(got, expected)
        assert off.stats().steps == 3
        assert left_in(off) == (0, 0, 0)


@pytest.mark.parametrize("stage, words", [
    ((0, "sideways"), 'phase must be one of "forward", "backward", not'),
    ((-1, "forward"), "micro_batch must not be negative"),
    ((0, "forward", (0, "back")), "not 'back'"),
])
def test_stages_that_do_not_exist(store, stage, words):
    off = spillway.torch.offload(Layers(), store)
    with pytest.raises(ValueError, match=words):
        off.stage(*stage)
    assert off.stats().steps == 0


# ---- Seeing it -----------------------------------------------------------------------------------


def rows_of(report):
    return dict(line.split("  ", 1) for line in report.splitlines()
                if not line.startswith((" ", "hint: ")))


def test_report(store, capsys):
    _, off = gradients(store, mode="spill")
    file = io.StringIO()
    off.report(file)
    off.report()
    text = capsys.readouterr().out
    rows = rows_of(text)
    assert rows.keys() == rows_of(file.getvalue()).keys()  # a drive may still count a write
    assert rows["steps"].strip() == "3"
    assert "kept: needed first (the last layer" in text
    assert all(drive.path in text for drive in store.drive_stats())


def test_report_counts_since_offload_was_called(store):
    nothing = ["0", "B", "written,", "0", "B", "read"]
    paths = tuple(drive.path for drive in store.drive_stats())

    def drives_of(off):
        file = io.StringIO()
        off.report(file)
        lines = [line for line in file.getvalue().splitlines() if line.startswith(paths)]
        return [line.split("  ", 1)[1].split() for line in lines]

    off = spillway.torch.offload(Nothing(), store)
    store.free(store.put(bytes(8 << 20)))
    assert drives_of(off) != 4 * [nothing]
    assert drives_of(spillway.torch.offload(Nothing(), store)) == 4 * [nothing]


def test_report_without_a_store(capsys):
    _, off = gradients(None, mode="observe")
    off.report()
    assert "kept: only watching" in capsys.readouterr().out


def test_trace(store, folder):
    torch.manual_seed(1)
    model = Layers()
    off = offload_each(store, model)
    step(model, off)
    off.trace(folder / "step.json")
    step(model, off)
    events = json.loads((folder / "step.json").read_text())["traceEvents"]
    offers = off.stats().offers
    names = [event["name"] for event in events]
    assert names.count("save") == offers // 2 and names.count("use") == offers // 2
    assert [name for name in names
            if name.startswith("layer")] == [f"layers.{i}.{j}" for i in range(4) for j in range(2)]
    assert [e["ph"] for e in events].count("B") == [e["ph"] for e in events].count("E") == 8
    assert all(event["ts"] >= 0 for event in events)
    peaks = [event["args"]["activation_bytes"] for event in events if event["ph"] == "C"]
    assert max(peaks) > 0
    step(model, off)  # is not in it
    assert json.loads((folder / "step.json").read_text())["traceEvents"] == events


def test_a_trace_that_cannot_be_made(store, folder):
    off = spillway.torch.offload(Layers(), store)
    with pytest.raises(FileNotFoundError):
        off.trace(folder / "nowhere" / "step.json")


# ---- Partitions ----------------------------------------------------------------------------------


@pytest.fixture
def without_rank(monkeypatch):
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK",
                 "SLURM_LOCALID", "RANK"):
        monkeypatch.delenv(name, raising=False)


def partition_of(off):
    return off._session.cache.store.stats().partition


def test_drives_are_opened_on_the_partition_of_the_rank(drives, without_rank, monkeypatch, plain):
    spillway.format_store(drives, partitions=4)
    offs = [spillway.torch.offload(Layers(), drives, rank=2)]
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("LOCAL_RANK", "3")
    offs.append(spillway.torch.offload(Layers(), drives))
    monkeypatch.delenv("LOCAL_RANK")
    monkeypatch.delenv("RANK")
    offs.append(spillway.torch.offload(Layers(), drives))
    assert [partition_of(off) for off in offs[:2]] == [2, 3]
    assert partition_of(offs[2]) in (0, 1)
    with pytest.raises(spillway.SpillwayError):
        spillway.torch.offload(Layers(), drives, rank=2)
    for off in offs:
        off.close()
    assert spillway.check_store(drives).partitions_in_use == 0


def test_sizes_as_keywords_of_their_own_are_deprecated(store):
    model = Layers()
    with pytest.warns(DeprecationWarning, match=r"Sizes\(min_bytes=\.\.\., staging_bytes"):
        off = spillway.torch.offload(model, store, mode="spill", min_bytes=1, staging_bytes="1GiB")
    with off:
        model(torch.randn(8, 100)).sum().backward()
    assert off.stats().offers > 0 and off.stats().tensors_kept_small == 0
    off.close()
    with pytest.raises(TypeError, match="'min_byte'"):
        spillway.torch.offload(model, store, min_byte=1)
    with pytest.raises(TypeError, match="already has min_bytes"):
        spillway.torch.offload(model, store, min_bytes=1, sizes=spillway.torch.Sizes(min_bytes=2))


def test_more_ranks_than_partitions(drives):
    spillway.format_store(drives, partitions=2)
    with pytest.raises(spillway.SpillwayError,
                       match="partition 2 does not exist.*format it with more"):
        spillway.torch.offload(Layers(), drives, rank=2)


def test_what_was_opened_is_closed_when_the_options_are_wrong(formatted):
    with pytest.raises(ValueError):
        spillway.torch.offload(Layers(), formatted, sizes=spillway.torch.Sizes(min_bytes=-1))
    assert spillway.check_store(formatted).partitions_in_use == 0


# ---- Bad use -------------------------------------------------------------------------------------


def test_a_model_on_two_devices(store):
    """The other device has no memory: what is saved there is kept."""
    model = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300, device="meta"))
    off = offload_each(store, model)
    with off:
        loss = model[0](torch.randn(3, 300)).exp().sum()
        model[1](torch.randn(3, 300, device="meta")).exp().sum().backward()
        loss.backward()
    assert model[1].weight.grad.device.type == "meta"
    assert off.stats().offers == 2


def test_a_store_that_is_closed(formatted):
    store = spillway.Store(formatted)
    store.close()
    with pytest.raises(spillway.SpillwayError, match="closed"):
        spillway.torch.offload(Layers(), store)


def test_closing_twice_is_nothing(store):
    off = spillway.torch.offload(Layers(), store)
    off.close()
    off.close()
    with pytest.raises(spillway.SpillwayError, match="closed"):
        off.stage(0, "forward")


@pytest.mark.parametrize("closes_store", [False, True])
def test_what_it_did_is_told_when_it_is_closed(formatted, caplog, capsys, closes_store):
    caplog.set_level(logging.INFO, logger="spillway")
    with spillway.Store(formatted) as store:
        model = Layers()
        off = offload_all(store, model)
        with off:
            model(torch.ones(8, 100)).sum().backward()
        stats = settle(off)
        off.report()
        before = capsys.readouterr().out.splitlines()
        if closes_store:
            store.close()
        off.close()
    assert off.closed and off.stats() == stats
    assert off.activation_peak_bytes == stats.activation_bytes_max > 0
    off.report()
    after = capsys.readouterr().out.splitlines()
    assert [line for line in after if "wear" not in line] == [
        line for line in before if "wear" not in line]
    lines = [record.getMessage() for record in caplog.records if record.name == "spillway"]
    assert len(lines) == 1 and "Layers, mode 'spill': activations" in lines[0]
    assert lines[0].endswith(" 1 steps")


# ---- Progress ------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_in_the_loop(store):
    """A line per step in a file; one that rewrites itself on a terminal; the same once around the
    loop."""
    file, terminal = io.StringIO(), Terminal()
    for output in (file, terminal):
        _, off = gradients(store, progress=output)
        off.close()
    lines = file.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 1", "step 2", "step 3"]
    assert all("activations" in line and "to drives" in line and "waited" in line for line in lines)
    assert terminal.getvalue().count("\r\033[K") == 3 and terminal.getvalue().endswith("\n")
    around = io.StringIO()
    model = Layers()
    with offload_each(store, model, progress=around):
        for _ in range(3):
            model(torch.randn(256, 100)).sum().backward()
    assert around.getvalue().count("\n") == 3


def test_progress_is_told_when_a_step_ends(store):
    """Backward after the context: the wait is the step's own. Several contexts in a step: one
    line."""
    file, model = io.StringIO(), Layers()
    lines = lambda: file.getvalue().count("\n")  # noqa: E731
    off = offload_each(store, model, progress=file)
    for step in range(3):
        with off:
            loss = model(torch.randn(256, 100)).sum()
        assert lines() == step
        loss.backward()
    off.close()
    assert lines() == 3
    off = offload_each(store, model, progress=file)
    for step in range(3):
        off.step()
        for _ in range(2):
            with off:
                model(torch.randn(256, 100)).sum().backward()
            assert lines() == 3 + step
    off.close()
    assert lines() == 6


def test_progress_nobody_reads_ends_no_step(store):
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    _, off = gradients(store, progress=Broken())
    assert off.stats().steps == 3


def test_progress_is_silent_by_default(store, capsys):
    gradients(store)
    assert capsys.readouterr() == ("", "")
