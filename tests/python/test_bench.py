# SPDX-License-Identifier: MIT
# tests/python/test_bench.py - python -m spillway.bench: a tiny matrix, rows, interrupted, misused
import argparse
import importlib
import json
import os
import signal
import subprocess
import xml.etree.ElementTree

import pytest

import spillway
from conftest import BUILD, ROOT, options_of, run_python, started
from spillway.bench import __main__ as bench
from spillway.bench import blas, hooks, report, results, throttle
from spillway.demo.ending import later

COMMAND = BUILD / "spillway"
TINY = {"models": "gpt", "layers": 2, "hidden": 64, "sequence": 64, "steps": 2, "rounds": 1,
        "threads": 1, "drive_bytes": 64 << 20, "text": ROOT / "tensor"}


def words_of(folder, resume=False, twice=False, **options):
    """Of a tiny matrix, without the time in hooks."""
    flags = ["--no-hooks"] + ["--resume"] * resume + ["--twice"] * twice
    return flags + options_of(**{**TINY, "work": folder, "out": folder / "out", **options})


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """The bench sets this for the processes that it starts; not for those of other tests."""
    monkeypatch.delenv(blas.NAME, raising=False)


# In place of an example: no PyTorch, numbers that tell what it was asked for.
STAND_IN = """
import json, os, sys, time
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
batch, mode = int(args["--batch"]), args["--mode"]
share = {"keep": 1.0, "recompute": 0.3, "spillway": 0.1}[mode]
if batch == 13:
    sys.exit("no such luck")
print(f"  {mode} step 1/2", file=sys.stderr, flush=True)
if batch == 99:
    time.sleep(600)
steps = int(args["--steps"])
peak = int(batch * share * 2**20)
gradients = {"freed": 0, "early": 0, "kept": 1.8 if mode == "keep" else 0}[args["--grad-memory"]]
moved = 0 if batch == 5 else 1 << 20
assert "--gradients" in sys.argv
open(args["--json"], "w").write(json.dumps(dict(
    activation_peak_bytes=peak, tokens_per_step=batch * 64,
    rss_peak_bytes=int((batch * share + 10 + gradients) * 2**20),
    step_seconds=[9] + (steps - 1) * [batch * 0.5 / (1 + (mode != "recompute"))],
    step_cpu_seconds=steps * [1], losses=steps * [1.5],
    step_forward_seconds=steps * [0.5], step_backward_seconds=steps * [0.25],
    steps=[dict(activation_peak_bytes=peak, plan_peak_bytes=peak + 2**20, stall_seconds=0.25,
                bytes_spilled=moved, bytes_read=moved)] * steps,
    rss_phase_peak_bytes=dict(start=1, forward=int((batch * share + 10) * 2**20),
                              backward=9 * 2**20, optimizer=8 * 2**20),
    text=open(args["--text"], "rb").read(99).decode("latin-1"), step_page_faults=steps * [1000],
    preloaded="spillway_malloc" in os.environ.get("LD_PRELOAD", ""),
    tunables="mmap_threshold" in os.environ.get("GLIBC_TUNABLES", ""),
    losses_hex=(steps - 1) * ["0x1p+0"] + [
        "0x2p+0" if batch == 7 and mode == "spillway" else "0x1p+0"],
    step_gradients_sha256=(steps - 1) * ["same"] + [
        "other" if batch == 11 and mode == "recompute" else
        "kept" if args["--grad-memory"] == "kept" else "same"])))
"""


DIFFER = "models and batches whose losses or gradients differ between modes"
ALONE = "models and batches whose losses or gradients were compared with nothing"
NOT_DONE = "runs that were planned and not done"
FELL = ": peak RSS fell, of what activations fell by"


def stand_ins(folder):
    (folder / "examples").mkdir()
    for model in bench.MODELS:
        (folder / "examples" / f"{model}.py").write_text(STAND_IN)


@pytest.fixture
def matrix(folder):
    """bench.main() over stand-ins: (status, JSON, the value of each row)."""
    stand_ins(folder)

    def run(**options):
        out = folder / "out"
        status = bench.main(words_of(folder, examples=folder / "examples", **options))
        if not out.exists():
            return status, None, None
        found = json.loads((out / "torch.json").read_text())
        assert (out / "report.md").read_text() == results.section(found, "torch")
        return status, found, {row["name"]: round(row["value"], 3) for row in found["rows"]}

    yield run
    assert not any(path.name.startswith("spillway-bench.") for path in folder.iterdir())


def test_the_matrix_is_run_in_rounds_and_reported(matrix, folder, capfd):
    status, found, rows = matrix(models="gpt,t5", batches="2,4", rounds=2)
    assert status == 0
    assert found["complete"]
    assert found["planned"] == len(found["runs"]) == 2 * 2 * 2 * 3
    assert [run["mode"] for run in found["runs"][:3]] == list(report.MODES)
    assert [run["round"] for run in found["runs"]] == [0] * 12 + [1] * 12
    assert (rows[DIFFER], rows[ALONE], rows[NOT_DONE]) == (0, 0, 0)
    name = "gpt batch 4, tuned, gradients freed, spillway"
    wanted = {
        "activation peak": 0.4, "activation peak / keep": 0.1, "activation peak / recompute": 0.333,
        "peak RSS": 10.4, "peak RSS / keep at batch 2": round(10.4 / 12, 3), "step time": 1,
        "step time / keep": 1, "step time / recompute": 0.5, "waited per step": 0.25,
        "peak RSS fell, of what activations fell by": 1, "written per step": 1,
        "RSS of forward passes fell, of what activations fell by": 1,
        "peak of the timed steps / planned": round(0.4 / 1.4, 3),
        "tokens per second / keep at batch 2": 1}
    assert {row.removeprefix(f"{name}: "): value for row, value in rows.items()
            if row.startswith(name)} == wanted
    fits = f"{name}: peak RSS / keep at batch 2"
    assert [row["met"] for row in found["rows"] if row["name"] == fits] == [True]
    for model in ("gpt", "t5"):
        xml.etree.ElementTree.parse(folder / "out" / f"{model}.svg")
    assert "[24/24] t5 batch 4 spillway: loss 1.5000, 1.00 s/step" in capfd.readouterr().err


def test_one_run_is_identical_to_nothing(matrix):
    status, _, rows = matrix(models="gpt,t5", batches=4, modes="spillway")
    assert status == 0 and rows[ALONE] == 2
    status, _, rows = matrix(batches=4, twice=True)
    assert status == 0 and rows[ALONE] == 1 and rows[DIFFER] == 0


@pytest.mark.parametrize("batches", ["7,9", "9,11"])
def test_losses_and_gradients_that_differ_are_a_fault(matrix, batches):
    status, found, rows = matrix(batches=batches, models="bert")
    assert status == 1 and rows[DIFFER] == 1
    assert [row["met"] for row in found["rows"] if row["name"] == DIFFER] == [False]


class Group:
    """In place of a cgroup, for those who may make none."""

    made = []

    def __init__(self, devices, write_bytes_per_second, read_bytes_per_second):
        self.made.append([len(devices), write_bytes_per_second, read_bytes_per_second, "open"])

    def enter(self):
        pass

    def close(self):
        self.made[-1][3] = "closed"


@pytest.fixture
def throttled(matrix, formatted, monkeypatch):
    monkeypatch.setattr(Group, "made", [])
    monkeypatch.setattr(bench, "Throttle", Group)
    return lambda **options: matrix(devices=formatted, throttle=0.5, **options)


def test_drives_are_throttled_to_a_share_of_what_is_needed(throttled):
    status, found, rows = throttled(batches=4, rounds=2, steps=3)
    assert status == 0
    assert [run["mode"] for run in found["runs"]] == 2 * [*report.MODES, "throttled"]
    # 1 MiB per step over 0.5 s of forward and 0.25 s of backward pass; half of it; of four drives.
    assert Group.made == 2 * [[4, 1 << 18, 1 << 19, "closed"]]
    name = "gpt batch 4, tuned, gradients freed, throttled"
    assert rows[f"{name}: step time / keep"] == 1
    assert rows[f"{name}: write bandwidth of all drives"] == 1.049
    assert rows[f"{name}: read bandwidth of all drives"] == 2.097
    assert rows[f"{name}: peak of the timed steps / planned"] == round(0.4 / 1.4, 3)


def test_nothing_moved_is_nothing_to_throttle(throttled, capfd):
    status, found, _ = throttled(batches=5)
    assert status == 1 and Group.made == [] and len(found["runs"]) == 3
    words = "gpt at batch 5 moved nothing to the drives and back: leave out --throttle"
    assert words in capfd.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="throttling needs root")
def test_a_throttle_is_a_group_that_goes_again(drives, folder):
    device = subprocess.run(["losetup", "-f", "--show", drives[0]], capture_output=True, text=True)
    if device.returncode != 0:
        pytest.skip("no loop device: " + device.stderr.strip())
    path = device.stdout.strip()
    try:
        group = throttle.Throttle([path], 1 << 20, 2 << 20)
    except OSError as error:
        pytest.skip(str(error))
    else:
        place = group._group
        child = subprocess.run(["cat", "/proc/self/cgroup"], capture_output=True, text=True,
                               preexec_fn=group.enter)
        limits = "".join(file.read_text() for file in place.iterdir() if file.name in (
            "io.max", "blkio.throttle.write_bps_device", "blkio.throttle.read_bps_device"))
        group.close()
        assert place.name in child.stdout
        assert str(1 << 20) in limits and str(2 << 20) in limits
        assert not place.exists()
        with pytest.raises(OSError, match="not a block device: only those can be throttled"):
            throttle.Throttle([path, drives[1]], 1, 1)
        assert [each for each in place.parent.iterdir()
                if each.name.startswith(f"spillway-bench-{os.getpid()}-")] == []
    finally:
        subprocess.run(["losetup", "-d", path], check=True)


def turns_of(turns, runs, slow):
    """What tests/bench/turns.py finds of such runs; slow: those of keep and spillway with throttled
    drives."""
    results = dict(zip(turns.MODES, runs))
    seconds = {"keep": 2.0, "recompute": 3.0, "spillway": 1.5}
    timed = {mode: turns.argparse.Namespace(seconds=4 * [seconds[mode]]) for mode in turns.MODES}
    throttled = slow and {
        "of_keep": turns.ratio_of(timed, "recompute", "keep"),
        "write_bytes_per_second": 60e6, "read_bytes_per_second": 50e6, "results": slow,
    }
    return turns.found_of("gpt", timed, results, throttled)


def test_steps_in_turn(matrix, monkeypatch):
    """Ratios of steps, activations of those by a plan, and by how much RSS fell; with and without
    throttled drives."""
    _, found, _ = matrix(batches=4, steps=4)
    mib, (keep, recompute, spilled) = 1 << 20, found["runs"]
    recompute.update(step_seconds=[9.0, 9.0, 3.0, 3.0], step_forward_seconds=[1.0, 1.0, 0.6, 0.9])
    for run, peak, rss in ((keep, 1000, 3000), (recompute, 120, 2200), (spilled, 70, 2100)):
        run.update(activation_peak_bytes=peak * mib, rss_peak_bytes=rss * mib)
    for step, peak in zip(spilled["steps"], (100, 90, 70, 50)):
        step.update(activation_peak_bytes=peak * mib, plan_peak_bytes=65 * mib)
    slow = json.loads(json.dumps({"keep": keep, "spillway": spilled}))
    monkeypatch.syspath_prepend(str(ROOT / "tests/bench"))
    turns = importlib.import_module("turns")
    rows = {row["name"]: row for row in turns.rows_of(turns_of(turns, found["runs"], slow))}
    time = "gpt: step time, "
    ratios = [rows[time + words]["value"] for words in turns.RATIOS.values()]
    assert ratios == [0.75, 0.5, 1.5, 0.75]
    once = rows[time + "recompute without what it computes twice / recompute"]
    assert (once["low"], once["high"]) == pytest.approx((0.7, 0.8))
    for name in ("gpt spillway", "gpt, slow drives, spillway"):
        planned = rows[f"{name}: activation peak of the planned steps"]
        assert (planned["value"], planned["high"],
                rows[f"{name}: peak that was planned"]["value"]) == (60, 70, 65)
        assert rows[f"{name}: activation peak / keep"]["value"] == pytest.approx(0.06)
        assert rows[f"{name}{FELL}"]["value"] == 1
    assert rows["gpt, slow drives: step time, spillway / keep"]["value"] == 1.5
    assert rows["gpt, slow drives: write bandwidth"]["value"] == 60
    assert rows["gpt recompute: peak RSS"]["value"] == 2200
    assert rows["gpt: losses or gradients that differ"]["met"]
    for key in ("losses_hex", "step_gradients_sha256"):
        slow["spillway"].update({**spilled, key: spilled[key][:-1] + ["0x0p+0"]})
        differs = next(turns.rows_of(turns_of(turns, found["runs"], slow)))
        assert differs["name"] == "gpt: losses or gradients that differ" and not differs["met"]


def test_training_by_one_plan(monkeypatch):
    """Ways that do not fit the budget are not compared; steps and peaks are compared with
    their plans, the untimed left out."""
    monkeypatch.syspath_prepend(str(ROOT / "tests/bench"))
    plan_turns = importlib.import_module("plan_turns")
    case = plan_turns.Case(0.5, 0.25)
    assert str(case) == "f = 0.5, 25 % of keep"
    names = ["keep", "recompute", f"planned, {case}", f"spilled, {case}"]
    setting = argparse.Namespace(model="gpt", budget=lambda case: 250)

    def found(peaks, fits=True):
        seconds = dict(zip(names, (2.0, 2.6, 2.2, 2.1)))
        untimed = plan_turns.UNTIMED + plan_turns.IN_A_ROW - 1
        runs = {name: argparse.Namespace(seconds=[9.0] * untimed + [seconds[name]])
                for name in names}
        measured = {name: {"activation_peak_bytes": peak, "steps": [{
            "activation_peak_bytes": peak, "plan_peak_bytes": 240, "seconds": 2.2,
            "plan_seconds": 2.0, "plan_scopes_again": 3, "bytes_spilled": 1 << 20}]
            * (untimed + 1)}
            for name, peak in zip(names, peaks)}
        replay = plan_turns.Replay.__new__(plan_turns.Replay)
        replay.tensor_bytes = 20
        replay.planned = {"compute_seconds": 2.0, "step_seconds": 2.08}
        replay.spilled = {"feasible": fits, "step_seconds": 2.6}
        rows = plan_turns.Rows(setting, case, runs, measured, replay).all()
        return {row["name"].removeprefix(f"gpt, {case}: "): row for row in rows}

    rows = found((1000, 265, 250, 900))
    said = rows["time, of the better pure way's, as the planner says"]
    assert said["value"] == pytest.approx(2.08 / 2.6)
    faster = rows["time, of the better pure way's (recompute)"]
    assert faster["value"] == pytest.approx(2.2 / 2.6) and faster["met"]
    assert faster["goal"] == "at most 0.9"
    assert rows["step, of what its plan says"]["value"] == pytest.approx(1.1)
    assert not rows["step, of what its plan says"]["met"]
    assert rows["peak above the plan's, in tensors"]["value"] == 0.5
    assert rows["spilled: peak, of keep's"]["value"] == 0.9
    assert "time, of the better pure way's (spilled)" in found((1000, 265, 250, 260))
    assert not any("pure way" in name for name in found((1000, 900, 250, 900), fits=False))


RANKS = """
import argparse, json, sys
import ranks

args = argparse.Namespace(devices=sys.argv[1], ranks=2, steps=4, counted=2, layers=2,
                          tensor_kib=512, tensor_ms=0.5, in_step=True)
throttle = argparse.Namespace(enter=lambda: None)
measured = ranks.run(args, 2, throttle)
assert [len(steps) for steps in measured] == [4, 4]
for steps, seconds in zip(measured, (2, 4)):
    for step in steps[-2:]:
        step.update(seconds=seconds, bytes=8e6, stall_seconds=0)
print(json.dumps(list(ranks.rows_of(args, "two", [measured]))))
try:
    ranks.run(args, 3, throttle)
except RuntimeError as error:
    print(error)
"""


def test_what_a_rank_has_moved(store, monkeypatch):
    """What has ended by the end of a step. On slow drives that may be nothing."""
    monkeypatch.syspath_prepend(str(ROOT / "tests/bench"))
    ranks = importlib.import_module("ranks")
    off = spillway.torch.offload(ranks.nn.Linear(1, 1), store)
    meter = ranks.Meter(store, off)
    object_id = store.put(bytes(1 << 20))
    meter.step_ended()
    for _ in range(2):
        store.get(object_id, 1 << 20)
    meter.step_ended()
    meter.step_ended()
    assert [step["bytes"] for step in meter.steps] == [1 << 20, 2 << 20, 0]
    store.free(object_id)
    off.close()


def test_ranks(drives):
    """Each in a partition of its own. What is compared are bytes over time of the last steps; where
    one fails the others wait for nothing."""
    spillway.format_store(drives, partitions=2)
    done = run_python("-c", RANKS, ",".join(drives),
                      env={"PYTHONPATH": f"{ROOT}/tests/bench:{ROOT}/python"})
    assert done.returncode == 0, done.stderr
    rows, failed = done.stdout.splitlines()
    each, spread, stall = json.loads(rows)
    assert (each["low"], each["high"]) == (2, 4)
    assert spread["value"] == pytest.approx(2 / 3) and spread["met"] is False
    assert stall["value"] == 0
    assert failed == "a rank failed" and "partition" in done.stderr


def test_twice_the_batch_is_only_spilled(matrix):
    status, found, rows = matrix(batches=4, twice=True, steps=4)
    assert status == 0
    assert [(run["mode"], run["batch"], len(run["step_seconds"])) for run in found["runs"]] == [
        ("keep", 4, 4), ("recompute", 4, 4), ("spillway", 4, 4), ("spillway", 8, 3)]
    name = "gpt batch 8, tuned, gradients freed, spillway: peak RSS / keep at batch 4"
    assert rows[name] == round(10.8 / 14, 3)


def test_the_text_is_that_of_the_beginning(matrix, folder, monkeypatch):
    source = folder / "text"
    source.mkdir()
    (source / "a.md").write_text("first")
    run_cell = bench.run_cell

    def run_and_edit(*args):
        found = run_cell(*args)
        (source / "a.md").write_text("second")
        return found

    monkeypatch.setattr(bench, "run_cell", run_and_edit)
    _, found, _ = matrix(batches=4, text=source)
    assert [run["text"] for run in found["runs"]] == 3 * ["first"]


def test_each_treatment_of_gradients_is_compared_with_itself(matrix, capfd):
    """In the stand-in keep has more resident when gradients are kept, and they have other bits."""
    status, found, rows = matrix(batches=4, grad_memory="freed,kept,early", steps=4, twice=True)
    assert status == 0 and found["planned"] == 10
    assert [(run["grad_memory"], run["mode"], len(run["losses_hex"]))
            for run in found["runs"][:9]] == [
        (policy, mode, 4 if policy == "freed" else 3) for policy in ("freed", "kept", "early")
                for mode in report.MODES]
    for policy, share in (("freed", 1), ("kept", 1.5), ("early", 1)):
        assert rows[f"gpt batch 4, tuned, gradients {policy}, spillway{FELL}"] == share
    name = "gpt batch 8, tuned, gradients freed, spillway: peak RSS / keep at batch 4"
    assert rows[name] == round(10.8 / 14, 3)
    assert len([name for name in rows if "peak RSS / keep at batch 4" in name]) == 1
    assert rows["gpt batch 4, tuned, gradients kept, keep: peak RSS"] == 15.8 and rows[DIFFER] == 0
    assert "gpt batch 4 spillway, gradients kept: loss" in capfd.readouterr().err


def test_the_command_is_found(folder, monkeypatch, capsys):
    """Beside the library, or where PATH leads."""
    monkeypatch.setattr(bench.library, "path", str(folder / "libspillway.so"))
    monkeypatch.setenv("PATH", str(folder / "bin"))
    with pytest.raises(SystemExit):
        bench.main(["--malloc", "run"])
    assert "needs the command spillway: name it by --command" in capsys.readouterr().err
    for path in (folder / "bin" / "spillway", folder / "spillway"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
        path.chmod(0o755)
        assert bench.command_path() == str(path)


@pytest.mark.skipif(not COMMAND.exists(), reason="the command is not built")
@pytest.mark.skipif(bool(os.environ.get("SANITIZE")), reason="a sanitizer replaces malloc() itself")
def test_memory_from_elsewhere_is_compared_with_its_like(matrix, monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    status, found, rows = matrix(batches=4, malloc="libc,run,tuned", command=COMMAND,
                                 grad_memory="freed,kept")
    assert status == 0 and found["complete"]
    how = [(run["malloc"], run["grad_memory"], run["preloaded"], run["tunables"])
           for run in found["runs"]]
    kinds = [("libc", "freed", False, False), ("run", "freed", True, False),
             ("tuned", "freed", False, True), ("libc", "kept", False, False)]
    assert how == [kind for kind in kinds for _ in range(3)]
    for name in ("libc", "run", "tuned"):
        assert rows[f"gpt batch 4, {name}, gradients freed, spillway: step time / recompute"] == 0.5
    name = "gpt batch 4, run, gradients freed, spillway"
    assert rows[f"{name}: step time / recompute with libc"] == 0.5
    assert rows[f"{name}: peak RSS / recompute with libc"] == round(10.4 / 11.2, 3)


def test_what_was_run_is_saved_at_once_and_resumed(matrix, folder, capfd):
    """The run that fails comes after two that are not run again; nor is the text another one."""
    source = folder / "source"
    source.write_text("first")
    status, found, _ = matrix(text=source, batches="2,13")
    assert status == 1 and len(found["runs"]) == 3 and not found["complete"]
    found["runs"][1]["losses"][-1] = 0.25
    (folder / "out" / "torch.json").write_text(json.dumps(found))
    source.write_text("second")
    status, found, _ = matrix(text=source, batches="2,4", rounds=2, resume=True)
    assert status == 0 and found["complete"] and found["planned"] == len(found["runs"]) == 2 * 2 * 3
    assert [run["losses"][-1] for run in found["runs"]].index(0.25) == 1
    assert {run["text"] for run in found["runs"]} == {"first"} and found["rounds"] == 2
    assert "[9/9] gpt batch 4 spillway" in capfd.readouterr().err
    status, again, _ = matrix(text=source, batches=2, resume=True, steps=3)
    assert status == 0 and len(again["runs"]) == len(found["runs"]) + 3  # longer runs
    status, _, _ = matrix(text=source, batches=2, resume=True, hidden=128)
    assert status == 1 and "cannot be resumed: its shape is" in capfd.readouterr().err


def test_gradients_that_are_kept_are_compared_with_each_other(matrix):
    options = {"models": "bert", "batches": 11}
    status, _, rows = matrix(**options, grad_memory="freed,kept", modes="keep,spillway")
    assert status == 0 and rows[DIFFER] == 0
    status, _, rows = matrix(**options, grad_memory="kept")
    assert status == 1 and rows[DIFFER] == 1


def test_no_run_begins_that_would_end_too_late(matrix, capfd):
    status, found, rows = matrix(batches=4, minutes="1e-12")
    assert status == 0 and found is None and rows is None
    assert "3 runs are left out: they would not end within 1e-12 minutes" in capfd.readouterr().err


def test_a_run_that_fails_leaves_a_report_of_the_others(matrix, capfd):
    status, found, rows = matrix(batches="2,13")
    assert status == 1 and len(found["runs"]) == 3 and rows[NOT_DONE] == 3
    assert "no such luck" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_ends_what_it_began(folder, number):
    """By Ctrl-C on the terminal the signal goes to every process of the foreground; SIGTERM to this
    one. After Ctrl-C it reports."""
    stand_ins(folder)
    words = words_of(folder, examples=folder / "examples", batches="2,99")
    with started("-m", "spillway.bench", *words) as process:
        assert any(line.startswith("[3/6]") for line in process.stderr)  # the next one sleeps
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        errors = process.communicate(timeout=60)[1]
        with pytest.raises(ProcessLookupError):  # its child has ended too
            os.killpg(process.pid, 0)
    assert process.returncode == 128 + number and "Traceback" not in errors, errors
    if number == signal.SIGINT:
        assert f"| {NOT_DONE} | 3 |" in (folder / "out" / "report.md").read_text()
    assert sorted(path.name for path in folder.iterdir() if path.name != "out") == ["examples"]


def test_what_comes_while_a_process_is_started_comes_later():
    began = []
    with pytest.raises(KeyboardInterrupt):
        with later(signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(signal.SIGINT)
            began.append("process")  # who ends it knows of it
    assert began == ["process"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_tiny_matrix_of_the_examples(folder):
    """One model in two modes; each run is a process of its own that imports PyTorch."""
    status = bench.main(words_of(folder, modes="keep,spillway", batches=2))
    found = json.loads((folder / "out" / "torch.json").read_text())
    assert status == 0 and [run["mode"] for run in found["runs"]] == ["keep", "spillway"]
    assert found["runs"][0]["losses_hex"] == found["runs"][1]["losses_hex"]
    assert found["runs"][1]["cache"]["steps"] == 2


AVX512 = "flags\t\t: fpu sse2 avx fma avx2 avx512f avx512cd avx512bw avx512dq avx512vl\nbugs\t\t:\n"


@pytest.mark.parametrize("kernels, flags, instead", [
    ("Prescott", AVX512, "SkylakeX"), ("Nehalem", AVX512, "SkylakeX"),
    ("Prescott", AVX512.replace("avx512bw ", ""), "Haswell"),
    ("Prescott", "flags\t: sse2\n", None), ("Prescott", "", None), ("SkylakeX", AVX512, None),
    ("Zen", AVX512, None), (None, AVX512, None)])
def test_kernels_of_a_processor_that_openblas_does_not_know(monkeypatch, capsys, kernels, flags,
                                                            instead):
    assert blas.better(kernels, flags) == instead
    monkeypatch.setattr(blas, "chosen", lambda: kernels)
    monkeypatch.setattr(blas, "better", lambda *_: instead)
    monkeypatch.setenv(blas.NAME, "Zen")
    assert blas.choose() == ("Zen" if kernels else "")  # what the environment says is left
    monkeypatch.delenv(blas.NAME)
    assert blas.choose() == (instead or kernels or "")
    assert os.environ.get(blas.NAME) == instead
    said = f"{blas.NAME}={instead} for all modes" in capsys.readouterr().err
    assert said == (instead is not None)


def test_kernels_are_told():
    """Of this process, if it has OpenBLAS."""
    with open("/proc/self/maps") as file:
        has_openblas = "/libopenblas" in file.read()
    assert (blas.chosen() is not None) == has_openblas
    if has_openblas:
        program = "import torch; from spillway.bench import blas; print(blas.chosen())"
        done = run_python("-c", program, env={blas.NAME: "Nehalem"})
        assert done.stdout == "Nehalem\n", done.stderr


def test_time_in_hooks(formatted, monkeypatch, capsys):
    small = {"BYTES_MAX": 20 * hooks.LENGTHS[0], "HIDDEN": 64, "SEQUENCE": 64, "LAYERS": 2}
    for name, value in small.items():
        monkeypatch.setattr(hooks, name, value)
    assert hooks.main([",".join(formatted)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.pop("length_bytes") for line in lines[:-2]] == list(hooks.LENGTHS)
    assert [line["name"] for line in lines] == ["64 KiB", "256 KiB", "2,048 KiB", "8,192 KiB",
                                                "2 layers, hidden 64", "500 of 4 KiB"]
    rows = [row["name"] for row in report.hook_rows(lines)]
    assert len(rows) == 4 * len(lines[:-1]) + 4
    assert "CPU time in hooks, tensors of 2 layers, hidden 64: using, mean" in rows
    assert rows[-3:-1] == [f"CPU time in hooks, tensors of 500 of 4 KiB: {way} / a pair that does "
                         "nothing" for way in ("kept", "spilled")]
    pair = lines.pop()
    assert set(pair) == {"name", "pair_us", "kept_of_pair", "spilled_of_pair", "rests_of_none"}
    for line in lines:
        assert set(line) == {"name", "save_us", "save_us_mean", "save_us_wall", "use_us",
                             "use_us_mean"}
        assert line.pop("name") and line["save_us_wall"] > 0
        # so few are within what the clocks take, or less
        assert all(isinstance(value, float) for value in line.values())


def test_help(capsys):
    with pytest.raises(SystemExit) as ended:
        bench.main(["--help"])
    assert ended.value.code == 0
    words = capsys.readouterr().out
    for option in ("--quick", "--models", "--batches", "--devices", "--out"):
        assert option in words


@pytest.mark.parametrize("options, words", [
    ({"models": "gpt,resnet"}, "choose from gpt, bert, t5"),
    ({"batches": 0}, "must be at least 1"),
    ({"batches": "x"}, "a list separated by commas"),
    ({"steps": 1}, "--steps at least 2"),
    ({"throttle": 0.5}, "needs --devices and mode spillway"),
    ({"throttle": 0, "devices": "/dev/null"}, "a share above 0"),
    ({"examples": "/nonexistent"}, "has no gpt.py"),
    ({"grad_memory": "kept,lost"}, "choose from freed, kept, early"),
    ({"malloc": "mine"}, "choose from tuned, libc, run"),
    ({"minutes": -1}, "--minutes must be above 0"),
    ({"drive_bytes": -100}, "at least 16 MiB"),
])
def test_wrong_use(capsys, options, words):
    with pytest.raises(SystemExit) as ended:
        bench.main(options_of(**options))
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_drives_without_a_store(drives, folder, capfd):
    assert bench.main(["--devices", ",".join(drives), "--out", str(folder / "out"),
                       "--no-hooks"]) == 1
    assert "spillway.bench: [Errno" in capfd.readouterr().err
    assert not (folder / "out").exists()
    assert not any(spillway.probe(path).has_store for path in drives)


def test_results_are_made_into_one_page(folder, capsys):
    """A figure of a bench that prints rows, next to one that writes them itself."""
    line = {"name": "cost", "value": 2.0, "low": 1.0, "high": 1234.5, "unit": "us",
            "goal": "at most 1", "met": False}
    out = folder / "results"
    assert results.run("one", "First", out, ["printf", "%s\n", json.dumps(line)]) == 0
    assert results.run("none", "Fails", out, ["false"]) == 1
    made = [results.row("share", [3, 1, 2], at_least=2), results.row("plain", 5, "MiB")]
    results.write(out / "two.json", "Second", made, results.machine(["four drives"]), more=1)
    capsys.readouterr()
    before = folder / "RESULTS.md"
    assert results.main(["render", str(out), str(before)]) == 0
    page = capsys.readouterr().out
    assert "| cost | 2 | 1 to 1,234 | us | at most 1 | **no** |" in page
    assert "0 of 1 goals are met" in page
    assert "| share | 2 | 1 to 3 |  | at least 2 | yes |" in page
    assert "| plain | 5 |  | MiB |  |  |" in page
    assert page.index("## First") < page.index("## Second")
    assert "four drives" in page
    assert "Fails" not in page
    before.write_text(page)
    (out / "one.json").unlink()
    results.write(out / "two.json", "Second", [results.row("new", 7)], results.machine())
    assert results.main(["render", str(out), str(before)]) == 0
    kept = capsys.readouterr().out
    assert kept[:kept.index("## Second")] == page[:page.index("## Second")]
    assert "| new | 7 |" in kept and "| share" not in kept
    (out / "other.json").write_text("[]")
    for wrong in (str(out), str(folder / "nothing")):
        assert results.main(["render", wrong, str(before)]) == 1
    assert results.main([]) == 2
