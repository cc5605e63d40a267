# SPDX-License-Identifier: MIT
# tests/device/gpu.py - PyTorch's accelerator, whatever it is, as the tests ask of a machine
"""See late.py. What cannot be made or counted on a real device says so."""

import gc
import os

import torch
from torch import nn

from spillway._gpu import accelerator

# Kernels that give the same bits each time; cuBLAS asks for this, in front of its first call.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
torch.use_deterministic_algorithms(True)
torch.utils.deterministic.fill_uninitialized_memory = False  # by a kernel, on streams that copy


class Counted(accelerator.Table):
    """Counts what is pinned."""

    pins = 0  # of all tables

    def pin(self, device, address, length):
        super().pin(device, address, length)
        Counted.pins += 1

    def unpin(self, device, address):
        super().unpin(device, address)
        Counted.pins -= 1


class Machine:
    """The devices of one kind."""

    def __init__(self):
        device = torch.accelerator.current_accelerator()
        if device is None:
            raise SystemExit(
                "PyTorch sees no accelerator: PYTHON= names an interpreter whose PyTorch does"
            )
        self.kind = device.type
        self.count = torch.accelerator.device_count()
        self._module = getattr(torch, self.kind)
        self._warm_up()

    def _warm_up(self):
        """The libraries take memory of their own with their first product of each thread and
        stream, and keep it."""
        for number in range(self.count):
            x = torch.ones(8, 8, device=torch.device(self.kind, number), requires_grad=True)
            nn.functional.linear(x, x, x[0]).sum().backward()

    def table(self, notifies=False):
        """It always notifies."""
        return Counted(self.kind)

    def be_late(self, seed, *how_late):
        """As late as it is."""

    def tasks_take(self, operator_ns, copied_byte_ns):
        """As long as they take."""

    def host_waits(self):
        """They are not counted."""
        return 0

    def copies_waited(self):
        """CUDA does not tell."""
        return 0

    def begin_peak(self):
        self._module.reset_peak_memory_stats()

    def peak(self):
        return self._module.max_memory_allocated()

    def reserved(self):
        return self._module.memory_reserved()

    def memory(self):
        """Bytes of each device, and pinned, when all has run."""
        gc.collect()
        numbers = range(self.count)
        for number in numbers:
            self._module.synchronize(number)
        return [self._module.memory_allocated(number) for number in numbers] + [Counted.pins]
