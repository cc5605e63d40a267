# SPDX-License-Identifier: MIT
# spillway/demo/__init__.py - the demonstration: one small GPT trained in three modes
"""scripts/demo.sh (``make demo``) trains python/examples/gpt.py in each mode; ``report`` compares
what it wrote. The rest is what the examples and the bench share."""
