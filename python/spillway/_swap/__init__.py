# SPDX-License-Identifier: MIT
# spillway/_swap/__init__.py - DeepSpeed's swap files in a store
