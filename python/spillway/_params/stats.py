# SPDX-License-Identifier: MIT
# spillway/_params/stats.py - counters of parameters on drives
from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ParameterStats:
    """Counters of parameters on drives: ``memory_bytes`` and ``parameters`` are current values,
    the others count since the parameters went to the store; of a device, memory is counted as it is
    pinned, in powers of two. ``waits``: uses that waited for a
    drive; ``bytes_unwritten``: evicted without a write, as the drives had the same bytes;
    ``memory_bytes_over``: by how much the memory limit was exceeded at most. ``device_...``: the
    same of a device's memory, where the model is on one, and 0 else; ``bytes_copied_in``,
    ``bytes_copied_out``: to the device, and from it."""

    parameters: int
    total_bytes: int
    limit_bytes: int
    memory_bytes: int
    memory_bytes_max: int
    memory_bytes_over: int
    uses: int
    waits: int
    wait_ns: int
    reads: int
    bytes_read: int
    reads_ahead: int
    writes: int
    bytes_written: int
    bytes_unwritten: int
    failures: int
    device_limit_bytes: int = 0
    device_bytes: int = 0
    device_bytes_max: int = 0
    device_bytes_over: int = 0
    bytes_copied_in: int = 0
    bytes_copied_out: int = 0
