# SPDX-License-Identifier: MIT
# tests/vm/kernel.py - Debian's kernel for the virtual machine: found, downloaded, unpacked below BUILD; nothing is installed
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
# This one names the present version of the distribution's kernel.
META_PACKAGE = "linux-image-amd64"
IMAGE = re.compile(r"linux-image-([0-9][0-9a-z.+~-]*-amd64)")
MODULES = """virtio_pci virtio_console virtio_blk 9p 9pnet_virtio overlay configfs ext4 loop nvme nvme-tcp nvmet nvmet-tcp dm-mod dm-flakey dm-delay
    dm-log-writes dm-snapshot null_blk brd zram sd_mod scsi_debug vfio-pci vfio_iommu_type1""".split()
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
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=cwd, check=False)
    except OSError as error:
        raise Unavailable(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    return done.stdout


def image_package():
    """The package that holds the distribution's present kernel, or the one that SPW_VM_KERNEL names."""
    wanted = os.environ.get("SPW_VM_KERNEL")
    if wanted:
        return wanted
    match = IMAGE.search(output_of("apt-cache", "depends", META_PACKAGE))
    if not match:
        raise Unavailable(f"apt knows no kernel image behind {META_PACKAGE}: try apt-get update, or name one with SPW_VM_KERNEL")
    return match.group(0)


class Kernel:
    """A kernel image and an initramfs, made once and kept in BUILD/vm."""

    def __init__(self, build):
        self.folder = os.path.join(os.path.abspath(build), "vm")
        self.image = os.path.join(self.folder, "vmlinuz")
        self.initramfs = os.path.join(self.folder, "initramfs")
        os.makedirs(self.folder, exist_ok=True)
        with open(os.path.join(self.folder, "lock"), "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(self.image):
                self.unpack()
            self.pack_initramfs()

    @property
    def modules(self):
        return os.path.join(self.folder, "modules")

    def version(self):
        return os.listdir(os.path.join(self.modules, "lib", "modules"))[0]

    def unpack(self):
        """The image and the modules named above; what else is in the package is thrown away."""
        package = image_package()
        print(f"  VM    {package}", flush=True)
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            output_of("apt-get", "download", "-q", package, cwd=place)
            archive = os.path.join(place, next(name for name in os.listdir(place) if name.endswith(".deb")))
            root = os.path.join(place, "root")
            output_of("dpkg-deb", "-x", archive, root)
            version = os.listdir(os.path.join(root, "lib", "modules"))[0]
            output_of(tool("depmod", "kmod"), "-b", root, version)
            shutil.rmtree(self.modules, ignore_errors=True)
            for path in self.module_files(root, version):
                target = os.path.join(self.modules, os.path.relpath(path, root))
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copyfile(path, target)
            for name in ("modules.builtin", "modules.order"):
                shutil.copy(os.path.join(root, "lib", "modules", version, name), os.path.join(self.modules, "lib", "modules", version))
            output_of(tool("depmod", "kmod"), "-b", self.modules, version)
            os.rename(os.path.join(root, "boot", "vmlinuz-" + version), self.image)

    @staticmethod
    def module_files(root, version):
        """The files of MODULES and of all that they need."""
        found = {}
        for name in MODULES:
            for line in output_of(tool("modprobe", "kmod"), "-d", root, "-S", version, "--show-depends", name).splitlines():
                if line.startswith("insmod "):
                    found[line.split()[1]] = None
        return list(found)

    def pack_initramfs(self):
        """busybox, tests/vm/init and the modules, again when one of them changes."""
        busybox = tool("busybox", "busybox-static")
        init = os.path.join(HERE, "init")
        with open(init, "rb") as script, open(busybox, "rb") as binary:
            stamp = hashlib.sha256(script.read() + binary.read() + self.version().encode()).hexdigest()
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
                              for folder, folders, files in os.walk(root) for name in folders + files)
            with open(self.initramfs, "wb") as archive:
                subprocess.run([tool("cpio", "cpio"), "--quiet", "-0", "-o", "-H", "newc"], input=names.encode(), stdout=archive,
                               cwd=root, check=True)
        with open(stamp_path, "w", encoding="ascii") as file:
            file.write(stamp)
