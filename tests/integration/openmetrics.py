# SPDX-License-Identifier: MIT
# tests/integration/openmetrics.py - a strict reader of OpenMetrics, and what a dashboard asks for
"""Usage: openmetrics.py TEXT [DASHBOARD]

Reads a text as the standard (1.0) has it, and prints {sample: [{label: value}, number]...} as JSON.
Where prometheus_client is installed its parser has to accept the text, too. With a dashboard of
Grafana, each metric that it asks for has to be in the text. Exit status 1, with the line, if
anything is not so.
"""
import json
import re
import sys

try:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
except ImportError:
    text_string_to_metric_families = None

NAME = r"[a-zA-Z_][a-zA-Z0-9_]*"
LABEL = re.compile(r'(%s)="((?:[^"\\\n]|\\[\\"n])*)"(,(?!})|(?=}))' % NAME)
SAMPLE = re.compile(r"(%s)\{(.*)\} (\S+)" % NAME)
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "info": ("_info",),
            "histogram": ("_bucket", "_count", "_sum")}
UNITS = ("bytes", "seconds", "ratio")


def labels_of(text):
    labels, at = {}, 0
    text += "}"
    while text[at:] != "}":
        found = LABEL.match(text, at)
        assert found, f"labels: {text[at:]}"
        assert found[1] not in labels, f"{found[1]} twice"
        labels[found[1]] = found[2]
        at = found.end()
    return labels


def check_histogram(buckets, samples, family):
    for key, pairs in buckets.items():
        bounds = [float(bound) for bound, _ in pairs]
        counts = [count for _, count in pairs]
        rising = bounds == sorted(set(bounds))
        assert rising and bounds[-1] == float("inf"), f"{family}: bounds {bounds}"
        assert counts == sorted(counts), f"{family}: counts fall"
        total = [value for labels, value in samples[family + "_count"]
                 if tuple(sorted(labels.items())) == key]
        assert total == [counts[-1]], f"{family}: _count is not the last bucket"


def read(text):
    assert text.endswith("\n# EOF\n"), "no end mark, or something behind it"
    samples, families, kind, family, buckets = {}, {}, None, None, {}
    for number, line in enumerate(text[:-len("# EOF\n")].splitlines(), 1):
        where = f"line {number}: {line}"
        if line.startswith("# "):
            word, name, rest = line[2:].split(" ", 2)
            if word == "TYPE":
                assert name not in families, where + ": a family in two places"
                assert rest in SUFFIXES, where
                family, kind, families[name] = name, rest, {"TYPE"}
                continue
            assert name == family and word in ("UNIT", "HELP") and word not in families[name], where
            families[name].add(word)
            assert word != "UNIT" or (name.endswith("_" + rest) and rest in UNITS), where
            continue
        found = SAMPLE.fullmatch(line)
        assert found, where
        name, labels, value = found[1], labels_of(found[2]), float(found[3])
        assert name in [family + suffix for suffix in SUFFIXES[kind]], where + ": of another family"
        assert "HELP" in families[family], where + ": without help"
        unit = next((unit for unit in UNITS if family.endswith("_" + unit)), None)
        assert (unit is not None) == ("UNIT" in families[family]), where + ": unit"
        assert kind == "gauge" or value >= 0, where
        assert [labels, value] not in samples.get(name, []), where + ": twice"
        samples.setdefault(name, []).append([labels, value])
        if name.endswith("_bucket"):
            key = tuple(sorted((k, v) for k, v in labels.items() if k != "le"))
            buckets.setdefault(family, {}).setdefault(key, []).append((labels["le"], value))
    for name, found in buckets.items():
        check_histogram(found, samples, name)
    return samples


def check_dashboard(path, samples):
    with open(path) as file:
        dashboard = json.load(file)
    asking = json.dumps([dashboard["panels"], dashboard["templating"]])
    asked = set(re.findall(r"spillway_[a-z0-9_]+", asking))
    assert len(asked) > 15, asked
    missing = (asked - set(samples) -
               {"spillway_drive_lasts_seconds", "spillway_drive_life_used_ratio"})
    assert not missing, f"the dashboard asks for what is not exported: {sorted(missing)}"


def main():
    with open(sys.argv[1]) as file:
        text = file.read()
    samples = read(text)
    if text_string_to_metric_families is not None:
        theirs = sum(len(family.samples) for family in text_string_to_metric_families(text))
        assert theirs == sum(map(len, samples.values()))
    if len(sys.argv) > 2:
        check_dashboard(sys.argv[2], samples)
        for name in ("drive_lasts_seconds", "drive_life_used_ratio"):
            assert f"# TYPE spillway_{name} gauge\n" in text, name
    print(json.dumps(samples))


if __name__ == "__main__":
    main()
