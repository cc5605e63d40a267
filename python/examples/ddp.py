#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# python/examples/ddp.py - data parallel GPT: every rank has its own text and part of the drives
"""Train copies of the GPT on several processes that share the drives.

  spillway format --partitions 4 --devices /dev/a,/dev/b
  python3 python/examples/ddp.py --ranks 4 --mode spillway --devices /dev/a,/dev/b
"""
import argparse
import signal
import sys
from typing import Any, Dict

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is open yet: no traceback

import torch
from torch.nn.parallel import DistributedDataParallel

from common import open_store, text_of, train
from gpt import GPT, batches
from ranks import main


def run(args: argparse.Namespace, rank: int, world: int) -> Dict[str, Any]:
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(GPT(args))
    source = batches(args, text_of(args), torch.Generator().manual_seed(args.seed + rank))
    with open_store(args, rank) as store:
        return train(args, model, source, store)


if __name__ == "__main__":
    sys.exit(main("ddp", __doc__, run, ranks=2))
