# SPDX-License-Identifier: MIT
# spillway/_core/__init__.py - the C library, PyTorch versions, tensors and scopes, for every room
