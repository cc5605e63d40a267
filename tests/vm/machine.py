# SPDX-License-Identifier: MIT
# tests/vm/machine.py - a virtual machine with NVMe drives: its start, its end, commands in it
"""QEMU without KVM. The host's files are inside, and commands are run one after the other."""
import contextlib
import json
import os
import re
import secrets
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import qemu
from kernel import Unavailable

STATE_PREFIX = "spillway-vm."
STATE_NAME = re.compile(r"spillway-vm\.([0-9]+)\.[a-z0-9_]{8}")
BOOT_SECONDS = 120
PULLED = re.compile(r"device_del n(\d+)")
# What a command in the machine gets of the host's environment.
ENVIRONMENT = re.compile(r"(SPW_.*|SPILLWAY_.*|CMOCKA_.*|PYTHON.*|[ATU]?[BS]AN_OPTIONS|V|LANG|"
                         r"LC_.*|TERM)")
COMPLAINT = re.compile(r"\b(BUG|WARNING|INFO: task|general protection|KASAN|UBSAN|Oops|Call Trace|"
                       r"soft lockup|DMAR|Kernel panic)\b.*")

# By serial number: the kernel's numbers are given in the order in which the drives answer.
FIND_DRIVES = r"""drives=()
for path in /sys/class/nvme/nvme*; do
    [ -e "$path/serial" ] && read -r serial <"$path/serial" &&
        [[ $serial =~ ^spw([0-9]+) ]] || continue
    drives[${BASH_REMATCH[1]}]=/dev/${path##*/}n1
done
export SPW_VM_DRIVES="${drives[*]}"
export SPW_TEST_DEVICES=${SPW_TEST_DEVICES:-$SPW_VM_DRIVES}
"""


class MachineError(Exception):
    """The machine did not start, or ended by itself."""


class MachineCrashed(MachineError):
    """QEMU itself crashed, as it does now and then when a process in it dies with full queues."""


def place_for_drives(build):
    """A folder for the drives' files whose file system takes O_DIRECT."""
    for place in filter(None, (os.environ.get("TMPDIR"), "/var/tmp", os.path.abspath(build))):
        clear_after_killed(place)
        path = tempfile.mkdtemp(prefix=f"{STATE_PREFIX}{os.getpid()}.", dir=place)
        with contextlib.suppress(OSError):
            probe = os.path.join(path, "probe")
            os.close(os.open(probe, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600))
            os.unlink(probe)
            return os.path.realpath(path)
        shutil.rmtree(path)
    raise Unavailable("neither $TMPDIR, /var/tmp nor the build folder takes O_DIRECT")


def clear_after_killed(place):
    with contextlib.suppress(OSError):
        for name in os.listdir(place):
            match = STATE_NAME.fullmatch(name)
            if not match or os.path.exists("/proc/" + match.group(1)):
                continue
            path = os.path.join(place, name)
            if os.stat(path).st_uid == os.geteuid():
                shutil.rmtree(path, ignore_errors=True)


def device_words(*devices):
    return [word for device in devices for word in ("-device", json.dumps(device))]


class Options:
    """What the machine is made of."""

    def __init__(self, **wanted):
        self.drives = 4
        self.drive_bytes = 256 << 20
        self.block_bytes = 512
        self.nodes = 2  # NUMA, 1 or 2; drive i lies on node i % nodes
        self.memory_mib = 3072
        self.poll_queues = 0
        self.iommu = False  # Intel's, with interrupt remapping: drives can be driven by vfio
        self.shares = []  # folders of the host that the machine may write to
        self.errors = {}  # drive number: list of rules of QEMU's blkdebug
        self.placing = []  # drive numbers: with Flexible Data Placement, by three handles
        self.protected = []  # drive numbers: blocks with protection information of type 1
        self.two_ports = []  # drive numbers: with a second controller, on a port of its own
        # Drive numbers: keep nothing and read as zeroes, at no cost but that of the drive itself.
        self.no_medium = []
        # Drive number: file that gets every write and flush, as dm-log-writes has them.
        self.logs = {}
        self.append = ""  # to the kernel's command line
        self.qemu = []  # more arguments
        for name, value in wanted.items():
            if not hasattr(self, name):
                raise TypeError(f"no such option: {name}")
            setattr(self, name, value)


class Machine:
    """One machine from start to stop; a context manager. Nothing of it is left afterwards, whatever
    happened."""

    def __init__(self, kernel, options, build):
        self.qemu = qemu.command(build, bool(options.placing))
        self.kernel = kernel
        self.options = options
        self.state = place_for_drives(build)
        self.nonce = secrets.token_hex(8)
        self.process = None
        self.channels = {}
        self.pending = bytearray()  # of the output
        self.requests = bytearray()  # of the port "monitor"
        self.pulled = set()  # drives, since they were last brought back
        self.jobs = 0

    # ---- Starting --------------------------------------------------------------------------------

    def drive_image(self, number):
        return os.path.join(self.state, f"drive{number}.img")

    @property
    def console(self):
        return os.path.join(self.state, "console")

    def numa_arguments(self):
        if self.options.nodes < 2:
            return ["-smp", "2", "-m", str(self.options.memory_mib)]
        arguments = ["-smp", "2,sockets=2,cores=1", "-m", str(self.options.memory_mib)]
        for node in range(2):
            memory = f"memory-backend-ram,id=mem{node},size={self.options.memory_mib // 2}M"
            bridge = (f"pxb-pcie,id=pxb{node},bus_nr={64 * (node + 1)},bus=pcie.0,"
                      f"numa_node={node}")
            arguments += ["-object", memory,
                          "-numa", f"node,nodeid={node},cpus={node},memdev=mem{node}",
                          "-device", bridge]
        return arguments + ["-numa", "dist,src=0,dst=1,val=21"]

    def block_node(self, number):
        """The layers under a drive, as QEMU takes them."""
        if number in self.options.no_medium:
            return {"driver": "null-co", "node-name": f"d{number}",
                    "size": self.options.drive_bytes, "read-zeroes": True, "discard": "unmap"}
        file = {"driver": "file", "filename": self.drive_image(number), "aio": "native",
                "discard": "unmap", "cache": {"direct": True, "no-flush": False}}
        node = {"driver": "raw", "file": file}
        if number in self.options.errors:
            node = {"driver": "blkdebug", "image": node,
                    "inject-error": self.options.errors[number]}
        if number in self.options.logs:
            log = {"driver": "file", "filename": os.path.abspath(self.options.logs[number])}
            node = {"driver": "blklogwrites", "file": node, "log": log,
                    "log-sector-size": self.options.block_bytes}
        return dict(node, **{"node-name": f"d{number}", "discard": "unmap"})

    def block_properties(self, number):
        block = self.options.block_bytes
        return {"drive": f"d{number}", "write-cache": "on",
                "logical_block_size": block, "physical_block_size": max(block, 4096)}

    def drive_properties(self, number):
        return {"driver": "nvme", "id": f"n{number}", "serial": f"spw{number}",
                "bus": f"rp{number}", "max_ioqpairs": 8, **self.block_properties(number)}

    def two_port_arguments(self, number):
        """Two controllers of one subsystem, and a namespace that both have."""
        controller = {"driver": "nvme", "serial": f"spw{number}", "subsys": f"s{number}",
                      "max_ioqpairs": 8}
        namespace = {"driver": "nvme-ns", "bus": f"n{number}", "nsid": 1, "shared": True,
                     **self.block_properties(number)}
        return ["-device", f"nvme-subsys,id=s{number},nqn=spw{number}",
                *device_words({**controller, "id": f"n{number}", "bus": f"rp{number}"},
                              {**controller, "id": f"n{number}b", "bus": f"rp{number}b"},
                              namespace)]

    def controller_and_namespace(self, number):
        """A drive's controller and its namespace, as devices of their own."""
        drive, block = self.drive_properties(number), self.block_properties(number)
        return ({name: drive[name] for name in drive if name not in block},
                {"driver": "nvme-ns", "id": f"ns{number}", "bus": f"n{number}", "nsid": 1, **block})

    def protected_arguments(self, number):
        """A drive whose blocks have eight more bytes each, which lie behind all of them."""
        controller, namespace = self.controller_and_namespace(number)
        return device_words(controller, {**namespace, "ms": 8, "pi": 1})

    def placing_arguments(self, number):
        """A drive that counts what is written by each of its handles."""
        controller, namespace = self.controller_and_namespace(number)
        subsystem = {"driver": "nvme-subsys", "id": f"s{number}", "nqn": f"spw{number}",
                     "fdp": True, "fdp.nruh": 3}
        return device_words(subsystem, {**controller, "subsys": f"s{number}"},
                            {**namespace, "fdp.ruhs": "0;1;2"})

    def device_arguments(self, number):
        if number in self.options.two_ports:
            return self.two_port_arguments(number)
        if number in self.options.placing:
            return self.placing_arguments(number)
        if number in self.options.protected:
            return self.protected_arguments(number)
        return device_words(self.drive_properties(number))

    def drive_arguments(self):
        arguments = []
        for number in range(self.options.drives):
            if number not in self.options.no_medium:
                with open(self.drive_image(number), "wb") as file:
                    file.truncate(self.options.drive_bytes)
            if number in self.options.logs:
                with open(self.options.logs[number], "wb"):
                    pass
            bus = f"pxb{number % self.options.nodes}" if self.options.nodes > 1 else "pcie.0"
            ports = [("", number + 1)]
            if number in self.options.two_ports:
                ports.append(("b", number + 1 + self.options.drives))
            for letter, slot in ports:
                arguments += ["-device", f"pcie-root-port,id=rp{number}{letter},bus={bus},"
                              f"chassis={slot},slot={slot}"]
            arguments += ["-blockdev", json.dumps(self.block_node(number))]
            arguments += self.device_arguments(number)
        return arguments

    def share_arguments(self):
        arguments = ["-fsdev",
                     "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
                     "-device", "virtio-9p-pci,bus=pcie.0,fsdev=host,mount_tag=host"]
        with open(os.path.join(self.state, "shares"), "w", encoding="utf-8") as file:
            for number, folder in enumerate(self.options.shares):
                os.makedirs(folder, exist_ok=True)
                folder = os.path.abspath(folder)
                file.write(f"share{number} {folder}\n")
                arguments += ["-fsdev", f"local,id=share{number},path={folder},"
                              "security_model=none,multidevs=remap",
                              "-device", f"virtio-9p-pci,bus=pcie.0,fsdev=share{number},"
                              f"mount_tag=share{number}"]
        return arguments

    def channel_arguments(self, ends):
        """Sockets that QEMU inherits: its own monitor, and three ports of the machine."""
        arguments = ["-device", "virtio-serial,bus=pcie.0"]
        for name in ("control", "agent", "output", "monitor"):
            ours, theirs = socket.socketpair()
            self.channels[name] = ours
            ends.append(theirs)
            arguments += ["-chardev", f"socket,id={name},fd={theirs.fileno()}"]
            if name == "control":
                arguments += ["-mon", "chardev=control,mode=control"]
            else:
                arguments += ["-device", f"virtserialport,chardev={name},name={name}"]
        return arguments

    def command_line(self, ends):
        # On a busy host an emulated core stands still for longer than RCU waits before it shows
        # stacks, which would count as a complaint, and than the kernel waits for a first interrupt
        # of the timer before it panics.
        append = ("console=ttyS0 loglevel=5 panic=-1 mitigations=off random.trust_cpu=on "
                  "tsc=reliable clocksource=tsc hung_task_panic=0 "
                  "rcupdate.rcu_cpu_stall_suppress=1 no_timer_check "
                  f"spw_state={self.state} spw_nonce={self.nonce} "
                  f"spw_poll_queues={self.options.poll_queues} spw_drives={self.options.drives} "
                  f"{'intel_iommu=on iommu=pt ' if self.options.iommu else ''}"
                  f"{self.options.append}")
        board = ["-machine", "q35"]
        # The IOMMU before all devices that are behind it.
        if self.options.iommu:
            board = ["-machine", "q35,kernel-irqchip=split", "-device", "intel-iommu,intremap=on"]
        return [*self.qemu, "-nodefaults", "-nographic", "-no-reboot", *board,
                "-accel", "tcg,thread=multi", "-cpu", "max", *self.numa_arguments(),
                "-kernel", self.kernel.image, "-initrd", self.kernel.initramfs, "-append", append,
                "-chardev", f"file,id=console,path={self.console}", "-serial", "chardev:console",
                *self.channel_arguments(ends), *self.share_arguments(), *self.drive_arguments(),
                *self.options.qemu]

    def __enter__(self):
        ends = []
        try:
            command = self.command_line(ends)
            # Else a killed runner's machine would go on.
            if shutil.which("setpriv"):
                command = ["setpriv", "--pdeathsig", "KILL", *command]
            with open(os.path.join(self.state, "qemu"), "wb") as log:
                self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                                stderr=subprocess.STDOUT, start_new_session=True,
                                                pass_fds=[end.fileno() for end in ends])
            for end in ends:
                end.close()
            self.qmp_read()
            self.qmp("qmp_capabilities")
            self.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait_ready(self):
        deadline = time.monotonic() + BOOT_SECONDS
        wanted = (self.nonce + " ready\n").encode()
        while wanted not in self.pending:
            if not self.read_output(deadline):
                raise MachineError(f"the machine did not start within {BOOT_SECONDS} s:\n"
                                   f"{self.last_words()}")
        del self.pending[:self.pending.index(wanted) + len(wanted)]

    def last_words(self):
        """The end of what QEMU and the kernel said."""
        text = ""
        for path in (os.path.join(self.state, "qemu"), self.console):
            with contextlib.suppress(OSError):
                with open(path, encoding="utf-8", errors="replace") as file:
                    text += "".join(file.readlines()[-30:])
        return text

    def raise_ended(self):
        status, words = self.process.returncode, self.last_words()
        if status in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS):
            raise MachineCrashed(f"QEMU crashed by {signal.Signals(-status).name}:\n{words}")
        raise MachineError(f"the machine ended, exit status {status}:\n{words}")

    def kernel_complaints(self):
        with open(self.console, encoding="utf-8", errors="replace") as file:
            return [line.strip() for line in file if COMPLAINT.search(line)]

    def __exit__(self, *_):
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for channel in self.channels.values():
            channel.close()
        shutil.rmtree(self.state, ignore_errors=True)

    # ---- QEMU's monitor --------------------------------------------------------------------------

    def qmp_read(self):
        """One answer; events in between are passed over."""
        line = bytearray()
        while True:
            byte = self.channels["control"].recv(1)
            if not byte:
                self.process.wait()
                raise MachineError("QEMU ended:\n" + self.last_words())
            line += byte
            if byte == b"\n":
                answer = json.loads(line)
                if "event" not in answer:
                    return answer
                line.clear()

    def qmp(self, command, **arguments):
        request = json.dumps({"execute": command, "arguments": arguments})
        self.channels["control"].sendall(request.encode())
        answer = self.qmp_read()
        if "error" in answer:
            raise MachineError(f"{command}: {answer['error']['desc']}")
        return answer.get("return")

    def monitor(self, line):
        """A line for the monitor as a person would type it. Return what it says."""
        return self.qmp("human-monitor-command", **{"command-line": line})

    def restore_drives(self):
        """Bring back the drives that were pulled out, as new and empty as at the start."""
        for number in sorted(self.pulled):
            deadline = time.monotonic() + BOOT_SECONDS
            while why := self.try_to_add(number):
                if time.monotonic() > deadline:
                    raise MachineError(f"drive {number} cannot be brought back: {why}")
                time.sleep(0.2)
            self.wait_for_drive(number)
        self.pulled.clear()

    def try_to_add(self, number):
        """Return "", or why not. The old one goes when the machine's kernel lets it, which may be
        after the program that asked has ended, and its blocks some time after."""
        if f"n{number}" in self.devices():
            return "it was pulled and is still there"
        try:
            self.qmp("device_add", **self.drive_properties(number))
        except MachineError as error:
            return str(error)
        return ""

    def devices(self):
        return {device["qdev_id"] for bus in self.qmp("query-pci")
                for device in self.devices_below(bus)}

    def devices_below(self, bus):
        for device in bus["devices"]:
            yield device
            if "pci_bridge" in device:
                yield from self.devices_below(device["pci_bridge"])

    def wait_for_drive(self, number):
        status, text = self.execute(f"""until for path in /sys/class/nvme/nvme*; do
    read -r serial <"$path/serial" && [ "$serial" = spw{number} ] &&
        [ -b "/dev/${{path##*/}}n1" ] && break; false
done; do sleep 0.1; done; blkdiscard -z "/dev/${{path##*/}}n1" """, timeout=BOOT_SECONDS)
        if status != 0:
            raise MachineError(f"drive {number} does not come back: {text}")

    # ---- Running commands ------------------------------------------------------------------------

    def read_output(self, deadline):
        """Wait for output, and serve requests. Return whether the machine lives and there is time
        left."""
        with selectors.DefaultSelector() as selector:
            for name in ("output", "monitor"):
                selector.register(self.channels[name], selectors.EVENT_READ, name)
            ready = selector.select(max(0, deadline - time.monotonic()))
        for key, _ in ready:
            data = key.fileobj.recv(65536)
            if not data:
                return False
            if key.data == "output":
                self.pending += data
            else:
                self.serve(data)
        return bool(ready) and self.process.poll() is None

    def serve(self, data):
        """What the machine asks its own monitor."""
        self.requests += data
        while b"\n" in self.requests:
            line, _, rest = bytes(self.requests).partition(b"\n")
            self.requests = bytearray(rest)
            pulled = PULLED.fullmatch(line.decode())
            if pulled:
                self.pulled.add(int(pulled.group(1)))
            try:
                answer = self.monitor(line.decode())
            except MachineError as error:
                answer = f"error: {error}"
            words = answer.replace("\r", "").replace("\n", " ").strip() or "ok"
            self.channels["monitor"].sendall(words.encode() + b"\n")

    def write_job(self, command, env, cwd):
        self.jobs += 1
        name = f"job{self.jobs}"
        wanted = {key: value for key, value in os.environ.items() if ENVIRONMENT.fullmatch(key)}
        wanted.update(PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                      HOME="/root", TMPDIR="/tmp/spillway-vm", SPW_VM="1", **env)
        with open(os.path.join(self.state, name), "w", encoding="utf-8") as job:
            for key, value in wanted.items():
                job.write(f"export {key}={shlex.quote(value)}\n")
            job.write(FIND_DRIVES)
            job.write(f"cd {shlex.quote(cwd)} || exit 127\n")
            words = command if isinstance(command, str) else f"exec {shlex.join(command)}"
            job.write(words + "\n")
        return name

    def execute(self, command, env=None, cwd="/", timeout=300, output=None):
        """Run a command (words, or a bash script) as root. Return (exit status, or None after
        @timeout seconds; its output).

        @output: called with each piece of output (bytes) as it comes. After a timeout the machine
        is of no more use.
        """
        name = self.write_job(command, env or {}, cwd)
        deadline = time.monotonic() + timeout
        mark = re.compile(b"\n" + self.nonce.encode() + rb" exit ([0-9]+)\n")
        keep = len(self.nonce) + 16  # what may be the beginning of the mark is not shown yet
        shown = 0
        self.channels["agent"].sendall(name.encode() + b"\n")
        while True:
            end = mark.search(self.pending, max(0, shown - keep))
            upto = end.start() if end else max(shown, len(self.pending) - keep)
            if output and upto > shown:
                output(bytes(self.pending[shown:upto]))
            shown = upto
            if end:
                # A match looks into the buffer as it is now.
                status, text = int(end.group(1)), bytes(self.pending[:end.start()])
                del self.pending[:end.end()]
                return status, text.decode(errors="replace")
            if not self.read_output(deadline):
                if self.process.poll() is not None:
                    self.raise_ended()
                if time.monotonic() >= deadline:
                    if output:
                        output(bytes(self.pending[shown:]))
                    return None, bytes(self.pending).decode(errors="replace")
