#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/soak/training.py - trains a small GPT for long, and compares losses and gradients
"""Each training has the losses and the gradients of a plain one, bit for bit, or ends with an error
that names a drive."""
import argparse
import contextlib
import gc
import hashlib
import os
import random
import sys

os.environ["OMP_NUM_THREADS"] = "1"
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../python/examples"))

import torch  # noqa: E402

import spillway.torch  # noqa: E402
from common import loss_of  # noqa: E402
from gpt import GPT, batches  # noqa: E402
from spillway.demo.data import tokens_of  # noqa: E402
from worker import serve  # noqa: E402

CONFIG = argparse.Namespace(layers=3, hidden=96, heads=3, sequence=96, batch=2, dropout=0.0,
                            mode="keep")
STEPS = 4
SEEDS = 4
MODES = ({"mode": "spill", "sizes": spillway.torch.Sizes(min_bytes=1)}, {"mode": "fastest"},
         {"mode": "spill", "sizes": spillway.torch.Sizes(staging_bytes=1 << 20)},
         {"mode": "budget", "budget_bytes": 4 << 20,
          "sizes": spillway.torch.Sizes(min_bytes=4096)})
TEXT = tokens_of(random.Random(1).randbytes(1 << 16), 1000)


def train(seed, off_of=None):
    """[loss of each step and a checksum of its gradients]"""
    torch.manual_seed(seed)
    model = GPT(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters())
    source = batches(CONFIG, TEXT, torch.Generator().manual_seed(seed))
    off = off_of(model) if off_of else None
    results = []
    try:
        for _ in range(STEPS):
            inputs, targets = next(source)
            with off or contextlib.nullcontext():
                loss = loss_of(model(*inputs), targets)
                loss.backward()
            digest = hashlib.sha256(b"".join(p.grad.numpy().tobytes() for p in model.parameters()))
            results.append((loss.item().hex(), digest.hexdigest()))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            del loss
        return results, off.stats() if off else None
    finally:
        if off:
            off.close()


def do_round(store, drives, counts):
    seed = random.randrange(SEEDS)
    options = random.choice(MODES)
    try:
        results, stats = train(seed, lambda model: spillway.torch.offload(model, store, **options))
    # PyTorch hands on what its hooks raise as a RuntimeError.
    except (spillway.SpillwayError, RuntimeError) as error:
        counts.error("training", error, drives)
        error.__traceback__ = None
    else:
        counts.add("trainings")
        counts.add("bytes_spilled", stats.bytes_spilled)
        if results != PLAIN[seed]:
            counts.add("differing")
            counts.violation("losses or gradients that differ",
                             f"{options}, seed {seed}: {results}, not {PLAIN[seed]}")
    gc.collect()


if __name__ == "__main__":
    random.seed(int(sys.argv[1]))
    torch.set_num_threads(1)
    PLAIN = [train(seed)[0] for seed in range(SEEDS)]
    serve(do_round, arena_bytes=32 << 20)
