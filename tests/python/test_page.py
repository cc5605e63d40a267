# SPDX-License-Identifier: MIT
# tests/python/test_page.py - the HTML page of a run: complete, harmless, readable on a phone
import dataclasses
import html
import html.parser
import re
import shutil
import subprocess

import pytest
import torch

from offloading import Layers, offload_all
from spillway._report.notebook import piece_of
from spillway._report.html import page_of

CHROMIUM = shutil.which("chromium")
VOID = ("meta",)


class Reader(html.parser.HTMLParser):
    """Elements that nest as they should, and what they say."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.attributes, self.words = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attributes]

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, text):
        self.words.append(text)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def check(text):
    """What holds for every page."""
    page = Reader(text)
    assert text.startswith("<!DOCTYPE html>\n") and text.endswith("</html>\n")
    for tag in ("script", "link", "img", "iframe", "object", "embed", "base", "form", "a"):
        assert tag not in page.seen
    for tag, name, value in page.attributes:
        assert name not in ("src", "href", "srcset", "action", "xlink:href"), (tag, name)
        assert not name.startswith("on"), (tag, name)
    assert not re.search(r"url\(|@import|https?:", text)
    assert ("meta", "content", "width=device-width, initial-scale=1") in page.attributes
    assert "prefers-color-scheme: dark" in text and "max-width: 40rem" in text
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert page.seen.count("svg") == page.seen.count("desc") == page.seen.count("title") - 1
    for tag, name, value in page.attributes:
        if tag == "svg" and name == "aria-labelledby":
            assert set(value.split()) <= set(ids)
    return page


def page_after(store, path, steps=3, **options):
    model = Layers()
    off = offload_all(store, model, **options)
    for _ in range(steps):
        with off:
            model(torch.ones(64, 100, requires_grad=True)).sum().backward()
    off.report(html=path)
    return off, path.read_text(encoding="utf-8")


def test_a_page_of_a_run(store, folder, capsys):
    off, text = page_after(store, folder / "run.html", 4, mode="fastest",
                           endurance_bytes=600 * 10**12)
    page = check(text)
    assert capsys.readouterr().out == ""
    for head in ("Memory over a step", "The plan, and why", "Where tensors went", "Drives", "Wear"):
        assert head in page.text
    assert page.seen.count("svg") == 2 and "Training Layers with spillway" in page.text
    assert all(drive.path in page.text for drive in store.drive_stats())
    assert "its rating, as if new" in page.text
    assert f"{off.stats().steps} steps in" in page.text


def test_the_memory_over_a_step(store, folder):
    off, _ = page_after(store, folder / "run.html", mode="spill")
    profile = off._session.cache.profile()
    stats = off.stats()
    assert max(point[1] for point in profile) == stats.step_peak_bytes > 0
    assert all(earlier[0] < later[0] for earlier, later in zip(profile, profile[1:]))
    assert profile[0][0] == 0 and max(point[2] for point in profile) > 0


def test_a_page_before_the_first_step(store, folder):
    off = offload_all(store)
    off.report(html=folder / "none.html")
    page = check((folder / "none.html").read_text())
    assert "No step has ended yet" in page.text and "svg" not in page.seen


def test_a_page_without_drives(folder):
    _, text = page_after(None, folder / "observe.html", mode="observe")
    page = check(text)
    assert "nothing is written" in page.text and "Wear" not in page.text


def test_a_cap_is_said(store, folder):
    _, text = page_after(store, folder / "cap.html", wear=2.4e6)
    page = check(text)
    assert "No more than 2.4 MB a day may be written" in page.text
    assert "because of that more was kept in memory" in page.text
    assert "unknown" in page.text and "offload(endurance_bytes=)" in page.text


def test_names_do_nothing(store, folder):
    """A model, a drive and a backend may be called anything."""
    off, _ = page_after(store, folder / "run.html")
    evil = "</style><script>alert(1)</script>\"'<img src=x onerror=alert(1)>"
    run = off._run()
    drives = [dataclasses.replace(drive, path=evil) for drive in run.drives]
    wear = [(evil, dataclasses.replace(one, reason=evil)) for _, one in run.wear]
    text = page_of(dataclasses.replace(run, model=evil, backend=evil, drives=drives, wear=wear,
                                       hints=[evil]))
    assert evil in check(text).text


@pytest.mark.parametrize("rank, name", [("", "run"), ("1", "run.rank1")])
def test_a_report_is_left_at_the_end(store, folder, monkeypatch, rank, name):
    monkeypatch.setenv("RANK", rank)
    for ending, written in ((".html", "Activations in the last step"), (".json", '"spillway"')):
        model = Layers()
        off = offload_all(store, model, report=folder / f"run{ending}")
        for _ in range(2):
            with off:
                model(torch.ones(8, 100)).sum().backward()
        assert not list(folder.glob("run*" + ending))
        off.close()
        assert written in (folder / (name + ending)).read_text()
    with pytest.raises(FileNotFoundError):
        offload_all(store, Layers(), report=folder / "nowhere" / "run.html")


def test_text_and_page_say_the_same(store, folder, capsys):
    model = Layers()
    off = offload_all(store, model)
    for _ in range(3):
        with off:
            model(torch.ones(8, 100)).sum().backward()
    off.report(html=folder / "run.html")
    off.report()
    line, = [line for line in capsys.readouterr().out.splitlines()
             if line.startswith("activations in the last step, peak")]
    figure, share = re.search(r"  (\S+ \S+), (.*)$", line).groups()
    page = (folder / "run.html").read_text()
    assert f"<b>{figure}</b>" in page and share in page
    assert f"-> {figure}, " in off.summary()
    off.close()


def test_a_page_that_cannot_be_written(store, folder):
    off = offload_all(store)
    with pytest.raises(OSError):
        off.report(html=folder / "no" / "run.html")


# ---- In a browser ------------------------------------------------------------------------------


def browse(path, folder):
    """What Chromium says on its console, and the page once it is shown."""
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         f"--user-data-dir={folder / 'profile'}", "--window-size=1400,2000", "--dump-dom",
         path.as_uri()], capture_output=True, text=True, timeout=120)
    return [line for line in done.stderr.splitlines() if ":CONSOLE" in line], done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_has_no_complaint_and_nothing_sticks_out(store, folder, width):
    _, text = page_after(store, folder / "run.html", mode="fastest")
    said, shown = browse(folder / "run.html", folder)
    assert said == [] and "Memory over a step" in shown
    frame = folder / "frame.html"  # a window itself is not as narrow as a phone
    frame.write_text(f'<title></title><iframe id="f" width="{width}" height="800" style="border:0" '
                     f'srcdoc="{html.escape(text)}"></iframe><script>onload = () => {{ '
                     "const d = f.contentDocument.documentElement; "
                     "document.title = d.scrollWidth - d.clientWidth + ' beyond ' + "
                     "f.contentDocument.querySelectorAll('svg').length }</script>")
    said, shown = browse(frame, folder)
    assert said == [] and "<title>0 beyond 2</title>" in shown


# ---- In a notebook -----------------------------------------------------------------------------


def rules_of(piece):
    """The selectors of its style; at-rules are looked into."""
    style = re.search(r"<style>(.*?)</style>", piece, re.S)[1]
    style = re.sub(r"@media[^{]*\{([^{}]*\{[^{}]*\})\s*\}", r"\1", style)
    return [selector.strip() for group in re.findall(r"([^{}]+)\{", style)
            for selector in group.split(",")]


def test_a_piece_of_a_notebook(store, folder):
    off, _ = page_after(store, folder / "run.html", mode="spill")
    piece, again = off._repr_html_(), off._repr_html_()
    page = Reader(piece)
    assert "Layers" in page.text and "step 3: " in page.text and page.seen.count("svg") == 1
    assert all(drive.path in page.text for drive in store.drive_stats())
    assert "in service" in page.text and "if nothing were spilled" in page.text
    ids = [value for text in (piece, again) for _, name, value in Reader(text).attributes
           if name == "id"]
    assert len(ids) == len(set(ids)) == 4
    assert not re.search(r"url\(|@import|https?:|<script| on\w+=", piece)


def test_a_piece_styles_nothing_but_itself(store, folder):
    off, _ = page_after(store, folder / "run.html")
    found = rules_of(off._repr_html_())
    assert len(found) > 10
    assert all(re.search(r"(^|\s)\.spillway-run(\s|$)", selector) for selector in found), found


def test_without_a_step_a_notebook_shows_the_words(store):
    off = offload_all(store)
    assert off._repr_html_() is None
    off.close()
    assert off._repr_html_() is None


def test_a_piece_of_what_only_watches(folder):
    off, _ = page_after(None, folder / "run.html", mode="observe")
    page = Reader(off._repr_html_())
    assert "table" not in page.seen and "mode observe" in page.text


def test_names_in_a_piece_do_nothing(store, folder):
    off, _ = page_after(store, folder / "run.html")
    evil = "</style><script>alert(1)</script>"
    run = off._run()
    drives = [dataclasses.replace(drive, path=evil) for drive in run.drives]
    page = Reader(piece_of(dataclasses.replace(run, model=evil, drives=drives)))
    assert page.text.count(evil) == 1 + len(drives) and "script" not in page.seen
