# SPDX-License-Identifier: MIT
# spillway/_grads/__init__.py - gradients in the backward pass
