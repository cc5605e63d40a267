# SPDX-License-Identifier: MIT
# tests/vm/host.py - the host's tools, and its apt: with its own lists, or another suite's
import os
import re
import shutil
import subprocess

# This one names the present version of the distribution's kernel.
META_PACKAGE = "linux-image-amd64"
IMAGE = re.compile(r"linux-image-([0-9][0-9a-z.+~-]*-amd64)")
# Debian puts them where only root's PATH looks.
SBIN = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"


class Unavailable(Exception):
    """No virtual machine can be had here; the text says why and what to do."""


def tool(name, package):
    path = shutil.which(name, path=SBIN)
    if not path:
        raise Unavailable(f"{name} is missing: scripts/deps.sh vm installs it (package {package})")
    return path


def output_of(*command, cwd=None):
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              cwd=cwd, check=False)
    except OSError as error:
        raise Unavailable(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        words = done.stderr.strip().splitlines() or ["failed"]
        raise Unavailable(f"{' '.join(command)}: {words[-1]}")
    return done.stdout


class Apt:
    """apt with its own lists, or with those of one suite alone, kept in @folder."""

    def __init__(self, suite, folder):
        self.suite = suite
        self.options = []
        if not suite:
            return
        lists, cache = os.path.join(folder, "lists"), os.path.join(folder, "cache")
        for path in (os.path.join(lists, "partial"), os.path.join(cache, "archives", "partial")):
            os.makedirs(path, exist_ok=True)
        source = os.path.join(folder, "source.list")
        with open(source, "w", encoding="utf-8") as file:
            file.write(f"deb {self.archive()} {suite} main\n")
        for option in (f"Dir::Etc::SourceList={source}", "Dir::Etc::SourceParts=/dev/null",
                       f"Dir::State::Lists={lists}", f"Dir::Cache={cache}",
                       "Acquire::Languages=none"):
            self.options += ["-o", option]
        output_of("apt-get", *self.options, "update", "-q")

    @staticmethod
    def archive():
        """Where this machine has its own packages of the distribution from."""
        listed = output_of("apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)",
                           "Created-By: Packages")
        for line in listed.splitlines():
            origin, label, uri = line.split("|", 2)
            if (origin, label) == ("Debian", "Debian"):
                return uri
        raise Unavailable("apt knows no archive of Debian: try apt-get update")

    def image_package(self):
        """The package of the distribution's present kernel, or the one that SPW_VM_KERNEL names."""
        wanted = os.environ.get("SPW_VM_KERNEL")
        if wanted:
            return wanted
        match = IMAGE.search(output_of("apt-cache", *self.options, "depends", META_PACKAGE))
        if not match:
            raise Unavailable(f"apt knows no kernel image behind {META_PACKAGE}: "
                              "try apt-get update, or name one with SPW_VM_KERNEL")
        return match.group(0)

    def parts_of(self, image):
        """An image's package, and those that hold its modules and binary, as in Linux 7 and up."""
        version = image.removeprefix("linux-image-")
        needed = output_of("apt-cache", *self.options, "depends", image).split()
        parts = (f"linux-{part}-{version}" for part in ("base", "binary", "modules"))
        return [image, *(part for part in parts if part in needed)]

    def download(self, package, folder):
        output_of("apt-get", *self.options, "download", "-q", package, cwd=folder)
        archive = next(name for name in os.listdir(folder) if name.endswith(".deb"))
        return os.path.join(folder, archive)
