# SPDX-License-Identifier: MIT
# tests/python/test_peers.py - make bench-peers: what it says of runs, and that it leaves nothing
# layer: all
import json
import os
import signal
import subprocess
import sys
import types
import xml.etree.ElementTree
from pathlib import Path

import pytest

from conftest import BUILD, ROOT, started

BENCH = ROOT / "tests/bench"
sys.path.insert(0, str(BENCH))

import peers  # noqa: E402
import peers_page  # noqa: E402
import peers_run  # noqa: E402
from peers_rows import ROWS  # noqa: E402
from rig import Rig  # noqa: E402
from spillway.bench import results  # noqa: E402

MIB = 1 << 20


def run_of(seconds, activations, losses=("0x1p+0",), **more):
    return {"seconds": seconds, "cpu_seconds": 2 * seconds, "activation_bytes": activations * MIB,
            "rss_bytes": 900 * MIB, "cached_bytes": None, "written_bytes": 8 * MIB,
            "losses": list(losses), **more}


def ways_of(**changed):
    """Plain, spillway, one with another loss and one that cannot go."""
    def way(name, runs, **more):
        return {"title": ROWS[name].title, "moves": ROWS[name].moves, "how": ROWS[name].how,
                "why_not": None, "runs": runs, "slow": [], "troubles": {},
                "same": True, "like": "plain PyTorch", **more}

    good = {"words": "trains on", "grade": "good", "said": "the same losses"}
    return {
        "plain": way("plain", [run_of(1.0, 400), run_of(2.0, 400)]),
        "axolotl": way("axolotl", [run_of(3.0, 100), run_of(4.0, 100)], same=False,
                       troubles={"full": {"words": "hangs", "grade": "bad", "said": "no <end>"}}),
        "torchtune": way("torchtune", [], why_not="needs an accelerator"),
        "spillway": way("spillway", [run_of(1.1, 40), run_of(2.2, 44)],
                        slow=[run_of(1.3, 90), run_of(2.6, 90)],
                        troubles={what: good for what in peers_page.TROUBLES}),
        **changed}


def document_of(ways):
    return {"ways": ways, "machine": results.machine()}


def test_rows():
    rows = {row["name"]: row for row in peers_page.rows_of(document_of(ways_of()), peers.SPILLWAYS)}
    assert rows["spillway: peak of activations"]["value"] == 42
    assert rows["spillway: step time / plain"]["value"] == pytest.approx(1.1)  # within each round
    assert rows["spillway, slow drives: step time / plain"]["value"] == pytest.approx(1.3)
    assert rows["spillway, slow drives: peak of activations"]["value"] == 90
    assert rows["spillway: losses that differ from those of plain PyTorch"]["met"] is True
    assert rows["axolotl, disk: losses that differ from those of plain PyTorch"]["met"] is None
    assert not any("torchtune" in name or "page cache" in name for name in rows)


def test_losses_of_ours_that_differ_are_a_goal_that_is_not_met():
    ways = ways_of()
    ways["spillway"]["same"] = False
    rows = peers_page.rows_of(document_of(ways), peers.SPILLWAYS)
    assert [row["name"] for row in rows if row["met"] is False] == [
        "spillway: losses that differ from those of plain PyTorch"]


def test_the_table():
    table = peers_page.table_of(ways_of())
    assert all(len(row) == len(table["columns"]) for row in table["rows"])
    words = {row[0]: row for row in table["rows"]}
    assert words["torchtune, offloading"][1] == "needs an accelerator"
    assert "hangs" in words["axolotl, disk"] and "**other**" in words["axolotl, disk"]
    assert words["spillway"].count("trains on") == 4 and "90, 1.30 x" in words["spillway"]
    text = results.matrix(table)
    assert text.splitlines()[0].count("|") == len(table["columns"]) + 1
    assert all(ROWS[name].how.split(":")[0].split()[0] in text for name in ways_of())


@pytest.mark.parametrize("dark", [False, True])
def test_the_picture(dark):
    text = peers_page.draw(ways_of(), results.machine(), dark)
    root = xml.etree.ElementTree.fromstring(text)
    words = {node.text for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"spillway", "plain PyTorch", "needs an accelerator", "hangs", "400", "42",
            "90, 1.30"} <= words
    assert (peers_page.DARK if dark else peers_page.LIGHT)["paper"] in text


def test_the_readme(folder):
    readme, found = folder / "README.md", folder / "peers.json"
    readme.write_text(f"before\n{peers_page.BEGIN}stale\n{peers_page.END}after\n")
    peers_page.main(found, folder, readme)
    assert "stale" in readme.read_text()  # nothing was run
    found.write_text(json.dumps(document_of(ways_of())))
    for _ in range(2):
        peers_page.main(found, folder, readme)
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "stale" not in text
    assert "10% of the activations in 1.10 of plain PyTorch's time" in text
    assert "(axolotl, disk 25% of the activations in 2.50)" in text
    assert text.count("peers-dark.svg") == 1 and (folder / "peers-dark.svg").exists()


def test_a_readme_without_a_place_for_it(folder):
    (folder / "peers.json").write_text(json.dumps(document_of(ways_of())))
    (folder / "README.md").write_text("words")
    with pytest.raises(SystemExit, match="has no markers"):
        peers_page.main(folder / "peers.json", folder, folder / "README.md")


@pytest.mark.parametrize("ended, words", [
    ({"timed_out": True}, "hangs"), ({"status": -6}, "crashes"),
    ({"status": 1}, "stops with an error"), ({"losses": ["0x1p+1"]}, "other losses"),
    ({"losses": ["0x1p+0"]}, "trains on")])
def test_verdicts(ended, words):
    run = types.SimpleNamespace(
        timed_out=ended.get("timed_out", False), status=ended.get("status", 0), seconds=1.0,
        result={"losses": [*ended.get("losses", []), "0x1p-1"]}, why=lambda: "OSError: no room")
    assert peers.verdict_of(run, ["0x1p+0"])["words"] == words


def test_why_it_stopped():
    run = types.SimpleNamespace(said=["Traceback:", "  File x", "OSError: [Errno 28] no room",
                                      "swallowed afterwards"])
    assert peers.Run.why(run) == "OSError: [Errno 28] no room"
    assert peers.Run.why(types.SimpleNamespace(said=[])) == "not a word"


def call(*words):
    return subprocess.run([sys.executable, "-B", str(BENCH / "peers.py"), *words], text=True,
                          capture_output=True, check=False)


def test_help_and_a_row_that_is_none():
    done = call("--help")
    assert done.returncode == 0 and all(row.title in done.stdout for row in ROWS.values())
    done = call("--rows", "spilway")
    assert done.returncode == 2 and "no row 'spilway'" in done.stderr and "spillway" in done.stderr


SMALL = ["--build", str(BUILD), "--rows", "spillway,torchtune", "--rounds", "1", "--steps", "1",
         "--layers", "1", "--batch", "4", "--size", "192M", "--no-troubles"]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for loop devices")


def nothing_is_left(pid):
    return not [path for pattern in ("run/spillway-rig.bench-{}*", "var/tmp/*rig-bench-{}*",
                                     "sys/fs/cgroup/*/spillway-peers-{}*")
                for path in Path("/").glob(pattern.format(pid))]


@needs_root
def test_what_drives_were_given_to_write():
    """Counted here and not in a run: in a short step all may be asked for before it is written."""
    with Rig("-written", drives=2, size="16M") as rig:
        before = peers_run.written_bytes(rig.drives)
        for drive in rig.drives:
            subprocess.run(["dd", "if=/dev/zero", f"of={drive}", "bs=1M", "count=1",
                            "oflag=direct"], capture_output=True, check=True)
        assert peers_run.written_bytes(rig.drives) - before == 2 * MIB


@needs_root
def test_processes_that_a_run_leaves_behind():
    with peers.MemoryGroup() as memory:
        if memory.group is None:
            pytest.skip("this kernel does not count the memory of a group")
        done = subprocess.run(["sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"], text=True,
                              preexec_fn=memory.enter, capture_output=True, check=True)
    assert not memory.group.exists()
    status = Path(f"/proc/{int(done.stdout)}/status")  # of a zombie, until init has seen its end
    assert not status.exists() or "Z (zombie)" in status.read_text()


@needs_root
def test_a_small_one(folder):
    process = subprocess.Popen([sys.executable, "-B", str(BENCH / "peers.py"), *SMALL,
                                "--out", str(folder)], text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    found = json.loads((folder / "peers.json").read_text())["ways"]
    assert found["spillway"]["same"] is True
    assert "needs an accelerator" in said and "spillway: step time / plain" in said
    assert nothing_is_left(process.pid)


@needs_root
@pytest.mark.parametrize("number, rounds", [(signal.SIGTERM, 0), (signal.SIGINT, 1)])
def test_interrupted(folder, number, rounds):
    """What complete rounds found stays."""
    with started("-B", BENCH / "peers.py", *SMALL, "--rounds", "2", "--out", folder) as process:
        seen = 0
        for line in process.stderr:
            seen += line.startswith("peers: plain: ")
            if seen > rounds:
                break
        process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == 128 + number, errors
    assert nothing_is_left(process.pid)
    if rounds == 0:
        assert not list(folder.iterdir())
    else:
        document = json.loads((folder / "peers.json").read_text())
        assert document["rounds"] == len(document["ways"]["plain"]["runs"]) == 1
