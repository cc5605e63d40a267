#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# tests/traces/halves.py - the recorded traces as models of 12 layers, in halves of layers
"""Usage: tests/traces/halves.py FOLDER

Writes FOLDER/NAME.jsonl for each trace in this folder: one step, in which the time between two
events is the median of the recorded steps, each layer has a scope inside for each part that begins
with its own norm (attention, feed-forward), T5 has 6 + 6 layers instead of 4 + 4, two of each
coming twice, and sizes are those of a hidden size of 768 and 512 tokens. What a trace cannot know
is told here for each model: where a layer is cut, and what is scores.
"""
import gzip
import json
import statistics
import sys
from collections import Counter
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SMALL = 65536
HIDDEN, TOKENS, HEADS = 768, 512, 12
# Tokens of the recorded step; norms by what they save, large (L) and small (s); whether the cut is
# before or after one; layers that come twice.
MODELS = {
    "gpt": {"tokens": 256, "norm": "Lss", "cut": "before"},
    "bert": {"tokens": 256, "norm": "Lss", "cut": "after"},
    "t5": {"tokens": 232, "norm": "LLs", "cut": "before", "doubled": (6, 5, 2, 1)},
}


def steps_of(lines):
    starts = [i for i, event in enumerate(lines) if event["event"] == "step"] + [len(lines)]
    return [lines[begin:end] for begin, end in zip(starts, starts[1:])]


def deltas(step):
    """The time since the event before, waits left out."""
    return [max(0, event["ns"] - last["ns"] - event.get("wait_ns", 0))
            for last, event in zip(step, step[1:])]


def median_step(steps):
    """The last step: each event, and the median time since the one before it."""
    kinds = [event["event"] for event in steps[-1]]
    alike = [deltas(step) for step in steps if [event["event"] for event in step] == kinds]
    between = [0] + [statistics.median(each) for each in zip(*alike)]
    return [(dict(event, wait_ns=0) if "wait_ns" in event else dict(event), ns)
            for event, ns in zip(steps[-1], between)]


def layers_of(step):
    """[(index of scope_enter, of scope_leave)]"""
    enters, found = [], []
    for i, event in enumerate(step):
        if event["event"] == "scope_enter":
            enters.append(i)
        elif event["event"] == "scope_leave":
            found.append((enters.pop(), i))
    return found


def doubled(timed, number):
    """The step of (event, time since the one before) with one layer twice: what it saves, and the
    uses of that, are there again."""
    enter, leave = layers_of([event for event, _ in timed])[number]
    forward, before, after = timed[enter:leave + 1], timed[:leave + 1], timed[leave + 1:]
    saved = {event["tensor"] for event, _ in forward if event["event"] == "offer"}
    own = saved - {event["tensor"] for event, _ in timed[:enter] if event["event"] == "offer"}

    def copied(pair):
        event = dict(pair[0])
        if event.get("tensor") in own:
            event.update({field: (event[field], number) for field in ("tensor", "storage")
                          if field in event})
        return event, pair[1]

    made = [copied(pair) for pair in forward]
    left = Counter(event["tensor"] for event, _ in made if event["event"] == "offer")
    takes = [i for i, (event, _) in enumerate(after)
             if event["event"] == "take" and event["tensor"] in own]
    used = []
    # Later layers are used earlier: the copy's uses come first.
    for pair in after[takes[0]:takes[-1] + 1]:
        if pair[0].get("tensor") in saved:
            event, ns = copied(pair)
            left[event["tensor"]] -= event["event"] == "release"
            if left[event["tensor"]] >= 0:
                used.append((event, ns))
    used += [({"event": "release", "tensor": tensor}, 0)
             for tensor, count in left.items() for _ in range(count)]
    return before + made + after[:takes[0]] + used + after[takes[0]:]


def cuts_of(step, model):
    """The events before which a layer's next part begins."""
    cuts, norm = set(), model["norm"]
    for enter, leave in layers_of(step):
        offers = [i for i in range(enter, leave)
                  if step[i]["event"] == "offer" and step[i]["storage_bytes"] != 8]
        shape = "".join("s" if step[i]["storage_bytes"] < SMALL else "L" for i in offers)
        at = shape.find(norm, 0 if model["cut"] == "after" else 1)
        while at >= 0:
            where = at + len(norm) if model["cut"] == "after" else at
            if where < len(offers):
                cuts.add(offers[where])
            at = shape.find(norm, at + len(norm))
    return cuts


def scores_of(step):
    """Storages of attention scores: saved right after the scalar that they are divided by."""
    return {event["storage"] for last, event in zip(step, step[1:])
            if event["event"] == last["event"] == "offer" and last["storage_bytes"] == 8}


def resized(event, model, scores):
    longer = TOKENS / model["tokens"]
    factor = longer * longer * HEADS / 8 if event["storage"] in scores else longer * HIDDEN / 512
    if event["storage_bytes"] >= SMALL:
        for field in ("storage_bytes", "bytes", "offset"):
            event[field] = round(event[field] * factor)


def renumber(events):
    numbers = {"tensor": {}, "storage": {}, "scope": {}}
    for event in events:
        for field, known in numbers.items():
            if field in event:
                event[field] = known.setdefault(event[field], len(known) + 1)
    return events


def shaped(lines, model):
    timed = median_step(steps_of(lines))
    for number in model.get("doubled", ()):
        timed = doubled(timed, number)
    step = [event for event, _ in timed]
    cuts, scores = cuts_of(step, model), scores_of(step)
    made, ns, inner = [], 0.0, False

    def add(event):
        made.append(dict(event, ns=round(ns)))

    for i, (event, between) in enumerate(timed):
        ns += between
        if event["event"] == "scope_leave" and inner:
            add({"event": "scope_leave"})
            inner = False
        if i in cuts:
            add({"event": "scope_leave"})
            add({"event": "scope_enter", "scope": 1000000 + i})
        if event["event"] == "offer":
            resized(event, model, scores)
        add(event)
        if event["event"] == "scope_enter":
            add({"event": "scope_enter", "scope": 1000000 + i})
            inner = True
    return renumber(made)


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in MODELS.items():
        with gzip.open(FOLDER / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            header, *lines = [json.loads(line) for line in file]
        header["model"] += "; in halves of 12 layers, hidden 768, 512 tokens"
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as out:
            for line in [header] + shaped(lines, model):
                out.write(json.dumps(line, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
