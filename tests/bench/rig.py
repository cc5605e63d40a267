# SPDX-License-Identifier: MIT
# tests/bench/rig.py - drives of tests/rig.sh for as long as a `with` lasts
import os
import subprocess
from pathlib import Path

RIG = Path(__file__).resolve().parents[1] / "rig.sh"


def can_pace():
    """Whether `tests/rig.sh up --paced` goes here."""
    return any(Path("/sys/fs/cgroup", name, "io.cost.qos").exists() for name in ("", "unified"))


def call(*command):
    words = [str(word) for word in command]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {result.stderr.strip()}")
    return result.stdout


class Rig:
    """What is run by it gets the drives at their speed. The options are those of rig.sh up, True
    for one without a value; the suffix tells several rigs of a process apart."""

    def __init__(self, suffix="", **options):
        self.words = [word for name, value in options.items()
                      for word in (f"--{name}", *(() if value is True else (value,)))]
        self.name = f"bench-{os.getpid()}{suffix}"

    def __enter__(self):
        self.drives = call(RIG, "up", "--name", self.name, *self.words).split()
        return self

    def __exit__(self, *_):
        call(RIG, "down", "--name", self.name)

    def run(self, *command):
        return call(RIG, "run", "--name", self.name, *command)
