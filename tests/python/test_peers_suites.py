# SPDX-License-Identifier: MIT
# tests/python/test_peers_suites.py - how make test-peers-suites judges, without a peer
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "peers"))

import suites  # noqa: E402, and first: it knows where outcomes is
import outcomes  # noqa: E402

PASSED = {"outcome": "passed", "message": "", "bytes": 8}
FAILED = {"outcome": "failed", "message": "E   ValueError: no", "bytes": 8}


def run(peer, way, name, what):
    return SimpleNamespace(peer=peer, way=way, tests={name: what})


def judged(plain, ours, name="test_x.py::test_a"):
    """The tally, and the table's entry."""
    tally = outcomes.Tally()
    runs = [run("trl", "plain", name, plain)]
    if ours is not None:
        runs.append(run("trl", "spilled", name, ours))
    return tally, suites.compare(runs, tally)[f"trl {name}"]


@pytest.mark.parametrize("plain, ours, counts", [
    (PASSED, PASSED, (1, 0, 0)),
    (PASSED, FAILED, (0, 1, 0)),
    (PASSED, None, (0, 1, 0)),
    (FAILED, PASSED, (0, 1, 0)),
    (FAILED, FAILED, (0, 0, 1)),
    (PASSED, {**PASSED, "bytes": 0}, (0, 0, 1)),
])
def test_verdicts(plain, ours, counts):
    """A test that moves no byte has shown nothing."""
    tally, entry = judged(plain, ours)
    assert (tally.passed, tally.failed, tally.skipped) == counts
    assert entry["verdict"] == "passed" or entry["why"]


def test_what_is_expected(monkeypatch):
    """As long as it is so."""
    monkeypatch.setattr(suites, "EXPECTED", {"trl test_x.py": "its reason"})
    tally, entry = judged(PASSED, FAILED)
    assert tally.skipped == 1 and entry["why"] == "failed: its reason"
    suites.check_expected({"trl test_x.py": entry}, SimpleNamespace(words=[]), tally)
    assert not tally.failed
    tally, entry = judged(PASSED, PASSED)
    suites.check_expected({"trl test_x.py": entry}, SimpleNamespace(words=[]), tally)
    assert tally.failed == 1


def test_a_peer_that_moves_no_byte():
    tally = outcomes.Tally()
    table = {f"{peer} test": {"bytes": int(peer != "trl")} for peer in suites.FILES}
    suites.check_bytes(table, SimpleNamespace(words=[]), tally)
    assert [what for what, _, _ in tally.failures] == ["trl"]
