# SPDX-License-Identifier: MIT
# tests/python/test_run.py - spillway run: large blocks of a program that does not know of it
import json
import os
import resource
import shutil
import signal
import subprocess
import sys

import pytest

from conftest import BUILD, EXAMPLES, ROOT, tiny

COMMAND = BUILD / "spillway"
COMPILER = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")

pytestmark = [
    pytest.mark.skipif(not COMMAND.exists(), reason="the command is not built"),
    pytest.mark.skipif(bool(os.environ.get("SANITIZE")),
                       reason="a sanitizer replaces malloc() itself"),
]

PROLOGUE = """
import ctypes, json, os, sys, threading
names = ("used_bytes", "resident_free_bytes", "taken", "reused", "refused", "returned_bytes")
class Stats(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in names]
library = ctypes.CDLL(None)
for name in ("malloc", "calloc", "realloc", "memalign", "reallocarray",
             "valloc", "pvalloc", "aligned_alloc"):
    getattr(library, name).restype = ctypes.c_void_p
library.malloc_usable_size.restype = ctypes.c_size_t
def malloc(size): return ctypes.c_void_p(library.malloc(ctypes.c_size_t(size)))
def stats():
    now = Stats()
    library.spw_malloc_stats(ctypes.byref(now), ctypes.c_size_t(ctypes.sizeof(now)))
    return {name: getattr(now, name) for name in names}
MIB = 1 << 20
before = stats()
"""


def under_run(program, *options, **named):
    """A program with the prologue, under `spillway run`, to its end."""
    command = [COMMAND, "run", *options, "--", sys.executable, "-c", PROLOGUE + program]
    return subprocess.run(command, capture_output=True, text=True, **named)


def run(program, *options):
    done = under_run(program, *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_block_is_aligned_reused_and_counted():
    out = run("""
a = malloc(3 * MIB)
usable, length = library.malloc_usable_size(a), stats()["used_bytes"] - before["used_bytes"]
library.free(a)
b = malloc(3 * MIB)
print(json.dumps([a.value, b.value, usable, length, stats()["reused"] - before["reused"]]))
""")
    assert out[0] == out[1] and out[0] % 65536 == 0
    assert out[2] == out[3] == 3 << 20
    assert out[4] == 1


def test_zeros_growth_and_alignment():
    assert run("""
a = malloc(2 * MIB)
ctypes.memset(a, 7, 2 * MIB)
library.free(a)
z = ctypes.c_void_p(library.calloc(ctypes.c_size_t(2), ctypes.c_size_t(MIB)))
zeros = not any(ctypes.string_at(z, 2 * MIB))
ctypes.memset(z, 9, 2 * MIB)
g = ctypes.c_void_p(library.realloc(z, ctypes.c_size_t(5 * MIB)))
grown = ctypes.string_at(g, 2 * MIB) == bytes([9]) * (2 * MIB)
s = ctypes.c_void_p(library.realloc(g, ctypes.c_size_t(100)))
shrunk = ctypes.string_at(s, 100) == bytes([9]) * 100
library.free(s)
wide = ctypes.c_void_p(library.memalign(ctypes.c_size_t(4 * MIB), ctypes.c_size_t(2 * MIB)))
aligned = wide.value % (4 * MIB) == 0
library.free(wide)
overflow = library.calloc(ctypes.c_size_t(1 << 40), ctypes.c_size_t(1 << 40)) is None
same = stats()["used_bytes"] == before["used_bytes"]
print(json.dumps([zeros, grown, shrunk, aligned, overflow, same]))
""") == [True] * 6


def test_what_does_not_fit_comes_from_libc():
    out = run("""
blocks = [malloc(2 * MIB) for _ in range(5)]
for block in blocks:
    ctypes.memset(block, 1, 2 * MIB)
after = stats()
for block in blocks:
    library.free(block)
print(json.dumps([all(block.value for block in blocks), after["refused"] - before["refused"]]))
""", "--address-bytes", "4M")
    assert out[0] and 3 <= out[1] <= 5


def test_memory_goes_back_beyond_the_limit():
    assert run("""
blocks = [malloc(2 * MIB) for _ in range(5)]
for block in blocks:
    ctypes.memset(block, 1, 2 * MIB)
for block in blocks:
    library.free(block)
after = stats()
print(json.dumps([after["resident_free_bytes"] <= 4 * MIB, after["returned_bytes"] >= 6 * MIB]))
""", "--cache-bytes", "4M") == [True, True]


def test_threads_and_forks():
    """Children allocate while other threads of the parent do."""
    assert run("""
stop = False
wrong = []
def work(number):
    while not stop:
        block = malloc(MIB + number * 70000)
        ctypes.memset(block, number, MIB)
        if ctypes.string_at(block, MIB) != bytes([number]) * MIB:
            wrong.append(number)
        library.free(block)
threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 4)]
for thread in threads:
    thread.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        for _ in range(3):
            block = malloc(2 * MIB)
            ctypes.memset(block, 1, 2 * MIB)
            library.free(block)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        wrong.append("child")
stop = True
for thread in threads:
    thread.join()
print(json.dumps([wrong, stats()["used_bytes"] == before["used_bytes"]]))
""") == [[], True]


def test_the_other_functions_of_libc():
    assert run("""
a = malloc(2 * MIB)
ctypes.memset(a, 5, 2 * MIB)
b = ctypes.c_void_p(library.reallocarray(a, ctypes.c_size_t(3), ctypes.c_size_t(MIB)))
grown = ctypes.string_at(b, 2 * MIB) == bytes([5]) * (2 * MIB)
library.free(b)
for name, *arguments in (("valloc", 2 * MIB), ("pvalloc", 2 * MIB),
                         ("aligned_alloc", 4096, 2 * MIB)):
    c = ctypes.c_void_p(getattr(library, name)(*map(ctypes.c_size_t, arguments)))
    ctypes.memset(c, 1, 2 * MIB)
    library.free(c)
print(json.dumps([grown, stats()["used_bytes"] == before["used_bytes"]]))
""") == [True, True]


@pytest.mark.parametrize("program, function", [
    ("library.free(a); library.free(a)", "free"),
    ("library.free(ctypes.c_void_p(a.value + 65536))", "free"),
    ("library.free(ctypes.c_void_p(a.value + 4096))", "free"),
    ("library.realloc(ctypes.c_void_p(a.value + 65536), ctypes.c_size_t(5))", "realloc"),
])
def test_a_block_that_is_freed_twice_ends_the_program(program, function):
    """As in libc. Otherwise it would have two owners, and one of them other bytes than it wrote."""
    done = under_run("a, b = malloc(2 * MIB), malloc(2 * MIB)\n" + program)
    assert done.returncode == -signal.SIGABRT and f"{function}(): not a block in use" in done.stderr


def test_limited_address_space_is_left_for_others():
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
    limit = memory + (2 << 30)
    done = under_run("""
import mmap
block = malloc(2 * MIB)
MAP_NORESERVE = 0x4000
mmap.mmap(-1, 3 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE).close()
print(stats()["taken"] - before["taken"])
""", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert done.returncode == 0 and done.stdout == "1\n", done.stderr


HANDLERS = """
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void allocate(void)
{
	char *block = malloc(2 << 20);

	if (!block)
		abort();
	memset(block, 1, 2 << 20);
	free(block);
}

__attribute__((constructor)) static void begin(void)
{
	if (pthread_atfork(allocate, allocate, allocate))
		abort();
}

int forks(void)
{
	return 3;
}
"""
FORKS = """
#include <sys/wait.h>
#include <unistd.h>

int forks(void);

int main(void)
{
	for (int i = 0; i < forks(); i++) {
		int status;
		pid_t child = fork();

		if (child == 0)
			_exit(0);
		if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
			return 1;
	}
	return 0;
}
"""


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_handlers_of_fork_may_allocate(folder):
    """A library that is initialised before this one has its handler run after this one's, with the
    lock held."""
    (folder / "handlers.c").write_text(HANDLERS)
    (folder / "forks.c").write_text(FORKS)
    library, program = folder / "libhandlers.so", folder / "forks"
    compiler = COMPILER.split()
    subprocess.run([*compiler, "-shared", "-fPIC", "-o", library, folder / "handlers.c"],
                   check=True)
    subprocess.run([*compiler, "-o", program, folder / "forks.c", library], check=True)
    done = subprocess.run([COMMAND, "run", "--", program], timeout=60)
    assert done.returncode == 0


def test_training_gives_the_same_bits(formatted):
    example = [sys.executable, EXAMPLES / "gpt.py", "--gradients", "--json", "-",
               *tiny(hidden=128, sequence=256, mode="spillway", devices=formatted)]
    results = []
    for start in ([], [COMMAND, "run", "--"]):
        done = subprocess.run(start + example, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
    for key in ("losses_hex", "gradients_sha256"):
        assert results[0][key] == results[1][key]


@pytest.mark.parametrize("arguments, status, words", [
    (["--"], 2, "no program given"),
    (["true"], 2, "two dashes come before the program: -- true"),
    (["--cache-bytes", "much", "--", "true"], 2, "--cache-bytes"),
    (["--library", "/nonexistent", "--", "true"], 1, "/nonexistent is not there"),
    (["--", "/nonexistent/program"], 127, "cannot be started"),
    (["--", "false"], 1, ""),
    (["--", "true"], 0, ""),
])
def test_use(arguments, status, words):
    done = subprocess.run([COMMAND, "run", *arguments], capture_output=True, text=True)
    assert done.returncode == status
    assert words in done.stderr


# ---- --deepspeed: tests/ecosystem/test_deepspeed.py has it with DeepSpeed itself -----------------


def under_deepspeed(program, folder, drives, **named):
    """With a module that is called deepspeed, and one that is installed in it."""
    (folder / "more").mkdir(exist_ok=True)
    (folder / "more/deepspeed.py").write_text("order = ['imported']\n")
    (folder / "more/sitecustomize.py").write_text("import sys; sys.customized = True\n")
    path = os.pathsep.join([str(folder / "more"), os.environ["PYTHONPATH"]])
    return under_run("""
import types
import spillway
stub = types.ModuleType("spillway.deepspeed")
stub.install = lambda drives: sys.modules["deepspeed"].order.append(drives)
sys.modules["spillway.deepspeed"] = stub
""" + program, "--deepspeed", drives, env={**os.environ, "PYTHONPATH": path}, **named)


@pytest.mark.skipif(BUILD.parent != ROOT, reason="the command is not in its source tree")
def test_deepspeed_is_told_of_the_drives(folder, formatted):
    """As soon as it is imported; by names that hold in any folder."""
    drives = [os.path.relpath(path, folder) for path in formatted]
    done = under_deepspeed("""
os.chdir("/")
assert sys.customized
import deepspeed, deepspeed
print(json.dumps(deepspeed.order))
""", folder, ",".join(drives), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["imported", [os.path.realpath(path) for path in formatted]]


@pytest.mark.skipif(BUILD.parent != ROOT, reason="the command is not in its source tree")
def test_deepspeed_without_the_package(folder, formatted):
    done = under_deepspeed("""
sys.modules["spillway.deepspeed"] = None
import deepspeed
""", folder, formatted[0] + "," + ",".join(formatted[1:]))
    assert done.returncode == 1 and "has no package spillway that works" in done.stderr


def test_deepspeed_without_a_store(folder):
    (folder / "drive").write_bytes(bytes(1 << 20))
    for drives, status, words in ((str(folder / "drive"), 1, "is not a drive of a spillway store"),
                                  (str(folder / "nothing"), 1, "there is no such file"),
                                  ("a,,b", 2, "an empty name"), ("", 2, "an empty")):
        done = under_run("print('started')", "--deepspeed", drives)
        assert done.returncode == status and words in done.stderr, done.stderr
        assert "started" not in done.stdout


SHRINKING = """
import torch, spillway.torch
from torch import nn
torch.manual_seed(1)
torch.set_num_threads(1)
model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)))
off = spillway.torch.offload(model, None, recompute="operations")
def step(rows):
    with off:
        model(torch.ones(rows, 64)).pow(2).mean().backward()
    now = stats()
    return now["used_bytes"] + now["resident_free_bytes"]
print(json.dumps([step(1 << 16)] + [step(256) for _ in range(6)]))
"""


def test_a_longer_step_leaves_no_memory_behind():
    """What it needed is there for the next few, and then goes back."""
    long, *others = run(SHRINKING)
    assert others[1] >= 0.9 * long > 100 << 20
    assert others[-1] < 0.5 * long  # libraries hold some
