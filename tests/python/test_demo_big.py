# SPDX-License-Identifier: MIT
# tests/python/test_demo_big.py - what the demonstration of a model larger than memory says
# layer: all
import json
import subprocess
import xml.etree.ElementTree

import pytest

from conftest import ROOT, run_python

GIB = 1 << 30
MODEL = {"parameter_bytes": 2 * GIB, "activation_bytes": GIB // 2}


def step(number, loss, **more):
    return {"step": number, "loss": loss, "loss_hex": float(loss).hex(), "seconds": 4.0,
            "parameter_wait_seconds": 0.5, "state_wait_seconds": 0.25,
            "activation_wait_seconds": 0.0, **more}


@pytest.fixture
def runs(folder):
    """Three steps; killed after the first; gone on from there."""
    def write(resumed_loss=7.5):
        lines = {"whole": [step(1, 9.0), step(2, 8.0), step(3, 7.5), MODEL],
                 "killed": [step(1, 9.0)],
                 "resumed": [{"resumed": 1}, step(2, 8.0), step(3, resumed_loss), MODEL]}
        for name, run in lines.items():
            (folder / name).write_text("".join(json.dumps(line) + "\n" for line in run))
        (folder / "peak").write_text(str(3 * GIB // 2))
        return folder
    return write


def say(folder, *more):
    return run_python("-m", "spillway.demo.big", str(folder), "--limit", str(2 * GIB), *more)


def test_identical_losses_are_said_and_drawn(runs):
    folder = runs()
    done = say(folder, "--chart", str(folder / "chart.svg"))
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "losses: identical to the last bit" in said
    assert "went on after step 1" in said
    assert "together 8.50 GiB 4.2 times the limit" in said
    assert "most used 1.50 GiB 75% of it" in said
    assert "waits for drives 0.75 s (parameters 0.50, state 0.25, activations 0.00): bound by " \
        "the processor" in said
    words = [node.text for node in xml.etree.ElementTree.parse(folder / "chart.svg").iter()
             if node.tag.endswith("text")]
    assert {"limit 2.00", "most used 1.50", "state of AdamW 4.00"} <= set(words)


def test_another_bit_is_a_fault(runs):
    done = say(runs(resumed_loss=7.500000000000001))
    assert done.returncode == 1
    assert "DIFFERENT - this is a fault" in done.stdout


def on_device(folder, peak, **in_memory):
    """The runs of runs(), on a device with this peak of bytes; and one in its memory."""
    with (folder / "whole").open("a") as file:
        file.write(json.dumps({"device_peak_bytes": peak}) + "\n")
    lines = [step(1, 9.0, seconds=2.0), step(2, 8.0, seconds=2.0),
             step(3, in_memory.get("loss", 7.5), seconds=2.0), {"device_peak_bytes": 9 * GIB}]
    (folder / "in_memory").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run_python("-m", "spillway.demo.big", str(folder), "--device-limit", str(2 * GIB),
                      "--chart", str(folder / "chart.svg"))


def test_a_device_is_shown_beside_training_in_its_memory(runs):
    folder = runs()
    done = on_device(folder, GIB)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "together 8.50 GiB 4.2 times the device's limit" in said
    assert "most used 1.00 GiB 50% of it" in said
    assert "in memory: 9.00 GiB of the device, a step of 2.00 s; with spillway 4.00 s, 2.00 of it" \
        in said
    assert said.count("identical to the last bit") == 2
    assert "of the cgroup" not in said
    assert "most used 1.00" in (folder / "chart.svg").read_text()


def test_a_device_that_rounds_otherwise_is_said(runs):
    done = on_device(runs(), GIB, loss=7.25)
    assert done.returncode == 0, done.stderr
    assert "losses differ from step 3 on" in done.stdout


def test_more_on_the_device_than_its_limit_is_a_fault(runs):
    done = on_device(runs(), 2 * GIB + 1)
    assert done.returncode == 1
    assert "more on the device than its limit - this is a fault" in done.stdout


def test_a_run_without_a_step_is_said(runs):
    folder = runs()
    (folder / "killed").write_text("")
    done = say(folder)
    assert done.returncode == 1
    assert "one of the runs has made no step" in done.stderr


def test_the_script_takes_no_arguments():
    done = subprocess.run([str(ROOT / "scripts/demo-big.sh"), "--help"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 2
    assert "takes no arguments" in done.stderr
