# SPDX-License-Identifier: MIT
# spillway/demo/ending.py - end a program by an exception when a signal asks it to
from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Any, Iterator, List


def ends_at_once(name: str) -> None:
    """Until another handler is set, Ctrl-C ends the program with a message and no traceback. For
    the time while modules are loaded: nothing is open then that must be closed."""

    def end(number: int, _frame: Any) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"{name}: interrupted\n".encode())
        os._exit(128 + number)

    signal.signal(signal.SIGINT, end)


@contextlib.contextmanager
def exits_on(*numbers: int) -> Iterator[None]:
    """In this context these signals raise SystemExit in the main thread. By default they end a
    process at once: the kernel closes its stores, and their status pages stay in /dev/shm until
    the next `spillway top`."""
    asked = []

    def end(number: int, _frame: Any) -> None:
        # Ending takes a moment. A second Ctrl-C ends the process at once; SIGTERM is ignored, as
        # the parent often sends it after Ctrl-C.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        asked.append(number)
        raise SystemExit(128 + number)

    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    except Exception:
        if asked:  # PyTorch turns each exception in a backward pass into a RuntimeError
            raise SystemExit(128 + asked[0]) from None
        raise


@contextlib.contextmanager
def later(*numbers: int) -> Iterator[None]:
    """Delay these signals to the end of this context. For starting a process: a program that is
    interrupted meanwhile would not know of the new process."""
    # signals are handled in the main thread alone
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: List[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: came.append(number))
        for number in numbers
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)
