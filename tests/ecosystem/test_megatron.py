# SPDX-License-Identifier: MIT
# tests/ecosystem/test_megatron.py - the activations of Megatron-core's schedule without a pipeline
"""Its schedules count on the device "cuda", and those of pipelines receive into its memory. Here
that device is the CPU, which is enough for the one without a pipeline."""
import os
from unittest import mock

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import spillway
import spillway.schedules
import spillway.torch
from places import wait_after_layers

MICRO_BATCHES, STEPS, WIDTH = 4, 3, 128


class CudaIsCpu(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        given = dict(kwargs or {})
        if given.get("device") == "cuda":
            given["device"] = "cpu"
        return function(*args, **given)


@pytest.fixture(scope="module")
def forward_backward():  # its environment is not that of the tests that follow
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import get_forward_backward_func

    with mock.patch.dict(os.environ, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1"):
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        yield get_forward_backward_func()
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def make_model():
    from megatron.core.enums import ModelType
    from megatron.core.transformer import TransformerConfig

    torch.manual_seed(3)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)))
    model.config = TransformerConfig(num_layers=1, hidden_size=WIDTH, num_attention_heads=2)
    model.model_type = ModelType.encoder_or_decoder
    model.set_input_tensor = lambda tensor: None
    return model


def forward_step(batches, model):
    rows = next(batches)
    if isinstance(rows, BaseException):
        raise rows

    def loss_of(out):
        loss = nn.functional.mse_loss(out, rows.flip(0))
        return loss, {"loss": loss.detach()}

    return model(rows), loss_of


def train(forward_backward, devices, forward_only=False, waits=False, error=None, **spilling):
    """Losses, what was trained, what an offload was told, and its counters.

    :param error: raised in the second step, in a forward pass
    """
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    off = spillway.torch.offload(
        model, devices, **({"mode": "spill" if devices else "observe",
                            "sizes": spillway.torch.Sizes(min_bytes=0)} | spilling))
    if waits:
        wait_after_layers(model, lambda: off)
    told, stage = [], off.stage

    def listening(*here, next=None):
        told.append((*here, next))
        stage(*here, next=next)

    off.stage = listening
    wrapped = spillway.schedules.wrap_megatron(forward_backward, off)
    seed, losses = torch.Generator().manual_seed(7), []
    try:
        for step in range(STEPS):
            batches = [torch.randn(16, WIDTH, generator=seed) for _ in range(MICRO_BATCHES)]
            if error is not None and step == 1:
                batches[2] = error
            with off, CudaIsCpu():
                found = wrapped(
                    forward_step_func=forward_step, data_iterator=iter(batches), model=model,
                    num_microbatches=MICRO_BATCHES, seq_length=1, micro_batch_size=16,
                    forward_only=forward_only)
            optimizer.step()
            optimizer.zero_grad()
            losses += [entry["loss"] for entry in found]
        stats = off.stats()
    finally:
        off.close()
    return losses, list(model.state_dict().values()), told, stats


def test_the_same_losses(drives, forward_backward):
    plain = train(forward_backward, None)
    spilled = train(forward_backward, drives)
    assert len(plain[0]) == STEPS * MICRO_BATCHES
    for these, those in zip(plain[:2], spilled[:2]):
        assert all(map(torch.equal, these, those))
    stats = spilled[3]
    assert stats.bytes_spilled + stats.bytes_forwarded > 0 and stats.steps == STEPS


def test_less_memory(drives, forward_backward):
    """Than what plain training holds, which mode "observe" counts."""
    peaks = {mode: train(forward_backward, drives, waits=True, mode=mode,
                         sizes=spillway.torch.Sizes(min_bytes=0, prefetch_bytes="16KiB")
                         )[3].step_peak_bytes
             for mode in ("observe", "spill")}
    assert peaks["spill"] < 0.7 * peaks["observe"], peaks


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError("mine")])
def test_ends(drives, forward_backward, error):
    """In the middle of a schedule; the next training in the same process is unaffected."""
    plain = train(forward_backward, None)
    with pytest.raises(type(error)):
        train(forward_backward, drives, error=error)
    spillway.Store(drives).close()
    spilled = train(forward_backward, drives)
    for these, those in zip(plain[:2], spilled[:2]):
        assert all(map(torch.equal, these, those))


def test_each_pass_is_told(drives, forward_backward):
    order = spillway.schedules.one_f_one_b(0, 1, MICRO_BATCHES)
    step = [(*here, then) for here, then in zip(order, [*order[1:], None])]
    assert train(forward_backward, drives)[2] == STEPS * step


def test_evaluation_is_not_told(drives, forward_backward):
    assert not train(forward_backward, drives, forward_only=True)[2]
