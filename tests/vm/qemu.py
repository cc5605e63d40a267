# SPDX-License-Identifier: MIT
# tests/vm/qemu.py - which QEMU: the installed one, or for what that lacks the one of backports
"""The newer one is unpacked below BUILD and runs from there; nothing is installed."""
import fcntl
import os
import platform
import subprocess
import tempfile

from host import Apt, Unavailable, output_of, tool

PACKAGES = ("qemu-system-x86", "qemu-system-common", "qemu-system-data")


def places_data(words):
    """Whether it emulates drives with Flexible Data Placement, as version 8 and up do."""
    done = subprocess.run([*words, "-device", "nvme-subsys,help"], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)
    return "fdp=" in done.stdout


def unpack(folder):
    """The packages' files, in a folder that is there once it is whole."""
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "stable")
    with tempfile.TemporaryDirectory(dir=os.path.dirname(folder)) as place:
        apt = Apt(release + "-backports", os.path.join(place, "apt"))
        root = os.path.join(place, "root")
        for package in PACKAGES:
            print(f"  VM    {package} of {apt.suite}", flush=True)
            part = os.path.join(place, package)
            os.mkdir(part)
            output_of("dpkg-deb", "-x", apt.download(package, part), root)
        os.rename(root, folder)


def command(build, placing):
    """The words that begin its command line. @placing: drives place data."""
    installed = [tool("qemu-system-x86_64", "qemu-system-x86")]
    if not placing or places_data(installed):
        return installed
    folder = os.path.join(os.path.abspath(build), "vm-qemu")
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with open(folder + ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(folder):
            unpack(folder)
    # What belongs to other packages, the BIOS for one, is that of the installed one.
    newer = [os.path.join(folder, "usr/bin/qemu-system-x86_64"),
             "-L", os.path.join(folder, "usr/share/qemu"),
             "-L", "/usr/share/seabios", "-L", "/usr/share/qemu"]
    if not places_data(newer):
        raise Unavailable(f"{newer[0]} does not run here, or knows nothing of placement either")
    return newer
