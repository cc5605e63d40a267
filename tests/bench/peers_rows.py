# SPDX-License-Identifier: MIT
# tests/bench/peers_rows.py - the ways to train that `make bench-peers` compares, and how each runs
"""What each is called, what it moves, where it needs drives, and how it is run, in words: the row
of the table prints them. How it is done is in peers_ways.py, for each by the same name."""

import dataclasses
from typing import Literal

Needs = Literal["nothing", "folder", "store", "accelerator"]


@dataclasses.dataclass(frozen=True)
class Row:
    title: str
    moves: str
    how: str
    needs: Needs = "nothing"
    module: str = ""  # that must be importable
    like: str = "plain"  # whose losses it is to have

    @property
    def has_drives(self) -> bool:
        return self.needs in ("folder", "store")


ACTIVATIONS, STATE = "activations", "parameters and the state"
OFF_DEVICE = ("it moves tensors from an accelerator to host memory; those of host memory stay "
              "where they are")

ROWS = {
    "plain": Row("plain PyTorch", "nothing", "autograd keeps what it saves"),
    "recompute": Row("recompute", "nothing",
                     "torch.utils.checkpoint around each block, use_reentrant=True"),
    "save_on_cpu": Row("save_on_cpu", ACTIVATIONS,
                       f"torch.autograd.graph.save_on_cpu: {OFF_DEVICE}", "accelerator"),
    "transformers": Row("transformers, offloading", ACTIVATIONS,
                        f"activation_checkpointing_enable(offload=True): {OFF_DEVICE}",
                        "accelerator"),
    "torchtune": Row("torchtune, offloading", ACTIVATIONS,
                     f"torchtune.training.OffloadActivations: {OFF_DEVICE}", "accelerator"),
    "axolotl": Row("axolotl, disk", "inputs of checkpoints",
                   "axolotl's own Disco around each block, as activation_offloading: disk has it, "
                   "with prefetch_to_gpu=False and target_device=cpu: one file per tensor by "
                   "torch.save(), and the block is recomputed", "folder",
                   "axolotl.monkeypatch.gradient_checkpointing.offload_disk"),
    "tensornvme": Row("TensorNVMe", ACTIVATIONS,
                      "saved_tensors_hooks of this bench over DiskOffloader, which has none: a "
                      "copy of each tensor of 64 KiB and more is written, and read one ahead, as "
                      "in its README", "folder", "tensornvme"),
    "spillway": Row("spillway", ACTIVATIONS,
                    "spillway.torch.offload(model, store), all as it is by default", "store"),
    "spillway-operations": Row("spillway, without drives", "nothing",
                               "spillway.torch.offload(model, None, recompute='operations'): cheap "
                               "operations are recomputed one by one"),
    "spillway-budget": Row("spillway, in the memory of recompute", ACTIVATIONS,
                           "offload(model, store, mode='budget', recompute='auto', "
                           "budget_bytes=...): what the row recompute holds", "store"),
    "deepspeed": Row("DeepSpeed ZeRO-3, NVMe", STATE,
                     "offload_param and offload_optimizer to nvme, pinned, with its own aio and "
                     "DeepSpeedCPUAdam", "folder", "deepspeed"),
    "deepspeed-spillway": Row("the same, on spillway", STATE,
                              "the same program after spillway.deepspeed.install(devices=...)",
                              "store", "spillway.deepspeed", "deepspeed"),
    "spillway-state": Row("spillway, with the state", "activations and the state",
                          "offload() as above, and spillway.torch.Optimizer(torch.optim.AdamW, "
                          "...) on the same store", "store"),
    "spillway-parameters": Row("spillway, with parameters and the state",
                               "parameters and the state",
                               "as the row below, and offload(..., mode='observe'): what DeepSpeed "
                               "moves", "store"),
    "spillway-all": Row("spillway, all on drives",
                        "activations, parameters and the state",
                        "offload(model, store, parameters=True), and spillway.torch.Optimizer(..., "
                        "in_backward=True) on the same store", "store"),
}
