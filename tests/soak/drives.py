# SPDX-License-Identifier: MIT
# tests/soak/drives.py - drives of the soak's own, which can rot, shrink and fill up
"""Loop devices, each over a file system in memory."""
import contextlib
import os
import random
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
RIG = os.path.join(os.path.dirname(HERE), "rig.sh")
PREFIX = "spillway-soak."
MIB = 1 << 20
ROT_BYTES = 4096
ROT_PLACES = 400
SUPERBLOCKS = MIB  # at both ends nothing rots: what a damaged superblock does, other tests say


def run(*command, **env):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False, env=dict(os.environ, **env))
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


class Drive:
    """A loop device over a sparse file. The file is alone in a file system, which has just enough
    room for it."""

    def __init__(self, place, name, size_bytes=0, block_bytes=512):
        self.place = place
        self.name = name
        self.folder = os.path.join(place, name)
        self.size_bytes = size_bytes
        self.block_bytes = block_bytes
        self.cut = False
        self.path = None

    def rig(self, command, *words):
        return run(RIG, command, "--name", self.name, *words, SPW_RIG_STATE=self.place)

    def make(self):
        os.mkdir(self.folder)
        run("mount", "-t", "tmpfs", "-o", f"mode=700,size={self.size_bytes + 4 * MIB}",
            "spillway-soak", self.folder)
        self.path = self.rig("up", "--drives", "1", "--size", str(self.size_bytes),
                             "--block", str(self.block_bytes), "--sparse", "--on", self.folder)

    @property
    def backing(self):
        """The one file that the rig made."""
        folder = next(entry.path for entry in os.scandir(self.folder) if entry.is_dir())
        return os.path.join(folder, "drive0")

    def remove(self):
        self.rig("down")
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.folder, "filler"))
        if os.path.ismount(self.folder):
            run("umount", self.folder)
        os.rmdir(self.folder)

    # ---- What befalls it. Each returns what to call to mend it, or None. ----

    def rot(self, dice):
        """Blocks hold other bytes."""
        with open(self.backing, "r+b", buffering=0) as file:
            for _ in range(dice.randint(1, ROT_PLACES)):
                at = dice.randrange(SUPERBLOCKS, self.size_bytes - SUPERBLOCKS - ROT_BYTES,
                                    self.block_bytes)
                with contextlib.suppress(OSError):  # full
                    os.pwrite(file.fileno(), dice.randbytes(ROT_BYTES), at)

    def shrink(self, dice):
        """A part of it, or all, is gone: reads and writes there fail."""
        self.cut = True
        os.truncate(self.backing, dice.choice((0, dice.randrange(0, self.size_bytes, 4096))))
        run("losetup", "-c", self.path)
        return self.grow

    def grow(self):
        os.truncate(self.backing, self.size_bytes)
        run("losetup", "-c", self.path)

    def fill(self, _dice):
        """What lies under it has no room left: writes to what was never written fail."""
        filler = os.open(os.path.join(self.folder, "filler"), os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            with contextlib.suppress(OSError):
                for length in (MIB, 65536, 4096):
                    at = 0
                    with contextlib.suppress(OSError):
                        while True:
                            at += os.pwrite(filler, bytes(length), os.fstat(filler).st_size)
        finally:
            os.close(filler)
        return self.unfill

    def unfill(self):
        os.unlink(os.path.join(self.folder, "filler"))

    def renew(self):
        """As at the start: empty, and nothing of it allocated."""
        if self.cut:
            self.grow()
            self.cut = False
        run("blkdiscard", "-f", self.path)


FAULTS = {"rot": Drive.rot, "shrink": Drive.shrink, "full": Drive.fill}


def remove_all(place):
    """Whatever is there of a soak's drives."""
    for entry in sorted(os.listdir(place)):
        if os.path.isdir(os.path.join(place, entry)):
            Drive(place, entry).remove()
    os.rmdir(place)


class Drives:
    """All of them; a context manager. What a killed soak left is removed first."""

    def __init__(self, count, size_bytes):
        if os.geteuid() != 0:
            raise RuntimeError("needs root, for loop devices and file systems in memory")
        self.parent = os.path.realpath(os.environ.get("TMPDIR", "/var/tmp"))
        self.place = os.path.join(self.parent, PREFIX + str(os.getpid()))
        self.all = [Drive(self.place, f"soak{number}", size_bytes,
                          4096 if number >= count - 2 else 512) for number in range(count)]

    def __enter__(self):
        for name in os.listdir(self.parent):
            if name.startswith(PREFIX) and not os.path.exists("/proc/" + name[len(PREFIX):]):
                remove_all(os.path.join(self.parent, name))
        os.mkdir(self.place, 0o700)
        try:
            for drive in self.all:
                drive.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        remove_all(self.place)


def inject(kind, drive, seed):
    return FAULTS[kind](drive, random.Random(seed))
