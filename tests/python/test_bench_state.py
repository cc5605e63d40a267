# SPDX-License-Identifier: MIT
# tests/python/test_bench_state.py - make bench-state: what it says of DeepSpeed, and of wrong words
# layer: all
import subprocess
import sys
import types
from pathlib import Path

import pytest

from conftest import ROOT

BENCH = ROOT / "tests/bench"
sys.path.insert(0, str(BENCH))

import parameters  # noqa: E402
from shapes import AtLeast  # noqa: E402
from spillway.bench import results  # noqa: E402


class Notes:
    """What a case has of state.py's Bench."""

    args = types.SimpleNamespace(rounds=2, layers=1)
    build = Path("none")

    def __init__(self):
        self.found, self.left_out = {}, []

    def note(self, name, value):
        self.found.setdefault(name, []).append(value)


def peers_that_find(monkeypatch, losses="same", **why_not):
    """DeepSpeed takes twice the time of ours, on unequal drives four times."""
    def runs(of, *seconds):
        return [{"seconds": each, "losses": of} for each in seconds]

    def made(chosen, _text, speed):
        # rig.sh takes whole MB/s, also of the drive at a quarter.
        assert all(mb % 4 == 0 for mb in speed.values())
        found = {"plain": (runs("same", 1, 1), []),
                 "deepspeed": (runs("its own", 4, 6), runs("its own", 8, 12)),
                 "spillway-parameters": (runs(losses, 2, 3), runs(losses, 2, 3))}
        assert set(chosen.rows) == set(found)
        return types.SimpleNamespace(go=lambda: None, found={
            name: {"runs": equal, "unequal": unequal, "why_not": why_not.get(name)}
            for name, (equal, unequal) in found.items()})

    monkeypatch.setattr(parameters.peers, "Bench", made)


def test_how_much_longer_deepspeed_takes(monkeypatch):
    peers_that_find(monkeypatch)
    bench = Notes()
    parameters.against_deepspeed(bench)
    ratios = [(goal, values) for (_, what, _, goal), values in bench.found.items()
              if what == "its step / spillway's"]
    assert ratios == 2 * [(AtLeast(1.5), [2, 2]), (AtLeast(3), [4, 4])]  # fast drives, slow ones
    most = [values for (_, what, _, _), values in bench.found.items()
            if what == "its step / all in memory"]
    assert most == 2 * [[4, 6], [8, 12]]


def test_a_deepspeed_that_cannot_run_is_left_out_with_words(monkeypatch):
    peers_that_find(monkeypatch, deepspeed="cannot be loaded: no aio")
    bench = Notes()
    parameters.against_deepspeed(bench)
    assert not bench.found and bench.left_out == ["DeepSpeed ZeRO-3 cannot be loaded: no aio"]


def test_other_losses_of_ours_end_it(monkeypatch):
    peers_that_find(monkeypatch, losses="other")
    with pytest.raises(SystemExit, match="losses differ"):
        parameters.against_deepspeed(Notes())


def test_cases_that_were_not_run_keep_their_rows(folder):
    path = folder / "state.json"
    first = [results.row("a", 1), results.row("b", 2)]
    assert results.updated(path, first) == first
    results.write(path, "title", first, {})
    assert results.updated(path, [results.row("b", 3), results.row("c", 4)]) == [
        results.row("a", 1), results.row("b", 3), results.row("c", 4)]


def test_words():
    def call(*words):
        return subprocess.run([sys.executable, "-B", str(BENCH / "state.py"), *words], text=True,
                              capture_output=True, check=False)

    done = call("--help")
    assert done.returncode == 0 and all(case in done.stdout for case in parameters.CASES)
    done = call("--case", "parametres")
    assert done.returncode == 2 and "invalid choice: 'parametres'" in done.stderr
