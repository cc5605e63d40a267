# SPDX-License-Identifier: MIT
# tests/vm/kernel.py - Debian's kernel for the virtual machine: downloaded and unpacked below BUILD
"""Nothing is installed. SPW_VM_KERNEL names another package, SPW_VM_SUITE another suite of the same
archive (bookworm-backports). SPW_VM_IOMMUFD=1: with iommufd, which Debian leaves out
(vfio_modules.py)."""
import contextlib
import fcntl
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import tempfile

import vfio_modules
from host import Apt, Unavailable, output_of, tool

HERE = os.path.dirname(os.path.abspath(__file__))
MODULES = """virtio_pci virtio_console virtio_blk 9p 9pnet_virtio overlay configfs ext4 loop
    nvme nvme-tcp nvmet nvmet-tcp dm-mod dm-flakey dm-delay dm-log-writes dm-snapshot
    dm-thin-pool dm-multipath dm-round-robin raid0 raid456 dm-crypt xts aesni-intel xfs btrfs
    null_blk brd zram sd_mod scsi_debug vfio-pci vfio_iommu_type1""".split()


class Kernel:
    """A kernel image and an initramfs, made once and kept in BUILD/vm or BUILD/vm-SUITE-iommufd."""

    def __init__(self, build):
        self.has_iommufd = os.environ.get("SPW_VM_IOMMUFD", "") == "1"
        self.suite = os.environ.get("SPW_VM_SUITE", "")
        if not re.fullmatch(r"[a-z0-9-]*", self.suite):
            raise Unavailable(f"SPW_VM_SUITE={self.suite}: "
                              "a suite is named like bookworm-backports")
        name = "-".join(filter(None, ("vm", self.suite, "iommufd" * self.has_iommufd)))
        self.folder = os.path.join(os.path.abspath(build), name)
        self.image = os.path.join(self.folder, "vmlinuz")
        self.initramfs = os.path.join(self.folder, "initramfs")
        os.makedirs(self.folder, exist_ok=True)
        with open(os.path.join(self.folder, "lock"), "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(self.image) or self.names() != MODULES:
                self.unpack()
            self.pack_initramfs()

    @property
    def modules(self):
        return os.path.join(self.folder, "modules")

    def names(self):
        """Of which modules it was unpacked with."""
        with contextlib.suppress(OSError), open(os.path.join(self.modules, "names"),
                                                encoding="ascii") as file:
            return file.read().split()
        return []

    def version(self):
        return os.listdir(os.path.join(self.modules, "lib", "modules"))[0]

    def unpack(self):
        """The image and the modules named above; what else is in the package is thrown away."""
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            apt = Apt(self.suite, os.path.join(place, "apt"))
            package = apt.image_package()
            print(f"  VM    {package}", flush=True)
            root = os.path.join(place, "root")
            for part in apt.parts_of(package):
                folder = os.path.join(place, part)
                os.mkdir(folder)
                output_of("dpkg-deb", "-x", apt.download(part, folder), root)
            # Where newer packages have them.
            if not os.path.exists(os.path.join(root, "lib")):
                os.symlink("usr/lib", os.path.join(root, "lib"))
            version = os.listdir(os.path.join(root, "lib", "modules"))[0]
            config = os.path.join(root, "boot", "config-" + version)
            if self.has_iommufd and not vfio_modules.has_them(config):
                os.mkdir(os.path.join(place, "vfio"))
                vfio_modules.build(apt, version, root, os.path.join(place, "vfio"))
            output_of(tool("depmod", "kmod"), "-b", root, version)
            shutil.rmtree(self.modules, ignore_errors=True)
            for path in self.module_files(root, version):
                self.keep_module(path, os.path.join(self.modules, os.path.relpath(path, root)))
            for name in ("modules.builtin", "modules.order"):
                shutil.copy(os.path.join(root, "lib", "modules", version, name),
                            os.path.join(self.modules, "lib", "modules", version))
            output_of(tool("depmod", "kmod"), "-b", self.modules, version)
            with open(os.path.join(self.modules, "names"), "w", encoding="ascii") as file:
                file.write(" ".join(MODULES))
            # Beside the modules in Linux 7 and up.
            beside = os.path.join(root, "lib", "modules", version, "vmlinuz")
            os.rename(beside if os.path.exists(beside) else
                      os.path.join(root, "boot", "vmlinuz-" + version), self.image)

    @staticmethod
    def keep_module(path, target):
        """A module as busybox takes it, not compressed."""
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if path.endswith(".xz"):
            with lzma.open(path) as packed, open(target[:-len(".xz")], "wb") as module:
                shutil.copyfileobj(packed, module)
        else:
            shutil.copyfile(path, target)

    @staticmethod
    def module_files(root, version):
        """The files of MODULES and of all that they need."""
        found = {}
        for name in MODULES:
            needed = output_of(tool("modprobe", "kmod"), "-d", root, "-S", version,
                               "--show-depends", name)
            for line in needed.splitlines():
                if line.startswith("insmod "):
                    found[line.split()[1]] = None
        return list(found)

    def pack_initramfs(self):
        """busybox, tests/vm/init and the modules, again when one of them changes."""
        busybox = tool("busybox", "busybox-static")
        init = os.path.join(HERE, "init")
        with open(init, "rb") as script, open(busybox, "rb") as binary:
            inputs = script.read() + binary.read() + " ".join([self.version(), *MODULES]).encode()
        stamp = hashlib.sha256(inputs).hexdigest()
        stamp_path = self.initramfs + ".stamp"
        with contextlib.suppress(OSError), open(stamp_path, encoding="ascii") as file:
            if file.read() == stamp and os.path.exists(self.initramfs):
                return
        with tempfile.TemporaryDirectory(dir=self.folder) as root:
            for folder in ("bin", "proc", "sys", "dev", "lower", "upper", "new"):
                os.mkdir(os.path.join(root, folder))
            shutil.copy(busybox, os.path.join(root, "bin", "busybox"))
            shutil.copy(init, os.path.join(root, "init"))
            os.chmod(os.path.join(root, "init"), 0o755)
            shutil.copytree(os.path.join(self.modules, "lib"), os.path.join(root, "lib"))
            names = "\0".join(os.path.relpath(os.path.join(folder, name), root)
                              for folder, folders, files in os.walk(root)
                              for name in folders + files)
            with open(self.initramfs, "wb") as archive:
                subprocess.run([tool("cpio", "cpio"), "--quiet", "-0", "-o", "-H", "newc"],
                               input=names.encode(), stdout=archive, cwd=root, check=True)
        with open(stamp_path, "w", encoding="ascii") as file:
            file.write(stamp)
