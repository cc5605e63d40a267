# SPDX-License-Identifier: MIT
# spillway/__init__.py - the Python package
"""spillway: a raw-block activation store.

``Store`` keeps objects on raw drives; ``spillway.torch.offload`` (import ``spillway.torch``) spills
what autograd saves for the backward pass onto one and brings it back in time.
"""
from ._core.library import VERSION as __version__
from ._core.library import SpillwayError
from .cache import Cache, CacheStats
from .store import (CommitInfo, DriveStats, ProbeInfo, Store, StoreInfo, StorePressure, StoreStats,
                    check_store, committed, format_store, probe, wipe_store)
from .wear import Wear, wear_of

__all__ = [
    "Cache", "CacheStats", "CommitInfo", "DriveStats", "ProbeInfo", "SpillwayError", "Store",
    "StoreInfo", "StorePressure", "StoreStats", "Wear", "__version__", "check_store", "committed",
    "format_store", "probe", "wear_of", "wipe_store"
]
