# SPDX-License-Identifier: MIT
# spillway/_gpu/__init__.py - tensors of a GPU: copies, streams, device clock
