# SPDX-License-Identifier: MIT
# tests/python/test_scopes_ranks.py - scopes that are recomputed on one rank, and not on others
# layer: test all
import contextlib
import errno
import json
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

from conftest import started
from offloading import shards
from spillway._recompute import scopes as scopes_module
from spillway._core import torch_compat

pytestmark = [
    pytest.mark.skipif(torch_compat.is_before(scopes_module.OLDEST),
                       reason="this PyTorch cannot recompute"),
    pytest.mark.skipif(not torch.distributed.is_available(),
                       reason="PyTorch is built without torch.distributed")]

RANK = """
import hashlib, json, os, sys
import torch, torch.distributed as dist
from torch import nn
import spillway.torch

rank, meeting, kind, again = int(sys.argv[1]), *sys.argv[2:]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
torch.manual_seed(1)
LATER = []  # not empty: the backward pass is there


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(64), nn.Dropout(0.25)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        if LATER:
            dist.all_reduce(torch.ones(1))
        y = self.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))))
        if kind == "collective":
            dist.all_reduce(torch.ones(1))
        if kind == "neighbour":
            work = [dist.isend(torch.ones(1), 1 - rank), dist.irecv(torch.ones(1), 1 - rank)]
            [each.wait() for each in work]
        return y


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Half(), Half()

    def forward(self, x):
        x = x + self.first(x)
        return x + self.second(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


model, scopes, enter = Model(), None, nn.Linear(64, 64)
if kind.startswith("sharded"):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for layer in model.layers:
        if kind == "sharded parts":
            fully_shard(layer.first, mesh=mesh)
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if kind != "sharded halves":
        scopes = list(model.layers)
    trained = model
else:
    trained = nn.parallel.DistributedDataParallel(model)
off = None
if again != "plain":
    off = spillway.torch.offload(trained, None, mode="budget", budget_bytes=1 << 40,
                                 sizes=spillway.torch.Sizes(min_bytes=1),
                                 recompute="auto", scopes=scopes)
    off._session.discards_all = again == "both" or rank == 0  # whatever a plan says
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
digest = hashlib.sha256()
torch.manual_seed(10 + rank)
raised = None
for step in range(4):
    x = enter(torch.randn(16, 64))
    with off or torch.enable_grad():
        loss = trained(x).square().mean()
        if kind == "later" and step == 2:
            LATER.append(step)
        try:
            loss.backward()
        except spillway.SpillwayError as error:
            raised = [error.errno, str(error)]
            break
    digest.update(loss.item().hex().encode())
    for parameter in model.parameters():
        gradient = parameter.grad
        gradient = gradient.to_local() if hasattr(gradient, "to_local") else gradient
        digest.update(gradient.numpy().tobytes())
    optimizer.step()
    optimizer.zero_grad()
found = {"digest": digest.hexdigest(), "raised": raised}
if off is not None:
    found["again"] = off.stats().scopes_again
    found["refused"] = {off._recomputer.names[module]: why
                        for module, why in off._recomputer.refused.items()}
print(json.dumps(found), flush=True)
if not raised:  # else gradients are no longer averaged: no rank waits for that
    dist.destroy_process_group()
os._exit(0)  # a thread of gloo that still has a tensor aborts the interpreter's end, now and then
"""


def run_ranks(folder, kind, again):
    """What each rank of two found."""
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(started(
            "-c", RANK, rank, folder / f"{kind} {again}", kind, again, stdout=subprocess.PIPE,
            env={"GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(folder)})) for rank in range(2)]
        ended = [(rank.communicate(timeout=240), rank.returncode) for rank in both]
    assert [status for _, status in ended] == [0, 0], ended
    return [json.loads(output.splitlines()[-1]) for (output, _), _ in ended]


def digests(found):
    return [rank["digest"] for rank in found]


@pytest.fixture(scope="module")
def plain():
    """What ranks give without spillway: as copies, or sharded."""
    known = {}

    def of(kind):
        kind = "sharded" if kind.startswith("sharded") else "copies"
        if kind not in known:
            with tempfile.TemporaryDirectory() as folder:
                known[kind] = digests(run_ranks(Path(folder), kind, "plain"))
        return known[kind]

    return of


SHARDED = pytest.mark.skipif(not shards(),
                             reason="this PyTorch has no fully_shard, or only for GPUs: 2.7 has")
REST = pytest.mark.rest


@pytest.mark.parametrize("kind, again, counts", [
    ("copies", "one", [18, 0]),
    pytest.param("copies", "both", [18, 18], marks=REST),
    pytest.param("sharded", "one", [9, 0], marks=SHARDED),
    pytest.param("sharded", "both", [9, 9], marks=[SHARDED, REST]),
    pytest.param("sharded halves", "one", [18, 0], marks=[SHARDED, REST])])
def test_ranks_with_plans_of_their_own(plain, folder, kind, again, counts):
    """One recomputes all in three of four steps, the other nothing, or as well: the same bits as
    without, and neither waits."""
    found = run_ranks(folder, kind, again)
    assert digests(found) == plain(kind)
    assert [rank["again"] for rank in found] == counts, found


@pytest.mark.parametrize("kind, refusals, words", [
    ("collective", 6, "it waits for other ranks (c10d.allreduce_"),
    pytest.param("neighbour", 6, "it waits for other ranks (c10d.", marks=REST),
    pytest.param("sharded parts", 3, "FSDP gathers parts of it one by one",
                 marks=[SHARDED, REST])])
def test_what_waits_for_other_ranks(plain, folder, kind, refusals, words):
    both = run_ranks(folder, kind, "both")
    assert digests(both) == plain(kind)
    for rank in both:
        refused = [why for why in rank["refused"].values()
                   if why != "there are scopes inside of it"]
        assert len(refused) == refusals and all(why.startswith(words) for why in refused)
        assert rank["again"] == 0


def test_what_waits_for_other_ranks_later(folder):
    """Its trial did not show it: the backward pass stops with words, before it waits."""
    for rank in run_ranks(folder, "later", "both"):
        assert rank["again"] > 0
        number, words = rank["raised"]
        assert number == errno.ESTALE and "it waits for other ranks (c10d.allreduce_" in words
