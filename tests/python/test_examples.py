# SPDX-License-Identifier: MIT
# tests/python/test_examples.py - GPT, BERT and T5 train to the same bits in every mode
# layer: all
import importlib
import json
import signal
import sys

import pytest

from conftest import EXAMPLES, run_python, tiny

KEYS = {"activation_peak_bytes", "rss_peak_bytes", "tokens_per_step", "step_seconds",
        "step_cpu_seconds", "losses", "losses_hex"}
SPILL_KEYS = {"bytes_spilled", "bytes_read", "bytes_forwarded", "bytes_deduplicated",
              "stall_seconds", "cache", "io", "drives"}


@pytest.fixture
def run(folder, monkeypatch):
    """Runs an example in this process; returns what it measured."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run(model, **options):
        common = importlib.import_module("common")
        example = importlib.import_module(model)
        assert common.main(model, "", getattr(example, model.upper()), example.batches,
                           ["--gradients", *tiny(json=folder / "out.json", **options)]) == 0
        return json.loads((folder / "out.json").read_text())

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("model", ["gpt", "bert", "t5"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_every_mode_trains_to_the_same_bits(run, formatted, model, dropout):
    options = {"dropout": dropout, "micro_batches": 2}
    keep = run(model, **options)
    recompute = run(model, **options, mode="recompute")
    spilled = run(model, **options, mode="spillway", devices=formatted)
    for key in ("losses_hex", "gradients_sha256"):
        assert keep[key] == recompute[key] == spilled[key]
    assert len(set(keep["losses_hex"])) == 3
    assert KEYS <= keep.keys() and KEYS | SPILL_KEYS <= spilled.keys()
    # On slow drives all may be asked for before it is written.
    assert spilled["bytes_spilled"] + spilled["bytes_forwarded"] > 0
    assert spilled["cache"]["steps"] == 3
    assert keep["tokens_per_step"] == 2 * 2 * 64
    assert recompute["activation_peak_bytes"] < keep["activation_peak_bytes"]


@pytest.mark.parametrize("model, policy", [("gpt", "early"), ("bert", "early"), ("t5", "early"),
                                           ("gpt", "kept")])
def test_gradients_may_go_early_or_stay(run, formatted, model, policy):
    """In every mode the same losses as when they are freed after the step. Those that are added to
    zeros have other bits, the same in every mode."""
    freed, first = run(model), None
    for mode in ("keep", "recompute", "spillway"):
        out = run(model, mode=mode, grad_memory=policy, devices=formatted)
        first = first or (out if policy == "kept" else freed)
        assert out["losses_hex"] == freed["losses_hex"], mode
        assert out["gradients_sha256"] == first["gradients_sha256"], mode


def test_what_is_measured_of_each_step(run, formatted):
    keep = run("gpt")
    spilled = run("gpt", mode="spillway", cache="spill", devices=formatted)
    # plain training is watched in its first
    assert (len(keep["steps"]), len(spilled["steps"])) == (1, 3)
    for out in (keep, spilled):
        for phase in ("forward", "backward", "optimizer"):
            assert len(out[f"step_{phase}_seconds"]) == 3 and min(out[f"step_{phase}_seconds"]) > 0
            assert 0 < out["rss_phase_peak_bytes"][phase] <= out["rss_peak_bytes"]
        peaks = [step["activation_peak_bytes"] for step in out["steps"]]
        assert out["activation_peak_bytes"] == max(peaks)
    assert sum(step["bytes_spilled"] for step in spilled["steps"]) <= spilled["bytes_spilled"]


@pytest.mark.parametrize("mode", ["keep", "spillway"])
def test_a_trace_is_recorded(run, formatted, folder, mode):
    run("gpt", mode=mode, devices=formatted, record=folder / "trace")
    header, *events = [json.loads(line) for line in (folder / "trace").read_text().splitlines()]
    assert (header["format"], header["model"]) == ("spillway-trace", "GPT")
    kinds = [event["event"] for event in events]
    assert kinds.count("step") == 3 and kinds.count("offer") > 50
    assert "take" in kinds and "release" in kinds


def test_as_a_program(formatted):
    done = run_python(EXAMPLES / "gpt.py", *tiny(mode="spillway", devices=formatted), "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["losses"]) == 3
    assert "step 3/3" in done.stderr


@pytest.mark.parametrize("options, words", [
    ({"mode": "spillway"}, "needs --devices"),
    ({"hidden": 65}, "multiple of --heads"),
    ({"layers": 0}, "at least 1"),
    ({"grad_memory": "lost"}, "invalid choice"),
])
def test_wrong_use(run, capsys, options, words):
    with pytest.raises(SystemExit) as ended:
        run("gpt", **options)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_result_that_cannot_be_written_is_told_before_training(run, folder, capsys):
    common = importlib.import_module("common")
    with pytest.raises(SystemExit) as ended:
        common.arguments("", ["--json", str(folder / "nowhere/out.json")])
    assert ended.value.code == 2 and "--json: [Errno 2]" in capsys.readouterr().err


@pytest.mark.parametrize("model, options, words", [
    ("gpt", {"text": "/nonexistent"}, "gpt: [Errno 2] No such file or directory: '/nonexistent'"),
    ("t5", {"sequence": 2}, "t5: --sequence must be at least 3"),
    ("gpt", {"dropout": 2}, "gpt: dropout probability"),
    ("bert", {"mode": "spillway"}, "bert: [Errno"),
])
def test_what_cannot_be_trained_is_told_in_a_line(run, drives, capsys, model, options, words):
    with pytest.raises(AssertionError):
        run(model, devices=drives, **options)  # on which there is no store
    assert words in capsys.readouterr().err


def test_each_step_waits_for_its_turn(run, monkeypatch, capsys):
    steps_before = []

    class Turns:
        def readline(self):
            steps_before.append(capsys.readouterr().err.count("  step "))
            return "\n"

    monkeypatch.setattr(sys, "stdin", Turns())
    common = importlib.import_module("common")
    gpt = importlib.import_module("gpt")
    assert common.main("gpt", "", gpt.GPT, gpt.batches, ["--turns", *tiny()]) == 0
    assert steps_before == [0, 1, 1]
    assert capsys.readouterr().err.count("  step ") == 1


def test_gradients_of_data_parallel_training_cannot_go_early(run):
    gradients = importlib.import_module("gradients")
    parallel = gradients.DistributedDataParallel.__new__(gradients.DistributedDataParallel)
    with pytest.raises(ValueError, match="averaged after the backward pass"):
        gradients.Stepper(parallel, "early", False)
