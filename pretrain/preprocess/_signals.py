"""SIGINT, SIGTERM and SIGHUP end a run at once, but never in the middle of a write."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from accel_bridge.process.interrupts import ASKED

from .errors import Interrupted


class InterruptGuard:
    """Turns SIGINT, SIGTERM and SIGHUP into :class:`Interrupted` while it is entered.

    Outside the main thread Python delivers no signals; there it does nothing.
    """

    def __init__(self) -> None:
        self._shielded = False
        self._pending: int | None = None
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> InterruptGuard:
        if threading.current_thread() is threading.main_thread():
            for number in ASKED:
                if signal.getsignal(number) is signal.SIG_IGN:
                    continue  # a job in the background, or below `nohup`
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Hold a signal back until the end of this block."""
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False
        if self._pending is not None:
            raise _interrupted(self._pending)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._shielded:
            self._pending = number
        else:
            raise _interrupted(number)


def _interrupted(number: int) -> Interrupted:
    return Interrupted(number, signal.Signals(number).name)
