# SPDX-License-Identifier: MIT
# tests/check/refused.py - what the types of the package refuse: mypy says so where a line passes
"""Never run: mypy alone reads it, by scripts/check.sh types."""
from typing import Any

import spillway
import spillway.torch


def right(model: Any, store: spillway.Store, off: spillway.torch.Offload) -> None:
    spillway.format_store(["/dev/null"], chunk_bytes="1MiB")
    spillway.Store(["/dev/null"], backend="io_uring", stripe="pull", arena_bytes="64MiB")
    spillway.Store(["/dev/null"], commit="newest")
    spillway.torch.offload(model, store, mode="budget", budget_bytes="4GB",
                           sizes=spillway.torch.Sizes(min_bytes="1MiB"))
    spillway.torch.offload(model, store, sizes=spillway.torch.Sizes(staging_bytes=1 << 30))
    off.stage(0, "forward", next=(0, "backward"))


def wrong(model: Any, store: spillway.Store, off: spillway.torch.Offload) -> None:
    spillway.torch.offload(model, store, mode="fatsest")  # type: ignore[arg-type]
    spillway.torch.Sizes(min_bytes=0.5)  # type: ignore[arg-type]
    spillway.torch.Sizes(max_bytes=1)  # type: ignore[call-arg]
    spillway.torch.offload(model, store, sizes="4GB")  # type: ignore[arg-type]
    spillway.Store(["/dev/null"], backend="iouring")  # type: ignore[arg-type]
    spillway.Store(["/dev/null"], stripe="raid0")  # type: ignore[arg-type]
    spillway.Store(["/dev/null"], commit="latest")  # type: ignore[arg-type]
    spillway.Store(["/dev/null"], arena_bytes=1e9)  # type: ignore[arg-type]
    off.stage(0, "fwd")  # type: ignore[arg-type]
    off.stage(0, "forward", next=(0, "bwd"))  # type: ignore[arg-type]
