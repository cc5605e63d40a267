# SPDX-License-Identifier: MIT
# tests/python/test_docs.py - what the pages for beginners say is so
# layer: test all
import re

import pytest

import spillway
from conftest import ROOT, make_drives, run_python

TROUBLES = (ROOT / "docs/TROUBLESHOOTING.md").read_text()
# The first of a row's three columns, in backquotes.
MESSAGES = re.findall(r"^\| `([^`]+)` \| [^|]+ \| [^|]+ \|$", TROUBLES, re.M)


def words_of_sources():
    """All that is between quotes, with literals that follow each other joined."""
    folders = [*(ROOT / name for name in ("drives", "engine", "layout", "malloc", "state", "store",
                                          "tensor", "util")), ROOT / "python/spillway"]
    texts = [path.read_text() for folder in folders for path in sorted(folder.rglob("*"))
             if path.suffix in (".c", ".h", ".py")]
    return re.sub(r"""["']\s*\n\s*(?:f?["'])""", "", "\n".join(texts))


def test_every_row_has_a_message():
    rows = [line for line in TROUBLES.splitlines() if line.startswith("| ")
            and not line.startswith("| message |")]
    assert len(MESSAGES) == len(rows) > 30
    assert len(set(MESSAGES)) == len(MESSAGES)


SOURCES = words_of_sources()


# PyTorch's own words are looked for where they are raised, in test_forward_ad.py.
@pytest.mark.parametrize("message", [each for each in MESSAGES if "torch.func" not in each])
def test_a_message_that_is_explained_is_one(message):
    """Where the report makes a line of two parts, each is there."""
    for part in message.replace("kept: ", "").split("..."):
        assert part.strip() in SOURCES


def test_the_program_of_the_quickstart(folder):
    """It does what the page says, with small drives and a small model."""
    page = (ROOT / "docs/QUICKSTART.md").read_text()
    program = re.search(r"```python\n(.*?)```", page, re.S).group(1)
    small = program.replace("width, batch = 1024, 2048", "width, batch = 256, 512").replace(
        '"100MiB"', '"3MiB"')
    assert small.count("256, 512") == small.count("3MiB") == 1
    spillway.format_store(make_drives(folder, 2, 64 << 20, "spillway"))
    for number in range(2):
        (folder / f"spillway{number}").rename(folder / f"spillway{number}.img")
    done = run_python("-c", small, env={"HOME": str(folder)})
    assert done.returncode == 0, done.stderr
    peaks = [int(peak) for peak in re.findall(r"activations (\d+) MiB at most", done.stdout)]
    assert len(peaks) == 3 and peaks[0] == 12  # plain training; the others are as drives are
    assert len(set(re.findall(r"loss ([0-9.]+)", done.stdout))) == 1
    assert "activations in the last step, peak" in done.stdout
