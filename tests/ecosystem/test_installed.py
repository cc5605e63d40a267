# SPDX-License-Identifier: MIT
# tests/ecosystem/test_installed.py - what is tested is what pip has installed
import importlib.metadata
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

import spillway
import spillway.torch

PINS = Path(__file__).with_name("pins.txt")


def test_the_package_comes_from_the_environment():
    prefix = Path(sys.prefix).resolve()
    assert Path(spillway.__file__).resolve().is_relative_to(prefix)
    assert Path(spillway._core.library.path).resolve().is_relative_to(prefix)


@pytest.mark.skipif("SPW_NEWEST" in os.environ, reason="with the newest versions (test-newest)")
def test_versions_are_those_of_the_pins():
    for line in PINS.read_text().splitlines():
        if not line.startswith("#"):
            name, _, version = line.partition("==")
            assert importlib.metadata.version(name).split("+")[0] == version


def test_what_the_page_imports_is_there():
    page = PINS.parents[2] / "docs/INTEGRATIONS.md"
    lines = re.findall(r"^from spillway.* import .*$", page.read_text(), re.M)
    assert len(lines) == 5
    for line in lines:
        if "torchtune" not in line or find_spec("torchtune"):  # see test_torchtune.py
            exec(line, {})


def test_it_trains(drives):
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    with spillway.Store(drives) as store:
        off = spillway.torch.offload(model, store, mode="spill",
                                     sizes=spillway.torch.Sizes(min_bytes=0))
        with off:
            model(torch.randn(256, 256, requires_grad=True)).sum().backward()
        assert off.stats().bytes_spilled + off.stats().bytes_forwarded > 0
        off.close()
