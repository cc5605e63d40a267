# SPDX-License-Identifier: MIT
# tests/vm/machines.py - which machines are booted, and what runs in each


class Case:
    """A program in a machine. @prelude: bash lines before it; @env: for it; @argument: words after its name."""

    def __init__(self, name, program, argument="", prelude="", timeout=120, **env):
        self.name = name
        self.program = program
        self.argument = argument
        self.prelude = prelude
        self.timeout = timeout
        self.env = env


class Kind:
    """A machine: options of machine.Options, and cases, run one after the other."""

    def __init__(self, name, what, cases, **options):
        self.name = name
        self.what = what
        self.cases = cases
        self.options = options


CONFORMANCE = "tests/integration/test_engine_conformance.c"
NUMA = "tests/vm/test_numa.c"
NODES = "tests/vm/test_nvme_nodes.sh"
REMOVAL = "tests/vm/test_removal.c"
REMOVAL_ENGINE = "tests/vm/test_removal_engine.c"


def conformance(*ways):
    """The engine's conformance tests: a way is libaio or one of io_uring's ways to wait."""
    return [Case(f"conformance {way}", CONFORMANCE, SPW_TEST_BACKEND="libaio" if way == "libaio" else "io_uring",
                 SPW_TEST_WAIT="interrupt" if way == "libaio" else way) for way in ways]


# The drives by their character nodes.
BY_CHARACTER_NODE = "export SPW_TEST_DEVICES=${SPW_TEST_DEVICES//nvme/ng}"


def passthrough(*ways, **more):
    """The same tests past the block layer."""
    return [Case(f"passthrough {way}", CONFORMANCE, SPW_TEST_WAIT=way, **{"SPW_TEST_BACKEND": "nvme", **more}) for way in ways]


def integration(*names, backend="io_uring"):
    return [Case(f"{name} {backend}", f"tests/integration/test_{name}.c", SPW_TEST_BACKEND=backend) for name in names]


def removal():
    """A drive pulled from each node, under each backend."""
    cases = []
    for victim, backend in ((3, "io_uring"), (2, "libaio")):
        for test in ("put", "get"):
            cases.append(Case(f"drive {victim} pulled during {test} {backend}", REMOVAL, f"test_pulled_during_{test}",
                              SPW_TEST_BACKEND=backend, SPW_VM_VICTIM=str(victim)))
    for way in ("interrupt", "poll", "libaio"):
        cases.append(Case(f"drive 1 pulled from an engine {way}", REMOVAL_ENGINE, SPW_VM_VICTIM="1",
                          SPW_TEST_BACKEND="libaio" if way == "libaio" else "io_uring",
                          SPW_TEST_WAIT="interrupt" if way == "libaio" else way))
    for way in ("interrupt", "poll"):
        cases.append(Case(f"drive 1 pulled from a passthrough engine {way}", REMOVAL_ENGINE, SPW_VM_VICTIM="1",
                          SPW_TEST_BACKEND="nvme", SPW_TEST_WAIT=way))
    return cases


ALL = [
    Kind("nvme512", "4 drives of 512 byte blocks, 2 nodes, poll queues",
         conformance("interrupt", "poll", "sqpoll", "libaio") + integration("store", "store_faults", "store_processes") +
         passthrough("interrupt", "poll") + [Case("passthrough nodes", NODES)] +
         [Case("numa", NUMA)] + removal(),
         poll_queues=2),
    Kind("nvme4096", "4 drives of 4096 byte blocks, poll queues",
         conformance("interrupt", "poll") + passthrough("interrupt", prelude=BY_CHARACTER_NODE, SPW_TEST_BACKEND="auto") +
         integration("store", "store_space"), block_bytes=4096, nodes=1, poll_queues=2),
]
