# SPDX-License-Identifier: MIT
# spillway/_grads/__init__.py - gradients used, freed or moved to drives during the backward pass
