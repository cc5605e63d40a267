# SPDX-License-Identifier: MIT
# tests/vm/vfio_modules.py - iommufd, and vfio with device nodes, for a kernel of Debian's
"""Debian builds its kernels without (# CONFIG_IOMMUFD is not set). They are modules, and of the
rest of the kernel they need nothing that is not there: built from the sources of that kernel,
against its own headers, with the two options on. The sources (150 MB) are downloaded, and nothing
is installed. Takes about a minute."""
import glob
import os
import re
import shutil
import subprocess

from host import Unavailable, output_of, tool

OPTIONS = {"CONFIG_IOMMUFD": "m", "CONFIG_VFIO_DEVICE_CDEV": "y"}
# What a kernel's own build would find in its headers.
DEFINES = "-DCONFIG_IOMMUFD_MODULE=1 -DCONFIG_VFIO_DEVICE_CDEV=1 -DCONFIG_INTERVAL_TREE_SPAN_ITER=1"
SOURCES = ("drivers/iommu/iommufd", "drivers/iommu/*.h", "drivers/vfio", "lib/interval_tree.c")


def has_them(config):
    with open(config, encoding="ascii", errors="replace") as file:
        lines = set(file.read().splitlines())
    return "CONFIG_VFIO_DEVICE_CDEV=y" in lines


def fetch(apt, version, place):
    """Headers and sources of a kernel. Return the folders of both."""
    abi = version.rsplit("-", 1)[0]
    upstream = re.match(r"\d+\.\d+", version).group(0)
    for package in (f"linux-headers-{version}", f"linux-headers-{abi}-common",
                    f"linux-kbuild-{abi}", f"linux-source-{upstream}"):
        print(f"  VM    {package}", flush=True)
        folder = os.path.join(place, package)
        os.mkdir(folder)
        output_of("dpkg-deb", "-x", apt.download(package, folder), place)
        shutil.rmtree(folder)
    headers = os.path.join(place, "usr/src", f"linux-headers-{version}")
    with open(os.path.join(headers, "Makefile"), "w", encoding="utf-8") as file:
        file.write(f"include {place}/usr/src/linux-headers-{abi}-common/Makefile\n")
    archive = os.path.join(place, "usr/src", f"linux-source-{upstream}.tar.xz")
    output_of("tar", "-xf", archive, "-C", place, "--wildcards",
              *(f"linux-source-{upstream}/{path}" for path in SOURCES))
    os.unlink(archive)
    return headers, os.path.join(place, f"linux-source-{upstream}")


def arrange(source, place):
    """A folder of modules out of the kernel's sources."""
    shutil.copytree(os.path.join(source, "drivers/vfio"), os.path.join(place, "vfio"))
    shutil.copytree(os.path.join(source, "drivers/iommu/iommufd"), os.path.join(place, "iommufd"))
    for header in glob.glob(os.path.join(source, "drivers/iommu/*.h")):
        shutil.copy(header, place)
    # The one piece that is part of the kernel itself, where an option selects it.
    with open(os.path.join(source, "lib/interval_tree.c"), encoding="utf-8") as file:
        piece = re.search(r"#ifdef CONFIG_INTERVAL_TREE_SPAN_ITER\n.*?\n#endif", file.read(),
                          re.DOTALL)
    if not piece:
        raise Unavailable(f"{source}: its interval tree has no spans, so it has no iommufd: "
                          "name a newer suite with SPW_VM_SUITE")
    spans = re.sub(r"EXPORT_SYMBOL\w*\(.*\);", "", piece.group(0))
    with open(os.path.join(place, "iommufd", "spans.c"), "w", encoding="utf-8") as file:
        file.write("#include <linux/interval_tree.h>\n" + spans + "\n")
    with open(os.path.join(place, "iommufd", "Makefile"), "a", encoding="utf-8") as file:
        file.write("\niommufd-y += spans.o\n")
    with open(os.path.join(place, "Makefile"), "w", encoding="utf-8") as file:
        file.write("obj-m += iommufd/ vfio/\n")


def build(apt, version, root, place):
    """Put the modules below @root, a kernel's package, instead of its own. @place: an empty
    folder."""
    headers, source = fetch(apt, version, place)
    modules = os.path.join(place, "modules")
    os.mkdir(modules)
    arrange(source, modules)
    print("  VM    iommufd, vfio", flush=True)
    # This make is not part of the one that has called the tests.
    env = {name: value for name, value in os.environ.items()
           if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CFLAGS", "CC")}
    done = subprocess.run(["make", f"-j{os.cpu_count()}", "-C", headers, f"M={modules}",
                           "CONFIG_DEBUG_INFO_BTF_MODULES=",
                           *(f"{name}={value}" for name, value in OPTIONS.items()),
                           f"KCFLAGS={DEFINES}", "modules"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env,
                          check=False)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable("iommufd cannot be built: " + "\n".join(words[-10:]))
    place_of_drivers = os.path.join(root, "lib/modules", version, "kernel/drivers")
    for path in glob.glob(os.path.join(modules, "**/*.ko"), recursive=True):
        name = os.path.relpath(path, modules)
        part = "iommu" if name.startswith("iommufd/") else ""
        target = os.path.join(place_of_drivers, part, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        for old in glob.glob(target + "*"):
            os.unlink(old)
        output_of(tool("strip", "binutils"), "--strip-debug", "-o", target, path)
