# SPDX-License-Identifier: MIT
# spillway/_recompute/__init__.py - which scopes may be recomputed, and how
