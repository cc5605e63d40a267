# SPDX-License-Identifier: MIT
# tests/bench/rounds.py - what benches share that run in interleaved rounds
"""Every round runs everything once, in another order, and a ratio is taken within a round: a slow
minute of the machine counts against no side."""

import contextlib
import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "python/spillway/bench"))

import results  # noqa: E402


def rotated(things, number):
    """Their order in a round."""
    shift = number % max(1, len(things))
    return things[shift:] + things[:shift]


class Rows:
    """Values by the name of their row, in the order in which rows were first noted."""

    def __init__(self):
        self.found = {}

    def note(self, name, value, unit="", command=(), **goal):
        entry = self.found.setdefault(name, {"values": [], "unit": unit, "goal": goal})
        entry["values"].append(value)
        entry["command"] = " ".join(map(str, command))

    def all(self):
        return [results.row(name, entry["values"], entry["unit"], command=entry["command"],
                            **entry["goal"]) for name, entry in self.found.items()]


def fio(rig, *options, seconds):
    """(its report of each job, one for each drive and all at once; the command)"""
    command = ["fio", "--direct=1", "--ioengine=io_uring", "--time_based", f"--runtime={seconds}",
               "--output-format=json", *options]
    for index, drive in enumerate(rig.drives):
        command += [f"--name=d{index}", f"--filename={drive}"]
    return json.loads(rig.run(*command))["jobs"], command


@contextlib.contextmanager
def shown(name, rows):
    """Print the rows that there are when it ends, however it ends. An error is a line, and Ctrl-C
    the exit status 130."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        print(results.table(rows))
