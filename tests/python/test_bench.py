# SPDX-License-Identifier: MIT
# tests/python/test_bench.py - python -m spillway.bench: a tiny matrix, the report, interrupted, misused
import contextlib
import errno
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
import xml.etree.ElementTree

import pytest

import spillway
from conftest import BUILD, ROOT
from spillway.bench import __main__ as bench
from spillway.bench import blas, hooks, report, standstill, throttle
from spillway.demo.ending import later

COMMAND = BUILD / "spillway"
TINY = ["--layers", "2", "--hidden", "64", "--sequence", "64", "--steps", "2", "--rounds", "1", "--threads", "1", "--drive-bytes",
        str(64 << 20)]


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
    activation_peak_bytes=peak, rss_peak_bytes=int((batch * share + 10 + gradients) * 2**20), tokens_per_step=batch * 64,
    step_seconds=[9] + (steps - 1) * [batch * 0.5 / (1 + (mode != "recompute"))], step_cpu_seconds=steps * [1], losses=steps * [1.5],
    step_forward_seconds=steps * [0.5], step_backward_seconds=steps * [0.25],
    steps=[dict(activation_peak_bytes=peak, plan_peak_bytes=peak + 2**20, stall_seconds=0.25, bytes_spilled=moved, bytes_read=moved)] * steps,
    rss_phase_peak_bytes=dict(start=1, forward=int((batch * share + 10) * 2**20), backward=9 * 2**20, optimizer=8 * 2**20),
    text=open(args["--text"], "rb").read(99).decode("latin-1"),
    step_page_faults=steps * [1000], preloaded="spillway_malloc" in os.environ.get("LD_PRELOAD", ""),
    tunables="mmap_threshold" in os.environ.get("GLIBC_TUNABLES", ""),
    losses_hex=(steps - 1) * ["0x1p+0"] + ["0x2p+0" if batch == 7 and mode == "spillway" else "0x1p+0"],
    step_gradients_sha256=(steps - 1) * ["same"] + ["other" if batch == 11 and mode == "recompute" else
        "kept" if args["--grad-memory"] == "kept" else "same"])))
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
        status = bench.main([*TINY, "--text", str(ROOT / "tensor"), "--work", str(folder), "--examples", str(examples),
                             "--out", str(out), *options])
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
    assert "| 4 | tuned | freed | spillway | 0 (0.10) |" in text
    assert "identical to the last bit" in text and "One run only" not in text
    assert ("batch 4, gradients freed after the step: peak RSS fell by 1.00 of what the activation peak fell by, that of the forward "
            "passes by 1.00") in text
    assert "batch 4, spilled: the plan predicted a peak of 1 MiB, measured in the timed steps 0 MiB; waited 0.250 s per step" in text
    assert "; of keep's peak that is 0.100, and 0.100 with the first step, which has no plan" in text
    assert "batch 2, batch 4 spilled against batch 2 kept: peak RSS 10 of 12 MiB (fits), activation peak 0 of 2 MiB, tokens/s 1.00" in text
    assert "batch 2: step time of recompute's: 0.500" in text
    for model in ("gpt", "t5"):
        xml.etree.ElementTree.parse(folder / "out" / f"{model}.svg")
        assert (folder / "out" / f"{model}.png").read_bytes().startswith(b"\x89PNG")
        assert f"![{model}]({model}.svg)" in text
    assert "[24/24] t5 batch 4 spillway: loss 1.5000, 1.00 s/step" in capfd.readouterr().err


def test_one_run_is_identical_to_nothing(matrix):
    status, _, text = matrix("--models", "gpt,t5", "--batches", "4", "--modes", "spillway", "--no-hooks")
    assert status == 0 and "identical" not in text
    assert "One run only, with nothing to compare its losses and gradients with: gpt at batch 4, t5 at batch 4." in text
    status, _, text = matrix("--models", "gpt", "--batches", "4", "--twice", "--no-hooks")
    assert status == 0 and "identical to the last bit" in text and "with: gpt at batch 8." in text


def test_losses_that_differ_are_a_fault(matrix):
    status, _, text = matrix("--batches", "7,9", "--models", "bert", "--no-hooks")
    assert status == 1 and "**Losses or gradients DIFFER between modes: bert at batch 7. This is a fault.**" in text


def test_gradients_that_differ_are_a_fault(matrix):
    status, _, text = matrix("--batches", "9,11", "--models", "bert", "--no-hooks")
    assert status == 1 and "**Losses or gradients DIFFER between modes: bert at batch 11. This is a fault.**" in text


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
def throttled(matrix, drives, monkeypatch):
    spillway.format_store(drives)
    monkeypatch.setattr(Group, "made", [])
    monkeypatch.setattr(bench, "Throttle", Group)
    return lambda *options: matrix("--models", "gpt", "--no-hooks", "--devices", ",".join(drives), "--throttle", "0.5", *options)


def test_drives_are_throttled_to_a_share_of_what_is_needed(throttled):
    status, found, text = throttled("--batches", "4", "--rounds", "2", "--steps", "3")
    assert status == 0
    assert [run["mode"] for run in found["runs"]] == 2 * ["keep", "recompute", "spillway", "throttled"]
    # 1 MiB per step over 0.5 s of forward and 0.25 s of backward pass; half of it; of four drives.
    assert Group.made == 2 * [[4, 1 << 18, 1 << 19, "closed"]]
    assert "batch 4 on drives throttled to 1 MB/s of writing and 2 of reading in all: step time of keep's: 1.000" in text
    assert "batch 4, throttled: the plan predicted a peak of 1 MiB" in text


def test_nothing_moved_is_nothing_to_throttle(throttled, capfd):
    status, found, _ = throttled("--batches", "5")
    assert status == 1 and Group.made == [] and len(found["runs"]) == 3
    assert "gpt at batch 5 moved nothing to the drives and back: leave out --throttle" in capfd.readouterr().err


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
        child = subprocess.run(["cat", "/proc/self/cgroup"], capture_output=True, text=True, preexec_fn=group.enter)
        limits = "".join(file.read_text() for file in place.iterdir() if file.name in (
            "io.max", "blkio.throttle.write_bps_device", "blkio.throttle.read_bps_device"))
        group.close()
        assert place.name in child.stdout
        assert str(1 << 20) in limits and str(2 << 20) in limits
        assert not place.exists()
        with pytest.raises(OSError, match="no block device: only those can be throttled"):
            throttle.Throttle([path, drives[1]], 1, 1)
        assert [each for each in place.parent.iterdir() if each.name.startswith("spillway-bench-")] == []
    finally:
        subprocess.run(["losetup", "-d", path], check=True)


class Sysfs:
    """What the kernel would say of two drives, at times of our choosing; the store's requests."""

    def __init__(self, folder):
        self.now, self.requests = 0.0, 0
        self.folders = [folder / "7:1", folder / "7:2"]
        for place in self.folders:
            place.mkdir()
            self.say(place)

    def say(self, place, reads=0, writes=0, reading=0, writing=0, discards=None, sectors=16):
        counts = [1000 + reads, 0, 8, 1, 2000 + writes, 0, sectors, 1, reading + writing, 1, 1]
        counts += [] if discards is None else [discards, 0, 0, 0]
        (place / "stat").write_text(" ".join(f"{count:8d}" for count in counts) + "\n")
        (place / "inflight").write_text(f"{reading:8d} {writing:8d}\n")

    def watch(self):
        return standstill.Standstill(self.folders, lambda: self.requests)


@pytest.fixture
def sysfs(folder, monkeypatch):
    made = Sysfs(folder)
    monkeypatch.setattr(standstill, "EVERY_SECONDS", 3600)
    monkeypatch.setattr(standstill, "time", types.SimpleNamespace(monotonic=lambda: made.now))
    return made


def test_drives_that_complete_no_write_are_told_from_a_store_that_issues_none(sysfs):
    first, second = sysfs.folders
    with sysfs.watch() as still:
        sysfs.say(first, writes=1)
        sysfs.say(second, reads=1, writing=4)
        sysfs.now, sysfs.requests = 1.0, 9
        still.look()
        sysfs.now = 1.7  # the first has nothing, the second four writes
        assert still.step() == {"write_pause_ms_max": 700, "issue_pause_ms_max": 0, "write_bytes_per_second": 0}
        sysfs.now = 2.0  # goes on in the next step, of which it is another pause
        still.look()
        sysfs.say(second, reads=1, writes=4)
        sysfs.now = 2.4
        still.look()  # nothing is in flight, the store has requests
        sysfs.now = 3.6
        assert still.step() == {"write_pause_ms_max": 300, "issue_pause_ms_max": 1200, "write_bytes_per_second": 0}


def test_what_was_not_seen_is_no_pause(sysfs):
    """Completions between two looks, reads that are in flight, a store without requests, discards."""
    first, _ = sysfs.folders
    with sysfs.watch() as still:
        for second in range(1, 6):
            sysfs.now = float(second)
            sysfs.say(first, writes=second, writing=2)
            still.look()
        sysfs.say(first, writes=6, reading=1)
        sysfs.requests = 1
        for sysfs.now in (6.0, 7.0):  # a read is in flight
            still.look()
        sysfs.say(first, writes=7)
        sysfs.requests = 0
        for sysfs.now in (8.0, 9.0):  # nobody wants anything
            still.look()
        sysfs.say(first, writes=7, writing=1, discards=1)
        sysfs.now = 10.0
        still.look()
        sysfs.say(first, writes=7, writing=1, discards=2)
        sysfs.now = 11.0
        assert still.step() == {"write_pause_ms_max": 0, "issue_pause_ms_max": 0, "write_bytes_per_second": 0}


def test_what_drives_write_while_they_have_writes(sysfs):
    first, second = sysfs.folders
    with sysfs.watch() as still:
        for sysfs.now, writing, sectors in ((4.0, 0, 1000), (5.0, 3, 2000), (7.0, 1, 12000), (8.0, 0, 17000), (9.0, 0, 99000)):
            sysfs.say(first, writes=int(sysfs.now), writing=writing, sectors=sectors)
            still.look()
        assert still.step()["write_bytes_per_second"] == 512 * 5000  # from 5 to 8
        sysfs.say(second, writing=1)
        still.look()
        sysfs.now = 10.0
        sysfs.say(second, writing=1, sectors=316)
        assert still.step()["write_bytes_per_second"] == 512 * 300


def test_drives_that_are_not_counted_are_not_judged(sysfs, drives, monkeypatch, caplog):
    assert standstill.folders_of(drives) == standstill.folders_of(["pci:0000:3d:00.0/1"]) == []
    monkeypatch.setattr(standstill, "number_of", lambda device: device)
    names = [place.name for place in sysfs.folders]
    assert standstill.folders_of(names, sysfs.folders[0].parent) == sysfs.folders
    assert standstill.folders_of([*names, "7:3"], sysfs.folders[0].parent) == []
    sysfs.requests = 5
    with sysfs.watch() as still, standstill.Standstill([], lambda: 1 // 0) as nothing:
        sysfs.now = 9.0  # passthrough: the kernel counts nothing
        assert still.step() == nothing.step() == {}
        sysfs.say(sysfs.folders[0], writes=1)
        assert still.step() != {}

        def gone(*_):
            raise OSError(errno.ENODEV, "no such device")

        monkeypatch.setattr(standstill, "os", types.SimpleNamespace(pread=gone))
        assert still.step() == still.step() == {}
    assert [record.message for record in caplog.records] == ["the drives are not watched any more: [Errno 19] no such device"]


def test_drives_are_watched_by_a_thread(folder, monkeypatch):
    monkeypatch.setattr(standstill, "EVERY_SECONDS", 0.01)
    sysfs, looked, enough = Sysfs(folder), [], threading.Event()
    sysfs.say(sysfs.folders[0], writing=1)

    def requests():
        looked.append(threading.current_thread().name)
        if len(looked) == 2:
            sysfs.say(sysfs.folders[1], reads=1)
        if len(looked) == 4:
            enough.set()
        return 0

    with standstill.Standstill(sysfs.folders, requests) as still:
        assert enough.wait(60)
        assert still.step()["write_pause_ms_max"] >= 20
    assert looked[1:4] == 3 * ["standstill"]
    assert "standstill" not in [thread.name for thread in threading.enumerate()]


def turns_of(runs, slow):
    """tests/bench/turns.py, and what it finds of such runs; slow: those of keep and spillway with throttled drives."""
    spec = importlib.util.spec_from_file_location("turns", ROOT / "tests/bench/turns.py")
    turns = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(turns)
    results = dict(zip(turns.MODES, runs))
    seconds = {"keep": 2.0, "recompute": 3.0, "spillway": 1.5}
    timed = {mode: turns.argparse.Namespace(seconds=4 * [seconds[mode]]) for mode in turns.MODES}
    throttled = slow and {
        "of_keep": turns.ratio_of(timed, "recompute", "keep"), "peak_bytes": turns.peaks_of(slow["spillway"]["steps"]),
        "write_bytes_per_second": 60e6, "read_bytes_per_second": 50e6, "results": slow,
    }
    return turns, turns.found_of("gpt", timed, results, throttled)


def test_steps_in_turn(matrix):
    """Ratios of steps, activations of those by a plan, and by how much RSS fell; with and without throttled drives."""
    _, found, _ = matrix("--models", "gpt", "--batches", "4", "--no-hooks", "--steps", "4")
    mib, (keep, recompute, spilled) = 1 << 20, found["runs"]
    recompute.update(step_seconds=[9.0, 9.0, 3.0, 3.0], step_forward_seconds=[1.0, 1.0, 0.6, 0.9])
    for run, peak, rss in ((keep, 1000, 3000), (recompute, 120, 2200), (spilled, 70, 2100)):
        run.update(activation_peak_bytes=peak * mib, rss_peak_bytes=rss * mib)
    for step, peak in zip(spilled["steps"], (100, 90, 70, 50)):
        step.update(activation_peak_bytes=peak * mib, plan_peak_bytes=65 * mib)
    slow = json.loads(json.dumps({"keep": keep, "spillway": spilled}))
    turns, model = turns_of(found["runs"], slow)
    args = turns.argparse.Namespace(steps=4, layers=2, hidden=64, run=True, throttle=0.5, grad_memory="kept")
    table = turns.table_of([model], args)
    assert "| gpt | 0.750 (0.750-0.750) | 0.500 (0.500-0.500) | 0.750 (0.700-0.800) | 1.500 (1.500-1.500) | identical |" in table
    assert "slowed down to 50%" in table and "| gpt | 60, 50 | 1.500 (1.500-1.500) |" in table
    assert "| gpt spillway | 60 | 70 | 65 | 6.0% | 2100 | 1.00 |" in table and "| gpt throttled | 60 | 70 | 65 | 6.0% |" in table
    assert "| gpt recompute | | 120 | | 12.0% | 2200 | |" in table and "gradients kept" in table
    for key in ("losses_hex", "step_gradients_sha256"):
        slow["spillway"].update({**spilled, key: spilled[key][:-1] + ["0x0p+0"]})
        assert "**differ**" in turns.table_of([turns_of(found["runs"], slow)[1]], args)


def test_a_step_far_above_its_plan_says_what_the_drives_did(matrix, folder):
    _, found, text = matrix("--models", "gpt", "--batches", "4", "--no-hooks", "--steps", "4")
    assert "completed none" not in text
    steps = found["runs"][2]["steps"]
    steps[2].update(activation_peak_bytes=430 << 20, plan_peak_bytes=66 << 20, write_pause_ms_max=1420, issue_pause_ms_max=20)
    steps[3].update(activation_peak_bytes=98 << 20, plan_peak_bytes=66 << 20, write_pause_ms_max=90, issue_pause_ms_max=0)
    note = ("step 3 held 430 MiB where 66 were planned: drives with writes completed none for 1.42 s; the store had requests, and the "
            "drives none, for 0.02 s")
    lines = [line for line in report.markdown(found, []).splitlines() if "were planned" in line]
    assert lines == [f"- batch 4, tuned, gradients freed, spillway: round 1, {note}"]
    for step, speed in zip(steps, (390e6, 0, 270e6, 410e6)):
        step["write_bytes_per_second"] = speed
    note += "; they wrote 270 MB/s while they had writes, 400 in the other steps by a plan"
    turns, model = turns_of(found["runs"], None)
    args = turns.argparse.Namespace(steps=4, layers=2, hidden=64, run=False, throttle=None, grad_memory="freed")
    assert turns.table_of([model], args).endswith(f" |\n\n- gpt: {note}\n")
    for step in steps:
        step.pop("write_pause_ms_max", None)
    assert "where 66 were planned: what the drives did is not known" in turns.table_of([model], args)


@pytest.mark.skipif(os.geteuid() != 0, reason="loop devices need root")
def test_what_the_kernel_counts_of_block_devices(drives):
    with contextlib.ExitStack() as stack:
        made = subprocess.run(["losetup", "-f", "--show", drives[0]], capture_output=True, text=True)
        if made.returncode != 0:
            pytest.skip("no loop device: " + made.stderr.strip())
        devices = [made.stdout.strip()]
        stack.callback(subprocess.run, ["losetup", "-d", *devices], check=True)
        spillway.format_store(devices)
        store = stack.enter_context(spillway.Store(devices))
        still = stack.enter_context(standstill.Standstill(standstill.folders_of(devices), lambda: store.stats().requests))
        store.free(store.put(bytes(1 << 20)))
        found, deadline = {}, time.monotonic() + 60
        while not found and time.monotonic() < deadline:  # the kernel counts a write after it has told of its end
            found = still.step()
        assert set(found) == {"write_pause_ms_max", "issue_pause_ms_max", "write_bytes_per_second"} and min(found.values()) >= 0


def test_twice_the_batch_is_only_spilled(matrix):
    status, found, text = matrix("--models", "gpt", "--batches", "4", "--twice", "--no-hooks", "--steps", "4")
    assert status == 0
    assert [(run["mode"], run["batch"], len(run["step_seconds"])) for run in found["runs"]] == [
        ("keep", 4, 4), ("recompute", 4, 4), ("spillway", 4, 4), ("spillway", 8, 3)]
    assert "batch 8 spilled against batch 4 kept: peak RSS 11 of 14 MiB (fits)" in text


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
    _, found, _ = matrix("--models", "gpt", "--batches", "4", "--no-hooks", "--text", str(source))
    assert [run["text"] for run in found["runs"]] == 3 * ["first"]


def test_each_treatment_of_gradients_is_compared_with_itself(matrix, capfd):
    """In the stand-in keep has more resident when gradients are kept, and they have other bits."""
    status, found, text = matrix("--models", "gpt", "--batches", "4", "--grad-memory", "freed,kept,early", "--no-hooks", "--steps", "4",
                                 "--twice")
    assert status == 0 and found["planned"] == 10
    assert [(run["grad_memory"], run["mode"], len(run["losses_hex"])) for run in found["runs"][:9]] == [
        (policy, mode, 4 if policy == "freed" else 3) for policy in ("freed", "kept", "early") for mode in report.MODES]
    for policy, share in (("freed after the step", "1.00"), ("kept and zeroed in place", "1.50"), ("let go in the backward pass", "1.00")):
        assert f"batch 4, gradients {policy}: peak RSS fell by {share} of what the activation peak fell by" in text
    assert text.count("batch 8 spilled against batch 4 kept: peak RSS 11 of 14 MiB") == 1
    assert "| 4 | tuned | kept | keep | 4 (1.00) | 16 |" in text and "| 4 | tuned | freed | keep | 4 (1.00) | 14 |" in text
    assert "identical to the last bit" in text and "gpt batch 4 spillway, gradients kept: loss" in capfd.readouterr().err


def test_the_command_is_found(folder, monkeypatch, capsys):
    """Beside the library, or where PATH leads."""
    monkeypatch.setattr(bench._library, "path", str(folder / "libspillway.so"))
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
    status, found, text = matrix("--models", "gpt", "--batches", "4", "--malloc", "libc,run,tuned", "--command", str(COMMAND),
                                 "--grad-memory", "freed,kept", "--no-hooks")
    assert status == 0 and found["complete"]
    how = [(run["malloc"], run["grad_memory"], run["preloaded"], run["tunables"]) for run in found["runs"]]
    assert how == 3 * [("libc", "freed", False, False)] + 3 * [("run", "freed", True, False)] + 3 * [
        ("tuned", "freed", False, True)] + 3 * [("libc", "kept", False, False)]
    for name in ("libc", "run", "tuned"):
        assert f"- batch 4, {name}: step time of recompute's: 0.500" in text
    assert ("- batch 4, spilled under `spillway run` against recomputed with the C library's malloc as it is (not like with like): step "
            "time 0.500, peak RSS 10 of 11 MiB") in text
    assert "| 4 | run | freed | keep | 4 (1.00) | 14 | 1.000 (1.000) | 1.000-1.000 | 1.000 | 1,000 |" in text


def test_what_was_run_is_saved_at_once_and_resumed(matrix, folder, capfd):
    """The run that fails comes after two that are not run again; nor is the text another one."""
    source = folder / "source"
    source.write_text("first")
    options = ["--models", "gpt", "--batches", "2,13", "--no-hooks", "--text", str(source)]
    status, found, _ = matrix(*options)
    assert status == 1 and len(found["runs"]) == 3 and not found["complete"]
    found["runs"][1]["losses"][-1] = 0.25
    (folder / "out" / "results.json").write_text(json.dumps(found))
    source.write_text("second")
    status, found, text = matrix(*options[:2], "--batches", "2,4", *options[4:], "--rounds", "2", "--resume")
    assert status == 0 and found["complete"] and found["planned"] == len(found["runs"]) == 2 * 2 * 3
    assert [run["losses"][-1] for run in found["runs"]].index(0.25) == 1
    assert {run["text"] for run in found["runs"]} == {"first"} and "2 rounds" in text
    assert "[9/9] gpt batch 4 spillway" in capfd.readouterr().err
    status, again, _ = matrix(*options[:2], "--batches", "2", *options[4:], "--resume", "--steps", "3")
    assert status == 0 and len(again["runs"]) == len(found["runs"]) + 3  # longer runs than those that are there
    status, _, _ = matrix(*options[:2], "--batches", "2", *options[4:], "--resume", "--hidden", "128")
    assert status == 1 and "cannot be resumed: its shape is" in capfd.readouterr().err


def test_gradients_that_are_kept_are_compared_with_each_other(matrix):
    status, _, text = matrix("--models", "bert", "--batches", "11", "--grad-memory", "freed,kept", "--modes", "keep,spillway", "--no-hooks")
    assert status == 0 and "identical to the last bit" in text
    status, _, text = matrix("--models", "bert", "--batches", "11", "--grad-memory", "kept", "--no-hooks")
    assert status == 1 and "DIFFER between modes: bert at batch 11" in text


def test_no_run_begins_that_would_end_too_late(matrix, capfd):
    status, found, text = matrix("--models", "gpt", "--batches", "4", "--no-hooks", "--minutes", "1e-12")
    assert status == 0 and found is None and text is None
    assert "3 runs are left out: they would not end within 1e-12 minutes" in capfd.readouterr().err


def test_a_run_that_fails_leaves_a_report_of_the_others(matrix, capfd):
    status, found, text = matrix("--batches", "2,13", "--models", "gpt", "--no-hooks")
    assert status == 1 and len(found["runs"]) == 3 and "Not complete: 3 of 6 runs were done." in text
    assert "no such luck" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_ends_what_it_began(folder, number):
    """By Ctrl-C on the terminal the signal goes to every process of the foreground; SIGTERM to this one. After Ctrl-C it reports."""
    examples = folder / "examples"
    examples.mkdir()
    (examples / "gpt.py").write_text(STAND_IN)
    process = subprocess.Popen(
        [sys.executable, "-m", "spillway.bench", *TINY, "--text", str(ROOT / "tensor"), "--models", "gpt", "--batches", "2,99",
         "--no-hooks", "--work", str(folder), "--examples", str(examples), "--out", str(folder / "out")],
        stderr=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
    try:
        for line in process.stderr:
            if line.startswith("[3/6]"):  # the next one sleeps
                break
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        errors = process.communicate(timeout=60)[1]
        with pytest.raises(ProcessLookupError):  # its child has ended too
            os.killpg(process.pid, 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 128 + number and "Traceback" not in errors, errors
    if number == signal.SIGINT:
        assert "Not complete: 3 of 6 runs were done." in (folder / "out" / "report.md").read_text()
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
    status = bench.main([*TINY, "--models", "gpt", "--modes", "keep,spillway", "--batches", "2", "--text", str(ROOT / "tensor"),
                         "--work", str(folder), "--no-hooks", "--out", str(folder / "out")])
    found = json.loads((folder / "out" / "results.json").read_text())
    assert status == 0 and [run["mode"] for run in found["runs"]] == ["keep", "spillway"]
    assert found["runs"][0]["losses_hex"] == found["runs"][1]["losses_hex"]
    assert found["runs"][1]["cache"]["steps"] == 2


AVX512 = "flags\t\t: fpu sse2 avx fma avx2 avx512f avx512cd avx512bw avx512dq avx512vl\nbugs\t\t:\n"


@pytest.mark.parametrize("kernels, flags, instead", [
    ("Prescott", AVX512, "SkylakeX"), ("Nehalem", AVX512, "SkylakeX"), ("Prescott", AVX512.replace("avx512bw ", ""), "Haswell"),
    ("Prescott", "flags\t: sse2\n", None), ("Prescott", "", None), ("SkylakeX", AVX512, None), ("Zen", AVX512, None), (None, AVX512, None)])
def test_kernels_of_a_processor_that_openblas_does_not_know(monkeypatch, capsys, kernels, flags, instead):
    assert blas.better(kernels, flags) == instead
    monkeypatch.setattr(blas, "chosen", lambda: kernels)
    monkeypatch.setattr(blas, "better", lambda *_: instead)
    monkeypatch.setenv(blas.NAME, "Zen")
    assert blas.choose() == ("Zen" if kernels else "")  # what the environment says is left
    monkeypatch.delenv(blas.NAME)
    assert blas.choose() == (instead or kernels or "")
    assert os.environ.get(blas.NAME) == instead
    assert (f"{blas.NAME}={instead} for all modes" in capsys.readouterr().err) == (instead is not None)


def test_kernels_are_told():
    """Of this process, if it has OpenBLAS."""
    with open("/proc/self/maps") as file:
        has_openblas = "/libopenblas" in file.read()
    assert (blas.chosen() is not None) == has_openblas
    if has_openblas:
        done = subprocess.run([sys.executable, "-c", "import torch; from spillway.bench import blas; print(blas.chosen())"], text=True,
                              capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python"), blas.NAME: "Nehalem"})
        assert done.stdout == "Nehalem\n", done.stderr


def test_time_in_hooks(drives, monkeypatch, capsys):
    spillway.format_store(drives)
    for name, value in {"BYTES_MAX": 20 * hooks.LENGTHS[0], "HIDDEN": 64, "SEQUENCE": 64, "LAYERS": 2}.items():
        monkeypatch.setattr(hooks, name, value)
    assert hooks.main([",".join(drives)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.pop("length_bytes") for line in lines[:-1]] == list(hooks.LENGTHS)
    assert [line["name"] for line in lines] == ["64 KiB", "256 KiB", "2,048 KiB", "8,192 KiB", "2 layers, hidden 64"]
    table = "\n".join(report._hooks(lines))
    assert "| 64 KiB | " in table and "| 2 layers, hidden 64 | " in table and "Time in hooks," in table
    for line in lines:
        assert set(line) == {"name", "save_us", "save_us_mean", "save_us_wall", "use_us", "use_us_mean"}
        assert line.pop("name") and line["save_us_wall"] > 0
        assert all(isinstance(value, float) for value in line.values())  # so few are within what the clocks take, or less


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
    (["--throttle", "0.5"], "needs --devices and mode spillway"),
    (["--throttle", "0", "--devices", "/dev/null"], "a share above 0"),
    (["--examples", "/nonexistent"], "has no gpt.py"),
    (["--grad-memory", "kept,lost"], "choose from freed, kept, early"),
    (["--malloc", "mine"], "choose from tuned, libc, run"),
    (["--minutes", "-1"], "--minutes must be above 0"),
    (["--drive-bytes", "-100"], "at least 16 MiB"),
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
