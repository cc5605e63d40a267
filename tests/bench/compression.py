#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/bench/compression.py - how far the records of optimizer state compress without loss
"""Trains the GPT of the examples on this repository's text with AdamW in bfloat16 and float32
masters, and compresses what a record of it holds: masters, both moments, and gradients.

  exponents, entropy   mantissas as they are, signs and exponents at the entropy that they have
                       within their tensor, which no code of single ones falls below
  exponents, zstd      all bits but the exponents as they are, these by zstd at level 1
  byte planes, lz4     first bytes of all values, then second bytes, and so on

A rate counts bytes of the field for a second of CPU time, without the time to split the planes. To
be worth it, a record must shrink by 15 % at 2 GB/s of a core both ways. Writes compression.json."""
import argparse
import ctypes
import ctypes.util
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "python/examples")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import gpt  # noqa: E402
from common import cuts_of, positive  # noqa: E402
from rounds import Rows, shown  # noqa: E402
from spillway.bench import results  # noqa: E402
from spillway.demo.data import text_in, tokens_of  # noqa: E402

RATIO, RATE = 0.85, 2.0
LEVEL = 1
# Fields whose exponents could be coded, and bytes per parameter (docs/STATE.md). The low halves of
# compact masters are as good as random.
RECORDS = (("masters", ("master", "exp_avg", "exp_avg_sq"), 12),
           ("compact masters", ("exp_avg", "exp_avg_sq"), 10.125))
BLOCK = 1 << 20  # what is compressed at once: a chunk of the store


class Coder:
    """A library's compressor of blocks, with the CPU time of both directions."""

    def __init__(self, name):
        library = ctypes.util.find_library(name)
        if library is None:
            raise RuntimeError(f"no lib{name}: install lib{name}1 or lib{name}-1")
        self.library = ctypes.CDLL(library)
        self.is_zstd = name == "zstd"
        if self.is_zstd:
            for call in ("ZSTD_compress", "ZSTD_decompress"):
                getattr(self.library, call).restype = ctypes.c_size_t

    def _pack(self, out, source, length):
        if self.is_zstd:
            return self.library.ZSTD_compress(out, ctypes.c_size_t(len(out)), source,
                                              ctypes.c_size_t(length), LEVEL)
        return self.library.LZ4_compress_default(source, out, length, len(out))

    def _unpack(self, out, source, length):
        if self.is_zstd:
            return self.library.ZSTD_decompress(out, ctypes.c_size_t(len(out)), source,
                                                ctypes.c_size_t(length))
        return self.library.LZ4_decompress_safe(source, out, length, len(out))

    def times(self, data):
        """:return: compressed bytes, seconds to compress, seconds to decompress"""
        packed, unpacked = (ctypes.create_string_buffer(2 * BLOCK + 1024) for _ in range(2))
        total, seconds = 0, [0.0, 0.0]
        for begin in range(0, len(data), BLOCK):
            block = data[begin:begin + BLOCK]
            began = time.process_time()
            length = self._pack(packed, block, len(block))
            between = time.process_time()
            back = self._unpack(unpacked, packed, length)
            seconds[0] += between - began
            seconds[1] += time.process_time() - between
            if back != len(block) or unpacked.raw[:back] != block:
                raise RuntimeError("a block came back with other bytes")
            total += min(length, len(block))  # else it is stored as it is
        return total, *seconds


def exponents_of(values):
    """Of each value, a byte."""
    if values.dtype == torch.bfloat16:
        return ((values.view(torch.int16).numpy().view(np.uint16) >> 7) & 255).astype(np.uint8)
    return ((values.view(torch.int32).numpy().view(np.uint32) >> 23) & 255).astype(np.uint8)


def entropy_bytes(values):
    """Of signs with exponents: second moments have one sign."""
    symbols = exponents_of(values) + 256 * torch.signbit(values).numpy().astype(np.uint16)
    counts = np.bincount(symbols)
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / len(symbols))).sum() / 8)


def bytes_of(values):
    return values.view(torch.uint8).numpy()


def planes_of(values):
    size = values.element_size()
    return bytes_of(values).reshape(-1, size).T.tobytes()


def trained(args):
    """Fields of a record, by name: the values of each parameter."""
    args.heads, args.dropout, args.mode = max(1, args.hidden // 64), 0.0, "keep"
    torch.manual_seed(args.seed)
    model = gpt.GPT(args).bfloat16()
    masters = [param.detach().float().requires_grad_() for param in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=args.rate, foreach=False)
    text = tokens_of(text_in(ROOT), args.sequence + 1)
    cuts = cuts_of(text, args.batch, args.sequence + 1, torch.Generator().manual_seed(args.seed))
    for _, batch in zip(range(args.steps), cuts):
        loss = F.cross_entropy(model(batch[:, :-1]).float().flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        gradients = [param.grad for param in model.parameters()]
        for param, master in zip(model.parameters(), masters):
            master.grad, param.grad = param.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for param, master in zip(model.parameters(), masters):
                param.copy_(master)
    states = [optimizer.state[master] for master in masters]
    return {"master": [master.detach() for master in masters],
            "exp_avg": [state["exp_avg"] for state in states],
            "exp_avg_sq": [state["exp_avg_sq"] for state in states],
            "gradient, bfloat16": gradients}


def measure(rows, name, fields, coders):
    """:return: bytes that its exponents save at best, in each of a parameter's record"""
    fields = [field.flatten() for field in fields]
    values, length = torch.cat(fields), sum(map(len, map(bytes_of, fields)))
    exponents = exponents_of(values)
    rest = length - len(exponents)
    least = rest - len(values) / 8 + sum(map(entropy_bytes, fields))
    rows.note(f"{name}: exponents, entropy: size, of the field's", least / length, "ratio",
              at_most=RATIO)
    for words, kept, data, coder in (("exponents", rest, exponents.tobytes(), "zstd"),
                                     ("byte planes", 0, planes_of(values), "lz4")):
        packed, there, back = coders[coder].times(data)
        what = f"{name}: {words}, {coder}"
        rows.note(f"{what}: size, of the field's", (kept + packed) / length, "ratio",
                  at_most=RATIO)
        rows.note(f"{what}: compressed", length / there / 1e9, "GB/s", at_least=RATE)
        rows.note(f"{what}: decompressed", length / back / 1e9, "GB/s", at_least=RATE)
    return (length - least) / len(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 4), ("hidden", 256), ("sequence", 128), ("batch", 8),
                          ("steps", 300), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=positive, default=default, help=f"({default})")
    parser.add_argument("--rate", type=float, default=1e-3, help="of learning (0.001)")
    parser.add_argument("--out", default=".", help="folder for compression.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows, shown_rows = Rows(), []
    title = (f"Compressing optimizer state: AdamW, a GPT of {args.layers} layers, hidden "
             f"{args.hidden}, after {args.steps} steps")
    with shown("compression", shown_rows):
        coders = {name: Coder(name) for name in ("zstd", "lz4")}
        for args.seed in range(args.rounds):
            saved = {name: measure(rows, name, fields, coders)
                     for name, fields in trained(args).items()}
            for words, names, size in RECORDS:
                rows.note(f"record with {words}: exponents, entropy: size, of the record's",
                          1 - sum(map(saved.get, names)) / size, "ratio", at_most=RATIO)
            print(f"{args.seed + 1}/{args.rounds}", file=sys.stderr)
            shown_rows[:] = rows.all()
            results.write(Path(args.out, "compression.json"), title, shown_rows, results.machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
