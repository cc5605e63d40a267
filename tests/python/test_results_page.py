# SPDX-License-Identifier: MIT
# tests/python/test_results_page.py - the summary of docs/RESULTS.md is of docs/generated/results.md
# layer: all
import shutil
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests/bench"))

import results_page  # noqa: E402


@pytest.fixture
def pages(folder):
    """Copies of the generated page, and of the summary."""
    (folder / "generated").mkdir()
    return (shutil.copy(ROOT / "docs/generated/results.md", folder / "generated"),
            shutil.copy(ROOT / "docs/RESULTS.md", folder))


def change(path, old, new):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    assert text.count(old) == 1
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(old, new))


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def test_the_summary_is_of_the_present_results(pages):
    before = read(pages[1])
    results_page.main(*pages)
    assert read(pages[1]) == before, "run make results"
    assert before.count("| ") > 5 * len(results_page.SHOWN)


def test_what_changes_is_shown(pages):
    found = [line for line in read(pages[0]).splitlines()
             if line.startswith("| spillway: step time / plain |")]
    row = "| spillway: step time / plain | 7.25 |  | ratio | at most 2 | yes |"
    change(pages[0], found[0], row)
    results_page.main(*pages)
    assert "| 7.25 |  | at most 2 | yes |" in read(pages[1])


@pytest.mark.parametrize("new", ["| spillway: another name |",
                                 "| spillway: step time / plain | 1 |\n"
                                 "| spillway: step time / plain |"])
def test_a_row_that_is_renamed_or_twice_is_an_error(pages, new):
    change(pages[0], "| spillway: step time / plain |", new)
    with pytest.raises(SystemExit, match="spillway: step time / plain"):
        results_page.main(*pages)
