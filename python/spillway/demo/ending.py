# SPDX-License-Identifier: MIT
# spillway/demo/ending.py - a program that is asked to end does so by an exception: what is open is closed
from __future__ import annotations

import contextlib
import signal
from typing import Any, Iterator


@contextlib.contextmanager
def exits_on(*numbers: int) -> Iterator[None]:
    """By default these signals end a process at once: its stores are then closed by the kernel, and the pages in which they tell
    about themselves stay in /dev/shm until somebody looks. Here they raise SystemExit, in the main thread."""
    asked = []

    def end(number: int, _frame: Any) -> None:
        # It takes a moment. Another Ctrl-C ends it at once; SIGTERM often comes after one, from the parent.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        asked.append(number)
        raise SystemExit(128 + number)

    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    except Exception:
        if asked:  # out of a backward pass PyTorch hands on every exception as a RuntimeError
            raise SystemExit(128 + asked[0]) from None
        raise
