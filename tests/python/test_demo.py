# SPDX-License-Identifier: MIT
# tests/python/test_demo.py - the demo in small: end to end, interrupted, misused; the report
# layer: all
import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

import spillway
from conftest import BUILD, ROOT, run_python
from spillway.demo import chart, report

SCRIPT = ROOT / "scripts/demo.sh"
SMALL = {"DEMO_LAYERS": "2", "DEMO_HIDDEN": "64", "DEMO_SEQUENCE": "96", "DEMO_STEPS": "3"}

needs_command = pytest.mark.skipif(not (BUILD / "spillway").exists(),
                                   reason="the command is not built")


@pytest.fixture
def start(folder):
    """Starts the script with everything below the folder; kills what a failed test leaves
    running."""
    work, temporary = folder / "work", folder / "temporary"
    work.mkdir()
    temporary.mkdir()
    started = []

    def begin(**variables):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("DEMO_")}
        env = {**clean, **SMALL, "PYTHON": sys.executable, "SPW_BUILD": str(BUILD),
               "DEMO_DIR": str(work), "TMPDIR": str(temporary),
               "DEMO_CHART": str(folder / "chart.svg"), **variables}
        process = subprocess.Popen([str(SCRIPT)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, start_new_session=True,
                                   env=env)
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    assert left_behind(work) == []
    # Some versions of PyTorch write a file as they are imported, which they remove unless the
    # process is killed.
    left = {path.name for path in temporary.rglob("*") if path.is_file()}
    assert left <= {"_remote_module_non_scriptable.py"}


def left_behind(work):
    loops = subprocess.run(["losetup", "-a"], capture_output=True, text=True).stdout.splitlines()
    return [str(path) for path in work.iterdir()] + [line for line in loops if str(work) in line]


@needs_command
def test_from_end_to_end(start, folder):
    process = start(DEMO_JSON=str(folder / "all.json"), DEMO_ROUNDS="2")
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, output + errors
    assert "losses of the three modes: identical to the last bit" in output
    assert "2 interleaved rounds" in output
    xml.etree.ElementTree.parse(folder / "chart.svg")
    modes = json.loads((folder / "all.json").read_text())["modes"]
    for mode in report.MODES:
        for key in ("activation_peak_bytes", "rss_peak_bytes", "step_seconds_median",
                    "tokens_per_second"):
            assert modes[mode][key] > 0, (mode, key)
        assert len(modes[mode]["losses"]) == 3
    spillway = modes["spillway"]
    for key in ("bytes_read", "bytes_forwarded", "stall_seconds"):
        assert spillway[key] >= 0
    # on slow drives all may be asked for before it is written
    assert spillway["bytes_spilled"] + spillway["bytes_forwarded"] > 0
    assert spillway["bytes_deduplicated"] > 0
    assert modes["keep"]["losses_hex"] == modes["recompute"]["losses_hex"] == spillway["losses_hex"]


def at_step_of(mode, process):
    assert any(line.split()[:2] == [mode, "step"] for line in process.stderr)


@needs_command
@pytest.mark.parametrize("mode, number", [("keep", signal.SIGINT), ("spillway", signal.SIGINT),
                                          ("spillway", signal.SIGTERM)])
def test_asked_to_end(start, folder, mode, number):
    """By Ctrl-C on the terminal, or as at the end of a session: the signal goes to every process.
    The store's status page goes too."""
    process = start(DEMO_STEPS="30")
    at_step_of("keep", process)
    drives = sorted((folder / "work").glob("spillway-demo.*/drive?"))
    page = Path(f"/dev/shm/spillway-{spillway.check_store(drives).store_uuid}-0")
    at_step_of(mode, process)
    assert page.exists() == (mode == "spillway")
    os.killpg(process.pid, number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, output + errors
    assert "Traceback" not in errors and not page.exists()


@needs_command
def test_killed_in_the_middle_of_a_step(start, folder):
    """The next run works without repair."""
    process = start(DEMO_STEPS="30")
    at_step_of("spillway", process)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    (child,) = children.stdout.split()
    os.kill(int(child), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 137
    again = start()
    output, errors = again.communicate(timeout=300)
    assert again.returncode == 0, output + errors


@needs_command
@pytest.mark.parametrize("variables, words", [
    ({"DEMO_HIDDEN": "100"}, "multiple of 64"),
    ({"DEMO_STEPS": "1"}, "at least 2"),
    ({"DEMO_LAYERS": "many"}, "positive numbers, not 'many'"),
    ({"DEMO_DEVICES": "/dev/null", "DEMO_YES": "1"}, "nothing was written"),
])
def test_wrong_use(start, variables, words):
    process = start(**variables)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert words in errors


@needs_command
def test_without_a_terminal_nothing_is_overwritten(start, folder):
    drive = folder / "drive"
    drive.write_bytes(bytes(1 << 20))
    process = start(DEMO_DEVICES=str(drive))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "no terminal to ask on; set DEMO_YES=1" in errors
    assert drive.read_bytes() == bytes(1 << 20)


@needs_command
def test_own_drives_are_wiped_in_the_end(start, folder):
    files = [folder / name for name in "ab"]
    for file in files:
        with open(file, "wb") as opened:
            opened.truncate(256 << 20)
    process = start(DEMO_DEVICES=" ".join(map(str, files)), DEMO_YES="1")
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, output + errors
    assert not any(spillway.probe(file).has_store for file in files)


def test_the_report_sees_a_wrong_bit(folder):
    for mode in report.MODES:
        losses = [1.5, 1.25 if mode != "spillway" else 1.25 + 2**-52]
        run = {"activation_peak_bytes": 1 << 30, "rss_peak_bytes": 1, "step_seconds": [1, 2],
               "step_cpu_seconds": [1, 2], "tokens_per_step": 1, "drives": [], "io": "",
               "losses": losses, "losses_hex": [loss.hex() for loss in losses]}
        (folder / f"{mode}-1.json").write_text(json.dumps(run))
    done = run_python("-m", "spillway.demo.report", folder)
    assert done.returncode == 1 and "DIFFERENT" in done.stdout, done.stderr


def test_nice_steps():
    for span in (0.013, 0.4, 0.99, 1.0, 3.7, 12, 480):
        assert 1.9 < span / chart._nice_step(span) < 5.1
