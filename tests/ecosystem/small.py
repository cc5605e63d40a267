# SPDX-License-Identifier: MIT
# tests/ecosystem/small.py - what programs with configuration files train: files, and what comes out
import argparse
import hashlib
import json
import sys
from pathlib import Path

import pytest
import yaml

from places import wait_after_layers
from spillway.integrations.transformers import SpillwayCallback

EXAMPLES = Path(__file__).resolve().parents[2] / "python/examples"
sys.path.insert(0, str(EXAMPLES))


def make_small(folder):
    """The files of python/examples/small_llama.py, smaller."""
    import small_llama

    small_llama.make(argparse.Namespace(folder=folder, layers=4, hidden=64, sequence=128, rows=32,
                                        text=EXAMPLES))


def example(name, folder, drives, **settings):
    """The example's configuration, of the files in a folder, as a dictionary: None removes."""
    text = (EXAMPLES / name).read_text(encoding="utf-8").replace("/dev/a, /dev/b",
                                                                 ", ".join(drives))
    config = {**yaml.safe_load(text), "output_dir": str(folder / "out"), **settings}
    return {key: value for key, value in config.items() if value is not None}


def written(folder, config, name="train.yaml"):
    path = folder / name
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return str(path)


def logged(path):
    """Losses and norms of gradients of each step that a trainer's state has."""
    history = json.loads(path.read_text(encoding="utf-8"))["log_history"]
    return [(entry["step"], entry["loss"], entry["grad_norm"]) for entry in history
            if "loss" in entry]


def weights(folder):
    """A digest of what was saved."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.read_bytes())
    assert list(folder.glob("*.safetensors"))
    return digest.hexdigest()


@pytest.fixture
def drives_are_fast(monkeypatch):
    """So small a model is done before a drive has written anything: its layers wait."""
    begin = SpillwayCallback.on_train_begin

    def on_train_begin(self, args, state, control, **given):
        wait_after_layers(given["model"], lambda: self.off)
        begin(self, args, state, control, **given)

    monkeypatch.setattr(SpillwayCallback, "on_train_begin", on_train_begin)
