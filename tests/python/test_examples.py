# SPDX-License-Identifier: MIT
# tests/python/test_examples.py - GPT, BERT and T5 train to the same bits in every mode
# layer: all
import importlib
import json
import os
import signal
import subprocess
import sys

import pytest

import spillway
from conftest import ROOT

EXAMPLES = ROOT / "python/examples"
TINY = ["--layers", "2", "--hidden", "64", "--heads", "2", "--sequence", "64", "--batch", "2", "--micro-batches", "2", "--steps", "3",
        "--threads", "1", "--text", str(ROOT / "tensor"), "--gradients"]
KEYS = {"activation_peak_bytes", "rss_peak_bytes", "tokens_per_step", "step_seconds", "step_cpu_seconds", "losses", "losses_hex"}
SPILL_KEYS = {"bytes_spilled", "bytes_read", "bytes_forwarded", "bytes_deduplicated", "stall_seconds", "cache", "io", "drives"}


@pytest.fixture
def run(folder, monkeypatch):
    """Runs an example in this process; returns what it measured."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run(model, *options):
        common = importlib.import_module("common")
        example = importlib.import_module(model)
        assert common.main(model, "", getattr(example, model.upper()), example.batches,
                           [*TINY, *map(str, options), "--json", str(folder / "out.json")]) == 0
        return json.loads((folder / "out.json").read_text())

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("model", ["gpt", "bert", "t5"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_every_mode_trains_to_the_same_bits(run, drives, model, dropout):
    spillway.format_store(drives)
    options = ["--dropout", dropout]
    keep = run(model, *options, "--mode", "keep")
    recompute = run(model, *options, "--mode", "recompute")
    spilled = run(model, *options, "--mode", "spillway", "--devices", ",".join(drives))
    assert keep["losses_hex"] == recompute["losses_hex"] == spilled["losses_hex"]
    assert keep["gradients_sha256"] == recompute["gradients_sha256"] == spilled["gradients_sha256"]
    assert len(set(keep["losses_hex"])) == 3
    assert KEYS <= keep.keys() and KEYS | SPILL_KEYS <= spilled.keys()
    # On slow drives all may be asked for before it is written.
    assert spilled["bytes_spilled"] + spilled["bytes_forwarded"] > 0 and spilled["cache"]["steps"] == 3
    assert keep["tokens_per_step"] == 2 * 2 * 64
    assert recompute["activation_peak_bytes"] < keep["activation_peak_bytes"]


@pytest.mark.parametrize("model", ["gpt", "bert", "t5"])
def test_gradients_may_go_early(run, drives, model):
    """In every mode the same bits as when they are freed after the step."""
    spillway.format_store(drives)
    freed = run(model, "--mode", "keep")
    for mode in ("keep", "recompute", "spillway"):
        early = run(model, "--mode", mode, "--grad-memory", "early", "--devices", ",".join(drives))
        assert early["losses_hex"] == freed["losses_hex"], mode
        assert early["gradients_sha256"] == freed["gradients_sha256"], mode


def test_gradients_may_be_kept(run, drives):
    spillway.format_store(drives)
    keep = run("gpt", "--mode", "keep", "--grad-memory", "kept")
    spilled = run("gpt", "--mode", "spillway", "--grad-memory", "kept", "--devices", ",".join(drives))
    assert keep["losses_hex"] == spilled["losses_hex"] == run("gpt", "--mode", "keep")["losses_hex"]
    assert keep["gradients_sha256"] == spilled["gradients_sha256"]


def test_what_is_measured_of_each_step(run, drives):
    spillway.format_store(drives)
    keep = run("gpt", "--mode", "keep")
    spilled = run("gpt", "--mode", "spillway", "--cache", "spill", "--devices", ",".join(drives))
    assert (len(keep["steps"]), len(spilled["steps"])) == (1, 3)  # plain training is watched in its first
    for out in (keep, spilled):
        for phase in ("forward", "backward", "optimizer"):
            assert len(out[f"step_{phase}_seconds"]) == 3 and min(out[f"step_{phase}_seconds"]) > 0
            assert 0 < out["rss_phase_peak_bytes"][phase] <= out["rss_peak_bytes"]
        assert out["activation_peak_bytes"] == max(step["activation_peak_bytes"] for step in out["steps"])
    assert sum(step["bytes_spilled"] for step in spilled["steps"]) <= spilled["bytes_spilled"]


@pytest.mark.parametrize("mode", ["keep", "spillway"])
def test_a_trace_is_recorded(run, drives, folder, mode):
    spillway.format_store(drives)
    run("gpt", "--mode", mode, "--devices", ",".join(drives), "--record", folder / "trace")
    header, *events = [json.loads(line) for line in (folder / "trace").read_text().splitlines()]
    assert (header["format"], header["model"]) == ("spillway-trace", "GPT")
    kinds = [event["event"] for event in events]
    assert kinds.count("step") == 3 and kinds.count("offer") > 50 and "take" in kinds and "release" in kinds


def test_as_a_program(drives):
    spillway.format_store(drives)
    done = subprocess.run([sys.executable, str(EXAMPLES / "gpt.py"), *TINY, "--mode", "spillway", "--devices", ",".join(drives), "--json"],
                          capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["losses"]) == 3
    assert "step 3/3" in done.stderr


@pytest.mark.parametrize("options, words", [
    (["--mode", "spillway"], "needs --devices"),
    (["--hidden", "65"], "multiple of --heads"),
    (["--layers", "0"], "at least 1"),
    (["--grad-memory", "lost"], "invalid choice"),
])
def test_wrong_use(run, capsys, options, words):
    with pytest.raises(SystemExit) as ended:
        run("gpt", *options)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_result_that_cannot_be_written_is_told_before_training(run, folder, capsys):
    common = importlib.import_module("common")
    with pytest.raises(SystemExit) as ended:
        common.arguments("", ["--json", str(folder / "nowhere/out.json")])
    assert ended.value.code == 2 and "--json: [Errno 2]" in capsys.readouterr().err


@pytest.mark.parametrize("model, options, words", [
    ("gpt", ["--text", "/nonexistent"], "gpt: [Errno 2] No such file or directory: '/nonexistent'"),
    ("t5", ["--sequence", "2"], "t5: --sequence must be at least 3"),
    ("gpt", ["--dropout", "2"], "gpt: dropout probability"),
])
def test_what_cannot_be_trained_is_told_in_a_line(run, capsys, model, options, words):
    with pytest.raises(AssertionError):
        run(model, *options)
    assert words in capsys.readouterr().err


def test_each_step_waits_for_its_turn(run, monkeypatch, capsys):
    steps_before = []

    class Turns:
        def readline(self):
            steps_before.append(capsys.readouterr().err.count("  step "))
            return "\n"

    monkeypatch.setattr(sys, "stdin", Turns())
    run("gpt", "--mode", "keep", "--turns")
    assert steps_before == [0, 1, 1]
    assert capsys.readouterr().err.count("  step ") == 1


def test_gradients_of_data_parallel_training_cannot_go_early(run):
    gradients = importlib.import_module("gradients")
    parallel = gradients.DistributedDataParallel.__new__(gradients.DistributedDataParallel)
    with pytest.raises(ValueError, match="averaged after the backward pass"):
        gradients.Stepper(parallel, "early", False)


def test_drives_without_a_store(run, drives, capsys):
    with pytest.raises(AssertionError):
        run("bert", "--mode", "spillway", "--devices", ",".join(drives))
    assert "bert: [Errno" in capsys.readouterr().err
