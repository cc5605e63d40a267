# SPDX-License-Identifier: MIT
# tests/ecosystem/test_block.py - a block of a configuration file: what it gives and refuses
import pytest
import yaml

import spillway
from spillway.integrations._block import KEYS, callback_of
from test_transformers import assert_same, make_trainer, outcome, spilled


def test_a_block_trains_as_the_callback_does(folder, drives):
    text = f"""
devices: [{drives[0]}, {drives[1]}]
mode: budget
budget_bytes: 64KiB
min_bytes: 0
wear: 2TB/day
report: {folder}/run.html
progress:
"""
    plain = make_trainer(folder)
    plain.train()
    callback = callback_of(yaml.safe_load(text))
    trainer = make_trainer(folder, callbacks=[callback])
    trainer.train()
    assert_same(outcome(plain), outcome(trainer))
    assert spilled(callback.stats) > 0 and (folder / "run.html").exists()


def test_drives_as_on_the_command_line(folder, drives):
    callback = callback_of({"devices": ",".join(drives), "mode": "observe"})
    make_trainer(folder, callbacks=[callback]).train()
    assert callback.stats.steps == 12


def test_without_drives(folder):
    callback = callback_of({"recompute": "operations", "min_bytes": 0})
    make_trainer(folder, callbacks=[callback]).train()
    assert callback.stats.steps == 12


REFUSED = [
    (None, "the block must name drives"), ({}, "the block must name drives"),
    ([1], "the block must name drives"), ("/dev/a", "the block must name drives"),
    ({"device": ["/dev/a"]}, r"unknown key 'device' \(did you mean 'devices'\?\); there are dev"),
    ({"devices": ["/dev/a"], 3: 4}, "unknown key 3; there are"),
    ({"devices": ["/dev/a"], "exclude": ["lm_head"]}, "unknown key 'exclude'"),
    ({"devices": []}, "devices must be a list of drives"),
    ({"devices": [1]}, "devices must be a list of drives"),
    ({"devices": "/dev/a,"}, "devices must be a list of drives"),
    ({"devices": ["/dev/a"], "mode": "slow"}, "mode must be one of"),
    ({"devices": ["/dev/a"], "mode": "budget"}, "belong together"),
    ({"devices": ["/dev/a"], "mode": "budget", "budget_bytes": "much"}, "budget_bytes must be"),
    ({"mode": "fastest"}, "a store is needed"),
]


@pytest.mark.parametrize("block, words", REFUSED)
def test_what_cannot_be_is_refused_in_words(block, words):
    with pytest.raises(ValueError, match="^spillway: .*" + words):
        callback_of(block)


def test_keys_are_documented_options():
    """No option of offload() that takes objects, and nothing twice."""
    assert {"devices", "mode", "wear", "report", "min_bytes"} <= set(KEYS)
    assert not {"model", "store", "sizes", "parameters", "former"} & set(KEYS)
    assert len(set(KEYS)) == len(KEYS)


def test_drives_without_a_store(folder):
    (folder / "empty").write_bytes(bytes(1 << 20))
    trainer = make_trainer(folder, callbacks=[callback_of({"devices": [str(folder / "empty")]})])
    with pytest.raises(spillway.SpillwayError, match="is not a drive of a spillway store"):
        trainer.train()
