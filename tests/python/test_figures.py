# SPDX-License-Identifier: MIT
# tests/python/test_figures.py - docs/generated/figures.md: what ran is replaced, the rest stays
# layer: all
import json
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests/bench"))

import figures  # noqa: E402

COVERED = "  {} {} % of  1000 lines   90.0 % of  500 branches\n"


@pytest.fixture
def page(folder):
    path = folder / "PAGE.md"
    path.write_text(f"# A page\n\n{figures.BEGIN}{figures.END}\nAfter it.\n")
    return path


def rows_of(page):
    return [line for line in page.read_text().splitlines() if line.startswith("| ")][1:]


def simulated(folder, seeds):
    found = {"seeds": seeds, "operations": 5, "seconds": 6, "kinds": 7, "least": 8}
    (folder / "build").mkdir(exist_ok=True)
    (folder / "build/sim.json").write_text(json.dumps(found))


def covered(folder, *lines):
    (folder / "build-coverage").mkdir(exist_ok=True)
    (folder / "build-coverage/coverage.txt").write_text("".join(lines))


def test_what_ran_is_written_anew_and_the_rest_stays(folder, page):
    build = str(folder / "build")
    simulated(folder, seeds=20)
    covered(folder, COVERED.format("store", 97.0), COVERED.format("a folder that goes", 50.0))
    figures.main(build, page)
    first = rows_of(page)
    assert len(first) == 8 and "seeds without a finding | 20 |" in first[0]
    (folder / "build/sim.json").unlink()
    covered(folder, COVERED.format("store", 98.0))
    figures.main(build, page)
    assert rows_of(page)[:4] == first[:4]
    assert rows_of(page)[4:] == [first[4].replace("97", "98"), first[5]]
    assert page.read_text().startswith("# A page\n") and page.read_text().endswith("\nAfter it.\n")


def test_where_nothing_ran_the_page_stays(folder, page):
    build = str(folder / "build")
    simulated(folder, seeds=20)
    figures.main(build, page)
    before = page.read_text()
    figures.main(str(folder / "another"), page)
    assert page.read_text() == before


def test_a_page_without_markers_is_refused(folder):
    path = folder / "PAGE.md"
    path.write_text("# A page\n")
    with pytest.raises(SystemExit, match="has no markers"):
        figures.main(str(folder / "build"), path)
