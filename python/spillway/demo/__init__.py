# SPDX-License-Identifier: MIT
# spillway/demo/__init__.py - the demonstration: one small GPT trained in three modes
"""Run by scripts/demo.sh (``make demo``): ``train`` trains in one mode and writes JSON, ``report`` compares the
modes."""
