#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# tests/device/on_late.py - a program that names the late device: on_late.py PROGRAM [ARGUMENT...]
"""The module that late.cpp was compiled to, and this folder, are on sys.path (device.sh --late)."""

import runpy
import sys

import late
from spillway._gpu import accelerator

if __name__ == "__main__":
    accelerator.table_of = lambda kind: late.Table(notifies=True)
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
