#!/usr/bin/python3
# SPDX-License-Identifier: MIT
# tests/traces/record.py - record the traces in this folder: a few steps of GPT, BERT and T5
"""Usage: tests/traces/record.py [--build FOLDER] [--folder FOLDER] [NAME...]

Trains each example of python/examples for a few steps with the recorder on, and leaves
NAME.jsonl.gz in this folder. Only the header is changed afterwards: it says what was trained, and
on what. Needs PyTorch; record on an idle machine, as the times are part of the trace.
"""
import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
COMMON = ["--hidden", "512", "--sequence", "256", "--steps", "3", "--threads", "2"]
MODELS = {
    "gpt": ["--layers", "12", "--batch", "4"],
    "bert": ["--layers", "12", "--batch", "3", "--micro-batches", "2"],
    "t5": ["--layers", "8", "--batch", "4"],
}


def record(name, build, folder):
    options = MODELS[name] + COMMON
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "python"),
                       SPILLWAY_LIBRARY=str(Path(build).resolve() / "libspillway.so"))
    with tempfile.TemporaryDirectory() as temporary:
        raw = Path(temporary) / "trace.jsonl"
        command = [sys.executable, str(ROOT / "python/examples" / f"{name}.py"), *options,
                   "--record", str(raw), "--json"]
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE,
                              text=True)
        result = json.loads(done.stdout)
        header, _, events = raw.read_text().partition("\n")
    fields = json.loads(header)
    fields["model"] = (f"python/examples/{name}.py {' '.join(options)}; "
                       f"PyTorch {result['torch']}, 32-bit floats, "
                       f"{os.cpu_count()} cores, {platform.machine()}")
    path = Path(folder) / f"{name}.jsonl.gz"
    # No time stamp and no name inside: the same trace is the same file.
    with (path.open("wb") as file,
          gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as out):
        out.write((json.dumps(fields, separators=(",", ":")) + "\n" + events).encode())
    print(f"{path}: {path.stat().st_size} bytes, {events.count(chr(10))} events, steps of "
          f"{', '.join(f'{seconds:.2f}' for seconds in result['step_seconds'])} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME",
                        help=f"of {', '.join(MODELS)}; default all")
    parser.add_argument("--build", default=ROOT / "build", help="folder with libspillway.so")
    parser.add_argument("--folder", default=Path(__file__).resolve().parent,
                        help="where the traces go")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in MODELS]
    if unknown:
        parser.error(f"no model {unknown[0]}")
    for name in args.names or MODELS:
        record(name, args.build, args.folder)


if __name__ == "__main__":
    main()
