# SPDX-License-Identifier: MIT
# tests/runner/programs.py - the kinds of test programs: how each is found, started, and its output read
import glob
import os
import re
import subprocess
import xml.etree.ElementTree

import drives
import results

EXIT_SKIPPED = 77


class Program:
    """One test source."""

    parallel = True

    def __init__(self, kind, root, source):
        self.kind = kind
        self.source = os.path.relpath(source, root)
        self.path = source

    def label(self, config):
        name = os.path.splitext(self.source)[0].removeprefix("tests/")
        return f"{name} {config.name}" if self.kind == "integration" else name

    def configurations(self, wanted):
        """Only C integration tests run in every configuration; the rest get the best drives that can be had."""
        if self.kind == "integration":
            # A whole name means that one alone, not those too that go on from it.
            names = {c.name for c in drives.ALL}
            return [c for c in drives.ALL if not wanted or any(c.name == w or w not in names and c.name.startswith(w) for w in wanted)]
        return [drives.FILES[0]]

    def missing(self):
        """What should have been built and was not, or None."""
        return None


class CProgram(Program):
    """A cmocka program. Its plain output is read: unlike TAP it names a case when it begins, so a hang has a name."""

    ERROR = re.compile(r"\[  ERROR   \] --- (?:\[   LINE   \] --- )?(.*)$|\[   LINE   \] --- (.*): error: Failure!$")
    EVENT = re.compile(r"\[ {1,7}(RUN|OK|FAILED|SKIPPED|ERROR) {1,6}\] (?!--- )(.*)$")

    def __init__(self, kind, root, source, build):
        super().__init__(kind, root, source)
        self.binary = os.path.join(build, os.path.splitext(self.source)[0])

    def missing(self):
        return None if os.path.exists(self.binary) else self.binary

    def command(self, args, _place):
        if args.valgrind:
            return ["valgrind", "-q", "--error-exitcode=99", "--leak-check=full", "--num-callers=20", self.binary]
        return [self.binary]

    def parse(self, text, status, _place):
        outcome = results.Outcome()
        said = []  # since the last event
        for line in text.splitlines():
            event = self.EVENT.search(line)
            if event:
                self.take(outcome, event.group(1), event.group(2), said)
                said = []
            elif line.strip():
                said.append(line.strip())
        outcome.check_status(status)
        outcome.check_any(status)
        return outcome

    @classmethod
    def cause(cls, said):
        """What cmocka said of a failure, in one line: the values and the place."""
        found = [" ".join(filter(None, match.groups())) for match in map(cls.ERROR.search, said) if match]
        return " ".join(found).removesuffix(": error: Failure!") or "see above"

    @classmethod
    def take(cls, outcome, word, name, said):
        if word == "RUN":
            if outcome.current:
                outcome.fail(outcome.current, "no result was printed")
            outcome.current = name
        elif name.startswith("GROUP "):
            outcome.fail(name.lower(), cls.cause(said))
        elif name != outcome.current:
            return  # the summary at the end
        elif word == "OK":
            outcome.passed += 1
            outcome.current = None
        elif word == "SKIPPED":
            outcome.skip(name, said[-1] if said else "")
            outcome.current = None
        else:
            outcome.fail(name, cls.cause(said))
            outcome.current = None


class Script(Program):
    """A bash test. tests/lib.sh prints `begin - case`, then `ok - case`, `not ok - case` or `skip - case: reason`."""

    parallel = False
    LINE = re.compile(r"^(begin|ok|not ok|skip) - (.*)$")

    def command(self, _args, _place):
        return ["bash", self.path]

    def parse(self, text, status, _place):
        outcome = results.Outcome()
        for word, name in (match.groups() for match in map(self.LINE.match, text.splitlines()) if match):
            if word == "begin":
                outcome.current = name
                continue
            if word == "ok":
                outcome.passed += 1
            elif word == "skip":
                outcome.skip(*name.split(": ", 1)) if ": " in name else outcome.skip(name, "")
            else:
                outcome.fail(name, "see above")
            outcome.current = None
        if status == EXIT_SKIPPED and outcome.skips:
            status = 0
        outcome.check_status(status)
        outcome.check_any(status)
        return outcome


class PythonProgram(Program):
    """A pytest file."""

    parallel = False

    def __init__(self, kind, root, source, python):
        super().__init__(kind, root, source)
        self.python = python

    def command(self, args, place):
        return [self.python, "-m", "pytest", "-p", "no:cacheprovider", "-v", "--tb=short", "--color=no",
                "-o", f"faulthandler_timeout={args.timeout * 0.9:.0f}", "--junitxml", self.report(place), self.path]

    @staticmethod
    def report(place):
        return os.path.join(place.path, "report.xml")

    def parse(self, text, status, place):
        outcome = results.Outcome()
        if not os.path.exists(self.report(place)):
            begun = re.findall(r"^(\S+::\S+)\s*$", text, re.MULTILINE)
            outcome.current = begun[-1] if begun else None
            outcome.passed = len(re.findall(r"^\S+::\S+ PASSED", text, re.MULTILINE))
            outcome.check_status(status if status != 0 else 1)
            return outcome
        for case in xml.etree.ElementTree.parse(self.report(place)).iter("testcase"):
            name = case.get("name", "?")
            skipped = case.find("skipped")
            bad = [part for part in case if part.tag in ("failure", "error")]
            if bad:
                outcome.fail(name, (bad[0].get("message") or "see above").splitlines()[0])
            elif skipped is not None:
                outcome.skip(name, skipped.get("message") or "")
            else:
                outcome.passed += 1
        outcome.check_status(status)
        return outcome


def find_python():
    """The interpreter for the Python tests: $PYTHON, python3, /usr/bin/python3; the first that has PyTorch and pytest."""
    candidates = [os.environ["PYTHON"]] if os.environ.get("PYTHON") else ["python3", "/usr/bin/python3"]
    problem = "no Python interpreter"
    for modules in ("torch, pytest", "pytest"):
        for python in candidates:
            try:
                done = subprocess.run([python, "-c", "import " + modules], stdin=subprocess.DEVNULL, capture_output=True,
                                      text=True, check=False)
            except OSError as error:
                problem = f"{python}: {error.strerror}"
                continue
            if done.returncode == 0:
                return python, None
            problem = f"{python}: " + (done.stderr.strip().splitlines() or ["failed"])[-1]
    return None, problem


def find_programs(root, build, kinds, python):
    def sources(pattern):
        return sorted(glob.glob(os.path.join(root, "tests", pattern)))

    found = []
    if "unit" in kinds:
        found += [CProgram("unit", root, source, build) for source in sources("unit/test_*.c")]
        found += [Script("unit", root, source) for source in sources("unit/test_*.sh")]
    if "integration" in kinds:
        found += [CProgram("integration", root, source, build) for source in sources("integration/test_*.c")]
    if "script" in kinds:
        found += [Script("script", root, source) for source in sources("integration/test_*.sh")]
    if "python" in kinds:
        found += [PythonProgram("python", root, source, python) for source in sources("python/test_*.py")]
    return found
