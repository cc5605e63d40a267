# SPDX-License-Identifier: MIT
# tests/runner/drives.py - the drives of a test, files and loop devices in a folder; their removal
import contextlib
import fcntl
import functools
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

DRIVES = 4
SYSCTL = "/proc/sys/kernel/io_uring_disabled"
RIG = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "rig.sh")
RIG_RECORD = "spillway-rig."  # and its name, below SPW_RIG_STATE
# Nothing else may be taken for a killed runner's folder.
SCRATCH_PREFIX = "spillway-runner."
SCRATCH_NAME = re.compile(r"spillway-runner\.([0-9]+)\.[a-z0-9_]{8}")
# One system setting, several test runs at once: who needs io_uring shares this lock, who switches
# it off holds it alone.
RULE_LOCK = os.path.join("/run/lock" if os.path.isdir("/run/lock") else "/tmp",
                         "spillway-io_uring.lock")
RULE_LOCK_VARIABLE = "SPW_TEST_LOCK"


class Config:
    """A kind of drive and a backend, and how many workers a store has."""

    def __init__(self, name, backend, block_bytes=0, io_uring_off=False, workers=0):
        self.name = name
        self.backend = backend
        self.block_bytes = block_bytes  # of loop devices; 0: plain files
        self.io_uring_off = io_uring_off
        self.workers = workers  # of a store; 0: its own choice
        self.shares_system = not io_uring_off

    def problem(self, scratch):
        """Why it cannot run here, or None."""
        if self.io_uring_off:
            if os.geteuid() != 0:
                return "needs root to set kernel.io_uring_disabled"
            return None if os.path.exists(SYSCTL) else "this kernel has no kernel.io_uring_disabled"
        if self.block_bytes:
            return scratch.loop_problem
        return None


FILES = [Config("files-io_uring", "io_uring"), Config("files-libaio", "libaio")]
LOOPS = [Config(f"loop{block}-{backend}", backend, block)
         for block in (512, 4096) for backend in ("io_uring", "libaio")]
ALL = FILES + LOOPS + [Config("files-workers", "io_uring", workers=3),
                       Config("files-io_uring_off", "libaio", io_uring_off=True)]


def run_quietly(command):
    """Return (ok, output or error)."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False)
    except OSError as error:
        return False, f"{command[0]}: {error.strerror}"
    return done.returncode == 0, (done.stdout if done.returncode == 0 else done.stderr).strip()


def loop_devices_below(folder):
    """Loop devices over files in a folder, removed files included."""
    found = []
    for path in glob.glob("/sys/block/loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            with open(path, encoding="utf-8") as backing:
                if backing.read().startswith(folder + "/"):
                    found.append("/dev/" + path.split("/")[3])
    return found


def loops_that_stay(folder):
    """Those of loop_devices_below(): a detached one lasts until its last user has closed it, and
    nothing tells when that is."""
    until = time.monotonic() + 2
    while loop_devices_below(folder) and time.monotonic() < until:
        time.sleep(0.05)
    return loop_devices_below(folder)


def detach(devices):
    """Each once: a device that is free again may already be the drive of another run."""
    for device in devices:
        run_quietly(["losetup", "-d", device])


def mounts_of(folder, devices):
    """(device, where) of what is mounted below a folder or from a device, the innermost first."""
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        found = [line.split()[:2] for line in mounts]
    return [(device, where) for device, where in reversed(found)
            if device in devices or where.startswith(folder + "/")]


def take_rigs_down(folder):
    """What tests/rig.sh has made and recorded in a folder, wherever that lies: a bench that is
    killed has its drives elsewhere, where there is room."""
    for state, _, names in os.walk(folder):
        for name in names:
            if name.startswith(RIG_RECORD):
                run_quietly(["env", f"SPW_RIG_STATE={state}", RIG, "down",
                             "--name", name.removeprefix(RIG_RECORD)])


def take_apart(folder, devices=()):
    """Take rigs down and detach loop devices, then unmount: once its file system is unmounted, a
    file's path can no longer be told."""
    take_rigs_down(folder)
    loops = list(devices)
    loops += [device for device in loop_devices_below(folder) if device not in devices]
    detach(loops)
    for _, where in mounts_of(folder, loops):
        run_quietly(["umount", "-l", where])


def takes_o_direct(folder):
    path = os.path.join(folder, "probe")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC, 0o600))
        return True
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def is_of_killed_runner(path):
    match = SCRATCH_NAME.fullmatch(os.path.basename(path))
    if not match or os.path.exists("/proc/" + match.group(1)):
        return False
    return os.stat(path).st_uid == os.geteuid()


def write_sysctl(value):
    with open(SYSCTL, "w", encoding="ascii") as setting:
        setting.write(value)


class Scratch:
    """The one folder that everything lies in. Its name holds the runner's pid: the next run clears
    up after a killed one."""

    def __init__(self, wanted, build):
        places = [os.environ.get("TMPDIR"), "/var/tmp", os.path.abspath(build)]
        if wanted:
            places = [wanted]
        self.path = None
        for place in filter(None, places):
            self.clear_after_killed(place)
            os.makedirs(place, exist_ok=True)
            path = tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{os.getpid()}.", dir=place)
            if takes_o_direct(path):
                self.path = os.path.realpath(path)
                break
            os.rmdir(path)
        if not self.path:
            raise SystemExit("tests/run: none of " + " ".join(filter(None, places)) +
                             " takes O_DIRECT: name a folder on a disk's file system with "
                             "--scratch")

    @staticmethod
    def clear_after_killed(place):
        for path in glob.glob(os.path.join(place, SCRATCH_PREFIX + "*")):
            if is_of_killed_runner(path):
                print(f"  clearing up after a killed run: {path}")
                Scratch.restore(os.path.realpath(path))

    @staticmethod
    def restore(path):
        saved = os.path.join(path, "io_uring_disabled")
        if os.path.exists(saved):
            with open(saved, encoding="ascii") as value:
                write_sysctl(value.read())
        take_apart(path)
        shutil.rmtree(path, ignore_errors=True)

    @functools.cached_property
    def loop_problem(self):
        """Why loop devices cannot be made here, or None. Tried once."""
        if os.geteuid() != 0:
            return "needs root to make loop devices"
        probe = os.path.join(self.path, "loop-probe")
        with open(probe, "wb") as file:
            file.truncate(1 << 20)
        ok, text = run_quietly(["losetup", "-f", "--show", "--direct-io=on", probe])
        if ok:
            run_quietly(["losetup", "-d", text])
        os.unlink(probe)
        return None if ok else "no loop devices here: " + text

    def remove(self):
        """Restore everything. Return what should not have been there any more."""
        problems = [f"loop device {device}" for device in loops_that_stay(self.path)]
        for entry in sorted(os.listdir(self.path)):
            problems.append(f"{entry} in the scratch folder")
        self.restore(self.path)
        if os.path.exists(self.path):
            problems.append(f"{self.path} cannot be removed")
        problems += [f"loop device {device} cannot be removed"
                     for device in loop_devices_below(self.path)]
        return problems


class Place:
    """Four empty drives and an empty TMPDIR, for one program."""

    def __init__(self, scratch, config, size_mib):
        self.config = config
        self.size_bytes = size_mib << 20
        self.path = tempfile.mkdtemp(dir=scratch.path)
        self.tmp = os.path.join(self.path, "tmp")
        self.devices = []
        self.loops = []

    def __enter__(self):
        os.mkdir(self.tmp)
        try:
            for number in range(DRIVES):
                self.devices.append(self.make_drive(os.path.join(self.path, f"drive{number}")))
        except BaseException:
            self.__exit__()
            raise
        return self

    def make_drive(self, path):
        with open(path, "wb") as file:
            file.truncate(self.size_bytes)
        if not self.config.block_bytes:
            return path
        ok, text = run_quietly(["losetup", "-f", "--show", "--direct-io=on",
                                "-b", str(self.config.block_bytes), path])
        if not ok:
            raise RuntimeError(f"cannot make a loop device over {path}: {text}")
        self.loops.append(text)
        return text

    def leftovers(self):
        """What the program should have removed."""
        left = [f"file {os.path.relpath(os.path.join(folder, name), self.tmp)} in TMPDIR"
                for folder, _, names in os.walk(self.tmp) for name in names]
        left += [f"loop device {device}" for device in loops_that_stay(self.tmp)]
        return left + [f"mount of {device} on {where}"
                       for device, where in mounts_of(self.path, self.loops)]

    def __exit__(self, *_):
        take_apart(self.path, self.loops)
        shutil.rmtree(self.path, ignore_errors=True)


@contextlib.contextmanager
def io_uring_rule(config, scratch):
    """Keep kernel.io_uring_disabled as it is for one program, or set to 2 for one that tests that,
    and put it back.

    Yields the lock's descriptor, to be passed on: a runner that is itself under test locks through
    the one that its runner holds.
    """
    with open_lock() as lock:
        take_lock(lock, fcntl.LOCK_EX if config.io_uring_off else fcntl.LOCK_SH)
        try:
            with io_uring_off(scratch) if config.io_uring_off else contextlib.nullcontext():
                yield lock.fileno()
        finally:
            if config.io_uring_off:
                fcntl.flock(lock, fcntl.LOCK_SH)


def take_lock(lock, kind):
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"  waiting for {RULE_LOCK}: another run of tests holds it, or what it has left; "
              f"fuser -v {RULE_LOCK} shows the processes", file=sys.stderr, flush=True)
        fcntl.flock(lock, kind)


def refused_now(config):
    """Why a configuration that needs io_uring cannot run on this system, or None. To be asked while
    holding the rule's lock."""
    if config.backend == "io_uring" and os.path.exists(SYSCTL):
        with open(SYSCTL, encoding="ascii") as setting:
            value = setting.read().strip()
        if value == "2" or (value == "1" and os.geteuid() != 0):
            return f"this system refuses io_uring: kernel.io_uring_disabled={value}"
    return None


@contextlib.contextmanager
def io_uring_off(scratch):
    with open(SYSCTL, encoding="ascii") as setting:
        before = setting.read().strip()
    saved = os.path.join(scratch.path, "io_uring_disabled")
    with open(saved, "w", encoding="ascii") as file:
        file.write(before)
    try:
        write_sysctl("2")
        yield
    finally:
        write_sysctl(before)
        os.unlink(saved)


def open_lock():
    inherited = os.environ.get(RULE_LOCK_VARIABLE)
    if inherited:
        return os.fdopen(os.dup(int(inherited)), "rb")
    # Opened before it is made: in a folder like /run/lock, "making" a file that is there and is
    # another user's is refused.
    for flags in (0, os.O_CREAT):
        with contextlib.suppress(FileNotFoundError):
            return os.fdopen(os.open(RULE_LOCK, os.O_RDONLY | os.O_CLOEXEC | flags, 0o644), "rb")
    raise RuntimeError(f"{RULE_LOCK} cannot be made")
