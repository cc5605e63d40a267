# SPDX-License-Identifier: MIT
# tests/ecosystem/test_optimizers.py - classes of optimizers of other packages, on drives
"""Each class steps the same model twice, by itself and with its state on drives: the same bits,
also after a commit was resumed; or it is refused before the first step, and says why."""
import copy

import pytest
import torch
from torch import nn

import spillway
import spillway.torch

schedulefree = pytest.importorskip("schedulefree")
pytorch_optimizer = pytest.importorskip("pytorch_optimizer")

STEPS, BEFORE = 12, 7  # these many are made before the commit that is resumed
# What they do to an element follows from that alone, or from its parameter.
SAME = ["ADOPT", "AdaBelief", "AdEMAMix", "Adan", "CAME", "Lion", "QHAdam", "StableAdamW", "Tiger",
        "AggMo", "Lamb", "SOAP", "ScheduleFreeAdamW"]
REFUSED = ["DAdaptAdam", "Prodigy"]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(40, 24)
        self.first, self.second = nn.Linear(24, 48), nn.Linear(48, 24)
        self.norm, self.last = nn.LayerNorm(24), nn.Linear(24, 40, bias=False)

    def forward(self, tokens, without_norm):
        hidden = self.words(tokens)
        hidden = hidden + self.second(self.first(hidden).tanh())
        hidden = hidden if without_norm else self.norm(hidden)
        return nn.functional.cross_entropy(self.last(hidden).flatten(0, 1), tokens.flatten())


def stepped(model, optimizer, step):
    """Once, with another rate than before."""
    for group in optimizer.param_groups:
        group["lr"] *= 0.97
    torch.manual_seed(step)
    model(torch.randint(40, (4, 16)), step == 3).backward()
    optimizer.step()
    optimizer.zero_grad()


def loops_of(optimizer):
    for group in optimizer.param_groups:
        if "foreach" in group:
            group["foreach"] = False
    return optimizer


def same(ours, theirs):
    return all(map(torch.equal, ours.parameters(), theirs.parameters()))


def on_drives(cls, model, store):
    return spillway.torch.Optimizer(cls, model.named_parameters(), store, tile=500, lr=1e-2)


def compared(cls, drives):
    torch.manual_seed(0)
    ours = Model()
    theirs = copy.deepcopy(ours)
    plain = loops_of(cls(theirs.parameters(), lr=1e-2))
    for begin, end in ((0, BEFORE), (BEFORE, STEPS)):
        with spillway.Store(drives) as store:
            if begin:
                ours = Model()
            optimizer = on_drives(cls, ours, store)
            assert (optimizer.resume() is not None) == (begin > 0)
            for each in (optimizer, plain) if hasattr(plain, "train") else ():
                each.train()
            assert same(ours, theirs)
            for step in range(begin, end):
                for model, each in ((ours, optimizer), (theirs, plain)):
                    stepped(model, each, step)
                assert same(ours, theirs), step
            for each in (optimizer, plain) if hasattr(plain, "eval") else ():
                each.eval()
            assert same(ours, theirs)
            optimizer.commit()


@pytest.mark.parametrize("name", SAME)
def test_classes_of_pytorch_optimizer(drives, name):
    compared(getattr(pytorch_optimizer, name), drives)


@pytest.mark.parametrize("name", ["AdamWScheduleFree", "RAdamScheduleFree", "SGDScheduleFree"])
def test_classes_of_schedulefree(drives, name):
    compared(getattr(schedulefree, name), drives)


@pytest.mark.parametrize("name", REFUSED)
def test_classes_that_need_all_parameters_at_once_are_refused(drives, name):
    cls = getattr(pytorch_optimizer, name)
    words = f"^{name} cannot have its state on drives: it changes its param_groups as it steps"
    with spillway.Store(drives) as store, pytest.raises(TypeError, match=words):
        on_drives(cls, Model(), store)
