#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/mutants/run.py - proof that the tests can fail: each seeded bug by itself must be caught
"""Usage: tests/mutants/run.py [--build FOLDER] [--jobs N] [--part K/N] [--table FILE] [--stale]
                            [WORD...]

Works on copies of the tracked files in FOLDER/1, FOLDER/2 ..., one for each job, built once and
then incrementally. Each mutation of mutants.toml is applied to a copy, what its tests need is
built, and they are run until one fails: then it is caught. A mutation whose statement is not found
exactly once in its function is stale; one that does not build, or that no test catches, has
survived: each is a failure, and the exit status 1. With words, only mutations that contain one;
with --part, every N-th from the K-th on. --stale only looks for stale ones. --table writes the
results of a whole run between the markers of a Markdown file.
"""
import argparse
import concurrent.futures
import glob
import os
import queue
import re
import shutil
import subprocess
import sys
import time
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tests", "check"))

from functions import functions_of_c, functions_of_python  # noqa: E402

BEGIN, END = "<!-- mutants: begin -->", "<!-- mutants: end -->"
TIMEOUT_S = 120
CLEAN_TIMEOUT_S = 300  # the longest takes 60 s of an idle machine, and this one may not be idle
# A line of tests/run: a program, and then each of its cases that failed.
SKIPPED = re.compile(r"^ +skipped +(.+)$", re.MULTILINE)
FAILED = re.compile(r"^ +FAILED +(.+?): ", re.MULTILINE)


# What may stand between two words of C.
BETWEEN = r"(?:\s|/\*.*?\*/)*"


class Stale(Exception):
    """The statement is not where the table says."""


def pattern_of(statement, is_python):
    if is_python:
        lines = (re.escape(line.strip()) for line in statement.strip().split("\n"))
        return re.compile(r"\s*?\n\s*".join(lines))
    words = re.findall(r'"(?:\\.|[^"\\])*"|\w+|[^\w\s]', statement)
    # A statement that begins with a word is not the end of a longer one.
    begin = r"(?<!\w)" if re.match(r"\w", words[0]) else ""
    return re.compile(begin + BETWEEN.join(map(re.escape, words)), re.DOTALL)


def span_of(text, mutant):
    """(begin, end) in the text of the mutant's function; of all of it, if the mutant names none."""
    wanted = mutant.get("function")
    if not wanted:
        return 0, len(text)
    find = functions_of_python if mutant["file"].endswith(".py") else functions_of_c
    begins = [0] + [match.end() for match in re.finditer("\n", text)] + [len(text)]
    spans = [(begins[first - 1], begins[last])
             for name, first, last in find(text) if name == wanted]
    if not spans:
        raise Stale(f"{mutant['file']} has no function {wanted}")
    return spans[0][0], spans[-1][1]


def mutated(text, mutant):
    """The text with the mutant in it. Raises Stale."""
    is_python = mutant["file"].endswith(".py")
    begin, end = span_of(text, mutant)
    found = list(pattern_of(mutant["old"], is_python).finditer(text, begin, end))
    if len(found) != 1:
        place = mutant.get("function", mutant["file"])
        raise Stale(f"its statement is found {len(found)} times in {place}")
    at = found[0].start()
    line = text[text.rfind("\n", 0, at) + 1:at]
    indent = line[:len(line) - len(line.lstrip())]
    new = mutant["new"].strip("\n").replace("\n", "\n" + indent)
    return text[:at] + (new or ("pass" if is_python else "")) + text[found[0].end():]


def run(command, cwd):
    return subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", check=False)


class Tree:
    """One copy, and how it is built and tested."""

    def __init__(self, build, number, compilers):
        self.folder = os.path.join(os.path.abspath(build), str(number))
        self.path = os.path.join(self.folder, "tree")
        # Relative: what make has noted there holds also in a copy of the folder.
        self.build = os.path.join("..", "out")
        self.compilers = compilers

    def update(self):
        """Copy what differs, so that make builds no more than it must; remove what is gone."""
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True,
                                check=True).stdout
        names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
        for name in names:
            if os.path.isfile(os.path.join(ROOT, name)):
                with open(os.path.join(ROOT, name), "rb") as source:
                    self.write(name, source.read(), os.stat(source.fileno()).st_mode)
        for place, _, files in os.walk(self.path):
            for file in files:
                if os.path.relpath(os.path.join(place, file), self.path) not in names:
                    os.unlink(os.path.join(place, file))

    def write(self, name, content, mode):
        path = os.path.join(self.path, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path):
            with open(path, "rb") as there:
                if there.read() == content:
                    return
        with open(path, "wb") as copy:
            copy.write(content)
        os.chmod(path, mode)

    def copy_of(self, first):
        """Become what the first copy is, so that it need not be built once more."""
        shutil.rmtree(self.folder, ignore_errors=True)
        subprocess.run(["cp", "-a", first.folder, self.folder], check=True)

    def make(self, *targets):
        cflags = ("-O1 -g -Wno-maybe-uninitialized -Wno-misleading-indentation "
                  "-Wno-unused-function")  # the mutation may have been its only caller
        return run(["make", f"-j{self.compilers}", f"BUILD={self.build}", "LTO=",
                    f"CFLAGS={cflags}", *targets], self.path)

    def targets_of(self, test):
        """What a test, named by a part of its path, needs to be built."""
        sources = glob.glob(os.path.join(self.path, "tests", "*", "test_*"))
        wanted = [os.path.relpath(source, self.path) for source in sources
                  if test in source and source.endswith((".c", ".sh", ".py"))]
        if not wanted:
            raise SystemExit(f"mutants.toml: no test is called {test}")
        return sorted({target for name in wanted for target in self.targets_of_source(name)})

    def targets_of_source(self, name):
        if name.endswith(".c"):
            return [os.path.join(self.build, os.path.splitext(name)[0])]
        if name.endswith(".py"):
            return ["all"]
        with open(os.path.join(self.path, name), encoding="utf-8") as source:
            text = source.read()
        programs = re.findall(r"\$SPW_BUILD/(tests/[\w/]*)", text)
        if not programs or any(program.endswith("/") for program in programs):
            return ["build-tests"]
        built = [os.path.join(self.build, program) for program in programs]
        return built + (["all"] if "$SPILLWAY" in text else [])

    def test(self, *tests, timeout_s=TIMEOUT_S):
        return run(["tests/run", "--build", self.build, "--config", "files-io_uring",
                    "--kind", "unit", "--kind", "integration", "--kind", "script",
                    "--kind", "python", "--exit-first", "--timeout", str(timeout_s), *tests],
                   self.path)

    def clean_run(self, tests):
        """Unchanged, every test must pass: else catching would mean nothing."""
        done = self.make(*sorted({target for test in tests for target in self.targets_of(test)}))
        if done.returncode != 0:
            raise SystemExit("the unchanged tree does not build:\n" + done.stdout[-4000:])
        done = self.test(*sorted(tests), timeout_s=CLEAN_TIMEOUT_S)
        if done.returncode != 0:
            raise SystemExit("tests fail without any mutation:\n" + done.stdout[-4000:])
        for case in sorted(set(SKIPPED.findall(done.stdout))):
            print(f"  skipped here, so what it alone catches survives: {case}", flush=True)


def try_mutant(tree, mutant):
    """Return (caught, by what)."""
    path = os.path.join(tree.path, mutant["file"])
    with open(path, encoding="utf-8") as source:
        text = source.read()
    try:
        changed = mutated(text, mutant)
    except Stale as stale:
        return False, f"STALE: {stale}"
    try:
        with open(path, "w", encoding="utf-8") as source:
            source.write(changed)
        for test in mutant["tests"]:
            done = tree.make(*tree.targets_of(test))
            if done.returncode != 0:
                return False, "DOES NOT BUILD: " + done.stdout.strip()[-600:]
            # What the kernel log complains of meanwhile does not count as caught by the test.
            if FAILED.search(tree.test(test).stdout):
                return True, test.strip(".")
        return False, "SURVIVED " + ", ".join(mutant["tests"])
    finally:
        with open(path, "w", encoding="utf-8") as source:
            source.write(text)


def write_table(path, results):
    lines = ["| file | what is broken | caught by |", "|---|---|---|"]
    lines += [f"| `{mutant['file']}` | {mutant['what']} | `{words}` |"
              for mutant, caught, words in results if caught]
    with open(path, encoding="utf-8") as document:
        text = document.read()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    with open(path, "w", encoding="utf-8") as document:
        document.write(before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--build", default="build-mutants")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1),
                        help="mutations at once (the CPUs, at most 4)")
    parser.add_argument("--part", default="1/1",
                        help="of the mutations: K/N is every N-th, from the K-th on")
    parser.add_argument("--table")
    parser.add_argument("--stale", action="store_true",
                        help="build nothing: only say which are stale")
    args = parser.parse_args()
    if not re.fullmatch(r"[1-9][0-9]*/[1-9][0-9]*", args.part):
        parser.error("--part is K/N")
    return args


def choose_mutants(args):
    with open(os.path.join(ROOT, "tests", "mutants", "mutants.toml"), "rb") as table:
        mutants = tomllib.load(table)["mutant"]
    mutants = [m for m in mutants
               if not args.words or any(word in m["what"] + m["file"] for word in args.words)]
    part, parts = map(int, args.part.split("/"))
    return mutants[part - 1::parts]


def prepare_trees(build, jobs, tests):
    """Built, and seen to pass without a mutation."""
    first = Tree(build, 1, os.cpu_count() or 1)
    first.update()
    first.clean_run(tests)
    trees = queue.SimpleQueue()
    first.compilers = max(1, (os.cpu_count() or 1) // jobs)
    trees.put(first)
    for number in range(2, jobs + 1):
        tree = Tree(build, number, first.compilers)
        tree.copy_of(first)
        trees.put(tree)
    return trees


def run_mutants(mutants, trees, jobs):
    """Return (mutant, caught, by what) of each, in their order."""
    def one(mutant):
        tree = trees.get()
        begun = time.monotonic()
        try:
            caught, words = try_mutant(tree, mutant)
        finally:
            trees.put(tree)
        print(f"  {'caught  ' if caught else 'SURVIVED'} {time.monotonic() - begun:6.1f} s  "
              f"{mutant['file']}: {mutant['what']}: {words}", flush=True)
        return mutant, caught, words

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, mutants))


def show_stale(mutants):
    """Return how many there are."""
    count = 0
    for mutant in mutants:
        try:
            with open(os.path.join(ROOT, mutant["file"]), encoding="utf-8") as source:
                mutated(source.read(), mutant)
        except (Stale, OSError) as error:
            print(f"{mutant['file']}: {mutant['what']}: {error}")
            count += 1
    return count


def main():
    args = parse_arguments()
    mutants = choose_mutants(args)
    if args.stale:
        return 1 if show_stale(mutants) else 0
    jobs = max(1, min(args.jobs, len(mutants)))
    begun = time.monotonic()
    tests = {test for mutant in mutants for test in mutant["tests"]}
    trees = prepare_trees(args.build, jobs, tests)
    results = run_mutants(mutants, trees, jobs)
    survivors = sum(not caught for _, caught, _ in results)
    print(f"\n{len(results) - survivors} of {len(results)} mutations caught in "
          f"{time.monotonic() - begun:.0f} s")
    if args.table and not survivors and not args.words and args.part == "1/1":
        write_table(args.table, results)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
