# SPDX-License-Identifier: MIT
# spillway/bench/__init__.py - the examples as a matrix: python -m spillway.bench
"""What spilling costs and saves: models by modes by batch sizes, the recompute-offload-keep curves,
the time in hooks."""
