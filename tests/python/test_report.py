# SPDX-License-Identifier: MIT
# tests/python/test_report.py - reports that a run leaves at its end, and `spillway report`
import copy
import json
import os
import subprocess
import sys

import pytest
import torch

from conftest import BUILD, make_store, run_python
from offloading import Layers, offload_all
from spillway._report.html import page_of
from spillway._report.run_record import json_of, run_of

COMMAND = BUILD / "spillway"

# As a program that knows nothing of reports: how it ends is the last part.
PROGRAM = """
import os, sys, torch, spillway, spillway.torch
drives = sys.argv[1:]
def make():
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    return model, spillway.torch.offload(
        model, store, mode="spill", sizes=spillway.torch.Sizes(min_bytes=1))
def step(model, off, times=1):
    for _ in range(times):
        with off:
            model(torch.ones(64, 64)).sum().backward()
"""


@pytest.fixture
def two(folder):
    drives = make_store(folder, 2, 64 << 20, partitions=2)
    return drives


def leave(folder, drives, ending, name="run.json", **env):
    done = run_python("-c", PROGRAM + ending, *drives,
                      env={"SPILLWAY_REPORT": str(folder / name), **env})
    return done, sorted(path.name for path in folder.glob("run*"))


@pytest.mark.parametrize("ending", [
    "with spillway.Store(drives) as store: step(*make(), 3)",
    "store = spillway.Store(drives); model, off = make(); step(model, off, 3)",
    "store = drives; model, off = make(); step(model, off, 3); off.close()",
    "store = drives\ndef train(): step(*make(), 3)\ntrain()\nimport gc; gc.collect()",
    "with spillway.Store(drives) as store:\n    step(*make(), 3)\n    raise SystemExit(0)",
    "store = spillway.Store(drives); model, off = make(); step(model, off, 3); store.close()",
], ids=["with", "program ends", "close", "collected", "exit", "store closes"])
def test_at_its_end_a_run_leaves_a_report(folder, two, ending):
    """Closed by the store, by itself, by the garbage collector, by the end of the program."""
    done, left = leave(folder, two, ending)
    assert (done.returncode, done.stderr, left) == (0, "", ["run.json"])
    run = run_of((folder / "run.json").read_text())
    assert (run.model, run.mode, run.stats.steps) == ("Sequential", "spill", 3)
    assert run.stats.offers > 0 and run.profile
    assert [drive.path for drive in run.drives] == two and len(run.wear) == 2


def test_a_run_that_fails_leaves_one_too(folder, two):
    done, left = leave(folder, two, "with spillway.Store(drives) as store:\n"
                       "    step(*make())\n    raise RuntimeError('planted')", "run.html")
    assert done.returncode == 1 and "planted" in done.stderr and left == ["run.html"]
    assert (folder / "run.html").read_text().endswith("</html>\n")


def test_each_rank_and_each_offload_has_its_own(folder, two):
    twice = ("\nwith spillway.Store(drives, partition={}) as store:\n"
             "    for _ in 'ab': step(*make())")
    assert leave(folder, two, twice.format(0), RANK="3")[1] == ["run.rank3.2.json",
                                                               "run.rank3.json"]
    _, left = leave(folder, two, twice.format(1))
    assert left[:2] == ["run.partition1.2.json", "run.partition1.json"] and len(left) == 4


def test_a_child_leaves_none(folder, two):
    _, left = leave(folder, two, """
store = spillway.Store(drives)
model, off = make()
step(model, off)
if os.fork() == 0:
    del off
    sys.exit(0)
os.wait()
assert not os.path.exists(os.environ["SPILLWAY_REPORT"])
""")
    assert left == ["run.json"]


def test_one_that_cannot_be_written_ends_nothing(folder, two):
    done, left = leave(folder, two, "with spillway.Store(drives) as store: step(*make())",
                       "none/run.json")
    assert done.returncode == 0 and "the report of this run is not written" in done.stderr


# ---- As figures --------------------------------------------------------------------------------


@pytest.fixture
def run(store):
    model = Layers()
    off = offload_all(store, model, mode="fastest")
    for _ in range(3):
        with off:
            model(torch.ones(64, 100, requires_grad=True)).sum().backward()
    return off._run()


def test_figures_make_the_same_page(run):
    assert run_of(json_of(run)) == run
    assert page_of(run_of(json_of(run))) == page_of(run)


def test_both_at_once(store, folder):
    off = offload_all(store)
    off.report(html=folder / "run.html", json=folder / "run.json")
    assert run_of((folder / "run.json").read_text()).model == "Nothing"
    assert (folder / "run.html").read_text().endswith("</html>\n")


def spoil(document, path, value):
    *folders, last = path
    for name in folders:
        document = document[name]
    document[last] = value


@pytest.mark.parametrize("path, value, words", [
    (["run", "mode"], "fatsest", "run.mode makes no sense"),
    (["run", "model"], 3, "run.model makes no sense"),
    (["run", "seconds"], "1", "run.seconds makes no sense"),
    (["run", "seconds"], 1e300, "run.seconds makes no sense"),
    (["run", "seconds"], True, "run.seconds makes no sense"),
    (["run", "stats"], [], "run.stats makes no sense"),
    (["run", "stats", "steps"], -1, "run.stats.steps makes no sense"),
    (["run", "stats", "plans"], 1 << 64, "run.stats.plans makes no sense"),
    (["run", "profile"], [[0, 1, 1], [0, 2, 2]], "run.profile: its times do not go up"),
    (["run", "profile", 0], [0, 1], "run.profile"),
    (["run", "drives", 0, "retired"], 1, r"run.drives\[0\].retired makes no sense"),
    (["run", "before"], [], "run.before: drives are missing"),
    (["run", "wear", 0, 1, "basis"], "rumour", "basis makes no sense"),
    (["run", "hints"], "none", "run.hints makes no sense"),
    (["run"], None, "run makes no sense"),
])
def test_figures_that_make_no_sense_are_refused(run, path, value, words):
    document = json.loads(json_of(run))
    spoil(document, path, value)
    with pytest.raises(ValueError, match=words):
        run_of(json.dumps(document))


def test_what_is_no_report_is_refused(run):
    for text in ("", "{", "[]", "3", '{"spillway": "1"}', "[" * 100000, '{"run": {}}'):
        with pytest.raises(ValueError, match="it is not a report of spillway in JSON"):
            run_of(text)
    document = json.loads(json_of(run))
    with pytest.raises(ValueError, match="makes no sense"):
        run_of(json.dumps(document).replace(f'"steps": {run.stats.steps}', '"steps": NaN'))
    later = copy.deepcopy(document)
    later["run"]["stats"]["invented"] = 1
    assert run_of(json.dumps(later)) == run
    later["spillway"] = "7.0.0"
    del later["run"]["stats"]["steps"]
    with pytest.raises(ValueError, match="steps is not there; it says that spillway '7.0.0'"):
        run_of(json.dumps(later))


# ---- The command -------------------------------------------------------------------------------


needs_command = pytest.mark.skipif(not COMMAND.exists(), reason="the command is not built")


def command(*words, **env):
    return subprocess.run([COMMAND, *words], capture_output=True, text=True,
                          env={**os.environ, "SPILLWAY_PYTHON": sys.executable, **env})


@needs_command
def test_the_command_makes_the_page(run, folder):
    figures = folder / "a run.json"
    figures.write_text(json_of(run))
    done = command("report", figures)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{folder / 'a run.html'}\n"
    assert (folder / "a run.html").read_text() == page_of(run)
    assert command("report", "--run", figures, "--output", folder / "other").returncode == 0
    assert (folder / "other").read_text() == page_of(run)


@needs_command
def test_the_command_says_what_is_wrong(run, folder):
    figures = folder / "run.json"
    done = command("report", figures)
    assert (done.returncode, done.stderr) == (
        1, f"spillway report: {figures}: No such file or directory\n")
    figures.write_text("{}")
    done = command("report", figures)
    assert done.returncode == 1 and "it is not a report of spillway in JSON" in done.stderr
    assert not (folder / "run.html").exists()
    figures.write_bytes(b"\xff")
    assert command("report", figures).returncode == 1
    figures.write_text(json_of(run))
    done = command("report", figures, "--output", folder / "none" / "page")
    assert done.returncode == 1 and f"{folder / 'none' / 'page'}: No such file" in done.stderr
    for words in ([], [figures, figures], [folder / "run"]):
        assert command("report", *words).returncode == 2
    done = command("report", figures, SPILLWAY_PYTHON=str(folder / "no python"))
    assert done.returncode == 1 and "cannot be started: No such file" in done.stderr


@needs_command
def test_without_the_package_it_says_what_to_install(run, folder):
    """Nor is it taken from the present folder."""
    (folder / "spillway").mkdir()
    (folder / "spillway/__init__.py").write_text("print('planted')")
    done = subprocess.run([COMMAND, "report", "run.json"], capture_output=True, text=True,
                          cwd=folder, env={"PATH": os.environ["PATH"], "PYTHONNOUSERSITE": "1",
                                           "SPILLWAY_PYTHON": sys.executable})
    if "No such file" in done.stderr:
        pytest.skip("this Python has the package")
    assert done.returncode == 1 and done.stdout == ""
    assert "has no package spillway" in done.stderr and "python3-spillway" in done.stderr


@needs_command
def test_run_asks_for_a_report(folder, two, monkeypatch):
    ending = "os.chdir('/'); store = drives; model, off = make(); step(model, off, 2)"
    words = ["run", "--report", "run.html", "--", sys.executable, "-c", PROGRAM + ending, *two]
    monkeypatch.chdir(folder)
    done = command(*words)
    assert done.returncode == 0, done.stderr
    assert "Training Sequential" in (folder / "run.html").read_text()
    for name in ("run.txt", "run", "html"):
        done = command("run", "--report", name, "--", "true")
        assert done.returncode == 2 and "it ends in .html or .json" in done.stderr
    done = command("run", "--report", "none/run.html", "--", "true")
    assert done.returncode == 1 and "cannot write none/run.html" in done.stderr
