# SPDX-License-Identifier: MIT
# tests/python/test_free_memory.py - how much memory this process may still take
# layer: test all
import os

from spillway._core.free_memory import free_memory


def machine(folder, groups, **files):
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    5000 kB\n")
    (folder / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = folder / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_free_without_groups(folder):
    assert free_memory(machine(folder, "")) == 5000 << 10
    os.remove(folder / "proc/self/cgroup")
    assert free_memory(folder) == 5000 << 10


def test_free_in_a_container(folder):
    """It sees its own group as the outermost one."""
    root = machine(folder, "0::/\n", **{"memory.max": "max\n", "memory.current": "0\n"})
    assert free_memory(root) == 5000 << 10
    (root / "sys/fs/cgroup/memory.max").write_text("1000000\n")
    assert free_memory(root) == 1_000_000


def test_free_in_a_group_of_version_2(folder):
    """The least of all groups around it, with what the system can take back of its files."""
    root = machine(folder, "0::/a/b\n", **{
        "memory.stat": "", "a/memory.max": "4000000\n", "a/memory.current": "3000000\n",
        "a/memory.stat": "anon 7\ninactive_file 200000\n", "a/b/memory.max": "max\n",
        "a/b/memory.current": "2900000\n"})
    assert free_memory(root) == 1_200_000
    (root / "sys/fs/cgroup/a/b/memory.max").write_text("2800000\n")
    assert free_memory(root) == 0


def test_free_in_a_group_of_version_1(folder):
    root = machine(folder, "5:cpu,memory:/x\n1:name=systemd:/y\n", **{
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/memory.usage_in_bytes": "1\n",
        "memory/x/memory.limit_in_bytes": "3000000\n",
        "memory/x/memory.usage_in_bytes": "2000000\n",
        "memory/x/memory.stat": "inactive_file 1\ntotal_inactive_file 500000\n"})
    assert free_memory(root) == 1_500_000
