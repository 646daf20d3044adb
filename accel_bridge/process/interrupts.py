"""Ctrl-C, SIGTERM and SIGHUP: each ends a command, and what the command has started."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Final

#: By which a process is asked to end: by a terminal, by a program, by a terminal that goes away.
ASKED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds in which a process that was asked to end ends what it has started.
_GRACE: Final = 3.0
#: Seconds until an interrupt that was ignored comes again.
_LATER: Final = 0.02
_terminated = -_GRACE


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP asks this process to end, as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


def number_of(interrupt: KeyboardInterrupt) -> int:
    """The signal behind an interrupt."""
    return interrupt.number if isinstance(interrupt, Terminated) else int(signal.SIGINT)


def _terminate(number: int, _frame: FrameType | None) -> None:
    global _terminated
    # What ends now takes its children along; a second signal must not keep it from that.
    if time.monotonic() - _terminated >= _GRACE:
        _terminated = time.monotonic()
        raise Terminated(number)


def _again(unraisable: sys.UnraisableHookArgs) -> None:
    """An interrupt that came where Python ignores exceptions, as in a weak reference's callback."""
    global _terminated
    error = unraisable.exc_value
    if not isinstance(error, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    _terminated = -_GRACE
    # Not from here: what is raised in this function is ignored, too.
    later = threading.Timer(_LATER, os.kill, (os.getpid(), number_of(error)))
    later.daemon = True
    later.start()


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise :class:`Terminated`, where they would end the process."""
    changed = []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` lets it be ignored
                signal.signal(number, _terminate)
                changed.append(number)
    hook, sys.unraisablehook = sys.unraisablehook, _again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def as_usual() -> None:
    """Take :func:`raising` back: another program begins in this process."""
    if sys.unraisablehook is _again:
        sys.unraisablehook = sys.__unraisablehook__
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is _terminate:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Let what asks the process to end do so: compiled code looks for signals when it is done."""
    previous = {}
    if threading.current_thread() is threading.main_thread():
        for number in ASKED:
            if signal.getsignal(number) in (signal.default_int_handler, _terminate):
                previous[number] = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Hold Ctrl-C back in the programs of ours that are started here, until they listen.

    A Python that is interrupted while it starts prints a traceback, before any code of ours runs.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def listen() -> None:
    """Take what was held back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
