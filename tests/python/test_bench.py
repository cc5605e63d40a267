# SPDX-License-Identifier: MIT
# tests/python/test_bench.py - python -m spillway.bench: a tiny matrix, the report, interrupted, misused
import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree

import pytest

import spillway
from conftest import ROOT
from spillway.bench import __main__ as bench
from spillway.bench import hooks, report

TINY = ["--layers", "2", "--hidden", "64", "--sequence", "64", "--steps", "2", "--rounds", "1", "--threads", "1", "--drive-bytes",
        str(64 << 20)]

# In place of an example: no PyTorch, numbers that tell what it was asked for.
STAND_IN = """
import json, sys, time
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
batch, mode = int(args["--batch"]), args["--mode"]
share = {"keep": 1.0, "recompute": 0.3, "spillway": 0.1}[mode]
if batch == 13:
    sys.exit("no such luck")
print(f"  {mode} step 1/2", file=sys.stderr, flush=True)
if batch == 99:
    time.sleep(600)
open(args["--json"], "w").write(json.dumps(dict(
    activation_peak_bytes=int(batch * share * 2**20), rss_peak_bytes=int((batch * share + 10) * 2**20), tokens_per_step=batch * 64,
    step_seconds=[9, batch * 0.5 / (1 + (mode != "recompute"))], step_cpu_seconds=[9, 1], losses=[1.5],
    losses_hex=["0x2p+0" if batch == 7 and mode == "spillway" else "0x1p+0"])))
"""


@pytest.fixture
def matrix(folder):
    """bench.main() over stand-ins: (status, JSON, report)."""
    examples = folder / "examples"
    examples.mkdir()
    for model in bench.MODELS:
        (examples / f"{model}.py").write_text(STAND_IN)

    def run(*options):
        out = folder / "out"
        status = bench.main([*TINY, "--work", str(folder), "--examples", str(examples), "--out", str(out), *options])
        found = json.loads((out / "results.json").read_text()) if out.exists() else None
        return status, found, (out / "report.md").read_text() if out.exists() else None

    yield run
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith("spillway-bench.")) == []


def test_the_matrix_is_run_in_rounds_and_reported(matrix, folder, capfd):
    pytest.importorskip("matplotlib")
    status, found, text = matrix("--models", "gpt,t5", "--batches", "2,4", "--rounds", "2", "--no-hooks")
    assert status == 0 and found["complete"] and found["planned"] == len(found["runs"]) == 2 * 2 * 2 * 3
    assert [run["mode"] for run in found["runs"][:3]] == list(report.MODES)
    assert [run["round"] for run in found["runs"]] == [0] * 12 + [1] * 12
    assert "| 4 | spillway | 0 (0.10) |" in text and "identical to the last bit" in text
    assert "batch 4 spilled against batch 2 kept: peak RSS 10 of 12 MiB (fits), activation peak 0 of 2 MiB, tokens/s 1.00" in text
    assert "batch 2: step time of recompute's: 0.50" in text
    for model in ("gpt", "t5"):
        xml.etree.ElementTree.parse(folder / "out" / f"{model}.svg")
        assert (folder / "out" / f"{model}.png").read_bytes().startswith(b"\x89PNG")
        assert f"![{model}]({model}.svg)" in text
    assert "[24/24] t5 batch 4 spillway: loss 1.5000" in capfd.readouterr().err


def test_losses_that_differ_are_a_fault(matrix):
    status, _, text = matrix("--batches", "7", "--models", "bert", "--no-hooks")
    assert status == 1 and "**Losses DIFFER between modes: bert at batch 7. This is a fault.**" in text


def test_a_run_that_fails_leaves_a_report_of_the_others(matrix, capfd):
    status, found, text = matrix("--batches", "2,13", "--models", "gpt", "--no-hooks")
    assert status == 1 and len(found["runs"]) == 3 and "Not complete: 3 of 6 runs were done." in text
    assert "no such luck" in capfd.readouterr().err


def test_interrupted_it_reports_what_was_done(folder):
    """By Ctrl-C on the terminal: the signal goes to every process of the foreground."""
    examples = folder / "examples"
    examples.mkdir()
    (examples / "gpt.py").write_text(STAND_IN)
    process = subprocess.Popen(
        [sys.executable, "-m", "spillway.bench", *TINY, "--models", "gpt", "--batches", "2,99", "--no-hooks", "--work", str(folder),
         "--examples", str(examples), "--out", str(folder / "out")],
        stderr=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    try:
        for line in process.stderr:
            if line.startswith("[3/6]"):  # the next one sleeps
                break
        os.killpg(process.pid, signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 130 and "Traceback" not in errors, errors
    assert "Not complete: 3 of 6 runs were done." in (folder / "out" / "report.md").read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["examples", "out"]


def test_a_tiny_matrix_of_the_examples(folder):
    """One model in two modes; each run is a process of its own that imports PyTorch."""
    status = bench.main([*TINY, "--models", "gpt", "--modes", "keep,spillway", "--batches", "2", "--text", str(ROOT / "tensor"),
                         "--work", str(folder), "--no-hooks", "--out", str(folder / "out")])
    found = json.loads((folder / "out" / "results.json").read_text())
    assert status == 0 and [run["mode"] for run in found["runs"]] == ["keep", "spillway"]
    assert found["runs"][0]["losses_hex"] == found["runs"][1]["losses_hex"]
    assert found["runs"][1]["cache"]["steps"] == 2


def test_time_in_hooks(store, monkeypatch):
    monkeypatch.setattr(hooks, "TENSORS", 20)
    times = hooks.hook_times(store, rounds=1)
    assert set(times) == {"save_us", "use_us", "save_us_wall"} and min(times.values()) > 0


def test_help(capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(["--help"])
    assert ended.value.code == 0
    words = capsys.readouterr().out
    for option in ("--quick", "--models", "--batches", "--devices", "--out"):
        assert option in words


@pytest.mark.parametrize("options, words", [
    (["--models", "gpt,resnet"], "choose from gpt, bert, t5"),
    (["--batches", "0"], "must be at least 1"),
    (["--batches", "x"], "a list separated by commas"),
    (["--steps", "1"], "--steps at least 2"),
    (["--examples", "/nonexistent"], "has no gpt.py"),
])
def test_wrong_use(capsys, options, words):
    with pytest.raises(SystemExit) as ended:
        bench.main(options)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_drives_without_a_store(drives, folder, capfd):
    assert bench.main(["--devices", ",".join(drives), "--out", str(folder / "out"), "--no-hooks"]) == 1
    assert "spillway.bench: [Errno" in capfd.readouterr().err
    assert not (folder / "out").exists()
    assert not any(spillway.probe(path).has_store for path in drives)
