# SPDX-License-Identifier: MIT
# tests/bench/peers_ways.py - how each way of peers_rows.py trains a step, for peers_run.py
"""A way loads its packages when it is made, and takes memory and drives when it is opened. All
train with AdamW; gradients are kept and zeroed in place, so that they are there all the time."""

import contextlib
import functools
import importlib
import os
import tempfile

import torch
from torch.multiprocessing.reductions import StorageWeakRef

import gpt
import spillway
import spillway.torch
from common import loss_of

LEARNING_RATE = 1e-3
BYTES_MIN = 64 << 10  # of a tensor that is worth a transfer: as spillway's default


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, foreach=False)


class Plain:
    recompute = False

    def __init__(self, args):
        self.args = args

    def construction(self):
        """What the model is made in."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def open(self, model):
        self.model, self.optimizer = model, adamw(model)
        yield

    def around(self):
        """What the passes of a step run in."""
        return contextlib.nullcontext()

    def loss(self, tokens, targets):
        return loss_of(self.model(tokens), targets)

    def backward(self, loss):
        loss.backward()

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)


class Recompute(Plain):
    recompute = True


class Spillway(Plain):
    parameters = False
    options = {}

    @contextlib.contextmanager
    def open(self, model):
        self.model = model
        with spillway.Store(self.args.devices.split(",")) as store:
            self.off = spillway.torch.offload(model, store, parameters=self.parameters,
                                              **self.options)
            self.optimizer = self.optimizer_of(model, store)
            yield
            self.off.close()

    def optimizer_of(self, model, _store):
        return adamw(model)

    def around(self):
        return self.off


class SpillwayOperations(Plain):
    """Without drives."""

    @contextlib.contextmanager
    def open(self, model):
        self.off = spillway.torch.offload(model, None, recompute="operations")
        with super().open(model):
            yield
        self.off.close()

    def around(self):
        return self.off


class SpillwayBudget(Spillway):
    def __init__(self, args):
        super().__init__(args)
        self.options = {"mode": "budget", "budget_bytes": args.budget, "recompute": "auto"}


class SpillwayState(Spillway):
    def optimizer_of(self, model, store):
        return spillway.torch.Optimizer(torch.optim.AdamW, model.parameters(), store,
                                        lr=LEARNING_RATE)


class SpillwayAll(Spillway):
    """Gradients are freed as they are used: step() finds none."""

    parameters = True

    def optimizer_of(self, model, store):
        return spillway.torch.Optimizer(torch.optim.AdamW, model.named_parameters(), store,
                                        lr=LEARNING_RATE, in_backward=True)

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


class SpillwayParameters(SpillwayAll):
    options = {"mode": "observe"}


class Axolotl(Plain):
    def __init__(self, args):
        super().__init__(args)
        tempfile.tempdir = str(args.folder)
        name = "axolotl.monkeypatch.gradient_checkpointing.offload_disk"
        self.disco = importlib.import_module(name).Disco

    @contextlib.contextmanager
    def open(self, model):
        manager = self.disco.get_instance(prefetch_to_gpu=False)
        manager.load_tensor = functools.partial(manager.load_tensor, target_device="cpu")
        gpt.run_block = lambda block, _recompute, *inputs: self.disco.apply(block, *inputs)
        with super().open(model):
            try:
                yield
            finally:
                manager.cleanup()


class Handle:
    """A copy of a saved tensor: on the drive until it is needed, then in memory."""

    def __init__(self, copy, storage, before):
        self.copy, self.storage, self.before = copy, storage, before
        self.is_here = False


class TensorNVMe(Plain):
    """Its README writes and reads one tensor ahead of the computation; so does this."""

    def __init__(self, args):
        super().__init__(args)
        self.package = importlib.import_module("tensornvme")

    @contextlib.contextmanager
    def open(self, model):
        self.offloader = self.package.DiskOffloader(str(self.args.folder / "offload"))
        self.excluded = {p.data_ptr() for p in model.parameters()}
        self.handles, self.last = {}, None
        with super().open(model):
            yield

    def around(self):
        self.handles, self.last = {}, None
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        if tensor.nbytes < BYTES_MIN or storage.data_ptr() in self.excluded:
            return tensor
        key = (storage.data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(),
               tensor.dtype, tensor._version)
        if key not in self.handles:
            # The forward pass goes on with the tensor, so that its own memory cannot be given away.
            # While the weak reference is held, no other storage comes to the same address.
            handle = Handle(tensor.clone(memory_format=torch.contiguous_format),
                            StorageWeakRef(storage), self.last)
            self.offloader.synchronize()
            self.offloader.async_write(handle.copy)
            self.handles[key] = self.last = handle
        return self.handles[key]

    def unpack(self, packed):
        if not isinstance(packed, Handle):
            return packed
        self.offloader.synchronize()
        self.fetch(packed)
        self.offloader.synchronize()
        if packed.before is not None:
            self.fetch(packed.before)
            packed.before = None
        return packed.copy

    def fetch(self, handle):
        if not handle.is_here:
            handle.is_here = True
            self.offloader.async_read(handle.copy)


class DeepSpeed(Plain):
    def __init__(self, args):
        super().__init__(args)
        os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1",
                          MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        self.package = importlib.import_module("deepspeed")

    def config(self):
        with torch.device("meta"):
            largest = max(p.numel() for p in gpt.GPT(self.args).parameters())
        place = {"device": "nvme", "nvme_path": str(self.args.folder), "pin_memory": True}
        return {
            "train_micro_batch_size_per_gpu": self.args.batch,
            "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE, "weight_decay": 0.01}},
            "zero_optimization": {
                "stage": 3,
                "offload_optimizer": {**place, "buffer_count": 4},
                # Of the default sizes, for models of billions of parameters, all would fit.
                "offload_param": {**place, "buffer_count": 5, "buffer_size": largest,
                                  "max_in_cpu": 0},
                "stage3_max_live_parameters": 2 * largest,
                "stage3_max_reuse_distance": largest,
                "stage3_prefetch_bucket_size": largest,
                "sub_group_size": 4 * largest,
            },
            "aio": {"block_size": 1 << 20, "queue_depth": 32, "single_submit": False,
                    "overlap_events": True},
        }

    def construction(self):
        """As its documentation has it. A model that is there already it makes bfloat16 on a CPU
        that has no float16, whatever the configuration says."""
        self.package.init_distributed(dist_backend="gloo")
        return self.package.zero.Init(config_dict_or_path=self.config())

    @contextlib.contextmanager
    def open(self, model):
        self.model, *_ = self.package.initialize(model=model, config=self.config(),
                                                 model_parameters=model.parameters())
        yield
        self.model.destroy()
        torch.distributed.destroy_process_group()

    def backward(self, loss):
        self.model.backward(loss)

    def step(self):
        self.model.step()


class DeepSpeedOnSpillway(DeepSpeed):
    def __init__(self, args):
        super().__init__(args)
        importlib.import_module("spillway.deepspeed").install(devices=args.devices.split(","))


WAYS = {
    "plain": Plain, "recompute": Recompute, "axolotl": Axolotl, "tensornvme": TensorNVMe,
    "spillway": Spillway, "spillway-operations": SpillwayOperations,
    "spillway-budget": SpillwayBudget, "spillway-state": SpillwayState,
    "spillway-parameters": SpillwayParameters, "spillway-all": SpillwayAll,
    "deepspeed": DeepSpeed, "deepspeed-spillway": DeepSpeedOnSpillway,
}
