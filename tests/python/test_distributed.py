# SPDX-License-Identifier: MIT
# tests/python/test_distributed.py - ranks that share drives, a pipeline, DeepSpeed and Megatron
# layer: test all
import contextlib
import itertools
import json
import logging
import subprocess
import tempfile

import pytest
import torch
from torch import nn

import spillway
import spillway.schedules
import spillway.torch
from conftest import EXAMPLES, run_python, started, tiny
from offloading import Layers, equal, gradients_of, left_in, offload_each, shards
from spillway.schedules import one_f_one_b

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


@pytest.fixture
def run_ranks(monkeypatch):
    """What each rank of an example measured."""
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def run(example, ranks, **options):
        with tempfile.TemporaryDirectory() as folder:  # for what PyTorch's processes leave behind
            words = tiny(layers=4, micro_batches=4, ranks=ranks, json="-", **options)
            done = run_python(EXAMPLES / example, "--gradients", *words, env={"TMPDIR": folder})
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["ranks"]

    return run


@pytest.mark.skipif(not torch.distributed.is_available(),
                    reason="PyTorch is built without torch.distributed")
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.rest)])
@pytest.mark.parametrize("example", ["ddp.py", "pipeline.py"])
def test_ranks_share_the_drives_and_train_to_the_same_bits(run_ranks, drives, example, ranks):
    spillway.format_store(drives, partitions=ranks)
    keep = run_ranks(example, ranks)
    spilled = run_ranks(example, ranks, mode="spillway", devices=drives)
    for plain, mine in zip(keep, spilled):
        assert mine["losses_hex"] == plain["losses_hex"]
        assert mine["gradients_sha256"] == plain["gradients_sha256"]
        assert mine["bytes_spilled"] + mine["bytes_forwarded"] > 0
        assert mine["cache"]["steps"] == 3
    assert spillway.check_store(drives).partitions_in_use == 0


def test_a_rank_without_a_partition_is_told(run_ranks, formatted):
    with pytest.raises(AssertionError, match=r"(?s)ddp: rank 1: [^\n]*partition.*ddp: "):
        run_ranks("ddp.py", 2, mode="spillway", devices=formatted)


# ---- 1F1B ----------------------------------------------------------------------------------------


def test_one_f_one_b():
    F, B = "forward", "backward"
    assert one_f_one_b(0, 2, 3) == [(0, F), (1, F), (0, B), (2, F), (1, B), (2, B)]
    assert one_f_one_b(1, 2, 3) == [(0, F), (0, B), (1, F), (1, B), (2, F), (2, B)]
    assert one_f_one_b(0, 4, 2) == [(0, F), (1, F), (0, B), (1, B)]


@pytest.mark.parametrize("stages", range(1, 6))
@pytest.mark.parametrize("micro_batches", range(1, 8))
def test_one_f_one_b_is_complete(stages, micro_batches):
    for stage in range(stages):
        order = one_f_one_b(stage, stages, micro_batches)
        assert sorted(order) == sorted(
            (i, phase) for i in range(micro_batches) for phase in ("forward", "backward"))
        assert all(order.index((i, "forward")) < order.index((i, "backward"))
                   for i in range(micro_batches))
        held = itertools.accumulate(1 if phase == "forward" else -1 for _, phase in order)
        assert max(held) <= stages - stage


@pytest.mark.parametrize("place", [(2, 2, 4), (-1, 2, 4), (0, 2, 0)])
def test_one_f_one_b_of_nothing(place):
    with pytest.raises(ValueError, match="cannot be scheduled"):
        one_f_one_b(*place)


# ---- Stand-ins with the interfaces of the schedulers ---------------------------------------------


def model_of():
    torch.manual_seed(1)
    return Layers(3, 128)


def batch_of(number):
    return torch.randn(64, 128, generator=torch.Generator().manual_seed(number))


class Listening:
    """Notes what an offload is told, on its way."""

    def __init__(self, off, monkeypatch):
        self.told = []
        stage, step = off.stage, off.step
        monkeypatch.setattr(off, "stage", lambda *here, next=None: (
            self.told.append((*here, next)), stage(*here, next=next)))
        monkeypatch.setattr(off, "step", lambda: self.told.append("step") or step())


def expected_of(order):
    return ["step"] + [(*here, then) for here, then in zip(order, [*order[1:], None])]


class PipeInstruction:
    """As in deepspeed.runtime.pipe.schedule: by name, with keyword arguments."""

    def __init__(self, **kwargs):
        self.name, self.kwargs = type(self).__name__, kwargs


LoadMicroBatch, ForwardPass, BackwardPass, OptimizerStep = (
    type(name, (PipeInstruction,), {})
    for name in ("LoadMicroBatch", "ForwardPass", "BackwardPass", "OptimizerStep"))


class PipeSchedule:
    """Iterating gives a list of instructions per step."""

    def __init__(self, micro_batches, stages, stage_id, train=True):
        self.order = [here for here in one_f_one_b(stage_id, stages, micro_batches)
                      if train or here[1] == "forward"]
        self.buffers = min(stages - stage_id, micro_batches)

    def num_pipe_buffers(self):
        return self.buffers

    def __iter__(self):
        for number, phase in self.order:
            buffer = number % self.buffers
            if phase == "forward":
                yield [LoadMicroBatch(buffer_id=buffer), ForwardPass(buffer_id=buffer)]
            else:
                yield [BackwardPass(buffer_id=buffer)]
        yield [OptimizerStep()]


class PipelineEngine:
    """As deepspeed.runtime.pipe.engine.PipelineEngine executes a schedule."""

    def __init__(self, model):
        self.module = model
        self.pipe_buffers = {}

    def _exec_load_micro_batch(self, buffer_id):
        self.pipe_buffers[buffer_id] = batch_of(self.loaded)
        self.loaded += 1

    def _exec_forward_pass(self, buffer_id):
        self.pipe_buffers[buffer_id] = self.module(self.pipe_buffers[buffer_id]).pow(2).sum()

    def _exec_backward_pass(self, buffer_id):
        self.pipe_buffers.pop(buffer_id).backward()

    def _exec_optimizer_step(self):
        pass

    _INSTRUCTION_MAP = {LoadMicroBatch: _exec_load_micro_batch, ForwardPass: _exec_forward_pass,
                        BackwardPass: _exec_backward_pass, OptimizerStep: _exec_optimizer_step}

    def _exec_schedule(self, pipe_schedule):
        self.loaded = 0
        self.num_buffers = pipe_schedule.num_pipe_buffers()
        for step_cmds in pipe_schedule:
            for cmd in step_cmds:
                self._INSTRUCTION_MAP[type(cmd)](self, **cmd.kwargs)

    def train_batch(self):
        self._exec_schedule(PipeSchedule(6, 3, 0))

    def eval_batch(self):
        with torch.no_grad():
            self._exec_schedule(PipeSchedule(6, 3, 0, train=False))


def test_deepspeed(store, monkeypatch):
    plain = PipelineEngine(model_of())
    plain.train_batch()
    engine = PipelineEngine(model_of())
    off = offload_each(store, engine.module)
    heard = Listening(off, monkeypatch)
    detach = spillway.schedules.attach_deepspeed(engine, off)
    with off:
        engine.train_batch()
    assert heard.told == expected_of(one_f_one_b(0, 3, 6))
    assert equal(gradients_of(plain.module), gradients_of(engine.module))
    assert off.stats().steps == 1
    heard.told.clear()
    with off:
        engine.eval_batch()
        assert heard.told == []
        detach()
        detach()
        engine.train_batch()
    assert heard.told == []
    engine.pipe_buffers.clear()
    assert left_in(off) == (0, 0, 0)


@pytest.mark.parametrize("strange", [[[ForwardPass(chunk=0)], [BackwardPass(chunk=0)]],
                                     [[BackwardPass(buffer_id=0)]]],
                         ids=["named otherwise", "nothing in the buffer"])
def test_a_schedule_of_deepspeed_that_is_not_known(store, monkeypatch, caplog, strange):
    """It is executed as without spillway."""
    class Engine:
        def _exec_schedule(self, pipe_schedule):
            self.executed = [list(commands) for commands in pipe_schedule]

    engine, off = Engine(), spillway.torch.offload(model_of(), store)
    heard = Listening(off, monkeypatch)
    spillway.schedules.attach_deepspeed(engine, off)
    with caplog.at_level(logging.WARNING, "spillway"):
        engine._exec_schedule(strange)
    assert engine.executed == strange and heard.told == []
    assert "its passes are not told" in caplog.text


def test_deepspeed_of_another_kind(store):
    with pytest.raises(TypeError, match=r"Layers has no _exec_schedule\(\)"):
        spillway.schedules.attach_deepspeed(model_of(), spillway.torch.offload(model_of(), store))


def forward_backward(order):
    """As megatron.core.pipeline_parallel.schedules: a function with their arguments that runs
    passes in this order."""

    def func(*, forward_step_func, data_iterator, model, num_microbatches, seq_length,
             micro_batch_size, decoder_seq_length=None, forward_only=False,
             collect_non_loss_data=False, first_val_step=None):
        held, losses = {}, []
        for number, phase in order(num_microbatches):
            if phase == "forward":
                output, loss_func = forward_step_func(data_iterator, model)
                loss, reduced = loss_func(output)
                losses.append(reduced)
                held[number] = loss / num_microbatches
            elif not forward_only:
                held.pop(number).backward()
        return losses

    return func


def forward_step(data_iterator, model):
    def loss_func(output):
        return output.pow(2).sum(), output.detach().sum().item()

    return model(next(data_iterator)), loss_func


@pytest.mark.parametrize("rank, size", [(0, 1), (0, 3), (2, 3)])
def test_megatron(store, monkeypatch, rank, size):
    def run(func, model, forward_only=False):
        return func(forward_step_func=forward_step, data_iterator=map(batch_of, range(5)),
                    model=model, num_microbatches=5, seq_length=128, micro_batch_size=64,
                    forward_only=forward_only)

    func = forward_backward(lambda count: one_f_one_b(rank, size, count))
    plain, model = model_of(), model_of()
    expected = run(func, plain)
    off = offload_each(store, model)
    heard = Listening(off, monkeypatch)
    wrapped = spillway.schedules.wrap_megatron(func, off, rank, size)
    with off:
        assert run(wrapped, model) == expected
    assert heard.told == expected_of(one_f_one_b(rank, size, 5))
    assert equal(gradients_of(plain), gradients_of(model))
    heard.told.clear()
    with off, torch.no_grad():
        run(wrapped, model, forward_only=True)
    assert heard.told == []
    assert left_in(off) == (0, 0, 0)


def test_megatron_interleaved(store, monkeypatch):
    """Two chunks of the model on this rank: each pair of micro-batch and chunk has a number; the
    schedule does not tell what is next."""
    chunks = [model_of(), model_of()]
    whole = nn.ModuleList(chunks)

    def func(*, forward_step_func, data_iterator, model, num_microbatches, **_):
        losses = [forward_step_func(data_iterator, chunk)[0].sum()
                  for chunk in model for _ in range(num_microbatches)]
        for loss in reversed(losses):
            loss.backward()

    off = offload_each(store, whole)
    heard = Listening(off, monkeypatch)
    with off:
        wrapped = spillway.schedules.wrap_megatron(func, off, 0, 2)
        wrapped(forward_step_func=forward_step, data_iterator=map(batch_of, range(4)),
                model=chunks, num_microbatches=2)
    forward = [(number, "forward", None) for number in range(4)]
    backward = [(number, "backward", None) for number in (3, 2, 1, 0)]
    assert heard.told == ["step", *forward, *backward]


# ---- Parameters that are there only while they are used ------------------------------------------

SHARDED = """
import hashlib, json, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import spillway.torch

rank, meeting, drives, weights, min_bytes = sys.argv[1:]
rank, frozen, min_bytes = int(rank), weights == "frozen", int(min_bytes)
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
torch.manual_seed(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)
        self.up.weight.requires_grad_(not frozen)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


model = nn.Sequential(*(Block() for _ in range(4)))
mesh = init_device_mesh("cpu", (2,))
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
off = None
if drives:
    off = spillway.torch.offload(model, drives.split(","), rank=rank,
                                 sizes=spillway.torch.Sizes(min_bytes=min_bytes),
                                 mode="spill")
digest = hashlib.sha256()
torch.manual_seed(10 + rank)
for _ in range(4):
    x = torch.randn(64, 128)
    if off is None:
        model(x).pow(2).mean().backward()
    else:
        with off:
            model(x).pow(2).mean().backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            digest.update(parameter.grad.to_local().numpy().tobytes())
    model.zero_grad()
spilled = 0
if off is not None:
    spilled = off.stats().bytes_spilled + off.stats().bytes_forwarded
    off.close()
print(json.dumps({"gradients": digest.hexdigest(), "spilled": spilled}))
dist.destroy_process_group()
"""


@pytest.mark.skipif(not shards(),
                    reason="this PyTorch has no fully_shard, or only for GPUs: 2.7 has")
@pytest.mark.parametrize("weights", ["trained", "frozen"])
def test_parameters_that_are_sharded(drives, folder, weights):
    """174960: FSDP2 gathers them for a layer at a time, and takes the memory away again: views of
    them, which operations save, must not be written meanwhile. A weight has 256 KiB, an activation
    at most 128."""
    spillway.format_store(drives, partitions=2)

    def run(name, paths, min_bytes=1):
        with contextlib.ExitStack() as stack:
            ranks = [stack.enter_context(started(
                "-c", SHARDED, rank, folder / name, paths, weights, min_bytes,
                stdout=subprocess.PIPE,
                env={"GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(folder)})) for rank in range(2)]
            ended = [(rank.communicate(timeout=120), rank.returncode) for rank in ranks]
        # PyTorch alone has been seen to abort at its end, with all of its output written.
        assert not paths or [status for _, status in ended] == [0, 0], ended
        return [json.loads(output) for (output, _), _ in ended]

    plain, spilled = run("plain", ""), run("spilled", ",".join(drives))
    weights_only = run("weights", ",".join(drives), 200 << 10)
    for with_drives in (spilled, weights_only):
        assert [r["gradients"] for r in with_drives] == [r["gradients"] for r in plain]
    assert all(rank["spilled"] > 0 for rank in spilled)
    assert [rank["spilled"] for rank in weights_only] == [0, 0]
