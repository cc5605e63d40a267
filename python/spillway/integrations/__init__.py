# SPDX-License-Identifier: MIT
# spillway/integrations/__init__.py - where trainers of other packages call spillway
"""One module for each package, which it imports: ``spillway.integrations.transformers``,
``.lightning``, ``.torchtune``, ``.axolotl``, ``.llamafactory``. A loop of one's own needs none:
``spillway.torch.offload``."""
