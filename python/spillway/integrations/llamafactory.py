# SPDX-License-Identifier: MIT
# spillway/integrations/llamafactory.py - LLaMA-Factory with the callback that files cannot name
"""
  python3 -m spillway.integrations.llamafactory train.yaml

instead of ``llamafactory-cli train train.yaml``, and in train.yaml, among the rest:

  spillway:
    devices: [/dev/nvme1n1, /dev/nvme2n1]

What follows the file replaces settings, as there: ``spillway.mode=spill``. On several devices
``torchrun --nproc-per-node 8 -m spillway.integrations.llamafactory train.yaml``.
"""
from __future__ import annotations

import os
import sys
from typing import Any, Dict, Tuple

from llamafactory.extras.misc import get_device_count, is_env_enabled
from llamafactory.hparams import read_args
from llamafactory.train.tuner import run_exp

from .. import SpillwayError
from ._block import callback_of, trained
from .transformers import SpillwayCallback

__all__ = ["main", "run"]


def _refuse(config: Dict[str, Any]) -> None:
    """Trainers that do not call back before a step would spill nothing, and not say so."""
    if config.get("stage") == "ppo":
        raise ValueError("spillway: stage ppo has a trainer that does not call back before its "
                         "steps and is not supported")
    for key in ("use_ray", "use_hyper_parallel", "use_mca"):
        if config.get(key):
            raise ValueError(f"spillway: {key} has a trainer of its own and is not supported")
    for name in ("USE_V1", "USE_MCA", "USE_RAY"):
        if is_env_enabled(name):
            raise ValueError(f"spillway: {name} has a trainer of its own and is not supported")
    if config.get("use_unsloth_gc"):
        raise ValueError("spillway: use_unsloth_gc copies to host memory what spillway would "
                         "spill: remove one of the two")
    if get_device_count() > 1 and "LOCAL_RANK" not in os.environ:
        raise ValueError("spillway: on several devices: torchrun --nproc-per-node "
                         f"{get_device_count()} -m spillway.integrations.llamafactory ...")


def _separate(config: Any) -> Tuple[Dict[str, Any], Any]:
    """(LLaMA-Factory's settings, the block)"""
    if not isinstance(config, dict):
        raise ValueError("spillway: name a file, .yaml or .json")
    if config.get("spillway") is None:
        raise ValueError("spillway: there is no block `spillway:` with devices: [...]")
    return {key: value for key, value in config.items() if key != "spillway"}, config["spillway"]


def _prepared(config: Any) -> Tuple[Dict[str, Any], SpillwayCallback]:
    settings, block = _separate(config)
    callback = callback_of(block)
    _refuse(settings)
    return settings, callback


def _train(settings: Dict[str, Any], callback: SpillwayCallback) -> None:
    try:
        run_exp(settings, callbacks=[callback])
    finally:
        callback.end()
    if settings.get("do_train"):
        trained(callback, "llamafactory")


def run(config: Dict[str, Any]) -> SpillwayCallback:
    """Train by LLaMA-Factory's settings and a block of spillway's.

    :returns: the callback, of which off.report() says what it did
    :raises ValueError: before anything is loaded: no block, an unknown key in it, a trainer that
        does not call back
    :raises SpillwayError: when the training begins: no store on the drives, in use
    """
    settings, callback = _prepared(config)
    _train(settings, callback)
    return callback


def main() -> int:
    """By the command line: 0, or 1 and why it does not train."""
    try:
        settings, callback = _prepared(read_args())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        _train(settings, callback)
    except SpillwayError as error:
        print(f"spillway: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
