#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/bench/peers_page.py - what `make bench-peers` found, as rows, as a table and as a picture
"""Usage: tests/bench/peers_page.py BUILD/bench/peers.json DOCS README
 Draws DOCS/peers.svg and DOCS/peers-dark.svg, and writes the words beside the picture in README,
between its markers. Does nothing where the bench was not run."""

import html
import json
import statistics
import sys
from pathlib import Path

import figures

results = figures.results
MIB = 1 << 20
BEGIN, END = "<!-- peers: begin -->\n", "<!-- peers: end -->\n"
COMMAND = "make bench-peers"
TROUBLES = {
    "full": "no room on the drives",
    "dies_before": "a drive dies before the forward pass",
    "dies_between": "a drive dies between forward and backward",
    "killed": "killed in a step",
}
FIGURES = {  # name: words, unit, scale
    "activation_bytes": ("peak of activations", "MiB", MIB),
    "rss_bytes": ("peak RSS", "MiB", MIB),
    "cached_bytes": ("peak memory with the page cache of its files", "MiB", MIB),
    "seconds": ("step time", "s", 1),
    "cpu_seconds": ("CPU time of a step", "s", 1),
    "written_bytes": ("written in a step", "MiB", MIB),
}


def values_of(runs, name):
    return [run[name] for run in runs if run.get(name) is not None]


def median_of(runs, name):
    values = values_of(runs, name)
    return statistics.median(values) if values else None


def ratios_of(runs, others):
    """Of step times, each within its round."""
    return [run["seconds"] / other["seconds"] for run, other in zip(runs, others)]


def rows_of(document, ours):
    """In the shape that all benches have. What is ours has to have the losses of its like."""
    ways, rows = document["ways"], []
    plain = ways["plain"]["runs"]
    for name, way in ways.items():
        command = way.get("command", COMMAND)
        for figure, (words, unit, scale) in FIGURES.items():
            values = [value / scale for value in values_of(way["runs"], figure)]
            if values:
                rows.append(results.row(f"{way['title']}: {words}", values, unit, command=command))
        if not way["runs"] or name == "plain":
            continue
        rows.append(results.row(f"{way['title']}: step time / plain",
                                ratios_of(way["runs"], plain), "ratio", command=command))
        if way["slow"]:
            rows.append(results.row(
                f"{way['title']}, slow drives: peak of activations",
                [value / MIB for value in values_of(way["slow"], "activation_bytes")], "MiB",
                command=command))
            rows.append(results.row(f"{way['title']}, slow drives: step time / plain",
                                    ratios_of(way["slow"], plain), "ratio", command=command))
        rows.append(results.row(f"{way['title']}: losses that differ from those of {way['like']}",
                                0 if way["same"] else 1, at_most=0 if name in ours else None,
                                command=command))
    return rows


# ---- The table -----------------------------------------------------------------------------------


def amount(value, unit=MIB, digits=0):
    return "-" if value is None else f"{value / unit:,.{digits}f}"


def losses_text(way):
    if way["same"]:
        return "same" if way["like"] == "plain PyTorch" else f"those of {way['like']}"
    return "**other**"


def of_plain(way, ways, kind="runs"):
    return statistics.median(ratios_of(way[kind], ways["plain"]["runs"]))


def slow_text(way, ways):
    if not way["slow"]:
        return "-"
    peak = amount(median_of(way["slow"], "activation_bytes"))
    return f"{peak}, {of_plain(way, ways, 'slow'):.2f} x"


def cells_of(way, ways):
    runs = way["runs"]
    troubles = [way["troubles"].get(what, {"words": "-"})["words"] for what in TROUBLES]
    return [amount(median_of(runs, "activation_bytes")), amount(median_of(runs, "rss_bytes")),
            amount(median_of(runs, "cached_bytes")),
            f"{median_of(runs, 'seconds'):.2f} ({of_plain(way, ways):.2f} x)",
            f"{median_of(runs, 'cpu_seconds'):.2f}", amount(median_of(runs, "written_bytes")),
            losses_text(way), slow_text(way, ways), *troubles]


def table_of(ways):
    """Columns, rows and notes, all in words; how each way is run is in the notes."""
    columns = ["way", "peak of activations, MiB", "peak RSS, MiB",
               "with its files' page cache, MiB", "step, s (of plain)", "CPU time of a step, s",
               "written in a step, MiB", "losses", "slow drives: peak, step",
               *TROUBLES.values()]
    rows, notes = [], []
    for way in ways.values():
        if way["runs"]:
            rows.append([way["title"], *cells_of(way, ways)])
        else:
            rows.append([way["title"], way["why_not"], *[""] * (len(columns) - 2)])
        said = "; ".join(f"{TROUBLES[what]}: {verdict['said']}"
                         for what, verdict in way["troubles"].items())
        notes.append(f"**{way['title']}** moves {way['moves']}. {way['how']}."
                     + (f" What it did: {said}." if said else ""))
    return {"columns": columns, "rows": rows, "notes": [
        "Peak of activations: the most that was resident in the timed steps, above model, "
        "gradients and AdamW's state; a way's own buffers count. Written: what the drives' own "
        "counters say. Slow drives: half as fast as a step of plain PyTorch needs to move all that "
        "it saves within half its time; the others are three times as fast as that. With its "
        "files' page cache: what the kernel charged the process with at most. No room: 4 "
        "MiB of the file system are free; a store has four drives of 16 MiB. A drive that dies "
        "fails every transfer from then on. What a killed way leaves is what is there after its "
        "next run, too.", *notes]}


# ---- The picture ---------------------------------------------------------------------------------

LIGHT = {"paper": "#ffffff", "ink": "#1d2430", "soft": "#5b6472", "line": "#dfe2e7",
         "ours": "#0f766e", "other": "#8a94a3", "good": "#0f766e", "fair": "#8a5a00",
         "bad": "#b42318", "mark": "#0f766e14"}
DARK = {"paper": "#14171c", "ink": "#e6e9ee", "soft": "#a2abb8", "line": "#333a45",
        "ours": "#2dd4bf", "other": "#6b7685", "good": "#2dd4bf", "fair": "#f0b35e",
        "bad": "#ff8a7a", "mark": "#2dd4bf1c"}
WIDTH, ROW, HEAD, FOOT = 1060, 40, 74, 30
HEADS = {"way": 16, "activations, peak": 222, "peak RSS": 362, "step time": 436, "losses": 550,
         "slow drives": 616, "no room": 702, "a drive dies": 794, "killed": 970}
BACKWARD = 88  # from where a drive dies before the forward pass to where before the backward pass
BELOW = {"activations, peak": "MiB", "peak RSS": "MiB", "step time": "of plain's",
         "losses": "of plain's", "slow drives": "MiB, of plain's", "no room": "on the drives",
         "a drive dies": "before forward, backward", "killed": "what it leaves"}
SHORT = {"stops with an error": "stops", "leaves nothing": "nothing"}


class Picture:
    def __init__(self, colours):
        self.colours, self.parts = colours, []

    def text(self, x, y, words, colour="ink", size=13, weight=400):
        self.parts.append(f'<text x="{x}" y="{y}" fill="{self.colours[colour]}" font-size="{size}" '
                          f'font-weight="{weight}">{html.escape(words)}</text>')

    def bar(self, x, y, length, colour):
        self.parts.append(f'<rect x="{x}" y="{y}" width="{max(1, length):.1f}" height="5" rx="2" '
                          f'fill="{self.colours[colour]}"/>')

    def box(self, y, height, colour):
        self.parts.append(f'<rect x="0" y="{y}" width="{WIDTH}" height="{height}" '
                          f'fill="{self.colours[colour]}"/>')

    def line(self, y):
        self.parts.append(f'<path d="M16 {y}H{WIDTH - 16}" stroke="{self.colours["line"]}"/>')


def short(verdict):
    words = verdict["words"]
    if words.startswith("leaves ") and words != "leaves nothing":
        return words.removeprefix("leaves ").split(",")[0]
    return SHORT.get(words, words)


def draw_way(picture, y, way, ways, longest, ours):
    colour = "ours" if ours else "other"
    if ours:
        picture.box(y, ROW, "mark")
    picture.text(HEADS["way"], y + 18, way["title"], weight=600 if ours else 400)
    picture.text(HEADS["way"], y + 32, f"moves {way['moves']}", "soft", 10.5)
    runs = way["runs"]
    if not runs:
        picture.text(HEADS["activations, peak"], y + 24, way["why_not"][:110], "soft", 12)
        return
    peak, x = median_of(runs, "activation_bytes"), HEADS["activations, peak"]
    if peak is None:
        moved = "activations" in way["moves"]
        picture.text(x, y + 24, "with the state" if moved else "not moved", "soft", 12)
    else:
        picture.text(x, y + 18, amount(peak))
        picture.bar(x, y + 25, 118 * max(0, peak) / longest["activation_bytes"], colour)
    picture.text(HEADS["peak RSS"], y + 24, amount(median_of(runs, "rss_bytes")))
    ratio, x = of_plain(way, ways), HEADS["step time"]
    picture.text(x, y + 18, f"{ratio:.2f}")
    picture.bar(x, y + 25, 98 * ratio / longest["ratio"], colour)
    words = "other" if not way["same"] else "same" if "plain" in way["like"] else "as above"
    picture.text(HEADS["losses"], y + 24, words, "good" if way["same"] else "bad")
    picture.text(HEADS["slow drives"], y + 24, slow_text(way, ways).removesuffix(" x"), size=12)
    dies = [way["troubles"].get(what) for what in ("dies_before", "dies_between")]
    for what in ("full", "killed"):
        if what in way["troubles"]:
            picture.text(HEADS["no room" if what == "full" else what], y + 24,
                         short(way["troubles"][what]), way["troubles"][what]["grade"], 12)
    for verdict, shift in zip(dies, (0, BACKWARD)):
        if verdict:
            picture.text(HEADS["a drive dies"] + shift, y + 24, short(verdict), verdict["grade"],
                         12)


def draw(ways, where, dark):
    """The table as SVG, for a page of that colour."""
    colours = DARK if dark else LIGHT
    picture = Picture(colours)
    height = HEAD + ROW * len(ways) + FOOT
    shown = [way for way in ways.values() if way["runs"]]
    longest = {"activation_bytes": max(median_of(way["runs"], "activation_bytes") or 0
                                       for way in shown),
               "ratio": max(of_plain(way, ways) for way in shown)}
    picture.box(0, height, "paper")
    for name, x in HEADS.items():
        picture.text(x, 38, name if name != "way" else "a GPT on four drives", "ink", 12.5, 600)
        picture.text(x, 54, BELOW.get(name, "the same steps, in turns"), "soft", 10.5)
    for number, (name, way) in enumerate(ways.items()):
        y = HEAD + ROW * number
        picture.line(y)
        draw_way(picture, y, way, ways, longest, "spillway" in name)
    words = f"{where['cpu']}, {where['cores']} cores, Linux {where['kernel']}, {where['date']}: "
    picture.text(16, height - 10, words + COMMAND, "soft", 10.5)
    title = "Memory, time and troubles of each way to train with less memory"
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="system-ui, sans-serif" role="img">'
            f"<title>{title}</title>\n" + "\n".join(picture.parts) + "\n</svg>\n")


# ---- The README ----------------------------------------------------------------------------------


def words_of(document):
    """What the picture says, in a sentence."""
    ways = document["ways"]
    plain, ours = ways["plain"]["runs"], ways["spillway"]["runs"]
    if not ours:
        return "Each way to train with less memory, measured on one machine."
    others = "; ".join(f"{way['title']} {share_of(way, ways)}" for way in ways.values()
                       if way["moves"] != "nothing" or way is ways.get("recompute")
                       if not way["title"].startswith("spillway") and way["runs"]
                       and median_of(way["runs"], "activation_bytes") is not None)
    return (f"A small GPT on four drives: spillway holds {share_of(ways['spillway'], ways)} of "
            f"plain PyTorch's time, with {'the same' if ways['spillway']['same'] else 'other'} "
            f"losses" + (f" ({others})." if others else ".") +
            " Slow drives are half as fast as a step needs to move all that it saves within half "
            "its time; the others are three times as fast.")


def share_of(way, ways):
    peak = (median_of(way["runs"], "activation_bytes")
            / median_of(ways["plain"]["runs"], "activation_bytes"))
    return f"{peak:.0%} of the activations in {of_plain(way, ways):.2f}"


def main(found, docs, readme):
    if not Path(found).exists():
        print(f"peers_page: {found} is not there: {readme} and its picture stay as they are")
        return
    document = json.loads(Path(found).read_text(encoding="utf-8"))
    for name, dark in (("peers.svg", False), ("peers-dark.svg", True)):
        Path(docs, name).write_text(draw(document["ways"], document["machine"], dark),
                                    encoding="utf-8")
    words = words_of(document)
    picture = ('<picture><source media="(prefers-color-scheme: dark)" srcset="docs/peers-dark.svg">'
               f'<img alt="{html.escape(words)}" src="docs/peers.svg"></picture>\n')
    figures.fill(readme, BEGIN, END, f"{picture}\n{words}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
