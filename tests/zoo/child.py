#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/zoo/child.py - trains one model in each of the modes named and compares it to plain PyTorch
"""  child.py MODEL MODE...        in an empty folder of its own

A line of JSON per mode says what came of it (see Rows). "plain" trains the model a second time
without spillway: one that does not repeat itself shows nothing."""
import contextlib
import gc
import hashlib
import io
import json
import logging
import os
import random
import re
import sys
import traceback
import warnings

import models
import numpy
import torch

import spillway
import spillway.torch
from spillway._recompute import operations

STEPS = 8
DRIVES = ["drive0", "drive1"]
DRIVE_BYTES = 512 << 20
BUDGET_OF_PLAIN = 0.4
OPTIONS = {
    "plain": None,
    "observe": {"mode": "observe"},
    "spill": {"mode": "spill"},
    "fastest": {"mode": "fastest"},
    "budget": {"mode": "budget"},
    "budget, recompute": {"mode": "budget", "recompute": "auto"},
    "operations": {"mode": "fastest", "recompute": "operations"},
}
PLANNED_FROM = 3  # the first step by a plan, from 0


class Log(logging.Handler):
    """What spillway says at INFO and above."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.lines = []
        logger = logging.getLogger("spillway")
        logger.handlers, logger.propagate = [self], False
        logger.setLevel(logging.INFO)

    def emit(self, record):
        self.lines.append(f"{record.levelname}: {record.getMessage()}")


def digest(tensor):
    """Of type, shape and bytes; NaN payloads and the sign of zero included."""
    tensor = tensor.detach()
    if tensor.is_sparse:
        tensor = tensor.coalesce()
        return digest(tensor.indices()) + digest(tensor.values())
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    kind = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    return hashlib.blake2b(data, digest_size=8, key=kind[:64]).hexdigest()


def seed(number):
    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)


def generators():
    """Their states: what was drawn for nothing changes what comes after."""
    return {"random": digest_of_text(random.getstate()),
            "numpy.random": digest_of_text(numpy.random.get_state()),
            "torch's generator": digest(torch.get_rng_state())}


def digest_of_text(state):
    return hashlib.blake2b(repr(state).encode(), digest_size=8).hexdigest()


def train(entry, off_of=lambda _model: None, after_step=lambda _off: None):
    """(digests: of each step and of the end, by name; the offload or None)"""
    seed(1)
    model = entry.build().train()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], 1e-3)
    off, batches, digests = off_of(model), torch.Generator().manual_seed(2), []
    for _ in range(STEPS):
        with off or contextlib.nullcontext():
            loss = entry.loss(model, batches)
            if not torch.isfinite(loss):
                raise ArithmeticError(f"a loss of {loss.item()}")
            loss.backward()
        digests.append({"the loss": digest(loss), **{
            f"the gradient of {name}": digest(parameter.grad)
            for name, parameter in model.named_parameters() if parameter.grad is not None}})
        del loss
        optimizer.step()
        optimizer.zero_grad()
        after_step(off)
    digests.append({**generators(), **{name: digest(tensor)
                                       for name, tensor in model.state_dict().items()}})
    return digests, off


def first_difference(plain, got):
    """In words; None: there is none."""
    for step, (these, those) in enumerate(zip(plain, got), 1):
        names = [name for name in [*these, *those] if these.get(name) != those.get(name)]
        if names:
            where = f"in step {step}" if step <= STEPS else "in the end"
            others = len(set(names)) - 1
            return f"{where} {names[0]} differs" + (f", and {others} others" if others else "")
    return None


def files():
    return {os.path.join(folder, name): os.stat(os.path.join(folder, name)).st_size
            for folder, _, names in os.walk(".") for name in names}


def problems_of(stats, options, peaks, largest, said):
    """What is not as promised, of numbers that are right."""
    if stats.steps != STEPS:
        yield f"{stats.steps} steps were seen of {STEPS}"
    if options["mode"] == "spill" and not stats.tensors_spilled:
        yield "nothing was spilled"
    budget = options.get("budget_bytes")
    over = [peak for peak in peaks[PLANNED_FROM:] if budget and peak > budget + largest]
    if over and not re.search(r"(?i)budget.*(cannot|not|exceed|above|over|more than|late|slower)",
                              said):
        yield (f"in {len(over)} of {STEPS - PLANNED_FROM} steps by plan, up to {max(over)} bytes "
               f"where {budget} are the budget and {largest} the largest tensor; nothing is said")


class Rows:
    """Trains in one mode after another."""

    def __init__(self, entry):
        self.entry = entry
        self.log = Log()
        self.plain, _ = train(entry)
        self.peak, self.largest = self.observed()
        self.files = files()

    def observed(self):
        """What plain training holds at most; the largest tensor that autograd saves, by hooks that
        change nothing."""
        sizes = [0]

        def pack(tensor):
            if tensor.layout is torch.strided:
                sizes.append(tensor.untyped_storage().nbytes())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            train(self.entry)
        _, off = train(self.entry, lambda model: spillway.torch.offload(
            model, None, mode="observe", sizes=spillway.torch.Sizes(min_bytes=0)))
        with contextlib.closing(off):
            return off.stats().activation_bytes_max, max(sizes)

    def row_of(self, mode):
        options = OPTIONS[mode]
        if options is None:
            got, _ = train(self.entry)
            why = first_difference(self.plain, got)
            return {"problems": [f"it does not repeat itself: {why}"] if why else []}
        operations.SLACK = float("inf")  # all that can be, however busy the machine is
        options = {"sizes": spillway.torch.Sizes(min_bytes=0), **options}
        if options["mode"] == "budget":
            options["budget_bytes"] = max(1, int(self.peak * BUDGET_OF_PLAIN))
        return self.trained(options)

    def trained(self, options):
        self.log.lines.clear()
        peaks = []

        def after_step(off):
            peaks.append(off.activation_peak_bytes)
            off.reset_peak()

        with spillway.Store(DRIVES) as store:
            got, off = train(self.entry, lambda model: spillway.torch.offload(
                model, store, **options), after_step)
            stats = off.stats()
            report = io.StringIO()
            off.report(report)
            off.close()
        said = "\n".join(line for line in [*self.log.lines, *report.getvalue().splitlines()]
                         if re.match("WARNING|ERROR|hint", line))
        why = first_difference(self.plain, got)
        problems = [why] if why else []
        problems += problems_of(stats, options, peaks, self.largest, said)
        problems += [f"{path} was written" for path, size in files().items()
                     if self.files.get(path) != size]
        return {"problems": problems, "peak_plain": self.peak, "peaks": peaks,
                "budget": options.get("budget_bytes"), "largest": self.largest, "said": said,
                "bytes_spilled": stats.bytes_spilled, "tensors_spilled": stats.tensors_spilled,
                "scopes_again": stats.scopes_again, "tensors_given_up": stats.tensors_given_up,
                "steps": stats.steps}


def say(**what):
    os.write(OUT, (json.dumps(what) + "\n").encode())


def main():
    name, modes = sys.argv[1], sys.argv[2:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for path in DRIVES:
        with open(path, "wb") as file:
            file.truncate(DRIVE_BYTES)
    spillway.format_store(DRIVES)
    models.load_torchvision()
    rows = Rows(next(entry for entry in models.MODELS if entry.name == name))
    for mode in modes:
        try:
            row = rows.row_of(mode)
        except Exception as error:
            traceback.print_exc()
            row = {"problems": [f"{type(error).__name__}: {error}"]}
        gc.collect()
        say(mode=mode, **row)


if __name__ == "__main__":
    # What packages print goes where this program's errors do.
    OUT = os.dup(1)
    os.dup2(2, 1)
    main()
