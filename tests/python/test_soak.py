# SPDX-License-Identifier: MIT
# tests/python/test_soak.py - the soak's own parts: what counts as growth, and what the report says
# layer: all
import importlib.util
import json
import os
import random
import sys

import pytest

from conftest import ROOT

MIB = 1 << 20


def load(name):
    """A module of tests/soak, which is not a package."""
    spec = importlib.util.spec_from_file_location("soak_" + name,
                                                  os.path.join(ROOT, "tests", "soak", name + ".py"))
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode = True
    spec.loader.exec_module(module)
    return module


judge, programs, report = load("judge"), load("programs"), load("report")


def noisy(of, count=400, noise=3 * MIB):
    dice = random.Random(5)
    return [of(number / count) + dice.randrange(noise) for number in range(count)]


@pytest.mark.parametrize("memory", [
    noisy(lambda part: 100 * MIB),
    noisy(lambda part: min(part * 8, 1) * 100 * MIB),  # a warm-up
    noisy(lambda part: (100 + 200 * (0.9 < part < 0.93)) * MIB),  # a peak
    noisy(lambda part: (300 - 100 * part) * MIB),
], ids=["level", "warm-up", "peak", "shrinks"])
def test_what_does_not_grow(memory):
    assert judge.growth_of(memory, [10] * len(memory))[0] is None


@pytest.mark.parametrize("memory", [
    noisy(lambda part: (100 + 40 * part) * MIB),
    noisy(lambda part: (100 + 20 * (part > 0.7)) * MIB),
], ids=["slowly", "at once"])
def test_what_grows(memory):
    words, figures = judge.growth_of(memory, [10] * len(memory))
    assert words.startswith("memory grew")
    allowed = figures["memory_early"] + figures["memory_growth_allowed"]
    assert figures["memory_late"] > allowed


def test_huge_pages_are_memory():
    """Whether an arena lies in them depends on what other programs of the machine reserve."""
    lines = ["Name:\tpython3: soak\n", "VmRSS:\t   61440 kB\n",
             "HugetlbPages:\t   32768 kB\n", "Threads:\t2\n"]
    assert programs.memory_of(lines) == 92 * MIB
    memory, files = programs.usage(os.getpid())
    assert memory > MIB and files > 2
    assert programs.usage(2 ** 22 + 1) is None  # no process has such a number


def test_descriptors():
    level = [100 * MIB] * 400
    assert judge.growth_of(level, [10 + number % 4 for number in range(400)])[0] is None
    grown = judge.growth_of(level, [10 + number // 40 for number in range(400)])[0]
    assert grown.startswith("descriptors grew")


def test_too_few_samples_are_said_to_be_too_few():
    words, figures = judge.growth_of([number * MIB for number in range(20)], [1] * 20)
    assert words is None and not figures["judged"] and "20 samples" in figures["why"]


def result(violations=()):
    samples = [{"seconds": second, "memory_bytes": 50 * MIB, "files": 9, "objects": 0,
                "used_bytes": 0, "errors": second // 3} for second in range(10)]
    program = {"counts": {"puts": 7}, "errors": {"get EBADMSG": {"count": 3, "words": "drive"}},
               "samples": samples, "growth": judge.growth_of([50 * MIB] * 100, [9] * 100)[1]}
    fault = {"seconds": 4, "kind": "rot", "drive": "soak1", "generation": 1}
    return {"seed": 1, "seconds": 10.0, "generations": 2, "faults": [fault],
            "programs": {"objects": program}, "violations": list(violations),
            "passed": not violations}


def test_report(folder, capsys):
    pytest.importorskip("matplotlib")
    report.write(folder, result(["objects: wrong bytes"]))
    words = capsys.readouterr().out
    for wanted in ("SPW_SEED=1", "rot 1", "7 puts", "get EBADMSG 3", "50 -> 50 MiB",
                   "VIOLATION  objects: wrong bytes", "FAILED: 1"):
        assert wanted in words
    assert json.loads((folder / "soak.json").read_text())["violations"] == ["objects: wrong bytes"]
    assert (folder / "soak.png").read_bytes().startswith(b"\x89PNG")
