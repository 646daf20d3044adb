"""Ctrl-C in commands: it ends them at once, and none of their child processes outlives them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import Final

#: Seconds that a child has to end by itself after Ctrl-C.
GRACE: Final = 1.2


def run_child(command: Sequence[str]) -> int:
    """Run a command to its end, with this one's terminal; its exit status.

    After Ctrl-C it is asked to end, and killed when it has not done so in :data:`GRACE` seconds.
    """
    child = subprocess.Popen(command)
    try:
        return child.wait()
    except BaseException:
        # A terminal sends SIGINT to both; `kill` sends it to one.
        child.send_signal(signal.SIGINT)
        try:
            child.wait(GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        raise


@contextlib.contextmanager
def dies_of_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process at once, as it ends a program that is not Python's.

    For commands that leave nothing behind. A KeyboardInterrupt in the import of a library may be
    caught there, and is not even raised while one of its functions runs.
    """
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler:  # ignored, or somebody else's
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
