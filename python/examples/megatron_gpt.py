#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# python/examples/megatron_gpt.py - a GPT of Megatron-core's, by its schedule without a pipeline
"""Train a small GPT on the repository's own text.

  spillway format --devices /dev/a,/dev/b
  python3 python/examples/megatron_gpt.py --devices /dev/a,/dev/b

Without --devices activations stay in memory, and the losses are the same. Megatron-core is made for
GPUs; where there is none, this lets it take the CPU for one.
"""
from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any, Dict, Iterator, Optional, Tuple

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import initialize_rng_tracker
from megatron.core.transformer import TransformerConfig
from torch import Tensor
from torch.overrides import TorchFunctionMode

import spillway.torch as st
from common import cuts_of, positive, run, say_activations, text_of, trainer_options
from spillway.schedules import wrap_megatron

GPU = torch.cuda.is_available()


class CudaIsCpu(TorchFunctionMode):
    """Its schedules count on the device "cuda", its attention computes in memory of it."""

    def __torch_function__(self, function: Any, types: Any, args: Tuple[Any, ...] = (),
                           kwargs: Optional[Dict[str, Any]] = None) -> Any:
        given = dict(kwargs or {})
        if given.get("device") == "cuda":
            given["device"] = "cpu"
        return function(*args, **given)

    def __enter__(self) -> "CudaIsCpu":
        torch.cuda.current_device = lambda: torch.device("cpu")
        super().__enter__()
        return self


@contextlib.contextmanager
def one_process() -> Iterator[None]:
    torch.distributed.init_process_group(
        "nccl" if GPU else "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    # On a CPU dropout draws from PyTorch's own generator.
    initialize_rng_tracker(inference_rng_tracker=not GPU)
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def make_model(args: argparse.Namespace) -> GPTModel:
    torch.manual_seed(20)
    config = TransformerConfig(
        num_layers=args.layers, hidden_size=args.hidden, num_attention_heads=args.hidden // 64,
        hidden_dropout=0.0, attention_dropout=0.0, use_cpu_initialization=not GPU)
    return GPTModel(config, get_gpt_layer_local_spec(), vocab_size=256,
                    max_sequence_length=args.sequence)


def forward_step(batches: Iterator[Tensor], model: GPTModel) -> Tuple[Tensor, Any]:
    """As a program of Megatron has it: the output, and what computes the loss of it."""
    cut = next(batches)
    tokens, labels = cut[:, :-1].contiguous(), cut[:, 1:].contiguous()
    places = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    future = torch.ones(tokens.shape[1], tokens.shape[1], device=tokens.device).triu(1).bool()

    def loss_of(losses: Tensor) -> Tuple[Tensor, Dict[str, Tensor]]:
        loss = losses.mean()
        return loss, {"loss": loss.detach().clone()}  # it divides the loss in place

    return model(tokens, places, future[None, None], labels=labels), loss_of


@one_process()
def train(args: argparse.Namespace) -> None:
    model = make_model(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    device = next(model.parameters()).device
    batches = (cut.to(device) for cut in cuts_of(
        text_of(args), args.batch, args.sequence + 1, torch.Generator().manual_seed(20)))
    off = st.offload(model, args.devices.split(",")) if args.devices else None
    forward_backward = get_forward_backward_func()
    if off is not None:
        forward_backward = wrap_megatron(forward_backward, off)
    here: Any = contextlib.nullcontext() if GPU else CudaIsCpu()
    try:
        for step in range(args.steps):
            with off or contextlib.nullcontext(), here:
                parts = forward_backward(
                    forward_step_func=forward_step, data_iterator=batches, model=model,
                    num_microbatches=args.micro_batches, seq_length=args.sequence,
                    micro_batch_size=args.batch)
            optimizer.step()
            optimizer.zero_grad()
            loss = sum(part["loss"].item() for part in parts) / len(parts)
            print(f"  step {step + 1}  loss {loss:.6f}", flush=True)
        if off is not None:
            say_activations(off.stats())
    finally:
        if off is not None:
            off.close()


def main() -> int:
    parser = trainer_options(__doc__)
    parser.add_argument("--micro-batches", type=positive, default=2, help="per step (2)")
    args = parser.parse_args()
    return run("megatron_gpt", lambda: train(args))


if __name__ == "__main__":
    sys.exit(main())
