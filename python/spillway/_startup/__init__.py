# SPDX-License-Identifier: MIT
# spillway/_startup/__init__.py - a folder for PYTHONPATH, of `spillway run --deepspeed`
