# SPDX-License-Identifier: MIT
# spillway/_offload/__init__.py - saved tensors of a training step
