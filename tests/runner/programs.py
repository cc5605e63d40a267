# SPDX-License-Identifier: MIT
# tests/runner/programs.py - the kinds of test programs: how each is found, started, and read
import glob
import os
import re
import subprocess
import xml.etree.ElementTree

import drives
import outcomes

EXIT_SKIPPED = 77
# Layers: `make test`; what only `make test-all` runs; both.
LAYERS = ("test", "rest", "all")
# `make test` runs C integration tests in two configurations, which differ in everything.
CONFIGS_OF_TEST = ("files-io_uring", "loop4096-libaio")


class Program:
    """One test source. Lines of it say where it belongs and how it is run:

    layer: all                 only `make test-all` runs it
    layer: test all            each runs a part: of pytest, what has the marker `rest` and what not
    layer: test and CONFIG     `make test` runs it in one more configuration
    alone: REASON              no other program may run meanwhile
    seconds: N REASON          how long it may take, if that is more than --timeout
    """

    LINE = re.compile(r"^(?:#|/\*) (layer|alone|seconds): (.+?)(?: \*/)?$", re.MULTILINE)
    speaks = False  # each case prints a line when it begins, so that silence is a hang

    def __init__(self, kind, root, source):
        self.kind = kind
        self.source = os.path.relpath(source, root)
        self.path = source
        with open(source, encoding="utf-8") as text:
            said = dict(self.LINE.findall(text.read()))
        self.parallel = "alone" not in said
        self.seconds = float(said.get("seconds", "0").split()[0])
        layers, _, more = said.get("layer", "test").partition(" and ")
        self.layers = layers.split()
        self.configs_of_test = CONFIGS_OF_TEST + tuple(more.split())
        unknown = set(self.layers) - {"test", "all"}
        if unknown or set(self.configs_of_test) - {config.name for config in drives.ALL}:
            raise SystemExit(f"{self.source}: no such layer: {said['layer']}")

    def label(self, config):
        name = os.path.splitext(self.source)[0].removeprefix("tests/")
        return f"{name} {config.name}" if self.kind == "integration" else name

    def configurations(self, wanted, layer):
        """C integration tests run in every configuration, the rest on the best drives there are."""
        if self.kind != "integration":
            own = "test" if layer == "test" else "all"
            return [drives.FILES[0]] if layer == "all" or own in self.layers else []
        # A whole name means that one alone, not those too that go on from it.
        names = {c.name for c in drives.ALL}
        configs = [c for c in drives.ALL if not wanted or any(
            c.name == w or w not in names and c.name.startswith(w) for w in wanted)]
        of_test = self.configs_of_test if "test" in self.layers else ()
        return [c for c in configs if layer == "all" or (c.name in of_test) == (layer == "test")]

    def outcomes(self, label, text, status, place, seconds):
        """What came of it: [(label, Outcome, seconds, text)]; the first is the program itself."""
        return [(label, self.parse(text, status, place), seconds, text)]

    def missing(self):
        """What should have been built and was not, or None."""
        return None


class CProgram(Program):
    """A cmocka program. Its plain output names a case when it begins, unlike TAP."""

    ERROR = re.compile(r"\[  ERROR   \] --- (?:\[   LINE   \] --- )?(.*)$|"
                       r"\[   LINE   \] --- (.*): error: Failure!$")
    EVENT = re.compile(r"\[ {1,7}(RUN|OK|FAILED|SKIPPED|ERROR) {1,6}\] (?!--- )(.*)$")

    def __init__(self, kind, root, source, build):
        super().__init__(kind, root, source)
        self.binary = os.path.join(build, os.path.splitext(self.source)[0])

    def missing(self):
        return None if os.path.exists(self.binary) else self.binary

    def command(self, args, _place):
        if args.valgrind:
            return ["valgrind", "-q", "--error-exitcode=99", "--leak-check=full",
                    "--num-callers=20", self.binary]
        return [self.binary]

    def parse(self, text, status, _place):
        outcome = outcomes.Outcome()
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
        found = [" ".join(filter(None, m.groups())) for m in map(cls.ERROR.search, said) if m]
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
    """A bash test. tests/lib.sh prints `begin - case`, then how it ended."""

    CASE = re.compile(r"^(begin|ok|not ok|skip|  line) (?:- )?(.*)$")

    def command(self, _args, _place):
        return ["bash", self.path]

    def parse(self, text, status, _place):
        outcome, cause = outcomes.Outcome(), None
        for word, name in (m.groups() for m in map(self.CASE.match, text.splitlines()) if m):
            if word == "begin":
                outcome.current, cause = name, None
                continue
            if word == "  line":
                cause = cause or f"line {name}"
                continue
            if word == "ok":
                outcome.passed += 1
            elif word == "skip":
                outcome.skip(*name.split(": ", 1)) if ": " in name else outcome.skip(name, "")
            else:
                outcome.fail(name, cause or "see above")
            outcome.current = None
        if status == EXIT_SKIPPED and outcome.skips:
            status = 0
        outcome.check_status(status)
        outcome.check_any(status)
        return outcome


class PythonFiles(Program):
    """Many pytest files of a kind, in one process: to import PyTorch takes longer than most."""

    VERDICT = re.compile(r"(.+?)(?: (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b.*|"
                         r" Fatal .*| Timeout .*| *)$")
    speaks = True

    def __init__(self, files, python, part=0):
        super().__init__(files[0].kind, os.path.dirname(files[0].path), files[0].path)
        self.part = part
        self.parallel = all(file.parallel for file in files)
        self.files = files
        self.python = python

    def label(self, _config):
        return f"{self.kind}-{self.part + 1}" if self.part else self.kind

    def command(self, args, place):
        # The ecosystem has the package and the library that are installed, as users have them.
        installed = ["env", "-u", "PYTHONPATH", "-u", "SPILLWAY_LIBRARY"]
        return [*(installed if self.kind == "ecosystem" else []), self.python, "-m", "pytest",
                "-p", "no:cacheprovider", "-v", "--tb=short", "--color=no",
                "-o", f"faulthandler_timeout={args.timeout * 0.9:.0f}",
                "-o", "junit_logging=all", "--junitxml", self.report(place),
                *(["--exitfirst"] if args.exit_first else []), *(file.path for file in self.files)]

    @staticmethod
    def report(place):
        return os.path.join(place.path, "report.xml")

    def outcomes(self, label, text, status, place, seconds):
        """That of the process, for what belongs to no file, and those of the files."""
        process = outcomes.Outcome()
        if os.path.exists(self.report(place)):
            found = self.of_report(place)
            explained = any(outcome.failures for _, outcome, _, _ in found)
            process.check_status(0 if explained else status)
            return [(label, process, seconds, text)] + found
        # It did not live to report: the lines tell how far it came.
        for line in re.findall(r"^\S+\.py::.*", text, re.MULTILINE):
            name, verdict = self.VERDICT.match(line).groups()
            process.current = None if verdict else name
            process.passed += verdict == "PASSED"
            if verdict in ("FAILED", "ERROR"):
                process.fail(name, "see above")
        process.check_status(status if status != 0 else 1)
        return [(label, process, seconds, text)]

    def of_report(self, place):
        """(label, Outcome, seconds, what was said of failures) of each file."""
        by_file = {os.path.splitext(os.path.basename(file.path))[0]: [] for file in self.files}
        for case in xml.etree.ElementTree.parse(self.report(place)).iter("testcase"):
            # A file that cannot be imported is a case that has the file's name.
            names = f"{case.get('classname', '')}.{case.get('name', '')}".split(".")
            by_file[next(name for name in names if name in by_file)].append(case)
        found = []
        for name, cases in by_file.items():
            outcome, said = outcomes.Outcome(), []
            for case in cases:
                said += self.take(outcome, case)
            outcome.check_any(0)
            seconds = sum(float(case.get("time", 0)) for case in cases)
            found.append((f"{self.kind}/{name}", outcome, seconds, "\n".join(said)))
        return found

    @staticmethod
    def take(outcome, case):
        """Count it, and return what is to be shown of it."""
        name = case.get("name", "?")
        skipped = case.find("skipped")
        bad = [part for part in case if part.tag in ("failure", "error")]
        if bad:
            outcome.fail(name, (bad[0].get("message") or "see above").splitlines()[0])
            output = [part for part in case if part.tag in ("system-out", "system-err")]
            return [f"---- {name} ----"] + [part.text or "" for part in bad + output]
        if skipped is not None:
            outcome.skip(name, skipped.get("message") or "")
        else:
            outcome.passed += 1
        return []


def find_python():
    """$PYTHON, or the first of python3 and /usr/bin/python3 that has PyTorch and pytest."""
    own = os.environ.get("PYTHON")
    candidates = [own] if own else ["python3", "/usr/bin/python3"]
    problem = "no Python interpreter"
    for modules in ("torch, pytest", "pytest"):
        for python in candidates:
            try:
                done = subprocess.run([python, "-c", "import " + modules], text=True, check=False,
                                      stdin=subprocess.DEVNULL, capture_output=True)
            except OSError as error:
                problem = f"{python}: {error.strerror}"
                continue
            if done.returncode == 0:
                return python, None
            problem = f"{python}: " + (done.stderr.strip().splitlines() or ["failed"])[-1]
    return None, problem


def find_programs(root, build, kinds):
    def sources(pattern):
        return sorted(glob.glob(os.path.join(root, "tests", pattern)))

    found = []
    if "unit" in kinds:
        found += [CProgram("unit", root, source, build) for source in sources("unit/test_*.c")]
        found += [Script("unit", root, source) for source in sources("unit/test_*.sh")]
    if "integration" in kinds:
        found += [CProgram("integration", root, source, build)
                  for source in sources("integration/test_*.c")]
    if "script" in kinds:
        found += [Script("script", root, source) for source in sources("integration/test_*.sh")]
    if "python" in kinds:
        found += [Program("python", root, source) for source in sources("python/test_*.py")]
    if "ecosystem" in kinds:
        found += [Program("ecosystem", root, source) for source in sources("ecosystem/test_*.py")]
    return found
