#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/bench/fio_jobs.py - fio's own job files by fio and by spillway bench: what both move
"""Runs each job file of fio's source, examples/ and t/jobs/, that fio can run on one drive here.

Only what names the machine is adapted: files and folders become one drive, sizes and times become
small. What spillway bench refuses is listed with its words; of the others the bytes and transfers
of each job are compared. Where chance decides (the mix of reads and writes, sizes that are drawn)
counts may differ by what chance does; where time decides (rates, flows) only who moved anything is
compared.

    tests/bench/fio_jobs.py --source build/fio-src [--drive DEVICE] [--only WORD] [--report FILE]
"""

import argparse
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

DRIVE_MIB = 64
# fio's engines that move bytes between memory and one drive.
ENGINES = {"sync", "psync", "vsync", "pvsync", "pvsync2", "libaio", "posixaio", "io_uring", "null"}
# Sizes of a file that have a meaning together: value by name, before the general rule.
OWN = {
    "1mbs_clients": {"size": "8k", "startdelay": "0", "rate": "64k", "ratemin": "1k"},
    "cross-stripe-verify": {"offset_increment": "16m", "io_size": "1m", "numjobs": "3",
                            "offset": "128k", "size": "15m"},
    "exitwhat": {"number_ios": "20", "size": "1m", "rate": "16m,16m,16m"},
    "fsx": {"loops": "20"},
    "t0013": {"loops": "200"},
    "poisson-rate-submission": {"size": "256k"},
    "fixed-rate-submission": {"size": "1m"},
    "surface-scan": {"filename": "-"},
    "t0009-f8b0bd10": {"size": "2m"},
    "t0007-37cf9e3c": {"size": "16m"},
}
WAYS = ("read", "write")
# What both are given for files that take their job from there.
ENVIRONMENT = {"FIO_RW": "randread", "FIO_IODEPTH": "4", "FIO_BS": "8k"}
# The time decides how much they move.
TIMED = {"flow", "exitwhat", "t0011-5d2788d5", "t0012", "t0014", "steadystate"}


def size_of(text):
    match = re.fullmatch(r"(\d+)([kmgt]?)b?", text.strip().lower())
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2]] if match else None


def small(name, value):
    """What a person with a drive of 64 MiB would write there; None: the line goes."""
    if name in ("size", "io_size", "filesize"):
        return value if (size_of(value) or 1 << 60) <= 8 << 20 else "8m"
    if name == "offset":
        at = size_of(value)
        return value if at is not None and at <= 32 << 20 else "32m"
    if name == "startdelay":
        return "0"
    if name in ("runtime", "timeout"):
        return "2"
    if name == "ramp_time":
        return "0"
    if name in ("cpus_allowed", "verify_async_cpus"):
        return "0"
    return value


def adapt(path, drive):
    """Its text for one drive, as fio and spillway bench are given it."""
    own = OWN.get(path.stem, {})
    lines = ["[global]"] + ([f"filename={drive}"] if drive else [])
    for line in path.read_text().split("\n"):
        match = re.match(r"\s*([a-z_]+)\s*(=\s*(.*?)\s*)?([;#].*)?$", line)
        name, value = (match[1], match[3]) if match else ("", None)
        if name in ("filename", "directory"):
            continue
        if value is not None:
            line = f"{name}={own.get(name, small(name, value))}"
        # The size ends it: then counts can be compared.
        if path.stem not in TIMED and name in ("time_based", "runtime", "timeout"):
            continue
        lines.append(line)
    if not re.search(r"^\s*(size|filesize)\s*=", "\n".join(lines), re.M) or "size" in own:
        lines.insert(1, f"size={own.get('size', '8m')}")
    return "\n".join(lines) + "\n"


def engines_of(text):
    return {match for match in re.findall(r"^\s*ioengine\s*=\s*(\S+)", text, re.M)}


def run(command, folder):
    try:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=40,
                              stdin=subprocess.DEVNULL, env={**os.environ, **ENVIRONMENT})
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(command, 124, error.stdout or "", "ran past 40 s")


def report_of(done, path):
    """The jobs of a JSON report, by order: name, and (transfers, bytes) of reads and of writes."""
    try:
        text = path.read_text()
        document = json.loads(text[text.index("{"):])
    except (OSError, ValueError):
        return None
    return [(job["jobname"], [(job[way]["total_ios"], job[way]["io_bytes"]) for way in WAYS])
            for job in document["jobs"]]


def random_parts(text):
    """Does chance decide directions, or sizes?"""
    mix = re.search(r"^\s*(rw|readwrite)\s*=\s*(rand)?(rw|readwrite)\b", text, re.M)
    sizes = re.search(r"^\s*(bsrange|bssplit)\s*=", text, re.M)
    return bool(mix), bool(sizes)


def spread_of(text):
    """How many of the smallest transfers fill what is left for one of the largest."""
    lines = re.findall(r"^\s*(?:bsrange|bssplit)\s*=(.*)$", text, re.M)
    sizes = [size_of(size) for line in lines
             for size in re.findall(r"\b\d+[km]?(?=[/:,-]|$)", line.strip().lower())]
    sizes = [size for size in sizes if size >= 512]  # the others are percents
    return max(sizes) // min(sizes) if sizes else 1


def near(one, other, trials):
    """Within four and a half deviations of a fair draw: both are draws."""
    return abs(one - other) <= 4.5 * math.sqrt(max(trials, 1) / 2) + 2


def differences(text, stem, ours, fios):
    mix, sizes = random_parts(text)
    timed = stem in TIMED
    if [name for name, _ in ours] != [name for name, _ in fios]:
        return [f"jobs {[name for name, _ in ours]}, fio's {[name for name, _ in fios]}"]
    found = []
    for (name, us), (_, fio) in zip(ours, fios):
        transfers = [sum(way[0] for way in who) for who in (us, fio)]
        total = [sum(way[1] for way in who) for who in (us, fio)]
        if timed:
            same = [bool(way[0]) for way in us] == [bool(way[0]) for way in fio]
        elif sizes:
            # The last transfers of a pass are cut where the drawn sizes leave room.
            slack = 0.2 * transfers[1] + 12 * math.sqrt(transfers[1]) + spread_of(text)
            same = (abs(total[0] - total[1]) <= (1 << 20) + total[1] // 20
                    and abs(transfers[0] - transfers[1]) <= slack)
        elif mix:
            same = all(near(one[0], other[0], transfers[1]) for one, other in zip(us, fio))
        else:
            same = us == fio
        if not same:
            found.append(f"{name}: {us}, fio {fio}")
    return found


# What is not the same, and why.
KNOWN = {
    "t0009-f8b0bd10": "fio reads back from its null engine; spillway bench says it does not",
    "t0026": "fio's experimental_verify of a mix that ends by its size finds its own headers wrong",
}


def try_file(path, options, folder):
    diskless = engines_of(path.read_text()) == {"null"}
    jobs = {}
    # A drive each: what one wrote the other cannot verify.
    for who in ("fio", "spillway"):
        (folder / who).mkdir(exist_ok=True)
        jobs[who] = folder / who / path.name
        jobs[who].write_text(adapt(path, None if diskless else options.drives[who]))
    fio = run(["fio", "--output-format=json", "--output=report.json", path.name], folder / "fio")
    fios = report_of(fio, folder / "fio" / "report.json")
    if not fios or (fio.returncode != 0 and not any(sum(w[0] for w in who) for _, who in fios)):
        return "not here", "fio: " + (fio.stderr or fio.stdout).strip().split("\n")[0]
    ours = run([options.spillway, "bench", "--quiet", "--output-format=json",
                "--output=report.json", path.name], folder / "spillway")
    words = ours.stderr.strip()
    if ours.returncode in (2, 3) or not (folder / "spillway" / "report.json").exists():
        return "refused", "; ".join(line.removeprefix("spillway bench: ")
                                    for line in words.split("\n") if ".fio:" in line)
    if fio.returncode < 0:
        return "fio fails", f"signal {-fio.returncode}; ours: exit status {ours.returncode}"
    if (ours.returncode != 0) != (fio.returncode != 0):
        return ("other", KNOWN[path.stem]) if path.stem in KNOWN and ours.returncode == 0 else (
            "differs", f"exit status {ours.returncode}, fio's {fio.returncode}: {words[:200]}")
    if ours.returncode != 0:
        return "equal", "both fail, as they should"
    moved = report_of(ours, folder / "spillway" / "report.json") or []
    found = differences(jobs["spillway"].read_text(), path.stem, moved, fios)
    if found and path.stem in KNOWN:
        return "other", KNOWN[path.stem]
    if found:
        return "differs", "; ".join(found)
    return "equal", "timed" if path.stem in TIMED else ""


def make_drive(path):
    with open(path, "wb") as file:
        file.write(os.urandom(DRIVE_MIB << 20))
    return str(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--source", required=True, type=pathlib.Path)
    parser.add_argument("--spillway", default="build/spillway")
    parser.add_argument("--drive", help="of 64 MiB, overwritten; default: files made for it")
    parser.add_argument("--only", default="")
    parser.add_argument("--report", type=pathlib.Path)
    options = parser.parse_args()
    options.spillway = str(pathlib.Path(options.spillway).resolve())
    rows = []
    with tempfile.TemporaryDirectory(dir=options.source.parent) as folder:
        folder = pathlib.Path(folder)
        options.drives = {who: options.drive or make_drive(folder / f"{who}.img")
                          for who in ("fio", "spillway")}
        paths = [*options.source.glob("examples/*.fio"), *options.source.glob("t/jobs/*.fio")]
        # What is written before it is verified: -pre before -post.
        for path in sorted(paths, key=lambda path: str(path).replace("-post", "-then")):
            name = str(path.relative_to(options.source))
            if options.only not in name:
                continue
            for who in ("fio", "spillway"):
                (folder / who / "report.json").unlink(missing_ok=True)
            # Others are of networks, clusters, processors or file systems.
            foreign = engines_of(path.read_text()) - ENGINES
            if foreign:
                rows.append((name, "not here", "engines: " + ", ".join(sorted(foreign))))
            else:
                rows.append((name, *try_file(path, options, folder)))
            print("%-46s %-9s %s" % rows[-1], flush=True)
    kinds = ("equal", "other", "differs", "refused", "fio fails", "not here")
    counts = {kind: sum(row[1] == kind for row in rows) for kind in kinds}
    ran = len(rows) - counts["not here"]
    taken = ran - counts["refused"]
    print(f"{len(rows)} job files, of which fio runs {ran} on one drive here: {taken} taken "
          f"({100 * taken / max(ran, 1):.0f} %), {counts['equal']} with equal counts, "
          f"{counts['fio fails']} at which fio itself fails")
    if options.report:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(json.dumps({"rows": rows, "counts": counts}, indent=1) + "\n")
    return 0 if counts["differs"] == 0 and taken >= 0.9 * ran else 1


if __name__ == "__main__":
    sys.exit(main())
