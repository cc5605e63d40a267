# SPDX-License-Identifier: MIT
# tests/ecosystem/test_examples.py - examples under the trainers of others
import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import spillway

# Arguments of Python.
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
HF, ACCELERATE = "hf_trainer.py", "accelerate_loop.py"
ALL = [HF, ACCELERATE, "trl_sft.py", "lightning_trainer.py", "torchtune_loop.py", "megatron_gpt.py"]
if importlib.util.find_spec("torchtune") is None:  # see test_torchtune.py
    ALL.remove("torchtune_loop.py")
EXAMPLES = Path(__file__).resolve().parents[2] / "python/examples"
SMALL = ["--layers", "2", "--hidden", "64", "--sequence", "64", "--batch", "2", "--steps", "6",
         "--text", str(EXAMPLES)]


def start(name, folder, *more, launcher=()):
    saved = ["--output", str(folder / "out"), "--save-steps", "2"] if name == HF else []
    return subprocess.Popen(
        [sys.executable, *launcher, str(EXAMPLES / name), *SMALL, *saved, *more], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(*arguments, **options):
    process = start(*arguments, **options)
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return out


def losses_of(text):
    return re.findall(r"loss'?:? '?([0-9.]+)", text.replace("train_loss", ""))


@pytest.mark.parametrize("name", ALL)
def test_the_same_losses(folder, drives, name):
    plain = losses_of(run(name, folder))
    out = run(name, folder, "--devices", ",".join(drives))
    assert losses_of(out) == plain and len(plain) == 6
    assert re.search(r"activations: \d+ MiB in memory at most, \d+ MiB written", out)


@pytest.mark.parametrize("name", [HF, ACCELERATE])
def test_two_ranks(folder, drives, name):
    """By torchrun: each has a partition of its own, and nothing else has to be said."""
    spillway.wipe_store(drives)
    spillway.format_store(drives, partitions=2)
    plain = losses_of(run(name, folder, launcher=TORCHRUN))
    out = run(name, folder, "--devices", ",".join(drives), launcher=TORCHRUN)
    # of each rank, in any order
    assert sorted(losses_of(out)) == sorted(plain) and len(plain) == 12
    assert len(re.findall("activations: ", out)) == 2


def test_interrupted(folder, drives):
    """After Ctrl-C it goes on to the same losses, and the drives are free."""
    devices = "--devices", ",".join(drives)
    plain = losses_of(run(HF, folder / "plain"))
    process = start(HF, folder, *devices)
    seen = []
    while len(seen) < 3:  # the checkpoint of the second step is whole
        seen += losses_of(process.stdout.readline())
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130 and "--resume goes on" in errors, errors
    resumed = losses_of(run(HF, folder, *devices, "--resume"))
    assert resumed == plain[-len(resumed):] and len(resumed) in (2, 4)


@pytest.mark.parametrize("name", ALL)
def test_without_a_store(folder, name):
    (folder / "drive").write_bytes(bytes(1 << 20))
    process = start(name, folder, "--devices", str(folder / "drive"))
    _, errors = process.communicate()
    assert process.returncode == 1 and "is not a drive of a spillway store" in errors
    assert "Traceback" not in errors
