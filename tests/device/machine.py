# SPDX-License-Identifier: MIT
# tests/device/machine.py - the devices that the tests run on: SPW_TEST_DEVICE=late or gpu
import importlib
import os

machine = importlib.import_module(os.environ.get("SPW_TEST_DEVICE", "late")).Machine()
