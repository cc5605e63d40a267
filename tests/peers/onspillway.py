# SPDX-License-Identifier: MIT
# tests/peers/onspillway.py - a plugin for pytest: a peer's tests, on spillway
"""Loaded by suites.py, by -p, which also sets what tests/pytorch/hooked.py takes and

  SPW_PEER          trl, accelerate or deepspeed
  SPW_SUITE_WAY     plain: the peer as it is; spilled: on spillway
  SPW_PEER_BYTES    a file that each process appends to: bytes that went through the store
"""
import contextlib
import faulthandler
import multiprocessing
import os
import sys

import pytest
import torch

import hooked

BYTES = os.environ["SPW_PEER_BYTES"]


def count_bytes(count):
    """By any process of a test; one write, so that none is lost."""
    with open(BYTES, "ab", buffering=0) as file:
        file.write(f"{count}\n".encode())


def counted_bytes():
    with open(BYTES, "rb") as file:
        return sum(map(int, file.read().split()))


class Saving(hooked.Spilled):
    """One whose end() counts bytes as well."""

    def end(self, off):
        stats = off.stats()
        count_bytes(stats.bytes_spilled + stats.bytes_forwarded)
        super().end(off)


# ---- trl -----------------------------------------------------------------------------------------


def replace_everywhere(of, name, replacement):
    """Under this name in every module that has imported it."""
    original = getattr(of, name)
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is original:
            setattr(module, name, replacement)


class Trl:
    """OffloadActivations is an Offload that lasts until the test has ended: its user may run the
    backward pass after the context. Without spillway it does nothing: it needs CUDA. The models,
    which are from the hub, are made of the same configuration, on the late device."""

    def __init__(self, spilled):
        import late
        from spillway._gpu import accelerator
        from transformers import AutoModelForCausalLM, Qwen2Config
        from trl.models import activation_offloading

        late.Machine().be_late(1, 0.3, 0.25, False)
        table = late.Table()
        accelerator.table_of = lambda kind: table
        self.saving = Saving() if spilled else None
        self.counts, self.made = {}, []

        def make(name, *_, **__):
            torch.manual_seed(0)
            return AutoModelForCausalLM.from_config(Qwen2Config(
                hidden_size=8, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, vocab_size=151665)).eval()

        AutoModelForCausalLM.from_pretrained = make
        replace_everywhere(activation_offloading, "OffloadActivations", self.offload)

    def offload(self, use_pin_memory=True, use_streams=True, min_offload_size=1024,
                max_fwd_stash_size=5):
        if self.saving is None:
            return contextlib.nullcontext()
        off = self.saving.settled(min_offload_size)
        self.made.append(off)
        return off

    @contextlib.contextmanager
    def hooks(self):
        try:
            yield
        finally:
            while self.made:
                self.saving.end(self.made.pop())


# ---- accelerate ----------------------------------------------------------------------------------


class Accelerate:
    """Each test runs inside of an Offload, and the weights that are offloaded to files are objects
    of a store: the files have their lengths, and zeros."""

    def __init__(self, spilled):
        self.counts = {}
        self.hooks = contextlib.nullcontext
        if not spilled:
            return
        from accelerate.utils import offload

        self.saving = Saving()
        self.hooks = self.saving.hooks
        self.weights = {}  # by path
        self.offload_weight, self.load = offload.offload_weight, offload.load_offloaded_weight
        replace_everywhere(offload, "offload_weight", self.put)
        replace_everywhere(offload, "load_offloaded_weight", self.get)

    def put(self, weight, weight_name, offload_folder, index=None):
        index = self.offload_weight(weight, weight_name, offload_folder, index)
        path = os.path.join(offload_folder, f"{weight_name}.dat")
        with open(path, "r+b") as file:
            data = file.read()
            if path in self.weights:
                self.saving.store.free(self.weights.pop(path))
            self.weights[path] = self.saving.store.put(data)
            file.truncate(0)
            file.truncate(len(data))
        count_bytes(len(data))
        return index

    def get(self, weight_file, weight_info):
        weight = self.load(weight_file, weight_info)
        if weight_file in self.weights:
            flat = weight.reshape(-1).view(torch.uint8)
            assert not flat.any(), f"{weight_file} has bytes"
            self.saving.store.get_into(self.weights[weight_file], flat.numpy())
            count_bytes(flat.numel())
        return weight


# ---- DeepSpeed -----------------------------------------------------------------------------------


class DeepSpeed:
    """Its handles are those of spillway.deepspeed.install(), in processes that are forked."""

    def __init__(self, spilled):
        self.counts, self.hooks = {}, contextlib.nullcontext
        self.fork_always(multiprocessing, torch.multiprocessing)
        if not spilled:
            return
        import spillway
        import spillway.deepspeed as ours

        drives = os.environ["SPW_TEST_DEVICES"].split()
        spillway.format_store(drives, partitions=8)
        ours.AioHandle = bridged(ours.AioHandle)
        ours.install(drives)

    @staticmethod
    def fork_always(*modules):
        """What is replaced here is so in processes that are forked from this one."""
        begin = multiprocessing.set_start_method

        def set_start_method(_method, force=False):
            begin("fork", force=force)

        for module in modules:
            module.set_start_method = set_start_method


def bridged(handle_class):
    """A handle all of whose files are objects: those that a test has made are put into the store
    before they are read, those that it writes are made of the object's bytes, for it to look at."""
    shown = {}  # path: (modification time, length) of files made of objects

    def stamp(path):
        status = os.stat(path)
        return status.st_mtime_ns, status.st_size

    class Bridged(handle_class):
        def __init__(self, space, make_own, *given):
            super().__init__(space, make_own, *given)
            self.space, self.wrote = space, set()
            self.mover = handle_class(space, make_own)

        def read(self, buffer, filename, validate, file_offset=0):
            self.bring(filename)
            return super().read(buffer, filename, validate, file_offset)

        def pread(self, buffer, filename, validate, is_async, file_offset=0):
            self.bring(filename)
            return super().pread(buffer, filename, validate, is_async, file_offset)

        def write(self, buffer, filename, validate, file_offset=0):
            self.note(filename)
            return super().write(buffer, filename, validate, file_offset)

        def pwrite(self, buffer, filename, validate, is_async, file_offset=0):
            self.note(filename)
            return super().pwrite(buffer, filename, validate, is_async, file_offset)

        def wait(self):
            count = super().wait()
            while self.wrote:
                self.show(self.wrote.pop())
            return count

        def note(self, path):
            self.space.add(os.path.dirname(path))
            self.wrote.add(path)

        def bring(self, path):
            self.space.add(os.path.dirname(path))
            if not os.path.exists(path):
                return
            self.space.store()  # forgets what handles wrote that are gone: it goes with them
            if path in self.space._files and shown.get(path) == stamp(path):
                return
            with open(path, "rb") as file:
                data = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
            self.mover.sync_pwrite(data, path)
            count_bytes(data.numel())
            shown[path] = stamp(path)

        def show(self, path):
            data = torch.empty(self.space._files[path].length, dtype=torch.uint8)
            self.mover.sync_pread(data, path)
            count_bytes(data.numel())
            with open(path, "wb") as file:
                file.write(data.numpy())
            shown[path] = stamp(path)

    return Bridged


class Plugin(hooked.Plugin):
    def __init__(self, peer):
        self.spilled, self.hooks, self.reports = peer, peer.hooks, []
        self.bytes_before = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid):
        super().pytest_runtest_logstart(nodeid)
        self.bytes_before = counted_bytes()

    def pytest_runtest_logfinish(self, nodeid):
        self.spilled.counts = {"bytes": counted_bytes() - self.bytes_before}
        super().pytest_runtest_logfinish(nodeid)


def pytest_configure(config):
    faulthandler.enable(hooked.STDERR)
    hooked.Plugin.watch()
    open(BYTES, "ab").close()
    name = os.environ["SPW_PEER"]
    makes = {"trl": Trl, "accelerate": Accelerate, "deepspeed": DeepSpeed}[name]
    config.pluginmanager.register(Plugin(makes(os.environ["SPW_SUITE_WAY"] == "spilled")))
