# SPDX-License-Identifier: MIT
# tests/bench/jobs.py - the matrix and fio's job files, turned into command lines that stand alone
"""A run is one section of one job file, by one runner. Its command line carries every option, so
that anyone can repeat the number that stands beside it without the job file or the environment."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
JOBS = HERE.parent.parent / "fio-jobs"


class MatrixError(Exception):
    """The matrix or a job file says something that cannot be run."""


@dataclass(frozen=True)
class Runner:
    name: str
    tool: str
    options: tuple = ()
    hugepages: tuple = ()
    filename: str | None = None
    format: bool = False
    peer: bool = False
    only: bool = False
    needs: str | None = None


@dataclass(frozen=True)
class Case:
    """One section of a job file, for all its runners."""

    job: str
    section: str
    settings: tuple  # (name, value) as the job file has them
    drives: int
    metric: str
    runners: tuple
    options: tuple
    complete: bool

    @property
    def title(self):
        return f"{self.job.removesuffix('.fio')}: {self.section}"


@dataclass
class Peak:
    name: str
    seconds_min: float
    runner: list
    drives: int = 1
    metric: str = "iops"
    throttled: bool = False


def read_sections(path):
    """fio's job file: {section: [(name, value)]}; [global] ones give theirs to those after them."""
    shared, sections, current = [], {}, None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = re.split(r"[;#]", line, maxsplit=1)[0].strip()
        if not line:
            continue
        if line.startswith("["):
            name = line.strip("[]")
            current = shared if name == "global" else sections.setdefault(name, list(shared))
            continue
        if current is None:
            raise MatrixError(f"{path}:{number}: an option before the first section")
        name, _, value = line.partition("=")
        current.append((name.strip(), value.strip() or "1"))
    return sections


def load(path=HERE / "matrix.toml"):
    with open(path, "rb") as file:
        data = tomllib.load(file)
    runners = {}
    for entry in data["runner"]:
        for key in ("options", "hugepages"):
            entry[key] = tuple(entry.get(key, ()))
        runners[entry["name"]] = Runner(**entry)
    cases = [case for row in data["row"] for case in row_cases(row, runners)]
    return runners, cases, [Peak(**peak) for peak in data.get("peak", [])]


def row_cases(row, runners):
    sections = read_sections(JOBS / row["job"])
    everyone = [name for name, runner in runners.items() if not runner.only]
    names = row.get("runners", everyone) + row.get("also", [])
    for section in row.get("sections", sections):
        if section not in sections:
            raise MatrixError(f"{row['job']} has no section [{section}]")
        yield Case(
            job=row["job"],
            section=section,
            settings=tuple(s for s in sections[section] if s[0] not in ("stonewall", "filename")),
            drives=row.get("drives", 1),
            metric=row["metric"],
            runners=tuple(runners[name] for name in names),
            options=tuple(row.get("options", ())),
            complete=row.get("complete", False),
        )


def escape(path):
    """A colon separates file names; one inside a name is escaped."""
    return path.replace(":", "\\:")


def command_line(case, runner, devices, build, seconds, programs, hugepages=False):
    """The argument list of one run. @seconds: how long; None: to the end of the job."""
    joined = ":".join(escape(device) for device in devices[: case.drives])
    options = [option.format(build=build, devices=joined) for option in runner.options]
    options += runner.hugepages if hugepages else ()
    settings = [f"--{name}={value}" for name, value in case.settings]
    # Buffers are not touched between writes, in no tool.
    common = [f"--filename={runner.filename or joined}", *settings, *case.options,
              "--scramble_buffers=0"]
    if seconds is not None:
        common += ["--time_based=1", f"--runtime={max(1, round(seconds * 1000))}ms"]
    if runner.tool == "fio":
        # The engine first: its own options mean nothing before it.
        return [programs["fio"], f"--name={case.section}", *options, *common,
                "--output-format=json"]
    return [programs["spillway"], "bench", "--allow-destructive", *options, *common,
            "--output-format=json"]
