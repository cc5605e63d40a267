# SPDX-License-Identifier: MIT
# spillway/demo/ending.py - a program that is asked to end does so by an exception
from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Any, Iterator, List


def ends_at_once(name: str) -> None:
    """Until there is another handler, Ctrl-C ends the program with a line and without a traceback:
    while its modules are loaded nothing is open that would have to be closed."""

    def end(number: int, _frame: Any) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"{name}: interrupted\n".encode())
        os._exit(128 + number)

    signal.signal(signal.SIGINT, end)


@contextlib.contextmanager
def exits_on(*numbers: int) -> Iterator[None]:
    """By default these signals end a process at once: its stores are then closed by the kernel, and
    their status pages stay in /dev/shm until the next `spillway top`. Here they
    raise SystemExit, in the main thread."""
    asked = []

    def end(number: int, _frame: Any) -> None:
        # It takes a moment. Another Ctrl-C ends it at once; SIGTERM often comes after one, from the
        # parent.
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


@contextlib.contextmanager
def later(*numbers: int) -> Iterator[None]:
    """These signals do what they do at the end of this. Interrupted while it starts a process, a
    program would not know of it."""
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
